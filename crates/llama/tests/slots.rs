//! Slots share passes and nothing else.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

mod common;

use common::{TEXT, apart, count, path_to, row_after, tokens};
use forerun_decode::{Branch, Engine, Keep, Output, Rows, Slot, Step, Token};
use forerun_llama::{EngineOptions, LlamaEngine};

#[test]
fn two_slots_in_one_pass_are_as_if_alone() {
    let model = common::model();
    let text = tokens(&model, TEXT);
    let mut engine = common::engine(3, 1);
    let mut output = Output::default();
    let prompts = [&text[..10], &text[20..35]];
    let fill = |slot: u32, trunk| Step {
        slot: Slot(slot),
        keep: Keep::Trunk(0),
        trunk,
        tree: &[],
        rows: Rows::Trunk,
    };
    // Slots out of order, and one left empty.
    engine.extend(&[fill(2, prompts[0]), fill(0, prompts[1])], &mut output).unwrap();
    let mut alone = common::engine(1, 1);
    assert!(output.row(0) == row_after(&mut alone, prompts[0]));
    assert!(output.row(1) == row_after(&mut alone, prompts[1]));

    // Paths of different lengths, and a cut in one slot only.
    let path = |start: usize, len: usize| -> Vec<Branch> {
        (0..len).map(|parent| Branch { parent, token: text[start + parent] }).collect()
    };
    let trees = [path(40, 4), path(44, 2)];
    let steps = [
        Step { slot: Slot(2), keep: Keep::All(10), trunk: &[], tree: &trees[0], rows: Rows::Tree },
        Step {
            slot: Slot(0),
            keep: Keep::Trunk(9),
            trunk: &text[39..40],
            tree: &trees[1],
            rows: Rows::All,
        },
    ];
    engine.extend(&steps, &mut output).unwrap();
    assert_eq!(output.len(), 7);
    for node in 1..=4 {
        let sequence = [prompts[0], &path_to(&trees[0], node)].concat();
        assert!(output.row(node - 1) == row_after(&mut alone, &sequence), "slot 2, node {node}");
    }
    for node in 0..=2 {
        let sequence = [&prompts[1][..9], &text[39..40], &path_to(&trees[1], node)].concat();
        assert!(output.row(4 + node) == row_after(&mut alone, &sequence), "slot 0, node {node}");
    }
    assert!(engine.is_consistent());
}

#[test]
fn slots_in_use_are_moved_together_and_none_loses_what_it_holds() {
    let model = common::model();
    let text = tokens(&model, TEXT);
    let mut engine = common::engine(4, 1);
    let mut alone = common::engine(1, 1);
    let mut output = Output::default();
    let step = |slot: u32, keep, trunk| Step {
        slot: Slot(slot),
        keep,
        trunk,
        tree: &[],
        rows: Rows::Trunk,
    };
    // All hold something; then the first and the last go on, each pass a token.
    let starts = [0, 10, 20, 30];
    for (slot, start) in (0..).zip(starts) {
        engine.extend(&[step(slot, Keep::All(0), &text[start..start + 7])], &mut output).unwrap();
    }
    assert_eq!([0, 1, 2, 3].map(|slot| engine.place(Slot(slot))), [0, 1, 2, 3]);
    for len in 7..10 {
        let next = |start: usize| &text[start + len..=start + len];
        let keep = Keep::All(len);
        engine.extend(&[step(3, keep, next(30)), step(0, keep, next(0))], &mut output).unwrap();
        assert!(output.row(0) == row_after(&mut alone, &text[30..=30 + len]), "slot 3 after {len}");
        assert!(output.row(1) == row_after(&mut alone, &text[..=len]), "slot 0 after {len}");
        assert_eq!(engine.place(Slot(0)).abs_diff(engine.place(Slot(3))), 1);
        assert!(engine.is_consistent());
    }
    // Those that were moved out of the way go on as well, cut back, copied from and all at once.
    assert!(engine.copy(Slot(0), Slot(1), 5));
    let steps = [
        step(1, Keep::Trunk(5), &text[5..6]),
        step(2, Keep::Trunk(4), &text[24..25]),
        step(0, Keep::All(10), &text[10..11]),
    ];
    engine.extend(&steps, &mut output).unwrap();
    for (row, range) in [0..6, 20..25, 0..11].into_iter().enumerate() {
        assert!(output.row(row) == row_after(&mut alone, &text[range]), "step {row}");
    }
    assert!(engine.is_consistent());
}

#[test]
fn two_slots_with_trees_are_as_if_alone() {
    let model = common::model();
    let text = tokens(&model, TEXT);
    let mut engine = common::engine(2, 3);
    let mut output = Output::default();
    let prompts = [&text[..9], &text[20..32]];
    let branch = |(parent, index): (usize, usize)| Branch { parent, token: text[index] };
    let trees: [Vec<Branch>; 2] = [
        [(0, 40), (0, 41), (1, 42), (2, 43)].map(branch).to_vec(),
        [(0, 44), (1, 45), (1, 46), (0, 47), (3, 48)].map(branch).to_vec(),
    ];
    let steps = [0, 1].map(|index: usize| Step {
        slot: Slot(if index == 0 { 1 } else { 0 }),
        keep: Keep::All(0),
        trunk: prompts[index],
        tree: &trees[index],
        rows: Rows::All,
    });
    engine.extend(&steps, &mut output).unwrap();
    let mut alone = common::engine(1, 1);
    let mut row = 0;
    for (prompt, tree) in prompts.into_iter().zip(&trees) {
        for node in 0..=tree.len() {
            let sequence: Vec<Token> = [prompt, &path_to(tree, node)].concat();
            assert!(output.row(row) == row_after(&mut alone, &sequence), "row {row}");
            row += 1;
        }
    }
    assert!(engine.is_consistent());
}

#[test]
fn every_slot_has_the_whole_context_for_itself() {
    let model = common::model();
    let text = tokens(&model, TEXT);
    // Not a multiple of what llama.cpp rounds to, with cells apart and shared.
    for (slots, paths) in [(3, 1), (3, 2), (1, 1)] {
        let mut options = common::options(slots, paths);
        options.context_len = Some(count(30));
        let mut engine = LlamaEngine::new(&model, &options).unwrap();
        assert_eq!((engine.context_len(), engine.slot_count()), (30, slots as usize));
        let steps: Vec<Step<'_>> = (0..slots)
            .map(|slot| Step {
                slot: Slot(slot),
                keep: Keep::All(0),
                trunk: &text[..30],
                tree: &[],
                rows: Rows::None,
            })
            .collect();
        engine.extend(&steps, &mut Output::default()).unwrap();
        assert!(engine.is_consistent());
    }
}

#[test]
fn a_copied_beginning_gives_the_rows_of_one_that_was_read() {
    let model = common::model();
    let text = tokens(&model, TEXT);
    for (unified, paths) in [(Some(false), 1), (Some(true), 1), (None, 2)] {
        let options = EngineOptions { unified, ..common::options(3, paths) };
        let mut engine = LlamaEngine::new(&model, &options).unwrap();
        let mut output = Output::default();
        let mut row_after = |engine: &mut LlamaEngine, slot: u32, keep: Keep, trunk: &[Token]| {
            let step = Step { slot: Slot(slot), keep, trunk, tree: &[], rows: Rows::Trunk };
            engine.extend(&[step], &mut output).unwrap();
            output.row(0).to_vec()
        };
        // What the slot held before is gone.
        row_after(&mut engine, 1, Keep::Trunk(0), &text[20..40]);
        row_after(&mut engine, 0, Keep::Trunk(0), &text[..40]);
        assert!(engine.copy(Slot(0), Slot(1), 30));
        assert!(engine.is_consistent());
        let copied = row_after(&mut engine, 1, Keep::Trunk(30), &text[30..31]);
        let read = row_after(&mut engine, 2, Keep::Trunk(0), &text[..31]);
        // In one pool the third slot's cells lie elsewhere, so sums are added up in another order.
        let gap_max = if unified == Some(false) { 0.0 } else { 0.05 };
        let gap = apart(&copied, &read);
        assert!(gap <= gap_max, "{unified:?}, {paths} paths: {gap}");
        // The source goes on as if nothing had happened.
        let on = row_after(&mut engine, 0, Keep::Trunk(40), &text[40..41]);
        let fresh = row_after(&mut engine, 2, Keep::Trunk(0), &text[..41]);
        let gap = apart(&on, &fresh);
        assert!(gap <= gap_max, "{unified:?}, {paths} paths, the source: {gap}");
        assert!(!engine.copy(Slot(0), Slot(1), 60), "more than there is");
        assert!(!engine.copy(Slot(0), Slot(0), 3) && !engine.copy(Slot(0), Slot(9), 3));
    }
}
