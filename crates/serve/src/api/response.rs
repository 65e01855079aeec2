//! A response under way, whatever endpoint it is for.

use std::fmt::Write;
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use forerun_decode::{Piece, Spending, Token, Tokenizer};

use super::objects::{ObjectMeta, Trace};
use super::parameters::{ApiRequest, ResponseOptions};
use super::usage::{ResponseStats, Timings, Usage};
use crate::error::RequestError;
use crate::response::ResponseStream;
use crate::service::Service;

/// The header that says what a lossy mode promised and spent.
pub(crate) const LOSSY: HeaderName = HeaderName::from_static("forerun-lossy");

/// A response under way: its sequences, and how they are to be written.
pub(crate) struct ApiResponse {
    service: Arc<Service>,
    pub(crate) options: ResponseOptions,
    /// The fields that its objects begin with.
    pub(crate) meta: ObjectMeta,
    pub(crate) sequences: ResponseStream,
}

/// What the objects of an endpoint are called.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ObjectNames {
    /// What ids begin with.
    pub(crate) prefix: &'static str,
    /// The kind of a whole object.
    pub(crate) whole: &'static str,
    /// The kind of a chunk.
    pub(crate) chunk: &'static str,
}

impl ApiResponse {
    /// Begins to decode. A stream has its first token once this returns.
    pub(crate) async fn begin(
        service: Arc<Service>,
        request: ApiRequest,
        names: ObjectNames,
    ) -> Result<Self, RequestError> {
        let ApiRequest { model, options, request } = request;
        let object = if options.stream { names.chunk } else { names.whole };
        let meta = ObjectMeta::new(names.prefix, object, model);
        let mut sequences = ResponseStream::begin(&service, request).await?;
        if options.stream {
            sequences.wait_for_first().await?;
        }
        Ok(Self { service, options, meta, sequences })
    }

    /// How many choices it has.
    pub(crate) fn choices(&self) -> usize {
        self.sequences.summary.choices
    }

    /// The text of tokens, with that of control tokens.
    pub(crate) fn written(&self, tokens: &[Token]) -> String {
        self.service.written(tokens)
    }

    pub(crate) fn tokenizer(&self) -> &dyn Tokenizer {
        &*self.service.tokenizer
    }

    /// The ids of tokens, if requested.
    pub(crate) fn token_ids(&self, pieces: &[Piece]) -> Option<Vec<u32>> {
        self.options.token_ids.then(|| pieces.iter().map(|piece| piece.token.0).collect())
    }

    /// The tokens of a choice's prompt, if requested.
    pub(crate) fn prompt_token_ids(&self, choice: usize) -> Option<Vec<u32>> {
        let summary = &self.sequences.summary;
        let prompt = summary.prompts.get(choice / summary.n).filter(|_| self.options.token_ids)?;
        Some(prompt.iter().map(|token| token.0).collect())
    }

    /// Where tokens come from, if requested.
    pub(crate) fn trace(&self, pieces: &[Piece]) -> Option<Trace> {
        self.options.trace.then(|| Trace::new(pieces))
    }

    /// The usage so far, if every chunk is to have it.
    pub(crate) fn chunk_usage(&self) -> Option<Usage> {
        let usage = || Usage::new(&self.sequences.summary, &self.sequences.stats);
        self.options.continuous_usage.then(usage)
    }

    /// The timings so far, if every chunk is to have them.
    pub(crate) fn chunk_timings(&self) -> Option<Timings> {
        self.options.timings.then(|| Timings::new(&self.sequences.stats))
    }

    /// The statistics so far.
    pub(crate) fn stats(&self) -> ResponseStats {
        let ResponseStream { summary, stats, .. } = &self.sequences;
        ResponseStats::new(summary, stats, self.options.trace)
    }

    /// What a lossy mode promised, and what was spent if all is known; nothing without loss.
    pub(crate) fn lossy_header(&self, finished: bool) -> HeaderMap {
        let Some(mode) = self.sequences.summary.drafting.lossy else { return HeaderMap::new() };
        let mut said = format!("{}={}", mode.name(), mode.promised());
        if finished {
            let mut spending = Spending::default();
            self.sequences.stats.iter().for_each(|stats| spending.merge(&stats.rounds.spending));
            write!(said, "; spent={:.4}", spending.mean()).expect("strings take all text");
        }
        let value = HeaderValue::from_str(&said).expect("names and numbers");
        HeaderMap::from_iter([(LOSSY, value)])
    }

    /// Whether a chunk is sent though it adds no text.
    pub(crate) fn reports_tokens(&self) -> bool {
        self.options.trace || self.options.logprobs || self.options.token_ids
    }
}
