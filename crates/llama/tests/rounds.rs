//! Many rounds of drafting, rejecting and accepting leave the cache as a fresh start would.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

mod common;

use common::{Dice, TEXT, apart, path_to, random_tree, row_after, rows, step, tokens};
use forerun_decode::{Branch, Engine, Keep, Rows, Slot, Token};
use forerun_llama::LlamaEngine;

/// Most tokens before the sequence is cut back.
const LEN_MAX: usize = 96;

/// Plays rounds with random trees, and gives the sequence that is cached at the end.
fn play(engine: &mut LlamaEngine, text: &[Token], dice: &mut Dice, rounds: usize) -> Vec<Token> {
    let mut trunk: Vec<Token> = text[..8].to_vec();
    rows(engine, step(Keep::Trunk(0), &trunk, &[], Rows::None));
    let mut tree: Vec<Branch> = Vec::new();
    for _ in 0..rounds {
        let keep = match dice.below(8) {
            0 => Keep::To { node: 0, len: trunk.len() },
            1 if trunk.len() > 8 => Keep::Trunk(trunk.len() - dice.below(4)),
            _ if trunk.len() > LEN_MAX => Keep::Trunk(8 + dice.below(16)),
            _ => {
                let node = dice.below(tree.len() + 1);
                Keep::To { node, len: trunk.len() + path_to(&tree, node).len() }
            }
        };
        match keep {
            Keep::To { node, .. } => trunk.extend(path_to(&tree, node)),
            Keep::Trunk(n) => trunk.truncate(n),
            Keep::All(_) => {}
        }
        let next = text[dice.below(text.len())];
        tree = random_tree(text, dice, engine.paths_max());
        rows(engine, step(keep, &[next], &tree, Rows::All));
        trunk.push(next);
        assert_eq!(engine.cached_len(Slot(0)), trunk.len() + tree.len());
    }
    assert!(engine.is_consistent());
    let keep = Keep::To { node: 0, len: trunk.len() };
    rows(engine, step(keep, &[], &[], Rows::None));
    trunk
}

/// Bytes of memory this process has in use.
fn memory() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.unwrap_or(0) * 4096
}

/// Plays a thousand rounds; gives the row after them and the row of a fresh engine.
fn thousand(paths: u32) -> (Vec<f32>, Vec<f32>) {
    let model = common::model();
    let text = tokens(&model, TEXT);
    let mut dice = Dice(2026);
    let mut engine = common::engine(1, paths);
    play(&mut engine, &text, &mut dice, 100);
    let before = memory();
    assert!(before > 0 || !cfg!(target_os = "linux"), "memory is measured");
    let mut trunk = play(&mut engine, &text, &mut dice, 900);
    let grown = memory().saturating_sub(before);
    assert!(grown < 4 << 20, "memory grew by {grown} bytes in 900 rounds");

    let next = text[11];
    let row =
        rows(&mut engine, step(Keep::All(trunk.len()), &[next], &[], Rows::Trunk)).pop().unwrap();
    trunk.push(next);
    (row, row_after(&mut common::engine(1, 1), &trunk))
}

#[test]
fn a_thousand_rounds_of_one_path_leave_no_trace() {
    let (row, fresh) = thousand(1);
    assert!(row == fresh, "the cache has drifted");
}

#[test]
fn a_thousand_rounds_of_trees_leave_no_trace_but_rounding() {
    // A path that is accepted past others leaves holes, later tokens fill them, and attention adds
    // up cell by cell: the terms are the same but their order is not.
    let (row, fresh) = thousand(3);
    let apart = apart(&row, &fresh);
    println!("{apart:.5} apart");
    assert!(apart < 0.15, "the cache has drifted: {apart}");
}
