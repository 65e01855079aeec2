//! Lossy verification by name, as flags and requests have it, and what an output spent of its promise.
//!
//! [`RuleChoice`](crate::RuleChoice) has the lossless rules. These are a type of their own, so that no
//! list of rules offers one by accident.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use forerun_verify::{
    Budget, Deferral, LossyBlockRule, LossyDeferRule, LossyNearRule, Near, PromiseError, Rule,
    Spend,
};

use crate::judge::{Drafts, RuleChoice};
use crate::sampling::Sampling;

/// How drafts are verified with loss, and the bound that is kept.
///
/// ```
/// use forerun_decode::LossyMode;
/// let mode: LossyMode = "account:0.02".parse()?;
/// assert_eq!((mode.name(), mode.promised()), ("account", 0.02));
/// let mode: LossyMode = "near:1@0.02".parse()?;
/// assert_eq!(mode.to_string(), "near:1@0.02");
/// assert!("account:2".parse::<LossyMode>().is_err());
/// # Ok::<(), forerun_decode::LossyError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LossyMode {
    /// Total variation from the target at most this at every token.
    Budget(Budget),
    /// The same per token, on account over the output so far.
    Account(Budget),
    /// At temperature zero: few tokens that are not the target's best, and none far from it.
    Near(Near),
    /// Tokens are committed before the target has scored them, and paid for when it has.
    Defer(Deferral),
}

/// Why there is no such lossy mode.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LossyError {
    /// It is not written as it should be.
    #[error(
        "{text:?} is no lossy mode: write budget:0.02, account:0.02, defer:0.02 (total variation per \
         token), or near:1.0@0.02 (nats below the best token, share of tokens; for temperature 0)"
    )]
    Unknown {
        /// What was written.
        text: String,
    },
    /// A factor for a mode that cannot keep one.
    #[error(
        "defer does not limit how much likelier a token becomes: leave the factor out, or use account"
    )]
    Factor,
    /// A number is out of range.
    #[error(transparent)]
    Bound(#[from] PromiseError),
}

/// Why a lossy mode cannot keep its bound, or would do nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{mode} {reason}: {instead}")]
pub struct LossyMismatch {
    /// The mode's name.
    pub mode: &'static str,
    /// What it does or wants.
    pub reason: &'static str,
    /// What to do.
    pub instead: &'static str,
}

/// What is wanted of an output beside its text, and what drafts for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Demands {
    /// A form that it must have, or a least length.
    pub constraint: bool,
    /// The log-probabilities of its tokens.
    pub logprobs: bool,
    /// Drafts by a head, which reads the target's hidden states.
    pub head: bool,
}

impl LossyMode {
    /// A mode by its name, with its bound and, if given, the most by which a token may become likelier.
    ///
    /// # Errors
    /// If there is no such mode, or a number is out of range.
    ///
    /// ```
    /// use forerun_decode::LossyMode;
    /// let mode = LossyMode::named("budget", 0.02, Some(2.0))?;
    /// assert_eq!(mode.to_string(), "budget:0.02");
    /// # Ok::<(), forerun_decode::LossyError>(())
    /// ```
    pub fn named(name: &str, per_token: f64, factor: Option<f64>) -> Result<Self, LossyError> {
        let bounded = |budget: Budget| match factor {
            Some(factor) => budget.with_factor(factor),
            None => Ok(budget),
        };
        Ok(match name {
            "budget" => Self::Budget(bounded(Budget::at_every_token(per_token)?)?),
            "account" => Self::Account(bounded(Budget::on_account(per_token)?)?),
            "defer" if factor.is_some() => return Err(LossyError::Factor),
            "defer" => Self::Defer(Deferral::new(per_token)?),
            _ => return Err(LossyError::Unknown { text: name.to_owned() }),
        })
    }

    /// Tokens within `gap` nats of the target's best, at most this share of all.
    ///
    /// # Errors
    /// If a number is out of range.
    pub fn near(gap: f64, share: f64) -> Result<Self, LossyError> {
        Ok(Self::Near(Near::new(gap, share)?))
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Budget(_) => "budget",
            Self::Account(_) => "account",
            Self::Near(_) => "near",
            Self::Defer(_) => "defer",
        }
    }

    /// What it promises per token: total variation, or the share of tokens that are not the best.
    pub fn promised(self) -> f64 {
        match self {
            Self::Budget(budget) | Self::Account(budget) => budget.per_token(),
            Self::Near(near) => near.share(),
            Self::Defer(deferral) => deferral.per_token(),
        }
    }

    /// What an output may spend beside what it promises per token, however long it is.
    pub fn allowance(self) -> f64 {
        match self {
            Self::Budget(_) | Self::Account(_) | Self::Near(_) => 0.0,
            Self::Defer(deferral) => deferral.stretch() as f64,
        }
    }

    /// Whether an output that spent this much was within the promise.
    ///
    /// ```
    /// use forerun_decode::{LossyMode, Spending};
    /// let spending = Spending { tokens: 10, sum: 0.3, most: 0.2, ..Spending::default() };
    /// assert!("account:0.03".parse::<LossyMode>()?.is_kept(&spending));
    /// assert!(!"budget:0.03".parse::<LossyMode>()?.is_kept(&spending));
    /// # Ok::<(), forerun_decode::LossyError>(())
    /// ```
    pub fn is_kept(self, spending: &Spending) -> bool {
        // What rounding may add to a sum.
        const ROUNDING: f64 = 1e-9;
        let allowance = self.allowance() * spending.outputs.max(1) as f64;
        let promised = self.promised() * spending.tokens as f64 + allowance;
        let per_token = spending.sum <= promised + ROUNDING;
        match self {
            Self::Budget(_) => spending.most <= self.promised() + ROUNDING,
            Self::Account(_) | Self::Near(_) | Self::Defer(_) => per_token,
        }
    }

    /// What it promises, for people.
    pub fn about(self) -> String {
        let promised = self.promised();
        match self {
            Self::Budget(_) => format!("total variation of at most {promised} at every token"),
            Self::Account(_) => {
                format!("total variation of at most {promised} per token on average")
            }
            Self::Near(near) => format!(
                "at most {promised} of the tokens are not the likeliest, and those within {} nats",
                near.gap()
            ),
            Self::Defer(_) => format!(
                "total variation of at most {promised} per token and {} beside over the whole output; \
                 tokens are shown before the target has scored them",
                self.allowance()
            ),
        }
    }

    /// The rule.
    pub fn rule(self) -> Arc<dyn Rule> {
        match self {
            Self::Budget(budget) | Self::Account(budget) => Arc::new(LossyBlockRule { budget }),
            Self::Near(near) => Arc::new(LossyNearRule { near }),
            Self::Defer(deferral) => Arc::new(LossyDeferRule { deferral }),
        }
    }

    /// Whether it does what is asked of it, for what would be drafted and how tokens are drawn.
    ///
    /// # Errors
    /// If it would do nothing, or not keep its bound.
    ///
    /// ```
    /// use forerun_decode::{Drafts, LossyMode, Sampling};
    /// let one = Drafts { drafters: 1, has_model: true, may_stop: false, width: 1, paths: None };
    /// let mode: LossyMode = "budget:0.02".parse()?;
    /// assert!(mode.admits(&one, &Sampling::default()).is_ok());
    /// assert!(mode.admits(&one, &Sampling::greedy()).is_err());
    /// # Ok::<(), forerun_decode::LossyError>(())
    /// ```
    pub fn admits(self, drafts: &Drafts, sampling: &Sampling) -> Result<(), LossyMismatch> {
        let mode = self.name();
        let refuse = |reason, instead| Err(LossyMismatch { mode, reason, instead });
        match (self, sampling.is_greedy()) {
            (Self::Budget(_) | Self::Account(_), true) => {
                refuse("changes nothing at temperature 0", "use near:1.0@0.02 there")
            }
            (Self::Near(_), false) => {
                refuse("is for temperature 0", "use budget:0.02 or account:0.02 above it")
            }
            (Self::Near(_), _) if sampling.infill.is_some() => {
                refuse("counts the model's likeliest tokens", "leave the sampler infill out")
            }
            _ if drafts.drafters > 1 || drafts.width > 1 => {
                refuse("judges one path", "name one drafter and one path, or decode without loss")
            }
            _ => Ok(()),
        }
    }

    /// Whether it can do what else is wanted of the output.
    ///
    /// # Errors
    /// If not, with what to do.
    ///
    /// ```
    /// use forerun_decode::{Demands, LossyMode};
    /// let mode: LossyMode = "defer:0.02".parse()?;
    /// assert!(mode.meets(Demands::default()).is_ok());
    /// assert!(mode.meets(Demands { logprobs: true, ..Demands::default() }).is_err());
    /// # Ok::<(), forerun_decode::LossyError>(())
    /// ```
    pub fn meets(self, demands: Demands) -> Result<(), LossyMismatch> {
        let reason = match (self, demands) {
            (Self::Budget(_) | Self::Account(_) | Self::Near(_), _) => return Ok(()),
            (Self::Defer(_), Demands { constraint: true, .. }) => {
                "shows tokens before anyone knows whether a form or a least length allows them"
            }
            (Self::Defer(_), Demands { logprobs: true, .. }) => {
                "shows tokens before their log-probabilities are known"
            }
            (Self::Defer(_), Demands { head: true, .. }) => {
                "shows tokens before the target has the hidden states that a draft head reads"
            }
            (Self::Defer(_), _) => return Ok(()),
        };
        Err(LossyMismatch { mode: self.name(), reason, instead: "use account:0.02 there" })
    }

    /// Whether it can stand in for this lossless rule, if one was named.
    ///
    /// # Errors
    /// If not, with what to do.
    pub fn stands_in_for(self, rule: Option<RuleChoice>) -> Result<(), LossyMismatch> {
        let instead = "leave the rule out, or decode without loss";
        let reason = match rule {
            None | Some(RuleChoice::Block) => return Ok(()),
            Some(RuleChoice::Coupled) => "lets the output depend on drafts, and coupled does not",
            Some(_) => "is block verification, and another rule was named",
        };
        Err(LossyMismatch { mode: self.name(), reason, instead })
    }
}

impl fmt::Display for LossyMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Budget(_) | Self::Account(_) | Self::Defer(_) => {
                write!(f, "{}:{}", self.name(), self.promised())
            }
            Self::Near(near) => write!(f, "near:{}@{}", near.gap(), near.share()),
        }
    }
}

impl FromStr for LossyMode {
    type Err = LossyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || LossyError::Unknown { text: text.to_owned() };
        let number = |text: &str| text.parse::<f64>().map_err(|_| unknown());
        let (name, bound) = text.split_once(':').ok_or_else(unknown)?;
        match name {
            "near" => {
                let (gap, share) = bound.split_once('@').ok_or_else(unknown)?;
                Self::near(number(gap)?, number(share)?)
            }
            "budget" | "account" | "defer" => Self::named(name, number(bound)?, None),
            _ => Err(unknown()),
        }
    }
}

/// What the tokens of outputs spent, added up.
///
/// ```
/// use forerun_decode::Spending;
/// use forerun_verify::Spend;
/// let mut spending = Spending::default();
/// spending.add(0, &[Spend { distance: 0.02, factor: 1.5, balance: 0.0 }, Spend::nothing(0.02)]);
/// assert_eq!((spending.tokens, spending.mean(), spending.most), (2, 0.01, 0.02));
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Spending {
    /// Outputs.
    pub outputs: u64,
    /// Their tokens.
    pub tokens: u64,
    /// Total variation of all of them: how many are expected not to be the target's own draw.
    pub sum: f64,
    /// The most that one spent.
    pub most: f64,
    /// Most by which a probability was multiplied.
    pub factor_most: f64,
    /// Which tokens are certainly not the target's own, by their place in the output.
    pub forgiven: Vec<usize>,
}

impl Spending {
    /// Adds tokens of an output, the first of which has this place in it.
    pub fn add(&mut self, first: usize, spent: &[Spend]) {
        for (place, spend) in (first..).zip(spent) {
            self.outputs = self.outputs.max(1);
            self.tokens += 1;
            self.sum += spend.distance;
            self.most = self.most.max(spend.distance);
            self.factor_most = self.factor_most.max(spend.factor);
            if is_forgiven(spend) {
                self.forgiven.push(place);
            }
        }
    }

    /// Adds another output's.
    pub fn merge(&mut self, other: &Self) {
        self.outputs += other.outputs;
        self.tokens += other.tokens;
        self.sum += other.sum;
        self.most = self.most.max(other.most);
        self.factor_most = self.factor_most.max(other.factor_most);
        self.forgiven.extend(&other.forgiven);
    }

    /// Total variation per token.
    pub fn mean(&self) -> f64 {
        if self.tokens == 0 { 0.0 } else { self.sum / self.tokens as f64 }
    }
}

/// Whether a token is certainly not the target's own.
pub(crate) fn is_forgiven(spend: &Spend) -> bool {
    spend.distance >= 1.0
}
