//! When a test stops, what counts as proof, and what it came to.

use serde::Serialize;

use crate::span::Limit;

/// The share of outputs by which two samples must differ to be found: at the default false-alarm rate 356
/// pairs of outputs tell 15 % apart, which a server of a model of 135 M parameters answers in ten minutes
/// on two cores.
pub const DIFFERENCE: f64 = 0.15;

/// When to stop, and what counts as proof.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// How often a right decoder may be accused.
    pub false_alarm: f64,
    /// How small a fault must be found: a share of wrong tokens, or of outputs that differ.
    pub power: f64,
    /// The longest the command may take.
    pub limit: Limit,
    /// Tokens of a text.
    pub text_len: usize,
}

impl Limits {
    /// What evidence must reach, as a logarithm.
    pub(super) fn proof(&self) -> f64 {
        (1.0 / self.false_alarm).ln()
    }
}

/// Why a test ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Ended {
    /// It is proved wrong.
    Proof,
    /// It would have found the share of wrong tokens that was asked for.
    Power,
    /// As many pairs were seen as were asked for.
    Pairs,
    /// The time was over.
    Time,
    /// The user had enough.
    Interrupted,
}

impl Ended {
    /// What a test came to that ended so.
    pub(super) fn verdict(self) -> Verdict {
        match self {
            Self::Proof => Verdict::Failed,
            Self::Power => Verdict::Passed,
            Self::Pairs | Self::Time | Self::Interrupted => Verdict::Inconclusive,
        }
    }
}

/// What a test came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Nothing wrong was found, and as little as was asked for would have been.
    Passed,
    /// Something is proved wrong.
    Failed,
    /// Nothing wrong was found, but not enough was tested.
    Inconclusive,
}

impl Verdict {
    /// It in a word: of the output's distribution, or of a lossy mode's promise.
    pub(super) fn word(self, lossy: bool) -> &'static str {
        match (self, lossy) {
            (Self::Passed, false) => "PASSED",
            (Self::Failed, false) => "FAILED",
            (Self::Inconclusive, false) => "INCONCLUSIVE",
            (Self::Passed, true) => "WITHIN",
            (Self::Failed, true) => "EXCEEDED",
            (Self::Inconclusive, true) => "NOT SHOWN",
        }
    }

    /// How it looks on the page.
    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Passed => "good",
            Self::Failed => "bad",
            Self::Inconclusive => "open",
        }
    }
}
