//! Every endpoint over the toy engine, without a socket: what clients send and get. What needs real
//! clients, real weights or a real socket is in `tests/serve`.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

mod access;
mod bodies;
mod chat;
mod completions;
mod constraints;
mod embeddings;
mod infill;
mod lenient;
mod load;
mod lossy;
mod messages;
mod native;
mod parameters;
mod responses;
mod slots;
mod status;
mod tenants;
mod tokens;
mod traces;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use forerun_decode::{
    ChatTemplate, Engine, EngineError, Output, Slot, Special, Step, Token, TokenizeError,
    Tokenizer, ToyEngine,
};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::*;
use crate::config::{Origins, ServeConfig};
use crate::fixtures;
use crate::request::Client;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// Tokens of [`Ascii`].
const VOCAB: usize = 97;

/// Tokens of context.
const CONTEXT_LEN: usize = 1024;

/// The end token of [`Ascii`], which has no text.
const END: Token = Token(96);

/// The chat template.
const TEMPLATE: &str = "{% for message in messages %}[{{ message.role }}]\
                        {% if thoughts and message.reasoning_content %}\
                        ({{ message.reasoning_content }}){% endif %}{{ message.content }}\
                        {% endfor %}{% if suffix %}{{ suffix }}{% endif %}";

/// Every printable character of ASCII and the new line are a token, and there is an end token.
struct Ascii;

impl Tokenizer for Ascii {
    fn vocab_len(&self) -> usize {
        VOCAB
    }
    fn tokenize(&self, text: &str, _: Special) -> Result<Vec<Token>, TokenizeError> {
        let token = |byte: u8| match byte {
            b' '..=b'~' => Ok(Token(u32::from(byte - b' '))),
            b'\n' => Ok(Token(95)),
            _ => Err(TokenizeError::Failed { backend: "ascii" }),
        };
        text.bytes().map(token).collect()
    }
    fn start(&self) -> Option<Token> {
        None
    }
    fn is_end(&self, token: Token) -> bool {
        token == END
    }
    fn bytes(&self, token: Token, out: &mut Vec<u8>) {
        match u8::try_from(token.0).unwrap() {
            id @ 0..=94 => out.push(b' ' + id),
            95 => out.push(b'\n'),
            _ => {}
        }
    }
}

/// An engine that waits at a gate before each pass.
struct Gated {
    inner: Box<dyn Engine>,
    passes: mpsc::Receiver<()>,
    arrivals: Arc<AtomicUsize>,
}

/// Lets a [`Gated`] engine run passes one by one, and freely once it is dropped.
struct Gate {
    passes: mpsc::Sender<()>,
    arrivals: Arc<AtomicUsize>,
}

impl Gate {
    /// Lets it run so many passes.
    fn passes(&self, count: usize) {
        (0..count).for_each(|_| self.passes.send(()).unwrap());
    }

    /// How many passes it was about to run.
    fn arrivals(&self) -> usize {
        self.arrivals.load(Ordering::Relaxed)
    }

    /// Lets it run freely, and go on counting.
    fn open(self) -> Arc<AtomicUsize> {
        self.arrivals
    }
}

impl Engine for Gated {
    fn vocab_len(&self) -> usize {
        self.inner.vocab_len()
    }
    fn context_len(&self) -> usize {
        self.inner.context_len()
    }
    fn slot_count(&self) -> usize {
        self.inner.slot_count()
    }
    fn paths_max(&self) -> usize {
        self.inner.paths_max()
    }
    fn can_cut(&self) -> bool {
        self.inner.can_cut()
    }
    fn copy(&mut self, from: Slot, to: Slot, len: usize) -> bool {
        self.inner.copy(from, to, len)
    }
    fn extend(&mut self, steps: &[Step<'_>], output: &mut Output) -> Result<(), EngineError> {
        self.arrivals.fetch_add(1, Ordering::Relaxed);
        let _ = self.passes.recv();
        self.inner.extend(steps, output)
    }
}

/// A server without a socket, with three slots.
struct Api {
    router: Router,
    service: Arc<Service>,
    thread: JoinHandle<()>,
}

/// A response that was read to its end.
#[derive(Debug)]
struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    text: String,
}

impl Reply {
    async fn read(response: Response) -> Self {
        let (parts, body) = response.into_parts();
        let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        Self { status: parts.status, headers: parts.headers, text }
    }

    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("no JSON: {}", self.text))
    }

    /// The events of a stream.
    fn events(&self) -> Vec<&str> {
        self.text.split("\n\n").filter_map(|it| it.strip_prefix("data: ")).collect()
    }

    /// The chunks of a stream that ended as it should.
    #[track_caller]
    fn chunks(&self) -> Vec<Value> {
        assert_eq!(self.status, StatusCode::OK, "{}", self.text);
        assert_eq!(self.headers[header::CONTENT_TYPE], "text/event-stream");
        let mut events = self.events();
        assert_eq!(events.pop(), Some("[DONE]"), "{}", self.text);
        events.into_iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }

    /// The error, which has this status and all of OpenAI's fields.
    #[track_caller]
    fn error(&self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", self.text);
        assert_eq!(self.headers[header::CONTENT_TYPE], "application/json");
        let error = self.json()["error"].take();
        let fields: Vec<&String> = error.as_object().unwrap().keys().collect();
        assert_eq!(fields.len(), 4, "{error}");
        assert!(error["message"].is_string() && error["type"].is_string(), "{error}");
        assert!(error.get("param").is_some() && error.get("code").is_some(), "{error}");
        error
    }
}

impl Api {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut ServeConfig)) -> Self {
        Self::of(Box::new(toy()), change)
    }

    /// A server whose engine waits at a gate.
    fn gated(change: impl FnOnce(&mut ServeConfig)) -> (Self, Gate) {
        let (sender, passes) = mpsc::channel();
        let gate = Gate { passes: sender, arrivals: Arc::default() };
        let inner = Box::new(toy());
        let engine = Gated { inner, passes, arrivals: Arc::clone(&gate.arrivals) };
        (Self::of(Box::new(engine), change), gate)
    }

    fn of(target: Box<dyn Engine>, change: impl FnOnce(&mut ServeConfig)) -> Self {
        Self::serving(fixtures::engine_of(Arc::new(Ascii), target), change)
    }

    /// A server that allows so much loss per token.
    fn lossy(lossy_max: f64) -> Self {
        let mut engine = fixtures::engine_of(Arc::new(Ascii), Box::new(toy()));
        engine.drafts.lossy_max = Some(lossy_max);
        Self::serving(engine, |_| {})
    }

    /// A server whose model has this chat template.
    fn templated(source: &str, change: impl FnOnce(&mut ServeConfig)) -> Self {
        let mut engine = fixtures::engine_of(Arc::new(Ascii), Box::new(toy()));
        engine.template = Some(ChatTemplate::new(source, None, None).unwrap());
        engine.template_source = source.to_owned();
        Self::serving(engine, change)
    }

    fn serving(mut engine: crate::config::Engine, change: impl FnOnce(&mut ServeConfig)) -> Self {
        if engine.template.is_none() {
            engine.template = Some(ChatTemplate::new(TEMPLATE, None, None).unwrap());
            engine.template_source = TEMPLATE.to_owned();
        }
        engine.model.names.push("alias".to_owned());
        let mut config = config();
        change(&mut config);
        Self::traced(engine, config, None)
    }

    /// A server with this configuration whose spans go there.
    fn traced(engine: crate::config::Engine, config: ServeConfig, tracer: Option<Tracer>) -> Self {
        let app = App::new(config, tracer);
        let (host, tenants) = (app.config.host.clone(), Arc::clone(&app.tenants));
        let (service, thread) = Service::start(engine, host, tenants, None).unwrap();
        let service = Arc::new(service);
        let _ = app.service.set(Arc::clone(&service));
        Self { router: router(Arc::new(app)), service, thread }
    }

    async fn respond(&self, request: Request) -> Response {
        self.router.clone().oneshot(request).await.unwrap()
    }

    async fn send(&self, request: Request) -> Reply {
        Reply::read(self.respond(request).await).await
    }

    async fn get(&self, path: &str) -> Reply {
        self.send(get_request(path)).await
    }

    async fn post(&self, path: &str, body: Value) -> Reply {
        self.send(post_request(path, &body)).await
    }

    /// The response to a request that succeeds.
    async fn ok(&self, path: &str, body: Value) -> Value {
        let reply = self.post(path, body).await;
        assert_eq!(reply.status, StatusCode::OK, "{}", reply.text);
        assert_eq!(reply.headers[header::CONTENT_TYPE], "application/json");
        reply.json()
    }

    /// The error of a request that fails with this status.
    async fn error(&self, path: &str, body: Value, status: u16) -> Value {
        self.post(path, body).await.error(status)
    }

    /// The value of a metric, 0 if it has none yet.
    async fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").await.text;
        let line = text.lines().find(|line| line.starts_with(name));
        line.map_or(0.0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
    }
}

/// Lets other tasks and threads run until it is so.
async fn until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        tokio::task::yield_now().await;
    }
}

/// A target of [`Ascii`].
fn toy() -> ToyEngine {
    ToyEngine::new(fixtures::model(VOCAB, 1), CONTEXT_LEN).slots(3).paths(1)
}

fn config() -> ServeConfig {
    ServeConfig {
        host: fixtures::config(4),
        api_keys: Vec::new(),
        tenants: Vec::new(),
        metrics_key: None,
        audit: None,
        allowed_hosts: Vec::new(),
        strict: false,
        origins: Origins::Local,
        traces: None,
        slots: true,
        infill_suffix_first: false,
        read_timeout: Duration::from_secs(30),
        write_timeout: Duration::from_secs(30),
        connections_max: 1,
        body_max: 4096,
        grace: Duration::ZERO,
    }
}

fn get_request(path: &str) -> Request {
    let request = Request::get(path).header(header::HOST, "localhost");
    request.body(Body::empty()).unwrap()
}

fn post_request(path: &str, body: &Value) -> Request {
    let request = Request::post(path).header(header::HOST, "localhost");
    let request = request.header(header::CONTENT_TYPE, "application/json");
    request.body(Body::from(body.to_string())).unwrap()
}

/// An object with further fields.
fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// A chat of 9 prompt tokens and 12 of output.
fn chat(more: Value) -> Value {
    let messages = json!([{ "role": "user", "content": "abc" }]);
    with(json!({ "messages": messages, "max_tokens": 12, "ignore_eos": true, "seed": 5 }), more)
}

/// A text completion of 3 prompt tokens and 12 of output.
fn completion(more: Value) -> Value {
    with(json!({ "prompt": "abc", "max_tokens": 12, "ignore_eos": true, "seed": 5 }), more)
}

/// The strings at a path of each chunk, joined.
fn joined(chunks: &[Value], pointer: &str) -> String {
    chunks.iter().filter_map(|chunk| chunk.pointer(pointer)?.as_str()).collect()
}

/// The text of the first choice.
#[track_caller]
fn text(response: &Value) -> &str {
    let choice = &response["choices"][0];
    let text = choice.get("text").or_else(|| choice.pointer("/message/content"));
    text.and_then(Value::as_str).unwrap_or_else(|| panic!("no text: {response}"))
}
