//! How far a long command is: one bar on a terminal, a line every few seconds in a log.
//!
//! A command that may run for minutes says before it starts which phases it has, how long it may
//! take and how to shorten it. What is shown afterwards is held to the same limit, so that no
//! estimate grows.

use std::fmt;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forerun_lab::{Limit, Outline, Span, bytes, file_name};
use indicatif::{ProgressBar, ProgressState, ProgressStyle};

/// How often a log gets a line.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// How often a bar's clock moves.
const TICK: Duration = Duration::from_millis(200);

/// Steps of a bar.
const STEPS: u64 = 1000;

/// How far a command is. Clones show the same.
#[derive(Debug, Clone)]
pub(crate) struct Progress(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// Whether standard error shows bars.
    terminal: bool,
    bar: Option<ProgressBar>,
    /// Ends the thread that writes the log's lines when it is dropped.
    log: Option<Sender<()>>,
    phases: Vec<&'static str>,
    phase: usize,
    limit: Option<Limit>,
    /// Of the phase, never less than it was.
    share: f64,
    detail: String,
    /// How many files were read, of how many.
    files: (usize, usize),
}

impl Progress {
    /// Of a command that has done nothing yet.
    pub(crate) fn new() -> Self {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self(Arc::new(Mutex::new(State {
            terminal: io::stderr().is_terminal() && !dumb,
            bar: None,
            log: None,
            phases: Vec::new(),
            phase: 0,
            limit: None,
            share: 0.0,
            detail: String::new(),
            files: (0, 0),
        })))
    }

    /// Says what is going to happen, and starts the first phase.
    pub(crate) fn begin(&self, outline: &Outline) {
        say(&outline.to_string());
        let mut state = self.state();
        state.phases = outline.phases.iter().map(|(name, _)| *name).collect();
        state.limit = Some(outline.limit);
        if !state.terminal {
            let (sender, receiver) = channel();
            state.log = Some(sender);
            let own = self.clone();
            std::thread::spawn(move || own.write_log(&receiver));
        }
        drop(state);
        self.phase(0);
    }

    /// Starts a phase of the outline.
    pub(crate) fn phase(&self, phase: usize) {
        let mut state = self.state();
        (state.phase, state.share, state.detail) = (phase, 0.0, String::new());
        if state.log.is_some() {
            say(&state.line());
        }
        state.draw();
    }

    /// Shows how far the phase is, and what is being done.
    pub(crate) fn show(&self, share: f64, detail: impl Into<String>) {
        let mut state = self.state();
        state.share = state.share.max(share.clamp(0.0, 1.0));
        state.detail = detail.into();
        state.draw();
    }

    /// Says how many times a file is read in this phase.
    pub(crate) fn expect_files(&self, count: usize) {
        self.state().files = (0, count);
    }

    /// Shows how far the reading of a file is.
    pub(crate) fn file(&self, what: &str, path: &Path, share: f64) {
        let size = std::fs::metadata(path).map_or(0, |about| about.len());
        let detail = format!("{what} {} ({})", file_name(path), bytes(size));
        let mut state = self.state();
        if state.detail != detail {
            state.files.0 += 1;
            state.share = if state.files.1 == 0 { 0.0 } else { state.share };
        }
        let (file, count) = state.files;
        let share = match count {
            0 => share,
            count => (file.saturating_sub(1) as f64 + share) / count as f64,
        };
        drop(state);
        self.show(share, detail);
    }

    /// Takes the bar away for as long as something is written.
    pub(crate) fn aside<T>(&self, write: impl FnOnce() -> T) -> T {
        let bar = self.state().bar.clone();
        match bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    /// Takes the bar away where no phase goes on.
    pub(crate) fn rest(&self) {
        if self.state().phases.is_empty() {
            self.end();
        }
    }

    /// Ends it: nothing more is shown.
    pub(crate) fn end(&self) {
        let mut state = self.state();
        state.log = None;
        if let Some(bar) = state.bar.take() {
            bar.finish_and_clear();
        }
        (state.phases, state.limit) = (Vec::new(), None);
        (state.share, state.detail, state.files) = (0.0, String::new(), (0, 0));
    }

    fn write_log(&self, ended: &Receiver<()>) {
        while ended.recv_timeout(LOG_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            let line = self.state().line();
            say(&line);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn name(&self) -> String {
        match self.phases.get(self.phase) {
            Some(name) => format!("phase {} of {}: {name}", self.phase + 1, self.phases.len()),
            None => String::new(),
        }
    }

    /// A line of a log.
    fn line(&self) -> String {
        let clock = self.limit.map_or(String::new(), |limit| {
            let (spent, all) = (Span::from(limit.started.elapsed()), Span::from(limit.time));
            format!("[{spent} of at most {all}] ")
        });
        let mut line = format!("{clock}{}", self.name());
        if self.share > 0.0 || !self.detail.is_empty() {
            line += &format!(", {:.0} %", 100.0 * self.share);
        }
        if !self.detail.is_empty() {
            line += &format!(": {}", self.detail);
        }
        line
    }

    fn draw(&mut self) {
        if !self.terminal {
            return;
        }
        let limit = self.limit;
        let bar = self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::new(STEPS).with_style(style(limit));
            bar.enable_steady_tick(TICK);
            bar
        });
        let bar = bar.clone();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 0 and STEPS"
        )]
        bar.set_position((self.share * STEPS as f64) as u64);
        let prefix = match self.phases.is_empty() {
            true => format!("{} ", self.detail),
            false => format!("{} ", self.name()),
        };
        bar.set_prefix(prefix);
        bar.set_message(self.detail.clone());
    }
}

fn style(limit: Option<Limit>) -> ProgressStyle {
    let template = match limit {
        Some(_) => "{prefix}[{bar:10}] {percent:>3} %, {clock}; {wide_msg}",
        None => "{prefix}[{bar:24}] {percent:>3} %",
    };
    let style = ProgressStyle::with_template(template).expect("the template is right");
    let clock = move |_: &ProgressState, out: &mut dyn fmt::Write| {
        if let Some(limit) = limit {
            let (spent, all) = (Span::from(limit.started.elapsed()), Span::from(limit.time));
            // A bar that cannot be written has nobody to read it.
            let _ = write!(out, "{spent} of at most {all}");
        }
    };
    style.with_key("clock", clock).progress_chars("=> ")
}

/// Writes a line to standard error. Where that is closed there is nobody to tell.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_never_shrinks_within_a_phase() {
        let progress = Progress::new();
        let limit = Limit::from_now(Duration::from_secs(60));
        {
            let mut state = progress.state();
            (state.terminal, state.phases, state.limit) =
                (false, vec!["load", "measure"], Some(limit));
        }
        progress.phase(1);
        progress.show(0.4, "text 2");
        progress.show(0.3, "text 3");
        assert_eq!(
            progress.state().line(),
            "[0s of at most 1m] phase 2 of 2: measure, 40 %: text 3"
        );
        progress.phase(0);
        assert_eq!(progress.state().line(), "[0s of at most 1m] phase 1 of 2: load");
    }
}
