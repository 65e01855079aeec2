//! Where randomness enters: two questions a rule may ask, and the seeded answers.
//!
//! Rules never see a generator. They toss coins and pick from weights through [`Chance`], so the
//! same code that runs on a seed can be replayed over every outcome with its exact probability
//! (feature `check`).

use rand_core::Rng;

/// Non-negative weights over the indices `0..n`, never all zero if one is to be picked.
///
/// They give their mass and the index at a point of their running sum, so that a long row need not
/// be written out.
///
/// ```
/// use forerun_verify::Weights;
/// let weights: &[f64] = &[0.5, 0.0, 1.5];
/// assert_eq!(weights.mass(), 2.0);
/// assert_eq!(weights.locate(0.4), 0);
/// assert_eq!(weights.locate(0.5), 2);
/// ```
pub trait Weights {
    /// Sum of all weights.
    fn mass(&self) -> f64;

    /// The first index whose running sum exceeds `point`; always one with a positive weight.
    fn locate(&self, point: f64) -> usize;

    /// Calls `each` with every index of positive weight, in order.
    fn visit(&self, each: &mut dyn FnMut(usize, f64));
}

impl Weights for &[f64] {
    fn mass(&self) -> f64 {
        self.iter().sum()
    }

    fn locate(&self, point: f64) -> usize {
        locate_in(self.iter().copied().enumerate(), point).unwrap_or_default()
    }

    fn visit(&self, each: &mut dyn FnMut(usize, f64)) {
        self.iter().enumerate().filter(|(_, weight)| **weight > 0.0).for_each(|(i, w)| each(i, *w));
    }
}

/// The index at `point` of the running sum of positive weights; the last of them where rounding
/// carries `point` past the end, `None` where no weight is positive.
pub(crate) fn locate_in<I: Copy>(
    weights: impl IntoIterator<Item = (I, f64)>,
    point: f64,
) -> Option<I> {
    let mut left = point;
    let mut last = None;
    for (index, weight) in weights {
        if weight > 0.0 {
            if left < weight {
                return Some(index);
            }
            last = Some(index);
            left -= weight;
        }
    }
    last
}

/// The two kinds of random choice a rule may make.
///
/// ```
/// use forerun_verify::{Chance, Philox, Random};
/// let mut chance = Random(Philox::new(7));
/// assert!(chance.coin(1.0) && !chance.coin(0.0));
/// let weights: &[f64] = &[0.0, 1.0, 0.0];
/// assert_eq!(chance.pick(&weights), 1);
/// ```
pub trait Chance {
    /// True with this probability; never at zero or below, always at one or above.
    fn coin(&mut self, probability: f64) -> bool;

    /// An index with probability proportional to its weight.
    fn pick(&mut self, weights: &dyn Weights) -> usize;
}

/// Chance from any generator: each choice spends one uniform of 53 bits.
///
/// ```
/// use forerun_verify::{Chance, Philox, Random};
/// // The same seed gives the same choices on every platform.
/// let tosses = |seed| {
///     let mut chance = Random(Philox::new(seed));
///     (0..20).map(|_| chance.coin(0.5)).collect::<Vec<_>>()
/// };
/// assert_eq!(tosses(1), tosses(1));
/// assert_ne!(tosses(1), tosses(2));
/// ```
#[derive(Debug, Clone)]
pub struct Random<R>(pub R);

impl<R: Rng> Chance for Random<R> {
    fn coin(&mut self, probability: f64) -> bool {
        // Strictly below: a uniform of exactly zero must not let a zero probability through.
        unit(self.0.next_u64()) < probability
    }

    fn pick(&mut self, weights: &dyn Weights) -> usize {
        weights.locate(unit(self.0.next_u64()) * weights.mass())
    }
}

/// The top 53 bits as a number in `[0, 1)`.
fn unit(bits: u64) -> f64 {
    const STEP: f64 = 1.0 / (1u64 << 53) as f64;
    (bits >> 11) as f64 * STEP
}
