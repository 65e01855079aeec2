//! `POST /v1/completions`: continues texts.

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use forerun_decode::{Special, Token};
use tokio::sync::OwnedSemaphorePermit;

use super::answer::{Completion, CompletionChoice, CompletionLogprobs, Head, Trace, token_ids};
use super::error::{ApiError, ErrorBody};
use super::extract::{Body, Shared};
use super::stream::{self, Sink};
use super::types::{CompletionRequest, Prompt};
use super::{form_of, off_thread, token_limit};
use crate::ask::{Asked, TOP_LOGPROBS_MAX, Wanted};
use crate::job::Client;
use crate::state::State;
use crate::texts::{Texts, Whole};
use crate::worker::finish_reason;

/// Tokens of an answer where the request does not say; OpenAI's.
const LEN_DEFAULT: u32 = 16;

/// Continues a text.
#[utoipa::path(
    post,
    path = "/v1/completions",
    request_body = CompletionRequest,
    responses(
        (
            status = 200,
            description = "The text, or a stream of it",
            content((Completion = "application/json"), (Completion = "text/event-stream"))
        ),
        (status = "4XX", description = "What cannot be honoured, and why", body = ErrorBody),
        (status = "5XX", description = "What went wrong here", body = ErrorBody),
    )
)]
pub(crate) async fn completions(
    Shared(state): Shared,
    Extension(client): Extension<Client>,
    Body(request): Body<CompletionRequest>,
) -> Result<Response, ApiError> {
    let place = state.place(client, request.n.unwrap_or(1), request.prompt.count())?;
    let building = Arc::clone(&state);
    let asked = off_thread(move || ask(&building, place, request)).await?;
    let head = Head::new("cmpl-", "text_completion", asked.model.clone());
    let stream = asked.about.stream;
    let mut texts = Texts::begin(&state, asked.of(client)).await?;
    if stream {
        texts.begun().await?;
        return Ok(stream::respond(|sink| chunks(state, head, texts, sink)));
    }
    whole(&state, head, texts).await
}

fn ask(
    state: &State,
    place: OwnedSemaphorePermit,
    mut request: CompletionRequest,
) -> Result<Asked, ApiError> {
    let common = request.common();
    let prompts: Vec<Vec<Token>> = match request.prompt {
        Prompt::Text(text) => vec![state.prompt(&text)?],
        Prompt::Texts(texts) => {
            texts.iter().map(|text| state.prompt(text)).collect::<Result<_, _>>()?
        }
        Prompt::Tokens(ids) => vec![tokens(&ids)],
        Prompt::TokenLists(lists) => lists.iter().map(|ids| tokens(ids)).collect(),
    };
    if prompts.is_empty() {
        return Err(ApiError::field("prompt", "there is no prompt: give one at least"));
    }
    if request.logprobs.is_some_and(|top| top > TOP_LOGPROBS_MAX) {
        let message = format!("at most {TOP_LOGPROBS_MAX} log-probabilities are given");
        return Err(ApiError::field("logprobs", message));
    }
    let len_max = match request.max_tokens {
        Some(tokens) => token_limit("max_tokens", tokens)?,
        None => Some(LEN_DEFAULT),
    };
    let wanted = Wanted {
        prompts,
        len_max,
        logprobs: request.logprobs,
        form: form_of(request.response_format)?,
    };
    state.ask(place, common, wanted)
}

impl Prompt {
    /// How many prompts there are.
    fn count(&self) -> usize {
        match self {
            Self::Text(_) | Self::Tokens(_) => 1,
            Self::Texts(texts) => texts.len(),
            Self::TokenLists(lists) => lists.len(),
        }
    }
}

fn tokens(ids: &[u32]) -> Vec<Token> {
    ids.iter().map(|id| Token(*id)).collect()
}

impl State {
    /// The tokens of a text, a start token first where the model wants one.
    pub(crate) fn prompt(&self, text: &str) -> Result<Vec<Token>, ApiError> {
        let tokens = self.tokenizer.tokenize(text, Special::Parse);
        Ok(self.started(tokens.map_err(|error| ApiError::field("prompt", error))?))
    }

    /// Tokens with a start token first, if the model wants one.
    pub(crate) fn started(&self, mut tokens: Vec<Token>) -> Vec<Token> {
        if let Some(start) = self.tokenizer.start().filter(|it| tokens.first() != Some(it)) {
            tokens.insert(0, start);
        }
        tokens
    }
}

async fn whole(state: &State, head: Head, mut texts: Texts) -> Result<Response, ApiError> {
    let all = texts.all().await?;
    let about = &texts.about;
    let choice = |(index, text): (usize, Whole)| CompletionChoice {
        index,
        logprobs: about
            .logprobs
            .then(|| CompletionLogprobs::new(&text.pieces, &*state.tokenizer, &mut 0)),
        token_ids: about.token_ids.then(|| token_ids(&text.pieces)),
        prompt_token_ids: about.prompt_ids(index),
        speculative: about.trace.then(|| Trace::new(&text.pieces)),
        text: text.text,
        finish_reason: text.finish.map(finish_reason),
    };
    let choices = all.into_iter().enumerate().map(choice).collect();
    let foot = about.foot(&texts.tallies);
    let completion = Completion {
        head,
        choices,
        usage: Some(foot.usage),
        timings: Some(foot.timings),
        speculative: Some(foot.speculative),
        metrics: Some(foot.metrics),
    };
    Ok(Json(completion).into_response())
}

async fn chunks(state: Arc<State>, head: Head, mut texts: Texts, sink: Sink) {
    let chunk = |choices| Completion {
        head: head.clone(),
        choices,
        usage: None,
        timings: None,
        speculative: None,
        metrics: None,
    };
    let mut offsets = vec![texts.about.resumed_offset; texts.about.choices];
    let mut begun = vec![false; texts.about.choices];
    while let Some(progress) = sink.next(&mut texts).await {
        let progress = match progress {
            Ok(progress) => progress,
            Err(error) => return sink.fail(error).await,
        };
        let (about, index) = (&texts.about, progress.choice);
        let text: String = progress.pieces.iter().map(|piece| piece.text.as_str()).collect();
        let logprobs = about.logprobs.then(|| {
            CompletionLogprobs::new(&progress.pieces, &*state.tokenizer, &mut offsets[index])
        });
        let finish_reason = progress.finish.map(finish_reason);
        let says = !text.is_empty() || finish_reason.is_some();
        if !says && !about.trace && !about.logprobs && !about.token_ids {
            continue;
        }
        let speculative = about.trace.then(|| Trace::new(&progress.pieces));
        let first = !std::mem::replace(&mut begun[index], true);
        let choice = CompletionChoice {
            index,
            text,
            logprobs,
            finish_reason,
            token_ids: about.token_ids.then(|| token_ids(&progress.pieces)),
            prompt_token_ids: about.prompt_ids(index).filter(|_| first),
            speculative,
        };
        let mut chunk = chunk(vec![choice]);
        chunk.usage = about.continuous_usage.then(|| about.usage(&texts.tallies));
        chunk.timings = about.timings.then(|| about.timings(&texts.tallies));
        if !sink.send(&chunk).await {
            return;
        }
    }
    if texts.about.include_usage {
        let foot = texts.about.foot(&texts.tallies);
        let mut chunk = chunk(Vec::new());
        (chunk.usage, chunk.timings) = (Some(foot.usage), Some(foot.timings));
        (chunk.speculative, chunk.metrics) = (Some(foot.speculative), Some(foot.metrics));
        sink.send(&chunk).await;
    }
    sink.done().await;
}
