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

/// A slot.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SlotObject {
    /// Its number.
    id: usize,
    /// Tokens of context that it has.
    n_ctx: usize,
    /// Whether anything may be drafted in it.
    speculative: bool,
    /// Whether it is busy.
    is_processing: bool,
    /// What it is busy with, if that is the business of who asks.
    #[serde(flatten)]
    task: Option<TaskObject>,
}

/// A sequence that a slot is busy with.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TaskObject {
    /// Its number.
    id_task: u64,
    /// Tokens of its prompt.
    n_prompt_tokens: usize,
    /// Those that were prefilled.
    n_prompt_tokens_processed: u64,
    /// Those that were cached.
    n_prompt_tokens_cache: usize,
    /// How its tokens are drawn.
    params: Value,
    /// How far it is; one object.
    next_token: [NextToken; 1],
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

impl From<SlotTask> for TaskObject {
    fn from(task: SlotTask) -> Self {
        let count = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let most = task.settings.max_tokens.map(i64::from);
        Self {
            id_task: task.id,
            n_prompt_tokens: task.prompt_len,
            n_prompt_tokens_processed: task.prefilled,
            n_prompt_tokens_cache: task.cached,
            params: settings(&task.settings),
            next_token: [NextToken {
                has_next_token: true,
                has_new_line: task.has_new_line,
                n_remain: most.map_or(-1, |most| most.saturating_sub(count(task.decoded))),
                n_decoded: task.decoded,
            }],
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
    let drafts = !service.drafts.drafters.is_empty();
    let may_see = |task: &SlotTask| app.tenants.is_empty() || task.client == caller.client;
    let object = |(id, task): (usize, Option<SlotTask>)| SlotObject {
        id,
        n_ctx: service.context_len,
        speculative: task.as_ref().filter(|it| may_see(it)).map_or(drafts, |it| it.speculative),
        is_processing: task.is_some(),
        task: task.filter(may_see).map(TaskObject::from),
    };
    Ok(Json(tasks.into_iter().enumerate().map(object).collect()))
}

/// Whether the query has `fail_on_no_slot` with any value.
fn fails_if_busy(uri: &Uri) -> bool {
    let mut pairs = uri.query().unwrap_or_default().split('&').filter_map(|it| it.split_once('='));
    pairs.any(|(name, value)| name == "fail_on_no_slot" && !value.is_empty())
}
