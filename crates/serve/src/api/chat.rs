//! `POST /v1/chat/completions`: continues a conversation.

use std::sync::Arc;

use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

use super::error::{ApiError, ErrorBody};
use super::extract::{Body, Shared};
use super::logprobs::ChatLogprobs;
use super::notes::Notes;
use super::objects::{
    ChatChoice, ChatChunkChoice, ChatCompletion, ChatCompletionChunk, Delta, ResponseMessage,
};
use super::parameters::{
    ApiRequest, EndpointParameters, form_of, predict_limit, token_limit, top_logprobs,
};
use super::response::{ApiResponse, ObjectNames};
use super::stream::{self, Sink};
use super::template::{render, tokenize_rendered, variables_of};
use super::tools::{Answer, Calling, delta_of, reason_of};
use super::types::{ChatMessage, ChatRequest};
use super::usage::Speculation;
use crate::blocking::off_thread;
use crate::dialect::Splitter;
use crate::event::Progress;
use crate::request::Caller;
use crate::response::FinishedSequence;
use crate::service::{Admitted, Service};

const NAMES: ObjectNames =
    ObjectNames { prefix: "chatcmpl-", whole: "chat.completion", chunk: "chat.completion.chunk" };

/// Continues a conversation.
#[utoipa::path(
    post,
    path = "/v1/chat/completions",
    request_body = ChatRequest,
    responses(
        (
            status = 200,
            description = "The completion, or a stream of chunks",
            content(
                (ChatCompletion = "application/json"),
                (ChatCompletionChunk = "text/event-stream")
            )
        ),
        (status = "4XX", description = "What is wrong with the request", body = ErrorBody),
        (status = "5XX", description = "What went wrong here", body = ErrorBody),
    )
)]
pub(crate) async fn chat_completions(
    Shared(service): Shared,
    Extension(caller): Extension<Caller>,
    Extension(notes): Extension<Notes>,
    Body(request): Body<ChatRequest>,
) -> Result<Response, ApiError> {
    let admitted = service.admit(caller, request.n.unwrap_or(1), 1)?;
    let preparing = Arc::clone(&service);
    let noting = notes.clone();
    let (request, calling) =
        off_thread(move || prepare(&preparing, admitted, request, &noting)).await?;
    let response = ApiResponse::begin(service, request, NAMES).await?;
    if response.sequences.unconstrained {
        notes.ignored("tools[].function.parameters");
    }
    if response.options.stream {
        let header = response.lossy_header(false);
        let streamed = stream::respond(|sink| send_chunks(response, calling, sink));
        return Ok((header, streamed).into_response());
    }
    let (completion, header) = whole(response, &calling).await?;
    Ok((header, Json(completion)).into_response())
}

pub(super) fn prepare(
    service: &Service,
    admitted: Admitted,
    mut request: ChatRequest,
    notes: &Notes,
) -> Result<(ApiRequest, Calling), ApiError> {
    let common = request.common();
    check_modalities(request.modalities.as_deref())?;
    let odd = |it: &ChatMessage| it.reasoning.as_ref().is_some_and(|it| !it.is_string());
    if request.messages.iter().any(odd) {
        notes.ignore("messages[].reasoning", "only a text can be read as `reasoning`")?;
    }
    let logprobs = logprobs_of(&request)?;
    let max_tokens = max_tokens_of(&request)?;
    let variables = variables_of(service, &mut request, notes)?;
    let format = form_of(request.response_format.take())?;
    let (tools, choice) = (request.tools.take(), request.tool_choice.take());
    let calling = Calling::new(&service.dialect, tools, choice, request.parallel_tool_calls)?;
    let prompt = render(service, &request.messages, &variables, &calling)?;
    let calling = calling.after(&prompt.text);
    let prompts = vec![tokenize_rendered(service, &prompt)?];
    let own =
        EndpointParameters { prompts, max_tokens, logprobs, form: format, calling: Some(&calling) };
    let request = ApiRequest::prepare(service, admitted, common, own, notes)?;
    Ok((request, calling))
}

fn check_modalities(modalities: Option<&[String]>) -> Result<(), ApiError> {
    match modalities.unwrap_or_default().iter().find(|it| *it != "text") {
        None => Ok(()),
        Some(other) => {
            let message = format!("{other:?} cannot be made here, only \"text\": leave it out");
            Err(ApiError::field("modalities", message))
        }
    }
}

fn logprobs_of(request: &ChatRequest) -> Result<Option<u32>, ApiError> {
    let logprobs = match (request.logprobs, request.top_logprobs) {
        (Some(true), top) => Some(top.unwrap_or(0)),
        (_, None) => None,
        (_, Some(_)) => {
            let message = "`top_logprobs` needs `logprobs`: true";
            return Err(ApiError::field("top_logprobs", message));
        }
    };
    top_logprobs("top_logprobs", logprobs)
}

fn max_tokens_of(request: &ChatRequest) -> Result<Option<u32>, ApiError> {
    let named = [
        ("max_completion_tokens", request.max_completion_tokens),
        ("max_tokens", request.max_tokens),
    ];
    let first = named.into_iter().find_map(|(name, tokens)| Some((name, tokens?)));
    match (first, request.n_predict) {
        (Some((name, tokens)), _) => token_limit(name, tokens),
        (None, Some(tokens)) => predict_limit(tokens),
        (None, None) => Ok(None),
    }
}

/// Waits for the whole completion.
async fn whole(
    mut response: ApiResponse,
    calling: &Calling,
) -> Result<(ChatCompletion, HeaderMap), ApiError> {
    let sequences = response.sequences.collect().await?;
    let choice = |(index, sequence): (usize, FinishedSequence)| {
        let (parts, splitter) = calling.split(&sequence.text);
        let Answer { thoughts, text, calls } = parts.into();
        let reason = sequence.finish.map_or("stop", |finish| reason_of(&splitter, finish));
        let logprobs = || ChatLogprobs::new(&sequence.pieces, response.tokenizer());
        ChatChoice {
            index,
            logprobs: response.options.logprobs.then(logprobs),
            token_ids: response.token_ids(&sequence.pieces),
            speculative: response.trace(&sequence.pieces),
            finish_reason: reason,
            message: ResponseMessage {
                role: "assistant",
                content: text,
                reasoning_content: thoughts,
                refusal: None,
                tool_calls: calls,
            },
        }
    };
    let choices = sequences.into_iter().enumerate().map(choice).collect();
    let (prompt_token_ids, stats) = (response.prompt_token_ids(0), response.stats());
    let header = response.lossy_header(true);
    Ok((ChatCompletion { meta: response.meta, choices, prompt_token_ids, stats }, header))
}

/// Sends the completion in chunks.
async fn send_chunks(mut response: ApiResponse, calling: Calling, sink: Sink) {
    let mut splitters: Vec<Splitter> =
        (0..response.choices()).map(|_| calling.splitter()).collect();
    // What the client has of a response that it resumes was split before.
    let resumed = &response.sequences.summary.resumed.text;
    splitters.iter_mut().for_each(|it| it.push(resumed, &mut Vec::new()));
    for index in 0..response.choices() {
        if !sink.send(&first_chunk(&response, index)).await {
            return;
        }
    }
    while let Some(progress) = sink.next(&mut response.sequences).await {
        let progress = match progress {
            Ok(progress) => progress,
            Err(error) => return sink.fail(error.into()).await,
        };
        for chunk in progress_chunks(&response, &mut splitters[progress.choice], &progress) {
            if !sink.send(&chunk).await {
                return;
            }
        }
    }
    if response.options.include_usage {
        sink.send(&ChatCompletionChunk::last(&response.meta, response.stats())).await;
    }
    sink.done().await;
}

/// The chunk that a choice begins with.
fn first_chunk(response: &ApiResponse, index: usize) -> ChatCompletionChunk {
    let content = Some(String::new());
    let delta = Delta { role: Some("assistant"), content, ..Delta::default() };
    let choice = ChatChunkChoice { index, delta, ..ChatChunkChoice::default() };
    let speculation = || Speculation::new(&response.sequences.summary);
    ChatCompletionChunk {
        prompt_token_ids: response.prompt_token_ids(0),
        speculative: response.options.trace.then(speculation),
        ..ChatCompletionChunk::new(&response.meta, vec![choice])
    }
}

/// The chunks of a round: one with text and calls, if there are any, and one with the finish reason.
fn progress_chunks(
    response: &ApiResponse,
    splitter: &mut Splitter,
    progress: &Progress,
) -> Vec<ChatCompletionChunk> {
    let (index, pieces) = (progress.choice, &progress.pieces);
    let mut chunks = Vec::new();
    let (mut begun, mut parts) = (splitter.calls(), Vec::new());
    pieces.iter().for_each(|piece| splitter.push(&piece.text, &mut parts));
    // If the client lacked only the finish reason, it has what was held back.
    if progress.finish.is_some() && !pieces.is_empty() {
        splitter.finish(&mut parts);
    }
    if !parts.is_empty() || response.reports_tokens() {
        let logprobs = || ChatLogprobs::new(pieces, response.tokenizer());
        let choice = ChatChunkChoice {
            index,
            delta: delta_of(parts, &mut begun),
            logprobs: response.options.logprobs.then(logprobs),
            finish_reason: None,
            token_ids: response.token_ids(pieces),
            speculative: response.trace(pieces),
        };
        chunks.push(ChatCompletionChunk {
            usage: response.chunk_usage(),
            timings: response.chunk_timings(),
            ..ChatCompletionChunk::new(&response.meta, vec![choice])
        });
    }
    if let Some(finish) = progress.finish {
        let finish_reason = Some(reason_of(splitter, finish));
        let choice = ChatChunkChoice { index, finish_reason, ..ChatChunkChoice::default() };
        chunks.push(ChatCompletionChunk::new(&response.meta, vec![choice]));
    }
    chunks
}
