//! What the figures mean: each is defined here, once, and nowhere else.

use super::record::{Measure, PositionRecord};

/// The sums over some outputs.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Sums {
    /// Outputs.
    pub(super) texts: u64,
    /// Tokens after the first of each.
    pub(super) tokens: u64,
    /// Seconds they took.
    pub(super) seconds: f64,
    /// Rounds.
    pub(super) rounds: u64,
    /// Tokens drafted.
    pub(super) drafted: u64,
    /// Drafted tokens accepted.
    pub(super) accepted: u64,
    /// Passes of draft models, one after the other.
    pub(super) draft_passes: u64,
    /// By place in the draft.
    pub(super) positions: Vec<PositionRecord>,
    /// Where the time went: passes of draft models, the rest of drafting, the target, judging.
    pub(super) parts: [f64; 4],
}

impl Sums {
    /// Of these outputs.
    pub(super) fn of<'a>(measures: impl IntoIterator<Item = &'a Measure>) -> Self {
        let mut sums = Self::default();
        measures.into_iter().for_each(|measure| sums.add(measure));
        sums
    }

    fn add(&mut self, measure: &Measure) {
        self.texts += 1;
        self.tokens += measure.tokens;
        self.seconds += measure.seconds;
        self.rounds += measure.rounds;
        self.drafted += measure.drafted;
        self.accepted += measure.accepted;
        self.draft_passes += measure.draft_passes;
        if self.positions.len() < measure.positions.len() {
            self.positions.resize(measure.positions.len(), PositionRecord::default());
        }
        for (own, other) in self.positions.iter_mut().zip(&measure.positions) {
            own.drafted += other.drafted;
            own.reached += other.reached;
            own.accepted += other.accepted;
        }
        let parts = [measure.draft_pass_s, measure.draft_s, measure.target_s, measure.verify_s];
        for (own, other) in self.parts.iter_mut().zip(parts) {
            *own += other;
        }
    }

    /// Tokens a second, from the first token of each text on.
    pub(super) fn tokens_per_second(&self) -> Option<f64> {
        ratio(self.tokens as f64, self.seconds)
    }

    /// Block efficiency: committed tokens per round, which is one pass of the target, with the one
    /// that the target adds itself.
    pub(super) fn block_efficiency(&self) -> Option<f64> {
        ratio(self.tokens as f64, self.rounds as f64)
    }

    /// Mean accepted length: accepted drafted tokens per round.
    pub(super) fn accepted_length(&self) -> Option<f64> {
        ratio(self.accepted as f64, self.rounds as f64)
    }

    /// Spec-Bench's mean accepted tokens: the same, and the one that the target adds itself.
    pub(super) fn accepted_tokens(&self) -> Option<f64> {
        self.accepted_length().map(|length| length + 1.0)
    }

    /// Acceptance rate: accepted tokens per drafted token, on all paths.
    pub(super) fn acceptance_rate(&self) -> Option<f64> {
        ratio(self.accepted as f64, self.drafted as f64)
    }

    /// Memory-bound speedup (arXiv 2402.14160): block efficiency by what a round would take if a
    /// pass took as long as reading its weights. `size` is the draft model's in sizes of the target.
    pub(super) fn memory_bound_speedup(&self, size: f64) -> Option<f64> {
        let passes = ratio(self.draft_passes as f64, self.rounds as f64)?;
        self.block_efficiency().map(|efficiency| efficiency / (size * passes + 1.0))
    }

    /// What is left of the time: between the parts of rounds, and on text.
    pub(super) fn rest(&self) -> f64 {
        (self.seconds - self.parts.iter().sum::<f64>()).max(0.0)
    }
}

impl PositionRecord {
    /// Of the rounds that drafted this position, those that accepted it.
    pub(super) fn acceptance(&self) -> Option<f64> {
        ratio(self.accepted as f64, self.drafted as f64)
    }

    /// Conditional acceptance (n-alpha): the same of the rounds that accepted all before it.
    pub(super) fn conditional(&self) -> Option<f64> {
        ratio(self.accepted as f64, self.reached as f64)
    }
}

/// Nothing where there is nothing to divide by.
pub(super) fn ratio(above: f64, below: f64) -> Option<f64> {
    (below > 0.0).then(|| above / below)
}

/// The value below which this share of the values lies, between neighbours where need be.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a place in the list, from its first to its last"
)]
pub(super) fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let place = share.clamp(0.0, 1.0) * sorted.len().checked_sub(1)? as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    Some(below + place.fract() * (above - below))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(drafted: u64, reached: u64, accepted: u64) -> PositionRecord {
        PositionRecord { drafted, reached, accepted }
    }

    /// Four rounds of one path of three tokens that accepted 3, 0, 2 and 1 of them; the last round
    /// drafted only one.
    fn path() -> Sums {
        Sums::of([&Measure {
            tokens: 3 + 2 + 1 + 4,
            seconds: 2.0,
            rounds: 4,
            drafted: 3 + 3 + 3 + 1,
            accepted: 6,
            draft_passes: 3 + 3 + 3 + 1,
            positions: vec![position(4, 4, 3), position(3, 2, 2), position(3, 2, 1)],
            draft_pass_s: 0.5,
            draft_s: 0.1,
            target_s: 1.0,
            verify_s: 0.2,
            ..Measure::default()
        }])
    }

    /// Two rounds of two paths of four tokens that accepted 4 and 1.
    fn tree() -> Sums {
        Sums::of([&Measure {
            tokens: 7,
            seconds: 1.0,
            rounds: 2,
            drafted: 2 * 2 * 4,
            accepted: 5,
            draft_passes: 2 * 4,
            ..Measure::default()
        }])
    }

    #[test]
    fn block_efficiency_is_committed_tokens_per_target_pass() {
        assert_eq!(path().block_efficiency(), Some(2.5));
        assert_eq!(tree().block_efficiency(), Some(3.5));
        assert_eq!(Sums::default().block_efficiency(), None);
    }

    #[test]
    fn the_accepted_length_counts_drafted_tokens_and_spec_bench_s_the_target_s_too() {
        assert_eq!((path().accepted_length(), path().accepted_tokens()), (Some(1.5), Some(2.5)));
        assert_eq!((tree().accepted_length(), tree().accepted_tokens()), (Some(2.5), Some(3.5)));
    }

    #[test]
    fn the_acceptance_rate_is_of_all_drafted_tokens() {
        assert_eq!(path().acceptance_rate(), Some(0.6));
        assert_eq!(tree().acceptance_rate(), Some(5.0 / 16.0));
        assert_eq!(Sums { rounds: 3, ..Sums::default() }.acceptance_rate(), None);
    }

    #[test]
    fn conditional_acceptance_is_of_rounds_that_accepted_all_before() {
        let positions = path().positions;
        let all: Vec<_> = positions.iter().map(|it| it.conditional().unwrap()).collect();
        assert_eq!(all, [0.75, 1.0, 0.5]);
        let all: Vec<_> = positions.iter().map(|it| it.acceptance().unwrap()).collect();
        assert_eq!(all, [0.75, 2.0 / 3.0, 1.0 / 3.0]);
    }

    #[test]
    fn the_memory_bound_speedup_charges_each_draft_pass_by_size() {
        // Two and a half passes of a tenth of the size: 2.5 / (0.25 + 1).
        assert_eq!(path().memory_bound_speedup(0.1), Some(2.0));
        // Four passes, however many paths: 3.5 / (0.4 + 1).
        assert!((tree().memory_bound_speedup(0.1).unwrap() - 2.5).abs() < 1e-12);
        // Nothing is read to look tokens up.
        assert_eq!(path().memory_bound_speedup(0.0), path().block_efficiency());
    }

    #[test]
    fn rates_and_rests_are_of_the_sums() {
        let sums = Sums { seconds: 4.0, ..path() };
        assert_eq!(sums.tokens_per_second(), Some(2.5));
        assert!((path().rest() - 0.2).abs() < 1e-12);
        assert_eq!(tree().rest(), 1.0);
    }

    #[test]
    fn quantiles_lie_between_neighbours() {
        assert_eq!(quantile(&[1.0, 2.0, 3.0], 0.5), Some(2.0));
        assert_eq!(quantile(&[1.0, 2.0], 0.25), Some(1.25));
        assert_eq!(quantile(&[], 0.5), None);
    }
}
