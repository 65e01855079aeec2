//! OpenAI's Responses API over the toy engine.

use super::*;

const RESPONSES: &str = "/v1/responses";

/// A conversation of 9 prompt tokens and 12 of output.
fn asked(more: Value) -> Value {
    let own = json!({ "model": "gpt", "input": "abc", "max_output_tokens": 12, "seed": 5 });
    with(own, more)
}

/// The events of a stream, numbered from 0.
fn numbered(reply: &Reply) -> Vec<Value> {
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.text);
    let event = |text: &str| -> Option<Value> {
        let (name, data) = text.strip_prefix("event: ")?.split_once("\ndata: ")?;
        let event: Value = serde_json::from_str(data).unwrap();
        assert_eq!(event["type"], name);
        Some(event)
    };
    let events: Vec<Value> = reply.text.split("\n\n").filter_map(event).collect();
    assert!((0..).zip(&events).all(|(number, event)| event["sequence_number"] == number));
    events
}

fn tools() -> Value {
    let parameters = json!({
        "type": "object",
        "properties": { "side": { "enum": ["left", "right"] } },
        "required": ["side"],
        "additionalProperties": false,
    });
    json!([
        { "type": "function", "name": "go", "parameters": parameters, "strict": true },
        { "type": "web_search" },
    ])
}

#[tokio::test]
async fn a_response_has_openais_fields_and_the_text_of_a_chat() {
    let api = Api::new();
    let chat = api.ok(CHAT, chat(json!({ "ignore_eos": null }))).await;
    let response = api.ok(RESPONSES, asked(json!({ "metadata": { "a": "b" } }))).await;
    assert!(response["id"].as_str().unwrap().starts_with("resp_"), "{response}");
    assert_eq!((&response["object"], &response["model"]), (&json!("response"), &json!("toy")));
    assert_eq!(response["status"], "incomplete");
    assert_eq!(response["incomplete_details"]["reason"], "max_output_tokens");
    let message = &response["output"][0];
    assert_eq!((&message["type"], &message["role"]), (&json!("message"), &json!("assistant")));
    assert_eq!(message["content"][0]["text"], text(&chat));
    assert_eq!(response["metadata"]["a"], "b");
    assert_eq!(response["usage"]["total_tokens"], 21);
    let end = json!({ "temperature": 0, "text": { "format": { "type": "json_schema", "name": "a",
        "schema": { "enum": [1] } } } });
    let done = api.ok(RESPONSES, asked(end)).await;
    assert_eq!(
        (&done["status"], &done["output"][0]["content"][0]["text"]),
        (&json!("completed"), &json!("1"))
    );
}

#[tokio::test]
async fn a_stream_has_the_same_response_in_events() {
    let api = Api::new();
    let whole = api.ok(RESPONSES, asked(json!({}))).await;
    let events = numbered(&api.post(RESPONSES, asked(json!({ "stream": true }))).await);
    let names: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(
        &names[..5],
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
        ]
    );
    assert_eq!(
        &names[names.len() - 4..],
        [
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.incomplete",
        ]
    );
    let said = &whole["output"][0]["content"][0]["text"];
    assert_eq!(*said, joined(&events, "/delta"));
    let last = &events.last().unwrap()["response"];
    assert_eq!(last["output"][0]["content"][0]["text"], *said);
    assert_eq!(last["output"][0]["id"], events[2]["item"]["id"]);
    assert_eq!(last["usage"]["total_tokens"], whole["usage"]["total_tokens"]);
}

#[tokio::test]
async fn a_function_is_called_by_its_schema() {
    let api = Api::with(|config| config.body_max = 1 << 20);
    let own = json!({ "tools": tools(), "tool_choice": "required", "max_output_tokens": 300,
        "parallel_tool_calls": false });
    let reply = api.post(RESPONSES, asked(own.clone())).await;
    assert_eq!(reply.headers["forerun-ignored"], "tools[].type");
    let response = reply.json();
    let call = &response["output"][0];
    assert_eq!(
        (&call["type"], &call["name"]),
        (&json!("function_call"), &json!("go")),
        "{response}"
    );
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!(arguments["side"] == "left" || arguments["side"] == "right", "{call}");
    let named = json!({ "tool_choice": { "type": "function", "name": "go" }, "stream": true });
    let events = numbered(&api.post(RESPONSES, asked(with(own, named))).await);
    let done = events.iter().find(|it| it["type"] == "response.function_call_arguments.done");
    assert_eq!(done.unwrap()["arguments"], joined(&events, "/delta"));
    assert_eq!(
        events.last().unwrap()["response"]["output"][0]["arguments"],
        joined(&events, "/delta")
    );
    let added = events.iter().find(|it| it["type"] == "response.output_item.added").unwrap();
    let item = &events.last().unwrap()["response"]["output"][0];
    assert_eq!(added["item"]["call_id"], item["call_id"]);
}

#[tokio::test]
async fn items_are_a_conversation() {
    let api = Api::new();
    let input = json!([
        { "role": "developer", "content": "d" },
        { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "a" }] },
        { "type": "reasoning", "id": "r", "summary": [{ "type": "summary_text", "text": "t" }] },
        { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "b" }] },
        { "type": "function_call", "call_id": "x", "name": "f", "arguments": "{\"k\":1}" },
        { "type": "function_call_output", "call_id": "x", "output": "r" },
        { "type": "web_search_call", "id": "w" },
        { "role": "user", "content": "c" },
    ]);
    let call = "<tool_call>{\"name\":\"f\",\"arguments\":{\"k\":1}}</tool_call>";
    let prompt = format!("[system]s[system]d[user]a[assistant]b{call}[tool]r[user]c");
    let body = asked(json!({ "input": input, "instructions": "s", "max_output_tokens": 1 }));
    let reply = api.post(RESPONSES, body).await;
    assert_eq!(reply.json()["usage"]["input_tokens"], prompt.len(), "{}", reply.text);
    assert_eq!(reply.headers["forerun-ignored"], "input[].type");
}

#[tokio::test]
async fn what_is_not_stored_or_read_is_refused() {
    let api = Api::new();
    for (more, param) in [
        (json!({ "previous_response_id": "resp_1" }), "previous_response_id"),
        (json!({ "conversation": "c" }), "conversation"),
        (json!({ "background": true }), "background"),
        (json!({ "input": 1 }), "input"),
        (json!({ "input": [] }), "messages"),
        (
            json!({ "input": [{ "role": "user", "content": [{ "type": "input_image" }] }] }),
            "input[0].content[0].type",
        ),
        (json!({ "input": [{ "type": "item_reference", "id": "a" }] }), "input[0].type"),
        (json!({ "input": [{ "type": "function_call", "name": "f" }] }), "input[0].arguments"),
        (json!({ "tools": [{}] }), "tools[0].type"),
        (json!({ "tool_choice": { "type": "x" } }), "tool_choice"),
    ] {
        let error = api.error(RESPONSES, asked(more), 400).await;
        assert_eq!(error["param"], param, "{error}");
    }
    let reply = api.post(RESPONSES, asked(json!({ "store": true, "truncation": "auto" }))).await;
    let ignored = reply.headers["forerun-ignored"].to_str().unwrap();
    assert!(ignored.contains("store") && ignored.contains("truncation"), "{ignored}");
}
