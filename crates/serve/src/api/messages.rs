//! `POST /v1/messages`: Anthropic's Messages API, over the same requests as chat completions.

mod convert;

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use forerun_decode::Finish;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::blocks::{BlockEvent, BlockKind, Blocks, whole_blocks};
use super::chat::prepare;
use super::error::{ApiError, MessagesError};
use super::extract::{Body, Shared};
use super::notes::Notes;
use super::response::{ApiResponse, ObjectNames};
use super::stream::{self, Sink};
use super::template::{render, variables_of};
use super::tools::{Calling, call_id};
use super::usage::Usage;
use crate::blocking::off_thread;
use crate::dialect::Splitter;
use crate::request::Caller;

const NAMES: ObjectNames = ObjectNames { prefix: "msg_", whole: "message", chunk: "message" };

/// A conversation to continue, by Anthropic's names.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MessagesRequest {
    /// The model; any name is answered to unless the server is strict.
    model: Option<String>,
    /// The conversation: `role` is `user` or `assistant`, `content` a string or a list of blocks
    /// (`text`, `thinking`, `tool_use`, `tool_result`).
    messages: Vec<Value>,
    /// Instructions: a string or a list of text blocks.
    system: Option<Value>,
    /// Most tokens of the output.
    #[schema(minimum = 1)]
    max_tokens: Option<i64>,
    /// Texts that end the output and are not part of it.
    stop_sequences: Option<Vec<String>>,
    /// Whether the response is a stream of events.
    stream: Option<bool>,
    /// Divides the logits; 0 takes the likeliest token.
    temperature: Option<f32>,
    /// Keeps this many of the likeliest tokens.
    top_k: Option<i32>,
    /// Keeps the fewest likeliest tokens whose probabilities add up to this.
    top_p: Option<f32>,
    /// Functions the model may call: `name`, `description`, `input_schema`.
    tools: Option<Vec<Value>>,
    /// Whether a function is called: `type` is `auto`, `any`, `tool` (with `name`) or `none`.
    tool_choice: Option<Value>,
    /// Whether the model thinks first: `type` is `enabled`, `adaptive` or `disabled`.
    thinking: Option<Value>,
    /// `effort`: how much the model is to reason; `format`: the form of the output.
    output_config: Option<Value>,
    /// The form of the output, by its older name.
    output_format: Option<Value>,
    /// Notes of the client. Ignored.
    #[allow(dead_code, reason = "clients may send it")]
    metadata: Option<Value>,
    /// What is drafted and how drafts are verified, as for chat completions.
    speculative: Option<Value>,
    /// Determines the output, as for chat completions.
    seed: Option<i64>,
    /// Divides the prefix cache, as for chat completions.
    cache_salt: Option<String>,
    /// Whether anything is stored, as for chat completions.
    store: Option<bool>,
}

/// Continues a conversation, by Anthropic's Messages API.
#[utoipa::path(
    post,
    path = "/v1/messages",
    request_body = MessagesRequest,
    responses(
        (
            status = 200,
            description = "The message, or a stream of events",
            content((Value = "application/json"), (Value = "text/event-stream"))
        ),
        (status = "4XX", description = "What is wrong with the request", body = Value),
        (status = "5XX", description = "What went wrong here", body = Value),
    )
)]
pub(crate) async fn messages(
    service: Result<Shared, ApiError>,
    Extension(caller): Extension<Caller>,
    Extension(notes): Extension<Notes>,
    request: Result<Body<MessagesRequest>, ApiError>,
) -> Result<Response, MessagesError> {
    let (Shared(service), Body(request)) = (service?, request?);
    let admitted = service.admit(caller, 1, 1).map_err(ApiError::from)?;
    let stops = request.stop_sequences.clone().unwrap_or_default();
    let (preparing, noting) = (Arc::clone(&service), notes.clone());
    let (request, calling) = off_thread(move || {
        let chat = request.into_chat(&noting)?;
        prepare(&preparing, admitted, chat, &noting)
    })
    .await?;
    let response = ApiResponse::begin(service, request, NAMES).await.map_err(ApiError::from)?;
    if response.sequences.unconstrained {
        notes.ignored("tools[].input_schema");
    }
    let writer = Writer { stops };
    if response.options.stream {
        let header = response.lossy_header(false);
        let streamed = stream::respond(|sink| writer.send(response, calling, sink));
        return Ok((header, streamed).into_response());
    }
    Ok(writer.whole(response, &calling).await?)
}

/// Counts the tokens of a conversation, by Anthropic's Messages API.
#[utoipa::path(
    post,
    path = "/v1/messages/count_tokens",
    request_body = MessagesRequest,
    responses(
        (status = 200, description = "`input_tokens`", body = Value),
        (status = "4XX", description = "What is wrong with the request", body = Value),
        (status = "5XX", description = "What went wrong here", body = Value),
    )
)]
pub(crate) async fn count_tokens(
    service: Result<Shared, ApiError>,
    Extension(notes): Extension<Notes>,
    request: Result<Body<MessagesRequest>, ApiError>,
) -> Result<Json<Value>, MessagesError> {
    let (Shared(service), Body(request)) = (service?, request?);
    let count = off_thread(move || {
        let mut chat = request.into_chat(&notes)?;
        let variables = variables_of(&service, &mut chat, &notes)?;
        let (tools, choice) = (chat.tools.take(), chat.tool_choice.take());
        let calling = Calling::new(&service.dialect, tools, choice, None)?;
        let prompt = render(&service, &chat.messages, &variables, &calling)?;
        Ok::<usize, ApiError>(super::template::tokenize_rendered(&service, &prompt)?.len())
    })
    .await?;
    Ok(Json(json!({ "input_tokens": count })))
}

/// Writes responses.
struct Writer {
    stops: Vec<String>,
}

impl Writer {
    /// Why the output ended, and the text that ended it if that is known.
    fn reason(&self, splitter: &Splitter, finish: Option<Finish>) -> (&'static str, Value) {
        match finish {
            Some(Finish::Length | Finish::Context)
                if splitter.is_cut() || splitter.calls() == 0 =>
            {
                ("max_tokens", Value::Null)
            }
            _ if splitter.calls() > 0 => ("tool_use", Value::Null),
            Some(Finish::Stop) => {
                let one = self.stops.first().filter(|_| self.stops.len() == 1);
                ("stop_sequence", one.map_or(Value::Null, |stop| json!(stop)))
            }
            _ => ("end_turn", Value::Null),
        }
    }

    async fn whole(
        &self,
        mut response: ApiResponse,
        calling: &Calling,
    ) -> Result<Response, ApiError> {
        let sequence = response.sequences.collect().await?.pop().unwrap_or_default();
        let (parts, splitter) = calling.split(&sequence.text);
        let (reason, stop) = self.reason(&splitter, sequence.finish);
        let content: Vec<Value> = whole_blocks(parts).into_iter().map(block).collect();
        let mut message = message(&response);
        message["content"] = content.into();
        message["stop_reason"] = reason.into();
        message["stop_sequence"] = stop;
        message["usage"] = usage(&response.stats().usage);
        Ok((response.lossy_header(true), Json(message)).into_response())
    }

    async fn send(self, mut response: ApiResponse, calling: Calling, sink: Sink) {
        let (mut splitter, mut writing) = (calling.splitter(), Writing::default());
        let start = json!({ "type": "message_start", "message": message(&response) });
        if !sink.send_event("message_start", &start).await {
            return;
        }
        let mut finish = None;
        while let Some(progress) = sink.next(&mut response.sequences).await {
            let progress = match progress {
                Ok(progress) => progress,
                Err(error) => {
                    let error = MessagesError::from(ApiError::from(error)).body();
                    sink.send_event("error", &error).await;
                    return;
                }
            };
            let mut parts = Vec::new();
            progress.pieces.iter().for_each(|piece| splitter.push(&piece.text, &mut parts));
            if progress.finish.is_some() {
                splitter.finish(&mut parts);
            }
            finish = progress.finish.or(finish);
            let mut events = writing.blocks.push(parts);
            if progress.finish.is_some() {
                events.extend(writing.blocks.finish());
            }
            for event in events {
                let (name, event) = writing.event(event);
                if !sink.send_event(name, &event).await {
                    return;
                }
            }
        }
        let (reason, stop) = self.reason(&splitter, finish);
        let delta = json!({ "stop_reason": reason, "stop_sequence": stop });
        let usage = usage(&response.stats().usage);
        let last = json!({ "type": "message_delta", "delta": delta, "usage": usage });
        if sink.send_event("message_delta", &last).await {
            sink.send_event("message_stop", &json!({ "type": "message_stop" })).await;
        }
    }
}

/// A message without content.
fn message(response: &ApiResponse) -> Value {
    json!({
        "id": response.meta.id,
        "type": "message",
        "role": "assistant",
        "model": response.meta.model,
        "content": [],
        "stop_reason": null,
        "stop_sequence": null,
        "usage": usage(&response.stats().usage),
    })
}

/// Tokens, by Anthropic's names: what was cached is no part of the input.
fn usage(usage: &Usage) -> Value {
    let cached = usage.prompt_tokens_details.cached_tokens;
    json!({
        "input_tokens": usage.prompt_tokens.saturating_sub(cached),
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
    })
}

/// A whole block.
fn block((kind, text): (BlockKind, String)) -> Value {
    match kind {
        BlockKind::Thought => json!({ "type": "thinking", "thinking": text, "signature": "" }),
        BlockKind::Text => json!({ "type": "text", "text": text }),
        BlockKind::Call(name) => {
            // Arguments of a call that was cut off are no JSON.
            let input: Value = serde_json::from_str(&text).unwrap_or_else(|_| json!({}));
            json!({ "type": "tool_use", "id": call_id(), "name": name, "input": input })
        }
    }
}

/// The blocks of a stream.
#[derive(Default)]
struct Writing {
    blocks: Blocks,
    index: usize,
    /// What is open.
    kind: Option<BlockKind>,
}

impl Writing {
    /// The name and the object of an event.
    fn event(&mut self, event: BlockEvent) -> (&'static str, Value) {
        let index = self.index;
        match event {
            BlockEvent::Open(kind) => {
                let empty = match &kind {
                    BlockKind::Call(name) => {
                        json!({ "type": "tool_use", "id": call_id(), "name": name, "input": {} })
                    }
                    other => block((other.clone(), String::new())),
                };
                self.kind = Some(kind);
                let name = "content_block_start";
                (name, json!({ "type": name, "index": index, "content_block": empty }))
            }
            BlockEvent::More(text) => {
                let delta = match &self.kind {
                    Some(BlockKind::Thought) => {
                        json!({ "type": "thinking_delta", "thinking": text })
                    }
                    Some(BlockKind::Call(_)) => {
                        json!({ "type": "input_json_delta", "partial_json": text })
                    }
                    _ => json!({ "type": "text_delta", "text": text }),
                };
                let name = "content_block_delta";
                (name, json!({ "type": name, "index": index, "delta": delta }))
            }
            BlockEvent::Close => {
                self.index += 1;
                let name = "content_block_stop";
                (name, json!({ "type": name, "index": index }))
            }
        }
    }
}
