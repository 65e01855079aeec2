//! What is wrong with a command line that can be read.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use forerun_decode::{LossyMismatch, RuleMismatch, SamplingError, StopError};

use super::hub::HubError;

/// Why flags are refused. Nothing was loaded.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum ConfigError {
    /// A number is out of range.
    #[error("{flag} is {value}; expected {expected}")]
    OutOfRange {
        /// The flag.
        flag: &'static str,
        /// What was said.
        value: String,
        /// What may be said.
        expected: String,
    },
    /// No model was named.
    #[error(
        "no model is named: add its GGUF file, as MODEL or with --model <FILE>, or its name on the hub \
         with -hf <USER/REPO>"
    )]
    NoModel,
    /// Two models were named.
    #[error("two models are named, {} and --model {}: name one", target.display(), model.display())]
    ModelTwice {
        /// By its place.
        target: PathBuf,
        /// By the flag.
        model: PathBuf,
    },
    /// A file and a name on the hub were given.
    #[error("two models are named, {} and --hf-repo {name}: name one", file.display())]
    FileAndName {
        /// The file.
        file: PathBuf,
        /// The name.
        name: String,
    },
    /// What stands in the place of a file is the name of a model on the hub.
    #[error("there is no file {name}: for the model of that name on the hub, use -hf {name}")]
    NameAsFile {
        /// What was said.
        name: String,
    },
    /// A model could not be brought.
    #[error(transparent)]
    Hub(HubError),
    /// A model and a server were named.
    #[error("--model cannot be used with --url: name a model or a server")]
    ModelAndServer,
    /// A drafter lacks what it drafts from.
    #[error("--spec-type {drafter} drafts from a file: add {flag} FILE")]
    NothingToDraftFrom {
        /// The drafter.
        drafter: &'static str,
        /// The flag that names the file.
        flag: &'static str,
    },
    /// A flag would do nothing.
    #[error("{flag} would do nothing, because {reason}: {instead}")]
    Unused {
        /// The flag.
        flag: &'static str,
        /// Why.
        reason: &'static str,
        /// What to do.
        instead: &'static str,
    },
    /// A drafter was named twice.
    #[error("--spec-type names {drafter} twice: name it once")]
    DrafterTwice {
        /// The drafter.
        drafter: &'static str,
    },
    /// `none` stands beside a drafter.
    #[error("--spec-type names none and {drafter}: name none alone, or leave it out")]
    NoneAndSome {
        /// The drafter.
        drafter: &'static str,
    },
    /// A file is not the kind of drafter it was called.
    #[error("{} is no {drafter}: leave --spec-type out, and what the file is will be found out", .file.display())]
    OtherDrafter {
        /// The file.
        file: PathBuf,
        /// What it was called.
        drafter: &'static str,
    },
    /// The rule is not for such drafts.
    #[error("--verify {0}")]
    RuleAndDraft(#[from] RuleMismatch),
    /// The lossy mode does nothing here, or could not keep its bound.
    #[error("--lossy {0}")]
    Lossy(#[from] LossyMismatch),
    /// One JSON object for many answers.
    #[error("--json is for one answer: add --prompt")]
    JsonNeedsPrompt,
    /// Sampling settings that mean nothing.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// Stop strings that cannot be taken.
    #[error(transparent)]
    Stop(#[from] StopError),
    /// A bias that cannot be read.
    #[error("--logit-bias is {text:?}; expected TOKEN_ID+BIAS or TOKEN_ID-BIAS, such as 15043-1")]
    Bias {
        /// What was said.
        text: String,
    },
}

impl ConfigError {
    /// Whether the command line is to blame.
    pub(crate) fn is_usage(&self) -> bool {
        !matches!(self, Self::Hub(_))
    }

    /// A value that is not what was expected.
    pub(crate) fn out_of_range(
        flag: &'static str,
        value: impl Display,
        expected: impl Into<String>,
    ) -> Self {
        Self::OutOfRange { flag, value: value.to_string(), expected: expected.into() }
    }
}

/// The value, if it is in the range.
pub(crate) fn within<T: PartialOrd + Display>(
    flag: &'static str,
    value: T,
    range: RangeInclusive<T>,
) -> Result<T, ConfigError> {
    if range.contains(&value) {
        return Ok(value);
    }
    let expected = format!("{} to {}", range.start(), range.end());
    Err(ConfigError::out_of_range(flag, value, expected))
}
