//! What is said on standard error meanwhile.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Time between lines about the same work.
const SAID_EVERY: Duration = Duration::from_secs(15);

/// Writes a line to standard error. Where that is closed there is nobody to tell.
pub(super) fn say(line: &str) {
    let clear = if std::io::stderr().is_terminal() { "\r\x1b[K" } else { "" };
    let _ = writeln!(std::io::stderr(), "{clear}{line}");
}

/// A line that changes: on a terminal in its place, in a log now and then.
pub(super) struct Line {
    terminal: bool,
    said: Option<Instant>,
}

impl Line {
    pub(super) fn new() -> Self {
        Self { terminal: std::io::stderr().is_terminal(), said: None }
    }

    pub(super) fn show(&mut self, last: bool, line: impl FnOnce() -> String) {
        let every = if self.terminal { Duration::from_millis(200) } else { SAID_EVERY };
        if !last && self.said.is_some_and(|said| said.elapsed() < every) {
            return;
        }
        self.said = Some(Instant::now());
        match self.terminal && !last {
            true => {
                let mut out = std::io::stderr();
                let _ = write!(out, "\r\x1b[K{}", line());
                let _ = out.flush();
            }
            false => say(&line()),
        }
    }
}
