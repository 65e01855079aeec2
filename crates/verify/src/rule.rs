//! What a rule is, and one file for each.

use std::fmt::Debug;

use crate::block::Block;
use crate::chance::Chance;
use crate::dist::{Dist, Token};
use crate::draft::{Draft, Node, Scheme};
use crate::promise::{Promise, Spend, Spent};

mod block;
mod coupled;
mod gbv;
mod lossy_block;
mod lossy_defer;
mod lossy_near;
mod nss;
mod pooled;
mod rsd;
mod specinfer;
mod spectr;
mod token;
mod traversal;

pub use block::BlockRule;
pub(crate) use block::carried;
pub(crate) use coupled::Race;
pub use coupled::{CoupledRule, Noise};
pub use gbv::GbvRule;
pub use lossy_block::LossyBlockRule;
pub use lossy_defer::LossyDeferRule;
pub use lossy_near::LossyNearRule;
pub use nss::NssRule;
pub use pooled::PooledRule;
pub use rsd::RsdRule;
pub use specinfer::SpecInferRule;
pub use spectr::SpecTrRule;
pub use token::TokenRule;
pub use traversal::TraversalRule;

/// Most candidates that rules pool: at one node or at one depth.
const CANDIDATES_MAX: usize = 64;

/// What a rule decides: how far the draft is accepted, and the token after it.
///
/// ```
/// use forerun_verify::*;
/// let draft = Draft::fixed_path(2, [Token(0)])?;
/// let rows = [Dist::point(2, Token(0))?, Dist::point(2, Token(1))?];
/// let verdict = BlockRule.verify(&Block::new(&draft, &rows)?, &mut Random(Philox::new(0)))?;
/// assert_eq!((verdict.accepted, verdict.next), (1, Token(1)));
/// assert_eq!(draft.path_to(verdict.node), [Token(0)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Verdict {
    /// The last accepted node; the root where nothing is accepted.
    pub node: Node,
    /// How many drafted tokens are accepted: the depth of `node`.
    pub accepted: usize,
    /// The token after the accepted ones.
    pub next: Token,
}

/// Why a rule will not judge a draft: it would not keep its promise.
///
/// ```
/// # use forerun_verify::*;
/// let mut tree = Draft::start(Scheme::Independent, 3);
/// tree.fixed(Node::ROOT, Token(0))?;
/// tree.fixed(Node::ROOT, Token(1))?;
/// let refusal = BlockRule.admits(&tree.finish()?).unwrap_err();
/// assert!(refusal.to_string().starts_with("block is lossless for one path"));
/// # Ok::<(), DraftError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{rule} {promise} for {wants}, not for this draft of {scheme:?}; {instead}")]
pub struct Refusal {
    /// The rule's name.
    pub rule: &'static str,
    /// What it would break: "is lossless", or "keeps its budget".
    pub promise: &'static str,
    /// The scheme of the refused draft.
    pub scheme: Scheme,
    /// What the rule keeps its promise for.
    pub wants: &'static str,
    /// Which rules to use instead.
    pub instead: &'static str,
}

/// A verification rule: keeps as much of a draft as it may, and names the token after it, so that
/// the output keeps the target's own distribution, or the bound that a lossy rule
/// [promises](Rule::promise). Lossy rules have the word in their type's name.
///
/// Implement [`Rule::admits`] and [`Rule::decide`]; call [`Rule::verify`]. Put all randomness
/// through [`Chance`] and the feature `check` proves the implementation by enumeration.
///
/// ```
/// use forerun_verify::*;
/// /// Accepts nothing: lossless, and useless.
/// #[derive(Debug)]
/// struct Never;
/// impl Rule for Never {
///     fn name(&self) -> &'static str { "never" }
///     fn admits(&self, _: &Draft) -> Result<(), Refusal> { Ok(()) }
///     fn decide(&self, block: &Block<'_>, chance: &mut dyn Chance) -> Verdict {
///         let next = block.target(Node::ROOT).draw(chance);
///         Verdict { node: Node::ROOT, accepted: 0, next }
///     }
/// }
/// let draft = Draft::fixed_path(2, [Token(0)])?;
/// let rows = [Dist::point(2, Token(1))?, Dist::point(2, Token(1))?];
/// let block = Block::new(&draft, &rows)?;
/// assert_eq!(Never.verify(&block, &mut Random(Philox::new(0)))?.next, Token(1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Rule: Debug + Send + Sync {
    /// The rule's name, as flags and reports say it.
    fn name(&self) -> &'static str;

    /// Whether the rule keeps its promise for such a draft. Asks only what is known before the target
    /// runs, so that a draft can be refused before a pass is spent on it.
    ///
    /// # Errors
    /// Says what the rule wants and what to use instead.
    fn admits(&self, draft: &Draft) -> Result<(), Refusal>;

    /// The noise that tokens are chosen by, for a rule that draws nothing. A drafter that chooses
    /// by the same noise is accepted most.
    fn noise(&self) -> Option<Noise> {
        None
    }

    /// What the output keeps of the target's distribution.
    fn promise(&self) -> Promise {
        Promise::Lossless
    }

    /// What a verdict of this rule on this block spent of the promise, token by token.
    fn spent(&self, block: &Block<'_>, verdict: &Verdict) -> Spent {
        let nothing = Spend::nothing(block.balance().unwrap_or(0.0));
        Spent { tokens: vec![nothing; verdict.accepted + 1] }
    }

    /// Decides on a block whose draft the rule admits.
    fn decide(&self, block: &Block<'_>, chance: &mut dyn Chance) -> Verdict;

    /// Checks that the rule admits the draft, then decides.
    ///
    /// # Errors
    /// As [`Rule::admits`].
    fn verify(&self, block: &Block<'_>, chance: &mut dyn Chance) -> Result<Verdict, Refusal> {
        self.admits(block.draft())?;
        Ok(self.decide(block, chance))
    }
}

/// What refuses a draft, for the rules here.
fn refuse(
    rule: &'static str,
    draft: &Draft,
    wants: &'static str,
    instead: &'static str,
) -> Refusal {
    Refusal { rule, promise: "is lossless", scheme: draft.scheme(), wants, instead }
}

pub(crate) fn verdict(block: &Block<'_>, node: Node, next: Token) -> Verdict {
    Verdict { node, accepted: block.draft().depth(node), next }
}

/// Draws the next token from weights that have mass save for rounding, else from the target.
pub(crate) fn draw_or(
    weights: &dyn crate::Weights,
    target: &Dist,
    chance: &mut dyn Chance,
) -> Token {
    // An empty residual is never reached in exact arithmetic: its exit has probability zero.
    if weights.mass() > 0.0 { Token::at(chance.pick(weights)) } else { target.draw(chance) }
}

/// Walks down from the root: `step` names the token after a node, and the walk goes on while that
/// token is a drafted child.
fn walk(block: &Block<'_>, mut step: impl FnMut(Node) -> Token) -> Verdict {
    let mut node = Node::ROOT;
    loop {
        let token = step(node);
        match block.draft().child(node, token) {
            Some(child) => node = child,
            None => return verdict(block, node, token),
        }
    }
}
