//! Every rule under every way of drafting it admits: the exact law of the output against the
//! target's, by enumeration. Nothing here is sampled.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test that prints what it found")]

use forerun_verify::check::{Drafting, Kind, Model, Shape, drafting, examine};
use forerun_verify::*;

/// Most drafts a model may have, so that the suite stays quick.
const DRAFTS_MAX: usize = 5_000;

/// Examines a rule over all sizes of `V` in 2..=4, `L` in 1..=4 and `K` in 1..=3 whose drafts can
/// be enumerated, all kinds of model, and as many seeds as make two hundred.
fn prove<D: Drafting>(
    name: &str,
    rule: &dyn Rule,
    draft: impl Fn(usize) -> D,
    drafts: impl Fn(usize, usize, usize) -> usize,
) {
    let mut shapes = Vec::new();
    for (vocab_len, len) in (2..=4).flat_map(|v| (1..=4).map(move |l| (v, l))) {
        for paths in 1..=3 {
            let drafts = drafts(vocab_len, len, paths);
            if drafts <= DRAFTS_MAX {
                shapes.push((vocab_len, len, paths, drafts > 300));
            }
        }
    }
    let mut worst = (0.0, String::new());
    let mut count = 0;
    let mut seed = 0;
    while count < 200 {
        for &(vocab_len, len, paths, large) in &shapes {
            for kind in Kind::ALL {
                // The large ones once, in the kinds that differ most.
                let few = [Kind::Random, Kind::Aligned, Kind::Sparse, Kind::Ties];
                if large && (seed > 0 || !few.contains(&kind)) {
                    continue;
                }
                let model = Model::random(kind, Shape { vocab_len, len }, seed);
                let finding = examine(&model, &draft(paths), rule).unwrap();
                count += 1;
                if finding.worst_error >= worst.0 {
                    let at = format!("V={vocab_len} L={len} K={paths} {kind:?} seed {seed}");
                    worst = (finding.worst_error, at);
                }
            }
        }
        seed += 1;
    }
    println!("{name}: {count} models, worst error {:.1e} at {}", worst.0, worst.1);
    assert!(worst.0 < 1e-12, "{name} is off by {:e} at {}", worst.0, worst.1);
}

/// How many drafts there are of `k` paths.
fn of_paths(v: usize, l: usize, k: usize) -> usize {
    (0..l * k).fold(1, |drafts, _| drafts * v)
}

fn of_one_path(v: usize, l: usize, _: usize) -> usize {
    of_paths(v, l, 1)
}

fn of_candidates(v: usize, l: usize, _: usize) -> usize {
    of_paths(v, l, 3)
}

/// Up to `k` children, at every node where the model is shallow, else at the root.
fn of_distinct(v: usize, l: usize, k: usize) -> usize {
    let k = k.min(v);
    let orders: usize = (0..k).map(|drawn| v - drawn).product();
    match l {
        1 => orders,
        2 => (0..=k).fold(1, |drafts, _| drafts * orders),
        _ => orders * of_paths(v, l - 1, k),
    }
}

/// Beams are drawn by ordering whole paths, and drafted `k` at a time.
fn of_beams(v: usize, l: usize, k: usize) -> usize {
    if of_paths(v, l, 1) > 9 { usize::MAX } else { of_paths(v, l, k + 1) }
}

macro_rules! prove {
    ($($name:ident: $rule:expr, $draft:expr, $drafts:expr;)*) => {$(
        #[test]
        fn $name() {
            prove(stringify!($name), &$rule, $draft, $drafts);
        }
    )*};
}

const GUARDED: GbvRule = GbvRule { guarded: true };
const PLAIN: GbvRule = GbvRule { guarded: false };

prove! {
    token_on_one_path: TokenRule, |_| drafting::paths(1), of_one_path;
    token_on_a_guess: TokenRule, |_| drafting::guess(), of_one_path;
    token_on_a_path_that_stops_early: TokenRule, |_| drafting::early_stop(), of_one_path;
    block_on_one_path: BlockRule, |_| drafting::paths(1), of_one_path;
    block_on_a_guess: BlockRule, |_| drafting::guess(), of_one_path;
    block_on_a_path_that_stops_early: BlockRule, |_| drafting::early_stop(), of_one_path;
    nss_on_paths: NssRule, drafting::paths, of_paths;
    nss_on_guesses: NssRule, |_| drafting::guesses(), of_one_path;
    nss_without_replacement: NssRule, drafting::without_replacement, of_distinct;
    nss_on_beams: NssRule, drafting::beam, of_beams;
    specinfer_on_paths: SpecInferRule, drafting::paths, of_paths;
    specinfer_on_two_drafters: SpecInferRule, drafting::two_drafters, of_paths;
    specinfer_on_paths_and_a_guess: SpecInferRule, |k| drafting::paths_and_guess((k - 1).max(1)), of_paths;
    specinfer_on_guesses: SpecInferRule, |_| drafting::guesses(), of_one_path;
    specinfer_on_a_candidate_tree: SpecInferRule, |_| drafting::candidate_tree(), of_candidates;
    spectr_on_paths: SpecTrRule, drafting::paths, of_paths;
    spectr_on_a_trunk: SpecTrRule, drafting::trunk, of_paths;
    spectr_on_a_candidate_tree: SpecTrRule, |_| drafting::candidate_tree(), of_candidates;
    rsd_on_paths: RsdRule, drafting::paths, of_paths;
    rsd_without_replacement: RsdRule, drafting::without_replacement, of_distinct;
    rsd_on_beams: RsdRule, drafting::beam, of_beams;
    traversal_on_paths: TraversalRule, drafting::paths, of_paths;
    traversal_on_a_trunk: TraversalRule, drafting::trunk, of_paths;
    traversal_without_replacement: TraversalRule, drafting::without_replacement, of_distinct;
    traversal_on_beams: TraversalRule, drafting::beam, of_beams;
    gbv_on_paths: PLAIN, drafting::paths, of_paths;
    gbv_on_a_trunk: PLAIN, drafting::trunk, of_paths;
    guarded_gbv_on_paths: GUARDED, drafting::paths, of_paths;
    guarded_gbv_on_a_trunk: GUARDED, drafting::trunk, of_paths;
    pooled_on_paths: PooledRule, drafting::paths, of_paths;
    pooled_on_a_trunk: PooledRule, drafting::trunk, of_paths;
    pooled_on_two_drafters: PooledRule, drafting::two_drafters, of_paths;
    pooled_on_paths_and_a_guess: PooledRule, |k| drafting::paths_and_guess((k - 1).max(1)), of_paths;
    pooled_on_guesses: PooledRule, |_| drafting::guesses(), of_one_path;
    pooled_on_a_candidate_tree: PooledRule, |_| drafting::candidate_tree(), of_candidates;
    pooled_on_top_and_rest: PooledRule, |_| drafting::top_and_rest(), of_candidates;
    pooled_on_a_path_that_stops_early: PooledRule, |_| drafting::early_stop(), of_one_path;
}
