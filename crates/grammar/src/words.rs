//! What each token of a vocabulary is to a grammar.

use forerun_decode::Token;

/// What each token is.
pub(crate) struct Words {
    kinds: Vec<Kind>,
}

/// What a token is to a grammar.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It has bytes.
    Word,
    /// It ends a text.
    End,
    /// It is never allowed: it has no bytes, or none of a text.
    Other,
}

impl Words {
    pub(crate) fn new(kinds: Vec<Kind>) -> Self {
        Self { kinds }
    }

    /// How many tokens there are.
    pub(crate) fn len(&self) -> usize {
        self.kinds.len()
    }

    /// What the token is; one out of range is never allowed.
    pub(crate) fn kind(&self, token: Token) -> Kind {
        self.kinds.get(token.index()).copied().unwrap_or(Kind::Other)
    }
}
