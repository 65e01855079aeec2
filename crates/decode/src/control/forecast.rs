//! What a round would commit and take.

use crate::cost::CostCurve;

use super::record::{Belief, Mood};
use super::{Controller, Pace};

/// Of a second path, how much of what the first leaves unaccepted stays so.
const SECOND_PATH: f64 = 0.8;

/// What else is in the target's pass: of the sequences beside this one.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Load {
    /// How many there are.
    pub sequences: usize,
    /// Their tokens in the pass.
    pub tokens: usize,
    /// What they commit by it.
    pub commits: f64,
}

impl Load {
    /// What the target's pass takes with this many drafted nodes.
    pub(super) fn seconds(self, curve: &CostCurve, nodes: f64) -> f64 {
        let alone = curve.between(1.0 + nodes + self.tokens as f64);
        alone + curve.seconds(1, 1 + self.sequences) - curve.seconds(1, 1)
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
    pub(super) load: Load,
}

impl Forecast {
    /// Tokens a second, of all sequences in the pass.
    pub(super) fn rate(self) -> f64 {
        (self.tokens + self.load.commits) / self.seconds
    }

    /// Seconds until so many tokens more are there, of this sequence and its share of the others.
    pub(super) fn seconds_for(self, tokens: f64) -> f64 {
        tokens * (1.0 + self.load.commits) / self.rate()
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
                    let first = curve.between(1.0 + reached);
                    first + (len - 1) as f64 * curve.between(choice.width as f64)
                })
                .sum();
            let seconds = spoken * scored + (1.0 - spoken) * silent + drafted;
            Forecast { arm: Some(arm), len, tokens, seconds, load }
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
