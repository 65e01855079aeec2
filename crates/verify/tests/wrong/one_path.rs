//! Rules for one path: token verification, block verification, and what is mistaken for them.

use forerun_verify::check::Model;
use forerun_verify::*;

use crate::draftings::DROPPED_BELOW;
use crate::seen::{Line, Seen, draw, numbers, residual};

/// What is wrong with token verification.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum TokenFault {
    Sound,
    /// The next token is drawn from the target as if nothing had been rejected.
    PlainTarget,
    /// The rejected token's draft probability is taken from every token's.
    ScalarResidual,
    /// The first token is taken without a test.
    FirstUntested,
    /// The coin is a number from 0 to 100, at most a hundred times the ratio.
    CoarseCoin,
}

pub(crate) fn token_by_token(
    seen: &Seen<'_>,
    fault: TokenFault,
    chance: &mut dyn Chance,
) -> Verdict {
    let line = seen.line();
    for (n, &token) in line.tokens.iter().enumerate() {
        let (target, draft) = (seen.target(line.nodes[n]), &line.laws[n]);
        let ratio = (target[token.index()] / draft[token.index()]).min(1.0);
        let passes = match fault {
            TokenFault::FirstUntested if n == 0 => 1.0,
            TokenFault::CoarseCoin => ((100.0 * ratio).floor() + 1.0) / 101.0,
            _ => ratio,
        };
        if !chance.coin(passes) {
            let scalar = vec![draft[token.index()]; draft.len()];
            let weights = match fault {
                TokenFault::PlainTarget => target.clone(),
                TokenFault::ScalarResidual => residual(1.0, &target, &scalar),
                _ => residual(1.0, &target, draft),
            };
            return seen.verdict(line.nodes[n], draw(&weights, &target, chance));
        }
    }
    seen.verdict_from_target(line.nodes[line.tokens.len()], chance)
}

/// What is wrong with block verification.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum BlockFault {
    Sound,
    /// The next token is drawn as if each token had been tested on its own.
    TokenResidual,
    /// The next token is drawn from the target as if nothing had been rejected.
    PlainTarget,
    /// A prefix is kept with its weight, whatever its residual.
    KeptByWeight,
}

/// The likelihood ratio of each prefix, clipped at one after each token.
fn weights_along(seen: &Seen<'_>, line: &Line) -> Vec<f64> {
    let mut weights = vec![1.0];
    for (n, token) in line.tokens.iter().enumerate() {
        let target = seen.target(line.nodes[n])[token.index()];
        weights.push((weights[n] * target / line.laws[n][token.index()]).min(1.0));
    }
    weights
}

pub(crate) fn share(part: f64, rest: f64) -> f64 {
    if part + rest > 0.0 { part / (part + rest) } else { 1.0 }
}

pub(crate) fn block(
    seen: &Seen<'_>,
    line: &Line,
    fault: BlockFault,
    chance: &mut dyn Chance,
) -> Verdict {
    let weights = weights_along(seen, line);
    let len = line.tokens.len();
    if chance.coin(weights[len]) {
        return seen.verdict_from_target(line.nodes[len], chance);
    }
    for n in (0..len).rev() {
        let (target, draft) = (seen.target(line.nodes[n]), &line.laws[n]);
        let left = residual(weights[n], &target, draft);
        let kept = match fault {
            _ if n == 0 => 1.0,
            BlockFault::KeptByWeight => weights[n],
            _ => share(left.iter().sum(), 1.0 - weights[n]),
        };
        if chance.coin(kept) {
            let next = match fault {
                BlockFault::TokenResidual => residual(1.0, &target, draft),
                BlockFault::PlainTarget => target.clone(),
                _ => left,
            };
            return seen.verdict(line.nodes[n], draw(&next, &target, chance));
        }
    }
    unreachable!("the root is kept for certain")
}

/// Tests the prefixes from the shortest on and stops at the first that fails.
pub(crate) fn block_forward(seen: &Seen<'_>, chance: &mut dyn Chance) -> Verdict {
    let line = seen.line();
    let weights = weights_along(seen, &line);
    let len = line.tokens.len();
    let left = |n: usize| residual(weights[n], &seen.target(line.nodes[n]), &line.laws[n]);
    let passes = |n: usize| {
        if n == len { weights[n] } else { share(left(n).iter().sum(), 1.0 - weights[n]) }
    };
    let kept = (1..=len).take_while(|n| chance.coin(passes(*n))).count();
    let node = line.nodes[kept];
    if kept == len {
        return seen.verdict_from_target(node, chance);
    }
    seen.verdict(node, draw(&left(kept), &seen.target(node), chance))
}

/// Block verification of the path with the largest likelihood ratio, as if it were the only one.
pub(crate) fn block_on_the_likeliest(seen: &Seen<'_>, chance: &mut dyn Chance) -> Verdict {
    let ratio = |leaf: &Node| -> f64 {
        let line = seen.line_to(*leaf);
        let steps = line.tokens.iter().enumerate();
        steps
            .map(|(n, x)| seen.target(line.nodes[n])[x.index()] / line.laws[n][x.index()])
            .product()
    };
    let best = seen.leaves().into_iter().max_by(|one, two| ratio(one).total_cmp(&ratio(two)));
    block(seen, &seen.line_to(best.expect("a draft has a leaf")), BlockFault::Sound, chance)
}

/// Block verification for drafts that drop a drawn token of draft probability below a bar: what
/// was kept follows the row without such tokens, which does not add up to one.
pub(crate) fn block_on_kept_tokens(seen: &Seen<'_>, chance: &mut dyn Chance) -> Verdict {
    let line = seen.line();
    let weights = weights_along(seen, &line);
    let len = line.tokens.len();
    let dropped = len < seen.model.shape().len;
    if !dropped && chance.coin(weights[len]) {
        return seen.verdict_from_target(line.nodes[len], chance);
    }
    for n in (0..=len - usize::from(!dropped)).rev() {
        let (node, weight) = (line.nodes[n], weights[n]);
        let target = seen.target(node);
        let mut kept = seen.draft(node);
        kept.iter_mut().filter(|draft| **draft < DROPPED_BELOW).for_each(|draft| *draft = 0.0);
        let left = residual(weight, &target, &kept);
        if n == 0 || chance.coin(share(left.iter().sum(), 1.0 - weight)) {
            return seen.verdict(node, draw(&left, &target, chance));
        }
    }
    unreachable!("the root is kept for certain")
}

/// How far greedy block verification (the appendix of arXiv 2403.10444) accepts, with the joint
/// probabilities of what it accepts.
pub(crate) struct Greedy {
    pub(crate) accepted: usize,
    pub(crate) target: f64,
    pub(crate) draft: f64,
}

/// Accepts each prefix with the smaller of its joint probabilities: more than its parent can give.
pub(crate) fn greedy(model: &Model, path: &[Token], chance: &mut dyn Chance) -> Greedy {
    let mut joint = vec![(1.0, 1.0)];
    for (n, &token) in path.iter().enumerate() {
        let (target, draft) = (model.target(&path[..n]), model.draft(0, &path[..n]));
        joint.push((joint[n].0 * target.prob(token), joint[n].1 * draft.prob(token)));
    }
    for n in (0..=path.len()).rev() {
        let (target, draft) = joint[n];
        let rows = (numbers(model.target(&path[..n])), numbers(model.draft(0, &path[..n])));
        let both = rows.0.iter().zip(&rows.1).map(|(one, two)| (target * one).min(draft * two));
        let on: f64 = if n == path.len() { 0.0 } else { both.sum() };
        if n == 0 || chance.coin(share(target.min(draft) - on, draft - target.min(draft))) {
            return Greedy { accepted: n, target, draft };
        }
    }
    unreachable!("the root is accepted for certain")
}

/// Greedy block verification without the changed target of the tokens after the next.
pub(crate) fn greedy_forgetting(seen: &Seen<'_>, chance: &mut dyn Chance) -> Verdict {
    let line = seen.line();
    let Greedy { accepted, target, draft } = greedy(seen.model, &line.tokens, chance);
    let node = line.nodes[accepted];
    if accepted == line.tokens.len() {
        return seen.verdict_from_target(node, chance);
    }
    let row = seen.target(node);
    let taken: Vec<f64> = line.laws[accepted].iter().map(|weight| weight * draft).collect();
    seen.verdict(node, draw(&residual(target, &row, &taken), &row, chance))
}

/// Medusa's typical acceptance: a token passes by the target's probability alone.
pub(crate) fn typical(seen: &Seen<'_>, chance: &mut dyn Chance) -> Verdict {
    let line = seen.line();
    let passes = |n: usize| {
        let target = seen.target(line.nodes[n]);
        let surprises = target.iter().filter(|prob| **prob > 0.0).map(|prob| -prob * prob.ln());
        target[line.tokens[n].index()] > f64::min(0.3, 0.6 * (-surprises.sum::<f64>()).exp())
    };
    let accepted = (0..line.tokens.len()).take_while(|n| passes(*n)).count();
    seen.verdict_from_target(line.nodes[accepted], chance)
}

/// SpecDec's acceptance (arXiv 2203.16487): a token passes among the target's two best, at least
/// half the best.
pub(crate) fn near_the_top(seen: &Seen<'_>, chance: &mut dyn Chance) -> Verdict {
    let line = seen.line();
    let passes = |n: usize| {
        let target = seen.target(line.nodes[n]);
        let drafted = target[line.tokens[n].index()];
        let best = target.iter().copied().fold(0.0, f64::max);
        target.iter().filter(|prob| **prob > drafted).count() < 2 && drafted >= 0.5 * best
    };
    let accepted = (0..line.tokens.len()).take_while(|n| passes(*n)).count();
    seen.verdict_from_target(line.nodes[accepted], chance)
}
