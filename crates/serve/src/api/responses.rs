//! `POST /v1/responses`: OpenAI's Responses API, over the same requests as chat completions. Nothing is
//! stored: a client sends the whole conversation every time, as agents do with `store: false`.

mod convert;
mod events;

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use forerun_decode::Finish;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use self::events::Events;
use super::blocks::{BlockKind, whole_blocks};
use super::chat::prepare;
use super::error::{ApiError, ErrorBody};
use super::extract::{Body, Shared};
use super::notes::Notes;
use super::response::{ApiResponse, ObjectNames};
use super::stream::{self, Sink};
use super::tools::{Calling, call_id};
use super::usage::Usage;
use crate::blocking::off_thread;
use crate::request::Caller;

const NAMES: ObjectNames = ObjectNames { prefix: "resp_", whole: "response", chunk: "response" };

/// A conversation to continue, by the names of the Responses API.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResponsesRequest {
    /// The model; any name is answered to unless the server is strict.
    model: Option<String>,
    /// A string, or a list of items: `message`, `function_call`, `function_call_output`, `reasoning`.
    input: Value,
    /// Instructions.
    instructions: Option<String>,
    /// Most tokens of the output.
    #[schema(minimum = 1)]
    max_output_tokens: Option<i64>,
    /// Whether the response is a stream of events.
    stream: Option<bool>,
    /// Divides the logits; 0 takes the likeliest token.
    temperature: Option<f32>,
    /// Keeps the fewest likeliest tokens whose probabilities add up to this.
    top_p: Option<f32>,
    /// Functions the model may call: `type` is `function`, with `name`, `description`, `parameters`.
    tools: Option<Vec<Value>>,
    /// Whether a function is called: `auto`, `none`, `required`, or one by its name.
    tool_choice: Option<Value>,
    /// Whether the model may make several calls.
    parallel_tool_calls: Option<bool>,
    /// `format`: the form of the output.
    text: Option<Value>,
    /// `effort`: how much the model is to reason.
    reasoning: Option<Value>,
    /// Whether the response is stored. It never is. If false, the prompt is not recorded either.
    store: Option<bool>,
    /// Refused: no response is stored.
    previous_response_id: Option<String>,
    /// Refused: no conversation is stored.
    conversation: Option<Value>,
    /// Refused: a response is made while its request waits.
    background: Option<bool>,
    /// What the response contains beside. Ignored.
    #[allow(dead_code, reason = "clients may send it")]
    include: Option<Vec<String>>,
    /// Notes of the client, which the response repeats.
    metadata: Option<Value>,
    /// The end user. Ignored.
    #[allow(dead_code, reason = "clients may send it")]
    user: Option<String>,
    /// What is drafted and how drafts are verified, as for chat completions.
    speculative: Option<Value>,
    /// Determines the output, as for chat completions.
    seed: Option<i64>,
    /// Divides the prefix cache, as for chat completions.
    cache_salt: Option<String>,
}

/// Continues a conversation, by OpenAI's Responses API.
#[utoipa::path(
    post,
    path = "/v1/responses",
    request_body = ResponsesRequest,
    responses(
        (
            status = 200,
            description = "The response, or a stream of events",
            content((Value = "application/json"), (Value = "text/event-stream"))
        ),
        (status = "4XX", description = "What is wrong with the request", body = ErrorBody),
        (status = "5XX", description = "What went wrong here", body = ErrorBody),
    )
)]
pub(crate) async fn responses(
    Shared(service): Shared,
    Extension(caller): Extension<Caller>,
    Extension(notes): Extension<Notes>,
    Body(request): Body<ResponsesRequest>,
) -> Result<Response, ApiError> {
    let admitted = service.admit(caller, 1, 1)?;
    let said = Said::new(&request);
    let (preparing, noting) = (Arc::clone(&service), notes.clone());
    let (request, calling) = off_thread(move || {
        let chat = request.into_chat(&noting)?;
        prepare(&preparing, admitted, chat, &noting)
    })
    .await?;
    let response = ApiResponse::begin(service, request, NAMES).await?;
    if response.sequences.unconstrained {
        notes.ignored("tools[].parameters");
    }
    if response.options.stream {
        let header = response.lossy_header(false);
        let streamed = stream::respond(|sink| send(response, calling, said, sink));
        return Ok((header, streamed).into_response());
    }
    whole(response, &calling, &said).await
}

/// What a response repeats of its request.
pub(super) struct Said(Value);

impl Said {
    fn new(request: &ResponsesRequest) -> Self {
        Self(json!({
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "tools": request.tools.clone().unwrap_or_default(),
            "tool_choice": request.tool_choice.clone().unwrap_or_else(|| json!("auto")),
            "parallel_tool_calls": request.parallel_tool_calls.unwrap_or(true),
            "text": request.text.clone().unwrap_or_else(|| json!({ "format": { "type": "text" } })),
            "reasoning": request.reasoning.clone().unwrap_or_else(|| json!({ "effort": null })),
            "metadata": request.metadata.clone().unwrap_or_else(|| json!({})),
        }))
    }

    /// The object of a response in this state.
    fn object(&self, response: &ApiResponse, status: &str, output: &[Value]) -> Value {
        let mut object = json!({
            "id": response.meta.id,
            "object": "response",
            "created_at": response.meta.created,
            "model": response.meta.model,
            "status": status,
            "error": null,
            "incomplete_details": null,
            "output": output,
            "previous_response_id": null,
            "store": false,
            "truncation": "disabled",
            "usage": null,
        });
        if let (Value::Object(object), Value::Object(said)) = (&mut object, &self.0) {
            object.extend(said.clone());
        }
        object
    }

    /// The object of a response that has finished.
    fn finished(&self, response: &ApiResponse, cut: bool, output: &[Value]) -> Value {
        let status = if cut { "incomplete" } else { "completed" };
        let mut object = self.object(response, status, output);
        if cut {
            object["incomplete_details"] = json!({ "reason": "max_output_tokens" });
        }
        object["usage"] = usage(&response.stats().usage);
        object
    }
}

fn is_cut(finish: Option<Finish>) -> bool {
    matches!(finish, Some(Finish::Length | Finish::Context))
}

fn usage(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": { "cached_tokens": usage.prompt_tokens_details.cached_tokens },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": { "reasoning_tokens": 0 },
        "total_tokens": usage.total_tokens,
    })
}

/// An id of this kind of item.
fn item_id(prefix: &str) -> String {
    format!("{prefix}{:016x}", crate::random())
}

/// An item of the output, without its text if it has just begun.
fn item(kind: &BlockKind, id: &str, call: &str, status: &str, text: Option<&str>) -> Value {
    match kind {
        BlockKind::Thought => {
            let part = |text: &str| json!({ "type": "reasoning_text", "text": text });
            let content: Vec<Value> = text.map(part).into_iter().collect();
            json!({ "id": id, "type": "reasoning", "summary": [], "content": content })
        }
        BlockKind::Text => {
            let content: Vec<Value> = text.map(text_part).into_iter().collect();
            json!({
                "id": id, "type": "message", "status": status, "role": "assistant", "content": content,
            })
        }
        BlockKind::Call(name) => json!({
            "id": id,
            "type": "function_call",
            "status": status,
            "call_id": call,
            "name": name,
            "arguments": text.unwrap_or_default(),
        }),
    }
}

fn text_part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
}

/// What ids of this kind of item begin with.
fn prefix_of(kind: &BlockKind) -> &'static str {
    match kind {
        BlockKind::Thought => "rs_",
        BlockKind::Text => "msg_",
        BlockKind::Call(_) => "fc_",
    }
}

async fn whole(
    mut response: ApiResponse,
    calling: &Calling,
    said: &Said,
) -> Result<Response, ApiError> {
    let sequence = response.sequences.collect().await?.pop().unwrap_or_default();
    let (parts, _) = calling.split(&sequence.text);
    let cut = is_cut(sequence.finish);
    let status = if cut { "incomplete" } else { "completed" };
    let output = whole_blocks(parts).into_iter().map(|(kind, text)| {
        item(&kind, &item_id(prefix_of(&kind)), &call_id(), status, Some(&text))
    });
    let output: Vec<Value> = output.collect();
    let object = said.finished(&response, cut, &output);
    Ok((response.lossy_header(true), Json(object)).into_response())
}

async fn send(mut response: ApiResponse, calling: Calling, said: Said, sink: Sink) {
    let (mut splitter, mut events) = (calling.splitter(), Events::default());
    for name in ["response.created", "response.in_progress"] {
        let object = said.object(&response, "in_progress", &[]);
        if !events.send(&sink, name, json!({ "response": object })).await {
            return;
        }
    }
    let mut finish = None;
    while let Some(progress) = sink.next(&mut response.sequences).await {
        let progress = match progress {
            Ok(progress) => progress,
            Err(error) => {
                let error = ApiError::from(error).body_only().error;
                let event = json!({ "code": error.code, "message": error.message, "param": null });
                events.send(&sink, "error", event).await;
                return;
            }
        };
        let mut parts = Vec::new();
        progress.pieces.iter().for_each(|piece| splitter.push(&piece.text, &mut parts));
        if progress.finish.is_some() {
            splitter.finish(&mut parts);
        }
        finish = progress.finish.or(finish);
        let status = if is_cut(finish) { "incomplete" } else { "completed" };
        if !events.blocks(&sink, parts, finish.map(|_| status)).await {
            return;
        }
    }
    let cut = is_cut(finish);
    let object = said.finished(&response, cut, events.output());
    let name = if cut { "response.incomplete" } else { "response.completed" };
    events.send(&sink, name, json!({ "response": object })).await;
}
