//! `POST /infill`: fills a gap in a text, with llama-server's fields. The response is that of
//! `/completion`.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use forerun_decode::Special;

use super::{NativeCall, Prompted, mixed_tokens, native_call, respond};
use crate::api::App;
use crate::api::error::{ApiError, ErrorBody};
use crate::api::extract::{Body, Shared};
use crate::api::notes::Notes;
use crate::api::types::{ExtraFile, InfillRequest};
use crate::blocking::off_thread;
use crate::prepare::{InfillFile, InfillLayout, InfillParts};
use crate::request::Caller;
use crate::service::{Admitted, Service};

/// Fills a gap in a text, for editors: with the text before it, the text after it, and texts of other
/// files. Needs a model with tokens for this.
#[utoipa::path(
    post,
    path = "/infill",
    request_body(
        content = InfillRequest,
        example = json!({ "input_prefix": "fn main() {\n", "input_suffix": "}\n", "n_predict": 8 })
    ),
    responses(
        (
            status = 200,
            description = "The text of the gap with llama-server's fields, or a stream of it",
            content((Value = "application/json"), (Value = "text/event-stream"))
        ),
        (status = "4XX", description = "What is wrong with the request", body = ErrorBody),
        (status = "5XX", description = "What went wrong here, or what the model lacks", body = ErrorBody),
    )
)]
pub(crate) async fn infill(
    State(app): State<Arc<App>>,
    Shared(service): Shared,
    Extension(caller): Extension<Caller>,
    Extension(notes): Extension<Notes>,
    Body(request): Body<InfillRequest>,
) -> Result<Response, ApiError> {
    let missing = service.tokenizer.infill_tokens().missing();
    if !missing.is_empty() {
        let missing: String = missing.iter().map(|it| format!("{it} token is missing. ")).collect();
        let message = format!("Infill is not supported by this model: {}", missing.trim_end());
        return Err(ApiError::not_supported(message));
    }
    let admitted = service.admit(caller, request.choices(), 1)?;
    let preparing = Arc::clone(&service);
    let suffix_first = app.config.infill_suffix_first;
    let request =
        off_thread(move || prepare(&preparing, admitted, request, suffix_first, &notes)).await?;
    respond(service, request).await
}

fn prepare(
    service: &Service,
    admitted: Admitted,
    mut request: InfillRequest,
    suffix_first: bool,
    notes: &Notes,
) -> Result<NativeCall, ApiError> {
    let fields = request.native();
    // Files may contain the text of a control token; what was begun is the model's own, as in
    // llama-server.
    let prefix = mixed_tokens(service, "input_prefix", &request.input_prefix.0, Special::AsText)?;
    let suffix = mixed_tokens(service, "input_suffix", &request.input_suffix.0, Special::AsText)?;
    let begun = request.prompt.take().unwrap_or_default();
    let begun = service.tokenizer.tokenize(&begun, Special::Parse);
    let file = |ExtraFile { filename, text }| InfillFile {
        name: filename.unwrap_or_else(|| "tmp".to_owned()),
        text,
    };
    let parts = InfillParts {
        prefix,
        suffix,
        begun: begun.map_err(|error| ApiError::field("prompt", error))?,
        extra: request.input_extra.take().unwrap_or_default().into_iter().map(file).collect(),
    };
    let layout = InfillLayout { context_len: service.context_len, suffix_first };
    let prompt = layout.prompt(&*service.tokenizer, parts);
    let prompts = vec![prompt.map_err(|error| ApiError::field("input_extra", error))?];
    native_call(service, Prompted { admitted, prompts }, request.common(), fields, notes)
}
