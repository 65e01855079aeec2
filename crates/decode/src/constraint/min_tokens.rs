//! A least length of the output.

use std::sync::Arc;
use std::time::Duration;

use forerun_verify::Token;

use super::{Constraint, ConstraintError};

/// Forbids what would end the output before it has so many tokens, beside what another constraint
/// forbids. Where that one allows nothing else, the output ends all the same.
///
/// ```
/// use forerun_decode::{Constraint, MinTokens, Token};
///
/// let end = Token(2);
/// let mut constraint = MinTokens::new(2, [end].into());
/// constraint.commit(&[Token(0)]);
/// let mut logits = [0.0; 3];
/// constraint.mask(&[], &mut logits)?;
/// assert_eq!(logits, [0.0, 0.0, f32::NEG_INFINITY]);
/// // After one token more it may end.
/// assert_eq!(constraint.admitted(&[Token(1), end]), 2);
/// # Ok::<(), forerun_decode::ConstraintError>(())
/// ```
#[derive(Debug)]
pub struct MinTokens {
    min: usize,
    ends: Arc<[Token]>,
    committed: usize,
    inner: Option<Box<dyn Constraint>>,
}

impl MinTokens {
    /// At least `min` tokens before one of `ends`, for a sequence without output.
    pub fn new(min: usize, ends: Arc<[Token]>) -> Self {
        Self { min, ends, committed: 0, inner: None }
    }

    /// The same beside another constraint, for a sequence whose `output` that one knows.
    #[must_use]
    pub fn beside(mut self, inner: Option<Box<dyn Constraint>>, output: &[Token]) -> Self {
        self.inner = inner;
        self.committed = output.len();
        self
    }

    /// Whether the token after so many drafted ones may not end the output.
    fn holds(&self, drafted: usize) -> bool {
        self.committed + drafted < self.min
    }

    fn is_end(&self, token: usize) -> bool {
        self.ends.iter().any(|end| end.index() == token)
    }
}

impl Constraint for MinTokens {
    fn mask(&mut self, path: &[Token], logits: &mut [f32]) -> Result<(), ConstraintError> {
        if let Some(inner) = &mut self.inner {
            inner.mask(path, logits)?;
        }
        let allowed =
            |(token, logit): (usize, &f32)| *logit > f32::NEG_INFINITY && !self.is_end(token);
        if self.holds(path.len()) && logits.iter().enumerate().any(allowed) {
            self.ends.iter().for_each(|end| logits[end.index()] = f32::NEG_INFINITY);
        }
        Ok(())
    }

    fn admitted(&mut self, path: &[Token]) -> usize {
        let early =
            |(index, token): (usize, &Token)| self.holds(index) && self.ends.contains(token);
        let until = path.iter().enumerate().position(early).unwrap_or(path.len());
        match &mut self.inner {
            Some(inner) => inner.admitted(&path[..until]),
            None => until,
        }
    }

    fn commit(&mut self, tokens: &[Token]) {
        self.committed += tokens.len();
        if let Some(inner) = &mut self.inner {
            inner.commit(tokens);
        }
    }

    fn prepare(&mut self) -> bool {
        self.inner.as_mut().is_none_or(|inner| inner.prepare())
    }

    fn mask_time(&mut self) -> Duration {
        self.inner.as_mut().map_or(Duration::ZERO, |inner| inner.mask_time())
    }
}
