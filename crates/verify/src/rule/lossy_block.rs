//! Block verification within a budget.

use super::block::{carried, leave};
use super::{Refusal, Rule, Verdict, refuse};
use crate::bend::{Bend, Limits};
use crate::block::Block;
use crate::chance::{Chance, Weights};
use crate::draft::{Candidate, Draft, Node};
use crate::promise::{Budget, Promise, Spend, Spent};
use crate::residual::Residual;

/// Block verification that accepts more than a lossless rule can, within a [`Budget`] of total
/// variation.
///
/// At each prefix of the path the target's row is replaced by the *bent row*
/// `clip(draft / w, down * target, up * target)`, as near to the draft as the budget allows, and the
/// path is judged by [block verification](crate::BlockRule) for these rows: `w(n+1) = min(1, up *
/// w(n) * target / draft)`, and the next token is drawn from `relu(down * w * target - draft)`.
///
/// **Theorem.** The next token at every prefix the output reaches follows the bent row, so its
/// total variation from the target's is what that row was bent by: at most the budget, for every
/// drafter. No token's probability is multiplied by more than [`Budget::factor`], and a token that
/// the target never says is never said: grammars and truncation hold. Of one token, no rule within
/// the budget accepts more, which is the overlap of the two rows plus the budget; over several, this
/// one bends depth by depth, and a rule that knew the rows off the path could accept slightly more.
/// With a budget of zero it is block verification, digit for digit. Keeps its budget for one path,
/// sampled or fixed.
///
/// A budget [on account](Budget::on_account) lives from block to block: hand the balance of the last
/// committed token's [`Spend`] to the next block by [`Block::holding`].
///
/// ```
/// use forerun_verify::*;
/// let rule = LossyBlockRule { budget: Budget::at_every_token(0.1)? };
/// // The drafter says token 0 half of the time, the target less often.
/// let draft = Draft::path(2, [(Token(0), Dist::dense(vec![0.5, 0.5])?)])?;
/// let rows = [Dist::dense(vec![0.4, 0.6])?, Dist::dense(vec![0.5, 0.5])?];
/// let block = Block::new(&draft, &rows)?;
/// // All that it lacks is within the budget: the draft is accepted for certain.
/// for seed in 0..100 {
///     let verdict = rule.verify(&block, &mut Random(Philox::new(seed)))?;
///     assert_eq!(verdict.accepted, 1);
///     assert!((rule.spent(&block, &verdict).sum() - 0.1).abs() < 1e-7);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossyBlockRule {
    /// How far the output may stray.
    pub budget: Budget,
}

/// The path up to a depth, and what happens there.
struct Depth {
    /// How far the path up to here is still owed to the output.
    weight: f64,
    /// How the row after it is bent; `None` if it is the target's.
    bend: Option<Bend>,
    /// What the account holds once the token after it is paid for.
    balance: f64,
}

impl Depth {
    fn up(&self) -> f64 {
        self.bend.map_or(1.0, |bend| bend.up)
    }

    fn spend(&self) -> Spend {
        let distance = self.bend.map_or(0.0, |bend| bend.spent);
        Spend { distance, factor: self.up(), balance: self.balance }
    }
}

impl LossyBlockRule {
    /// The forward pass: an entry for each drafted token and one for the end of the path, where the
    /// next token is the target's.
    fn depths(&self, block: &Block<'_>, steps: &[(Node, Candidate)]) -> Vec<Depth> {
        let (budget, draft) = (&self.budget, block.draft());
        let mut balance = budget.opening(block.balance());
        let mut weight = 1.0;
        let mut depths = Vec::with_capacity(steps.len() + 1);
        for (node, candidate) in steps {
            let (target, proposal) = (block.target(*node), draft.proposal(*candidate));
            let limits = Limits { spend: balance.min(budget.step()), factor: budget.factor() };
            let bend = Bend::new((weight, target), proposal, limits);
            balance = budget.after(balance, bend.map_or(0.0, |bend| bend.spent));
            let depth = Depth { weight, bend, balance };
            let token = draft.token(candidate.child);
            weight = carried(weight, depth.up() * (target.prob(token) / proposal.prob(token)));
            depths.push(depth);
        }
        depths.push(Depth { weight, bend: None, balance: budget.after(balance, 0.0) });
        depths
    }
}

impl Rule for LossyBlockRule {
    fn name(&self) -> &'static str {
        "lossy-block"
    }

    fn admits(&self, draft: &Draft) -> Result<(), Refusal> {
        let instead = "draft one path, or use pooled without loss";
        let refusal = || Refusal {
            promise: "keeps its budget",
            ..refuse("lossy-block", draft, "one path", instead)
        };
        draft.is_one_path().then_some(()).ok_or_else(refusal)
    }

    fn promise(&self) -> Promise {
        Promise::Budget(self.budget)
    }

    fn spent(&self, block: &Block<'_>, verdict: &Verdict) -> Spent {
        let depths = self.depths(block, &block.draft().steps());
        Spent { tokens: depths.iter().take(verdict.accepted + 1).map(Depth::spend).collect() }
    }

    fn decide(&self, block: &Block<'_>, chance: &mut dyn Chance) -> Verdict {
        let draft = block.draft();
        let steps = draft.steps();
        let depths = self.depths(block, &steps);
        let nodes: Vec<Node> = steps.iter().map(|(node, _)| *node).collect();
        let last = steps.last().map_or(Node::ROOT, |(_, candidate)| candidate.child);
        let weights: Vec<f64> = depths.iter().map(|depth| depth.weight).collect();
        let leaving = |n: usize| {
            let ((node, candidate), Depth { weight, bend, .. }) = (steps[n], &depths[n]);
            let scale = bend.map_or(1.0, |bend| bend.down) * weight;
            let target = (scale, block.target(node));
            let residual = Residual::new(target, [(1.0, draft.proposal(candidate))]);
            (bend.map_or(residual.mass(), |bend| bend.left), residual)
        };
        leave(block, (&nodes, last), &weights, leaving, chance)
    }
}
