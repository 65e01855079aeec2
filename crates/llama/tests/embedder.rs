//! Embeddings and scores do not depend on what else is in a pass, and mean something.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

mod common;

use std::path::PathBuf;

use common::{MODEL, count, in_models_folder, model_path};
use forerun_decode::{Embedder, EngineError, Token};
use forerun_llama::{
    EmbedderOptions, LlamaEmbedder, LoadError, Model, ModelOptions, Pooling, SetupError,
};

fn open(path: PathBuf, pooling: Option<Pooling>) -> Result<LlamaEmbedder, SetupError> {
    let model = Model::load(ModelOptions { embeds: true, ..ModelOptions::new(path) }).unwrap();
    let threads = Some(count(1));
    LlamaEmbedder::new(model, &EmbedderOptions { threads, pooling, ..EmbedderOptions::default() })
}

fn zoo(name: &str) -> LlamaEmbedder {
    open(in_models_folder(&format!("zoo/{name}.gguf")), None).unwrap()
}

/// The rows of all texts, pass by pass.
fn rows(embedder: &mut LlamaEmbedder, texts: &[Vec<Token>]) -> Vec<Vec<f32>> {
    let mut rows = Vec::new();
    while rows.len() < texts.len() {
        let passed = embedder.embed(&texts[rows.len()..]).unwrap();
        assert!(!passed.is_empty(), "a pass has one text at least");
        rows.extend(passed);
    }
    rows
}

fn tokens(embedder: &LlamaEmbedder, texts: &[&str]) -> Vec<Vec<Token>> {
    texts.iter().map(|text| embedder.tokenize(text).unwrap()).collect()
}

/// The cosine of the angle between two rows.
fn cosine(one: &[f32], other: &[f32]) -> f32 {
    let dot =
        |one: &[f32], other: &[f32]| -> f32 { one.iter().zip(other).map(|(a, b)| a * b).sum() };
    dot(one, other) / (dot(one, one) * dot(other, other)).sqrt()
}

#[test]
fn a_text_s_row_is_the_same_alone_and_beside_others() {
    let mut embedder = zoo("bert");
    assert_eq!((embedder.ranks(), embedder.row_len(), embedder.text_len()), (false, 64, 512));
    let long = "and so on ".repeat(40);
    let texts = ["one", "two words", &long, "the sea, the sea", &long[5..], "end"];
    let texts = tokens(&embedder, &[texts.as_slice(); 4].concat());
    let together = rows(&mut embedder, &texts);
    let alone: Vec<_> = texts
        .iter()
        .map(|text| embedder.embed(std::slice::from_ref(text)).unwrap().remove(0))
        .collect();
    for (index, (one, other)) in together.iter().zip(&alone).enumerate() {
        // Rounding alone: attention over a longer pass adds up in another order.
        let near = cosine(one, other);
        assert!(near > 0.9999, "text {index}: {near}");
    }
    assert!(cosine(&alone[0], &alone[1]) < 0.999, "rows depend on the text");
}

#[test]
fn texts_that_mean_the_same_are_near_each_other() {
    let mut embedder = open(model_path(MODEL), Some(Pooling::Mean)).unwrap();
    let texts = [
        "The cat sat on the mat and looked out of the window.",
        "A cat was sitting on a rug, looking through the window.",
        "Quarterly revenue rose by nine percent, the company said.",
    ];
    let texts = tokens(&embedder, &texts);
    let rows = rows(&mut embedder, &texts);
    let (near, far) = (cosine(&rows[0], &rows[1]), cosine(&rows[0], &rows[2]));
    println!("{near} for the same, {far} for another");
    assert!(near > far + 0.02, "{near} against {far}");
}

#[test]
fn a_reranker_reads_query_and_document_as_llama_server_puts_them() {
    let mut reranker = zoo("bert-reranker");
    assert!(reranker.ranks() && reranker.row_len() == 1);
    let vocab = reranker.model().vocab().clone();
    let pair = reranker.tokenize_pair("at<|im_end|>", "on").unwrap();
    let written: Vec<String> = pair.iter().map(|token| vocab.text(*token).unwrap()).collect();
    let (end, separator) = ("<|endoftext|>", "<|im_end|>");
    assert_eq!((&*written[0], &*written[1]), (end, "at"));
    // The query's own control token stays text.
    let tail: Vec<&str> = written[written.len() - 4..].iter().map(String::as_str).collect();
    assert_eq!(tail, [end, separator, "on", end]);
    assert_eq!(written.iter().filter(|it| *it == separator).count(), 1);
    let pairs = [("at", "on"), ("at", "the sea"), ("the", "on")]
        .map(|(query, document)| reranker.tokenize_pair(query, document).unwrap());
    let scores = rows(&mut reranker, &pairs);
    assert!(scores[0] != scores[1] && scores[0] != scores[2], "{scores:?}");
}

#[test]
fn what_a_model_cannot_do_is_refused() {
    let error = open(model_path(MODEL), None).unwrap_err();
    assert!(matches!(error, SetupError::NoPooling), "{error}");
    let error = open(model_path(MODEL), Some(Pooling::Rank)).unwrap_err();
    assert!(matches!(error, SetupError::NoScores), "{error}");
    let error = Model::load(ModelOptions::new(in_models_folder("zoo/bert.gguf"))).unwrap_err();
    assert!(matches!(error, LoadError::Unsupported { .. }), "{error}");

    let mut embedder = zoo("bert");
    for wrong in [vec![], vec![Token(0); 513]] {
        let error = embedder.embed(&[wrong]).unwrap_err();
        assert!(matches!(error, EngineError::Full { .. }), "{error}");
    }
    let error = embedder.embed(&[vec![Token(9999)]]).unwrap_err();
    assert!(matches!(error, EngineError::Token { .. }), "{error}");
    let text = embedder.tokenize("still there").unwrap();
    assert_eq!(embedder.embed(&[text]).unwrap().len(), 1);
}
