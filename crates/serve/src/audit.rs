//! The audit log: who asked for what, when, and what became of it, as a JSON object per line. It has
//! no prompts, no answers and no keys.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// Where records go.
pub struct AuditLog {
    sink: Mutex<Box<dyn Write + Send>>,
    /// Whether the last record could not be written.
    broken: AtomicBool,
}

impl std::fmt::Debug for AuditLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuditLog").field("broken", &self.broken).finish_non_exhaustive()
    }
}

impl AuditLog {
    /// Appends to a file, which only its owner may read if it is made here.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn append(path: &Path) -> std::io::Result<Self> {
        let mut options = OpenOptions::new();
        options.create(true).append(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file: File = options.open(path)?;
        Ok(Self::to(Box::new(file)))
    }

    /// Writes to standard error.
    pub fn stderr() -> Self {
        Self::to(Box::new(std::io::stderr()))
    }

    /// Writes there. A record is written at once.
    pub fn to(sink: Box<dyn Write + Send>) -> Self {
        Self { sink: Mutex::new(sink), broken: false.into() }
    }

    fn write(&self, line: &Line<'_>) {
        let mut text = serde_json::to_vec(line).expect("numbers and strings");
        text.push(b'\n');
        let mut sink = self.sink.lock().unwrap_or_else(PoisonError::into_inner);
        let written = sink.write_all(&text).and_then(|()| sink.flush());
        let was_broken = self.broken.swap(written.is_err(), Ordering::Relaxed);
        match written {
            // Said once, not with every request.
            Err(error) if !was_broken => tracing::error!(%error, "the audit log cannot be written"),
            Ok(()) if was_broken => tracing::warn!("the audit log is written again"),
            _ => {}
        }
    }
}

/// A line of the log.
#[derive(Debug, Serialize)]
struct Line<'a> {
    time: String,
    tenant: Option<&'a str>,
    request_id: &'a str,
    endpoint: &'a str,
    model: Option<&'a str>,
    /// `None` if the client left before there was any.
    status: Option<u16>,
    outcome: Outcome,
    sequences: usize,
    prompt_tokens: usize,
    cached_tokens: usize,
    completion_tokens: usize,
    ms: u64,
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    /// It was answered to the end.
    Finished,
    /// It was not begun: its status says why.
    Refused,
    /// It was begun, and the server could not go on.
    Failed,
    /// The client left.
    Cancelled,
}

/// The tokens of a request.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tokens {
    pub(crate) prompt: usize,
    pub(crate) cached: usize,
    pub(crate) completion: usize,
}

/// The record of a request. It is written when the last who holds it is done with the request.
#[derive(Debug)]
pub(crate) struct Record {
    log: Arc<AuditLog>,
    began: Instant,
    time: SystemTime,
    tenant: Option<String>,
    request_id: String,
    endpoint: String,
    said: Mutex<Said>,
}

/// What became known of a request.
#[derive(Debug, Default)]
struct Said {
    model: Option<String>,
    status: Option<u16>,
    outcome: Option<Outcome>,
    sequences: usize,
    tokens: Tokens,
}

impl Record {
    /// A request to this path has come.
    pub(crate) fn new(
        log: Arc<AuditLog>,
        tenant: Option<&str>,
        request_id: &str,
        endpoint: &str,
    ) -> Self {
        Self {
            log,
            began: Instant::now(),
            time: crate::now(),
            tenant: tenant.map(str::to_owned),
            request_id: request_id.to_owned(),
            endpoint: endpoint.to_owned(),
            said: Mutex::default(),
        }
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its response has this status.
    pub(crate) fn answered(&self, status: u16) {
        self.said().status = Some(status);
    }

    /// It is decoded by this model.
    pub(crate) fn begun(&self, model: &str, sequences: usize) {
        let mut said = self.said();
        (said.model, said.sequences) = (Some(model.to_owned()), sequences);
    }

    /// Its sequences are over.
    pub(crate) fn ended(&self, outcome: Outcome, tokens: Tokens) {
        let mut said = self.said();
        (said.outcome, said.tokens) = (Some(outcome), tokens);
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let said = std::mem::take(&mut *self.said());
        let outcome = match (said.status, said.outcome) {
            (Some(400..=499), _) => Outcome::Refused,
            (Some(500..), _) => Outcome::Failed,
            (_, Some(outcome)) => outcome,
            (Some(_), None) => Outcome::Finished,
            (None, None) => Outcome::Cancelled,
        };
        self.log.write(&Line {
            time: written(self.time),
            tenant: self.tenant.as_deref(),
            request_id: &self.request_id,
            endpoint: &self.endpoint,
            model: said.model.as_deref(),
            status: said.status,
            outcome,
            sequences: said.sequences,
            prompt_tokens: said.tokens.prompt,
            cached_tokens: said.tokens.cached,
            completion_tokens: said.tokens.completion,
            ms: u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX),
        });
    }
}

/// A time in UTC, as RFC 3339 writes it.
fn written(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, of_day) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Howard Hinnant's days to dates: years begin in March, so that a leap day is the last.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    let ms = since.subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_written_in_utc() {
        let cases = [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_704_067_199_001, "2023-12-31T23:59:59.001Z"),
            (1_735_603_200_000, "2024-12-31T00:00:00.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ];
        for (ms, text) in cases {
            assert_eq!(written(UNIX_EPOCH + Duration::from_millis(ms)), text);
        }
    }
}
