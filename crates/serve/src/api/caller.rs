//! Who sends a request: its key is checked, its limits are kept, and it is recorded and traced.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq as _;

use super::error::{ApiError, MessagesError};
use super::request_id::RequestId;
use super::{App, Connection, hosts};
use crate::audit::Record;
use crate::limits::written;
use crate::request::{Caller, Client, Reports};
use crate::tenants::{Reading, Tenant};
use crate::trace::{Span, TRACE_RESPONSE};

/// The header that Anthropic's clients send their key in.
pub(super) const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// What is left of a limit, by OpenAI's names: the limit, what remains of it, and when all of it is
/// there again.
pub(super) const REQUESTS: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit-requests"),
    HeaderName::from_static("x-ratelimit-remaining-requests"),
    HeaderName::from_static("x-ratelimit-reset-requests"),
];
pub(super) const TOKENS: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit-tokens"),
    HeaderName::from_static("x-ratelimit-remaining-tokens"),
    HeaderName::from_static("x-ratelimit-reset-tokens"),
];

/// Rejects requests without a key of the server, or, if it has no keys, requests for another host, and
/// requests beyond the limit of their tenant. Notes which client a request is of.
pub(super) async fn check(
    State(app): State<Arc<App>>,
    mut request: Request,
    next: Next,
) -> Response {
    let known = client_of(&app, &request);
    let tenant = known.as_ref().ok().and_then(|client| app.tenants.of(*client));
    let name = tenant.and_then(Tenant::name);
    let record = app.config.audit.as_ref().map(|log| {
        let id = request.extensions().get::<RequestId>().map_or("", RequestId::text);
        Arc::new(Record::new(Arc::clone(log), name, id, request.uri().path()))
    });
    let posted = request.method() == Method::POST;
    let span = app.tracer.as_ref().filter(|_| posted).and_then(|tracer| {
        let id = request.extensions().get::<RequestId>().map_or("", RequestId::text);
        Span::begin(tracer, request.headers(), id, request.uri().path()).map(Arc::new)
    });
    let admitted = known.and_then(|client| match tenant.filter(|_| posted) {
        Some(tenant) => {
            tenant.take_request(Instant::now()).map(|()| client).map_err(ApiError::early)
        }
        None => Ok(client),
    });
    let mut response = match admitted {
        Ok(client) => {
            let reports = Reports { record: record.clone(), span: span.clone() };
            request.extensions_mut().insert(Caller { client, reports });
            next.run(request).await
        }
        Err(refusal) if request.uri().path().contains("/messages") && tenant.is_some() => {
            MessagesError::from(refusal).into_response()
        }
        Err(refusal) => refusal.into_response(),
    };
    let status = response.status().as_u16();
    if let Some(tenant) = tenant {
        app.tenants.metrics().answered(name, status);
        add_readings(response.headers_mut(), tenant);
    }
    if let Some(record) = record {
        record.answered(status);
    }
    if let Some(span) = span {
        span.answered(status);
        response.headers_mut().insert(TRACE_RESPONSE, span.context().response());
    }
    response
}

/// Who sends a request, if it may.
fn client_of(app: &App, request: &Request) -> Result<Client, ApiError> {
    if app.tenants.is_empty() {
        if let Some(host) = hosts::foreign(request, &app.config.allowed_hosts) {
            return Err(ApiError::foreign_host(&host));
        }
        let connection = request.extensions().get::<Connection>().map_or(0, |it| it.0);
        return Ok(Client::Connection(connection));
    }
    let sent = sent_key(request.headers());
    app.tenants.find(sent).map(Client::Tenant).ok_or_else(|| match sent {
        "" => ApiError::no_key(),
        _ => ApiError::wrong_key(),
    })
}

/// The key that a request has, empty if it has none.
fn sent_key(headers: &HeaderMap) -> &str {
    let bearer = headers.get(header::AUTHORIZATION);
    let bearer = bearer.and_then(|it| it.to_str().ok()?.split_once(' '));
    let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let bearer = bearer.map(|(_, key)| key.trim()).filter(|key| !key.is_empty());
    let other = || headers.get(API_KEY).and_then(|it| it.to_str().ok()).map(str::trim);
    bearer.or_else(other).unwrap_or_default()
}

/// Whether a request has the key that shows the metrics of all tenants.
pub(super) fn may_see_tenants(app: &App, headers: &HeaderMap) -> bool {
    let key = app.config.metrics_key.as_deref();
    key.is_some_and(|key| bool::from(key.as_bytes().ct_eq(sent_key(headers).as_bytes())))
}

/// Says what a tenant has left.
fn add_readings(headers: &mut HeaderMap, tenant: &Tenant) {
    let readings = tenant.readings(Instant::now());
    let both = [(REQUESTS, readings.requests), (TOKENS, readings.tokens)];
    for ([limit, remaining, reset], reading) in both {
        let Some(Reading { limit: most, remaining: left, reset: time }) = reading else { continue };
        headers.insert(limit, most.into());
        headers.insert(remaining, left.into());
        let time = HeaderValue::from_str(&written(time)).expect("digits and letters");
        headers.insert(reset, time);
    }
}
