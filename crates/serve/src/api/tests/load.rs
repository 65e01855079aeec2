//! Requests that wait, are cancelled, expire or fail.

use std::sync::atomic::Ordering;

use tokio::task::JoinHandle;

use super::*;

/// Lets all other tasks run until each of them waits.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// Opens the gate after so many passes and returns once nothing is served or waits. No task runs in
/// between, so the engine's thread ends what was cancelled by itself, without a further pass.
fn nothing_runs_after(api: &Api, gate: Gate, passes: usize) {
    assert_eq!(gate.arrivals(), passes);
    let arrivals = gate.open();
    let all = api.service.admission.shared_len();
    while api.service.admit(Client::Host, all, 1).is_err() {
        assert_eq!(arrivals.load(Ordering::Relaxed), passes, "a pass for nobody");
        std::thread::yield_now();
    }
    assert_eq!(arrivals.load(Ordering::Relaxed), passes, "a pass for nobody");
}

/// Sends a request from a task of its own.
fn spawn(api: &Api, request: Request) -> JoinHandle<Response> {
    let router = api.router.clone();
    tokio::spawn(async move { router.oneshot(request).await.unwrap() })
}

/// A completion that takes many rounds.
fn long(more: Value) -> Value {
    completion(with(json!({ "max_tokens": 400 }), more))
}

/// All permits are free, and so many sequences finished, so many did not.
async fn ended(api: &Api, finished: usize, failed: usize) {
    api.service.idle().await;
    // The thread counts a sequence before it releases the permit.
    assert_eq!(api.metric("vllm:request_success_total").await, finished as f64);
    assert_eq!(api.metric("forerun:requests_failed_total").await, failed as f64);
    assert_eq!(api.metric("vllm:num_requests_waiting").await, 0.0);
}

#[tokio::test]
async fn a_request_beyond_the_queue_is_told_to_come_again() {
    let (api, gate) = Api::gated(|config| config.host.queue_max = 1);
    let first = spawn(&api, post_request(COMPLETIONS, &completion(json!({ "n": 4 }))));
    until(|| api.service.admit(Client::Host, 1, 1).is_err()).await;
    for (path, body) in [
        (COMPLETIONS, completion(json!({}))),
        (COMPLETIONS, completion(json!({ "stream": true }))),
        (CHAT, chat(json!({ "stream": true }))),
        (CHAT, chat(json!({}))),
    ] {
        let reply = api.post(path, body).await;
        let error = reply.error(429);
        assert_eq!(
            (&error["code"], &error["type"]),
            (&json!("queue_full"), &json!("rate_limit_error"))
        );
        assert_eq!(reply.headers[header::RETRY_AFTER], "1");
    }
    drop(gate);
    let first = Reply::read(first.await.unwrap()).await;
    assert_eq!(first.json()["choices"].as_array().unwrap().len(), 4);
    api.ok(CHAT, chat(json!({}))).await;
    ended(&api, 5, 0).await;
    assert_eq!(api.metric("forerun:requests_refused_total").await, 4.0);
}

#[tokio::test]
async fn another_key_is_admitted_though_the_queue_is_full() {
    let (api, gate) = Api::gated(|config| {
        config.host.queue_max = 0;
        config.api_keys = vec!["one".to_owned(), "other".to_owned()];
    });
    let request = |key: &str| {
        let mut request = post_request(COMPLETIONS, &completion(json!({ "n": 3 })));
        let key = format!("Bearer {key}").parse().unwrap();
        request.headers_mut().insert(header::AUTHORIZATION, key);
        request
    };
    // Those that all share, and then those of the key itself.
    let held = [spawn(&api, request("one")), spawn(&api, request("one"))];
    until(|| api.service.admit(Client::Tenant(0), 1, 1).is_err()).await;
    api.send(request("one")).await.error(429);
    let other = spawn(&api, request("other"));
    until(|| api.service.admit(Client::Tenant(1), 1, 1).is_err()).await;
    drop(gate);
    for response in held.into_iter().chain([other]) {
        assert_eq!(response.await.unwrap().status(), StatusCode::OK);
    }
    ended(&api, 9, 0).await;
}

#[tokio::test]
async fn a_client_that_leaves_a_stream_cancels_it() {
    for (path, body) in [
        (COMPLETIONS, long(json!({ "stream": true }))),
        (CHAT, chat(json!({ "stream": true, "max_tokens": 400 }))),
    ] {
        let (api, gate) = Api::gated(|_| {});
        gate.passes(1);
        // The stream begins with its first token.
        let response = api.respond(post_request(path, &body)).await;
        assert_eq!(response.status(), StatusCode::OK);
        until(|| gate.arrivals() == 2).await;
        settle().await;
        drop(response);
        settle().await;
        // The pass that was under way is the last.
        nothing_runs_after(&api, gate, 2);
        ended(&api, 0, 1).await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_before_the_response_cancels_it() {
    let (api, gate) = Api::gated(|_| {});
    let running = spawn(&api, post_request(COMPLETIONS, &long(json!({ "n": 3 }))));
    until(|| gate.arrivals() > 0).await;
    let waiting = spawn(&api, post_request(COMPLETIONS, &completion(json!({ "n": 2 }))));
    while api.metric("vllm:num_requests_waiting").await < 2.0 {
        settle().await;
    }
    running.abort();
    waiting.abort();
    assert!(running.await.is_err() && waiting.await.is_err());
    settle().await;
    nothing_runs_after(&api, gate, 1);
    // Those that waited were never begun.
    ended(&api, 0, 3).await;
    api.ok(COMPLETIONS, completion(json!({}))).await;
}

#[tokio::test]
async fn a_request_past_its_deadline_fails() {
    let api = Api::with(|config| config.host.timeout = Duration::ZERO);
    for (path, body) in [
        (COMPLETIONS, completion(json!({}))),
        (COMPLETIONS, completion(json!({ "stream": true }))),
        (CHAT, chat(json!({}))),
    ] {
        let error = api.error(path, body, 504).await;
        assert_eq!((&error["code"], &error["type"]), (&json!("timeout"), &json!("server_error")));
    }
}

#[tokio::test]
async fn a_stream_that_the_server_ends_says_so() {
    for (path, body) in [
        (COMPLETIONS, long(json!({ "stream": true }))),
        (CHAT, chat(json!({ "stream": true, "max_tokens": 400 }))),
    ] {
        let (api, gate) = Api::gated(|_| {});
        gate.passes(1);
        let response = api.respond(post_request(path, &body)).await;
        api.service.abort.store(true, Ordering::Relaxed);
        drop(gate);
        let reply = Reply::read(response).await;
        let last: Value = serde_json::from_str(reply.events().last().unwrap()).unwrap();
        assert_eq!(last["error"]["code"], "shutting_down", "{path}");
        assert_eq!(reply.status, StatusCode::OK);
    }
}

/// A server whose engine fails once, after so many passes.
fn failing(passes: usize, error: EngineError) -> Api {
    Api::of(Box::new(toy().failing(passes, error)), |_| {})
}

#[tokio::test]
async fn a_failure_has_a_status_before_the_first_token_and_an_event_after_it() {
    let broken = || EngineError::Broken { backend: "toy", code: -3 };
    let streamed = || completion(json!({ "stream": true }));
    for body in [completion(json!({})), streamed()] {
        let api = failing(0, broken());
        assert_eq!(api.error(COMPLETIONS, body.clone(), 500).await["type"], "server_error");
        assert_eq!(api.post(COMPLETIONS, body).await.status, StatusCode::OK, "it failed once");
    }
    let full = failing(0, EngineError::Full { tokens: 3 });
    let error = full.error(COMPLETIONS, completion(json!({})), 400).await;
    assert_eq!(error["type"], "invalid_request_error");
    let expected = text(&Api::new().ok(COMPLETIONS, completion(json!({}))).await).to_owned();
    let api = failing(3, broken());
    let reply = api.post(COMPLETIONS, streamed()).await;
    let mut events: Vec<Value> =
        reply.events().iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    let last = events.pop().unwrap();
    assert_eq!((reply.status, &last["error"]["type"]), (StatusCode::OK, &json!("server_error")));
    let sent = joined(&events, "/choices/0/text");
    assert!(!sent.is_empty() && expected.starts_with(&sent), "{sent:?}");
    ended(&api, 0, 1).await;
}
