//! Published lossy rules, as they were published, to compare with.
//!
//! None of them bounds how far the output strays from the target, so none is a choice for a
//! decoder: they are here, in the conformance kit, and not among the rules. Each judges one path
//! token by token, and draws from the target once all of it is accepted.

use std::fmt;
use std::sync::Arc;

use crate::block::Block;
use crate::chance::Chance;
use crate::dist::{Dist, Token};
use crate::draft::{Draft, Node, Proposal};
use crate::promise::Promise;
use crate::residual::Residual;
use crate::rule::{BlockRule, Refusal, Rule, Verdict, draw_or, verdict};

/// A lossy rule of the literature, with its parameters.
///
/// ```
/// use forerun_verify::check::{LossyPublishedRule, Kind, Model, Shape, drafting, examine};
/// let model = Model::random(Kind::Random, Shape { vocab_len: 3, len: 2 }, 1);
/// let typical = LossyPublishedRule::by_name("typical").expect("it is one of them");
/// let finding = examine(&model, &drafting::paths(1), &typical)?;
/// assert!(finding.spending(&model).worst > 0.05);
/// # Ok::<(), forerun_verify::Refusal>(())
/// ```
#[derive(Debug, Clone)]
pub enum LossyPublishedRule {
    /// Medusa's typical acceptance (arXiv 2401.10774): accepts a token that is likelier than
    /// `min(most, share * exp(-entropy))`; else draws from the target.
    Typical {
        /// The bar where the target is sure.
        most: f64,
        /// What the bar is of the inverse perplexity.
        share: f64,
    },
    /// Lenience (arXiv 2211.17192, appendix A.5): accepts with probability
    /// `target / (lenience * draft)`.
    Lenience {
        /// Below one.
        lenience: f64,
        /// What the next token is drawn from after a rejection.
        residual: LenienceResidual,
    },
    /// SpecDec (arXiv 2203.16487) where tokens are sampled: accepts a token among the `best` and
    /// within `gap` of the likeliest; else the next is the likeliest.
    SpecDec {
        /// How many tokens may pass.
        best: usize,
        /// In nats.
        gap: f64,
    },
    /// SGLang's thresholds on one path: accepts a token of at least probability `single`, another
    /// with its probability over `accumulated`; else draws from the target without that token.
    Thresholds {
        /// `--speculative-accept-threshold-single`.
        single: f64,
        /// `--speculative-accept-threshold-acc`.
        accumulated: f64,
    },
    /// SPRINTER (arXiv 2502.04557): accepts what a gate lets pass, without asking the target, and
    /// verifies other tokens one by one.
    Sprinter {
        /// Stands for the trained classifier.
        gate: Gate,
    },
}

/// What follows a rejection under lenience.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LenienceResidual {
    /// `relu(target - lenience * draft)`, as in the paper.
    Paper,
    /// `relu(target - draft)`, which is closer to the target.
    Plain,
}

/// A guess, from what the drafter knows, whether the target would accept a token.
///
/// ```
/// use forerun_verify::{check::Gate, Dist, Token};
/// let sure = Gate::new(|row: &Dist, token| row.prob(token) > 0.5);
/// assert!(sure.passes(&Dist::dense(vec![0.9, 0.1])?, Token(0)));
/// # Ok::<(), forerun_verify::RowError>(())
/// ```
#[derive(Clone)]
pub struct Gate(Arc<Passes>);

type Passes = dyn Fn(&Dist, Token) -> bool + Send + Sync;

impl Gate {
    /// A gate that reads the draft row and the token drawn from it.
    ///
    /// ```
    /// # use forerun_verify::check::Gate;
    /// let open = Gate::new(|_, _| true);
    /// ```
    pub fn new(passes: impl Fn(&Dist, Token) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(passes))
    }

    /// Whether it lets a token pass.
    ///
    /// ```
    /// # use forerun_verify::{check::Gate, Dist, Token};
    /// assert!(!Gate::new(|_, _| false).passes(&Dist::point(2, Token(0))?, Token(0)));
    /// # Ok::<(), forerun_verify::RowError>(())
    /// ```
    pub fn passes(&self, row: &Dist, token: Token) -> bool {
        (self.0)(row, token)
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gate")
    }
}

impl LossyPublishedRule {
    /// All of them, with the parameters they are usually run with. The gate lets pass what the
    /// drafter gives at least half of its probability.
    ///
    /// ```
    /// # use forerun_verify::{check::LossyPublishedRule, Promise, Rule};
    /// assert!(LossyPublishedRule::all().iter().all(|rule| rule.promise() == Promise::Nothing));
    /// ```
    pub fn all() -> Vec<Self> {
        let lenience = |residual| Self::Lenience { lenience: 0.5, residual };
        vec![
            Self::Typical { most: 0.09, share: 0.3 },
            lenience(LenienceResidual::Paper),
            lenience(LenienceResidual::Plain),
            Self::SpecDec { best: 3, gap: 1.0 },
            Self::Thresholds { single: 0.5, accumulated: 0.5 },
            Self::Sprinter { gate: Gate::new(|row, token| row.prob(token) >= 0.5) },
        ]
    }

    /// One of [`LossyPublishedRule::all`] by its name.
    ///
    /// ```
    /// # use forerun_verify::check::LossyPublishedRule;
    /// assert!(LossyPublishedRule::by_name("sprinter").is_some());
    /// assert!(LossyPublishedRule::by_name("block").is_none());
    /// ```
    pub fn by_name(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|rule| rule.name() == name)
    }

    /// The chance that a drafted token is accepted.
    fn acceptance(&self, target: &Dist, draft: Proposal<'_>, token: Token) -> f64 {
        let probability = target.prob(token);
        let ratio = probability / draft.prob(token);
        let certain = |passes: bool| f64::from(u8::from(passes));
        match self {
            Self::Typical { most, share } => {
                let surprise = |(_, p): (Token, f64)| -p * libm::log(p);
                let entropy: f64 = target.support().map(surprise).sum();
                certain(probability > most.min(share * libm::exp(-entropy)))
            }
            Self::Lenience { lenience, .. } => ratio / lenience,
            Self::SpecDec { best, gap } => {
                let ahead = |(other, p): &(Token, f64)| {
                    *p > probability || (*p == probability && *other < token)
                };
                let near = probability * libm::exp(*gap) >= target.likeliest().1;
                certain(near && target.support().filter(ahead).count() < *best)
            }
            Self::Thresholds { single, accumulated } => {
                if probability >= *single {
                    1.0
                } else {
                    probability / accumulated
                }
            }
            Self::Sprinter { gate } => match draft {
                Proposal::Row(row) if gate.passes(row, token) => 1.0,
                _ => ratio,
            },
        }
    }

    /// The token after a rejected one.
    fn next(
        &self,
        target: &Dist,
        (draft, rejected): (Proposal<'_>, Token),
        chance: &mut dyn Chance,
    ) -> Token {
        let taken = match self {
            Self::Typical { .. } => return target.draw(chance),
            Self::SpecDec { .. } => return target.likeliest().0,
            Self::Thresholds { .. } => {
                let other = target.draw_except(&[rejected], chance);
                return other.unwrap_or_else(|| target.draw(chance));
            }
            Self::Lenience { lenience, residual: LenienceResidual::Paper } => *lenience,
            Self::Lenience { .. } | Self::Sprinter { .. } => 1.0,
        };
        draw_or(&Residual::new((1.0, target), [(taken, draft)]), target, chance)
    }
}

impl Rule for LossyPublishedRule {
    fn name(&self) -> &'static str {
        match self {
            Self::Typical { .. } => "typical",
            Self::Lenience { residual: LenienceResidual::Paper, .. } => "lenience",
            Self::Lenience { residual: LenienceResidual::Plain, .. } => "lenience-plain",
            Self::SpecDec { .. } => "specdec",
            Self::Thresholds { .. } => "sglang",
            Self::Sprinter { .. } => "sprinter",
        }
    }

    fn admits(&self, draft: &Draft) -> Result<(), Refusal> {
        BlockRule.admits(draft)
    }

    fn promise(&self) -> Promise {
        Promise::Nothing
    }

    fn decide(&self, block: &Block<'_>, chance: &mut dyn Chance) -> Verdict {
        let draft = block.draft();
        let mut last = Node::ROOT;
        for (node, candidate) in draft.steps() {
            let (target, token) = (block.target(node), draft.token(candidate.child));
            let proposal = draft.proposal(candidate);
            if !chance.coin(self.acceptance(target, proposal, token)) {
                return verdict(block, node, self.next(target, (proposal, token), chance));
            }
            last = candidate.child;
        }
        verdict(block, last, block.target(last).draw(chance))
    }
}
