//! `POST /tokenize`, `/detokenize` and `/apply-template`: what the model reads.

use std::collections::BTreeMap;

use axum::Json;
use forerun_decode::{Special, Token};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::error::{ApiError, ErrorBody};
use super::extract::{Body, Shared};
use super::template::render;
use super::tools::Calling;
use super::types::ChatMessage;
use crate::blocking::off_thread;

/// A text to tokenize.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TokenizeRequest {
    /// The text; vLLM's name.
    prompt: Option<String>,
    /// The text; llama-server's name.
    content: Option<String>,
    /// Whether a start token is added if the model needs one.
    #[serde(default, alias = "add_special_tokens")]
    add_special: bool,
    /// Whether the text of a control token becomes that token.
    #[serde(default = "yes")]
    parse_special: bool,
    /// Whether to return the tokens' texts.
    #[serde(default, alias = "return_token_strs")]
    with_pieces: bool,
    /// The model.
    #[allow(dead_code, reason = "there is one")]
    model: Option<String>,
}

fn yes() -> bool {
    true
}

/// A text's tokens.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Tokenized {
    /// How many.
    count: usize,
    /// Most tokens of a request.
    max_model_len: usize,
    /// Their ids.
    tokens: Vec<u32>,
    /// Their texts, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    token_strs: Option<Vec<String>>,
}

/// Tokenizes a text.
#[utoipa::path(
    post,
    path = "/tokenize",
    request_body = TokenizeRequest,
    responses((status = 200, body = Tokenized), (status = "4XX", body = ErrorBody))
)]
pub(crate) async fn tokenize(
    Shared(service): Shared,
    Body(request): Body<TokenizeRequest>,
) -> Result<Json<Tokenized>, ApiError> {
    let text = match (request.prompt, request.content) {
        (Some(text), None) | (None, Some(text)) => text,
        _ => return Err(ApiError::field("content", "give one text, as `content` or `prompt`")),
    };
    off_thread(move || {
        let special = if request.parse_special { Special::Parse } else { Special::AsText };
        let tokens = service.tokenizer.tokenize(&text, special);
        let mut tokens = tokens.map_err(|error| ApiError::field("content", error))?;
        let start = service.tokenizer.start().filter(|_| request.add_special);
        if let Some(start) = start.filter(|start| tokens.first() != Some(start)) {
            tokens.insert(0, start);
        }
        let text = |token: &Token| service.text(&[*token]);
        Ok(Json(Tokenized {
            count: tokens.len(),
            max_model_len: service.context_len,
            token_strs: request.with_pieces.then(|| tokens.iter().map(text).collect()),
            tokens: tokens.iter().map(|token| token.0).collect(),
        }))
    })
    .await
}

/// Tokens to turn into text.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DetokenizeRequest {
    /// Their ids.
    tokens: Vec<u32>,
    /// The model.
    #[allow(dead_code, reason = "there is one")]
    model: Option<String>,
}

/// Tokens as text.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Detokenized {
    /// The text; llama-server's name.
    content: String,
    /// The text; vLLM's name.
    prompt: String,
}

/// Turns tokens into text.
#[utoipa::path(
    post,
    path = "/detokenize",
    request_body = DetokenizeRequest,
    responses((status = 200, body = Detokenized), (status = "4XX", body = ErrorBody))
)]
pub(crate) async fn detokenize(
    Shared(service): Shared,
    Body(request): Body<DetokenizeRequest>,
) -> Result<Json<Detokenized>, ApiError> {
    let vocab_len = service.tokenizer.vocab_len();
    if let Some(id) = request.tokens.iter().find(|id| **id as usize >= vocab_len) {
        let message = format!("token {id} is out of range: there are {vocab_len} tokens");
        return Err(ApiError::field("tokens", message));
    }
    let tokens: Vec<Token> = request.tokens.into_iter().map(Token).collect();
    let text = service.text(&tokens);
    Ok(Json(Detokenized { content: text.clone(), prompt: text }))
}

/// A conversation to render.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TemplateRequest {
    /// The conversation.
    messages: Vec<ChatMessage>,
    /// Additional variables of the template.
    chat_template_kwargs: Option<BTreeMap<String, Value>>,
    /// The model.
    #[allow(dead_code, reason = "there is one")]
    model: Option<String>,
}

/// A prompt.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Rendered {
    /// The text.
    prompt: String,
}

/// Renders the prompt of a conversation.
#[utoipa::path(
    post,
    path = "/apply-template",
    request_body = TemplateRequest,
    responses((status = 200, body = Rendered), (status = "4XX", body = ErrorBody))
)]
pub(crate) async fn apply_template(
    Shared(service): Shared,
    Body(request): Body<TemplateRequest>,
) -> Result<Json<Rendered>, ApiError> {
    off_thread(move || {
        let TemplateRequest { messages, chat_template_kwargs, .. } = request;
        let variables = chat_template_kwargs.unwrap_or_default();
        let prompt = render(&service, &messages, &variables, &Calling::none(&service.dialect))?;
        Ok(Json(Rendered { prompt: prompt.text }))
    })
    .await
}
