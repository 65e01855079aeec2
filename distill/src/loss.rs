//! How far a student's row is from the target's, and the slope of it.
//!
//! The target's rows are sparse: their likeliest tokens, and one probability for all others together. The
//! student's row is summed up the same way, so that a divergence is one between distributions, and at
//! most what it would be over the whole vocabulary. Overlap counts the listed tokens alone, so it is at
//! most what it would be, too.

use serde::{Deserialize, Serialize};

/// What is computed with: `f32`, or `f64` where gradients are checked.
pub trait Real: candle_core::FloatDType {
    /// The exponential.
    fn exp(self) -> Self;
}

impl Real for f32 {
    fn exp(self) -> Self {
        self.exp()
    }
}

impl Real for f64 {
    fn exp(self) -> Self {
        self.exp()
    }
}

/// The least probability that a logarithm is taken of.
const LEAST: f64 = 1e-9;

/// What training makes small.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Divergence {
    /// Kullback-Leibler from target to student: the student covers all that the target may say
    #[value(name = "kl")]
    ForwardKl,
    /// Kullback-Leibler from student to target: the student says only what the target may say
    #[value(name = "reverse-kl")]
    ReverseKl,
    /// Jensen-Shannon: between the two, and bounded
    Jsd,
    /// Total variation: the probability that a drafted token is rejected
    Tv,
}

impl Divergence {
    /// What a pair of probabilities adds to the divergence, and its slope by the student's.
    fn term(self, target: f64, student: f64) -> (f64, f64) {
        let half = 0.5 * (target + student).max(LEAST);
        let log = |of: f64, by: f64| (of.max(LEAST) / by.max(LEAST)).ln();
        match self {
            // Its slope is what lifts a probability of zero, so it has no least but that of division.
            Self::ForwardKl => {
                let student = student.max(f64::MIN_POSITIVE);
                (
                    if target > 0.0 { target * (target / student).ln() } else { 0.0 },
                    -target / student,
                )
            }
            Self::ReverseKl => (student * log(student, target), log(student, target) + 1.0),
            Self::Jsd => (
                0.5 * (target * log(target, half) + student * log(student, half)),
                0.5 * log(student, half),
            ),
            Self::Tv => (0.5 * (target - student).abs(), 0.5 * (student - target).signum()),
        }
    }
}

/// A row of the target: its likeliest tokens, in falling order, with their probabilities.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// The tokens.
    pub tokens: &'a [u32],
    /// Their probabilities.
    pub probs: &'a [f32],
}

/// What a student's row came to.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Measures {
    /// The divergence.
    pub loss: f64,
    /// Sum of the smaller of the two probabilities: the probability that a token drafted here is accepted.
    pub overlap: f64,
    /// Whether both find the same token likeliest: 1 or 0.
    pub agreement: f64,
}

impl Measures {
    /// The mean of some.
    pub fn mean(all: &[Self]) -> Self {
        let count = all.len().max(1) as f64;
        let sum = |of: fn(&Self) -> f64| all.iter().map(of).sum::<f64>() / count;
        Self {
            loss: sum(|it| it.loss),
            overlap: sum(|it| it.overlap),
            agreement: sum(|it| it.agreement),
        }
    }
}

/// Compares a student's logits at a temperature with the target's row, and puts in their place the
/// slope of the divergence, times `weight`.
pub fn compare<F: Real>(
    divergence: Divergence,
    row: Row<'_>,
    logits: &mut [F],
    temperature: f64,
    weight: f64,
) -> Measures {
    let mut likeliest = 0;
    for (token, &logit) in logits.iter().enumerate() {
        if logit > logits[likeliest] {
            likeliest = token;
        }
    }
    let (most, sharp) = (logits[likeliest], F::from_f64(1.0 / temperature));
    let mut all = 0.0;
    for chunk in logits.chunks_mut(1024) {
        let mut sum = F::zero();
        for logit in chunk {
            *logit = ((*logit - most) * sharp).exp();
            sum += *logit;
        }
        all += sum.to_f64();
    }
    let mut measures = Measures::default();
    let first = row.tokens.first().map(|&token| token as usize);
    measures.agreement = f64::from(u8::from(first == Some(likeliest)));
    let (mut slopes, mut mean) = (Vec::with_capacity(row.tokens.len()), 0.0);
    let (mut listed, mut student_listed) = (0.0, 0.0);
    let mut visit = |target: f64, student: f64| {
        let (term, slope) = divergence.term(target, student);
        measures.loss += term;
        mean += student * slope;
        slope
    };
    for (&token, &prob) in row.tokens.iter().zip(row.probs) {
        let (target, student) = (f64::from(prob), logits[token as usize].to_f64() / all);
        (listed, student_listed) = (listed + target, student_listed + student);
        slopes.push((student, visit(target, student)));
    }
    let others = (1.0 - student_listed).max(0.0);
    let slope = visit((1.0 - listed).max(0.0), others);
    for (&prob, (student, _)) in row.probs.iter().zip(&slopes) {
        measures.overlap += f64::from(prob).min(*student);
    }
    let weight = weight / temperature;
    let factor = F::from_f64(if others > 0.0 { weight * (slope - mean) / all } else { 0.0 });
    logits.iter_mut().for_each(|it| *it *= factor);
    for (&token, (student, slope)) in row.tokens.iter().zip(&slopes) {
        logits[token as usize] = F::from_f64(weight * student * (slope - mean));
    }
    measures
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Divergence; 4] =
        [Divergence::ForwardKl, Divergence::ReverseKl, Divergence::Jsd, Divergence::Tv];

    #[test]
    fn slopes_are_those_of_differences() {
        let logits: Vec<f64> = (0..12).map(|at| 2.0 * f64::from(at).sin()).collect();
        let row = Row { tokens: &[3, 1, 8], probs: &[0.5, 0.2, 0.1] };
        for divergence in ALL {
            for temperature in [0.6, 1.0, 1.7] {
                let loss = |logits: &[f64]| {
                    compare(divergence, row, &mut logits.to_vec(), temperature, 1.0).loss
                };
                let mut slope = logits.clone();
                compare(divergence, row, &mut slope, temperature, 1.0);
                for at in 0..logits.len() {
                    let moved = |by: f64| {
                        let mut moved = logits.clone();
                        moved[at] += by;
                        loss(&moved)
                    };
                    let expected = (moved(1e-6) - moved(-1e-6)) / 2e-6;
                    let gap = (slope[at] - expected).abs();
                    assert!(
                        gap < 1e-8,
                        "{divergence:?} at {temperature}: {} {expected}",
                        slope[at]
                    );
                }
            }
        }
    }

    #[test]
    fn a_student_that_says_the_same_has_no_loss_and_full_overlap() {
        let probs = [0.4_f32, 0.35, 0.25];
        let logits: Vec<f64> = probs.iter().map(|&prob| f64::from(prob).ln()).collect();
        for divergence in ALL {
            let row = Row { tokens: &[0, 1, 2], probs: &probs };
            let found = compare(divergence, row, &mut logits.clone(), 1.0, 1.0);
            assert!(found.loss.abs() < 1e-6, "{divergence:?}: {found:?}");
            assert!((found.overlap - 1.0).abs() < 1e-6 && found.agreement > 0.5, "{found:?}");
        }
    }

    #[test]
    fn total_variation_is_what_overlap_lacks() {
        let mut logits = vec![1.0, 0.3, -0.7];
        let row = Row { tokens: &[1, 0, 2], probs: &[0.6, 0.3, 0.1] };
        let found = compare(Divergence::Tv, row, &mut logits, 1.0, 1.0);
        assert!((found.loss + found.overlap - 1.0).abs() < 1e-7, "{found:?}");
        assert!(found.agreement < 0.5);
    }
}
