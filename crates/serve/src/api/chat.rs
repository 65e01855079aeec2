//! `POST /v1/chat/completions`: continues a conversation.

use std::sync::Arc;

use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

use super::error::{ApiError, ErrorBody};
use super::extract::{Body, Shared};
use super::logprobs::ChatLogprobs;
use super::objects::{
    ChatChoice, ChatChunkChoice, ChatCompletion, ChatCompletionChunk, Delta, ResponseMessage,
};
use super::parameters::{ApiRequest, EndpointParameters, form_of, token_limit, top_logprobs};
use super::response::{ApiResponse, ObjectNames};
use super::stream::{self, Sink};
use super::template::{render, tokenize_rendered};
use super::tools::{CallFilter, Calling};
use super::types::ChatRequest;
use super::usage::Speculation;
use crate::blocking::off_thread;
use crate::event::{Progress, finish_reason};
use crate::request::Client;
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
    Extension(client): Extension<Client>,
    Body(request): Body<ChatRequest>,
) -> Result<Response, ApiError> {
    let admitted = service.admit(client, request.n.unwrap_or(1), 1)?;
    let preparing = Arc::clone(&service);
    let (request, calling) = off_thread(move || prepare(&preparing, admitted, request)).await?;
    let response = ApiResponse::begin(service, request, NAMES).await?;
    if response.options.stream {
        let header = response.lossy_header(false);
        let streamed = stream::respond(|sink| send_chunks(response, calling, sink));
        return Ok((header, streamed).into_response());
    }
    let (completion, header) = whole(response, &calling).await?;
    Ok((header, Json(completion)).into_response())
}

fn prepare(
    service: &Service,
    admitted: Admitted,
    mut request: ChatRequest,
) -> Result<(ApiRequest, Calling), ApiError> {
    let common = request.common();
    let logprobs = match (request.logprobs, request.top_logprobs) {
        (Some(true), top) => Some(top.unwrap_or(0)),
        (_, None) => None,
        (_, Some(_)) => {
            let message = "`top_logprobs` needs `logprobs`: true";
            return Err(ApiError::field("top_logprobs", message));
        }
    };
    let logprobs = top_logprobs("top_logprobs", logprobs)?;
    let max_tokens = match (request.max_completion_tokens, request.max_tokens) {
        (Some(tokens), _) => token_limit("max_completion_tokens", tokens)?,
        (None, Some(tokens)) => token_limit("max_tokens", tokens)?,
        (None, None) => None,
    };
    let format = form_of(request.response_format.take())?;
    let calling = Calling::new(request.tools.take(), request.tool_choice.take())?;
    let form = match (format, calling.form()?) {
        (Some(_), Some(_)) => {
            let message = "an answer that must call a function has no other form";
            return Err(ApiError::field("response_format", message));
        }
        (format, call) => format.or(call),
    };
    let variables = request.chat_template_kwargs.as_ref();
    let prompt = render(service, &request.messages, variables, &calling)?;
    let prompts = vec![tokenize_rendered(service, &prompt)?];
    let own = EndpointParameters { prompts, max_tokens, logprobs, form };
    Ok((ApiRequest::prepare(service, admitted, common, own)?, calling))
}

/// Waits for the whole completion.
async fn whole(
    mut response: ApiResponse,
    calling: &Calling,
) -> Result<(ChatCompletion, HeaderMap), ApiError> {
    let sequences = response.sequences.collect().await?;
    let choice = |(index, sequence): (usize, FinishedSequence)| {
        let (content, tool_calls) = calling.parse(sequence.text);
        let reason = sequence.finish.map_or("stop", finish_reason);
        let logprobs = || ChatLogprobs::new(&sequence.pieces, response.tokenizer());
        ChatChoice {
            index,
            logprobs: response.options.logprobs.then(logprobs),
            token_ids: response.token_ids(&sequence.pieces),
            speculative: response.trace(&sequence.pieces),
            finish_reason: if tool_calls.is_empty() { reason } else { "tool_calls" },
            message: ResponseMessage { role: "assistant", content, refusal: None, tool_calls },
        }
    };
    let choices = sequences.into_iter().enumerate().map(choice).collect();
    let (prompt_token_ids, stats) = (response.prompt_token_ids(0), response.stats());
    let header = response.lossy_header(true);
    Ok((ChatCompletion { meta: response.meta, choices, prompt_token_ids, stats }, header))
}

/// Sends the completion in chunks.
async fn send_chunks(mut response: ApiResponse, calling: Calling, sink: Sink) {
    let mut filters: Vec<CallFilter> = (0..response.choices()).map(|_| calling.filter()).collect();
    // What the client has of a response that it resumes went through a filter before.
    let resumed = &response.sequences.summary.resumed.text;
    filters.iter_mut().for_each(|it| it.push(resumed, &mut String::new()));
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
        for chunk in progress_chunks(&response, &mut filters[progress.choice], &progress) {
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
    filter: &mut CallFilter,
    progress: &Progress,
) -> Vec<ChatCompletionChunk> {
    let (index, pieces) = (progress.choice, &progress.pieces);
    let mut chunks = Vec::new();
    let mut content = String::new();
    pieces.iter().for_each(|piece| filter.push(&piece.text, &mut content));
    // Calls come with the last tokens. If the client lacked only the finish reason, it has them.
    let tool_calls = match progress.finish {
        Some(_) if !pieces.is_empty() => filter.finish(&mut content),
        _ => Vec::new(),
    };
    let adds = !content.is_empty() || !tool_calls.is_empty();
    if adds || response.reports_tokens() {
        let content = (!content.is_empty()).then_some(content);
        let logprobs = || ChatLogprobs::new(pieces, response.tokenizer());
        let choice = ChatChunkChoice {
            index,
            delta: Delta { role: None, content, tool_calls },
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
        let reason = if filter.called() { "tool_calls" } else { finish_reason(finish) };
        let finish_reason = Some(reason);
        let choice = ChatChunkChoice { index, finish_reason, ..ChatChunkChoice::default() };
        chunks.push(ChatCompletionChunk::new(&response.meta, vec![choice]));
    }
    chunks
}
