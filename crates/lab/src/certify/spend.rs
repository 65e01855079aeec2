//! A lossy mode on the user's own model and settings: what its outputs spent, against its promise.

use std::time::{Duration, Instant};

use forerun_decode::{DraftPolicy, LossyMode, Sampling};
use serde::Serialize;

use super::loss::LossTest;
use super::verdict::{Ended, Limits, Verdict};
use super::writer::{Scorer, Tally, Way, Writer};
use crate::cancellation::Cancellation;
use crate::error::Result;
use crate::observer::Observer;

/// What was found.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct SpendFinding {
    /// The mode as it is written, and its promise: total variation per token.
    pub(crate) mode: String,
    pub(crate) promised: f64,
    /// Outputs, their tokens, and what drafting did for them.
    pub(crate) texts: u64,
    pub(crate) tokens: u64,
    pub(crate) drafted: u64,
    pub(crate) accepted: u64,
    /// What a token spent, by outputs and rows; by how much that may be wrong; and what the mode says. The
    /// first two are not known where the drafter's rows are not.
    pub(crate) estimated: Option<f64>,
    pub(crate) margin: Option<f64>,
    pub(crate) said: f64,
    /// Evidence that more was spent than promised, as a power of ten.
    pub(crate) evidence: f64,
    /// The smallest spend per token that would have been found.
    pub(crate) smallest_found: Option<f64>,
    pub(crate) seconds: f64,
    pub(crate) ended: Ended,
    pub(crate) verdict: Verdict,
}

/// Makes outputs and tests them until the promise is shown to be broken or the limits are reached.
pub(super) struct SpendTest<'a> {
    pub(super) writer: Writer<'a>,
    pub(super) scorer: Scorer<'a>,
    pub(super) mode: LossyMode,
    /// How outputs are made.
    pub(super) policy: DraftPolicy,
    pub(super) sampling: Sampling,
    pub(super) limits: Limits,
    pub(super) cancellation: &'a Cancellation,
}

struct Running {
    loss: LossTest,
    tally: Tally,
    texts: u64,
}

impl SpendTest<'_> {
    pub(super) fn run(mut self, observer: &dyn Observer) -> Result<SpendFinding> {
        let started = Instant::now();
        let loss = LossTest::new(self.mode.promised());
        let mut running = Running { loss, tally: Tally::default(), texts: 0 };
        let Limits { false_alarm, power, limit, .. } = self.limits;
        observer.show(0.0, "the first outputs");
        let ended = loop {
            if let Err(error) = self.batch(&mut running) {
                // What was tested before counts.
                if self.cancellation.is_expired() {
                    break Ended::Time;
                }
                if self.cancellation.is_cancelled() && running.texts > 0 {
                    break Ended::Interrupted;
                }
                return Err(error);
            }
            let excess = running.loss.smallest_excess(false_alarm);
            let share = limit.share().max(excess.map_or(0.0, |it| (power / it).powi(2)));
            let spent = running.loss.estimate().map_or("not known".to_owned(), |(mean, margin)| {
                format!("{mean:.4} ± {margin:.4}")
            });
            let (tokens, promised) = (running.loss.tokens(), self.mode.promised());
            observer.show(share, &format!("{tokens} tokens, spent {spent} of {promised}"));
            if running.loss.evidence() >= self.limits.proof() {
                break Ended::Proof;
            }
            if excess.is_some_and(|it| it <= power) {
                break Ended::Power;
            }
        };
        Ok(self.finding(&running, ended, started.elapsed()))
    }

    /// A text in each slot.
    fn batch(&mut self, running: &mut Running) -> Result<()> {
        let Limits { text_len, .. } = self.limits;
        let way =
            Way { policy: &self.policy, coupled: false, sampling: &self.sampling, len: text_len };
        for text in self.writer.texts(&way, false, &mut running.tally)? {
            let loss = &mut running.loss;
            self.scorer.show(&text, |at, token| loss.see(at.law, at.drafter, token))?;
            running.texts += 1;
        }
        Ok(())
    }

    fn finding(&self, running: &Running, ended: Ended, time: Duration) -> SpendFinding {
        let Running { loss, tally, texts } = running;
        let promised = self.mode.promised();
        let (estimated, margin) = loss.estimate().unzip();
        SpendFinding {
            mode: self.mode.to_string(),
            promised,
            texts: *texts,
            tokens: loss.tokens(),
            drafted: tally.drafted,
            accepted: tally.accepted,
            estimated,
            margin,
            said: tally.spending.mean(),
            evidence: loss.evidence() / std::f64::consts::LN_10,
            smallest_found: loss
                .smallest_excess(self.limits.false_alarm)
                .map(|excess| promised + excess),
            seconds: time.as_secs_f64(),
            ended,
            verdict: ended.verdict(),
        }
    }
}
