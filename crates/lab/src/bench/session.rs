//! A run under way: what is measured, what was, and how much time is left.

use std::collections::HashSet;

use super::journal::Journal;
use super::plan::{Ended, Progress};
use super::record::{Config, Measure};
use super::{interval, report};
use crate::cancellation::Cancellation;
use crate::error::Result;
use crate::observer::Observer;
use crate::span::Limit;

/// What outputs come from: models of our own, or a server.
pub(super) trait Source {
    /// Runs every setting on every prompt once, as far as time allows; says why where it stopped
    /// before that.
    ///
    /// # Errors
    /// Where a text fails; what was measured is in the session.
    fn repeat(&mut self, repeat: usize, session: &mut Session<'_>) -> Result<Option<Ended>>;
}

/// A run under way.
pub(super) struct Session<'a> {
    /// What is measured.
    pub(super) config: Config,
    /// What was.
    pub(super) measures: Vec<Measure>,
    done: HashSet<Key>,
    journal: Journal,
    limit: Limit,
    observer: &'a dyn Observer,
    /// What ends it early.
    pub(super) cancellation: &'a Cancellation,
}

/// Repeat, prompt, temperature and setting of a text.
type Key = (usize, usize, u32, usize);

fn key(measure: &Measure) -> Key {
    (measure.repeat, measure.prompt, measure.temperature.to_bits(), measure.setting)
}

impl<'a> Session<'a> {
    /// Goes on from what is known.
    pub(super) fn new(
        config: Config,
        (journal, measures): (Journal, Vec<Measure>),
        (limit, observer): (Limit, &'a dyn Observer),
        cancellation: &'a Cancellation,
    ) -> Self {
        let done = measures.iter().map(key).collect();
        Self { config, measures, done, journal, limit, observer, cancellation }
    }

    /// Whether a text was measured before.
    pub(super) fn is_done(&self, measure: &Measure) -> bool {
        self.done.contains(&key(measure))
    }

    /// Keeps what was measured.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub(super) fn add(&mut self, measure: Measure) -> Result<()> {
        self.journal.add(&measure)?;
        self.done.insert(key(&measure));
        self.measures.push(measure);
        Ok(())
    }

    /// Seconds since the call began.
    pub(super) fn elapsed_s(&self) -> f64 {
        self.limit.started.elapsed().as_secs_f64()
    }

    /// Whether the time is up.
    pub(super) fn is_late(&self) -> bool {
        self.elapsed_s() >= self.config.stop.time_limit_s
    }

    /// Why a text was broken off.
    pub(super) fn broken_off(&self) -> Ended {
        if self.cancellation.is_expired() { Ended::Time } else { Ended::Interrupted }
    }

    /// What a repeat's outputs took, with prompts.
    pub(super) fn spent_s(&self, repeat: usize) -> f64 {
        let texts = self.measures.iter().filter(|measure| measure.repeat == repeat);
        // Users of a server read at the same time.
        let users = |it: &Measure| self.config.settings[it.setting].users as f64;
        texts.map(|it| (it.seconds + it.first_token_s + it.draft_read_s) / users(it)).sum()
    }

    /// How many prompts the first repeat took.
    pub(super) fn prompts_taken(&self) -> usize {
        let first = self.measures.iter().filter(|measure| measure.repeat == 0);
        first.map(|measure| measure.prompt + 1).max().unwrap_or(0)
    }

    /// Shows how far it is, of about so many outputs in all.
    pub(super) fn show(&self, repeat: usize, texts: usize) {
        let (done, most) = (self.measures.len(), self.config.stop.repeats);
        let share = self.limit.share().max(done as f64 / texts.max(1) as f64);
        self.observer.show(share, &format!("repeat {}/{most}, {done} outputs", repeat + 1));
    }

    /// Runs repeats until it is enough.
    ///
    /// # Errors
    /// As a repeat.
    pub(super) fn run(&mut self, source: &mut dyn Source) -> Result<Ended> {
        for repeat in 0.. {
            let known = self.measures.len();
            if let Some(ended) = source.repeat(repeat, self)? {
                return Ok(ended);
            }
            let progress = Progress {
                repeats: repeat + 1,
                reach: self.widest(),
                elapsed_s: self.elapsed_s(),
                repeat_s: self.spent_s(repeat),
            };
            if self.measures.len() > known {
                let texts = self.measures.len() - known;
                self.observer.note(&said(&progress, texts));
            }
            if let Some(ended) = self.config.stop.rule(&progress) {
                return Ok(ended);
            }
        }
        Ok(Ended::Repeats)
    }

    /// The reach of the widest interval of all that is compared with plain decoding; without end
    /// where nothing is.
    fn widest(&self) -> f64 {
        let mut reaches = Vec::new();
        for (setting, plain) in report::compared(&self.config) {
            for temperature in &self.config.temperatures {
                let of = self.measures.iter().filter(|it| it.temperature == *temperature);
                let speedup = interval::speedup(&interval::pairs(of, setting, plain));
                reaches.push(speedup.map_or(f64::INFINITY, |it| it.reach()));
            }
        }
        reaches.into_iter().reduce(f64::max).unwrap_or(f64::INFINITY)
    }
}

fn said(progress: &Progress, texts: usize) -> String {
    let reach = match progress.reach {
        reach if reach.is_finite() => {
            format!("; the widest interval reaches {:.1} %", 100.0 * reach)
        }
        _ => String::new(),
    };
    format!("repeat {}: {texts} outputs measured{reach}", progress.repeats)
}
