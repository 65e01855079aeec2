//! Where a collector takes spans.

use std::str::FromStr;

use axum::http::Uri;

/// The port at which collectors take OTLP over HTTP.
const PORT: u16 = 4318;

/// The path at which they take spans.
const PATH: &str = "/v1/traces";

/// Where a collector takes spans, by OTLP over HTTP.
///
/// ```
/// use forerun_serve::TraceEndpoint;
///
/// let endpoint: TraceEndpoint = "http://localhost:4318/v1/traces".parse()?;
/// assert_eq!("http://localhost".parse(), Ok(endpoint));
/// # Ok::<(), forerun_serve::EndpointError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceEndpoint {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) path: String,
}

/// Why a URL is not where a collector takes spans.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// It is no URL of a host.
    #[error("expected a URL such as http://localhost:4318/v1/traces")]
    NotAUrl,
    /// It is to be reached by something else than HTTP.
    #[error(
        "{scheme} is not supported: send traces over http to a collector nearby, such as \
         http://localhost:4318/v1/traces"
    )]
    Scheme {
        /// What it is to be reached by.
        scheme: String,
    },
}

impl FromStr for TraceEndpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let uri: Uri = text.trim().parse().map_err(|_| EndpointError::NotAUrl)?;
        match uri.scheme_str() {
            Some("http") => {}
            Some(scheme) => return Err(EndpointError::Scheme { scheme: scheme.to_owned() }),
            None => return Err(EndpointError::NotAUrl),
        }
        let host = uri.host().filter(|host| !host.is_empty()).ok_or(EndpointError::NotAUrl)?;
        let path = match uri.path_and_query().map_or("/", |it| it.as_str()) {
            "/" => PATH,
            path => path,
        };
        Ok(Self {
            host: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: uri.port_u16().unwrap_or(PORT),
            path: path.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

    use super::*;

    #[test]
    fn endpoints_are_urls_over_http() {
        for (text, host, port, path) in [
            ("http://localhost", "localhost", 4318, "/v1/traces"),
            ("http://10.0.0.1:9999/", "10.0.0.1", 9999, "/v1/traces"),
            ("http://[::1]:1/otlp/v1/traces?a=b", "::1", 1, "/otlp/v1/traces?a=b"),
        ] {
            let (host, path) = (host.to_owned(), path.to_owned());
            assert_eq!(text.parse(), Ok(TraceEndpoint { host, port, path }), "{text}");
        }
        for (text, reason) in [
            ("https://localhost:4318", "https is not supported: send traces over http"),
            ("grpc://localhost:4317", "grpc is not supported"),
            ("localhost:4318", "expected a URL such as"),
            ("/v1/traces", "expected a URL"),
            ("", "expected a URL"),
        ] {
            let error = text.parse::<TraceEndpoint>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
