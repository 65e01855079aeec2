//! `POST /v1/completions`: continues texts.

use std::sync::Arc;

use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use forerun_decode::Token;

use super::error::{ApiError, ErrorBody};
use super::extract::{Body, Shared};
use super::logprobs::CompletionLogprobs;
use super::notes::Notes;
use super::objects::{Completion, CompletionChoice};
use super::parameters::{
    ApiRequest, EndpointParameters, form_of, predict_limit, token_limit, top_logprobs,
};
use super::response::{ApiResponse, ObjectNames};
use super::stream::{self, Sink};
use super::types::{CompletionRequest, Prompt};
use crate::blocking::off_thread;
use crate::event::{Progress, finish_reason};
use crate::request::Caller;
use crate::response::FinishedSequence;
use crate::service::{Admitted, Service};

const NAMES: ObjectNames =
    ObjectNames { prefix: "cmpl-", whole: "text_completion", chunk: "text_completion" };

/// Most tokens of the output if the request does not say; OpenAI's default.
const MAX_TOKENS_DEFAULT: u32 = 16;

/// Continues a text.
#[utoipa::path(
    post,
    path = "/v1/completions",
    request_body = CompletionRequest,
    responses(
        (
            status = 200,
            description = "The completion, or a stream of chunks",
            content((Completion = "application/json"), (Completion = "text/event-stream"))
        ),
        (status = "4XX", description = "What is wrong with the request", body = ErrorBody),
        (status = "5XX", description = "What went wrong here", body = ErrorBody),
    )
)]
pub(crate) async fn completions(
    Shared(service): Shared,
    Extension(caller): Extension<Caller>,
    Extension(notes): Extension<Notes>,
    Body(request): Body<CompletionRequest>,
) -> Result<Response, ApiError> {
    let admitted = service.admit(caller, request.n.unwrap_or(1), request.prompt.count())?;
    let preparing = Arc::clone(&service);
    let request = off_thread(move || prepare(&preparing, admitted, request, &notes)).await?;
    let response = ApiResponse::begin(service, request, NAMES).await?;
    if response.options.stream {
        let header = response.lossy_header(false);
        let streamed = stream::respond(|sink| send_chunks(response, sink));
        return Ok((header, streamed).into_response());
    }
    let (completion, header) = whole(response).await?;
    Ok((header, Json(completion)).into_response())
}

fn prepare(
    service: &Service,
    admitted: Admitted,
    mut request: CompletionRequest,
    notes: &Notes,
) -> Result<ApiRequest, ApiError> {
    let common = request.common();
    let prompts: Vec<Vec<Token>> = match request.prompt {
        Prompt::Text(text) => vec![service.prompt(&text)?],
        Prompt::Texts(texts) => {
            texts.iter().map(|text| service.prompt(text)).collect::<Result<_, _>>()?
        }
        Prompt::Tokens(ids) => vec![tokens(&ids)],
        Prompt::TokenLists(lists) => lists.iter().map(|ids| tokens(ids)).collect(),
    };
    if prompts.is_empty() {
        return Err(ApiError::field("prompt", "there is no prompt: give one at least"));
    }
    let logprobs = top_logprobs("logprobs", request.logprobs)?;
    let max_tokens = match (request.max_tokens, request.n_predict) {
        (Some(tokens), _) => token_limit("max_tokens", tokens)?,
        (None, Some(tokens)) => predict_limit(tokens)?,
        (None, None) => Some(MAX_TOKENS_DEFAULT.max(common.min_tokens)),
    };
    let form = form_of(request.response_format)?;
    let own = EndpointParameters { prompts, max_tokens, logprobs, form, calling: None };
    ApiRequest::prepare(service, admitted, common, own, notes)
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

/// Waits for the whole completion.
async fn whole(mut response: ApiResponse) -> Result<(Completion, HeaderMap), ApiError> {
    let sequences = response.sequences.collect().await?;
    let choice = |(index, sequence): (usize, FinishedSequence)| {
        let logprobs = || CompletionLogprobs::new(&sequence.pieces, response.tokenizer(), &mut 0);
        CompletionChoice {
            index,
            logprobs: response.options.logprobs.then(logprobs),
            token_ids: response.token_ids(&sequence.pieces),
            prompt_token_ids: response.prompt_token_ids(index),
            speculative: response.trace(&sequence.pieces),
            finish_reason: sequence.finish.map(finish_reason),
            text: sequence.text,
        }
    };
    let choices = sequences.into_iter().enumerate().map(choice).collect();
    let header = response.lossy_header(true);
    Ok((Completion::whole(&response.meta, choices, response.stats()), header))
}

/// How far a choice was sent.
#[derive(Debug, Clone)]
struct Sent {
    /// Whether it was begun.
    begun: bool,
    /// The offset of the next token's log-probability.
    offset: usize,
}

/// Sends the completion in chunks.
async fn send_chunks(mut response: ApiResponse, sink: Sink) {
    let resumed = &response.sequences.summary.resumed.tokens;
    let offset = CompletionLogprobs::offset_after(resumed, response.tokenizer());
    let mut sent = vec![Sent { begun: false, offset }; response.choices()];
    while let Some(progress) = sink.next(&mut response.sequences).await {
        let progress = match progress {
            Ok(progress) => progress,
            Err(error) => return sink.fail(error.into()).await,
        };
        let chunk = progress_chunk(&response, &mut sent[progress.choice], &progress);
        if let Some(chunk) = chunk
            && !sink.send(&chunk).await
        {
            return;
        }
    }
    if response.options.include_usage {
        sink.send(&Completion::whole(&response.meta, Vec::new(), response.stats())).await;
    }
    sink.done().await;
}

/// The chunk of a round, if there is anything to send.
fn progress_chunk(
    response: &ApiResponse,
    sent: &mut Sent,
    progress: &Progress,
) -> Option<Completion> {
    let (index, pieces) = (progress.choice, &progress.pieces);
    let text: String = pieces.iter().map(|piece| piece.text.as_str()).collect();
    let logprobs = response
        .options
        .logprobs
        .then(|| CompletionLogprobs::new(pieces, response.tokenizer(), &mut sent.offset));
    let adds = !text.is_empty() || progress.finish.is_some();
    if !adds && !response.reports_tokens() {
        return None;
    }
    let first = !std::mem::replace(&mut sent.begun, true);
    let choice = CompletionChoice {
        index,
        text,
        logprobs,
        finish_reason: progress.finish.map(finish_reason),
        token_ids: response.token_ids(pieces),
        prompt_token_ids: response.prompt_token_ids(index).filter(|_| first),
        speculative: response.trace(pieces),
    };
    Some(Completion {
        usage: response.chunk_usage(),
        timings: response.chunk_timings(),
        ..Completion::chunk(&response.meta, vec![choice])
    })
}
