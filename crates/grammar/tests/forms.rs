//! Forms other than JSON and GBNF, and what is refused.

mod common;

use std::fmt::Write;

use common::*;
use forerun_decode::{Constraint, Special, Token, TokenizeError, Tokenizer};
use forerun_grammar::{Form, GrammarConstraint, GrammarEnv, GrammarError};
use serde_json::json;

#[test]
fn a_regular_expression_matches_the_whole_text() {
    let cases: [(&str, &[&str], &[&str]); 6] = [
        ("[0-9]{2,3}", &["12", "123"], &["1", "1234", "a12"]),
        (r"a/b|\d\.\d", &["a/b", "3.5"], &["a", "3,5"]),
        ("(?i)yes|no", &["yes", "YES", "No"], &["nope"]),
        (r"[^\n]*\n", &["\n", "né\n"], &["a", "\n\n"]),
        ("", &[""], &["a"]),
        ("(a|b)*abb", &["abb", "aababb"], &["ab", "abba"]),
    ];
    for (expression, right, wrong) in cases {
        let form = Form::Regex(expression.into());
        for text in right {
            assert!(accepts(&form, text), "{expression}: {text:?}");
        }
        for text in wrong {
            assert!(!accepts(&form, text), "{expression}: {text:?}");
        }
    }
}

#[test]
fn a_choice_takes_any_text() {
    let texts = ["a\"b\\c", "/x/", "tab\tend", "\u{7f}", "\u{0}", "né 日本 😀", "a", "ab", "ab"];
    let form = Form::Choice(texts.map(String::from).to_vec());
    for text in texts {
        assert!(accepts(&form, text), "{text:?}");
    }
    assert!(!accepts(&form, ""));
    assert!(!accepts(&form, "abc"));
}

#[test]
fn lark_is_taken_with_its_own_rules() {
    let form = grammar(
        r#"%llguidance {}
        start: greeting (", " NAME)* "!"
        greeting: "hello" | "hi"
        NAME: /[A-Z][a-z]+/
        "#,
    );
    assert!(accepts(&form, "hello!"));
    assert!(accepts(&form, "hi, Ada, Grace!"));
    assert!(!accepts(&form, "hi Ada!"));

    let json = grammar("start: \"answer: \" %json { \"type\": \"integer\" }");
    assert!(accepts(&json, "answer: 12"));
    assert!(!accepts(&json, "answer: x"));
}

#[test]
fn what_cannot_be_held_to_is_refused_with_the_reason() {
    for (form, reason) in [
        (Form::Regex("(".into()), "unclosed group"),
        (Form::Regex("a\\".into()), "ends with a lone backslash"),
        (Form::Regex(r"(?-u:\xff)".into()), "invalid"),
        (Form::Regex("[^\\s\\S]".into()), "no token of the vocabulary may follow"),
        (Form::Choice(vec![]), "nothing to choose from"),
        (grammar("start: unknown"), "unknown name"),
        (grammar("start: \"a\" ("), "Expected token ')'"),
        (grammar("%llguidance {}\nroot: \"a\""), "no start rule"),
        (grammar("start: <think>"), "a token in a grammar is not supported"),
        (grammar("start: <[5]>"), "a token in a grammar is not supported"),
        (grammar("start: \"a\" <[*]>"), "a token in a grammar is not supported"),
        (grammar("start: x \"b\"\nx[stop=\"b\"]: /a*/"), "`stop` or `max_tokens`"),
        (grammar("start: x\nx[max_tokens=3]: /a*/"), "`stop` or `max_tokens`"),
        (grammar("start: @other"), "other"),
    ] {
        let refusal = refusal(&form);
        assert!(refusal.contains(reason), "{form:?}: {refusal}");
    }
}

#[test]
fn a_form_has_a_greatest_length() {
    let long = "a".repeat(Form::BYTES_MAX);
    let longer = format!("{long}a");
    let bytes = longer.len();
    for form in [
        Form::Regex(longer.clone()),
        Form::Grammar(longer.clone()),
        Form::Choice(vec![long.clone(), "b".into()]),
    ] {
        assert_eq!(ENV.constrain(&form).err(), Some(GrammarError::Long { bytes }));
    }
    let schema = Form::JsonSchema(json!({ "description": longer }));
    assert!(matches!(ENV.constrain(&schema).err(), Some(GrammarError::Long { .. })));
}

/// As many definitions as a form may have, each of which needs the next, and a last one.
fn chain(define: impl Fn(usize) -> String, last: impl Fn(usize) -> String) -> String {
    let mut text = String::new();
    for index in 0.. {
        let line = define(index);
        if text.len() + line.len() + 64 > Form::BYTES_MAX {
            return text + &last(index);
        }
        text.push_str(&line);
    }
    unreachable!("the text grows")
}

#[test]
fn long_chains_do_not_exhaust_the_stack() {
    let rules = chain(
        |index| format!("a{index}: a{}\n", index + 1),
        |index| format!("a{index}: \"x\"\nstart: a0\n"),
    );
    assert!(accepts(&grammar(&rules), "x"));

    let terminals = chain(
        |index| format!("A{index}: \"a\" A{}\n", index + 1),
        |index| format!("A{index}: \"x\"\nstart: A0\n"),
    );
    assert!(!accepts(&grammar(&terminals), "ax"));

    let (open, close) = ("(".repeat(27), ")".repeat(27));
    let groups = chain(
        |index| format!("a{index}: {open}a{}{close}\n", index + 1),
        |index| format!("a{index}: \"x\"\nstart: a0\n"),
    );
    assert!(accepts(&grammar(&groups), "x"));

    let mut gbnf = "root ::= a0 | root \"b\"\na1500 ::= \"y\"\n".to_owned();
    (0..1500).for_each(|rule| writeln!(gbnf, "a{rule} ::= (a{} | \"x\")", rule + 1).unwrap());
    assert!(accepts(&grammar(&gbnf), "ybb"));

    let definition = |index| json!({ "items": { "$ref": format!("#/$defs/d{}", index + 1) } });
    let mut definitions: serde_json::Map<_, _> =
        (0..4000).map(|index| (format!("d{index}"), definition(index))).collect();
    definitions.insert("d4000".into(), json!({ "type": "null" }));
    let schema = Form::JsonSchema(json!({ "$ref": "#/$defs/d0", "$defs": definitions }));
    assert!(accepts(&schema, "[[], [[]]]"));
}

#[test]
fn many_parentheses_are_refused() {
    let nested = "(".repeat(100_000) + &")".repeat(100_000);
    assert!(refusal(&Form::Regex(nested.clone())).contains("invalid regex"));
    assert!(refusal(&grammar(&format!("root ::= {nested}"))).contains("parentheses"));
    assert!(refusal(&grammar(&format!("start: {nested}"))).contains("too deeply nested"));
}

#[test]
fn a_long_terminal_is_masked_on_a_small_stack() {
    let mut lark = "start: A0\n".to_owned();
    for index in 0..3000 {
        writeln!(lark, "A{index}: \"a\" A{} | \"b\"", index + 1).unwrap();
    }
    lark.push_str("A3000: \"c\"\n");
    let form = Form::Grammar(lark);
    let asking = move || match ENV.constrain(&form) {
        Ok(mut constraint) => {
            constraint.commit(&spell(&"a".repeat(100)));
            allowed(&mut constraint, &spell("a"))
        }
        Err(error) => panic!("{error}"),
    };
    let thread = std::thread::Builder::new().stack_size(1 << 20).spawn(asking).unwrap();
    assert!(thread.join().unwrap().contains(&word("ab")));
}

/// A vocabulary of these words; the token after them, if there is one, ends a text.
struct Words(Vec<Vec<u8>>, usize);

impl Tokenizer for Words {
    fn vocab_len(&self) -> usize {
        self.1
    }

    fn tokenize(&self, _: &str, _: Special) -> Result<Vec<Token>, TokenizeError> {
        Ok(Vec::new())
    }

    fn start(&self) -> Option<Token> {
        None
    }

    fn is_end(&self, token: Token) -> bool {
        token.index() == self.0.len()
    }

    fn bytes(&self, token: Token, out: &mut Vec<u8>) {
        out.extend(self.0.get(token.index()).into_iter().flatten());
    }
}

#[test]
fn a_vocabulary_must_end_and_not_be_too_large() {
    let endless = Words(vec![b"a".to_vec()], 1);
    assert_eq!(GrammarEnv::new(&endless).err(), Some(GrammarError::Endless));
    let tokens = 1 << 24;
    let large = Words(vec![b"a".to_vec()], tokens);
    assert_eq!(GrammarEnv::new(&large).err(), Some(GrammarError::Vocabulary { tokens }));
}

#[test]
fn words_may_be_long_but_too_long_ones_are_never_allowed() {
    let words = [1, 1023, 1024, 1025, 5000].map(|len| vec![b'a'; len]).to_vec();
    let env = GrammarEnv::new(&Words(words, 6)).unwrap();
    let mut row = [0.0; 6];
    env.constrain(&Form::Regex("a*".into())).unwrap().mask(&[], &mut row).unwrap();
    let no = f32::NEG_INFINITY;
    assert_eq!(row, [0.0, 0.0, 0.0, no, no, 0.0]);
}

#[test]
fn a_form_that_the_vocabulary_cannot_write_is_refused_or_fails() {
    let env = GrammarEnv::new(&Words(vec![b"a".to_vec()], 2)).unwrap();
    let refused = env.constrain(&Form::Regex("b".into())).err().unwrap();
    assert_eq!(refused.to_string(), "no token of the vocabulary may follow");

    let mut constraint = env.constrain(&Form::Regex("ab".into())).unwrap();
    let error = constraint.mask(&[Token(0)], &mut [0.0; 2]).unwrap_err();
    assert_eq!(error.to_string(), "constraint: no token of the vocabulary may follow");
    // The text has failed, and says so again.
    assert_eq!(constraint.mask(&[Token(0)], &mut [0.0; 2]), Err(error.clone()));
    constraint.commit(&[Token(0)]);
    assert_eq!(constraint.mask(&[], &mut [0.0; 2]), Err(error));
    assert_eq!(constraint.admitted(&[Token(0)]), 0);
}

#[test]
fn environments_and_constraints_go_to_other_threads() {
    fn is_send<T: Send>() {}
    fn is_shared<T: Send + Sync + Clone>() {}
    is_send::<GrammarConstraint>();
    is_shared::<GrammarEnv>();
}
