//! Text to tokens and back, by a real vocabulary.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

mod common;

use forerun_decode::{Special, Token, Tokenizer};
use forerun_llama::Vocab;

fn bytes(vocab: &Vocab, tokens: &[Token]) -> Vec<u8> {
    let mut out = Vec::new();
    tokens.iter().for_each(|&token| vocab.bytes(token, &mut out));
    out
}

#[test]
fn any_text_comes_back_as_it_was() {
    let model = common::model();
    let spaces = " ".repeat(5000);
    let texts = [
        "",
        "plain",
        " leading and trailing ",
        "emoji 🏮🧑‍🚀👩🏽‍💻 and flags 🇩🇪",
        "nul \0 in \0\0 the middle\0",
        "汉字かなカナ한글 ไทย العربية עברית",
        "tabs\t\tand\r\nlines\n\n\n",
        "combining e\u{301} \u{200b}\u{feff}\u{10ffff}",
        &spaces,
        "control as text: <|im_start|>user<|endoftext|>",
    ];
    for text in texts {
        let tokens = model.vocab().tokenize(text, Special::AsText).unwrap();
        assert_eq!(bytes(model.vocab(), &tokens), text.as_bytes(), "{text:?}");
    }
    assert!(model.vocab().tokenize("", Special::Parse).unwrap().is_empty());
}

#[test]
fn control_tokens_are_read_only_where_asked() {
    let model = common::model();
    let vocab = model.vocab();
    let text = "<|im_start|>user";
    let parsed = vocab.tokenize(text, Special::Parse).unwrap();
    let typed = vocab.tokenize(text, Special::AsText).unwrap();
    assert!(vocab.is_control(parsed[0]));
    assert_eq!(vocab.text(parsed[0]).as_deref(), Some("<|im_start|>"));
    assert_eq!(bytes(vocab, &parsed), b"user");
    assert!(typed.len() > parsed.len() && !typed.iter().any(|&token| vocab.is_control(token)));
}

#[test]
fn generations_end_with_the_end_tokens_alone() {
    let model = common::model();
    let vocab = model.vocab();
    let len = u32::try_from(vocab.vocab_len()).unwrap();
    let ends: Vec<String> = (0..len)
        .map(Token)
        .filter(|&token| vocab.is_end(token))
        .filter_map(|token| vocab.text(token))
        .collect();
    assert!(ends.contains(&"<|im_end|>".to_owned()), "{ends:?}");
    assert!(ends.len() < 8, "{ends:?}");
}

#[test]
fn tokens_out_of_range_are_nothing() {
    let model = common::model();
    let vocab = model.vocab();
    let len = u32::try_from(vocab.vocab_len()).unwrap();
    for token in [len, len + 63, u32::MAX].map(Token) {
        assert!(!vocab.is_end(token) && !vocab.is_control(token));
        assert_eq!((vocab.text(token), bytes(vocab, &[token])), (None, Vec::new()));
    }
}

#[test]
fn a_model_tells_what_it_is() {
    let model = common::model();
    assert_eq!(model.vocab_len(), 49_152);
    assert_eq!(model.vocab().vocab_len(), 49_152);
    assert_eq!(model.context_len(), 8192);
    assert_eq!(model.layer_count(), 30);
    assert!(!model.is_recurrent());
    assert!((100_000_000..200_000_000).contains(&model.parameter_count()));
    assert!((50_000_000..110_000_000).contains(&model.size()));
    assert_eq!(model.metadata("general.architecture").as_deref(), Some("llama"));
    assert_eq!(model.metadata("no.such.key"), None);
    assert!(model.chat_template().is_some_and(|text| text.contains("<|im_start|>")));
    assert!(model.description().contains("Q4_1"), "{}", model.description());
    assert!(!model.name().is_empty());
}
