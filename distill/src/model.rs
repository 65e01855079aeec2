//! A student of the llama family: candle runs it forward and back.
//!
//! Norms, the rotary embedding and the softmax are put together from candle's elementary operations:
//! its fused ones have no pass back and stop gradients without a word. Trained are the blocks and the
//! last norm. Embeddings and output stay as they are: they are most of a small model's numbers, and what
//! the blocks say is said in them.

use candle_core::{D, Device, Result, Tensor, Var};
use rayon::prelude::*;

use crate::loss::{Measures, Real};

/// Rows of logits that are in memory at once.
const HEAD_ROWS: usize = 128;

/// Which numbers of a head are turned together by the rotary embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairs {
    /// Neighbours, as in files of the llama architecture.
    Neighbours,
    /// One of each half, as in those of qwen2.
    Halves,
}

/// The sizes of a student, and what is particular to its architecture.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Numbers of a token in the residual stream.
    pub width: usize,
    /// Blocks.
    pub blocks: usize,
    /// Numbers between the two products of a feed-forward layer.
    pub feed_forward: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub key_heads: usize,
    /// Numbers of a head.
    pub head: usize,
    /// Whether queries, keys and values have a bias.
    pub biased: bool,
    /// What the rotary embedding turns together.
    pub pairs: Pairs,
    /// Its base.
    pub base: f64,
    /// What norms add to the mean square.
    pub epsilon: f64,
}

/// The trained tensors of a block, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    AttnNorm,
    Query,
    Key,
    Value,
    AttnOutput,
    FfnNorm,
    Gate,
    Up,
    Down,
    QueryBias,
    KeyBias,
    ValueBias,
}

impl Part {
    const ALL: &'static [Self] = &[
        Self::AttnNorm,
        Self::Query,
        Self::Key,
        Self::Value,
        Self::AttnOutput,
        Self::FfnNorm,
        Self::Gate,
        Self::Up,
        Self::Down,
        Self::QueryBias,
        Self::KeyBias,
        Self::ValueBias,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::AttnNorm => "attn_norm.weight",
            Self::Query => "attn_q.weight",
            Self::Key => "attn_k.weight",
            Self::Value => "attn_v.weight",
            Self::AttnOutput => "attn_output.weight",
            Self::FfnNorm => "ffn_norm.weight",
            Self::Gate => "ffn_gate.weight",
            Self::Up => "ffn_up.weight",
            Self::Down => "ffn_down.weight",
            Self::QueryBias => "attn_q.bias",
            Self::KeyBias => "attn_k.bias",
            Self::ValueBias => "attn_v.bias",
        }
    }
}

/// The name of the last norm's weight.
pub const OUTPUT_NORM: &str = "output_norm.weight";

impl Shape {
    fn queries(&self) -> usize {
        self.heads * self.head
    }

    fn keys(&self) -> usize {
        self.key_heads * self.head
    }

    fn parts(&self) -> &'static [Part] {
        if self.biased { Part::ALL } else { &Part::ALL[..9] }
    }

    fn sizes(&self, part: Part) -> Vec<usize> {
        let (width, wide) = (self.width, self.feed_forward);
        match part {
            Part::AttnNorm | Part::FfnNorm => vec![width],
            Part::Query => vec![self.queries(), width],
            Part::Key | Part::Value => vec![self.keys(), width],
            Part::AttnOutput => vec![width, self.queries()],
            Part::Gate | Part::Up => vec![wide, width],
            Part::Down => vec![width, wide],
            Part::QueryBias => vec![self.queries()],
            Part::KeyBias | Part::ValueBias => vec![self.keys()],
        }
    }

    /// The trained tensors: names and sizes, in the order of [`Student::weights`].
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let block = |block: usize| {
            let part = move |&part: &Part| (block_name(block, part.name()), self.sizes(part));
            self.parts().iter().map(part)
        };
        let last = (OUTPUT_NORM.to_owned(), vec![self.width]);
        (0..self.blocks).flat_map(block).chain([last]).collect()
    }

    /// The names of a block's tensors, without the block's number.
    pub fn block_tensors(&self) -> Vec<&'static str> {
        self.parts().iter().map(|part| part.name()).collect()
    }

    /// How many numbers are trained.
    pub fn trained(&self) -> usize {
        self.tensors().iter().map(|(_, sizes)| sizes.iter().product::<usize>()).sum()
    }

    /// Numbers that a pass forward keeps for the pass back, for each token of a sequence of `len`: what
    /// each operation gives.
    pub fn kept_per_token(&self, len: usize) -> usize {
        let heads = 9 * self.queries() + 5 * self.keys() + 5 * self.heads * len;
        self.blocks * (10 * self.width + heads + 4 * self.feed_forward)
    }

    fn place(&self, block: usize, part: Part) -> usize {
        block * self.parts().len() + part as usize
    }
}

/// A tensor's name in its block.
pub fn block_name(block: usize, part: &str) -> String {
    format!("blk.{block}.{part}")
}

/// Sequences, one after the other.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// Their tokens.
    pub tokens: Vec<u32>,
    /// How many each has.
    pub lens: Vec<usize>,
    /// Tokens after which there is a row to compare with, by their place in `tokens`.
    pub asked: Vec<usize>,
}

/// A student with its weights.
#[derive(Debug)]
pub struct Student<F> {
    shape: Shape,
    embedding: Vec<F>,
    // Of each token, turned to be multiplied with.
    output: Tensor,
    rotary: Rotary,
    /// What is trained, in the order of [`Shape::tensors`].
    pub weights: Vec<Vec<F>>,
}

/// What is done with a row of logits: it is compared, and becomes the slope of what was found.
pub type Compare<'a, F> = &'a (dyn Fn(usize, &mut [F]) -> Measures + Sync);

impl<F: Real> Student<F> {
    /// A student for sequences of at most `len` tokens.
    ///
    /// # Errors
    /// If a tensor has another size than its shape says.
    pub fn new(
        shape: Shape,
        embedding: Vec<F>,
        output: Option<Vec<F>>,
        weights: Vec<Vec<F>>,
        len: usize,
    ) -> Result<Self> {
        let sizes = (shape.vocab, shape.width);
        let output = Tensor::from_vec(output.unwrap_or_else(|| embedding.clone()), sizes, &Device::Cpu)?;
        for ((name, sizes), weights) in shape.tensors().iter().zip(&weights) {
            if sizes.iter().product::<usize>() != weights.len() {
                candle_core::bail!("{name} has {} numbers, not {sizes:?}", weights.len());
            }
        }
        let rotary = Rotary::new::<F>(&shape, len)?;
        Ok(Self { shape, embedding, output, rotary, weights })
    }

    /// Its sizes.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Compares the rows of a batch; nothing is trained.
    ///
    /// # Errors
    /// If a token is not in the vocabulary, or a sequence longer than was said.
    pub fn measure(&self, batch: &Batch, compare: Compare<'_, F>) -> Result<Vec<Measures>> {
        let tensors = self.tensors(|data, sizes| Tensor::from_slice(data, sizes, &Device::Cpu))?;
        let rows = self.rows(batch, &tensors)?;
        Ok(self.head(&rows, compare)?.0)
    }

    /// Compares the rows of a batch, and adds the slopes by all weights to `gradients`.
    ///
    /// # Errors
    /// As for [`Self::measure`], and if a weight got no gradient.
    pub fn learn(
        &self,
        batch: &Batch,
        compare: Compare<'_, F>,
        gradients: &mut [Vec<F>],
    ) -> Result<Vec<Measures>> {
        let variable = |data: &[F], sizes: &[usize]| {
            Ok(Var::from_slice(data, sizes, &Device::Cpu)?.into_inner())
        };
        let tensors = self.tensors(variable)?;
        let rows = self.rows(batch, &tensors)?;
        let (found, slopes) = self.head(&rows.detach(), compare)?;
        // Its slope by the rows is what the head found.
        let store = (rows * slopes)?.sum_all()?.backward()?;
        for ((tensor, gradient), (name, _)) in
            tensors.iter().zip(gradients).zip(self.shape.tensors())
        {
            let Some(slope) = store.get(tensor) else {
                candle_core::bail!("{name} got no gradient");
            };
            for (sum, slope) in gradient.iter_mut().zip(slope.flatten_all()?.to_vec1::<F>()?) {
                *sum += slope;
            }
        }
        Ok(found)
    }

    /// The weights as tensors.
    fn tensors(&self, make: impl Fn(&[F], &[usize]) -> Result<Tensor>) -> Result<Vec<Tensor>> {
        let shapes = self.shape.tensors();
        self.weights.iter().zip(&shapes).map(|(data, (_, sizes))| make(data, sizes)).collect()
    }

    /// What goes into the output for each row that is asked for.
    fn rows(&self, batch: &Batch, weights: &[Tensor]) -> Result<Tensor> {
        let Shape { width, vocab, .. } = self.shape;
        let mut stream = Vec::with_capacity(batch.tokens.len() * width);
        for &token in &batch.tokens {
            if token as usize >= vocab {
                candle_core::bail!("token {token} is not in a vocabulary of {vocab}");
            }
            stream.extend_from_slice(&self.embedding[token as usize * width..][..width]);
        }
        let mut stream = Tensor::from_vec(stream, (batch.tokens.len(), width), &Device::Cpu)?;
        let positions = Positions::of(&self.rotary, batch)?;
        for block in 0..self.shape.blocks {
            let block = Block { shape: &self.shape, weights, block };
            stream = block.attention(&stream, batch, &positions)?;
            stream = block.feed_forward(&stream)?;
        }
        let asked: Vec<i64> = batch.asked.iter().map(|&at| at as i64).collect();
        let asked = Tensor::from_vec(asked, batch.asked.len(), &Device::Cpu)?;
        norm(&stream.index_select(&asked, 0)?, &weights[weights.len() - 1], self.shape.epsilon)
    }

    /// Logits, some rows at a time: what the comparison found, and its slope by the rows that go in.
    fn head(&self, rows: &Tensor, compare: Compare<'_, F>) -> Result<(Vec<Measures>, Tensor)> {
        let (count, vocab) = (rows.dim(0)?, self.shape.vocab);
        let (mut found, mut slopes) = (Vec::with_capacity(count), Vec::new());
        let turned = self.output.t()?;
        for start in (0..count).step_by(HEAD_ROWS) {
            let len = HEAD_ROWS.min(count - start);
            let logits = rows.narrow(0, start, len)?.matmul(&turned)?;
            let mut logits = logits.flatten_all()?.to_vec1::<F>()?;
            let each = logits.par_chunks_mut(vocab).enumerate();
            found.par_extend(each.map(|(at, logits)| compare(start + at, logits)));
            let by_logits = Tensor::from_vec(logits, (len, vocab), &Device::Cpu)?;
            slopes.push(by_logits.matmul(&self.output)?);
        }
        Ok((found, Tensor::cat(&slopes, 0)?))
    }
}

/// How far each pair of numbers is turned at each position: cosines and sines.
#[derive(Debug)]
struct Rotary {
    pairs: Pairs,
    cosines: Tensor,
    sines: Tensor,
}

impl Rotary {
    fn new<F: Real>(shape: &Shape, len: usize) -> Result<Self> {
        let half = shape.head / 2;
        let angle = |at: usize| {
            let speed = shape.base.powf(-2.0 * (at % half) as f64 / shape.head as f64);
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
struct Positions {
    pairs: Pairs,
    cosines: Tensor,
    sines: Tensor,
}

impl Positions {
    fn of(rotary: &Rotary, batch: &Batch) -> Result<Self> {
        let each = |table: &Tensor| {
            let of_sequences: Result<Vec<Tensor>> =
                batch.lens.iter().map(|&len| table.narrow(0, 0, len)).collect();
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
struct Block<'a> {
    shape: &'a Shape,
    weights: &'a [Tensor],
    block: usize,
}

impl Block<'_> {
    fn weight(&self, part: Part) -> &Tensor {
        &self.weights[self.shape.place(self.block, part)]
    }

    fn norm(&self, stream: &Tensor, part: Part) -> Result<Tensor> {
        norm(stream, self.weight(part), self.shape.epsilon)
    }

    fn linear(&self, rows: &Tensor, part: Part) -> Result<Tensor> {
        rows.matmul(&self.weight(part).t()?)
    }

    /// Queries, keys or values of all tokens: (tokens, heads, numbers of a head).
    fn project(&self, rows: &Tensor, part: Part, bias: Part) -> Result<Tensor> {
        let mut heads = self.linear(rows, part)?;
        if self.shape.biased {
            heads = heads.broadcast_add(self.weight(bias))?;
        }
        let (tokens, numbers) = heads.dims2()?;
        heads.reshape((tokens, numbers / self.shape.head, self.shape.head))
    }

    fn attention(&self, stream: &Tensor, batch: &Batch, positions: &Positions) -> Result<Tensor> {
        let normed = self.norm(stream, Part::AttnNorm)?;
        let queries = positions.turn(&self.project(&normed, Part::Query, Part::QueryBias)?)?;
        let keys = positions.turn(&self.project(&normed, Part::Key, Part::KeyBias)?)?;
        let values = self.project(&normed, Part::Value, Part::ValueBias)?;
        let queries = (queries * (self.shape.head as f64).powf(-0.5))?;
        let (mut start, mut mixed) = (0, Vec::with_capacity(batch.lens.len()));
        for &len in &batch.lens {
            let of = |all: &Tensor| all.narrow(0, start, len);
            mixed.push(self.mix(&of(&queries)?, &of(&keys)?, &of(&values)?)?);
            start += len;
        }
        stream + self.linear(&Tensor::cat(&mixed, 0)?, Part::AttnOutput)?
    }

    /// What the tokens of a sequence take from those up to each.
    fn mix(&self, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
        let Shape { heads, key_heads, head, .. } = *self.shape;
        let len = queries.dim(0)?;
        // Several heads of queries share one of keys.
        let shared = |of: &Tensor| {
            let sizes = (key_heads, heads / key_heads, len, head);
            of.transpose(0, 1)?.unsqueeze(1)?.expand(sizes)?.reshape((heads, len, head))
        };
        let queries = queries.transpose(0, 1)?.contiguous()?;
        let scores = queries.matmul(&shared(keys)?.t()?.contiguous()?)?;
        let weights = softmax(&scores.broadcast_add(&causal(len, scores.dtype())?)?)?;
        let mixed = weights.matmul(&shared(values)?)?;
        mixed.transpose(0, 1)?.reshape((len, heads * head))
    }

    fn feed_forward(&self, stream: &Tensor) -> Result<Tensor> {
        let normed = self.norm(stream, Part::FfnNorm)?;
        let gated = (self.linear(&normed, Part::Gate)?.silu()? * self.linear(&normed, Part::Up)?)?;
        stream + self.linear(&gated, Part::Down)?
    }
}

/// Scales rows to a mean square of one, and each number by its weight.
fn norm(rows: &Tensor, weight: &Tensor, epsilon: f64) -> Result<Tensor> {
    let scale = (rows.sqr()?.mean_keepdim(D::Minus1)? + epsilon)?.sqrt()?;
    rows.broadcast_div(&scale)?.broadcast_mul(weight)
}

fn softmax(rows: &Tensor) -> Result<Tensor> {
    // What all of a row have in common makes no difference, nor does its slope.
    let most = rows.max_keepdim(D::Minus1)?.detach();
    let shares = rows.broadcast_sub(&most)?.exp()?;
    shares.broadcast_div(&shares.sum_keepdim(D::Minus1)?)
}

/// Nothing for tokens up to each, and minus infinity for those after it.
fn causal(len: usize, kind: candle_core::DType) -> Result<Tensor> {
    let number = |at: usize| if at % len > at / len { f32::NEG_INFINITY } else { 0.0 };
    let numbers: Vec<f32> = (0..len * len).map(number).collect();
    Tensor::from_vec(numbers, (len, len), &Device::Cpu)?.to_dtype(kind)
}

#[cfg(test)]
mod tests;
