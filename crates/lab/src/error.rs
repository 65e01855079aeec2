//! Why a run failed.

use std::error::Error as StdError;
use std::io;
use std::path::{Path, PathBuf};

use forerun_decode::{
    ChatError, DecodeError, DraftFailure, DriftError, EngineError, RuleMismatch, SamplingError,
    TokenizeError, UnknownRule,
};

/// What a run returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a run failed. What was measured before it is written all the same.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It was cancelled, or its time was over.
    #[error("interrupted")]
    Cancelled,
    /// A file cannot be used.
    #[error("cannot {doing} {}", path.display())]
    File {
        /// What was to be done with it.
        doing: &'static str,
        /// Which.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file is not what it should be.
    #[error("{what}")]
    Malformed {
        /// Which file, and what it should be.
        what: String,
        /// Where it is not.
        source: serde_json::Error,
    },
    /// A line of a file is not what it should be.
    #[error("{}, line {line}", path.display())]
    Line {
        /// Which file.
        path: PathBuf,
        /// Which line, from one.
        line: usize,
        /// What is wrong with it.
        source: Box<Error>,
    },
    /// What was asked for cannot be done. The message says what to do.
    #[error("{0}")]
    Refused(String),
    /// A server did not answer.
    #[error("no answer from {url}")]
    Unreachable {
        /// Its address.
        url: String,
        /// Why.
        source: Box<ureq::Error>,
    },
    /// A server's stream broke off.
    #[error("the stream broke off")]
    Stream(#[source] io::Error),
    /// The models could not be loaded or run by whoever provides them.
    #[error(transparent)]
    Models(Box<dyn StdError + Send + Sync>),
    /// A result could not be written.
    #[error("cannot write the result")]
    Output(#[source] io::Error),
    /// A measurement could not be kept.
    #[error("cannot write what is measured")]
    Journal(#[source] io::Error),
    /// What passes cost could not be measured.
    #[error("measuring what passes cost")]
    Costs(#[source] DecodeError),
    /// A round failed.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A pass failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A drafter failed.
    #[error(transparent)]
    Draft(#[from] DraftFailure),
    /// Rows could not be compared.
    #[error(transparent)]
    Drift(#[from] DriftError),
    /// A prompt cannot be tokenised.
    #[error("prompt")]
    Prompt(#[source] TokenizeError),
    /// The chat template cannot be used.
    #[error("chat template")]
    Chat(#[source] ChatError),
    /// The sampling does not fit the vocabulary.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// A rule cannot judge such drafts.
    #[error(transparent)]
    Rule(#[from] RuleMismatch),
    /// An unknown rule.
    #[error(transparent)]
    UnknownRule(#[from] UnknownRule),
    /// JSON that cannot be written or read.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

impl Error {
    /// What was asked for cannot be done.
    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self::Refused(message.into())
    }

    /// Of a file that cannot be read.
    pub(crate) fn reading(path: &Path) -> impl FnOnce(io::Error) -> Self {
        |source| Self::File { doing: "read", path: path.to_owned(), source }
    }

    /// Of a file that cannot be written.
    pub(crate) fn writing(path: &Path) -> impl FnOnce(io::Error) -> Self {
        |source| Self::File { doing: "write", path: path.to_owned(), source }
    }
}
