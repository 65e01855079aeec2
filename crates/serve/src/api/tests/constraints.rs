//! Output that follows a schema, a grammar, an expression or a list of choices.

use super::*;

/// A completion of up to 200 tokens that may end.
fn constrained(more: Value) -> Value {
    let own = json!({ "max_tokens": 200, "ignore_eos": false });
    completion(with(own, more))
}

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": { "color": { "enum": ["red", "green"] }, "count": { "enum": [1, 2, 3] } },
        "required": ["color", "count"],
        "additionalProperties": false,
    })
}

#[tokio::test]
async fn a_schema_is_followed_by_whatever_field_it_comes() {
    let (api, lossy_api) = (Api::new(), Api::lossy(0.1));
    let named = json!({ "name": "a", "schema": schema(), "strict": true });
    for more in [
        json!({ "response_format": { "type": "json_schema", "json_schema": named } }),
        json!({ "json_schema": schema() }),
        json!({ "structured_outputs": { "json": schema() } }),
    ] {
        for seed in 0..5 {
            let body = constrained(with(more.clone(), json!({ "seed": seed })));
            let response = api.ok(COMPLETIONS, body.clone()).await;
            let value: Value = serde_json::from_str(text(&response)).unwrap();
            assert!(value["color"] == "red" || value["color"] == "green", "{value}");
            assert!((1..=3).contains(&value["count"].as_u64().unwrap()), "{value}");
            assert_eq!(response["choices"][0]["finish_reason"], "stop");
            // Drafts change nothing.
            let plain = with(body.clone(), json!({ "speculative": { "enabled": false } }));
            assert_eq!(text(&api.ok(COMPLETIONS, plain).await), text(&response));
            // With loss it is another value, and a valid one.
            let lossy = json!({ "mode": "account", "per_token": 0.1 });
            let speculative = json!({ "rule": "block", "lossy": lossy });
            let response =
                lossy_api.ok(COMPLETIONS, with(body, json!({ "speculative": speculative })));
            let value: Value = serde_json::from_str(text(&response.await)).unwrap();
            assert!(value["color"] == "red" || value["color"] == "green", "{value}");
        }
    }
    assert_eq!(api.metric("forerun:grammar_cache_queries_total").await, 30.0);
    assert_eq!(api.metric("forerun:grammar_cache_hits_total").await, 29.0);
}

#[tokio::test]
async fn chats_follow_their_response_format() {
    let api = Api::new();
    let named = json!({ "name": "a", "schema": schema() });
    let format = json!({ "type": "json_schema", "json_schema": named });
    let own = json!({ "max_tokens": 200, "ignore_eos": false });
    let body =
        chat(with(own.clone(), json!({ "response_format": format, "stream": true, "n": 2 })));
    let chunks = api.post(CHAT, body).await.chunks();
    for index in 0..2 {
        let own: Vec<Value> =
            chunks.iter().filter(|it| it["choices"][0]["index"] == index).cloned().collect();
        let value: Value = serde_json::from_str(&joined(&own, "/choices/0/delta/content")).unwrap();
        assert_eq!(value.as_object().unwrap().len(), 2, "{value}");
    }
    let object = chat(with(own.clone(), json!({ "response_format": { "type": "json_object" } })));
    assert!(text(&api.ok(CHAT, object).await).starts_with('{'));
    let any = chat(json!({ "response_format": { "type": "text" } }));
    assert_eq!(text(&api.ok(CHAT, any).await), text(&api.ok(CHAT, chat(json!({}))).await));
}

fn tools() -> Value {
    let parameters = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    json!([{ "type": "function", "function": { "name": "go", "parameters": parameters } }])
}

#[tokio::test]
async fn an_answer_with_a_format_may_be_a_call() {
    let api = Api::new();
    let named = json!({ "name": "a", "schema": schema() });
    let format = json!({ "type": "json_schema", "json_schema": named });
    let own = json!({ "max_tokens": 300, "ignore_eos": false, "temperature": 1.5 });
    let tools = json!({ "tools": tools(), "parallel_tool_calls": false });
    let body = chat(with(with(own, tools), json!({ "response_format": format })));
    let (mut calls, mut answers) = (0, 0);
    for seed in 0..60 {
        let response = api.ok(CHAT, with(body.clone(), json!({ "seed": seed }))).await;
        let message = &response["choices"][0]["message"];
        if message["tool_calls"].is_null() {
            let value: Value = serde_json::from_str(text(&response)).unwrap();
            assert_eq!(value.as_object().unwrap().len(), 2, "{value}");
            answers += 1;
        } else {
            assert_eq!(message["tool_calls"][0]["function"]["name"], "go", "{message}");
            calls += 1;
        }
    }
    assert!(calls > 0 && answers > 0, "{calls} calls, {answers} answers");
    // A call that must be made has no other form, and none is missing.
    let required = json!({ "tool_choice": "required" });
    let response = api.ok(CHAT, with(body.clone(), required.clone())).await;
    assert_eq!(response["choices"][0]["finish_reason"], "tool_calls");
    let grammar = json!({ "response_format": null, "grammar": "root ::= \"a\"" });
    let error = api.error(CHAT, with(with(body, required), grammar), 400).await;
    assert_eq!(error["param"], "response_format");
}

#[tokio::test]
async fn a_form_begins_where_a_thought_ends() {
    // The prompt ends inside a thought.
    let source = "{% for message in messages %}{% if message.reasoning_content %}\
                  <t>{{ message.reasoning_content }}</t>{% endif %}{{ message.content }}{% endfor %}\
                  {% if add_generation_prompt %}<t>{% endif %}";
    let api = Api::templated(source, |_| {});
    let named = json!({ "name": "a", "schema": schema() });
    for more in [
        json!({ "response_format": { "type": "json_schema", "json_schema": named } }),
        json!({ "json_schema": schema() }),
        json!({ "response_format": { "type": "json_schema", "json_schema": named }, "tools": [] }),
    ] {
        let own = json!({ "max_tokens": 40, "ignore_eos": false, "stream": true });
        let body = chat(with(own, more));
        let chunks = api.post(CHAT, body.clone()).await.chunks();
        let thought = joined(&chunks, "/choices/0/delta/reasoning_content");
        assert!(!thought.starts_with('{') && thought.len() > 20, "{thought}");
        assert_eq!(joined(&chunks, "/choices/0/delta/content"), "");
        // The same, once the thought is over.
        let over = api.ok("/tokenize", json!({ "content": "so</t>" })).await["tokens"].take();
        let rest = json!({ "resume_token_ids": over, "max_tokens": 200 });
        let chunks = api.post(CHAT, with(body, rest)).await.chunks();
        let said = joined(&chunks, "/choices/0/delta/content");
        let value: Value = serde_json::from_str(&said).unwrap();
        assert_eq!(value.as_object().unwrap().len(), 2, "{value}");
    }
}

#[tokio::test]
async fn grammars_expressions_and_choices_are_followed() {
    let api = Api::new();
    for (more, allowed) in [
        (json!({ "grammar": "root ::= \"yes\" | \"no\"" }), ["yes", "no"]),
        (json!({ "structured_outputs": { "grammar": "start: \"yes\" | \"no\"" } }), ["yes", "no"]),
        (json!({ "structured_outputs": { "regex": "a(b|c)c" } }), ["abc", "acc"]),
        (json!({ "structured_outputs": { "choice": ["left", "right"] } }), ["left", "right"]),
    ] {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..16 {
            let own = json!({ "seed": seed, "prompt": format!("{seed}") });
            let body = constrained(with(more.clone(), own));
            let response = api.ok(COMPLETIONS, body).await;
            assert!(allowed.contains(&text(&response)), "{response}");
            seen.insert(text(&response).to_owned());
        }
        assert_eq!(seen.len(), 2, "{more}");
    }
}

#[tokio::test]
async fn constraints_that_cannot_be_followed_are_rejected() {
    let api = Api::new();
    let format = |format: Value| json!({ "response_format": format });
    let named = json!({ "name": "a", "schema": schema() });
    for (more, param) in [
        (format(json!({ "type": "json_schema" })), json!("response_format.json_schema")),
        (
            format(json!({ "type": "text", "json_schema": named })),
            json!("response_format.json_schema"),
        ),
        (json!({ "grammar": "root ::= \"a\"", "json_schema": {} }), json!("response_format")),
        (
            json!({ "structured_outputs": { "regex": "a", "choice": ["b"] } }),
            json!("response_format"),
        ),
        (json!({ "structured_outputs": { "regex": "[a" } }), Value::Null),
        (json!({ "structured_outputs": { "choice": [] } }), Value::Null),
        (json!({ "grammar": "root ::= missing" }), Value::Null),
        (json!({ "json_schema": { "type": "nothing" } }), Value::Null),
    ] {
        for (path, body) in [(COMPLETIONS, completion(more.clone())), (CHAT, chat(more))] {
            let error = api.error(path, body, 400).await;
            assert_eq!(error["param"], param, "{error}");
        }
    }
}
