//! The HTTP interface: paths, keys, and the document that describes them.

mod chat;
mod completions;
mod error;
mod extract;
mod hosts;
mod logprobs;
mod models;
mod objects;
mod page;
mod parameters;
mod read;
mod refs;
mod response;
mod status;
mod stream;
mod template;
#[cfg(test)]
mod tests;
mod tokens;
mod tools;
mod types;
mod usage;

pub use usage::LossySummary;

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::{Method, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use subtle::{ConditionallySelectable, ConstantTimeEq};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::{Modify, OpenApi};

use self::error::ApiError;
use crate::config::ServeConfig;
use crate::request::Client;
use crate::service::Service;

/// What connections share: the configuration, and the rest once the model is loaded.
pub(crate) struct App {
    pub(crate) config: ServeConfig,
    pub(crate) service: OnceLock<Arc<Service>>,
}

/// The document at `/openapi.json`.
#[derive(OpenApi)]
#[openapi(
    info(title = "Forerun", description = "Speculative decoding behind OpenAI's API."),
    paths(
        chat::chat_completions,
        completions::completions,
        models::models,
        models::model,
        status::health,
        status::alive,
        status::loads,
        status::metrics,
        status::version,
        tokens::tokenize,
        tokens::detokenize,
        tokens::apply_template,
        models::props,
    ),
    modifiers(&Keys)
)]
struct Document;

/// Describes the keys, which all paths but those of `open` may need.
struct Keys;

impl Modify for Keys {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("key", scheme);
        let key = SecurityRequirement::new("key", Vec::<String>::new());
        // A server without keys needs none.
        document.security = Some(vec![key, SecurityRequirement::default()]);
    }
}

/// The paths that need no key: the page, and what probes and gateways read, which have none. They
/// reveal nothing of requests.
fn open() -> Router<Arc<App>> {
    Router::new()
        .route("/", get(page::page))
        .route("/favicon.ico", get(page::no_icon))
        .route("/health", get(status::health))
        .route("/v1/health", get(status::health))
        .route("/readyz", get(status::health))
        .route("/livez", get(status::alive))
        .route("/metrics", get(status::metrics))
        .route("/v1/loads", get(status::loads))
        .route("/loads", get(status::loads))
        .route("/version", get(status::version))
        .route("/openapi.json", get(async || Json(Document::openapi())))
}

/// The paths that need a key if the server has any.
fn guarded() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/chat/completions", post(chat::chat_completions))
        .route("/v1/completions", post(completions::completions))
        .route("/v1/models", get(models::models))
        .route("/v1/models/{model}", get(models::model))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/apply-template", post(tokens::apply_template))
        .route("/props", get(models::props))
}

/// The number of the connection that a request came by, among its extensions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Connection(pub(crate) u64);

/// All paths.
pub(crate) fn router(app: Arc<App>) -> Router {
    guarded()
        .route_layer(middleware::from_fn_with_state(Arc::clone(&app), check_key))
        .merge(open())
        .fallback(async || ApiError::no_path())
        .method_not_allowed_fallback(async || ApiError::wrong_method())
        .layer(middleware::from_fn_with_state(Arc::clone(&app), log))
        .with_state(app)
}

/// Rejects requests without a key of the server, or, if it has no keys, requests for another host.
/// Notes which client a request is of.
async fn check_key(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let keys = &app.config.api_keys;
    if keys.is_empty() {
        if let Some(host) = hosts::foreign(&request, &app.config.allowed_hosts) {
            return ApiError::foreign_host(&host).into_response();
        }
        let connection = request.extensions().get::<Connection>().map_or(0, |it| it.0);
        request.extensions_mut().insert(Client::Connection(connection));
        return next.run(request).await;
    }
    let sent = request.headers().get(header::AUTHORIZATION);
    let sent = sent.and_then(|it| it.to_str().ok()?.split_once(' '));
    let sent = sent.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let sent = sent.map_or("", |(_, key)| key.trim());
    // All keys are compared, each in constant time, so that the time tells nothing.
    let none = (subtle::Choice::from(0), 0);
    let (known, key) = (0..).zip(keys).fold(none, |(known, found), (index, key)| {
        let same = key.as_bytes().ct_eq(sent.as_bytes());
        (known | same, u64::conditional_select(&found, &index, same))
    });
    if !bool::from(known) {
        let empty = sent.is_empty();
        let refusal = if empty { ApiError::no_key() } else { ApiError::wrong_key() };
        return refusal.into_response();
    }
    request.extensions_mut().insert(Client::Key(key));
    next.run(request).await
}

/// Logs each request, without its content.
async fn log(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let response = next.run(request).await;
    let status = response.status().as_u16();
    let posted = method == Method::POST;
    if let Some(service) = app.service.get().filter(|_| posted && status >= 400) {
        service.metrics.refused(status);
    }
    let ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    // Probes and gateways send many requests a second.
    if posted || status >= 400 {
        tracing::info!(%method, path, status, ms, "request");
    } else {
        tracing::debug!(%method, path, status, ms, "request");
    }
    response
}
