//! What the tests with a real model share.
#![allow(dead_code, reason = "not every test file uses all of it")]
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

use std::num::NonZeroU32;
use std::path::PathBuf;

use forerun_decode::{Branch, Engine, Keep, Output, Rows, Slot, Special, Step, Token, Tokenizer};
use forerun_llama::{EngineOptions, LlamaEngine, Model, ModelOptions};

/// The file the tests run on.
pub(crate) const MODEL: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// The files that `just models` brings.
const MODELS: &str = include_str!("../../../../models/tests.txt");

/// A model file; a test never passes because one is missing, nor because an old cache holds one
/// that `just models` does not bring.
pub(crate) fn model_path(name: &str) -> PathBuf {
    assert!(MODELS.lines().any(|line| line == name), "{name} is not listed in models/tests.txt");
    in_models_folder(name)
}

/// A file that `just models` brings or makes.
pub(crate) fn in_models_folder(name: &str) -> PathBuf {
    let dir = std::env::var_os("FORERUN_MODELS").map(PathBuf::from).or_else(|| {
        std::env::home_dir().map(|home| home.join(".cache").join("forerun").join("models"))
    });
    let path = dir.expect("there is a home directory").join(name);
    assert!(path.is_file(), "{} is missing: run `just models`", path.display());
    path
}

pub(crate) fn model() -> Model {
    Model::load(ModelOptions::new(model_path(MODEL))).unwrap()
}

pub(crate) fn count(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).unwrap()
}

/// Options for small tests: 512 tokens for each slot.
pub(crate) fn options(slots: u32, paths: u32) -> EngineOptions {
    EngineOptions {
        context_len: Some(count(512)),
        slots: count(slots),
        paths: count(paths),
        // Tests run side by side, and threads that wait for each other spin.
        threads: Some(count(1)),
        ..EngineOptions::default()
    }
}

pub(crate) fn engine(slots: u32, paths: u32) -> LlamaEngine {
    LlamaEngine::new(&model(), &options(slots, paths)).unwrap()
}

/// The tokens of some English.
pub(crate) fn tokens(model: &Model, text: &str) -> Vec<Token> {
    model.vocab().tokenize(text, Special::AsText).unwrap()
}

pub(crate) const TEXT: &str = "The old lighthouse keeper climbed the stairs every evening to light the \
    lamp, and every morning he wrote down in his book which ships had passed, how the wind had \
    blown and whether the gulls had been quiet or loud. Nobody ever read the book.";

/// One step for slot 0.
pub(crate) fn step<'a>(keep: Keep, trunk: &'a [Token], tree: &'a [Branch], rows: Rows) -> Step<'a> {
    Step { slot: Slot(0), keep, trunk, tree, rows }
}

/// Runs one step and gives its rows.
pub(crate) fn rows(engine: &mut LlamaEngine, step: Step<'_>) -> Vec<Vec<f32>> {
    let mut output = Output::default();
    let wanted = step.row_count();
    engine.extend(&[step], &mut output).unwrap();
    assert_eq!(output.len(), wanted);
    (0..output.len()).map(|index| output.row(index).to_vec()).collect()
}

/// The row after a sequence, token by token from an empty cache.
pub(crate) fn row_after(engine: &mut LlamaEngine, tokens: &[Token]) -> Vec<f32> {
    let mut last = Vec::new();
    for (index, token) in tokens.iter().enumerate() {
        let keep = Keep::Trunk(index);
        last = rows(engine, step(keep, std::slice::from_ref(token), &[], Rows::Trunk));
    }
    last.pop().unwrap()
}

/// A small generator, so that every run is the same.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// A number below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 20) % n as u64).unwrap()
    }
}

/// The path to a node of a tree numbered from 1.
pub(crate) fn path_to(tree: &[Branch], mut node: usize) -> Vec<Token> {
    let mut path = Vec::new();
    while node > 0 {
        path.push(tree[node - 1].token);
        node = tree[node - 1].parent;
    }
    path.reverse();
    path
}

/// Up to three nodes with at most `leaves` leaves.
pub(crate) fn random_tree(text: &[Token], dice: &mut Dice, leaves: usize) -> Vec<Branch> {
    let mut tree: Vec<Branch> = Vec::new();
    for _ in 0..dice.below(4) {
        let parent = if leaves == 1 { tree.len() } else { dice.below(tree.len() + 1) };
        tree.push(Branch { parent, token: text[dice.below(text.len())] });
    }
    tree
}

/// How far apart two rows are as laws of the next token: total variation, from 0 to 1.
pub(crate) fn apart(one: &[f32], other: &[f32]) -> f64 {
    let law = |row: &[f32]| -> Vec<f64> {
        let most = row.iter().copied().fold(f32::MIN, f32::max);
        let weights: Vec<f64> = row.iter().map(|logit| f64::from(logit - most).exp()).collect();
        let sum: f64 = weights.iter().sum();
        weights.into_iter().map(|weight| weight / sum).collect()
    };
    law(one).iter().zip(law(other)).map(|(one, other)| (one - other).abs()).sum::<f64>() / 2.0
}

/// A file of this process's own that goes away with it.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("forerun-llama-{}-{name}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
