//! Greedy multi-path block verification.

use super::block::deepest_first;
use super::{Refusal, Rule, Verdict, refuse};
use crate::block::Block;
use crate::chance::{Chance, Weights, locate_in};
use crate::dist::{Dist, Token};
use crate::draft::{Draft, Node, Scheme, Slot};

/// Greedy multi-path block verification (Thomas and Pal, arXiv 2602.16961): picks the path whose
/// tokens have the largest likelihood ratios, depth by depth, and runs
/// [`BlockRule`](crate::BlockRule) on it against the law that the picked path really has.
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
            block.target(step.node).prob(step.token) / step.law
        };
        let residual = |n: usize, weight: f64| {
            let step = &picked.steps[n];
            let target = block.target(step.node);
            let weights = skewed(target, step.row, step.skew)
                .into_iter()
                .map(|entry| (entry.token.index(), (weight * entry.target - entry.law).max(0.0)))
                .collect();
            Entered(weights)
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
    /// The law of a picked token of draft probability `draft` with `before` ranked below it.
    fn law(self, draft: f64, before: f64) -> f64 {
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
    law: f64,
}

/// The picked path, with the law of each of its tokens.
struct Picked<'a> {
    steps: Vec<Step<'a>>,
    last: Node,
}

impl<'a> Picked<'a> {
    fn new(block: &Block<'a>, guarded: bool) -> Self {
        let draft = block.draft();
        let branch = draft.branch().0;
        let mut picked = Self { steps: Vec::new(), last: Node::ROOT };
        // Slots that count at the current node: the trunk's one, then the paths in use.
        let mut in_use = 1;
        let mut skew = Skew { paths: 1, below: 0.0 };
        while let Some(row) = draft.shared_row(picked.last) {
            let (node, row) = (picked.last, draft.draft_row(row));
            let target = block.target(node);
            if Some(node) == branch {
                in_use = draft.slots(node).len();
                if guarded {
                    in_use = best_paths(target, row, in_use);
                }
                skew = Skew { paths: in_use, below: 0.0 };
            }
            let slots = &draft.slots(node)[..in_use];
            let child = largest(draft, slots, target, row);
            let token = draft.token(child);
            let (drawn, before) = (row.prob(token), mass_below(target, row, token));
            let law = skew.law(drawn, before);
            picked.steps.push(Step { node, token, row, skew, law });
            skew = skew.after(drawn, before);
            in_use = slots.iter().filter(|slot| slot.child == child).count();
            picked.last = child;
        }
        picked
    }
}

/// The rank of a token: by ratio, then by id.
fn rank(target: &Dist, row: &Dist, token: Token) -> (f64, Token) {
    (target.prob(token) / row.prob(token), token)
}

fn ranks_below(one: (f64, Token), two: (f64, Token)) -> bool {
    one.0 < two.0 || (one.0 == two.0 && one.1 < two.1)
}

fn largest(draft: &Draft, slots: &[Slot], target: &Dist, row: &Dist) -> Node {
    let mut best = slots[0].child;
    for slot in slots {
        let ranked = |node: Node| rank(target, row, draft.token(node));
        if ranks_below(ranked(best), ranked(slot.child)) {
            best = slot.child;
        }
    }
    best
}

/// Draft mass of the tokens that rank below this one.
fn mass_below(target: &Dist, row: &Dist, token: Token) -> f64 {
    let bar = rank(target, row, token);
    let below = |other: &(Token, f64)| ranks_below((target.prob(other.0) / other.1, other.0), bar);
    row.support().filter(below).map(|(_, draft)| draft).sum()
}

struct Entry {
    token: Token,
    target: f64,
    law: f64,
}

/// The tokens of the target with the law of the picked child at each.
fn skewed(target: &Dist, row: &Dist, skew: Skew) -> Vec<Entry> {
    let mut entries: Vec<(f64, Token, f64, f64)> = Vec::new();
    let mut covered = 0.0;
    for (token, target) in target.support() {
        let draft = row.prob(token);
        covered += draft;
        entries.push((
            if draft > 0.0 { target / draft } else { f64::INFINITY },
            token,
            target,
            draft,
        ));
    }
    entries.sort_unstable_by(|one, two| one.0.total_cmp(&two.0).then(one.1.cmp(&two.1)));
    // Tokens the target cannot say have ratio zero and rank below all others.
    let mut before = (1.0 - covered).max(0.0);
    let law = |(_, token, target, draft)| {
        let law = skew.law(draft, before);
        before += draft;
        Entry { token, target, law }
    };
    entries.into_iter().map(law).collect()
}

/// How many paths promise the largest first step.
fn best_paths(target: &Dist, row: &Dist, paths: usize) -> usize {
    let step = |paths: usize| -> f64 {
        let entries = skewed(target, row, Skew { paths, below: 0.0 });
        entries.iter().map(|entry| entry.target.min(entry.law)).sum()
    };
    // Fewer paths unless more are better by more than rounding.
    let (mut best, mut best_step) = (1, step(1));
    for paths in 2..=paths {
        let step = step(paths);
        if step > best_step + 1e-12 {
            (best, best_step) = (paths, step);
        }
    }
    best
}
