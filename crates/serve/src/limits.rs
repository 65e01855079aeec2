//! What a tenant is told that has used what it may.

use std::time::Duration;

/// What of a tenant's is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limited {
    Requests,
    Tokens,
    Sequences,
}

/// A tenant has used what it may for now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LimitReached {
    pub(crate) limited: Limited,
    /// The limit.
    pub(crate) limit: u32,
    /// How long to wait.
    pub(crate) wait: Duration,
}

impl std::error::Error for LimitReached {}

impl std::fmt::Display for LimitReached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { limited, limit, wait } = self;
        let wait = written(*wait);
        match limited {
            Limited::Requests => {
                write!(f, "this key may send {limit} requests a minute: try again in {wait}")
            }
            Limited::Tokens => {
                write!(f, "this key may use {limit} tokens a minute: try again in {wait}")
            }
            Limited::Sequences => write!(
                f,
                "this key may have {limit} sequences at once (a request has `n`): try again when one \
                 has ended"
            ),
        }
    }
}

/// A time as OpenAI's headers write it: `20ms`, `1.5s`, `6m0s`.
pub(crate) fn written(time: Duration) -> String {
    let ms = time.as_millis();
    let (minutes, rest) = (ms / 60_000, ms % 60_000);
    let seconds = match (rest / 1000, rest % 1000) {
        (seconds, 0) => seconds.to_string(),
        (seconds, ms) => format!("{seconds}.{ms:03}").trim_end_matches('0').to_owned(),
    };
    match (minutes, rest) {
        (0, ms @ 1..1000) => format!("{ms}ms"),
        (0, _) => format!("{seconds}s"),
        (minutes, _) => format!("{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_openai_does() {
        let cases = [
            (0, "0s"),
            (17, "17ms"),
            (1000, "1s"),
            (1500, "1.5s"),
            (2040, "2.04s"),
            (360_000, "6m0s"),
        ];
        for (ms, text) in cases {
            assert_eq!(written(Duration::from_millis(ms)), text);
        }
        assert_eq!(written(Duration::from_millis(61_250)), "1m1.25s");
    }
}
