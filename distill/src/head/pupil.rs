//! A head as a pupil: what it reads of sequences, and what it is asked at each depth of a draft.

use anyhow::ensure;

use super::{DraftHead, DraftVocab, Entries, Features};
use crate::loss::{Measures, Row, compare};
use crate::pupil::{By, Pupil};
use crate::rows::Sequence;

/// What a depth counts, of what the one before it does: later tokens of a draft are needed less often.
const LATER: f64 = 0.8;

/// A head, and all that it reads.
#[derive(Debug)]
pub struct HeadPupil {
    /// The head.
    pub head: DraftHead<f32>,
    /// The tokens that it drafts.
    pub vocab: DraftVocab,
    /// The target's states of all sequences.
    pub features: Features,
    /// Tokens of a draft.
    pub depth: usize,
}

impl HeadPupil {
    fn lesson<'a>(&'a self, sequences: &'a [&'a Sequence]) -> anyhow::Result<Lesson<'a>> {
        let mut lesson = Lesson::new(sequences, &self.vocab, self.depth);
        for sequence in sequences {
            self.features.read(sequence, &mut lesson.entries.features)?;
        }
        ensure!(
            lesson.entries.features.len()
                == lesson.entries.tokens.len() * self.head.shape().features(),
            "states of other sequences"
        );
        Ok(lesson)
    }
}

impl Pupil for HeadPupil {
    fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        self.head.shape().tensors()
    }

    fn weights(&self) -> &Vec<Vec<f32>> {
        &self.head.weights
    }

    fn weights_mut(&mut self) -> &mut Vec<Vec<f32>> {
        &mut self.head.weights
    }

    fn sequence_len(&self, sequence: &Sequence) -> usize {
        entry_count(sequence)
    }

    fn measure(
        &self,
        sequences: &[&Sequence],
        by: By,
    ) -> anyhow::Result<Vec<Vec<(usize, Measures)>>> {
        let lesson = self.lesson(sequences)?;
        if lesson.asked.is_empty() {
            return Ok(vec![Vec::new(); self.depth]);
        }
        let ask = |at: usize, logits: &mut [f32]| lesson.compare(at, logits, by, 1.0);
        let found = self.head.measure(&lesson.entries, &ask)?;
        let sequences = lesson.asked.iter().map(|asked| asked.sequence);
        Ok(lesson.by_depth(sequences.zip(found)))
    }

    fn learn(
        &self,
        parts: &[Vec<&Sequence>],
        by: By,
        gradients: &mut [Vec<f32>],
    ) -> anyhow::Result<Vec<Vec<Measures>>> {
        let mut lessons = Vec::with_capacity(parts.len());
        for sequences in parts {
            let lesson = self.lesson(sequences)?;
            lessons.extend((!lesson.asked.is_empty()).then_some(lesson));
        }
        let mut depths = vec![Vec::new(); self.depth];
        let rows = |depth: usize| lessons.iter().map(|it| it.entries.asked[depth].len()).sum();
        let rows: Vec<usize> = (0..self.depth).map(rows).collect();
        let ask = |part: usize, at: usize, logits: &mut [f32]| {
            let lesson = &lessons[part];
            let depth = lesson.asked[at].depth;
            lesson.compare(at, logits, by, LATER.powf(depth as f64) / rows[depth] as f64)
        };
        let entries: Vec<&Entries<f32>> = lessons.iter().map(|it| &it.entries).collect();
        let found = self.head.learn(&entries, &ask, gradients)?;
        for (lesson, found) in lessons.iter().zip(found) {
            for (all, found) in depths.iter_mut().zip(lesson.by_depth(found)) {
                all.extend(found);
            }
        }
        Ok(depths)
    }
}

/// Entries of a sequence: the first token is in none, and nothing is drafted after the last.
pub(super) fn entry_count(sequence: &Sequence) -> usize {
    sequence.tokens.len().saturating_sub(2)
}

/// A row that is asked for.
struct Asked {
    sequence: usize,
    row: usize,
    depth: usize,
}

/// Sequences as entries, and which row of which sequence is asked for where.
struct Lesson<'a> {
    sequences: &'a [&'a Sequence],
    vocab: &'a DraftVocab,
    entries: Entries<f32>,
    asked: Vec<Asked>,
}

impl<'a> Lesson<'a> {
    /// Everything but the target's states.
    fn new(sequences: &'a [&'a Sequence], vocab: &'a DraftVocab, depth: usize) -> Self {
        let mut entries = Entries { asked: vec![Vec::new(); depth], ..Entries::default() };
        let mut starts = Vec::with_capacity(sequences.len());
        for sequence in sequences {
            let count = entry_count(sequence);
            starts.push(entries.tokens.len());
            entries.tokens.extend(sequence.tokens.iter().skip(1).take(count));
            entries.lens.extend((count > 0).then_some(count));
        }
        let mut asked = Vec::new();
        for depth in 0..depth {
            for (place, sequence) in sequences.iter().enumerate() {
                // A draft begins with the first row at the earliest, and after an entry.
                let first = depth + 2_usize.saturating_sub(sequence.first_row());
                for row in first..sequence.row_count() {
                    entries.asked[depth].push(starts[place] + sequence.first_row() + row - 2);
                    asked.push(Asked { sequence: place, row, depth });
                }
            }
        }
        Self { sequences, vocab, entries, asked }
    }

    /// Compares the head's row with the target's, and puts the slope, times `weight`, in its place.
    fn compare(&self, at: usize, logits: &mut [f32], by: By, weight: f64) -> Measures {
        let By { divergence, temperature } = by;
        let Asked { sequence, row, .. } = self.asked[at];
        let own = self.vocab.translate(self.sequences[sequence].row(row));
        let row = Row { tokens: &own.tokens, probs: &own.probs };
        let mut found = compare(divergence, row, logits, temperature, weight);
        if !own.has_likeliest {
            found.agreement = 0.0;
        }
        found
    }

    fn by_depth<T: Clone>(&self, found: impl IntoIterator<Item = T>) -> Vec<Vec<T>> {
        let mut depths = vec![Vec::new(); self.entries.asked.len()];
        for (asked, found) in self.asked.iter().zip(found) {
            depths[asked.depth].push(found);
        }
        depths
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_is_asked_of_the_entry_two_positions_before_its_token() {
        // Rows of the tokens 13, 14 and 15 of the first sequence, of 21 and 22 of the second; the third has
        // nothing to say.
        let sequence = |tokens: &[u32], prompt_len| Sequence {
            prompt_len,
            tokens: tokens.to_vec(),
            ..Sequence::default()
        };
        let sequences = [
            sequence(&[10, 11, 12, 13, 14, 15], 3),
            sequence(&[20, 21, 22], 1),
            sequence(&[30, 31], 1),
        ];
        let sequences: Vec<&Sequence> = sequences.iter().collect();
        let vocab = DraftVocab::new(vec![0], 1);
        let lesson = Lesson::new(&sequences, &vocab, 3);
        assert_eq!(lesson.entries.tokens, [11, 12, 13, 14, 21]);
        assert_eq!(lesson.entries.lens, [4, 1]);
        // Nothing can be drafted after a single token.
        assert_eq!(lesson.entries.asked, [vec![1, 2, 3, 4], vec![2, 3], vec![3]]);
        let asked: Vec<_> = lesson.asked.iter().map(|it| (it.sequence, it.row, it.depth)).collect();
        let first = [(0, 0, 0), (0, 1, 0), (0, 2, 0), (1, 1, 0)];
        assert_eq!(asked, [&first[..], &[(0, 1, 1), (0, 2, 1), (0, 2, 2)]].concat());
    }
}
