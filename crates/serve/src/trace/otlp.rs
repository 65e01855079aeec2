//! Spans as OTLP writes them in JSON: ids in hexadecimal digits, large numbers as strings.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::{Decoding, FinishedSpan, RoundEvent, Said};
use crate::audit::Outcome;

/// What OTLP calls the span of a request that came from elsewhere.
const SERVER: u32 = 2;

/// The status of a span whose request failed here.
const ERROR: u32 = 2;

/// The flags of a span that is recorded; and those that say where its parent is.
const SAMPLED: u32 = 1;
const PARENT_KNOWN: u32 = 0x100;
const PARENT_REMOTE: u32 = 0x200;

/// The body of a request to a collector.
pub(crate) fn body(service: &str, spans: &[FinishedSpan]) -> Value {
    let mut resource = Attributes::default();
    resource.text("service.name", service);
    resource.text("service.version", env!("CARGO_PKG_VERSION"));
    let spans: Vec<Value> = spans.iter().map(span).collect();
    json!({ "resourceSpans": [{
        "resource": { "attributes": resource.0 },
        "scopeSpans": [{
            "scope": { "name": "forerun", "version": env!("CARGO_PKG_VERSION") },
            "spans": spans,
        }],
    }] })
}

fn span(span: &FinishedSpan) -> Value {
    let FinishedSpan { context, said, began, .. } = span;
    let operation = operation(&span.endpoint);
    let name = match &said.decoding {
        Some(decoding) => format!("{operation} {}", decoding.model),
        None => format!("POST {}", span.endpoint),
    };
    let remote = if context.parent.is_some() { PARENT_REMOTE } else { 0 };
    let mut object = json!({
        "traceId": context.trace,
        "spanId": context.id,
        "flags": SAMPLED | PARENT_KNOWN | remote,
        "name": name,
        "kind": SERVER,
        "startTimeUnixNano": nanoseconds(*began),
        "endTimeUnixNano": nanoseconds(span.ended),
        "attributes": attributes(span, operation),
        "events": said.rounds.iter().map(|it| event(*began, it)).collect::<Vec<_>>(),
        "droppedEventsCount": said.rounds_dropped,
    });
    if let Some(parent) = &context.parent {
        object["parentSpanId"] = json!(parent);
    }
    if !context.state.is_empty() {
        object["traceState"] = json!(context.state);
    }
    if failed(said) {
        object["status"] = json!({ "code": ERROR });
    }
    object
}

/// What an endpoint does, by the words of the conventions.
fn operation(endpoint: &str) -> &'static str {
    let chats = ["/chat/completions", "/messages", "/responses"];
    if chats.iter().any(|chat| endpoint.ends_with(chat)) { "chat" } else { "text_completion" }
}

/// Whether the request failed here, rather than by its own mistake.
fn failed(said: &Said) -> bool {
    said.status.is_some_and(|status| status >= 500) || said.outcome == Some(Outcome::Failed)
}

fn attributes(span: &FinishedSpan, operation: &str) -> Vec<Value> {
    let said = &span.said;
    let mut all = Attributes::default();
    all.text("http.request.method", "POST");
    all.text("url.path", &span.endpoint);
    all.text("forerun.request_id", &span.request_id);
    if let Some(status) = said.status {
        all.count("http.response.status_code", status);
    }
    match (said.status, said.outcome) {
        (Some(status @ 500..), _) => all.text("error.type", &status.to_string()),
        (_, Some(Outcome::Failed)) => all.text("error.type", "failed"),
        (None, _) | (_, Some(Outcome::Cancelled)) => all.text("error.type", "cancelled"),
        _ => {}
    }
    if let Some(decoding) = &said.decoding {
        all.decoding(decoding, operation);
        all.said(said);
    }
    all.0
}

/// Attributes as OTLP writes them.
#[derive(Default)]
struct Attributes(Vec<Value>);

impl Attributes {
    fn add(&mut self, key: &str, value: Value) {
        self.0.push(json!({ "key": key, "value": value }));
    }

    fn text(&mut self, key: &str, text: &str) {
        self.add(key, json!({ "stringValue": text }));
    }

    fn count(&mut self, key: &str, count: impl ToString) {
        self.add(key, json!({ "intValue": count.to_string() }));
    }

    fn number(&mut self, key: &str, number: f64) {
        self.add(key, json!({ "doubleValue": number }));
    }

    fn texts(&mut self, key: &str, texts: &[&str]) {
        let values: Vec<Value> = texts.iter().map(|it| json!({ "stringValue": it })).collect();
        self.add(key, json!({ "arrayValue": { "values": values } }));
    }

    /// What was asked for.
    fn decoding(&mut self, decoding: &Decoding, operation: &str) {
        self.text("gen_ai.operation.name", operation);
        self.text("gen_ai.provider.name", "forerun");
        self.text("gen_ai.request.model", &decoding.model);
        self.text("gen_ai.response.model", &decoding.model);
        self.count("gen_ai.request.choice.count", decoding.choices);
        if let Some(most) = decoding.max_tokens {
            self.count("gen_ai.request.max_tokens", most);
        }
        if let Some(seed) = decoding.seed {
            self.count("gen_ai.request.seed", seed);
        }
        let sampling = &decoding.sampling;
        self.number("gen_ai.request.temperature", sampling.temperature.into());
        self.number("gen_ai.request.top_p", sampling.top_p.into());
        self.count("gen_ai.request.top_k", sampling.top_k);
        self.number("gen_ai.request.presence_penalty", sampling.presence_penalty.into());
        self.number("gen_ai.request.frequency_penalty", sampling.frequency_penalty.into());
    }

    /// What became of it.
    fn said(&mut self, said: &Said) {
        self.texts("gen_ai.response.finish_reasons", &said.finish_reasons);
        self.count("gen_ai.usage.input_tokens", said.tokens.prompt);
        self.count("gen_ai.usage.cache_read.input_tokens", said.tokens.cached);
        self.count("gen_ai.usage.output_tokens", said.tokens.completion);
        if let Some(first) = said.first_token {
            // vLLM's name; the conventions have none for spans.
            self.number("gen_ai.latency.time_to_first_token", first.as_secs_f64());
        }
        self.count("forerun.rounds", said.rounds.len() + said.rounds_dropped);
        self.count("forerun.draft_tokens", said.drafted);
        self.count("forerun.accepted_tokens", said.accepted);
    }
}

fn event(began: SystemTime, round: &RoundEvent) -> Value {
    let mut all = Attributes::default();
    all.count("forerun.choice", round.choice);
    all.count("forerun.committed_tokens", round.committed);
    all.count("forerun.draft_tokens", round.drafted);
    all.count("forerun.accepted_tokens", round.accepted);
    let time = nanoseconds(began + round.after);
    json!({ "timeUnixNano": time, "name": "forerun.round", "attributes": all.0 })
}

/// A time as OTLP writes it.
fn nanoseconds(time: SystemTime) -> String {
    time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_nanos().to_string()
}
