//! What a drafter is, and one file for each kind.

mod automaton;
mod branch;
mod edit;
mod fixed;
mod head;
mod index;
mod model;
mod ngram;
mod rate;
mod suffix;
mod tenants;

use std::sync::Arc;
use std::time::Duration;

use forerun_verify::{Chance, Dist, Draft, DraftBuilder, Noise, Scheme, Token};

use crate::clock::Clock;
use crate::constraint::Constraint;
use crate::cost::{CostCurve, Pass};
pub use crate::drafter_id::DrafterId;
use crate::engine::{EngineError, Slot};
use crate::gate::{SeenToken, Watch};
use crate::price::{Allowance, Price};
use crate::sampling::Sampling;

pub use edit::EditDrafter;
pub use fixed::{MatchLen, MatchLenError};
pub use head::HeadDrafter;
pub use model::ModelDrafter;
pub use ngram::NgramDrafter;
pub use suffix::{SuffixConfig, SuffixDrafter};
pub use tenants::TenantSuffixDrafter;

/// One of a decoder's drafters, as those see it who choose among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrafterInfo {
    /// How plans name it.
    pub id: DrafterId,
    /// What it is.
    pub kind: DrafterKind,
}

/// A draft for one sequence: what is known of the sequence, and the tree that grows.
///
/// Several drafters may add to one draft, one after the other; each adds a path (or several) from
/// the root. What a drafter may look at before it decides to add a token is stated at
/// [`forerun_verify::Scheme`].
pub struct DraftRequest<'a> {
    /// The sequence's slot. A drafter with a cache of its own uses the same number.
    pub slot: Slot,
    /// The committed tokens, prompt included; never empty.
    pub tokens: &'a [Token],
    /// How many of `tokens` are the prompt.
    pub prompt_len: usize,
    /// How the target's tokens are drawn; a drafter that has rows shapes them alike.
    pub sampling: &'a Sampling,
    /// What the output must conform to, for rows and fixed paths alike.
    pub constraint: Option<&'a mut dyn Constraint>,
    /// Most tokens of a path; at least one.
    pub len_max: usize,
    /// Paths a drafter with a model draws, by the scheme of `tree`; most paths of one that knows
    /// several places where a text may go on.
    pub width: usize,
    /// What drafted tokens cost, for a drafter that knows how likely they are.
    pub price: Price,
    /// See [`crate::Plan::drafter_prefill_max`].
    pub drafter_prefill_max: Option<usize>,
    /// Where tokens are drawn from.
    pub draw: Draw<'a>,
    /// The draft so far.
    pub tree: DraftBuilder,
    /// The fixed paths in it, as they were added.
    pub fixed_paths: Vec<FixedTokens>,
    /// What looks at this drafter's paths, and may end them.
    pub gate: Option<Watched>,
    /// Why this sequence alone could not be drafted for; it goes on without the drafter.
    pub failure: Option<DraftFailure>,
}

/// A gate's watch over a drafter's paths, and what it saw.
#[derive(Debug, Clone, PartialEq)]
pub struct Watched {
    pub(crate) watch: Watch,
    pub(crate) seen: Vec<SeenToken>,
    /// Paths it ended.
    pub(crate) stopped: usize,
}

impl Watched {
    /// For a round in which nothing was seen yet.
    pub fn new(watch: Watch) -> Self {
        Self { watch, seen: Vec::new(), stopped: 0 }
    }
}

/// A path of tokens that were not drawn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FixedTokens {
    /// The tokens.
    pub tokens: Vec<Token>,
    /// Which of them come from what the request predicts; none if this is shorter.
    pub predicted: Vec<bool>,
}

impl FixedTokens {
    /// Tokens that no prediction told.
    pub fn of(tokens: Vec<Token>) -> Self {
        Self { tokens, predicted: Vec::new() }
    }
}

/// How drafted tokens are drawn from a drafter's rows.
pub enum Draw<'a> {
    /// At random.
    Chance(&'a mut dyn Chance),
    /// As the coupled rule would choose: by noise that depends on seed and position alone.
    Noise(Noise),
}

impl<'a> DraftRequest<'a> {
    /// For the one token that follows, on one path: to have a drafter prefill a sequence, or to
    /// learn what it would draft.
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
            price: Price::default(),
            drafter_prefill_max: None,
            draw: Draw::Chance(chance),
            tree: Draft::start(Scheme::Independent, vocab_len),
            fixed_paths: Vec::new(),
            gate: None,
            failure: None,
        }
    }
}

impl DraftRequest<'_> {
    /// How much a drafter may propose that knows how likely its tokens are.
    pub fn allowance(&self) -> Allowance {
        Allowance { tokens: self.len_max, paths: self.width, price: self.price.clone() }
    }

    /// Draws the token at `depth` of a path (0 for the first) from a drafter's row.
    pub fn draw(&mut self, depth: usize, row: &Dist) -> Token {
        match &mut self.draw {
            Draw::Chance(chance) => row.draw(*chance),
            Draw::Noise(noise) => noise.choose((self.tokens.len() + depth) as u64, row),
        }
    }

    /// Draws another token there than those `taken`. Returns `None` if no other is possible, and
    /// for noise, which has one choice for a position.
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
    /// Its model gave a row that is no distribution, or a token outside the target's vocabulary.
    #[error("{0}")]
    Row(String),
    /// Its model's cache has room for fewer paths than were requested.
    #[error("{width} paths were requested, and the draft model's cache has room for {paths_max}")]
    Paths {
        /// The paths requested.
        width: usize,
        /// How many there is room for.
        paths_max: usize,
    },
}

/// What a drafter is.
///
/// ```
/// use forerun_decode::DrafterKind;
/// assert_eq!(DrafterKind::Ngram.name(), "ngram");
/// assert!(DrafterKind::DraftModel.is_model() && DrafterKind::Eagle3.is_model());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DrafterKind {
    /// A smaller model.
    DraftModel,
    /// A head that reads hidden states of three of the target's layers.
    Eagle3,
    /// The target's own head for the tokens after the next.
    Mtp,
    /// A head that drafts a block of tokens in one pass.
    Dflash,
    /// N-grams of the sequence itself.
    Ngram,
    /// Suffixes of the sequence and of earlier outputs.
    Suffix,
    /// The text that the output is an edited version of.
    Edit,
    /// One that is written elsewhere, by its name.
    Other(&'static str),
}

impl DrafterKind {
    /// Returns its name, as in flags, statistics and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::DraftModel => "draft-model",
            Self::Eagle3 => "draft-eagle3",
            Self::Mtp => "draft-mtp",
            Self::Dflash => "draft-dflash",
            Self::Ngram => "ngram",
            Self::Suffix => "suffix",
            Self::Edit => "edit",
            Self::Other(name) => name,
        }
    }

    /// Whether it reads the target's hidden states.
    pub fn is_head(self) -> bool {
        matches!(self, Self::Eagle3 | Self::Mtp | Self::Dflash)
    }

    /// Whether it draws paths from a model's rows and has a KV cache.
    pub fn is_model(self) -> bool {
        matches!(self, Self::DraftModel | Self::Eagle3 | Self::Mtp | Self::Dflash)
    }
}

/// What a target's pass showed of a sequence: its hidden states at tokens that are committed.
#[derive(Debug, Clone)]
pub struct Shown<'a> {
    /// The sequence's slot.
    pub slot: Slot,
    /// All committed tokens, also those that have not run yet: the newest, or the rest of a prompt.
    pub tokens: &'a [Token],
    /// Which token the first row belongs to.
    pub start: usize,
    /// The feature rows of tokens that follow each other.
    pub features: Vec<&'a [f32]>,
}

/// Whose outputs a drafter may learn from, and draft from for the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tenant(pub u64);

/// What makes drafts.
///
/// A drafter stores what it needs by slot, and compares that with [`DraftRequest::tokens`] to see
/// what is still valid.
pub trait Drafter: Send {
    /// What it is.
    fn kind(&self) -> DrafterKind;

    /// Adds a path to each request's tree, or none if it has nothing to propose. All requests of a
    /// round come in one call, so that a model can serve them in shared passes.
    ///
    /// # Errors
    /// If a draft cannot be made; the trees may have grown up to that point.
    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), DraftFailure>;

    /// Whether it drafts no more than is worth [`DraftRequest::price`], so that nobody need choose
    /// how long its drafts are.
    fn heeds_price(&self) -> bool {
        false
    }

    /// How many tokens its model runs for a draft of any length, if it drafts in one pass.
    fn block_len(&self) -> Option<usize> {
        None
    }

    /// Returns the passes of its model since the last call, if it has one.
    fn passes(&mut self) -> Vec<Pass> {
        Vec::new()
    }

    /// Measures what its model's passes cost, if it has one. Its caches must be empty, and are
    /// so afterwards.
    ///
    /// # Errors
    /// If a pass fails.
    fn measure(&mut self, _may_take: Duration) -> Result<Option<CostCurve>, EngineError> {
        Ok(None)
    }

    /// Shows what a round's pass of the target says of its sequences, for drafters that read hidden
    /// states. All sequences of the round come in one call, after it.
    fn show(&mut self, _shown: &[Shown<'_>]) {}

    /// Returns the first token of a sequence whose hidden states a drafter that reads them has not been
    /// shown, and would need next.
    fn shown_until(&self, _slot: Slot, _tokens: &[Token]) -> Option<usize> {
        None
    }

    /// Measures its passes by this clock from now on.
    fn use_clock(&mut self, _clock: Arc<dyn Clock>) {}

    /// Returns how many tokens of a sequence it would have to prefill before it could draft.
    fn behind(&self, _slot: Slot, _tokens: &[Token]) -> usize {
        0
    }

    /// Tells whose sequence begins in a slot, for drafters that learn from outputs; without a tenant,
    /// nothing is learned from it and nothing that was learned is used for it.
    fn share(&mut self, _slot: Slot, _tenant: Option<Tenant>) {}

    /// Tells the output of the sequence in a slot, which has ended, for drafters that learn.
    fn ended(&mut self, _slot: Slot, _output: &[Token]) {}

    /// Tells what the output of the sequence in a slot is expected to be, for drafters that draft
    /// from it; without tokens, nothing is expected.
    fn predict(&mut self, _slot: Slot, _tokens: &[Token]) {}

    /// Tells that the first `len` tokens of slot `from` are also those of the sequence that begins
    /// in `to`, for drafters with caches.
    fn copy(&mut self, _from: Slot, _to: Slot, _len: usize) {}

    /// Tells that what it has stored of a slot must not serve the next sequence there.
    fn forget(&mut self, _slot: Slot) {}
}
