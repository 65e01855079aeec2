//! What a constraint forbids, against what it takes, and against forms whose texts can be counted.

mod common;

use common::*;
use forerun_decode::{Constraint, ConstraintError, Token, Tokenizer};
use forerun_grammar::{Form, GrammarConstraint};
use serde_json::json;

/// Forms of each kind, with recursion and without.
fn forms() -> Vec<Form> {
    let person = json!({
        "type": "object",
        "properties": { "name": { "type": "string" }, "age": { "type": "integer" } },
        "required": ["name"],
        "additionalProperties": false
    });
    vec![
        Form::JsonObject,
        Form::JsonSchema(person),
        Form::Regex(r"[0-9]{1,3}(\.[0-9]+)?".into()),
        Form::Choice(["a", "ab", "abc", "name", "no", "é"].map(String::from).to_vec()),
        grammar("start: \"<\" inner \")\" | \"[\" inner \"]\"\ninner: \"a\" \"b\""),
        grammar("root ::= \"[\" (root (\",\" root)*)? \"]\" | [0-9]+ | \"ab\"* \"abc\""),
    ]
}

/// A random path of allowed tokens, which ends only where it must.
fn walk(form: &Form, len: usize, chance: &mut Chance) -> Vec<Token> {
    let mut constraint = constrain(form);
    let mut path = Vec::new();
    while path.len() < len {
        let mut next = allowed(&mut constraint, &path);
        next.retain(|token| !ENDS.contains(token));
        if next.is_empty() {
            break;
        }
        path.push(chance.one_of(&next));
    }
    path
}

fn committed(form: &Form, path: &[Token]) -> GrammarConstraint {
    let mut constraint = constrain(form);
    constraint.commit(path);
    constraint
}

/// What comes of committing the tokens, which the next mask says.
fn takes(mut constraint: GrammarConstraint, tokens: &[Token]) -> Result<(), ConstraintError> {
    constraint.commit(tokens);
    constraint.mask(&[], &mut [])
}

#[test]
fn a_token_is_allowed_just_if_it_can_be_committed() {
    let mut chance = Chance(1);
    for form in forms() {
        for _ in 0..4 {
            let path = walk(&form, 1 + chance.below(12), &mut chance);
            let mask = allowed(&mut constrain(&form), &path);
            assert!(!mask.is_empty());
            let mut here = committed(&form, &path);
            for token in vocabulary() {
                // Of `admitted`, so that nothing is committed; and of one commit in eight.
                let taken = here.admitted(&[token]) == 1;
                assert_eq!(taken, mask.contains(&token), "{form:?} after {:?}: {token:?}", path);
                if token.0 % 8 == 0 {
                    assert_eq!(takes(committed(&form, &path), &[token]).is_ok(), taken);
                }
            }
        }
    }
}

#[test]
fn a_choice_allows_the_beginnings_of_its_texts() {
    let texts =
        ["a", "ab", "abcab", "aaaab", "name", "no", "née", "日本", "yes and no", "\n  ok", ""];
    let form = Form::Choice(texts.map(String::from).to_vec());
    let mut constraint = constrain(&form);
    let mut paths: Vec<Vec<Token>> = vec![Vec::new()];
    while let Some(path) = paths.pop() {
        let so_far: Vec<u8> = path.iter().flat_map(|&token| bytes(token)).collect();
        let begins = |token: &Token| {
            let with: Vec<u8> = [so_far.clone(), bytes(*token)].concat();
            match token {
                _ if ENDS.contains(token) => texts.iter().any(|text| text.as_bytes() == so_far),
                _ if bytes(*token).is_empty() => false,
                _ => texts.iter().any(|text| text.as_bytes().starts_with(&with)),
            }
        };
        let expected: Vec<Token> = vocabulary().filter(begins).collect();
        assert_eq!(allowed(&mut constraint, &path), expected, "after {path:?}");
        for token in expected.into_iter().filter(|token| !ENDS.contains(token)) {
            paths.push([path.clone(), vec![token]].concat());
        }
    }
}

#[test]
fn a_path_is_masked_as_if_it_were_committed() {
    let mut chance = Chance(2);
    for form in forms() {
        for _ in 0..6 {
            let path = walk(&form, 24, &mut chance);
            let mut asked = constrain(&form);
            let mut told = constrain(&form);
            for n in 0..=path.len() {
                let expected = allowed(&mut constrain(&form), &path[..n]);
                assert_eq!(allowed(&mut asked, &path[..n]), expected);
                assert_eq!(allowed(&mut told, &[]), expected);
                if let Some(&next) = path.get(n) {
                    told.commit(&[next]);
                }
            }
        }
    }
}

#[test]
fn paths_leave_the_text_alone() {
    let mut chance = Chance(3);
    for form in forms() {
        let text = walk(&form, 6, &mut chance);
        let expected = allowed(&mut committed(&form, &text), &[]);
        let mut constraint = committed(&form, &text);
        for round in 0..40 {
            // Along the form for a while, then astray.
            let mut path = Vec::new();
            for _ in 0..chance.below(5) {
                path.push(chance.one_of(&allowed(&mut constraint, &path)));
            }
            let strays: Vec<Token> = vocabulary().collect();
            path.extend((0..chance.below(3)).map(|_| chance.one_of(&strays)));
            let admitted = constraint.admitted(&path);
            assert_eq!(admitted, committed(&form, &text).admitted(&path), "{form:?}: {path:?}");
            constraint.commit(&[]); // Forgets all masks.
            assert_eq!(allowed(&mut constraint, &[]), expected, "round {round} of {form:?}");
        }
    }
}

#[test]
fn a_path_is_not_masked_by_another_of_its_length() {
    // The same lexemes are expected after both, but not what follows those.
    let form = grammar("start: \"<\" inner \")\" | \"[\" inner \"]\"\ninner: \"a\" \"b\"");
    let mut constraint = constrain(&form);
    let (b, round, square) = (word("b"), word("b)"), word("b]"));
    assert_eq!(allowed(&mut constraint, &spell("<a")), [b, round]);
    assert_eq!(allowed(&mut constraint, &spell("[a")), [b, square]);
    assert_eq!(allowed(&mut constraint, &spell("<a")), [b, round]);
}

#[test]
fn every_end_is_allowed_where_the_form_may_end_and_nothing_else_where_it_must() {
    let mut number = constrain(&Form::Regex("[0-9]+".into()));
    assert!(allowed(&mut number, &[]).iter().all(|token| !ENDS.contains(token)));
    let digits: Vec<Token> =
        vocabulary().filter(|&token| bytes(token).iter().all(u8::is_ascii_digit)).collect();
    let mut expected: Vec<Token> = digits.into_iter().filter(|&t| t != CONTROL).collect();
    expected.sort_unstable();
    assert_eq!(allowed(&mut number, &spell("7")), expected);
    assert!(ENDS.iter().all(|end| expected.contains(end)));

    let mut choice = constrain(&Form::Choice(vec!["no".into()]));
    assert_eq!(allowed(&mut choice, &[word("no")]), ENDS);
    assert_eq!(allowed(&mut choice, &spell("no")), ENDS);
    choice.commit(&spell("no"));
    assert_eq!(allowed(&mut choice, &[]), ENDS);
}

#[test]
fn a_row_is_left_alone_beyond_the_end_and_off_the_form() {
    let all: Vec<Token> = vocabulary().collect();
    let mut constraint = constrain(&Form::Choice(vec!["no".into(), "name".into()]));
    for path in [
        spell("x"),
        spell("nob"),
        vec![word("no"), ENDS[0]],
        vec![word("no"), ENDS[1], word("no")],
        vec![ENDS[0]],
        vec![CONTROL],
        vec![Token(100_000)],
        vec![word("n"), CONTROL],
    ] {
        assert_eq!(allowed(&mut constraint, &path), all, "{path:?}");
        assert_eq!(allowed(&mut constraint, &[]), [word("n"), word("name"), word("no")]);
    }
}

#[test]
fn tokens_are_admitted_one_after_the_other() {
    let [end, other_end] = ENDS;
    let mut constraint = constrain(&Form::Choice(vec!["no".into(), "name".into()]));
    let cases = [
        (vec![], 0),
        (spell("no"), 2),
        (spell("nox"), 2),
        (spell("xno"), 0),
        (vec![word("n"), end], 1),
        (vec![word("no"), end], 2),
        (vec![word("no"), other_end, end], 2),
        (vec![word("no"), end, word("no")], 2),
        (vec![word("name"), CONTROL, end], 1),
        (vec![word("name"), Token(100_000)], 1),
        (vec![end], 0),
    ];
    for (path, admitted) in cases {
        assert_eq!(constraint.admitted(&path), admitted, "{path:?}");
    }
    constraint.commit(&spell("n"));
    assert_eq!(constraint.admitted(&[word("a"), word("m"), word("e"), other_end]), 4);
}

#[test]
fn nothing_counts_after_an_end() {
    for end in ENDS {
        let mut constraint = constrain(&Form::Regex("[a-z]+".into()));
        constraint.commit(&[word("ab"), end, word("{}"), CONTROL]);
        constraint.commit(&spell("!!"));
        assert_eq!(constraint.admitted(&spell("a")), 0);
        assert_eq!(constraint.admitted(&[end]), 0);
        assert_eq!(allowed(&mut constraint, &[]), vocabulary().collect::<Vec<_>>());
    }
}

#[test]
fn what_is_not_allowed_cannot_be_committed() {
    for (tokens, id) in [
        (spell("nx"), u32::from(b'x')),
        (vec![word("n"), ENDS[1]], ENDS[1].0),
        (vec![CONTROL], CONTROL.0),
        (vec![word("no"), word("no")], word("no").0),
        (vec![Token(100_000)], 100_000),
    ] {
        let constraint = constrain(&Form::Choice(vec!["no".into()]));
        let error = takes(constraint, &tokens).unwrap_err();
        let reason = format!("constraint: token {id} is committed but not allowed");
        assert_eq!(error.to_string(), reason);
    }
}

#[test]
fn a_row_may_be_longer_than_the_vocabulary_or_shorter() {
    let mut constraint = constrain(&Form::Regex("(?s).*".into()));
    let mut long = vec![0.0; 1000];
    constraint.mask(&[], &mut long).unwrap();
    assert!(long[1..128].iter().all(|&logit| logit == 0.0));
    assert!(long[Vocabulary.vocab_len()..].iter().all(|&logit| logit == f32::NEG_INFINITY));
    let mut short = vec![0.0; 100];
    constraint.mask(&[], &mut short).unwrap();
    assert_eq!(short, long[..100]);
}

#[test]
fn no_token_is_allowed_that_is_no_text() {
    // Anything at all is still not a control token, and where bytes need not be text, the one byte
    // that the library has a use for is not among them.
    let bytes = "%llguidance { \"allow_invalid_utf8\": true }\nstart: /(?s-u:.)*/";
    let first = allowed(&mut constrain(&grammar(bytes)), &[]);
    let barred = |token: &Token| *token == CONTROL || common::bytes(*token).contains(&0xff);
    assert_eq!(first, vocabulary().filter(|token| !barred(token)).collect::<Vec<_>>());

    let mut constraint = constrain(&Form::Regex("(?s).*".into()));
    assert!(allowed(&mut constraint, &[]).contains(&word("日本")));
    // A character that is begun must be gone on with.
    let then = allowed(&mut constraint, &[Token(0xe6)]);
    assert_eq!(then, (0x80..=0xbf).map(Token).collect::<Vec<_>>());
}

#[test]
fn a_mask_prepared_on_another_thread_is_the_same() {
    let mut chance = Chance(5);
    for form in forms() {
        let path = walk(&form, 12, &mut chance);
        let (mut here, mut away) = (constrain(&form), constrain(&form));
        assert!(away.prepare(), "the first is there from the start");
        for (index, &token) in path.iter().enumerate() {
            here.commit(&[token]);
            away.commit(&[token]);
            assert!(!away.prepare(), "another thread has only just begun");
            if index % 2 == 0 {
                while !away.prepare() {
                    std::thread::yield_now();
                }
            }
            // Else it is waited for.
            assert_eq!(allowed(&mut away, &[]), allowed(&mut here, &[]), "{form:?}");
            assert!(away.prepare(), "it is known now");
            assert_eq!(away.admitted(&path[index + 1..]), path.len() - index - 1);
        }
    }
}

#[test]
fn what_goes_wrong_on_another_thread_is_told_by_the_next_mask() {
    let mut constraint = constrain(&Form::Choice(vec!["ab".into()]));
    constraint.commit(&[word("b")]);
    while !constraint.prepare() {
        std::thread::yield_now();
    }
    let error = constraint.mask(&[], &mut []).unwrap_err();
    assert!(error.reason.contains("not allowed"), "{error}");
    // One that nobody waits for any more disturbs nobody.
    let mut left = committed(&Form::JsonObject, &[word("{")]);
    left.prepare();
    drop(left);
}
