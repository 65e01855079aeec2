//! Chat completions: messages, chunks, tools.

use super::*;

#[tokio::test]
async fn a_completion_has_openais_fields() {
    let api = Api::new();
    let response = api.ok(CHAT, chat(json!({}))).await;
    assert!(response["id"].as_str().unwrap().starts_with("chatcmpl-"), "{response}");
    assert_eq!(
        (&response["object"], &response["model"]),
        (&json!("chat.completion"), &json!("toy"))
    );
    assert!(response["created"].as_u64().unwrap() > 1_600_000_000);
    let choice = &response["choices"][0];
    assert_eq!((&choice["index"], &choice["finish_reason"]), (&json!(0), &json!("length")));
    assert_eq!((&choice["logprobs"], &choice["message"]["refusal"]), (&Value::Null, &Value::Null));
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!(text(&response).len(), 12);
    let usage = &response["usage"];
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(9), &json!(12)));
    assert_eq!(usage["total_tokens"], 21);
    assert_eq!(response["timings"]["predicted_n"], 12);
    assert_eq!(response["speculative"]["drafters"], json!(["draft-model"]));
    assert_eq!(response["metrics"]["speculative_decoding"]["num_spec_tokens"], 3);
    // Another name of the model is the one in the response.
    let alias = api.ok(CHAT, chat(json!({ "model": "alias" }))).await;
    assert_eq!((&alias["model"], text(&alias)), (&json!("alias"), text(&response)));
    // Any other name is answered to, with the model's own, unless the server is strict.
    let other = api.ok(CHAT, chat(json!({ "model": "other" }))).await;
    assert_eq!((&other["model"], text(&other)), (&json!("toy"), text(&response)));
    let strict = Api::with(|config| config.strict = true);
    let error = strict.error(CHAT, chat(json!({ "model": "other" })), 404).await;
    assert_eq!(error["code"], "model_not_found");
}

#[tokio::test]
async fn a_stream_has_the_same_text_in_chunks() {
    let api = Api::new();
    let whole = api.ok(CHAT, chat(json!({}))).await;
    let reply = api.post(CHAT, chat(json!({ "stream": true }))).await;
    let chunks = reply.chunks();
    assert_eq!(joined(&chunks, "/choices/0/delta/content"), text(&whole));
    let first = &chunks[0]["choices"][0];
    assert_eq!(first["delta"], json!({ "role": "assistant", "content": "" }));
    let last = &chunks.last().unwrap()["choices"][0];
    assert_eq!((&last["delta"], &last["finish_reason"]), (&json!({}), &json!("length")));
    let finished = chunks.iter().filter(|it| !it["choices"][0]["finish_reason"].is_null());
    assert_eq!(finished.count(), 1);
    for chunk in &chunks {
        assert_eq!(
            (&chunk["id"], &chunk["object"]),
            (&chunks[0]["id"], &json!("chat.completion.chunk"))
        );
        assert!(chunk.get("usage").is_none() && chunk.get("timings").is_none(), "{chunk}");
    }
}

#[tokio::test]
async fn usage_comes_at_the_end_or_with_every_chunk() {
    let api = Api::new();
    let options = json!({ "include_usage": true });
    let reply = api.post(CHAT, chat(json!({ "stream": true, "stream_options": options }))).await;
    let (last, others) =
        reply.chunks().split_last().map(|(it, others)| (it.clone(), others.to_vec())).unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["total_tokens"], 21);
    assert!(last["speculative"]["lossless"] == true && last["metrics"].is_object());
    assert!(others.iter().all(|chunk| chunk.get("usage").is_none()));
    let options = json!({ "continuous_usage_stats": true });
    let body = json!({ "stream": true, "stream_options": options, "timings_per_token": true });
    let chunks = api.post(CHAT, chat(body)).await.chunks();
    let tokens: Vec<u64> = chunks
        .iter()
        .filter(|chunk| chunk.get("timings").is_some())
        .map(|chunk| chunk["usage"]["completion_tokens"].as_u64().unwrap())
        .collect();
    assert!(tokens.len() > 1 && tokens.is_sorted() && tokens.last() == Some(&12), "{tokens:?}");
}

#[tokio::test]
async fn several_choices_are_those_of_the_seeds_that_follow() {
    let api = Api::new();
    let several = api.ok(CHAT, chat(json!({ "n": 3 }))).await;
    let choices = several["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 3);
    // The prompt counts once.
    assert_eq!(several["usage"]["total_tokens"], 9 + 36);
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], index);
        let alone = api.ok(CHAT, chat(json!({ "seed": 5 + index }))).await;
        assert_eq!(choice["message"]["content"], text(&alone));
    }
    let chunks = api.post(CHAT, chat(json!({ "n": 3, "stream": true }))).await.chunks();
    for (index, choice) in choices.iter().enumerate() {
        let own = chunks.iter().filter(|chunk| chunk["choices"][0]["index"] == index);
        let own: Vec<Value> = own.cloned().collect();
        assert_eq!(own[0]["choices"][0]["delta"]["role"], "assistant");
        assert_eq!(own.last().unwrap()["choices"][0]["finish_reason"], "length");
        assert_eq!(choice["message"]["content"], joined(&own, "/choices/0/delta/content"));
    }
}

#[tokio::test]
async fn logprobs_and_token_ids_are_those_of_the_text() {
    let api = Api::new();
    let body = chat(json!({ "logprobs": true, "top_logprobs": 2, "return_token_ids": true }));
    let response = api.ok(CHAT, body.clone()).await;
    let choice = &response["choices"][0];
    let content = choice["logprobs"]["content"].as_array().unwrap();
    let tokens: String = content.iter().map(|it| it["token"].as_str().unwrap()).collect();
    assert_eq!(tokens, text(&response));
    for token in content {
        assert!(token["logprob"].as_f64().unwrap() < 0.0, "{token}");
        let bytes = token["token"].as_str().unwrap().as_bytes();
        assert_eq!(token["bytes"], json!(bytes));
        let top: Vec<f64> = token["top_logprobs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it["logprob"].as_f64().unwrap())
            .collect();
        assert!(top.len() == 2 && top[0] >= top[1] && top[0] >= token["logprob"].as_f64().unwrap());
    }
    let ids = Ascii.tokenize(text(&response), Special::AsText).unwrap();
    let ids: Vec<u32> = ids.iter().map(|token| token.0).collect();
    assert_eq!(choice["token_ids"], json!(ids));
    let prompt = Ascii.tokenize("[user]abc", Special::AsText).unwrap();
    let prompt: Vec<u32> = prompt.iter().map(|token| token.0).collect();
    assert_eq!(response["prompt_token_ids"], json!(prompt));
    // A stream has the same.
    let chunks = api.post(CHAT, with(body, json!({ "stream": true }))).await.chunks();
    assert_eq!(chunks[0]["prompt_token_ids"], json!(prompt));
    let all = |pointer: &str| -> Vec<Value> {
        let lists = chunks.iter().filter_map(|chunk| chunk.pointer(pointer)?.as_array());
        lists.flatten().cloned().collect()
    };
    assert_eq!(all("/choices/0/token_ids"), json!(ids).as_array().unwrap().clone());
    assert_eq!(all("/choices/0/logprobs/content"), *content);
}

#[tokio::test]
async fn a_trace_says_where_tokens_come_from() {
    let api = Api::new();
    let body = chat(json!({ "speculative": { "length": 2, "trace": true }, "temperature": 0 }));
    let response = api.ok(CHAT, body.clone()).await;
    let pieces = response["choices"][0]["speculative"]["pieces"].as_array().unwrap();
    let texts: String = pieces.iter().map(|piece| piece["text"].as_str().unwrap()).collect();
    assert_eq!(texts, text(&response));
    let origins = ["accepted", "corrected", "plain"];
    assert!(pieces.iter().all(|piece| origins.contains(&piece["origin"].as_str().unwrap())));
    let metrics = &response["metrics"]["speculative_decoding"];
    let drafted: u64 =
        metrics["per_step_drafted"].as_array().unwrap().iter().map(|it| it.as_u64().unwrap()).sum();
    assert!(drafted > 0 && metrics["num_draft_tokens"] == drafted, "{metrics}");
    let chunks = api.post(CHAT, with(body, json!({ "stream": true }))).await.chunks();
    assert_eq!(chunks[0]["speculative"]["rule"], "coupled");
    let streamed = chunks.iter().filter_map(|it| it.pointer("/choices/0/speculative/pieces"));
    let streamed: usize = streamed.map(|pieces| pieces.as_array().unwrap().len()).sum();
    assert_eq!(streamed, pieces.len());
}

#[tokio::test]
async fn messages_are_rendered_by_the_template() {
    let api = Api::new();
    let message = |role: &str, content: Value| json!({ "role": role, "content": content });
    let parts = json!([{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }]);
    let messages = json!([
        message("developer", json!("be")), message("user", parts), message("assistant", json!("c")),
        { "role": "tool", "content": "d", "tool_call_id": "x" },
    ]);
    let kwargs = json!({ "suffix": "!" });
    let body = json!({ "messages": messages, "chat_template_kwargs": kwargs });
    let prompt = "[system]be[user]ab[assistant]c[tool]d!";
    assert_eq!(api.ok("/apply-template", body.clone()).await["prompt"], prompt);
    let response = api.ok(CHAT, with(body, json!({ "max_tokens": 1 }))).await;
    assert_eq!(response["usage"]["prompt_tokens"], prompt.len());
}

#[tokio::test]
async fn messages_that_cannot_be_rendered_are_rejected() {
    let api = Api::new();
    let messages = |message: Value| json!({ "messages": [message] });
    for (body, param) in [
        (json!({ "messages": [] }), "messages"),
        (messages(json!({ "role": "user", "content": "a", "audio": {} })), "messages"),
        (messages(json!({ "role": "assistant", "function_call": {} })), "messages"),
        (messages(json!({ "role": "user", "content": "\u{e9}" })), "messages"),
        (
            messages(json!({ "role": "user", "content": [{ "type": "image_url" }] })),
            "messages[0].content[0].type",
        ),
        (json!({ "chat_template_kwargs": { "messages": [] } }), "chat_template_kwargs"),
        (json!({ "max_completion_tokens": 0, "max_tokens": 1 }), "max_completion_tokens"),
        (json!({ "top_logprobs": 2 }), "top_logprobs"),
        (json!({ "logprobs": true, "top_logprobs": 21 }), "top_logprobs"),
    ] {
        let error = api.error(CHAT, chat(body), 400).await;
        assert_eq!(error["param"], param, "{error}");
    }
}

#[tokio::test]
async fn a_server_without_a_template_has_no_chats() {
    let engine = fixtures::engine_of(Arc::new(Ascii), Box::new(toy()));
    let (service, thread) =
        Service::start(engine, fixtures::config(4), Arc::default(), None).unwrap();
    let service = Arc::new(service);
    let app = App::new(config(), None);
    let _ = app.service.set(Arc::clone(&service));
    let api = Api { router: router(Arc::new(app)), service, thread };
    for body in [(CHAT, chat(json!({}))), ("/apply-template", json!({ "messages": [] }))] {
        let error = api.error(body.0, body.1, 400).await;
        assert!(error["message"].as_str().unwrap().contains("--chat-template"), "{error}");
    }
    assert_eq!(text(&api.ok(COMPLETIONS, completion(json!({}))).await).len(), 12);
}

fn tools() -> Value {
    let parameters = json!({
        "type": "object",
        "properties": { "side": { "$ref": "#/$defs/Side" } },
        "required": ["side"],
        "additionalProperties": false,
        "$defs": { "Side": { "enum": ["left", "right"] } },
    });
    let function = |name: &str| json!({ "name": name, "parameters": parameters });
    json!([
        { "type": "function", "function": function("go") },
        { "type": "function", "function": function("look") },
    ])
}

/// A chat with tools, whose instructions are part of the prompt.
fn tool_chat(more: Value) -> Value {
    let own = json!({ "tools": tools(), "max_tokens": 300, "ignore_eos": false });
    chat(with(own, more))
}

#[tokio::test]
async fn a_required_tool_is_called_by_its_schema() {
    let api = Api::with(|config| config.body_max = 1 << 20);
    let named = json!({ "type": "function", "function": { "name": "look" } });
    for (choice, names) in [(json!("required"), vec!["go", "look"]), (named, vec!["look"])] {
        let body = tool_chat(json!({ "tool_choice": choice, "parallel_tool_calls": false }));
        let response = api.ok(CHAT, body.clone()).await;
        let chosen = &response["choices"][0];
        assert_eq!(
            (&chosen["finish_reason"], &chosen["message"]["content"]),
            (&json!("tool_calls"), &Value::Null)
        );
        let call = &chosen["message"]["tool_calls"][0];
        assert!(call["id"].as_str().unwrap().starts_with("call_") && call["type"] == "function");
        let name = call["function"]["name"].as_str().unwrap();
        assert!(names.contains(&name), "{call}");
        let arguments: Value =
            serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
        assert!(["left", "right"].contains(&arguments["side"].as_str().unwrap()), "{arguments}");
        // A stream has the same call in several chunks, and none of its text.
        let chunks = api.post(CHAT, with(body, json!({ "stream": true }))).await.chunks();
        assert_eq!(joined(&chunks, "/choices/0/delta/content"), "");
        let calls: Vec<&Value> =
            chunks.iter().filter_map(|it| it.pointer("/choices/0/delta/tool_calls/0")).collect();
        assert!(calls.len() > 1 && calls.iter().all(|call| call["index"] == 0), "{calls:?}");
        assert_eq!(calls[0]["function"]["name"], call["function"]["name"]);
        assert!(calls[0]["id"].is_string() && calls[1].get("id").is_none(), "{calls:?}");
        let arguments = joined(&chunks, "/choices/0/delta/tool_calls/0/function/arguments");
        assert_eq!(call["function"]["arguments"], arguments);
        assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
    }
}

#[tokio::test]
async fn tools_are_described_in_the_prompt_unless_none_may_be_called() {
    let api = Api::with(|config| config.body_max = 1 << 20);
    let prompt_len = async |more: Value| {
        let response = api.ok(CHAT, with(tool_chat(json!({ "max_tokens": 3 })), more)).await;
        assert_eq!(response["choices"][0]["finish_reason"], "length");
        response["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    assert_eq!(prompt_len(json!({ "tool_choice": "none" })).await, 9);
    let auto = prompt_len(json!({ "tool_choice": "auto", "parallel_tool_calls": false })).await;
    assert!(auto > 200, "{auto}");
    assert_eq!(prompt_len(json!({})).await, auto);
}

#[tokio::test]
async fn tools_that_cannot_be_called_are_rejected() {
    let api = Api::with(|config| config.body_max = 1 << 20);
    let missing = json!([{ "type": "function", "function": {
        "name": "go", "parameters": { "$ref": "#/$defs/Gone" },
    } }]);
    let other = json!({ "type": "function", "function": { "name": "other" } });
    for (more, param) in [
        (json!({ "tools": [], "tool_choice": "required" }), "tool_choice"),
        (json!({ "tool_choice": other }), "tool_choice"),
        (json!({ "tools": missing, "tool_choice": "required" }), "tools"),
        (json!({ "tools": missing, "tool_choice": "auto" }), "tools"),
        (json!({ "tool_choice": "required", "grammar": "root ::= \"a\"" }), "response_format"),
        (json!({ "tools": [{ "type": "code", "function": { "name": "a" } }] }), "tools[0].type"),
    ] {
        let error = api.error(CHAT, tool_chat(more), 400).await;
        assert_eq!(error["param"], param, "{error}");
    }
}
