//! From the leaves to the root: block verification for trees without replacement.

use super::rsd::{DwindlingRow, admits_distinct, distinct_children};
use super::{Refusal, Rule, Verdict, draw_or, verdict};
use crate::block::Block;
use crate::chance::{Chance, Weights};
use crate::draft::{Draft, Node, Proposal};
use crate::residual::Residual;

/// Traversal verification (Weng et al., arXiv 2505.12398): a leaf is tried first, then what it
/// leaves is passed to its siblings, and to its parent when all children have failed.
///
/// A child's weight is `min(1, w * left / draft)`. When its whole subtree is rejected, the node
/// goes on with `relu(w * left - draft)` of mass `s`, weight `s / (s + 1 - w)`, and the row
/// without that child. A node whose children all fail is accepted with its weight.
///
/// **Theorem.** The weight of a node is the chance that its prefix must still be accepted given
/// all that failed before, which the update keeps true by Bayes' rule; on one path it is
/// [`BlockRule`](crate::BlockRule), and on any tree at least [`RsdRule`](crate::RsdRule). Lossless
/// for children drawn without replacement, beams included, and for independent paths.
///
/// ```
/// use forerun_verify::*;
/// let draft = Draft::path(2, [(Token(0), Dist::dense(vec![0.5, 0.5])?)])?;
/// let rows = [Dist::dense(vec![0.5, 0.5])?, Dist::point(2, Token(1))?];
/// let verdict = TraversalRule.verify(&Block::new(&draft, &rows)?, &mut Random(Philox::new(1)))?;
/// assert_eq!((verdict.accepted, verdict.next), (1, Token(1)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct TraversalRule;

impl Rule for TraversalRule {
    fn name(&self) -> &'static str {
        "traversal"
    }

    fn admits(&self, draft: &Draft) -> Result<(), Refusal> {
        admits_distinct("traversal", draft)
    }

    fn decide(&self, block: &Block<'_>, chance: &mut dyn Chance) -> Verdict {
        visit(block, Node::ROOT, 1.0, chance).expect("the root is always accepted")
    }
}

/// Judges a subtree whose root has this weight; `None` where all of it is rejected.
fn visit(block: &Block<'_>, node: Node, weight: f64, chance: &mut dyn Chance) -> Option<Verdict> {
    if weight <= 0.0 {
        return None;
    }
    let (draft, target) = (block.draft(), block.target(node));
    let row = draft.shared_row(node).map(|row| draft.draft_row(row));
    let mut row = row.map(DwindlingRow::new);
    let scale = weight;
    let mut weight = weight;
    let mut residual = Residual::new((scale, target), []);
    // How much of the row is taken in all.
    let mut taken = 0.0;
    for child in distinct_children(draft, node) {
        let row = row.as_mut().expect("one by scheme");
        let token = draft.token(child);
        let left = residual.mass();
        if left <= 0.0 {
            // Only rounding can reject a subtree that had to be accepted.
            break;
        }
        let ratio = residual.weight(token) / left / row.prob(token);
        let accepted = visit(block, child, (weight * ratio).min(1.0), chance);
        if accepted.is_some() {
            return accepted;
        }
        taken += left / (weight * row.undrawn);
        row.draw(token);
        residual = Residual::new((scale, target), [(taken, Proposal::Row(row.whole))]);
        let still = weight / left * residual.mass();
        weight = if still > 0.0 { still / (still + (1.0 - weight).max(0.0)) } else { 0.0 };
        if weight <= 0.0 {
            break;
        }
    }
    let accepted = node == Node::ROOT || chance.coin(weight);
    accepted.then(|| verdict(block, node, draw_or(&residual, target, chance)))
}
