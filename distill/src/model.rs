//! A student of the llama, qwen or gemma family: candle runs it forward and back.
//!
//! Norms, the rotary embedding, the softmax and the gates are operations of our own: candle's have no
//! pass back and stop gradients without a word. Trained are the blocks and the last norm. Embeddings and output stay as they are unless it is asked for: they are most of a small
//! model's numbers, and what the blocks say is said in them.

pub(crate) mod block;
pub(crate) mod fused;
pub(crate) mod linear;
pub(crate) mod shape;

use candle_core::{Device, Result, Storage, Tensor, Var};
use rayon::prelude::*;

use self::block::{Block, Positions, Rotary};
use self::fused::norm;
pub use self::shape::{
    Activation, EMBEDDING, OUTPUT, OUTPUT_NORM, Pairs, Shape, TrainedVocab, Window, block_name,
};
use crate::loss::{Measures, Real};

/// Rows of logits that are in memory at once.
pub(crate) const HEAD_ROWS: usize = 128;

/// Numbers that a thread adds at once.
const ADDED_AT_ONCE: usize = 1 << 16;

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

/// Embeddings and output that stay as they are.
#[derive(Debug)]
struct FrozenVocab<F> {
    embedding: Vec<F>,
    output: Tensor,
}

/// A student with its weights.
#[derive(Debug)]
pub struct Student<F> {
    shape: Shape,
    // None if they are trained, and so among the weights.
    frozen: Option<FrozenVocab<F>>,
    rotary: Rotary,
    // Of blocks that see the last tokens alone.
    window_rotary: Option<Rotary>,
    /// What is trained, in the order of [`Shape::tensors`].
    pub weights: Vec<Vec<F>>,
}

/// What is done with a row of logits: it is compared, and becomes the slope of what was found.
pub type Compare<'a, F> = &'a (dyn Fn(usize, &mut [F]) -> Measures + Sync);

/// The same for a row of one of several parts of a step.
pub type CompareParts<'a, F> = &'a (dyn Fn(usize, usize, &mut [F]) -> Measures + Sync);

impl<F: Real> Student<F> {
    /// A student for sequences of at most `len` tokens. Embeddings, and the output if that is another
    /// tensor, stay as they are, or are the last weights if they are trained.
    ///
    /// # Errors
    /// If a tensor has another size than its shape says.
    pub fn new(
        shape: Shape,
        (embedding, output): (Vec<F>, Option<Vec<F>>),
        mut weights: Vec<Vec<F>>,
        len: usize,
    ) -> Result<Self> {
        let frozen = if shape.trained_vocab.is_some() {
            weights.push(embedding);
            weights.extend(output);
            None
        } else {
            let output = output.unwrap_or_else(|| embedding.clone());
            let output = Tensor::from_vec(output, (shape.vocab, shape.width), &Device::Cpu)?;
            Some(FrozenVocab { embedding, output })
        };
        let tensors = shape.tensors();
        if tensors.len() != weights.len() {
            candle_core::bail!("{} tensors, not {}", weights.len(), tensors.len());
        }
        for ((name, sizes), weights) in tensors.iter().zip(&weights) {
            if sizes.iter().product::<usize>() != weights.len() {
                candle_core::bail!("{name} has {} numbers, not {sizes:?}", weights.len());
            }
        }
        let rotary = Rotary::new::<F>(&shape, shape.base, len)?;
        let window = shape.window.as_ref();
        let window_rotary =
            window.map(|window| Rotary::new::<F>(&shape, window.base, len)).transpose()?;
        Ok(Self { shape, frozen, rotary, window_rotary, weights })
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
        let tensors = self.inner_tensors(constant)?;
        let stream = constant(&self.embedded(batch)?, &[batch.tokens.len(), self.shape.width])?;
        let rows = self.rows(batch, stream, &tensors)?;
        Ok(self.head(&rows, compare, None)?.0)
    }

    /// Compares the rows of batches, side by side, and adds the slopes by all weights to `gradients`. Returns
    /// what was found in each batch.
    ///
    /// # Errors
    /// As for [`Self::measure`], and if a weight got no gradient.
    pub fn learn(
        &self,
        batches: &[Batch],
        compare: CompareParts<'_, F>,
        gradients: &mut [Vec<F>],
    ) -> Result<Vec<Vec<Measures>>> {
        let tensors = self.inner_tensors(variable)?;
        learn_side_by_side(batches, gradients, |part, batch| {
            self.learn_batch(batch, &tensors, &|at, logits| compare(part, at, logits))
        })
    }

    /// What was found in a batch, and the slope by each weight.
    fn learn_batch(
        &self,
        batch: &Batch,
        tensors: &[Tensor],
        compare: Compare<'_, F>,
    ) -> Result<(Vec<Measures>, Vec<Tensor>)> {
        let width = self.shape.width;
        let sizes = [batch.tokens.len(), width];
        let stream = match &self.frozen {
            Some(_) => constant(&self.embedded(batch)?, &sizes)?,
            None => variable(&self.embedded(batch)?, &sizes)?,
        };
        let rows = self.rows(batch, stream.clone(), tensors)?;
        let trained_vocab = self.weights[tensors.len()..].iter();
        let mut by_vocab: Vec<Vec<F>> = trained_vocab.map(|it| vec![F::zero(); it.len()]).collect();
        let by_output = by_vocab.last_mut().map(|it| &mut it[..]);
        let (found, slopes) = self.head(&rows.detach(), compare, by_output)?;
        // Its slope by the rows is what the head found.
        let store = (rows * slopes)?.sum_all()?.backward()?;
        let slope = |tensor: &Tensor, name: &str| match store.get(tensor) {
            Some(slope) => slope.flatten_all(),
            None => candle_core::bail!("{name} got no gradient"),
        };
        let names = self.shape.tensors();
        let inner = tensors.iter().zip(&names).map(|(tensor, (name, _))| slope(tensor, name));
        let mut all: Vec<Tensor> = inner.collect::<Result<_>>()?;
        if let Some(by_embedding) = by_vocab.first_mut() {
            let by_stream = slope(&stream, EMBEDDING)?.to_vec1::<F>()?;
            for (&token, slope) in batch.tokens.iter().zip(by_stream.chunks(width)) {
                add(&mut by_embedding[token as usize * width..][..width], slope);
            }
        }
        for slope in by_vocab {
            let count = slope.len();
            all.push(Tensor::from_vec(slope, count, &Device::Cpu)?);
        }
        Ok((found, all))
    }

    /// The weights of blocks and the last norm as tensors.
    fn inner_tensors(
        &self,
        make: impl Fn(&[F], &[usize]) -> Result<Tensor>,
    ) -> Result<Vec<Tensor>> {
        let shapes = self.shape.tensors().into_iter().take(self.shape.inner_tensors());
        self.weights.iter().zip(shapes).map(|(data, (_, sizes))| make(data, &sizes)).collect()
    }

    /// The embeddings of a batch's tokens.
    fn embedded(&self, batch: &Batch) -> Result<Vec<F>> {
        let Shape { width, vocab, .. } = self.shape;
        let embedding = match &self.frozen {
            Some(frozen) => &frozen.embedding,
            None => &self.weights[self.shape.inner_tensors()],
        };
        let mut stream = Vec::with_capacity(batch.tokens.len() * width);
        for &token in &batch.tokens {
            if token as usize >= vocab {
                candle_core::bail!("token {token} is not in a vocabulary of {vocab}");
            }
            stream.extend_from_slice(&embedding[token as usize * width..][..width]);
        }
        Ok(stream)
    }

    /// What goes into the output for each row that is asked for.
    fn rows(&self, batch: &Batch, mut stream: Tensor, weights: &[Tensor]) -> Result<Tensor> {
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

    /// Logits, some rows at a time: what the comparison found, and its slope by the rows that go in. The
    /// slope by the output is added to `by_output`.
    fn head(
        &self,
        rows: &Tensor,
        compare: Compare<'_, F>,
        mut by_output: Option<&mut [F]>,
    ) -> Result<(Vec<Measures>, Tensor)> {
        let (count, vocab) = (rows.dim(0)?, self.shape.vocab);
        let (mut found, mut slopes) = (Vec::with_capacity(count), Vec::new());
        let output = match (&self.frozen, self.weights.last()) {
            (Some(frozen), _) => frozen.output.clone(),
            (None, weights) => {
                let weights = weights.map_or(&[][..], |it| it);
                Tensor::from_slice(weights, (vocab, self.shape.width), &Device::Cpu)?
            }
        };
        let turned = output.t()?;
        for start in (0..count).step_by(HEAD_ROWS) {
            let len = HEAD_ROWS.min(count - start);
            let some = rows.narrow(0, start, len)?;
            let logits = some.matmul(&turned)?;
            let mut logits = logits.flatten_all()?.to_vec1::<F>()?;
            let each = logits.par_chunks_mut(vocab).enumerate();
            found.par_extend(each.map(|(at, logits)| compare(start + at, logits)));
            let by_logits = Tensor::from_vec(logits, (len, vocab), &Device::Cpu)?;
            slopes.push(by_logits.matmul(&output)?);
            if let Some(sum) = &mut by_output {
                add_tensor(sum, &by_logits.t()?.matmul(&some)?)?;
            }
        }
        Ok((found, Tensor::cat(&slopes, 0)?))
    }
}

fn constant<F: Real>(data: &[F], sizes: &[usize]) -> Result<Tensor> {
    Tensor::from_slice(data, sizes, &Device::Cpu)
}

/// A tensor that gets a gradient.
fn variable<F: Real>(data: &[F], sizes: &[usize]) -> Result<Tensor> {
    Ok(Var::from_slice(data, sizes, &Device::Cpu)?.into_inner())
}

fn add<F: Real>(sums: &mut [F], numbers: &[F]) {
    for (sum, &number) in sums.iter_mut().zip(numbers) {
        *sum += number;
    }
}

/// Learns from the parts of a step at once, a thread each: products of this size gain little from a second one. Their
/// slopes are added in order, so that sums are always the same.
pub(crate) fn learn_side_by_side<F: Real, P: Sync>(
    parts: &[P],
    gradients: &mut [Vec<F>],
    learn: impl Fn(usize, &P) -> Result<(Vec<Measures>, Vec<Tensor>)> + Sync,
) -> Result<Vec<Vec<Measures>>> {
    let learned: Result<Vec<_>> =
        parts.par_iter().enumerate().map(|(at, part)| learn(at, part)).collect();
    let (found, slopes): (Vec<_>, Vec<_>) = learned?.into_iter().unzip();
    for slopes in &slopes {
        for (gradient, slope) in gradients.iter_mut().zip(slopes) {
            add_tensor(gradient, slope)?;
        }
    }
    Ok(found)
}

/// Adds a tensor that is in one piece.
pub(crate) fn add_tensor<F: Real>(sums: &mut [F], tensor: &Tensor) -> Result<()> {
    let (storage, layout) = tensor.storage_and_layout();
    let (Storage::Cpu(storage), Some((start, end))) = (&*storage, layout.contiguous_offsets())
    else {
        candle_core::bail!("a tensor in pieces: {layout:?}");
    };
    let numbers = &F::cpu_storage_as_slice(storage)?[start..end];
    let parts = sums.par_chunks_mut(ADDED_AT_ONCE).zip(numbers.par_chunks(ADDED_AT_ONCE));
    parts.for_each(|(sums, numbers)| add(sums, numbers));
    Ok(())
}

#[cfg(test)]
mod tests;
