//! What a round did: for each sequence, and for all together.

use std::time::Duration;

use forerun_verify::Spend;

use crate::cost::Pass;
use crate::draft::{DraftFailure, DrafterId, DrafterKind};
use crate::gate::Lesson;
use crate::logprob::TokenLogprob;

/// What a round did for one sequence.
#[derive(Debug, Default)]
pub struct Commit {
    /// Committed tokens whose KV entries were computed: the prompt's, or one in a later round.
    pub prefilled: usize,
    /// Whether more of the prompt is to be prefilled, so that nothing could be committed.
    pub prefills: bool,
    /// Most tokens of a path that drafters could propose; zero if none was called.
    pub draft_len_max: usize,
    /// Tokens drafted, on all paths together.
    pub drafted: usize,
    /// Length of the longest drafted path.
    pub draft_len: usize,
    /// Drafted tokens that were accepted, and those that were not judged.
    pub accepted: usize,
    /// Of these, the first so many: committed before the target has scored them.
    pub deferred: usize,
    /// Tokens committed: none while a prompt is prefilled, else `accepted + 1`; only `accepted` if the
    /// target did not run.
    pub committed: usize,
    /// Whether the last committed token stands where a drafted one was rejected.
    pub corrected: bool,
    /// Drafters that failed. Later plans for this sequence must leave them out.
    pub dropped: Vec<Dropped>,
    /// The fixed paths that were drafted.
    pub fixed_paths: Vec<FixedPath>,
    /// For each committed token, if the sequence wants them.
    pub logprobs: Vec<TokenLogprob>,
    /// What each token spent that was scored in this round, if the rule is lossy.
    pub spent: Vec<Spend>,
    /// How many of these tokens, the first ones, were committed in earlier rounds.
    pub late: usize,
    /// Paths that a gate ended before their length.
    pub stopped: usize,
    /// What the draft taught its gates.
    pub lessons: Vec<Lesson>,
}

/// A fixed path that was drafted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FixedPath {
    /// Who drafted it.
    pub drafter: DrafterId,
    /// How many tokens.
    pub drafted: usize,
    /// How many of them were committed.
    pub accepted: usize,
    /// How many of those came from what the request predicts.
    pub predicted: usize,
}

/// A drafter that failed for a sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct Dropped {
    /// Which one.
    pub drafter: DrafterId,
    /// What it is.
    pub kind: DrafterKind,
    /// What happened.
    pub failure: DraftFailure,
}

/// Where a round's time went.
#[derive(Debug, Clone, Copy, Default)]
pub struct Times {
    /// Passes of draft models.
    pub draft_pass: Duration,
    /// The rest of drafting: shaping and drawing from rows, looking up.
    pub draft: Duration,
    /// The target's pass.
    pub target: Duration,
    /// Shaping the target's rows and verifying.
    pub verify: Duration,
}

impl Times {
    /// Adds another round's.
    pub(crate) fn add(&mut self, other: Self) {
        self.draft_pass += other.draft_pass;
        self.draft += other.draft;
        self.target += other.target;
        self.verify += other.verify;
    }
}

/// The passes of a round.
#[derive(Debug, Clone, Default)]
pub struct Passes {
    /// The target's, unless it took several.
    pub target: Option<Pass>,
    /// The drafters'.
    pub drafters: Vec<(DrafterId, Pass)>,
}

/// What a round did.
#[derive(Debug)]
pub struct Round {
    /// For each turn, in order.
    pub commits: Vec<Commit>,
    /// For all of them together.
    pub times: Times,
    /// The passes it ran.
    pub passes: Passes,
}
