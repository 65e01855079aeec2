//! What a round would commit and take.

use crate::cost::CostCurve;

use super::record::{Belief, Mood};
use super::{Controller, Pace};

/// Of a second path, how much of what the first leaves unaccepted stays so.
const SECOND_PATH: f64 = 0.8;

/// What else is in a round. The texts beside this one are taken to choose as it does: what pays for
/// one of them alone need not pay for all, and what pays for all need not for one.
///
/// ```
/// use forerun_decode::{CostCurve, Load};
/// let curve = CostCurve::new([(1, 1.0), (2, 1.5), (4, 2.5), (8, 4.5)]);
/// let load = Load { sequences: 1, tokens: 2 };
/// assert_eq!(load.seconds(&curve, 2.0), 4.5, "twice a token with two drafted, and two beside");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Load {
    /// Other texts that are being made.
    pub sequences: usize,
    /// Tokens of prompts that are being read.
    pub tokens: usize,
}

impl Load {
    /// What the target's pass takes with this many drafted nodes for each text.
    pub fn seconds(self, curve: &CostCurve, nodes: f64) -> f64 {
        let texts = (1 + self.sequences) as f64;
        let pass = curve.between(texts * (1.0 + nodes) + self.tokens as f64);
        pass + curve.seconds(1, 1 + self.sequences) - curve.seconds(1, 1)
    }

    /// What a draft model's pass takes with so many tokens for each text.
    fn drafting(self, curve: &CostCurve, tokens: f64) -> f64 {
        let texts = (1 + self.sequences) as f64;
        curve.between(texts * tokens) + curve.seconds(1, 1 + self.sequences) - curve.seconds(1, 1)
    }
}

/// A choice, and what it would come to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Forecast {
    pub(super) arm: Option<usize>,
    pub(super) len: usize,
    /// Tokens committed.
    pub(super) tokens: f64,
    /// Seconds a round takes, where drafters are not behind.
    pub(super) seconds: f64,
}

impl Forecast {
    /// Tokens a second.
    pub(super) fn rate(self) -> f64 {
        self.tokens / self.seconds
    }

    /// Seconds until so many tokens more are there.
    pub(super) fn seconds_for(self, tokens: f64) -> f64 {
        tokens / self.rate()
    }
}

impl Controller {
    /// One for each length.
    pub(super) fn forecasts(
        &self,
        arm: usize,
        pace: &Pace,
        load: Load,
        mood: Mood,
    ) -> Vec<Forecast> {
        let (own, shared) = (&pace.own[arm], &self.shared[arm]);
        let belief = self.belief(arm, pace, mood);
        let choice = &self.arms[arm];
        let curves = || choice.drafters.iter().map(|drafter| self.costs.drafters.get(*drafter));
        let models = curves().filter(|curve| matches!(curve, Some(Some(_)))).count();
        let unseen = (models * choice.width + choice.drafters.len() - models) as f64;
        let nodes = own.nodes_per_depth(shared, unseen);
        let spoken = own.spoken(shared);
        let mut reached = 1.0;
        let mut tokens = 1.0;
        let forecast = |len: usize| {
            reached *= belief.accepts(len - 1);
            tokens += reached;
            let nodes = nodes * len as f64;
            let scored = load.seconds(&self.costs.target, nodes / spoken);
            let silent = load.seconds(&self.costs.target, 0.0);
            let drafted: f64 = curves()
                .filter_map(|curve| curve?.as_ref())
                .map(|curve| {
                    // After a draft that was accepted to its end, the drafter has two to read.
                    let first = load.drafting(curve, 1.0 + reached);
                    first + (len - 1) as f64 * load.drafting(curve, choice.width as f64)
                })
                .sum();
            let seconds = spoken * scored + (1.0 - spoken) * silent + drafted;
            Forecast { arm: Some(arm), len, tokens, seconds }
        };
        (1..=self.len_max).map(forecast).collect()
    }

    /// What is believed of an arm. One that was never seen is believed to be as good as the best
    /// of those it covers, and better for each further path.
    fn belief(&self, arm: usize, pace: &Pace, mood: Mood) -> Belief {
        let choice = &self.arms[arm];
        let seen = |other: &usize| {
            *other != arm && choice.covers(&self.arms[*other]) && !self.shared[*other].is_empty()
        };
        let likely = |other: usize| {
            let belief = Belief::new(&pace.own[other], &self.shared[other], None, Mood::Even);
            let further = choice.width - self.arms[other].width;
            let rejected = (1.0 - belief.overall()) * SECOND_PATH.powf(further as f64);
            1.0 - rejected
        };
        let unseen = (0..self.arms.len()).filter(seen).map(likely).reduce(f64::max);
        Belief::new(&pace.own[arm], &self.shared[arm], unseen, mood)
    }
}
