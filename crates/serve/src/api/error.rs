//! Errors of the API, as OpenAI's clients expect them. The one place that knows the status of an
//! error.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::error::{Failure, RequestError};
use crate::limits::{LimitReached, Limited};

/// Most characters of a host name that are quoted: as many as one may have.
const HOST_QUOTED_MAX: usize = 253;

/// An error and its status.
#[derive(Debug, Clone)]
pub(crate) struct ApiError {
    status: StatusCode,
    body: ErrorObject,
    retry_after: Option<u64>,
    /// Whether the body was not waited for, so that the connection cannot be used again.
    early: bool,
}

/// The body of an error.
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
        // These do not wait for the body.
        let early = [401, 403, 404, 405, 408, 413, 415].contains(&status.as_u16());
        Self { status, body, retry_after: None, early }
    }

    /// The request is wrong.
    pub(crate) fn invalid(message: impl ToString) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// A field of the request is wrong.
    pub(crate) fn field(param: impl ToString, message: impl ToString) -> Self {
        Self::invalid(message).about(param)
    }

    /// There is no such model.
    pub(crate) fn no_model(name: &str, names: &[String]) -> Self {
        let message = format!("there is no model {name:?} here: use {}", names.join(" or "));
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message)
            .about("model")
            .coded("model_not_found")
    }

    /// There is no such path.
    pub(crate) fn no_path() -> Self {
        let message = "there is nothing here: see /openapi.json for what there is";
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message)
    }

    /// The path has no such method.
    pub(crate) fn wrong_method() -> Self {
        let message = "this path takes another method: see /openapi.json";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message)
    }

    /// The request has no API key.
    pub(crate) fn no_key() -> Self {
        let message = "this server wants an API key: send it as `Authorization: Bearer KEY` or as \
                       `x-api-key: KEY`";
        Self::new(StatusCode::UNAUTHORIZED, "authentication_error", message)
            .coded("invalid_api_key")
    }

    /// The API key is not one of the server's.
    pub(crate) fn wrong_key() -> Self {
        let message = "this API key is not valid here: send one of the server's (--api-key, \
                       --api-key-file, --tenants)";
        Self::new(StatusCode::UNAUTHORIZED, "authentication_error", message)
            .coded("invalid_api_key")
    }

    /// The request names another host.
    pub(crate) fn foreign_host(host: &str) -> Self {
        let host: String = host.chars().take(HOST_QUOTED_MAX).collect();
        let message = format!(
            "this server has no API key and does not answer to the host name {host:?}: start it \
             with --allowed-hosts {host} (or '*' for any) or with --api-key, or use its address"
        );
        Self::new(StatusCode::FORBIDDEN, "permission_error", message).coded("host_not_allowed")
    }

    /// The model is being loaded; llama-server's words.
    pub(crate) fn loading() -> Self {
        let error =
            Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", "Loading model");
        Self { retry_after: Some(1), ..error }.coded("loading_model")
    }

    /// The body did not arrive in time.
    pub(crate) fn slow_body() -> Self {
        let message = "the request's body did not come in time";
        Self::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message)
    }

    /// The body cannot be read.
    pub(crate) fn body(status: StatusCode, message: impl ToString) -> Self {
        Self::new(status, "invalid_request_error", message)
    }

    /// The server failed.
    pub(crate) fn internal(message: impl ToString) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// The server was not started for this, or its model cannot do it; llama-server's kind.
    pub(crate) fn not_supported(message: impl ToString) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, "not_supported_error", message)
            .coded("not_supported")
    }

    /// No slot is idle, and the client wants to know.
    pub(crate) fn no_slot() -> Self {
        let message = "no slot is idle: try again later";
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", message);
        Self { retry_after: Some(1), ..error }.coded("no_slot")
    }

    /// A tenant has used what it may, which was found before the body was read.
    pub(crate) fn early(reached: LimitReached) -> Self {
        Self { early: true, ..RequestError::from(reached).into() }
    }

    fn about(mut self, param: impl ToString) -> Self {
        self.body.param = Some(param.to_string());
        self
    }

    fn coded(mut self, code: &'static str) -> Self {
        self.body.code = Some(code);
        self
    }

    /// The error without its status, for a stream that has begun.
    pub(crate) fn body_only(self) -> ErrorBody {
        ErrorBody { error: self.body }
    }
}

/// An error of the Messages API, as Anthropic's clients expect it.
#[derive(Debug, Clone)]
pub(crate) struct MessagesError(ApiError);

impl From<ApiError> for MessagesError {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl MessagesError {
    /// Its body.
    pub(crate) fn body(&self) -> Value {
        let kind = match self.0.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            400..=499 => "invalid_request_error",
            _ => "api_error",
        };
        json!({ "type": "error", "error": { "type": kind, "message": self.0.body.message } })
    }
}

impl IntoResponse for MessagesError {
    fn into_response(self) -> Response {
        let body = self.body();
        let (parts, _) = self.0.into_response().into_parts();
        let mut headers = parts.headers;
        headers.remove(header::CONTENT_LENGTH);
        (parts.status, headers, Json(body)).into_response()
    }
}

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> Self {
        let unavailable = |seconds, code| {
            let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", &error);
            Self { retry_after: Some(seconds), ..error }.coded(code)
        };
        match &error {
            RequestError::Parameter { name, message } => Self::field(name, message),
            RequestError::ContextExceeded { .. } => {
                Self::invalid(&error).coded("context_length_exceeded")
            }
            RequestError::QueueFull => {
                let full = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", &error);
                Self { retry_after: Some(1), ..full }.coded("queue_full")
            }
            RequestError::LimitReached(reached) => {
                // OpenAI's kinds are what is limited.
                let kind = match reached.limited {
                    Limited::Requests => "requests",
                    Limited::Tokens => "tokens",
                    Limited::Sequences => "sequences",
                };
                let refused = Self::new(StatusCode::TOO_MANY_REQUESTS, kind, &error);
                let seconds = reached.wait.as_millis().div_ceil(1000).max(1);
                let retry_after = u64::try_from(seconds).ok();
                Self { retry_after, ..refused }.coded("rate_limit_exceeded")
            }
            RequestError::CompilersBusy => unavailable(1, "busy"),
            RequestError::Failed(Failure::Stopping) => unavailable(5, "shutting_down"),
            RequestError::Failed(Failure::Expired) => {
                Self::new(StatusCode::GATEWAY_TIMEOUT, "server_error", &error).coded("timeout")
            }
            _ if error.is_of_request() => Self::invalid(&error),
            _ => Self::internal(&error),
        }
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        RequestError::from(failure).into()
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(ErrorBody { error: self.body })).into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.early {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
