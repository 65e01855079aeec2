//! From the parameters of a request to sequences for the engine's thread. Every default is decided
//! here, and what the server cannot do is rejected with the reason.

mod drafting;
mod infill;
mod parameters;
mod resume;
mod samplers;
mod sampling;

use std::sync::Arc;
use std::time::Instant;

use forerun_decode::{
    Constraint, Demands, DrafterId, DrafterKind, Reading, Special, StopStrings, Token, Tokenizer,
};
use forerun_grammar::CompiledForm;
use tokio::sync::mpsc;

use self::drafting::Edits;
pub(crate) use self::infill::{InfillFile, InfillLayout, InfillParts};
pub(crate) use self::parameters::{
    LossyParameters, RequestParameters, SamplingParameters, SpeculativeParameters,
};
use self::resume::{ResumedSequence, constrain_output};
use crate::error::RequestError;
use crate::event::{Event, Progress};
use crate::request::{
    Caller, Drafting, PreparedRequest, RequestSummary, SequenceRequest, Settings,
};
use crate::service::{Admitted, Service};

/// Rounds of a request that may wait for the client to read them: at least for each sequence, at
/// most for all, and about how many bytes.
const UNREAD_MIN: usize = 32;
const UNREAD_MAX: usize = 1024;
const UNREAD_BYTES: usize = 1 << 20;

/// About how many bytes a token of a round takes, and each of the likeliest tokens beside it.
const TOKEN_BYTES: usize = 128;
const TOP_BYTES: usize = 16;

impl Service {
    /// Prepares a request that was admitted.
    pub(crate) fn prepare(
        &self,
        admitted: Admitted,
        mut parameters: RequestParameters,
    ) -> Result<PreparedRequest, RequestError> {
        let Admitted { caller: Caller { client, reports }, permit } = admitted;
        let arrived = Instant::now();
        let deadline = arrived + self.config.timeout;
        let settings = Arc::new(self.settings(&mut parameters)?);
        let prompts = std::mem::take(&mut parameters.prompts);
        self.check_prompts(&prompts)?;
        let ends = self.ends(&parameters, &settings.stop)?;
        let RequestParameters { n, form, calls, cache, recordable, .. } = parameters;
        let choices = n * prompts.len();
        let prediction = self.prediction(parameters.prediction.as_deref())?;
        let seeded = parameters.seed.is_some();
        let seed = parameters.seed.map_or_else(crate::random, i64::cast_unsigned);
        let edits = || self.edits(&prompts, &prediction);
        let drafting = self.drafting(&parameters.speculative, seeded, &settings.sampling, edits)?;
        let logprobs = parameters.logprobs.map(|top| top as usize);
        let constrained = form.is_some() || calls.is_some() || ends.least.is_some();
        self.check_lossy(&drafting, constrained, logprobs)?;
        let output_len_max = parameters.max_tokens.map_or(usize::MAX, |len| len as usize);
        let unread = unread_max(choices, drafting.policy.draft_len_max, logprobs);
        let (sender, events) = mpsc::channel(unread);
        let mut resumed = ResumedSequence::default();
        let mut sequences = Vec::with_capacity(choices);
        for (choice, prompt) in prompts.iter().flat_map(|it| std::iter::repeat_n(it, n)).enumerate()
        {
            let seed = seed.wrapping_add(choice as u64);
            let mut reading = ends.reading(&self.tokenizer);
            if let Some(ids) = &parameters.resume_token_ids {
                resume::check(choices)?;
                resumed = ResumedSequence::read(ids, &mut reading, self.tokenizer.vocab_len())?;
                resumed.check_len(prompt.len(), output_len_max, self.context_len)?;
            }
            if let Some(finish) = resumed.finish {
                // The client lacks only the finish reason, and the channel is empty.
                let _ = sender.try_send(Event::Progress(Box::new(Progress::finished(finish))));
                continue;
            }
            sequences.push(SequenceRequest {
                client,
                cache: cache.clone(),
                choice,
                prompt: prompt.clone(),
                output: resumed.output.tokens.clone(),
                output_len_max,
                settings: Arc::clone(&settings),
                reading,
                seed,
                constraint: None,
                min_tokens: ends.least.clone(),
                logprobs,
                drafting: drafting.seeded(seed),
                prediction: prediction.clone(),
                arrived,
                deadline,
                predict_time: parameters.predict_time,
                events: sender.clone(),
                permit: None,
            });
        }
        self.tenants.prompted(client, total_len(&prompts) + resumed.output.tokens.len())?;
        let summary = RequestSummary {
            choices,
            n,
            prompts,
            prediction_len: prediction.len(),
            resumed: resumed.output,
            drafters: self.kinds(&drafting.policy.drafters),
            drafting,
            settings,
            recordable,
        };
        Ok(PreparedRequest { sequences, form, calls, permit, events, deadline, summary, reports })
    }

    /// How the tokens of a request are drawn, and where its output ends.
    fn settings(&self, parameters: &mut RequestParameters) -> Result<Settings, RequestError> {
        let set = std::mem::take(&mut parameters.sampling);
        let (samplers, ignore_eos) = (samplers::named(set.samplers.as_deref())?, set.ignore_eos);
        Ok(Settings {
            sampling: self.sampling(set, &samplers)?,
            samplers,
            seed: parameters.seed,
            max_tokens: parameters.max_tokens,
            stop: std::mem::take(&mut parameters.stop),
            ignore_eos,
            logprobs: parameters.logprobs,
        })
    }

    /// Whether a lossy mode can do what else is wanted.
    fn check_lossy(
        &self,
        drafting: &Drafting,
        constraint: bool,
        logprobs: Option<usize>,
    ) -> Result<(), RequestError> {
        let Some(mode) = drafting.lossy else { return Ok(()) };
        let head = self.kinds(&drafting.policy.drafters).iter().any(|kind| kind.is_head());
        let met = mode.meets(Demands { constraint, logprobs: logprobs.is_some(), head });
        met.map_err(|error| RequestError::parameter("speculative.lossy", error))
    }

    fn kinds(&self, ids: &[DrafterId]) -> Vec<DrafterKind> {
        let known = &self.drafts.drafters;
        let kind = |id: &DrafterId| known.iter().find(|it| it.id == *id).map(|it| it.kind);
        ids.iter().filter_map(kind).collect()
    }

    fn check_ends(
        &self,
        stop_tokens: &[Token],
        min_tokens: usize,
        max_tokens: Option<u32>,
    ) -> Result<(), RequestError> {
        let vocab_len = self.tokenizer.vocab_len();
        if let Some(token) = stop_tokens.iter().find(|token| token.index() >= vocab_len) {
            let message =
                format!("token {} is out of range: there are {vocab_len} tokens", token.0);
            return Err(RequestError::parameter("stop_token_ids", message));
        }
        if let Some(most) = max_tokens.filter(|most| min_tokens > *most as usize) {
            let message = format!("min_tokens is {min_tokens} and max_tokens is {most}: raise it");
            return Err(RequestError::parameter("min_tokens", message));
        }
        Ok(())
    }

    /// What ends the sequences of a request.
    fn ends(&self, parameters: &RequestParameters, stop: &[String]) -> Result<Ends, RequestError> {
        let (stop_tokens, least) = (&parameters.stop_tokens, parameters.min_tokens);
        self.check_ends(stop_tokens, least, parameters.max_tokens)?;
        let all = (0..).map(Token).take(self.tokenizer.vocab_len());
        let ends = all.filter(|token| self.tokenizer.is_end(*token) || stop_tokens.contains(token));
        Ok(Ends {
            stops: StopStrings::new(stop)
                .map_err(|error| RequestError::parameter("stop", error))?,
            tokens: stop_tokens.as_slice().into(),
            indent_min: parameters.indent_min,
            least: (least > 0).then(|| (least, ends.collect())),
        })
    }

    /// The tokens of a prompt, with a start token if the model needs one.
    pub(crate) fn prompt(&self, text: &str) -> Result<Vec<Token>, RequestError> {
        let tokens = self.tokenizer.tokenize(text, Special::Parse);
        Ok(self.started(tokens.map_err(|error| RequestError::parameter("prompt", error))?))
    }

    /// Tokens with a start token first, if the model needs one.
    pub(crate) fn started(&self, mut tokens: Vec<Token>) -> Vec<Token> {
        if let Some(start) = self.tokenizer.start().filter(|it| tokens.first() != Some(it)) {
            tokens.insert(0, start);
        }
        tokens
    }

    fn check_prompts(&self, prompts: &[Vec<Token>]) -> Result<(), RequestError> {
        for prompt in prompts {
            self.check_prompt(prompt)?;
            if self.config.log_prompts {
                tracing::info!(prompt = self.text(prompt), "prompt");
            }
        }
        Ok(())
    }

    fn check_prompt(&self, prompt: &[Token]) -> Result<(), RequestError> {
        let vocab_len = self.tokenizer.vocab_len();
        if let Some(token) = prompt.iter().find(|token| token.index() >= vocab_len) {
            let message =
                format!("token {} is out of range: there are {vocab_len} tokens", token.0);
            return Err(RequestError::parameter("prompt", message));
        }
        if prompt.is_empty() {
            return Err(RequestError::parameter("prompt", "the prompt is empty: say something"));
        }
        if prompt.len() > self.context_len {
            let (len, context_len) = (prompt.len(), self.context_len);
            return Err(RequestError::ContextExceeded { len, context_len });
        }
        Ok(())
    }

    /// What outputs may be edited versions of; code in a prompt is between Markdown's fences.
    fn edits(&self, prompts: &[Vec<Token>], prediction: &[Token]) -> Edits {
        match prediction {
            [] if prompts.iter().any(|prompt| self.text(prompt).contains("```")) => Edits::Prompt,
            [] => Edits::Nothing,
            _ => Edits::Prediction,
        }
    }

    fn prediction(&self, text: Option<&str>) -> Result<Vec<Token>, RequestError> {
        let Some(text) = text else { return Ok(Vec::new()) };
        let tokens = self.tokenizer.tokenize(text, Special::AsText);
        tokens.map_err(|error| RequestError::parameter("prediction", error))
    }
}

/// What ends a sequence beside its length.
struct Ends {
    stops: StopStrings,
    tokens: Arc<[Token]>,
    /// White space that a line begins with at least.
    indent_min: usize,
    /// How many tokens come before any of these, which would end it.
    least: Option<(usize, Arc<[Token]>)>,
}

impl Ends {
    /// Finds the end of a sequence without output.
    fn reading(&self, tokenizer: &Arc<dyn Tokenizer>) -> Reading {
        let reading = Reading::new(Arc::clone(tokenizer), &self.stops);
        reading.stopping_at(Arc::clone(&self.tokens)).indented(self.indent_min)
    }
}

/// Tokens of all prompts.
fn total_len(prompts: &[Vec<Token>]) -> usize {
    prompts.iter().map(Vec::len).sum()
}

/// How many rounds of all sequences may wait to be read, by how much a round can bring.
fn unread_max(sequences: usize, draft_len: usize, logprobs: Option<usize>) -> usize {
    let token = TOKEN_BYTES + logprobs.unwrap_or(0) * TOP_BYTES;
    let rounds = UNREAD_BYTES / ((draft_len + 1) * token);
    rounds.max(sequences * UNREAD_MIN).min(UNREAD_MAX)
}

/// Constrains every sequence of a request to its form, which was compiled once. `hold` says from
/// where on.
pub(crate) fn constrain(
    mut sequences: Vec<SequenceRequest>,
    form: &CompiledForm,
    hold: impl Fn(Box<dyn Constraint>) -> Box<dyn Constraint>,
) -> Result<Vec<SequenceRequest>, RequestError> {
    let constraints = form.constrain_all(sequences.len());
    for (sequence, constraint) in sequences.iter_mut().zip(constraints) {
        let mut constraint = hold(Box::new(constraint));
        constrain_output(&sequence.output, &mut *constraint)?;
        sequence.constraint = Some(constraint);
    }
    Ok(sequences)
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
        // Each sequence may be a little behind, however much it brings.
        assert_eq!(unread_max(16, 64, Some(20)), 16 * UNREAD_MIN);
    }
}
