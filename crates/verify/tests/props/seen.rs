//! Generators of all tempers, and a [`Chance`] that looks at every question a rule asks.

use std::convert::Infallible;

use forerun_verify::rand_core::TryRng;
use forerun_verify::*;
use proptest::prelude::*;

/// What a generator gives: a rule must stand any of them.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Temper {
    Fair,
    Zeros,
    Ones,
    /// Zeros, ones and fair numbers in turn.
    Moody,
}

pub(crate) fn temper() -> impl Strategy<Value = Temper> {
    prop_oneof![
        5 => Just(Temper::Fair),
        1 => Just(Temper::Zeros),
        1 => Just(Temper::Ones),
        3 => Just(Temper::Moody),
    ]
}

pub(crate) struct Generator {
    temper: Temper,
    philox: Philox,
}

impl Generator {
    pub(crate) fn new(temper: Temper, seed: u64) -> Self {
        Self { temper, philox: Philox::new(seed) }
    }
}

impl TryRng for Generator {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        self.try_next_u64().map(|bits| u32::try_from(bits >> 32).unwrap())
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        let fair = self.philox.try_next_u64()?;
        Ok(match self.temper {
            Temper::Fair => fair,
            Temper::Zeros => 0,
            Temper::Ones => u64::MAX,
            Temper::Moody => [0, u64::MAX, fair, fair][(fair & 3) as usize],
        })
    }

    fn try_fill_bytes(&mut self, dst: &mut [u8]) -> Result<(), Infallible> {
        self.philox.try_fill_bytes(dst)
    }
}

/// Passes questions on, and remembers the first that should not have been asked.
pub(crate) struct Seen {
    chance: Random<Generator>,
    /// Whether weights are gone over, which costs as much as the row is long.
    visits: bool,
    pub(crate) fault: Option<String>,
}

impl Seen {
    pub(crate) fn new(generator: Generator, visits: bool) -> Self {
        Self { chance: Random(generator), visits, fault: None }
    }

    fn check(&mut self, sound: bool, fault: impl FnOnce() -> String) {
        if !sound && self.fault.is_none() {
            self.fault = Some(fault());
        }
    }

    fn check_pick(&mut self, weights: &dyn Weights, picked: usize) {
        let (mut sum, mut at_picked, mut unsound) = (0.0, 0.0, None);
        weights.visit(&mut |index, weight| {
            sum += weight;
            if index == picked {
                at_picked = weight;
            }
            // Written so that NaN fails.
            if !(weight > 0.0 && weight < f64::INFINITY) {
                unsound = Some((index, weight));
            }
        });
        self.check(unsound.is_none(), || format!("a weight is unsound: {unsound:?}"));
        self.check(at_picked > 0.0, || format!("picked {picked}, which has no weight"));
        let mass = weights.mass();
        let near = (sum - mass).abs() <= 1e-9 * mass + f64::MIN_POSITIVE;
        self.check(near, || format!("weights add up to {sum:e}, their mass is {mass:e}"));
    }
}

impl Chance for Seen {
    fn coin(&mut self, probability: f64) -> bool {
        self.check(!probability.is_nan(), || "a coin of probability NaN".to_owned());
        self.chance.coin(probability)
    }

    fn pick(&mut self, weights: &dyn Weights) -> usize {
        let mass = weights.mass();
        self.check(mass > 0.0 && mass < f64::INFINITY, || format!("a pick from mass {mass:e}"));
        let picked = self.chance.pick(weights);
        if self.visits {
            self.check_pick(weights, picked);
        }
        picked
    }
}
