//! `GET /v1/models`, `/v1/models/{model}` and `/props`: what is served, and with which defaults.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use forerun_decode::RuleChoice;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::App;
use super::error::{ApiError, ErrorBody};
use super::extract::Shared;
use super::settings::settings;
use crate::request::Settings;
use crate::service::Service;

/// The models.
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
    /// What the file says of the model.
    meta: Value,
}

fn card(service: &Service, name: &str) -> ModelCard {
    let model = &service.model;
    ModelCard {
        id: name.to_owned(),
        object: "model",
        created: 0,
        owned_by: "forerun",
        max_model_len: service.context_len,
        meta: json!({
            "description": model.description,
            "n_params": model.parameters,
            "size": model.size,
            "n_vocab": service.tokenizer.vocab_len(),
            "n_ctx_train": model.trained_len,
        }),
    }
}

/// Lists the models.
#[utoipa::path(
    get,
    path = "/v1/models",
    responses((status = 200, body = Models), (status = "4XX", body = ErrorBody))
)]
pub(crate) async fn models(Shared(service): Shared) -> Json<Models> {
    let data = service.model.names.iter().map(|name| card(&service, name)).collect();
    Json(Models { object: "list", data })
}

/// Describes a model.
#[utoipa::path(
    get,
    path = "/v1/models/{model}",
    params(("model" = String, Path, description = "Its name")),
    responses((status = 200, body = ModelCard), (status = "4XX", body = ErrorBody))
)]
pub(crate) async fn model(
    Shared(service): Shared,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<ModelCard>, ApiError> {
    let Path(name) =
        name.map_err(|_| ApiError::field("model", "the model's name in the path is not UTF-8"))?;
    let names = &service.model.names;
    let known = names.contains(&name);
    known.then(|| Json(card(&service, &name))).ok_or_else(|| ApiError::no_model(&name, names))
}

/// The defaults of requests.
#[utoipa::path(
    get,
    path = "/props",
    responses((status = 200, body = Value), (status = "4XX", body = ErrorBody))
)]
pub(crate) async fn props(State(app): State<Arc<App>>, Shared(service): Shared) -> Json<Value> {
    let drafts = &service.drafts;
    let drafters: Vec<&str> = drafts.drafters.iter().map(|drafter| drafter.kind.name()).collect();
    Json(json!({
        "model_alias": service.model.names[0],
        "model_path": service.model.file,
        "chat_template": service.template_source,
        "total_slots": service.slot_count,
        "endpoint_slots": app.config.slots,
        "endpoint_metrics": true,
        "endpoint_props": false,
        "modalities": { "vision": false, "audio": false },
        "bos_token": service.tokenizer.start().map(|start| service.written(&[start])),
        "build_info": concat!("forerun-", env!("CARGO_PKG_VERSION")),
        "default_generation_settings": {
            "n_ctx": service.context_len,
            "params": settings(&Settings::of(service.sampling.clone())),
        },
        "speculative": {
            "drafters": drafters,
            "rules": RuleChoice::ALL.map(RuleChoice::name),
            "rule": drafts.rule.map(RuleChoice::name),
            "length_max": drafts.length,
            "paths_max": drafts.width,
            "adaptive": drafts.adaptive,
            "lossy_max": drafts.lossy_max,
        },
    }))
}
