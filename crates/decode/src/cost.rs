//! What a pass takes, by how many tokens it runs: measured at the start, updated afterwards.
//!
//! A pass over a few tokens costs more than one over a single token, by how much depends on model,
//! number format and machine, and it decides whether drafting pays. So it is measured, never
//! assumed.

use std::time::Duration;

use forerun_verify::Token;

use crate::clock::Clock;
use crate::engine::{Branch, Engine, EngineError, Keep, Output, Rows, Slot, Step};

/// Sizes that are measured, as often as the time allows; the last is what prefill takes. Kernels work
/// on tiles of 16 and 32 rows, and one token more takes another tile.
const SIZES: [usize; 9] = [1, 2, 4, 8, 16, 17, 32, 33, 64];

/// Sizes measured whatever it takes.
const SIZES_MIN: usize = 3;

/// Sizes measured twice before the others are measured once: most drafts are short, and other work on
/// the machine comes in bursts, which would make one measurement of each look like a steep curve.
const SIZES_TWICE: usize = 4;

/// Larger passes prefill prompts, and tell nothing about drafts.
const OBSERVED_MAX: usize = 64;

/// How far one pass moves the sizes next to its own, and all of them: machines get slower and
/// faster as a whole. Other work only ever adds to what a pass takes, so one that was faster than
/// expected counts for more.
const GAIN_NEAR: f64 = 0.15;
const GAIN_NEAR_FASTER: f64 = 0.6;
const GAIN_ALL: f64 = 0.05;

/// How far a pass over one token moves all dearer sizes back towards the multiple of it that they
/// took at the start. Other work may have slowed the passes that were seen since, and at a price
/// that is too high nobody drafts and finds out.
const GAIN_BACK: f64 = 0.08;

/// As many passes over several tokens show what they take.
const SEEN_ENOUGH: u32 = 8;

/// A pass that was run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pass {
    /// Its tokens, of all sequences together.
    pub tokens: usize,
    /// Its sequences.
    pub sequences: usize,
    /// What it took.
    pub time: Duration,
}

/// Seconds of a pass by its tokens and sequences.
///
/// ```
/// use forerun_decode::CostCurve;
/// let curve = CostCurve::new([(1, 0.010), (2, 0.014), (4, 0.016)]);
/// assert_eq!(curve.seconds(1, 1), 0.010);
/// assert_eq!(curve.seconds(3, 1), 0.015);
/// assert_eq!(curve.seconds(8, 1), 0.020, "it goes on as it ended");
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct CostCurve {
    /// Tokens and seconds, ascending in both; never empty.
    points: Vec<(usize, f64)>,
    /// What each further sequence adds.
    per_sequence: f64,
    /// What each point took at the start, over what one token took.
    start: Vec<f64>,
    /// Passes over several tokens that were taken into account.
    seen: u32,
}

impl CostCurve {
    /// A curve through these points, of tokens and seconds.
    ///
    /// # Panics
    /// If there is none.
    pub fn new(points: impl IntoIterator<Item = (usize, f64)>) -> Self {
        let mut points: Vec<(usize, f64)> = points.into_iter().collect();
        assert!(!points.is_empty(), "a curve has a point");
        points.sort_by_key(|(tokens, _)| *tokens);
        let mut curve = Self { points, per_sequence: 0.0, start: Vec::new(), seen: 0 };
        curve.straighten();
        let one = curve.points[0].1;
        curve.start = curve.points.iter().map(|(_, seconds)| seconds / one).collect();
        curve
    }

    /// Measures an engine whose caches are empty, and leaves them so. Takes about as long as it
    /// may, and longer only if three passes do.
    ///
    /// # Errors
    /// If a pass fails.
    pub fn measure(
        engine: &mut dyn Engine,
        may_take: Duration,
        clock: &dyn Clock,
    ) -> Result<Self, EngineError> {
        let started = clock.now();
        let left = || may_take.saturating_sub(clock.now() - started);
        let mut output = Output::default();
        let mut best: Vec<(usize, f64)> = Vec::new();
        let room = engine.context_len();
        let rounds = std::iter::repeat_n(&SIZES[..SIZES_TWICE], 2);
        let rounds = rounds.chain(std::iter::repeat_n(&SIZES[..], 7));
        for (round, sizes) in rounds.enumerate() {
            for (index, &tokens) in sizes.iter().enumerate().filter(|(_, n)| **n <= room) {
                let needed = round == 0 && index < SIZES_MIN;
                // Twice the tokens take at most twice as long.
                let known = best.iter().rev().find(|(known, _)| *known <= tokens);
                let expected = known.map_or(0.0, |(n, seconds)| seconds * (tokens / n) as f64);
                if !needed && left().as_secs_f64() < expected {
                    continue;
                }
                let seconds = timed(engine, tokens, 1, &mut output, clock)?;
                match best.iter_mut().find(|(known, _)| *known == tokens) {
                    // Other work on the machine only ever adds to what a pass takes.
                    Some((_, known)) => *known = known.min(seconds),
                    None => best.push((tokens, seconds)),
                }
            }
        }
        let mut curve = Self::new(best);
        let sequences = engine.slot_count().min(4);
        if sequences > 1 && !left().is_zero() {
            let seconds = timed(engine, sequences, sequences, &mut output, clock)?;
            let further = (sequences - 1) as f64;
            curve.per_sequence = ((seconds - curve.seconds(sequences, 1)) / further).max(0.0);
        }
        Ok(curve)
    }

    /// What a pass takes.
    pub fn seconds(&self, tokens: usize, sequences: usize) -> f64 {
        self.between(tokens as f64) + self.per_sequence * sequences.saturating_sub(1) as f64
    }

    /// What a pass takes that has so many tokens on average.
    pub fn between(&self, tokens: f64) -> f64 {
        let (at, share) = self.place(tokens);
        match (self.points[at], self.points.get(at + 1)) {
            ((_, seconds), None) => seconds,
            ((_, low), Some((_, high))) => (low + share * (high - low)).max(0.0),
        }
    }

    /// Most tokens of a pass that takes no longer than this; one at least.
    ///
    /// ```
    /// use forerun_decode::CostCurve;
    /// let curve = CostCurve::new([(1, 0.010), (2, 0.014), (4, 0.016)]);
    /// assert_eq!(curve.tokens_within(0.015), 3);
    /// assert_eq!(curve.tokens_within(0.001), 1);
    /// ```
    pub fn tokens_within(&self, seconds: f64) -> usize {
        // A few thousand tokens are more than any pass has.
        let longer = |tokens: &usize| self.between(*tokens as f64) <= seconds;
        let (mut low, mut high) = (1usize, 4096);
        while low < high {
            let middle = (low + high).div_ceil(2);
            if longer(&middle) { low = middle } else { high = middle - 1 }
        }
        low
    }

    /// Takes a pass into account. Returns by how much it moved what such a pass is expected to
    /// take.
    pub fn observe(&mut self, pass: &Pass) -> f64 {
        let expected = self.seconds(pass.tokens, pass.sequences);
        if pass.tokens == 0 || pass.tokens > OBSERVED_MAX || expected <= 0.0 {
            return 1.0;
        }
        // A pass that was delayed tells little about the next.
        let off = (pass.time.as_secs_f64() / expected).clamp(0.5, 2.0);
        self.seen += u32::from(pass.tokens > pass.sequences && self.seen < SEEN_ENOUGH);
        let (at, share) = self.place(pass.tokens as f64);
        let share = share.clamp(0.0, 1.0);
        let gain = if off < 1.0 { GAIN_NEAR_FASTER } else { GAIN_NEAR };
        for (index, (_, seconds)) in self.points.iter_mut().enumerate() {
            let near = match index {
                _ if index == at => 1.0 - share,
                _ if index == at + 1 => share,
                _ => 0.0,
            };
            *seconds *= off.powf(GAIN_ALL + gain * near);
        }
        if pass.tokens == pass.sequences {
            let one = self.points[0].1;
            for ((_, seconds), start) in self.points.iter_mut().zip(&self.start) {
                *seconds *= (start * one / *seconds).min(1.0).powf(GAIN_BACK);
            }
        }
        self.straighten();
        self.seconds(pass.tokens, pass.sequences) / expected
    }

    /// The same curve if passes over several tokens may take less than was measured at the start: if
    /// that was beside other work, they would else never be run again.
    pub(crate) fn doubted(&self) -> Self {
        let mut doubted = self.clone();
        if self.seen < SEEN_ENOUGH {
            let first = self.points[0].1;
            doubted
                .points
                .iter_mut()
                .for_each(|(_, seconds)| *seconds = f64::midpoint(first, *seconds));
        }
        doubted
    }

    /// Moves a curve that was not seen lately back towards this for one token, if it costs more.
    pub(crate) fn recover(&mut self, one: f64) {
        self.scale((one / self.points[0].1).min(1.0).powf(GAIN_BACK));
    }

    /// Makes all sizes cost more or less.
    pub(crate) fn scale(&mut self, factor: f64) {
        self.points.iter_mut().for_each(|(_, seconds)| *seconds *= factor);
    }

    /// The measured points: tokens and seconds.
    pub fn points(&self) -> &[(usize, f64)] {
        &self.points
    }

    /// The point before, and how far towards the next; beyond the last, on the last stretch.
    fn place(&self, tokens: f64) -> (usize, f64) {
        let last = self.points.len().saturating_sub(2);
        let after = self.points.partition_point(|(known, _)| *known as f64 <= tokens);
        let at = after.saturating_sub(1).min(last);
        match (self.points[at], self.points.get(at + 1)) {
            (_, None) => (at, 0.0),
            ((low, _), Some((high, _))) => (at, (tokens - low as f64) / (high - low) as f64),
        }
    }

    /// More tokens never take less, nor more than as many passes over fewer.
    fn straighten(&mut self) {
        for index in 1..self.points.len() {
            let (fewer, rest) = self.points.split_at_mut(index);
            let (tokens, seconds) = &mut rest[0];
            let several = fewer.iter().map(|(few, of)| tokens.div_ceil(*few) as f64 * of);
            let most = several.fold(f64::INFINITY, f64::min);
            *seconds = seconds.min(most).max(fewer[index - 1].1);
        }
    }
}

/// Runs a pass of so many tokens, spread over sequences, with a row for each, as scoring does.
fn timed(
    engine: &mut dyn Engine,
    tokens: usize,
    sequences: usize,
    output: &mut Output,
    clock: &dyn Clock,
) -> Result<f64, EngineError> {
    let each = tokens / sequences;
    let token = |n: usize| Token(u32::try_from(n * 7919 % engine.vocab_len()).unwrap_or(0));
    let trunk = [token(1)];
    let tree: Vec<Branch> =
        (1..each).map(|n| Branch { parent: n - 1, token: token(n + 1) }).collect();
    let slots = || (0..u32::try_from(sequences).unwrap_or(1)).map(Slot);
    let keep = Keep::Trunk(0);
    let steps: Vec<Step<'_>> = slots()
        .map(|slot| Step { slot, keep, trunk: &trunk, tree: &tree, rows: Rows::All })
        .collect();
    let started = clock.now();
    let ran = engine.extend(&steps, output);
    let seconds = (clock.now() - started).as_secs_f64();
    let forget: Vec<Step<'_>> =
        slots().map(|slot| Step { slot, keep, trunk: &[], tree: &[], rows: Rows::None }).collect();
    engine.extend(&forget, output)?;
    ran.map(|()| seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve() -> CostCurve {
        CostCurve::new([(1, 10.0), (2, 15.0), (4, 20.0), (8, 40.0)])
    }

    fn pass(tokens: usize, seconds: f64) -> Pass {
        Pass { tokens, sequences: 1, time: Duration::from_secs_f64(seconds) }
    }

    #[test]
    fn it_goes_straight_between_points_and_on_after_the_last() {
        let curve = curve();
        assert_eq!(curve.seconds(3, 1), 17.5);
        assert_eq!(curve.seconds(6, 1), 30.0);
        assert_eq!(curve.seconds(16, 1), 80.0);
        assert_eq!(curve.between(1.5), 12.5);
        assert_eq!(CostCurve::new([(1, 3.0)]).seconds(9, 1), 3.0);
    }

    #[test]
    fn more_tokens_never_take_less() {
        let noisy = CostCurve::new([(1, 10.0), (2, 8.0), (4, 20.0)]);
        assert_eq!(noisy.seconds(2, 1), 10.0);
    }

    #[test]
    fn it_follows_what_passes_take() {
        let mut curve = curve();
        for _ in 0..200 {
            curve.observe(&pass(4, 30.0));
        }
        assert!((curve.seconds(4, 1) - 30.0).abs() < 0.1, "{curve:?}");
        // The machine is slower as a whole, as far as anybody knows.
        assert!(curve.seconds(1, 1) > 10.5 && curve.seconds(8, 1) > 42.0, "{curve:?}");
    }

    #[test]
    fn one_pass_that_was_delayed_changes_little() {
        let mut curve = curve();
        curve.observe(&pass(2, 1000.0));
        assert!(curve.seconds(2, 1) < 15.0 * 1.15, "{curve:?}");
        assert!(curve.seconds(1, 1) < 10.0 * 1.05, "{curve:?}");
    }

    #[test]
    fn prefill_tells_nothing_about_drafts() {
        let mut observed = curve();
        observed.observe(&pass(300, 1.0));
        observed.observe(&pass(0, 1.0));
        assert_eq!(observed, curve());
    }
}

#[cfg(all(test, feature = "toy"))]
mod measuring_tests {
    #![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

    use super::*;
    use crate::toy::{SimulatedClock, ToyEngine, ToyModel};

    /// Passes take five milliseconds, a tenth more for each further token, and four times as long in a burst.
    struct Busy<'a> {
        inner: ToyEngine,
        clock: &'a SimulatedClock,
        passes: usize,
    }

    impl Engine for Busy<'_> {
        fn vocab_len(&self) -> usize {
            self.inner.vocab_len()
        }
        fn context_len(&self) -> usize {
            self.inner.context_len()
        }
        fn slot_count(&self) -> usize {
            self.inner.slot_count()
        }
        fn paths_max(&self) -> usize {
            self.inner.paths_max()
        }
        fn can_cut(&self) -> bool {
            true
        }
        fn copy(&mut self, from: Slot, to: Slot, len: usize) -> bool {
            self.inner.copy(from, to, len)
        }
        fn extend(&mut self, steps: &[Step<'_>], output: &mut Output) -> Result<(), EngineError> {
            let tokens: usize = steps.iter().map(|it| it.trunk.len() + it.tree.len()).sum();
            if tokens > 0 {
                let slow = if (1..4).contains(&self.passes) { 4.0 } else { 1.0 };
                let seconds = slow * (4.5 + 0.5 * tokens as f64) / 1e3;
                self.clock.sleep(Duration::from_secs_f64(seconds));
                self.passes += 1;
            }
            self.inner.extend(steps, output)
        }
    }

    #[test]
    fn a_burst_of_other_work_does_not_make_the_curve_steep() {
        let model = ToyModel { vocab_len: 8, order: 1, seed: 1, spread: 1.0 };
        let clock = SimulatedClock::default();
        let mut engine = Busy { inner: ToyEngine::new(model, 128), clock: &clock, passes: 0 };
        // Enough for each size once, or for short ones twice.
        let curve = CostCurve::measure(&mut engine, Duration::from_millis(200), &clock).unwrap();
        let ratio = curve.seconds(4, 1) / curve.seconds(1, 1);
        assert!(ratio < 2.0, "four tokens take {ratio} times as long: {curve:?}");
    }
}
