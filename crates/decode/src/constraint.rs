//! What a text is held to: a grammar, a schema, a choice.
//!
//! A constraint forbids tokens by what was said before, for target and drafter alike, so that
//! constrained decoding is decoding from another law: any rule stays lossless for it. What forbids
//! them is elsewhere (`forerun-grammar`).

use std::fmt;
use std::time::Duration;

use forerun_verify::Token;

/// Holds one text to a form.
///
/// It knows the committed output by [`Constraint::commit`]; a `path` is what is drafted after it. It
/// must be a function of those alone: a row in the middle of a draft is then masked as it would be
/// once the draft is committed.
pub trait Constraint: Send {
    /// Forbids what may not follow the committed output and then `path`: sets its logits to `-inf`.
    /// The row is left alone where `path` itself is not allowed or goes beyond the end, as no token
    /// of such a row is ever committed.
    ///
    /// # Errors
    /// Where the constraint cannot be worked out any further; the text then fails.
    fn mask(&mut self, path: &[Token], logits: &mut [f32]) -> Result<(), ConstraintError>;

    /// How many of these tokens may follow the committed output, one after the other.
    fn admitted(&mut self, path: &[Token]) -> usize;

    /// Takes in what was committed. Where that goes wrong, the next mask says so.
    fn commit(&mut self, tokens: &[Token]);

    /// Begins to work the next mask out on another thread, for one that takes long, and says whether it
    /// is there. Until then all else that is asked of it waits. By default it always is, and is worked
    /// out once it is asked for.
    fn prepare(&mut self) -> bool {
        true
    }

    /// The longest that the mask of one position took since this was last asked; nothing for a
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

/// Why a text cannot be held to its form any further.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("constraint: {reason}")]
pub struct ConstraintError {
    /// What happened.
    pub reason: String,
}
