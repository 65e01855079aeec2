//! Traces: a span for each request that is posted, with the rounds of its sequences as events, for a
//! collector that speaks OTLP. It has no prompts, no answers and no keys.
//!
//! Spans are named by OpenTelemetry's conventions for generative AI. A span belongs to the trace that
//! the client's `traceparent` names, and is not made if the client's says that it is not recorded.

mod context;
mod endpoint;
mod export;
mod otlp;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use axum::http::HeaderMap;
use forerun_decode::{Sampling, Stats};
use tokio::sync::mpsc;

pub(crate) use self::context::{SpanContext, TRACE_RESPONSE, trace_of};
pub use self::endpoint::{EndpointError, TraceEndpoint};
pub(crate) use self::export::Exporter;
#[cfg(test)]
pub(crate) use self::otlp::body;
use crate::audit::{Outcome, Tokens};
use crate::event::{Progress, finish_reason};

/// Most events of a span, which is OpenTelemetry's limit too; further rounds are counted.
const EVENTS_MAX: usize = 128;

/// Most spans that wait to be sent; further ones are dropped.
const WAITING_MAX: usize = 2048;

/// Where traces go, and who they are of.
#[derive(Debug, Clone)]
pub struct TraceConfig {
    /// The collector.
    pub endpoint: TraceEndpoint,
    /// The name of this service in traces.
    pub service: String,
}

/// Takes spans for the exporter.
#[derive(Debug)]
pub(crate) struct Tracer {
    spans: mpsc::Sender<FinishedSpan>,
    /// Spans that were dropped because too many waited.
    dropped: AtomicU64,
}

impl Tracer {
    /// A tracer, and where its spans come out.
    pub(crate) fn new() -> (Self, mpsc::Receiver<FinishedSpan>) {
        let (spans, receiver) = mpsc::channel(WAITING_MAX);
        (Self { spans, dropped: 0.into() }, receiver)
    }

    fn send(&self, span: FinishedSpan) {
        if self.spans.try_send(span).is_err() && self.dropped.fetch_add(1, Ordering::Relaxed) == 0 {
            // Said once, not with every request.
            tracing::warn!("spans are dropped: the collector does not take them fast enough");
        }
    }
}

/// The span of a request. It ends when the last who holds it is done with the request.
#[derive(Debug)]
pub(crate) struct Span {
    tracer: Arc<Tracer>,
    context: SpanContext,
    request_id: String,
    endpoint: String,
    time: SystemTime,
    began: Instant,
    said: Mutex<Said>,
}

/// What became known of a request.
#[derive(Debug, Default)]
pub(crate) struct Said {
    status: Option<u16>,
    /// What is decoded, once it is.
    decoding: Option<Decoding>,
    first_token: Option<Duration>,
    rounds: Vec<RoundEvent>,
    rounds_dropped: usize,
    drafted: u64,
    accepted: u64,
    finish_reasons: Vec<&'static str>,
    outcome: Option<Outcome>,
    tokens: Tokens,
}

/// What is decoded for a request.
#[derive(Debug)]
pub(crate) struct Decoding {
    pub(crate) model: String,
    pub(crate) choices: usize,
    pub(crate) max_tokens: Option<u32>,
    pub(crate) seed: Option<i64>,
    pub(crate) sampling: Sampling,
}

/// A round that committed tokens to a sequence.
#[derive(Debug)]
struct RoundEvent {
    /// When it was reported, after the beginning of the span.
    after: Duration,
    choice: usize,
    committed: usize,
    drafted: u64,
    accepted: u64,
}

/// A span that has ended.
#[derive(Debug)]
pub(crate) struct FinishedSpan {
    context: SpanContext,
    request_id: String,
    endpoint: String,
    began: SystemTime,
    ended: SystemTime,
    said: Said,
}

impl Span {
    /// A request to this path has come. There is no span if its client does not record its trace.
    pub(crate) fn begin(
        tracer: &Arc<Tracer>,
        headers: &HeaderMap,
        request_id: &str,
        endpoint: &str,
    ) -> Option<Self> {
        Some(Self {
            tracer: Arc::clone(tracer),
            context: SpanContext::begin(headers)?,
            request_id: request_id.to_owned(),
            endpoint: endpoint.to_owned(),
            time: crate::now(),
            began: Instant::now(),
            said: Mutex::default(),
        })
    }

    /// By what it is known to others.
    pub(crate) fn context(&self) -> &SpanContext {
        &self.context
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The response has this status.
    pub(crate) fn answered(&self, status: u16) {
        self.said().status = Some(status);
    }

    /// The request is decoded.
    pub(crate) fn begun(&self, decoding: Decoding) {
        self.said().decoding = Some(decoding);
    }

    /// A round was reported; `before` is what its sequence had before.
    pub(crate) fn round(&self, progress: &Progress, before: &Stats) {
        let after = self.began.elapsed();
        let now = &progress.stats.rounds;
        let event = RoundEvent {
            after,
            choice: progress.choice,
            committed: progress.pieces.len(),
            drafted: now.drafted.saturating_sub(before.drafted),
            accepted: now.accepted.saturating_sub(before.accepted),
        };
        let mut said = self.said();
        said.drafted += event.drafted;
        said.accepted += event.accepted;
        said.finish_reasons.extend(progress.finish.map(finish_reason));
        said.first_token.get_or_insert(after);
        match said.rounds.len() < EVENTS_MAX {
            true => said.rounds.push(event),
            false => said.rounds_dropped += 1,
        }
    }

    /// The sequences are over.
    pub(crate) fn ended(&self, outcome: Outcome, tokens: Tokens) {
        let mut said = self.said();
        (said.outcome, said.tokens) = (Some(outcome), tokens);
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let said = std::mem::take(&mut *self.said());
        self.tracer.send(FinishedSpan {
            context: self.context.clone(),
            request_id: std::mem::take(&mut self.request_id),
            endpoint: std::mem::take(&mut self.endpoint),
            began: self.time,
            // Not the clock's time: it may have been set meanwhile.
            ended: self.time + self.began.elapsed(),
            said,
        });
    }
}
