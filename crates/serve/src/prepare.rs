//! From the parameters of a request to sequences for the engine's thread. Every default is decided
//! here, and what the server cannot do is rejected with the reason.

mod drafting;
mod parameters;
mod resume;
mod sampling;

use std::sync::Arc;
use std::time::Instant;

use forerun_decode::{DrafterId, Reading, Special, StopStrings, Token};
use forerun_grammar::CompiledForm;
use tokio::sync::mpsc;

use self::drafting::Edits;
pub(crate) use self::parameters::{
    LossyParameters, RequestParameters, SamplingParameters, SpeculativeParameters,
};
use self::resume::{ResumedSequence, constrain_output};
use crate::error::RequestError;
use crate::event::{Event, Progress};
use crate::request::{PreparedRequest, RequestSummary, SequenceRequest};
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
        parameters: RequestParameters,
    ) -> Result<PreparedRequest, RequestError> {
        let arrived = Instant::now();
        let deadline = arrived + self.config.timeout;
        let RequestParameters { prompts, n, form, cache, .. } = parameters;
        self.check_prompts(&prompts)?;
        let choices = n * prompts.len();
        let sampling = self.sampling(parameters.sampling)?;
        let stops = StopStrings::new(parameters.stop)
            .map_err(|error| RequestError::parameter("stop", error))?;
        let prediction = self.prediction(parameters.prediction.as_deref())?;
        let seeded = parameters.seed.is_some();
        let seed = parameters.seed.map_or_else(crate::random, i64::cast_unsigned);
        let edits = || self.edits(&prompts, &prediction);
        let drafting = self.drafting(&parameters.speculative, seeded, &sampling, edits)?;
        let logprobs = parameters.logprobs.map(|top| top as usize);
        let output_len_max = parameters.max_tokens.map_or(usize::MAX, |len| len as usize);
        let unread = unread_max(choices, drafting.policy.draft_len_max, logprobs);
        let (sender, events) = mpsc::channel(unread);
        let mut resumed = ResumedSequence::default();
        let mut sequences = Vec::with_capacity(choices);
        for (choice, prompt) in prompts.iter().flat_map(|it| std::iter::repeat_n(it, n)).enumerate()
        {
            let seed = seed.wrapping_add(choice as u64);
            let mut reading = Reading::new(Arc::clone(&self.tokenizer), &stops);
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
                client: admitted.client,
                cache: cache.clone(),
                choice,
                prompt: prompt.clone(),
                output: resumed.output.tokens.clone(),
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
                permit: None,
            });
        }
        let known = &self.drafts.drafters;
        let kind =
            |id: &DrafterId| known.iter().find(|drafter| drafter.id == *id).map(|it| it.kind);
        let drafters = drafting.policy.drafters.iter().filter_map(kind).collect();
        let summary = RequestSummary {
            choices,
            n,
            prompts,
            prediction_len: prediction.len(),
            resumed: resumed.output,
            drafting,
            drafters,
        };
        let permit = admitted.permit;
        Ok(PreparedRequest { sequences, form, permit, events, deadline, summary })
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

/// How many rounds of all sequences may wait to be read, by how much a round can bring.
fn unread_max(sequences: usize, draft_len: usize, logprobs: Option<usize>) -> usize {
    let token = TOKEN_BYTES + logprobs.unwrap_or(0) * TOP_BYTES;
    let rounds = UNREAD_BYTES / ((draft_len + 1) * token);
    rounds.max(sequences * UNREAD_MIN).min(UNREAD_MAX)
}

/// Constrains every sequence of a request to its form, which was compiled once.
pub(crate) fn constrain(
    mut sequences: Vec<SequenceRequest>,
    form: &CompiledForm,
) -> Result<Vec<SequenceRequest>, RequestError> {
    let constraints = form.constrain_all(sequences.len());
    for (sequence, mut constraint) in sequences.iter_mut().zip(constraints) {
        constrain_output(&sequence.output, &mut constraint)?;
        sequence.constraint = Some(Box::new(constraint));
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
