//! Bodies that are not what they should be, at every path that takes one.

use futures_util::stream;

use super::*;

/// Every path that takes a body, with the least of one.
fn bodies() -> [(&'static str, Value); 5] {
    let messages = json!([{ "role": "user", "content": "abc" }]);
    [
        (CHAT, json!({ "messages": messages, "max_tokens": 1 })),
        (COMPLETIONS, json!({ "prompt": "abc", "max_tokens": 1 })),
        ("/tokenize", json!({ "content": "abc" })),
        ("/detokenize", json!({ "tokens": [1, 2] })),
        ("/apply-template", json!({ "messages": messages })),
    ]
}

fn raw(path: &str, body: Body) -> Request {
    let request = Request::post(path).header(header::HOST, "localhost");
    request.header(header::CONTENT_TYPE, "application/json").body(body).unwrap()
}

#[tokio::test]
async fn what_is_not_json_is_rejected() {
    let api = Api::new();
    for (path, body) in bodies() {
        api.ok(path, body.clone()).await;
        for text in ["", "{", "[1, 2", "{\"prompt\": nope}", "{} {}", "\"text\"", "[]", "null"] {
            let error = api.send(raw(path, Body::from(text))).await.error(400);
            assert_eq!(error["type"], "invalid_request_error", "{path} {text}");
        }
        let cut = body.to_string();
        let error =
            api.send(raw(path, Body::from(cut[..cut.len() - 1].to_owned()))).await.error(400);
        assert!(error["message"].as_str().unwrap().contains("not whole"), "{error}");
    }
}

#[tokio::test]
async fn a_strict_server_rejects_unknown_fields_by_name() {
    let api = Api::with(|config| config.strict = true);
    for (path, body) in bodies() {
        let error = api.error(path, with(body, json!({ "no_such_field": 1 })), 400).await;
        assert_eq!(error["param"], "no_such_field", "{path}");
    }
    let error = api.error(CHAT, chat(json!({ "max_token": 1 })), 400).await;
    assert!(error["message"].as_str().unwrap().contains("did you mean `max_tokens`?"), "{error}");
}

#[tokio::test]
async fn fields_of_another_type_are_rejected_by_their_path() {
    let api = Api::new();
    let message = |field: &str, value: Value| {
        let mut message = json!({ "role": "user", "content": "abc" });
        message[field] = value;
        json!({ "messages": [message] })
    };
    for (body, param) in [
        (json!({ "temperature": "hot" }), "temperature"),
        (json!({ "stream": 1 }), "stream"),
        (json!({ "stop": [1] }), "stop[0]"),
        (json!({ "logit_bias": { "7": "x" } }), "logit_bias.7"),
        (message("role", json!("nobody")), "messages[0].role"),
        (message("content", json!(7)), "messages[0].content"),
        (json!({ "messages": "abc" }), "messages"),
        (json!({ "response_format": { "type": "xml" } }), "response_format.type"),
        (json!({ "tool_choice": "maybe" }), "tool_choice"),
        (json!({ "speculative": { "length": -1 } }), "speculative.length"),
    ] {
        let error = api.error(CHAT, chat(body), 400).await;
        assert_eq!(error["param"], param, "{error}");
    }
    assert_eq!(
        api.error("/detokenize", json!({ "tokens": ["a"] }), 400).await["param"],
        "tokens[0]"
    );
    assert_eq!(api.error("/tokenize", json!({ "content": 1 }), 400).await["param"], "content");
    for path in [CHAT, "/apply-template"] {
        assert_eq!(api.error(path, json!({}), 400).await["param"], "messages");
    }
}

#[tokio::test]
async fn a_body_must_be_json_by_its_type() {
    let api = Api::new();
    for (path, body) in bodies() {
        for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
            let mut request = post_request(path, &body);
            request.headers_mut().insert(header::CONTENT_TYPE, kind.parse().unwrap());
            api.send(request).await.error(415);
        }
        // Without a type it is taken for JSON, unless a browser sends it.
        let mut request = post_request(path, &body);
        request.headers_mut().remove(header::CONTENT_TYPE);
        assert_eq!(api.send(request).await.status, StatusCode::OK, "{path}");
        let mut request = post_request(path, &body);
        request.headers_mut().remove(header::CONTENT_TYPE);
        request.headers_mut().insert(header::ORIGIN, "http://evil.example".parse().unwrap());
        api.send(request).await.error(415);
    }
}

#[tokio::test]
async fn a_body_that_is_too_large_is_rejected_whether_announced_or_not() {
    let api = Api::new();
    for (path, body) in bodies() {
        let large = with(body, json!({ "model": "x".repeat(5000) })).to_string();
        let mut announced = raw(path, Body::from(large.clone()));
        announced.headers_mut().insert(header::CONTENT_LENGTH, large.len().into());
        api.send(announced).await.error(413);
        let parts = large
            .into_bytes()
            .chunks(1000)
            .map(|it| Ok::<_, String>(it.to_vec()))
            .collect::<Vec<_>>();
        api.send(raw(path, Body::from_stream(stream::iter(parts)))).await.error(413);
    }
}

#[tokio::test]
async fn a_body_that_breaks_off_is_rejected() {
    let api = Api::new();
    let parts = [Ok(b"{\"prompt\":".to_vec()), Err("gone")];
    let reply = api.send(raw(COMPLETIONS, Body::from_stream(stream::iter(parts)))).await;
    assert_eq!(reply.error(400)["message"], "the body broke off");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_arrive_in_time_is_rejected() {
    let api = Api::new();
    let never = stream::pending::<Result<Vec<u8>, String>>();
    let reply = api.send(raw(COMPLETIONS, Body::from_stream(never))).await;
    reply.error(408);
    assert_eq!(reply.headers[header::CONNECTION], "close");
}

#[tokio::test]
async fn a_large_body_is_parsed_like_a_small_one() {
    let api = Api::with(|config| config.body_max = 1 << 20);
    let padding = "x".repeat(100 << 10);
    let body = completion(json!({ "metadata": { "padding": padding } }));
    let small = api.ok(COMPLETIONS, completion(json!({}))).await;
    assert_eq!(text(&api.ok(COMPLETIONS, body.clone()).await), text(&small));
    let wrong = with(body, json!({ "temperature": "hot" }));
    assert_eq!(api.error(COMPLETIONS, wrong, 400).await["param"], "temperature");
}
