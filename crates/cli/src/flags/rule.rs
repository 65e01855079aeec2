//! How drafts are judged, by name.
//!
//! A rule is lossless for drafts drawn in some ways only, so the two are chosen together here.

use forerun_decode::Verification;
use forerun_verify::{
    BlockRule, GbvRule, Noise, NssRule, PooledRule, RsdRule, Scheme, SpecInferRule, TokenRule,
    TraversalRule,
};

use super::ConfigError;

/// How drafts are judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RuleChoice {
    /// One path as a whole; no lossless rule accepts more of it
    Block,
    /// One path token by token, as most engines do
    Token,
    /// All paths together
    Pooled,
    /// All paths, one after the other
    Specinfer,
    /// The most promising of a model's paths as a whole (greedy multi-path block verification)
    Gbv,
    /// A model's paths from their ends up
    Traversal,
    /// A model's paths from the root down, drawn without replacement
    Rsd,
    /// By drawing the target's tokens and comparing, as llama.cpp does
    Nss,
    /// By noise from seed and position: the text depends on the seed and never on the drafts
    Coupled,
}

/// How the paths of a draft model are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum PathsChoice {
    /// Each for itself
    Independent,
    /// With different first tokens, drawn without replacement
    Distinct,
    /// By stochastic beam search
    Beam,
}

/// What would be drafted.
pub(super) struct Drafts {
    /// How many drafters there are.
    pub(super) drafters: usize,
    /// Whether one is a model.
    pub(super) has_model: bool,
    /// Whether its paths may end early.
    pub(super) may_stop: bool,
    /// How many paths it draws.
    pub(super) width: usize,
    /// How, where that was said.
    pub(super) paths: Option<PathsChoice>,
}

impl RuleChoice {
    /// Its name.
    pub(crate) fn name(self) -> &'static str {
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

    /// What it comes to where nothing is drafted.
    pub(crate) fn alone(self) -> &'static str {
        match self {
            Self::Coupled => "plain decoding, coupled to the seed",
            _ => "plain decoding",
        }
    }

    /// How this rule wants paths drawn, or why it cannot judge what would be drafted.
    pub(super) fn scheme(self, drafts: &Drafts) -> Result<Scheme, ConfigError> {
        let refuse =
            |reason, instead| Err(ConfigError::RuleAndDraft { rule: self.name(), reason, instead });
        let one_model = drafts.drafters == 1 && drafts.has_model;
        match self {
            Self::Block | Self::Token if drafts.drafters > 1 || drafts.width > 1 => {
                refuse("judges one path, and there would be several", "use pooled")
            }
            Self::Coupled if drafts.width > 1 => {
                refuse("draws one path for a seed", "leave --spec-draft-paths out")
            }
            Self::Gbv | Self::Traversal | Self::Rsd if !one_model => {
                refuse("judges the paths of one draft model", "use pooled")
            }
            Self::Gbv if drafts.may_stop => {
                refuse("wants whole paths", "leave --spec-draft-p-min out, or use pooled")
            }
            Self::Gbv => match drafts.paths {
                None | Some(PathsChoice::Independent) => Ok(Scheme::Paths),
                Some(_) => refuse("wants paths drawn independently", "use traversal or rsd"),
            },
            Self::Traversal | Self::Rsd => Ok(match drafts.paths {
                Some(PathsChoice::Independent) if drafts.may_stop => {
                    return refuse("wants whole paths here", "leave --spec-draft-p-min out");
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
    pub(crate) fn verification(self, seed: u64) -> Verification {
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
