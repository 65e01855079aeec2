//! Who watches a run: it is told what will happen, how far it is, and what came out.

use std::fmt;
use std::io;
use std::path::Path;

use crate::span::{Limit, Span};
use crate::words::wrapped;

/// What a run tells its owner. Only results must be heard; by default the rest is ignored.
pub trait Observer {
    /// Says what is going to happen, and starts the first phase.
    fn begin(&self, _outline: &Outline) {}

    /// Starts a phase of the outline.
    fn phase(&self, _phase: usize) {}

    /// Shows how far the phase is, and what is being done.
    fn show(&self, _share: f64, _detail: &str) {}

    /// Says how many times a file is read in this phase.
    fn expect_files(&self, _count: usize) {}

    /// Shows how far the reading of a file is.
    fn file(&self, _what: &str, _path: &Path, _share: f64) {}

    /// Ends the last phase.
    fn end(&self) {}

    /// Says something that can be left out.
    fn note(&self, _text: &str) {}

    /// Takes a result.
    ///
    /// # Errors
    /// If it cannot be written.
    fn result(&self, text: &str) -> io::Result<()>;
}

/// What a run is going to do.
#[derive(Debug)]
pub struct Outline {
    /// The command.
    pub command: &'static str,
    /// Its phases: a name, and what is done in it.
    pub phases: Vec<(&'static str, String)>,
    /// What it may take.
    pub limit: Limit,
    /// What ends it before that, and how to shorten it.
    pub notes: Vec<String>,
}

impl fmt::Display for Outline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, limit) = (self.phases.len(), Span::from(self.limit.time));
        write!(f, "{}: {count} phases, at most {limit} in all", self.command)?;
        let width = self.phases.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        for (index, (name, about)) in self.phases.iter().enumerate() {
            write!(f, "\n  {}. {name:<width$}  {about}", index + 1)?;
        }
        self.notes.iter().try_for_each(|note| write!(f, "\n{}", wrapped(note)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_outline_names_phases_limit_and_what_shortens_it() {
        let outline = Outline {
            command: "tune",
            phases: vec![("load", "two models".to_owned()), ("acceptance", "5 prompts".to_owned())],
            limit: Limit::from_now(Duration::from_secs(600)),
            notes: vec!["Ctrl-C ends it".to_owned()],
        };
        assert_eq!(
            outline.to_string(),
            "tune: 2 phases, at most 10m in all\n  1. load        two models\n  \
             2. acceptance  5 prompts\nCtrl-C ends it"
        );
    }
}
