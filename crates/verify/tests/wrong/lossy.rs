//! Budgets that are not kept: plausible versions of block verification within a budget, each with
//! what is wrong, and books that do not say what was spent.

use forerun_verify::check::{Kind, Model, Shape, Spending, drafting, examine, outcomes};
use forerun_verify::*;

use crate::one_path::{BlockFault, block, share};
use crate::seen::{Seen, draw, normal, residual};

/// What all of these promise at every token.
pub(crate) const PROMISED: f64 = 0.05;

/// What is wrong with block verification within a budget.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum LossyFault {
    Sound,
    /// The bend is worked out as if every prefix had weight one.
    BentAtOne,
    /// Tokens are accepted by the bend, and the next is drawn as if there were none.
    PlainResidual,
    /// A token may become as common as the budget pays for.
    NoFactor,
}

/// `up` and `down` for a weight, by bisection.
fn bend(weight: f64, target: &[f64], draft: &[f64], factor: f64) -> (f64, f64) {
    let pairs: Vec<(f64, f64)> =
        target.iter().zip(draft).map(|(p, q)| (*p, q / weight)).filter(|(p, _)| *p > 0.0).collect();
    let raised = |up: f64| pairs.iter().map(|(p, q)| (q.min(up * p) - p).max(0.0)).sum::<f64>();
    let lowered =
        |down: f64| pairs.iter().map(|(p, q)| (p - q.max(down * p)).max(0.0)).sum::<f64>();
    let limit = PROMISED.min(lowered(0.0));
    let search = |from: f64, to: f64, within: &dyn Fn(f64) -> bool| {
        let (mut from, mut to) = (from, to);
        if within(to) {
            return to;
        }
        for _ in 0..200 {
            let middle = 0.5 * (from + to);
            *(if within(middle) { &mut from } else { &mut to }) = middle;
        }
        from
    };
    let up = search(1.0, factor, &|up| raised(up) <= limit);
    let spent = raised(up);
    (up, search(1.0, 0.0, &|down| lowered(down) <= spent))
}

/// Block verification within a budget, written out.
pub(crate) fn bent_block(seen: &Seen<'_>, fault: LossyFault, chance: &mut dyn Chance) -> Verdict {
    let line = seen.line();
    let len = line.tokens.len();
    let factor = if fault == LossyFault::NoFactor { 1e12 } else { 4.0 };
    let (mut weights, mut lowered) = (vec![1.0], Vec::new());
    for (n, token) in line.tokens.iter().enumerate() {
        let (target, draft) = (seen.target(line.nodes[n]), &line.laws[n]);
        let bent_for = if fault == LossyFault::BentAtOne { 1.0 } else { weights[n] };
        let (up, down) =
            if weights[n] > 0.0 { bend(bent_for, &target, draft, factor) } else { (1.0, 1.0) };
        let ratio = target[token.index()] / draft[token.index()];
        weights.push((up * weights[n] * ratio).min(1.0));
        lowered.push(if fault == LossyFault::PlainResidual { 1.0 } else { down });
    }
    if chance.coin(weights[len]) {
        return seen.verdict_from_target(line.nodes[len], chance);
    }
    for n in (0..len).rev() {
        let target = seen.target(line.nodes[n]);
        let left = residual(lowered[n] * weights[n], &target, &line.laws[n]);
        if n == 0 || chance.coin(share(left.iter().sum(), 1.0 - weights[n])) {
            return seen.verdict(line.nodes[n], draw(&left, &target, chance));
        }
    }
    unreachable!("the root is kept for certain")
}

/// Block verification of the target times `1 + budget`, as if a factor were a distance.
pub(crate) fn lenient_block(seen: &Seen<'_>, chance: &mut dyn Chance) -> Verdict {
    let line = seen.line();
    let len = line.tokens.len();
    let mut weights = vec![1.0];
    for (n, token) in line.tokens.iter().enumerate() {
        let ratio = seen.target(line.nodes[n])[token.index()] / line.laws[n][token.index()];
        weights.push((weights[n] * (1.0 + PROMISED) * ratio).min(1.0));
    }
    if chance.coin(weights[len]) {
        return seen.verdict_from_target(line.nodes[len], chance);
    }
    for n in (0..len).rev() {
        let target = seen.target(line.nodes[n]);
        let left = residual(weights[n] * (1.0 + PROMISED), &target, &line.laws[n]);
        if n == 0 || chance.coin(share(left.iter().sum(), 1.0 - weights[n])) {
            return seen.verdict(line.nodes[n], draw(&left, &target, chance));
        }
    }
    unreachable!("the root is kept for certain")
}

/// Token verification of a mixture of target and draft at the right distance: what was rejected is
/// taken all the same with probability `budget / distance`.
pub(crate) fn mixture(seen: &Seen<'_>, chance: &mut dyn Chance) -> Verdict {
    forgiving(seen, chance, |target, draft| {
        target.iter().zip(draft).map(|(p, q)| (p - q).abs()).sum::<f64>() / 2.0
    })
}

/// The same with the distance taken over the target's best token alone.
pub(crate) fn distance_of_the_best(seen: &Seen<'_>, chance: &mut dyn Chance) -> Verdict {
    forgiving(seen, chance, |target, draft| {
        let best = target.iter().zip(draft).max_by(|one, two| one.0.total_cmp(two.0));
        best.map_or(0.0, |(p, q)| (p - q).abs() / 2.0)
    })
}

fn forgiving(
    seen: &Seen<'_>,
    chance: &mut dyn Chance,
    distance: impl Fn(&[f64], &[f64]) -> f64,
) -> Verdict {
    let line = seen.line();
    for (n, &token) in line.tokens.iter().enumerate() {
        let (target, draft) = (seen.target(line.nodes[n]), &line.laws[n]);
        let ratio = (target[token.index()] / draft[token.index()]).min(1.0);
        let forgiven = (PROMISED / distance(&target, draft).max(1e-12)).min(1.0);
        if !chance.coin(ratio + forgiven * (1.0 - ratio)) {
            let left = residual(1.0, &target, draft);
            return seen.verdict(line.nodes[n], draw(&left, &target, chance));
        }
    }
    seen.verdict_from_target(line.nodes[line.tokens.len()], chance)
}

/// Block verification, after whose verdict a coin takes the rejected token all the same.
pub(crate) fn forgiving_late(seen: &Seen<'_>, chance: &mut dyn Chance) -> Verdict {
    let verdict = block(seen, &seen.line(), BlockFault::Sound, chance);
    let rejected = seen.children(verdict.node);
    match rejected.first() {
        Some((node, _)) if chance.coin(PROMISED) => seen.verdict_from_target(*node, chance),
        _ => verdict,
    }
}

/// Cactus (arXiv 2604.04987) as its authors' code has it: the row that a token is verified against
/// is within a divergence of the target, and another one for each drafted token.
pub(crate) fn cactus(seen: &Seen<'_>, divergence: f64, chance: &mut dyn Chance) -> Verdict {
    let line = seen.line();
    let (target, draft) = (seen.target(line.nodes[0]), &line.laws[0]);
    let drafted = line.tokens[0].index();
    let p = target[drafted];
    let raised = (p + (2.0 * divergence * p * (1.0 - p)).sqrt()).min(1.0);
    if chance.coin(raised / draft[drafted]) {
        return seen.verdict_from_target(line.nodes[1], chance);
    }
    let mut row: Vec<f64> = target.iter().map(|other| other * (1.0 - raised) / (1.0 - p)).collect();
    row[drafted] = raised;
    seen.verdict(line.nodes[0], draw(&normal(&residual(1.0, &row, draft)), &target, chance))
}

/// The worst spending over small models of all kinds, each number on its own.
pub(crate) fn worst_spending(
    sizes: &[(usize, usize)],
    spending: impl Fn(&Model) -> Spending,
) -> Spending {
    let none = Spending { worst: 0.0, factor: 1.0, outside: 0.0, books: 0.0, spends: [].into() };
    let models = sizes.iter().flat_map(|&(vocab_len, len)| {
        let shape = Shape { vocab_len, len };
        let seeds = move |kind| (0..3).map(move |seed| Model::random(kind, shape, seed));
        Kind::ALL.into_iter().flat_map(seeds)
    });
    models.map(|model| spending(&model)).fold(none, |worst, one| Spending {
        worst: worst.worst.max(one.worst),
        factor: worst.factor.max(one.factor),
        outside: worst.outside.max(one.outside),
        books: worst.books.max(one.books),
        spends: one.spends,
    })
}

/// Block verification within a budget on account whose first token may spend what the whole round
/// will earn.
#[derive(Debug)]
pub(crate) struct RoundInAdvance(pub(crate) LossyBlockRule);

impl Rule for RoundInAdvance {
    fn name(&self) -> &'static str {
        "a round in advance"
    }
    fn admits(&self, draft: &Draft) -> Result<(), Refusal> {
        self.0.admits(draft)
    }
    fn decide(&self, block: &Block<'_>, chance: &mut dyn Chance) -> Verdict {
        let earned = self.0.budget.per_token() * (block.draft().len() + 1) as f64;
        self.0.decide(&block.holding(earned), chance)
    }
}

/// A rule whose books hold what was expected to be spent, and not what was.
#[derive(Debug)]
pub(crate) struct PaidByPrediction(pub(crate) LossyBlockRule);

impl Rule for PaidByPrediction {
    fn name(&self) -> &'static str {
        "paid by prediction"
    }
    fn admits(&self, draft: &Draft) -> Result<(), Refusal> {
        self.0.admits(draft)
    }
    fn promise(&self) -> Promise {
        self.0.promise()
    }
    fn spent(&self, block: &Block<'_>, verdict: &Verdict) -> Spent {
        let mut spent = self.0.spent(block, verdict);
        let draft = block.draft();
        for (spend, (child, ..)) in spent.tokens.iter_mut().zip(draft.nodes()) {
            // A drafter that is unsure is expected to be wrong.
            let unsure = 1.0 - draft.drawn_from(child).map_or(1.0, |row| row.likeliest().1);
            spend.distance = unsure * self.0.budget.per_token();
        }
        spent
    }
    fn decide(&self, block: &Block<'_>, chance: &mut dyn Chance) -> Verdict {
        self.0.decide(block, chance)
    }
}

/// How audits are chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Audits {
    /// By a coin that knows nothing.
    ByCoin,
    /// Rather where the drafter is unsure, and scaled up as if it were a coin.
    ByDoubt,
}

/// What audits of one token estimate that forgiving every draft spends, on average over drafts and
/// audits, less what it spends.
pub(crate) fn audit_bias(model: &Model, audits: Audits) -> f64 {
    const AUDITED: f64 = 0.3;
    let (target, draft) = (model.target(&[]), model.draft(0, &[]));
    let excess = |token| (1.0 - target.prob(token) / draft.prob(token)).max(0.0);
    let spent: f64 = draft.support().map(|(token, q)| q * excess(token)).sum();
    let doubt = |token| 1.0 - draft.prob(token);
    let mean_doubt: f64 = draft.support().map(|(token, q)| q * doubt(token)).sum();
    let mut estimated = 0.0;
    outcomes(
        |chance| {
            let token = draft.draw(chance);
            let audited = match audits {
                Audits::ByCoin => AUDITED,
                Audits::ByDoubt => AUDITED * doubt(token) / mean_doubt.max(1e-12),
            };
            if chance.coin(audited) { excess(token) / AUDITED } else { 0.0 }
        },
        |probability, reading| estimated += probability * reading,
    );
    (estimated - spent).abs()
}

/// The Kullback-Leibler divergence of the first token's distribution under a rule from the target.
pub(crate) fn divergence(model: &Model, rule: &dyn Rule) -> f64 {
    let finding = examine(model, &drafting::paths(1), rule).expect("one path");
    let mut bent = vec![0.0; model.shape().vocab_len];
    for (path, nexts) in &finding.exits {
        for (next, probability) in nexts {
            bent[path.first().unwrap_or(next).index()] += probability;
        }
    }
    let target = crate::seen::numbers(model.target(&[]));
    let said = bent.iter().zip(&target).filter(|(bent, _)| **bent > 0.0);
    said.map(|(bent, target)| bent * (bent / target).ln()).sum()
}
