//! How drafts are judged and drawn, by name.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use forerun_decode::{PathsChoice, RuleChoice};

/// Reads a rule.
pub(super) fn rule() -> impl TypedValueParser<Value = RuleChoice> {
    let named = RuleChoice::ALL.map(|rule| PossibleValue::new(rule.name()).help(rule.about()));
    PossibleValuesParser::new(named).try_map(|name| name.parse::<RuleChoice>())
}

/// Reads how paths are drawn.
pub(super) fn paths() -> impl TypedValueParser<Value = PathsChoice> {
    let named = |(name, about, _): &(&'static str, &'static str, PathsChoice)| {
        PossibleValue::new(*name).help(*about)
    };
    PossibleValuesParser::new(PATHS.iter().map(named).collect::<Vec<_>>()).map(|name| {
        let of = PATHS.iter().find(|(known, ..)| *known == name);
        of.expect("only these are possible").2
    })
}

const PATHS: [(&str, &str, PathsChoice); 3] = [
    ("independent", "Each for itself", PathsChoice::Independent),
    ("distinct", "With different first tokens, drawn without replacement", PathsChoice::Distinct),
    ("beam", "By stochastic beam search", PathsChoice::Beam),
];
