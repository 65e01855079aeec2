//! Every way to write a request wrongly, and what is said of it.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::read;
use crate::api::error::ErrorObject;
use crate::api::notes::Notes;
use crate::api::tokens::{DetokenizeRequest, TemplateRequest, TokenizeRequest};
use crate::api::types::{ChatRequest, CompletionRequest, InfillRequest, NativeRequest};

/// What only programmers say, and of Rust.
const JARGON: [&str; 24] = [
    "u32",
    "u64",
    "usize",
    "i32",
    "i64",
    "f32",
    "f64",
    "untagged",
    "enum",
    "struct ",
    "variant",
    "invalid type",
    "invalid value",
    "expected one of",
    "unknown field",
    "missing field",
    "deserialize",
    "serde",
    "Option",
    "Vec",
    "sequence",
    "a map",
    "boolean",
    "identifier",
];

fn strict() -> Notes {
    Notes::new(true)
}

fn error<T: DeserializeOwned + std::fmt::Debug>(body: &[u8]) -> ErrorObject {
    let error = read::<T>(body, &strict()).unwrap_err().body_only().error;
    for word in JARGON {
        assert!(!error.message.contains(word), "{word:?} in {:?}", error.message);
    }
    error
}

fn error_of(path: &str, body: &Value) -> ErrorObject {
    let body = body.to_string();
    match path {
        "chat" => error::<ChatRequest>(body.as_bytes()),
        "completions" => error::<CompletionRequest>(body.as_bytes()),
        "native" => error::<NativeRequest>(body.as_bytes()),
        "infill" => error::<InfillRequest>(body.as_bytes()),
        "tokenize" => error::<TokenizeRequest>(body.as_bytes()),
        "detokenize" => error::<DetokenizeRequest>(body.as_bytes()),
        _ => error::<TemplateRequest>(body.as_bytes()),
    }
}

/// A chat with one field set.
fn chat(field: &str, value: Value) -> Value {
    let mut body = json!({ "messages": [{ "role": "user", "content": "Hi!" }] });
    body[field] = value;
    body
}

/// A chat whose second message is this.
fn said(message: Value) -> Value {
    chat("messages", json!([{ "role": "user", "content": "Hi!" }, message]))
}

#[test]
#[expect(clippy::too_many_lines, reason = "it is a table")]
fn errors_name_the_field_and_say_what_it_is_and_what_to_write() {
    let schema = json!({ "type": "json_schema", "json_schema": { "name": "a" } });
    let cases: Vec<(&str, Value, &str, &str)> = vec![
        (
            "chat",
            chat("temperature", json!("hot")),
            "temperature",
            "`temperature` is the string \"hot\"; expected a number, e.g. \"temperature\": 0.7",
        ),
        ("chat", chat("temperature", json!({})), "temperature", "is an object; expected a number"),
        (
            "chat",
            chat("n", json!(-1)),
            "n",
            "`n` is -1; expected a whole number from 0 to 4294967295, e.g. \"n\": 1",
        ),
        ("chat", chat("n", json!(5_000_000_000_u64)), "n", "`n` is 5000000000; expected"),
        ("chat", chat("n", json!(1.5)), "n", "`n` is 1.5; expected a whole number"),
        (
            "chat",
            chat("max_tokens", json!("12")),
            "max_tokens",
            "`max_tokens` is the string \"12\"; expected a whole number, e.g. \"max_tokens\": 100",
        ),
        ("chat", chat("seed", json!(true)), "seed", "`seed` is true; expected a whole number"),
        ("chat", chat("top_k", json!([1])), "top_k", "`top_k` is a list; expected a whole number"),
        (
            "chat",
            chat("stream", json!("yes")),
            "stream",
            "`stream` is the string \"yes\"; expected true or false, e.g. \"stream\": true",
        ),
        (
            "chat",
            chat("stop", json!(3)),
            "stop",
            "`stop` is 3; expected a string or a list of strings, e.g. \"stop\": [\"END\"]",
        ),
        ("chat", chat("stop", json!(["a", 3])), "stop[1]", "`stop[1]` is 3; expected a string"),
        ("chat", chat("logit_bias", json!("a")), "logit_bias", "expected an object, or a list of"),
        (
            "chat",
            chat("logit_bias", json!([[5, true]])),
            "logit_bias[0][1]",
            "`logit_bias[0][1]` is true; expected a number or false",
        ),
        ("chat", chat("logit_bias", json!([[5]])), "logit_bias[0]", "a list of 1; expected a pair"),
        ("chat", chat("logit_bias", json!([[5, 1, 2]])), "logit_bias[0]", "is a list of 3"),
        ("native", json!({ "prompt": 5 }), "prompt", "expected a string, a list of token ids and"),
        ("native", json!({ "prompt": [1, [2]] }), "prompt", "token ids beside a list"),
        ("native", json!({ "prompt": [1, -2] }), "prompt[1]", "is -2; expected a string, a token"),
        (
            "native",
            json!({ "prompt": { "prompt_string": "a", "multimodal_data": ["b"] } }),
            "prompt",
            "cannot be read here, only text",
        ),
        ("native", json!({ "prompt": {} }), "prompt.prompt_string", "is missing"),
        (
            "infill",
            json!({ "input_prefix": "a", "input_suffix": false }),
            "input_suffix",
            "`input_suffix` is false; expected a string, or a list of strings and token ids, e.g. \"input_suffix\": \"}\\n\"",
        ),
        (
            "chat",
            chat("logit_bias", json!({ "5": "no" })),
            "logit_bias.5",
            "`logit_bias.5` is the string \"no\"; expected a number, e.g. \"5\": -100",
        ),
        ("chat", chat("model", json!(5)), "model", "`model` is 5; expected a string"),
        (
            "chat",
            chat("stream_options", json!(true)),
            "stream_options",
            "`stream_options` is true; expected an object, e.g.",
        ),
        (
            "chat",
            chat("stream_options", json!({ "usage": true })),
            "stream_options.usage",
            "`stream_options.usage` is not a field here: leave it out, or use one of `include_usage`",
        ),
        (
            "chat",
            chat("max_tokenz", json!(1)),
            "max_tokenz",
            "`max_tokenz` is not a field here: did you mean `max_tokens`?",
        ),
        ("chat", chat("xyzzy", json!(1)), "xyzzy", "`xyzzy` is not a field here: leave it out"),
        (
            "chat",
            json!({}),
            "messages",
            "`messages` is missing: add it, e.g. \"messages\": [{\"role\": \"user\", \"content\": \"Hi!\"}]",
        ),
        (
            "chat",
            json!({ "messages": "Hi!" }),
            "messages",
            "`messages` is the string \"Hi!\"; expected a list",
        ),
        ("chat", json!({ "messages": null }), "messages", "`messages` is null; expected a list"),
        (
            "chat",
            json!({ "messages": ["Hi!"] }),
            "messages[0]",
            "`messages[0]` is the string \"Hi!\"; expected an object",
        ),
        (
            "chat",
            said(json!({ "content": "Hi!" })),
            "messages[1].role",
            "`messages[1].role` is missing: add it, e.g. \"role\": \"user\"",
        ),
        (
            "chat",
            said(json!({ "role": "robot", "content": "" })),
            "messages[1].role",
            "is the string \"robot\"; expected \"system\", \"developer\", \"user\", \"assistant\" or \"tool\"",
        ),
        (
            "chat",
            said(json!({ "role": 3, "content": "" })),
            "messages[1].role",
            "`messages[1].role` is 3; expected \"system\"",
        ),
        (
            "chat",
            said(json!({ "role": "user", "content": 5 })),
            "messages[1].content",
            "is 5; expected a string or a list of text parts, e.g. \"content\": \"Hi!\"",
        ),
        (
            "chat",
            said(json!({ "role": "user", "content": [{ "type": "image_url" }] })),
            "messages[1].content[0].type",
            "is \"image_url\": images cannot be read here, only text: leave this part out",
        ),
        (
            "chat",
            said(json!({ "role": "user", "content": [{ "type": "text", "text": 1 }] })),
            "messages[1].content[0].text",
            "is 1; expected a string",
        ),
        (
            "chat",
            said(json!({ "role": "user", "content": ["Hi!"] })),
            "messages[1].content[0]",
            "is the string \"Hi!\"; expected an object",
        ),
        (
            "chat",
            said(json!({ "role": "user", "contents": "" })),
            "messages[1].contents",
            "did you mean `content`?",
        ),
        (
            "chat",
            said(json!({ "role": "assistant", "tool_calls": [{ "id": "a" }] })),
            "messages[1].tool_calls[0].function",
            "is missing: add it, e.g. \"function\": {\"name\": \"weather\"",
        ),
        ("chat", chat("tools", json!({})), "tools", "`tools` is an object; expected a list, e.g."),
        (
            "chat",
            chat("tools", json!([{ "type": "function", "function": {} }])),
            "tools[0].function.name",
            "is missing: add it, e.g. \"name\": \"weather\"",
        ),
        (
            "chat",
            chat("tools", json!([{ "type": "code", "function": { "name": "a" } }])),
            "tools[0].type",
            "is the string \"code\"; expected \"function\"",
        ),
        (
            "chat",
            chat("tool_choice", json!("always")),
            "tool_choice",
            "is the string \"always\"; expected \"none\", \"auto\", \"required\", or a function by its name",
        ),
        (
            "chat",
            chat("tool_choice", json!(1)),
            "tool_choice",
            "`tool_choice` is 1; expected \"none\"",
        ),
        (
            "chat",
            chat("tool_choice", json!({ "type": "function", "function": "f" })),
            "tool_choice.function",
            "is the string \"f\"; expected an object",
        ),
        (
            "chat",
            chat("response_format", json!("json")),
            "response_format",
            "is the string \"json\"; expected an object, e.g. \"response_format\": {\"type\": \"json_object\"}",
        ),
        (
            "chat",
            chat("response_format", json!({ "type": "yaml" })),
            "response_format.type",
            "is the string \"yaml\"; expected \"text\", \"json_object\" or \"json_schema\"",
        ),
        (
            "chat",
            chat("response_format", schema),
            "response_format.json_schema.schema",
            "is missing: add it, e.g. \"schema\": {\"type\": \"object\"}",
        ),
        (
            "chat",
            chat("prediction", json!({ "type": "text", "content": "" })),
            "prediction.type",
            "is the string \"text\"; expected \"content\"",
        ),
        (
            "chat",
            chat("speculative", json!({ "length": -3 })),
            "speculative.length",
            "`speculative.length` is -3; expected a whole number, 0 or more",
        ),
        (
            "chat",
            chat("speculative", json!({ "drafter": {} })),
            "speculative.drafter",
            "is an object; expected a string or a list of strings",
        ),
        (
            "chat",
            chat("structured_outputs", json!({ "choice": "a" })),
            "structured_outputs.choice",
            "is the string \"a\"; expected a list",
        ),
        (
            "chat",
            chat("chat_template_kwargs", json!([])),
            "chat_template_kwargs",
            "is a list; expected an object",
        ),
        (
            "chat",
            chat("resume_token_ids", json!(["a"])),
            "resume_token_ids[0]",
            "is the string \"a\"; expected a whole number",
        ),
        (
            "completions",
            json!({}),
            "prompt",
            "`prompt` is missing: add it, e.g. \"prompt\": \"Once upon a time\"",
        ),
        (
            "completions",
            json!({ "prompt": 5 }),
            "prompt",
            "`prompt` is 5; expected a string, a list of strings, a list of token ids, or a list of \
          lists of token ids, e.g. \"prompt\": \"Once upon a time\"",
        ),
        ("completions", json!({ "prompt": null }), "prompt", "`prompt` is null; expected a string"),
        (
            "completions",
            json!({ "prompt": [1, "a"] }),
            "prompt",
            "a list with items of several kinds",
        ),
        (
            "completions",
            json!({ "prompt": [true] }),
            "prompt[0]",
            "`prompt[0]` is true; expected a string, a token id, or a list of token ids",
        ),
        ("completions", json!({ "prompt": [-1] }), "prompt[0]", "`prompt[0]` is -1; expected"),
        (
            "completions",
            json!({ "prompt": [[1, 2.5]] }),
            "prompt[0][1]",
            "`prompt[0][1]` is 2.5; expected a whole number",
        ),
        (
            "completions",
            json!({ "prompt": "a", "messages": [] }),
            "messages",
            "`messages` is not a field here",
        ),
        (
            "tokenize",
            json!({ "content": [1] }),
            "content",
            "`content` is a list; expected a string",
        ),
        (
            "tokenize",
            json!({ "content": "", "add_special": null }),
            "add_special",
            "`add_special` is null; expected true or false",
        ),
        (
            "detokenize",
            json!({ "tokens": "1" }),
            "tokens",
            "`tokens` is the string \"1\"; expected a list, e.g. \"tokens\": [504, 2213]",
        ),
        ("detokenize", json!({ "tokens": [1, -2] }), "tokens[1]", "`tokens[1]` is -2; expected"),
        ("template", json!({ "messages": [{}] }), "messages[0].role", "is missing"),
    ];
    for (path, body, param, words) in cases {
        let error = error_of(path, &body);
        assert_eq!(error.param.as_deref(), Some(param), "{body}: {}", error.message);
        assert!(error.message.contains(words), "{body}: {:?} has no {words:?}", error.message);
    }
}

#[test]
fn bodies_that_are_no_objects_or_no_json_are_told_where() {
    for (body, words) in [
        ("", "the body is empty; expected a JSON object"),
        ("[]", "the body is a list; expected an object"),
        ("null", "the body is null; expected an object"),
        ("\"Hi!\"", "the body is the string \"Hi!\"; expected an object"),
        ("{\"messages\": [", "the body is not whole: the JSON ends in line 1, column 14"),
        ("{\n  \"n\": 1,\n}", "the body is not valid JSON: trailing comma in line 3, column 1"),
        ("{'n': 1}", "key must be a string in line 1, column 2"),
        ("{\"n\": no}", "expected true, false or null in line 1"),
        ("{\"n\": NaN}", "expected a value in line 1"),
        ("{\"n\": 1e999}", "too large in line 1"),
        ("{} {}", "trailing characters in line 1"),
        ("{\"n\": \"\u{1}\"}", "control character"),
    ] {
        let error = error::<ChatRequest>(body.as_bytes());
        assert!(error.message.contains(words), "{body:?}: {:?}", error.message);
        assert_eq!(error.param, None);
    }
    error::<ChatRequest>(b"{\"model\": \"\xff\"}");
    error::<ChatRequest>("[".repeat(500).as_bytes());
}

#[test]
fn a_field_that_is_there_twice_is_refused() {
    let error = error::<ChatRequest>(br#"{"messages": [], "n": 1, "n": 2}"#);
    assert_eq!(error.param.as_deref(), Some("n"));
    assert!(error.message.contains("`n` is there twice"), "{}", error.message);
}

#[test]
fn long_names_and_values_are_quoted_in_part() {
    let long = "x".repeat(100_000);
    for body in
        [chat(&long, json!(1)), chat("n", json!(long)), chat("logit_bias", json!({ &*long: "" }))]
    {
        assert!(error_of("chat", &body).message.len() < 400);
    }
}

/// Values of every kind.
fn kinds() -> [Value; 9] {
    [
        json!(null),
        json!(true),
        json!(-7),
        json!(1.5),
        json!(1e30),
        json!("text"),
        json!([]),
        json!([["a"], { "b": 1 }]),
        json!({ "type": {}, "function": [], "content": 1 }),
    ]
}

#[test]
fn whatever_a_field_is_the_message_is_for_people() {
    let document =
        serde_json::to_value(<crate::api::Document as utoipa::OpenApi>::openapi()).unwrap();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let mut provoked = 0;
    for (path, name) in [("chat", "ChatRequest"), ("completions", "CompletionRequest")] {
        for field in schemas[name]["properties"].as_object().unwrap().keys() {
            for value in kinds() {
                let mut body = chat(field, value.clone());
                if path == "completions" {
                    body = json!({ "prompt": "Hi!" });
                    body[field] = value;
                }
                let text = body.to_string();
                let read = match path {
                    "chat" => read::<ChatRequest>(text.as_bytes(), &strict()).map(drop),
                    _ => read::<CompletionRequest>(text.as_bytes(), &strict()).map(drop),
                };
                if read.is_err() {
                    let error = error_of(path, &body);
                    let param = error.param.unwrap_or_default();
                    assert!(param.starts_with(field.as_str()), "{body}: {param}");
                    provoked += 1;
                }
            }
        }
    }
    assert!(provoked > 300, "{provoked} errors");
}

#[test]
fn what_is_right_is_read() {
    let body = json!({
        "messages": [
            { "role": "system", "content": [{ "type": "text", "text": "Be " }, { "type": "text", "text": "brief." }] },
            { "role": "assistant", "content": null, "tool_calls": [
                { "id": "a", "type": "function", "function": { "name": "f", "arguments": "{}" } } ] },
        ],
        "stop": "x", "n": null, "temperature": 1, "max_tokens": -1, "logit_bias": { "1": 2 },
        "tool_choice": { "type": "function", "function": { "name": "f" } },
        "tools": [{ "type": "function", "function": { "name": "f", "parameters": { "b": 1, "a": [2.5, null] } } }],
        "response_format": { "type": "json_object" },
    });
    let request: ChatRequest = read(body.to_string().as_bytes(), &strict()).unwrap();
    assert_eq!(request.messages[0].content.as_ref().unwrap().text(), "Be brief.");
    assert_eq!(request.temperature, Some(1.0));
    let tools = serde_json::to_value(request.tools.unwrap()).unwrap();
    assert_eq!(tools, body["tools"]);
    for prompt in [json!("a"), json!(["a", "b"]), json!([1, 2]), json!([[1], []]), json!([])] {
        read::<CompletionRequest>(json!({ "prompt": prompt }).to_string().as_bytes(), &strict())
            .unwrap();
    }
}
