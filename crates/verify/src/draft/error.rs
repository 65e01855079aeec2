//! Why a draft is refused.

use super::{NODES_MAX, Node, Scheme};
use crate::dist::Token;

/// Why a draft was refused.
///
/// ```
/// # use forerun_verify::*;
/// let mut tree = Draft::start(Scheme::Paths, 2);
/// assert!(matches!(tree.fixed(Node::ROOT, Token(0)), Err(DraftError::FixedToken { .. })));
/// ```
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DraftError {
    /// A token is outside the vocabulary.
    #[error("token {} is outside a vocabulary of {vocab_len}", token.0)]
    OutOfRange {
        /// The token.
        token: Token,
        /// The vocabulary's length.
        vocab_len: usize,
    },
    /// A row is of another vocabulary.
    #[error("row of {row_len} tokens; expected the draft's vocabulary of {vocab_len}")]
    Vocabulary {
        /// The row's vocabulary.
        row_len: usize,
        /// The draft's.
        vocab_len: usize,
    },
    /// The row gives the token no probability, so the token was not drawn from it.
    #[error("token {} has probability zero in the row it is said to be drawn from", token.0)]
    Impossible {
        /// The token.
        token: Token,
    },
    /// The scheme has no fixed tokens.
    #[error("fixed token {} in a draft of {scheme:?}; start it with Scheme::Independent", token.0)]
    FixedToken {
        /// The token.
        token: Token,
        /// The draft's scheme.
        scheme: Scheme,
    },
    /// The scheme draws all children of a node from one row.
    #[error(
        "node {} draws from two rows in a draft of {scheme:?}; start it with Scheme::Independent",
        node.0
    )]
    SeveralRows {
        /// The node.
        node: Node,
        /// The draft's scheme.
        scheme: Scheme,
    },
    /// A token was drawn twice at a node though drawn tokens are not put back.
    #[error("token {} was drawn twice without replacement", token.0)]
    DrawnTwice {
        /// The token.
        token: Token,
    },
    /// The candidates are not those of whole paths.
    #[error(
        "node {} was reached by {reached} paths but goes on with {candidates}; whole paths of \
         equal length go on until the last depth, other trees are Scheme::Independent", node.0
    )]
    NotPaths {
        /// The node.
        node: Node,
        /// How many candidates lead to it.
        reached: usize,
        /// How many it has.
        candidates: usize,
    },
    /// More nodes than [`NODES_MAX`].
    #[error("draft of more than {NODES_MAX} nodes")]
    TooManyNodes,
}
