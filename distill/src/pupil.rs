//! What is trained: a draft model, or a head. The trainer knows of either only this.

use std::mem;

use crate::loss::{Divergence, Measures, Row, compare};
use crate::model::{Batch, Student};
use crate::rows::Text;
use crate::words::Words;

/// How rows are compared.
#[derive(Debug, Clone, Copy)]
pub struct By {
    /// What is made small.
    pub divergence: Divergence,
    /// The temperature of rows.
    pub temperature: f64,
}

/// Something that drafts, and learns from texts.
pub trait Pupil: Sync {
    /// Names and sizes of what is trained, in the order of its weights.
    fn tensors(&self) -> Vec<(String, Vec<usize>)>;

    /// What is trained.
    fn weights(&self) -> &Vec<Vec<f32>>;

    /// The same, to be changed.
    fn weights_mut(&mut self) -> &mut Vec<Vec<f32>>;

    /// Tokens of a text as it reads it.
    fn text_len(&self, text: &Text) -> usize;

    /// Compares its rows with the target's: a list for each depth of a draft that it learns, the first token's
    /// first. What was found comes with the text that it is of, by its place.
    ///
    /// # Errors
    /// If a text does not fit it.
    fn measure(&self, texts: &[&Text], by: By) -> anyhow::Result<Vec<Vec<(usize, Measures)>>>;

    /// The same without the texts, for the parts of a step, side by side; adds the slopes of the mean over all rows by
    /// all weights to `gradients`.
    ///
    /// # Errors
    /// As for [`Pupil::measure`], and if a weight got no gradient.
    fn learn(
        &self,
        parts: &[Vec<&Text>],
        by: By,
        gradients: &mut [Vec<f32>],
    ) -> anyhow::Result<Vec<Vec<Measures>>>;
}

/// A draft model.
#[derive(Debug)]
pub struct ModelPupil {
    /// The model.
    pub student: Student<f32>,
    /// How texts are written in its tokens, if it has others than the target.
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

    fn text_len(&self, text: &Text) -> usize {
        student_len(text, self.words.as_ref())
    }

    fn measure(&self, texts: &[&Text], by: By) -> anyhow::Result<Vec<Vec<(usize, Measures)>>> {
        let lesson = Lesson::new(texts, self.words.as_ref());
        let ask = |at: usize, logits: &mut [f32]| lesson.compare(at, logits, by, 1.0);
        let found = self.student.measure(&lesson.batch, &ask)?;
        Ok(vec![lesson.asked.iter().map(|&(text, _)| text).zip(found).collect()])
    }

    fn learn(
        &self,
        parts: &[Vec<&Text>],
        by: By,
        gradients: &mut [Vec<f32>],
    ) -> anyhow::Result<Vec<Vec<Measures>>> {
        let mut lessons: Vec<Lesson<'_>> =
            parts.iter().map(|texts| Lesson::new(texts, self.words.as_ref())).collect();
        let batches: Vec<Batch> = lessons.iter_mut().map(|it| mem::take(&mut it.batch)).collect();
        let rows: usize = lessons.iter().map(|it| it.asked.len()).sum();
        let ask = |part: usize, at: usize, logits: &mut [f32]| {
            lessons[part].compare(at, logits, by, 1.0 / rows as f64)
        };
        Ok(vec![self.student.learn(&batches, &ask, gradients)?.concat()])
    }
}

/// Tokens of a text as a student reads it.
pub(crate) fn student_len(text: &Text, words: Option<&Words>) -> usize {
    words.map_or(text.tokens.len(), |words| words.len(&text.tokens))
}

/// Texts as a batch, and which row of which text is asked for where.
struct Lesson<'a> {
    texts: &'a [&'a Text],
    words: Option<&'a Words>,
    batch: Batch,
    asked: Vec<(usize, usize)>,
}

impl<'a> Lesson<'a> {
    fn new(texts: &'a [&'a Text], words: Option<&'a Words>) -> Self {
        let (mut batch, mut asked) = (Batch::default(), Vec::new());
        for (place, text) in texts.iter().enumerate() {
            let start = batch.tokens.len();
            // The last token has no row after it.
            for (at, &token) in text.tokens[..text.tokens.len() - 1].iter().enumerate() {
                match words {
                    Some(words) => batch.tokens.extend_from_slice(words.spell(token)),
                    None => batch.tokens.push(token),
                }
                // What cannot be spelled at the very beginning leaves nothing to ask after.
                if at + 1 >= text.first_row() && batch.tokens.len() > start {
                    batch.asked.push(batch.tokens.len() - 1);
                    asked.push((place, at + 1 - text.first_row()));
                }
            }
            batch.lens.push(batch.tokens.len() - start);
        }
        Self { texts, words, batch, asked }
    }

    /// Compares the student's row with the target's, and puts the slope, times `weight`, in its place.
    fn compare(&self, at: usize, logits: &mut [f32], by: By, weight: f64) -> Measures {
        let By { divergence, temperature } = by;
        let (text, row) = self.asked[at];
        let row = self.texts[text].row(row);
        let Some(words) = self.words else {
            return compare(divergence, row, logits, temperature, weight);
        };
        for &token in words.foreign() {
            logits[token as usize] = f32::NEG_INFINITY;
        }
        let own = words.translate(row);
        let row = Row { tokens: &own.tokens, shares: &own.shares };
        let mut found = compare(divergence, row, logits, temperature, weight);
        if !own.has_likeliest {
            found.agreement = 0.0;
        }
        found
    }
}
