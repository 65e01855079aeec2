//! What rounds did, added up: the only source for statistics, metrics and reports.

use std::time::Duration;

use crate::commit::{Commit, Times};
use crate::control::Choice;
use crate::gate::Watch;
use crate::lossy::Spending;

/// How often a position of drafts was drafted and accepted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Position {
    /// Rounds whose longest path had it.
    pub drafted: u64,
    /// Of these, rounds that accepted all before it.
    pub reached: u64,
    /// Rounds that accepted it.
    pub accepted: u64,
}

/// The sums over a sequence's rounds.
///
/// Rounds up to the one that commits the first token count apart: tokens per second is the rate
/// after the first token.
///
/// ```
/// use forerun_decode::{Commit, Stats, Times};
/// use std::time::Duration;
/// let mut stats = Stats::default();
/// stats.add(&Commit { prefilled: 9, committed: 1, ..Commit::default() }, Times::default(), Duration::from_secs(1));
/// let commit = Commit { prefilled: 1, drafted: 4, draft_len: 4, accepted: 2, committed: 3, ..Commit::default() };
/// stats.add(&commit, Times::default(), Duration::from_millis(30));
/// assert_eq!(stats.tokens_per_round(), 3.0);
/// assert_eq!(stats.acceptance(), 0.5);
/// let reached: Vec<u64> = stats.positions.iter().map(|position| position.reached).collect();
/// assert_eq!(reached, [1, 1, 1, 0]);
/// assert_eq!(stats.tokens_per_second(), 100.0);
/// ```
#[derive(Debug, Clone, Default)]
pub struct Stats {
    /// Prompt tokens that were prefilled; cached ones are not.
    pub prompt_prefilled: u64,
    /// Time to the first token.
    pub prompt_time: Duration,
    /// Tokens committed, the first one included.
    pub output_len: u64,
    /// Rounds after the prompt in which the target ran.
    pub rounds: u64,
    /// Tokens they committed.
    pub committed: u64,
    /// Tokens they drafted.
    pub drafted: u64,
    /// Drafted tokens they accepted.
    pub accepted: u64,
    /// By position in the draft.
    pub positions: Vec<Position>,
    /// Time of these rounds, all told.
    pub time: Duration,
    /// Rounds in which the controller drafted nothing.
    pub plain_rounds: u64,
    /// Rounds in which the controller tried what was not in use.
    pub trial_rounds: u64,
    /// Rounds in which a gate could end paths.
    pub gated_rounds: u64,
    /// Seconds that the controller expected.
    expected: f64,
    /// Seconds that it expected of plain decoding for as many tokens.
    expected_plain: f64,
    /// Where the time of the rounds went. The rest was spent between their parts and on text.
    pub times: Times,
    /// What the output spent, if its rule is lossy.
    pub spending: Spending,
}

impl Stats {
    /// Adds a round. `time` is all the time since the last one, the caller's own work included.
    pub fn add(&mut self, commit: &Commit, times: Times, time: Duration) {
        let first = self.output_len == 0;
        self.output_len += commit.committed as u64;
        if first {
            self.prompt_prefilled += commit.prefilled as u64;
            self.prompt_time += time;
            return;
        }
        // A sequence that lost its cache is prefilled again, which makes no tokens.
        self.rounds += u64::from(commit.committed > commit.deferred || commit.late > 0);
        self.committed += commit.committed as u64;
        self.drafted += commit.drafted as u64;
        self.accepted += commit.accepted as u64;
        if self.positions.len() < commit.draft_len {
            self.positions.resize(commit.draft_len, Position::default());
        }
        for (index, position) in self.positions.iter_mut().enumerate().take(commit.draft_len) {
            position.drafted += 1;
            position.reached += u64::from(index <= commit.accepted);
            position.accepted += u64::from(index < commit.accepted);
        }
        self.time += time;
        self.times.add(times);
    }

    /// Adds another sequence's sums.
    pub fn merge(&mut self, other: &Self) {
        self.prompt_prefilled += other.prompt_prefilled;
        self.prompt_time += other.prompt_time;
        self.output_len += other.output_len;
        self.rounds += other.rounds;
        self.committed += other.committed;
        self.drafted += other.drafted;
        self.accepted += other.accepted;
        let len = self.positions.len().max(other.positions.len());
        self.positions.resize(len, Position::default());
        for (own, other) in self.positions.iter_mut().zip(&other.positions) {
            own.drafted += other.drafted;
            own.reached += other.reached;
            own.accepted += other.accepted;
        }
        self.plain_rounds += other.plain_rounds;
        self.trial_rounds += other.trial_rounds;
        self.gated_rounds += other.gated_rounds;
        self.expected += other.expected;
        self.expected_plain += other.expected_plain;
        self.time += other.time;
        self.times.add(other.times);
        self.spending.merge(&other.spending);
    }

    /// Adds what the controller chose for a round, unless that was the first: nothing is drafted
    /// there.
    pub fn chose(&mut self, choice: &Choice) {
        if choice.first {
            return;
        }
        self.plain_rounds += u64::from(choice.arm.is_none());
        self.trial_rounds += u64::from(choice.trial);
        self.gated_rounds += u64::from(choice.plan.gates.iter().any(Watch::stops));
        self.expected += choice.seconds;
        self.expected_plain += choice.tokens * choice.plain_seconds;
    }

    /// Takes back tokens that were committed after a sequence's end.
    pub fn trimmed(&mut self, count: usize) {
        self.output_len = self.output_len.saturating_sub(count as u64);
        self.committed = self.committed.saturating_sub(count as u64);
    }

    /// Committed tokens per round: one for plain decoding.
    pub fn tokens_per_round(&self) -> f64 {
        ratio(self.committed as f64, self.rounds as f64)
    }

    /// The speedup over plain decoding that the controller expected.
    pub fn expected_speedup(&self) -> f64 {
        if self.expected > 0.0 { self.expected_plain / self.expected } else { 1.0 }
    }

    /// Accepted tokens per drafted token.
    pub fn acceptance(&self) -> f64 {
        ratio(self.accepted as f64, self.drafted as f64)
    }

    /// Tokens per second after the first token.
    pub fn tokens_per_second(&self) -> f64 {
        ratio(self.committed as f64, self.time.as_secs_f64())
    }

    /// Share of the time in neither the target's pass nor a draft model's.
    pub fn overhead(&self) -> f64 {
        let passes = self.times.target + self.times.draft_pass;
        ratio(self.time.saturating_sub(passes).as_secs_f64(), self.time.as_secs_f64())
    }
}

fn ratio(above: f64, below: f64) -> f64 {
    if below > 0.0 { above / below } else { 0.0 }
}
