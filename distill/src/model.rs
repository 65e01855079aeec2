//! A student of the llama, qwen or gemma family: candle runs it forward and back.
//!
//! Norms, the rotary embedding and the softmax are put together from candle's elementary operations:
//! its fused ones have no pass back and stop gradients without a word. Trained are the blocks and the
//! last norm. Embeddings and output stay as they are: they are most of a small model's numbers, and what
//! the blocks say is said in them.

pub(crate) mod block;
pub(crate) mod shape;

use candle_core::{Device, Result, Tensor, Var};
use rayon::prelude::*;

use self::block::{Block, Positions, Rotary, norm};
pub use self::shape::{Activation, OUTPUT_NORM, Pairs, Shape, Window, block_name};
use crate::loss::{Measures, Real};

/// Rows of logits that are in memory at once.
pub(crate) const HEAD_ROWS: usize = 128;

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
    // Of blocks that see the last tokens alone.
    window_rotary: Option<Rotary>,
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
        let output =
            Tensor::from_vec(output.unwrap_or_else(|| embedding.clone()), sizes, &Device::Cpu)?;
        for ((name, sizes), weights) in shape.tensors().iter().zip(&weights) {
            if sizes.iter().product::<usize>() != weights.len() {
                candle_core::bail!("{name} has {} numbers, not {sizes:?}", weights.len());
            }
        }
        let rotary = Rotary::new::<F>(&shape, shape.base, len)?;
        let window = shape.window.as_ref();
        let window_rotary =
            window.map(|window| Rotary::new::<F>(&shape, window.base, len)).transpose()?;
        Ok(Self { shape, embedding, output, rotary, window_rotary, weights })
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
        if self.shape.embedding_scale != 1.0 {
            stream = (stream * self.shape.embedding_scale)?;
        }
        let positions = Positions::of(&self.rotary, &batch.lens)?;
        let window_positions =
            self.window_rotary.as_ref().map(|it| Positions::of(it, &batch.lens)).transpose()?;
        for block in 0..self.shape.blocks {
            let in_window = self.shape.window_of(block).and(window_positions.as_ref());
            let positions = in_window.unwrap_or(&positions);
            let block = Block { shape: &self.shape, weights, block };
            stream = block.attention(&stream, &batch.lens, positions)?;
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

#[cfg(test)]
mod tests;
