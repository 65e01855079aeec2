//! Arms whose paths a gate ends: what they bring, and what the gate is told.

use super::forecast::Forecast;
use super::record::{Estimate, Record, Unseen, Usual};
use super::{Arm, Choice, Controller, History, KnownArm, Outlook};
use crate::commit::Commit;
use crate::draft::DrafterId;
use crate::gate::{Gates, Watch, Worth};

/// How firmly it is believed, in rounds, that a gate does as well as the best length.
const UNSEEN_ROUNDS: f64 = 4.0;

/// How much better a gate may be that was hardly tried.
const HOPE: f64 = 1.03;

impl Controller {
    /// Adds, for every arm whose drafters all have gates here, one whose paths a gate ends. All arms
    /// teach the gates.
    #[must_use]
    pub fn gated(mut self, gates: Gates) -> Self {
        let may = |arm: &Arm| arm.drafters.iter().all(|it| gates.covers(*it));
        let own = self.arms.iter().enumerate().filter(|(_, it)| may(&it.arm));
        let twin = |(index, it): (usize, &KnownArm)| KnownArm {
            arm: it.arm.clone(),
            gate_of: Some(index),
            record: Record::default(),
        };
        let twins: Vec<KnownArm> = own.map(twin).collect();
        self.arms.extend(twins);
        self.gates = Some(gates);
        self
    }

    /// The gates, with what they have learned; none if there are none.
    pub fn gates(&self) -> Option<&Gates> {
        self.gates.as_ref()
    }

    /// Whether gates may end an arm's paths: all have seen enough at this temperature, the paths need
    /// not be whole, and no other sequence waits for them to be of one length.
    pub(super) fn may_gate(&self, arm: &Arm, outlook: &Outlook) -> bool {
        let alone = !outlook.load.apart || outlook.load.sequences == 0;
        let ready = |drafter: &DrafterId| {
            let gate = self.gates.as_ref().and_then(|it| it.of(*drafter, outlook.temperature));
            gate.is_some_and(|gate| gate.is_ready())
        };
        outlook.may_stop && alone && arm.drafters.iter().all(ready)
    }

    /// The forecast of an arm whose paths a gate ends: what its rounds came to, or until there were some,
    /// what the arm `of` brings with its best length.
    pub(super) fn gated_forecast(
        &self,
        (arm, of): (usize, usize),
        history: &History,
        outlook: &Outlook,
        estimate: Estimate,
    ) -> Vec<Forecast> {
        let load = outlook.load;
        let lengths = self.by_length(of, history, outlook, estimate);
        let best = lengths.iter().max_by(|one, other| one.rate().total_cmp(&other.rate()));
        let (Some(best), Some(longest)) = (best, lengths.last()) else { return Vec::new() };
        let Arm { drafters, width } = &self.arms[arm].arm;
        let paths = (*width * drafters.len()) as f64;
        let usual = Usual { accepted: best.tokens - 1.0, drafted: best.len as f64 * paths };
        let (own, shared) = (&history.arms[arm].record, &self.arms[arm].record);
        let hope = match estimate == Estimate::Optimistic && !shared.is_known() {
            true => HOPE,
            false => 1.0,
        };
        let unseen = Unseen { usual, rounds: UNSEEN_ROUNDS };
        let Usual { accepted, drafted } = own.usual(shared, estimate, unseen);
        let drafting = own.drafting(shared);
        let target = self.target(estimate);
        let scored = load.uneven_drafts(&target, drafted / drafting);
        let depth = drafted / paths;
        let passes = |drafter: &DrafterId| {
            let Some(curve) = self.costs.drafters.get(drafter) else { return 0.0 };
            if let Some(block_len) = self.block_len(*drafter, outlook) {
                return load.drafting(curve, block_len as f64);
            }
            // Every other path ends after a row that was computed in vain.
            let further = (depth - 0.5).max(0.0);
            load.drafting(curve, 2.0) + further * load.drafting(curve, *width as f64)
        };
        let run: f64 = drafters.iter().map(passes).sum();
        let seconds = load.seconds(&target, 0.0) + drafting * scored + run;
        let tokens = hope * (1.0 + accepted);
        vec![Forecast { arm: Some(arm), len: longest.len, priced: true, tokens, seconds }]
    }

    /// What looks at the drafters of an arm in the next round, given what is in use now.
    pub(super) fn watches(
        &self,
        arm: Option<usize>,
        history: &History,
        outlook: &Outlook,
        current: Forecast,
    ) -> Vec<Watch> {
        let (Some(gates), Some(arm)) = (&self.gates, arm) else { return Vec::new() };
        let KnownArm { arm: Arm { drafters, width }, gate_of, .. } = &self.arms[arm];
        let worth = |drafter: DrafterId| Worth {
            scored: self.price(current, outlook.load),
            pass: match (self.costs.drafters.get(&drafter), self.block_len(drafter, outlook)) {
                (Some(curve), None) => current.rate() * outlook.load.drafting(curve, *width as f64),
                // A block is there as a whole, whatever is drawn from it.
                _ => 0.0,
            },
            width: *width,
        };
        let watch = |drafter: &DrafterId| {
            let worth = gate_of.map(|_| worth(*drafter));
            gates.watch((*drafter, outlook.temperature), history.since_rejection, worth)
        };
        drafters.iter().filter(|drafter| gates.covers(**drafter)).map(watch).collect()
    }

    /// Teaches the gates what a round that is over showed. A drafter that had read only the end of a
    /// sequence is not what it is otherwise.
    pub(super) fn teach_gates(&mut self, history: &mut History, choice: &Choice, commit: &Commit) {
        history.since_rejection = match commit.corrected {
            true => 0,
            false => history.since_rejection + commit.committed,
        };
        let whole = choice.plan.drafter_prefill_max.is_none();
        if let Some(gates) = self.gates.as_mut().filter(|_| whole) {
            gates.learn(&commit.lessons, choice.temperature);
        }
    }

    fn block_len(&self, drafter: DrafterId, outlook: &Outlook) -> Option<usize> {
        outlook.drafters.iter().find(|it| it.id == drafter).and_then(|it| it.block_len)
    }
}

#[cfg(test)]
mod tests;
