//! What goes from one round to the next: the law of the text after two of them.

use std::collections::BTreeMap;

use forerun_verify::check::{Drafting, Model, drafting, outcomes};
use forerun_verify::*;

use crate::one_path::{Greedy, greedy};
use crate::seen::{draw, numbers, residual};

/// The draft of a second round, from what is committed and the unaccepted tail of the first.
pub(crate) type Second = fn(&Model, &[Token], &[Token], &mut dyn Chance) -> Draft;

/// The tail, with the drafter's rows after the committed tokens, as if drawn from them.
pub(crate) fn tail_as_drawn(
    model: &Model,
    committed: &[Token],
    tail: &[Token],
    _: &mut dyn Chance,
) -> Draft {
    let row = |n: usize| model.draft(0, &[committed, &tail[..n]].concat()).clone();
    let steps = tail.iter().enumerate().map(|(n, token)| (*token, row(n)));
    Draft::path(model.shape().vocab_len, steps).unwrap()
}

/// The tail as fixed tokens.
pub(crate) fn tail_as_guess(
    model: &Model,
    _: &[Token],
    tail: &[Token],
    _: &mut dyn Chance,
) -> Draft {
    Draft::fixed_path(model.shape().vocab_len, tail.iter().copied()).unwrap()
}

/// As many tokens as the tail has, drawn anew.
pub(crate) fn fresh(
    model: &Model,
    committed: &[Token],
    tail: &[Token],
    chance: &mut dyn Chance,
) -> Draft {
    let mut text = committed.to_vec();
    let mut steps = Vec::new();
    for _ in tail {
        let row = model.draft(0, &text).clone();
        text.push(row.draw(chance));
        steps.push((text[text.len() - 1], row));
    }
    Draft::path(model.shape().vocab_len, steps).unwrap()
}

/// What a round of block verification commits after a text.
fn commit(model: &Model, text: &[Token], draft: &Draft, chance: &mut dyn Chance) -> Vec<Token> {
    let nodes = std::iter::once(Node::ROOT).chain(draft.nodes().map(|(node, ..)| node));
    let rows: Vec<Dist> =
        nodes.map(|node| model.target(&[text, &draft.path_to(node)].concat()).clone()).collect();
    let verdict = BlockRule.verify(&Block::new(draft, &rows).unwrap(), chance).unwrap();
    [draft.path_to(verdict.node), vec![verdict.next]].concat()
}

/// The tokens of a draft of one path.
fn tokens(draft: &Draft) -> Vec<Token> {
    draft.nodes().map(|(_, token, _)| token).collect()
}

/// The error of the text after a round on a path of the drafter and another on what `second`
/// makes of its tail.
pub(crate) fn two_rounds(model: &Model, second: Second) -> f64 {
    text_error(model, |chance| {
        let first = drafting::paths(1).draft(model, chance);
        let mut text = commit(model, &[], &first, chance);
        // The token in place of the first rejected one is committed, so the tail begins after it.
        let path = tokens(&first);
        if let Some(tail @ [_, ..]) = path.get(text.len()..) {
            let second = second(model, &text, tail, chance);
            text.extend(commit(model, &text, &second, chance));
        }
        text
    })
}

/// The error of greedy block verification when the target of the tokens up to the draft's length
/// is changed as it asks for.
pub(crate) fn greedy_with_carried_target(model: &Model) -> f64 {
    text_error(model, |chance| {
        let path = tokens(&drafting::paths(1).draft(model, chance));
        let Greedy { accepted, mut target, mut draft } = greedy(model, &path, chance);
        let mut text = path[..accepted].to_vec();
        while text.len() < path.len() {
            let rows = (numbers(model.target(&text)), numbers(model.draft(0, &text)));
            let taken: Vec<f64> = rows.1.iter().map(|prob| draft * prob).collect();
            let token = draw(&residual(target, &rows.0, &taken), &rows.0, chance);
            target *= rows.0[token.index()];
            draft *= rows.1[token.index()];
            text.push(token);
        }
        text.push(model.target(&text).draw(chance));
        text
    })
}

/// The largest difference between the law of the texts of a procedure, each carried on by the
/// target to one token more than the model's length, and the target's own.
fn text_error(model: &Model, procedure: impl FnMut(&mut dyn Chance) -> Vec<Token>) -> f64 {
    let mut commits: BTreeMap<Vec<Token>, f64> = BTreeMap::new();
    outcomes(procedure, |probability, text| *commits.entry(text).or_default() += probability);
    let carried = |text: &[Token], from: usize| -> f64 {
        (from..text.len()).map(|n| model.target(&text[..n]).prob(text[n])).product()
    };
    let mut worst = 0.0_f64;
    model.each_output(model.shape().len + 1, &mut |text, wanted| {
        let ends = 1..=text.len();
        let produced = ends.filter_map(|n| Some(commits.get(&text[..n])? * carried(text, n)));
        worst = worst.max((produced.sum::<f64>() - wanted).abs());
    });
    worst
}
