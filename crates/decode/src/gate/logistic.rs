//! Logistic regression by hand: a few weights, fitted by Newton's method, batch after batch.

/// How firmly weights are held at zero before anything was seen; the first one, the intercept, is
/// nearly free.
const RIDGE: f64 = 1.0;
const RIDGE_INTERCEPT: f64 = 0.01;

/// Newton's method is at its end after a few steps, or never.
const STEPS_MAX: usize = 20;
const HALVINGS_MAX: usize = 10;
const STEP_MIN: f64 = 1e-9;

/// What was predicted from, what came of it, and by how much it counts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Example<const N: usize> {
    pub(super) features: [f64; N],
    /// The chance that it was accepted, or whether it was.
    pub(super) hit: f64,
    pub(super) weight: f64,
}

/// Predicts a chance from features, the first of which is 1.
///
/// What batches taught is kept as the weights they led to and how firmly they are known: a normal
/// distribution, which is where the next fit starts from. So no example is kept, and an old batch can
/// fade.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Logistic<const N: usize> {
    weights: [f64; N],
    /// The inverse of their covariance.
    precision: [[f64; N]; N],
}

impl<const N: usize> Default for Logistic<N> {
    fn default() -> Self {
        let mut precision = [[0.0; N]; N];
        for (index, row) in precision.iter_mut().enumerate() {
            row[index] = if index == 0 { RIDGE_INTERCEPT } else { RIDGE };
        }
        Self { weights: [0.0; N], precision }
    }
}

impl<const N: usize> Logistic<N> {
    /// From numbers that were stored. `None` if no fit could have come to them.
    pub(super) fn from_numbers(weights: &[f64], precision: &[Vec<f64>]) -> Option<Self> {
        let weights: [f64; N] = weights.try_into().ok()?;
        let rows: Vec<[f64; N]> =
            precision.iter().map(|row| row.as_slice().try_into().ok()).collect::<Option<_>>()?;
        let precision: [[f64; N]; N] = rows.try_into().ok()?;
        let finite = weights.iter().chain(precision.iter().flatten()).all(|it| it.is_finite());
        let symmetric = (0..N)
            .all(|row| (0..row).all(|column| near(precision[row][column], precision[column][row])));
        let known = Self { weights, precision };
        (finite && symmetric && factor(&known.precision).is_some()).then_some(known)
    }

    pub(super) fn weights(&self) -> &[f64; N] {
        &self.weights
    }

    pub(super) fn precision(&self) -> &[[f64; N]; N] {
        &self.precision
    }

    /// Fits the weights to a batch and to what earlier ones taught, of which so much is kept.
    pub(super) fn fit(&mut self, batch: &[Example<N>], memory: f64) {
        let ridge = Self::default().precision;
        let mut prior = self.clone();
        for (row, least) in prior.precision.iter_mut().zip(&ridge) {
            for (of, least) in row.iter_mut().zip(least) {
                // What fades, fades to what was known before anything was seen.
                *of = memory * *of + (1.0 - memory) * least;
            }
        }
        let mut weights = self.weights;
        let mut loss = prior.loss(&weights, batch);
        for _ in 0..STEPS_MAX {
            let (gradient, curvature) = prior.slope(&weights, batch);
            let Some(step) = factor(&curvature).map(|lower| solve(&lower, &gradient)) else {
                return;
            };
            let Some((next, less)) = prior.descend(&weights, &step, loss, batch) else { break };
            let moved = step.iter().fold(0.0_f64, |most, by| most.max(by.abs()));
            (weights, loss) = (next, less);
            if moved < STEP_MIN {
                break;
            }
        }
        let precision = prior.slope(&weights, batch).1;
        *self = Self { weights, precision };
    }

    /// Goes along a step as far as the loss falls.
    fn descend(
        &self,
        from: &[f64; N],
        step: &[f64; N],
        loss: f64,
        batch: &[Example<N>],
    ) -> Option<([f64; N], f64)> {
        let mut share = 1.0;
        for _ in 0..HALVINGS_MAX {
            let mut to = *from;
            to.iter_mut().zip(step).for_each(|(weight, by)| *weight -= share * by);
            let less = self.loss(&to, batch);
            if less <= loss {
                return Some((to, less));
            }
            share /= 2.0;
        }
        None
    }

    /// How badly weights fit a batch and this, in nats.
    fn loss(&self, weights: &[f64; N], batch: &[Example<N>]) -> f64 {
        let away = difference(weights, &self.weights);
        let far = dot(&away, &product(&self.precision, &away)) / 2.0;
        let misses = batch.iter().map(|example| {
            let odds = dot(weights, &example.features);
            // log(1 + exp(odds)), without overflow.
            let log_sum = odds.max(0.0) + (-odds.abs()).exp().ln_1p();
            example.weight * (log_sum - example.hit * odds)
        });
        far + misses.sum::<f64>()
    }

    /// The loss's gradient and its second derivatives.
    fn slope(&self, weights: &[f64; N], batch: &[Example<N>]) -> ([f64; N], [[f64; N]; N]) {
        let mut gradient = product(&self.precision, &difference(weights, &self.weights));
        let mut curvature = self.precision;
        for Example { features, hit, weight } in batch {
            let chance = chance(weights, features);
            let (off, bend) = (weight * (chance - hit), weight * chance * (1.0 - chance));
            for (row, feature) in features.iter().enumerate() {
                gradient[row] += off * feature;
                for (of, other) in curvature[row].iter_mut().zip(features) {
                    *of += bend * feature * other;
                }
            }
        }
        (gradient, curvature)
    }
}

/// What weights predict from features.
pub(super) fn chance<const N: usize>(weights: &[f64; N], features: &[f64; N]) -> f64 {
    1.0 / (1.0 + (-dot(weights, features)).exp())
}

fn near(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-9 * (one.abs() + other.abs() + 1.0)
}

fn dot<const N: usize>(one: &[f64; N], other: &[f64; N]) -> f64 {
    one.iter().zip(other).map(|(a, b)| a * b).sum()
}

fn difference<const N: usize>(one: &[f64; N], other: &[f64; N]) -> [f64; N] {
    std::array::from_fn(|index| one[index] - other[index])
}

fn product<const N: usize>(matrix: &[[f64; N]; N], vector: &[f64; N]) -> [f64; N] {
    std::array::from_fn(|row| dot(&matrix[row], vector))
}

/// The lower triangle whose square is the matrix (Cholesky); none unless it is positive definite.
fn factor<const N: usize>(matrix: &[[f64; N]; N]) -> Option<[[f64; N]; N]> {
    let mut lower = [[0.0; N]; N];
    for row in 0..N {
        for column in 0..=row {
            let before: f64 = (0..column).map(|at| lower[row][at] * lower[column][at]).sum();
            let left = matrix[row][column] - before;
            lower[row][column] = match row == column {
                true if left > 0.0 => left.sqrt(),
                true => return None,
                false => left / lower[column][column],
            };
        }
    }
    Some(lower)
}

/// Solves for a vector by the triangle of a matrix.
fn solve<const N: usize>(lower: &[[f64; N]; N], vector: &[f64; N]) -> [f64; N] {
    let mut solution = *vector;
    for row in 0..N {
        let before: f64 = (0..row).map(|at| lower[row][at] * solution[at]).sum();
        solution[row] = (solution[row] - before) / lower[row][row];
    }
    for row in (0..N).rev() {
        let after: f64 = (row + 1..N).map(|at| lower[at][row] * solution[at]).sum();
        solution[row] = (solution[row] - after) / lower[row][row];
    }
    solution
}

#[cfg(test)]
mod tests {
    use forerun_verify::Philox;
    use forerun_verify::rand_core::Rng as _;

    use super::*;

    const TRUE: [f64; 4] = [0.5, -2.0, 1.0, 0.0];

    fn uniform(random: &mut Philox) -> f64 {
        (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Examples whose chances are those of known weights.
    fn examples(count: usize, random: &mut Philox) -> Vec<Example<4>> {
        let example = |_| {
            let mut features = [1.0; 4];
            features[1..].fill_with(|| 4.0 * uniform(random) - 2.0);
            let hit = f64::from(u8::from(uniform(random) < chance(&TRUE, &features)));
            Example { features, hit, weight: 1.0 }
        };
        (0..count).map(example).collect()
    }

    fn assert_recovered(fitted: &Logistic<4>, within: f64) {
        for (weight, truth) in fitted.weights.iter().zip(&TRUE) {
            assert!((weight - truth).abs() < within, "{:?}", fitted.weights);
        }
    }

    #[test]
    fn a_fit_recovers_the_weights_that_made_the_examples() {
        let random = &mut Philox::new(7);
        let mut fitted = Logistic::default();
        fitted.fit(&examples(20_000, random), 1.0);
        assert_recovered(&fitted, 0.1);
    }

    #[test]
    fn many_small_batches_come_to_what_one_large_one_does() {
        let random = &mut Philox::new(7);
        let examples = examples(20_000, random);
        let mut at_once = Logistic::default();
        at_once.fit(&examples, 1.0);
        let mut in_parts = Logistic::default();
        examples.chunks(32).for_each(|batch| in_parts.fit(batch, 1.0));
        assert_recovered(&in_parts, 0.15);
        for (one, other) in at_once.weights.iter().zip(&in_parts.weights) {
            assert!((one - other).abs() < 0.1, "{at_once:?} {in_parts:?}");
        }
    }

    #[test]
    fn a_fit_is_where_the_loss_is_least() {
        let batch = examples(50, &mut Philox::new(3));
        let prior = Logistic::default();
        let mut fitted = prior.clone();
        fitted.fit(&batch, 1.0);
        let least = prior.loss(&fitted.weights, &batch);
        for index in 0..4 {
            for by in [-1e-3, 1e-3] {
                let mut beside = fitted.weights;
                beside[index] += by;
                assert!(prior.loss(&beside, &batch) > least, "{index} {by}");
            }
        }
    }

    #[test]
    fn examples_that_are_told_apart_without_error_keep_weights_finite() {
        let side = |of: f64| Example {
            features: [1.0, of],
            hit: f64::from(u8::from(of > 0.0)),
            weight: 1.0,
        };
        let mut fitted = Logistic::default();
        for _ in 0..100 {
            fitted.fit(&[side(-1.0), side(1.0), side(-9.0), side(9.0)], 1.0);
        }
        assert!(fitted.weights.iter().all(|it| it.is_finite() && it.abs() < 100.0), "{fitted:?}");
        assert!(chance(&fitted.weights, &[1.0, 1.0]) > 0.95);
    }

    #[test]
    fn soft_hits_and_weights_count_as_that_many_examples() {
        let features = [1.0, 0.5];
        let mut soft = Logistic::default();
        soft.fit(&[Example { features, hit: 0.25, weight: 4.0 }], 1.0);
        let mut hard = Logistic::default();
        let hit = |hit| Example { features, hit, weight: 1.0 };
        hard.fit(&[hit(1.0), hit(0.0), hit(0.0), hit(0.0)], 1.0);
        for (one, other) in soft.weights.iter().zip(&hard.weights) {
            assert!((one - other).abs() < 1e-9, "{soft:?} {hard:?}");
        }
    }

    #[test]
    fn what_is_no_longer_so_is_forgotten() {
        let always = |hit| vec![Example { features: [1.0, 0.0], hit, weight: 1.0 }; 32];
        let mut fitted = Logistic::default();
        (0..200).for_each(|_| fitted.fit(&always(1.0), 0.95));
        assert!(chance(&fitted.weights, &[1.0, 0.0]) > 0.99);
        (0..40).for_each(|_| fitted.fit(&always(0.0), 0.95));
        assert!(chance(&fitted.weights, &[1.0, 0.0]) < 0.2, "{fitted:?}");
    }

    #[test]
    fn numbers_that_no_fit_comes_to_are_refused() {
        let mut fitted = Logistic::<4>::default();
        fitted.fit(&examples(100, &mut Philox::new(1)), 1.0);
        let rows = |fitted: &Logistic<4>| {
            fitted.precision.iter().map(|row| row.to_vec()).collect::<Vec<_>>()
        };
        let good = rows(&fitted);
        assert_eq!(Logistic::from_numbers(&fitted.weights, &good), Some(fitted.clone()));
        let from = |weights: &[f64], rows: &[Vec<f64>]| Logistic::<4>::from_numbers(weights, rows);
        assert_eq!(from(&fitted.weights[1..], &good), None, "too few weights");
        assert_eq!(from(&fitted.weights, &good[1..]), None, "too few rows");
        assert_eq!(from(&[f64::NAN; 4], &good), None, "not a number");
        let mut crooked = good.clone();
        crooked[0][1] += 1.0;
        assert_eq!(from(&fitted.weights, &crooked), None, "not symmetric");
        let mut negative = good;
        negative[2][2] = -1.0;
        assert_eq!(from(&fitted.weights, &negative), None, "not positive");
    }
}
