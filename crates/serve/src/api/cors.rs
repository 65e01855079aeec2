//! Which web pages may use the server from a browser. A browser asks before it sends JSON or a key to
//! another site; to others than these pages the server does not agree.

use axum::http::{HeaderValue, Method, Uri, header};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use super::caller::{REQUESTS, TOKENS};
use super::notes::IGNORED;
use super::request_id;
use crate::config::Origins;
use crate::trace::TRACE_RESPONSE;

/// Answers browsers that ask.
pub(crate) fn layer(origins: &Origins) -> CorsLayer {
    let origins = match origins {
        Origins::Any => AllowOrigin::any(),
        Origins::Local => AllowOrigin::predicate(|origin, _| is_local(origin)),
        Origins::Listed(listed) => {
            AllowOrigin::list(listed.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()))
        }
    };
    CorsLayer::new()
        .allow_origin(origins)
        .allow_methods([Method::GET, Method::POST])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(
            [request_id::HEADER, IGNORED, super::response::LOSSY, header::RETRY_AFTER]
                .into_iter()
                .chain([TRACE_RESPONSE])
                .chain(REQUESTS)
                .chain(TOKENS)
                .collect::<Vec<_>>(),
        )
}

/// Whether an origin is a page of this machine. No page of another can say so: browsers set it.
fn is_local(origin: &HeaderValue) -> bool {
    let origin = origin.to_str().ok().and_then(|it| it.parse::<Uri>().ok());
    let Some(host) = origin.as_ref().and_then(Uri::host) else { return false };
    super::hosts::is_loopback(host)
}
