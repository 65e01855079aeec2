//! Truncations: which tokens of a row stay in play, by their distribution at temperature 1.
//!
//! Each looks at the distribution over the tokens the one before has left. The whole vocabulary is
//! never sorted: a truncation by mass adds up rings of logits ever further from the first in rank,
//! and ranks within the ring where the limit is reached.

use std::borrow::Cow;
use std::cmp::Ordering;

use forerun_verify::{Dist, RowError, Token};

use super::scan::{self, Entry};

/// How far a sum of probabilities may be from a limit and count as equal to it: what a softmax in
/// `f32` and a limit rounded to `f32` leave in doubt.
const DOUBT: f64 = 1e-6;

/// The outer edges of the rings, in logits. The last holds the rest of the row.
const RINGS: [f64; 5] = [4.0, 8.0, 12.0, 16.0, f64::INFINITY];

/// Most entries that are sorted rather than halved.
const SORTED_MAX: usize = 32;

/// The tokens of a row that are in play, in order of id.
pub(super) struct Kept<'a> {
    vocab_len: usize,
    logits: Cow<'a, [f32]>,
    /// Whose logits they are; `None` while it is all.
    tokens: Option<Vec<Token>>,
}

impl<'a> Kept<'a> {
    pub(super) fn all(row: &'a [f32]) -> Self {
        Self { vocab_len: row.len(), logits: Cow::Borrowed(row), tokens: None }
    }

    /// Keeps the `count` likeliest.
    pub(super) fn top_k(&mut self, count: usize) -> Result<(), RowError> {
        if (1..self.logits.len()).contains(&count) {
            self.keep(&scan::largest(&self.logits, count)?)?;
        }
        Ok(())
    }

    /// Keeps the fewest likeliest whose probabilities add up to `mass`.
    pub(super) fn top_p(&mut self, mass: f32) -> Result<(), RowError> {
        if mass < 1.0 {
            let dist = Dist::softmax(&self.logits, 1.0)?;
            let highest = f64::from(scan::highest(&self.logits)?.logit);
            self.keep(&nearest(&self.logits, &dist, highest, f64::from(mass) - DOUBT))?;
        }
        Ok(())
    }

    /// Keeps the fewest whose probabilities add up to more than `mass`, those first whose surprise
    /// is nearest to the entropy.
    ///
    /// Surprise is a constant less the logit, and entropy is the mean of surprise, so the constant
    /// cancels: what counts is how far a logit is from the mean logit.
    pub(super) fn typical(&mut self, mass: f32) -> Result<(), RowError> {
        if mass < 1.0 {
            let dist = Dist::softmax(&self.logits, 1.0)?;
            let parts = dist.support().map(|(at, prob)| prob * f64::from(self.logits[at.index()]));
            self.keep(&nearest(&self.logits, &dist, parts.sum(), f64::from(mass) + DOUBT))?;
        }
        Ok(())
    }

    /// Keeps those at least `share` times as probable as the likeliest.
    pub(super) fn min_p(&mut self, share: f32) -> Result<(), RowError> {
        if share > 0.0 {
            #[expect(clippy::cast_possible_truncation, reason = "compared with logits, all f32")]
            let bar = scan::highest(&self.logits)?.logit + ln(f64::from(share)) as f32;
            let mut found = Vec::new();
            scan::collect(&self.logits, bar, |_| true, &mut found);
            self.keep(&found)?;
        }
        Ok(())
    }

    /// The distribution over the tokens in play.
    pub(super) fn dist(self, temperature: f32) -> Result<Dist, RowError> {
        match self.tokens {
            None => Dist::softmax(&self.logits, temperature),
            Some(tokens) => {
                let entries = tokens.into_iter().zip(self.logits.iter().copied());
                Dist::softmax_of(self.vocab_len, entries, temperature)
            }
        }
    }

    /// The likeliest of the tokens in play.
    pub(super) fn likeliest(&self) -> Result<Token, RowError> {
        Ok(self.token(scan::highest(&self.logits)?))
    }

    /// The logits of the tokens in play.
    pub(super) fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// The token at a place among them.
    pub(super) fn token(&self, entry: Entry) -> Token {
        match &self.tokens {
            None => Token(entry.place),
            Some(tokens) => tokens[entry.place as usize],
        }
    }

    /// Keeps these alone, which are in order of place.
    pub(super) fn keep(&mut self, entries: &[Entry]) -> Result<(), RowError> {
        if entries.is_empty() {
            return Err(RowError::NoMass);
        }
        let tokens = entries.iter().map(|entry| self.token(*entry)).collect();
        self.logits = entries.iter().map(|entry| entry.logit).collect();
        self.tokens = Some(tokens);
        Ok(())
    }
}

/// The fewest logits nearest to `centre` whose probabilities reach `goal`, in order of place; all
/// that are not masked where they do not.
fn nearest(logits: &[f32], dist: &Dist, centre: f64, goal: f64) -> Vec<Entry> {
    let distance = |logit: f32| (f64::from(logit) - centre).abs();
    let share = |entry: &Entry| exact(dist.prob(Token(entry.place)));
    let order = |one: &Entry, two: &Entry| {
        distance(one.logit).total_cmp(&distance(two.logit)).then_with(|| one.order(two))
    };
    let mut found = Vec::new();
    let (mut sum, mut inner) = (0.0, -1.0);
    for outer in RINGS {
        #[expect(clippy::cast_possible_truncation, reason = "rounding is provided for")]
        let bar = ((centre - outer) as f32).next_down();
        let within = |logit| (distance(logit) > inner) & (distance(logit) <= outer);
        let before = found.len();
        scan::collect(logits, bar, within, &mut found);
        let ring = &mut found[before..];
        let mass: f64 = ring.iter().map(share).sum();
        if sum + mass >= goal {
            let count = reach(ring, goal - sum, share, order);
            found.truncate(before + count);
            break;
        }
        (sum, inner) = (sum + mass, outer);
    }
    found.sort_unstable_by_key(|entry| entry.place);
    found
}

/// How many of the first entries by `order` it takes to reach `goal`; they are moved to the front.
///
/// Halves what is in doubt instead of sorting it. Shares add up exactly, so it does not matter in
/// which order the halves are left.
fn reach(
    entries: &mut [Entry],
    goal: f64,
    share: impl Fn(&Entry) -> f64,
    order: impl Fn(&Entry, &Entry) -> Ordering,
) -> usize {
    let (mut low, mut high) = (0, entries.len());
    let mut sum = 0.0;
    while high - low > SORTED_MAX {
        let middle = low + (high - low) / 2;
        entries[low..high].select_nth_unstable_by(middle - low, &order);
        let part: f64 = entries[low..middle].iter().map(&share).sum();
        if sum + part >= goal {
            high = middle;
        } else {
            (low, sum) = (middle, sum + part);
        }
    }
    entries[low..high].sort_unstable_by(order);
    for (index, entry) in (low..high).zip(&entries[low..high]) {
        sum += share(entry);
        if sum >= goal {
            return index + 1;
        }
    }
    high
}

/// Rounds a probability to a multiple of `2^-48`, so that sums up to 16 are exact in any order.
fn exact(prob: f64) -> f64 {
    const ROUNDER: f64 = 16.0;
    prob + ROUNDER - ROUNDER
}

/// The natural logarithm of a number above zero and no subnormal.
///
/// The standard library's differs between platforms. This one is the exponent's share plus twice
/// the series of `atanh((m - 1) / (m + 1))`, `m` being the mantissa.
fn ln(x: f64) -> f64 {
    const MANTISSA_BITS: u32 = 52;
    const ONE: u64 = 1023 << MANTISSA_BITS;
    /// Where the mantissa is halved, so that it is as often below one as above: `sqrt(2)`.
    const TURN: f64 = std::f64::consts::SQRT_2;
    let bits = x.to_bits();
    let mantissa = f64::from_bits(bits & ((1 << MANTISSA_BITS) - 1) | ONE);
    let halve = mantissa > TURN;
    let mantissa = if halve { mantissa / 2.0 } else { mantissa };
    let exponent = (bits >> MANTISSA_BITS) as f64 - 1023.0 + f64::from(u8::from(halve));
    let ratio = (mantissa - 1.0) / (mantissa + 1.0);
    let square = ratio * ratio;
    let series = (0..12u32).rev().fold(0.0, |sum, k| sum * square + 1.0 / f64::from(2 * k + 1));
    exponent * std::f64::consts::LN_2 + 2.0 * ratio * series
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ln_is_the_logarithm() {
        let mut x = 1.0_f32;
        while x > f32::MIN_POSITIVE {
            let (ours, truth) = (ln(f64::from(x)), f64::from(x).ln());
            assert!((ours - truth).abs() <= 1e-15 * truth.abs(), "ln({x}) is {ours}, not {truth}");
            x *= 0.997;
        }
        assert_eq!(ln(1.0), 0.0);
        assert!((ln(f64::from(f32::from_bits(1))) + 103.278_929_903_431_85).abs() < 1e-13);
    }
}
