//! A block of a student: attention and feed-forward layer.

use candle_core::{Device, Result, Tensor};

use super::fused::{Sees, gated, norm, softmax, turn};
use super::linear::linear;
use super::shape::{Pairs, Part, Shape};
use crate::loss::Real;

/// How far each pair of numbers is turned at each position: cosines and sines.
#[derive(Debug)]
pub(crate) struct Rotary {
    pairs: Pairs,
    cosines: Tensor,
    sines: Tensor,
}

impl Rotary {
    pub(crate) fn new<F: Real>(shape: &Shape, base: f64, len: usize) -> Result<Self> {
        let half = shape.head / 2;
        let angle = |at: usize| {
            let speed = base.powf(-2.0 * (at % half) as f64 / shape.head as f64);
            (at / half) as f64 * speed
        };
        let table = |of: fn(f64) -> f64| {
            let numbers = (0..len * half).map(|at| F::from_f64(of(angle(at))));
            Tensor::from_vec(numbers.collect::<Vec<F>>(), (len, half), &Device::Cpu)
        };
        Ok(Self { pairs: shape.pairs, cosines: table(f64::cos)?, sines: table(f64::sin)? })
    }
}

/// The turns of a batch's tokens: each sequence begins at position 0.
pub(crate) struct Positions {
    pairs: Pairs,
    cosines: Tensor,
    sines: Tensor,
}

impl Positions {
    pub(crate) fn of(rotary: &Rotary, lens: &[usize]) -> Result<Self> {
        let each = |table: &Tensor| {
            let of_sequences: Result<Vec<Tensor>> =
                lens.iter().map(|&len| table.narrow(0, 0, len)).collect();
            Tensor::cat(&of_sequences?, 0)
        };
        let (cosines, sines) = (each(&rotary.cosines)?, each(&rotary.sines)?);
        Ok(Self { pairs: rotary.pairs, cosines, sines })
    }

    /// Turns the heads of tokens: (tokens, heads, numbers of a head).
    fn turn(&self, heads: &Tensor) -> Result<Tensor> {
        turn(heads, self.pairs, [&self.cosines, &self.sines])
    }
}

/// A block's weights.
pub(crate) struct Block<'a> {
    pub(crate) shape: &'a Shape,
    pub(crate) weights: &'a [Tensor],
    pub(crate) block: usize,
}

impl Block<'_> {
    /// A tensor that the architecture may lack.
    fn optional(&self, part: Part) -> Option<&Tensor> {
        Some(&self.weights[self.shape.place(self.block, part)?])
    }

    fn weight(&self, part: Part) -> &Tensor {
        self.optional(part).expect("every architecture has it")
    }

    /// Norms rows, if there is such a norm.
    pub(crate) fn norm(&self, rows: Tensor, part: Part) -> Result<Tensor> {
        match self.optional(part) {
            Some(weight) => norm(&rows, weight, self.shape.epsilon),
            None => Ok(rows),
        }
    }

    pub(crate) fn linear(&self, rows: &Tensor, part: Part) -> Result<Tensor> {
        linear(rows, self.weight(part))
    }

    /// Queries, keys or values of all tokens: (tokens, heads, numbers of a head).
    fn project(&self, rows: &Tensor, part: Part, bias: Part) -> Result<Tensor> {
        let mut heads = self.linear(rows, part)?;
        if let Some(bias) = self.optional(bias) {
            heads = heads.broadcast_add(bias)?;
        }
        let (tokens, numbers) = heads.dims2()?;
        heads.reshape((tokens, numbers / self.shape.head, self.shape.head))
    }

    /// Queries, keys and values of all tokens; scores are the products of the first two.
    pub(crate) fn heads(&self, normed: &Tensor, positions: &Positions) -> Result<[Tensor; 3]> {
        let queries = self.project(normed, Part::Query, Part::QueryBias)?;
        let queries = positions.turn(&self.norm(queries, Part::QueryNorm)?)?;
        let keys = self.project(normed, Part::Key, Part::KeyBias)?;
        let keys = positions.turn(&self.norm(keys, Part::KeyNorm)?)?;
        let values = self.project(normed, Part::Value, Part::ValueBias)?;
        let queries = (queries * (self.shape.head as f64).powf(-0.5))?;
        Ok([queries, keys, values])
    }

    pub(crate) fn attention(
        &self,
        stream: &Tensor,
        lens: &[usize],
        positions: &Positions,
    ) -> Result<Tensor> {
        let normed = self.norm(stream.clone(), Part::AttnNorm)?;
        let [queries, keys, values] = self.heads(&normed, positions)?;
        let (mut start, mut mixed) = (0, Vec::with_capacity(lens.len()));
        for &len in lens {
            let of = |all: &Tensor| all.narrow(0, start, len);
            mixed.push(self.mix(&of(&queries)?, &of(&keys)?, &of(&values)?)?);
            start += len;
        }
        let result = self.linear(&Tensor::cat(&mixed, 0)?, Part::AttnOutput)?;
        stream + self.norm(result, Part::AttnResultNorm)?
    }

    /// What the tokens of a sequence take from those up to each.
    fn mix(&self, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
        let len = queries.dim(0)?;
        let queries = queries.transpose(0, 1)?.contiguous()?;
        let scores = queries.matmul(&self.shared(keys)?.t()?)?;
        let seen = self.shape.window_of(self.block).map_or(len, |window| window.len);
        let weights = softmax(&scores, Sees::Last(seen))?;
        let mixed = weights.matmul(&self.shared(values)?)?;
        mixed.transpose(0, 1)?.reshape((len, self.shape.heads * self.shape.head))
    }

    /// Keys or values of a sequence for each head of queries, of which several share one.
    pub(crate) fn shared(&self, of: &Tensor) -> Result<Tensor> {
        let Shape { heads, key_heads, head, .. } = *self.shape;
        let len = of.dim(0)?;
        let sizes = (key_heads, heads / key_heads, len, head);
        of.transpose(0, 1)?.unsqueeze(1)?.expand(sizes)?.reshape((heads, len, head))
    }

    pub(crate) fn feed_forward(&self, stream: &Tensor) -> Result<Tensor> {
        let normed = self.norm(stream.clone(), Part::FfnNorm)?;
        let gates = self.linear(&normed, Part::Gate)?;
        let gated = gated(&gates, &self.linear(&normed, Part::Up)?, self.shape.activation)?;
        stream + self.norm(self.linear(&gated, Part::Down)?, Part::FfnResultNorm)?
    }
}
