//! K-SEQ: one acceptance bar for all candidates of a node.

use super::{CANDIDATES_MAX, Refusal, Rule, Verdict, draw_or, refuse, walk};
use crate::block::Block;
use crate::chance::Chance;
use crate::dist::Token;
use crate::draft::{Draft, Node, Scheme};
use crate::profile::{Class, Profile, Ratio};
use crate::share::{Leftover, Piece, Take};

/// SpecTr's K-SEQ (Sun et al., arXiv 2310.15141): all `m` candidates of a node are tried against
/// one raised bar `c`, each accepted with probability `min(1, target / (c * draft))`.
///
/// **Theorem.** With `b` the chance that one candidate is accepted, some candidate is with
/// probability `1 - (1 - b)^m`, spread like `min(draft, target / c)`; as long as `1 - (1 - b)^m <=
/// c * b` that flow stays below the target, and the rest is drawn from what it leaves. The least
/// such `c` accepts most; any larger one is lossless too, so it is rounded up. Lossless for
/// independent candidates of one row at each node, at most 64; never behind
/// [`SpecInferRule`](crate::SpecInferRule) at one depth, though deeper trees know exceptions.
///
/// ```
/// use forerun_verify::*;
/// let mut tree = Draft::start(Scheme::Paths, 2);
/// let row = tree.row(Dist::dense(vec![0.5, 0.5])?)?;
/// tree.sampled(Node::ROOT, row, Token(1))?;
/// tree.sampled(Node::ROOT, row, Token(1))?;
/// let draft = tree.finish()?;
/// let rows = [Dist::point(2, Token(0))?, Dist::point(2, Token(0))?];
/// let verdict = SpecTrRule.verify(&Block::new(&draft, &rows)?, &mut Random(Philox::new(1)))?;
/// assert_eq!((verdict.accepted, verdict.next), (0, Token(0)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct SpecTrRule;

impl Rule for SpecTrRule {
    fn name(&self) -> &'static str {
        "spectr"
    }

    fn admits(&self, draft: &Draft) -> Result<(), Refusal> {
        let independent = matches!(draft.scheme(), Scheme::Paths | Scheme::Independent);
        let few = draft.most_candidates() <= CANDIDATES_MAX;
        (independent && draft.is_sampled_alike() && few).then_some(()).ok_or_else(|| {
            let wants = "at most 64 independent candidates of one row at each node";
            refuse("spectr", draft, wants, "use pooled for several drafters and fixed tokens")
        })
    }

    fn decide(&self, block: &Block<'_>, chance: &mut dyn Chance) -> Verdict {
        walk(block, |node| match block.draft().candidates(node) {
            [] => block.target(node).draw(chance),
            _ => try_candidates(block, node, chance),
        })
    }
}

fn try_candidates(block: &Block<'_>, node: Node, chance: &mut dyn Chance) -> Token {
    let (draft, target) = (block.draft(), block.target(node));
    let row = draft.draft_row(draft.shared_row(node).expect("checked on admission"));
    let candidates = draft.candidates(node);
    let ratio = Ratio::new(target, vec![(1.0, row)]);
    let profile = ratio.profile(row);
    let (bar, accepted) = least_bar(&profile, candidates.len());
    for candidate in candidates {
        let token = draft.token(candidate.child);
        if chance.coin(ratio.at(token) / bar) {
            return token;
        }
    }
    let flow = if accepted > 0.0 { some_of(accepted, candidates.len()) / accepted } else { 0.0 };
    let piece = Piece { class: Class::ALL, bar, amount: flow };
    let takes = [Take { row, pieces: vec![piece] }];
    draw_or(&Leftover::new((1.0, target), &ratio, &takes, &[]), target, chance)
}

/// The least bar whose flow stays below the target, and the chance that one candidate passes it.
fn least_bar(profile: &Profile, candidates: usize) -> (f64, f64) {
    let (mut low, mut high) = (1.0, candidates as f64);
    for _ in 0..60 {
        let bar = 0.5 * (low + high);
        let accepted = profile.passing(profile.snap(bar), Class::ALL);
        if some_of(accepted, candidates) > profile.snap(bar) * accepted {
            low = bar;
        } else {
            high = bar;
        }
    }
    // The bar that was judged is the snapped one, and it was judged good unless it is the first.
    let bar = profile.snap(high).max(1.0);
    (bar, profile.passing(bar, Class::ALL))
}

/// The chance that at least one of `candidates` independent tries succeeds.
fn some_of(chance: f64, candidates: usize) -> f64 {
    1.0 - (0..candidates).fold(1.0, |none, _| none * (1.0 - chance))
}
