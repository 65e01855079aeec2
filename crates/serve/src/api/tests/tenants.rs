//! Tenants: limits, caches, metrics and the audit log, attacked by clients that have keys.

use std::io::Write;
use std::num::NonZeroU32;
use std::sync::Mutex;

use tokio::task::JoinHandle;

use super::*;
use crate::audit::AuditLog;
use crate::tenants::TenantLimits;

/// A tenant whose key is its name with `-key`.
fn tenant(name: &str, change: impl FnOnce(&mut TenantConfig)) -> TenantConfig {
    let mut config = TenantConfig::of_key(format!("{name}-key"));
    config.name = Some(name.to_owned());
    change(&mut config);
    config
}

fn limited(change: impl FnOnce(&mut TenantLimits)) -> impl FnOnce(&mut TenantConfig) {
    move |tenant: &mut TenantConfig| change(&mut tenant.limits)
}

/// Tenants `alice` with these limits and `bob` without any.
fn two(limits: impl FnOnce(&mut TenantLimits)) -> Vec<TenantConfig> {
    vec![tenant("alice", limited(limits)), tenant("bob", |_| {})]
}

fn keyed(mut request: Request, key: &str) -> Request {
    let value = format!("Bearer {key}").parse().unwrap();
    request.headers_mut().insert(header::AUTHORIZATION, value);
    request
}

fn from(name: &str, path: &str, body: &Value) -> Request {
    keyed(post_request(path, body), &format!("{name}-key"))
}

async fn sends(api: &Api, name: &str, body: Value) -> Reply {
    api.send(from(name, COMPLETIONS, &body)).await
}

fn number(reply: &Reply, header: &str) -> u64 {
    reply.headers[header].to_str().unwrap().parse().unwrap()
}

fn spawn(api: &Api, request: Request) -> JoinHandle<Response> {
    let router = api.router.clone();
    tokio::spawn(async move { router.oneshot(request).await.unwrap() })
}

#[tokio::test]
async fn requests_beyond_the_limit_wait_and_those_of_others_do_not() {
    let two_a_minute = |limits: &mut TenantLimits| limits.requests_per_minute = NonZeroU32::new(2);
    let api = Api::with(|config| config.tenants = two(two_a_minute));
    let first = sends(&api, "alice", completion(json!({}))).await;
    assert_eq!(first.status, StatusCode::OK);
    assert_eq!(number(&first, "x-ratelimit-limit-requests"), 2);
    assert_eq!(number(&first, "x-ratelimit-remaining-requests"), 1);
    assert!(first.headers["x-ratelimit-reset-requests"].to_str().unwrap().ends_with('s'));
    assert!(!first.headers.contains_key("x-ratelimit-limit-tokens"), "it has no such limit");
    // A request that is wrong counts too: it was work to find out.
    sends(&api, "alice", completion(json!({ "n": 0 }))).await.error(400);
    for path in [COMPLETIONS, CHAT, "/completion", "/v1/responses", "/tokenize"] {
        let reply = api.send(from("alice", path, &json!({}))).await;
        let error = reply.error(429);
        assert_eq!(error["code"], "rate_limit_exceeded", "{path}");
        assert_eq!(error["type"], "requests", "{path}");
        assert_eq!(number(&reply, "x-ratelimit-remaining-requests"), 0);
        assert!((1..=30).contains(&number(&reply, "retry-after")), "{:?}", reply.headers);
        // Its body was not read.
        assert_eq!(reply.headers[header::CONNECTION], "close");
    }
    let anthropic = api.send(from("alice", "/v1/messages", &json!({}))).await;
    assert_eq!(anthropic.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(anthropic.json()["error"]["type"], "rate_limit_error");
    let models = api.send(keyed(get_request("/v1/models"), "alice-key")).await;
    assert_eq!(models.status, StatusCode::OK, "what costs nothing is not counted");
    let other = sends(&api, "bob", completion(json!({}))).await;
    assert_eq!(other.status, StatusCode::OK);
    assert!(!other.headers.contains_key("x-ratelimit-limit-requests"));
}

#[tokio::test]
async fn all_keys_of_a_tenant_draw_on_one_limit() {
    let mut tenants = two(|limits| limits.requests_per_minute = NonZeroU32::new(2));
    tenants[0].keys.push("second-key".to_owned());
    let api = Api::with(|config| config.tenants = tenants);
    for key in ["alice-key", "second-key"] {
        let request = keyed(post_request(COMPLETIONS, &completion(json!({}))), key);
        assert_eq!(api.send(request).await.status, StatusCode::OK);
    }
    for key in ["alice-key", "second-key"] {
        let request = keyed(post_request(COMPLETIONS, &completion(json!({}))), key);
        api.send(request).await.error(429);
    }
}

#[tokio::test]
async fn tokens_of_prompts_and_outputs_count_and_what_is_owed_is_paid_off() {
    let api = Api::with(|config| {
        config.tenants = two(|limits| limits.tokens_per_minute = NonZeroU32::new(20));
    });
    // 3 of the prompt and 12 of the output, twice.
    for left in [5, 0] {
        let reply = sends(&api, "alice", completion(json!({}))).await;
        assert_eq!(reply.status, StatusCode::OK, "{}", reply.text);
        let remaining = number(&reply, "x-ratelimit-remaining-tokens");
        // A little comes back while the test runs.
        assert!((left..left + 5).contains(&remaining), "{remaining} instead of {left}");
        assert_eq!(number(&reply, "x-ratelimit-limit-tokens"), 20);
    }
    // Ten are owed, which is half a minute.
    let reply = sends(&api, "alice", completion(json!({}))).await;
    let error = reply.error(429);
    assert_eq!((&error["code"], &error["type"]), (&json!("rate_limit_exceeded"), &json!("tokens")));
    assert!(error["message"].as_str().unwrap().contains("20 tokens a minute"), "{error}");
    assert_eq!(sends(&api, "bob", completion(json!({}))).await.status, StatusCode::OK);
}

#[tokio::test]
async fn many_requests_at_once_are_not_admitted_on_tokens_that_one_of_them_has() {
    let (api, gate) = Api::gated(|config| {
        config.host.queue_max = 64;
        config.tenants = two(|limits| limits.tokens_per_minute = NonZeroU32::new(10));
    });
    // No token is decoded: what counts are the prompts of nine.
    let body = completion(json!({ "prompt": "abcdefghi" }));
    let sent: Vec<_> = (0..8).map(|_| spawn(&api, from("alice", COMPLETIONS, &body))).collect();
    until(|| sent.iter().filter(|it| it.is_finished()).count() >= 6).await;
    drop(gate);
    let mut statuses = Vec::new();
    for response in sent {
        statuses.push(response.await.unwrap().status().as_u16());
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 429, 429, 429, 429, 429, 429]);
}

#[tokio::test]
async fn sequences_at_once_are_limited_and_freed_when_they_end() {
    let (api, gate) = Api::gated(|config| {
        config.tenants = two(|limits| limits.sequences = NonZeroU32::new(2));
    });
    let running = spawn(&api, from("alice", COMPLETIONS, &completion(json!({ "n": 2 }))));
    until(|| gate.arrivals() > 0).await;
    let reply = sends(&api, "alice", completion(json!({}))).await;
    let error = reply.error(429);
    assert_eq!((&error["type"], number(&reply, "retry-after")), (&json!("sequences"), 1));
    let never = sends(&api, "alice", completion(json!({ "n": 3 }))).await.error(400);
    assert_eq!(never["param"], "n", "waiting would not help");
    let other = spawn(&api, from("bob", COMPLETIONS, &completion(json!({ "n": 3 }))));
    drop(gate);
    assert_eq!(running.await.unwrap().status(), StatusCode::OK);
    assert_eq!(other.await.unwrap().status(), StatusCode::OK);
    api.service.idle().await;
    for _ in 0..3 {
        let reply = sends(&api, "alice", completion(json!({ "n": 2 }))).await;
        assert_eq!(reply.status, StatusCode::OK, "{}", reply.text);
        api.service.idle().await;
    }
    // A stream that is left frees them too.
    let stream = completion(json!({ "n": 2, "stream": true, "max_tokens": 400 }));
    drop(api.respond(from("alice", COMPLETIONS, &stream)).await);
    api.service.idle().await;
    let reply = sends(&api, "alice", completion(json!({ "n": 2 }))).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.text);
}

#[tokio::test]
async fn tenants_share_a_cache_only_if_both_say_so_and_only_under_one_salt() {
    let team = |tenant: &mut TenantConfig| tenant.cache = Some("team".to_owned());
    let api = Api::with(|config| {
        config.api_keys = vec!["nameless".to_owned()];
        config.tenants = vec![
            tenant("alice", |_| {}),
            tenant("bob", team),
            tenant("carol", team),
            // Its name is that of a cache, which makes it no part of it.
            tenant("team", |_| {}),
        ];
    });
    let cached = async |key: &str, more: Value| {
        let body = completion(with(json!({ "prompt": "abcdefgh", "max_tokens": 1 }), more));
        let reply = api.send(keyed(post_request(COMPLETIONS, &body), key)).await;
        reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    assert_eq!(cached("bob-key", json!({})).await, 0);
    assert_eq!(cached("carol-key", json!({})).await, 7, "the same cache");
    for key in ["alice-key", "team-key", "nameless"] {
        assert_eq!(cached(key, json!({})).await, 0, "{key}");
        assert_eq!(cached(key, json!({})).await, 7, "{key} finds its own");
    }
    for salt in ["team", "bob", "1"] {
        let salted = || json!({ "cache_salt": salt });
        assert_eq!(cached("bob-key", salted()).await, 0, "{salt}");
        assert_eq!(cached("alice-key", salted()).await, 0, "a salt opens nobody's cache");
        assert_eq!(cached("carol-key", salted()).await, 7, "{salt}");
    }
}

#[tokio::test]
async fn metrics_of_tenants_are_shown_to_who_has_the_key_for_them() {
    let api = Api::with(|config| {
        config.api_keys = vec!["nameless".to_owned()];
        config.metrics_key = Some("operator".to_owned());
        config.tenants = two(|limits| limits.requests_per_minute = NonZeroU32::new(1));
    });
    for _ in 0..2 {
        sends(&api, "alice", completion(json!({}))).await;
    }
    api.send(keyed(post_request(COMPLETIONS, &completion(json!({}))), "nameless")).await;
    api.send(keyed(post_request(COMPLETIONS, &completion(json!({}))), "guessed")).await.error(401);
    api.service.idle().await;
    let public = api.get("/metrics").await.text;
    for key in ["alice-key", "guessed"] {
        let shown = api.send(keyed(get_request("/metrics"), key)).await.text;
        assert_eq!(shown, public, "{key}");
    }
    assert!(!public.contains("tenant") && public.ends_with("# EOF\n"));
    let all = api.send(keyed(get_request("/metrics"), "operator")).await.text;
    assert_eq!(all.matches("# EOF").count(), 1);
    assert!(all.starts_with(public.trim_end_matches("# EOF\n")) && all.ends_with("# EOF\n"));
    for line in [
        "forerun:tenant_requests_total{tenant=\"alice\",status=\"200\"} 1",
        "forerun:tenant_requests_total{tenant=\"alice\",status=\"429\"} 1",
        "forerun:tenant_prompt_tokens_total{tenant=\"alice\"} 3",
        "forerun:tenant_generation_tokens_total{tenant=\"alice\"} 12",
        "forerun:tenant_generation_tokens_total{tenant=\"bob\"} 0",
        "forerun:tenant_time_to_first_token_seconds_count{tenant=\"alice\"} 1",
    ] {
        assert!(all.contains(line), "no {line} in {all}");
    }
    let named = |line: &&str| line.contains("tenant=\"") && !line.contains("\"alice\"");
    let others: Vec<&str> = all.lines().filter(named).collect();
    assert!(
        others.iter().all(|line| line.contains("\"bob\"")),
        "only names are labels: {others:?}"
    );
    // The key shows metrics and opens nothing else.
    api.send(keyed(get_request("/v1/models"), "operator")).await.error(401);
}

/// What was written.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Written {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// The line of a request, once it is there.
    async fn line(&self, id: &str) -> Value {
        let of = |line: &str| {
            let line: Value = serde_json::from_str(line).unwrap();
            (line["request_id"] == id).then_some(line)
        };
        until(|| self.text().lines().any(|line| of(line).is_some())).await;
        let lines: Vec<Value> = self.text().lines().filter_map(of).collect();
        assert_eq!(lines.len(), 1, "a request is recorded once: {lines:?}");
        lines[0].clone()
    }
}

fn called(mut request: Request, id: &str) -> Request {
    request.headers_mut().insert("x-request-id", id.parse().unwrap());
    request
}

#[tokio::test]
async fn every_request_is_recorded_once_without_its_content() {
    let written = Written::default();
    let log = Arc::new(AuditLog::to(Box::new(written.clone())));
    let (api, gate) = Api::gated(|config| {
        config.audit = Some(log);
        config.tenants = two(|limits| limits.sequences = NonZeroU32::new(1));
    });
    let body = completion(json!({ "prompt": "harbour master", "max_tokens": 400, "stream": true }));
    gate.passes(2);
    let response = api.respond(called(from("alice", COMPLETIONS, &body), "left")).await;
    let refused = called(from("alice", CHAT, &chat(json!({}))), "refused");
    api.send(refused).await.error(429);
    drop(response);
    drop(gate);
    let whole = completion(json!({ "prompt": "harbour master", "n": 2 }));
    api.send(called(from("bob", COMPLETIONS, &whole), "whole")).await.json();
    api.send(called(from("bob", CHAT, &chat(json!({ "stream": true }))), "stream")).await.chunks();
    api.send(called(keyed(post_request(CHAT, &chat(json!({}))), "guess"), "unknown")).await;
    api.send(called(from("bob", "/tokenize", &json!({ "content": "x" })), "tokenized")).await;
    let line = written.line("left").await;
    assert_eq!((&line["tenant"], &line["outcome"]), (&json!("alice"), &json!("cancelled")));
    assert_eq!((&line["status"], &line["prompt_tokens"]), (&json!(200), &json!(14)));
    assert!(line["completion_tokens"].as_u64() > Some(0), "{line}");
    let line = written.line("refused").await;
    assert_eq!((&line["status"], &line["outcome"]), (&json!(429), &json!("refused")));
    assert_eq!((&line["endpoint"], &line["model"]), (&json!(CHAT), &Value::Null));
    let line = written.line("whole").await;
    let fields = ["tenant", "model", "sequences", "prompt_tokens", "completion_tokens", "outcome"];
    let values = json!(["bob", "toy", 2, 14, 24, "finished"]);
    assert_eq!(json!(fields.map(|field| &line[field])), values);
    assert!(line["time"].as_str().unwrap().ends_with('Z') && line["ms"].is_u64(), "{line}");
    assert_eq!(written.line("stream").await["outcome"], "finished");
    let line = written.line("unknown").await;
    assert_eq!((&line["tenant"], &line["status"]), (&Value::Null, &json!(401)));
    assert_eq!(written.line("tokenized").await["outcome"], "finished");
    let text = written.text();
    for secret in ["harbour", "alice-key", "bob-key", "guess"] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
    // Probes are not recorded.
    api.get("/health").await;
    assert_eq!(written.text().lines().count(), 6);
}

#[tokio::test]
async fn a_failure_is_recorded_and_a_log_that_cannot_be_written_stops_nobody() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let written = Written::default();
    let broken = EngineError::Broken { backend: "toy", code: -3 };
    let log = Arc::new(AuditLog::to(Box::new(written.clone())));
    let engine = Box::new(toy().failing(3, broken));
    let api = Api::of(engine, |config| config.audit = Some(log));
    let stream = post_request(COMPLETIONS, &completion(json!({ "stream": true })));
    api.send(called(stream, "broken")).await;
    let line = written.line("broken").await;
    assert_eq!((&line["status"], &line["outcome"]), (&json!(200), &json!("failed")));
    let full = Arc::new(AuditLog::to(Box::new(Full)));
    let api = Api::with(|config| config.audit = Some(full));
    for _ in 0..2 {
        api.ok(COMPLETIONS, completion(json!({}))).await;
    }
}
