//! What a rule promises of its output, and what it reports to have spent of it.
//!
//! Every lossless rule promises the same. A lossy one has a bound, states it, keeps it whatever the
//! drafter does, and says after each verdict how much of it was used.

/// What a rule promises of the output, for every drafter and whatever came before.
///
/// ```
/// use forerun_verify::*;
/// assert_eq!(BlockRule.promise(), Promise::Lossless);
/// let budget = Budget::at_every_token(0.02)?;
/// assert_eq!(LossyBlockRule { budget }.promise(), Promise::Budget(budget));
/// # Ok::<(), PromiseError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Promise {
    /// The output follows the target's own distribution.
    Lossless,
    /// Each token's distribution is within a bound of the target's.
    Budget(Budget),
    /// At temperature zero, few tokens are not the target's best, and none is far from it.
    Near(Near),
    /// Tokens may be committed before they are scored; what they spent is paid from an account over
    /// the whole text.
    Deferred(Deferral),
    /// Nothing: the rule is lossy and has no bound.
    Nothing,
}

/// Why a bound is refused.
///
/// ```
/// # use forerun_verify::*;
/// let error = Budget::at_every_token(1.5).unwrap_err();
/// assert_eq!(error.to_string(), "budget per token is 1.5; expected 0 to 1");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("{what} is {value}; expected {least} to {most}")]
pub struct PromiseError {
    /// Which number of the bound.
    pub what: &'static str,
    /// What it was given as.
    pub value: f64,
    /// The least it may be.
    pub least: f64,
    /// The most it may be.
    pub most: f64,
}

/// Returns the value if it is within the range; NaN never is.
fn within(what: &'static str, value: f64, least: f64, most: f64) -> Result<f64, PromiseError> {
    let sound = (least..=most).contains(&value);
    sound.then_some(value).ok_or(PromiseError { what, value, least, most })
}

/// How far the output may stray from the target.
///
/// *Spend* at a token is the total variation between the distribution it is really drawn from and
/// the target's: the chance that it is not the target's own draw. Each token earns `per_token`;
/// what it does not spend is saved for later tokens, up to `bank`, and no token spends more than
/// `step`. A budget at every token is an account that saves nothing.
///
/// So spends add up to at most `per_token * n` over the first `n` tokens of every text, and to at
/// most `bank + per_token * n` over any `n` tokens. No token becomes more than `factor` times as
/// likely as the target has it, and one that the target never says is never said.
///
/// ```
/// use forerun_verify::Budget;
/// let budget = Budget::on_account(0.02)?.with_factor(2.0)?;
/// assert_eq!((budget.per_token(), budget.step(), budget.bank()), (0.02, 0.25, 0.2));
/// # Ok::<(), forerun_verify::PromiseError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget {
    per_token: f64,
    step: f64,
    bank: f64,
    factor: f64,
}

impl Budget {
    /// Most that a factor may be.
    pub const FACTOR_MAX: f64 = 65_536.0;
    /// Without a limit, an unlikely token could take all of a budget and become common.
    const FACTOR: f64 = 4.0;
    /// Most that one token spends of an account.
    const STEP: f64 = 0.25;
    /// How many tokens' budget an account saves up.
    const BANKED_TOKENS: f64 = 10.0;

    /// At most this total variation at every token.
    ///
    /// # Errors
    /// If it is not between 0 and 1.
    ///
    /// ```
    /// # use forerun_verify::Budget;
    /// let budget = Budget::at_every_token(0.02)?;
    /// assert_eq!((budget.step(), budget.bank(), budget.factor()), (0.02, 0.02, 4.0));
    /// # Ok::<(), forerun_verify::PromiseError>(())
    /// ```
    pub fn at_every_token(per_token: f64) -> Result<Self, PromiseError> {
        let per_token = within("budget per token", per_token, 0.0, 1.0)?;
        Ok(Self { per_token, step: per_token, bank: per_token, factor: Self::FACTOR })
    }

    /// At most this total variation per token over the text so far, at most a quarter at once, and
    /// with at most ten tokens' budget saved up.
    ///
    /// # Errors
    /// If it is not between 0 and 1.
    ///
    /// ```
    /// # use forerun_verify::Budget;
    /// assert_eq!(Budget::on_account(0.02)?.bank(), 0.2);
    /// # Ok::<(), forerun_verify::PromiseError>(())
    /// ```
    pub fn on_account(per_token: f64) -> Result<Self, PromiseError> {
        let budget = Self::at_every_token(per_token)?;
        let bank = Self::BANKED_TOKENS * per_token;
        Ok(Self { step: Self::STEP.max(per_token), bank, ..budget })
    }

    /// The same with another limit on how much likelier any token becomes.
    ///
    /// # Errors
    /// If it is not between 1 and [`Budget::FACTOR_MAX`].
    ///
    /// ```
    /// # use forerun_verify::Budget;
    /// assert_eq!(Budget::on_account(0.02)?.with_factor(2.0)?.factor(), 2.0);
    /// # Ok::<(), forerun_verify::PromiseError>(())
    /// ```
    pub fn with_factor(self, factor: f64) -> Result<Self, PromiseError> {
        Ok(Self { factor: within("factor", factor, 1.0, Self::FACTOR_MAX)?, ..self })
    }

    /// The same with another limit on what one token spends.
    ///
    /// # Errors
    /// If it is not between 0 and 1.
    ///
    /// ```
    /// # use forerun_verify::Budget;
    /// assert_eq!(Budget::on_account(0.02)?.with_step(0.1)?.step(), 0.1);
    /// # Ok::<(), forerun_verify::PromiseError>(())
    /// ```
    pub fn with_step(self, step: f64) -> Result<Self, PromiseError> {
        Ok(Self { step: within("step", step, 0.0, 1.0)?, ..self })
    }

    /// The same with another limit on what is saved up.
    ///
    /// # Errors
    /// If it is not between the budget per token and a thousand.
    ///
    /// ```
    /// # use forerun_verify::Budget;
    /// assert_eq!(Budget::on_account(0.02)?.with_bank(1.0)?.bank(), 1.0);
    /// # Ok::<(), forerun_verify::PromiseError>(())
    /// ```
    pub fn with_bank(self, bank: f64) -> Result<Self, PromiseError> {
        Ok(Self { bank: within("bank", bank, self.per_token, 1_000.0)?, ..self })
    }

    /// What each token earns.
    ///
    /// ```
    /// # use forerun_verify::Budget;
    /// assert_eq!(Budget::at_every_token(0.02)?.per_token(), 0.02);
    /// # Ok::<(), forerun_verify::PromiseError>(())
    /// ```
    pub fn per_token(&self) -> f64 {
        self.per_token
    }

    /// Most that one token spends.
    ///
    /// ```
    /// # use forerun_verify::Budget;
    /// assert_eq!(Budget::at_every_token(0.02)?.step(), 0.02);
    /// # Ok::<(), forerun_verify::PromiseError>(())
    /// ```
    pub fn step(&self) -> f64 {
        self.step
    }

    /// Most that is saved up.
    ///
    /// ```
    /// # use forerun_verify::Budget;
    /// assert_eq!(Budget::at_every_token(0.02)?.bank(), 0.02);
    /// # Ok::<(), forerun_verify::PromiseError>(())
    /// ```
    pub fn bank(&self) -> f64 {
        self.bank
    }

    /// Most by which a token's probability is multiplied.
    ///
    /// ```
    /// # use forerun_verify::Budget;
    /// assert_eq!(Budget::at_every_token(0.02)?.factor(), 4.0);
    /// # Ok::<(), forerun_verify::PromiseError>(())
    /// ```
    pub fn factor(&self) -> f64 {
        self.factor
    }

    /// The account of a new text holds one token's budget.
    pub(crate) fn opening(&self, balance: Option<f64>) -> f64 {
        balance.unwrap_or(self.per_token).min(self.bank)
    }

    /// What the account holds for the next token, when one has spent this much of it.
    pub(crate) fn after(&self, balance: f64, spent: f64) -> f64 {
        (balance - spent + self.per_token).min(self.bank)
    }
}

/// How far a greedy output may stray from the target's.
///
/// A token that is not the target's best is *forgiven* if the target has it at most `gap` nats
/// below the best. Each token earns `share` of a forgiven one; what is earned is saved, up to `bank`.
/// So at most `share * n` of the first `n` tokens of every text are forgiven, and at most
/// `bank + share * n` of any `n` tokens.
///
/// ```
/// use forerun_verify::Near;
/// let near = Near::new(1.0, 0.02)?;
/// assert_eq!((near.gap(), near.share(), near.bank()), (1.0, 0.02, 4.0));
/// # Ok::<(), forerun_verify::PromiseError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Near {
    gap: f64,
    share: f64,
    bank: f64,
}

impl Near {
    /// Tokens saved up: fewer would let chances pass where they are rare and come together.
    const BANK: f64 = 4.0;

    /// Forgives tokens within `gap` nats of the best, and at most this share of all tokens.
    ///
    /// # Errors
    /// If the gap is not between 0 and 100, or the share not between 0 and 1.
    ///
    /// ```
    /// # use forerun_verify::Near;
    /// assert!(Near::new(1.0, 0.02).is_ok());
    /// assert!(Near::new(f64::NAN, 0.02).is_err());
    /// ```
    pub fn new(gap: f64, share: f64) -> Result<Self, PromiseError> {
        let gap = within("gap", gap, 0.0, 100.0)?;
        Ok(Self { gap, share: within("share", share, 0.0, 1.0)?, bank: Self::BANK })
    }

    /// The same with another limit on how many tokens' forgiveness is saved up.
    ///
    /// # Errors
    /// If it is not between 1 and a thousand: with less than one, no token could be forgiven.
    ///
    /// ```
    /// # use forerun_verify::Near;
    /// assert_eq!(Near::new(1.0, 0.02)?.with_bank(1.0)?.bank(), 1.0);
    /// # Ok::<(), forerun_verify::PromiseError>(())
    /// ```
    pub fn with_bank(self, bank: f64) -> Result<Self, PromiseError> {
        Ok(Self { bank: within("bank", bank, 1.0, 1_000.0)?, ..self })
    }

    /// Most nats that a forgiven token is below the target's best.
    ///
    /// ```
    /// # use forerun_verify::Near;
    /// assert_eq!(Near::new(1.0, 0.02)?.gap(), 1.0);
    /// # Ok::<(), forerun_verify::PromiseError>(())
    /// ```
    pub fn gap(&self) -> f64 {
        self.gap
    }

    /// Most tokens that are forgiven, as a share of all.
    ///
    /// ```
    /// # use forerun_verify::Near;
    /// assert_eq!(Near::new(1.0, 0.02)?.share(), 0.02);
    /// # Ok::<(), forerun_verify::PromiseError>(())
    /// ```
    pub fn share(&self) -> f64 {
        self.share
    }

    /// Most forgiven tokens that are saved up.
    ///
    /// ```
    /// # use forerun_verify::Near;
    /// assert_eq!(Near::new(1.0, 0.02)?.bank(), 4.0);
    /// # Ok::<(), forerun_verify::PromiseError>(())
    /// ```
    pub fn bank(&self) -> f64 {
        self.bank
    }

    /// The account of a new text holds one token's share.
    pub(crate) fn opening(&self, balance: Option<f64>) -> f64 {
        balance.unwrap_or(self.share).min(self.bank)
    }

    /// What the account holds for the next token, when one was forgiven or not.
    pub(crate) fn after(&self, balance: f64, forgiven: bool) -> f64 {
        (balance - f64::from(u8::from(forgiven)) + self.share).min(self.bank)
    }
}

/// How many tokens may be committed before the target has scored them.
///
/// A *stretch* of such tokens is begun only while the account is positive, and has at most `stretch`
/// tokens. The pass that comes later scores them, and each pays what it really spent: the chance that
/// token verification would have rejected it. Every token earns `per_token`.
///
/// So spends add up to at most `per_token * n + stretch` over the `n` tokens of every text, whoever
/// drafts and however stretches are chosen. That is a bound on texts: one token may spend all of its
/// probability.
///
/// ```
/// use forerun_verify::Deferral;
/// let deferral = Deferral::new(0.02)?;
/// assert_eq!((deferral.per_token(), deferral.stretch()), (0.02, 16));
/// # Ok::<(), forerun_verify::PromiseError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Deferral {
    per_token: f64,
    stretch: u8,
}

impl Deferral {
    /// Long enough to save most passes that can be saved.
    const STRETCH: u8 = 16;

    /// Each token earns this much total variation, and at most 16 are committed in a row before they
    /// are scored.
    ///
    /// # Errors
    /// If it is not between 0 and 1.
    ///
    /// ```
    /// # use forerun_verify::Deferral;
    /// assert!(Deferral::new(0.02).is_ok() && Deferral::new(2.0).is_err());
    /// ```
    pub fn new(per_token: f64) -> Result<Self, PromiseError> {
        let per_token = within("budget per token", per_token, 0.0, 1.0)?;
        Ok(Self { per_token, stretch: Self::STRETCH })
    }

    /// The same with another limit on how many tokens in a row are not scored yet.
    ///
    /// ```
    /// # use forerun_verify::Deferral;
    /// assert_eq!(Deferral::new(0.02)?.with_stretch(4).stretch(), 4);
    /// # Ok::<(), forerun_verify::PromiseError>(())
    /// ```
    #[must_use]
    pub fn with_stretch(self, stretch: u8) -> Self {
        Self { stretch, ..self }
    }

    /// What each token earns.
    ///
    /// ```
    /// # use forerun_verify::Deferral;
    /// assert_eq!(Deferral::new(0.02)?.per_token(), 0.02);
    /// # Ok::<(), forerun_verify::PromiseError>(())
    /// ```
    pub fn per_token(&self) -> f64 {
        self.per_token
    }

    /// Most tokens in a row that are not scored yet.
    ///
    /// ```
    /// # use forerun_verify::Deferral;
    /// assert_eq!(Deferral::new(0.02)?.stretch(), 16);
    /// # Ok::<(), forerun_verify::PromiseError>(())
    /// ```
    pub fn stretch(&self) -> usize {
        usize::from(self.stretch)
    }

    /// What the account holds after a token that spent this much. A new text's holds nothing.
    ///
    /// ```
    /// # use forerun_verify::Deferral;
    /// assert_eq!(Deferral::new(0.25)?.after(0.5, 1.0), -0.25);
    /// # Ok::<(), forerun_verify::PromiseError>(())
    /// ```
    pub fn after(&self, balance: f64, spent: f64) -> f64 {
        balance - spent + self.per_token
    }
}

/// What one committed token spent.
///
/// ```
/// # use forerun_verify::Spend;
/// assert_eq!(Spend::nothing(0.02).distance, 0.0);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spend {
    /// The total variation between the distribution the token was drawn from and the target's. At
    /// temperature zero, 1 for a forgiven token and 0 for others.
    pub distance: f64,
    /// Most by which any token's probability was multiplied there. At temperature zero, how many
    /// times likelier than the forgiven token the best one is.
    pub factor: f64,
    /// What the account holds for the token after it.
    pub balance: f64,
}

impl Spend {
    /// Of a token that is the target's own.
    ///
    /// ```
    /// # use forerun_verify::Spend;
    /// assert_eq!(Spend::nothing(0.02).factor, 1.0);
    /// ```
    pub fn nothing(balance: f64) -> Self {
        Self { distance: 0.0, factor: 1.0, balance }
    }
}

/// What a verdict spent: an entry for each accepted token and one for the next.
///
/// A caller that commits fewer of the tokens counts the entries of those alone, and carries the
/// balance of the last one over to the next block ([`Block::holding`](crate::Block::holding)).
///
/// ```
/// # use forerun_verify::{Spend, Spent};
/// let spent = Spent { tokens: vec![Spend { distance: 0.25, factor: 2.0, balance: 0.0 }; 2] };
/// assert_eq!((spent.sum(), spent.most(), spent.factor_most()), (0.5, 0.25, 2.0));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Spent {
    /// By token.
    pub tokens: Vec<Spend>,
}

impl Spent {
    /// What all tokens spent together: how many are expected not to be the target's own.
    ///
    /// ```
    /// # use forerun_verify::{Spend, Spent};
    /// assert_eq!(Spent { tokens: vec![Spend::nothing(0.0)] }.sum(), 0.0);
    /// ```
    pub fn sum(&self) -> f64 {
        self.tokens.iter().map(|spend| spend.distance).sum()
    }

    /// The most that one token spent.
    ///
    /// ```
    /// # use forerun_verify::{Spend, Spent};
    /// assert_eq!(Spent { tokens: vec![Spend::nothing(0.0)] }.most(), 0.0);
    /// ```
    pub fn most(&self) -> f64 {
        self.tokens.iter().map(|spend| spend.distance).fold(0.0, f64::max)
    }

    /// The most by which a probability was multiplied.
    ///
    /// ```
    /// # use forerun_verify::{Spend, Spent};
    /// assert_eq!(Spent { tokens: vec![Spend::nothing(0.0)] }.factor_most(), 1.0);
    /// ```
    pub fn factor_most(&self) -> f64 {
        self.tokens.iter().map(|spend| spend.factor).fold(1.0, f64::max)
    }
}
