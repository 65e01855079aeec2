//! Token by token.

use super::{Refusal, Rule, Verdict, draw_or, refuse, verdict};
use crate::block::Block;
use crate::chance::Chance;
use crate::draft::Draft;
use crate::residual::Residual;

/// Token verification (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318).
///
/// Each drafted token is accepted with probability `min(1, target / draft)`; the first rejected
/// one is replaced by a draw from `relu(target - draft)`.
///
/// **Theorem.** A token leaves with probability `min(target, draft)` by acceptance and
/// `relu(target - draft)` by replacement (the rejected mass equals the residual's), which add up
/// to the target. Lossless for one path, sampled or fixed. [`BlockRule`](crate::BlockRule)
/// accepts at least as much of the same path.
///
/// ```
/// use forerun_verify::*;
/// let draft = Draft::path(2, [(Token(0), Dist::dense(vec![0.8, 0.2])?)])?;
/// let rows = [Dist::dense(vec![0.0, 1.0])?, Dist::dense(vec![0.5, 0.5])?];
/// let verdict = TokenRule.verify(&Block::new(&draft, &rows)?, &mut Random(Philox::new(1)))?;
/// assert_eq!((verdict.accepted, verdict.next), (0, Token(1)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct TokenRule;

impl Rule for TokenRule {
    fn name(&self) -> &'static str {
        "token"
    }

    fn admits(&self, draft: &Draft) -> Result<(), Refusal> {
        let wants = "one path";
        let one = draft.is_one_path();
        one.then_some(()).ok_or_else(|| refuse("token", draft, wants, "use specinfer or pooled"))
    }

    fn decide(&self, block: &Block<'_>, chance: &mut dyn Chance) -> Verdict {
        let draft = block.draft();
        let mut last = crate::Node::ROOT;
        for (node, candidate) in draft.steps() {
            let (target, token) = (block.target(node), draft.token(candidate.child));
            let proposal = draft.proposal(candidate);
            if !chance.coin(target.prob(token) / proposal.prob(token)) {
                let residual = Residual::new((1.0, target), [(1.0, proposal)]);
                return verdict(block, node, draw_or(&residual, target, chance));
            }
            last = candidate.child;
        }
        verdict(block, last, block.target(last).draw(chance))
    }
}
