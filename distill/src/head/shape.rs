//! The sizes of a head, and what training it takes.

use crate::model::{HEAD_ROWS, Shape};
use crate::rows::Settings;

/// How many of the target's layers llama.cpp has a head read.
pub(crate) const LAYERS: usize = 3;

/// The sizes of a head. It is as wide as its target, whose embeddings it reads.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadShape {
    /// Its block; the vocabulary is what it drafts from.
    pub block: Shape,
    /// Tokens of the target's vocabulary.
    pub target_vocab: usize,
    /// The target's layers whose inputs it reads.
    pub layers: [u32; LAYERS],
}

impl HeadShape {
    /// Names and sizes of what is trained: the block and its last norm, and what only a head has.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let (width, vocab) = (self.block.width, self.block.vocab);
        let mut tensors = self.block.tensors();
        for (name, sizes) in &mut tensors {
            // They read the token's embedding and the state, one after the other.
            if ["attn_q.weight", "attn_k.weight", "attn_v.weight"]
                .iter()
                .any(|it| name.ends_with(it))
            {
                sizes[1] = 2 * width;
            }
        }
        tensors.push(("blk.0.attn_norm_2.weight".to_owned(), vec![width]));
        tensors.push(("fc.weight".to_owned(), vec![width, self.features()]));
        tensors.push(("output.weight".to_owned(), vec![vocab, width]));
        tensors
    }

    /// Numbers that it reads of the target at each position.
    pub fn features(&self) -> usize {
        LAYERS * self.block.width
    }

    /// How many numbers are trained.
    pub fn trained(&self) -> usize {
        self.tensors().iter().map(|(_, sizes)| sizes.iter().product::<usize>()).sum()
    }

    // Where these are among the tensors.
    pub(super) fn output(&self) -> usize {
        self.state_norm() + 2
    }

    pub(super) fn fc(&self) -> usize {
        self.state_norm() + 1
    }

    pub(super) fn state_norm(&self) -> usize {
        self.output_norm() + 1
    }

    pub(super) fn output_norm(&self) -> usize {
        self.block.tensors().len() - 1
    }
}

/// Bytes that training takes at most, with so many rows and drafts of so many tokens.
pub fn memory(
    head: &HeadShape,
    rows: usize,
    settings: &Settings,
    (depth, batch_tokens): (usize, usize),
) -> usize {
    let width = head.block.width;
    let threads = rayon::current_num_threads();
    // Weights, again as candle's, gradients, each thread's, two means, the best, and the target's embeddings.
    let weights = (6 + threads) * head.trained() + head.target_vocab * width;
    let listed = rows * 2 * settings.listed;
    // What both inputs of the block take, and keys and values of earlier depths that are moved on.
    let each = head.block.kept_per_token(settings.len)
        + 8 * width
        + 4 * depth * head.block.heads * head.block.head;
    let kept = batch_tokens.max(settings.len) * ((depth + 1) * each + 2 * head.features());
    4 * (weights + listed + kept + 2 * threads * HEAD_ROWS * head.block.vocab)
}
