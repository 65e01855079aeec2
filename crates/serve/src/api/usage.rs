//! What a response reports of its request: tokens, time, and what speculation did.

use forerun_decode::{DrafterKind, LossyMode, Spending, Stats};
use serde::Serialize;
use utoipa::ToSchema;

use crate::event::SequenceStats;
use crate::request::RequestSummary;

/// Tokens of a request, by OpenAI's names.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub(crate) struct Usage {
    /// Tokens of the prompt.
    pub(crate) prompt_tokens: usize,
    /// Tokens of all choices.
    pub(crate) completion_tokens: usize,
    /// Both.
    pub(crate) total_tokens: usize,
    /// Details of the prompt's.
    pub(crate) prompt_tokens_details: PromptTokensDetails,
    /// Details of the choices'.
    pub(crate) completion_tokens_details: CompletionTokensDetails,
}

/// Prompt tokens.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub(crate) struct PromptTokensDetails {
    /// Those that were in the prefix cache.
    pub(crate) cached_tokens: usize,
}

/// Completion tokens.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub(crate) struct CompletionTokensDetails {
    /// Tokens of the prediction that were accepted as drafts.
    pub(crate) accepted_prediction_tokens: usize,
    /// The rest of the prediction.
    pub(crate) rejected_prediction_tokens: usize,
}

impl Usage {
    /// The tokens of a request so far.
    pub(crate) fn new(request: &RequestSummary, stats: &[SequenceStats]) -> Self {
        let prompts: usize = request.prompts.iter().map(Vec::len).sum();
        let prompt_tokens = prompts + request.resumed.tokens.len();
        let completion_tokens: u64 = stats.iter().map(|it| it.rounds.output_len).sum();
        let completion_tokens = usize::try_from(completion_tokens).unwrap_or(usize::MAX);
        let accepted: usize = stats.iter().map(|it| it.predicted).sum();
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptTokensDetails {
                cached_tokens: stats.iter().step_by(request.n).map(|it| it.cached).sum(),
            },
            completion_tokens_details: CompletionTokensDetails {
                accepted_prediction_tokens: accepted,
                rejected_prediction_tokens: (request.prediction_len * request.choices)
                    .saturating_sub(accepted),
            },
        }
    }
}

/// Time of a request, by llama-server's names.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub(crate) struct Timings {
    /// Prompt tokens that were in the prefix cache.
    pub(crate) cache_n: usize,
    /// Prompt tokens that were prefilled.
    pub(crate) prompt_n: u64,
    /// Milliseconds to the first token, the queue not included.
    pub(crate) prompt_ms: f64,
    /// The same for each prompt token that was prefilled.
    pub(crate) prompt_per_token_ms: f64,
    /// Prompt tokens prefilled a second.
    pub(crate) prompt_per_second: f64,
    /// Tokens decoded.
    pub(crate) predicted_n: u64,
    /// Milliseconds for those after the first.
    pub(crate) predicted_ms: f64,
    /// The same for each of them.
    pub(crate) predicted_per_token_ms: f64,
    /// Tokens a second after the first.
    pub(crate) predicted_per_second: f64,
    /// Tokens drafted.
    pub(crate) draft_n: u64,
    /// Draft tokens accepted.
    pub(crate) draft_n_accepted: u64,
}

impl Timings {
    /// The time of all sequences so far.
    pub(crate) fn new(stats: &[SequenceStats]) -> Self {
        let rounds = total(stats);
        let prompt_ms = 1e3 * rounds.prompt_time.as_secs_f64();
        let prompt_n = rounds.prompt_prefilled as f64;
        let predicted_per_second = rounds.tokens_per_second();
        // 0 where nothing was counted.
        let ratio = |one: f64, other: f64| if other > 0.0 { one / other } else { 0.0 };
        Self {
            cache_n: stats.iter().map(|it| it.cached).sum(),
            prompt_n: rounds.prompt_prefilled,
            prompt_ms,
            prompt_per_token_ms: ratio(prompt_ms, prompt_n),
            prompt_per_second: ratio(1e3 * prompt_n, prompt_ms),
            predicted_n: rounds.output_len,
            predicted_ms: 1e3 * rounds.time.as_secs_f64(),
            predicted_per_token_ms: ratio(1e3, predicted_per_second),
            predicted_per_second,
            draft_n: rounds.drafted,
            draft_n_accepted: rounds.accepted,
        }
    }
}

/// Statistics of a request, by vLLM's names.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct RequestMetrics {
    /// Those of speculation.
    pub(crate) speculative_decoding: SpeculationMetrics,
}

/// What speculation did.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct SpeculationMetrics {
    /// One, and the mean number of accepted tokens of a draft.
    pub(crate) mean_acceptance_length: f64,
    /// Accepted tokens per drafted token.
    pub(crate) draft_acceptance_rate: f64,
    /// Drafts by how many of their tokens were accepted, from none.
    pub(crate) acceptance_histogram: Vec<u64>,
    /// Rounds with a draft.
    pub(crate) num_spec_steps: u64,
    /// Draft tokens accepted.
    pub(crate) num_accepted_draft_tokens: u64,
    /// Tokens drafted.
    pub(crate) num_draft_tokens: u64,
    /// Most tokens of a path.
    pub(crate) num_spec_tokens: usize,
    /// Accepted tokens of each draft, if a trace was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) per_step_accepted: Option<Vec<u32>>,
    /// Length of each draft, if a trace was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) per_step_drafted: Option<Vec<u32>>,
}

impl SpeculationMetrics {
    fn new(request: &RequestSummary, stats: &[SequenceStats], trace: bool) -> Self {
        let rounds = total(stats);
        let drafts = || stats.iter().flat_map(|it| &it.drafts);
        let longest = drafts().map(|(_, accepted)| *accepted).max().unwrap_or(0) as usize;
        let mut histogram = vec![0; longest + 1];
        drafts().for_each(|(_, accepted)| histogram[*accepted as usize] += 1);
        let count = drafts().count() as u64;
        let mean = if count == 0 { 1.0 } else { 1.0 + rounds.accepted as f64 / count as f64 };
        let list = |of: fn(&(u32, u32)) -> u32| trace.then(|| drafts().map(of).collect());
        Self {
            mean_acceptance_length: mean,
            draft_acceptance_rate: rounds.acceptance(),
            acceptance_histogram: histogram,
            num_spec_steps: count,
            num_accepted_draft_tokens: rounds.accepted,
            num_draft_tokens: rounds.drafted,
            num_spec_tokens: request.drafting.policy.draft_len_max,
            per_step_accepted: list(|draft| draft.1),
            per_step_drafted: list(|draft| draft.0),
        }
    }
}

/// The statistics of several sequences in one.
fn total(stats: &[SequenceStats]) -> Stats {
    let mut total = Stats::default();
    stats.iter().for_each(|it| total.merge(&it.rounds));
    total
}

/// What was drafted, and how it was verified.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub(crate) struct Speculation {
    /// Whether anything could be drafted.
    pub(crate) enabled: bool,
    /// The verification rule.
    pub(crate) rule: &'static str,
    /// Whether the output follows the target's distribution: always, unless `lossy` was asked for.
    pub(crate) lossless: bool,
    /// What a lossy mode promised and spent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lossy: Option<LossySummary>,
    /// The drafters.
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

impl Speculation {
    /// As a request begins.
    pub(crate) fn new(request: &RequestSummary) -> Self {
        let drafting = &request.drafting;
        Self {
            enabled: !request.drafters.is_empty(),
            rule: drafting.policy.rule.name(),
            lossless: drafting.lossy.is_none(),
            lossy: drafting.lossy.map(|mode| LossySummary::new(mode, &Spending::default())),
            drafters: request.drafters.iter().copied().map(DrafterKind::name).collect(),
            length: drafting.policy.draft_len_max,
            paths: drafting.policy.width_max,
            adaptive: drafting.adaptive,
            dropped: Vec::new(),
        }
    }
}

/// What a lossy mode promised, and what it spent of that.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct LossySummary {
    /// The mode.
    mode: &'static str,
    /// What it promised per token: total variation, or the share of tokens that are not the likeliest.
    promised: f64,
    /// What each output may spend beside that, however long it is (`defer`).
    #[serde(skip_serializing_if = "Option::is_none")]
    allowance: Option<f64>,
    /// What was spent per token.
    spent: f64,
    /// What was spent in all: how many tokens are expected not to be the target's own.
    spent_sum: f64,
    /// The most that one token spent.
    spent_most: f64,
    /// Most by which any token became likelier; not known of `defer`.
    #[serde(skip_serializing_if = "Option::is_none")]
    factor_most: Option<f64>,
    /// Tokens.
    tokens: u64,
    /// The tokens that are certainly not the target's own, by their place in the output (`near`,
    /// `defer`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    forgiven: Vec<usize>,
    /// Whether the promise was kept.
    kept: bool,
}

impl LossySummary {
    /// Of an output, by its mode.
    pub fn new(mode: LossyMode, spending: &Spending) -> Self {
        let defers = matches!(mode, LossyMode::Defer(_));
        Self {
            mode: mode.name(),
            promised: mode.promised(),
            allowance: defers.then(|| mode.allowance()),
            spent: spending.mean(),
            spent_sum: spending.sum,
            spent_most: spending.most,
            factor_most: (!defers).then(|| spending.factor_most.max(1.0)),
            tokens: spending.tokens,
            forgiven: spending.forgiven.clone(),
            kept: mode.is_kept(spending),
        }
    }
}

/// The statistics that a response ends with.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ResponseStats {
    /// Tokens.
    pub(crate) usage: Usage,
    /// Time.
    pub(crate) timings: Timings,
    /// What was drafted.
    pub(crate) speculative: Speculation,
    /// What speculation did.
    pub(crate) metrics: RequestMetrics,
}

impl ResponseStats {
    /// With each step of speculation if a trace was requested.
    pub(crate) fn new(request: &RequestSummary, stats: &[SequenceStats], trace: bool) -> Self {
        let dropped = stats.iter().flat_map(|it| &it.dropped);
        let dropped = dropped.map(|drop| format!("{}: {}", drop.kind.name(), drop.failure));
        let speculative_decoding = SpeculationMetrics::new(request, stats, trace);
        let lossy = request.drafting.lossy;
        Self {
            usage: Usage::new(request, stats),
            timings: Timings::new(stats),
            speculative: Speculation {
                dropped: dropped.collect(),
                lossy: lossy.map(|mode| LossySummary::new(mode, &total(stats).spending)),
                ..Speculation::new(request)
            },
            metrics: RequestMetrics { speculative_decoding },
        }
    }
}
