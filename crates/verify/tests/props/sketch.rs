//! Rows in few numbers: a short pattern repeated over a part of the vocabulary, so that rows of
//! any length are cheap to make and shrink to a few tokens.

use forerun_verify::{Dist, Token};
use proptest::collection::vec;
use proptest::prelude::*;

/// A legal row over any vocabulary.
#[derive(Debug, Clone)]
pub(crate) struct RowSketch {
    pub(crate) sparse: bool,
    /// The part of the vocabulary that has weight, in sixteenths.
    window: (u8, u8),
    /// The weights, repeated over the window.
    pattern: Vec<f32>,
}

impl RowSketch {
    /// The weights of all tokens, at least one of them positive.
    pub(crate) fn weights(&self, vocab_len: usize) -> Vec<f32> {
        let edge = |sixteenths: u8| vocab_len * usize::from(sixteenths) / 16;
        let (from, to) = (edge(self.window.0), edge(self.window.1));
        let weight = |index: usize| {
            let inside = (from..to).contains(&index);
            if inside { self.pattern[index % self.pattern.len()] } else { 0.0 }
        };
        let mut weights: Vec<f32> = (0..vocab_len).map(weight).collect();
        if weights.iter().all(|weight| *weight <= 0.0) {
            weights[from.min(vocab_len - 1)] = self.pattern[0].max(f32::from_bits(1));
        }
        weights
    }

    pub(crate) fn dist(&self, vocab_len: usize) -> Dist {
        let weights = self.weights(vocab_len);
        if self.sparse { sparse(&weights) } else { Dist::dense(weights).unwrap() }
    }
}

/// A row of these weights that stores only the positive ones.
pub(crate) fn sparse(weights: &[f32]) -> Dist {
    let entries = weights.iter().zip(0..).filter(|(weight, _)| **weight > 0.0);
    Dist::sparse(weights.len(), entries.map(|(weight, token)| (Token(token), *weight))).unwrap()
}

/// Lengths on both sides of every limit there is: 64 tokens of noise, 128 tokens of a short row,
/// chunks of 512.
pub(crate) fn vocab_len() -> impl Strategy<Value = usize> {
    prop_oneof![
        64 => 1..=6usize,
        20 => 7..=40usize,
        6 => 60..=70usize,
        6 => 120..=140usize,
        2 => 141..=505usize,
        2 => 506..=700usize,
    ]
}

/// A finite weight from zero up, over the whole range of `f32`.
fn weight() -> impl Strategy<Value = f32> {
    prop_oneof![
        3 => Just(0.0),
        4 => Just(1.0),
        4 => (1..=9u8).prop_map(f32::from),
        4 => 0.0..1.0f32,
        3 => prop::sample::select(vec![1e-38, 1e38, 1e-20, 1e20]),
        1 => prop::sample::select(vec![f32::MIN_POSITIVE, f32::MAX, f32::from_bits(1), -0.0]),
        3 => (0..=f32::MAX.to_bits()).prop_map(f32::from_bits),
    ]
}

/// Any row that is a distribution.
pub(crate) fn row() -> impl Strategy<Value = RowSketch> {
    let window = prop_oneof![
        4 => Just((0, 16)),
        1 => (0..16u8, 1..=16u8).prop_map(|(from, len)| (from, (from + len).min(16))),
    ];
    (any::<bool>(), window, vec(weight(), 1..=9)).prop_map(|(sparse, window, pattern)| RowSketch {
        sparse,
        window,
        pattern,
    })
}
