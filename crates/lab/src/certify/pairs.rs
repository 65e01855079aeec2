//! Two samples of outputs, of one law or of two? A test that may be looked at after every pair.
//!
//! A text of one kind and one of the other are shown without saying which is which; the test bets
//! on it by what it has learned from earlier pairs. If both kinds follow one law, there is nothing
//! to learn and no way of betting gains on average. It needs nothing but the outputs, so that it works
//! for anyone's server.

use std::collections::HashMap;

/// How firmly what both kinds have in common speaks against what one of them was seen to do.
const FIRMNESS: [f64; 3] = [3.0, 12.0, 50.0];

/// Nobody is surer than this.
const SUREST: f64 = 0.95;

/// A text as symbols, and which prompt it answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sample {
    /// The prompt, by number.
    pub(super) prompt: usize,
    /// The text.
    pub(super) symbols: Vec<u64>,
}

/// The money, and what was learned.
#[derive(Debug, Clone, Default)]
pub(super) struct PairTest {
    /// How often each beginning was seen, in either kind; by a number for the beginning.
    seen: HashMap<u64, [f64; 2]>,
    /// Logarithms, by firmness.
    money: [f64; FIRMNESS.len()],
    pairs: u64,
}

impl PairTest {
    /// Bets on a pair, then learns from it.
    pub(super) fn see(&mut self, one: &Sample, other: &Sample) {
        for (index, firmness) in FIRMNESS.into_iter().enumerate() {
            // How much more the first looks like the first kind than the other does.
            let lead = self.score(one, firmness) - self.score(other, firmness);
            let right = (1.0 / (1.0 + (-lead).exp())).clamp(1.0 - SUREST, SUREST);
            self.money[index] += (2.0 * right).ln();
        }
        self.learn(one, 0);
        self.learn(other, 1);
        self.pairs += 1;
    }

    /// Pairs seen.
    pub(super) fn pairs(&self) -> u64 {
        self.pairs
    }

    /// The logarithm of the money, all bets taken together.
    pub(super) fn evidence(&self) -> f64 {
        let most = self.money.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = self.money.iter().map(|money| (money - most).exp()).sum();
        most + (sum / FIRMNESS.len() as f64).ln()
    }

    /// How much likelier the first kind is to say this than the second, as a logarithm.
    fn score(&self, sample: &Sample, firmness: f64) -> f64 {
        let mut before = self.counts(start(sample));
        let mut score = 0.0;
        for beginning in beginnings(sample) {
            let counts = self.counts(beginning);
            let both = (counts[0] + counts[1] + 0.5) / (before[0] + before[1] + 1.0);
            let chance = |kind: usize| (counts[kind] + firmness * both) / (before[kind] + firmness);
            score += (chance(0) / chance(1)).ln();
            before = counts;
        }
        score
    }

    fn learn(&mut self, sample: &Sample, kind: usize) {
        for beginning in std::iter::once(start(sample)).chain(beginnings(sample)) {
            self.seen.entry(beginning).or_default()[kind] += 1.0;
        }
    }

    fn counts(&self, beginning: u64) -> [f64; 2] {
        self.seen.get(&beginning).copied().unwrap_or_default()
    }
}

/// The smallest difference in how often the two kinds show something that about half of the outputs
/// show, as a share of all outputs, which this many pairs would be expected to tell apart. The best bet
/// on it gains its square with each pair.
pub(super) fn smallest_difference(pairs: u64, false_alarm: f64) -> Option<f64> {
    let wanted = (1.0 / false_alarm).ln() + (FIRMNESS.len() as f64).ln();
    let difference = (wanted / (pairs as f64).max(1.0)).sqrt();
    (difference < 1.0).then_some(difference)
}

/// A number for a prompt.
fn start(sample: &Sample) -> u64 {
    mixed(0x9e37_79b9_7f4a_7c15, sample.prompt as u64)
}

/// Numbers for all beginnings of a text, the shortest first.
fn beginnings(sample: &Sample) -> impl Iterator<Item = u64> {
    sample.symbols.iter().scan(start(sample), |hash, symbol| {
        *hash = mixed(*hash, *symbol);
        Some(*hash)
    })
}

/// A hash of a hash and a symbol (splitmix64's finish).
fn mixed(hash: u64, symbol: u64) -> u64 {
    let mut x = hash ^ symbol.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use forerun_verify::{Dist, Philox, Random};

    use super::*;

    fn text(law: &Dist, chance: &mut Random<Philox>) -> Sample {
        let symbols = (0..4).map(|_| u64::from(law.draw(chance).0)).collect();
        Sample { prompt: 0, symbols }
    }

    fn evidence(one: &[f32], other: &[f32], pairs: usize, seed: u64) -> f64 {
        let laws = [one, other].map(|weights| Dist::dense(weights.to_vec()).unwrap());
        let mut chance = Random(Philox::new(seed));
        let mut test = PairTest::default();
        let mut most = 0.0_f64;
        for _ in 0..pairs {
            let (one, other) = (text(&laws[0], &mut chance), text(&laws[1], &mut chance));
            test.see(&one, &other);
            most = most.max(test.evidence());
        }
        most
    }

    #[test]
    fn samples_of_one_law_are_hardly_ever_told_apart() {
        let law = [0.5, 0.2, 0.1, 0.1, 0.05, 0.05];
        let accused = (0..200).filter(|seed| evidence(&law, &law, 300, *seed) > 1000.0_f64.ln());
        assert_eq!(accused.count(), 0, "one in a thousand is");
    }

    #[test]
    fn samples_of_two_laws_are_told_apart() {
        let (one, other) = ([0.5, 0.2, 0.1, 0.1, 0.05, 0.05], [0.4, 0.3, 0.1, 0.1, 0.05, 0.05]);
        let found = (0..20).filter(|seed| evidence(&one, &other, 1500, *seed) > 1000.0_f64.ln());
        let found = found.count();
        assert!(found >= 18, "{found} of 20");
    }

    #[test]
    fn prompts_are_not_mixed() {
        let sample = |prompt| Sample { prompt, symbols: vec![1, 2] };
        assert_ne!(
            beginnings(&sample(0)).collect::<Vec<_>>(),
            beginnings(&sample(1)).collect::<Vec<_>>()
        );
    }
}
