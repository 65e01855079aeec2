//! Greedy multi-path block verification.

use super::block::deepest_first;
use super::{Refusal, Rule, Verdict, refuse};
use crate::block::Block;
use crate::chance::{Chance, Weights, locate_in};
use crate::dist::{Dist, Token, common};
use crate::draft::{Candidate, Draft, Node, Scheme};
use crate::profile::{RANKS, Ratio};

/// Greedy multi-path block verification (Thomas and Pal, arXiv 2602.16961): picks the path whose
/// tokens have the largest likelihood ratios, depth by depth, and runs
/// [`BlockRule`](crate::BlockRule) on it against the distribution that the picked path really has.
///
/// With the tokens of a node ordered by ratio, the picked child is the largest of independent
/// draws, so its law is the draft row *skewed* towards large ratios: a difference of `K`-th powers
/// of the running sum, which is computed as a sum of products so that it never cancels.
///
/// **Theorem.** Picking by any fixed total order gives a path of known law, and block
/// verification is lossless for it; the order used to pick and the order of the running sum must
/// be one and the same. Lossless for independent paths of one drafter, after a shared trunk or
/// not. *Not* monotone in the number of paths, and often behind one path where drafter and target
/// agree: [`guarded`](GbvRule::guarded), the default, uses only the first `k` paths, the `k` that
/// promises the largest first step, a function of the rows at the branching alone.
/// [`PooledRule`](crate::PooledRule) has no such trade.
///
/// ```
/// use forerun_verify::*;
/// let mut tree = Draft::start(Scheme::Paths, 2);
/// let row = tree.row(Dist::dense(vec![0.5, 0.5])?)?;
/// tree.sampled(Node::ROOT, row, Token(0))?;
/// tree.sampled(Node::ROOT, row, Token(1))?;
/// let draft = tree.finish()?;
/// let rows = [(); 3].map(|()| Dist::point(2, Token(1)).unwrap());
/// let rule = GbvRule::default();
/// let verdict = rule.verify(&Block::new(&draft, &rows)?, &mut Random(Philox::new(1)))?;
/// assert_eq!((verdict.accepted, verdict.next), (1, Token(1)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct GbvRule {
    /// Whether fewer paths are used where they promise more.
    pub guarded: bool,
}

impl Default for GbvRule {
    fn default() -> Self {
        Self { guarded: true }
    }
}

impl Rule for GbvRule {
    fn name(&self) -> &'static str {
        if self.guarded { "gbv" } else { "gbv-plain" }
    }

    fn admits(&self, draft: &Draft) -> Result<(), Refusal> {
        (draft.scheme() == Scheme::Paths || draft.is_empty()).then_some(()).ok_or_else(|| {
            let wants = "whole paths of one drafter, drawn independently";
            refuse(self.name(), draft, wants, "use pooled, or traversal without replacement")
        })
    }

    fn decide(&self, block: &Block<'_>, chance: &mut dyn Chance) -> Verdict {
        let picked = Picked::new(block, self.guarded);
        let ratio = |n: usize| {
            let step = &picked.steps[n];
            block.target(step.node).prob(step.token) / step.prob
        };
        let residual = |n: usize, weight: f64| {
            let step = &picked.steps[n];
            let target = block.target(step.node);
            leftover(&Order::new(target, step.row), step.skew, weight)
        };
        let nodes: Vec<Node> = picked.steps.iter().map(|step| step.node).collect();
        deepest_first(block, (&nodes, picked.last), ratio, residual, chance)
    }
}

/// Weights written out, in any order.
struct Entered(Vec<(usize, f64)>);

impl Weights for Entered {
    fn mass(&self) -> f64 {
        self.0.iter().map(|(_, weight)| weight).sum()
    }
    fn locate(&self, point: f64) -> usize {
        locate_in(self.0.iter().copied(), point).expect("drawn from only where it has mass")
    }
    fn visit(&self, each: &mut dyn FnMut(usize, f64)) {
        self.0.iter().filter(|(_, w)| *w > 0.0).for_each(|(index, w)| each(*index, *w));
    }
}

/// How a row is skewed: by `paths` draws, of which the share `below` fell short of this node.
#[derive(Debug, Clone, Copy)]
struct Skew {
    paths: usize,
    below: f64,
}

impl Skew {
    /// The probability of a picked token of draft probability `draft` with `before` ranked below
    /// it.
    fn prob(self, draft: f64, before: f64) -> f64 {
        let low = self.low(before);
        let high = low + (1.0 - self.below) * draft;
        draft * powers(high, low, self.paths) / powers(1.0, self.below, self.paths)
    }

    fn low(self, before: f64) -> f64 {
        self.below + (1.0 - self.below) * before
    }

    /// The skew one token further down.
    fn after(self, draft: f64, before: f64) -> Self {
        let low = self.low(before);
        Self { below: low / (low + (1.0 - self.below) * draft), ..self }
    }
}

/// `(a^k - b^k) / (a - b)` as a sum of products.
fn powers(a: f64, b: f64, k: usize) -> f64 {
    // Horner: ((a + b) a + b^2) a + ...
    let (mut sum, mut power) = (1.0, 1.0);
    for _ in 1..k {
        power *= b;
        sum = sum * a + power;
    }
    sum
}

struct Step<'a> {
    node: Node,
    token: Token,
    row: &'a Dist,
    skew: Skew,
    prob: f64,
}

/// The picked path, with the probability of each of its tokens.
struct Picked<'a> {
    steps: Vec<Step<'a>>,
    last: Node,
}

impl<'a> Picked<'a> {
    fn new(block: &Block<'a>, guarded: bool) -> Self {
        let draft = block.draft();
        let branch = draft.branch().0;
        let mut picked = Self { steps: Vec::new(), last: Node::ROOT };
        // Candidates that count at the current node: the trunk's one, then the paths in use.
        let mut in_use = 1;
        let mut skew = Skew { paths: 1, below: 0.0 };
        while let Some(row) = draft.shared_row(picked.last) {
            let (node, row) = (picked.last, draft.draft_row(row));
            let order = Order::new(block.target(node), row);
            if Some(node) == branch {
                in_use = draft.candidates(node).len();
                if guarded {
                    in_use = best_paths(&order, in_use);
                }
                skew = Skew { paths: in_use, below: 0.0 };
            }
            let candidates = &draft.candidates(node)[..in_use];
            let child = order.largest(draft, candidates);
            let token = draft.token(child);
            let (drawn, before) = (row.prob(token), order.mass_below(token));
            let prob = skew.prob(drawn, before);
            picked.steps.push(Step { node, token, row, skew, prob });
            skew = skew.after(drawn, before);
            in_use = candidates.iter().filter(|candidate| candidate.child == child).count();
            picked.last = child;
        }
        picked
    }
}

/// The tokens of a node in their one total order: by rank of the ratio, then by id.
///
/// Any fixed order is lossless, so ranks may be coarse; what must not happen is that the picked
/// child and the running sums are ordered in two ways.
struct Order<'a> {
    target: &'a Dist,
    row: &'a Dist,
    ratio: Ratio<'a>,
}

impl<'a> Order<'a> {
    fn new(target: &'a Dist, row: &'a Dist) -> Self {
        Self { target, row, ratio: Ratio::new(target, vec![(1.0, row)]) }
    }

    fn rank(&self, token: Token) -> (f64, Token) {
        // What the target cannot say ranks below all it can, however unlikely.
        let possible = self.target.weight(token) > 0.0;
        let rank = if possible { self.ratio.rank(self.ratio.at(token)) } else { -1.0 };
        (rank, token)
    }

    fn largest(&self, draft: &Draft, candidates: &[Candidate]) -> Node {
        let mut best = candidates[0].child;
        for candidate in candidates {
            let rank = |node: Node| self.rank(draft.token(node));
            if rank(best) < rank(candidate.child) {
                best = candidate.child;
            }
        }
        best
    }

    /// Draft mass of the tokens that rank below this one, which the target can say.
    ///
    /// Tokens the target cannot say rank below all others. Where the picked token is one of them
    /// nothing is accepted, and what is said here does not matter.
    fn mass_below(&self, token: Token) -> f64 {
        let bar = self.rank(token);
        let (mut covered, mut below) = (0.0, 0.0);
        self.each(|rank, token, _, draft| {
            covered += draft;
            below += if (rank, token) < bar { draft } else { 0.0 };
        });
        (1.0 - covered).max(0.0) + below
    }

    /// The tokens both rows can say, with rank, target and draft probability, by id.
    fn each(&self, mut each: impl FnMut(f64, Token, f64, f64)) {
        let (target_unit, draft_unit) = (self.target.unit(), self.row.unit());
        common(self.target, self.row, |token, target, draft| {
            let rank = self.ratio.rank(self.ratio.between(target, draft));
            each(rank, token, f64::from(target) * target_unit, f64::from(draft) * draft_unit);
        });
    }

    /// Calls `each` with every token both rows can say, its target and draft probabilities, and
    /// the draft mass that ranks below it.
    fn each_ranked(&self, mut each: impl FnMut(Token, f64, f64, f64)) {
        let mut entries: Vec<(f64, Token, f64, f64)> = Vec::new();
        let mut covered = 0.0;
        self.each(|rank, token, target, draft| {
            covered += draft;
            entries.push((rank, token, target, draft));
        });
        let mut before = (1.0 - covered).max(0.0);
        if !self.ratio.has_few_ranks() {
            entries.sort_unstable_by(|one, two| one.0.total_cmp(&two.0).then(one.1.cmp(&two.1)));
            for (_, token, target, draft) in entries {
                each(token, target, draft, before);
                before += draft;
            }
            return;
        }
        let mut running = vec![0.0; RANKS];
        for (rank, .., draft) in &entries {
            running[place(*rank)] += draft;
        }
        for sum in &mut running {
            (*sum, before) = (before, before + *sum);
        }
        // Entries stand in the order of ids, which is the order within a rank.
        for (rank, token, target, draft) in entries {
            each(token, target, draft, running[place(rank)]);
            running[place(rank)] += draft;
        }
    }
}

/// A coarse rank as an index.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below RANKS")]
fn place(rank: f64) -> usize {
    rank as usize
}

/// What the picked child's distribution leaves of the weighted target.
fn leftover(order: &Order<'_>, skew: Skew, weight: f64) -> Entered {
    let mut entered = Vec::new();
    order.each_ranked(|token, target, draft, before| {
        entered.push((token.index(), (weight * target - skew.prob(draft, before)).max(0.0)));
    });
    // Tokens that cannot be drafted keep all they have.
    for (token, target) in order.target.support() {
        if order.row.weight(token) <= 0.0 {
            entered.push((token.index(), weight * target));
        }
    }
    Entered(entered)
}

/// How many paths promise the largest first step.
fn best_paths(order: &Order<'_>, paths: usize) -> usize {
    let mut steps = vec![0.0; paths];
    order.each_ranked(|_, target, draft, before| {
        for (step, paths) in steps.iter_mut().zip(1..) {
            *step += Skew { paths, below: 0.0 }.prob(draft, before).min(target);
        }
    });
    // Fewer paths unless more are better by more than rounding.
    let mut best = 0;
    for more in 1..paths {
        if steps[more] > steps[best] + 1e-12 {
            best = more;
        }
    }
    best + 1
}
