//! Training: batches in an order that the seed decides, a measurement of what is held out now and then,
//! and checkpoints from which the same numbers follow.

use std::path::Path;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use crate::collect::shuffle;
use crate::loss::{Divergence, Measures, compare};
use crate::model::{Batch, Student};
use crate::optimizer::{Adam, rate};
use crate::rows::{Rows, Text};
use crate::sealed::{Reader, Writer};

/// What a run does. A checkpoint of another plan is another run's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// What is made small.
    pub divergence: Divergence,
    /// The highest rate.
    pub rate: f64,
    /// Steps until it is reached.
    pub warm_up: u64,
    /// How often all texts are learned from.
    pub epochs: u64,
    /// Most tokens of a batch; a longer text is a batch of its own.
    pub batch_tokens: usize,
    /// Steps between measurements.
    pub measure_every: u64,
    /// Measurements without a better one after which it ends.
    pub patience: u64,
    /// Seed of the order.
    pub seed: u64,
    /// What the student and the data are.
    pub of: String,
}

/// What was measured after so many steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The steps.
    pub step: u64,
    /// Rows that were learned from.
    pub rows: u64,
    /// Divergence of what is held out.
    pub loss: f64,
    /// Overlap of what is held out.
    pub overlap: f64,
    /// Share of rows whose likeliest token is the target's.
    pub agreement: f64,
}

/// How far a run is.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Progress {
    /// Steps that were made.
    pub step: u64,
    /// Steps in all.
    pub steps: u64,
    /// Rows that were learned from.
    pub rows: u64,
    /// What was measured.
    pub curve: Vec<Point>,
    /// Seconds of training.
    pub seconds: f64,
}

impl Progress {
    /// The best point, and how many were measured after it.
    pub fn best(&self) -> Option<(&Point, usize)> {
        let better =
            |best: usize, at: usize| match self.curve[at].overlap > self.curve[best].overlap {
                true => at,
                false => best,
            };
        let best = (0..self.curve.len()).reduce(better)?;
        Some((&self.curve[best], self.curve.len() - 1 - best))
    }
}

#[derive(Serialize, Deserialize)]
struct Header {
    plan: Plan,
    progress: Progress,
}

/// A student in training.
#[derive(Debug)]
pub struct Trainer<'a> {
    plan: Plan,
    rows: &'a Rows,
    student: Student<f32>,
    adam: Adam,
    matrices: Vec<bool>,
    gradients: Vec<Vec<f32>>,
    /// The weights that measured best.
    best: Vec<Vec<f32>>,
    progress: Progress,
    // The batches of the epoch that goes on.
    epoch: Option<(u64, Vec<Vec<usize>>)>,
}

impl<'a> Trainer<'a> {
    /// Begins a run.
    pub fn new(plan: Plan, rows: &'a Rows, student: Student<f32>) -> Self {
        let steps = (0..plan.epochs).map(|epoch| batches(&plan, rows, epoch).len() as u64).sum();
        Self {
            rows,
            adam: Adam::new(&student.weights),
            matrices: student.shape().tensors().iter().map(|(_, it)| it.len() > 1).collect(),
            gradients: student.weights.iter().map(|it| vec![0.0; it.len()]).collect(),
            best: student.weights.clone(),
            progress: Progress { steps, ..Progress::default() },
            epoch: None,
            plan,
            student,
        }
    }

    /// How far it is.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Ends it after fewer steps: rates fall accordingly.
    pub fn shorten(&mut self, steps: u64) {
        self.progress.steps = self.progress.steps.min(steps.max(self.progress.step + 1));
    }

    /// Adds to the time that training took.
    pub fn spend(&mut self, seconds: f64) {
        self.progress.seconds += seconds;
    }

    /// Whether all steps were made, or the last measurements were no better.
    pub fn is_done(&self) -> bool {
        let stale = self.progress.best().map_or(0, |(_, after)| after as u64);
        self.progress.step >= self.progress.steps || stale >= self.plan.patience
    }

    /// Whether a measurement is due.
    pub fn is_due(&self) -> bool {
        let (step, last) = (self.progress.step, self.progress.curve.last().map(|it| it.step));
        last != Some(step)
            && (step.is_multiple_of(self.plan.measure_every) || step == self.progress.steps)
    }

    /// Learns from one batch.
    ///
    /// # Errors
    /// If a weight got no gradient.
    pub fn step(&mut self) -> candle_core::Result<Measures> {
        let batch = self.next_batch();
        let texts: Vec<&Text> = batch.iter().map(|&text| &self.rows.texts[text]).collect();
        let (batch, asked) = batch_of(&texts);
        for gradient in &mut self.gradients {
            gradient.fill(0.0);
        }
        let (divergence, weight) = (self.plan.divergence, 1.0 / asked.len() as f64);
        let temperature = self.rows.settings.row_temperature();
        let ask = |at: usize, logits: &mut [f32]| {
            let (text, row) = asked[at];
            compare(divergence, texts[text].row(row), logits, temperature, weight)
        };
        let found = self.student.learn(&batch, &ask, &mut self.gradients)?;
        let Progress { step, steps, .. } = self.progress;
        let rate = rate(step, steps, self.plan.warm_up, self.plan.rate);
        self.adam.step(&mut self.student.weights, &self.gradients, &self.matrices, (step, rate));
        self.progress.step += 1;
        self.progress.rows += asked.len() as u64;
        Ok(Measures::mean(&found))
    }

    /// Measures what is held out, and keeps the weights if they are the best so far.
    ///
    /// # Errors
    /// As for [`measure`].
    pub fn measure(&mut self) -> candle_core::Result<Point> {
        let found =
            measure(&self.student, self.rows, self.plan.divergence, self.plan.batch_tokens)?;
        let point = Point {
            step: self.progress.step,
            rows: self.progress.rows,
            loss: found.loss,
            overlap: found.overlap,
            agreement: found.agreement,
        };
        self.progress.curve.push(point);
        if self.progress.best().is_some_and(|(_, after)| after == 0) {
            self.best.clone_from(&self.student.weights);
        }
        Ok(point)
    }

    /// The student as it measured best.
    pub fn into_best(mut self) -> Student<f32> {
        self.student.weights = self.best;
        self.student
    }

    /// Writes all that the next step depends on.
    ///
    /// # Errors
    /// If there is no room on the disk; then the last checkpoint is still there.
    pub fn save(&self, path: &Path) -> anyhow::Result<()> {
        let header = Header { plan: self.plan.clone(), progress: self.progress.clone() };
        let mut writer = Writer::create(path, &header)?;
        for set in [&self.student.weights, &self.adam.first, &self.adam.second, &self.best] {
            for tensor in set {
                writer.write_floats(tensor)?;
            }
        }
        writer.finish()
    }

    /// Goes on from a checkpoint.
    ///
    /// # Errors
    /// If it is damaged, or another run's.
    pub fn load(&mut self, path: &Path) -> anyhow::Result<()> {
        let (header, mut reader) = Reader::open::<Header>(path)?;
        ensure!(
            header.plan == self.plan,
            "{}: this is a checkpoint of a run with other settings: give the same flags, or remove it",
            path.display()
        );
        let weights = &mut self.student.weights;
        for set in [weights, &mut self.adam.first, &mut self.adam.second, &mut self.best] {
            for tensor in set {
                let cut = || format!("{}: it is of another student: remove it", path.display());
                *tensor = reader.floats(tensor.len()).with_context(cut)?;
            }
        }
        self.progress = header.progress;
        self.epoch = None;
        Ok(())
    }

    /// The texts of the next batch.
    fn next_batch(&mut self) -> Vec<usize> {
        let mut at = self.progress.step;
        let mut epoch = 0;
        loop {
            let known = self.epoch.as_ref().is_some_and(|(known, _)| *known == epoch);
            let count = match known {
                true => self.epoch.as_ref().map_or(0, |(_, all)| all.len() as u64),
                false => batches(&self.plan, self.rows, epoch).len() as u64,
            };
            if at < count {
                if !known {
                    self.epoch = Some((epoch, batches(&self.plan, self.rows, epoch)));
                }
                let place = usize::try_from(at).unwrap_or(0);
                return self.epoch.as_ref().map(|(_, all)| all[place].clone()).unwrap_or_default();
            }
            at -= count;
            epoch += 1;
        }
    }
}

/// The batches of an epoch, as places in the texts.
fn batches(plan: &Plan, rows: &Rows, epoch: u64) -> Vec<Vec<usize>> {
    let texts = rows.texts.iter().enumerate().filter(|(_, text)| !text.held_out);
    let mut order: Vec<usize> = texts.map(|(place, _)| place).collect();
    shuffle(&mut order, plan.seed.wrapping_add(epoch.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
    packed(rows, &order, plan.batch_tokens)
}

/// Texts in this order, as many together as fit.
fn packed(rows: &Rows, order: &[usize], tokens_max: usize) -> Vec<Vec<usize>> {
    let mut all: Vec<Vec<usize>> = Vec::new();
    let mut room = 0;
    for &place in order {
        let len = rows.texts[place].tokens.len();
        match all.last_mut().filter(|_| len <= room) {
            Some(batch) => batch.push(place),
            None => {
                all.push(vec![place]);
                room = tokens_max;
            }
        }
        room = room.saturating_sub(len);
    }
    all
}

/// Texts as a batch, and which row of which text is asked for where.
fn batch_of(texts: &[&Text]) -> (Batch, Vec<(usize, usize)>) {
    let (mut batch, mut asked) = (Batch::default(), Vec::new());
    for (place, text) in texts.iter().enumerate() {
        let start = batch.tokens.len();
        // The last token has no row after it.
        let read = &text.tokens[..text.tokens.len() - 1];
        batch.tokens.extend_from_slice(read);
        batch.lens.push(read.len());
        for row in 0..text.row_count() {
            batch.asked.push(start + text.prompt_len - 1 + row);
            asked.push((place, row));
        }
    }
    (batch, asked)
}

/// What a student's rows come to on the texts that are held out.
///
/// # Errors
/// If a text does not fit the student.
pub fn measure(
    student: &Student<f32>,
    rows: &Rows,
    divergence: Divergence,
    batch_tokens: usize,
) -> candle_core::Result<Measures> {
    let held_out = rows.texts.iter().enumerate().filter(|(_, text)| text.held_out);
    let order: Vec<usize> = held_out.map(|(place, _)| place).collect();
    let temperature = rows.settings.row_temperature();
    let mut found = Vec::new();
    for batch in packed(rows, &order, batch_tokens) {
        let texts: Vec<&Text> = batch.iter().map(|&text| &rows.texts[text]).collect();
        let (batch, asked) = batch_of(&texts);
        let ask = |at: usize, logits: &mut [f32]| {
            let (text, row) = asked[at];
            compare(divergence, texts[text].row(row), logits, temperature, 0.0)
        };
        found.extend(student.measure(&batch, &ask)?);
    }
    Ok(Measures::mean(&found))
}

/// Bytes that training takes at most, as far as they depend on the student and the data.
pub fn memory(student: &Student<f32>, rows: &Rows, batch_tokens: usize) -> usize {
    let shape = student.shape();
    let longest = batch_tokens.max(rows.len_max());
    // Weights, again as candle's, gradients twice, two means, the best, and embeddings twice.
    let weights = 7 * shape.trained() + 2 * shape.vocab * shape.width;
    let listed: usize = rows.texts.iter().map(|it| 2 * it.row_tokens.len()).sum();
    // Of the block that is being run there is about as much again.
    let kept =
        longest * shape.kept_per_token(rows.len_max()) * (shape.blocks + 1) / shape.blocks;
    4 * (weights + listed + kept + 2 * 128 * shape.vocab)
}

#[cfg(test)]
mod tests;
