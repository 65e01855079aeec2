//! What a model is to the decoder: a cache for each slot, and one verb.
//!
//! A slot's cache is a *trunk*, the tokens that are committed, and above it a *tree* of drafted
//! tokens. [`Engine::extend`] is told what of it is still valid and what comes on top, so prefill,
//! drafting, scoring and catching up after an acceptance are one call, and nothing is ever rolled
//! back. An engine knows nothing of text, sampling or rules.

use forerun_verify::Token;

/// The place of one sequence in an engine's KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

/// What a step leaves of its slot's cache before it appends, and how many tokens that is. A step
/// relies on that number: an engine whose slot would keep another one refuses the step before it
/// touches anything, so that nothing is appended to a cache that is not what the caller believes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// All of it, so many tokens. New tokens may grow from any node of the tree.
    All(usize),
    /// The trunk and the path to a node, which become the trunk.
    To {
        /// The node. Node 0 is the trunk's end; the others are numbered from 1 as they were
        /// appended since the last cut.
        node: usize,
        /// How many tokens trunk and path have together.
        len: usize,
    },
    /// The first tokens of the trunk; the tree is forgotten. `Trunk(0)` relies on nothing.
    Trunk(usize),
}

impl Keep {
    /// How many cached tokens the step relies on.
    ///
    /// ```
    /// # use forerun_decode::Keep;
    /// assert_eq!(Keep::To { node: 2, len: 9 }.len(), 9);
    /// assert!(Keep::Trunk(0).is_empty());
    /// ```
    pub fn len(&self) -> usize {
        match self {
            Self::All(len) | Self::To { len, .. } | Self::Trunk(len) => *len,
        }
    }

    /// Whether it relies on nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A drafted token: where in the tree it grows, and what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Branch {
    /// The node it follows: 0 for the trunk's end, else a node that came before.
    pub parent: usize,
    /// The token.
    pub token: Token,
}

/// Which rows a step wants: a row is the logits of the token that follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// None: the step only fills the cache.
    None,
    /// The row after the last token of `trunk`.
    Trunk,
    /// The row after each token of `tree`.
    Tree,
    /// The row after the last token of `trunk`, then those of `tree`.
    All,
}

/// One slot's share of a pass: forget what is no longer valid, then append.
///
/// ```
/// use forerun_decode::*;
/// // Two drafted paths with a common first token, above one committed token.
/// let branch = |parent, id| Branch { parent, token: Token(id) };
/// let tree = [branch(0, 7), branch(1, 8), branch(1, 9)];
/// let trunk = [Token(5)];
/// let keep = Keep::Trunk(0);
/// let step = Step { slot: Slot(0), keep, trunk: &trunk, tree: &tree, rows: Rows::All };
/// assert_eq!(step.row_count(), 4);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    /// Whose cache.
    pub slot: Slot,
    /// What of it stays.
    pub keep: Keep,
    /// Committed tokens to append to the trunk; empty if a tree stays.
    pub trunk: &'a [Token],
    /// Drafted tokens to append above the trunk, parents first.
    pub tree: &'a [Branch],
    /// The rows to give back.
    pub rows: Rows,
}

impl Step<'_> {
    /// How many rows this step gives.
    pub fn row_count(&self) -> usize {
        match self.rows {
            Rows::None => 0,
            Rows::Trunk => 1,
            Rows::Tree => self.tree.len(),
            Rows::All => 1 + self.tree.len(),
        }
    }
}

/// The rows of a pass, in the order of its steps. Owned by the caller, so that memory is reused.
///
/// ```
/// use forerun_decode::Output;
/// let mut output = Output::default();
/// output.clear(2);
/// output.push(&[0.5, -1.0]);
/// output.row_mut(0)[1] += 1.0;
/// assert_eq!((output.len(), output.row(0)), (1, &[0.5, 0.0][..]));
/// assert_eq!(output.feature_count(), 0, "an engine gives them only if it was told to");
/// ```
#[derive(Debug, Default)]
pub struct Output {
    logits: Vec<f32>,
    vocab_len: usize,
    /// Hidden rows, see [`Engine::feature_len`].
    features: Vec<f32>,
    feature_len: usize,
    /// What [`Output::copied`] gives out.
    copy: Vec<f32>,
}

impl Output {
    /// Forgets the rows of the last pass. For engines.
    pub fn clear(&mut self, vocab_len: usize) {
        self.logits.clear();
        self.features.clear();
        self.vocab_len = vocab_len;
    }

    /// Appends a feature row. For engines.
    ///
    /// # Panics
    /// If it is of another length than those before it.
    pub fn push_feature(&mut self, parts: &[&[f32]]) {
        let len = parts.iter().map(|part| part.len()).sum();
        assert!(
            self.features.is_empty() || len == self.feature_len,
            "feature rows are of one length"
        );
        self.feature_len = len;
        parts.iter().for_each(|part| self.features.extend_from_slice(part));
    }

    /// How many feature rows there are.
    pub fn feature_count(&self) -> usize {
        self.features.len().checked_div(self.feature_len).unwrap_or(0)
    }

    /// Feature row `index`.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn feature(&self, index: usize) -> &[f32] {
        &self.features[index * self.feature_len..][..self.feature_len]
    }

    /// Appends a row. For engines.
    ///
    /// # Panics
    /// If the row is not of the vocabulary's length.
    pub fn push(&mut self, row: &[f32]) {
        assert_eq!(row.len(), self.vocab_len, "a row has one logit for each token");
        self.logits.extend_from_slice(row);
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.logits.len().checked_div(self.vocab_len).unwrap_or(0)
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.logits.is_empty()
    }

    /// Row `index`.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, index: usize) -> &[f32] {
        &self.logits[index * self.vocab_len..][..self.vocab_len]
    }

    /// Row `index`, to be changed in place (penalties, biases).
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row_mut(&mut self, index: usize) -> &mut [f32] {
        &mut self.logits[index * self.vocab_len..][..self.vocab_len]
    }

    /// A copy of row `index`, to be changed while the row stays as it is. The next copy takes its
    /// place.
    pub(crate) fn copied(&mut self, index: usize) -> &mut [f32] {
        self.copy.clear();
        self.copy.extend_from_slice(&self.logits[index * self.vocab_len..][..self.vocab_len]);
        &mut self.copy
    }
}

/// A model with a cache.
pub trait Engine: Send {
    /// How many tokens the vocabulary has.
    fn vocab_len(&self) -> usize;

    /// How many tokens there is room for in one slot, trunk and tree together.
    fn context_len(&self) -> usize;

    /// How many slots there are; they are numbered from 0.
    fn slot_count(&self) -> usize;

    /// Most paths of one slot's tree, that is, most leaves.
    fn paths_max(&self) -> usize;

    /// Whether the cache can forget what is drafted. A recurrent state cannot, so it cannot be drafted
    /// for; unless the engine keeps what it was before the last few tokens.
    fn can_cut(&self) -> bool;

    /// Whether a slot can forget so many of its last tokens now, and keep the others. All of them can
    /// always be forgotten.
    fn can_forget(&self, _slot: Slot, _tokens: usize) -> bool {
        self.can_cut()
    }

    /// Most drafted tokens of a slot that can be forgotten.
    fn forgets_max(&self) -> usize {
        usize::MAX
    }

    /// How many numbers its feature rows have: what a draft head reads of this model's hidden states.
    /// Zero if it gives none. Else a pass gives one for each of its tokens, in the order of its steps
    /// and in each the trunk's before the tree's, whatever rows the steps want.
    fn feature_len(&self) -> usize {
        0
    }

    /// Runs all steps, in as few passes as the engine can, and writes their rows. A slot may occur
    /// in one step only.
    ///
    /// # Errors
    /// [`EngineError::caches`] tells what is left of the caches.
    fn extend(&mut self, steps: &[Step<'_>], output: &mut Output) -> Result<(), EngineError>;

    /// Copies the first `len` tokens of the trunk of `from` to slot `to`, in place of all that is
    /// there, without running them again. Returns whether it did; if not, nothing has changed.
    fn copy(&mut self, _from: Slot, _to: Slot, _len: usize) -> bool {
        false
    }
}

/// A draft head: a small model that reads a hidden row beside every token, of the target where its
/// token is committed and of its own where it is drafted.
///
/// Its passes give a feature row for each row: the hidden row that goes with a token drawn from it.
pub trait Head: Engine {
    /// How it pairs tokens with hidden rows.
    fn pairing(&self) -> Pairing;

    /// How many numbers a hidden row has.
    fn hidden_len(&self) -> usize;

    /// How many heads it is. One drafts every token; of several, each drafts one, in this order, and
    /// has a cache of its own.
    fn head_count(&self) -> usize {
        1
    }

    /// How it drafts a whole block in one pass, if it does.
    fn block(&self) -> Option<BlockShape> {
        None
    }

    /// Makes hidden rows of a target's feature rows, all of which are given one after the other.
    ///
    /// # Errors
    /// If the pass fails; the caches are as they were.
    fn encode(&mut self, features: &[f32], hidden: &mut Vec<f32>) -> Result<(), EngineError>;

    /// Like [`Engine::extend`] for one of the heads, with a hidden row for each token, in the order of
    /// feature rows.
    ///
    /// # Errors
    /// As for [`Engine::extend`].
    fn extend_hidden(
        &mut self,
        head: usize,
        steps: &[Step<'_>],
        hidden: &[f32],
        output: &mut Output,
    ) -> Result<(), EngineError>;
}

/// How a head drafts a block in one pass (DFlash): over the newest token and masks after it, without
/// hidden rows. The rows are independent of each other given the committed tokens. What is committed
/// goes into its cache as hidden rows alone: the tokens of those steps mean nothing to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockShape {
    /// The token that stands for those to come.
    pub mask: Token,
    /// Most tokens of a block.
    pub len_max: usize,
    /// Which row is the first drafted token's: the newest token's own, or the first mask's.
    pub first_row: usize,
}

/// How a head pairs tokens with hidden rows. Either way the row after a pair is the distribution of
/// the token that follows the pair's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairing {
    /// Each token with the hidden row of the one before it; the first has none and is left out
    /// (EAGLE-3).
    AfterFirst,
    /// The same, but the first token is there, with zeros (multi-token prediction).
    FromFirst,
}

impl Pairing {
    /// The tokens of a sequence that come before its first pair.
    ///
    /// ```
    /// use forerun_decode::Pairing;
    /// assert_eq!((Pairing::AfterFirst.unpaired(), Pairing::FromFirst.unpaired()), (1, 0));
    /// ```
    pub fn unpaired(self) -> usize {
        match self {
            Self::AfterFirst => 1,
            Self::FromFirst => 0,
        }
    }
}

/// What is left of the caches after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caches {
    /// Nothing ran: every cache is as it was before the call.
    Untouched,
    /// Every step's slot has what the step kept, and none of what it wanted to append.
    Cut,
    /// All slots are empty.
    Lost,
}

/// Why a pass failed, and what is still valid afterwards.
///
/// ```
/// use forerun_decode::{Caches, EngineError};
/// assert_eq!(EngineError::Full { tokens: 3 }.caches(), Caches::Cut);
/// assert_eq!(EngineError::Broken { backend: "toy", code: -3 }.caches(), Caches::Lost);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// Append less, or free a slot, and try again.
    #[error(
        "no room in the cache for {tokens} more tokens: shorten the prompt or raise --ctx-size"
    )]
    Full {
        /// How many tokens the pass wanted to append.
        tokens: usize,
    },
    /// A token is outside the vocabulary.
    #[error("token {} is out of range: the vocabulary has {vocab_len} tokens", .token.0)]
    Token {
        /// The token.
        token: Token,
        /// The vocabulary's length.
        vocab_len: usize,
    },
    /// The step contradicts the slot's cache: a mistake of the caller.
    #[error("slot {}: {reason}", .slot.0)]
    Step {
        /// The step's slot.
        slot: Slot,
        /// What is wrong with it.
        reason: String,
    },
    /// The model's memory is recurrent and cannot forget a suffix.
    #[error("slot {}: this model's memory cannot be cut back, so it cannot be drafted for", .slot.0)]
    CannotCut {
        /// The slot.
        slot: Slot,
    },
    /// The pass was interrupted from outside.
    #[error("the pass was interrupted")]
    Interrupted,
    /// The backend refused the pass.
    #[error("{backend} refused the pass as malformed")]
    Refused {
        /// Which backend.
        backend: &'static str,
    },
    /// The backend failed part-way; the caches were cleared because they cannot be trusted.
    #[error("{backend} failed with code {code}; the caches were cleared")]
    Broken {
        /// Which backend.
        backend: &'static str,
        /// Its code.
        code: i32,
    },
}

impl EngineError {
    /// What is left of the caches.
    pub fn caches(&self) -> Caches {
        match self {
            Self::Token { .. } | Self::Step { .. } | Self::CannotCut { .. } => Caches::Untouched,
            Self::Full { .. } | Self::Interrupted | Self::Refused { .. } => Caches::Cut,
            Self::Broken { .. } => Caches::Lost,
        }
    }
}
