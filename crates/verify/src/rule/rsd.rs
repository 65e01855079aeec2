//! Recursive rejection over children drawn without replacement.

use super::{Refusal, Rule, Verdict, draw_or, refuse, walk};
use crate::block::Block;
use crate::chance::{Chance, Weights};
use crate::dist::{Dist, Token};
use crate::draft::{Draft, Node, Proposal, Scheme};
use crate::residual::Residual;

/// Recursive speculative decoding (Jeon et al., arXiv 2402.14160): recursive rejection for
/// children drawn without replacement, by Gumbel-top-k at each node (RSD-C) or stochastic beam
/// search (RSD-S).
///
/// As [`SpecInferRule`](crate::SpecInferRule), but each child was drawn from the row without the
/// ones before it, so that is the row it is tried against.
///
/// **Theorem.** Given the children before it, a child follows the row without them; rejection
/// against that row is token verification of what is left. The order of drawing matters: sorting
/// the children by probability would be lossy. Independent paths qualify too, each distinct child
/// once, in order of first appearance: that is how drawing without replacement looks when the
/// repeats are skipped.
///
/// ```
/// use forerun_verify::*;
/// let mut tree = Draft::start(Scheme::WithoutReplacement, 3);
/// let row = tree.row(Dist::dense(vec![0.5, 0.3, 0.2])?)?;
/// tree.sampled(Node::ROOT, row, Token(1))?;
/// tree.sampled(Node::ROOT, row, Token(0))?;
/// let draft = tree.finish()?;
/// let rows = [(); 3].map(|()| Dist::point(3, Token(0)).unwrap());
/// let verdict = RsdRule.verify(&Block::new(&draft, &rows)?, &mut Random(Philox::new(1)))?;
/// assert_eq!((verdict.accepted, verdict.next), (1, Token(0)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct RsdRule;

impl Rule for RsdRule {
    fn name(&self) -> &'static str {
        "rsd"
    }

    fn admits(&self, draft: &Draft) -> Result<(), Refusal> {
        admits_distinct("rsd", draft)
    }

    fn decide(&self, block: &Block<'_>, chance: &mut dyn Chance) -> Verdict {
        walk(block, |node| match block.draft().candidates(node) {
            [] => block.target(node).draw(chance),
            _ => try_children(block, node, chance),
        })
    }
}

/// Whether the distinct children of each node can be read as drawn without replacement.
pub(super) fn admits_distinct(rule: &'static str, draft: &Draft) -> Result<(), Refusal> {
    (draft.scheme() != Scheme::Independent || draft.is_empty()).then_some(()).ok_or_else(|| {
        let wants = "paths of one drafter or children drawn without replacement";
        refuse(rule, draft, wants, "use pooled for fixed tokens and several drafters")
    })
}

/// The distinct children of a node in order of first appearance.
pub(super) fn distinct_children(draft: &Draft, node: Node) -> Vec<Node> {
    let mut children: Vec<Node> = Vec::new();
    for candidate in draft.candidates(node) {
        if !children.contains(&candidate.child) {
            children.push(candidate.child);
        }
    }
    children
}

fn try_children(block: &Block<'_>, node: Node, chance: &mut dyn Chance) -> Token {
    let (draft, target) = (block.draft(), block.target(node));
    let mut row =
        DwindlingRow::new(draft.draft_row(draft.shared_row(node).expect("one by scheme")));
    let mut residual = Residual::new((1.0, target), []);
    // How much of the row is taken in all.
    let mut taken = 0.0;
    for child in distinct_children(draft, node) {
        let token = draft.token(child);
        let left = residual.mass();
        if left <= 0.0 {
            // Only rounding can reject a token that had to be accepted.
            break;
        }
        if chance.coin(residual.weight(token) / (left * row.prob(token))) {
            return token;
        }
        // A rejected child has nothing left, so taking more of it later changes nothing.
        taken += left / row.undrawn;
        row.draw(token);
        residual = Residual::new((1.0, target), [(taken, Proposal::Row(row.whole))]);
    }
    draw_or(&residual, target, chance)
}

/// A row from which tokens are drawn and not put back.
pub(super) struct DwindlingRow<'a> {
    pub(super) whole: &'a Dist,
    /// The probability of the tokens not drawn yet.
    pub(super) undrawn: f64,
    drawn: Vec<Token>,
}

impl<'a> DwindlingRow<'a> {
    pub(super) fn new(whole: &'a Dist) -> Self {
        Self { whole, undrawn: 1.0, drawn: Vec::new() }
    }

    /// The probability of a token that is not drawn yet.
    pub(super) fn prob(&self, token: Token) -> f64 {
        self.whole.prob(token) / self.undrawn
    }

    pub(super) fn draw(&mut self, token: Token) {
        self.drawn.push(token);
        self.undrawn -= self.whole.prob(token);
        // Close to nothing the difference has lost its digits: add up what is there.
        if self.undrawn < 1e-3 {
            let left = self.whole.support().filter(|(token, _)| !self.drawn.contains(token));
            self.undrawn = left.map(|(_, probability)| probability).sum();
        }
    }
}
