//! What is answered: whole or in chunks.

use std::time::UNIX_EPOCH;

use forerun_decode::{Origin, Piece, Stats, Token, TokenLogprob, Tokenizer};
use serde::Serialize;
use utoipa::ToSchema;

use super::types::ToolCall;
use crate::job::Tally;

/// Tokens of a request, by OpenAI's names.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub(crate) struct Usage {
    /// Tokens of the prompt.
    pub(crate) prompt_tokens: usize,
    /// Tokens of the answers.
    pub(crate) completion_tokens: usize,
    /// Both.
    pub(crate) total_tokens: usize,
    /// Of the prompt's.
    pub(crate) prompt_tokens_details: PromptDetails,
    /// Of the answers'.
    pub(crate) completion_tokens_details: CompletionDetails,
}

/// Prompt tokens.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub(crate) struct PromptDetails {
    /// Those that were cached.
    pub(crate) cached_tokens: usize,
}

/// Answered tokens.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub(crate) struct CompletionDetails {
    /// Tokens of the prediction that were accepted as drafts.
    pub(crate) accepted_prediction_tokens: usize,
    /// The rest of the prediction.
    pub(crate) rejected_prediction_tokens: usize,
}

/// What it took, by llama-server's names.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub(crate) struct Timings {
    /// Prompt tokens that were cached.
    pub(crate) cache_n: usize,
    /// Prompt tokens that were read.
    pub(crate) prompt_n: u64,
    /// Milliseconds to the first token, the queue not included.
    pub(crate) prompt_ms: f64,
    /// Tokens made.
    pub(crate) predicted_n: u64,
    /// Milliseconds for those after the first.
    pub(crate) predicted_ms: f64,
    /// Tokens a second after the first.
    pub(crate) predicted_per_second: f64,
    /// Tokens drafted.
    pub(crate) draft_n: u64,
    /// Drafted tokens accepted.
    pub(crate) draft_n_accepted: u64,
}

/// Statistics of a request, by vLLM's names.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct RequestMetrics {
    /// Of speculation.
    pub(crate) speculative_decoding: SpeculationMetrics,
}

/// What speculation did.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct SpeculationMetrics {
    /// One, and the accepted tokens of a draft.
    pub(crate) mean_acceptance_length: f64,
    /// Accepted tokens per drafted token.
    pub(crate) draft_acceptance_rate: f64,
    /// Drafts by how many of their tokens were accepted, from none.
    pub(crate) acceptance_histogram: Vec<u64>,
    /// Rounds with a draft.
    pub(crate) num_spec_steps: u64,
    /// Drafted tokens accepted.
    pub(crate) num_accepted_draft_tokens: u64,
    /// Tokens drafted.
    pub(crate) num_draft_tokens: u64,
    /// Most tokens of a path.
    pub(crate) num_spec_tokens: usize,
    /// Accepted tokens of each draft, where a trace was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) per_step_accepted: Option<Vec<u32>>,
    /// Length of each draft, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) per_step_drafted: Option<Vec<u32>>,
}

/// What was drafted and how it was judged.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub(crate) struct Speculation {
    /// Whether anything could be drafted.
    pub(crate) enabled: bool,
    /// The rule.
    pub(crate) rule: &'static str,
    /// Whether the answer follows the target's own law; every rule here sees to that.
    pub(crate) lossless: bool,
    /// What drafted.
    pub(crate) drafters: Vec<&'static str>,
    /// Tokens of a path: always, or at most.
    pub(crate) length: usize,
    /// Paths of the draft model, at most.
    pub(crate) paths: usize,
    /// Whether the controller decided how much is drafted.
    pub(crate) adaptive: bool,
    /// Drafters that failed on the way, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) dropped: Vec<String>,
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
    /// `accepted` (drafted), `corrected` (where a draft was rejected) or `plain`.
    pub(crate) origin: &'static str,
}

/// The ids of tokens.
pub(crate) fn token_ids(pieces: &[Piece]) -> Vec<u32> {
    pieces.iter().map(|piece| piece.token.0).collect()
}

impl Trace {
    pub(crate) fn new(pieces: &[Piece]) -> Self {
        let traced = |piece: &Piece| TracedPiece {
            token: piece.token.0,
            text: piece.text.clone(),
            origin: match piece.origin {
                Origin::Accepted => "accepted",
                Origin::Corrected => "corrected",
                Origin::Plain => "plain",
            },
        };
        Self { pieces: pieces.iter().map(traced).collect() }
    }
}

/// Log-probabilities of an answer's tokens, in chats.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub(crate) struct ChatLogprobs {
    /// For each token.
    pub(crate) content: Vec<ChatLogprob>,
}

/// A token's log-probability.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ChatLogprob {
    #[serde(flatten)]
    own: LikelyToken,
    /// The likeliest in its place.
    top_logprobs: Vec<LikelyToken>,
}

/// A token and its log-probability.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct LikelyToken {
    /// Its text; what is no whole character shows as such.
    token: String,
    /// The natural logarithm of its probability.
    logprob: f64,
    /// Its bytes.
    bytes: Vec<u8>,
}

/// Log-probabilities of an answer's tokens, in completions.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub(crate) struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<f64>,
    top_logprobs: Vec<std::collections::BTreeMap<String, f64>>,
    text_offset: Vec<usize>,
}

/// The log-probabilities of pieces; end tokens are no part of an answer.
pub(crate) fn logprobs<'a>(
    pieces: &'a [Piece],
    tokenizer: &'a dyn Tokenizer,
) -> impl Iterator<Item = &'a TokenLogprob> {
    let said = pieces.iter().filter(|piece| !tokenizer.is_end(piece.token));
    said.filter_map(|piece| piece.logprob.as_ref())
}

fn likely(token: Token, logprob: f64, tokenizer: &dyn Tokenizer) -> LikelyToken {
    let mut bytes = Vec::new();
    tokenizer.bytes(token, &mut bytes);
    // JSON has no infinity: what is impossible is as unlikely as can be said.
    let logprob = logprob.max(-9999.0);
    LikelyToken { token: name(token, &bytes), logprob, bytes }
}

/// A token's text; what is no whole character is spelled out as OpenAI does, and what has no text at
/// all goes by its number, so that no two share a name.
fn name(token: Token, bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok("") => format!("<{}>", token.0),
        Ok(text) => text.to_owned(),
        Err(_) => {
            bytes.iter().fold("bytes:".to_owned(), |name, byte| name + &format!("\\x{byte:02x}"))
        }
    }
}

impl ChatLogprobs {
    pub(crate) fn new(pieces: &[Piece], tokenizer: &dyn Tokenizer) -> Self {
        let one = |said: &TokenLogprob| ChatLogprob {
            own: likely(said.token, said.logprob, tokenizer),
            top_logprobs: said.top.iter().map(|(id, of)| likely(*id, *of, tokenizer)).collect(),
        };
        Self { content: logprobs(pieces, tokenizer).map(one).collect() }
    }
}

impl CompletionLogprobs {
    /// Characters of tokens by their names, as offsets count them.
    pub(crate) fn offset_after(tokens: &[Token], tokenizer: &dyn Tokenizer) -> usize {
        tokens.iter().map(|token| likely(*token, 0.0, tokenizer).token.chars().count()).sum()
    }

    /// Of pieces that come after so many characters, which are counted on.
    pub(crate) fn new(pieces: &[Piece], tokenizer: &dyn Tokenizer, offset: &mut usize) -> Self {
        let mut all = Self::default();
        for said in logprobs(pieces, tokenizer) {
            let own = likely(said.token, said.logprob, tokenizer);
            let top = said.top.iter().map(|(id, of)| likely(*id, *of, tokenizer));
            all.text_offset.push(*offset);
            *offset += own.token.chars().count();
            all.token_logprobs.push(own.logprob);
            all.top_logprobs.push(top.map(|it| (it.token, it.logprob)).collect());
            all.tokens.push(own.token);
        }
        all
    }
}

impl Timings {
    pub(crate) fn new(tally: &Tally) -> Self {
        let stats = &tally.stats;
        Self {
            cache_n: tally.cached,
            prompt_n: stats.prompt_read,
            prompt_ms: 1e3 * stats.prompt_time.as_secs_f64(),
            predicted_n: stats.output_len,
            predicted_ms: 1e3 * stats.time.as_secs_f64(),
            predicted_per_second: stats.tokens_per_second(),
            draft_n: stats.drafted,
            draft_n_accepted: stats.accepted,
        }
    }
}

impl SpeculationMetrics {
    /// Of all answers of a request.
    pub(crate) fn new(tallies: &[Tally], length: usize, trace: bool) -> Self {
        let mut all = Stats::default();
        tallies.iter().for_each(|tally| all.merge(&tally.stats));
        let steps = || tallies.iter().flat_map(|tally| &tally.steps);
        let longest = steps().map(|(_, accepted)| *accepted).max().unwrap_or(0) as usize;
        let mut histogram = vec![0; longest + 1];
        steps().for_each(|(_, accepted)| histogram[*accepted as usize] += 1);
        let count = steps().count() as u64;
        let mean = if count == 0 { 1.0 } else { 1.0 + all.accepted as f64 / count as f64 };
        let list = |of: fn(&(u32, u32)) -> u32| trace.then(|| steps().map(of).collect());
        Self {
            mean_acceptance_length: mean,
            draft_acceptance_rate: all.acceptance(),
            acceptance_histogram: histogram,
            num_spec_steps: count,
            num_accepted_draft_tokens: all.accepted,
            num_draft_tokens: all.drafted,
            num_spec_tokens: length,
            per_step_accepted: list(|step| step.1),
            per_step_drafted: list(|step| step.0),
        }
    }
}

/// A whole answer to a chat.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatCompletion {
    #[serde(flatten)]
    pub(crate) head: Head,
    /// The answers.
    pub(crate) choices: Vec<ChatChoice>,
    /// The prompt's tokens, where asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<Vec<u32>>,
    #[serde(flatten)]
    pub(crate) foot: Foot,
}

/// What every object begins with.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Head {
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

impl Head {
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

/// What every answer ends with.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Foot {
    /// Tokens.
    pub(crate) usage: Usage,
    /// Time.
    pub(crate) timings: Timings,
    /// What was drafted.
    pub(crate) speculative: Speculation,
    /// What came of it.
    pub(crate) metrics: RequestMetrics,
}

/// An answer to a chat.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatChoice {
    /// Its place.
    pub(crate) index: usize,
    /// What was said.
    pub(crate) message: AnswerMessage,
    /// Log-probabilities, where asked for.
    pub(crate) logprobs: Option<ChatLogprobs>,
    /// Why it ended.
    pub(crate) finish_reason: &'static str,
    /// Its tokens, where asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<u32>>,
    /// Where its tokens come from, where asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) speculative: Option<Trace>,
}

/// What was said.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AnswerMessage {
    /// Always `assistant`.
    pub(crate) role: &'static str,
    /// The text; none where a function is called.
    pub(crate) content: Option<String>,
    /// Refusals are text here.
    pub(crate) refusal: Option<String>,
    /// Calls of functions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<ToolCall>,
}

/// A piece of an answer to a chat.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatChunk {
    #[serde(flatten)]
    pub(crate) head: Head,
    /// Parts of the answers.
    pub(crate) choices: Vec<ChatChunkChoice>,
    /// The prompt's tokens, at the beginning, where asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<Vec<u32>>,
    /// Tokens so far, where asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Usage>,
    /// Time so far, where asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timings: Option<Timings>,
    /// What was drafted, at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) speculative: Option<Speculation>,
    /// What came of it, at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) metrics: Option<RequestMetrics>,
}

/// A part of an answer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatChunkChoice {
    /// Its place.
    pub(crate) index: usize,
    /// What is added.
    pub(crate) delta: Delta,
    /// Log-probabilities, where asked for.
    pub(crate) logprobs: Option<ChatLogprobs>,
    /// Why it ended, where it did.
    pub(crate) finish_reason: Option<&'static str>,
    /// Its tokens, where asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<u32>>,
    /// Where its tokens come from, where asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) speculative: Option<Trace>,
}

/// What is added to an answer.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct Delta {
    /// Who speaks, at the beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<&'static str>,
    /// Text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content: Option<String>,
    /// Calls of functions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<ToolCall>,
}

/// A continued text, whole or a piece of it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Completion {
    #[serde(flatten)]
    pub(crate) head: Head,
    /// The texts.
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
    /// What came of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) metrics: Option<RequestMetrics>,
}

/// A continued text.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CompletionChoice {
    /// Its place.
    pub(crate) index: usize,
    /// The text.
    pub(crate) text: String,
    /// Log-probabilities, where asked for.
    pub(crate) logprobs: Option<CompletionLogprobs>,
    /// Why it ended, where it did.
    pub(crate) finish_reason: Option<&'static str>,
    /// Its tokens, where asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<u32>>,
    /// The prompt's tokens, likewise; in a stream, at the beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<Vec<u32>>,
    /// Where its tokens come from, where asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) speculative: Option<Trace>,
}
