//! What a round would commit and take.

use crate::cost::CostCurve;
use crate::draft::DrafterId;

use super::record::{Belief, Estimate, Unseen, Usual};
use super::{Arm, Controller, History, KnownArm, Outlook, OwnArm};

/// The share of what the first path leaves unaccepted that a second path does not accept either.
const SECOND_PATH: f64 = 0.8;

/// What else is in a round. The other sequences are assumed to choose as this one does: what pays
/// for one of them alone need not pay for all, and the other way round.
///
/// ```
/// use forerun_decode::{CostCurve, Load};
/// let curve = CostCurve::new([(1, 1.0), (2, 1.5), (4, 2.5), (8, 4.5)]);
/// let load = Load { sequences: 1, tokens: 2, apart: false };
/// assert_eq!(load.seconds(&curve, 2.0), 4.5, "twice a token with two drafted, and two beside");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Load {
    /// Other sequences that decode.
    pub sequences: usize,
    /// Prompt tokens that are prefilled.
    pub tokens: usize,
    /// Whether sequences have cells of their own: they share a pass only as far as their drafts are
    /// of one length, and what is longer takes a pass of its own.
    pub apart: bool,
}

impl Load {
    /// What the target's pass takes with this many drafted nodes for each sequence.
    pub fn seconds(self, curve: &CostCurve, nodes: f64) -> f64 {
        let sequences = (1 + self.sequences) as f64;
        let pass = curve.between(sequences * (1.0 + nodes) + self.tokens as f64);
        pass + curve.seconds(1, 1 + self.sequences) - curve.seconds(1, 1)
    }

    /// What drafts of about this many nodes add to a round if every sequence has one and they differ
    /// in length, as drafts do that end where they no longer pay.
    pub(super) fn uneven_drafts(self, curve: &CostCurve, nodes: f64) -> f64 {
        match self.apart && self.sequences > 0 && nodes > 0.0 {
            true => (1 + self.sequences) as f64 * curve.between(nodes.max(1.0)),
            false => self.seconds(curve, nodes) - self.seconds(curve, 0.0),
        }
    }

    /// What a draft model's pass takes with so many tokens for each sequence.
    pub(super) fn drafting(self, curve: &CostCurve, tokens: f64) -> f64 {
        let sequences = (1 + self.sequences) as f64;
        curve.between(sequences * tokens) + curve.seconds(1, 1 + self.sequences)
            - curve.seconds(1, 1)
    }
}

/// What a choice would commit and take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Forecast {
    pub(super) arm: Option<usize>,
    pub(super) len: usize,
    /// Whether its drafters choose how much of that they draft.
    pub(super) priced: bool,
    /// Tokens committed.
    pub(super) tokens: f64,
    /// Seconds a round takes if drafters have nothing to prefill.
    pub(super) seconds: f64,
}

impl Forecast {
    /// Tokens per second.
    pub(super) fn rate(self) -> f64 {
        self.tokens / self.seconds
    }

    /// Seconds that so many tokens take.
    pub(super) fn seconds_for(self, tokens: f64) -> f64 {
        tokens / self.rate()
    }
}

impl Controller {
    /// Returns the forecast of each length, or of the one of drafters that heed their price.
    pub(super) fn forecasts(
        &self,
        arm: usize,
        history: &History,
        outlook: &Outlook,
        estimate: Estimate,
    ) -> Vec<Forecast> {
        match self.arms[arm].gate_of {
            Some(of) => self.gated_forecast((arm, of), history, outlook, estimate),
            None if self.heeds_price(arm, outlook) => {
                vec![self.priced(arm, history, outlook, estimate)]
            }
            None => self.by_length(arm, history, outlook, estimate),
        }
    }

    /// What the target's passes take.
    pub(super) fn target(&self, estimate: Estimate) -> CostCurve {
        match estimate {
            Estimate::Mean => self.costs.target.clone(),
            Estimate::Optimistic => self.costs.target.doubted(),
        }
    }

    /// Whether all drafters of an arm heed their price.
    pub(super) fn heeds_price(&self, arm: usize, outlook: &Outlook) -> bool {
        let heeds_price = |id: &DrafterId| {
            outlook.drafters.iter().any(|drafter| drafter.id == *id && drafter.heeds_price)
        };
        self.arms[arm].arm.drafters.iter().all(heeds_price)
    }

    /// The forecast of an arm whose drafters heed their price: what its rounds came to.
    fn priced(
        &self,
        arm: usize,
        history: &History,
        outlook: &Outlook,
        estimate: Estimate,
    ) -> Forecast {
        let (own, shared) = (&history.arms[arm].record, &self.arms[arm].record);
        let Usual { accepted, drafted } = own.usual(shared, estimate, Unseen::PRICED);
        let drafting = own.drafting(shared);
        let target = self.target(estimate);
        let scored = outlook.load.uneven_drafts(&target, drafted / drafting);
        Forecast {
            arm: Some(arm),
            len: self.draft_len_max.min(outlook.draft_len_max),
            priced: true,
            tokens: 1.0 + accepted,
            seconds: outlook.load.seconds(&target, 0.0) + drafting * scored,
        }
    }

    pub(super) fn by_length(
        &self,
        arm: usize,
        history: &History,
        outlook: &Outlook,
        estimate: Estimate,
    ) -> Vec<Forecast> {
        let load = outlook.load;
        let KnownArm { arm: Arm { drafters, width }, record: shared, .. } = &self.arms[arm];
        let own = &history.arms[arm].record;
        let belief = self.belief(arm, history, estimate);
        let block_len = |id: &DrafterId| {
            outlook.drafters.iter().find(|drafter| drafter.id == *id).and_then(|it| it.block_len)
        };
        let curves = || {
            let curve = |id| Some((self.costs.drafters.get(id)?, block_len(id)));
            drafters.iter().filter_map(curve)
        };
        let models = curves().count();
        let unseen = (models * width + drafters.len() - models) as f64;
        let nodes = own.nodes_per_depth(shared, unseen);
        let drafting = own.drafting(shared);
        let target = self.target(estimate);
        let mut reached = 1.0;
        let mut tokens = 1.0;
        let forecast = |len: usize| {
            reached *= belief.accepts(len - 1);
            tokens += reached;
            let nodes = nodes * len as f64;
            let scored = load.seconds(&target, nodes / drafting);
            let plain = load.seconds(&target, 0.0);
            let drafted: f64 = curves()
                .map(|(curve, block_len)| {
                    if let Some(block_len) = block_len {
                        return load.drafting(curve, block_len as f64);
                    }
                    // After a draft that was accepted to its end, the drafter prefills two tokens.
                    let first = load.drafting(curve, 1.0 + reached);
                    first + (len - 1) as f64 * load.drafting(curve, *width as f64)
                })
                .sum();
            let seconds = drafting * scored + (1.0 - drafting) * plain + drafted;
            Forecast { arm: Some(arm), len, priced: false, tokens, seconds }
        };
        (1..=self.draft_len_max.min(outlook.draft_len_max)).map(forecast).collect()
    }

    /// What is believed of an arm. One without a record is believed to be as good as the best of
    /// those it covers, and better for each further path.
    fn belief(&self, arm: usize, history: &History, estimate: Estimate) -> Belief {
        let KnownArm { arm: wider, record, .. } = &self.arms[arm];
        let others = self.arms.iter().zip(&history.arms).enumerate();
        let covered = others.filter(|(index, (other, _))| {
            let known = other.gate_of.is_none() && !other.record.is_empty();
            *index != arm && known && wider.covers(&other.arm)
        });
        let likely = |(_, (other, own)): (usize, (&KnownArm, &OwnArm))| {
            let belief = Belief::new(&own.record, &other.record, None, Estimate::Mean);
            let further = wider.width - other.arm.width;
            let rejected = (1.0 - belief.overall()) * SECOND_PATH.powf(further as f64);
            1.0 - rejected
        };
        let unseen = covered.map(likely).reduce(f64::max);
        Belief::new(&history.arms[arm].record, record, unseen, estimate)
    }
}
