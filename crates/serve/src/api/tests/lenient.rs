//! Fields that clients send beside those that the server has: which are honoured, which change
//! nothing, which are named, and which are refused.

use super::*;

/// What becomes of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It does what it says: see the tests of its effect.
    Honoured,
    /// Nothing depends on it.
    Harmless,
    /// The output does not depend on it, and the client is told.
    Named,
    /// It would change the output.
    Refused,
}

use Fate::{Harmless, Honoured, Named, Refused};

/// Fields that clients send beside OpenAI's first ones, with a value as they send it.
fn fields() -> [(&'static str, Value, Fate); 42] {
    [
        ("reasoning_effort", json!("low"), Named), // The toy's template does not read it.
        ("enable_thinking", json!(false), Named),
        ("chat_template_kwargs", json!({ "suffix": "" }), Honoured),
        ("modalities", json!(["text"]), Honoured),
        ("n_predict", json!(4), Honoured),
        ("stop_token_ids", json!([]), Honoured),
        ("min_tokens", json!(0), Honoured),
        ("max_completion_tokens", json!(12), Honoured),
        ("guided_choice", json!(null), Honoured),
        ("top_k", json!(0), Honoured),
        ("min_p", json!(0), Honoured),
        ("repetition_penalty", json!(1), Honoured),
        ("parallel_tool_calls", json!(true), Honoured),
        ("store", json!(true), Named),
        ("metadata", json!({ "a": "b" }), Harmless),
        ("user", json!("me"), Harmless),
        ("service_tier", json!("auto"), Harmless),
        ("prompt_cache_key", json!("a"), Harmless),
        ("prompt_cache_retention", json!("24h"), Harmless),
        ("safety_identifier", json!("a"), Harmless),
        ("priority", json!(1), Harmless),
        ("request_id", json!("a"), Harmless),
        ("keep_alive", json!("5m"), Harmless),
        ("client_metadata", json!({ "a": "b" }), Harmless),
        ("verbosity", json!("low"), Named),
        ("stream_options", json!({ "include_usage": true }), Named),
        ("skip_special_tokens", json!(true), Named),
        ("prompt_logprobs", json!(1), Named),
        ("provider", json!({ "order": [] }), Named),
        ("transforms", json!([]), Named),
        ("mirostat", json!(0), Harmless),
        ("dry_multiplier", json!(0.0), Harmless),
        ("xtc_probability", json!(0.5), Refused),
        ("top_n_sigma", json!(-1), Harmless),
        ("top_a", json!(0.2), Refused),
        ("best_of", json!(1), Harmless),
        ("use_beam_search", json!(true), Refused),
        ("echo", json!(false), Harmless),
        ("suffix", json!(null), Harmless),
        ("bad_words", json!(["a"]), Refused),
        ("function_call", json!("auto"), Refused),
        ("audio", json!({ "voice": "a" }), Refused),
    ]
}

fn ignored(reply: &Reply) -> Option<&str> {
    reply.headers.get("forerun-ignored").map(|it| it.to_str().unwrap())
}

#[tokio::test]
async fn no_field_is_refused_that_a_client_needs() {
    let api = Api::new();
    let plain = api.ok(CHAT, chat(json!({}))).await;
    for (name, value, fate) in fields() {
        let reply = api.post(CHAT, chat(json!({ name: value }))).await;
        if fate == Refused {
            let error = reply.error(400);
            assert_eq!(error["param"], name);
            assert!(error["message"].as_str().unwrap().contains("leave it out"), "{error}");
            continue;
        }
        assert_eq!(reply.status, StatusCode::OK, "{name}: {}", reply.text);
        assert_eq!(ignored(&reply), (fate == Named).then_some(name), "{name}");
        assert_eq!(text(&reply.json()), text(&plain), "{name} changes the output");
    }
    let refused = fields().iter().filter(|(.., fate)| *fate == Refused).count();
    assert_eq!(refused, 6);
}

#[tokio::test]
async fn a_strict_server_rejects_what_it_does_not_honour() {
    let api = Api::with(|config| config.strict = true);
    let accepted = ["metadata", "user"];
    for (name, value, fate) in fields() {
        let reply = api.post(CHAT, chat(json!({ name: value }))).await;
        let expected = if fate == Honoured || accepted.contains(&name) { 200 } else { 400 };
        assert_eq!(reply.status.as_u16(), expected, "{name}: {}", reply.text);
        assert_eq!(ignored(&reply), None, "{name}");
        if expected == 400 {
            assert_eq!(reply.error(400)["param"], name);
        }
    }
}

#[tokio::test]
async fn a_field_that_changes_nothing_is_taken_and_one_that_does_is_refused() {
    let api = Api::new();
    for (name, neutral, other) in [
        ("mirostat", json!(0), json!(2)),
        ("dry_multiplier", json!(0.0), json!(0.8)),
        ("top_n_sigma", json!(-1), json!(1.5)),
        ("length_penalty", json!(1), json!(1.2)),
        ("use_beam_search", json!(false), json!(true)),
        ("add_generation_prompt", json!(true), json!(false)),
        ("suffix", json!(""), json!("end")),
        ("logits_processors", json!([]), json!(["a"])),
        ("documents", json!(null), json!([{ "text": "a" }])),
        ("web_search_options", json!(null), json!({})),
    ] {
        for (path, body) in [(COMPLETIONS, completion(json!({}))), (CHAT, chat(json!({})))] {
            let reply = api.post(path, with(body.clone(), json!({ name: neutral }))).await;
            assert_eq!((reply.status, ignored(&reply)), (StatusCode::OK, None), "{name}");
            let error = api.error(path, with(body, json!({ name: other })), 400).await;
            assert_eq!(error["param"], name);
            assert!(error["message"].as_str().unwrap().contains("changes the output"), "{error}");
        }
    }
}

#[tokio::test]
async fn what_the_output_must_be_is_read_whole_or_not_at_all() {
    let api = Api::new();
    for (more, param) in [
        (json!({ "structured_outputs": { "structural_tag": "a" } }), "structural_tag"),
        (json!({ "response_format": { "type": "text", "grammar": "a" } }), "grammar"),
        (json!({ "speculative": { "size": 3 } }), "size"),
    ] {
        let error = api.error(CHAT, chat(more), 400).await;
        assert!(error["param"].as_str().unwrap().ends_with(param), "{error}");
    }
}

#[tokio::test]
async fn what_is_ignored_is_named_by_its_path_once_and_shortly() {
    let api = Api::with(|config| config.body_max = 1 << 20);
    let message = json!({ "role": "user", "content": "abc", "mood": 1, "id": "x" });
    let part = json!({ "type": "text", "text": "d", "cache_control": {}, "weight": 2 });
    let parts = json!({ "role": "user", "content": [part] });
    let messages = json!([message, message, parts]);
    let reply = api.post(CHAT, chat(json!({ "messages": messages, "max_tokenz": 0 }))).await;
    let named: Vec<&str> = ignored(&reply).unwrap().split(", ").collect();
    assert_eq!(named.len(), 3, "{named:?}");
    for name in ["messages[].mood", "messages[].content[].weight", "max_tokenz"] {
        assert!(named.contains(&name), "{named:?}");
    }
    // A stream has the header too, and a client's names cannot break it.
    let odd = json!({ "stream": true, "a,b\r\nc\u{e9}": 1 });
    let reply = api.post(CHAT, chat(odd)).await;
    assert_eq!(ignored(&reply), Some("a?b??c?"));
    let many: serde_json::Map<String, Value> =
        (0..1000).map(|id| (format!("field_{id}"), json!(1))).collect();
    let reply = api.post(COMPLETIONS, with(completion(json!({})), json!(many))).await;
    let named = ignored(&reply).unwrap();
    assert!(named.len() < 1000 && named.contains(" more"), "{named}");
}

#[tokio::test]
async fn thoughts_in_a_history_go_to_the_template() {
    let api = Api::new();
    let prompt = async |message: Value| {
        let kwargs = json!({ "thoughts": true });
        let body = json!({ "messages": [message], "chat_template_kwargs": kwargs });
        api.ok("/apply-template", body).await["prompt"].as_str().unwrap().to_owned()
    };
    let parts = json!([{ "type": "thinking", "thinking": "hm" }, { "type": "text", "text": "so" }]);
    for message in [
        json!({ "role": "assistant", "content": "so", "reasoning_content": "hm" }),
        json!({ "role": "assistant", "content": "so", "reasoning": "hm" }),
        json!({ "role": "assistant", "content": "so", "reasoning": "other", "reasoning_content": "hm" }),
        json!({ "role": "assistant", "content": parts }),
    ] {
        assert_eq!(prompt(message.clone()).await, "[assistant](hm)so", "{message}");
    }
    let message = json!({ "role": "assistant", "content": "so", "reasoning": { "a": 1 } });
    assert_eq!(prompt(message).await, "[assistant]so");
    let refusal = json!([{ "type": "refusal", "refusal": "no" }]);
    let message = json!({ "role": "assistant", "content": refusal });
    assert_eq!(prompt(message).await, "[assistant]no");
}

#[tokio::test]
async fn reasoning_is_set_where_the_template_reads_it() {
    let source = "{{ messages[0].content }}{% if reasoning_effort %}:{{ reasoning_effort }}{% endif %}\
                  {% if enable_thinking is false %}:off{% endif %}";
    let api = Api::templated(source, |_| {});
    for (more, prompt) in [
        (json!({}), "abc"),
        (json!({ "reasoning_effort": "low" }), "abc:low"),
        (json!({ "reasoning": { "effort": "high" } }), "abc:high"),
        (json!({ "reasoning_effort": "none" }), "abc:none:off"),
        (json!({ "enable_thinking": false }), "abc:off"),
        (
            json!({ "reasoning_effort": "low", "chat_template_kwargs": { "reasoning_effort": "x" } }),
            "abc:x",
        ),
    ] {
        let reply = api.post(CHAT, chat(more.clone())).await;
        assert_eq!(ignored(&reply), None, "{more}");
        assert_eq!(reply.json()["usage"]["prompt_tokens"], prompt.len(), "{more}");
    }
    // One that can only turn thinking off honours no effort but none.
    let api = Api::templated("abc{% if enable_thinking is false %}:off{% endif %}", |_| {});
    for (effort, named) in [("none", None), ("low", Some("reasoning_effort"))] {
        let reply = api.post(CHAT, chat(json!({ "reasoning_effort": effort }))).await;
        assert_eq!(ignored(&reply), named);
    }
}

#[tokio::test]
async fn parts_that_are_not_read_are_named() {
    let api = Api::new();
    for (kind, what) in [("image_url", "images"), ("input_audio", "sound"), ("file", "files")] {
        let content = json!([{ "type": "text", "text": "a" }, { "type": kind, kind: {} }]);
        let messages = json!([{ "role": "user", "content": content }]);
        let error = api.error(CHAT, chat(json!({ "messages": messages })), 400).await;
        assert_eq!(error["param"], "messages[0].content[1].type");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(what) && message.contains("leave this part out"), "{message}");
    }
    let messages = json!([{ "role": "user", "content": [{ "type": "text" }] }]);
    let error = api.error(CHAT, chat(json!({ "messages": messages })), 400).await;
    assert_eq!(error["param"], "messages[0].content[0].text");
}

#[tokio::test]
async fn schemas_come_by_other_names_too() {
    let api = Api::new();
    let schema = json!({ "enum": ["left", "right"] });
    let own = json!({ "max_tokens": 50, "ignore_eos": false });
    for more in [
        json!({ "guided_json": schema }),
        json!({ "guided_regex": "\"(left|right)\"" }),
        json!({ "guided_choice": ["\"left\"", "\"right\""] }),
        json!({ "guided_grammar": "start: \"\\\"left\\\"\" | \"\\\"right\\\"\"" }),
        json!({ "response_format": { "type": "json_object", "schema": schema } }),
    ] {
        let response = api.ok(COMPLETIONS, completion(with(own.clone(), more.clone()))).await;
        assert!(["\"left\"", "\"right\""].contains(&text(&response)), "{more}: {response}");
    }
    let format = json!({ "type": "text", "schema": schema });
    let error = api.error(CHAT, chat(json!({ "response_format": format })), 400).await;
    assert_eq!(error["param"], "response_format.schema");
}

#[tokio::test]
async fn templates_that_want_turns_to_alternate_get_them() {
    let source = "{% for message in messages %}\
                  {% if message.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif %}\
                  {% if loop.previtem and loop.previtem.role == message.role %}{{ raise_exception('twice') }}{% endif %}\
                  [{{ message.role }}]{{ message.content }}{% endfor %}";
    let said = |role: &str, text: &str| json!({ "role": role, "content": text });
    let prompt = async |api: &Api, messages: Value| {
        let reply = api.post("/apply-template", json!({ "messages": messages })).await;
        (reply.status.as_u16(), reply.text)
    };
    let strict = Api::templated(source, |_| {});
    let as_codex = json!([
        said("developer", "a"),
        said("developer", "b"),
        said("user", "c"),
        said("user", "d")
    ]);
    let (status, text) = prompt(&strict, as_codex.clone()).await;
    assert!(status == 200 && text.contains(r"[system]a\n\nb[user]c\n\nd"), "{text}");
    let as_claude = json!([
        said("system", "a"),
        said("user", "b"),
        said("system", "c"),
        said("assistant", "d")
    ]);
    let (status, text) = prompt(&strict, as_claude).await;
    assert!(status == 200 && text.contains(r"[system]a[user]b\n\nc[assistant]d"), "{text}");
    // What cannot be helped is said in the template's words, and other templates get what was sent.
    let twice = json!([said("user", "a"), said("assistant", "b"), said("assistant", "c")]);
    let (status, text) = prompt(&strict, twice).await;
    assert!(status == 400 && text.contains("twice"), "{text}");
    let (_, text) = prompt(&Api::new(), as_codex).await;
    assert!(text.contains("[system]a[system]b[user]c[user]d"), "{text}");
}
