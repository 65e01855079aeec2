//! What the tests share: a vocabulary, random choices, and constraints asked in words.

#![allow(dead_code, reason = "not every test file uses all of it")]
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

use std::sync::LazyLock;

use forerun_decode::{Constraint, Special, Token, TokenizeError, Tokenizer};
use forerun_grammar::{Form, GrammarConstraint, GrammarEnv};

/// Ends of a text: not next to each other, and neither first nor last.
pub(crate) const ENDS: [Token; 2] = [Token(256), Token(258)];
/// A control token: no bytes, no end.
pub(crate) const CONTROL: Token = Token(257);
/// Words of more than a byte. The second `ab` is on purpose.
const WORDS: [&str; 44] = [
    "{\"", "\":", "\": ", "\",", ", \"", "\", \"", "\"}", "}}", "]]", "[[", "],", "}]", "{}", "[]",
    "true", "false", "null", "10", "-1", ".5", "12", "name", "age", "ab", "ab", "abc", "bc", " a",
    "  ", "\n  ", "\n\n", "é", "é\"", "日本", "\\u00", "\\n", "\\\"", "yes", "no", "b)", "b]",
    "<a", "aaaa", "ok",
];

/// A word of bytes that are in no text.
const NO_TEXT: [u8; 2] = [0xfe, 0xff];

/// A token for each byte, two ends, a control token, and words.
pub(crate) struct Vocabulary;

impl Tokenizer for Vocabulary {
    fn vocab_len(&self) -> usize {
        259 + WORDS.len() + 1
    }

    fn tokenize(&self, text: &str, _: Special) -> Result<Vec<Token>, TokenizeError> {
        Ok(text.bytes().map(|byte| Token(byte.into())).collect())
    }

    fn start(&self) -> Option<Token> {
        None
    }

    fn is_end(&self, token: Token) -> bool {
        ENDS.contains(&token)
    }

    fn bytes(&self, token: Token, out: &mut Vec<u8>) {
        match token.index() {
            index @ 0..256 => out.push(u8::try_from(index).unwrap()),
            256..259 => {}
            index if index < 259 + WORDS.len() => out.extend(WORDS[index - 259].bytes()),
            index if index == 259 + WORDS.len() => out.extend(NO_TEXT),
            _ => {}
        }
    }
}

/// The environment, made once.
pub(crate) static ENV: LazyLock<GrammarEnv> =
    LazyLock::new(|| GrammarEnv::new(&Vocabulary).unwrap());

/// All tokens.
pub(crate) fn vocabulary() -> impl Iterator<Item = Token> {
    (0..u32::try_from(Vocabulary.vocab_len()).unwrap()).map(Token)
}

/// The token's bytes.
pub(crate) fn bytes(token: Token) -> Vec<u8> {
    let mut out = Vec::new();
    Vocabulary.bytes(token, &mut out);
    out
}

/// The text, a token for each byte.
pub(crate) fn spell(text: &str) -> Vec<Token> {
    Vocabulary.tokenize(text, Special::AsText).unwrap()
}

/// The token of a word.
pub(crate) fn word(text: &str) -> Token {
    vocabulary().find(|&token| bytes(token) == text.as_bytes()).unwrap()
}

/// The text of tokens.
pub(crate) fn text(tokens: &[Token]) -> String {
    String::from_utf8(tokens.iter().flat_map(|&token| bytes(token)).collect()).unwrap()
}

/// A constraint on a text that has not begun.
pub(crate) fn constrain(form: &Form) -> GrammarConstraint {
    ENV.constrain(form).unwrap_or_else(|error| panic!("{form:?}: {error}"))
}

/// Why the form is refused.
pub(crate) fn refusal(form: &Form) -> String {
    match ENV.constrain(form) {
        Ok(_) => panic!("{form:?} is taken"),
        Err(error) => error.to_string(),
    }
}

/// The form of a grammar.
pub(crate) fn grammar(text: &str) -> Form {
    Form::Grammar(text.to_owned())
}

/// What may follow the path.
pub(crate) fn allowed(constraint: &mut dyn Constraint, path: &[Token]) -> Vec<Token> {
    let mut row = vec![1.5; Vocabulary.vocab_len()];
    constraint.mask(path, &mut row).unwrap();
    for &logit in &row {
        assert!(logit == 1.5 || logit == f32::NEG_INFINITY);
    }
    vocabulary().filter(|token| row[token.index()] == 1.5).collect()
}

/// Whether a text is of the form: whether an end may follow it.
pub(crate) fn accepts(form: &Form, text: &str) -> bool {
    let mut tokens = spell(text);
    tokens.push(ENDS[0]);
    constrain(form).admitted(&tokens) == tokens.len()
}

/// Random choices from a seed (Steele, Lea and Flood's SplitMix).
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % end as u64).unwrap()
    }

    /// One of these.
    pub(crate) fn one_of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}
