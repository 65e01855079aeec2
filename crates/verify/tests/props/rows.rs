//! Constructors of rows: every list of numbers is refused for the right reason, or is a row.

use forerun_verify::*;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use crate::sketch::{row, sparse as sparse_row, vocab_len};
use crate::{Found, property};

/// Any bit pattern, the odd ones often.
fn any_bits() -> impl Strategy<Value = f32> {
    let odd = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1.0, 0.0, -0.0, f32::MIN];
    prop_oneof![any::<u32>().prop_map(f32::from_bits), prop::sample::select(odd.to_vec())]
}

/// Numbers of any kind, or a legal row with a few numbers replaced.
fn numbers() -> impl Strategy<Value = Vec<f32>> {
    let spoiled = (vocab_len(), row(), vec((any::<prop::sample::Index>(), any_bits()), 0..=2));
    let spoiled = spoiled.prop_map(|(vocab_len, row, faults)| {
        let mut weights = row.weights(vocab_len);
        for (place, number) in faults {
            weights[place.index(vocab_len)] = number;
        }
        weights
    });
    prop_oneof![3 => spoiled, 1 => vec(any_bits(), 0..=6)]
}

/// Logits as a model gives them, with a few replaced by anything; or any numbers.
fn logits() -> impl Strategy<Value = Vec<f32>> {
    let usual = (vocab_len(), vec(usual_logit(), 1..=9), any::<u8>(), vec(any_bits(), 0..=1));
    let usual = usual.prop_map(|(vocab_len, pattern, place, fault)| {
        let mut logits: Vec<f32> =
            (0..vocab_len).map(|index| pattern[index % pattern.len()]).collect();
        fault.into_iter().for_each(|number| logits[usize::from(place) % vocab_len] = number);
        logits
    });
    prop_oneof![3 => usual, 1 => numbers()]
}

fn usual_logit() -> impl Strategy<Value = f32> {
    prop_oneof![4 => -30.0..30.0f32, 1 => Just(f32::NEG_INFINITY), 1 => -500.0..500.0f32]
}

fn temperature() -> impl Strategy<Value = f32> {
    prop_oneof![2 => Just(1.0), 3 => 0.01..10.0f32, 1 => any_bits()]
}

/// Tokens with numbers; the tokens may repeat and leave the vocabulary.
fn entries(number: impl Strategy<Value = f32>) -> impl Strategy<Value = (usize, Entries)> {
    let token = prop_oneof![6 => 0..20u32, 4 => any::<u32>()];
    let token = (token, any::<bool>());
    (vocab_len(), vec((token, number), 0..=12)).prop_map(|(vocab_len, entries)| {
        let inside = |token: u32| token % u32::try_from(vocab_len).unwrap();
        let entries = entries.into_iter().map(|((token, stray), number)| {
            (Token(if stray && token % 16 == 0 { token } else { inside(token) }), number)
        });
        (vocab_len, entries.collect())
    })
}

type Entries = Vec<(Token, f32)>;

/// Whether a number has no place in a row, and what is said of it.
type Fault = fn(Token, f32) -> Option<RowError>;

fn weight_fault(token: Token, weight: f32) -> Option<RowError> {
    if weight.is_nan() {
        Some(RowError::Nan { token })
    } else if weight.is_infinite() {
        Some(RowError::Infinite { token })
    } else {
        (weight < 0.0).then_some(RowError::Negative { token, weight })
    }
}

fn logit_fault(token: Token, logit: f32) -> Option<RowError> {
    let plus = logit == f32::INFINITY;
    logit
        .is_nan()
        .then_some(RowError::Nan { token })
        .or(plus.then_some(RowError::Infinite { token }))
}

fn temperature_fault(temperature: f32) -> Option<RowError> {
    let sound = temperature >= f32::MIN_POSITIVE && temperature.is_finite();
    (!sound).then_some(RowError::Temperature { temperature })
}

fn named(numbers: &[f32]) -> Entries {
    numbers.iter().zip(0..).map(|(number, token)| (Token(token), *number)).collect()
}

fn first_fault(entries: &[(Token, f32)], fault: Fault) -> Option<RowError> {
    entries.iter().find_map(|(token, number)| fault(*token, *number))
}

/// What is wrong with the tokens of a sparse row.
fn token_fault(vocab_len: usize, entries: &[(Token, f32)]) -> Option<RowError> {
    let mut tokens: Vec<Token> = entries.iter().map(|(token, _)| *token).collect();
    tokens.sort_unstable();
    let Some(&token) = tokens.last() else { return Some(RowError::Empty) };
    if token.index() >= vocab_len {
        return Some(RowError::OutOfRange { token, vocab_len });
    }
    let twice = tokens.windows(2).find(|pair| pair[0] == pair[1]);
    twice.map(|pair| RowError::Duplicate { token: pair[0] })
}

fn sorted(entries: &[(Token, f32)]) -> Entries {
    let mut entries = entries.to_vec();
    entries.sort_unstable_by_key(|(token, _)| *token);
    entries
}

/// Where no number is above `least`, there is no mass.
fn no_mass(entries: &[(Token, f32)], least: f32) -> Option<RowError> {
    entries.iter().all(|(_, number)| *number <= least).then_some(RowError::NoMass)
}

/// Refused with this error, which may hold a NaN, or a sound row where there is none.
fn agrees(built: &Result<Dist, RowError>, wanted: Option<RowError>) -> TestCaseResult {
    match (built, wanted) {
        (Ok(row), None) => is_a_distribution(row),
        (Err(error), Some(wanted)) => {
            prop_assert_eq!(format!("{error:?}"), format!("{wanted:?}"));
            Ok(())
        }
        (built, wanted) => Err(TestCaseError::fail(format!("{built:?}; expected {wanted:?}"))),
    }
}

fn is_a_distribution(row: &Dist) -> TestCaseResult {
    let mut sum = 0.0;
    let mut last = None;
    for (token, probability) in row.support() {
        prop_assert!(probability > 0.0 && probability <= 1.0, "{probability} at {token:?}");
        prop_assert_eq!(probability, row.prob(token));
        prop_assert!(token.index() < row.vocab_len() && last < Some(token));
        last = Some(token);
        sum += probability;
    }
    prop_assert!((sum - 1.0).abs() < 1e-9, "probabilities add up to {sum}");
    for index in (0..row.vocab_len() + 2).chain([u32::MAX as usize]) {
        let probability = row.prob(Token(u32::try_from(index).unwrap()));
        prop_assert!((0.0..=1.0).contains(&probability));
        prop_assert!(index < row.vocab_len() || probability == 0.0);
    }
    let mass = row.mass();
    prop_assert!(mass > 0.0 && mass.is_finite());
    for share in [0.0, 0.3, 1.0 - f64::EPSILON, 1.0] {
        let index = row.locate(share * mass);
        prop_assert!(row.prob(Token(u32::try_from(index).unwrap())) > 0.0);
    }
    Ok(())
}

pub(crate) fn dense() -> Found {
    property(numbers(), |weights| {
        let entries = named(&weights);
        let empty = weights.is_empty().then_some(RowError::Empty);
        let wanted = empty
            .or_else(|| first_fault(&entries, weight_fault))
            .or_else(|| no_mass(&entries, 0.0));
        let built = Dist::dense(weights.clone());
        agrees(&built, wanted)?;
        let Ok(row) = built else { return Ok(()) };
        let mass: f64 = weights.iter().copied().map(f64::from).sum();
        for (token, weight) in entries {
            let truth = f64::from(weight) / mass;
            prop_assert!((row.prob(token) - truth).abs() <= 1e-12 * truth);
        }
        Ok(())
    })
}

pub(crate) fn sparse() -> Found {
    let weight = prop_oneof![8 => 0.0..2.0f32, 1 => any_bits().prop_map(f32::abs), 1 => any_bits()];
    property(entries(weight), |(vocab_len, entries)| {
        let wanted = token_fault(vocab_len, &entries)
            .or_else(|| first_fault(&sorted(&entries), weight_fault))
            .or_else(|| no_mass(&entries, 0.0));
        agrees(&Dist::sparse(vocab_len, entries), wanted)
    })
}

/// Probabilities agree with the definition where `f32` logits can be expected to.
fn is_softmax_of(row: &Dist, logits: &[(Token, f32)], temperature: f32) -> TestCaseResult {
    let usual = |logit: f32| logit == f32::NEG_INFINITY || logit.abs() <= 1e3;
    let ordinary = (0.01..=10.0).contains(&temperature);
    if !ordinary || !logits.iter().all(|(_, logit)| usual(*logit)) {
        return Ok(());
    }
    let highest = logits.iter().map(|(_, logit)| *logit).fold(f32::NEG_INFINITY, f32::max);
    let weight = |logit: f32| (f64::from(logit - highest) / f64::from(temperature)).exp();
    let mass: f64 = logits.iter().map(|(_, logit)| weight(*logit)).sum();
    for (token, logit) in logits {
        let truth = weight(*logit) / mass;
        let error = (row.prob(*token) - truth).abs();
        prop_assert!(error < 1e-4 * truth + 1e-30, "{} for {truth} at {token:?}", row.prob(*token));
    }
    Ok(())
}

pub(crate) fn softmax() -> Found {
    property((logits(), temperature()), |(logits, temperature)| {
        let entries = named(&logits);
        let empty = logits.is_empty().then_some(RowError::Empty);
        let wanted = temperature_fault(temperature)
            .or(empty)
            .or_else(|| first_fault(&entries, logit_fault))
            .or_else(|| no_mass(&entries, f32::NEG_INFINITY));
        let built = Dist::softmax(&logits, temperature);
        agrees(&built, wanted)?;
        built.map_or(Ok(()), |row| is_softmax_of(&row, &entries, temperature))
    })
}

pub(crate) fn softmax_of() -> Found {
    let logit = prop_oneof![8 => usual_logit(), 1 => any_bits()];
    property((entries(logit), temperature()), |((vocab_len, entries), temperature)| {
        let wanted = temperature_fault(temperature)
            .or_else(|| token_fault(vocab_len, &entries))
            .or_else(|| first_fault(&sorted(&entries), logit_fault))
            .or_else(|| no_mass(&entries, f32::NEG_INFINITY));
        let built = Dist::softmax_of(vocab_len, entries.clone(), temperature);
        agrees(&built, wanted)?;
        built.map_or(Ok(()), |row| is_softmax_of(&row, &entries, temperature))
    })
}

/// The tokens of the largest logits, ties to the lower id.
fn largest(logits: &[f32], count: usize) -> Entries {
    let mut entries = named(logits);
    entries.retain(|(_, logit)| *logit > f32::NEG_INFINITY);
    // Stable, so equal logits stay in the order of ids.
    entries.sort_by(|one, two| two.1.partial_cmp(&one.1).unwrap());
    entries.truncate(count);
    entries
}

pub(crate) fn top_k() -> Found {
    let count = prop_oneof![8 => 0..=12usize, 2 => 0..=800usize, 1 => Just(usize::MAX), 1 => any::<usize>()];
    property((logits(), temperature(), count), |(logits, temperature, count)| {
        let entries = named(&logits);
        let none = (count == 0).then_some(RowError::TopNone);
        let wanted = none
            .or(logits.is_empty().then_some(RowError::Empty))
            .or_else(|| first_fault(&entries, logit_fault))
            .or_else(|| no_mass(&entries, f32::NEG_INFINITY))
            .or_else(|| temperature_fault(temperature));
        let built = Dist::top_k(&logits, temperature, count);
        agrees(&built, wanted)?;
        let Ok(row) = built else { return Ok(()) };
        let kept = largest(&logits, count);
        for (token, _) in row.support() {
            prop_assert!(kept.iter().any(|(known, _)| *known == token), "{token:?} is not kept");
        }
        prop_assert!(row.prob(kept[0].0) > 0.0);
        is_softmax_of(&row, &kept, temperature)
    })
}

pub(crate) fn argmax() -> Found {
    property(logits(), |logits| {
        let entries = named(&logits);
        let empty = logits.is_empty().then_some(RowError::Empty);
        let wanted = empty
            .or_else(|| first_fault(&entries, logit_fault))
            .or_else(|| no_mass(&entries, f32::NEG_INFINITY));
        let built = Dist::argmax(&logits);
        agrees(&built, wanted)?;
        let Ok(row) = built else { return Ok(()) };
        let (first, _) = largest(&logits, 1)[0];
        prop_assert_eq!(row.prob(first), 1.0);
        Ok(())
    })
}

/// A dense row and the sparse one of the same weights have the same probabilities, draws and
/// noise-chosen tokens, and those are what their definitions say.
pub(crate) fn forms() -> Found {
    property(
        (vocab_len(), row(), any::<u64>(), any::<u64>()),
        |(vocab_len, row, seed, position)| {
            let weights = row.weights(vocab_len);
            let (dense, sparse) = (Dist::dense(weights.clone()).unwrap(), sparse_row(&weights));
            for ((token, one), (same, two)) in dense.support().zip(sparse.support()) {
                prop_assert_eq!(token, same);
                prop_assert!((one - two).abs() <= 1e-12 * one);
            }
            let noise = Noise::new(seed);
            let arrivals = named(&weights).into_iter().filter(|(_, weight)| *weight > 0.0);
            let mut arrivals: Vec<(f64, Token)> = arrivals
                .map(|(token, weight)| (noise.at(position, token) / f64::from(weight), token))
                .collect();
            prop_assert!(arrivals.iter().all(|(arrival, _)| *arrival > 0.0 && arrival.is_finite()));
            arrivals.sort_by(|one, two| one.0.total_cmp(&two.0).then(one.1.cmp(&two.1)));
            for count in [0, 1, 3] {
                let wanted: Vec<Token> =
                    arrivals.iter().take(count).map(|(_, token)| *token).collect();
                prop_assert_eq!(&noise.choose_several(position, &dense, count), &wanted);
                prop_assert_eq!(&noise.choose_several(position, &sparse, count), &wanted);
            }
            let draw = |row: &Dist| row.draw(&mut Random(Philox::new(seed)));
            prop_assert!(dense.prob(draw(&dense)) > 0.0 && sparse.prob(draw(&sparse)) > 0.0);
            Ok(())
        },
    )
}
