//! What handlers extract from a request: the shared service, and a body within its limits.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{FromRef, FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use forerun_grammar::give_way;
use serde::de::DeserializeOwned;
use tokio::sync::{Semaphore, oneshot};

use super::App;
use super::error::ApiError;
use super::notes::Notes;
use super::read::read;
use crate::service::Service;

/// What all requests share, once the model is loaded.
pub(crate) struct Shared(pub(crate) Arc<Service>);

impl<S> FromRequestParts<S> for Shared
where
    Arc<App>: FromRef<S>,
    S: Send + Sync,
{
    type Rejection = ApiError;

    async fn from_request_parts(_: &mut Parts, app: &S) -> Result<Self, Self::Rejection> {
        let app = Arc::<App>::from_ref(app);
        app.service.get().cloned().map(Self).ok_or_else(ApiError::loading)
    }
}

/// Whether the headers say JSON, or nothing. A browser must say so: other content types it sends to
/// any site that a page names, without a preflight request.
fn is_json(headers: &HeaderMap) -> bool {
    match headers.get(header::CONTENT_TYPE) {
        None => !headers.contains_key(header::ORIGIN),
        Some(kind) => {
            let kind = kind.to_str().unwrap_or_default();
            let kind = kind.split(';').next().unwrap_or_default().trim();
            kind.eq_ignore_ascii_case("application/json")
        }
    }
}

/// A body of more bytes than this is parsed on a thread of its own, at a lower priority than
/// decoding.
const LARGE_BYTES: usize = 64 << 10;

/// How many of those are parsed at once.
static LARGE_AT_ONCE: Semaphore = Semaphore::const_new(2);

/// Parses a large body.
async fn parse_aside<T>(bytes: Bytes, notes: Notes) -> Result<T, ApiError>
where
    T: DeserializeOwned + Send + 'static,
{
    let failed = |_| ApiError::internal("no thread could parse the body");
    let permit = LARGE_AT_ONCE.acquire().await.map_err(|_| failed(()))?;
    let (reply, parsed) = oneshot::channel();
    let thread = std::thread::Builder::new().name("parse".to_owned());
    let spawned = thread.spawn(move || {
        give_way();
        // The client may have left.
        let _ = reply.send(read(&bytes, &notes));
        drop(permit);
    });
    spawned.map_err(|_| failed(()))?;
    parsed.await.map_err(|_| failed(()))?
}

/// A body of JSON. Its type, its length and the time it takes to arrive are checked.
pub(crate) struct Body<T>(pub(crate) T);

impl<S, T> FromRequest<S> for Body<T>
where
    Arc<App>: FromRef<S>,
    S: Send + Sync,
    T: DeserializeOwned + Send + 'static,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &S) -> Result<Self, Self::Rejection> {
        let config = &Arc::<App>::from_ref(app).config;
        let notes = request.extensions().get::<Notes>().cloned().unwrap_or_default();
        if !is_json(request.headers()) {
            let message = "the body must be JSON: send `Content-Type: application/json`";
            return Err(ApiError::body(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
        let most = config.body_max;
        let too_large = || {
            let message = format!("the body is larger than {most} bytes (--max-body-size)");
            ApiError::body(StatusCode::PAYLOAD_TOO_LARGE, message)
        };
        let announced = request.headers().get(header::CONTENT_LENGTH);
        let announced = announced.and_then(|it| it.to_str().ok()?.parse::<usize>().ok());
        if announced.is_some_and(|len| len > most) {
            return Err(too_large());
        }
        let reading = axum::body::to_bytes(request.into_body(), most);
        let bytes = match tokio::time::timeout(config.read_timeout, reading).await {
            Err(_) => return Err(ApiError::slow_body()),
            Ok(Err(error)) => {
                let limit = std::error::Error::source(&error)
                    .is_some_and(|it| it.to_string().contains("length limit"));
                let broken = || ApiError::body(StatusCode::BAD_REQUEST, "the body broke off");
                return Err(if limit { too_large() } else { broken() });
            }
            Ok(Ok(bytes)) => bytes,
        };
        match bytes.len() > LARGE_BYTES {
            true => parse_aside(bytes, notes).await.map(Self),
            false => read(&bytes, &notes).map(Self),
        }
    }
}
