//! The HTTP interface: paths, keys, and the document that describes them.

pub(crate) mod answer;
mod chat;
mod completions;
pub(crate) mod error;
mod extract;
mod hosts;
mod misc;
mod read;
mod refs;
mod stream;
mod tools;
pub(crate) mod types;

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::{Method, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use forerun_grammar::Form;
use subtle::{ConditionallySelectable, ConstantTimeEq};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::{Modify, OpenApi};

use self::error::ApiError;
use self::types::{FormatKind, ResponseFormat};
use crate::job::Client;
use crate::state::Front;

/// What there is.
#[derive(OpenApi)]
#[openapi(
    info(title = "Forerun", description = "Speculative decoding behind OpenAI's API."),
    paths(
        chat::chat_completions,
        completions::completions,
        misc::models,
        misc::model,
        misc::health,
        misc::alive,
        misc::loads,
        misc::metrics,
        misc::version,
        misc::tokenize,
        misc::detokenize,
        misc::apply_template,
        misc::props,
    ),
    modifiers(&Keys)
)]
struct Document;

/// Tells of keys, which all paths but those of `open` may want.
struct Keys;

impl Modify for Keys {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("key", scheme);
        let wants = SecurityRequirement::new("key", Vec::<String>::new());
        // A server without keys wants none.
        document.security = Some(vec![wants, SecurityRequirement::default()]);
    }
}

/// The paths without keys: the page itself, and what probes and gateways ask for, which have none. They
/// tell of nobody's texts.
fn open() -> Router<Arc<Front>> {
    Router::new()
        .route("/", get(misc::page))
        .route("/favicon.ico", get(misc::no_icon))
        .route("/health", get(misc::health))
        .route("/v1/health", get(misc::health))
        .route("/readyz", get(misc::health))
        .route("/livez", get(misc::alive))
        .route("/metrics", get(misc::metrics))
        .route("/v1/loads", get(misc::loads))
        .route("/loads", get(misc::loads))
        .route("/version", get(misc::version))
        .route("/openapi.json", get(async || Json(Document::openapi())))
}

/// The paths that want a key where the server has some.
fn guarded() -> Router<Arc<Front>> {
    Router::new()
        .route("/v1/chat/completions", post(chat::chat_completions))
        .route("/v1/completions", post(completions::completions))
        .route("/v1/models", get(misc::models))
        .route("/v1/models/{model}", get(misc::model))
        .route("/tokenize", post(misc::tokenize))
        .route("/detokenize", post(misc::detokenize))
        .route("/apply-template", post(misc::apply_template))
        .route("/props", get(misc::props))
}

/// The number of the connection a request came by, among its extensions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Connection(pub(crate) u64);

/// All paths.
pub(crate) fn router(front: Arc<Front>) -> Router {
    guarded()
        .route_layer(middleware::from_fn_with_state(Arc::clone(&front), check_key))
        .merge(open())
        .fallback(async || ApiError::no_place())
        .method_not_allowed_fallback(async || ApiError::wrong_method())
        .layer(middleware::from_fn_with_state(Arc::clone(&front), log))
        .with_state(front)
}

/// Lets nobody in without a key, and says whose request it is; if there are no keys, nobody who takes
/// the server for another host.
async fn check_key(State(front): State<Arc<Front>>, mut request: Request, next: Next) -> Response {
    let keys = &front.config.api_keys;
    if keys.is_empty() {
        if let Some(host) = hosts::foreign(&request, &front.config.allowed_hosts) {
            return ApiError::foreign_host(&host).into_response();
        }
        let connection = request.extensions().get::<Connection>().map_or(0, |it| it.0);
        request.extensions_mut().insert(Client::Connection(connection));
        return next.run(request).await;
    }
    let said = request.headers().get(header::AUTHORIZATION);
    let said = said.and_then(|it| it.to_str().ok()?.split_once(' '));
    let said = said.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let said = said.map_or("", |(_, key)| key.trim());
    // All keys are compared, each in constant time, so that the time tells nothing.
    let none = (subtle::Choice::from(0), 0);
    let (known, key) = (0..).zip(keys).fold(none, |(known, found), (index, key)| {
        let same = key.as_bytes().ct_eq(said.as_bytes());
        (known | same, u64::conditional_select(&found, &index, same))
    });
    if !bool::from(known) {
        let empty = said.is_empty();
        let refusal = if empty { ApiError::no_key() } else { ApiError::wrong_key() };
        return refusal.into_response();
    }
    request.extensions_mut().insert(Client::Key(key));
    next.run(request).await
}

/// Writes a line for each request, without what it says.
async fn log(State(front): State<Arc<Front>>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let response = next.run(request).await;
    let status = response.status().as_u16();
    let asked = method == Method::POST;
    if let Some(state) = front.state.get().filter(|_| asked && status >= 400) {
        state.metrics.refused(status);
    }
    let ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    // Probes and gateways ask many times a second.
    if asked || status >= 400 {
        tracing::info!(%method, path, status, ms, "request");
    } else {
        tracing::debug!(%method, path, status, ms, "request");
    }
    response
}

/// Runs what may take a while away from the threads that serve connections.
pub(crate) async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(ApiError::internal("this request made the server stumble")))
}

/// The form of an answer.
///
/// # Errors
/// If there is no schema and one is needed, or the other way round.
fn form_of(format: Option<ResponseFormat>) -> Result<Option<Form>, ApiError> {
    let refuse = |message| Err(ApiError::field("response_format.json_schema", message));
    Ok(match format.map(|format| (format.kind, format.json_schema)) {
        None | Some((FormatKind::Text, None)) => None,
        Some((FormatKind::JsonObject, None)) => Some(Form::JsonObject),
        Some((FormatKind::JsonSchema, Some(named))) => Some(Form::JsonSchema(named.schema)),
        Some((FormatKind::JsonSchema, None)) => {
            return refuse(
                "`response_format.json_schema` is missing: add it, e.g. \"json_schema\": \
                 {\"name\": \"answer\", \"schema\": {\"type\": \"object\"}}",
            );
        }
        Some((_, Some(_))) => {
            return refuse(
                "`response_format.json_schema` needs \"type\": \"json_schema\": set it, or leave the \
                 schema out",
            );
        }
    })
}

/// Most tokens of an answer, by a field of this name; `None` for no limit.
///
/// # Errors
/// If it is neither -1 nor 1 or more.
fn token_limit(name: &str, tokens: i64) -> Result<Option<u32>, ApiError> {
    match tokens {
        -1 => Ok(None),
        1.. => Ok(Some(u32::try_from(tokens).unwrap_or(u32::MAX))),
        _ => {
            let message = format!("{name} is {tokens}; expected 1 or more, or -1 for no limit");
            Err(ApiError::field(name, message))
        }
    }
}
