//! Many texts in a pass: cells in one pool against cells of their own.

use std::fmt::Write as _;
use std::num::NonZeroU32;
use std::time::Instant;

use forerun_decode::{Branch, Engine, Keep, Output, Rows, Slot, Step, Token};
use forerun_llama::{EngineOptions, LlamaEngine};

use crate::lab::{self, Runs};

const CACHED: usize = 200;
const REPEATS: usize = 9;
const TEXTS: [usize; 5] = [2, 4, 8, 16, 32];

/// What the texts draft: a name, and the tokens of each by its place.
type Drafts = (&'static str, fn(usize) -> usize);

const DRAFTS: [Drafts; 3] =
    [("nothing", |_| 0), ("3 tokens each", |_| 3), ("0 to 3 tokens, by turns", |text| text % 4)];

pub(crate) fn report() {
    let mut text = format!(
        "# Batches: cells in one pool against cells of their own\n\n\
         Made by `just batches`. So many texts in a pass, {CACHED} tokens of each cached, a row for each token; {REPEATS} passes\n\
         of each kind taking turns. With cells of their own, llama.cpp runs texts of different lengths in several passes;\n\
         with one pool, every text looks over the cells of all. *over*: time with one pool over that with cells of their\n\
         own, with its 95 % interval; above 1 the pool is slower.\n\n\
         Machine: {}.\n\n\
         | weights | texts | drafted | tokens | own cells (ms) | one pool (ms) | over |\n|---|--:|---|--:|--:|--:|--:|\n",
        lab::machine()
    );
    for name in [lab::SMOL, lab::WIDENED] {
        let model = lab::model(name);
        let mut output = Output::default();
        for texts in TEXTS {
            let mut engines = [false, true].map(|unified| {
                let options = EngineOptions {
                    slots: NonZeroU32::new(u32::try_from(texts).expect("few")).expect("some"),
                    context_len: NonZeroU32::new(256),
                    unified: Some(unified),
                    ..lab::options()
                };
                let mut engine = LlamaEngine::new(&model, &options).expect("the engine starts");
                (0..texts).for_each(|slot| read(&mut engine, slot, &mut output));
                engine
            });
            for (drafted, len) in DRAFTS {
                let mut times = [Runs::default(), Runs::default()];
                for _ in 0..REPEATS {
                    for (engine, runs) in engines.iter_mut().zip(&mut times) {
                        runs.0.push((timed(engine, texts, len, &mut output), 1.0));
                    }
                }
                let [own, pool] = times;
                let tokens: usize = (0..texts).map(|text| 1 + len(text)).sum();
                writeln!(
                    text,
                    "| {name} | {texts} | {drafted} | {tokens} | {:.1} | {:.1} | {} |",
                    1000.0 * own.rate(),
                    1000.0 * pool.rate(),
                    pool.over(&own)
                )
                .expect("a string grows");
            }
            lab::write("batches.md", &text);
        }
    }
}

fn token(n: usize) -> Token {
    Token(u32::try_from(100 + n * 37 % 4000).expect("small"))
}

fn slot(text: usize) -> Slot {
    Slot(u32::try_from(text).expect("few"))
}

fn read(engine: &mut LlamaEngine, text: usize, output: &mut Output) {
    let trunk: Vec<Token> = (0..CACHED).map(|at| token(at + 11 * text)).collect();
    let (slot, keep, rows) = (slot(text), Keep::Trunk(0), Rows::None);
    engine
        .extend(&[Step { slot, keep, trunk: &trunk, tree: &[], rows }], output)
        .expect("it reads");
}

/// Seconds of a pass over the last token of each text and its drafts.
fn timed(
    engine: &mut LlamaEngine,
    texts: usize,
    len: fn(usize) -> usize,
    output: &mut Output,
) -> f64 {
    let branch = |at| Branch { parent: at, token: token(500 + at) };
    let trees: Vec<Vec<Branch>> =
        (0..texts).map(|text| (0..len(text)).map(branch).collect()).collect();
    let last: Vec<[Token; 1]> = (0..texts).map(|text| [token(CACHED - 1 + 11 * text)]).collect();
    let step = |text: usize| Step {
        slot: slot(text),
        keep: Keep::Trunk(CACHED - 1),
        trunk: &last[text],
        tree: &trees[text],
        rows: Rows::All,
    };
    let steps: Vec<Step<'_>> = (0..texts).map(step).collect();
    let started = Instant::now();
    engine.extend(&steps, output).expect("it is scored");
    started.elapsed().as_secs_f64()
}
