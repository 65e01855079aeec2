//! Ids by which a request is found in logs: the client's own, or one made here.

use axum::http::{HeaderMap, HeaderName, HeaderValue};

/// The header that has it, in requests and in responses.
pub(crate) const HEADER: HeaderName = HeaderName::from_static("x-request-id");

/// Most characters of a client's id.
const LEN_MAX: usize = 128;

/// The id of a request, among its extensions.
#[derive(Debug, Clone)]
pub(crate) struct RequestId(pub(crate) HeaderValue);

impl RequestId {
    pub(crate) fn text(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }
}

/// The id of a request. A client's own is kept if a log can hold it: short, and of visible
/// characters.
pub(crate) fn of(headers: &HeaderMap) -> HeaderValue {
    let plain = |id: &&HeaderValue| {
        (1..=LEN_MAX).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    headers.get(HEADER).filter(plain).cloned().unwrap_or_else(|| {
        let id = format!("req_{:016x}", crate::random());
        HeaderValue::from_str(&id).expect("digits and letters")
    })
}
