//! The rules against the numpy reference: the exact law of the verdict on shared models, as the
//! reference enumerated it.
//!
//! `vectors/reference.json` holds the models (as `f32` weights, so that both sides normalise the
//! same numbers) and, for each rule, what the reference found. Losslessness alone would not see a
//! rule that accepts less than it should, or another rule under its name; this does.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests panic and report")]

use std::collections::BTreeMap;

use forerun_verify::check::{Drafting, Finding, Model, Shape, drafting, examine};
use forerun_verify::*;
use serde::Deserialize;

/// One model, and what the reference found of each rule on it.
#[derive(Deserialize)]
struct Vector {
    kind: String,
    vocab_len: usize,
    len: usize,
    paths: usize,
    seed: u64,
    /// Weights after each prefix: by length, then in the order of tokens.
    target: Vec<Vec<f32>>,
    draft: Vec<Vec<f32>>,
    rules: BTreeMap<String, Expected>,
}

#[derive(Deserialize)]
struct Expected {
    /// The expected number of accepted tokens.
    accepted: f64,
    /// Accepted tokens, the next one, and the probability of that verdict where it has any.
    exits: Vec<(Vec<u32>, u32, f64)>,
}

impl Vector {
    fn model(&self) -> Model {
        let row = |weights: &Vec<f32>| Dist::dense(weights.clone()).unwrap();
        let mut rows = self.target.iter().map(row).zip(self.draft.iter().map(row));
        // `Model::new` asks for prefixes in the very order of the file.
        let model = Model::new(Shape { vocab_len: self.vocab_len, len: self.len }, |_| {
            let (target, draft) = rows.next().expect("a row for every prefix");
            [target, draft.clone(), draft]
        });
        assert!(rows.next().is_none(), "more rows than prefixes");
        model
    }

    fn name(&self) -> String {
        let Self { kind, vocab_len, len, paths, seed, .. } = self;
        format!("V={vocab_len} L={len} K={paths} {kind} seed {seed}")
    }
}

/// The largest difference between the probabilities of any verdict.
fn difference(finding: &Finding, expected: &Expected) -> f64 {
    let mut left = finding.exits.clone();
    for (path, next, probability) in &expected.exits {
        let path: Vec<Token> = path.iter().copied().map(Token).collect();
        *left.entry(path).or_default().entry(Token(*next)).or_default() -= probability;
    }
    left.values().flat_map(BTreeMap::values).fold(0.0, |worst, left| f64::max(worst, left.abs()))
}

/// The worst differences over all vectors, and where.
#[derive(Default)]
struct Worst {
    law: (f64, String),
    /// Of the expected number of accepted tokens, this crate's minus the reference's: least, most.
    accepted: [f64; 2],
}

/// Compares a rule with the reference's findings under a name, drafting for as many paths as each
/// vector says.
fn compare<D: Drafting>(name: &str, rule: &dyn Rule, draft: impl Fn(usize) -> D) -> Worst {
    let vectors: Vec<Vector> =
        serde_json::from_str(include_str!("vectors/reference.json")).unwrap();
    assert!(vectors.len() >= 40);
    let mut worst = Worst::default();
    for vector in &vectors {
        let finding = examine(&vector.model(), &draft(vector.paths), rule).unwrap();
        let expected = &vector.rules[name];
        let law = difference(&finding, expected);
        if law >= worst.law.0 {
            worst.law = (law, vector.name());
        }
        let more = finding.accepted - expected.accepted;
        worst.accepted = [worst.accepted[0].min(more), worst.accepted[1].max(more)];
    }
    let (law, at) = &worst.law;
    let [least, most] = worst.accepted;
    println!("{name}: law off by {law:.1e} at {at}; accepted {least:+.1e} to {most:+.1e}");
    worst
}

/// Rules without a search agree to rounding: the file has thirteen digits.
fn agrees<D: Drafting>(name: &str, rule: &dyn Rule, draft: impl Fn(usize) -> D) {
    let worst = compare(name, rule, draft);
    assert!(worst.law.0 < 1e-9, "{name}: off by {:e} at {}", worst.law.0, worst.law.1);
    assert!(worst.accepted.iter().all(|more| more.abs() < 1e-9), "{name}: {:?}", worst.accepted);
}

/// The pool's bars are found by a search. Any bars are lossless, so what is compared is how much
/// they accept: the search may be tuned, but it must not fall behind the reference by more than
/// its own tolerance, and a large gain would mean that another rule is at work.
fn accepts_as_much<D: Drafting>(name: &str, draft: impl Fn(usize) -> D) {
    let [least, most] = compare(name, &PooledRule, draft).accepted;
    assert!(least > -2e-3, "{name} accepts {least} less than the reference");
    assert!(most < 2e-3, "{name} accepts {most} more than the reference");
}

macro_rules! agrees {
    ($($test:ident: $name:literal, $rule:expr, $draft:expr;)*) => {$(
        #[test]
        fn $test() {
            agrees($name, &$rule, $draft);
        }
    )*};
}

agrees! {
    token_agrees: "token", TokenRule, |_| drafting::paths(1);
    block_agrees: "block", BlockRule, |_| drafting::paths(1);
    nss_agrees: "nss", NssRule, drafting::paths;
    specinfer_agrees: "specinfer", SpecInferRule, drafting::paths;
    spectr_agrees: "spectr", SpecTrRule, drafting::paths;
    rsd_on_paths_agrees: "rsd", RsdRule, drafting::paths;
    rsd_agrees: "rsd without replacement", RsdRule, drafting::without_replacement;
    traversal_on_paths_agrees: "traversal", TraversalRule, drafting::paths;
    traversal_agrees: "traversal without replacement", TraversalRule, drafting::without_replacement;
    gbv_agrees: "gbv", GbvRule { guarded: false }, drafting::paths;
    guarded_gbv_agrees: "gbv guarded", GbvRule { guarded: true }, drafting::paths;
}

#[test]
fn pooled_accepts_as_much() {
    accepts_as_much("pooled", drafting::paths);
}

#[test]
fn pooled_beside_a_guess_accepts_as_much() {
    accepts_as_much("pooled and guess", |paths| drafting::paths_and_guess((paths - 1).max(1)));
}
