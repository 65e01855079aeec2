//! Greedy decoding that lets near misses pass.

use super::{Refusal, Rule, Verdict, walk};
use crate::block::Block;
use crate::chance::Chance;
use crate::draft::{Draft, Node};
use crate::promise::{Near, Promise, Spend, Spent};

/// For temperature zero: accepts a drafted token that is not the target's best but [near](Near) it,
/// as often as its account allows (the tolerance of SpecDec, arXiv 2203.16487, with its bounds
/// enforced).
///
/// The walk follows the target's best token while it is a drafted child. Where it is not, the
/// nearest drafted child is *forgiven* if its [gap](Block::gap) is within [`Near::gap`] and the
/// account holds a whole token. The next token is the target's best.
///
/// **Theorem.** Every token is the target's best after the tokens before it, or forgiven: at most
/// [`Near::gap`] nats below the best. At most [`Near::share`] times `n` of the first `n` tokens are
/// forgiven, for every drafter, as each takes a whole token from an account that earns the share.
/// Of all rules that change as many tokens, one that forgives by gap gives up the fewest nats. With
/// a share of zero, or without gaps, the output is the greedy one. Keeps this for any draft.
///
/// The rows are those of temperature zero ([`Dist::argmax`](crate::Dist::argmax)); gaps are handed
/// over beside them by [`Block::with_gaps`].
///
/// ```
/// use forerun_verify::*;
/// let rule = LossyNearRule { near: Near::new(1.0, 0.5)? };
/// let draft = Draft::fixed_path(2, [Token(0)])?;
/// let rows = [Dist::argmax(&[0.2, 0.7])?, Dist::argmax(&[0.1, 0.3])?];
/// let block = Block::new(&draft, &rows)?.with_gaps(&[0.5])?;
/// let accepted = |block: &Block<'_>| {
///     Ok::<_, Refusal>(rule.verify(block, &mut Random(Philox::new(0)))?.accepted)
/// };
/// // Half a token is saved, and one is needed.
/// assert_eq!(accepted(&block)?, 0);
/// assert_eq!(accepted(&block.holding(1.0))?, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossyNearRule {
    /// How far the output may stray.
    pub near: Near,
}

impl LossyNearRule {
    /// The drafted child that is nearest to the target's best, if it is near enough.
    fn forgivable(&self, block: &Block<'_>, node: Node) -> Option<Node> {
        let drafted = block.draft().candidates(node).iter().map(|candidate| candidate.child);
        let nearest = drafted.min_by(|one, two| block.gap(*one).total_cmp(&block.gap(*two)))?;
        (block.gap(nearest) <= self.near.gap()).then_some(nearest)
    }
}

impl Rule for LossyNearRule {
    fn name(&self) -> &'static str {
        "lossy-near"
    }

    fn admits(&self, _: &Draft) -> Result<(), Refusal> {
        Ok(())
    }

    fn promise(&self) -> Promise {
        Promise::Near(self.near)
    }

    fn spent(&self, block: &Block<'_>, verdict: &Verdict) -> Spent {
        let draft = block.draft();
        let mut balance = self.near.opening(block.balance());
        let mut pay = |forgiven: Option<Node>| {
            balance = self.near.after(balance, forgiven.is_some());
            match forgiven {
                Some(node) => Spend { distance: 1.0, factor: libm::exp(block.gap(node)), balance },
                None => Spend::nothing(balance),
            }
        };
        let mut tokens = Vec::with_capacity(verdict.accepted + 1);
        let mut parent = Node::ROOT;
        for token in draft.path_to(verdict.node) {
            let child = draft.child(parent, token).expect("an accepted token was drafted");
            tokens.push(pay((block.target(parent).likeliest().0 != token).then_some(child)));
            parent = child;
        }
        tokens.push(pay(None));
        Spent { tokens }
    }

    fn decide(&self, block: &Block<'_>, _: &mut dyn Chance) -> Verdict {
        let mut balance = self.near.opening(block.balance());
        walk(block, |node| {
            let (best, _) = block.target(node).likeliest();
            let agrees = block.draft().child(node, best).is_some();
            let forgivable = (!agrees && balance >= 1.0).then(|| self.forgivable(block, node));
            let forgiven = forgivable.flatten();
            balance = self.near.after(balance, forgiven.is_some());
            forgiven.map_or(best, |child| block.draft().token(child))
        })
    }
}
