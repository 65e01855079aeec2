//! Block verification, where some tokens are committed before the target has scored them.

use super::{BlockRule, Refusal, Rule, Verdict};
use crate::block::Block;
use crate::chance::Chance;
use crate::draft::Draft;
use crate::promise::{Deferral, Promise};

/// For callers that commit drafted tokens before the target has scored them, as often as an account
/// allows (SPRINTER, arXiv 2502.04557, with books): what is not committed that way is judged by
/// [`BlockRule`].
///
/// **Theorem.** Let a caller walk along a drafted path and commit tokens unscored until it refuses one,
/// each decision by what is known up to that token. Let this rule judge the rest. Then a committed
/// token's distribution is within the mean of `1 - min(1, target / draft)` over the tokens committed
/// unscored, of the target's. *Proof.* A token that is refused is judged as if nothing else could have
/// been drafted: it is accepted with probability `min(1, target / draft)`, else the next token is drawn
/// from the positive part of `target - draft`. So no token becomes likelier than the target has it
/// but by being committed unscored, and then by at most `draft - target`.
///
/// The rule itself spends nothing. Whoever commits tokens unscored keeps the books: see [`Deferral`].
///
/// ```
/// use forerun_verify::*;
/// let rule = LossyDeferRule { deferral: Deferral::new(0.02)? };
/// assert_eq!(rule.promise(), Promise::Deferred(rule.deferral));
/// # Ok::<(), PromiseError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossyDeferRule {
    /// How much may be committed unscored.
    pub deferral: Deferral,
}

impl Rule for LossyDeferRule {
    fn name(&self) -> &'static str {
        "lossy-defer"
    }

    fn admits(&self, draft: &Draft) -> Result<(), Refusal> {
        let promise = "keeps its account";
        BlockRule.admits(draft).map_err(|refusal| Refusal { rule: self.name(), promise, ..refusal })
    }

    fn promise(&self) -> Promise {
        Promise::Deferred(self.deferral)
    }

    fn decide(&self, block: &Block<'_>, chance: &mut dyn Chance) -> Verdict {
        BlockRule.decide(block, chance)
    }
}
