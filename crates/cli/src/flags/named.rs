//! Choices by name, with what each is in the help.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use forerun_decode::{PathsChoice, RuleChoice};

/// Reads one of these: a name, what it is, and what it stands for.
pub(crate) fn named<T: Copy + Send + Sync + 'static, const N: usize>(
    all: [(&'static str, &'static str, T); N],
) -> impl TypedValueParser<Value = T> {
    let possible = all.map(|(name, about, _)| PossibleValue::new(name).help(about));
    PossibleValuesParser::new(possible).map(move |name| {
        let of = all.iter().find(|(known, ..)| *known == name);
        of.expect("only these are possible").2
    })
}

/// Reads a rule.
pub(super) fn rule() -> impl TypedValueParser<Value = RuleChoice> {
    named(RuleChoice::ALL.map(|rule| (rule.name(), rule.about(), rule)))
}

/// Reads how paths are drawn.
pub(super) fn paths() -> impl TypedValueParser<Value = PathsChoice> {
    named([
        ("independent", "Each path is sampled independently", PathsChoice::Independent),
        ("distinct", "Different first tokens, drawn without replacement", PathsChoice::Distinct),
        ("beam", "Stochastic beam search", PathsChoice::Beam),
    ])
}
