//! What tests with real files share.
#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

use std::fs;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use forerun_decode::{Special, Token, Tokenizer};
use forerun_llama::{EngineOptions, LlamaEngine, Model, ModelOptions};

pub(crate) const BASE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const TEXT: &str = "The old lighthouse keeper climbed the stairs every evening to light the lamp.";

/// A file that `just models` brings or makes.
pub(crate) fn model_path(name: &str) -> PathBuf {
    let folder = std::env::var_os("FORERUN_MODELS").map(PathBuf::from).unwrap_or_else(|| {
        std::env::home_dir().expect("a home directory").join(".cache/forerun/models")
    });
    let path = folder.join(name);
    assert!(path.is_file(), "{} is missing: run `just models`", path.display());
    path
}

/// A folder with nothing in it.
pub(crate) fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

pub(crate) fn load(path: &Path) -> Model {
    Model::load(ModelOptions::new(path)).unwrap()
}

pub(crate) fn engine_options() -> EngineOptions {
    EngineOptions {
        context_len: NonZeroU32::new(256),
        threads: NonZeroU32::new(1),
        ..EngineOptions::default()
    }
}

pub(crate) fn engine(model: &Model) -> LlamaEngine {
    LlamaEngine::new(model, &engine_options()).unwrap()
}

pub(crate) fn tokens(model: &Model) -> Vec<Token> {
    model.vocab().tokenize(TEXT, Special::AsText).unwrap()
}
