//! Lossy modes that break their promise on purpose.

use forerun_verify::{
    Block, Budget, Chance, Draft, LossyBlockRule, Promise, Refusal, Rule, Spent, Verdict,
};

/// A lossy rule that does not keep what it states.
#[derive(Debug)]
pub(super) struct LossyBroken {
    /// What it does.
    pub(super) inner: LossyBlockRule,
    /// What it states.
    pub(super) stated: Budget,
    /// Whether what is spent leaves the account.
    pub(super) pays: bool,
}

impl Rule for LossyBroken {
    fn name(&self) -> &'static str {
        "lossy-block, broken"
    }

    fn admits(&self, draft: &Draft) -> Result<(), Refusal> {
        self.inner.admits(draft)
    }

    fn promise(&self) -> Promise {
        Promise::Budget(self.stated)
    }

    fn spent(&self, block: &Block<'_>, verdict: &Verdict) -> Spent {
        let mut spent = self.inner.spent(block, verdict);
        if !self.pays {
            spent.tokens.iter_mut().for_each(|spend| spend.balance = self.stated.bank());
        }
        spent
    }

    fn decide(&self, block: &Block<'_>, chance: &mut dyn Chance) -> Verdict {
        self.inner.decide(block, chance)
    }
}
