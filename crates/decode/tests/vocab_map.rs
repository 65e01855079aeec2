//! Which tokens of two vocabularies correspond, and what becomes of a drafter's row.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

#[path = "vocab_map/words.rs"]
mod words;

use forerun_decode::{Special, Token, TokenizeError, Tokenizer, VocabMap, VocabMismatch};
use proptest::prelude::*;
use words::Words;

fn map(target: &[&'static str], draft: &[&'static str]) -> Result<VocabMap, VocabMismatch> {
    VocabMap::between(&Words(target.to_vec()), &Words(draft.to_vec()))
}

/// The target's token for each of the drafter's.
fn targets(map: &VocabMap, draft_len: u32) -> Vec<Option<u32>> {
    (0..draft_len).map(|id| map.to_target(Token(id)).map(|token| token.0)).collect()
}

#[test]
fn equal_vocabularies_are_identical_and_may_be_padded() {
    let words = ["<s>", "a", "b", "</s>"];
    let padded = ["<s>", "a", "b", "</s>", "<pad>", "<pad>"];
    for (target, draft) in [(&words[..], &words[..]), (&padded, &words), (&words, &padded)] {
        let map = map(target, draft).unwrap();
        assert!(map.is_identity());
        assert_eq!(map.coverage(), 4.0 / target.len() as f64);
        assert_eq!(map.to_target(Token(3)), Some(Token(3)));
        assert_eq!((map.to_target(Token(4)), map.to_draft(Token(4))), (None, None));
        let mut row = vec![7.0];
        let draft_row: Vec<f32> = (0u8..).map(f32::from).take(draft.len()).collect();
        map.translate_row(&draft_row, &mut row);
        assert_eq!(row.len(), target.len());
        assert_eq!(row[..4], draft_row[..4]);
        assert!(row[4..].iter().all(|logit| *logit == f32::NEG_INFINITY));
    }
}

#[test]
fn tokens_correspond_by_their_bytes() {
    let map = map(&["a", "b", "c", "d"], &["c", "x", "a"]).unwrap();
    assert!(!map.is_identity());
    assert_eq!(targets(&map, 4), [Some(2), None, Some(0), None]);
    assert_eq!(map.to_draft(Token(2)), Some(Token(0)));
    assert_eq!((map.to_draft(Token(1)), map.to_draft(Token(9))), (None, None));
    assert_eq!(map.coverage(), 0.5);
    let mut row = vec![7.0; 9];
    map.translate_row(&[0.5, 1.5, 2.5], &mut row);
    assert_eq!(row, [2.5, f32::NEG_INFINITY, 0.5, f32::NEG_INFINITY]);
}

#[test]
fn control_tokens_correspond_by_their_role_and_others_by_their_text() {
    // A start, an end of text, an end of turn and something else, without bytes all of them.
    let target = ["<s>", "a", "b", "</s>", "</s turn>", "<else>"];
    let draft = ["b", "<other>", "<else>", "a", "</s>", "</s tool>", "</s turn>", "<s>"];
    let map = map(&target, &draft).unwrap();
    let wanted = [Some(2), None, Some(5), Some(1), None, Some(3), Some(4), Some(0)];
    assert_eq!(targets(&map, 8), wanted, "ends from the highest id down");
}

#[test]
fn a_start_that_is_an_end_too_is_an_end() {
    struct Both(Words);
    impl Tokenizer for Both {
        fn vocab_len(&self) -> usize {
            self.0.vocab_len()
        }
        fn tokenize(&self, text: &str, special: Special) -> Result<Vec<Token>, TokenizeError> {
            self.0.tokenize(text, special)
        }
        fn start(&self) -> Option<Token> {
            Some(Token(0))
        }
        fn is_end(&self, token: Token) -> bool {
            token == Token(0)
        }
        fn bytes(&self, token: Token, out: &mut Vec<u8>) {
            self.0.bytes(token, out);
        }
    }
    let target = Both(Words(vec!["<end of text>", "a", "b"]));
    let draft = Words(vec!["<s>", "b", "a", "</s>"]);
    let map = VocabMap::between(&target, &draft).unwrap();
    assert_eq!(targets(&map, 4), [None, Some(2), Some(1), Some(0)]);
}

#[test]
fn control_tokens_of_editions_of_one_vocabulary_correspond_by_id() {
    let letters = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
    let controls = ["</s>", "<else>", "</s turn>"];
    let target = [&letters[..], &controls, &["think"]].concat();
    let draft = [&letters[..], &["<im end>", "<else>", "</s turn>"], &["<unused>"]].concat();
    let map = map(&target, &draft).unwrap();
    assert!(!map.is_identity(), "a token was put to use");
    let wanted: Vec<_> = (0..13).map(Some).chain([None]).collect();
    assert_eq!(targets(&map, 14), wanted);
}

#[test]
fn of_tokens_with_the_same_bytes_the_tokeniser_chooses() {
    // These tokenisers prefer the later of two tokens.
    let map = map(&["a", "b", "a", "z"], &["b", "a", "c", "a"]).unwrap();
    assert_eq!(targets(&map, 4), [Some(1), None, None, Some(2)]);
    assert_eq!(map.to_draft(Token(0)), None, "one to one");
}

/// Puts a space before the beginning of a text, and has no text for some tokens.
struct Spaced(Words);

impl Tokenizer for Spaced {
    fn vocab_len(&self) -> usize {
        self.0.vocab_len()
    }

    fn tokenize(&self, text: &str, special: Special) -> Result<Vec<Token>, TokenizeError> {
        self.0.tokenize(&format!(" {text}"), special)
    }

    fn start(&self) -> Option<Token> {
        self.0.start()
    }

    fn is_end(&self, token: Token) -> bool {
        self.0.is_end(token)
    }

    fn bytes(&self, token: Token, out: &mut Vec<u8>) {
        self.0.bytes(token, out);
    }
}

#[test]
fn a_tokeniser_that_puts_a_space_first_is_understood() {
    let spaced = Spaced(Words(vec!["a", "b", " a", "a", " ", "\n"]));
    let target = Words(vec!["ab", "b", "a", " a", "\n"]);
    let map = VocabMap::between(&target, &spaced).unwrap();
    assert_eq!(map.to_draft(Token(2)), Some(Token(3)), "the later of two, as it does in a text");
    assert_eq!(map.spell(Token(0), &target, &spaced), [3, 1].map(Token), "no space before");
}

#[test]
fn a_token_without_a_counterpart_is_spelled() {
    let target = Words(vec!["a", "b", "abba", "<else>", "</s>"]);
    let draft = Words(vec!["b", "ab", "a", "</s>"]);
    let map = VocabMap::between(&target, &draft).unwrap();
    assert_eq!(map.spell(Token(0), &target, &draft), [Token(2)]);
    assert_eq!(map.spell(Token(2), &target, &draft), [1, 0, 2].map(Token));
    assert_eq!(map.spell(Token(4), &target, &draft), [Token(3)], "no text, but a counterpart");
    assert_eq!(map.spell(Token(3), &target, &draft), [], "no text");
    assert_eq!(map.spell(Token(9), &target, &draft), [], "no such token");
}

#[test]
fn half_a_character_is_not_spelled() {
    struct Half;
    impl Tokenizer for Half {
        fn vocab_len(&self) -> usize {
            3
        }
        fn tokenize(&self, _: &str, _: Special) -> Result<Vec<Token>, TokenizeError> {
            Err(TokenizeError::Failed { backend: "half" })
        }
        fn start(&self) -> Option<Token> {
            None
        }
        fn is_end(&self, _: Token) -> bool {
            false
        }
        fn bytes(&self, token: Token, out: &mut Vec<u8>) {
            out.extend_from_slice([&b"b"[..], b"a", b"\xc3"][token.index()]);
        }
    }
    let draft = Words(vec!["a", "b", "\u{fffd}"]);
    let map = VocabMap::between(&Half, &draft).unwrap();
    assert_eq!(map.spell(Token(2), &Half, &draft), []);
    // A tokeniser that fails spells nothing either.
    let back = VocabMap::between(&Words(vec!["a", "b", "ab"]), &Half).unwrap();
    assert_eq!(back.spell(Token(2), &Words(vec!["a", "b", "ab"]), &Half), []);
}

#[test]
fn vocabularies_that_share_too_little_are_refused() {
    assert!(map(&["a", "b"], &["b", "x"]).is_ok(), "half of them");
    let error = map(&["a", "b"], &["b", "x", "y"]).unwrap_err();
    assert_eq!(error, VocabMismatch::TooFewShared { shared: 1, draft_len: 3 });
    assert!(map(&["a", "b"], &["b", "x", "<pad>", "<pad>"]).is_ok(), "padding does not count");
    let error = map(&["a"], &["a", "b", "c"]).unwrap_err();
    assert_eq!(error, VocabMismatch::TooFewShared { shared: 1, draft_len: 3 });
    let error = map(&["a"], &["<else>", "<else>"]).unwrap_err();
    assert_eq!(error, VocabMismatch::TooFewShared { shared: 0, draft_len: 0 });
    let error = map(&[], &["a"]).unwrap_err();
    assert_eq!(error, VocabMismatch::Empty { target_len: 0, draft_len: 1 });
}

fn words() -> impl Strategy<Value = Vec<&'static str>> {
    let word =
        prop::sample::select(vec!["a", "b", "c", "ab", "bc", "<s>", "</s>", "</s turn>", "<else>"]);
    prop::collection::vec(word, 1..16)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_map_is_one_to_one_and_true_to_the_bytes(target in words(), draft in words()) {
        let (target, draft) = (Words(target), Words(draft));
        let Ok(map) = VocabMap::between(&target, &draft) else { return Ok(()) };
        let text = |words: &Words, token: Token| {
            let mut bytes = Vec::new();
            words.bytes(token, &mut bytes);
            bytes
        };
        let ids = |words: &Words| (0..u32::try_from(words.0.len()).unwrap()).map(Token);
        let mut row = Vec::new();
        let draft_row: Vec<f32> = (0u8..).map(f32::from).take(draft.0.len()).collect();
        map.translate_row(&draft_row, &mut row);
        prop_assert_eq!(row.len(), target.0.len());
        for token in ids(&target) {
            let counterpart = map.to_draft(token);
            prop_assert_eq!(counterpart.and_then(|draft| map.to_target(draft)), counterpart.map(|_| token));
            let logit = counterpart.map_or(f32::NEG_INFINITY, |draft| draft_row[draft.index()]);
            prop_assert_eq!(row[token.index()], logit);
            if let Some(counterpart) = counterpart {
                prop_assert_eq!(text(&target, token), text(&draft, counterpart));
            }
        }
        let shared = ids(&draft).filter(|token| map.to_target(*token).is_some()).count();
        prop_assert_eq!(map.coverage(), shared as f64 / target.0.len() as f64);
        if !map.is_identity() {
            for token in ids(&draft).filter(|token| !text(&draft, *token).is_empty()) {
                let said = ids(&target).any(|other| text(&target, other) == text(&draft, token));
                let alike = ids(&draft).filter(|other| text(&draft, *other) == text(&draft, token));
                let mapped = alike.filter(|other| map.to_target(*other).is_some()).count();
                prop_assert_eq!(mapped, usize::from(said));
            }
        }
    }
}
