//! An EAGLE-3 head (arXiv 2503.01840): one block that drafts from the target's hidden states. candle runs it
//! forward and back, unrolled over the tokens of a draft.
//!
//! Entry P of a sequence has the token at P + 1 and a state: what goes into three of the target's layers at P,
//! brought to the head's width. Its row is for the token at P + 2. Of a drafted token the target has no state
//! yet, so the head's own output of the entry before takes its place: at depth k the states are the outputs of
//! depth k - 1, and attention sees what a cache would have then. Embeddings are the target's and not trained;
//! the output over a part of its vocabulary is.

mod features;
mod file;
mod pupil;
mod shape;
mod vocab;

use candle_core::{DType, Device, Result, Tensor, Var};
use rayon::prelude::*;

pub use self::features::{Features, collect, size};
pub use self::file::{export, head, shape};
pub use self::pupil::HeadPupil;
pub use self::shape::{HeadShape, memory};
pub use self::vocab::DraftVocab;
use crate::loss::{Measures, Real};
use crate::model::block::{Block, Positions, Rotary};
use crate::model::fused::{Sees, norm, softmax};
use crate::model::linear::linear;
use crate::model::shape::Part;
use crate::model::{Compare, CompareParts, HEAD_ROWS, add_tensor, learn_side_by_side};

/// Sequences as a head reads them, one after the other.
#[derive(Debug, Clone, Default)]
pub struct Entries<F> {
    /// The token of each entry.
    pub tokens: Vec<u32>,
    /// What goes into the target's layers at the position before the token.
    pub features: Vec<F>,
    /// How many entries each sequence has.
    pub lens: Vec<usize>,
    /// The entries whose rows are asked for at each depth of a draft.
    pub asked: Vec<Vec<usize>>,
}

/// A head with its weights.
#[derive(Debug)]
pub struct DraftHead<F> {
    shape: HeadShape,
    embedding: Vec<F>,
    rotary: Rotary,
    /// What is trained, in the order of [`HeadShape::tensors`].
    pub weights: Vec<Vec<F>>,
}

impl<F: Real> DraftHead<F> {
    /// A head for sequences of at most `len` tokens, with the target's embeddings.
    ///
    /// # Errors
    /// If a tensor has another size than its shape says.
    pub fn new(
        shape: HeadShape,
        embedding: Vec<F>,
        weights: Vec<Vec<F>>,
        len: usize,
    ) -> Result<Self> {
        for ((name, sizes), weights) in shape.tensors().iter().zip(&weights) {
            if sizes.iter().product::<usize>() != weights.len() {
                candle_core::bail!("{name} has {} numbers, not {sizes:?}", weights.len());
            }
        }
        let rotary = Rotary::new::<F>(&shape.block, shape.block.base, len)?;
        Ok(Self { shape, embedding, rotary, weights })
    }

    /// Its sizes.
    pub fn shape(&self) -> &HeadShape {
        &self.shape
    }

    /// Compares the rows that are asked for, those of the first depth first; nothing is trained.
    ///
    /// # Errors
    /// If a token is not in the vocabulary, or a sequence longer than was said.
    pub fn measure(&self, entries: &Entries<F>, compare: Compare<'_, F>) -> Result<Vec<Measures>> {
        let tensors = self.tensors(|data, sizes| Tensor::from_slice(data, sizes, &Device::Cpu))?;
        let rows = self.rows(entries, &tensors)?;
        Ok(self.output(&rows, &tensors[self.shape.output()], compare, None)?.0)
    }

    /// Compares the rows that are asked for of parts of a step, side by side, and adds the slopes by all weights to
    /// `gradients`. Returns what was found in each part.
    ///
    /// # Errors
    /// As for [`Self::measure`], and if a weight got no gradient.
    pub fn learn(
        &self,
        parts: &[&Entries<F>],
        compare: CompareParts<'_, F>,
        gradients: &mut [Vec<F>],
    ) -> Result<Vec<Vec<Measures>>> {
        let variable = |data: &[F], sizes: &[usize]| {
            Ok(Var::from_slice(data, sizes, &Device::Cpu)?.into_inner())
        };
        let tensors = self.tensors(variable)?;
        learn_side_by_side(parts, gradients, |part, entries| {
            self.learn_part(entries, &tensors, &|at, logits| compare(part, at, logits))
        })
    }

    /// What was found in a part, and the slope by each weight.
    fn learn_part(
        &self,
        entries: &Entries<F>,
        tensors: &[Tensor],
        compare: Compare<'_, F>,
    ) -> Result<(Vec<Measures>, Vec<Tensor>)> {
        let rows = self.rows(entries, tensors)?;
        let output = self.shape.output();
        let weights = tensors[output].detach();
        let mut by_output = vec![F::zero(); weights.elem_count()];
        let (found, slopes) =
            self.output(&rows.detach(), &weights, compare, Some(&mut by_output))?;
        // Its slope by the rows is what the output found.
        let store = (rows * slopes)?.sum_all()?.backward()?;
        let by_output = Tensor::from_vec(by_output, weights.shape(), &Device::Cpu)?;
        let slope =
            |(at, (tensor, (name, _))): (usize, (&Tensor, (String, _)))| match store.get(tensor) {
                _ if at == output => Ok(by_output.clone()),
                Some(slope) => slope.contiguous(),
                None => candle_core::bail!("{name} got no gradient"),
            };
        let each = tensors.iter().zip(self.shape.tensors()).enumerate();
        Ok((found, each.map(slope).collect::<Result<_>>()?))
    }

    /// The weights as tensors.
    fn tensors(&self, make: impl Fn(&[F], &[usize]) -> Result<Tensor>) -> Result<Vec<Tensor>> {
        let shapes = self.shape.tensors();
        self.weights.iter().zip(&shapes).map(|(data, (_, sizes))| make(data, sizes)).collect()
    }

    /// What goes into the output for each row that is asked for, those of the first depth first.
    fn rows(&self, entries: &Entries<F>, weights: &[Tensor]) -> Result<Tensor> {
        let HeadShape { block: shape, .. } = &self.shape;
        let block = Block { shape, weights, block: 0 };
        let (lens, count) = (&entries.lens[..], entries.tokens.len());
        let positions = Positions::of(&self.rotary, lens)?;
        let embedded = block.norm(self.embedded(&entries.tokens)?, Part::AttnNorm)?;
        let inputs = self.shape.features();
        let features = Tensor::from_slice(&entries.features, (count, inputs), &Device::Cpu)?;
        let mut states = linear(&features, &weights[self.shape.fc()])?;
        // Keys and values of the committed entries, and of one drafted entry at each depth, moved to where the
        // queries of this depth see it.
        let mut seen: Vec<[Tensor; 2]> = Vec::new();
        let mut rows = Vec::new();
        for asked in &entries.asked {
            let normed = norm(&states, &weights[self.shape.state_norm()], shape.epsilon)?;
            let both = Tensor::cat(&[&embedded, &normed], 1)?;
            let [queries, keys, values] = block.heads(&both, &positions)?;
            for moved in seen.iter_mut().skip(1).flatten() {
                *moved = of_entry_before(moved, lens)?;
            }
            seen.push([keys, values]);
            let mixed = mix(&block, lens, &queries, &seen)?;
            let stream = (&states + block.linear(&mixed, Part::AttnOutput)?)?;
            let output = block.feed_forward(&stream)?;
            if !asked.is_empty() {
                let asked: Vec<i64> = asked.iter().map(|&at| at as i64).collect();
                let asked = Tensor::from_slice(&asked, asked.len(), &Device::Cpu)?;
                let last = &weights[self.shape.output_norm()];
                rows.push(norm(&output.index_select(&asked, 0)?, last, shape.epsilon)?);
            }
            states = of_entry_before(&output, lens)?;
        }
        Tensor::cat(&rows, 0)
    }

    fn embedded(&self, tokens: &[u32]) -> Result<Tensor> {
        let (width, vocab) = (self.shape.block.width, self.shape.target_vocab);
        let mut numbers = Vec::with_capacity(tokens.len() * width);
        for &token in tokens {
            if token as usize >= vocab {
                candle_core::bail!("token {token} is not in a vocabulary of {vocab}");
            }
            numbers.extend_from_slice(&self.embedding[token as usize * width..][..width]);
        }
        Tensor::from_vec(numbers, (tokens.len(), width), &Device::Cpu)
    }

    /// Logits, some rows at a time: what the comparison found, and its slope by the rows that go in. The slope
    /// by the output's own weights is added to `gradient`.
    fn output(
        &self,
        rows: &Tensor,
        weights: &Tensor,
        compare: Compare<'_, F>,
        mut gradient: Option<&mut Vec<F>>,
    ) -> Result<(Vec<Measures>, Tensor)> {
        let (count, vocab) = (rows.dim(0)?, self.shape.block.vocab);
        let (mut found, mut slopes) = (Vec::with_capacity(count), Vec::new());
        let turned = weights.t()?;
        for start in (0..count).step_by(HEAD_ROWS) {
            let len = HEAD_ROWS.min(count - start);
            let some = rows.narrow(0, start, len)?;
            let mut logits = some.matmul(&turned)?.flatten_all()?.to_vec1::<F>()?;
            let each = logits.par_chunks_mut(vocab).enumerate();
            found.par_extend(each.map(|(at, logits)| compare(start + at, logits)));
            let by_logits = Tensor::from_vec(logits, (len, vocab), &Device::Cpu)?;
            slopes.push(by_logits.matmul(weights)?);
            if let Some(gradient) = &mut gradient {
                add_tensor(gradient, &by_logits.t()?.matmul(&some)?)?;
            }
        }
        Ok((found, Tensor::cat(&slopes, 0)?))
    }
}

/// What each entry takes from those that its query sees: the committed ones before its draft, and of the draft
/// one at each depth up to its own.
fn mix(
    block: &Block<'_>,
    lens: &[usize],
    queries: &Tensor,
    seen: &[[Tensor; 2]],
) -> Result<Tensor> {
    let (committed, drafted) = (&seen[0], &seen[1..]);
    let (mut start, mut mixed) = (0, Vec::with_capacity(lens.len()));
    for &len in lens {
        let of = |all: &Tensor| block.shared(&all.narrow(0, start, len)?);
        let [keys, values] = [of(&committed[0])?, of(&committed[1])?];
        let queries = queries.narrow(0, start, len)?.transpose(0, 1)?.contiguous()?;
        let scores = queries.matmul(&keys.t()?)?;
        let depth = drafted.len();
        let sees = |entry: usize, other: usize| other + depth <= entry;
        let mut all = vec![scores.broadcast_add(&mask(len, scores.dtype(), sees)?)?];
        for [keys, _] in drafted {
            all.push((&queries * of(keys)?)?.sum_keepdim(2)?);
        }
        let weights = softmax(&Tensor::cat(&all, 2)?, Sees::All)?;
        let mut sum = weights.narrow(2, 0, len)?.contiguous()?.matmul(&values)?;
        for (at, [_, values]) in drafted.iter().enumerate() {
            sum = (sum + weights.narrow(2, len + at, 1)?.broadcast_mul(&of(values)?)?)?;
        }
        let numbers = block.shape.heads * block.shape.head;
        mixed.push(sum.transpose(0, 1)?.reshape((len, numbers))?);
        start += len;
    }
    Tensor::cat(&mixed, 0)
}

/// Nothing for what each token sees of a sequence, and minus infinity for the rest.
fn mask(len: usize, kind: DType, sees: impl Fn(usize, usize) -> bool) -> Result<Tensor> {
    let number = |at: usize| if sees(at / len, at % len) { 0.0 } else { f32::NEG_INFINITY };
    let numbers: Vec<f32> = (0..len * len).map(number).collect();
    Tensor::from_vec(numbers, (len, len), &Device::Cpu)?.to_dtype(kind)
}

/// Of each entry, what the one before it has; of the first of a sequence, zeros.
fn of_entry_before(all: &Tensor, lens: &[usize]) -> Result<Tensor> {
    let (mut start, mut parts) = (0, Vec::with_capacity(2 * lens.len()));
    for &len in lens {
        parts.push(all.narrow(0, start, 1)?.zeros_like()?);
        if len > 1 {
            parts.push(all.narrow(0, start, len - 1)?);
        }
        start += len;
    }
    Tensor::cat(&parts, 0)
}

#[cfg(test)]
mod tests;
