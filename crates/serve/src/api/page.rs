//! The page at `/`, which shows a chat and its drafts.

use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};

/// The page. It loads nothing from other sites.
pub(crate) async fn page() -> Response {
    let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                  connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
                  frame-ancestors 'none'";
    let headers = [(header::CONTENT_SECURITY_POLICY, policy)];
    (headers, Html(include_str!("../../page/index.html"))).into_response()
}

/// Browsers request it.
pub(crate) async fn no_icon() -> StatusCode {
    StatusCode::NO_CONTENT
}
