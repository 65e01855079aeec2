//! Forms made to cost much: each is compiled within bounds, or refused by what it exceeds.

#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

use std::sync::LazyLock;
use std::time::Duration;

use forerun_decode::{Special, Token, TokenizeError, Tokenizer};
use forerun_grammar::{Form, GrammarEnv, GrammarError};
use serde_json::{Value, json};

/// As many tokens as a model has: bytes, an end, and words of one to three letters, with a space and
/// without.
struct Many(Vec<String>);

impl Many {
    fn new() -> Self {
        let letters = || 'a'..='z';
        let mut words: Vec<String> = letters().map(String::from).collect();
        for one in letters() {
            words.extend(letters().map(|two| format!("{one}{two}")));
            for two in letters() {
                words.extend(letters().map(|three| format!("{one}{two}{three}")));
            }
        }
        let spaced: Vec<String> = words.iter().map(|word| format!(" {word}")).collect();
        words.extend(spaced);
        words.extend((0..1000).map(|number| number.to_string()));
        Self(words)
    }
}

impl Tokenizer for Many {
    fn vocab_len(&self) -> usize {
        257 + self.0.len()
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
        match token.index() {
            256 => {}
            index @ 0..256 => out.push(u8::try_from(index).unwrap()),
            index => out.extend(self.0[index - 257].bytes()),
        }
    }
}

static ENV: LazyLock<GrammarEnv> = LazyLock::new(|| GrammarEnv::new(&Many::new()).unwrap());

fn names(count: usize) -> Vec<String> {
    (0..count).map(|index| format!("n{index}")).collect()
}

fn object(count: usize, value: &Value) -> Value {
    let fields = names(count).into_iter().map(|name| (name, value.clone()));
    Value::Object(fields.collect())
}

fn joined(count: usize, one: impl Fn(usize) -> String, between: &str) -> String {
    (0..count).map(one).collect::<Vec<_>>().join(between)
}

fn list(count: usize, one: impl Fn(usize) -> Value) -> Value {
    (0..count).map(one).collect()
}

fn integers(count: usize, more: Value) -> Value {
    let mut schema =
        json!({ "type": "object", "properties": object(count, &json!({ "type": "integer" })) });
    schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    schema
}

fn required(count: usize) -> Value {
    json!({ "type": "object", "required": names(count) })
}

fn patterns(count: usize) -> Value {
    let one = |name: String| (format!("^{name}x.*y"), json!({ "type": "integer" }));
    json!({ "type": "object", "patternProperties": names(count).into_iter().map(one).collect::<Value>() })
}

/// Objects of a property each, one of which is to be.
fn any_of(count: usize) -> Value {
    json!({ "anyOf": list(count, |n| json!({ "type": "object", "properties": { (format!("n{n}")): {} } })) })
}

/// Three to this power of objects.
fn power(count: usize) -> Value {
    let one = |n: usize| {
        let any = |m: usize| json!({ "type": "object", "properties": { (format!("p{n}")): { "const": m } } });
        json!({ "anyOf": list(3, any) })
    };
    json!({ "allOf": list(count, one) })
}

/// Text that many expressions must match.
fn all_of(count: usize) -> Value {
    json!({ "allOf": list(count, |n| json!({ "type": "string", "pattern": format!("^.*a.{{{n}}}$") })) })
}

fn intersected(count: usize) -> String {
    format!("start: A\nA: {}\n", joined(count, |n| format!("/.*a.{{{n}}}/"), " & "))
}

/// Objects by reference, in a ring or each twice.
fn references(count: usize, twice: bool) -> Value {
    let to = |n: usize| json!({ "$ref": format!("#/$defs/n{}", (n + 1) % count) });
    let one = |n: usize| match twice {
        true if n + 1 == count => json!({ "type": "integer" }),
        true => json!({ "allOf": [to(n), to(n)] }),
        false => json!({ "type": "object", "properties": { "a": to(n) } }),
    };
    let all: Value = (0..count).map(|n| (format!("n{n}"), one(n))).collect();
    json!({ "$ref": "#/$defs/n0", "$defs": all })
}

fn tool(schema: &Value) -> Form {
    Form::Grammar(format!("%llguidance {{}}\nstart: \"<call>\" call\ncall: %json {schema}\n"))
}

/// What would take seconds to hours, and what it has too much of.
fn refused() -> Vec<(&'static str, Form, &'static str)> {
    let schema = |name, value, what| (name, Form::JsonSchema(value), what);
    let both = json!({ "allOf": [required(600), integers(600, json!({}))] });
    let split = json!({ "allOf": list(40, |n| json!({ "required": names(30 * n + 30).split_off(30 * n) })) });
    let hidden =
        json!({ "properties": { "enum": { "properties": { "const": required(20_000) } } } });
    let by_reference = json!({ "$ref": "#/$defs/a", "required": names(600),
        "$defs": { "a": { "type": "object", "properties": object(600, &json!({})), "minProperties": 0 } } });
    let literal = json!({ "const": object(5000, &json!(1)) });
    let choices = list(500, |n| json!({ "required": [format!("n{n}")] }));
    vec![
        schema("required", required(20_000), "property names"),
        schema("properties", integers(2000, json!({})), "property names"),
        schema("merged", both, "property names"),
        schema("merged of many", split, "property names"),
        schema("behind names that are keywords", hidden, "property names"),
        schema("behind a reference", by_reference, "property names"),
        schema("many large objects", json!({ "prefixItems": list(6, |_| required(900)) }), "steps"),
        schema("a large literal", literal, "steps"),
        schema(
            "alternatives times properties",
            integers(500, json!({ "anyOf": choices })),
            "steps",
        ),
        schema("one of 200", integers(200, json!({ "minProperties": 1 })), "steps"),
        schema("objects", any_of(4000), "steps"),
        schema("a power", power(9), "steps"),
        schema("doubling references", references(60, true), "parts of the schema"),
        schema("patterns of names", patterns(200), "`patternProperties`"),
        schema("expressions together", all_of(30), "expressions"),
        ("a tool", tool(&required(20_000)), "property names"),
        (
            "many schemas",
            Form::Grammar(format!(
                "start: {}",
                joined(6, |_| format!("%json {}", required(900)), " ")
            )),
            "steps",
        ),
        ("intersections", Form::Grammar(intersected(30)), "`&`"),
        ("bytes", Form::Regex("a".repeat(300_000)), "bytes"),
    ]
}

/// What is close to a limit, or has a large number in it.
fn taken() -> Vec<(&'static str, Form)> {
    let schema = |name, value| (name, Form::JsonSchema(value));
    let grammar = |name, text: String| (name, Form::Grammar(text));
    let together = json!({ "type": "string",
        "allOf": [{ "pattern": "^[a-z]*$" }, { "pattern": "a" }, { "pattern": "b" }] });
    let quoted = |n: usize| format!("\"n{n}\"");
    let ring =
        |n: usize| format!("r{n} ::= \"a\" r{}? | \"b\" r{}?", (n + 1) % 4000, (n + 7) % 4000);
    vec![
        schema("required", required(1000)),
        schema("properties", integers(1000, json!({}))),
        schema(
            "one of 70",
            integers(70, json!({ "additionalProperties": false, "minProperties": 1 })),
        ),
        schema("objects", any_of(2000)),
        schema("a power", power(5)),
        schema("references", references(1500, false)),
        schema("patterns of names", patterns(32)),
        schema("expressions together", together),
        schema("enum", json!({ "enum": names(20_000) })),
        schema(
            "prefixItems",
            json!({ "prefixItems": list(8000, |_| json!({ "type": "integer" })) }),
        ),
        schema(
            "lengths",
            json!({ "type": "string", "minLength": 1_000_000, "maxLength": 2_000_000 }),
        ),
        schema(
            "items",
            json!({ "type": "array", "minItems": 1_000_000, "items": { "type": "integer" } }),
        ),
        ("choice", Form::Choice(names(20_000))),
        ("alternatives", Form::Regex(names(20_000).join("|"))),
        ("repetitions", Form::Regex("((a{1,1000}){1,1000}b?){1,1000}".into())),
        ("nested stars", Form::Regex(format!("{}a{}", "(".repeat(100), ")*".repeat(100)))),
        grammar(
            "gbnf alternatives",
            format!("root ::= \"(\" root \")\" | {}", joined(2000, quoted, " | ")),
        ),
        grammar(
            "gbnf repetitions",
            "root ::= ((\"(\" root \")\" | \"a\"){1,9999} \"b\"){1,9999}".into(),
        ),
        grammar("gbnf rules", format!("root ::= r0\n{}", joined(4000, ring, "\n"))),
        grammar("lark alternatives", format!("start: {}", joined(10_000, quoted, " | "))),
        grammar(
            "no intersections",
            format!("start: {} // &&&&&&&&&\n", joined(20, |_| "\"&\" /\\/&/".into(), " ")),
        ),
    ]
}

#[test]
fn what_would_take_too_long_is_refused_by_what_it_has_too_much_of() {
    for (name, form, what) in refused() {
        let error = ENV.compile(&form).expect_err(name);
        let is_limit = matches!(error, GrammarError::Exceeded { .. } | GrammarError::Long { .. });
        let said = error.to_string();
        assert!(is_limit && said.contains(what) && said.contains("at most"), "{name}: {said}");
    }
}

#[test]
fn what_is_within_the_limits_is_compiled() {
    for (name, form) in taken() {
        let started = cpu();
        if let Err(error) = ENV.compile(&form) {
            panic!("{name}: {error}");
        }
        // It takes a tenth of this; the limits are to keep it from minutes.
        let took = cpu().saturating_sub(started);
        println!("{:8.3} {name}", took.as_secs_f64());
        assert!(took < Duration::from_secs(10), "{name}: {took:?}");
    }
}

/// What this process has computed; unlike the clock, it does not count what others do. Where it is not
/// known, nothing.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = stat.rsplit(')').next().unwrap_or_default();
    let ticks: u64 =
        after.split_whitespace().skip(11).take(2).filter_map(|it| it.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}
