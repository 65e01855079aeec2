//! How drafts are verified, by name, as flags and requests have it.
//!
//! A rule is lossless for drafts drawn in some ways only, so the two are chosen together here.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use forerun_verify::{
    BlockRule, CoupledRule, GbvRule, Noise, NssRule, PooledRule, RsdRule, Rule, Scheme,
    SpecInferRule, TokenRule, TraversalRule,
};

/// How drafts are verified. All of these are lossless.
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
    /// How, if that was given.
    pub paths: Option<PathsChoice>,
}

/// A rule that cannot verify what would be drafted.
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

/// An unknown rule.
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
            Self::Block => "Block verification of one path; no lossless rule accepts more",
            Self::Token => "One path, token by token, as in most engines",
            Self::Pooled => "Pooled verification of all paths together",
            Self::Specinfer => "SpecInfer: all paths, one after the other",
            Self::Gbv => {
                "Greedy multi-path block verification: block verification of a draft model's most \
                 promising path"
            }
            Self::Traversal => "A draft model's paths, from their ends up",
            Self::Rsd => "A draft model's paths, drawn without replacement, from the root down",
            Self::Nss => "Sample from the target and compare, as llama.cpp does",
            Self::Coupled => {
                "Noise from seed and position: the output depends on the seed, never on the \
                 drafts"
            }
        }
    }

    /// What it comes to if nothing is drafted.
    pub fn alone(self) -> &'static str {
        match self {
            Self::Coupled => "plain decoding, coupled to the seed",
            _ => "plain decoding",
        }
    }

    /// How this rule wants paths drawn.
    ///
    /// # Errors
    /// If it cannot verify what would be drafted.
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
                None | Some(PathsChoice::Independent) => Ok(Scheme::Independent),
                Some(_) => refuse("wants paths drawn independently", "use traversal or rsd"),
            },
        }
    }

    /// The rule itself; a seed fixes the noise of the one that takes it from there.
    pub fn with_seed(self, seed: u64) -> Arc<dyn Rule> {
        match self {
            Self::Block => Arc::new(BlockRule),
            Self::Token => Arc::new(TokenRule),
            Self::Pooled => Arc::new(PooledRule),
            Self::Specinfer => Arc::new(SpecInferRule),
            Self::Gbv => Arc::new(GbvRule::default()),
            Self::Traversal => Arc::new(TraversalRule),
            Self::Rsd => Arc::new(RsdRule),
            Self::Nss => Arc::new(NssRule),
            Self::Coupled => Arc::new(CoupledRule { noise: Noise::new(seed) }),
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
