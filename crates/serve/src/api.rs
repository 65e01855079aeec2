//! The HTTP interface: paths, keys, and the document that describes them.

mod adapt;
mod blocks;
mod caller;
mod chat;
mod completions;
mod cors;
mod embeddings;
mod error;
mod extract;
mod hosts;
mod logprobs;
mod messages;
mod models;
mod native;
mod notes;
mod objects;
mod page;
mod parameters;
mod read;
mod request_id;
mod response;
mod responses;
mod settings;
mod slots;
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
use axum::http::Method;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Json, Router};
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityRequirement, SecurityScheme,
};
use utoipa::{Modify, OpenApi};

use self::caller::API_KEY;
use self::error::ApiError;
use self::notes::Notes;
use self::request_id::RequestId;
use crate::config::ServeConfig;
use crate::service::Service;
use crate::tenants::{TenantConfig, Tenants};
use crate::trace::{Tracer, trace_of};

/// What connections share: the configuration, and the rest once the model is loaded.
pub(crate) struct App {
    pub(crate) config: ServeConfig,
    pub(crate) tenants: Arc<Tenants>,
    /// Takes the spans of requests, if they are traced.
    pub(crate) tracer: Option<Arc<Tracer>>,
    pub(crate) service: OnceLock<Arc<Service>>,
}

impl App {
    /// For a server whose model is yet to be loaded.
    pub(crate) fn new(config: ServeConfig, tracer: Option<Tracer>) -> Self {
        let keys = config.api_keys.iter().cloned().map(TenantConfig::of_key);
        let tenants: Vec<TenantConfig> = keys.chain(config.tenants.iter().cloned()).collect();
        let tenants = Arc::new(Tenants::new(&tenants));
        Self { config, tenants, tracer: tracer.map(Arc::new), service: OnceLock::new() }
    }
}

/// The document at `/openapi.json`.
#[derive(OpenApi)]
#[openapi(
    info(title = "Forerun", description = "Speculative decoding behind OpenAI's API."),
    paths(
        chat::chat_completions,
        completions::completions,
        native::completion,
        native::infill::infill,
        messages::messages,
        messages::count_tokens,
        responses::responses,
        embeddings::embeddings,
        embeddings::rerank,
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
        slots::slots,
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
        let header = ApiKey::Header(ApiKeyValue::new(API_KEY.as_str()));
        components.add_security_scheme("header", SecurityScheme::ApiKey(header));
        let by = |scheme: &str| SecurityRequirement::new(scheme, Vec::<String>::new());
        // A server without keys needs none.
        document.security = Some(vec![by("key"), by("header"), SecurityRequirement::default()]);
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

/// The paths of OpenAI's API and of Anthropic's, which clients are told with or without `/v1`. Text
/// completions are not among them: without the prefix they are llama-server's.
fn openai() -> Router<Arc<App>> {
    Router::new()
        .route("/chat/completions", post(chat::chat_completions))
        .route("/messages", post(messages::messages))
        .route("/messages/count_tokens", post(messages::count_tokens))
        .route("/responses", post(responses::responses))
        .route("/models", get(models::models))
        .route("/models/{model}", get(models::model))
}

/// The paths that need a key if the server has any.
fn guarded() -> Router<Arc<App>> {
    Router::new()
        .merge(openai())
        .nest("/v1", openai())
        .route("/v1/completions", post(completions::completions))
        .route("/completion", post(native::completion))
        .route("/completions", post(native::completion))
        // llama-server has another form at `/embeddings`.
        .route("/v1/embeddings", post(embeddings::embeddings))
        .route("/v1/rerank", post(embeddings::rerank))
        .route("/v1/reranking", post(embeddings::rerank))
        .route("/rerank", post(embeddings::rerank))
        .route("/reranking", post(embeddings::rerank))
        .route("/infill", post(native::infill::infill))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/apply-template", post(tokens::apply_template))
        .route("/props", get(models::props))
        .route("/slots", get(slots::slots))
}

/// The number of the connection that a request came by, among its extensions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Connection(pub(crate) u64);

/// All paths.
pub(crate) fn router(app: Arc<App>) -> Router {
    let cors = cors::layer(&app.config.origins);
    guarded()
        .route_layer(middleware::from_fn_with_state(Arc::clone(&app), caller::check))
        .merge(open())
        .fallback(async || ApiError::no_path())
        .method_not_allowed_fallback(async || ApiError::wrong_method())
        .layer(middleware::from_fn_with_state(Arc::clone(&app), log))
        .layer(cors)
        .with_state(app)
}

/// Logs each request, without its content. Gives it an id, and its response the id and the names of
/// what was ignored.
async fn log(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let id = request_id::of(request.headers());
    let trace = trace_of(request.headers()).map(str::to_owned);
    let notes = Notes::new(app.config.strict);
    request.extensions_mut().insert(notes.clone());
    request.extensions_mut().insert(RequestId(id.clone()));
    let mut response = next.run(request).await;
    let ignored = notes.header();
    let named = ignored.as_ref().map(|it| it.to_str().unwrap_or_default().to_owned());
    response.headers_mut().extend(ignored.map(|it| (notes::IGNORED, it)));
    response.headers_mut().insert(request_id::HEADER, id.clone());
    let id = id.to_str().unwrap_or_default();
    let status = response.status().as_u16();
    let posted = method == Method::POST;
    if let Some(service) = app.service.get().filter(|_| posted && status >= 400) {
        service.metrics.refused(status);
    }
    let ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    // Probes and gateways send many requests a second.
    if posted || status >= 400 {
        tracing::info!(%method, path, status, ms, id, trace, ignored = named, "request");
    } else {
        tracing::debug!(%method, path, status, ms, id, trace, "request");
    }
    response
}
