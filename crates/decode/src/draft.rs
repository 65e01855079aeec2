//! What a drafter is, and one file for each kind.

mod automaton;
mod branch;
mod fixed;
mod index;
mod model;
mod ngram;
mod predicted;
mod suffix;

use std::time::Duration;

use forerun_verify::{Chance, Dist, Draft, DraftBuilder, Noise, Scheme, Token};

use crate::constraint::Constraint;
use crate::cost::{CostCurve, Pass};
use crate::engine::{EngineError, Slot};
use crate::sampling::Sampling;

pub use fixed::{MatchLen, MatchLenError};
pub use model::ModelDrafter;
pub use ngram::NgramDrafter;
pub use predicted::PredictedDrafter;
pub use suffix::{SuffixConfig, SuffixDrafter};

/// One sequence's wish for a draft, and the tree it grows in.
///
/// Several drafters may fill one ask, one after the other; each adds a path (or several) from the
/// root. What a drafter may look at before it decides to add a token is stated at
/// [`forerun_verify::Scheme`].
pub struct Ask<'a> {
    /// The sequence's slot. A drafter with a cache of its own uses the same number.
    pub slot: Slot,
    /// The committed tokens, prompt included; never empty.
    pub tokens: &'a [Token],
    /// How many of `tokens` are the prompt.
    pub prompt_len: usize,
    /// How the target's tokens are drawn; a drafter that has rows shapes them alike.
    pub sampling: &'a Sampling,
    /// What the text is held to, for rows and fixed paths alike.
    pub constraint: Option<&'a mut dyn Constraint>,
    /// Most tokens of a path; at least one.
    pub len_max: usize,
    /// Paths a drafter with a model draws, by the scheme of `tree`.
    pub width: usize,
    /// See [`crate::Plan::glance`].
    pub glance: Option<usize>,
    /// Where tokens are drawn from.
    pub draw: Draw<'a>,
    /// The draft so far.
    pub tree: DraftBuilder,
    /// The fixed paths in it, as they were added.
    pub guesses: Vec<Vec<Token>>,
    /// Why this sequence alone could not be drafted for; it goes on without the drafter.
    pub failure: Option<DraftFailure>,
}

/// How drafted tokens are drawn from a drafter's rows.
pub enum Draw<'a> {
    /// At random.
    Chance(&'a mut dyn Chance),
    /// As the coupled rule would choose: by noise that depends on seed and position alone.
    Noise(Noise),
}

impl<'a> Ask<'a> {
    /// For the one token that follows, on one path: to have a drafter read a
    /// text, or to learn what it would say.
    pub fn next_token(
        slot: Slot,
        tokens: &'a [Token],
        sampling: &'a Sampling,
        chance: &'a mut dyn Chance,
        vocab_len: usize,
    ) -> Self {
        Self {
            slot,
            tokens,
            prompt_len: tokens.len(),
            sampling,
            constraint: None,
            len_max: 1,
            width: 1,
            glance: None,
            draw: Draw::Chance(chance),
            tree: Draft::start(Scheme::Slots, vocab_len),
            guesses: Vec::new(),
            failure: None,
        }
    }
}

impl Ask<'_> {
    /// Draws the token at `depth` of a path (0 for the first) from a drafter's row.
    pub fn draw(&mut self, depth: usize, row: &Dist) -> Token {
        match &mut self.draw {
            Draw::Chance(chance) => row.draw(*chance),
            Draw::Noise(noise) => noise.choose((self.tokens.len() + depth) as u64, row),
        }
    }

    /// Draws another token there than those `taken`, or `None` where no other is possible. Noise
    /// has one choice for a place, so it gives none either.
    pub fn draw_except(&mut self, taken: &[Token], row: &Dist) -> Option<Token> {
        match &mut self.draw {
            Draw::Chance(chance) => row.draw_except(taken, *chance),
            Draw::Noise(_) => None,
        }
    }
}

/// Why a drafter made no draft. The sequence goes on without it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DraftFailure {
    /// Its model failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Its model gave a row that is no law, or a token outside the target's vocabulary.
    #[error("{0}")]
    Row(String),
    /// Its model's cache holds fewer paths than were asked for.
    #[error("{width} paths were asked for, and the draft model's cache holds {paths_max}")]
    Paths {
        /// The paths asked for.
        width: usize,
        /// What the cache holds.
        paths_max: usize,
    },
}

/// What makes drafts.
///
/// A drafter keeps what it needs by slot and finds out from [`Ask::tokens`] what is still true.
pub trait Drafter: Send {
    /// Its name, as flags, statistics and metrics say it.
    fn name(&self) -> &'static str;

    /// Adds a path to each ask's tree, or none where it has nothing to say. All asks of a round
    /// come in one call, so that a model can serve them in shared passes.
    ///
    /// # Errors
    /// Where a draft cannot be made; the trees may have grown up to that point.
    fn draft(&mut self, asks: &mut [Ask<'_>]) -> Result<(), DraftFailure>;

    /// The passes of its model since this was last asked, where it has one.
    fn passes(&mut self) -> Vec<Pass> {
        Vec::new()
    }

    /// Measures what its model's passes cost, where it has one. Its caches must be empty, and are
    /// so afterwards.
    ///
    /// # Errors
    /// Where a pass fails.
    fn measure(&mut self, _may_take: Duration) -> Result<Option<CostCurve>, EngineError> {
        Ok(None)
    }

    /// How many tokens of a text it would have to read before it could draft.
    fn behind(&self, _slot: Slot, _tokens: &[Token]) -> usize {
        0
    }

    /// Tells the output of a text that ended, for drafters that learn.
    fn ended(&mut self, _output: &[Token]) {}

    /// Tells what the output of the text in a slot is expected to be, for drafters that draft from
    /// it; nothing is expected where there are no tokens.
    fn predict(&mut self, _slot: Slot, _tokens: &[Token]) {}

    /// Tells that the first `len` tokens of slot `from` are also those of the text that begins in
    /// `to`, for drafters with caches.
    fn copy(&mut self, _from: Slot, _to: Slot, _len: usize) {}

    /// Tells that what it keeps of a slot must not serve the next text there.
    fn forget(&mut self, _slot: Slot) {}
}
