//! Lossy rules against the most that *any* rule within the same bound accepts, found by linear
//! programming, and what published lossy rules spend. By enumeration; nothing here is sampled.
//!
//! With `FORERUN_WRITE_REPORTS=1` the tables are also written to `bench/verify/lossy.md`.
#![cfg(not(forerun_without_solver))]
#![expect(clippy::unwrap_used, reason = "helpers of tests panic")]

use std::collections::BTreeMap;
use std::fmt::Write as _;

use forerun_verify::check::{Kind, LossyPublishedRule, Model, Shape, drafting, examine};
use forerun_verify::*;
use highs::{Col, HighsModelStatus, RowProblem, Sense};

const BUDGETS: [f64; 4] = [0.0, 0.02, 0.05, 0.1];

fn tokens(vocab_len: usize) -> impl Iterator<Item = Token> {
    (0..).map(Token).take(vocab_len)
}

/// The chance that the path of drafter 0 begins like this.
fn drafted(model: &Model, prefix: &[Token]) -> f64 {
    (0..prefix.len()).map(|n| model.draft(0, &prefix[..n]).prob(prefix[n])).product()
}

fn accepted(model: &Model, rule: &dyn Rule) -> f64 {
    examine(model, &drafting::paths(1), rule).unwrap().accepted
}

/// What a prefix stands for in the program: the chances that the accepted path reaches it, that the
/// output reaches it, and by how much the latter is above the target's share.
struct Columns {
    reach: Col,
    output: Col,
    above: Col,
}

/// The most that a rule accepts of one path if it spends at most so much at every prefix, stays
/// within the target's support and within the factor, and knows all rows, also those off the path.
fn optimum(model: &Model, eps: f64, factor: f64) -> f64 {
    let Shape { vocab_len, len } = model.shape();
    let mut problem = RowProblem::new();
    let mut columns: BTreeMap<Vec<Token>, Columns> = BTreeMap::new();
    for depth in 1..=len {
        model.each_output(depth, &mut |prefix, _| {
            let reach = problem.add_column(1.0, 0.0..=drafted(model, prefix));
            let [output, above] = [(); 2].map(|()| problem.add_column(0.0, 0.0..));
            columns.insert(prefix.to_vec(), Columns { reach, output, above });
        });
    }
    for depth in 0..len {
        model.each_output(depth, &mut |prefix, _| {
            let parent = columns.get(prefix).map(|columns| columns.reach);
            // `sum + share * reach of the parent <= 0`; the root is reached for certain.
            let mut at_most = |mut sum: Vec<(Col, f64)>, share: f64| {
                sum.extend(parent.map(|parent| (parent, share)));
                problem.add_row(..=if parent.is_none() { -share } else { 0.0 }, sum);
            };
            let (mut whole, mut spent) = (Vec::new(), Vec::new());
            for token in tokens(vocab_len) {
                let Columns { reach, output, above } = columns[&[prefix, &[token]].concat()];
                let share = model.target(prefix).prob(token);
                at_most(vec![(reach, 1.0), (output, -1.0)], 0.0);
                at_most(vec![(output, 1.0), (above, -1.0)], -share);
                at_most(vec![(output, 1.0)], -share * factor);
                whole.push((output, 1.0));
                spent.push((above, 1.0));
            }
            at_most(spent, -eps);
            at_most(whole.clone(), -1.0);
            at_most(whole.into_iter().map(|(column, one)| (column, -one)).collect(), 1.0);
        });
    }
    let mut problem = highs::Model::new(problem);
    problem.set_sense(Sense::Maximise);
    for option in ["primal_feasibility_tolerance", "dual_feasibility_tolerance"] {
        problem.set_option(option, 1e-10);
    }
    problem.set_option("small_matrix_value", 1e-12);
    problem.set_option("threads", 1);
    let solved = problem.solve();
    assert_eq!(solved.status(), HighsModelStatus::Optimal);
    solved.objective_value()
}

/// Models of one shape and kind under one budget: means of what is accepted.
struct Line {
    label: String,
    len: usize,
    lossless: f64,
    lossy: f64,
    optimum: f64,
    /// The least that the rule reaches of the optimum on a model.
    least: f64,
}

impl Line {
    fn new((vocab_len, len): (usize, usize), kind: Kind, eps: f64) -> Self {
        const MODELS: u64 = 4;
        let budget = Budget::at_every_token(eps).unwrap();
        let rule = LossyBlockRule { budget };
        let (mut sums, mut least) = ([0.0; 3], f64::INFINITY);
        for seed in 0..MODELS {
            let model = Model::random(kind, Shape { vocab_len, len }, seed);
            let best = optimum(&model, eps, budget.factor());
            let lossy = accepted(&model, &rule);
            assert!(lossy - best < 1e-8, "above the optimum: {lossy}, {best}");
            least = least.min(lossy / best);
            for (sum, one) in sums.iter_mut().zip([accepted(&model, &BlockRule), lossy, best]) {
                *sum += one / MODELS as f64;
            }
        }
        let label = format!("| {vocab_len} | {len} | {kind:?} | {MODELS} | {eps}");
        Self { label, len, lossless: sums[0], lossy: sums[1], optimum: sums[2], least }
    }

    /// What the rule reaches of the optimum.
    fn share(&self) -> f64 {
        self.lossy / self.optimum
    }

    fn check(&self) {
        let Self { label, len, least, .. } = self;
        let wanted = if *len == 1 { 1.0 - 1e-8 } else { 0.96 };
        assert!(*least >= wanted, "{least} of the optimum on a model at {label}");
    }

    fn row(&self) -> String {
        let Self { label, lossless, lossy, optimum, .. } = self;
        let share = self.share();
        format!("{label} | {lossless:.4} | {lossy:.4} | {optimum:.4} | {share:.4} |\n")
    }
}

fn lines() -> Vec<Line> {
    let mut lines = Vec::new();
    for shape in [(3, 1), (2, 2), (3, 2), (2, 3), (4, 2), (3, 3)] {
        for kind in [Kind::Random, Kind::Mid, Kind::Aligned, Kind::Sparse] {
            lines.extend(BUDGETS.map(|eps| Line::new(shape, kind, eps)));
        }
    }
    lines
}

/// A row of what a rule spends at worst over models of all kinds.
fn spends(name: &str, rule: &dyn Rule) -> (f64, String) {
    let (mut worst, mut factor, mut outside, mut count) = (0.0_f64, 1.0_f64, 0.0_f64, 0);
    for (vocab_len, len) in [(2, 1), (3, 1), (4, 1), (2, 2), (3, 2), (2, 3), (4, 2)] {
        for (kind, seed) in Kind::ALL.into_iter().flat_map(|kind| (0..3).map(move |s| (kind, s))) {
            let model = Model::random(kind, Shape { vocab_len, len }, seed);
            let spending = examine(&model, &drafting::paths(1), rule).unwrap().spending(&model);
            worst = worst.max(spending.worst);
            factor = factor.max(spending.factor);
            outside = outside.max(spending.outside);
            count += 1;
        }
    }
    let factor = if factor < 1e4 { format!("{factor:.2}") } else { format!("{factor:.0e}") };
    (worst, format!("| {name} | {count} | {worst:.4} | {factor} | {outside:.4} |\n"))
}

fn spending_table() -> String {
    let mut text = String::from(
        "| rule | models | worst spend | worst factor | outside the target |\n\
         |---|--:|--:|--:|--:|\n",
    );
    let (worst, row) = spends("block", &BlockRule);
    assert!(worst < 1e-12);
    text.push_str(&row);
    for eps in [0.02, 0.05] {
        let rule = LossyBlockRule { budget: Budget::at_every_token(eps).unwrap() };
        let (worst, row) = spends(&format!("lossy-block, {eps} at every token"), &rule);
        assert!(worst <= eps + 1e-12);
        text.push_str(&row);
    }
    for rule in LossyPublishedRule::all() {
        let (worst, row) = spends(&format!("{} `{rule:?}`", rule.name()), &rule);
        assert!(worst > 0.1, "{rule:?} spends {worst}");
        text.push_str(&row);
    }
    text
}

fn write_report(body: &str) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/verify");
    let command = "FORERUN_WRITE_REPORTS=1 cargo nextest run -p forerun-verify --features check \
                   --test lossy_optimum";
    let report = format!("# Lossy rules\n\nMade by `{command}`.\n\n{body}");
    std::fs::write(format!("{folder}/lossy.md"), report).expect("the report can be written");
}

#[test]
fn lossy_rules_against_the_optimum_and_published_ones() {
    let lines = lines();
    let mut body = String::from(
        "## Against the optimum\n\n\
         Expected accepted tokens a round of one path, by enumeration, averaged over small random \
         models of a shape and kind (seeds from 0): `V` tokens in the vocabulary, paths of `L` \
         tokens. *Budget*: most total variation at every token, with a factor of 4. The optimum is \
         a linear program's: no rule within the same bounds accepts more, even one that knows the \
         rows off the path.\n\n\
         | V | L | kind | models | budget | block | lossy-block | optimum | of optimum |\n\
         |--:|--:|---|--:|--:|--:|--:|--:|--:|\n",
    );
    lines.iter().for_each(|line| body.push_str(&line.row()));
    let least_line = lines.iter().map(Line::share).fold(f64::INFINITY, f64::min);
    let least = lines.iter().map(|line| line.least).fold(f64::INFINITY, f64::min);
    let mean = lines.iter().map(Line::share).sum::<f64>() / lines.len() as f64;
    write!(
        body,
        "\nThe rule reaches {mean:.4} of the optimum on average, at least {least_line:.4} on \
         the average of a line, and at least {least:.4} on a model.\n\n\
         ## What rules spend\n\n\
         The worst over small models of all kinds, at any token: the total variation between the \
         distribution that the token is drawn from and the target's, the most by which a token is \
         likelier than the target has it, and the probability given to tokens that the target \
         never says. Published rules run with their usual parameters; SPRINTER's classifier is \
         replaced by a gate that lets pass what the drafter gives at least half of its \
         probability.\n\n{}",
        spending_table()
    )
    .expect("a string takes all");
    println!("{body}");
    if std::env::var_os("FORERUN_WRITE_REPORTS").is_some_and(|wanted| wanted == "1") {
        write_report(&body);
    }
    lines.iter().for_each(Line::check);
}
