//! The decoder on the user's own model and settings: drafted outputs against plain decoding.

use std::time::{Duration, Instant};

use forerun_decode::{DraftPolicy, Sampling};
use serde::Serialize;

use super::law::LawTest;
use super::loss::LossTest;
use super::pairs::{PairTest, Sample, smallest_difference};
use super::verdict::{DIFFERENCE, Ended, Limits, Verdict};
use super::writer::{Scorer, Tally, Text, Way, Writer};
use crate::cancellation::Cancellation;
use crate::error::Result;
use crate::observer::Observer;

/// Tokens of each text that the comparison of two samples looks at. Longer beginnings hardly ever
/// come twice.
const PAIR_LEN: usize = 6;

/// What was found.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct DecoderFinding {
    /// Drafted outputs, their tokens, and what drafting did for them.
    pub(crate) texts: u64,
    pub(crate) tokens: u64,
    pub(crate) drafted: u64,
    pub(crate) accepted: u64,
    /// Evidence that a token did not follow the target's law: how many times likelier than if all
    /// did, as a power of ten; and that plain outputs' tokens, made for control, did not.
    pub(crate) law_evidence: f64,
    pub(crate) control_evidence: f64,
    /// The smallest share of tokens from the drafter's law that would have been found.
    pub(crate) smallest_share: Option<f64>,
    /// How far from the target a token's distribution is, as far as the drafter tells: total variation,
    /// at least; and by how much that may be wrong. Not known where the drafter's rows are not.
    pub(crate) spent: Option<f64>,
    pub(crate) spent_margin: Option<f64>,
    /// Outputs of either kind compared as samples, the evidence that they are of two laws, and the
    /// smallest difference that would have been found.
    pub(crate) pairs: u64,
    pub(crate) pair_evidence: f64,
    pub(crate) smallest_difference: Option<f64>,
    /// Outputs made twice, with drafts and without, by a rule whose outputs must not differ; and those
    /// that did.
    pub(crate) made_twice: u64,
    pub(crate) made_differently: u64,
    pub(crate) seconds: f64,
    pub(crate) ended: Ended,
    pub(crate) verdict: Verdict,
    /// Whether the verdict is that.
    pub(crate) passed: bool,
}

/// Makes outputs of both kinds and tests them until something is proved or the limits are reached.
pub(super) struct DecoderTest<'a> {
    pub(super) writer: Writer<'a>,
    pub(super) scorer: Scorer<'a>,
    /// How drafted outputs are made, and with what sampling (a broken decoder's may be another).
    pub(super) policy: DraftPolicy,
    pub(super) drawn_with: Sampling,
    /// The sampling asked for.
    pub(super) sampling: Sampling,
    pub(super) coupled: bool,
    pub(super) limits: Limits,
    pub(super) cancellation: &'a Cancellation,
}

struct Running {
    law: LawTest,
    loss: LossTest,
    control: LawTest,
    pairs: PairTest,
    tally: Tally,
    texts: u64,
    twice: (u64, u64),
}

impl Running {
    /// All evidence taken together: the mean of what both tests made, as a logarithm.
    fn evidence(&self) -> f64 {
        let (law, pairs) = (self.law.evidence(), self.pairs.evidence());
        let most = law.max(pairs);
        most + (f64::midpoint((law - most).exp(), (pairs - most).exp())).ln()
    }
}

impl DecoderTest<'_> {
    pub(super) fn run(mut self, observer: &dyn Observer) -> Result<DecoderFinding> {
        let started = Instant::now();
        let mut running = Running {
            law: LawTest::default(),
            loss: LossTest::new(0.0),
            control: LawTest::default(),
            pairs: PairTest::default(),
            tally: Tally::default(),
            texts: 0,
            twice: (0, 0),
        };
        let Limits { power, limit, .. } = self.limits;
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
            let share = running.law.smallest_share(self.limits.false_alarm);
            let evidence = running.evidence();
            let left = (limit.share()).max(share.map_or(0.0, |share| power / share));
            observer.show(
                left,
                &format!(
                    "{} tokens, would find {}, evidence {:+.1}",
                    running.law.tokens(),
                    share.map_or("nothing yet".to_owned(), |it| format!("{:.2} %", 100.0 * it)),
                    evidence / std::f64::consts::LN_10,
                ),
            );
            if evidence >= self.limits.proof() || running.twice.1 > 0 {
                break Ended::Proof;
            }
            if self.is_enough(&running) {
                break Ended::Power;
            }
        };
        Ok(self.finding(&running, ended, started.elapsed()))
    }

    /// Whether a fault as small as was asked for would have been found.
    fn is_enough(&self, running: &Running) -> bool {
        let Limits { false_alarm, power, .. } = self.limits;
        match running.law.smallest_share(false_alarm) {
            Some(share) => share <= power,
            // What the drafter would say is not known, or is what the target says: outputs decide.
            None => {
                let pairs = running.pairs.pairs().max(running.twice.0);
                power > 0.0
                    && smallest_difference(pairs, false_alarm).is_some_and(|it| it <= DIFFERENCE)
            }
        }
    }

    /// A text of either kind in each slot.
    fn batch(&mut self, running: &mut Running) -> Result<()> {
        let Limits { text_len, .. } = self.limits;
        let drafted = Way {
            policy: &self.policy,
            coupled: self.coupled,
            sampling: &self.drawn_with,
            len: text_len,
        };
        let texts = self.writer.texts(&drafted, false, &mut running.tally)?;
        for text in &texts {
            let (law, loss) = (&mut running.law, &mut running.loss);
            self.scorer.show(text, |at, token| {
                law.see(at, token);
                loss.see(at.law, at.drafter, token);
            })?;
            running.texts += 1;
        }
        let plain_policy = DraftPolicy::plain();
        let plain = Way {
            policy: &plain_policy,
            coupled: self.coupled,
            sampling: &self.sampling,
            len: PAIR_LEN,
        };
        // The noise of a seed gives the same text again, drafts or none.
        let others = self.writer.texts(&plain, self.coupled, &mut Tally::default())?;
        for (one, other) in texts.iter().zip(&others) {
            let (one, other) = (sample(one), sample(other));
            if self.coupled {
                running.twice.0 += 1;
                running.twice.1 += u64::from(one != other);
            } else {
                running.pairs.see(&one, &other);
            }
        }
        let control = &mut running.control;
        others
            .iter()
            .try_for_each(|text| self.scorer.show(text, |at, token| control.see(at, token)))
    }

    fn finding(&self, running: &Running, ended: Ended, time: Duration) -> DecoderFinding {
        let tens = |evidence: f64| evidence / std::f64::consts::LN_10;
        let Limits { false_alarm, .. } = self.limits;
        let verdict = ended.verdict();
        let (spent, spent_margin) = running.loss.estimate().unzip();
        DecoderFinding {
            texts: running.texts,
            tokens: running.law.tokens(),
            drafted: running.tally.drafted,
            accepted: running.tally.accepted,
            law_evidence: tens(running.law.evidence()),
            control_evidence: tens(running.control.evidence()),
            smallest_share: running.law.smallest_share(false_alarm),
            spent,
            spent_margin,
            pairs: running.pairs.pairs(),
            pair_evidence: tens(running.pairs.evidence()),
            smallest_difference: smallest_difference(running.pairs.pairs(), false_alarm),
            made_twice: running.twice.0,
            made_differently: running.twice.1,
            seconds: time.as_secs_f64(),
            ended,
            verdict,
            passed: verdict == Verdict::Passed,
        }
    }
}

/// A text's beginning as symbols.
fn sample(text: &Text) -> Sample {
    let symbols = text.tokens.iter().take(PAIR_LEN).map(|token| u64::from(token.0)).collect();
    Sample { prompt: text.prompt, symbols }
}
