//! W3C Trace Context: which trace a request belongs to, and the name of its span for others.

use std::fmt::Write as _;

use axum::http::{HeaderMap, HeaderName, HeaderValue};

/// The header by which a client names its trace and its span.
const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");

/// What tracing systems add to it.
const TRACE_STATE: HeaderName = HeaderName::from_static("tracestate");

/// The header by which a response names the span that was made for the request.
pub(crate) const TRACE_RESPONSE: HeaderName = HeaderName::from_static("traceresponse");

/// Most characters of `tracestate` that are passed on; a longer one is left out.
const STATE_MAX: usize = 512;

/// The flag of a trace that is recorded.
const SAMPLED: u8 = 1;

/// A span, by its trace and its parent. Ids are in hexadecimal digits, as they are written everywhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SpanContext {
    pub(crate) trace: String,
    pub(crate) id: String,
    /// The span of the client, if the trace is the client's.
    pub(crate) parent: Option<String>,
    /// The client's `tracestate`.
    pub(crate) state: String,
}

impl SpanContext {
    /// A span for a request with these headers; `None` if the client does not record its trace.
    pub(crate) fn begin(headers: &HeaderMap) -> Option<Self> {
        let parent = headers.get(TRACE_PARENT).and_then(Parent::read);
        let id = hex(&[crate::random()]);
        match parent {
            Some(parent) if !parent.sampled => None,
            Some(parent) => Some(Self {
                trace: parent.trace.to_owned(),
                id,
                parent: Some(parent.span.to_owned()),
                state: state_of(headers),
            }),
            None => {
                let trace = hex(&[crate::random(), crate::random()]);
                Some(Self { trace, id, parent: None, state: String::new() })
            }
        }
    }

    /// The value of `traceresponse`.
    pub(crate) fn response(&self) -> HeaderValue {
        let text = format!("00-{}-{}-{SAMPLED:02x}", self.trace, self.id);
        HeaderValue::from_str(&text).expect("digits, letters and hyphens")
    }
}

/// The id of the trace that a request belongs to, for logs.
pub(crate) fn trace_of(headers: &HeaderMap) -> Option<&str> {
    headers.get(TRACE_PARENT).and_then(Parent::read).map(|parent| parent.trace)
}

/// What a client says of its trace.
#[derive(Debug, PartialEq, Eq)]
struct Parent<'a> {
    trace: &'a str,
    span: &'a str,
    sampled: bool,
}

impl<'a> Parent<'a> {
    /// Reads `version-trace-span-flags`. What is no such thing counts as absent.
    fn read(value: &'a HeaderValue) -> Option<Self> {
        let text = value.to_str().ok()?.trim();
        let mut parts = text.splitn(5, '-');
        let (version, trace, span) = (parts.next()?, parts.next()?, parts.next()?);
        let (flags, more) = (parts.next()?, parts.next());
        let is_hex = |part: &str, len: usize| {
            part.len() == len && part.bytes().all(|it| matches!(it, b'0'..=b'9' | b'a'..=b'f'))
        };
        let is_id = |part: &str, len: usize| is_hex(part, len) && part.bytes().any(|it| it != b'0');
        // Later versions may have more parts.
        let known = is_hex(version, 2) && version != "ff" && (version != "00" || more.is_none());
        if !known || !is_id(trace, 32) || !is_id(span, 16) || !is_hex(flags, 2) {
            return None;
        }
        let flags = u8::from_str_radix(flags, 16).ok()?;
        Some(Self { trace, span, sampled: flags & SAMPLED != 0 })
    }
}

/// The client's `tracestate`, which may come in several headers.
fn state_of(headers: &HeaderMap) -> String {
    let parts = headers.get_all(TRACE_STATE).iter().filter_map(|it| it.to_str().ok());
    let parts: Vec<&str> = parts.map(str::trim).filter(|it| !it.is_empty()).collect();
    let state = parts.join(",");
    if state.len() <= STATE_MAX { state } else { String::new() }
}

/// Numbers in hexadecimal digits. No id is zero.
fn hex(numbers: &[u64]) -> String {
    numbers.iter().fold(String::new(), |mut text, number| {
        write!(text, "{:016x}", number.max(&1)).expect("strings take all text");
        text
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        let pair = |(name, value): &(HeaderName, &str)| (name.clone(), value.parse().unwrap());
        let mut headers = HeaderMap::new();
        pairs.iter().map(pair).for_each(|(name, value): (_, HeaderValue)| {
            headers.append(name, value);
        });
        headers
    }

    #[test]
    fn a_span_belongs_to_the_clients_trace() {
        let state = (TRACE_STATE, "a=1");
        let parent = format!("00-{TRACE}-{SPAN}-01");
        let all = headers(&[(TRACE_PARENT, &parent), state, (TRACE_STATE, " b=2 ")]);
        let span = SpanContext::begin(&all).unwrap();
        assert_eq!((span.trace.as_str(), span.parent.as_deref()), (TRACE, Some(SPAN)));
        assert_eq!(span.state, "a=1,b=2");
        assert!(span.id.len() == 16 && span.id != SPAN);
        assert_eq!(span.response(), format!("00-{TRACE}-{}-01", span.id));
        assert_eq!(trace_of(&all), Some(TRACE));
        // Not recorded there, not recorded here.
        let quiet = headers(&[(TRACE_PARENT, &format!("00-{TRACE}-{SPAN}-00"))]);
        assert_eq!(SpanContext::begin(&quiet), None);
        let long = headers(&[(TRACE_PARENT, &parent), (TRACE_STATE, &"a".repeat(513))]);
        assert_eq!(SpanContext::begin(&long).unwrap().state, "");
    }

    #[test]
    fn a_header_that_is_no_traceparent_counts_as_absent() {
        for (text, is_one) in [
            (format!("00-{TRACE}-{SPAN}-01"), true),
            (format!("00-{TRACE}-{SPAN}-03"), true),
            (format!("cc-{TRACE}-{SPAN}-01-more-of-it"), true),
            (format!("00-{TRACE}-{SPAN}-01-more"), false),
            (format!("ff-{TRACE}-{SPAN}-01"), false),
            (format!("0-{TRACE}-{SPAN}-01"), false),
            (format!("00-{}-{SPAN}-01", TRACE.to_uppercase()), false),
            (format!("00-{}-{SPAN}-01", "0".repeat(32)), false),
            (format!("00-{TRACE}-{}-01", "0".repeat(16)), false),
            (format!("00-{TRACE}-{}-01", &SPAN[1..]), false),
            (format!("00-{TRACE}-{SPAN}-1"), false),
            (format!("00-{TRACE}-{SPAN}"), false),
            (String::new(), false),
        ] {
            let headers = headers(&[(TRACE_PARENT, &text)]);
            assert_eq!(trace_of(&headers).is_some(), is_one, "{text}");
            let span = SpanContext::begin(&headers).unwrap();
            assert_eq!(span.parent.is_some(), is_one, "{text}");
            assert_eq!(span.trace.len(), 32);
        }
        let [one, other] = [0; 2].map(|_| SpanContext::begin(&HeaderMap::new()).unwrap());
        assert_ne!(one.trace, other.trace);
    }
}
