//! `GET /slots`: what each slot does, by llama-server's names.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::{Extension, Json};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::App;
use super::error::{ApiError, ErrorBody};
use super::extract::Shared;
use super::settings::settings;
use crate::board::SlotTask;
use crate::request::Caller;

/// A slot. The fields after `is_processing` are there if it is busy with a sequence of who asks.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct SlotObject {
    /// Its number.
    id: usize,
    /// Tokens of context that it has.
    n_ctx: usize,
    /// Whether anything may be drafted in it.
    speculative: bool,
    /// Whether it is busy.
    is_processing: bool,
    /// The number of its sequence.
    #[serde(skip_serializing_if = "Option::is_none")]
    id_task: Option<u64>,
    /// Tokens of the sequence's prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    n_prompt_tokens: Option<usize>,
    /// Those that were prefilled.
    #[serde(skip_serializing_if = "Option::is_none")]
    n_prompt_tokens_processed: Option<u64>,
    /// Those that were cached.
    #[serde(skip_serializing_if = "Option::is_none")]
    n_prompt_tokens_cache: Option<usize>,
    /// How its tokens are drawn.
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<Value>,
    /// How far it is; one object.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_token: Option<[NextToken; 1]>,
}

/// How far a sequence is.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct NextToken {
    /// Always true: one that has ended has no slot.
    has_next_token: bool,
    /// Whether there is a line break in its output.
    has_new_line: bool,
    /// Tokens to come at most; -1 for no limit.
    n_remain: i64,
    /// Tokens decoded.
    n_decoded: u64,
}

impl SlotObject {
    /// The slot with what it is busy with.
    fn busy_with(self, task: &SlotTask) -> Self {
        let count = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let most = task.settings.max_tokens.map(i64::from);
        Self {
            speculative: task.speculative,
            id_task: Some(task.id),
            n_prompt_tokens: Some(task.prompt_len),
            n_prompt_tokens_processed: Some(task.prefilled),
            n_prompt_tokens_cache: Some(task.cached),
            params: Some(settings(&task.settings)),
            next_token: Some([NextToken {
                has_next_token: true,
                has_new_line: task.has_new_line,
                n_remain: most.map_or(-1, |most| most.saturating_sub(count(task.decoded))),
                n_decoded: task.decoded,
            }]),
            ..self
        }
    }
}

/// Says what each slot does, without prompts and outputs. With API keys, a tenant sees its own
/// sequences, and of the others' only that a slot is busy.
#[utoipa::path(
    get,
    path = "/slots",
    params(("fail_on_no_slot" = Option<String>, Query, description = "503 if no slot is idle")),
    responses(
        (status = 200, body = Vec<SlotObject>),
        (status = "4XX", body = ErrorBody),
        (status = "5XX", description = "Not offered, or no slot is idle", body = ErrorBody),
    )
)]
pub(crate) async fn slots(
    State(app): State<Arc<App>>,
    Shared(service): Shared,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Result<Json<Vec<SlotObject>>, ApiError> {
    if !app.config.slots {
        let message = "this server does not show its slots: start it with --slots";
        return Err(ApiError::not_supported(message));
    }
    let tasks = service.board.tasks();
    if fails_if_busy(&uri) && tasks.iter().all(Option::is_some) {
        return Err(ApiError::no_slot());
    }
    let speculative = !service.drafts.drafters.is_empty();
    let may_see = |task: &SlotTask| app.tenants.is_empty() || task.client == caller.client;
    let object = |(id, task): (usize, Option<SlotTask>)| {
        let is_processing = task.is_some();
        let n_ctx = service.context_len;
        let slot = SlotObject { id, n_ctx, speculative, is_processing, ..SlotObject::default() };
        match task.filter(may_see) {
            Some(task) => slot.busy_with(&task),
            None => slot,
        }
    };
    Ok(Json(tasks.into_iter().enumerate().map(object).collect()))
}

/// Whether the query has `fail_on_no_slot` with any value.
fn fails_if_busy(uri: &Uri) -> bool {
    let mut pairs = uri.query().unwrap_or_default().split('&').filter_map(|it| it.split_once('='));
    pairs.any(|(name, value)| name == "fail_on_no_slot" && !value.is_empty())
}
