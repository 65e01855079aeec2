//! Forms other than JSON and GBNF, and what is refused.

mod support;

use std::fmt::Write;

use forerun_decode::{Constraint, Special, Token, TokenizeError, Tokenizer};
use forerun_grammar::{Form, GrammarConstraint, GrammarEnv, GrammarError};
use serde_json::json;
use support::*;

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
        (Form::Regex("[^\\s\\S]".into()), "empty"),
        (Form::Choice(vec![]), "nothing to choose from"),
        (grammar("start: unknown"), "unknown name"),
        (grammar("start: \"a\" ("), "Expected value"),
        (grammar("%llguidance {}\nroot: \"a\""), "no start rule"),
        (grammar("start: <think>"), "unknown special token"),
        (grammar("start: <[5]>"), "a token in a grammar is not supported"),
        (grammar("start: \"a\" <[*]>"), "a token in a grammar is not supported"),
        (grammar("start: x \"b\"\nx[stop=\"b\"]: /a*/"), "`stop` or `max_tokens`"),
        (grammar("start: x\nx[max_tokens=3]: /a*/"), "`stop` or `max_tokens`"),
        (grammar("start: x\nx[temperature=0.5]: /a*/"), "`temperature` in a grammar"),
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

#[test]
fn chains_as_long_as_a_form_may_be_do_not_exhaust_the_stack() {
    // Taken or refused, but not the end of the process.
    let chain = |define: &dyn Fn(usize) -> String, first: &str| {
        let mut text = first.to_owned();
        for index in 0.. {
            let line = define(index);
            if text.len() + line.len() > Form::BYTES_MAX {
                return text;
            }
            text.push_str(&line);
        }
        unreachable!("the text grows")
    };
    let rules = chain(&|i| format!("a{i}: a{}\n", i + 1), "start: a0\n");
    let tail = rules.lines().count() - 1;
    let rules = rules.replacen(&format!("a{tail}"), "\"x\"", 1);
    let _ = ENV.constrain(&Form::Grammar(rules));

    let terminals = chain(&|i| format!("A{i}: \"a\" A{}\n", i + 1), "start: A0\n");
    let _ = ENV.constrain(&Form::Grammar(terminals));

    let gbnf =
        chain(&|i| format!("a{i} ::= (a{} | \"x\") \n", i + 1), "root ::= a0 | root \"b\"\n");
    let _ = ENV.constrain(&Form::Grammar(gbnf));

    let nested = "(".repeat(100_000) + &")".repeat(100_000);
    let _ = ENV.constrain(&Form::Regex(nested.clone()));
    let _ = ENV.constrain(&Form::Grammar(format!("root ::= {nested}")));
    let _ = ENV.constrain(&Form::Grammar(format!("start: {nested}")));

    let definitions: serde_json::Map<_, _> = (0..6000)
        .map(|i| (format!("d{i}"), json!({ "items": { "$ref": format!("#/$defs/d{}", i + 1) } })))
        .collect();
    let mut schema = json!({ "$ref": "#/$defs/d0", "$defs": definitions });
    schema["$defs"]["d6000"] = json!({ "type": "null" });
    let _ = ENV.constrain(&Form::JsonSchema(schema));
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

/// A vocabulary without an end.
struct Endless;

impl Tokenizer for Endless {
    fn vocab_len(&self) -> usize {
        256
    }

    fn tokenize(&self, _: &str, _: Special) -> Result<Vec<Token>, TokenizeError> {
        Ok(Vec::new())
    }

    fn start(&self) -> Option<Token> {
        None
    }

    fn is_end(&self, _: Token) -> bool {
        false
    }

    fn bytes(&self, token: Token, out: &mut Vec<u8>) {
        out.extend(u8::try_from(token.0));
    }
}

#[test]
fn a_vocabulary_without_an_end_is_refused() {
    assert_eq!(GrammarEnv::new(&Endless).err(), Some(GrammarError::Endless));
}

/// A vocabulary of one word.
struct OneWord;

impl Tokenizer for OneWord {
    fn vocab_len(&self) -> usize {
        2
    }

    fn tokenize(&self, _: &str, _: Special) -> Result<Vec<Token>, TokenizeError> {
        Ok(Vec::new())
    }

    fn start(&self) -> Option<Token> {
        None
    }

    fn is_end(&self, token: Token) -> bool {
        token == Token(1)
    }

    fn bytes(&self, token: Token, out: &mut Vec<u8>) {
        out.extend((token == Token(0)).then_some(b'a'));
    }
}

#[test]
fn a_form_that_the_vocabulary_cannot_write_is_refused_or_fails() {
    let env = GrammarEnv::new(&OneWord).unwrap();
    let refused = env.constrain(&Form::Regex("b".into())).err().unwrap();
    assert_eq!(refused.to_string(), "no token of the vocabulary may follow");

    let mut constraint = env.constrain(&Form::Regex("ab".into())).unwrap();
    let error = constraint.mask(&[Token(0)], &mut [0.0; 2]).unwrap_err();
    assert_eq!(error.to_string(), "constraint: no token of the vocabulary may follow");
    // The text has failed, and says so again.
    assert_eq!(constraint.mask(&[Token(0)], &mut [0.0; 2]), Err(error.clone()));
    constraint.commit(&[Token(0)]);
    assert_eq!(constraint.mask(&[], &mut row()), Err(error));
    assert_eq!(constraint.admitted(&[Token(0)]), 0);
}

#[test]
fn environments_and_constraints_go_to_other_threads() {
    fn is_send<T: Send>() {}
    fn is_shared<T: Send + Sync + Clone>() {}
    is_send::<GrammarConstraint>();
    is_shared::<GrammarEnv>();
}
