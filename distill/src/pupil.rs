//! What is trained: a draft model, or a head. The trainer knows of either only this.

use std::mem;

use crate::loss::{Divergence, Measures, Row, compare};
use crate::model::{Batch, Student};
use crate::rows::Sequence;
use crate::words::Words;

/// How rows are compared.
#[derive(Debug, Clone, Copy)]
pub struct By {
    /// What is made small.
    pub divergence: Divergence,
    /// The temperature of rows.
    pub temperature: f64,
}

/// Something that drafts, and learns from sequences.
pub trait Pupil: Sync {
    /// Names and sizes of what is trained, in the order of its weights.
    fn tensors(&self) -> Vec<(String, Vec<usize>)>;

    /// What is trained.
    fn weights(&self) -> &Vec<Vec<f32>>;

    /// The same, to be changed.
    fn weights_mut(&mut self) -> &mut Vec<Vec<f32>>;

    /// Tokens of a sequence as it reads it.
    fn sequence_len(&self, sequence: &Sequence) -> usize;

    /// Compares its rows with the target's: a list for each depth of a draft that it learns, the first token's
    /// first. What was found comes with the sequence that it is of, by its place.
    ///
    /// # Errors
    /// If a sequence does not fit it.
    fn measure(
        &self,
        sequences: &[&Sequence],
        by: By,
    ) -> anyhow::Result<Vec<Vec<(usize, Measures)>>>;

    /// The same without the sequences, for the parts of a step, side by side; adds the slopes of the mean over all rows by
    /// all weights to `gradients`.
    ///
    /// # Errors
    /// As for [`Pupil::measure`], and if a weight got no gradient.
    fn learn(
        &self,
        parts: &[Vec<&Sequence>],
        by: By,
        gradients: &mut [Vec<f32>],
    ) -> anyhow::Result<Vec<Vec<Measures>>>;
}

/// A draft model.
#[derive(Debug)]
pub struct ModelPupil {
    /// The model.
    pub student: Student<f32>,
    /// How sequences are written in its tokens, if it has others than the target.
    pub words: Option<Words>,
}

impl Pupil for ModelPupil {
    fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        self.student.shape().tensors()
    }

    fn weights(&self) -> &Vec<Vec<f32>> {
        &self.student.weights
    }

    fn weights_mut(&mut self) -> &mut Vec<Vec<f32>> {
        &mut self.student.weights
    }

    fn sequence_len(&self, sequence: &Sequence) -> usize {
        student_len(sequence, self.words.as_ref())
    }

    fn measure(
        &self,
        sequences: &[&Sequence],
        by: By,
    ) -> anyhow::Result<Vec<Vec<(usize, Measures)>>> {
        let lesson = Lesson::new(sequences, self.words.as_ref());
        let ask = |at: usize, logits: &mut [f32]| lesson.compare(at, logits, by, 1.0);
        let found = self.student.measure(&lesson.batch, &ask)?;
        Ok(vec![lesson.asked.iter().map(|&(sequence, _)| sequence).zip(found).collect()])
    }

    fn learn(
        &self,
        parts: &[Vec<&Sequence>],
        by: By,
        gradients: &mut [Vec<f32>],
    ) -> anyhow::Result<Vec<Vec<Measures>>> {
        let mut lessons: Vec<Lesson<'_>> =
            parts.iter().map(|sequences| Lesson::new(sequences, self.words.as_ref())).collect();
        let batches: Vec<Batch> = lessons.iter_mut().map(|it| mem::take(&mut it.batch)).collect();
        let rows: usize = lessons.iter().map(|it| it.asked.len()).sum();
        let ask = |part: usize, at: usize, logits: &mut [f32]| {
            lessons[part].compare(at, logits, by, 1.0 / rows as f64)
        };
        Ok(vec![self.student.learn(&batches, &ask, gradients)?.concat()])
    }
}

/// Tokens of a sequence as a student reads it.
pub(crate) fn student_len(sequence: &Sequence, words: Option<&Words>) -> usize {
    words.map_or(sequence.tokens.len(), |words| words.len(&sequence.tokens))
}

/// Sequences as a batch, and which row of which sequence is asked for where.
struct Lesson<'a> {
    sequences: &'a [&'a Sequence],
    words: Option<&'a Words>,
    batch: Batch,
    asked: Vec<(usize, usize)>,
}

impl<'a> Lesson<'a> {
    fn new(sequences: &'a [&'a Sequence], words: Option<&'a Words>) -> Self {
        let (mut batch, mut asked) = (Batch::default(), Vec::new());
        for (place, sequence) in sequences.iter().enumerate() {
            let start = batch.tokens.len();
            // The last token has no row after it.
            for (at, &token) in sequence.tokens[..sequence.tokens.len() - 1].iter().enumerate() {
                match words {
                    Some(words) => batch.tokens.extend_from_slice(words.spell(token)),
                    None => batch.tokens.push(token),
                }
                // What cannot be spelled at the very beginning leaves nothing to ask after.
                if at + 1 >= sequence.first_row() && batch.tokens.len() > start {
                    batch.asked.push(batch.tokens.len() - 1);
                    asked.push((place, at + 1 - sequence.first_row()));
                }
            }
            batch.lens.push(batch.tokens.len() - start);
        }
        Self { sequences, words, batch, asked }
    }

    /// Compares the student's row with the target's, and puts the slope, times `weight`, in its place.
    fn compare(&self, at: usize, logits: &mut [f32], by: By, weight: f64) -> Measures {
        let By { divergence, temperature } = by;
        let (sequence, row) = self.asked[at];
        let row = self.sequences[sequence].row(row);
        let Some(words) = self.words else {
            return compare(divergence, row, logits, temperature, weight);
        };
        for &token in words.foreign() {
            logits[token as usize] = f32::NEG_INFINITY;
        }
        let own = words.translate(row);
        let row = Row { tokens: &own.tokens, probs: &own.probs };
        let mut found = compare(divergence, row, logits, temperature, weight);
        if !own.has_likeliest {
            found.agreement = 0.0;
        }
        found
    }
}
