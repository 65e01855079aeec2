//! Anthropic's Messages API over the toy engine.

use super::*;

const MESSAGES: &str = "/v1/messages";

/// A conversation of 9 prompt tokens and 12 of output.
fn asked(more: Value) -> Value {
    let messages = json!([{ "role": "user", "content": "abc" }]);
    let own = json!({ "model": "claude", "messages": messages, "max_tokens": 12, "seed": 5 });
    with(own, more)
}

/// The events of a stream: their names and objects.
fn named_events(reply: &Reply) -> Vec<(String, Value)> {
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.text);
    let event = |text: &str| {
        let (name, data) = text.strip_prefix("event: ")?.split_once("\ndata: ")?;
        Some((name.to_owned(), serde_json::from_str(data).unwrap()))
    };
    reply.text.split("\n\n").filter_map(event).collect()
}

fn tools() -> Value {
    let schema = json!({
        "type": "object",
        "properties": { "side": { "enum": ["left", "right"] } },
        "required": ["side"],
        "additionalProperties": false,
    });
    json!([
        { "name": "go", "description": "Goes.", "input_schema": schema, "cache_control": {} },
        { "type": "web_search_20250305", "name": "web_search" },
    ])
}

#[tokio::test]
async fn a_message_has_anthropics_fields_and_the_text_of_a_chat() {
    let api = Api::new();
    let chat = api.ok(CHAT, chat(json!({ "ignore_eos": null }))).await;
    let response = api.ok(MESSAGES, asked(json!({}))).await;
    assert!(response["id"].as_str().unwrap().starts_with("msg_"), "{response}");
    assert_eq!((&response["type"], &response["role"]), (&json!("message"), &json!("assistant")));
    assert_eq!(response["model"], "toy");
    assert_eq!(response["content"], json!([{ "type": "text", "text": text(&chat) }]));
    assert_eq!(response["stop_reason"], "max_tokens");
    let usage = &response["usage"];
    let input = usage["input_tokens"].as_u64().unwrap();
    assert_eq!(input + usage["cache_read_input_tokens"].as_u64().unwrap(), 9);
    assert_eq!(usage["output_tokens"], 12);
    // A stop sequence is named.
    let stop = &text(&chat)[4..6];
    let stopped = api.ok(MESSAGES, asked(json!({ "stop_sequences": [stop] }))).await;
    assert_eq!(
        (&stopped["stop_reason"], &stopped["stop_sequence"]),
        (&json!("stop_sequence"), &json!(stop))
    );
}

#[tokio::test]
async fn a_stream_has_the_same_message_in_events() {
    let api = Api::new();
    let whole = api.ok(MESSAGES, asked(json!({}))).await;
    let reply = api.post(MESSAGES, asked(json!({ "stream": true }))).await;
    let events = named_events(&reply);
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(&names[..3], ["message_start", "content_block_start", "content_block_delta"]);
    let end = ["content_block_stop", "message_delta", "message_stop"];
    assert_eq!(&names[names.len() - 3..], end);
    assert!(events.iter().all(|(name, event)| event["type"] == *name), "{events:?}");
    let deltas: Vec<Value> = events.iter().map(|(_, event)| event.clone()).collect();
    assert_eq!(joined(&deltas, "/delta/text"), whole["content"][0]["text"]);
    assert_eq!(deltas[deltas.len() - 2]["delta"]["stop_reason"], "max_tokens");
    assert_eq!(deltas[deltas.len() - 2]["usage"]["output_tokens"], 12);
}

#[tokio::test]
async fn a_function_is_called_by_its_schema() {
    let api = Api::with(|config| config.body_max = 1 << 20);
    let own = json!({ "tools": tools(), "max_tokens": 300,
        "tool_choice": { "type": "any", "disable_parallel_tool_use": true } });
    let reply = api.post(MESSAGES, asked(own.clone())).await;
    assert_eq!(reply.headers["forerun-ignored"], "tools[].type");
    let response = reply.json();
    assert_eq!(response["stop_reason"], "tool_use", "{response}");
    let call = &response["content"][0];
    assert_eq!((&call["type"], &call["name"]), (&json!("tool_use"), &json!("go")));
    let side = call["input"]["side"].clone();
    assert!(side == "left" || side == "right", "{call}");
    let reply = api.post(MESSAGES, asked(with(own, json!({ "stream": true })))).await;
    let events = named_events(&reply);
    let deltas: Vec<Value> = events.iter().map(|(_, event)| event.clone()).collect();
    let input = joined(&deltas, "/delta/partial_json");
    assert_eq!(serde_json::from_str::<Value>(&input).unwrap()["side"], side);
    let start = &events.iter().find(|(name, _)| name == "content_block_start").unwrap().1;
    assert_eq!(
        (&start["content_block"]["name"], &start["content_block"]["input"]),
        (&json!("go"), &json!({}))
    );
}

#[tokio::test]
async fn a_history_of_blocks_is_a_conversation() {
    let api = Api::new();
    let history = json!([
        { "role": "user", "content": [{ "type": "text", "text": "a", "cache_control": {} }] },
        { "role": "assistant", "content": [
            { "type": "thinking", "thinking": "t", "signature": "s" },
            { "type": "text", "text": "b" },
            { "type": "tool_use", "id": "x", "name": "f", "input": { "k": 1 } },
        ] },
        { "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "x", "content": [{ "type": "text", "text": "r" }] },
            { "type": "text", "text": "c" },
        ] },
    ]);
    let body = json!({ "messages": history, "system": [{ "type": "text", "text": "s" }] });
    let call = "<tool_call>{\"name\":\"f\",\"arguments\":{\"k\":1}}</tool_call>";
    let prompt = format!("[system]s[user]a[assistant]b{call}[tool]r[user]c");
    let counted = api.ok("/v1/messages/count_tokens", body.clone()).await;
    assert_eq!(counted["input_tokens"], prompt.len());
    let response = api.ok(MESSAGES, with(body, json!({ "max_tokens": 1 }))).await;
    let usage = &response["usage"];
    let input = usage["input_tokens"].as_u64().unwrap();
    assert_eq!(input + usage["cache_read_input_tokens"].as_u64().unwrap(), prompt.len() as u64);
}

#[tokio::test]
async fn errors_are_anthropics() {
    let api = Api::new();
    let content = |block: Value| json!({ "messages": [{ "role": "user", "content": [block] }] });
    for (more, word) in [
        (json!({ "messages": [] }), "message"),
        (json!({ "messages": [{ "role": "x", "content": "a" }] }), "messages[0].role"),
        (json!({ "messages": ["a"] }), "messages[0].role"),
        (content(json!({ "type": "image", "source": {} })), "messages[0].content[0].type"),
        (content(json!({ "type": "text" })), "messages[0].content[0].text"),
        (json!({ "system": 1 }), "system"),
        (json!({ "temperature": -1 }), "temperature"),
        (json!({ "tools": [{}] }), "tools[0].name"),
        (json!({ "tool_choice": { "type": "x" } }), "tool_choice.type"),
        (json!({ "tool_choice": { "type": "any" } }), "tools"),
        (json!({ "thinking": { "type": "x" } }), "thinking.type"),
        (json!({ "speculative": { "rule": "none" } }), "rule"),
    ] {
        let reply = api.post(MESSAGES, asked(more.clone())).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{more}: {}", reply.text);
        let error = reply.json();
        assert_eq!(
            (&error["type"], &error["error"]["type"]),
            (&json!("error"), &json!("invalid_request_error"))
        );
        assert!(error["error"]["message"].as_str().unwrap().contains(word), "{more}: {error}");
    }
    let thinking = json!({ "thinking": { "type": "enabled", "budget_tokens": 1024 } });
    let reply = api.post(MESSAGES, asked(thinking)).await;
    assert_eq!(reply.headers["forerun-ignored"], "thinking.budget_tokens, enable_thinking");
}

#[tokio::test]
async fn an_answer_follows_its_format() {
    let api = Api::new();
    let format = json!({ "type": "json_schema", "schema": { "enum": ["left", "right"] } });
    for more in
        [json!({ "output_config": { "format": format } }), json!({ "output_format": format })]
    {
        let response = api.ok(MESSAGES, asked(more.clone())).await;
        let said = response["content"][0]["text"].as_str().unwrap();
        assert!(["\"left\"", "\"right\""].contains(&said), "{more}: {response}");
        assert_eq!(response["stop_reason"], "end_turn");
    }
    let other = json!({ "output_config": { "format": null, "task_budget": { "total": 9 } } });
    let reply = api.post(MESSAGES, asked(other)).await;
    assert_eq!(reply.headers["forerun-ignored"], "output_config.task_budget");
    for (more, word) in [
        (json!({ "output_config": 1 }), "output_config"),
        (json!({ "output_format": { "type": "x" } }), "response_format"),
        (json!({ "output_format": { "type": "json_schema" } }), "schema"),
    ] {
        let reply = api.post(MESSAGES, asked(more.clone())).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{more}: {}", reply.text);
        assert!(reply.text.contains(word), "{more}: {}", reply.text);
    }
}

#[tokio::test]
async fn deferred_tools_are_offered_once_a_result_names_them() {
    let api = Api::with(|config| config.body_max = 1 << 20);
    let tool = |name: &str| json!({ "name": name, "input_schema": {}, "defer_loading": true });
    let found = json!([{ "type": "tool_reference", "tool_name": "far" }]);
    let search = json!({ "type": "tool_use", "id": "x", "name": "search", "input": {} });
    let history = json!([
        { "role": "user", "content": "a" },
        { "role": "assistant", "content": [search] },
        { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "x", "content": found }] },
    ]);
    let choice = |name: &str| json!({ "type": "tool", "name": name });
    let body = |messages: &Value, name: &str| {
        let tools = json!([tool("far"), tool("farther")]);
        asked(
            json!({ "messages": messages, "tools": tools, "tool_choice": choice(name), "max_tokens": 1 }),
        )
    };
    assert_eq!(api.post(MESSAGES, body(&history, "far")).await.status, StatusCode::OK);
    for (messages, name) in [(&history, "farther"), (&json!([history[0]]), "far")] {
        let reply = api.post(MESSAGES, body(messages, name)).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{name}: {}", reply.text);
    }
}
