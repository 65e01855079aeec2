//! How drafts are judged, by name.
//!
//! Only rules that are lossless for what drafters make together: a path each. The others of
//! `forerun-verify` want drafts that are drawn differently.

use forerun_decode::Verification;
use forerun_verify::{BlockRule, Noise, NssRule, PooledRule, SpecInferRule, TokenRule};

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
    /// By drawing the target's tokens and comparing, as llama.cpp does
    Nss,
    /// By noise from seed and position: the text depends on the seed and never on the drafts
    Coupled,
}

impl RuleChoice {
    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Token => "token",
            Self::Pooled => "pooled",
            Self::Specinfer => "specinfer",
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

    /// The rule itself; a seed fixes the noise of the one that takes it from there.
    pub(crate) fn verification(self, seed: u64) -> Verification {
        match self {
            Self::Block => Verification::rule(BlockRule),
            Self::Token => Verification::rule(TokenRule),
            Self::Pooled => Verification::rule(PooledRule),
            Self::Specinfer => Verification::rule(SpecInferRule),
            Self::Nss => Verification::rule(NssRule),
            Self::Coupled => Verification::Coupled(Noise::new(seed)),
        }
    }
}
