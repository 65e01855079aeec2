//! `POST /completion`: continues texts, in llama-server's own form. `POST /infill` fills gaps in them.
//!
//! The request is read into the same parameters as those of `/v1/completions`. What llama-server does
//! otherwise is decided here: the form of the response, no limit of its length by default, and a
//! seed of -1, which is none.

mod answer;
pub(super) mod infill;

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use forerun_decode::{Special, Token};
use serde_json::Value;

use self::answer::Writer;
use super::error::{ApiError, ErrorBody};
use super::extract::{Body, Shared};
use super::notes::Notes;
use super::parameters::{ApiRequest, EndpointParameters, predict_limit, top_logprobs};
use super::response::{ApiResponse, ObjectNames};
use super::stream;
use super::types::{CommonFields, NativeFields, NativeRequest, TokenOrText};
use crate::blocking::off_thread;
use crate::request::Caller;
use crate::service::{Admitted, Service};

const NAMES: ObjectNames = ObjectNames { prefix: "cmpl-", whole: "", chunk: "" };

/// Seeds that stand for none: -1, and the same as llama.cpp stores it.
const NO_SEEDS: [i64; 2] = [-1, u32::MAX as i64];

/// Continues a text, in llama-server's own form. `/completions` is the same.
#[utoipa::path(
    post,
    path = "/completion",
    request_body(content = NativeRequest, example = json!({ "prompt": "Once", "n_predict": 4 })),
    responses(
        (
            status = 200,
            description = "The completion with llama-server's fields (a list if there are several), or a \
                           stream of them",
            content((Value = "application/json"), (Value = "text/event-stream"))
        ),
        (status = "4XX", description = "What is wrong with the request", body = ErrorBody),
        (status = "5XX", description = "What went wrong here", body = ErrorBody),
    )
)]
pub(crate) async fn completion(
    Shared(service): Shared,
    Extension(caller): Extension<Caller>,
    Extension(notes): Extension<Notes>,
    Body(request): Body<NativeRequest>,
) -> Result<Response, ApiError> {
    let admitted = service.admit(caller, request.choices(), request.prompt.0.len())?;
    let preparing = Arc::clone(&service);
    let request = off_thread(move || prepare(&preparing, admitted, request, &notes)).await?;
    respond(service, request).await
}

/// A request that is answered in llama-server's form, and what of it the response depends on.
struct NativeCall {
    request: ApiRequest,
    writer: Writer,
}

fn prepare(
    service: &Service,
    admitted: Admitted,
    mut request: NativeRequest,
    notes: &Notes,
) -> Result<NativeCall, ApiError> {
    let fields = request.native();
    let prompts = request.prompt.0.iter().map(|prompt| prompt_of(service, prompt));
    let prompts = prompts.collect::<Result<Vec<_>, _>>()?;
    if prompts.is_empty() {
        return Err(ApiError::field("prompt", "there is no prompt: give one at least"));
    }
    let admitted = Prompted { admitted, prompts };
    native_call(service, admitted, request.common(), fields, notes)
}

/// A request that was admitted, with its prompts.
struct Prompted {
    admitted: Admitted,
    prompts: Vec<Vec<Token>>,
}

/// Prepares a request in llama-server's form.
fn native_call(
    service: &Service,
    Prompted { admitted, prompts }: Prompted,
    mut common: CommonFields,
    fields: NativeFields,
    notes: &Notes,
) -> Result<NativeCall, ApiError> {
    if fields.post_sampling_probs {
        let message = "log-probabilities are the model's own here, before sampling: leave it out";
        return Err(ApiError::field("post_sampling_probs", message));
    }
    let probs = fields.n_probs.filter(|top| *top > 0);
    let writer = Writer {
        grammar: common.grammar.clone().unwrap_or_default(),
        fields: fields.response_fields,
        tokens: fields.return_tokens || common.stream,
    };
    common.n = fields.n;
    common.seed = common.seed.filter(|seed| !NO_SEEDS.contains(seed));
    common.stop.retain(|stop| !stop.is_empty());
    let own = EndpointParameters {
        prompts,
        max_tokens: fields.max_tokens.map_or(Ok(None), predict_limit)?,
        logprobs: top_logprobs("n_probs", probs)?,
        form: None,
        calling: None,
    };
    let request = ApiRequest::prepare(service, admitted, common, own, notes)?;
    Ok(NativeCall { request, writer })
}

/// The tokens of a prompt. It gets a start token, if the model needs one, unless it begins with a
/// token.
fn prompt_of(service: &Service, prompt: &[TokenOrText]) -> Result<Vec<Token>, ApiError> {
    let tokens = mixed_tokens(service, "prompt", prompt, Special::Parse)?;
    Ok(match prompt.first() {
        Some(TokenOrText::Text(_)) => service.started(tokens),
        _ => tokens,
    })
}

/// The tokens of a field of texts and tokens.
fn mixed_tokens(
    service: &Service,
    field: &str,
    parts: &[TokenOrText],
    special: Special,
) -> Result<Vec<Token>, ApiError> {
    let mut tokens = Vec::new();
    let vocab_len = service.tokenizer.vocab_len();
    for part in parts {
        match part {
            TokenOrText::Token(id) if Token(*id).index() >= vocab_len => {
                let message = format!("token {id} is out of range: there are {vocab_len} tokens");
                return Err(ApiError::field(field, message));
            }
            TokenOrText::Token(id) => tokens.push(Token(*id)),
            TokenOrText::Text(text) => {
                let read = service.tokenizer.tokenize(text, special);
                tokens.extend(read.map_err(|error| ApiError::field(field, error))?);
            }
        }
    }
    Ok(tokens)
}

/// Decodes, and responds in llama-server's form.
async fn respond(service: Arc<Service>, call: NativeCall) -> Result<Response, ApiError> {
    let NativeCall { request, writer } = call;
    let response = ApiResponse::begin(service, request, NAMES).await?;
    if response.options.stream {
        let header = response.lossy_header(false);
        let streamed = stream::respond(|sink| writer.send(response, sink));
        return Ok((header, streamed).into_response());
    }
    let (body, header): (Value, _) = writer.whole(response).await?;
    Ok((header, Json(body)).into_response())
}
