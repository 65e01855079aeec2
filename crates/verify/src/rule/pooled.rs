//! Pooled block verification: sampled paths, several drafters and fixed tokens in one verdict.

mod arrival;
mod pool;

use super::{CANDIDATES_MAX, Refusal, Rule, Verdict, draw_or, refuse, verdict};
use crate::block::Block;
use crate::chance::{Chance, Weights};
use crate::dist::Token;
use crate::draft::{Candidate, Draft, Node, Proposal, Scheme};
use crate::profile::Ratio;
use crate::residual::Residual;
use crate::share::{Leftover, Take, left_at};
use pool::Pool;

/// Pooled block verification: the rule for several paths.
///
/// The tree is revealed depth by depth. Each drafted prefix has a *weight*, the chance that the
/// accepted path reaches it; the weights of one depth add up to at most one. All candidates of a
/// depth compete for that one unit as if they arrived in random order: a drawn token asks for its
/// share of the target's flow, and gets what those before it have left. Fixed tokens then take what
/// the sampled ones leave of their flow, so they never cost a sampled path anything.
///
/// **Theorem (layer flow).** Let weights depend only on tokens up to their own depth, add up to
/// `S(d) <= 1` at each depth `d`, and satisfy `E[w(ux)] <= w(u) * target(x|u)` given the tree to
/// depth `d`. Put `R(u,x) = w(u) * target(x|u) - E[w(ux)]` and `r(d)` for the sum of `R` over
/// depth `d`. Then going up from the deepest layer, leaving at depth `d` with probability `r(d) /
/// (r(d) + 1 - S(d))` with `(u, x)` drawn from `R`, is lossless and accepts `sum of S(d)` tokens
/// on average. *Proof:* by downward induction the chance that nothing deeper is accepted, given
/// the tree to depth `d`, is `r(d) + 1 - S(d)`; so the mass leaving at `(u, x)` is `R(u, x)`, and
/// `W(u) target(x|u) - W(ux)` in expectation, which is what losslessness asks for.
///
/// The pool meets the condition for any choice of its bars, which only decide how much is accepted.
/// On one path this is [`BlockRule`](crate::BlockRule); on fixed tokens alone it accepts what
/// [`NssRule`](crate::NssRule) does. Derived by this project; `docs/verification.md` has it in
/// full. Lossless for independent candidates and fixed tokens, at most 64 sampled candidates at one
/// depth. Not for trees without replacement: their candidates are not independent.
///
/// ```
/// use forerun_verify::*;
/// // A sampled path beside a guess: either may be accepted.
/// let mut tree = Draft::start(Scheme::Independent, 3);
/// let row = tree.row(Dist::dense(vec![0.6, 0.2, 0.2])?)?;
/// tree.sampled(Node::ROOT, row, Token(0))?;
/// tree.fixed(Node::ROOT, Token(2))?;
/// let draft = tree.finish()?;
/// let rows = [Token(2), Token(1), Token(1)].map(|token| Dist::point(3, token).unwrap());
/// let verdict = PooledRule.verify(&Block::new(&draft, &rows)?, &mut Random(Philox::new(1)))?;
/// assert_eq!(draft.path_to(verdict.node), [Token(2)]);
/// assert_eq!(verdict.next, Token(1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct PooledRule;

impl Rule for PooledRule {
    fn name(&self) -> &'static str {
        "pooled"
    }

    fn admits(&self, draft: &Draft) -> Result<(), Refusal> {
        let refusal = |wants| refuse("pooled", draft, wants, "use traversal or fewer paths");
        if !matches!(draft.scheme(), Scheme::Paths | Scheme::Independent) {
            return Err(refusal("independent candidates and fixed tokens"));
        }
        let mut sampled: Vec<usize> = Vec::new();
        for node in std::iter::once(Node::ROOT).chain(draft.nodes().map(|(node, ..)| node)) {
            let depth = draft.depth(node);
            sampled.resize(sampled.len().max(depth + 1), 0);
            sampled[depth] +=
                draft.candidates(node).iter().filter(|candidate| candidate.row.is_some()).count();
        }
        if sampled.into_iter().all(|candidates| candidates <= CANDIDATES_MAX) {
            Ok(())
        } else {
            Err(refusal("at most 64 sampled candidates at one depth"))
        }
    }

    fn decide(&self, block: &Block<'_>, chance: &mut dyn Chance) -> Verdict {
        let mut layers = Vec::new();
        let mut live = vec![(Node::ROOT, 1.0)];
        while !live.is_empty() {
            let (layer, next) = Layer::reveal(block, &live);
            layers.push(layer);
            live = next;
        }
        for layer in layers.iter().skip(1).rev() {
            if let Some(verdict) = layer.leave(block, false, chance) {
                return verdict;
            }
        }
        layers[0].leave(block, true, chance).expect("the root is left for certain")
    }
}

/// The nodes of one depth that can be reached, and what may be left at each.
struct Layer<'a> {
    /// The weights of its nodes in all.
    reach: f64,
    places: Vec<Place<'a>>,
}

struct Place<'a> {
    node: Node,
    weight: f64,
    /// Fixed children that took what was left of their flow.
    fixed: Vec<Token>,
    takes: Takes<'a>,
}

/// What the sampled candidates of a node take.
enum Takes<'a> {
    Nothing,
    /// The layer's only candidate: it takes the smaller of draft and weighted target.
    Only(Proposal<'a>),
    Pooled {
        ratio: Ratio<'a>,
        takes: Vec<Take<'a>>,
        taken: f64,
    },
}

impl<'a> Layer<'a> {
    /// Works out the weights one depth below `live`, the reachable nodes of a depth.
    fn reveal(block: &Block<'a>, live: &[(Node, f64)]) -> (Self, Vec<(Node, f64)>) {
        let draft = block.draft();
        let mut next: Vec<(Node, f64)> = Vec::new();
        let mut places: Vec<Place<'a>> = live
            .iter()
            .map(|&(node, weight)| Place { node, weight, fixed: vec![], takes: Takes::Nothing })
            .collect();
        let candidates: Vec<(usize, Candidate)> = live
            .iter()
            .enumerate()
            .flat_map(|(place, (node, _))| {
                draft.candidates(*node).iter().map(move |it| (place, *it))
            })
            .collect();
        let sampled: Vec<(usize, Candidate)> =
            candidates.iter().copied().filter(|(_, candidate)| candidate.row.is_some()).collect();
        let fixed: Vec<(usize, Candidate)> =
            candidates.iter().copied().filter(|(_, candidate)| candidate.row.is_none()).collect();
        // What the pool takes of its one unit on average (of use to fixed tokens alone), and what
        // it took here.
        let (mean, used) = match sampled[..] {
            [] => (0.0, 0.0),
            [(place, candidate)] => {
                let Place { node, weight, .. } = places[place];
                let (target, token) = (block.target(node), draft.token(candidate.child));
                let proposal = draft.proposal(candidate);
                let passes = (weight * target.prob(token) / proposal.prob(token)).min(1.0);
                add(&mut next, candidate.child, passes);
                places[place].takes = Takes::Only(proposal);
                let mean = match fixed[..] {
                    [] => 0.0,
                    _ => weight - Residual::new((weight, target), [(1.0, proposal)]).mass(),
                };
                (mean, passes)
            }
            _ => {
                let pool = Pool::new(block, live, &sampled);
                let used = pool.realise(draft, &sampled, |child, w| add(&mut next, child, w));
                let mean = pool.mean();
                pool.settle(&mut places);
                (mean, used)
            }
        };
        for (place, candidate) in fixed {
            if mean >= 1.0 {
                break;
            }
            let place = &mut places[place];
            let token = draft.token(candidate.child);
            let left = place.left_at(block, token);
            place.fixed.push(token);
            // What the pool left here over what it leaves on average: one in expectation.
            add(&mut next, candidate.child, left * (1.0 - used).max(0.0) / (1.0 - mean));
        }
        next.retain(|(_, weight)| *weight > 0.0);
        (Self { reach: live.iter().map(|(_, weight)| weight).sum(), places }, next)
    }

    /// Leaves at this depth with the probability that losslessness asks for, or not.
    fn leave(&self, block: &Block<'_>, surely: bool, chance: &mut dyn Chance) -> Option<Verdict> {
        let masses: Vec<f64> = self.places.iter().map(|place| place.mass(block)).collect();
        let left: f64 = masses.iter().sum();
        let rest = left + (1.0 - self.reach).max(0.0);
        let leaves = surely || (left > 0.0 && chance.coin(left / rest));
        if !leaves {
            return None;
        }
        let place = match &masses[..] {
            // Nothing left at the root is rounding's doing; any place will do.
            _ if left <= 0.0 => &self.places[0],
            [_] => &self.places[0],
            masses => &self.places[chance.pick(&masses)],
        };
        let target = block.target(place.node);
        let next = match &place.takes {
            Takes::Pooled { ratio, takes, .. } => {
                let whole = (place.weight, target);
                let leftover = Leftover::new(whole, ratio, takes, &place.fixed);
                draw_or(&leftover, target, chance)
            }
            _ => draw_or(&place.residual(block), target, chance),
        };
        Some(verdict(block, place.node, next))
    }
}

/// Adds to the weight of a child, which several candidates may lead to.
fn add(next: &mut Vec<(Node, f64)>, child: Node, weight: f64) {
    match next.iter_mut().find(|(node, _)| *node == child) {
        Some((_, total)) => *total += weight,
        None => next.push((child, weight)),
    }
}

impl<'a> Place<'a> {
    /// What the sampled candidates leave at a token; fixed children are not looked at.
    fn left_at(&self, block: &Block<'a>, token: Token) -> f64 {
        let whole = self.weight * block.target(self.node).prob(token);
        match &self.takes {
            Takes::Nothing => whole,
            Takes::Only(proposal) => (whole - proposal.prob(token)).max(0.0),
            Takes::Pooled { ratio, takes, .. } => left_at(whole, ratio, takes, token),
        }
    }

    /// The mass of what is left.
    fn mass(&self, block: &Block<'a>) -> f64 {
        match &self.takes {
            Takes::Nothing if self.fixed.is_empty() => self.weight,
            Takes::Nothing | Takes::Only(_) => self.residual(block).mass(),
            Takes::Pooled { taken, .. } => {
                let fixed = self.fixed.iter().map(|token| self.left_at(block, *token));
                (self.weight - taken - fixed.sum::<f64>()).max(0.0)
            }
        }
    }

    /// What is left, where no pool is involved.
    fn residual(&self, block: &Block<'a>) -> Residual<'a> {
        let only = match self.takes {
            Takes::Only(proposal) => Some((1.0, proposal)),
            _ => None,
        };
        // A fixed token has no more than the whole weight to lose.
        let fixed = self.fixed.iter().map(|token| (self.weight, Proposal::Fixed(*token)));
        Residual::new((self.weight, block.target(self.node)), only.into_iter().chain(fixed))
    }
}
