//! The endpoints around the texts: what is served, how it is, and its tokens.

use axum::Json;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use forerun_decode::{RuleChoice, Special, Token};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::UNIX_EPOCH;
use utoipa::ToSchema;

use super::error::{ApiError, ErrorBody};
use super::extract::{Body, Shared};
use super::off_thread;
use super::tools::Calling;
use super::types::ChatMessage;
use crate::state::State;

/// What is served.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Models {
    object: &'static str,
    data: Vec<ModelCard>,
}

/// A model.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelCard {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// Tokens of context a request has.
    max_model_len: usize,
    /// What the file says of itself.
    meta: Value,
}

fn card(state: &State, name: &str) -> ModelCard {
    let model = &state.model;
    ModelCard {
        id: name.to_owned(),
        object: "model",
        created: 0,
        owned_by: "forerun",
        max_model_len: state.context_len,
        meta: json!({
            "description": model.description,
            "n_params": model.parameters,
            "size": model.size,
            "n_vocab": state.tokenizer.vocab_len(),
            "n_ctx_train": model.trained_len,
        }),
    }
}

/// What is served.
#[utoipa::path(
    get,
    path = "/v1/models",
    responses((status = 200, body = Models), (status = "4XX", body = ErrorBody))
)]
pub(crate) async fn models(Shared(state): Shared) -> Json<Models> {
    let data = state.model.names.iter().map(|name| card(&state, name)).collect();
    Json(Models { object: "list", data })
}

/// One model.
#[utoipa::path(
    get,
    path = "/v1/models/{model}",
    params(("model" = String, Path, description = "Its name")),
    responses((status = 200, body = ModelCard), (status = "4XX", body = ErrorBody))
)]
pub(crate) async fn model(
    Shared(state): Shared,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<ModelCard>, ApiError> {
    let Path(name) =
        name.map_err(|_| ApiError::field("model", "the model's name in the path is not UTF-8"))?;
    let names = &state.model.names;
    let known = names.contains(&name);
    known.then(|| Json(card(&state, &name))).ok_or_else(|| ApiError::no_model(&name, names))
}

/// Whether requests are taken: not while the model is loaded, nor once the server is told to stop.
#[utoipa::path(
    get,
    path = "/health",
    responses((status = 200, body = Value), (status = 503, body = ErrorBody))
)]
pub(crate) async fn health(Shared(state): Shared) -> Result<Json<Value>, ApiError> {
    match state.stopping.load(Ordering::Relaxed) || state.jobs.is_closed() {
        true => Err(ApiError::stopping()),
        false => Ok(Json(json!({ "status": "ok" }))),
    }
}

/// Whether the process is of any use: also while it loads or drains, but not once its engine broke.
#[utoipa::path(
    get,
    path = "/livez",
    responses((status = 200, body = Value), (status = 503, body = ErrorBody))
)]
pub(crate) async fn alive(shared: Result<Shared, ApiError>) -> Result<Json<Value>, ApiError> {
    let status = match shared {
        Err(_) => "loading",
        Ok(Shared(state)) if state.jobs.is_closed() => {
            return Err(ApiError::internal("the engine's thread has ended: restart the server"));
        }
        Ok(Shared(state)) if state.stopping.load(Ordering::Relaxed) => "draining",
        Ok(_) => "ok",
    };
    Ok(Json(json!({ "status": status })))
}

/// How busy the server is, by SGLang's names.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Loads {
    /// When, in seconds since 1970.
    timestamp: String,
    dp_rank_count: usize,
    loads: Vec<LoadSnapshot>,
}

/// How busy one engine is.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LoadSnapshot {
    dp_rank: usize,
    /// Texts being made.
    num_running_reqs: i64,
    /// Texts that wait.
    num_waiting_reqs: i64,
    /// Both.
    num_total_reqs: i64,
    /// Tokens of them in the cache.
    num_used_tokens: i64,
    /// Tokens it holds.
    max_total_num_tokens: usize,
    /// The one over the other.
    token_usage: f64,
    /// Tokens a second, of late.
    gen_throughput: f64,
    /// Share of prompt tokens that were cached.
    cache_hit_rate: f64,
    /// Texts being made, of those that can be at once.
    utilization: f64,
    /// Texts that can be made at once.
    max_running_requests: usize,
}

/// How busy the server is, for gateways.
#[utoipa::path(
    get,
    path = "/v1/loads",
    responses((status = 200, body = Loads), (status = 503, body = ErrorBody))
)]
pub(crate) async fn loads(Shared(state): Shared) -> Json<Loads> {
    let levels = state.metrics.levels();
    let now = crate::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let snapshot = LoadSnapshot {
        dp_rank: 0,
        num_running_reqs: levels.running,
        num_waiting_reqs: levels.waiting,
        num_total_reqs: levels.running + levels.waiting,
        num_used_tokens: levels.held,
        max_total_num_tokens: state.slot_count * state.context_len,
        token_usage: levels.cache,
        gen_throughput: levels.tokens_per_second,
        cache_hit_rate: levels.hit_rate,
        utilization: levels.running as f64 / state.slot_count as f64,
        max_running_requests: state.slot_count,
    };
    let timestamp = format!("{:.3}", now.as_secs_f64());
    Json(Loads { timestamp, dp_rank_count: 1, loads: vec![snapshot] })
}

/// The metrics, for Prometheus.
#[utoipa::path(
    get,
    path = "/metrics",
    responses(
        (status = 200, body = String, content_type = "application/openmetrics-text"),
        (status = 503, body = ErrorBody)
    )
)]
pub(crate) async fn metrics(Shared(state): Shared) -> impl IntoResponse {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], state.metrics.text())
}

/// Which build this is.
#[utoipa::path(get, path = "/version", responses((status = 200, body = Value)))]
pub(crate) async fn version() -> Json<Value> {
    Json(json!({ "version": env!("CARGO_PKG_VERSION") }))
}

/// A text to be cut into tokens.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TokenizeRequest {
    /// The text; vLLM's name.
    prompt: Option<String>,
    /// The text; llama-server's name.
    content: Option<String>,
    /// Whether a start token is added where the model wants one.
    #[serde(default, alias = "add_special_tokens")]
    add_special: bool,
    /// Whether control tokens written in the text are taken as such.
    #[serde(default = "yes")]
    parse_special: bool,
    /// Whether the tokens' texts are given.
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
    /// Most a request may have.
    max_model_len: usize,
    /// Their ids.
    tokens: Vec<u32>,
    /// Their texts, where asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    token_strs: Option<Vec<String>>,
}

/// Cuts a text into tokens.
#[utoipa::path(
    post,
    path = "/tokenize",
    request_body = TokenizeRequest,
    responses((status = 200, body = Tokenized), (status = "4XX", body = ErrorBody))
)]
pub(crate) async fn tokenize(
    Shared(state): Shared,
    Body(request): Body<TokenizeRequest>,
) -> Result<Json<Tokenized>, ApiError> {
    let text = match (request.prompt, request.content) {
        (Some(text), None) | (None, Some(text)) => text,
        _ => return Err(ApiError::field("content", "give one text, as `content` or `prompt`")),
    };
    off_thread(move || {
        let special = if request.parse_special { Special::Parse } else { Special::AsText };
        let tokens = state.tokenizer.tokenize(&text, special);
        let mut tokens = tokens.map_err(|error| ApiError::field("content", error))?;
        let start = state.tokenizer.start().filter(|_| request.add_special);
        if let Some(start) = start.filter(|start| tokens.first() != Some(start)) {
            tokens.insert(0, start);
        }
        let text = |token: &Token| state.text(&[*token]);
        Ok(Json(Tokenized {
            count: tokens.len(),
            max_model_len: state.context_len,
            token_strs: request.with_pieces.then(|| tokens.iter().map(text).collect()),
            tokens: tokens.iter().map(|token| token.0).collect(),
        }))
    })
    .await
}

impl State {
    pub(crate) fn text(&self, tokens: &[Token]) -> String {
        let mut bytes = Vec::new();
        tokens.iter().for_each(|token| self.tokenizer.bytes(*token, &mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Tokens to be made text.
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

/// Makes text of tokens.
#[utoipa::path(
    post,
    path = "/detokenize",
    request_body = DetokenizeRequest,
    responses((status = 200, body = Detokenized), (status = "4XX", body = ErrorBody))
)]
pub(crate) async fn detokenize(
    Shared(state): Shared,
    Body(request): Body<DetokenizeRequest>,
) -> Result<Json<Detokenized>, ApiError> {
    let vocab_len = state.tokenizer.vocab_len();
    if let Some(id) = request.tokens.iter().find(|id| **id as usize >= vocab_len) {
        let message = format!("token {id} is out of range: there are {vocab_len} tokens");
        return Err(ApiError::field("tokens", message));
    }
    let tokens: Vec<Token> = request.tokens.into_iter().map(Token).collect();
    let text = state.text(&tokens);
    Ok(Json(Detokenized { content: text.clone(), prompt: text }))
}

/// A conversation to be made a prompt.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TemplateRequest {
    /// The conversation.
    messages: Vec<ChatMessage>,
    /// Further variables of the template.
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

/// Shows the prompt of a conversation.
#[utoipa::path(
    post,
    path = "/apply-template",
    request_body = TemplateRequest,
    responses((status = 200, body = Rendered), (status = "4XX", body = ErrorBody))
)]
pub(crate) async fn apply_template(
    Shared(state): Shared,
    Body(request): Body<TemplateRequest>,
) -> Result<Json<Rendered>, ApiError> {
    off_thread(move || {
        let TemplateRequest { messages, chat_template_kwargs, .. } = request;
        let variables = chat_template_kwargs.as_ref();
        let prompt = state.render(&messages, variables, &Calling::default())?;
        Ok(Json(Rendered { prompt: prompt.text }))
    })
    .await
}

/// What the server does where a request says nothing.
#[utoipa::path(
    get,
    path = "/props",
    responses((status = 200, body = Value), (status = "4XX", body = ErrorBody))
)]
pub(crate) async fn props(Shared(state): Shared) -> Json<Value> {
    let (drafts, sampling) = (&state.drafts, &state.sampling);
    let drafters: Vec<&str> = drafts.drafters.iter().map(|drafter| drafter.name).collect();
    Json(json!({
        "model_alias": state.model.names[0],
        "model_path": state.model.file,
        "chat_template": state.template_source,
        "total_slots": state.slot_count,
        "build_info": concat!("forerun-", env!("CARGO_PKG_VERSION")),
        "default_generation_settings": {
            "n_ctx": state.context_len,
            "params": {
                "temperature": sampling.temperature,
                "top_k": sampling.top_k,
                "top_p": sampling.top_p,
                "min_p": sampling.min_p,
                "typical_p": sampling.typical_p,
                "repeat_penalty": sampling.repeat_penalty,
                "repeat_last_n": sampling.repeat_last_n,
                "presence_penalty": sampling.presence_penalty,
                "frequency_penalty": sampling.frequency_penalty,
            },
        },
        "speculative": {
            "drafters": drafters,
            "rules": RuleChoice::ALL.map(RuleChoice::name),
            "rule": drafts.rule.map(RuleChoice::name),
            "length_max": drafts.length,
            "paths_max": drafts.width,
            "adaptive": drafts.adaptive,
        },
    }))
}

/// The page, which takes nothing from elsewhere.
pub(crate) async fn page() -> Response {
    let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                  connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
                  frame-ancestors 'none'";
    let headers = [(header::CONTENT_SECURITY_POLICY, policy)];
    (headers, Html(include_str!("../../page/index.html"))).into_response()
}

/// Browsers ask for it.
pub(crate) async fn no_icon() -> StatusCode {
    StatusCode::NO_CONTENT
}
