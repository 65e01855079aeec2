//! `GET /health`, `/livez`, `/v1/loads`, `/metrics` and `/version`, for probes and gateways.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::UNIX_EPOCH;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::IntoResponse;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::App;
use super::caller::may_see_tenants;
use super::error::{ApiError, ErrorBody};
use super::extract::Shared;
use crate::error::Failure;

/// Whether requests are accepted: not while the model is loaded, nor once the server is told to stop.
#[utoipa::path(
    get,
    path = "/health",
    responses((status = 200, body = Value), (status = 503, body = ErrorBody))
)]
pub(crate) async fn health(Shared(service): Shared) -> Result<Json<Value>, ApiError> {
    match service.stopping.load(Ordering::Relaxed) || service.worker.is_closed() {
        true => Err(Failure::Stopping.into()),
        false => Ok(Json(json!({ "status": "ok" }))),
    }
}

/// Whether the process is alive: also while it loads or drains, but not once its engine has failed.
#[utoipa::path(
    get,
    path = "/livez",
    responses((status = 200, body = Value), (status = 503, body = ErrorBody))
)]
pub(crate) async fn alive(shared: Result<Shared, ApiError>) -> Result<Json<Value>, ApiError> {
    let status = match shared {
        Err(_) => "loading",
        Ok(Shared(service)) if service.worker.is_closed() => {
            return Err(ApiError::internal("the engine's thread has ended: restart the server"));
        }
        Ok(Shared(service)) if service.stopping.load(Ordering::Relaxed) => "draining",
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
    /// Sequences being decoded.
    num_running_reqs: i64,
    /// Sequences that wait.
    num_waiting_reqs: i64,
    /// Both.
    num_total_reqs: i64,
    /// Tokens of the KV cache that they use.
    num_used_tokens: i64,
    /// Tokens that the KV cache holds.
    max_total_num_tokens: usize,
    /// The share of the KV cache that is used.
    token_usage: f64,
    /// Tokens a second, of late.
    gen_throughput: f64,
    /// Share of prompt tokens that were cached.
    cache_hit_rate: f64,
    /// The share of slots that are in use.
    utilization: f64,
    /// Sequences that are decoded in one batch, at most.
    max_running_requests: usize,
}

/// How busy the server is, for gateways.
#[utoipa::path(
    get,
    path = "/v1/loads",
    responses((status = 200, body = Loads), (status = 503, body = ErrorBody))
)]
pub(crate) async fn loads(Shared(service): Shared) -> Json<Loads> {
    let levels = service.metrics.levels();
    let now = crate::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let snapshot = LoadSnapshot {
        dp_rank: 0,
        num_running_reqs: levels.running,
        num_waiting_reqs: levels.waiting,
        num_total_reqs: levels.running + levels.waiting,
        num_used_tokens: levels.held,
        max_total_num_tokens: service.slot_count * service.context_len,
        token_usage: levels.cache,
        gen_throughput: levels.tokens_per_second,
        cache_hit_rate: levels.hit_rate,
        utilization: levels.running as f64 / service.slot_count as f64,
        max_running_requests: service.slot_count,
    };
    let timestamp = format!("{:.3}", now.as_secs_f64());
    Json(Loads { timestamp, dp_rank_count: 1, loads: vec![snapshot] })
}

/// What a text of metrics ends with.
const END: &str = "# EOF\n";

/// The metrics, for Prometheus. Those of tenants are shown to who has the key for them.
#[utoipa::path(
    get,
    path = "/metrics",
    responses(
        (status = 200, body = String, content_type = "application/openmetrics-text"),
        (status = 503, body = ErrorBody)
    )
)]
pub(crate) async fn metrics(
    State(app): State<Arc<App>>,
    Shared(service): Shared,
    headers: HeaderMap,
) -> impl IntoResponse {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let mut text = service.metrics.text();
    if may_see_tenants(&app, &headers) {
        // Each ends with a mark, which ends the whole.
        text.truncate(text.trim_end_matches(END).len());
        text += &app.tenants.metrics().text();
    }
    ([(header::CONTENT_TYPE, kind)], text)
}

/// Which build this is.
#[utoipa::path(get, path = "/version", responses((status = 200, body = Value)))]
pub(crate) async fn version() -> Json<Value> {
    Json(json!({ "version": env!("CARGO_PKG_VERSION") }))
}
