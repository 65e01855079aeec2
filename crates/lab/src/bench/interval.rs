//! How sure a speedup is: bootstrap intervals over prompts, and when they are narrow enough.
//!
//! A prompt's outputs by a setting and by plain decoding stay together, so what the machine did to
//! both cancels. Prompts are drawn anew with replacement, and the ratio of the summed rates is taken
//! each time. Percentiles of few prompts are too narrow; they are widened as Hesterberg (2015, "What
//! teachers should know about the bootstrap") has it: by Student's quantile over the normal one, and
//! by the square root of n / (n - 1).

use std::collections::BTreeMap;
use std::fmt;

use forerun_verify::Philox;
use forerun_verify::rand_core::Rng as _;
use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF as _, Normal, StudentsT};

use super::metrics::{quantile, ratio};
use super::record::Measure;

/// What intervals cover.
pub(crate) const LEVEL: f64 = 0.95;

/// Enough that the ends of an interval are as sure as is of use.
const DRAWS: usize = 4000;

/// Fewer say nothing of how they vary.
const UNITS_MIN: usize = 3;

/// The same draws for the same outputs.
const SEED: u64 = 2024;

/// A figure and how sure it is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The figure.
    pub value: f64,
    /// Where it may lie; null where too few outputs say anything about that.
    pub low: Option<f64>,
    /// The other end.
    pub high: Option<f64>,
}

impl Interval {
    /// How far the further end is from the figure, as a share of it.
    pub fn reach(&self) -> f64 {
        match (self.low, self.high) {
            (Some(low), Some(high)) => (high / self.value - 1.0).max(1.0 - low / self.value),
            _ => f64::INFINITY,
        }
    }

    /// Whether it has one on neither side.
    pub fn excludes(&self, value: f64) -> bool {
        self.low.is_some_and(|low| low > value) || self.high.is_some_and(|high| high < value)
    }
}

/// The figure, and in brackets where it may lie.
impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.low, self.high) {
            (Some(low), Some(high)) => write!(f, "{:.2} ({low:.2}–{high:.2})", self.value),
            _ => write!(f, "{:.2}", self.value),
        }
    }
}

/// The same prompts by a setting and by plain decoding.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Pair {
    /// The prompt, by index.
    pub(crate) prompt: usize,
    tokens: f64,
    seconds: f64,
    plain_tokens: f64,
    plain_seconds: f64,
}

impl Pair {
    fn add(&mut self, other: &Self) {
        self.tokens += other.tokens;
        self.seconds += other.seconds;
        self.plain_tokens += other.plain_tokens;
        self.plain_seconds += other.plain_seconds;
    }

    fn is_whole(&self) -> bool {
        self.seconds > 0.0 && self.plain_seconds > 0.0
    }
}

/// Pairs of what belongs together: a prompt's outputs, or where there are too few prompts to draw from,
/// a prompt's in one repeat.
pub(crate) fn pairs<'a>(
    measures: impl Iterator<Item = &'a Measure>,
    setting: usize,
    plain: usize,
) -> Vec<Pair> {
    let mut by_text: BTreeMap<(usize, usize), Pair> = BTreeMap::new();
    for measure in measures.filter(|it| it.setting == setting || it.setting == plain) {
        let pair = by_text.entry((measure.prompt, measure.repeat)).or_default();
        pair.prompt = measure.prompt;
        if measure.setting == setting {
            pair.tokens += measure.tokens as f64;
            pair.seconds += measure.seconds;
        }
        if measure.setting == plain {
            pair.plain_tokens += measure.tokens as f64;
            pair.plain_seconds += measure.seconds;
        }
    }
    let whole: Vec<Pair> = by_text.into_values().filter(Pair::is_whole).collect();
    let mut by_prompt: Vec<Pair> = Vec::new();
    for pair in &whole {
        match by_prompt.last_mut().filter(|last| last.prompt == pair.prompt) {
            Some(last) => last.add(pair),
            None => by_prompt.push(*pair),
        }
    }
    if by_prompt.len() < UNITS_MIN { whole } else { by_prompt }
}

/// The ratio of the summed rates.
fn speedup_of<'a>(pairs: impl IntoIterator<Item = &'a Pair>) -> Option<f64> {
    let mut sum = Pair::default();
    pairs.into_iter().for_each(|pair| sum.add(pair));
    let (own, plain) =
        (ratio(sum.tokens, sum.seconds)?, ratio(sum.plain_tokens, sum.plain_seconds)?);
    ratio(own, plain)
}

/// The speedup over plain decoding; nothing where no text has both.
pub(crate) fn speedup(pairs: &[Pair]) -> Option<Interval> {
    let value = speedup_of(pairs)?;
    let mut random = Philox::new(SEED);
    let draw = || speedup_of(drawn(pairs.len(), &mut random).into_iter().map(|at| &pairs[at]));
    Some(interval(value, pairs.len(), LEVEL, draw))
}

/// The rate of some runs over that of others, given as tokens and seconds of the same prompts in the
/// same order; nothing where one took no time.
pub fn rate_ratio(own: &[(f64, f64)], plain: &[(f64, f64)]) -> Option<Interval> {
    let mut pairs = Vec::with_capacity(own.len());
    for (prompt, (own, plain)) in own.iter().zip(plain).enumerate() {
        let ((tokens, seconds), (plain_tokens, plain_seconds)) = (*own, *plain);
        pairs.push(Pair { prompt, tokens, seconds, plain_tokens, plain_seconds });
    }
    speedup(&pairs)
}

/// By how much the speedup of `new` is that of `old`, at a level. Where both have the same prompts
/// they are drawn together.
pub(crate) fn change(old: &[Pair], new: &[Pair], level: f64) -> Option<Interval> {
    let value = ratio(speedup_of(new)?, speedup_of(old)?)?;
    let same = old.iter().map(|it| it.prompt).eq(new.iter().map(|it| it.prompt));
    let mut random = Philox::new(SEED);
    let draw = || {
        let of_old = drawn(old.len(), &mut random);
        let of_new = if same { of_old.clone() } else { drawn(new.len(), &mut random) };
        let of_old = speedup_of(of_old.into_iter().map(|at| &old[at]))?;
        ratio(speedup_of(of_new.into_iter().map(|at| &new[at]))?, of_old)
    };
    Some(interval(value, old.len().min(new.len()), level, draw))
}

/// As many places as there are, drawn with replacement.
fn drawn(count: usize, random: &mut Philox) -> Vec<usize> {
    let place = |_| usize::try_from(random.next_u64() % count as u64).expect("below the count");
    (0..count).map(place).collect()
}

fn interval(value: f64, units: usize, level: f64, draw: impl FnMut() -> Option<f64>) -> Interval {
    if units < UNITS_MIN {
        return Interval { value, low: None, high: None };
    }
    let tail = (1.0 - level) / 2.0;
    let mut draws: Vec<f64> = std::iter::repeat_with(draw).take(DRAWS).flatten().collect();
    draws.sort_by(f64::total_cmp);
    let freedom = (units - 1) as f64;
    let wider = student(tail, freedom) / normal(tail) * (units as f64 / freedom).sqrt();
    let end = |share| {
        let drawn = quantile(&draws, share)?;
        Some(value * (drawn / value).powf(wider))
    };
    Interval { value, low: end(tail), high: end(1.0 - tail) }
}

/// The normal distribution's quantile above which this much lies.
pub(super) fn normal(tail: f64) -> f64 {
    Normal::standard().inverse_cdf(1.0 - tail)
}

/// Student's, by degrees of freedom.
fn student(tail: f64, freedom: f64) -> f64 {
    let distribution = StudentsT::new(0.0, 1.0, freedom).expect("freedom is positive");
    distribution.inverse_cdf(1.0 - tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(setting: usize, prompt: usize, repeat: usize, seconds: f64) -> Measure {
        Measure { setting, prompt, repeat, tokens: 10, seconds, ..Measure::default() }
    }

    /// A number of the normal law.
    fn noise(random: &mut Philox) -> f64 {
        let mut uniform = || (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        (-2.0 * (1.0 - uniform()).ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos()
    }

    /// Prompts whose speedups lie around two.
    fn prompts(count: usize, random: &mut Philox) -> Vec<Pair> {
        let pair = |prompt| {
            let plain_seconds = 1.0 + 0.1 * noise(random);
            let seconds = plain_seconds / 2.0 * (0.15 * noise(random)).exp();
            Pair { prompt, tokens: 10.0, seconds, plain_tokens: 10.0, plain_seconds }
        };
        (0..count).map(pair).collect()
    }

    #[test]
    fn texts_of_a_prompt_belong_together() {
        let measures = [
            text(0, 0, 0, 2.0),
            text(1, 0, 0, 1.0),
            text(1, 0, 1, 3.0),
            text(0, 0, 1, 4.0),
            text(1, 1, 0, 5.0),
            text(2, 1, 0, 9.0),
            text(0, 2, 0, 6.0),
            text(1, 2, 0, 3.0),
            text(0, 3, 0, 1.0),
            text(1, 3, 0, 1.0),
        ];
        let pairs = pairs(measures.iter(), 1, 0);
        // Of the second prompt there is no plain text, so it says nothing.
        assert_eq!(pairs.iter().map(|it| it.prompt).collect::<Vec<_>>(), [0, 2, 3]);
        assert_eq!((pairs[0].seconds, pairs[0].plain_seconds), (4.0, 6.0));
        assert_eq!(speedup(&pairs).unwrap().value, 13.0 / 8.0);
    }

    #[test]
    fn repeats_of_few_prompts_are_told_apart() {
        let mut measures = Vec::new();
        for (prompt, repeat) in [(3, 0), (3, 1), (4, 0), (4, 1)] {
            measures.extend([text(0, prompt, repeat, 2.0), text(1, prompt, repeat, 1.0)]);
        }
        let four = pairs(measures.iter(), 1, 0);
        assert_eq!((four.len(), speedup(&four).unwrap().high), (4, Some(2.0)));
        let two = speedup(&pairs(measures[..4].iter(), 1, 0)).unwrap();
        assert_eq!(two, Interval { value: 2.0, low: None, high: None });
        assert!(two.reach().is_infinite() && !two.excludes(1.0));
        assert_eq!(speedup(&[]), None);
    }

    #[test]
    fn intervals_are_the_same_each_time() {
        let pairs = prompts(9, &mut Philox::new(1));
        let first = speedup(&pairs).unwrap();
        assert_eq!(speedup(&pairs).unwrap(), first);
        assert!(first.low.unwrap() < first.value && first.value < first.high.unwrap());
        assert!(first.excludes(1.0) && !first.excludes(first.value));
    }

    /// At nominal coverage, fewer than 354 or more than 394 of 400 have a chance below 1 in 1000.
    #[test]
    fn intervals_cover_as_often_as_they_say() {
        let mut random = Philox::new(3);
        for count in [4, 8, 20] {
            // The ratio of sums tends to two over the mean of the noise's exponential.
            let truth = 2.0 / (0.15_f64.powi(2) / 2.0).exp();
            let covers = |_| {
                let interval = speedup(&prompts(count, &mut random)).unwrap();
                !interval.excludes(truth)
            };
            let covered = (0..400).map(covers).filter(|covers| *covers).count();
            assert!((365..=395).contains(&covered), "{count} prompts: {covered} of 400");
        }
    }

    #[test]
    fn nothing_changes_between_a_run_and_itself() {
        let pairs = prompts(6, &mut Philox::new(4));
        let change = change(&pairs, &pairs, LEVEL).unwrap();
        assert_eq!(change, Interval { value: 1.0, low: Some(1.0), high: Some(1.0) });
        assert!(!change.excludes(1.0));
    }

    #[test]
    fn a_real_change_is_seen_and_noise_is_not() {
        let mut random = Philox::new(5);
        let (old, new) = (prompts(20, &mut random), prompts(20, &mut random));
        assert!(!change(&old, &new, LEVEL).unwrap().excludes(1.0));
        let faster: Vec<Pair> =
            new.iter().map(|it| Pair { seconds: it.seconds / 1.3, ..*it }).collect();
        let change = change(&old, &faster, LEVEL).unwrap();
        assert!(change.excludes(1.0) && (change.value - 1.3).abs() < 0.2, "{change:?}");
    }

    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (freedom, table) in [(1.0, 12.706), (2.0, 4.303), (3.0, 3.182), (9.0, 2.262)] {
            let quantile = student(0.025, freedom);
            assert!((quantile / table - 1.0).abs() < 0.01, "{freedom}: {quantile}");
        }
        assert!((normal(0.025) - 1.960).abs() < 1e-3 && (normal(0.005) - 2.576).abs() < 1e-3);
    }
}
