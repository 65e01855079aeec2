//! Draftings that break what a rule is told of them: tokens that were not drawn from the rows
//! handed over, or not in the way the draft's scheme says.

use forerun_verify::check::drafting::without_replacement;
use forerun_verify::check::{Drafting, Model};
use forerun_verify::*;

use crate::seen::{numbers, token_at};

/// Drawn tokens of a draft probability below this are dropped by [`dropping`].
pub(crate) const DROPPED_BELOW: f64 = 0.3;

/// One path whose tokens are chosen by `choose` and handed over with the row that `verified`
/// makes of the drafter's.
fn misread(
    choose: fn(&Dist, &mut dyn Chance) -> Token,
    verified: fn(&Dist) -> Dist,
) -> impl Drafting {
    move |model: &Model, chance: &mut dyn Chance| {
        let (mut path, mut steps) = (Vec::new(), Vec::new());
        while path.len() < model.shape().len {
            let row = model.draft(0, &path);
            let token = choose(row, chance);
            path.push(token);
            steps.push((token, verified(row)));
        }
        Draft::path(model.shape().vocab_len, steps).unwrap()
    }
}

fn pick_from(weights: &[f64], chance: &mut dyn Chance) -> Token {
    token_at(chance.pick(&weights))
}

fn top(row: &Dist) -> Token {
    row.support().fold((Token(0), 0.0), |top, one| if one.1 > top.1 { one } else { top }).0
}

/// The likeliest tokens, said to be drawn.
pub(crate) fn likeliest() -> impl Drafting {
    misread(|row, _| top(row), Dist::clone)
}

/// Drawn at half the temperature of the row handed over.
pub(crate) fn colder() -> impl Drafting {
    let draw = |row: &Dist, chance: &mut dyn Chance| {
        let squares: Vec<f64> = numbers(row).iter().map(|prob| prob * prob).collect();
        pick_from(&squares, chance)
    };
    misread(draw, Dist::clone)
}

/// Drawn without the least likely token, though the row handed over has it.
pub(crate) fn truncated() -> impl Drafting {
    let draw = |row: &Dist, chance: &mut dyn Chance| {
        let mut kept = numbers(row);
        let least = kept.iter().copied().fold(f64::INFINITY, f64::min);
        kept.iter_mut().filter(|prob| **prob == least).take(1).for_each(|prob| *prob = 0.0);
        pick_from(&kept, chance)
    };
    misread(draw, Dist::clone)
}

/// Drawn from the row, which is then rounded to the eight bits of a `bf16` mantissa.
pub(crate) fn rounded() -> impl Drafting {
    let round = |row: &Dist| {
        #[expect(clippy::cast_possible_truncation, reason = "rounding is the point")]
        let half = |prob: f64| f32::from_bits((prob as f32).to_bits() & 0xFFFF_0000);
        Dist::dense(numbers(row).into_iter().map(half).collect()).unwrap()
    };
    misread(|row, chance| row.draw(chance), round)
}

/// A path that ends where an unlikely token was drawn, which is dropped.
pub(crate) fn dropping() -> impl Drafting {
    |model: &Model, chance: &mut dyn Chance| {
        let (mut path, mut steps) = (Vec::new(), Vec::new());
        while path.len() < model.shape().len {
            let row = model.draft(0, &path);
            let token = row.draw(chance);
            if row.prob(token) < DROPPED_BELOW {
                break;
            }
            path.push(token);
            steps.push((token, row.clone()));
        }
        Draft::path(model.shape().vocab_len, steps).unwrap()
    }
}

/// The tree of another drafting, said to be drawn by `scheme`.
pub(crate) fn passed_off(drafting: impl Drafting, scheme: Scheme) -> impl Drafting {
    move |model: &Model, chance: &mut dyn Chance| {
        rebuilt(model, scheme, paths_of(&drafting.draft(model, chance)))
    }
}

/// Children drawn without replacement, listed by draft probability and not as they were drawn.
pub(crate) fn sorted(width: usize) -> impl Drafting {
    move |model: &Model, chance: &mut dyn Chance| {
        let mut paths = paths_of(&without_replacement(width).draft(model, chance));
        let draft = |path: &[Token]| {
            let (token, before) = path.split_last().expect("a node has a token");
            model.draft(0, before).prob(*token)
        };
        // Parents stay before their children: only paths of one length change places.
        paths.sort_by(|one, two| one.len().cmp(&two.len()).then(draft(two).total_cmp(&draft(one))));
        rebuilt(model, Scheme::WithoutReplacement, paths)
    }
}

/// The tokens that lead to each node.
fn paths_of(draft: &Draft) -> Vec<Vec<Token>> {
    draft.nodes().map(|(node, ..)| draft.path_to(node)).collect()
}

/// A tree with these nodes, all tokens sampled from the drafter's rows.
fn rebuilt(model: &Model, scheme: Scheme, paths: Vec<Vec<Token>>) -> Draft {
    let mut tree = Draft::start(scheme, model.shape().vocab_len);
    let mut known = vec![(vec![], Node::ROOT, None)];
    for path in paths {
        let (token, before) = path.split_last().expect("a node has a token");
        let parent = known.iter_mut().find(|(path, ..)| path == before).expect("parents first");
        let row = *parent.2.get_or_insert_with(|| {
            tree.row(model.draft(0, before).clone()).expect("of the model's vocabulary")
        });
        let node = tree.sampled(parent.1, row, *token).unwrap();
        known.push((path, node, None));
    }
    tree.finish().unwrap()
}

/// A path of independent candidates, the row it began with, and how likely each of its tokens was.
fn candidates(model: &Model, chance: &mut dyn Chance) -> (DraftBuilder, RowId, Vec<f64>) {
    let mut tree = Draft::start(Scheme::Independent, model.shape().vocab_len);
    let (mut node, mut path, mut rows, mut likelihoods) = (Node::ROOT, vec![], vec![], vec![]);
    while path.len() < model.shape().len {
        let row = model.draft(0, &path);
        rows.push(tree.row(row.clone()).unwrap());
        let token = row.draw(chance);
        node = tree.sampled(node, rows[path.len()], token).unwrap();
        path.push(token);
        likelihoods.push(row.prob(token));
    }
    (tree, rows[0], likelihoods)
}

/// A second candidate at the root only where the first drew an unlikely token.
pub(crate) fn second_chance() -> impl Drafting {
    |model: &Model, chance: &mut dyn Chance| {
        let (mut tree, row, likelihoods) = candidates(model, chance);
        if likelihoods[0] < 0.5 {
            let token = model.draft(0, &[]).draw(chance);
            tree.sampled(Node::ROOT, row, token).unwrap();
        }
        tree.finish().unwrap()
    }
}

/// Only where the path went on with an unlikely token, another one: the drafter's likeliest token
/// fixed, and one drawn after it. (The fixed token alone would do no harm: it takes what is left
/// of its own flow, and whether it is drafted only decides what that is called.)
pub(crate) fn afterthought() -> impl Drafting {
    |model: &Model, chance: &mut dyn Chance| {
        let (mut tree, _, likelihoods) = candidates(model, chance);
        if likelihoods[1] < 0.5 {
            let fixed = top(model.draft(0, &[]));
            let node = tree.fixed(Node::ROOT, fixed).unwrap();
            let row = model.draft(0, &[fixed]);
            let id = tree.row(row.clone()).unwrap();
            tree.sampled(node, id, row.draw(chance)).unwrap();
        }
        tree.finish().unwrap()
    }
}
