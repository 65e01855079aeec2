//! The rule in use, proved by enumeration: every draft and every verdict on small models, with
//! their exact probabilities.

use forerun_verify::check::{Drafting, Finding, Kind, Model, Shape, drafting, examine};
use forerun_verify::{Promise, Refusal, Rule, Scheme};
use serde::Serialize;

/// Vocabularies and lengths of the models; together with the paths they decide how many drafts
/// there are to go through.
const SHAPES: [(usize, usize); 6] = [(2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (4, 1)];

/// Models of each kind and shape.
const SEEDS: u64 = 3;

/// Most paths that are enumerated.
const PATHS_MAX: usize = 3;

/// What enumeration found.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct RuleProof {
    /// The rule.
    pub(crate) rule: &'static str,
    /// How drafts were drawn.
    pub(crate) drafts: String,
    /// Models gone through.
    pub(crate) models: usize,
    /// Drafts gone through, on all of them.
    pub(crate) drafts_seen: usize,
    /// The largest difference of the probability of a text from the target's own.
    pub(crate) worst_error: f64,
    /// Whether that is no more than rounding.
    pub(crate) lossless: bool,
    /// Of a lossy rule: the largest total variation at a token, and whether its budget was kept.
    pub(crate) worst_spend: Option<f64>,
    pub(crate) within: Option<bool>,
    /// Whether all models were gone through.
    pub(crate) complete: bool,
}

/// How drafts are made where the rule is used.
pub(super) struct InUse {
    pub(super) scheme: Scheme,
    pub(super) width: usize,
    /// Drafters with a model, and those that guess.
    pub(super) models: usize,
    pub(super) guessers: usize,
    pub(super) may_stop: bool,
}

impl InUse {
    /// The same way of drafting, for small models.
    fn drafting(&self) -> (String, Box<dyn Drafting>) {
        let paths = self.width.min(PATHS_MAX);
        let several = format!("{paths} paths");
        match (self.scheme, self.models, self.guessers) {
            (Scheme::WithoutReplacement, ..) => (
                format!("{several} without replacement"),
                Box::new(drafting::without_replacement(paths)),
            ),
            (Scheme::Beam, ..) => (format!("{several} by beam"), Box::new(drafting::beam(paths))),
            (_, 0, 1) => ("a fixed path".to_owned(), Box::new(drafting::guess())),
            (_, 0, _) => ("fixed paths".to_owned(), Box::new(drafting::guesses())),
            (_, _, 0) if self.may_stop && paths == 1 => {
                ("a path that stops early".to_owned(), Box::new(drafting::early_stop()))
            }
            (_, _, 0) if paths == 1 => ("one path".to_owned(), Box::new(drafting::paths(1))),
            (_, _, 0) => (several, Box::new(drafting::paths(paths))),
            _ => (format!("{several} and a fixed one"), Box::new(drafting::paths_and_guess(paths))),
        }
    }

    /// Enumerates, for as long as `go_on` says so when it is told how much is done. The coupled rule
    /// spends no chance that could be: its noise comes from the seed.
    pub(super) fn prove(
        &self,
        rule: &dyn Rule,
        mut go_on: impl FnMut(f64) -> bool,
    ) -> Result<Option<RuleProof>, Refusal> {
        if rule.noise().is_some() {
            return Ok(None);
        }
        let (drafts, drafting) = self.drafting();
        let mut proof = RuleProof {
            rule: rule.name(),
            drafts,
            models: 0,
            drafts_seen: 0,
            worst_error: 0.0,
            lossless: true,
            worst_spend: None,
            within: None,
            complete: false,
        };
        let all = (SHAPES.len() * Kind::ALL.len()) as f64 * SEEDS as f64;
        for (vocab_len, len) in SHAPES {
            for kind in Kind::ALL {
                for seed in 0..SEEDS {
                    if !go_on(proof.models as f64 / all) {
                        return Ok(Some(proof));
                    }
                    let model = Model::random(kind, Shape { vocab_len, len }, seed);
                    proof.add(&model, &examine(&model, &*drafting, rule)?, &rule.promise());
                }
            }
        }
        proof.complete = true;
        Ok(Some(proof))
    }
}

impl RuleProof {
    fn add(&mut self, model: &Model, finding: &Finding, promise: &Promise) {
        if let Promise::Budget(budget) = promise {
            let spending = finding.spending(model);
            self.worst_spend = Some(self.worst_spend.unwrap_or(0.0).max(spending.worst));
            self.within = Some(self.within.unwrap_or(true) && spending.keeps(budget));
        }
        self.models += 1;
        self.drafts_seen += finding.drafts;
        self.worst_error = self.worst_error.max(finding.worst_error);
        self.lossless &= finding.is_lossless();
    }
}

#[cfg(test)]
mod tests {
    use forerun_decode::{LossyMode, RuleChoice};

    use super::*;
    use crate::certify::broken::Fault;

    fn in_use(scheme: Scheme, width: usize) -> InUse {
        InUse { scheme, width, models: 1, guessers: 0, may_stop: false }
    }

    #[test]
    fn every_rule_a_user_can_choose_is_proved() {
        for choice in RuleChoice::ALL {
            let several = !matches!(choice, RuleChoice::Block | RuleChoice::Token);
            let scheme = match choice {
                RuleChoice::Gbv => Scheme::Paths,
                RuleChoice::Traversal | RuleChoice::Rsd => Scheme::WithoutReplacement,
                _ => Scheme::Independent,
            };
            let in_use = in_use(scheme, if several { 2 } else { 1 });
            let proof = in_use.prove(&*choice.with_seed(1), |_| true).unwrap();
            assert_eq!(proof.is_none(), choice == RuleChoice::Coupled);
            assert!(proof.is_none_or(|proof| proof.lossless && proof.models > 100), "{choice:?}");
        }
    }

    #[test]
    fn a_lossy_rule_is_proved_to_keep_its_promise_and_a_broken_one_is_not() {
        let in_use = in_use(Scheme::Independent, 1);
        for mode in ["budget:0.05", "account:0.05"] {
            let mode: LossyMode = mode.parse().unwrap();
            let proof = in_use.prove(&*mode.rule(), |_| true).unwrap().unwrap();
            assert_eq!((proof.within, proof.lossless), (Some(true), false), "{mode}");
            assert!(proof.worst_spend > Some(0.04), "{proof:?}");
            let twice = Fault::SpendTwice.lossy_rule(mode).unwrap();
            let proof = in_use.prove(&*twice, |_| true).unwrap().unwrap();
            assert_eq!(proof.within, Some(false), "{mode}");
        }
    }

    #[test]
    fn a_proof_that_is_broken_off_says_so() {
        let mut looks = 0;
        let go_on = |_| {
            looks += 1;
            looks <= 5
        };
        let proof = in_use(Scheme::Independent, 1).prove(&*RuleChoice::Block.with_seed(1), go_on);
        let proof = proof.unwrap().unwrap();
        assert_eq!((proof.models, proof.complete, proof.lossless), (5, false, true));
    }

    #[test]
    fn a_broken_rule_is_not() {
        let in_use = in_use(Scheme::Independent, 1);
        for fault in Fault::ALL {
            if let Some(rule) = fault.rule() {
                let proof = in_use.prove(&*rule, |_| true).unwrap().unwrap();
                assert!(!proof.lossless && proof.worst_error > 1e-4, "{fault:?}: {proof:?}");
            }
        }
    }
}
