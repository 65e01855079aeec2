//! A pass over a tree against a pass over one path of as many tokens.

use std::fmt::Write as _;
use std::num::NonZeroU32;
use std::time::Instant;

use forerun_decode::{Branch, Engine, Keep, Output, Rows, Slot, Step, Token};
use forerun_llama::{EngineOptions, LlamaEngine};

use crate::lab::{self, Runs};

const CACHED: usize = 128;
const REPEATS: usize = 15;
/// Paths, tokens of each, and tokens they share before that.
const TREES: [(usize, usize, usize); 4] = [(2, 4, 0), (3, 4, 0), (3, 8, 0), (2, 6, 4)];

pub(crate) fn report() {
    let mut text = format!(
        "# Trees: a pass over n nodes against a pass over n tokens of one path\n\n\
         Made by `just trees`. {CACHED} tokens cached, a row for each token, {REPEATS} passes of each kind taking turns. *over the\n\
         path*: time of the tree's pass over that of a path of as many tokens, with its 95 % interval. *path alone*: in an\n\
         engine with room for one path.\n\n\
         Machine: {}.\n\n\
         | weights | tree | nodes | path alone (ms) | path (ms) | tree (ms) | over the path |\n|---|---|--:|--:|--:|--:|--:|\n",
        lab::machine()
    );
    for name in [lab::SMOL, lab::WIDENED] {
        let model = lab::model(name);
        let mut output = Output::default();
        // One with room for one path, and one for several.
        let [mut single, mut engine] = [1, 3].map(|paths| {
            let paths = NonZeroU32::new(paths).expect("above zero");
            let options = EngineOptions { paths, ..lab::options() };
            let mut engine = LlamaEngine::new(&model, &options).expect("the engine starts");
            let trunk: Vec<Token> = (0..CACHED).map(token).collect();
            let (slot, keep) = (Slot(0), Keep::Trunk(0));
            let read = Step { slot, keep, trunk: &trunk, tree: &[], rows: Rows::None };
            engine.extend(&[read], &mut output).expect("the prompt is read");
            engine
        });
        for (width, len, shared) in TREES {
            let tree = tree(width, len, shared);
            let path = tree_of_one_path(tree.len());
            let mut times = [Runs::default(), Runs::default()];
            let mut alone = Runs::default();
            for _ in 0..REPEATS {
                alone.0.push((timed(&mut single, &path, &mut output), 1.0));
                for (branches, runs) in [&path, &tree].into_iter().zip(&mut times) {
                    runs.0.push((timed(&mut engine, branches, &mut output), 1.0));
                }
            }
            let [path, tree_times] = times;
            let shared = if shared > 0 { format!("{shared} tokens, then ") } else { String::new() };
            writeln!(
                text,
                "| {name} | {shared}{width} paths of {len} | {} | {:.1} | {:.1} | {:.1} | {} |",
                tree.len(),
                1000.0 * alone.rate(),
                1000.0 * path.rate(),
                1000.0 * tree_times.rate(),
                tree_times.over(&path)
            )
            .expect("a string grows");
        }
    }
    lab::write("trees.md", &text);
}

fn token(n: usize) -> Token {
    Token(u32::try_from(100 + n * 37 % 4000).expect("small"))
}

/// A few tokens that all share, then paths of their own.
fn tree(width: usize, len: usize, shared: usize) -> Vec<Branch> {
    let mut tree = tree_of_one_path(shared);
    for path in 0..width {
        let first = tree.len();
        for depth in 0..len {
            let parent = if depth == 0 { shared } else { first + depth };
            tree.push(Branch { parent, token: token(1000 * (path + 1) + depth) });
        }
    }
    tree
}

fn tree_of_one_path(len: usize) -> Vec<Branch> {
    (0..len).map(|depth| Branch { parent: depth, token: token(500 + depth) }).collect()
}

/// Seconds of a pass that scores a tree above the cached tokens.
fn timed(engine: &mut LlamaEngine, tree: &[Branch], output: &mut Output) -> f64 {
    let last = [token(CACHED - 1)];
    let keep = Keep::Trunk(CACHED - 1);
    let step = Step { slot: Slot(0), keep, trunk: &last, tree, rows: Rows::All };
    let started = Instant::now();
    engine.extend(&[step], output).expect("it is scored");
    started.elapsed().as_secs_f64()
}
