//! Recorded prompts: whose, which, and what never is among them.

use std::path::{Path, PathBuf};

use super::*;
use crate::record::PromptFile;

/// A path of this test's own, where there is no file.
fn free_path(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("forerun-prompts-{}-{name}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

/// A server that records prompts there, and has a key.
fn recording(path: &Path) -> Api {
    let file = Arc::new(PromptFile::append(path, 100).unwrap());
    Api::with(|config| {
        config.host.record_prompts = Some(file);
        config.host.queue_max = 64;
        config.api_keys = vec!["secret-key".to_owned()];
    })
}

fn keyed(path: &str, body: &Value) -> Request {
    let mut request = post_request(path, body);
    request.headers_mut().insert(header::AUTHORIZATION, "Bearer secret-key".parse().unwrap());
    request
}

/// The prompts in a file, once all are written.
fn recorded(api: &Api, path: &PathBuf) -> Vec<String> {
    api.service.recorder.as_ref().unwrap().flush();
    let prompt = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}"));
        assert_eq!(line.as_object().unwrap().len(), 1, "{line}");
        line["rendered_prompt"].as_str().unwrap().to_owned()
    };
    std::fs::read_to_string(path).unwrap().lines().map(prompt).collect()
}

#[tokio::test]
async fn prompts_of_all_that_is_decoded_are_recorded_as_the_model_was_given_them() {
    let path = free_path("all");
    let api = recording(&path);
    let messages = json!([{ "role": "user", "content": "by message" }]);
    let sent = [
        (CHAT, chat(json!({ "stream": true, "chat_template_kwargs": { "suffix": "!" } }))),
        (COMPLETIONS, completion(json!({ "prompt": ["one", "two\n"], "n": 2 }))),
        ("/completion", json!({ "prompt": ["na", 52], "n_predict": 2 })),
        ("/v1/messages", json!({ "messages": messages, "max_tokens": 2 })),
        ("/v1/responses", json!({ "input": "by response", "max_output_tokens": 2 })),
    ];
    for (endpoint, body) in &sent {
        let reply = api.send(keyed(endpoint, body)).await;
        assert_eq!(reply.status, StatusCode::OK, "{endpoint}: {}", reply.text);
    }
    let all = ["[user]abc!", "one", "two\n", "naT", "[user]by message", "[user]by response"];
    assert_eq!(recorded(&api, &path), all);
    assert!(!std::fs::read_to_string(&path).unwrap().contains("secret-key"));
    assert_eq!(api.metric("forerun:prompts_recorded_total").await, 6.0);
    std::fs::remove_file(&path).unwrap();
}

#[tokio::test]
async fn what_is_refused_not_decoded_or_not_to_be_stored_is_not_recorded() {
    let path = free_path("none");
    let api = recording(&path);
    api.send(keyed(CHAT, &chat(json!({ "n": 99 })))).await.error(400);
    api.send(keyed(CHAT, &chat(json!({ "temperature": -1 })))).await.error(400);
    api.send(post_request(CHAT, &chat(json!({})))).await.error(401);
    let messages = json!([{ "role": "user", "content": "a" }]);
    for (endpoint, body) in [
        (CHAT, chat(json!({ "store": false }))),
        (COMPLETIONS, completion(json!({ "store": false }))),
        ("/completion", json!({ "prompt": "a", "n_predict": 2, "store": false })),
        ("/v1/messages", json!({ "messages": messages, "max_tokens": 2, "store": false })),
        ("/v1/responses", json!({ "input": "a", "max_output_tokens": 2, "store": false })),
        ("/tokenize", json!({ "content": "a" })),
        ("/v1/messages/count_tokens", json!({ "messages": messages })),
    ] {
        let reply = api.send(keyed(endpoint, &body)).await;
        assert_eq!(reply.status, StatusCode::OK, "{endpoint}: {}", reply.text);
        assert!(!reply.headers.contains_key("forerun-ignored"), "{endpoint}");
    }
    assert_eq!(recorded(&api, &path), [""; 0]);
    let opted_out = "forerun:prompts_unrecorded_total{model_name=\"toy\",reason=\"opted_out\"}";
    assert_eq!(api.metric(opted_out).await, 5.0);
    std::fs::remove_file(&path).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn prompts_of_many_at_once_are_whole_lines() {
    let path = free_path("many");
    let api = recording(&path);
    let mut prompts: Vec<String> = (10..50).map(|it| format!("{it}").repeat(200)).collect();
    let send = |prompt: &String| {
        let body = completion(json!({ "prompt": prompt, "max_tokens": 1 }));
        let router = api.router.clone();
        tokio::spawn(async move { router.oneshot(keyed(COMPLETIONS, &body)).await.unwrap() })
    };
    let sent: Vec<_> = prompts.iter().map(send).collect();
    for response in sent {
        assert_eq!(response.await.unwrap().status(), StatusCode::OK);
    }
    let mut all = recorded(&api, &path);
    all.sort_unstable();
    prompts.sort_unstable();
    assert!(all == prompts, "{} of {} prompts", all.len(), prompts.len());
    std::fs::remove_file(&path).unwrap();
}

#[tokio::test]
async fn a_file_that_cannot_be_written_stops_nobody() {
    let path = free_path("unwritable");
    let file = Arc::new(PromptFile::unwritable(&path).unwrap());
    let api = Api::with(|config| config.host.record_prompts = Some(file));
    for stopped in [1.0, 2.0] {
        api.ok(COMPLETIONS, completion(json!({}))).await;
        api.service.recorder.as_ref().unwrap().flush();
        assert_eq!(api.metric("forerun:prompts_unrecorded_total").await, stopped);
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
    std::fs::remove_file(&path).unwrap();
}
