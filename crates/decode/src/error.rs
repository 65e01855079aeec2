//! Why a round failed.

use forerun_verify::{DraftError, Refusal, RowError};

use crate::constraint::ConstraintError;
use crate::engine::EngineError;

/// Why a round failed. Nothing was committed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// There is nothing to continue.
    #[error("the prompt is empty: give at least one token")]
    EmptyPrompt,
    /// The sequence does not fit.
    #[error(
        "{len} tokens do not fit a context of {context_len}: shorten the prompt or raise --ctx-size"
    )]
    ContextFull {
        /// Its tokens.
        len: usize,
        /// What a slot has room for.
        context_len: usize,
    },
    /// The target's memory cannot forget rejected tokens.
    #[error(
        "the target's memory is recurrent and cannot forget rejected drafts: decode without drafters"
    )]
    CannotDraft,
    /// The target's pass failed.
    #[error("target: {0}")]
    Engine(#[from] EngineError),
    /// The constraint cannot be computed any further.
    #[error(transparent)]
    Constraint(#[from] ConstraintError),
    /// The target gave a row that is no distribution.
    #[error("target: {0}")]
    Row(#[from] RowError),
    /// The rule is not lossless for the drafts it was given.
    #[error(transparent)]
    Rule(#[from] Refusal),
    /// The drafters did not draw by the policy's scheme.
    #[error("draft: {0}")]
    Draft(#[from] DraftError),
}
