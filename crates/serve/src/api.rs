//! The HTTP interface: paths, keys, and the document that describes them.

pub(crate) mod answer;
mod chat;
mod completions;
pub(crate) mod error;
mod extract;
mod misc;
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
use self::types::ResponseFormat;
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

/// Lets nobody in without a key, and says whose request it is.
async fn check_key(State(front): State<Arc<Front>>, mut request: Request, next: Next) -> Response {
    let keys = &front.config.api_keys;
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
    let client = match (keys.is_empty(), bool::from(known)) {
        (true, _) => {
            let connection = request.extensions().get::<Connection>();
            Client::Connection(connection.map_or(0, |connection| connection.0))
        }
        (_, true) => Client::Key(key),
        _ => return ApiError::no_key().into_response(),
    };
    request.extensions_mut().insert(client);
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
fn form_of(format: Option<ResponseFormat>) -> Option<Form> {
    match format? {
        ResponseFormat::Text {} => None,
        ResponseFormat::JsonObject {} => Some(Form::JsonObject),
        ResponseFormat::JsonSchema { json_schema } => Some(Form::JsonSchema(json_schema.schema)),
    }
}
