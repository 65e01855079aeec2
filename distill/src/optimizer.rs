//! `AdamW`, and how fast it learns when.

use rayon::prelude::*;

/// How much of the last means stays, as in most work on language models.
const STAYS: [f32; 2] = [0.9, 0.95];
const EPSILON: f32 = 1e-8;
/// Share of a matrix that each step takes away, times the rate. Norms and biases have none.
const DECAY: f32 = 0.01;
/// The longest gradient that a step follows as it is.
const LONGEST: f64 = 1.0;
/// Share of the highest rate that is left at the end.
const LEFT: f64 = 0.05;
/// Numbers that a thread updates at once.
const CHUNK: usize = 1 << 16;

/// The means that `AdamW` keeps of gradients and of their squares.
#[derive(Debug, Clone, PartialEq)]
pub struct Adam {
    /// Means of gradients.
    pub first: Vec<Vec<f32>>,
    /// Means of squares.
    pub second: Vec<Vec<f32>>,
}

impl Adam {
    /// At the start.
    pub fn new(weights: &[Vec<f32>]) -> Self {
        let zeros: Vec<Vec<f32>> = weights.iter().map(|it| vec![0.0; it.len()]).collect();
        Self { first: zeros.clone(), second: zeros }
    }

    /// Moves the weights against their gradients, in step `step`, counted from 0. `matrices` says which
    /// of them are. Returns how long the gradient was.
    #[expect(clippy::cast_possible_truncation, reason = "weights are f32")]
    pub fn step(
        &mut self,
        weights: &mut [Vec<f32>],
        gradients: &[Vec<f32>],
        matrices: &[bool],
        (step, rate): (u64, f64),
    ) -> f64 {
        let length = length(gradients);
        let shorten = (LONGEST / length.max(LONGEST)) as f32;
        let steps = i32::try_from(step + 1).unwrap_or(i32::MAX);
        // Early means are of few gradients.
        let full = STAYS.map(|stays| 1.0 - f64::from(stays).powi(steps));
        let (pace, even) = ((rate / full[0]) as f32, (1.0 / full[1]) as f32);
        let tensors = weights.iter_mut().zip(gradients).zip(&mut self.first).zip(&mut self.second);
        for ((((weights, gradients), first), second), &matrix) in tensors.zip(matrices) {
            let decay = if matrix { 1.0 - rate as f32 * DECAY } else { 1.0 };
            let chunks = (weights.par_chunks_mut(CHUNK), gradients.par_chunks(CHUNK))
                .into_par_iter()
                .zip((first.par_chunks_mut(CHUNK), second.par_chunks_mut(CHUNK)).into_par_iter());
            chunks.for_each(|((weights, gradients), (first, second))| {
                let each = weights.iter_mut().zip(gradients).zip(first).zip(second);
                for (((weight, &gradient), first), second) in each {
                    let gradient = gradient * shorten;
                    *first += (1.0 - STAYS[0]) * (gradient - *first);
                    *second += (1.0 - STAYS[1]) * (gradient * gradient - *second);
                    *weight = *weight * decay - pace * *first / ((*second * even).sqrt() + EPSILON);
                }
            });
        }
        length
    }
}

/// How long a gradient is, over all tensors.
fn length(gradients: &[Vec<f32>]) -> f64 {
    let square = |of: &[f32]| of.iter().map(|&it| f64::from(it) * f64::from(it)).sum::<f64>();
    let sums: Vec<Vec<f64>> =
        gradients.iter().map(|it| it.par_chunks(CHUNK).map(square).collect()).collect();
    sums.iter().flatten().sum::<f64>().sqrt()
}

/// How fast a step of so many learns: rising at first, then falling along a cosine.
pub fn rate(step: u64, steps: u64, warm_up: u64, highest: f64) -> f64 {
    let rising = ((step + 1) as f64 / warm_up.max(1) as f64).min(1.0);
    let done = (step as f64 / steps.max(1) as f64).min(1.0);
    let falling = LEFT + (1.0 - LEFT) * 0.5 * (1.0 + (std::f64::consts::PI * done).cos());
    highest * rising * falling
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_rises_and_falls() {
        let rates: Vec<f64> = (0..100).map(|step| rate(step, 100, 10, 1.0)).collect();
        assert!(rates[..10].is_sorted() && rates[10..].is_sorted_by(|a, b| a >= b));
        assert!((rates[0] - 0.1).abs() < 1e-3 && rates[99] < 0.06 && rates[99] > LEFT);
    }

    #[test]
    fn a_first_step_moves_each_weight_by_the_rate_against_its_gradient() {
        let mut weights = vec![vec![1.0, -1.0, 0.5]];
        let mut adam = Adam::new(&weights);
        let length = adam.step(&mut weights, &[vec![3.0, -4.0, 0.0]], &[false], (0, 0.1));
        assert!((length - 5.0).abs() < 1e-9);
        for (weight, expected) in weights[0].iter().zip([0.9, -0.9, 0.5]) {
            assert!((weight - expected).abs() < 1e-5, "{weights:?}");
        }
    }

    #[test]
    fn a_bowl_is_descended() {
        let mut weights = vec![vec![3.0, -2.0]];
        let mut adam = Adam::new(&weights);
        for step in 0..400 {
            let gradients = vec![weights[0].iter().map(|it| 2.0 * it).collect()];
            adam.step(&mut weights, &gradients, &[true], (step, rate(step, 400, 10, 0.05)));
        }
        assert!(weights[0].iter().all(|it| it.abs() < 0.05), "{weights:?}");
    }
}
