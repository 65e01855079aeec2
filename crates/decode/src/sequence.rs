//! One request's tokens, and how it wants them made.

use std::sync::Arc;
use std::time::Duration;

use forerun_verify::{
    Block, BlockRule, Chance, CoupledRule, Draft, Noise, Refusal, Rule, Scheme, Token, Verdict,
};

use crate::constraint::Constraint;
use crate::engine::Slot;
use crate::sampling::Sampling;

/// How a draft is judged.
///
/// ```
/// use forerun_decode::Verification;
/// use forerun_verify::{BlockRule, Noise};
/// assert_eq!(Verification::rule(BlockRule).name(), "block");
/// assert_eq!(Verification::Coupled(Noise::new(7)).name(), "coupled");
/// ```
#[derive(Debug, Clone)]
pub enum Verification {
    /// By a rule that spends chance.
    Rule(Arc<dyn Rule>),
    /// By noise from seed and position alone, so that the text does not depend on the drafts.
    Coupled(Noise),
}

impl Verification {
    /// A rule.
    pub fn rule(rule: impl Rule + 'static) -> Self {
        Self::Rule(Arc::new(rule))
    }

    /// The rule's name, as flags and reports say it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Rule(rule) => rule.name(),
            Self::Coupled(noise) => CoupledRule { noise: *noise, position: 0 }.name(),
        }
    }

    /// Whether such a draft can be judged without loss; asked before a pass is spent on it.
    pub(crate) fn admits(&self, draft: &Draft) -> Result<(), Refusal> {
        match self {
            Self::Rule(rule) => rule.admits(draft),
            Self::Coupled(noise) => CoupledRule { noise: *noise, position: 0 }.admits(draft),
        }
    }

    /// The verdict on a block whose first token stands at `position`.
    pub(crate) fn judge(
        &self,
        position: usize,
        block: &Block<'_>,
        chance: &mut dyn Chance,
    ) -> Result<Verdict, Refusal> {
        match self {
            Self::Rule(rule) => rule.verify(block, chance),
            Self::Coupled(noise) => {
                CoupledRule { noise: *noise, position: position as u64 }.verify(block, chance)
            }
        }
    }
}

/// What a sequence drafts, and how it is judged. May change between rounds, by what is known then.
///
/// ```
/// # use forerun_decode::Plan;
/// assert!(Plan::plain().drafters.is_empty());
/// ```
#[derive(Debug, Clone)]
pub struct Plan {
    /// Which of the decoder's drafters propose; none for plain decoding.
    pub drafters: Vec<usize>,
    /// Most tokens of a drafted path.
    pub draft_len: usize,
    /// Paths a drafter with a model draws; others propose one, whatever this says.
    pub width: usize,
    /// How those paths are drawn.
    pub scheme: Scheme,
    /// Drafters with a model that are further behind than this read so many of the last tokens
    /// only: enough to see whether they would be of use.
    pub glance: Option<usize>,
    /// How drafts are judged.
    pub verification: Verification,
}

impl Plan {
    /// Plain decoding: the target alone.
    pub fn plain() -> Self {
        Self {
            drafters: Vec::new(),
            draft_len: 0,
            width: 1,
            scheme: Scheme::Slots,
            glance: None,
            verification: Verification::rule(BlockRule),
        }
    }

    /// One path of each of these drafters, of this length, judged so.
    ///
    /// ```
    /// use forerun_decode::{Plan, Verification};
    /// use forerun_verify::PooledRule;
    /// let plan = Plan::drafted(vec![0, 1], 4, Verification::rule(PooledRule)).wide(2);
    /// assert_eq!((plan.draft_len, plan.width), (4, 2));
    /// ```
    pub fn drafted(drafters: Vec<usize>, draft_len: usize, verification: Verification) -> Self {
        Self { drafters, draft_len, verification, ..Self::plain() }
    }

    /// With so many paths of each drafter that has a model.
    #[must_use]
    pub fn wide(mut self, width: usize) -> Self {
        self.width = width;
        self
    }

    /// With paths drawn so.
    #[must_use]
    pub fn drawn(mut self, scheme: Scheme) -> Self {
        self.scheme = scheme;
        self
    }
}

/// The default of [`Sequence::read_max`].
const READ_MAX: usize = 512;

/// The committed tokens of one request, prompt included, and the slot whose cache they use. What
/// that slot holds is the decoder's to know: see [`crate::Decoder::unread`].
///
/// ```
/// use forerun_decode::*;
/// let mut sequence = Sequence::new(Slot(0), Sampling::greedy(), Plan::plain());
/// sequence.begin(vec![Token(1), Token(2)], 10);
/// assert_eq!((sequence.prompt_len(), sequence.output().len(), sequence.wanted()), (2, 0, 10));
/// ```
#[derive(Debug)]
pub struct Sequence {
    slot: Slot,
    pub(crate) tokens: Vec<Token>,
    prompt_len: usize,
    /// How many tokens it began with: the prompt, and what was made of the text before.
    begun_len: usize,
    len_max: usize,
    /// How its tokens are drawn.
    pub sampling: Sampling,
    /// What it is held to.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Whether log-probabilities are wanted, and of how many of the likeliest tokens beside.
    pub logprobs: Option<usize>,
    /// What it drafts.
    pub plan: Plan,
    /// How long its constraint's masks may take in a round. Drafts are kept so short that they
    /// stay within it, by what masks took in earlier rounds; the mask of the next token is always
    /// made. No limit unless set.
    pub mask_budget: Option<Duration>,
    /// What one mask takes, by the rounds so far.
    mask_time: Duration,
    /// Most of its tokens that are read in one pass, so that a long prompt can be interrupted and
    /// need not hold up others.
    pub read_max: usize,
}

impl Sequence {
    /// A sequence in a slot, without a prompt yet.
    pub fn new(slot: Slot, sampling: Sampling, plan: Plan) -> Self {
        Self {
            slot,
            tokens: Vec::new(),
            prompt_len: 0,
            begun_len: 0,
            len_max: 0,
            sampling,
            constraint: None,
            logprobs: None,
            plan,
            mask_budget: None,
            mask_time: Duration::ZERO,
            read_max: READ_MAX,
        }
    }

    /// Begins a text: the prompt, and how many tokens may follow it. What the slot still holds of
    /// an earlier text is reused as far as the two agree.
    pub fn begin(&mut self, prompt: Vec<Token>, output_len_max: usize) {
        self.resume(prompt, &[], output_len_max);
    }

    /// Goes on with a text that was begun elsewhere: its prompt, what came after that, and how many
    /// tokens may come after it in all. With the same seed, the coupled rule goes on exactly as it
    /// would have there, other lossless rules by the same law. A constraint must know of the output.
    ///
    /// ```
    /// # use forerun_decode::*;
    /// # let mut sequence = Sequence::new(Slot(0), Sampling::greedy(), Plan::plain());
    /// sequence.resume(vec![Token(1), Token(2)], &[Token(3)], 10);
    /// assert_eq!((sequence.prompt_len(), sequence.output().len(), sequence.wanted()), (2, 1, 9));
    /// ```
    pub fn resume(&mut self, prompt: Vec<Token>, output: &[Token], output_len_max: usize) {
        self.prompt_len = prompt.len();
        self.len_max = prompt.len().saturating_add(output_len_max);
        self.tokens = prompt;
        self.tokens.extend(output);
        self.begun_len = self.tokens.len();
        self.mask_time = Duration::ZERO;
    }

    /// Whether no token was added since it was begun or resumed.
    pub(crate) fn is_new(&self) -> bool {
        self.tokens.len() == self.begun_len
    }

    /// Learns what its constraint's masks took.
    pub(crate) fn note_masks(&mut self) {
        if let Some(constraint) = &mut self.constraint {
            // A mask that was quick once says little: what a form costs depends on where the text is.
            self.mask_time = constraint.mask_time().max(self.mask_time / 2);
        }
    }

    /// What one mask of its constraint is expected to take.
    pub fn mask_time(&self) -> Duration {
        self.mask_time
    }

    /// Most drafted tokens, on all paths together, whose masks are expected to stay within
    /// [`Sequence::mask_budget`].
    pub(crate) fn masks_max(&self) -> usize {
        match self.mask_budget {
            Some(budget) if self.mask_time > Duration::ZERO => {
                let masks = budget.as_nanos() / self.mask_time.as_nanos();
                usize::try_from(masks).unwrap_or(usize::MAX).saturating_sub(1)
            }
            _ => usize::MAX,
        }
    }

    /// Moves it to another slot, of whose cache it uses what agrees with its tokens. What it says
    /// does not depend on the slot.
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

    /// Takes back committed tokens, where a text ends inside a block.
    pub fn trim(&mut self, len: usize) {
        self.tokens.truncate(len.max(self.prompt_len));
    }
}
