//! What the engine's thread reports of a sequence: new tokens, statistics, failures.

use forerun_decode::{Dropped, Finish, Piece, Slot, Stats};

use crate::error::Failure;

/// What a round did for a sequence.
#[derive(Debug)]
pub(crate) enum Event {
    /// It has new tokens.
    Progress(Box<Progress>),
    /// It failed, and with it its request.
    Failed(Failure),
}

/// The tokens that a round committed to a sequence, and its statistics so far.
#[derive(Debug)]
pub(crate) struct Progress {
    /// The index of the sequence in its request.
    pub(crate) choice: usize,
    /// The tokens.
    pub(crate) pieces: Vec<Piece>,
    /// Why the sequence finished, once it has.
    pub(crate) finish: Option<Finish>,
    /// The stop string that it finished with, if there is one.
    pub(crate) stopped_by: Option<String>,
    /// Its slot.
    pub(crate) slot: Slot,
    /// Its statistics.
    pub(crate) stats: SequenceStats,
}

impl Progress {
    /// The only sequence of a request had finished before, and the client did not learn of it.
    pub(crate) fn finished(finish: Finish) -> Self {
        Self {
            choice: 0,
            pieces: Vec::new(),
            finish: Some(finish),
            stopped_by: None,
            slot: Slot(0),
            stats: SequenceStats::default(),
        }
    }
}

/// Statistics of a sequence.
#[derive(Debug, Clone, Default)]
pub(crate) struct SequenceStats {
    /// Those of its rounds.
    pub(crate) rounds: Stats,
    /// Prompt tokens that were in the prefix cache.
    pub(crate) cached: usize,
    /// Tokens of the prediction that were accepted as drafts.
    pub(crate) predicted: usize,
    /// For each round with a draft: tokens of the longest path, and accepted tokens.
    pub(crate) drafts: Vec<(u32, u32)>,
    /// Drafters that failed.
    pub(crate) dropped: Vec<Dropped>,
}

impl SequenceStats {
    /// What is sent with a round. The list of drafts comes with the last one only: sent with each,
    /// it would take the square of the number of rounds that wait to be read.
    pub(crate) fn report(&mut self, last: bool) -> Self {
        let drafts = std::mem::take(&mut self.drafts);
        let mut report = self.clone();
        if last {
            report.drafts.clone_from(&drafts);
        }
        self.drafts = drafts;
        report
    }
}

/// The finish reason, by OpenAI's names.
pub(crate) fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::End | Finish::Stop => "stop",
        Finish::Length | Finish::Context => "length",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_drafts_comes_with_the_last_round() {
        let drafts = vec![(4, 2); 5];
        let mut stats = SequenceStats { cached: 3, drafts, ..SequenceStats::default() };
        let report = stats.report(false);
        assert_eq!((report.cached, report.drafts.len()), (3, 0));
        assert_eq!(stats.report(true).drafts.len(), 5);
        assert_eq!(stats.drafts.len(), 5);
    }
}
