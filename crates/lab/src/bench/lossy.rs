//! Ways of verifying that change the output, measured beside the lossless ones: Forerun's, which keep
//! a bound, and published ones, which have none and which nothing but an experiment can run.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use forerun_decode::{LossyError, LossyMode};
use forerun_verify::Rule;
use forerun_verify::check::LossyPublishedRule;

/// What the rule of a setting begins with if it is lossy.
const PREFIX: &str = "lossy ";

/// A lossy way of verifying.
///
/// ```
/// use forerun_lab::bench::LossyWay;
/// let way: LossyWay = "account:0.02".parse()?;
/// assert!(way.has_bound());
/// let way: LossyWay = "typical".parse()?;
/// assert!(!way.has_bound());
/// assert!("best".parse::<LossyWay>().unwrap_err().to_string().contains("typical, lenience"));
/// # Ok::<(), forerun_lab::bench::UnknownLossyWay>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LossyWay {
    /// Within a bound.
    Mode(LossyMode),
    /// As it was published, by name.
    Published(&'static str),
}

/// Why there is no such way.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{error}; or one of the published rules, which have no bound: {}", published().join(", "))]
pub struct UnknownLossyWay {
    error: LossyError,
}

/// The names of all published rules.
fn published() -> Vec<&'static str> {
    LossyPublishedRule::all().iter().map(Rule::name).collect()
}

impl LossyWay {
    /// Whether it promises anything.
    pub fn has_bound(self) -> bool {
        matches!(self, Self::Mode(_))
    }

    /// The rule.
    pub(super) fn rule(self) -> Arc<dyn Rule> {
        match self {
            Self::Mode(mode) => mode.rule(),
            Self::Published(name) => {
                Arc::new(LossyPublishedRule::by_name(name).expect("its name is known"))
            }
        }
    }

    /// As a setting names it.
    pub(super) fn setting(self) -> String {
        format!("{PREFIX}{self}")
    }

    /// The way that a setting names, if it is lossy.
    pub(super) fn of_setting(rule: &str) -> Option<Self> {
        rule.strip_prefix(PREFIX)?.parse().ok()
    }
}

impl fmt::Display for LossyWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mode(mode) => mode.fmt(f),
            Self::Published(name) => f.write_str(name),
        }
    }
}

impl FromStr for LossyWay {
    type Err = UnknownLossyWay;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match published().into_iter().find(|name| *name == text) {
            Some(name) => Ok(Self::Published(name)),
            None => text.parse().map(Self::Mode).map_err(|error| UnknownLossyWay { error }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_name_them_so_that_nobody_takes_them_for_lossless() {
        for text in
            ["budget:0.02", "account:0.1", "near:1@0.02", "defer:0.02", "typical", "sprinter"]
        {
            let way: LossyWay = text.parse().unwrap();
            assert_eq!(way.setting(), format!("lossy {text}"));
            assert_eq!(LossyWay::of_setting(&way.setting()), Some(way));
        }
        assert_eq!(LossyWay::of_setting("block"), None);
    }
}
