//! What went wrong, as OpenAI's clients expect to read it.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use forerun_decode::{DecodeError, EngineError};
use serde::Serialize;
use utoipa::ToSchema;

use crate::job::Failure;

/// Most characters of a host name that are quoted: as many as one may have.
const HOST_QUOTED_MAX: usize = 253;

/// An error and its status.
#[derive(Debug, Clone)]
pub(crate) struct ApiError {
    status: StatusCode,
    body: ErrorObject,
    retry_after: Option<u32>,
}

/// What a client reads.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ErrorBody {
    /// The error.
    pub(crate) error: ErrorObject,
}

/// An error by OpenAI's fields.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ErrorObject {
    /// What is wrong, and what to do.
    pub(crate) message: String,
    /// Its kind.
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    /// The field it is about.
    pub(crate) param: Option<String>,
    /// A word programs can compare.
    pub(crate) code: Option<&'static str>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl ToString) -> Self {
        let body = ErrorObject { message: message.to_string(), kind, param: None, code: None };
        Self { status, body, retry_after: None }
    }

    /// The request cannot be honoured.
    pub(crate) fn invalid(message: impl ToString) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// A field of it cannot.
    pub(crate) fn field(param: impl ToString, message: impl ToString) -> Self {
        Self::invalid(message).about(param)
    }

    /// It is too long.
    pub(crate) fn too_long(len: usize, context_len: usize) -> Self {
        let message = format!(
            "the prompt has {len} tokens, and this server's context holds {context_len}: shorten \
             it, or start the server with a larger --ctx-size"
        );
        Self::invalid(message).coded("context_length_exceeded")
    }

    /// There is no such model.
    pub(crate) fn no_model(asked: &str, names: &[String]) -> Self {
        let message = format!("there is no model {asked:?} here: use {}", names.join(" or "));
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message)
            .about("model")
            .coded("model_not_found")
    }

    /// There is no such place.
    pub(crate) fn no_place() -> Self {
        let message = "there is nothing here: see /openapi.json for what there is";
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message)
    }

    /// It is asked for in another way.
    pub(crate) fn wrong_method() -> Self {
        let message = "this path takes another method: see /openapi.json";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message)
    }

    /// There is no key.
    pub(crate) fn no_key() -> Self {
        let message = "this server wants an API key: send it as `Authorization: Bearer KEY`";
        Self::new(StatusCode::UNAUTHORIZED, "authentication_error", message)
            .coded("invalid_api_key")
    }

    /// The key is none of the server's.
    pub(crate) fn wrong_key() -> Self {
        let message = "this API key is not valid here: send one of the server's (--api-key, \
                       --api-key-file)";
        Self::new(StatusCode::UNAUTHORIZED, "authentication_error", message)
            .coded("invalid_api_key")
    }

    /// The server was taken for another host.
    pub(crate) fn foreign_host(host: &str) -> Self {
        let host: String = host.chars().take(HOST_QUOTED_MAX).collect();
        let message = format!(
            "this server has no API key and does not answer to the host name {host:?}: start it \
             with --allowed-hosts {host} (or '*' for any) or with --api-key, or use its address"
        );
        Self::new(StatusCode::FORBIDDEN, "permission_error", message).coded("host_not_allowed")
    }

    /// The queue is full.
    pub(crate) fn busy() -> Self {
        let message = "the queue is full: try again later";
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        Self { retry_after: Some(1), ..error }.coded("queue_full")
    }

    /// Too many schemas and grammars are to be compiled.
    pub(crate) fn forms_busy() -> Self {
        let message = "too many schemas and grammars are being compiled: try again later";
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message);
        Self { retry_after: Some(1), ..error }.coded("busy")
    }

    /// There is no model yet; llama-server's words.
    pub(crate) fn loading() -> Self {
        let error =
            Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", "Loading model");
        Self { retry_after: Some(1), ..error }.coded("loading_model")
    }

    /// The server is stopping.
    pub(crate) fn stopping() -> Self {
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", Failure::Stopping);
        Self { retry_after: Some(5), ..error }.coded("shutting_down")
    }

    /// The body took too long to come.
    pub(crate) fn slow_body() -> Self {
        let message = "the request's body did not come in time";
        Self::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message)
    }

    /// The body cannot be read.
    pub(crate) fn body(status: StatusCode, message: impl ToString) -> Self {
        Self::new(status, "invalid_request_error", message)
    }

    /// Something is wrong here.
    pub(crate) fn internal(message: impl ToString) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    fn about(mut self, param: impl ToString) -> Self {
        self.body.param = Some(param.to_string());
        self
    }

    fn coded(mut self, code: &'static str) -> Self {
        self.body.code = Some(code);
        self
    }

    /// Whether the request is at fault, and would be again.
    pub(crate) fn is_of_request(&self) -> bool {
        self.status.is_client_error() && self.status != StatusCode::TOO_MANY_REQUESTS
    }

    /// What a client reads, for a stream that has begun.
    pub(crate) fn body_only(self) -> ErrorBody {
        ErrorBody { error: self.body }
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        match &failure {
            Failure::Late => {
                Self::new(StatusCode::GATEWAY_TIMEOUT, "server_error", failure).coded("timeout")
            }
            Failure::Stopping => Self::stopping(),
            // What the request asked for cannot be done: its form, its length.
            Failure::Decode(
                DecodeError::Constraint(_)
                | DecodeError::ContextFull { .. }
                | DecodeError::EmptyPrompt
                | DecodeError::Rule(_)
                | DecodeError::Row(_)
                | DecodeError::Engine(EngineError::Full { .. }),
            ) => Self::invalid(failure),
            Failure::Decode(_) => Self::internal(failure),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(ErrorBody { error: self.body })).into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        // These do not wait for the body, so the line cannot be used for another request.
        let early = [401, 403, 404, 405, 408, 413, 415];
        if early.contains(&self.status.as_u16()) {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
