//! Recursive rejection over the candidates of each node, drawn tokens put back.

use super::{Refusal, Rule, Verdict, draw_or, refuse, walk};
use crate::block::Block;
use crate::chance::{Chance, Weights};
use crate::dist::Token;
use crate::draft::{Draft, Node, Proposal, Scheme};
use crate::residual::Residual;

/// Recursive rejection sampling (SpecInfer, Miao et al., arXiv 2305.09781).
///
/// At each node the candidates are tried in order: a token is accepted with probability
/// `min(1, left / draft)`, where `left` is what earlier rejections have left of the target,
/// normalised; a rejection takes `draft` from it. Where all fail, the next token is drawn from
/// what is left.
///
/// **Theorem.** Token verification, applied to what is left of the target: each candidate passes on
/// exactly the law the next one must produce. Candidates must be independent given the tokens
/// above; duplicates are tried again, and dropping them would be lossy. What is left is always
/// `relu(target - sum of c * draft)` for scalars `c`, so no row is copied.
///
/// ```
/// use forerun_verify::*;
/// let mut tree = Draft::start(Scheme::Paths, 2);
/// let row = tree.row(Dist::dense(vec![0.5, 0.5])?)?;
/// tree.sampled(Node::ROOT, row, Token(0))?;
/// tree.sampled(Node::ROOT, row, Token(1))?;
/// let draft = tree.finish()?;
/// let rows = [(); 3].map(|()| Dist::point(2, Token(1)).unwrap());
/// let verdict = SpecInferRule.verify(&Block::new(&draft, &rows)?, &mut Random(Philox::new(1)))?;
/// assert_eq!((verdict.accepted, verdict.next), (1, Token(1)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct SpecInferRule;

impl Rule for SpecInferRule {
    fn name(&self) -> &'static str {
        "specinfer"
    }

    fn admits(&self, draft: &Draft) -> Result<(), Refusal> {
        let independent = matches!(draft.scheme(), Scheme::Paths | Scheme::Independent);
        independent.then_some(()).ok_or_else(|| {
            refuse("specinfer", draft, "independent candidates", "use rsd or traversal")
        })
    }

    fn decide(&self, block: &Block<'_>, chance: &mut dyn Chance) -> Verdict {
        walk(block, |node| try_candidates(block, node, chance))
    }
}

fn try_candidates(block: &Block<'_>, node: Node, chance: &mut dyn Chance) -> Token {
    let (draft, target) = (block.draft(), block.target(node));
    let mut taken: Vec<(f64, Proposal<'_>)> = Vec::new();
    let mut rows = Vec::new();
    let mut residual = Residual::new((1.0, target), []);
    for candidate in draft.candidates(node) {
        let (token, proposal) = (draft.token(candidate.child), draft.proposal(*candidate));
        let left = residual.mass();
        if left <= 0.0 {
            // Only rounding can reject a token that had to be accepted.
            break;
        }
        let weight = residual.weight(token);
        if chance.coin(weight / (left * proposal.prob(token))) {
            return token;
        }
        // A row tried before is taken once more, in one term.
        match rows.iter().position(|row| candidate.row.is_some() && *row == candidate.row) {
            Some(place) => taken[place].0 += left,
            None => {
                rows.push(candidate.row);
                taken.push((left, proposal));
            }
        }
        residual = Residual::new((1.0, target), taken.iter().copied());
    }
    draw_or(&residual, target, chance)
}
