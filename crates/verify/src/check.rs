//! Proof by enumeration, for these rules and for any other that implements [`Rule`].
//!
//! A rule's randomness goes through [`Chance`], so it can be replayed over *every* outcome of its
//! coins and picks, each with its exact probability; so can a drafter's. On a small [`Model`] that
//! gives the exact distribution of the output, which is compared with the target's own, and the
//! exact expected number of accepted tokens. No sampling is involved, and an error above rounding
//! is a proof that the rule is wrong.
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
mod published;
mod replay;
mod spending;

use std::collections::BTreeMap;

use crate::block::Block;
use crate::chance::Chance;
use crate::dist::{Dist, Token};
use crate::draft::{Draft, Node, RowId};
use crate::promise::Promise;
use crate::rule::{Refusal, Rule};

pub use model::{Kind, Model, Shape};
pub use published::{Gate, LenienceResidual, LossyPublishedRule};
pub use replay::outcomes;
pub use spending::Spending;

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
#[non_exhaustive]
pub struct Finding {
    /// The largest difference, over all outputs one token longer than the draft may be, between the
    /// probability that the rule produces the output and the target's own.
    pub worst_error: f64,
    /// The expected number of accepted tokens.
    pub accepted: f64,
    /// How many drafts were possible.
    pub drafts: usize,
    /// The probability of each verdict, as accepted tokens and the next one.
    pub exits: BTreeMap<Vec<Token>, BTreeMap<Token, f64>>,
    /// What the rule says that the token after each prefix spent; empty for a lossless one.
    pub said: BTreeMap<Vec<Token>, f64>,
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
    ///
    /// ```
    /// use forerun_verify::{check::*, Philox, Random};
    /// let model = Model::random(Kind::Random, Shape { vocab_len: 3, len: 2 }, 7);
    /// let draft = drafting::paths(1).draft(&model, &mut Random(Philox::new(1)));
    /// assert_eq!(draft.len(), 2);
    /// ```
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
/// If the rule refuses a draft.
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
    let mut said: BTreeMap<Vec<Token>, f64> = BTreeMap::new();
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
                if rule.promise() != Promise::Lossless {
                    for (n, spend) in rule.spent(&block, &verdict).tokens.iter().enumerate() {
                        said.insert(path[..n].to_vec(), spend.distance);
                    }
                }
                *exits.entry(path).or_default().entry(verdict.next).or_default() +=
                    drafted * probability;
            },
        );
    }
    let worst_error = worst_error(model, &exits);
    Ok(Finding { worst_error, accepted, drafts: drafts.len(), exits, said })
}

/// Continues every exit with the target's own tokens and compares whole outputs.
fn worst_error(model: &Model, exits: &BTreeMap<Vec<Token>, BTreeMap<Token, f64>>) -> f64 {
    let mut commits: BTreeMap<Vec<Token>, f64> = BTreeMap::new();
    for (path, nexts) in exits {
        for (next, probability) in nexts {
            *commits.entry([&path[..], &[*next]].concat()).or_default() += probability;
        }
    }
    let mut worst = 0.0_f64;
    let mut produced_in_all = 0.0;
    model.each_output(model.shape().len + 1, &mut |output, wanted| {
        let produced: f64 = (1..=output.len())
            .filter_map(|n| Some(commits.get(&output[..n])? * model.chance_of(output, n)))
            .sum();
        worst = worst.max((produced - wanted).abs());
        produced_in_all += produced;
    });
    worst.max((produced_in_all - 1.0).abs())
}

impl Draft {
    /// Parents, children, tokens and rows of all candidates: equal for drafts that look alike.
    fn fingerprint(&self) -> Vec<(Node, Node, Token, Option<RowId>)> {
        let nodes = std::iter::once(Node::ROOT).chain(self.nodes().map(|(node, ..)| node));
        nodes
            .flat_map(|node| self.candidates(node).iter().map(move |candidate| (node, candidate)))
            .map(|(node, candidate)| {
                (node, candidate.child, self.token(candidate.child), candidate.row)
            })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::Scheme;
    use crate::promise::{Budget, Spent};
    use crate::rule::Verdict;
    use crate::rule::{
        BlockRule, GbvRule, LossyBlockRule, NssRule, PooledRule, RsdRule, SpecInferRule,
        SpecTrRule, TokenRule, TraversalRule,
    };

    /// Long enough for buckets and for more than one chunk.
    const LONG: usize = 1_100;

    /// Runs a rule on the same block in a long vocabulary, most of whose tokens are impossible.
    #[derive(Debug)]
    struct Padded<'r>(&'r dyn Rule);

    /// Small tokens stand at both ends of the long vocabulary and around a chunk's edge.
    fn long(token: Token) -> Token {
        Token([3, 511, 512, 1_099][token.index()])
    }

    fn long_row(row: &Dist) -> Dist {
        let mut weights = vec![0.0; LONG];
        row.support().for_each(|(token, _)| {
            // The very weights, so that the rows are the same to the bit.
            weights[long(token).index()] = row.weight(token);
        });
        Dist::dense(weights).unwrap()
    }

    impl Rule for Padded<'_> {
        fn name(&self) -> &'static str {
            self.0.name()
        }
        fn admits(&self, draft: &Draft) -> Result<(), Refusal> {
            self.0.admits(draft)
        }
        fn decide(&self, block: &Block<'_>, chance: &mut dyn Chance) -> Verdict {
            let draft = block.draft().mapped(LONG, long, long_row);
            let nodes = std::iter::once(Node::ROOT).chain(draft.nodes().map(|(node, ..)| node));
            let rows: Vec<Dist> = nodes.map(|node| long_row(block.target(node))).collect();
            let verdict = self.0.decide(&Block::new(&draft, &rows).unwrap(), chance);
            let next = (0..4).map(Token).find(|token| long(*token) == verdict.next).unwrap();
            Verdict { next, ..verdict }
        }
        fn promise(&self) -> Promise {
            self.0.promise()
        }
        fn spent(&self, block: &Block<'_>, verdict: &Verdict) -> Spent {
            let draft = block.draft().mapped(LONG, long, long_row);
            let nodes = std::iter::once(Node::ROOT).chain(draft.nodes().map(|(node, ..)| node));
            let rows: Vec<Dist> = nodes.map(|node| long_row(block.target(node))).collect();
            self.0.spent(&Block::new(&draft, &rows).unwrap(), verdict)
        }
    }

    /// On long rows `up` and `down` are rounded; the mass that leaves makes up for it.
    #[test]
    fn a_budget_is_kept_on_long_rows_too() {
        let shapes = [(4, 1), (3, 2), (2, 3)].map(|(vocab_len, len)| Shape { vocab_len, len });
        let (mut short, mut long) = (0.0, 0.0);
        for (shape, kind) in shapes.iter().flat_map(|s| Kind::ALL.map(move |kind| (s, kind))) {
            for (eps, seed) in
                [0.01, 0.05, 0.3].into_iter().flat_map(|e| (0..4).map(move |s| (e, s)))
            {
                let model = Model::random(kind, *shape, seed);
                let at_every_token = Budget::at_every_token(eps).unwrap();
                for budget in [at_every_token, Budget::on_account(eps).unwrap()] {
                    let rule = LossyBlockRule { budget };
                    let finding = examine(&model, &drafting::paths(1), &Padded(&rule)).unwrap();
                    let spending = finding.spending(&model);
                    assert!(spending.keeps(&budget), "{kind:?} seed {seed}, {eps}: {spending:?}");
                    long += finding.accepted;
                    short += examine(&model, &drafting::paths(1), &rule).unwrap().accepted;
                }
            }
        }
        assert!(long < short && long > 0.995 * short, "{long} of {short} accepted");
    }

    /// Small models are sorted and short: this is what proves the code for long rows.
    #[test]
    fn every_rule_is_lossless_on_long_rows_too() {
        let rules: [(&dyn Rule, Scheme, usize); 10] = [
            (&TokenRule, Scheme::Paths, 1),
            (&BlockRule, Scheme::Paths, 1),
            (&NssRule, Scheme::Paths, 2),
            (&SpecInferRule, Scheme::Paths, 2),
            (&SpecTrRule, Scheme::Paths, 3),
            (&RsdRule, Scheme::WithoutReplacement, 2),
            (&TraversalRule, Scheme::WithoutReplacement, 2),
            (&GbvRule { guarded: false }, Scheme::Paths, 2),
            (&PooledRule, Scheme::Paths, 2),
            (&PooledRule, Scheme::Independent, 2),
        ];
        for (rule, scheme, paths) in rules {
            for kind in Kind::ALL {
                let model = Model::random(kind, Shape { vocab_len: 4, len: 1 }, 3);
                let deeper = Model::random(kind, Shape { vocab_len: 2, len: 2 }, 3);
                for model in [model, deeper] {
                    let rule = Padded(rule);
                    let finding = match scheme {
                        Scheme::Paths => examine(&model, &drafting::paths(paths), &rule),
                        Scheme::Independent => {
                            examine(&model, &drafting::two_drafters(paths), &rule)
                        }
                        _ => examine(&model, &drafting::without_replacement(paths), &rule),
                    };
                    let error = finding.unwrap().worst_error;
                    assert!(error < 1e-12, "{} on {kind:?} is off by {error:e}", rule.name());
                }
            }
        }
    }

    /// On long rows all small ratios share a rank; a token the target cannot say must stay below
    /// them, in the choice of a path as in the running sums.
    #[test]
    fn gbv_ranks_impossible_tokens_below_unlikely_ones() {
        let model = Model::new(Shape { vocab_len: 4, len: 1 }, |_| {
            let draft = Dist::dense(vec![4.0, 3.0, 2.0, 1.0]).unwrap();
            let target = Dist::dense(vec![1e-6, 0.0, 1.0, 0.5]).unwrap();
            [target, draft.clone(), draft]
        });
        for guarded in [false, true] {
            let rule = GbvRule { guarded };
            let error = examine(&model, &drafting::paths(2), &Padded(&rule)).unwrap().worst_error;
            assert!(error < 1e-12, "off by {error:e}");
        }
    }
}
