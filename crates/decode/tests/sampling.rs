//! Sampling against a plain reference that sorts everything, and against laws worked out by hand.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic")]

use std::collections::BTreeMap;
use std::sync::Arc;

use forerun_decode::{InfillSampler, Sampling, SamplingError, Special, TokenizeError, Tokenizer};
use forerun_verify::rand_core::Rng;
use forerun_verify::{Dist, Philox, RowError, Token};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// A law as its support, for comparing.
type Law = BTreeMap<Token, f64>;

fn law_of(row: &Dist) -> Law {
    row.support().collect()
}

/// Logits of a law worked out by hand.
fn logits_of(probs: &[f32]) -> Vec<f32> {
    probs.iter().map(|prob| prob.ln()).collect()
}

/// The ids that can be drawn.
fn kept(sampling: &Sampling, probs: &[f32]) -> Vec<u32> {
    let row = sampling.row(&mut logits_of(probs), &[], &[]).unwrap();
    row.support().map(|(token, _)| token.0).collect()
}

fn unshaped() -> Sampling {
    Sampling::unshaped()
}

mod reference {
    //! What the settings mean, slowly: every truncation sorts the whole list, in `f64`.

    use super::*;

    /// How far a limit counts as reached, as [`Sampling::row`] states it.
    const EQUAL: f64 = 1e-6;
    /// What rows in `f32` leave open about a sum, and about a distance of logits.
    const SUM_ERROR: f64 = 6e-7;
    const LOGIT_ERROR: f64 = 1e-4;

    /// Which tokens are left with which logits, or `None` where rounding decides.
    type Left = Option<Vec<(Token, f64)>>;

    pub(super) fn law(sampling: &Sampling, logits: &[f32], said: &[Token]) -> Option<Law> {
        let mut logits = logits.to_vec();
        for (token, bias) in &sampling.logit_bias {
            logits[token.index()] += bias;
        }
        penalise(sampling, &mut logits, said);
        let tokens = (0..).map(Token).zip(logits.iter().map(|logit| f64::from(*logit)));
        let mut left: Vec<_> = tokens.filter(|(_, logit)| *logit > f64::NEG_INFINITY).collect();
        if sampling.temperature == 0.0 {
            sort_by_logit(&mut left);
            return Some(Law::from([(left[0].0, 1.0)]));
        }
        if sampling.top_k > 0 {
            sort_by_logit(&mut left);
            left.truncate(sampling.top_k);
        }
        left = typical(left, f64::from(sampling.typical_p))?;
        left = top_p(left, f64::from(sampling.top_p))?;
        left = min_p(left, f64::from(sampling.min_p))?;
        let probs = softmax(&left, f64::from(sampling.temperature));
        Some(left.into_iter().map(|(token, _)| token).zip(probs).collect())
    }

    fn penalise(sampling: &Sampling, logits: &mut [f32], said: &[Token]) {
        let last_n = sampling.repeat_last_n.unwrap_or(said.len()).min(said.len());
        let window = &said[said.len() - last_n..];
        for (index, logit) in logits.iter_mut().enumerate() {
            let count = window.iter().filter(|token| token.index() == index).count();
            if count > 0 {
                if *logit <= 0.0 {
                    *logit *= sampling.repeat_penalty;
                } else {
                    *logit /= sampling.repeat_penalty;
                }
                *logit -= count as f32 * sampling.frequency_penalty + sampling.presence_penalty;
            }
        }
    }

    fn sort_by_logit(left: &mut [(Token, f64)]) {
        left.sort_by(|one, two| two.1.partial_cmp(&one.1).unwrap().then(one.0.cmp(&two.0)));
    }

    fn softmax(left: &[(Token, f64)], temperature: f64) -> Vec<f64> {
        let highest = left.iter().map(|(_, logit)| *logit).fold(f64::NEG_INFINITY, f64::max);
        let weights = left.iter().map(|(_, logit)| ((logit - highest) / temperature).exp());
        let weights: Vec<f64> = weights.collect();
        let mass: f64 = weights.iter().sum();
        weights.into_iter().map(|weight| weight / mass).collect()
    }

    fn top_p(mut left: Vec<(Token, f64)>, mass: f64) -> Left {
        if mass >= 1.0 {
            return Some(left);
        }
        sort_by_logit(&mut left);
        let probs = softmax(&left, 1.0);
        let count = count_to(&probs, mass - EQUAL)?;
        left.truncate(count);
        Some(left)
    }

    fn min_p(mut left: Vec<(Token, f64)>, share: f64) -> Left {
        if share <= 0.0 {
            return Some(left);
        }
        let highest = left.iter().map(|(_, logit)| *logit).fold(f64::NEG_INFINITY, f64::max);
        let bar = highest + share.ln();
        let in_doubt = |logit: f64| share < 1.0 && (logit - bar).abs() < LOGIT_ERROR;
        if left.iter().any(|(_, logit)| in_doubt(*logit)) {
            return None;
        }
        left.retain(|(_, logit)| *logit >= bar);
        Some(left)
    }

    /// By surprise and entropy, as the paper has it.
    fn typical(mut left: Vec<(Token, f64)>, mass: f64) -> Left {
        if mass >= 1.0 {
            return Some(left);
        }
        // Equal logits keep the order of their ids through both stable sorts.
        sort_by_logit(&mut left);
        let probs = softmax(&left, 1.0);
        let possible = probs.iter().filter(|prob| **prob > 0.0);
        let entropy: f64 = possible.map(|prob| -prob * prob.ln()).sum();
        let mut ranked: Vec<_> = left.into_iter().zip(probs).collect();
        let far = |prob: f64| (-prob.ln() - entropy).abs();
        ranked.sort_by(|one, two| far(one.1).partial_cmp(&far(two.1)).unwrap());
        let probs: Vec<f64> = ranked.iter().map(|(_, prob)| *prob).collect();
        let count = count_to(&probs, mass + EQUAL)?;
        let ((_, last), last_prob) = ranked[count - 1];
        let tied = |logit: f64, prob: f64| {
            logit != last && (far(prob) - far(last_prob)).abs() < LOGIT_ERROR
        };
        if ranked.iter().any(|((_, logit), prob)| tied(*logit, *prob)) {
            return None;
        }
        Some(ranked.into_iter().take(count).map(|(entry, _)| entry).collect())
    }

    /// How many of the first reach the goal.
    fn count_to(probs: &[f64], goal: f64) -> Option<usize> {
        let mut sum = 0.0;
        for (index, prob) in probs.iter().enumerate() {
            sum += prob;
            if (sum - goal).abs() < SUM_ERROR {
                return None;
            }
            if sum >= goal {
                return Some(index + 1);
            }
        }
        Some(probs.len())
    }
}

/// Fails unless the law is the reference's. Rejects a case that rounding decides.
fn agrees(sampling: &Sampling, logits: &[f32], said: &[Token]) -> Result<(), TestCaseError> {
    let Some(expected) = reference::law(sampling, logits, said) else {
        return Err(TestCaseError::reject("rounding decides"));
    };
    let row = sampling.row(&mut logits.to_vec(), said, &[]).unwrap();
    let law = law_of(&row);
    // Below this a weight may be zero in `f32`.
    let expected: Law = expected.into_iter().filter(|(_, prob)| *prob > 1e-30).collect();
    let stray = law.iter().find(|(token, prob)| **prob > 1e-29 && !expected.contains_key(token));
    prop_assert_eq!(stray, None, "kept, but not by the reference");
    for (token, prob) in &expected {
        let ours = law.get(token).copied().unwrap_or(-1.0);
        let worst = 1e-6 * (1.0 + 1.0 / f64::from(sampling.temperature.max(0.1)));
        prop_assert!((ours - prob).abs() < worst, "{token:?}: {ours} and not {prob}");
    }
    Ok(())
}

/// A few logits, many of them equal, some masked, not all.
fn short_row() -> impl Strategy<Value = Vec<f32>> {
    let logit = prop_oneof![
        4 => prop::sample::select(vec![-2.0, -1.0, -0.0, 0.0, 0.5, 1.0, 3.0]),
        4 => -12.0..12.0f32,
        1 => -200.0..200.0f32,
        1 => Just(f32::NEG_INFINITY),
    ];
    let some = vec(logit, 1..=12);
    some.prop_filter("all masked", |row| row.iter().any(|logit| *logit > f32::NEG_INFINITY))
}

/// Some thousand logits with a peak or without, coarse enough to tie or not, some masked.
fn long_row() -> impl Strategy<Value = Vec<f32>> {
    let grain = prop_oneof![Just(0.0), Just(0.5), Just(0.001)];
    (1_500..6_000usize, any::<u64>(), 0.0..12.0f32, grain).prop_map(|(len, seed, spread, grain)| {
        let mut rng = Philox::new(seed);
        let mut unit = || (rng.next_u32() >> 8) as f32 / 16_777_216.0;
        let mut row: Vec<f32> = (0..len)
            .map(|_| {
                let bell = unit() + unit() + unit() + unit() - 2.0;
                let logit = spread * bell + if unit() < 0.01 { spread } else { 0.0 };
                if unit() < 0.02 { f32::NEG_INFINITY } else { logit }
            })
            .map(|logit| if grain > 0.0 { (logit / grain).round() * grain } else { logit })
            .collect();
        row[len / 2] = 0.0;
        row
    })
}

fn row() -> impl Strategy<Value = Vec<f32>> {
    prop_oneof![2 => short_row(), 1 => long_row()]
}

/// Somewhere from 0 to 1, the ends and round numbers often.
fn share() -> impl Strategy<Value = f32> {
    prop_oneof![6 => 0.0..1.0f32, 2 => prop::sample::select(vec![0.0, 0.2, 0.25, 0.5, 0.9, 1.0])]
}

fn temperature() -> impl Strategy<Value = f32> {
    prop_oneof![1 => Just(0.0), 1 => Just(1.0), 4 => 0.1..3.0f32]
}

/// Settings with every part on or off.
fn settings() -> impl Strategy<Value = Sampling> {
    let off = |strategy: BoxedStrategy<f32>, off: f32| prop_oneof![strategy, Just(off)];
    let truncations = (
        prop_oneof![Just(0), 1..20usize, 20..4_000usize],
        off(share().boxed(), 1.0),
        off(share().boxed(), 0.0),
        off(share().boxed(), 1.0),
    );
    let penalties = (
        off((0.5..2.0f32).boxed(), 1.0),
        prop_oneof![1 => Just(None), 1 => Just(Some(0)), 3 => (1..8usize).prop_map(Some)],
        off((-2.0..2.0f32).boxed(), 0.0),
        off((-2.0..2.0f32).boxed(), 0.0),
    );
    let biases = vec((0..3u32, -3.0..3.0f32), 0..=2);
    (temperature(), truncations, penalties, biases).prop_map(|(temperature, cut, said, biases)| {
        Sampling {
            temperature,
            top_k: cut.0,
            top_p: cut.1,
            min_p: cut.2,
            typical_p: cut.3,
            repeat_penalty: said.0,
            repeat_last_n: said.1,
            presence_penalty: said.2,
            frequency_penalty: said.3,
            logit_bias: biases.into_iter().map(|(token, bias)| (Token(token), bias)).collect(),
            infill: None,
        }
    })
}

/// Tokens that were said, many of them twice.
fn said() -> impl Strategy<Value = Vec<Token>> {
    vec((0..14u32).prop_map(Token), 0..12)
}

/// Cases of each property unless `FORERUN_FUZZ_CASES` says otherwise; which they are is a function
/// of `FORERUN_FUZZ_SEED`.
const CASES: u32 = 512;

fn config() -> ProptestConfig {
    let cases = setting("FORERUN_FUZZ_CASES").unwrap_or(CASES);
    ProptestConfig {
        cases,
        rng_seed: RngSeed::Fixed(setting("FORERUN_FUZZ_SEED").unwrap_or(1)),
        max_global_rejects: 4 * cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

fn setting<T: std::str::FromStr>(name: &str) -> Option<T> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is {value}; expected a number")))
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn temperature_is_the_reference_s(row in row(), temperature in temperature()) {
        agrees(&Sampling { temperature, ..unshaped() }, &row, &[])?;
    }

    #[test]
    fn top_k_is_the_reference_s(row in row(), top_k in 0..5_000usize, few in 0..14usize) {
        agrees(&Sampling { top_k, ..unshaped() }, &row, &[])?;
        agrees(&Sampling { top_k: few, ..unshaped() }, &row, &[])?;
    }

    #[test]
    fn top_p_is_the_reference_s(row in row(), top_p in share()) {
        agrees(&Sampling { top_p, ..unshaped() }, &row, &[])?;
    }

    #[test]
    fn min_p_is_the_reference_s(row in row(), min_p in share()) {
        agrees(&Sampling { min_p, ..unshaped() }, &row, &[])?;
    }

    #[test]
    fn typical_p_is_the_reference_s(row in row(), typical_p in share()) {
        agrees(&Sampling { typical_p, ..unshaped() }, &row, &[])?;
    }

    #[test]
    fn all_together_are_the_reference_s(
        row in row().prop_filter("shorter than the biases", |row| row.len() >= 3),
        sampling in settings(),
        said in said(),
    ) {
        prop_assert_eq!(sampling.check(row.len()), Ok(()));
        agrees(&sampling, &row, &said)?;
    }

    #[test]
    fn a_path_counts_as_if_committed(row in row(), sampling in settings(), said in said()) {
        let whole = sampling.row(&mut row.clone(), &said, &[]);
        for split in 0..said.len() {
            let (committed, path) = said.split_at(split);
            prop_assert_eq!(&sampling.row(&mut row.clone(), committed, path), &whole);
        }
    }

    #[test]
    fn a_row_that_needs_no_path_ignores_it(
        row in row(),
        sampling in settings(),
        said in said(),
    ) {
        let with = sampling.row(&mut row.clone(), &said, &said);
        prop_assert!(sampling.needs_path() || with == sampling.row(&mut row.clone(), &[], &[]));
    }

    #[test]
    fn masked_tokens_stay_impossible(row in row(), sampling in settings(), said in said()) {
        let law = sampling.row(&mut row.clone(), &said, &[]).unwrap();
        for (token, _) in law.support() {
            prop_assert!(row[token.index()] > f32::NEG_INFINITY);
        }
    }
}

#[test]
fn a_penalty_divides_above_zero_and_multiplies_elsewhere() {
    let sampling = Sampling { repeat_penalty: 2.0, ..unshaped() };
    let mut logits = [3.0, -3.0, 0.0, 5.0, f32::NEG_INFINITY];
    sampling.row(&mut logits, &[Token(1), Token(0), Token(4)], &[Token(2), Token(1)]).unwrap();
    assert_eq!(logits, [1.5, -6.0, 0.0, 5.0, f32::NEG_INFINITY]);
}

#[test]
fn presence_is_taken_off_once_and_frequency_each_time() {
    let sampling = Sampling { presence_penalty: 0.5, frequency_penalty: 0.25, ..unshaped() };
    let mut logits = [1.0, 1.0, 1.0];
    sampling.row(&mut logits, &[Token(0), Token(2)], &[Token(0), Token(0)]).unwrap();
    assert_eq!(logits, [-0.25, 1.0, 0.25]);
}

#[test]
fn penalties_come_in_order_after_the_bias() {
    let sampling = Sampling {
        repeat_penalty: 2.0,
        presence_penalty: -1.0,
        frequency_penalty: 0.5,
        logit_bias: vec![(Token(0), 3.0), (Token(1), -2.0), (Token(0), 2.0)],
        ..unshaped()
    };
    let mut logits = [-1.0, 1.0, 1.0];
    sampling.row(&mut logits, &[Token(0), Token(1), Token(1)], &[]).unwrap();
    // (-1 + 3 + 2) / 2 - (0.5 - 1), and (1 - 2) * 2 - (2 * 0.5 - 1).
    assert_eq!(logits, [2.5, -2.0, 1.0]);
}

#[test]
fn the_window_reaches_back_over_the_path_into_the_committed_tokens() {
    let penalised = |last_n, committed: &[u32], path: &[u32]| {
        let tokens = |ids: &[u32]| ids.iter().copied().map(Token).collect::<Vec<_>>();
        let sampling =
            Sampling { presence_penalty: 1.0, repeat_last_n: last_n, ..Sampling::unshaped() };
        let mut logits = [0.0; 5];
        sampling.row(&mut logits, &tokens(committed), &tokens(path)).unwrap();
        (0..5).filter(|id| logits[*id] < 0.0).collect::<Vec<_>>()
    };
    assert_eq!(penalised(Some(3), &[0, 1, 2], &[3]), [1, 2, 3]);
    assert_eq!(penalised(Some(2), &[0, 1], &[2, 3, 4]), [3, 4]);
    assert_eq!(penalised(Some(9), &[0, 1], &[2]), [0, 1, 2]);
    assert_eq!(penalised(None, &[0, 1, 1, 1], &[4]), [0, 1, 4]);
    assert_eq!(penalised(Some(0), &[0, 1], &[2]), [0; 0]);
}

#[test]
fn top_p_keeps_the_token_that_crosses_the_limit() {
    let probs = [0.2, 0.5, 0.3];
    let kept = |top_p| kept(&Sampling { top_p, ..unshaped() }, &probs);
    assert_eq!(kept(0.0), [1]);
    assert_eq!(kept(0.5), [1]);
    assert_eq!(kept(0.51), [1, 2]);
    assert_eq!(kept(0.8), [1, 2]);
    assert_eq!(kept(0.81), [0, 1, 2]);
}

#[test]
fn equal_tokens_are_kept_by_id_and_sums_that_should_be_equal_are() {
    for (len, top_p, count) in [(6, 0.5, 3), (10, 0.1, 1), (3, 2.0 / 3.0, 2), (49, 7.0 / 49.0, 7)] {
        let ids: Vec<u32> = (0..count).collect();
        let sampling = Sampling { top_p, ..unshaped() };
        assert_eq!(kept(&sampling, &vec![0.25; len]), ids, "{top_p} of {len}");
    }
    assert_eq!(kept(&Sampling { top_k: 2, ..unshaped() }, &[0.1, 0.3, 0.3, 0.3]), [1, 2]);
}

#[test]
fn ties_go_by_id_after_another_truncation_too() {
    // Ten levels, a hundred tokens of each, in no order.
    let logits: Vec<f32> = (0..1_000u16).map(|i| f32::from(i * 37 % 10) / 4.0).collect();
    for top_k in (1..1_000).step_by(7) {
        agrees(&Sampling { top_k, top_p: 0.55, ..unshaped() }, &logits, &[]).unwrap();
    }
}

#[test]
fn min_p_keeps_what_is_near_the_likeliest() {
    let probs = [0.1, 0.5, 0.25, 0.05, 0.1];
    let kept = |min_p| kept(&Sampling { min_p, ..unshaped() }, &probs);
    assert_eq!(kept(0.09), [0, 1, 2, 3, 4]);
    assert_eq!(kept(0.15), [0, 1, 2, 4]);
    assert_eq!(kept(0.49), [1, 2]);
    assert_eq!(kept(0.51), [1]);
    assert_eq!(kept(1.0), [1]);
    assert_eq!(self::kept(&Sampling { min_p: 1.0, ..unshaped() }, &[0.4, 0.2, 0.4]), [0, 2]);
}

#[test]
fn typical_p_passes_over_a_token_that_is_too_likely() {
    // An entropy of 1.64 is nearer to the surprise of the five, 2.12, than to the one's, 0.92.
    let probs = [0.12, 0.4, 0.12, 0.12, 0.12, 0.12];
    let kept = |typical_p| kept(&Sampling { typical_p, ..unshaped() }, &probs);
    assert_eq!(kept(0.0), [0]);
    assert_eq!(kept(0.2), [0, 2]);
    assert_eq!(kept(0.59), [0, 2, 3, 4, 5]);
    // More than the limit is asked for.
    assert_eq!(kept(0.6), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn each_truncation_looks_at_what_the_one_before_has_left() {
    let probs = [0.4, 0.3, 0.2, 0.1];
    // After top-k the first has 4 / 7.
    assert_eq!(kept(&Sampling { top_k: 2, top_p: 0.5, ..unshaped() }, &probs), [0]);
    // Typical leaves the five; among them all are the likeliest.
    let sampling = Sampling { typical_p: 0.5, min_p: 0.9, ..unshaped() };
    assert_eq!(kept(&sampling, &[0.12, 0.4, 0.12, 0.12, 0.12, 0.12]), [0, 2, 3, 4, 5]);
    // Typical before top-p: the likeliest is gone before top-p could keep it alone.
    let sampling = Sampling { typical_p: 0.5, top_p: 0.3, ..unshaped() };
    assert_eq!(kept(&sampling, &[0.12, 0.4, 0.12, 0.12, 0.12, 0.12]), [0, 2]);
    // Top-p before min-p, seen where min-p takes of what top-p has left.
    let sampling = Sampling { top_p: 0.85, min_p: 0.6, ..unshaped() };
    assert_eq!(kept(&sampling, &probs), [0, 1]);
}

#[test]
fn temperature_comes_last() {
    let probs = [0.5, 0.3, 0.2];
    let mut logits = logits_of(&probs);
    let sampling = Sampling { temperature: 2.0, top_p: 0.7, ..unshaped() };
    let law = law_of(&sampling.row(&mut logits, &[], &[]).unwrap());
    let ratio = law[&Token(0)] / law[&Token(1)];
    assert!((ratio - (0.5f64 / 0.3).sqrt()).abs() < 1e-6, "{ratio}");
    assert_eq!(law.len(), 2);
}

#[test]
fn temperature_zero_is_the_likeliest_token_after_bias_and_penalties() {
    let choose = |sampling: Sampling, logits: &[f32]| {
        sampling.row(&mut logits.to_vec(), &[Token(2)], &[]).unwrap()
    };
    let point = |id| Dist::point(4, Token(id)).unwrap();
    let greedy = Sampling::greedy;
    assert_eq!(choose(greedy(), &[1.0, 5.0, 7.0, 7.0]), point(2));
    let logit_bias = vec![(Token(2), f32::NEG_INFINITY)];
    assert_eq!(choose(Sampling { logit_bias, ..greedy() }, &[1.0, 5.0, 7.0, 5.0]), point(1));
    let penalised = Sampling { frequency_penalty: 1.0, ..greedy() };
    assert_eq!(choose(penalised, &[1.0, 5.0, 5.5, 0.0]), point(1));
    let truncated = Sampling { temperature: 0.0, typical_p: 0.1, ..Sampling::default() };
    assert_eq!(choose(truncated, &logits_of(&[0.1, 0.1, 0.6, 0.2])), point(2));
    assert_eq!(choose(greedy(), &[-0.0, 0.0, -1.0, 0.0]), point(0));
}

/// One setting for each way a row may take.
fn ways() -> [Sampling; 7] {
    [
        unshaped(),
        Sampling::greedy(),
        Sampling::default(),
        Sampling { top_k: 3, ..unshaped() },
        Sampling { top_p: 0.5, ..unshaped() },
        Sampling { min_p: 0.1, ..unshaped() },
        Sampling { typical_p: 0.5, ..unshaped() },
    ]
}

#[test]
fn a_row_without_a_possible_token_is_refused() {
    for mut sampling in ways() {
        let masked = sampling.row(&mut [f32::NEG_INFINITY; 70], &[], &[]);
        assert_eq!(masked, Err(RowError::NoMass), "{sampling:?}");
        assert_eq!(sampling.row(&mut [], &[], &[]), Err(RowError::Empty), "{sampling:?}");
        sampling.logit_bias = (0..5).map(|id| (Token(id), f32::NEG_INFINITY)).collect();
        let forbidden = sampling.row(&mut [1.0, 2.0, 3.0, 4.0, 5.0], &[], &[]);
        assert_eq!(forbidden, Err(RowError::NoMass), "{sampling:?}");
    }
}

#[test]
fn unsound_logits_are_refused_wherever_they_are() {
    for sampling in ways() {
        for place in [0, 31, 32, 500, 999] {
            let token = Token(place);
            let with = |fault: f32| {
                let mut logits: Vec<f32> = (0..1_000u16).map(|i| f32::from(i % 37)).collect();
                logits[token.index()] = fault;
                sampling.row(&mut logits, &[], &[])
            };
            assert_eq!(with(f32::NAN), Err(RowError::Nan { token }), "{sampling:?}");
            assert_eq!(with(f32::INFINITY), Err(RowError::Infinite { token }), "{sampling:?}");
            assert!(with(f32::NEG_INFINITY).is_ok());
        }
    }
}

#[test]
fn tokens_a_shorter_vocabulary_lacks_are_ignored() {
    let logit_bias = vec![(Token(9), 5.0)];
    let sampling = Sampling { repeat_penalty: 2.0, logit_bias, ..unshaped() };
    let law = sampling.row(&mut [1.0, 1.0], &[Token(2)], &[Token(u32::MAX)]).unwrap();
    assert_eq!(law.prob(Token(0)), 0.5);
}

#[test]
fn the_path_is_needed_where_a_penalty_is_on() {
    assert!(!unshaped().needs_path());
    assert!(!Sampling::default().needs_path());
    assert!(Sampling { repeat_penalty: 0.9, ..unshaped() }.needs_path());
    assert!(Sampling { presence_penalty: -0.1, ..unshaped() }.needs_path());
    let frequent = Sampling { frequency_penalty: 0.1, ..unshaped() };
    assert!(frequent.needs_path());
    assert!(Sampling { repeat_last_n: None, ..frequent.clone() }.needs_path());
    assert!(!Sampling { repeat_last_n: Some(0), ..frequent }.needs_path());
}

#[test]
fn defaults_are_llama_cpp_s() {
    let expected = Sampling {
        temperature: 0.8,
        top_k: 40,
        top_p: 0.95,
        min_p: 0.05,
        typical_p: 1.0,
        repeat_penalty: 1.0,
        repeat_last_n: Some(64),
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        logit_bias: vec![],
        infill: None,
    };
    assert_eq!(Sampling::default(), expected);
    for sampling in ways() {
        assert_eq!(sampling.check(10), Ok(()));
    }
}

#[test]
fn numbers_out_of_range_are_refused() {
    let refused = |change: &dyn Fn(&mut Sampling, f32), name: &str, values: &[f32]| {
        for value in values {
            let mut sampling = Sampling::default();
            change(&mut sampling, *value);
            let error = sampling.check(100).unwrap_err();
            let named =
                matches!(error, SamplingError::OutOfRange { name: field, .. } if field == name);
            assert!(named, "{error}");
            assert!(error.to_string().starts_with(&format!("{name} is {value}; expected")));
        }
    };
    let beyond = [f32::NAN, -0.01, 1.01, f32::INFINITY];
    refused(&|s, x| s.top_p = x, "top_p", &beyond);
    refused(&|s, x| s.min_p = x, "min_p", &beyond);
    refused(&|s, x| s.typical_p = x, "typical_p", &beyond);
    refused(&|s, x| s.temperature = x, "temperature", &[f32::NAN, -0.1, 101.0, f32::INFINITY]);
    let beyond = [f32::NAN, 0.0, -1.0, 101.0, f32::INFINITY];
    refused(&|s, x| s.repeat_penalty = x, "repeat_penalty", &beyond);
    let beyond = [f32::NAN, -101.0, 101.0, f32::NEG_INFINITY];
    refused(&|s, x| s.presence_penalty = x, "presence_penalty", &beyond);
    refused(&|s, x| s.frequency_penalty = x, "frequency_penalty", &beyond);
}

#[test]
fn biases_out_of_range_are_refused() {
    let check = |logit_bias: Vec<(Token, f32)>| {
        Sampling { logit_bias, ..Sampling::default() }.check(3).map_err(|error| error.to_string())
    };
    assert_eq!(check(vec![(Token(2), f32::NEG_INFINITY), (Token(0), -100.0)]), Ok(()));
    let error = check(vec![(Token(0), 1.0), (Token(3), 1.0)]).unwrap_err();
    assert_eq!(error, "bias is for token 3; expected a token of a vocabulary of 3");
    for bias in [f32::NAN, f32::INFINITY, 2e6, -2e6] {
        let error = check(vec![(Token(1), bias)]).unwrap_err();
        let expected = format!("bias of token 1 is {bias}; expected -inf or -1000000 to 1000000");
        assert_eq!(error, expected);
    }
    let error = check(vec![(Token(1), 0.0); 4]).unwrap_err();
    assert_eq!(error, "logit_bias has 4 entries; expected at most 3, one for each token");
}

#[test]
fn every_accepted_number_gives_a_law() {
    let least = Sampling {
        temperature: f32::from_bits(1),
        top_p: 0.0,
        typical_p: 0.0,
        min_p: f32::from_bits(1),
        repeat_penalty: 0.01,
        presence_penalty: -100.0,
        frequency_penalty: -100.0,
        logit_bias: vec![(Token(1), -1e6), (Token(2), f32::NEG_INFINITY)],
        ..unshaped()
    };
    let most = Sampling {
        temperature: 100.0,
        top_k: usize::MAX,
        min_p: 1.0,
        repeat_penalty: 100.0,
        repeat_last_n: Some(usize::MAX),
        presence_penalty: 100.0,
        frequency_penalty: 100.0,
        logit_bias: vec![(Token(1), 1e6)],
        ..unshaped()
    };
    let smallest = Sampling { temperature: f32::MIN_POSITIVE, ..Sampling::default() };
    for sampling in [least, most, smallest] {
        assert_eq!(sampling.check(4), Ok(()));
        let said = [Token(0), Token(1), Token(2), Token(1)];
        assert!(sampling.row(&mut [1.0, -2.0, 3.0, 0.5], &said, &said).is_ok(), "{sampling:?}");
    }
}

/// The texts of tokens; an empty one ends.
struct Texts(&'static [&'static str]);

impl Tokenizer for Texts {
    fn vocab_len(&self) -> usize {
        self.0.len()
    }
    fn tokenize(&self, _: &str, _: Special) -> Result<Vec<Token>, TokenizeError> {
        Ok(Vec::new())
    }
    fn start(&self) -> Option<Token> {
        None
    }
    fn is_end(&self, token: Token) -> bool {
        self.0[token.index()].is_empty()
    }
    fn bytes(&self, token: Token, out: &mut Vec<u8>) {
        out.extend_from_slice(self.0[token.index()].as_bytes());
    }
}

/// The sampler for gaps; the last token ends.
fn infill(texts: &'static [&'static str]) -> Sampling {
    let end = Token(u32::try_from(texts.len() - 1).unwrap());
    let infill = Some(InfillSampler::new(Arc::new(Texts(texts)), end));
    Sampling { infill, top_k: texts.len(), ..unshaped() }
}

#[test]
fn the_text_of_a_gap_ends_early() {
    let sampling = infill(&["a", "b", "c", ""]);
    // 3 * 0.09 * 4 is more than 0.91, and 3 * 0.05 * 4 less than 0.95.
    assert_eq!(kept(&sampling, &[0.4, 0.4, 0.11, 0.09]), [3]);
    assert_eq!(kept(&sampling, &[0.45, 0.4, 0.1, 0.05]), [0, 1, 3]);
    // No text is likely enough.
    let many = infill(&["a", "b", "c", "d", "e", "f", ""]);
    assert_eq!(kept(&many, &[0.17, 0.17, 0.17, 0.16, 0.16, 0.16, 0.01]), [6]);
    // Also if the end was no candidate any more; but not if it is impossible.
    let short = Sampling { top_k: 6, ..many.clone() };
    assert_eq!(kept(&short, &[0.17, 0.17, 0.17, 0.16, 0.16, 0.16, 0.01]), [6]);
    assert_eq!(kept(&many, &[0.17, 0.17, 0.17, 0.17, 0.16, 0.16, 0.0]), [0, 1, 2, 3, 4, 5]);
    // A row of a shorter vocabulary has no end.
    assert_eq!(kept(&many, &[0.17, 0.17, 0.17, 0.17, 0.16, 0.16]), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn texts_of_a_gap_that_begin_alike_count_as_one() {
    let sampling = infill(&["f", "far", "g", "farm", ""]);
    // f, far and farm have 0.6 together, which goes to the likeliest.
    assert_eq!(kept(&sampling, &[0.15, 0.25, 0.39, 0.2, 0.01]), [1, 2, 4]);
    // What is kept has the probabilities of the model, not of what it stands for.
    let law =
        law_of(&sampling.row(&mut logits_of(&[0.15, 0.25, 0.39, 0.2, 0.01]), &[], &[]).unwrap());
    assert!((law[&Token(1)] - 0.25 / 0.65).abs() < 1e-6, "{law:?}");
    // Of two that are left, one must have a third.
    assert_eq!(kept(&infill(&["a", "b", "c", ""]), &[0.69, 0.21, 0.095, 0.005]), [0, 3]);
}

#[test]
fn at_temperature_0_the_likeliest_of_a_gap_is_taken() {
    let sampling = Sampling { temperature: 0.0, ..infill(&["a", "b", "c", ""]) };
    assert_eq!(kept(&sampling, &[0.4, 0.4, 0.11, 0.09]), [3]);
    assert_eq!(kept(&sampling, &[0.4, 0.45, 0.1, 0.05]), [1]);
}

#[test]
fn candidates_for_a_gap_are_few() {
    for (top_k, is_fine) in [(0, false), (1, true), (256, true), (257, false)] {
        let sampling = Sampling { top_k, ..infill(&["a", ""]) };
        assert_eq!(sampling.check(2).is_ok(), is_fine, "{top_k}");
    }
    let error = Sampling { top_k: 0, ..infill(&["a", ""]) }.check(2).unwrap_err();
    assert_eq!(error.to_string(), "top_k is 0; expected 1 to 256");
}
