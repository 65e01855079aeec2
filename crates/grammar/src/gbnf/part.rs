//! What parsed rules are made of, and what may be spent on finding that out.

use super::Times;

/// What is left to be spent.
pub(super) struct Budget(pub(super) usize);

impl Budget {
    /// None where there is not enough left.
    pub(super) fn spend(&mut self, cost: usize) -> Option<()> {
        self.0 = self.0.checked_sub(cost)?;
        Some(())
    }
}

/// What a part of a parsed rule is made of.
#[derive(Clone)]
pub(super) enum Part {
    /// A lexeme, by index.
    Lexeme(usize),
    /// One after the other; nothing if there are none.
    Seq(Vec<Part>),
    /// One of these.
    Alt(Vec<Part>),
    /// The same, this many times.
    Repeat(Box<Part>, Times),
    /// A rule, by index.
    Rule(usize),
}

impl Part {
    /// Calls `visit` for each lexeme.
    pub(super) fn lexemes(&self, visit: &mut impl FnMut(usize)) {
        match self {
            Self::Lexeme(index) => visit(*index),
            Self::Seq(parts) | Self::Alt(parts) => {
                parts.iter().for_each(|part| part.lexemes(visit));
            }
            Self::Repeat(part, _) => part.lexemes(visit),
            Self::Rule(_) => {}
        }
    }

    /// Puts pieces in the place of lexemes that have them.
    pub(super) fn replace(&mut self, pieces: &[Option<Part>]) {
        match self {
            Self::Lexeme(index) => {
                if let Some(Some(part)) = pieces.get(*index) {
                    *self = part.clone();
                }
            }
            Self::Seq(parts) | Self::Alt(parts) => {
                parts.iter_mut().for_each(|part| part.replace(pieces));
            }
            Self::Repeat(part, _) => part.replace(pieces),
            Self::Rule(_) => {}
        }
    }
}
