//! Training: batches in an order that the seed decides, a measurement of what is held out now and then,
//! and checkpoints from which the same numbers follow.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, ensure};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::collect::shuffle;
use crate::loss::{Divergence, Measures};
use crate::model::{HEAD_ROWS, Shape};
use crate::optimizer::{Adam, rate};
use crate::pupil::{By, Pupil, student_len};
use crate::rows::{Rows, Sequence, Settings};
use crate::sealed::{Reader, Writer};
use crate::words::Words;

/// What a run does. A checkpoint of another plan is another run's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// What is made small.
    pub divergence: Divergence,
    /// The highest rate.
    pub rate: f64,
    /// Steps until it is reached.
    pub warm_up: u64,
    /// How often all sequences are learned from.
    pub epochs: u64,
    /// Most tokens of a batch; a longer sequence is a batch of its own.
    pub batch_tokens: usize,
    /// Steps between measurements.
    pub measure_every: u64,
    /// Measurements without a better one after which it ends.
    pub patience: u64,
    /// Share of the sequences that the student generates itself, in each epoch but the first.
    pub on_policy: f64,
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
    /// Standard errors of the last two over the sequences: other prompts would give other figures.
    pub overlap_error: f64,
    /// See `overlap_error`.
    pub agreement_error: f64,
    /// How often a drafted token is accepted: the overlap, or the agreement at temperature 0.
    pub accepted: f64,
    /// Divergence of what was learned from since the point before, as it was when it was.
    pub learned_loss: Option<f64>,
}

/// How far a run is.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Progress {
    /// Steps that were made.
    pub step: u64,
    /// Steps in all.
    pub steps: u64,
    /// The epoch, and the batch of it that is next.
    pub epoch: u64,
    /// See `epoch`.
    pub batch: usize,
    /// Rows that were learned from.
    pub rows: u64,
    /// What was measured.
    pub curve: Vec<Point>,
    /// Sum of the divergences of rows that were learned from since.
    pub learned_loss: f64,
    /// Seconds of training.
    pub seconds: f64,
}

impl Progress {
    /// The best point, and how many were measured after it.
    pub fn best(&self) -> Option<(&Point, usize)> {
        let better =
            |best: usize, at: usize| match self.curve[at].accepted > self.curve[best].accepted {
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

/// A pupil in training.
#[derive(Debug)]
pub struct Trainer<'a, P> {
    plan: Plan,
    rows: &'a Rows,
    pupil: P,
    adam: Adam,
    matrices: Vec<bool>,
    gradients: Vec<Vec<f32>>,
    /// The weights that measured best.
    best: Vec<Vec<f32>>,
    progress: Progress,
    /// Overlaps of the tokens of a draft after the first, as they were last measured.
    deeper: Vec<f64>,
    /// Sequences of this epoch that the student generated itself, by their place.
    own: BTreeMap<usize, Sequence>,
    /// The batches of this epoch, once they are known.
    batches: Option<Vec<Vec<usize>>>,
}

impl<'a, P: Pupil> Trainer<'a, P> {
    /// Begins a run.
    pub fn new(plan: Plan, rows: &'a Rows, pupil: P) -> Self {
        let len = |place: usize| pupil.sequence_len(&rows.sequences[place]);
        let count = |epoch| packed(&order(&plan, rows, epoch), len, plan.batch_tokens).len() as u64;
        let steps = (0..plan.epochs).map(count).sum();
        Self {
            rows,
            adam: Adam::new(pupil.weights()),
            matrices: pupil.tensors().iter().map(|(_, it)| it.len() > 1).collect(),
            gradients: pupil.weights().iter().map(|it| vec![0.0; it.len()]).collect(),
            best: pupil.weights().clone(),
            progress: Progress { steps, ..Progress::default() },
            deeper: Vec::new(),
            own: BTreeMap::new(),
            batches: None,
            plan,
            pupil,
        }
    }

    /// What it does.
    pub fn plan(&self) -> &Plan {
        &self.plan
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
    pub fn step(&mut self) -> anyhow::Result<Measures> {
        let places = self.next_texts();
        let mut gradients = std::mem::take(&mut self.gradients);
        for gradient in &mut gradients {
            gradient.fill(0.0);
        }
        let sequences: Vec<&Sequence> = places.iter().map(|&place| self.sequence(place)).collect();
        let parts = split(
            &sequences,
            |sequence| self.pupil.sequence_len(sequence),
            rayon::current_num_threads(),
        );
        let found =
            self.pupil.learn(&parts, by(self.plan.divergence, self.rows), &mut gradients)?;
        let found = found.into_iter().next().unwrap_or_default();
        self.gradients = gradients;
        let Progress { step, steps, .. } = self.progress;
        let rate = rate(step, steps, self.plan.warm_up, self.plan.rate);
        let weights = self.pupil.weights_mut();
        self.adam.step(weights, &self.gradients, &self.matrices, (step, rate));
        self.progress.step += 1;
        self.next_batch();
        self.progress.rows += found.len() as u64;
        self.progress.learned_loss += found.iter().map(|it| it.loss).sum::<f64>();
        Ok(Measures::mean(&found))
    }

    /// Measures what is held out, and keeps the weights if they are the best so far.
    ///
    /// # Errors
    /// As for [`measure`].
    pub fn measure(&mut self) -> anyhow::Result<Point> {
        let Plan { divergence, batch_tokens, .. } = self.plan;
        let depths = measure(&self.pupil, self.rows, (divergence, batch_tokens))?;
        let HeldOut { mean: found, error } = depths.first().copied().unwrap_or_default();
        self.deeper = depths.iter().skip(1).map(|it| it.mean.overlap).collect();
        let Progress { step, rows, learned_loss, .. } = self.progress;
        let learned = rows - self.progress.curve.last().map_or(0, |it| it.rows);
        let point = Point {
            step,
            rows,
            loss: found.loss,
            overlap: found.overlap,
            agreement: found.agreement,
            overlap_error: error.overlap,
            agreement_error: error.agreement,
            accepted: match self.rows.settings.temperature > 0.0 {
                true => found.overlap,
                false => found.agreement,
            },
            learned_loss: (learned > 0).then(|| learned_loss / learned as f64),
        };
        self.progress.learned_loss = 0.0;
        self.progress.curve.push(point);
        if self.progress.best().is_some_and(|(_, after)| after == 0) {
            self.best.clone_from(self.pupil.weights());
        }
        Ok(point)
    }

    /// Goes back to the weights that measured best, and ends there.
    pub fn best_pupil(&mut self) -> &P {
        self.pupil.weights_mut().clone_from(&self.best);
        &self.pupil
    }

    /// Overlaps of the tokens of a draft after the first, if they are learned, by the last measurement.
    pub fn deeper(&self) -> &[f64] {
        &self.deeper
    }

    /// Writes all that the next step depends on.
    ///
    /// # Errors
    /// If there is no room on the disk; then the last checkpoint is still there.
    pub fn save(&self, path: &Path) -> anyhow::Result<()> {
        let header = Header { plan: self.plan.clone(), progress: self.progress.clone() };
        let mut writer = Writer::create(path, &header)?;
        for set in [self.pupil.weights(), &self.adam.first, &self.adam.second, &self.best] {
            for tensor in set {
                writer.write_floats(tensor)?;
            }
        }
        writer.write_integers(&[u32::try_from(self.own.len())?])?;
        for (&place, sequence) in &self.own {
            writer.write_integers(&[u32::try_from(place)?])?;
            sequence.write(&mut writer)?;
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
        let cut = || format!("{}: it is of another student: remove it", path.display());
        let weights = self.pupil.weights_mut();
        for set in [weights, &mut self.adam.first, &mut self.adam.second, &mut self.best] {
            for tensor in set {
                *tensor = reader.floats(tensor.len()).with_context(cut)?;
            }
        }
        let count = reader.integer().with_context(cut)?;
        let mut own = || {
            let place = reader.integer()? as usize;
            anyhow::Ok((place, Sequence::read(&self.rows.settings, &mut reader)?))
        };
        self.own = (0..count).map(|_| own()).collect::<anyhow::Result<_>>().with_context(cut)?;
        self.progress = header.progress;
        self.batches = None;
        Ok(())
    }

    /// The sequences that the student is to write itself before the next step, by their place; none if it is to
    /// write nothing.
    pub fn wants_own(&self) -> Vec<usize> {
        let Progress { epoch, batch, .. } = self.progress;
        if epoch == 0 || batch > 0 || !self.own.is_empty() {
            return Vec::new();
        }
        let mut order = order(&self.plan, self.rows, epoch);
        // Which sequences a batch has says nothing about which the student writes.
        shuffle(&mut order, !epoch_seed(&self.plan, epoch));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "of a length")]
        order.truncate((self.plan.on_policy * order.len() as f64).round() as usize);
        order
    }

    /// What the student generated at these places: it is learned from in this epoch.
    pub fn set_own(&mut self, places: &[usize], sequences: Vec<Sequence>) {
        self.own = places.iter().copied().zip(sequences).collect();
        self.batches = None;
    }

    /// The pupil as it is.
    pub fn pupil(&self) -> &P {
        &self.pupil
    }

    fn sequence(&self, place: usize) -> &Sequence {
        self.own.get(&place).unwrap_or(&self.rows.sequences[place])
    }

    fn batches(&self) -> Vec<Vec<usize>> {
        let order = order(&self.plan, self.rows, self.progress.epoch);
        let len = |place: usize| self.pupil.sequence_len(self.sequence(place));
        packed(&order, len, self.plan.batch_tokens)
    }

    /// The sequences of the next batch, by their place.
    fn next_texts(&mut self) -> Vec<usize> {
        let batches = match self.batches.take() {
            Some(batches) => batches,
            None => self.batches(),
        };
        let sequences = batches[self.progress.batch].clone();
        self.batches = Some(batches);
        sequences
    }

    /// Goes on to the next batch, of the next epoch if need be.
    fn next_batch(&mut self) {
        self.progress.batch += 1;
        if self.batches.as_ref().is_some_and(|it| it.len() == self.progress.batch) {
            self.progress.epoch += 1;
            self.progress.batch = 0;
            self.own.clear();
            self.batches = None;
        }
    }
}

fn epoch_seed(plan: &Plan, epoch: u64) -> u64 {
    plan.seed.wrapping_add(epoch.wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

/// The sequences that are learned from, in the order of an epoch.
fn order(plan: &Plan, rows: &Rows, epoch: u64) -> Vec<usize> {
    let sequences = rows.sequences.iter().enumerate().filter(|(_, sequence)| !sequence.held_out);
    let mut order: Vec<usize> = sequences.map(|(place, _)| place).collect();
    shuffle(&mut order, epoch_seed(plan, epoch));
    order
}

/// Sequences in this order, as many together as fit.
fn packed(order: &[usize], len: impl Fn(usize) -> usize, tokens_max: usize) -> Vec<Vec<usize>> {
    let mut all: Vec<Vec<usize>> = Vec::new();
    let mut room = 0;
    for &place in order {
        let len = len(place);
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

/// Sequences in at most so many parts, about as long as each other.
fn split<'a>(
    sequences: &[&'a Sequence],
    len: impl Fn(&Sequence) -> usize,
    count: usize,
) -> Vec<Vec<&'a Sequence>> {
    let mut longest_first = sequences.to_vec();
    longest_first.sort_by_key(|sequence| Reverse(len(sequence)));
    let mut parts = vec![(0, Vec::new()); count.min(sequences.len())];
    for sequence in longest_first {
        let shortest = parts.iter_mut().min_by_key(|(tokens, _)| *tokens);
        let (tokens, part) = shortest.expect("as many parts as sequences at most");
        *tokens += len(sequence);
        part.push(sequence);
    }
    parts.into_iter().map(|(_, part)| part).collect()
}

/// Tokens of the longest sequence as a student reads it.
pub fn len_max(rows: &Rows, words: Option<&Words>) -> usize {
    rows.sequences.iter().map(|sequence| student_len(sequence, words)).max().unwrap_or(0)
}

fn by(divergence: Divergence, rows: &Rows) -> By {
    By { divergence, temperature: rows.settings.row_temperature() }
}

/// What a pupil's rows come to on the sequences that are held out.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct HeldOut {
    /// The mean over all rows.
    pub mean: Measures,
    /// Its standard errors over the sequences.
    pub error: Measures,
}

/// Measures a pupil on the sequences that are held out, in batches of so many tokens, for each depth of a draft.
///
/// # Errors
/// If a sequence does not fit the pupil.
pub fn measure<P: Pupil>(
    pupil: &P,
    rows: &Rows,
    (divergence, batch_tokens): (Divergence, usize),
) -> anyhow::Result<Vec<HeldOut>> {
    let held_out = rows.sequences.iter().enumerate().filter(|(_, sequence)| sequence.held_out);
    let order: Vec<usize> = held_out.map(|(place, _)| place).collect();
    // By depth, and by sequence.
    let mut depths: Vec<BTreeMap<usize, Vec<Measures>>> = Vec::new();
    let len = |place: usize| pupil.sequence_len(&rows.sequences[place]);
    let batches = packed(&order, len, batch_tokens);
    let found = batches.par_iter().map(|batch| {
        let sequences: Vec<&Sequence> =
            batch.iter().map(|&sequence| &rows.sequences[sequence]).collect();
        pupil.measure(&sequences, by(divergence, rows))
    });
    let found: Vec<_> = found.collect::<anyhow::Result<_>>()?;
    for (batch, found) in batches.iter().zip(found) {
        depths.resize_with(found.len().max(depths.len()), BTreeMap::new);
        for (of_sequences, found) in depths.iter_mut().zip(found) {
            for (sequence, measures) in found {
                of_sequences.entry(batch[sequence]).or_default().push(measures);
            }
        }
    }
    let held_out = |of_sequences: BTreeMap<usize, Vec<Measures>>| {
        let of_sequences: Vec<Vec<Measures>> = of_sequences.into_values().collect();
        let mean = Measures::mean(&of_sequences.concat());
        HeldOut { mean, error: standard_error(&of_sequences, mean) }
    };
    Ok(depths.into_iter().map(held_out).collect())
}

/// How far the mean of all rows would stray with other sequences: rows of one sequence are alike.
fn standard_error(of_sequences: &[Vec<Measures>], mean: Measures) -> Measures {
    let rows = of_sequences.iter().map(Vec::len).sum::<usize>().max(1) as f64;
    let count = of_sequences.len() as f64;
    let error = |of: fn(&Measures) -> f64| {
        let gap =
            |sequence: &Vec<Measures>| sequence.iter().map(|it| of(it) - of(&mean)).sum::<f64>();
        let squares: f64 = of_sequences.iter().map(|sequence| gap(sequence).powi(2)).sum();
        (squares * count / (count - 1.0).max(1.0)).sqrt() / rows
    };
    Measures {
        loss: error(|it| it.loss),
        overlap: error(|it| it.overlap),
        agreement: error(|it| it.agreement),
    }
}

/// Bytes that training takes at most, with so many rows.
pub fn memory(student: &Shape, rows: usize, settings: &Settings, batch_tokens: usize) -> usize {
    let threads = rayon::current_num_threads();
    // Weights, again as candle's, gradients, each thread's, two means, the best, and embeddings and output twice.
    let vocab = if student.trained_vocab.is_some() { 2 } else { 4 } * student.vocab * student.width;
    let weights = (6 + threads) * student.trained() + vocab;
    let listed = rows * 2 * settings.listed;
    // Of the block that is being run there is about as much again.
    let kept = batch_tokens.max(settings.len)
        * student.kept_per_token(settings.len)
        * (student.blocks + 1)
        / student.blocks;
    4 * (weights + listed + kept + 2 * threads * HEAD_ROWS * student.vocab)
}

#[cfg(test)]
mod tests;
