//! A student of the llama family: its passes forward and back.
//!
//! Trained are the blocks and the last norm. Embeddings and output stay as they are: they are most of
//! a small model's numbers, and what the blocks say is said in them.

use crate::loss::Measures;
use crate::matrix::Real;
use crate::ops::{self, Attended, Heads, Pairs, Rotary};

/// Rows of logits that are in memory at once.
const HEAD_ROWS: usize = 128;

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

    /// Numbers that a pass forward keeps for the pass back, for each token.
    pub fn kept_per_token(&self) -> usize {
        let block = 4 * self.width + 2 * self.queries() + 2 * self.keys() + 2 * self.feed_forward;
        self.blocks * block
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
    // None if it is the embedding.
    output: Option<Vec<F>>,
    rotary: Rotary<F>,
    /// What is trained, in the order of [`Shape::tensors`].
    pub weights: Vec<Vec<F>>,
}

/// What the pass back needs of a block's pass forward.
struct Kept<F> {
    input: Vec<F>,
    scales: Vec<F>,
    normed: Vec<F>,
    attended: Attended<F>,
    mixed: Vec<F>,
    middle: Vec<F>,
    middle_scales: Vec<F>,
    middle_normed: Vec<F>,
    gates: Vec<F>,
    ups: Vec<F>,
}

/// What is done with a row of logits: it is compared, and becomes the slope of what was found.
pub type Compare<'a, F> = &'a (dyn Fn(usize, &mut [F]) -> Measures + Sync);

impl<F: Real> Student<F> {
    /// A student for sequences of at most `len` tokens.
    ///
    /// # Panics
    /// If a tensor has another size than its shape says.
    pub fn new(
        shape: Shape,
        embedding: Vec<F>,
        output: Option<Vec<F>>,
        weights: Vec<Vec<F>>,
        len: usize,
    ) -> Self {
        let vocab = shape.vocab * shape.width;
        assert_eq!(embedding.len(), vocab, "an embedding for each token");
        assert!(output.as_ref().is_none_or(|output| output.len() == vocab), "an output for each");
        let sizes = shape.tensors().into_iter().map(|(_, sizes)| sizes.iter().product::<usize>());
        assert!(sizes.eq(weights.iter().map(Vec::len)), "weights as the shape has them");
        let rotary = Rotary::new(shape.pairs, shape.head, shape.base, len);
        Self { shape, embedding, output, rotary, weights }
    }

    /// Its sizes.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    fn weight(&self, block: usize, part: Part) -> &[F] {
        &self.weights[self.shape.place(block, part)]
    }

    fn bias(&self, block: usize, part: Part) -> Option<&[F]> {
        self.shape.biased.then(|| self.weight(block, part))
    }

    fn query_heads<'a>(&self, batch: &'a Batch) -> Heads<'a> {
        Heads { lens: &batch.lens, count: self.shape.heads, len: self.shape.head }
    }

    fn key_heads<'a>(&self, batch: &'a Batch) -> Heads<'a> {
        Heads { count: self.shape.key_heads, ..self.query_heads(batch) }
    }

    /// Compares the rows of a batch; nothing is trained.
    pub fn measure(&self, batch: &Batch, compare: Compare<'_, F>) -> Vec<Measures> {
        let last = self.forward(batch, None);
        let rows = self.asked_rows(batch, &last);
        let (normed, _) = self.last_norm(&rows);
        self.head(&normed, compare, None)
    }

    /// Compares the rows of a batch, and adds the slopes by all weights to `gradients`.
    pub fn learn(
        &self,
        batch: &Batch,
        compare: Compare<'_, F>,
        gradients: &mut [Vec<F>],
    ) -> Vec<Measures> {
        let (shape, width) = (&self.shape, self.shape.width);
        let mut kept = Vec::with_capacity(shape.blocks);
        let last = self.forward(batch, Some(&mut kept));
        let rows = self.asked_rows(batch, &last);
        let (normed, scales) = self.last_norm(&rows);
        let mut from = vec![F::ZERO; normed.len()];
        let found = self.head(&normed, compare, Some(&mut from));
        let mut to_rows = vec![F::ZERO; rows.len()];
        let norm = self.weights.len() - 1;
        let of_norm = (&rows[..], &scales[..]);
        ops::norm_back(&from, of_norm, &self.weights[norm], &mut to_rows, &mut gradients[norm]);
        let mut slope = vec![F::ZERO; last.len()];
        for (&token, from) in batch.asked.iter().zip(to_rows.chunks(width)) {
            slope[token * width..][..width].copy_from_slice(from);
        }
        for block in (0..shape.blocks).rev() {
            let kept = kept.pop().expect("one for each block");
            self.feed_forward_back(block, &kept, &mut slope, gradients);
            self.attention_back(block, kept, batch, &mut slope, gradients);
        }
        found
    }

    /// The residual stream after the last block.
    fn forward(&self, batch: &Batch, mut keep: Option<&mut Vec<Kept<F>>>) -> Vec<F> {
        let width = self.shape.width;
        let mut stream = Vec::with_capacity(batch.tokens.len() * width);
        for &token in &batch.tokens {
            stream.extend_from_slice(&self.embedding[token as usize * width..][..width]);
        }
        for block in 0..self.shape.blocks {
            let (next, kept) = self.block(block, batch, stream);
            if let Some(keep) = &mut keep {
                keep.push(kept);
            }
            stream = next;
        }
        stream
    }

    fn block(&self, block: usize, batch: &Batch, input: Vec<F>) -> (Vec<F>, Kept<F>) {
        let shape = &self.shape;
        let epsilon = F::of(shape.epsilon);
        let (queries, keys) = (self.query_heads(batch), self.key_heads(batch));
        let (normed, scales) = ops::norm(&input, self.weight(block, Part::AttnNorm), epsilon);
        let project = |part, bias| {
            ops::linear(&normed, self.weight(block, part), self.bias(block, bias), shape.width)
        };
        let rotary = Some(&self.rotary);
        let attended = Attended {
            queries: queries.split(&project(Part::Query, Part::QueryBias), rotary),
            keys: keys.split(&project(Part::Key, Part::KeyBias), rotary),
            values: keys.split(&project(Part::Value, Part::ValueBias), None),
        };
        let mixed = queries.join(&attended.mix(queries, keys), None);
        let output = self.weight(block, Part::AttnOutput);
        let mut middle = ops::linear(&mixed, output, None, shape.queries());
        ops::add(&mut middle, &input);
        let norm = self.weight(block, Part::FfnNorm);
        let (middle_normed, middle_scales) = ops::norm(&middle, norm, epsilon);
        let widen = |part| ops::linear(&middle_normed, self.weight(block, part), None, shape.width);
        let (gates, ups) = (widen(Part::Gate), widen(Part::Up));
        let down = self.weight(block, Part::Down);
        let mut next = ops::linear(&ops::gate(&gates, &ups), down, None, shape.feed_forward);
        ops::add(&mut next, &middle);
        let kept = Kept {
            input,
            scales,
            normed,
            attended,
            mixed,
            middle,
            middle_scales,
            middle_normed,
            gates,
            ups,
        };
        (next, kept)
    }

    /// From the slope by what a block gives to that by what its feed-forward layer takes.
    fn feed_forward_back(
        &self,
        block: usize,
        kept: &Kept<F>,
        slope: &mut [F],
        gradients: &mut [Vec<F>],
    ) {
        let (shape, width) = (&self.shape, self.shape.width);
        let active = ops::gate(&kept.gates, &kept.ups);
        let down = shape.place(block, Part::Down);
        ops::weight_back(slope, &active, shape.feed_forward, &mut gradients[down]);
        let mut by_active = vec![F::ZERO; active.len()];
        ops::linear_back(slope, &self.weights[down], width, &mut by_active);
        let (mut gates, mut ups) = (kept.gates.clone(), kept.ups.clone());
        ops::gate_back(&by_active, &mut gates, &mut ups);
        let mut by_normed = vec![F::ZERO; kept.middle_normed.len()];
        for (part, from) in [(Part::Gate, &gates), (Part::Up, &ups)] {
            let place = shape.place(block, part);
            ops::weight_back(from, &kept.middle_normed, width, &mut gradients[place]);
            ops::linear_back(from, &self.weights[place], shape.feed_forward, &mut by_normed);
        }
        let place = shape.place(block, Part::FfnNorm);
        let of_norm = (&kept.middle[..], &kept.middle_scales[..]);
        ops::norm_back(&by_normed, of_norm, &self.weights[place], slope, &mut gradients[place]);
    }

    /// From there to the slope by what the block takes.
    fn attention_back(
        &self,
        block: usize,
        kept: Kept<F>,
        batch: &Batch,
        slope: &mut [F],
        gradients: &mut [Vec<F>],
    ) {
        let (shape, width) = (&self.shape, self.shape.width);
        let (queries, keys) = (self.query_heads(batch), self.key_heads(batch));
        let output = shape.place(block, Part::AttnOutput);
        ops::weight_back(slope, &kept.mixed, shape.queries(), &mut gradients[output]);
        let mut by_mixed = vec![F::ZERO; kept.mixed.len()];
        ops::linear_back(slope, &self.weights[output], width, &mut by_mixed);
        let by_mixed = queries.split(&by_mixed, None);
        let by = kept.attended.mix_back(&by_mixed, queries, keys);
        let rotary = Some(&self.rotary);
        let mut by_normed = vec![F::ZERO; kept.normed.len()];
        for (part, bias, from) in [
            (Part::Query, Part::QueryBias, queries.join(&by.queries, rotary)),
            (Part::Key, Part::KeyBias, keys.join(&by.keys, rotary)),
            (Part::Value, Part::ValueBias, keys.join(&by.values, None)),
        ] {
            let place = shape.place(block, part);
            ops::weight_back(&from, &kept.normed, width, &mut gradients[place]);
            let outputs = self.weights[place].len() / width;
            ops::linear_back(&from, &self.weights[place], outputs, &mut by_normed);
            if shape.biased {
                ops::bias_back(&from, &mut gradients[shape.place(block, bias)]);
            }
        }
        let place = shape.place(block, Part::AttnNorm);
        let of_norm = (&kept.input[..], &kept.scales[..]);
        ops::norm_back(&by_normed, of_norm, &self.weights[place], slope, &mut gradients[place]);
    }

    fn asked_rows(&self, batch: &Batch, stream: &[F]) -> Vec<F> {
        let width = self.shape.width;
        let row = |&token: &usize| &stream[token * width..][..width];
        batch.asked.iter().flat_map(row).copied().collect()
    }

    fn last_norm(&self, rows: &[F]) -> (Vec<F>, Vec<F>) {
        ops::norm(rows, &self.weights[self.weights.len() - 1], F::of(self.shape.epsilon))
    }

    /// Logits, some rows at a time, and what the comparison found; adds the slope by the rows that go
    /// in, where it is wanted.
    fn head(
        &self,
        normed: &[F],
        compare: Compare<'_, F>,
        mut to_normed: Option<&mut [F]>,
    ) -> Vec<Measures> {
        use rayon::prelude::*;

        let (width, vocab) = (self.shape.width, self.shape.vocab);
        let output = self.output.as_ref().unwrap_or(&self.embedding);
        let mut found = Vec::with_capacity(normed.len() / width);
        for rows in normed.chunks(HEAD_ROWS * width) {
            let start = found.len();
            let mut logits = ops::linear(rows, output, None, width);
            let each = logits.par_chunks_mut(vocab).enumerate();
            let some: Vec<_> = each.map(|(at, logits)| compare(start + at, logits)).collect();
            if let Some(to) = &mut to_normed {
                let to = &mut to[start * width..][..rows.len()];
                ops::linear_back(&logits, output, vocab, to);
            }
            found.extend(some);
        }
        found
    }
}

#[cfg(test)]
mod tests;
