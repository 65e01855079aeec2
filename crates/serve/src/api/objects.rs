//! The objects of responses, by OpenAI's names: completions, chunks, choices, deltas.

use std::time::UNIX_EPOCH;

use forerun_decode::{Origin, Piece};
use serde::Serialize;
use utoipa::ToSchema;

use super::logprobs::{ChatLogprobs, CompletionLogprobs};
use super::types::{ToolCall, ToolCallDelta};
use super::usage::{RequestMetrics, ResponseStats, Speculation, Timings, Usage};

/// The fields that every object begins with.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ObjectMeta {
    /// Its id.
    pub(crate) id: String,
    /// Its kind.
    pub(crate) object: &'static str,
    /// Seconds since 1970.
    pub(crate) created: u64,
    /// The model.
    pub(crate) model: String,
    /// The build that made it.
    pub(crate) system_fingerprint: &'static str,
}

impl ObjectMeta {
    /// The fields of an object of this kind, whose id begins with this prefix.
    pub(crate) fn new(prefix: &str, object: &'static str, model: String) -> Self {
        let now = crate::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            id: format!("{prefix}{:016x}", crate::random()),
            object,
            created: now.as_secs(),
            model,
            system_fingerprint: concat!("forerun-", env!("CARGO_PKG_VERSION")),
        }
    }
}

/// A chat completion.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatCompletion {
    #[serde(flatten)]
    pub(crate) meta: ObjectMeta,
    /// The choices.
    pub(crate) choices: Vec<ChatChoice>,
    /// The prompt's tokens, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<Vec<u32>>,
    #[serde(flatten)]
    pub(crate) stats: ResponseStats,
}

/// A choice of a chat completion.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatChoice {
    /// Its index.
    pub(crate) index: usize,
    /// The message.
    pub(crate) message: ResponseMessage,
    /// Log-probabilities, if requested.
    pub(crate) logprobs: Option<ChatLogprobs>,
    /// Why it finished.
    pub(crate) finish_reason: &'static str,
    /// Its tokens, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<u32>>,
    /// Where its tokens come from, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) speculative: Option<Trace>,
}

/// The message of a choice.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ResponseMessage {
    /// Always `assistant`.
    pub(crate) role: &'static str,
    /// The text; null if the message only calls functions.
    pub(crate) content: Option<String>,
    /// What the model thought before it answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    /// Always null: a refusal is text here.
    pub(crate) refusal: Option<String>,
    /// Calls of functions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<ToolCall>,
}

/// A chunk of a chat completion.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatCompletionChunk {
    #[serde(flatten)]
    pub(crate) meta: ObjectMeta,
    /// Parts of the choices.
    pub(crate) choices: Vec<ChatChunkChoice>,
    /// The prompt's tokens, in the first chunk, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<Vec<u32>>,
    /// Tokens so far, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Usage>,
    /// Time so far, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timings: Option<Timings>,
    /// What was drafted, in the last chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) speculative: Option<Speculation>,
    /// What speculation did, in the last chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) metrics: Option<RequestMetrics>,
}

impl ChatCompletionChunk {
    /// A chunk of these choices and nothing else.
    pub(crate) fn new(meta: &ObjectMeta, choices: Vec<ChatChunkChoice>) -> Self {
        Self {
            meta: meta.clone(),
            choices,
            prompt_token_ids: None,
            usage: None,
            timings: None,
            speculative: None,
            metrics: None,
        }
    }

    /// The last chunk, without choices.
    pub(crate) fn last(meta: &ObjectMeta, stats: ResponseStats) -> Self {
        Self {
            usage: Some(stats.usage),
            timings: Some(stats.timings),
            speculative: Some(stats.speculative),
            metrics: Some(stats.metrics),
            ..Self::new(meta, Vec::new())
        }
    }
}

/// A part of a choice.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct ChatChunkChoice {
    /// The index of the choice.
    pub(crate) index: usize,
    /// What is added.
    pub(crate) delta: Delta,
    /// Log-probabilities, if requested.
    pub(crate) logprobs: Option<ChatLogprobs>,
    /// Why the choice finished, once it has.
    pub(crate) finish_reason: Option<&'static str>,
    /// Its tokens, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<u32>>,
    /// Where its tokens come from, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) speculative: Option<Trace>,
}

/// What is added to a choice.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct Delta {
    /// `assistant`, in the first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<&'static str>,
    /// Text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content: Option<String>,
    /// What the model thinks before it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    /// Calls of functions: the first part of each has its id and name, and all of them more of its
    /// arguments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<ToolCallDelta>,
}

/// A text completion, or a chunk of one.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Completion {
    #[serde(flatten)]
    pub(crate) meta: ObjectMeta,
    /// The choices.
    pub(crate) choices: Vec<CompletionChoice>,
    /// Tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Usage>,
    /// Time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timings: Option<Timings>,
    /// What was drafted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) speculative: Option<Speculation>,
    /// What speculation did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) metrics: Option<RequestMetrics>,
}

impl Completion {
    /// A chunk of these choices and nothing else.
    pub(crate) fn chunk(meta: &ObjectMeta, choices: Vec<CompletionChoice>) -> Self {
        Self {
            meta: meta.clone(),
            choices,
            usage: None,
            timings: None,
            speculative: None,
            metrics: None,
        }
    }

    /// Choices with the statistics of their request: a whole completion, or the last chunk.
    pub(crate) fn whole(
        meta: &ObjectMeta,
        choices: Vec<CompletionChoice>,
        stats: ResponseStats,
    ) -> Self {
        Self {
            usage: Some(stats.usage),
            timings: Some(stats.timings),
            speculative: Some(stats.speculative),
            metrics: Some(stats.metrics),
            ..Self::chunk(meta, choices)
        }
    }
}

/// A choice of a text completion, or a part of one.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CompletionChoice {
    /// Its index.
    pub(crate) index: usize,
    /// The text.
    pub(crate) text: String,
    /// Log-probabilities, if requested.
    pub(crate) logprobs: Option<CompletionLogprobs>,
    /// Why it finished, once it has.
    pub(crate) finish_reason: Option<&'static str>,
    /// Its tokens, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<u32>>,
    /// The prompt's tokens, if requested; in a stream, in the first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<Vec<u32>>,
    /// Where its tokens come from, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) speculative: Option<Trace>,
}

/// Tokens and where they come from.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Trace {
    /// The tokens of a round.
    pub(crate) pieces: Vec<TracedPiece>,
}

/// A token and where it comes from.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct TracedPiece {
    /// Its id.
    pub(crate) token: u32,
    /// The text it releases.
    pub(crate) text: String,
    /// `accepted` (drafted), `corrected` (where a draft was rejected) or `plain`; in lossy modes also
    /// `forgiven` (accepted, though not the target's own) and `deferred` (shown before it was scored).
    pub(crate) origin: &'static str,
}

impl Trace {
    pub(crate) fn new(pieces: &[Piece]) -> Self {
        let traced = |piece: &Piece| TracedPiece {
            token: piece.token.0,
            text: piece.text.clone(),
            origin: match piece.origin {
                Origin::Accepted => "accepted",
                Origin::Forgiven => "forgiven",
                Origin::Deferred => "deferred",
                Origin::Corrected => "corrected",
                Origin::Plain => "plain",
            },
        };
        Self { pieces: pieces.iter().map(traced).collect() }
    }
}
