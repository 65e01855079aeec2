//! What a verdict costs at real vocabulary sizes, against one streaming read of the rows the rule
//! must touch, measured in the same run.
//!
//! `just cost` writes the table to `bench/verify/cost.md`.

mod cost_report;

use std::hint::black_box;
use std::sync::LazyLock;
use std::time::Duration;

use criterion::Criterion;
use fearless_simd::prelude::*;
use fearless_simd::{Level, Simd, dispatch, f32x16};
use forerun_verify::rand_core::Rng;
use forerun_verify::*;

/// Llama 2, Qwen 3, Gemma 3.
const VOCABS: [usize; 3] = [32_000, 151_936, 262_144];
const LEN: usize = 8;
const TOP_K: usize = 40;
/// Blocks that take turns, so that rows are as far from the core as in a decoder.
const BLOCKS: usize = 6;

/// A rule with the number of paths it is measured at.
const RULES: [(&str, usize); 11] = [
    ("token", 1),
    ("block", 1),
    ("lossy-block", 1),
    ("pooled", 1),
    ("coupled", 1),
    ("nss", 2),
    ("specinfer", 2),
    ("spectr", 2),
    ("traversal", 2),
    ("gbv", 2),
    ("pooled", 2),
];

fn rule(name: &str) -> Box<dyn Rule> {
    match name {
        "token" => Box::new(TokenRule),
        "block" => Box::new(BlockRule),
        "lossy-block" => {
            let budget = Budget::at_every_token(0.02).expect("a sound budget");
            Box::new(LossyBlockRule { budget })
        }
        "nss" => Box::new(NssRule),
        "specinfer" => Box::new(SpecInferRule),
        "spectr" => Box::new(SpecTrRule),
        "traversal" => Box::new(TraversalRule),
        "gbv" => Box::new(GbvRule::default()),
        "coupled" => Box::new(CoupledRule { noise: Noise::new(1) }),
        _ => Box::new(PooledRule),
    }
}

/// A draft with its rows.
struct Case {
    draft: Draft,
    target: Vec<Dist>,
    drafts: Vec<Dist>,
}

#[expect(clippy::cast_precision_loss, reason = "noise")]
fn normal(rng: &mut Philox) -> f32 {
    // The sum of three uniforms has the variance of a quarter.
    2.0 * ((0..3).map(|_| rng.next_u32() as f32 / u32::MAX as f32).sum::<f32>() - 1.5)
}

/// Logits like a language model's: a few likely tokens and a long tail.
fn logits(vocab_len: usize, rng: &mut Philox) -> Vec<f32> {
    let mut logits: Vec<f32> = (0..vocab_len).map(|_| 2.0 * normal(rng)).collect();
    for likely in 0..8 {
        logits[rng.next_u32() as usize % vocab_len] = 12.0 - 0.7 * likely as f32;
    }
    logits
}

fn row(logits: &[f32], sparse: bool) -> Dist {
    if sparse { Dist::top_k(logits, 1.0, TOP_K) } else { Dist::softmax(logits, 1.0) }
        .expect("finite logits")
}

fn case((vocab_len, sparse): (usize, bool), paths: usize, seed: u64) -> Case {
    let mut rng = Philox::new(seed);
    let mut chance = Random(Philox::new(seed + 1_000));
    let mut tree = Draft::start(Scheme::Paths, vocab_len);
    let (mut target, mut drafts) = (Vec::new(), Vec::new());
    let mut scored = |tree: &mut DraftBuilder| {
        let base = logits(vocab_len, &mut rng);
        target.push(row(&base, sparse));
        let noisy: Vec<f32> = base.iter().map(|l| l + 1.0 * normal(&mut rng)).collect();
        let draft = row(&noisy, sparse);
        drafts.push(draft.clone());
        (tree.row(draft.clone()).expect("of the vocabulary"), draft)
    };
    // Nodes of the current depth, with how many paths reach each.
    let mut front = vec![(Node::ROOT, paths)];
    for _ in 0..LEN {
        let mut next: Vec<(Node, usize)> = Vec::new();
        for (node, reached) in front {
            let (id, draft) = scored(&mut tree);
            for _ in 0..reached {
                let child = tree.sampled(node, id, draft.draw(&mut chance)).expect("drawn");
                match next.iter_mut().find(|(known, _)| *known == child) {
                    Some((_, reached)) => *reached += 1,
                    None => next.push((child, 1)),
                }
            }
        }
        front = next;
    }
    for _ in front {
        target.push(row(&logits(vocab_len, &mut rng), sparse));
    }
    let draft = tree.finish().expect("whole paths");
    Case { draft, target, drafts }
}

impl Case {
    fn verify(&self, rule: &dyn Rule, seed: u64) -> Verdict {
        let block = Block::new(&self.draft, &self.target).expect("scored");
        rule.verify(&block, &mut Random(Philox::new(seed))).expect("admitted")
    }

    /// A seed with which the rule rejects something, as a full acceptance touches no draft row.
    fn seed(&self, rule: &dyn Rule) -> Option<u64> {
        (0..50).find(|seed| self.verify(rule, *seed).accepted < LEN)
    }

    /// The rows a rule must read to reach its verdict.
    fn touched(&self, name: &str, verdict: Verdict) -> Vec<&Dist> {
        // Rows are in node order here: rows of depth `n` on one path are row `n`.
        let inner = match name {
            "token" => verdict.accepted..verdict.accepted + 1,
            "block" => verdict.accepted..LEN,
            _ => 0..self.drafts.len(),
        };
        inner.flat_map(|n| [&self.target[n], &self.drafts[n]]).collect()
    }
}

/// One streaming read of rows, as wide as the machine reads: the yardstick.
fn read(rows: &[Vec<f32>]) -> f32 {
    dispatch!(*LEVEL, simd => read_on(simd, rows))
}

static LEVEL: LazyLock<Level> = LazyLock::new(Level::new);

#[inline(always)]
fn read_on<S: Simd>(simd: S, rows: &[Vec<f32>]) -> f32 {
    let mut sums = [f32x16::splat(simd, 0.0); 8];
    for row in rows {
        for group in row.as_chunks::<128>().0 {
            for (sum, part) in sums.iter_mut().zip(group.as_chunks::<16>().0) {
                *sum += f32x16::from_slice(simd, part);
            }
        }
    }
    let mut total = [0.0; 16];
    sums.into_iter().fold(f32x16::splat(simd, 0.0), |a, b| a + b).store_slice(&mut total);
    total.iter().sum()
}

fn dense_rows(rows: &[&Dist]) -> Vec<Vec<f32>> {
    #[expect(clippy::cast_possible_truncation, reason = "the size is what matters")]
    rows.iter()
        .map(|row| (0..row.vocab_len() as u32).map(|t| row.prob(Token(t)) as f32).collect())
        .collect()
}

fn measure(c: &mut Criterion, vocab_len: usize, sparse: bool) {
    let form = if sparse { "top-40" } else { "dense" };
    let mut group = c.benchmark_group(format!("{vocab_len}-{form}"));
    group.sample_size(20).warm_up_time(Duration::from_millis(300));
    group.measurement_time(Duration::from_millis(1_500));
    for paths in [1, 2] {
        let best = if paths == 1 { rule("block") } else { rule("pooled") };
        let cases: Vec<Case> = (0..)
            .map(|seed| case((vocab_len, sparse), paths, seed))
            .filter(|case| case.seed(&*best).is_some())
            .take(BLOCKS)
            .collect();
        for (name, _) in RULES.iter().filter(|(_, k)| *k == paths) {
            let rule = rule(name);
            let seeds: Vec<u64> =
                cases.iter().map(|case| case.seed(&*rule).unwrap_or_default()).collect();
            let mut turn = 0;
            group.bench_function(format!("{name}-{paths}"), |b| {
                b.iter(|| {
                    turn = (turn + 1) % BLOCKS;
                    black_box(cases[turn].verify(&*rule, seeds[turn]))
                });
            });
            if !sparse
                && ["token", "block", "pooled"].contains(name)
                && (*name, paths) != ("pooled", 1)
            {
                let rows: Vec<Vec<Vec<f32>>> = cases
                    .iter()
                    .zip(&seeds)
                    .map(|(case, seed)| dense_rows(&case.touched(name, case.verify(&*rule, *seed))))
                    .collect();
                group.bench_function(format!("{name}-{paths}-read"), |b| {
                    b.iter(|| {
                        turn = (turn + 1) % BLOCKS;
                        black_box(read(&rows[turn]))
                    });
                });
            }
        }
    }
    group.finish();
}

fn measure_rows(c: &mut Criterion, vocab_len: usize) {
    let base = logits(vocab_len, &mut Philox::new(5));
    let mut group = c.benchmark_group(format!("{vocab_len}-rows"));
    group.sample_size(20).measurement_time(Duration::from_millis(800));
    group.bench_function("dense", |b| b.iter(|| row(black_box(&base), false)));
    group.bench_function("top-40", |b| b.iter(|| row(black_box(&base), true)));
    group.bench_function("read", |b| b.iter(|| read(black_box(std::slice::from_ref(&base)))));
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    for vocab_len in VOCABS {
        for sparse in [false, true] {
            measure(&mut criterion, vocab_len, sparse);
        }
        measure_rows(&mut criterion, vocab_len);
    }
    criterion.final_summary();
    cost_report::write(&VOCABS, &RULES);
}
