//! Proof by enumeration, for these rules and for any other that implements [`Rule`].
//!
//! A rule's randomness goes through [`Chance`], so it can be replayed over *every* outcome of its
//! coins and picks, each with its exact probability; so can a drafter's. On a small [`Model`] that
//! gives the exact law of the output, which is compared with the target's own, and the exact
//! expected number of accepted tokens. No sampling is involved, and an error above rounding is a
//! proof that the rule is wrong.
//!
//! ```
//! use forerun_verify::check::{Kind, Model, Shape, drafting, examine};
//! use forerun_verify::BlockRule;
//! let model = Model::random(Kind::Aligned, Shape { vocab_len: 3, len: 2 }, 1);
//! let finding = examine(&model, &drafting::paths(1), &BlockRule)?;
//! assert!(finding.worst_error < 1e-12);
//! println!("{} tokens accepted on average", finding.accepted);
//! # Ok::<(), forerun_verify::Refusal>(())
//! ```

pub mod drafting;
mod model;
mod replay;

use std::collections::BTreeMap;

use crate::block::Block;
use crate::chance::Chance;
use crate::dist::{Dist, Token};
use crate::draft::{Draft, Node, RowId};
use crate::rule::{Refusal, Rule};

pub use model::{Kind, Model, Shape};
pub use replay::outcomes;

/// What enumeration found of a rule on a model.
///
/// ```
/// # use forerun_verify::{check::*, NssRule};
/// # let model = Model::random(Kind::Random, Shape { vocab_len: 2, len: 1 }, 1);
/// let finding: Finding = examine(&model, &drafting::guesses(), &NssRule)?;
/// assert!(finding.is_lossless());
/// # Ok::<(), forerun_verify::Refusal>(())
/// ```
#[derive(Debug, Clone)]
pub struct Finding {
    /// The largest difference, over all texts one token longer than the draft may be, between the
    /// probability that the rule produces the text and the target's own.
    pub worst_error: f64,
    /// The expected number of accepted tokens.
    pub accepted: f64,
    /// How many drafts were possible.
    pub drafts: usize,
    /// The probability of each verdict, as accepted tokens and the next one.
    pub exits: BTreeMap<Vec<Token>, BTreeMap<Token, f64>>,
}

impl Finding {
    /// Whether the output follows the target but for rounding.
    ///
    /// ```
    /// # use forerun_verify::{check::*, TokenRule};
    /// # let model = Model::random(Kind::Random, Shape { vocab_len: 2, len: 1 }, 1);
    /// assert!(examine(&model, &drafting::paths(1), &TokenRule)?.is_lossless());
    /// # Ok::<(), forerun_verify::Refusal>(())
    /// ```
    pub fn is_lossless(&self) -> bool {
        self.worst_error < 1e-12
    }
}

/// How a model is drafted for: draws from the model's drafters and makes a draft.
///
/// ```
/// use forerun_verify::check::*;
/// use forerun_verify::*;
/// // Any closure will do: here, the drafter's one token.
/// let one_token = |model: &Model, chance: &mut dyn Chance| {
///     let row = model.draft(0, &[]);
///     Draft::path(model.shape().vocab_len, [(row.draw(chance), row.clone())]).unwrap()
/// };
/// let model = Model::random(Kind::Random, Shape { vocab_len: 3, len: 1 }, 7);
/// assert!(examine(&model, &one_token, &BlockRule)?.is_lossless());
/// # Ok::<(), Refusal>(())
/// ```
pub trait Drafting {
    /// Drafts once.
    fn draft(&self, model: &Model, chance: &mut dyn Chance) -> Draft;
}

impl<F: Fn(&Model, &mut dyn Chance) -> Draft> Drafting for F {
    fn draft(&self, model: &Model, chance: &mut dyn Chance) -> Draft {
        self(model, chance)
    }
}

/// Enumerates every draft and every verdict on it.
///
/// # Errors
/// Where the rule refuses a draft.
///
/// ```
/// # use forerun_verify::{check::*, BlockRule};
/// # let model = Model::random(Kind::Random, Shape { vocab_len: 2, len: 2 }, 1);
/// assert!(examine(&model, &drafting::paths(1), &BlockRule).is_ok());
/// assert!(examine(&model, &drafting::paths(2), &BlockRule).is_err());
/// ```
pub fn examine(
    model: &Model,
    drafting: &dyn Drafting,
    rule: &dyn Rule,
) -> Result<Finding, Refusal> {
    // Drafts that look alike are one; a rule cannot see more of them than this.
    let mut drafts: BTreeMap<_, Vec<(Draft, f64)>> = BTreeMap::new();
    outcomes(
        |chance| drafting.draft(model, chance),
        |probability, draft: Draft| {
            let alike = drafts.entry(draft.fingerprint()).or_default();
            match alike.iter_mut().find(|(known, _)| known.has_rows_of(&draft)) {
                Some((_, drafted)) => *drafted += probability,
                None => alike.push((draft, probability)),
            }
        },
    );
    let drafts: Vec<(Draft, f64)> = drafts.into_values().flatten().collect();
    let mut exits: BTreeMap<Vec<Token>, BTreeMap<Token, f64>> = BTreeMap::new();
    let mut accepted = 0.0;
    for (draft, drafted) in &drafts {
        rule.admits(draft)?;
        let rows = model.score(draft);
        let block = Block::new(draft, &rows).expect("a model scores every node");
        outcomes(
            |chance| rule.decide(&block, chance),
            |probability, verdict| {
                let path = draft.path_to(verdict.node);
                accepted += drafted * probability * path.len() as f64;
                *exits.entry(path).or_default().entry(verdict.next).or_default() +=
                    drafted * probability;
            },
        );
    }
    let worst_error = worst_error(model, &exits);
    Ok(Finding { worst_error, accepted, drafts: drafts.len(), exits })
}

/// Carries every exit on with the target's own tokens and compares whole texts.
fn worst_error(model: &Model, exits: &BTreeMap<Vec<Token>, BTreeMap<Token, f64>>) -> f64 {
    let mut commits: BTreeMap<Vec<Token>, f64> = BTreeMap::new();
    for (path, nexts) in exits {
        for (next, probability) in nexts {
            *commits.entry([&path[..], &[*next]].concat()).or_default() += probability;
        }
    }
    let mut worst = 0.0_f64;
    let mut produced_in_all = 0.0;
    model.each_text(model.shape().len + 1, &mut |text, wanted| {
        let produced: f64 = (1..=text.len())
            .filter_map(|n| Some(commits.get(&text[..n])? * model.chance_of(text, n)))
            .sum();
        worst = worst.max((produced - wanted).abs());
        produced_in_all += produced;
    });
    worst.max((produced_in_all - 1.0).abs())
}

impl Draft {
    /// Parents, children, tokens and rows of all slots: equal for drafts that look alike.
    fn fingerprint(&self) -> Vec<(Node, Node, Token, Option<RowId>)> {
        let nodes = std::iter::once(Node::ROOT).chain(self.nodes().map(|(node, ..)| node));
        nodes
            .flat_map(|node| self.slots(node).iter().map(move |slot| (node, slot)))
            .map(|(node, slot)| (node, slot.child, self.token(slot.child), slot.row))
            .collect()
    }
}

impl Model {
    /// The target's rows at the root and after every node.
    fn score(&self, draft: &Draft) -> Vec<Dist> {
        let nodes = std::iter::once(Node::ROOT).chain(draft.nodes().map(|(node, ..)| node));
        nodes.map(|node| self.target(&draft.path_to(node)).clone()).collect()
    }
}
