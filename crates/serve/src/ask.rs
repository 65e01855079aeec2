//! From a request to jobs: every default is decided here, and what cannot be honoured is refused
//! with the reason.

use std::sync::Arc;
use std::time::Instant;

use forerun_decode::{
    Drafts, Plan, Reading, RuleChoice, Sampling, SamplingError, Special, StopStrings, Token,
};
use forerun_grammar::{CompiledForm, Form};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::api::answer::{
    CompletionDetails, CompletionLogprobs, Foot, PromptDetails, RequestMetrics, Speculation,
    SpeculationMetrics, Timings, Usage,
};
use crate::api::error::ApiError;
use crate::api::types::{Common, Prediction, Shape, Speculative, StructuredOutputs};
use crate::job::{Cache, Client, Drafting, Event, Job, Progress, Tally};
use crate::resume::{Resumed, check_resumable, hold};
use crate::state::State;

/// Rounds of a request that may wait for the client to read them, at least for each sequence and at
/// most, and about how many bytes of them.
const UNREAD_MIN: usize = 32;
const UNREAD_MAX: usize = 1024;
const UNREAD_BYTES: usize = 1 << 20;

/// About what a token of a round takes, and each of the likeliest beside it.
const TOKEN_BYTES: usize = 128;
const TOP_BYTES: usize = 16;

/// Most answers of a request.
pub(crate) const ANSWERS_MAX: usize = 16;

/// Most likeliest tokens whose log-probabilities are given.
pub(crate) const TOP_LOGPROBS_MAX: u32 = 20;

/// A request that was understood.
pub(crate) struct Asked {
    /// What is answered with.
    pub(crate) model: String,
    /// Its texts. None is held to the form yet.
    pub(crate) jobs: Vec<Job>,
    /// What all of them are to be held to.
    pub(crate) form: Option<Form>,
    /// A place in the queue for each.
    pub(crate) place: OwnedSemaphorePermit,
    /// What they give.
    pub(crate) events: mpsc::Receiver<Event>,
    /// When they must have ended.
    pub(crate) deadline: Instant,
    /// What the answer says of itself.
    pub(crate) about: About,
}

impl Asked {
    /// As a client's.
    pub(crate) fn of(mut self, client: Client) -> Self {
        self.jobs.iter_mut().for_each(|job| job.client = client);
        self
    }
}

/// What an answer says of itself.
#[derive(Debug, Clone, Default)]
pub(crate) struct About {
    pub(crate) choices: usize,
    /// Answers of each prompt, which count its tokens once.
    per_prompt: usize,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) continuous_usage: bool,
    pub(crate) timings: bool,
    pub(crate) trace: bool,
    pub(crate) logprobs: bool,
    pub(crate) token_ids: bool,
    /// What the client has of an answer it resumes.
    pub(crate) resumed: String,
    /// Where log-probabilities of completions count on from.
    pub(crate) resumed_offset: usize,
    prompts: Vec<Vec<Token>>,
    prompt_tokens: usize,
    prediction_len: usize,
    /// What is drafted.
    pub(crate) speculation: Speculation,
}

/// What the endpoints give beside what all requests have in common.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) prompts: Vec<Vec<Token>>,
    pub(crate) len_max: Option<u32>,
    pub(crate) logprobs: Option<u32>,
    pub(crate) form: Option<Form>,
}

impl State {
    /// Turns a request that has its place into jobs.
    pub(crate) fn ask(
        &self,
        place: OwnedSemaphorePermit,
        mut common: Common,
        wanted: Wanted,
    ) -> Result<Asked, ApiError> {
        let arrived = Instant::now();
        let deadline = arrived + self.config.timeout;
        let model = self.check_model(common.model.take())?;
        check_promises(&common)?;
        let n = common.n as usize;
        self.check_prompts(&wanted.prompts)?;
        let choices = n * wanted.prompts.len();
        let form = form(&mut common, wanted.form)?;
        let sampling = self.sampling(&common.shape)?;
        let stops = StopStrings::new(std::mem::take(&mut common.stop))
            .map_err(|error| ApiError::field("stop", error))?;
        let prediction = self.prediction(common.prediction.as_ref())?;
        let seed = common.seed.map_or_else(crate::random, i64::cast_unsigned);
        let drafting = self.drafting(&common.speculative, common.seed.is_some(), &prediction)?;
        let logprobs = wanted.logprobs.map(|top| top as usize);
        let output_len_max = wanted.len_max.map_or(usize::MAX, |len| len as usize);
        let unread = unread_max(choices, drafting.plan.draft_len, logprobs);
        let (sender, events) = mpsc::channel(unread);
        let mut resumed = Resumed::default();
        let mut jobs = Vec::with_capacity(choices);
        for (index, prompt) in
            wanted.prompts.iter().flat_map(|it| std::iter::repeat_n(it, n)).enumerate()
        {
            let seed = seed.wrapping_add(index as u64);
            let mut reading = Reading::new(Arc::clone(&self.tokenizer), &stops);
            if let Some(ids) = &common.resume_token_ids {
                check_resumable(&common, choices)?;
                resumed = Resumed::read(ids, &mut reading, self.tokenizer.vocab_len())?;
                resumed.fit(prompt.len(), output_len_max, self.context_len)?;
            }
            if let Some(finish) = resumed.finish {
                // Only the end of it was lost, and there is room for that.
                let _ = sender.try_send(Event::Round(Box::new(Progress::ended(finish))));
                continue;
            }
            jobs.push(Job {
                client: Client::default(),
                cache: Cache::of(&common),
                choice: index,
                prompt: prompt.clone(),
                output: resumed.tokens.clone(),
                output_len_max,
                sampling: sampling.clone(),
                reading,
                seed,
                constraint: None,
                logprobs,
                drafting: drafting.seeded(seed),
                prediction: prediction.clone(),
                arrived,
                deadline,
                events: sender.clone(),
                place: None,
            });
        }
        let about = About {
            per_prompt: n,
            logprobs: logprobs.is_some(),
            resumed_offset: CompletionLogprobs::offset_after(&resumed.tokens, &*self.tokenizer),
            prompt_tokens: wanted.prompts.iter().map(Vec::len).sum::<usize>()
                + resumed.tokens.len(),
            resumed: resumed.text,
            prompts: wanted.prompts,
            prediction_len: prediction.len(),
            speculation: self.speculation(&drafting),
            ..About::new(&common, choices)
        };
        Ok(Asked { model, jobs, form, place, events, deadline, about })
    }

    fn check_model(&self, asked: Option<String>) -> Result<String, ApiError> {
        let names = &self.model.names;
        match asked {
            None => Ok(names[0].clone()),
            Some(name) if names.contains(&name) => Ok(name),
            Some(name) => Err(ApiError::no_model(&name, names)),
        }
    }

    fn check_prompts(&self, prompts: &[Vec<Token>]) -> Result<(), ApiError> {
        for prompt in prompts {
            self.check_prompt(prompt)?;
            if self.config.log_prompts {
                tracing::info!(prompt = self.text(prompt), "asked");
            }
        }
        Ok(())
    }

    fn check_prompt(&self, prompt: &[Token]) -> Result<(), ApiError> {
        let vocab_len = self.tokenizer.vocab_len();
        if let Some(token) = prompt.iter().find(|token| token.index() >= vocab_len) {
            let message =
                format!("token {} is out of range: there are {vocab_len} tokens", token.0);
            return Err(ApiError::field("prompt", message));
        }
        if prompt.is_empty() {
            return Err(ApiError::field("prompt", "the prompt is empty: say something"));
        }
        if prompt.len() > self.context_len {
            return Err(ApiError::too_long(prompt.len(), self.context_len));
        }
        Ok(())
    }

    fn sampling(&self, shape: &Shape) -> Result<Sampling, ApiError> {
        let own = &self.sampling;
        let top_k = match shape.top_k {
            None => own.top_k,
            Some(-1) => 0,
            Some(k) => usize::try_from(k).map_err(|_| {
                ApiError::field("top_k", format!("top_k is {k}; expected 0 or more, or -1"))
            })?,
        };
        let repeat_last_n = match shape.repeat_last_n {
            None => own.repeat_last_n,
            Some(-1) => None,
            Some(n) => Some(usize::try_from(n).map_err(|_| {
                let message = format!("repeat_last_n is {n}; expected 0 or more, or -1 for all");
                ApiError::field("repeat_last_n", message)
            })?),
        };
        let mut sampling = Sampling {
            temperature: shape.temperature.unwrap_or(own.temperature),
            top_k,
            top_p: shape.top_p.unwrap_or(own.top_p),
            min_p: shape.min_p.unwrap_or(own.min_p),
            typical_p: shape.typical_p.unwrap_or(own.typical_p),
            repeat_penalty: shape.repeat_penalty.unwrap_or(own.repeat_penalty),
            repeat_last_n,
            presence_penalty: shape.presence_penalty.unwrap_or(own.presence_penalty),
            frequency_penalty: shape.frequency_penalty.unwrap_or(own.frequency_penalty),
            logit_bias: own.logit_bias.clone(),
        };
        for (token, bias) in &shape.logit_bias {
            let id = token.parse::<u32>().map_err(|_| {
                let message = format!("{token:?} is no token id; expected a number");
                ApiError::field("logit_bias", message)
            })?;
            if !(-100.0..=100.0).contains(bias) {
                let message = format!("the bias of {token} is {bias}; expected -100 to 100");
                return Err(ApiError::field("logit_bias", message));
            }
            // OpenAI: -100 bans a token.
            let bias = if *bias == -100.0 { f32::NEG_INFINITY } else { *bias };
            sampling.logit_bias.push((Token(id), bias));
        }
        if shape.ignore_eos {
            let ends = (0..).map(Token).take(self.tokenizer.vocab_len());
            let ends = ends.filter(|token| self.tokenizer.is_end(*token));
            sampling.logit_bias.extend(ends.map(|end| (end, f32::NEG_INFINITY)));
        }
        sampling.check(self.tokenizer.vocab_len()).map_err(|error| match error {
            SamplingError::OutOfRange { name, .. } => ApiError::field(name, error),
            _ => ApiError::field("logit_bias", error),
        })?;
        Ok(sampling)
    }

    fn prediction(&self, prediction: Option<&Prediction>) -> Result<Vec<Token>, ApiError> {
        let Some(prediction) = prediction else { return Ok(Vec::new()) };
        let text = prediction.content.text();
        let tokens = self.tokenizer.tokenize(&text, Special::AsText);
        tokens.map_err(|error| ApiError::field("prediction", error))
    }

    /// Decides what is drafted and how it is judged.
    fn drafting(
        &self,
        asked: &Speculative,
        seeded: bool,
        prediction: &[Token],
    ) -> Result<Drafting, ApiError> {
        let refuse = |field: &str, message: String| {
            Err(ApiError::field(format!("speculative.{field}"), message))
        };
        let rule = match &asked.rule {
            Some(name) => Some(
                name.parse::<RuleChoice>()
                    .map_err(|error| ApiError::field("speculative.rule", error))?,
            ),
            None => None,
        };
        if asked.enabled == Some(false) {
            let said = [
                ("drafter", asked.drafter.is_some()),
                ("length", asked.length.is_some()),
                ("paths", asked.paths.is_some()),
            ];
            if let Some((field, _)) = said.into_iter().find(|(_, said)| *said) {
                let message = format!("`enabled` is false, and `{field}` would do nothing");
                return refuse(field, message);
            }
            return Ok(plain(rule, seeded, true));
        }
        let drafters = self.drafters_for(asked, prediction)?;
        if drafters.is_empty() {
            let wanted = asked.enabled == Some(true) || asked.length.is_some();
            if wanted || asked.paths.is_some() {
                let message = "this server has nothing that drafts: start it with \
                               --spec-draft-model FILE or --spec-type ngram";
                return refuse("enabled", message.to_owned());
            }
            return Ok(plain(rule, seeded, false));
        }
        let own = &self.drafts;
        let width = self.width_for(asked, &drafters)?;
        let has_model = drafters.iter().any(|drafter| own.drafters[*drafter].is_model);
        if let Some(length) = asked.length.filter(|len| !(1..=own.length).contains(len)) {
            let most = own.length;
            let message = format!(
                "length is {length}; expected 1 to {most}, the most draft tokens this server \
                 takes (--spec-draft-n-max)"
            );
            return refuse("length", message);
        }
        let together = drafters.len() + width - 1 <= self.paths_max;
        let several = together && (drafters.len() > 1 || width > 1);
        let default = match own.rule {
            // A seed is to fix the text, whatever is drafted.
            _ if seeded => RuleChoice::Coupled,
            Some(rule) => rule,
            None if several => RuleChoice::Pooled,
            None => RuleChoice::Block,
        };
        let rule = rule.unwrap_or(default);
        let width =
            if seeded && asked.paths.is_none() && rule == RuleChoice::Coupled { 1 } else { width };
        let drafts = Drafts {
            drafters: if together { drafters.len() } else { 1 },
            has_model,
            may_stop: own.may_stop,
            width,
            paths: None,
        };
        let scheme =
            rule.scheme(&drafts).map_err(|error| ApiError::field("speculative.rule", error))?;
        let plan =
            Plan::drafted(drafters, asked.length.unwrap_or(own.length), rule.verification(0));
        let plan = plan.wide(width).drawn(scheme);
        let adaptive = own.adaptive && asked.length.is_none();
        Ok(Drafting { plan, rule, adaptive, refused: false })
    }

    /// How many paths the draft model draws.
    fn width_for(&self, asked: &Speculative, drafters: &[usize]) -> Result<usize, ApiError> {
        let own = &self.drafts;
        let has_model = drafters.iter().any(|drafter| own.drafters[*drafter].is_model);
        let most = if has_model { own.width } else { 1 };
        let width = asked.paths.unwrap_or(most);
        if width == 0 || width > most {
            let message = format!(
                "{width} paths were asked for; this server draws 1 to {most} here \
                 (--spec-draft-paths)"
            );
            return Err(ApiError::field("speculative.paths", message));
        }
        Ok(width)
    }

    /// Which drafters a request uses.
    fn drafters_for(
        &self,
        asked: &Speculative,
        prediction: &[Token],
    ) -> Result<Vec<usize>, ApiError> {
        let known = &self.drafts.drafters;
        let predicted = known.iter().position(|drafter| drafter.name == "predicted");
        let Some(named) = asked.drafter.clone() else {
            let mut drafters: Vec<usize> =
                (0..known.len()).filter(|drafter| Some(*drafter) != predicted).collect();
            if let Some(predicted) = predicted.filter(|_| !prediction.is_empty()) {
                // Without room for a path beside, they take turns as the controller likes, and
                // where there is none the prediction is the better guess.
                let turns = self.drafts.adaptive && asked.length.is_none();
                if self.paths_max <= drafters.len() && !turns {
                    drafters.clear();
                }
                drafters.push(predicted);
            }
            return Ok(drafters);
        };
        let mut drafters = Vec::new();
        for name in named.into_vec() {
            let place = known.iter().position(|drafter| drafter.name == name);
            let Some(place) = place.filter(|place| !drafters.contains(place)) else {
                let names: Vec<&str> = known.iter().map(|drafter| drafter.name).collect();
                let message = format!(
                    "{name:?} is no drafter of this server, or named twice: it has {}",
                    names.join(", ")
                );
                return Err(ApiError::field("speculative.drafter", message));
            };
            if Some(place) == predicted && prediction.is_empty() {
                let message = "there is no prediction to draft from: add `prediction`";
                return Err(ApiError::field("speculative.drafter", message));
            }
            drafters.push(place);
        }
        let turns = self.drafts.adaptive && asked.length.is_none();
        if drafters.len() > self.paths_max && !turns {
            let message = format!(
                "this server holds {} paths of a text at once, and {} drafters were named: name \
                 fewer, or start it with --kv-unified on",
                self.paths_max,
                drafters.len()
            );
            return Err(ApiError::field("speculative.drafter", message));
        }
        Ok(drafters)
    }

    fn speculation(&self, drafting: &Drafting) -> Speculation {
        let name = |drafter: &usize| self.drafts.drafters[*drafter].name;
        Speculation {
            enabled: !drafting.plan.drafters.is_empty(),
            rule: drafting.rule.name(),
            lossless: true,
            drafters: drafting.plan.drafters.iter().map(name).collect(),
            length: drafting.plan.draft_len,
            paths: drafting.plan.width,
            adaptive: drafting.adaptive,
            dropped: Vec::new(),
        }
    }
}

/// Nothing is drafted; a seed fixes the text as it would with drafts.
fn plain(rule: Option<RuleChoice>, seeded: bool, refused: bool) -> Drafting {
    let default = if seeded { RuleChoice::Coupled } else { RuleChoice::Block };
    let rule = rule.unwrap_or(default);
    let plan = Plan::drafted(Vec::new(), 0, rule.verification(0));
    Drafting { plan, rule, adaptive: false, refused }
}

/// Refuses promises that cannot be kept.
fn check_promises(common: &Common) -> Result<(), ApiError> {
    if common.store == Some(true) {
        return Err(ApiError::field("store", "this server keeps no answers: leave `store` out"));
    }
    if common.cache_salt.as_deref() == Some("") {
        let message = "`cache_salt` is empty: give at least one character, or leave it out";
        return Err(ApiError::field("cache_salt", message));
    }
    let options = &common.stream_options;
    let said = options.include_usage.is_some() || options.continuous_usage_stats.is_some();
    if said && !common.stream {
        let message = "`stream_options` is for streams: add `stream`, or leave it out";
        return Err(ApiError::field("stream_options", message));
    }
    Ok(())
}

/// The one form the answer is held to.
fn form(common: &mut Common, own: Option<Form>) -> Result<Option<Form>, ApiError> {
    let mut forms: Vec<Form> = own.into_iter().collect();
    forms.extend(common.grammar.take().map(Form::Grammar));
    forms.extend(common.json_schema.take().map(Form::JsonSchema));
    if let Some(outputs) = common.structured_outputs.take() {
        let StructuredOutputs { json, regex, choice, grammar } = outputs;
        forms.extend(json.map(Form::JsonSchema));
        forms.extend(regex.map(Form::Regex));
        forms.extend(choice.map(Form::Choice));
        forms.extend(grammar.map(Form::Grammar));
    }
    if forms.len() > 1 {
        let message = "an answer is held to one form: give one of response_format, grammar, \
                       json_schema, structured_outputs and a required tool";
        return Err(ApiError::field("response_format", message));
    }
    Ok(forms.pop())
}

/// How many rounds of all sequences may wait to be read, by what one can bring.
fn unread_max(sequences: usize, draft_len: usize, logprobs: Option<usize>) -> usize {
    let token = TOKEN_BYTES + logprobs.unwrap_or(0) * TOP_BYTES;
    let rounds = UNREAD_BYTES / ((draft_len + 1) * token);
    rounds.max(sequences * UNREAD_MIN).min(UNREAD_MAX)
}

/// Holds every job to its request's form, which was compiled once.
pub(crate) fn hold_all(mut jobs: Vec<Job>, form: &CompiledForm) -> Result<Vec<Job>, ApiError> {
    let constraints = form.constrain_all(jobs.len());
    for (job, mut constraint) in jobs.iter_mut().zip(constraints) {
        hold(&job.output, &mut constraint)?;
        job.constraint = Some(Box::new(constraint));
    }
    Ok(jobs)
}

impl About {
    /// As far as all requests say it in one way.
    fn new(common: &Common, choices: usize) -> Self {
        Self {
            choices,
            stream: common.stream,
            include_usage: common.stream_options.include_usage.unwrap_or(false),
            continuous_usage: common.stream_options.continuous_usage_stats.unwrap_or(false),
            timings: common.timings_per_token,
            trace: common.speculative.trace.unwrap_or(false),
            token_ids: common.return_token_ids,
            ..Self::default()
        }
    }

    /// The tokens of an answer's prompt, where they are wanted.
    pub(crate) fn prompt_ids(&self, choice: usize) -> Option<Vec<u32>> {
        let prompt = self.prompts.get(choice / self.per_prompt).filter(|_| self.token_ids)?;
        Some(prompt.iter().map(|token| token.0).collect())
    }

    /// Tokens of all answers so far.
    pub(crate) fn usage(&self, tallies: &[Tally]) -> Usage {
        let completion_tokens: u64 = tallies.iter().map(|tally| tally.stats.output_len).sum();
        let completion_tokens = usize::try_from(completion_tokens).unwrap_or(usize::MAX);
        let accepted: usize = tallies.iter().map(|tally| tally.predicted).sum();
        Usage {
            prompt_tokens: self.prompt_tokens,
            completion_tokens,
            total_tokens: self.prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptDetails {
                cached_tokens: tallies.iter().step_by(self.per_prompt).map(|it| it.cached).sum(),
            },
            completion_tokens_details: CompletionDetails {
                accepted_prediction_tokens: accepted,
                rejected_prediction_tokens: (self.prediction_len * self.choices)
                    .saturating_sub(accepted),
            },
        }
    }

    /// Time of all answers so far.
    pub(crate) fn timings(&self, tallies: &[Tally]) -> Timings {
        let mut all = Tally::default();
        for tally in tallies {
            all.stats.merge(&tally.stats);
            all.cached += tally.cached;
        }
        Timings::new(&all)
    }

    /// What an answer ends with.
    pub(crate) fn foot(&self, tallies: &[Tally]) -> Foot {
        let mut speculative = self.speculation.clone();
        let dropped = tallies.iter().flat_map(|tally| &tally.dropped);
        speculative.dropped =
            dropped.map(|drop| format!("{}: {}", drop.name, drop.failure)).collect();
        let metrics = SpeculationMetrics::new(tallies, self.speculation.length, self.trace);
        Foot {
            usage: self.usage(tallies),
            timings: self.timings(tallies),
            speculative,
            metrics: RequestMetrics { speculative_decoding: metrics },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_to_be_read_is_bounded_in_bytes() {
        assert_eq!(unread_max(1, 0, None), UNREAD_MAX);
        let bytes =
            |rounds, draft_len, top| rounds * (draft_len + 1) * (TOKEN_BYTES + top * TOP_BYTES);
        for (draft_len, top) in [(8, 20), (16, 5), (64, 20)] {
            let rounds = unread_max(1, draft_len, Some(top));
            assert!((UNREAD_MIN..UNREAD_MAX).contains(&rounds));
            assert!(bytes(rounds, draft_len, top) <= UNREAD_BYTES);
        }
        // Each sequence may be a little behind, whatever it brings.
        assert_eq!(unread_max(16, 64, Some(20)), 16 * UNREAD_MIN);
    }
}
