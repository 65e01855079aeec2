//! How drafts are judged, by name: what flags and requests say.
//!
//! A rule is lossless for drafts drawn in some ways only, so the two are chosen together here.

use std::fmt;
use std::str::FromStr;

use forerun_verify::{
    BlockRule, GbvRule, Noise, NssRule, PooledRule, RsdRule, Scheme, SpecInferRule, TokenRule,
    TraversalRule,
};

use crate::sequence::Verification;

/// How drafts are judged. All of these are lossless.
///
/// ```
/// use forerun_decode::RuleChoice;
/// assert_eq!("pooled".parse::<RuleChoice>()?, RuleChoice::Pooled);
/// # Ok::<(), forerun_decode::UnknownRule>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleChoice {
    /// One path as a whole.
    Block,
    /// One path token by token.
    Token,
    /// All paths together.
    Pooled,
    /// All paths, one after the other.
    Specinfer,
    /// The most promising of a model's paths as a whole.
    Gbv,
    /// A model's paths from their ends up.
    Traversal,
    /// A model's paths from the root down.
    Rsd,
    /// By drawing the target's tokens and comparing.
    Nss,
    /// By noise from seed and position.
    Coupled,
}

/// How the paths of a draft model are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathsChoice {
    /// Each for itself.
    Independent,
    /// With different first tokens, drawn without replacement.
    Distinct,
    /// By stochastic beam search.
    Beam,
}

/// What would be drafted.
#[derive(Debug, Clone, Copy)]
pub struct Drafts {
    /// How many drafters there are.
    pub drafters: usize,
    /// Whether one is a model.
    pub has_model: bool,
    /// Whether its paths may end early.
    pub may_stop: bool,
    /// How many paths it draws.
    pub width: usize,
    /// How, where that was said.
    pub paths: Option<PathsChoice>,
}

/// A rule that cannot judge what would be drafted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{} {reason}: {instead}", .rule.name())]
pub struct RuleMismatch {
    /// The rule.
    pub rule: RuleChoice,
    /// What it does or wants.
    pub reason: &'static str,
    /// What to do.
    pub instead: &'static str,
}

/// A rule nobody knows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no rule {name:?}: choose one of {}", Names)]
pub struct UnknownRule {
    /// Its name.
    pub name: String,
}

/// The names of all rules, for messages.
struct Names;

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&RuleChoice::ALL.map(RuleChoice::name).join(", "))
    }
}

impl RuleChoice {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Block,
        Self::Token,
        Self::Pooled,
        Self::Specinfer,
        Self::Gbv,
        Self::Traversal,
        Self::Rsd,
        Self::Nss,
        Self::Coupled,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Token => "token",
            Self::Pooled => "pooled",
            Self::Specinfer => "specinfer",
            Self::Gbv => "gbv",
            Self::Traversal => "traversal",
            Self::Rsd => "rsd",
            Self::Nss => "nss",
            Self::Coupled => "coupled",
        }
    }

    /// What it does, in a line.
    pub fn about(self) -> &'static str {
        match self {
            Self::Block => "One path as a whole; no lossless rule accepts more of it",
            Self::Token => "One path token by token, as most engines do",
            Self::Pooled => "All paths together",
            Self::Specinfer => "All paths, one after the other",
            Self::Gbv => {
                "The most promising of a model's paths as a whole (greedy multi-path block \
                 verification)"
            }
            Self::Traversal => "A model's paths from their ends up",
            Self::Rsd => "A model's paths from the root down, drawn without replacement",
            Self::Nss => "By drawing the target's tokens and comparing, as llama.cpp does",
            Self::Coupled => {
                "By noise from seed and position: the text depends on the seed and never on the \
                 drafts"
            }
        }
    }

    /// What it comes to where nothing is drafted.
    pub fn alone(self) -> &'static str {
        match self {
            Self::Coupled => "plain decoding, coupled to the seed",
            _ => "plain decoding",
        }
    }

    /// How this rule wants paths drawn.
    ///
    /// # Errors
    /// Where it cannot judge what would be drafted.
    ///
    /// ```
    /// use forerun_decode::{Drafts, RuleChoice};
    /// let two = Drafts { drafters: 2, has_model: true, may_stop: false, width: 1, paths: None };
    /// assert!(RuleChoice::Pooled.scheme(&two).is_ok());
    /// assert!(RuleChoice::Block.scheme(&two).is_err());
    /// ```
    pub fn scheme(self, drafts: &Drafts) -> Result<Scheme, RuleMismatch> {
        let refuse = |reason, instead| Err(RuleMismatch { rule: self, reason, instead });
        let one_model = drafts.drafters == 1 && drafts.has_model;
        match self {
            Self::Block | Self::Token if drafts.drafters > 1 || drafts.width > 1 => {
                refuse("judges one path, and there would be several", "use pooled")
            }
            Self::Coupled if drafts.width > 1 => {
                refuse("draws one path for a seed", "ask for one path")
            }
            Self::Gbv | Self::Traversal | Self::Rsd if !one_model => {
                refuse("judges the paths of one draft model", "use pooled")
            }
            Self::Gbv if drafts.may_stop => {
                refuse("wants whole paths", "let no draft stop early, or use pooled")
            }
            Self::Gbv => match drafts.paths {
                None | Some(PathsChoice::Independent) => Ok(Scheme::Paths),
                Some(_) => refuse("wants paths drawn independently", "use traversal or rsd"),
            },
            Self::Traversal | Self::Rsd => Ok(match drafts.paths {
                Some(PathsChoice::Independent) if drafts.may_stop => {
                    return refuse("wants whole paths here", "let no draft stop early");
                }
                Some(PathsChoice::Independent) => Scheme::Paths,
                Some(PathsChoice::Beam) => Scheme::Beam,
                None | Some(PathsChoice::Distinct) => Scheme::WithoutReplacement,
            }),
            _ => match drafts.paths {
                None | Some(PathsChoice::Independent) => Ok(Scheme::Slots),
                Some(_) => refuse("wants paths drawn independently", "use traversal or rsd"),
            },
        }
    }

    /// The rule itself; a seed fixes the noise of the one that takes it from there.
    pub fn verification(self, seed: u64) -> Verification {
        match self {
            Self::Block => Verification::rule(BlockRule),
            Self::Token => Verification::rule(TokenRule),
            Self::Pooled => Verification::rule(PooledRule),
            Self::Specinfer => Verification::rule(SpecInferRule),
            Self::Gbv => Verification::rule(GbvRule::default()),
            Self::Traversal => Verification::rule(TraversalRule),
            Self::Rsd => Verification::rule(RsdRule),
            Self::Nss => Verification::rule(NssRule),
            Self::Coupled => Verification::Coupled(Noise::new(seed)),
        }
    }
}

impl FromStr for RuleChoice {
    type Err = UnknownRule;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let named = Self::ALL.into_iter().find(|rule| rule.name() == name);
        named.ok_or_else(|| UnknownRule { name: name.to_owned() })
    }
}
