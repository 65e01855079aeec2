//! What drafters of fixed tokens share: how long a match is, what was last in a slot, and a path.

use std::ops::RangeInclusive;

use forerun_verify::{Node, Token};

use crate::draft::{DraftFailure, DraftRequest, FixedTokens};

/// How many of the last tokens are looked for: the longest match that is tried first, and the
/// shortest that counts.
///
/// ```
/// use forerun_decode::MatchLen;
/// let match_len = MatchLen::new(2..=5)?;
/// assert_eq!((match_len.min(), match_len.max()), (2, 5));
/// assert!(MatchLen::new(5..=2).is_err());
/// # Ok::<(), forerun_decode::MatchLenError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatchLen {
    min: usize,
    max: usize,
}

/// Why lengths of matches were refused.
///
/// ```
/// # use forerun_decode::MatchLen;
/// let error = MatchLen::new(0..=3).unwrap_err();
/// assert_eq!(error.to_string(), "matches of 0 to 3 tokens; expected 1 <= min <= max <= 64");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("matches of {min} to {max} tokens; expected 1 <= min <= max <= {}", MatchLen::LIMIT)]
pub struct MatchLenError {
    /// The shortest that was to count.
    pub min: usize,
    /// The longest that was to be tried.
    pub max: usize,
}

impl MatchLen {
    /// The longest match anyone may try.
    ///
    /// ```
    /// # use forerun_decode::MatchLen;
    /// assert!(MatchLen::new(1..=MatchLen::LIMIT).is_ok());
    /// assert!(MatchLen::new(1..=MatchLen::LIMIT + 1).is_err());
    /// ```
    pub const LIMIT: usize = 64;

    /// From the shortest match that counts to the longest that is tried.
    ///
    /// # Errors
    /// If the range is empty, begins at 0 or goes beyond [`MatchLen::LIMIT`].
    ///
    /// ```
    /// # use forerun_decode::MatchLen;
    /// assert_eq!(MatchLen::new(3..=3).map(MatchLen::max), Ok(3));
    /// ```
    pub fn new(range: RangeInclusive<usize>) -> Result<Self, MatchLenError> {
        let (min, max) = range.into_inner();
        if 1 <= min && min <= max && max <= Self::LIMIT {
            Ok(Self { min, max })
        } else {
            Err(MatchLenError { min, max })
        }
    }

    /// For defaults, which are right.
    pub(super) const fn of(min: usize, max: usize) -> Self {
        assert!(1 <= min && min <= max && max <= Self::LIMIT, "the range is right");
        Self { min, max }
    }

    /// The shortest match that counts.
    ///
    /// ```
    /// # use forerun_decode::MatchLen;
    /// assert_eq!(MatchLen::new(2..=3).map(MatchLen::min), Ok(2));
    /// ```
    pub fn min(self) -> usize {
        self.min
    }

    /// The longest match that is tried.
    ///
    /// ```
    /// # use forerun_decode::MatchLen;
    /// assert_eq!(MatchLen::new(2..=3).map(MatchLen::max), Ok(3));
    /// ```
    pub fn max(self) -> usize {
        self.max
    }
}

/// How many of the last tokens seen are compared in every round.
const TAIL: usize = 64;

/// How many others are compared in a round, each time the next ones.
const WINDOW: usize = 1_024;

/// The tokens a drafter has seen in a slot.
///
/// Whether they are still there is found out at a cost that does not grow with the sequence: in
/// every round their length, their end and a window that wanders are compared, so a sequence of up
/// to [`TAIL`] + [`WINDOW`] tokens is compared as a whole. A longer one that was replaced by
/// another of at least its length and with the same tokens at its end may go unnoticed for some
/// rounds; until then the drafts are worse, and no less lossless.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    tokens: Vec<Token>,
    window: usize,
}

impl Seen {
    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Takes the tokens that are in a slot now, and returns how many of those seen before are among
    /// them. If that is fewer than were seen, what was made of the others is wrong.
    pub(super) fn update(&mut self, tokens: &[Token]) -> usize {
        let common = if self.begins(tokens) {
            self.tokens.len()
        } else {
            self.tokens.iter().zip(tokens).take_while(|(seen, token)| seen == token).count()
        };
        self.tokens.truncate(common);
        self.tokens.extend_from_slice(&tokens[common..]);
        common
    }

    /// Whether `tokens` begins with the tokens seen, as far as is worth the time.
    fn begins(&mut self, tokens: &[Token]) -> bool {
        let len = self.tokens.len();
        if tokens.len() < len {
            return false;
        }
        let tail = len.saturating_sub(TAIL);
        let start = if self.window < tail { self.window } else { 0 };
        let window = start..tail.min(start + WINDOW);
        self.window = window.end;
        self.tokens[tail..] == tokens[tail..len] && self.tokens[window.clone()] == tokens[window]
    }
}

/// Adds a path of fixed tokens from the root, as far as the constraint allows.
pub(super) fn add_path(request: &mut DraftRequest<'_>, mut path: FixedTokens) {
    if let Some(constraint) = &mut request.constraint {
        path.tokens.truncate(constraint.admitted(&path.tokens));
    }
    let mut node = Node::ROOT;
    for token in &path.tokens {
        match request.tree.fixed(node, *token) {
            Ok(child) => node = child,
            Err(error) => {
                request.failure = Some(DraftFailure::Row(error.to_string()));
                break;
            }
        }
    }
    if !path.tokens.is_empty() {
        request.fixed_paths.push(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(ids: impl IntoIterator<Item = u32>) -> Vec<Token> {
        ids.into_iter().map(Token).collect()
    }

    #[test]
    fn what_is_still_true_is_kept() {
        let mut seen = Seen::default();
        assert_eq!(seen.update(&tokens([1, 2])), 0);
        assert_eq!(seen.update(&tokens([1, 2, 3, 4])), 2, "it grew");
        assert_eq!(seen.update(&tokens([1, 2, 3])), 3, "it was cut");
        assert_eq!(seen.len(), 3);
        assert_eq!(seen.update(&tokens([1, 5, 3, 4])), 1, "it was replaced");
        assert_eq!(seen.update(&[]), 0);
        assert_eq!(seen.len(), 0);
    }

    #[test]
    fn short_sequences_are_compared_as_a_whole() {
        let before = tokens(0..1_088);
        for changed in [0, 500, 1_023, 1_024, 1_087] {
            let mut seen = Seen::default();
            seen.update(&before);
            let mut after = before.clone();
            after[changed] = Token(9_999);
            after.push(Token(1));
            assert_eq!(seen.update(&after), changed);
        }
    }

    #[test]
    fn a_long_replaced_sequence_is_noticed_in_time() {
        let before = tokens(0..10_000);
        let mut seen = Seen::default();
        seen.update(&before);
        let mut after = before.clone();
        after[5_000] = Token(0);
        let noticed = (0..20).find(|_| seen.update(&after) == 5_000).unwrap();
        assert!(noticed < 10, "after {noticed} rounds");
    }
}
