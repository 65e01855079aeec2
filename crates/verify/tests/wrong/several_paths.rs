//! Rules for several paths and for trees, and what is mistaken for them.

use forerun_verify::*;

use crate::seen::{Line, Seen, draw, normal, residual};

/// How many paths the rules that pick one are told there are.
pub(crate) const PATHS: usize = 2;

/// What is wrong with picking a path, as greedy multi-path block verification does (arXiv
/// 2602.16961).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum PickFault {
    Sound,
    /// The picked path is verified against the drafter's own rows.
    Unskewed,
    /// Ratios are clipped at one; equals are ordered by id in the law, by path in the pick.
    ClippedTies,
    /// One path is used where its first token looks good, else two.
    Peeking,
}

/// For each token, the law of the largest of `paths` draws, and the share that falls short of it;
/// `below` is that share at this node.
fn skewed(row: &[f64], order: &[usize], paths: usize, below: f64) -> Vec<(f64, f64)> {
    let mut laws = vec![(0.0, 0.0); row.len()];
    let mut before = 0.0;
    let powers = |high: f64, low: f64| -> f64 {
        (0..paths)
            .map(|n| (0..paths - 1).map(|m| if m < n { high } else { low }).product::<f64>())
            .sum()
    };
    for &token in order {
        let low = below + (1.0 - below) * before;
        let high = low + (1.0 - below) * row[token];
        laws[token] = (row[token] * powers(high, low) / powers(1.0, below), low / high);
        before += row[token];
    }
    laws
}

pub(crate) fn picked(seen: &Seen<'_>, fault: PickFault) -> Line {
    let mut line = Line { nodes: vec![Node::ROOT], tokens: vec![], laws: vec![] };
    let (mut node, mut below, mut paths) = (Node::ROOT, 0.0, PATHS);
    while let [first, ..] = seen.children(node)[..] {
        let (target, row) = (seen.target(node), seen.draft(node));
        let ratio = |token: usize| {
            let ratio = if row[token] > 0.0 { target[token] / row[token] } else { f64::INFINITY };
            if fault == PickFault::ClippedTies { ratio.min(1.0) } else { ratio }
        };
        if fault == PickFault::Peeking && node == Node::ROOT && ratio(first.1.index()) >= 1.0 {
            paths = 1;
        }
        let mut order: Vec<usize> = (0..row.len()).collect();
        order.sort_by(|one, two| ratio(*one).total_cmp(&ratio(*two)).then(one.cmp(two)));
        let laws = skewed(&row, &order, paths, below);
        let mut best = first;
        for child in seen.children(node).into_iter().take(if paths == 1 { 1 } else { PATHS }) {
            let (one, two) = (ratio(best.1.index()), ratio(child.1.index()));
            let tied = one == two && best.1 < child.1 && fault != PickFault::ClippedTies;
            if one < two || tied {
                best = child;
            }
        }
        line.tokens.push(best.1);
        line.laws.push(match fault {
            PickFault::Unskewed => row,
            _ => laws.iter().map(|(law, _)| *law).collect(),
        });
        below = laws[best.1.index()].1;
        node = best.0;
        line.nodes.push(node);
    }
    line
}

/// The tokens of the candidates of a root that has [`PATHS`]: a child that is alone was drawn by
/// all.
fn root_candidates(seen: &Seen<'_>) -> Vec<Token> {
    let children = seen.children(Node::ROOT);
    (0..PATHS).map(|candidate| children[candidate.min(children.len() - 1)].1).collect()
}

/// Ends with a token at the root: accepted where it is drafted. For drafts one token deep.
fn ended(seen: &Seen<'_>, token: Token, chance: &mut dyn Chance) -> Verdict {
    match seen.block.draft().child(Node::ROOT, token) {
        Some(child) => seen.verdict_from_target(child, chance),
        None => seen.verdict(Node::ROOT, token),
    }
}

/// Recursive rejection with replacement over these tokens.
fn rejection(seen: &Seen<'_>, tokens: Vec<Token>, chance: &mut dyn Chance) -> Verdict {
    let (mut left, row) = (seen.target(Node::ROOT), seen.draft(Node::ROOT));
    for token in tokens {
        if chance.coin(left[token.index()] / row[token.index()]) {
            return ended(seen, token, chance);
        }
        left = normal(&residual(1.0, &left, &row));
    }
    let next = draw(&left, &seen.target(Node::ROOT), chance);
    ended(seen, next, chance)
}

pub(crate) fn specinfer_sound(seen: &Seen<'_>, chance: &mut dyn Chance) -> Verdict {
    rejection(seen, root_candidates(seen), chance)
}

/// Tries a token that was drawn twice once, though the row still says it may come again.
pub(crate) fn specinfer_distinct(seen: &Seen<'_>, chance: &mut dyn Chance) -> Verdict {
    let distinct = seen.children(Node::ROOT).into_iter().map(|(_, token)| token);
    rejection(seen, distinct.collect(), chance)
}

/// SpecTr's K-SEQ (arXiv 2310.15141) with a bar that need not be the right one.
fn k_seq(seen: &Seen<'_>, bar: f64, chance: &mut dyn Chance) -> Verdict {
    let (target, row) = (seen.target(Node::ROOT), seen.draft(Node::ROOT));
    for token in root_candidates(seen) {
        if chance.coin(target[token.index()] / (bar * row[token.index()])) {
            return ended(seen, token, chance);
        }
    }
    let flow: Vec<f64> = target.iter().zip(&row).map(|(t, d)| d.min(t / bar)).collect();
    let passes: f64 = flow.iter().sum();
    let some = 1.0 - (0..PATHS).map(|_| 1.0 - passes).product::<f64>();
    let taken: Vec<f64> = flow.iter().map(|flow| flow * some / passes).collect();
    let next = draw(&residual(1.0, &target, &taken), &target, chance);
    ended(seen, next, chance)
}

/// The bar of a single candidate: with more of them the flow exceeds the target.
pub(crate) fn k_seq_low(seen: &Seen<'_>, chance: &mut dyn Chance) -> Verdict {
    k_seq(seen, 1.0, chance)
}

/// The highest bar that is ever needed: it wastes tokens, but is lossless.
pub(crate) fn k_seq_high(seen: &Seen<'_>, chance: &mut dyn Chance) -> Verdict {
    k_seq(seen, PATHS as f64, chance)
}

/// Traversal verification; `plain` draws the next token from the target instead of what is left.
fn traverse(
    seen: &Seen<'_>,
    (node, weight): (Node, f64),
    plain: bool,
    chance: &mut dyn Chance,
) -> Option<Verdict> {
    let (mut left, mut row, mut weight) = (seen.target(node), vec![], weight);
    for (child, token) in seen.children(node) {
        if row.is_empty() {
            row = seen.draft(node);
        }
        let ratio = left[token.index()] / row[token.index()];
        let accepted = traverse(seen, (child, (weight * ratio).min(1.0)), plain, chance);
        if accepted.is_some() {
            return accepted;
        }
        let rest = residual(weight, &left, &row);
        let mass: f64 = rest.iter().sum();
        if mass > 0.0 {
            left = normal(&rest);
        }
        weight = if mass > 0.0 { mass / (mass + 1.0 - weight) } else { 0.0 };
        row[token.index()] = 0.0;
        row = normal(&row);
    }
    let target = seen.target(node);
    let next = if plain { &target } else { &left };
    let accepted = node == Node::ROOT || chance.coin(weight);
    accepted.then(|| seen.verdict(node, draw(next, &target, chance)))
}

pub(crate) fn traversal_sound(seen: &Seen<'_>, chance: &mut dyn Chance) -> Verdict {
    traverse(seen, (Node::ROOT, 1.0), false, chance).expect("the root is accepted for certain")
}

pub(crate) fn traversal_plain_target(seen: &Seen<'_>, chance: &mut dyn Chance) -> Verdict {
    traverse(seen, (Node::ROOT, 1.0), true, chance).expect("the root is accepted for certain")
}

/// Nodes of one depth with what is left at each, and their weights in all.
struct Layer {
    reach: f64,
    left: Vec<(Node, Vec<f64>)>,
}

/// LV-RRS: the children of a depth take from one unit in turn, the nodes in order of weight.
/// Lossless for independent paths and for children drawn without replacement, not for beams, where
/// the number of children of one node tells of the tokens of others.
pub(crate) fn in_turn(seen: &Seen<'_>, chance: &mut dyn Chance) -> Verdict {
    let mut layers = Vec::new();
    let mut live = vec![(Node::ROOT, 1.0)];
    while !live.is_empty() {
        let (layer, next) = reveal_in_turn(seen, live);
        layers.push(layer);
        live = next;
    }
    for (depth, Layer { reach, left }) in layers.iter().enumerate().rev() {
        let masses: Vec<f64> = left.iter().map(|(_, row)| row.iter().sum()).collect();
        let mass: f64 = masses.iter().sum();
        let rest = (1.0 - reach).max(0.0);
        if depth == 0 || (mass > 0.0 && chance.coin(mass / (mass + rest))) {
            let place = if mass > 0.0 { chance.pick(&&masses[..]) } else { 0 };
            let (node, row) = &left[place];
            return seen.verdict(*node, draw(row, &seen.target(*node), chance));
        }
    }
    unreachable!("the root is left for certain")
}

fn reveal_in_turn(seen: &Seen<'_>, mut live: Vec<(Node, f64)>) -> (Layer, Vec<(Node, f64)>) {
    live.sort_by(|one, two| two.1.total_cmp(&one.1));
    let mut layer = Layer { reach: live.iter().map(|(_, weight)| weight).sum(), left: vec![] };
    let mut next = Vec::new();
    // What is left of the unit: on average, and with the tokens that were drawn.
    let (mut mean, mut full) = (1.0_f64, 1.0);
    for (node, weight) in live {
        let mut left: Vec<f64> = seen.target(node).iter().map(|prob| weight * prob).collect();
        let children = seen.children(node);
        let mut row = if children.is_empty() { vec![] } else { seen.draft(node) };
        for (child, token) in children {
            let taken: Vec<f64> =
                left.iter().zip(&row).map(|(left, draft)| left.min(mean * draft)).collect();
            let offered = mean * row[token.index()];
            let passes = if offered > 0.0 { taken[token.index()] / offered } else { 0.0 };
            next.push((child, full * passes));
            full *= 1.0 - passes;
            left = residual(1.0, &left, &taken);
            mean = (mean - taken.iter().sum::<f64>()).max(0.0);
            row[token.index()] = 0.0;
            row = normal(&row);
        }
        layer.left.push((node, left));
    }
    next.retain(|(_, weight)| *weight > 0.0);
    (layer, next)
}
