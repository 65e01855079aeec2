//! A trimmed model says of the tokens it has what it said before.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

mod common;

use std::path::PathBuf;

use common::{in_models_folder, model_path, options, row_after, tokens};
use forerun_decode::{Token, VocabMap};
use forerun_llama::{LlamaEngine, Model, ModelOptions, TrimError, trim};

/// A file that is gone when the test is over.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("forerun-{}-{name}.gguf", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Self(path)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn load(path: &std::path::Path) -> Model {
    Model::load(ModelOptions::new(path)).unwrap()
}

fn rows_stay(input: &std::path::Path, size: usize, text: &str) {
    let file = Temporary::new(&format!("rows-{size}"));
    let whole = load(input);
    let prompt = tokens(&whole, text);
    let mut counts = vec![0; whole.vocab_len()];
    prompt.iter().for_each(|token| counts[token.index()] += 1);
    let trimmed = trim(input, &file.0, size, Some(&counts)).unwrap();
    let part = load(&file.0);
    assert_eq!((trimmed.before, trimmed.after), (whole.vocab_len(), part.vocab_len()));
    assert_eq!(part.vocab_len(), size);
    let map = VocabMap::between(whole.vocab(), part.vocab()).unwrap();
    let there: Vec<Token> = prompt.iter().map(|token| map.to_draft(*token).unwrap()).collect();
    assert_eq!(tokens(&part, text), there, "its tokenizer makes the same of the text");
    let row = |model: &Model, prompt: &[Token]| {
        row_after(&mut LlamaEngine::new(model, &options(1, 1)).unwrap(), prompt)
    };
    let (before, after) = (row(&whole, &prompt), row(&part, &there));
    let mut compared = 0;
    for token in (0..).map(Token).take(whole.vocab_len()) {
        // The map leaves out what is no text, such as control tokens.
        if let Some(number) = map.to_draft(token) {
            assert_eq!(before[token.index()], after[number.index()], "{token:?}");
            compared += 1;
        }
    }
    assert!(compared > size * 3 / 4, "{compared} of {size}");
}

#[test]
fn a_byte_pair_vocabulary_is_trimmed() {
    rows_stay(&in_models_folder("zoo/llama.gguf"), 280, "the cat in the hat");
}

#[test]
fn a_sentence_piece_vocabulary_is_trimmed() {
    let text = "The keeper climbed the stairs 12 times to light the lamp.";
    rows_stay(&model_path("gemma-3-270m.Q4_K_M.gguf"), 32768, text);
}

#[test]
fn what_was_counted_is_kept() {
    let input = in_models_folder("zoo/llama.gguf");
    let whole = load(&input);
    // The last merge, which goes first by its number.
    let rare = tokens(&whole, " and")[0];
    let kept = |counts: Option<&[u64]>| {
        let file = Temporary::new(&format!("counts-{}", counts.is_some()));
        trim(&input, &file.0, 262, counts).unwrap();
        VocabMap::between(whole.vocab(), load(&file.0).vocab()).unwrap().to_draft(rare).is_some()
    };
    let mut counts = vec![0; whole.vocab_len()];
    counts[rare.index()] = 1;
    assert!(!kept(None) && kept(Some(&counts)));
}

#[test]
fn what_cannot_be_trimmed_is_refused() {
    let input = in_models_folder("zoo/llama.gguf");
    let file = Temporary::new("refused");
    let refused = trim(&input, &file.0, 10, None).unwrap_err();
    assert!(matches!(refused, TrimError::Size { asked: 10, .. }), "{refused}");
    assert!(!file.0.exists());
    let refused = trim(&input, &file.0, 280, Some(&[1, 2])).unwrap_err();
    assert!(matches!(refused, TrimError::Counts { counts: 2, .. }), "{refused}");
    let refused = trim(&input, &input, 280, None).unwrap_err();
    assert!(matches!(refused, TrimError::Exists { .. }), "{refused}");
}
