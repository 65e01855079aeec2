//! Grammars at random against what they mean: whatever was made a lexeme, the same texts match.

use std::sync::LazyLock;

use forerun_decode::{Constraint, Special, Token, TokenizeError, Tokenizer};
use proptest::prelude::*;

use super::chars::Chars;
use super::part::Part;
use super::plan::plan;
use super::{Lexemes, Node, Rules, parse, to_lark};
use crate::{Form, GrammarEnv};

/// The characters of the texts. The last two begin with the same byte.
const LETTERS: [char; 3] = ['a', 'é', 'è'];

/// A token for each byte, and an end.
struct Bytes;

impl Tokenizer for Bytes {
    fn vocab_len(&self) -> usize {
        257
    }

    fn tokenize(&self, text: &str, _: Special) -> Result<Vec<Token>, TokenizeError> {
        Ok(text.bytes().map(|byte| Token(byte.into())).collect())
    }

    fn start(&self) -> Option<Token> {
        None
    }

    fn is_end(&self, token: Token) -> bool {
        token == Token(256)
    }

    fn bytes(&self, token: Token, out: &mut Vec<u8>) {
        out.extend(u8::try_from(token.0));
    }
}

static ENV: LazyLock<GrammarEnv> = LazyLock::new(|| GrammarEnv::new(&Bytes).unwrap());

/// Which texts the rules match, by the meaning of rules: where each can be over that begins at a
/// place of the text, found again and again until nothing new is.
fn matches(rules: &Rules, text: &[char]) -> bool {
    let len = text.len();
    let mut known = vec![vec![vec![false; len + 1]; len + 1]; rules.bodies.len()];
    loop {
        let mut changed = false;
        for (rule, body) in rules.bodies.iter().enumerate() {
            for start in 0..=len {
                let mut from = vec![false; len + 1];
                from[start] = true;
                let over = after(body, &from, text, &known);
                changed |= over != known[rule][start];
                known[rule][start] = over;
            }
        }
        if !changed {
            return known[rules.root][0][len];
        }
    }
}

/// Where the node can be over if it can begin at the places `from`.
fn after(node: &Node, from: &[bool], text: &[char], known: &[Vec<Vec<bool>>]) -> Vec<bool> {
    let either = |one: Vec<bool>, two: Vec<bool>| -> Vec<bool> {
        std::iter::zip(one, two).map(|(one, two)| one || two).collect()
    };
    let nowhere = vec![false; from.len()];
    match node {
        Node::Chars(chars) => {
            let mut over = nowhere;
            for (place, &char) in text.iter().enumerate() {
                over[place + 1] = from[place] && chars.overlaps(&Chars::one(char));
            }
            over
        }
        Node::Text(literal) => literal.chars().fold(from.to_vec(), |from, char| {
            after(&Node::Chars(Chars::one(char)), &from, text, known)
        }),
        Node::Seq(nodes) => {
            nodes.iter().fold(from.to_vec(), |from, node| after(node, &from, text, known))
        }
        Node::Alt(nodes) => {
            nodes.iter().fold(nowhere, |over, node| either(over, after(node, from, text, known)))
        }
        Node::Repeat(node, times) => {
            let mut over = if times.min == 0 { from.to_vec() } else { nowhere };
            let mut places = from.to_vec();
            // More often than there are characters says nothing new.
            let least = usize::try_from(times.min).unwrap();
            let most = times.max.map_or(usize::MAX, |max| usize::try_from(max).unwrap());
            for count in 1..=most.min(least + text.len() + 1) {
                places = after(node, &places, text, known);
                if count >= least {
                    over = either(over, places.clone());
                }
            }
            over
        }
        Node::Rule(rule) => (0..from.len())
            .filter(|&place| from[place])
            .fold(nowhere, |over, place| either(over, known[*rule][place].clone())),
    }
}

/// Every text of up to this many letters.
fn texts(len_max: usize) -> Vec<Vec<char>> {
    let mut texts = vec![Vec::new()];
    let mut next = 0;
    while next < texts.len() {
        if texts[next].len() < len_max {
            for letter in LETTERS {
                texts.push([texts[next].as_slice(), &[letter]].concat());
            }
        }
        next += 1;
    }
    texts
}

/// A part of a rule, in GBNF, that mentions rules below `rules`.
fn part(rules: usize) -> impl Strategy<Value = String> {
    let letters = prop::collection::vec(prop::sample::select(&LETTERS[..]), 1..=3);
    let letters = letters.prop_map(String::from_iter).boxed();
    let leaf = prop_oneof![
        3 => letters.clone().prop_map(|text| format!("\"{text}\"")),
        2 => letters.clone().prop_map(|text| format!("[{text}]")),
        1 => letters.prop_map(|text| format!("[^{text}]")),
        4 => (0..rules).prop_map(|rule| if rule == 0 { "root".into() } else { format!("r{rule}") }),
        1 => Just("\"\"".to_owned()),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        let list = || prop::collection::vec(inner.clone(), 2..=3);
        let times = prop::sample::select(&["*", "+", "?", "{2}", "{1,2}", "{2,}"][..]);
        prop_oneof![
            4 => list().prop_map(|list| list.join(" ")),
            3 => list().prop_map(|list| format!("({})", list.join(" | "))),
            2 => (inner.clone(), times).prop_map(|(node, times)| format!("({node}){times}")),
        ]
    })
}

/// A grammar of three rules. Each has a way out.
fn grammar() -> impl Strategy<Value = String> {
    let body = || (part(3), prop::sample::select(&LETTERS[..]));
    (body(), body(), body()).prop_map(|((root, a), (one, b), (two, c))| {
        format!("root ::= {root} | \"{a}\"\nr1 ::= {one} | \"{b}\"\nr2 ::= {two} | \"{c}\"\n")
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    #[test]
    fn a_grammar_matches_what_its_rules_mean(text in grammar()) {
        let rules = parse::rules(&text).unwrap();
        let mut constraint = match ENV.constrain(&Form::Grammar(text.clone())) {
            Ok(constraint) => constraint,
            Err(error) => return Err(TestCaseError::fail(format!("{error}\n{text}"))),
        };
        for letters in texts(5) {
            let letters_text = String::from_iter(&letters);
            let mut tokens = Bytes.tokenize(&letters_text, Special::AsText).unwrap();
            tokens.push(Token(256));
            let taken = constraint.admitted(&tokens) == tokens.len();
            let lark = || to_lark(&text, Lexemes::Large).unwrap();
            prop_assert_eq!(taken, matches(&rules, &letters), "{:?}\n{}", letters_text, lark());
        }
    }
}

/// How many lexemes of more than a character the grammar is made into, and its Lark.
fn lexemes(text: &str) -> (usize, String) {
    let rules = parse::rules(text).unwrap();
    let plan = plan(&rules, Lexemes::Large);
    let mut used = vec![false; plan.lexemes.len()];
    for part in plan.parts.iter().flatten() {
        mark(part, &mut used);
    }
    let is_long = |&index: &usize| match &plan.lexemes[index] {
        Node::Chars(_) => false,
        Node::Text(text) => used[index] && text.chars().count() > 1,
        _ => used[index],
    };
    ((0..used.len()).filter(is_long).count(), to_lark(text, Lexemes::Large).unwrap())
}

fn mark(part: &Part, used: &mut [bool]) {
    match part {
        Part::Lexeme(index) => used[*index] = true,
        Part::Seq(parts) | Part::Alt(parts) => parts.iter().for_each(|part| mark(part, used)),
        Part::Repeat(part, _) => mark(part, used),
        Part::Rule(_) => {}
    }
}

#[test]
fn what_needs_no_recursion_is_one_lexeme() {
    let (count, lark) = lexemes("root ::= \"a\"* b\nb ::= [ab]+ \"ab\" | \"c\"{2,5}");
    assert_eq!(count, 1, "{lark}");
    let parsed: Vec<&str> = lark.lines().filter(|line| line.starts_with('r')).collect();
    assert_eq!(parsed, ["r1: L0"], "{lark}");
}

#[test]
fn lexemes_are_as_large_as_they_can_be() {
    // A list of words: nothing clashes, so there is a lexeme for what opens, closes, and parts.
    let list = "root ::= \"[\" ws (word (\",\" ws root)*)? \"]\" ws\n\
                word ::= [a-z]+ ws\nws ::= [ \\n]*";
    let (count, lark) = lexemes(list);
    assert_eq!(count, 4, "{lark}");
    // Where a word may be followed by one, its characters are parsed one by one.
    let (count, lark) = lexemes("root ::= word root | \".\"\nword ::= [a-z]+");
    assert_eq!(count, 0, "{lark}");
}

#[test]
fn what_the_library_cannot_compile_is_parsed_by_characters() {
    // The same text in two ways, as alternatives, is too much for its regular expressions.
    let text = "root ::= r1 | \"xya\"\nr1 ::= r2 \"ya\"\nr2 ::= [x]";
    assert_eq!(lexemes(text).0, 1);
    let mut constraint = ENV.constrain(&Form::Grammar(text.into())).unwrap();
    let tokens = Bytes.tokenize("xyaa", Special::AsText).unwrap();
    assert_eq!(constraint.admitted(&tokens), 3);
}

#[test]
fn too_much_to_look_at_is_parsed_by_characters() {
    // Each rule is the one before, twice: more positions than there is room for.
    let mut text = "root ::= \"(\" root \")\" | r30\nr0 ::= \"ab\" | \"c\"\n".to_owned();
    for rule in 1..=30 {
        text.push_str(&format!("r{rule} ::= r{} r{}? | \"d\"\n", rule - 1, rule - 1));
    }
    let (count, _) = lexemes(&text);
    assert_eq!(count, 0);
    let mut constraint = ENV.constrain(&Form::Grammar(text)).unwrap();
    let tokens = Bytes.tokenize("((abc)))", Special::AsText).unwrap();
    assert_eq!(constraint.admitted(&tokens), tokens.len() - 1);
}
