//! The tokens that a head drafts.

use crate::loss::Row;
use crate::rows::Rows;
use crate::words::{Translated, translate};

/// A part of the target's vocabulary.
#[derive(Debug, Clone, PartialEq)]
pub struct DraftVocab {
    /// The target's numbers of its tokens, in rising order.
    tokens: Vec<u32>,
    /// The other way round.
    same: Vec<Option<u32>>,
}

impl DraftVocab {
    /// The `len` tokens that the target said most often in what is learned from. Of those as frequent, the ones
    /// that it found likelier come first.
    pub fn frequent(rows: &Rows, len: usize) -> Self {
        let vocab = rows.settings.vocab;
        let (mut said, mut likely) = (vec![0_u64; vocab], vec![0.0_f64; vocab]);
        for sequence in rows.sequences.iter().filter(|sequence| !sequence.held_out) {
            sequence.tokens[sequence.prompt_len..]
                .iter()
                .for_each(|&token| said[token as usize] += 1);
            for (&token, &prob) in sequence.row_tokens.iter().zip(&sequence.row_probs) {
                likely[token as usize] += f64::from(prob);
            }
        }
        let mut tokens: Vec<u32> = (0..).take(vocab).collect();
        // The order of tokens that are alike stays.
        tokens.sort_by(|&a, &b| {
            let (a, b) = (a as usize, b as usize);
            said[b].cmp(&said[a]).then_with(|| likely[b].total_cmp(&likely[a]))
        });
        tokens.truncate(len);
        tokens.sort_unstable();
        Self::new(tokens, vocab)
    }

    /// Of these tokens, in rising order, of a vocabulary of so many.
    pub(crate) fn new(tokens: Vec<u32>, target_vocab: usize) -> Self {
        let mut same = vec![None; target_vocab];
        for (own, &token) in (0..).zip(&tokens) {
            same[token as usize] = Some(own);
        }
        Self { tokens, same }
    }

    /// The target's numbers of its tokens, in its own order.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Whether it is all of the target's.
    pub fn is_whole(&self) -> bool {
        self.tokens.len() == self.same.len()
    }

    /// Share of what the target said in the sequences that are held out that can be drafted at all.
    pub fn reach(&self, rows: &Rows) -> f64 {
        let held_out = rows.sequences.iter().filter(|sequence| sequence.held_out);
        let said: Vec<u32> = held_out
            .flat_map(|sequence| &sequence.tokens[sequence.prompt_len..])
            .copied()
            .collect();
        let reached = said.iter().filter(|&&token| self.same[token as usize].is_some()).count();
        reached as f64 / said.len().max(1) as f64
    }

    /// A row of the target in these tokens; all others belong to the rest.
    pub(super) fn translate(&self, row: Row<'_>) -> Translated {
        translate(row, &self.same)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::{Sequence, Settings};

    #[test]
    fn the_most_frequent_tokens_of_what_is_learned_from_are_drafted() {
        let settings = Settings {
            target: String::new(),
            vocab: 6,
            prompts: String::new(),
            held_out: 1,
            samples: 1,
            predict: 3,
            len: 8,
            temperature: 1.0,
            listed: 1,
            prompt_rows: false,
            seed: 0,
        };
        let sequence = |held_out, tokens: [u32; 4], row_tokens: [u32; 3]| Sequence {
            held_out,
            prompt_len: 1,
            tokens: tokens.to_vec(),
            row_tokens: row_tokens.to_vec(),
            row_probs: vec![0.5; 3],
            ..Sequence::default()
        };
        // Token 0 is in a prompt, 1 in what is held out alone, and 5 likelier than 4.
        let sequences =
            vec![sequence(false, [0, 3, 3, 2], [3, 5, 5]), sequence(true, [0, 1, 1, 3], [1, 1, 1])];
        let rows = Rows { settings, sequences };
        let vocab = DraftVocab::frequent(&rows, 3);
        assert_eq!((vocab.tokens(), vocab.is_whole()), (&[2, 3, 5][..], false));
        assert!((vocab.reach(&rows) - 1.0 / 3.0).abs() < 1e-9);
        let row = vocab.translate(Row { tokens: &[1, 5, 2], probs: &[0.5, 0.3, 0.1] });
        assert_eq!((&row.tokens[..], &row.probs[..]), (&[2, 0][..], &[0.3, 0.1][..]));
        assert!(!row.has_likeliest);
        assert!(DraftVocab::frequent(&rows, 9).is_whole());
    }
}
