//! The object of `--json`. Field names are public; speculation's are vLLM's where it has them.

use forerun_decode::{Costs, Finish, Stats};
use forerun_lab::file_name;
use forerun_serve::LossySummary;
use serde::Serialize;

use super::{Report, ratio};
use crate::flags::RunConfig;
use crate::stream::Ending;

/// All there is to say about a text.
#[derive(Serialize)]
struct Object<'a> {
    forerun: &'static str,
    model: String,
    text: &'a str,
    tokens: Vec<u32>,
    finish_reason: &'static str,
    usage: Usage,
    timings: Timings,
    speculative_decoding: Speculation,
    rule: &'static str,
    lossless: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    lossy: Option<LossySummary>,
    seed: u64,
    settings: Settings<'a>,
}

/// Counts by OpenAI's names.
#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    /// Prompt tokens that did not have to be read again.
    cached_tokens: u64,
    completion_tokens: usize,
    total_tokens: usize,
}

/// Seconds. The parts are of `text_s`, the time after the prompt.
#[derive(Serialize)]
struct Timings {
    prompt_s: f64,
    text_s: f64,
    draft_s: f64,
    target_s: f64,
    verify_s: f64,
    rest_s: f64,
    tokens_per_second: f64,
}

/// What drafting did in the rounds after the prompt.
#[derive(Serialize)]
struct Speculation {
    drafters: Vec<&'static str>,
    rounds: u64,
    tokens_per_round: f64,
    /// Rounds that had a draft.
    num_drafts: u64,
    num_draft_tokens: u64,
    num_accepted_tokens: u64,
    draft_acceptance_rate: f64,
    /// One, and the accepted tokens of a draft.
    mean_acceptance_length: f64,
    /// Drafts by how many of their tokens were accepted, from none.
    acceptance_histogram: Vec<u64>,
    num_draft_tokens_per_pos: Vec<u64>,
    num_accepted_tokens_per_pos: Vec<u64>,
    /// What the controller chose; null where drafts are fixed.
    adaptive: Option<Adaptive>,
}

/// What the controller did, and by which costs.
#[derive(Serialize)]
struct Adaptive {
    plain_rounds: u64,
    trial_rounds: u64,
    gated_rounds: u64,
    expected_speedup: f64,
    /// Tokens of a pass and its seconds.
    target_pass_s: Vec<(usize, f64)>,
    /// The same of each draft model.
    draft_pass_s: Vec<Vec<(usize, f64)>>,
}

/// What it takes to make the text again.
#[derive(Serialize)]
struct Settings<'a> {
    temperature: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
    typical_p: f32,
    repeat_penalty: f32,
    repeat_last_n: Option<usize>,
    presence_penalty: f32,
    frequency_penalty: f32,
    logit_bias: Vec<Bias>,
    ignore_eos: bool,
    stop: &'a [String],
    predict: Option<usize>,
    ctx_size: usize,
    spec_draft_n_max: usize,
    spec_draft_paths: usize,
}

/// A token's bias; null forbids it.
#[derive(Serialize)]
struct Bias {
    token: u32,
    bias: f32,
}

impl Report<'_> {
    /// One JSON object.
    pub(crate) fn json(&self) -> String {
        let (text, config) = (self.text, self.config);
        let stats = &text.stats;
        let object = Object {
            forerun: env!("CARGO_PKG_VERSION"),
            model: file_name(self.loaded.model.path()),
            text: &text.text,
            tokens: text.tokens.iter().map(|token| token.0).collect(),
            finish_reason: finish_reason(text.ending),
            usage: Usage {
                prompt_tokens: text.prompt_len,
                cached_tokens: text.cached_len().unwrap_or(0),
                completion_tokens: text.tokens.len(),
                total_tokens: text.prompt_len + text.tokens.len(),
            },
            timings: Timings::new(stats),
            speculative_decoding: self.speculation(),
            rule: config.draft.rule_with_seed(text.seed).name(),
            lossless: config.draft.lossy.is_none(),
            lossy: config.draft.lossy.map(|mode| LossySummary::new(mode, &stats.spending)),
            seed: text.seed,
            settings: Settings::new(config, self.loaded.context_len()),
        };
        serde_json::to_string(&object).expect("numbers, strings and lists of them")
    }

    fn speculation(&self) -> Speculation {
        let (stats, drafters) = (&self.text.stats, &self.config.draft.drafters);
        let positions = &stats.positions;
        let num_drafts = positions.first().map_or(0, |first| first.drafted);
        let accepted: Vec<u64> = positions.iter().map(|position| position.accepted).collect();
        // As many as accepted a position, less those that accepted the next.
        let reached = std::iter::once(num_drafts).chain(accepted.iter().copied());
        let next = accepted.iter().copied().chain(std::iter::once(0));
        let controller = self.loaded.controller.as_ref();
        Speculation {
            drafters: drafters.iter().map(|drafter| drafter.kind().name()).collect(),
            rounds: stats.rounds,
            tokens_per_round: stats.tokens_per_round(),
            num_drafts,
            num_draft_tokens: stats.drafted,
            num_accepted_tokens: stats.accepted,
            draft_acceptance_rate: stats.acceptance(),
            mean_acceptance_length: 1.0 + ratio(stats.accepted, num_drafts),
            acceptance_histogram: reached.zip(next).map(|(all, more)| all - more).collect(),
            num_draft_tokens_per_pos: positions.iter().map(|position| position.drafted).collect(),
            num_accepted_tokens_per_pos: accepted,
            adaptive: controller.map(|it| Adaptive::new(stats, it.costs())),
        }
    }
}

fn finish_reason(ending: Ending) -> &'static str {
    match ending {
        Ending::Interrupted => "interrupted",
        Ending::Finished(Finish::End) => "end",
        Ending::Finished(Finish::Stop) => "stop",
        Ending::Finished(Finish::Length) => "length",
        Ending::Finished(Finish::Context) => "context",
    }
}

impl Timings {
    fn new(stats: &Stats) -> Self {
        let times = &stats.times;
        let draft = times.draft_pass + times.draft;
        let rest = stats.time.saturating_sub(draft + times.target + times.verify);
        Self {
            prompt_s: stats.prompt_time.as_secs_f64(),
            text_s: stats.time.as_secs_f64(),
            draft_s: draft.as_secs_f64(),
            target_s: times.target.as_secs_f64(),
            verify_s: times.verify.as_secs_f64(),
            rest_s: rest.as_secs_f64(),
            tokens_per_second: stats.tokens_per_second(),
        }
    }
}

impl Adaptive {
    fn new(stats: &Stats, costs: &Costs) -> Self {
        let drafters = costs.drafters.values();
        Self {
            plain_rounds: stats.plain_rounds,
            trial_rounds: stats.trial_rounds,
            gated_rounds: stats.gated_rounds,
            expected_speedup: stats.expected_speedup(),
            target_pass_s: costs.target.points().to_vec(),
            draft_pass_s: drafters.map(|curve| curve.points().to_vec()).collect(),
        }
    }
}

impl<'a> Settings<'a> {
    fn new(config: &'a RunConfig, ctx_size: usize) -> Self {
        let sampling = &config.sampling.sampling;
        let biases = sampling.logit_bias.iter();
        Self {
            temperature: sampling.temperature,
            top_k: sampling.top_k,
            top_p: sampling.top_p,
            min_p: sampling.min_p,
            typical_p: sampling.typical_p,
            repeat_penalty: sampling.repeat_penalty,
            repeat_last_n: sampling.repeat_last_n,
            presence_penalty: sampling.presence_penalty,
            frequency_penalty: sampling.frequency_penalty,
            logit_bias: biases.map(|(token, bias)| Bias { token: token.0, bias: *bias }).collect(),
            ignore_eos: config.sampling.ignore_end,
            stop: config.text.stops.as_slice(),
            predict: Some(config.text.len_max).filter(|len| *len < usize::MAX),
            ctx_size,
            spec_draft_n_max: config.draft.len.get(),
            spec_draft_paths: config.draft.width.get(),
        }
    }
}
