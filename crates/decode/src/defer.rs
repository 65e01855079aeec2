//! Tokens that are committed before the target has scored them, and how risky each seems.
//!
//! A target that is asked at a token needs the cache of all tokens before it, so the pass that answers
//! also scores what was committed without it: skipping saves passes, not scoring. Here it is decided
//! which drafted tokens are committed unscored; the round scores them later, and the account pays
//! what they really spent. What a [`Risk`] predicts only decides when to stop, so a bad one costs speed
//! and never the bound.

use std::fmt::Debug;

use forerun_verify::{Deferral, Draft, DraftError, Node, Spend, Token};

/// A drafted token that is likelier than this to be rejected is worth a pass.
const RISK_MAX: f64 = 0.3;

/// What is known of a drafted token before the target runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Foreseen {
    /// Its probability by the row it was drawn from; 1 for a fixed token.
    pub probability: f64,
    /// How many tokens before it the target has not scored.
    pub unscored: usize,
}

/// Predicts the chance that token verification would reject a drafted token.
pub trait Risk: Debug + Send {
    /// The chance, from 0 to 1. What is not a number counts as certain.
    fn predict(&self, token: &Foreseen) -> f64;

    /// Takes what a token that was scored spent: one less the ratio of the target's probability to
    /// the draft's, if that is positive.
    fn learn(&mut self, token: &Foreseen, spent: f64);
}

/// The mean of what earlier tokens of the sequence spent that were about as likely.
///
/// ```
/// use forerun_decode::{Foreseen, Risk, RiskByProbability};
/// let mut risk = RiskByProbability::default();
/// let sure = Foreseen { probability: 0.99, unscored: 0 };
/// let unsure = Foreseen { probability: 0.3, unscored: 0 };
/// assert!(risk.predict(&sure) < risk.predict(&unsure));
/// (0..100).for_each(|_| risk.learn(&unsure, 0.0));
/// assert!(risk.predict(&unsure) < 0.05);
/// ```
#[derive(Debug, Clone)]
pub struct RiskByProbability {
    /// By bucket: how many tokens, and what they spent in all.
    seen: [(f64, f64); Self::BUCKETS],
}

impl RiskByProbability {
    const BUCKETS: usize = 8;
    /// How many tokens of a bucket the first guess counts for.
    const GUESSED: f64 = 4.0;

    /// Buckets halve what is left to one.
    fn bucket(probability: f64) -> usize {
        let mut rest = 1.0 - probability;
        let mut bucket = 0;
        while rest < 0.5 && bucket + 1 < Self::BUCKETS {
            rest *= 2.0;
            bucket += 1;
        }
        bucket
    }
}

impl Default for RiskByProbability {
    /// Guesses that a token is as risky as the drafter was unsure of it.
    fn default() -> Self {
        let mut seen = [(Self::GUESSED, 0.0); Self::BUCKETS];
        let mut unsure = 0.75;
        for (_, spent) in &mut seen {
            *spent = Self::GUESSED * unsure;
            unsure /= 2.0;
        }
        Self { seen }
    }
}

impl Risk for RiskByProbability {
    fn predict(&self, token: &Foreseen) -> f64 {
        let (count, spent) = self.seen[Self::bucket(token.probability)];
        spent / count
    }

    fn learn(&mut self, token: &Foreseen, spent: f64) {
        let (count, sum) = &mut self.seen[Self::bucket(token.probability)];
        *count += 1.0;
        *sum += spent;
    }
}

/// A token that is committed and not scored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Unscored {
    pub(crate) token: Token,
    known: Foreseen,
    /// What it is expected to spend.
    risk: f64,
}

impl Unscored {
    /// What it spent, if the target gives it this probability.
    pub(crate) fn spent(&self, target: f64) -> f64 {
        spent(&self.known, target)
    }
}

fn spent(known: &Foreseen, target: f64) -> f64 {
    (1.0 - target / known.probability).max(0.0)
}

/// The tokens of a sequence that are not scored yet, and what it has learnt of such tokens.
#[derive(Debug)]
pub(crate) struct Deferred {
    pub(crate) stretch: Vec<Unscored>,
    pub(crate) risk: Box<dyn Risk>,
}

impl Default for Deferred {
    fn default() -> Self {
        Self { stretch: Vec::new(), risk: Box::new(RiskByProbability::default()) }
    }
}

impl Deferred {
    /// The first tokens of a drafted path that may be committed unscored: one after the other, each by
    /// what is known up to it, until one may not. The rest must be judged: to drop it, or to decide by
    /// what comes later, would change the output without paying for it.
    pub(crate) fn admitted(
        &self,
        deferral: &Deferral,
        balance: f64,
        draft: &Draft,
    ) -> Vec<Unscored> {
        let mut admitted = Vec::new();
        let mut foreseen: f64 = self.stretch.iter().map(|it| it.risk).sum();
        for (node, token, _) in draft.nodes() {
            let unscored = self.stretch.len() + admitted.len();
            let known = Foreseen { probability: probability(draft, node), unscored };
            let risk = self.risk.predict(&known);
            foreseen += risk;
            // A risk that is not a number is below nothing.
            let pays = balance > 0.0 && risk <= RISK_MAX && foreseen <= balance;
            if !pays || unscored >= deferral.stretch() {
                break;
            }
            admitted.push(Unscored { token, known, risk });
        }
        admitted
    }

    /// Learns from tokens that were judged, by the target's probabilities of them.
    pub(crate) fn judged(&mut self, draft: &Draft, target: impl Fn(Node, Token) -> f64) {
        for (place, (node, token, parent)) in draft.nodes().enumerate() {
            let known = Foreseen { probability: probability(draft, node), unscored: place };
            self.risk.learn(&known, spent(&known, target(parent, token)));
        }
    }

    /// Learns from a stretch that was scored.
    pub(crate) fn scored(&mut self, stretch: &[Unscored], spent: &[Spend]) {
        for (token, spend) in stretch.iter().zip(spent) {
            self.risk.learn(&token.known, spend.distance);
        }
    }
}

/// The probability of a drafted token by the row it was drawn from.
fn probability(draft: &Draft, node: Node) -> f64 {
    draft.drawn_from(node).map_or(1.0, |row| row.prob(draft.token(node)))
}

/// A drafted path without its first tokens.
pub(crate) fn rest(draft: &Draft, skipped: usize) -> Result<Draft, DraftError> {
    let mut tree = Draft::start(draft.scheme(), draft.vocab_len());
    let mut last = Node::ROOT;
    for (node, token, _) in draft.nodes().skip(skipped) {
        last = match draft.drawn_from(node) {
            Some(row) => {
                let row = tree.row(row.clone())?;
                tree.sampled(last, row, token)?
            }
            None => tree.fixed(last, token)?,
        };
    }
    tree.finish()
}
