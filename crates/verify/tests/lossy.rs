//! Lossy rules keep what they promise: by enumeration, the real distribution of every token
//! against the target's. Nothing here is sampled but the verdicts of two rules that must agree.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic")]

use forerun_verify::check::{Drafting, Kind, Model, Shape, Spending, drafting, examine};
use forerun_verify::rand_core::Rng;
use forerun_verify::*;

const SHAPES: [(usize, usize); 9] =
    [(2, 1), (3, 1), (4, 1), (2, 2), (3, 2), (2, 3), (4, 2), (3, 3), (2, 4)];
const BUDGETS: [f64; 5] = [0.0, 0.01, 0.05, 0.2, 0.7];

/// Models of all shapes and kinds.
fn models(seeds: u64) -> impl Iterator<Item = (String, Model)> {
    SHAPES.into_iter().flat_map(move |(vocab_len, len)| {
        Kind::ALL.into_iter().flat_map(move |kind| {
            (0..seeds).map(move |seed| {
                let at = format!("V={vocab_len} L={len} {kind:?} seed {seed}");
                (at, Model::random(kind, Shape { vocab_len, len }, seed))
            })
        })
    })
}

fn block_within(budget: Budget) -> LossyBlockRule {
    LossyBlockRule { budget }
}

/// The worst of what was found.
#[derive(Debug)]
struct Worst {
    count: usize,
    over: f64,
    outside: f64,
    books: f64,
}

impl Worst {
    fn new() -> Self {
        Self { count: 0, over: f64::NEG_INFINITY, outside: 0.0, books: 0.0 }
    }

    fn add(&mut self, spending: &Spending, budget: &Budget) {
        self.count += 1;
        self.over = self.over.max(spending.worst - budget.step());
        self.outside = self.outside.max(spending.outside);
        self.books = self.books.max(spending.books);
    }
}

#[test]
fn no_budget_is_exceeded() {
    let mut worst = Worst::new();
    for (at, model) in models(3) {
        let lossless = examine(&model, &drafting::paths(1), &BlockRule).unwrap().accepted;
        for eps in BUDGETS {
            for factor in [2.0, Budget::FACTOR_MAX] {
                let budget = Budget::at_every_token(eps).unwrap().with_factor(factor).unwrap();
                let rule = block_within(budget);
                let finding = examine(&model, &drafting::paths(1), &rule).unwrap();
                let spending = finding.spending(&model);
                assert!(spending.keeps(&budget), "{at}, {budget:?}: {spending:?}");
                assert!(finding.accepted >= lossless - 1e-12, "less than lossless at {at}");
                worst.add(&spending, &budget);
            }
        }
    }
    println!("{worst:?}");
    assert!(worst.count >= 2_000, "{} models and budgets", worst.count);
}

/// However the path was made: its law does not depend on what the rule makes of it.
#[test]
fn budgets_hold_for_fixed_paths_and_paths_that_stop_early() {
    let draftings: [&dyn Drafting; 2] = [&drafting::guess(), &drafting::early_stop()];
    for (at, model) in models(1) {
        for drafting in draftings {
            for budget in [0.02, 0.3].map(|eps| Budget::at_every_token(eps).unwrap()) {
                let finding = examine(&model, drafting, &block_within(budget)).unwrap();
                assert!(finding.spending(&model).keeps(&budget), "{at}, {budget:?}");
            }
        }
    }
}

#[test]
fn a_budget_of_zero_is_block_verification() {
    let zero = block_within(Budget::at_every_token(0.0).unwrap());
    for (at, model) in models(2) {
        let [lossless, lossy] = [&BlockRule as &dyn Rule, &zero]
            .map(|rule| examine(&model, &drafting::paths(1), rule).unwrap());
        // To the last digit, not nearly.
        assert_eq!(lossless.exits, lossy.exits, "{at}");
    }
}

/// A path over rows of a language model's shape.
fn long_block(vocab_len: usize, seed: u64) -> (Draft, Vec<Dist>) {
    let mut rng = Philox::new(seed);
    let mut chance = Random(Philox::new(seed + 1_000));
    let (mut path, mut rows) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        let uniform = |rng: &mut Philox| f64::from(rng.next_u32()) / f64::from(u32::MAX);
        let base: Vec<f64> = (0..vocab_len).map(|_| 8.0 * uniform(&mut rng)).collect();
        #[expect(clippy::cast_possible_truncation, reason = "logits")]
        let noisy = |by: f64, rng: &mut Philox| -> Vec<f32> {
            base.iter().map(|logit| (logit + by * uniform(rng)) as f32).collect()
        };
        rows.push(Dist::softmax(&noisy(0.0, &mut rng), 1.0).unwrap());
        let row = Dist::softmax(&noisy(1.5, &mut rng), 1.0).unwrap();
        path.push((row.draw(&mut chance), row));
    }
    rows.push(rows[0].clone());
    (Draft::path(vocab_len, path).unwrap(), rows)
}

#[test]
fn a_budget_of_zero_gives_the_verdicts_of_block_verification() {
    let zero = block_within(Budget::at_every_token(0.0).unwrap());
    let (mut accepted, mut more) = (0, 0);
    for seed in 0..200 {
        let (draft, rows) = long_block(if seed % 2 == 0 { 90 } else { 1_300 }, seed);
        let block = Block::new(&draft, &rows).unwrap();
        let verdict =
            |rule: &dyn Rule| rule.verify(&block, &mut Random(Philox::new(seed + 9_000))).unwrap();
        assert_eq!(verdict(&BlockRule), verdict(&zero), "seed {seed}");
        accepted += verdict(&BlockRule).accepted;
        more += verdict(&block_within(Budget::at_every_token(0.2).unwrap())).accepted;
    }
    assert!(more > accepted + accepted / 20, "a budget accepts more: {more}, {accepted} without");
}

/// One point of total variation buys one point of acceptance, and no more.
#[test]
fn one_token_is_accepted_with_the_overlap_and_the_budget() {
    let mut count = 0;
    for (at, model) in models(6).filter(|(_, model)| model.shape().len == 1) {
        let (target, draft) = (model.target(&[]), model.draft(0, &[]));
        if target.support().count() < target.vocab_len() {
            continue;
        }
        let overlap: f64 = target.support().map(|(token, p)| p.min(draft.prob(token))).sum();
        for eps in BUDGETS {
            let budget = Budget::at_every_token(eps).unwrap().with_factor(65_536.0).unwrap();
            let found = examine(&model, &drafting::paths(1), &block_within(budget)).unwrap();
            // A token of hardly any probability is held back by the factor.
            let capped = target.support().any(|(token, p)| draft.prob(token) > 60_000.0 * p);
            let off = found.accepted - (overlap + eps).min(1.0);
            assert!(off < 1e-12 && (capped || off > -1e-12), "off by {off:e} at {at}, {eps}");
            count += usize::from(!capped);
        }
    }
    assert!(count > 200, "{count}");
}

// The account.

/// A rule on a text whose account holds this much.
#[derive(Debug)]
struct Holding {
    rule: LossyBlockRule,
    balance: f64,
}

impl Rule for Holding {
    fn name(&self) -> &'static str {
        self.rule.name()
    }
    fn admits(&self, draft: &Draft) -> Result<(), Refusal> {
        self.rule.admits(draft)
    }
    fn promise(&self) -> Promise {
        self.rule.promise()
    }
    fn spent(&self, block: &Block<'_>, verdict: &Verdict) -> Spent {
        self.rule.spent(&block.holding(self.balance), verdict)
    }
    fn decide(&self, block: &Block<'_>, chance: &mut dyn Chance) -> Verdict {
        self.rule.decide(&block.holding(self.balance), chance)
    }
}

#[test]
fn an_account_is_never_overdrawn() {
    let mut most = 0.0_f64;
    for (at, model) in models(1) {
        for (eps, step) in [(0.01, 0.25), (0.05, 0.25), (0.05, 1.0), (0.2, 0.3)] {
            let budget = Budget::on_account(eps).unwrap().with_step(step).unwrap();
            for saved in [-1.0, 0.0, 1.0, 5.0, 40.0] {
                let rule = Holding { rule: block_within(budget), balance: saved * eps };
                let finding = examine(&model, &drafting::paths(1), &rule).unwrap();
                let spending = finding.spending(&model);
                let balance = rule.balance.min(budget.bank());
                let over = spending.overdrawn(balance.max(0.0), eps);
                assert!(over < 1e-12, "overdrawn by {over:e} at {at}, {budget:?}");
                assert!(spending.worst <= step + 1e-12, "{} at {at}", spending.worst);
                assert!(spending.books < 1e-12, "books off by {:e} at {at}", spending.books);
                most = most.max(spending.worst);
            }
        }
    }
    assert!(most > 0.25, "what is saved is spent: {most} at most");
}

/// The balance that a verdict leaves, for a path of which some tokens are accepted.
fn balance_after(model: &Model, rule: &Holding, accepted: &[Token]) -> f64 {
    let mut path = accepted.to_vec();
    while path.len() < model.shape().len {
        path.push(model.draft(0, &path).support().next().unwrap().0);
    }
    let steps = path.iter().enumerate();
    let steps = steps.map(|(n, token)| (*token, model.draft(0, &path[..n]).clone()));
    let draft = Draft::path(model.shape().vocab_len, steps).unwrap();
    let rows: Vec<Dist> = (0..=path.len()).map(|n| model.target(&path[..n]).clone()).collect();
    let block = Block::new(&draft, &rows).unwrap();
    let node = accepted.iter().fold(Node::ROOT, |node, token| draft.child(node, *token).unwrap());
    let verdict = Verdict { node, accepted: accepted.len(), next: Token(0) };
    rule.spent(&block, &verdict).tokens[accepted.len()].balance
}

/// Goes through every text of several rounds and returns the most by which it overspends.
fn overspent(model: &Model, rule: &Holding, (paid, len): (f64, usize), rounds: usize) -> f64 {
    let finding = examine(model, &drafting::paths(1), rule).unwrap();
    let spends = finding.spending(model).spends;
    let budget = rule.rule.budget;
    let mut worst = f64::NEG_INFINITY;
    for path in finding.exits.keys().filter(|path| spends.contains_key(*path)) {
        let paid = paid + (0..=path.len()).map(|n| spends[&path[..n]]).sum::<f64>();
        let len = len + path.len() + 1;
        worst = worst.max(paid - budget.per_token() * len as f64);
        if rounds > 1 {
            let next = Holding { balance: balance_after(model, rule, path), ..*rule };
            worst = worst.max(overspent(model, &next, (paid, len), rounds - 1));
        }
    }
    worst
}

#[test]
fn an_account_carried_from_round_to_round_is_never_overdrawn() {
    for kind in Kind::ALL {
        for (vocab_len, len) in [(2, 2), (3, 1)] {
            let model = Model::random(kind, Shape { vocab_len, len }, 5);
            for budget in [Budget::on_account(0.05), Budget::at_every_token(0.05)] {
                let budget = budget.unwrap();
                let rule = Holding { rule: block_within(budget), balance: budget.per_token() };
                let over = overspent(&model, &rule, (0.0, 0), 4);
                assert!(over < 1e-12, "{kind:?}, {budget:?}: overdrawn by {over:e}");
            }
        }
    }
}

#[test]
fn bounds_that_mean_nothing_are_refused() {
    for eps in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
        assert!(Budget::at_every_token(eps).is_err() && Budget::on_account(eps).is_err());
    }
    let budget = Budget::on_account(0.1).unwrap();
    assert!(budget.with_factor(0.5).is_err() && budget.with_factor(1e9).is_err());
    assert!(budget.with_step(-1.0).is_err() && budget.with_bank(0.01).is_err());
    let two = Model::random(Kind::Random, Shape { vocab_len: 2, len: 1 }, 1);
    let refusal = examine(&two, &drafting::paths(2), &block_within(budget)).unwrap_err();
    assert!(refusal.to_string().starts_with("lossy-block keeps its budget for one path"));
}
