//! The whole block at once: the best a single path allows.

use super::{Refusal, Rule, Verdict, draw_or, refuse, verdict};
use crate::block::Block;
use crate::chance::{Chance, Weights};
use crate::draft::{Draft, Node};
use crate::residual::Residual;

/// Block verification (Sun et al., arXiv 2403.10444): judges the path as a whole, so that likely
/// tokens can save an unlikely one before them. The default rule for one path.
///
/// The *weight* of a prefix is the likelihood ratio of its tokens, clipped at one after each:
/// `w(n+1) = min(1, w(n) * target / draft)`. From the deepest prefix up, a prefix is kept with
/// probability `r / (r + 1 - w)`, where `r` is the mass of `relu(w * target - draft)` (the whole
/// path: with probability `w`), and the next token is drawn from that residual.
///
/// **Theorem.** A prefix is kept, or one that extends it, with probability `draft * w`, which is
/// `W(ux) = min(draft(ux), W(u) target(x|u))`: the pointwise largest flow with `W(ux) <= W(u)
/// target(x|u)` (losslessness) and `W(u) <= draft(u)` (a prefix must have been drafted). So the
/// rule is lossless and *no* lossless rule accepts more of one path, whatever it knows; the tests
/// check this against a linear program. Lossless for one path, sampled or fixed.
///
/// ```
/// use forerun_verify::*;
/// let draft = Draft::path(2, [(Token(0), Dist::dense(vec![0.5, 0.5])?)])?;
/// let rows = [Dist::dense(vec![0.5, 0.5])?, Dist::point(2, Token(1))?];
/// let verdict = BlockRule.verify(&Block::new(&draft, &rows)?, &mut Random(Philox::new(1)))?;
/// assert_eq!((verdict.accepted, verdict.next), (1, Token(1)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct BlockRule;

impl Rule for BlockRule {
    fn name(&self) -> &'static str {
        "block"
    }

    fn admits(&self, draft: &Draft) -> Result<(), Refusal> {
        let wants = "one path";
        draft
            .is_one_path()
            .then_some(())
            .ok_or_else(|| refuse("block", draft, wants, "use pooled for several paths"))
    }

    fn decide(&self, block: &Block<'_>, chance: &mut dyn Chance) -> Verdict {
        let draft = block.draft();
        let steps = draft.steps();
        let nodes: Vec<Node> = steps.iter().map(|(node, _)| *node).collect();
        let last = steps.last().map_or(Node::ROOT, |(_, candidate)| candidate.child);
        let ratio = |n: usize| {
            let (node, candidate) = steps[n];
            let token = draft.token(candidate.child);
            block.target(node).prob(token) / draft.proposal(candidate).prob(token)
        };
        let residual = |n: usize, weight: f64| {
            let (node, candidate) = steps[n];
            Residual::new((weight, block.target(node)), [(1.0, draft.proposal(candidate))])
        };
        deepest_first(block, (&nodes, last), ratio, residual, chance)
    }
}

/// Block verification of any path whose draft distribution is known: `ratio(n)` of target to draft
/// at token `n`, and `residual(n, w)` of the draft from `w` times the target.
pub(super) fn deepest_first<W: Weights>(
    block: &Block<'_>,
    path: (&[Node], Node),
    ratio: impl Fn(usize) -> f64,
    residual: impl Fn(usize, f64) -> W,
    chance: &mut dyn Chance,
) -> Verdict {
    let mut weights = vec![1.0];
    for n in 0..path.0.len() {
        weights.push(carried(weights[n], ratio(n)));
    }
    let leaving = |n: usize| {
        let residual = residual(n, weights[n]);
        (residual.mass(), residual)
    };
    leave(block, path, &weights, leaving, chance)
}

/// The weight of a prefix one token longer, from the token's ratio of target to draft.
pub(crate) fn carried(weight: f64, ratio: f64) -> f64 {
    // A probability that underflows gives a ratio without bound, or none at all where the target
    // is zero too; what the target cannot say is never accepted.
    if weight > 0.0 && ratio > 0.0 { (weight * ratio).min(1.0) } else { 0.0 }
}

/// The backward pass: from the weight of each prefix, and `leaving(n)`, the mass that leaves after
/// `n` tokens and what the next one is then drawn from.
pub(super) fn leave<W: Weights>(
    block: &Block<'_>,
    (nodes, last): (&[Node], Node),
    weights: &[f64],
    leaving: impl Fn(usize) -> (f64, W),
    chance: &mut dyn Chance,
) -> Verdict {
    if chance.coin(weights[nodes.len()]) {
        return verdict(block, last, block.target(last).draw(chance));
    }
    for (n, &node) in nodes.iter().enumerate().skip(1).rev() {
        let (left, residual) = leaving(n);
        // Without mass no token could follow, so this prefix must not be the last one.
        if left > 0.0 && chance.coin(left / (left + (1.0 - weights[n]))) {
            return verdict(block, node, draw_or(&residual, block.target(node), chance));
        }
    }
    let (_, residual) = leaving(0);
    verdict(block, Node::ROOT, draw_or(&residual, block.target(Node::ROOT), chance))
}
