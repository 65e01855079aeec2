//! What an output must conform to: a grammar, a schema, a choice.
//!
//! A constraint forbids tokens by the output before them, for target and drafter alike, so that
//! constrained decoding is decoding from another distribution: any rule stays lossless for it. The
//! grammars themselves are elsewhere (`forerun-grammar`).

mod min_tokens;

use std::fmt;
use std::time::Duration;

pub use min_tokens::MinTokens;

use forerun_verify::Token;

/// Constrains the output of one sequence.
///
/// It is told the committed output by [`Constraint::commit`]; a `path` is what is drafted after it.
/// It must be a function of those alone: a row in the middle of a draft is then masked as it would
/// be once the draft is committed.
pub trait Constraint: Send {
    /// Forbids what may not follow the committed output and then `path`: sets its logits to `-inf`.
    /// The row stays as it is if `path` itself is not allowed or goes beyond the end, as no token
    /// of such a row is ever committed.
    ///
    /// # Errors
    /// If the constraint cannot be computed any further; the sequence then fails.
    fn mask(&mut self, path: &[Token], logits: &mut [f32]) -> Result<(), ConstraintError>;

    /// How many of these tokens may follow the committed output, one after the other.
    fn admitted(&mut self, path: &[Token]) -> usize;

    /// Takes over what was committed. If that fails, the next mask returns the error.
    fn commit(&mut self, tokens: &[Token]);

    /// Starts to compute the next mask on another thread if it takes long, and returns whether it
    /// is ready. Until it is, all other calls wait for it. By default it always is, and the mask is
    /// computed when it is needed.
    fn prepare(&mut self) -> bool {
        true
    }

    /// Returns the longest that the mask of one position took since the last call; zero for a
    /// constraint that does not measure it.
    fn mask_time(&mut self) -> Duration {
        Duration::ZERO
    }
}

impl fmt::Debug for dyn Constraint + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Constraint")
    }
}

/// Why a constraint cannot be computed any further.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("constraint: {reason}")]
pub struct ConstraintError {
    /// What happened.
    pub reason: String,
}
