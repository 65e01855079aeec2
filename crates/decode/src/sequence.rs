//! One request's tokens, and what shapes their distribution.

use std::time::Duration;

use forerun_verify::Token;

use crate::constraint::Constraint;
use crate::defer::{Deferred, Risk};
use crate::engine::Slot;
use crate::sampling::Sampling;

/// The committed tokens of one request, prompt included, and the slot whose cache they use. What
/// is cached there is the decoder's to know: see [`crate::Decoder::uncached_len`].
///
/// ```
/// use forerun_decode::*;
/// let mut sequence = Sequence::new(Slot(0), Sampling::greedy());
/// sequence.begin(vec![Token(1), Token(2)], 10);
/// assert_eq!((sequence.prompt_len(), sequence.output().len(), sequence.wanted()), (2, 0, 10));
/// ```
#[derive(Debug)]
pub struct Sequence {
    slot: Slot,
    pub(crate) tokens: Vec<Token>,
    prompt_len: usize,
    /// How many tokens it began with: the prompt, and the output so far if it was resumed.
    begun_len: usize,
    len_max: usize,
    /// How its tokens are drawn.
    pub sampling: Sampling,
    /// What its output must conform to.
    pub constraint: Option<Box<dyn Constraint>>,
    /// How many of the likeliest tokens are reported with each token's log-probability; `None` if
    /// log-probabilities are not wanted.
    pub logprobs: Option<usize>,
    /// What its account holds, where its rule is lossy; none yet if it is new.
    pub(crate) balance: Option<f64>,
    /// Its last tokens, as far as the target has not scored them.
    pub(crate) deferred: Deferred,
    /// Whether no token is to follow: what is not scored yet is scored, and nothing is drafted.
    pub(crate) is_over: bool,
    /// What one mask takes, by the rounds so far.
    mask_time: Duration,
}

impl Sequence {
    /// A sequence in a slot, without a prompt yet.
    pub fn new(slot: Slot, sampling: Sampling) -> Self {
        Self {
            slot,
            tokens: Vec::new(),
            prompt_len: 0,
            begun_len: 0,
            len_max: 0,
            sampling,
            constraint: None,
            logprobs: None,
            balance: None,
            deferred: Deferred::default(),
            is_over: false,
            mask_time: Duration::ZERO,
        }
    }

    /// Begins with a prompt, and how many tokens may follow it. Of what the slot has cached from an
    /// earlier sequence, the common prefix is reused.
    pub fn begin(&mut self, prompt: Vec<Token>, output_len_max: usize) {
        self.resume(prompt, &[], output_len_max);
    }

    /// Continues a sequence that was begun elsewhere: its prompt, the output so far, and how many
    /// tokens may follow the prompt in all. With the same seed, the coupled rule continues exactly
    /// as it would have there, and other lossless rules by the same distribution. The output must
    /// have been committed to a constraint.
    ///
    /// ```
    /// # use forerun_decode::*;
    /// # let mut sequence = Sequence::new(Slot(0), Sampling::greedy());
    /// sequence.resume(vec![Token(1), Token(2)], &[Token(3)], 10);
    /// assert_eq!((sequence.prompt_len(), sequence.output().len(), sequence.wanted()), (2, 1, 9));
    /// ```
    pub fn resume(&mut self, prompt: Vec<Token>, output: &[Token], output_len_max: usize) {
        self.prompt_len = prompt.len();
        self.len_max = prompt.len().saturating_add(output_len_max);
        self.tokens = prompt;
        self.tokens.extend(output);
        self.begun_len = self.tokens.len();
        self.balance = None;
        self.deferred.stretch.clear();
        self.is_over = false;
        self.mask_time = Duration::ZERO;
    }

    /// Has tokens that are committed before they are scored chosen by this, where its rule allows any
    /// ([`Promise::Deferred`](forerun_verify::Promise::Deferred)).
    pub fn foresee(&mut self, risk: Box<dyn Risk>) {
        self.deferred.risk = risk;
    }

    /// How many of its tokens the target has scored, or need not score.
    pub fn scored_len(&self) -> usize {
        self.tokens.len() - self.deferred.stretch.len()
    }

    /// Whether no token was committed since it was begun or resumed.
    pub(crate) fn is_new(&self) -> bool {
        self.tokens.len() == self.begun_len
    }

    /// Takes the latest mask times of its constraint into account.
    pub(crate) fn note_masks(&mut self) {
        if let Some(constraint) = &mut self.constraint {
            // One quick mask says little: what a mask costs depends on the state of the grammar.
            self.mask_time = constraint.mask_time().max(self.mask_time / 2);
        }
    }

    /// What one mask of its constraint is expected to take.
    pub fn mask_time(&self) -> Duration {
        self.mask_time
    }

    /// Most draft tokens, on all paths together, whose masks are expected to stay within a budget.
    pub(crate) fn masks_within(&self, budget: Option<Duration>) -> usize {
        match budget {
            Some(budget) if self.mask_time > Duration::ZERO => {
                let masks = budget.as_nanos() / self.mask_time.as_nanos();
                usize::try_from(masks).unwrap_or(usize::MAX).saturating_sub(1)
            }
            _ => usize::MAX,
        }
    }

    /// Moves it to another slot, of whose cache it uses the common prefix. Its output does not
    /// depend on the slot.
    pub fn move_to(&mut self, slot: Slot) {
        self.slot = slot;
    }

    /// The slot whose cache it uses.
    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// The committed tokens, prompt included.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// How many of the tokens are the prompt.
    pub fn prompt_len(&self) -> usize {
        self.prompt_len
    }

    /// The tokens after the prompt.
    pub fn output(&self) -> &[Token] {
        &self.tokens[self.prompt_len..]
    }

    /// Most tokens after the prompt.
    pub fn output_len_max(&self) -> usize {
        self.len_max - self.prompt_len
    }

    /// How many more tokens are wanted.
    pub fn wanted(&self) -> usize {
        self.len_max.saturating_sub(self.tokens.len())
    }

    /// Cuts it back to so many tokens, if it ends inside a block.
    pub fn trim(&mut self, len: usize) {
        let dropped = self.tokens.len().saturating_sub(len.max(self.prompt_len));
        self.tokens.truncate(self.tokens.len() - dropped);
        let unscored = self.deferred.stretch.len().saturating_sub(dropped);
        self.deferred.stretch.truncate(unscored);
    }
}
