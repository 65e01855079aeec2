//! How far a download is: a bar on a terminal, a line now and then in a log.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use forerun_hub::{Event, Observer};
use forerun_lab::{Span, bytes};
use indicatif::{ProgressBar, ProgressStyle};

use crate::plain::plain;

/// How often a log gets a line.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Shows how far a download is.
#[derive(Debug, Default)]
pub(crate) struct Bar {
    bar: Option<ProgressBar>,
    log: Option<Log>,
}

/// The same for a log.
#[derive(Debug)]
struct Log {
    file: String,
    size: u64,
    arrived: u64,
    /// Bytes that were there at the start, and when that was.
    start: Option<(u64, Instant)>,
    last: Instant,
}

/// Says something before a screen is there.
pub(crate) fn say(text: &str) {
    // Where standard error is closed there is nobody to tell.
    drop(writeln!(io::stderr(), "{}", plain(text)));
}

impl Bar {
    fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| say(text)),
            None => say(text),
        }
    }

    fn begin(&mut self, file: &str, (part, parts): (usize, usize), size: u64) {
        let name = file.rsplit('/').next().unwrap_or(file);
        let name = match parts {
            1 => plain(name),
            _ => plain(&format!("{name} ({part} of {parts})")),
        };
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        if io::stderr().is_terminal() && !dumb {
            let style = "{msg} [{bar:20}] {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
            let style = ProgressStyle::with_template(style).expect("the template is right");
            let bar = ProgressBar::new(size).with_style(style.progress_chars("=> "));
            bar.set_message(name);
            self.bar = Some(bar);
        } else {
            self.say(&format!("downloading {name} ({})", bytes(size)));
            let now = Instant::now();
            self.log = Some(Log { file: name, size, arrived: 0, start: None, last: now });
        }
    }

    fn arrived(&mut self, count: u64) {
        if let Some(bar) = &self.bar {
            let first = bar.position() == 0 || count < bar.position();
            bar.set_position(count);
            if first {
                // What was there before says nothing about the line.
                bar.reset_eta();
            }
        }
        let line = self.log.as_mut().and_then(|log| log.arrived(count, Instant::now()));
        if let Some(line) = line {
            self.say(&line);
        }
    }

    fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        self.log = None;
    }
}

impl Log {
    /// A line, if it is time for one.
    fn arrived(&mut self, count: u64, now: Instant) -> Option<String> {
        self.arrived = count;
        let (before, since) = *self.start.get_or_insert((count, now));
        if now.duration_since(self.last) < LOG_INTERVAL {
            return None;
        }
        self.last = now;
        let seconds = now.duration_since(since).as_secs_f64();
        let rate = count.saturating_sub(before) as f64 / seconds.max(0.001);
        let mut line = format!("{}: {} of {}", self.file, bytes(count), bytes(self.size));
        if rate >= 1.0 {
            let left = (self.size.saturating_sub(count)) as f64 / rate;
            let left =
                Span::from(Duration::try_from_secs_f64(left.ceil()).unwrap_or(Duration::MAX));
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "bytes a second"
            )]
            let rate = bytes(rate as u64);
            line += &format!(", {rate}/s, {left} left");
        }
        Some(line)
    }
}

impl Observer for Bar {
    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Begin { file, part, parts, size } => self.begin(file, (part, parts), size),
            Event::Arrived { bytes } => self.arrived(bytes),
            Event::End => self.end(),
            Event::Waiting { file } => {
                self.say(&format!("waiting for another process that downloads {file}"));
            }
            Event::Retry { cause, wait } if wait.is_zero() => {
                self.say(&format!("{cause}: trying again"));
            }
            Event::Retry { cause, wait } => {
                let wait = Span::from(wait);
                self.say(&format!("{cause}: trying again in {wait}"));
            }
            Event::FromCache { cause } => {
                self.say(&format!("warning: {cause}; using the cached model"));
            }
            _ => {}
        }
    }
}

impl Drop for Bar {
    /// A download that fails leaves no bar behind.
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_gets_rate_and_time_left_of_what_arrives_now() {
        let start = Instant::now();
        let mut log =
            Log { file: "m.gguf".into(), size: 100_000_000, arrived: 0, start: None, last: start };
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(log.arrived(40_000_000, after(0)), None);
        assert_eq!(log.arrived(41_000_000, after(9)), None);
        let line = log.arrived(60_000_000, after(10)).unwrap();
        assert_eq!(line, "m.gguf: 57 MiB of 95 MiB, 2 MiB/s, 20s left");
        assert_eq!(log.arrived(61_000_000, after(11)), None);
    }
}
