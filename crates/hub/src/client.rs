//! What is asked of the hub, and how its answers are read.
//!
//! Redirects are followed here and not by the HTTP library, so that it is plain to see who gets
//! the token: the hub alone.

use std::io::{ErrorKind, Read as _};
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use ureq::http::header::{
    AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, LINK, LOCATION, RANGE, RETRY_AFTER,
};
use ureq::http::{HeaderMap, Response, StatusCode, Uri};
use ureq::{Agent, Body};

use crate::listing::{Entry, Refs, RepoFile};
use crate::observer::{Event, Observer};
use crate::{Error, RepoId, Result, Settings, Token};

/// Most redirects that are followed.
const REDIRECTS_MAX: usize = 8;

/// Most bytes of an answer that is no file, and of one that is an error.
const ANSWER_LEN_MAX: u64 = 64 << 20;
const ERROR_LEN_MAX: u64 = 64 << 10;

/// Most pages of a listing.
const PAGES_MAX: usize = 1000;

/// Attempts in a row that bring nothing.
pub(crate) const ATTEMPTS_MAX: u32 = 5;

/// The same for answers that are no files.
const ANSWER_ATTEMPTS_MAX: u32 = 3;

/// The longest time that a server may ask for before the next attempt.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Asks the hub.
#[derive(Debug)]
pub(crate) struct Client {
    agent: Agent,
    endpoint: String,
    token: Option<Token>,
    back_off: Duration,
}

/// Why there is no answer, or not the one that was hoped for.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The connection failed.
    Connection(Box<ureq::Error>),
    /// A status that is an error.
    Status {
        url: String,
        status: StatusCode,
        code: String,
        message: String,
        wait: Option<Duration>,
    },
    /// Anything else; trying again does not help.
    Final(Error),
}

impl Failure {
    /// Whether another attempt may go better.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::Connection(source) => !matches!(**source, ureq::Error::BadUri(_)),
            Self::Status { status, .. } => {
                status.is_server_error()
                    || *status == StatusCode::TOO_MANY_REQUESTS
                    || *status == StatusCode::REQUEST_TIMEOUT
            }
            Self::Final(_) => false,
        }
    }

    /// Whether it may go better at once. A host that is not there at all will not: whoever has no
    /// network need not wait for that.
    fn may_pass_soon(&self) -> bool {
        let absent = match self {
            Self::Connection(source) => match &**source {
                ureq::Error::HostNotFound => true,
                ureq::Error::Io(error) => error.kind() == ErrorKind::ConnectionRefused,
                _ => false,
            },
            _ => false,
        };
        self.is_passing() && !absent
    }

    /// How long the server asks to wait.
    pub(crate) fn wait(&self) -> Option<Duration> {
        match self {
            Self::Status { wait, .. } => *wait,
            _ => None,
        }
    }

    /// What happened, in words.
    pub(crate) fn cause(&self) -> String {
        match self {
            Self::Connection(source) => connection_cause(source),
            Self::Status { status, .. } => format!("the server answered with status {status}"),
            Self::Final(error) => error.to_string(),
        }
    }
}

/// What went wrong with a connection, in words.
pub(crate) fn connection_cause(source: &ureq::Error) -> String {
    match source {
        ureq::Error::Timeout(_) => "nothing more came".to_owned(),
        other => format!("the connection failed ({other})"),
    }
}

impl Client {
    pub(crate) fn new(settings: &Settings) -> Self {
        let config = Agent::config_builder()
            .user_agent(concat!("forerun/", env!("CARGO_PKG_VERSION")))
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .timeout_connect(Some(settings.answer_timeout.max(Duration::from_secs(1))))
            .timeout_recv_response(Some(settings.answer_timeout))
            .timeout_per_read(Some(settings.timeout))
            .build();
        Self {
            agent: config.new_agent(),
            endpoint: settings.endpoint.clone(),
            token: settings.token.clone(),
            back_off: settings.back_off,
        }
    }

    /// How long to wait before an attempt, the first being 1.
    pub(crate) fn back_off(&self, attempt: u32) -> Duration {
        match attempt {
            0 | 1 => Duration::ZERO,
            attempt => (self.back_off * 2u32.pow((attempt - 2).min(10))).min(WAIT_MAX),
        }
    }

    /// The GGUF files of a repository's main branch, with the branch's name and newest commit.
    pub(crate) fn listing(
        &self,
        repo: &RepoId,
        observer: &mut dyn Observer,
    ) -> Result<(String, String, Vec<RepoFile>)> {
        let api = format!("{}api/models/{repo}", self.endpoint);
        let (refs, _) = self.answer::<Refs>(repo, &format!("{api}/refs"), observer)?;
        let (branch, commit) = refs.head(repo)?;
        let mut files = Vec::new();
        let mut next = Some(format!("{api}/tree/{commit}?recursive=true"));
        for _ in 0..PAGES_MAX {
            let Some(url) = next else { return Ok((branch, commit, files)) };
            let (entries, link) = self.answer::<Vec<Entry>>(repo, &url, observer)?;
            for entry in entries {
                files.extend(entry.file(repo)?);
            }
            next = link;
        }
        let url = format!("{api}/tree/{commit}");
        Err(Error::Malformed { url, what: format!("a listing of more than {PAGES_MAX} pages") })
    }

    /// An answer in JSON, and where the next page of it is.
    fn answer<T: DeserializeOwned>(
        &self,
        repo: &RepoId,
        url: &str,
        observer: &mut dyn Observer,
    ) -> Result<(T, Option<String>)> {
        let mut attempt = 1;
        let (headers, text) = loop {
            match self.get(url, 0).and_then(|response| whole(url, response)) {
                Ok(answer) => break answer,
                Err(failure) if failure.may_pass_soon() && attempt < ANSWER_ATTEMPTS_MAX => {
                    attempt += 1;
                    self.pause(&failure, attempt, observer);
                }
                Err(failure) => return Err(self.explain(failure, repo)),
            }
        };
        let malformed = |what: String| Error::Malformed { url: url.to_owned(), what };
        let next = next_page(&headers);
        let next = next.map(|link| self.resolved(url, &link)).transpose()?;
        let value = serde_json::from_slice(&text)
            .map_err(|error| malformed(format!("something else than expected ({error})")))?;
        Ok((value, next))
    }

    /// Waits before an attempt, and says so.
    pub(crate) fn pause(&self, failure: &Failure, attempt: u32, observer: &mut dyn Observer) {
        let wait = failure.wait().unwrap_or_else(|| self.back_off(attempt));
        observer.event(Event::Retry { cause: &failure.cause(), wait });
        std::thread::sleep(wait);
    }

    /// Where a file of a repository is.
    pub(crate) fn file_url(&self, repo: &RepoId, commit: &str, path: &str) -> String {
        format!("{}{repo}/resolve/{commit}/{}", self.endpoint, encoded(path))
    }

    /// Gets a URL of the hub, from a byte on.
    pub(crate) fn get(
        &self,
        url: &str,
        start: u64,
    ) -> std::result::Result<Response<Body>, Failure> {
        let mut url = url.to_owned();
        for _ in 0..=REDIRECTS_MAX {
            let mut request = self.agent.get(&url);
            if let Some(token) = self.token.as_ref().filter(|_| self.is_hub(&url)) {
                request = request.header(AUTHORIZATION, token.header());
            }
            if start > 0 {
                request = request.header(RANGE, format!("bytes={start}-"));
            }
            let response = request.call().map_err(|error| Failure::Connection(Box::new(error)))?;
            let status = response.status();
            if !status.is_redirection() {
                return if status.is_success() { Ok(response) } else { Err(failed(url, response)) };
            }
            let location = header(response.headers(), LOCATION.as_str()).ok_or_else(|| {
                let what = format!("status {status} and no place to go to");
                Failure::Final(Error::Malformed { url: url.clone(), what })
            })?;
            url = self.resolved(&url, &location).map_err(Failure::Final)?;
        }
        let what = format!("more than {REDIRECTS_MAX} redirects");
        Err(Failure::Final(Error::Malformed { url, what }))
    }

    /// Whether a URL is one of the hub itself, which alone gets the token.
    fn is_hub(&self, url: &str) -> bool {
        match (origin(&self.endpoint), origin(url)) {
            (Some(hub), Some(other)) => hub == other,
            _ => false,
        }
    }

    /// Where a link in an answer leads.
    fn resolved(&self, from: &str, link: &str) -> Result<String> {
        let malformed = |what| Error::Malformed { url: from.to_owned(), what };
        let base = origin(from).ok_or_else(|| malformed("no host".to_owned()))?;
        let url = match link.starts_with('/') && !link.starts_with("//") {
            true => format!("{base}{link}"),
            false => link.to_owned(),
        };
        match origin(&url) {
            None => Err(malformed(format!("a link that leads nowhere: {link:?}"))),
            Some(other) if base.starts_with("https:") && !other.starts_with("https:") => {
                Err(malformed(format!("a link to an unencrypted place: {link:?}")))
            }
            Some(_) => Ok(url),
        }
    }

    /// The error that a failure is to whoever asked for a repository.
    pub(crate) fn explain(&self, failure: Failure, repo: &RepoId) -> Error {
        let (repo, endpoint) = (repo.to_string(), self.endpoint.clone());
        let has_token = self.token.is_some();
        match failure {
            Failure::Final(error) => error,
            Failure::Connection(source) => {
                Error::Unreachable { host: endpoint.trim_end_matches('/').to_owned(), source }
            }
            // What another host refuses says nothing about the repository.
            Failure::Status { url, status, message, .. } if !self.is_hub(&url) => {
                Error::Status { url: origin(&url).unwrap_or(url), status: status.as_u16(), message }
            }
            Failure::Status { url, status, code, message, .. } => {
                match (&*code, status.as_u16()) {
                    ("GatedRepo", _) | ("", 403) => Error::Gated { repo, endpoint, has_token },
                    ("RepoNotFound", _) | ("", 404) => Error::NoRepo { repo, endpoint, has_token },
                    // The hub says the same of what is private and of what is not there.
                    (_, 401) if has_token => Error::Unauthorized { repo, endpoint, has_token },
                    (_, 401) if message.contains("gated") => {
                        Error::Gated { repo, endpoint, has_token }
                    }
                    (_, 401) => Error::NoRepo { repo, endpoint, has_token },
                    (_, status) => Error::Status { url, status, message },
                }
            }
        }
    }
}

/// Scheme, host and port.
fn origin(url: &str) -> Option<String> {
    let uri: Uri = url.parse().ok()?;
    let scheme = uri.scheme_str().filter(|scheme| matches!(*scheme, "http" | "https"))?;
    let host = uri.host()?.to_ascii_lowercase();
    let port = uri.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
    Some(format!("{scheme}://{host}:{port}"))
}

/// Reads an answer to its end.
fn whole(
    url: &str,
    response: Response<Body>,
) -> std::result::Result<(HeaderMap, Vec<u8>), Failure> {
    let (parts, body) = response.into_parts();
    let mut text = Vec::new();
    let read = body.into_reader().take(ANSWER_LEN_MAX + 1).read_to_end(&mut text);
    read.map_err(|error| Failure::Connection(Box::new(ureq::Error::from(error))))?;
    if text.len() as u64 > ANSWER_LEN_MAX {
        let what = format!("more than {ANSWER_LEN_MAX} bytes");
        return Err(Failure::Final(Error::Malformed { url: url.to_owned(), what }));
    }
    Ok((parts.headers, text))
}

/// Reads an answer that is an error.
fn failed(url: String, response: Response<Body>) -> Failure {
    #[derive(Deserialize)]
    struct Said {
        error: String,
    }
    let status = response.status();
    let code = header(response.headers(), "x-error-code").unwrap_or_default();
    let wait = header(response.headers(), RETRY_AFTER.as_str());
    let wait = wait.and_then(|text| text.trim().parse().ok());
    let wait = wait.map(|seconds| Duration::from_secs(seconds).min(WAIT_MAX));
    let said = header(response.headers(), "x-error-message");
    let mut body = Vec::new();
    // What the error says is a help, and no more.
    let _ = response.into_body().into_reader().take(ERROR_LEN_MAX).read_to_end(&mut body);
    let said = said.or_else(|| Some(serde_json::from_slice::<Said>(&body).ok()?.error));
    Failure::Status { url, status, code, message: said.unwrap_or_default(), wait }
}

pub(crate) fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.to_owned())
}

/// Bytes that the answer announces, and the byte it starts with if it is a part.
pub(crate) fn announced(headers: &HeaderMap) -> (Option<u64>, Option<u64>) {
    let len = header(headers, CONTENT_LENGTH.as_str()).and_then(|text| text.parse().ok());
    let range = header(headers, CONTENT_RANGE.as_str());
    let start = range.as_deref().and_then(|range| range.strip_prefix("bytes ")?.split_once('-'));
    (len, start.and_then(|(start, _)| start.parse().ok()))
}

/// The link to the next page of a listing.
fn next_page(headers: &HeaderMap) -> Option<String> {
    let links = header(headers, LINK.as_str())?;
    links.split(',').find_map(|link| {
        let (url, about) = link.trim().strip_prefix('<')?.split_once('>')?;
        about.replace(' ', "").contains("rel=\"next\"").then(|| url.to_owned())
    })
}

/// What stands in a URL's path as it is.
const PLAIN: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// A path as it is written in a URL.
fn encoded(path: &str) -> String {
    utf8_percent_encode(path, PLAIN).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_hub_itself_gets_the_token() {
        let settings = Settings::for_tests("https://hub.example/");
        let client = Client::new(&settings);
        assert!(client.is_hub("https://hub.example/x"));
        assert!(client.is_hub("https://HUB.example:443/x"));
        for other in [
            "http://hub.example/x",
            "https://hub.example:8443/x",
            "https://hub.example.evil/x",
            "https://evil/hub.example/",
            "https://hub.example@evil/x",
        ] {
            assert!(!client.is_hub(other), "{other}");
        }
    }

    #[test]
    fn links_lead_to_places_that_are_as_safe() {
        let client = Client::new(&Settings::for_tests("https://hub.example/"));
        let resolved = |link| client.resolved("https://hub.example/a/b", link);
        assert_eq!(resolved("/c?d=e").unwrap(), "https://hub.example:443/c?d=e");
        assert_eq!(resolved("https://cdn.example/c").unwrap(), "https://cdn.example/c");
        for link in ["http://cdn.example/c", "file:///etc/passwd", "//cdn.example/c", "c", ""] {
            assert!(resolved(link).is_err(), "{link}");
        }
    }

    #[test]
    fn paths_are_written_as_urls_want_them() {
        assert_eq!(encoded("a b/c#d?.gguf"), "a%20b/c%23d%3F.gguf");
        assert_eq!(encoded("ä%"), "%C3%A4%25");
    }

    #[test]
    fn the_next_page_is_found_among_links() {
        let mut headers = HeaderMap::new();
        let links = r#"<https://h/1>; rel="prev", <https://h/3?c=a>; rel="next""#;
        headers.insert(LINK, links.parse().unwrap());
        assert_eq!(next_page(&headers).as_deref(), Some("https://h/3?c=a"));
        assert_eq!(next_page(&HeaderMap::new()), None);
    }

    #[test]
    fn each_attempt_in_a_row_waits_longer_up_to_a_minute() {
        let mut settings = Settings::for_tests("https://hub.example/");
        settings.back_off = Duration::from_secs(1);
        let client = Client::new(&settings);
        let waits: Vec<u64> = (1..=5).map(|attempt| client.back_off(attempt).as_secs()).collect();
        assert_eq!(waits, [0, 1, 2, 4, 8]);
        assert_eq!(client.back_off(100), WAIT_MAX);
    }
}
