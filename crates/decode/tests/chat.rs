//! Chat templates as a user of the crate sees them.
//!
//! `templates/expected` holds what Python's Jinja makes of each template in the environment that
//! transformers sets up; `templates/expect.py` wrote it (jinja2 3.1.6, after transformers 5.22).
//! `smollm2.jinja` is `tokenizer.chat_template` of SmolLM2-135M-Instruct's GGUF file, to the byte
//! (Apache-2.0); the others are our words for formats that their makers document.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

use std::time::{Duration, SystemTime};

use forerun_decode::{ChatError, ChatOptions, ChatTemplate, Fields, Message};
use serde::{Deserialize, Serialize};

/// A JSON value whose fields have an order, as Python's have.
#[derive(Clone)]
enum Json {
    Text(&'static str),
    Number(f64),
    Map(Vec<(&'static str, Json)>),
}

impl Serialize for Json {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => text.serialize(serializer),
            Self::Number(number) => number.serialize(serializer),
            Self::Map(pairs) => {
                serializer.collect_map(pairs.iter().map(|(key, value)| (key, value)))
            }
        }
    }
}

fn tool() -> Json {
    let of_type = |name| Json::Map(vec![("type", Json::Text(name))]);
    Json::Map(vec![
        ("type", Json::Text("function")),
        (
            "function",
            Json::Map(vec![
                ("name", Json::Text("weather")),
                ("description", Json::Text("Tells the weather's <state> & “temperature”")),
                (
                    "parameters",
                    Json::Map(vec![
                        ("type", Json::Text("object")),
                        (
                            "properties",
                            Json::Map(vec![("city", of_type("string")), ("at", of_type("number"))]),
                        ),
                    ]),
                ),
            ]),
        ),
    ])
}

fn call() -> Json {
    let arguments = vec![("city", Json::Text("Zürich")), ("at", Json::Number(1.5))];
    let function = vec![("name", Json::Text("weather")), ("arguments", Json::Map(arguments))];
    Json::Map(vec![("id", Json::Text("call00001")), ("function", Json::Map(function))])
}

/// The chats of `expect.py`.
fn chat(name: &str) -> (Vec<Message>, ChatOptions) {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_709_200_983);
    let mut options = ChatOptions { now: Some(now), ..ChatOptions::default() };
    let messages = match name {
        "one" => vec![Message::new("user", "Hi!")],
        "turns" => vec![
            Message::new("system", " Be brief.\n"),
            Message::new("user", "\n\tWhat's <b>5 & 6</b>? “é😀”\n"),
            Message::new("assistant", "  11. \n"),
            Message::new("user", "Thanks  "),
        ],
        "closed" => {
            options.add_generation_prompt = false;
            vec![Message::new("user", "Hi!"), Message::new("assistant", "Hello.")]
        }
        "twice" => vec![Message::new("user", "Hi!"), Message::new("user", "Hello?")],
        "tool" => {
            options.fields.set("tools", vec![tool()]);
            let mut calls = Message::new("assistant", "");
            calls.extra.set("tool_calls", vec![call()]);
            let mut says = Message::new("tool", "21 °C");
            says.extra.set("name", "weather");
            says.extra.set("tool_call_id", "call00001");
            vec![Message::new("user", "Is it warm?"), calls, says]
        }
        name => panic!("no chat is called {name}"),
    };
    (messages, options)
}

fn check(template: &ChatTemplate, expected: &str) {
    let mut sections = expected.split("=== ");
    assert_eq!(sections.next(), Some(""));
    let mut count = 0;
    for section in sections {
        let (name, text) = section.split_once('\n').expect("a name");
        let (messages, options) = chat(name);
        let rendered = match template.render(&messages, &options) {
            Ok(prompt) => prompt,
            Err(ChatError::Refused { message, .. }) => format!("refused: {message}"),
            Err(error) => panic!("{name}: {error}"),
        };
        assert_eq!(rendered, text.strip_suffix('\n').expect("a line end"), "chat {name}");
        count += 1;
    }
    assert_eq!(count, 5);
}

macro_rules! renders_as_transformers_does {
    ($($test:ident: $name:literal,)*) => {$(
        #[test]
        fn $test() {
            let source = include_str!(concat!("templates/", $name, ".jinja"));
            let template = ChatTemplate::new(source, Some("<s>"), Some("</s>")).unwrap();
            check(&template, include_str!(concat!("templates/expected/", $name, ".txt")));
        }
    )*};
}

renders_as_transformers_does! {
    smollm2_renders_as_by_transformers: "smollm2",
    llama_renders_as_by_transformers: "llama3.1",
    gemma_renders_as_by_transformers: "gemma2",
    mistral_renders_as_by_transformers: "mistral",
    the_dialect_is_that_of_transformers: "dialect",
}

#[test]
fn every_named_template_renders_as_by_transformers() {
    for name in ChatTemplate::names() {
        let template = ChatTemplate::named(name, Some("<s>"), Some("</s>")).unwrap();
        let path = format!("{}/tests/templates/expected/{name}.txt", env!("CARGO_MANIFEST_DIR"));
        check(&template, &std::fs::read_to_string(path).unwrap());
    }
}

/// Renders a template of no messages.
fn render(source: &str) -> Result<String, ChatError> {
    ChatTemplate::new(source, None, None)?.render(&[], &ChatOptions::default())
}

#[test]
fn a_model_without_a_template_is_told_what_to_do() {
    for source in ["", " \n"] {
        assert_eq!(render(source), Err(ChatError::Missing));
    }
    let error = ChatError::Missing.to_string();
    assert!(
        error.contains("--chat-template") && error.contains("chatml, gemma, llama3"),
        "{error}"
    );
    let error = ChatTemplate::named("chatmal", None, None).unwrap_err();
    assert_eq!(error, ChatError::Unknown { name: "chatmal".into() });
    assert!(error.to_string().ends_with("expected one of chatml, gemma, llama3"), "{error}");
}

#[test]
fn errors_name_the_line() {
    let error = render("fine\n{% for x in %}\n").unwrap_err();
    assert!(matches!(error, ChatError::Malformed { line: 2, .. }), "{error}");

    let error = render("fine\n\n{{ messages[0].content }}").unwrap_err();
    let ChatError::Failed { line: 3, message } = &error else { panic!("{error}") };
    assert!(message.contains("messages[0]"), "{message}");

    let source = "{% macro no(x) %}\n{{ raise_exception(x) }}\n{% endmacro %}\n\n{{ no('never') }}";
    let refused = ChatError::Refused { line: 2, message: "never".into() };
    assert_eq!(render(source), Err(refused));

    let error = render("\n{% include 'chat' %}").unwrap_err();
    let ChatError::Failed { line: 2, message } = &error else { panic!("{error}") };
    assert!(message.contains("recursion limit"), "{message}");

    // A function is undefined where it has nothing to tell.
    let error = render("{{ strftime_now('%Y') }}").unwrap_err();
    assert!(matches!(error, ChatError::Failed { line: 1, .. }), "{error}");
    for source in ["{{ [1, no] | tojson }}", "{{ 1 | tojson(indent=99) }}", "{{ 1 | tojson(x=1) }}"]
    {
        let error = render(source).unwrap_err();
        assert!(matches!(error, ChatError::Failed { line: 1, .. }), "{source}: {error}");
    }
}

#[test]
fn every_rendering_ends() {
    let spin = "{% for x in range(99999) %}{% for x in range(99999) %}{% endfor %}{% endfor %}";
    assert_eq!(render(spin), Err(ChatError::Endless));
    // A turn of the inner loop takes three instructions.
    let turns = |count| {
        let spin = "{% for x in range(COUNT) %}{% for x in range(99999) %}{% endfor %}{% endfor %}";
        render(&spin.replace("COUNT", count))
    };
    assert_eq!((turns("30"), turns("40")), (Ok(String::new()), Err(ChatError::Endless)));
    let flood = "{% set x = 'x' * 1000000 %}{% for i in range(99999) %}{{ x }}{% endfor %}";
    assert_eq!(render(flood), Err(ChatError::Flood));
    let long = |len: usize| render(&format!("{{{{ 'x' * {len} }}}}")).map(|prompt| prompt.len());
    assert_eq!(long(ChatTemplate::PROMPT_MAX), Ok(ChatTemplate::PROMPT_MAX));
    assert_eq!(long(ChatTemplate::PROMPT_MAX + 1), Err(ChatError::Flood));
    for recursion in [
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{% set n = namespace(x=0) %}{% for i in range(999) %}{% set n.x = [n.x] %}{% endfor %}\
         {{ n.x | tojson }}",
    ] {
        let error = render(recursion).unwrap_err();
        assert!(matches!(error, ChatError::Failed { .. }), "{error}");
    }
    let bytes = ChatTemplate::SOURCE_MAX + 1;
    assert_eq!(render(&"x".repeat(bytes)), Err(ChatError::Long { bytes }));
    assert_eq!(render(&"x".repeat(bytes - 1)).unwrap().len(), bytes - 1);
}

#[test]
fn a_panic_of_the_library_is_an_error() {
    // A bug of minijinja 3.0.5. Where this fails it is fixed, and another must stand in.
    assert_eq!(render("{{ ''[::-1] }}"), Err(ChatError::Broken));
}

#[test]
fn without_a_time_the_prompt_depends_on_the_messages_alone() {
    let source = include_str!("templates/llama3.1.jinja");
    let template = ChatTemplate::new(source, None, None).unwrap();
    let prompt = template.render(&[Message::new("user", "Hi!")], &ChatOptions::default()).unwrap();
    assert!(prompt.contains("Today Date: 26 Jul 2024\n"), "{prompt}");
    assert!(prompt.starts_with("<|start_header_id|>"), "{prompt}");
}

#[test]
fn fields_reach_the_template_and_replace_nothing() {
    let source = "{{ tools }} {{ messages | length }} {{ bos_token }} {{ add_generation_prompt }} \
                  {{ enable_thinking }} {{ strftime_now is defined }}";
    let template = ChatTemplate::new(source, Some("<s>"), None).unwrap();
    let mut options = ChatOptions::default();
    for name in ["messages", "bos_token", "add_generation_prompt", "strftime_now"] {
        options.fields.set(name, "mine");
    }
    options.fields.set("enable_thinking", false);
    let messages = [Message::new("user", "Hi!")];
    assert_eq!(template.render(&messages, &options).unwrap(), "None 1 <s> True False False");
    options.fields.set("tools", vec!["mine"]);
    assert_eq!(template.render(&messages, &options).unwrap(), "['mine'] 1 <s> True False False");
}

#[test]
fn a_message_keeps_the_fields_it_was_read_with() {
    let mut message = Message::new("assistant", "");
    message.extra.set("tool_calls", vec![call()]);
    message.extra.set("refusal", ());
    // Any format does; this one is at hand.
    let value = minijinja::Value::from(minijinja::value::Serde(&message));
    assert_eq!(value.get_attr("role").unwrap().as_str(), Some("assistant"));
    let read = Message::deserialize(value).unwrap();
    assert_eq!(read, message);
    let template = ChatTemplate::new("{{ messages[0] | tojson }}", None, None).unwrap();
    assert_eq!(
        template.render(&[read], &ChatOptions::default()).unwrap(),
        r#"{"role": "assistant", "content": "", "refusal": null, "tool_calls": [{"id": "call00001", "function": {"name": "weather", "arguments": {"city": "Zürich", "at": 1.5}}}]}"#
    );
    assert!(!message.extra.is_empty() && Fields::default().is_empty());

    let mut message = Message::new("user", "Hi!");
    message.extra.set("role", "system");
    let prompt = template.render(&[message], &ChatOptions::default()).unwrap();
    assert_eq!(prompt, r#"{"role": "user", "content": "Hi!"}"#);
}

#[test]
fn generation_blocks_are_scopes_and_nothing_else_is() {
    for (source, expected) in [
        ("a {%- generation -%} b {%+endgeneration+%} c", "ab  c"),
        ("{% generation%}{% generation %}{%endgeneration%}{% endgeneration %}", ""),
        ("{% set generation = 1 %}{% if generation %}{{ generation }}{% endif %}", "1"),
        ("{{ '{% generations %}{% generation' }}", "{% generations %}{% generation"),
    ] {
        assert_eq!(render(source).as_deref(), Ok(expected), "{source}");
    }
}

#[test]
fn a_template_can_be_shared() {
    fn shared<T: Clone + Send + Sync + 'static>(_: &T) {}
    shared(&ChatTemplate::named("chatml", None, None).unwrap());
}
