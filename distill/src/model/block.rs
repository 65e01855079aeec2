//! A block of a student: attention and feed-forward layer, from operations whose gradients candle knows.

use candle_core::{D, Device, Result, Tensor};

use super::shape::{Activation, Pairs, Part, Shape};
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
            // One turn for all heads of a token.
            Tensor::cat(&of_sequences?, 0)?.unsqueeze(1)
        };
        let (cosines, sines) = (each(&rotary.cosines)?, each(&rotary.sines)?);
        Ok(Self { pairs: rotary.pairs, cosines, sines })
    }

    /// Turns the heads of tokens: (tokens, heads, numbers of a head).
    fn turn(&self, heads: &Tensor) -> Result<Tensor> {
        let (tokens, count, len) = heads.dims3()?;
        let (one, two) = match self.pairs {
            Pairs::Neighbours => {
                let pairs = heads.reshape((tokens, count, len / 2, 2))?;
                (pairs.narrow(3, 0, 1)?.squeeze(3)?, pairs.narrow(3, 1, 1)?.squeeze(3)?)
            }
            Pairs::Halves => (heads.narrow(2, 0, len / 2)?, heads.narrow(2, len / 2, len / 2)?),
        };
        let (cosines, sines) = (&self.cosines, &self.sines);
        let first = (one.broadcast_mul(cosines)? - two.broadcast_mul(sines)?)?;
        let second = (one.broadcast_mul(sines)? + two.broadcast_mul(cosines)?)?;
        match self.pairs {
            Pairs::Neighbours => Tensor::stack(&[first, second], 3)?.reshape((tokens, count, len)),
            Pairs::Halves => Tensor::cat(&[first, second], 2),
        }
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
        rows.matmul(&self.weight(part).t()?)
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
        let scores = queries.matmul(&self.shared(keys)?.t()?.contiguous()?)?;
        let seen = self.shape.window_of(self.block).map_or(len, |window| window.len);
        let sees = |token: usize, other: usize| other <= token && token - other < seen;
        let weights = softmax(&scores.broadcast_add(&mask(len, scores.dtype(), sees)?)?)?;
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
        let gate = self.linear(&normed, Part::Gate)?;
        let gate = match self.shape.activation {
            Activation::Silu => gate.silu()?,
            Activation::Gelu => gate.gelu()?,
        };
        let gated = (gate * self.linear(&normed, Part::Up)?)?;
        stream + self.norm(self.linear(&gated, Part::Down)?, Part::FfnResultNorm)?
    }
}

/// Scales rows to a mean square of one, and each number by its weight.
pub(crate) fn norm(rows: &Tensor, weight: &Tensor, epsilon: f64) -> Result<Tensor> {
    let scale = (rows.sqr()?.mean_keepdim(D::Minus1)? + epsilon)?.sqrt()?;
    rows.broadcast_div(&scale)?.broadcast_mul(weight)
}

pub(crate) fn softmax(rows: &Tensor) -> Result<Tensor> {
    // What all of a row have in common makes no difference, nor does its slope.
    let most = rows.max_keepdim(D::Minus1)?.detach();
    let shares = rows.broadcast_sub(&most)?.exp()?;
    shares.broadcast_div(&shares.sum_keepdim(D::Minus1)?)
}

/// Nothing for what each token sees of a sequence, and minus infinity for the rest.
pub(crate) fn mask(
    len: usize,
    kind: candle_core::DType,
    sees: impl Fn(usize, usize) -> bool,
) -> Result<Tensor> {
    let number = |at: usize| if sees(at / len, at % len) { 0.0 } else { f32::NEG_INFINITY };
    let numbers: Vec<f32> = (0..len * len).map(number).collect();
    Tensor::from_vec(numbers, (len, len), &Device::Cpu)?.to_dtype(kind)
}
