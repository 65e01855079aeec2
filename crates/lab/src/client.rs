//! A client of OpenAI-compatible servers, ours or any other.

use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::error::{Error, Result};

/// A server to ask. May be used by many threads at once.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    agent: ureq::Agent,
    base: String,
    key: Option<String>,
    limit: Duration,
    /// When all requests break off.
    until: Option<Instant>,
}

impl Client {
    /// Of the server at this address, with or without `/v1` at its end.
    ///
    /// # Errors
    /// Where the address is none.
    pub(crate) fn new(url: &str, key: Option<String>, limit: Duration) -> Result<Self> {
        let base = url.trim_end_matches('/').trim_end_matches("/v1").to_owned();
        if !(base.starts_with("http://") || base.starts_with("https://")) {
            let expected = "expected http://HOST:PORT";
            return Err(Error::refused(format!("{url} is no address of a server: {expected}")));
        }
        let config = ureq::Agent::config_builder()
            .max_idle_connections_per_host(256)
            // What a server says about its refusal is worth more than its status.
            .http_status_as_error(false);
        Ok(Self { agent: config.build().into(), base, key, limit, until: None })
    }

    /// The same, with all requests broken off at that time.
    pub(crate) fn until(self, until: Instant) -> Self {
        Self { until: Some(until), ..self }
    }

    /// What a request may take from now on.
    fn time(&self) -> Option<Duration> {
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        // Nothing at all would be refused as no time limit.
        Some(left.map_or(self.limit, |left| left.min(self.limit)).max(Duration::from_millis(1)))
    }

    /// The address, for people.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    /// Gets a document.
    ///
    /// # Errors
    /// Where the server cannot be reached or refuses.
    pub(crate) fn get(&self, path: &str) -> Result<Value> {
        let request = self.agent.get(format!("{}{path}", self.base));
        let mut request = request.config().timeout_global(self.time()).build();
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let answer = request.call().map_err(|error| self.unreachable(error))?;
        self.read(path, answer)
    }

    /// Posts a request and gives its answer.
    ///
    /// # Errors
    /// Where the server cannot be reached or refuses.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let answer = self.send(path, body)?;
        self.read(path, answer)
    }

    /// Posts a request and calls `each` with every event of its stream, as it comes.
    ///
    /// # Errors
    /// Where the server cannot be reached, refuses, or its stream ends early.
    pub(crate) fn stream(
        &self,
        path: &str,
        body: &Value,
        mut each: impl FnMut(Value),
    ) -> Result<()> {
        let answer = self.send(path, body)?;
        if !answer.status().is_success() {
            return self.read(path, answer).map(|_| ());
        }
        for line in BufReader::new(answer.into_body().into_reader()).lines() {
            let line = line.map_err(Error::Stream)?;
            let Some(data) = line.strip_prefix("data:").map(str::trim) else { continue };
            if data == "[DONE]" {
                return Ok(());
            }
            let event: Value = serde_json::from_str(data).map_err(|source| Error::Malformed {
                what: "an event is no JSON".to_owned(),
                source,
            })?;
            if let Some(error) = event.get("error") {
                return Err(self.refused(path, &said(error)));
            }
            each(event);
        }
        Err(self.refused(path, "the stream ended without [DONE]"))
    }

    fn send(&self, path: &str, body: &Value) -> Result<ureq::http::Response<ureq::Body>> {
        let request = self.agent.post(format!("{}{path}", self.base));
        let mut request = request.config().timeout_global(self.time()).build();
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        request.send_json(body).map_err(|error| self.unreachable(error))
    }

    fn read(&self, path: &str, mut answer: ureq::http::Response<ureq::Body>) -> Result<Value> {
        let status = answer.status();
        let text = answer.body_mut().read_to_string().map_err(|error| self.unreachable(error))?;
        let value: Value = serde_json::from_str(&text).unwrap_or(Value::String(text));
        if !status.is_success() {
            let why = value.get("error").unwrap_or(&value);
            return Err(self.refused(path, &format!("{status}: {}", said(why))));
        }
        Ok(value)
    }

    fn unreachable(&self, source: ureq::Error) -> Error {
        Error::Unreachable { url: self.base.clone(), source: Box::new(source) }
    }

    fn refused(&self, path: &str, why: &str) -> Error {
        Error::refused(format!("{}{path}: {why}", self.base))
    }
}

/// What an error object says.
fn said(error: &Value) -> String {
    let message = error.get("message").unwrap_or(error);
    message.as_str().map_or_else(|| message.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_end_as_openai_s_clients_want_it() {
        let base = |url| Client::new(url, None, Duration::from_secs(1)).unwrap().base;
        assert_eq!(base("http://localhost:8080"), "http://localhost:8080");
        assert_eq!(base("http://localhost:8080/v1/"), "http://localhost:8080");
        let refused = |url| Client::new(url, None, Duration::from_secs(1)).unwrap_err().to_string();
        assert!(refused("localhost:8080").contains("expected http://HOST:PORT"));
    }
}
