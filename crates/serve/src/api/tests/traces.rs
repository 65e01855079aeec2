//! The spans of requests. That a collector gets them is shown in `tests/serve`.

use tokio::sync::mpsc::Receiver;

use super::*;
use crate::trace::{FinishedSpan, TRACE_RESPONSE, TraceConfig, body};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// A server and the spans that it makes.
struct Traced {
    api: Api,
    spans: Receiver<FinishedSpan>,
}

impl Traced {
    fn new(change: impl FnOnce(&mut ServeConfig)) -> Self {
        let (tracer, spans) = Tracer::new();
        let mut config = config();
        change(&mut config);
        let mut engine = fixtures::engine_of(Arc::new(Ascii), Box::new(toy()));
        engine.template = Some(ChatTemplate::new(TEMPLATE, None, None).unwrap());
        Self { api: Api::traced(engine, config, Some(tracer)), spans }
    }

    /// The next span, as a collector gets it.
    async fn span(&mut self) -> Value {
        let span = self.spans.recv().await.unwrap();
        let endpoint = "http://localhost".parse().unwrap();
        let config = TraceConfig { endpoint, service: "mine".to_owned() };
        let mut body = body(&config.service, &[span]);
        let resource = &body["resourceSpans"][0]["resource"]["attributes"][0];
        assert_eq!(*resource, json!({ "key": "service.name", "value": { "stringValue": "mine" } }));
        body["resourceSpans"][0]["scopeSpans"][0]["spans"][0].take()
    }
}

fn with_parent(mut request: Request, flags: &str) -> Request {
    let parent = format!("00-{TRACE}-{PARENT}-{flags}");
    request.headers_mut().insert("traceparent", parent.parse().unwrap());
    request.headers_mut().insert("tracestate", "vendor=1".parse().unwrap());
    request
}

/// An attribute of a span or an event, without its type.
fn attribute(of: &Value, key: &str) -> Value {
    let found = of["attributes"].as_array().unwrap().iter().find(|it| it["key"] == key);
    found
        .map_or(Value::Null, |it| it["value"].as_object().unwrap().values().next().unwrap().clone())
}

#[tokio::test]
async fn a_span_has_the_clients_trace_and_the_names_of_the_conventions() {
    let mut traced = Traced::new(|_| {});
    let body = completion(json!({ "speculative": { "enabled": true, "length": 3 } }));
    let body = with(body, json!({ "temperature": 0.5, "top_p": 0.75, "top_k": 7 }));
    let reply = traced.api.send(with_parent(post_request(COMPLETIONS, &body), "01")).await;
    let span = traced.span().await;
    for (name, value) in [
        ("traceId", json!(TRACE)),
        ("parentSpanId", json!(PARENT)),
        ("traceState", json!("vendor=1")),
        ("name", json!("text_completion toy")),
        ("kind", json!(2)),
        ("flags", json!(0x301)),
        ("droppedEventsCount", json!(0)),
    ] {
        assert_eq!(span[name], value, "{name}");
    }
    let own = span["spanId"].as_str().unwrap();
    assert_eq!(reply.headers[TRACE_RESPONSE], format!("00-{TRACE}-{own}-01"));
    let response = reply.json();
    for (key, value) in [
        ("gen_ai.operation.name", json!("text_completion")),
        ("gen_ai.provider.name", json!("forerun")),
        ("gen_ai.request.model", json!("toy")),
        ("gen_ai.response.model", json!("toy")),
        ("gen_ai.request.choice.count", json!("1")),
        ("gen_ai.request.max_tokens", json!("12")),
        ("gen_ai.request.seed", json!("5")),
        ("gen_ai.request.temperature", json!(0.5)),
        ("gen_ai.request.top_p", json!(0.75)),
        ("gen_ai.request.top_k", json!("7")),
        ("gen_ai.response.finish_reasons", json!({ "values": [{ "stringValue": "length" }] })),
        ("gen_ai.usage.input_tokens", json!("3")),
        ("gen_ai.usage.cache_read.input_tokens", json!("0")),
        ("gen_ai.usage.output_tokens", json!("12")),
        ("forerun.draft_tokens", json!(response["timings"]["draft_n"].to_string())),
        ("forerun.accepted_tokens", json!(response["timings"]["draft_n_accepted"].to_string())),
        ("http.request.method", json!("POST")),
        ("url.path", json!(COMPLETIONS)),
        ("http.response.status_code", json!("200")),
        ("error.type", Value::Null),
    ] {
        assert_eq!(attribute(&span, key), value, "{key}");
    }
    let count =
        |of: &Value, key: &str| attribute(of, key).as_str().unwrap().parse::<u64>().unwrap();
    let events = span["events"].as_array().unwrap();
    let sum = |key: &str| events.iter().map(|event| count(event, key)).sum::<u64>();
    assert_eq!(sum("forerun.committed_tokens"), 12);
    assert_eq!(sum("forerun.draft_tokens"), count(&span, "forerun.draft_tokens"));
    assert_eq!(sum("forerun.accepted_tokens"), count(&span, "forerun.accepted_tokens"));
    assert!(count(&span, "forerun.draft_tokens") > 0, "{span}");
    assert_eq!(count(&span, "forerun.rounds"), events.len() as u64);
    let time = |of: &Value, name: &str| of[name].as_str().unwrap().parse::<u128>().unwrap();
    let mut times = vec![time(&span, "startTimeUnixNano")];
    times.extend(events.iter().map(|event| time(event, "timeUnixNano")));
    times.push(time(&span, "endTimeUnixNano"));
    assert!(times.is_sorted(), "{times:?}");
}

#[tokio::test]
async fn long_outputs_have_some_events_and_the_number_of_the_others() {
    let mut traced = Traced::new(|_| {});
    let plain = json!({ "max_tokens": 150, "speculative": { "enabled": false }, "stream": true });
    traced.api.post(CHAT, chat(plain)).await.chunks();
    let span = traced.span().await;
    assert_eq!(span["name"], "chat toy");
    assert_eq!(span["events"].as_array().unwrap().len(), 128);
    assert_eq!(span["droppedEventsCount"], 150 - 128);
    assert_eq!(attribute(&span, "forerun.rounds"), "150");
    // The trace is the server's own.
    assert!(span.get("parentSpanId").is_none());
    assert_ne!(span["traceId"], TRACE);
}

#[tokio::test]
async fn what_fails_is_traced_too() {
    let mut traced = Traced::new(|config| config.api_keys = vec!["key".to_owned()]);
    let request = post_request(COMPLETIONS, &completion(json!({})));
    assert_eq!(traced.api.send(request).await.status, StatusCode::UNAUTHORIZED);
    let span = traced.span().await;
    assert_eq!(span["name"], format!("POST {COMPLETIONS}"));
    assert_eq!(attribute(&span, "http.response.status_code"), "401");
    // The client's mistake is no error of the server.
    assert!(span.get("status").is_none() && attribute(&span, "error.type").is_null(), "{span}");
    let mut request = post_request(COMPLETIONS, &completion(json!({ "n": 0 })));
    request.headers_mut().insert(API_KEY, "key".parse().unwrap());
    traced.api.send(request).await.error(400);
    assert_eq!(attribute(&traced.span().await, "http.response.status_code"), "400");
}

#[tokio::test]
async fn a_client_that_leaves_is_seen_in_its_span() {
    let mut traced = Traced::new(|_| {});
    let body = json!({ "max_tokens": 900, "ignore_eos": true, "stream": true });
    let response = traced.api.respond(post_request(CHAT, &chat(body))).await;
    drop(response);
    let span = traced.span().await;
    assert_eq!(attribute(&span, "error.type"), "cancelled");
    assert!(span.get("status").is_none(), "{span}");
}

#[tokio::test]
async fn what_the_client_does_not_record_is_not_traced() {
    let mut traced = Traced::new(|_| {});
    let request = with_parent(post_request(COMPLETIONS, &completion(json!({}))), "00");
    let reply = traced.api.send(request).await;
    assert!(reply.headers.get(TRACE_RESPONSE).is_none());
    assert_eq!(traced.api.get("/v1/models").await.status, StatusCode::OK);
    assert!(traced.spans.try_recv().is_err());
    // Nor is anything if the server does not trace.
    let request = with_parent(post_request(COMPLETIONS, &completion(json!({}))), "01");
    assert!(Api::new().send(request).await.headers.get(TRACE_RESPONSE).is_none());
}
