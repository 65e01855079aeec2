//! How drafters are named.

/// Names one of a decoder's drafters: its place among them, from zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DrafterId(pub usize);
