//! Draw from the target and see whether it was drafted.

use super::{Refusal, Rule, Verdict, walk};
use crate::block::Block;
use crate::chance::Chance;
use crate::draft::Draft;

/// Naive speculative sampling: the target's own draw, accepted while it is a drafted child.
///
/// **Theorem.** Every token is drawn from the target, so any tree is lossless, however it was
/// made; the expected number of accepted tokens is the sum of the target's probabilities of the
/// nodes, and no rule does better on fixed tokens. Sampled drafts are better served by
/// [`BlockRule`](crate::BlockRule) and [`PooledRule`](crate::PooledRule), which know their rows.
///
/// ```
/// use forerun_verify::*;
/// let draft = Draft::fixed_path(2, [Token(1)])?;
/// let rows = [Dist::point(2, Token(1))?, Dist::point(2, Token(0))?];
/// let verdict = NssRule.verify(&Block::new(&draft, &rows)?, &mut Random(Philox::new(1)))?;
/// assert_eq!((verdict.accepted, verdict.next), (1, Token(0)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct NssRule;

impl Rule for NssRule {
    fn name(&self) -> &'static str {
        "nss"
    }

    fn admits(&self, _: &Draft) -> Result<(), Refusal> {
        Ok(())
    }

    fn decide(&self, block: &Block<'_>, chance: &mut dyn Chance) -> Verdict {
        walk(block, |node| block.target(node).draw(chance))
    }
}
