//! The vocabulary of a model's file, to tell families apart before anything is loaded.

use std::fmt::Write as _;
use std::path::Path;

use sha2::{Digest as _, Sha256};

use crate::model::{LoadError, read_file};

/// What converters call tokens that only make a vocabulary as long as its embeddings.
const PADDING: &[u8] = b"[PAD";

/// Vocabularies of one family may differ by a few tokens at the end.
const SHARED_PERCENT_MIN: usize = 95;

/// The names of a model's tokens, by their ids.
///
/// ```
/// use forerun_llama::TokenNames;
///
/// let target = TokenNames::new(["a", "b", "c"]);
/// let padded = TokenNames::new(["a", "b", "c", "[PAD3]"]);
/// assert!(target.agrees_with(&padded));
/// assert_eq!(target.sha256(), padded.sha256());
/// assert!(!target.agrees_with(&TokenNames::new(["a", "c", "b"])));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenNames(Vec<Vec<u8>>);

impl TokenNames {
    /// The vocabulary with these names.
    pub fn new<N: Into<Vec<u8>>>(names: impl IntoIterator<Item = N>) -> Self {
        let mut names: Vec<Vec<u8>> = names.into_iter().map(Into::into).collect();
        while names.last().is_some_and(|name| name.starts_with(PADDING)) {
            names.pop();
        }
        Self(names)
    }

    /// Reads those of a file.
    ///
    /// # Errors
    /// [`LoadError`] tells what is wrong with the file.
    pub fn read(path: &Path) -> Result<Self, LoadError> {
        Ok(Self::new(read_file(path)?.1))
    }

    /// Whether a token of one means the same in the other: every id that both have is called the
    /// same, and all but a few are in both. Padding does not count.
    pub fn agrees_with(&self, other: &Self) -> bool {
        let (one, two) = (self.0.len(), other.0.len());
        let (shared, all) = (one.min(two), one.max(two));
        shared > 0
            && 100 * shared >= SHARED_PERCENT_MIN * all
            && self.0[..shared] == other.0[..shared]
    }

    /// A name for the vocabulary, the same on every machine. Padding does not count.
    pub fn sha256(&self) -> String {
        let mut hash = Sha256::new();
        for name in &self.0 {
            hash.update((name.len() as u64).to_le_bytes());
            hash.update(name);
        }
        hash.finalize().iter().fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_tokens_more_at_the_end_are_the_same_family() {
        let names = |count: usize| TokenNames::new((0..count).map(|id| format!("t{id}")));
        assert!(names(100).agrees_with(&names(95)) && names(95).agrees_with(&names(100)));
        assert!(!names(100).agrees_with(&names(94)) && !names(94).agrees_with(&names(100)));
        assert!(!names(0).agrees_with(&names(0)), "nothing says that it is the same");
        assert_ne!(names(100).sha256(), names(99).sha256());
    }

    #[test]
    fn names_are_told_apart_by_where_they_end() {
        let (one, two) = (TokenNames::new(["ab", "c"]), TokenNames::new(["a", "bc"]));
        assert_ne!(one.sha256(), two.sha256());
        assert_eq!(TokenNames::new(["[PAD0]", "a"]).0.len(), 2, "only the end is padding");
    }
}
