//! How sure a difference of two shares is, if both are of the same problems.
//!
//! Only problems that one solved and the other did not say anything about the difference. The interval
//! is Tango's (1998, Statistics in Medicine 17, 891–908): all differences that a score test at 5 %
//! does not reject. It holds for few problems too, stays within ±1, and is never empty: where no
//! answer changed, it still says how many might have.

use super::super::interval::{Interval, LEVEL, normal};

/// What two ways of decoding made of the same problems.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Paired {
    /// Problems.
    pub(super) problems: usize,
    /// Solved by the first alone.
    pub(super) first: usize,
    /// Solved by the second alone.
    pub(super) second: usize,
}

/// Halvings of the range of differences: beyond the precision of the numbers.
const HALVINGS: usize = 60;

impl Paired {
    /// The second's share of solved problems less the first's; nothing without a problem.
    pub(super) fn difference(&self) -> Option<Interval> {
        if self.problems == 0 {
            return None;
        }
        let value = (self.second as f64 - self.first as f64) / self.problems as f64;
        let quantile = normal((1.0 - LEVEL) / 2.0);
        let low = end(-1.0, value, |at| self.score(at) > quantile);
        let high = end(1.0, value, |at| self.score(at) < -quantile);
        Some(Interval { value, low: Some(low), high: Some(high) })
    }

    /// By how many standard deviations more problems changed for the better than if the difference
    /// were this one.
    fn score(&self, difference: f64) -> f64 {
        let (n, better, worse) = (self.problems as f64, self.second as f64, self.first as f64);
        let above = better - worse - n * difference;
        // The likeliest chance of a change for the worse, if the difference is this one.
        let linear = (2.0 * n - better + worse) * difference - better - worse;
        let constant = -worse * difference * (1.0 - difference);
        let root = (linear * linear - 8.0 * n * constant).max(0.0).sqrt();
        let chance = ((root - linear) / (4.0 * n)).max(0.0);
        let variance = n * (2.0 * chance + difference * (1.0 - difference));
        if variance > 0.0 { above / variance.sqrt() } else { above * f64::INFINITY }
    }
}

/// Where an interval ends between a difference that is rejected, or the last there is, and one that
/// is not.
fn end(mut outside: f64, mut inside: f64, is_rejected: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(outside, inside);
        if is_rejected(middle) {
            outside = middle;
        } else {
            inside = middle;
        }
    }
    inside
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(problems: usize, first: usize, second: usize) -> (f64, f64) {
        let it = Paired { problems, first, second }.difference().unwrap();
        (it.low.unwrap(), it.high.unwrap())
    }

    #[test]
    fn a_tenth_of_flips_among_all_of_gsm8k_leaves_1_7_points() {
        let (low, high) = interval(1319, 66, 66);
        assert!((high + low).abs() < 1e-9 && (high - 0.0172).abs() < 1e-4, "{low} {high}");
    }

    #[test]
    fn no_flips_leave_an_interval_all_the_same() {
        // The ends solve n d = z² (1 - d).
        let squared = 1.959_964_f64.powi(2);
        for problems in [1, 20, 1319] {
            let (low, high) = interval(problems, 0, 0);
            let expected = squared / (problems as f64 + squared);
            assert!(
                (high - expected).abs() < 1e-6 && (low + expected).abs() < 1e-6,
                "{low} {high}"
            );
        }
        assert_eq!(Paired::default().difference(), None);
    }

    #[test]
    fn the_interval_turns_with_the_pair_and_stays_within_one() {
        for (problems, first, second) in [(5, 5, 0), (7, 2, 3), (40, 1, 9), (3, 0, 3)] {
            let ((low, high), (back_low, back_high)) =
                (interval(problems, first, second), interval(problems, second, first));
            assert!((low + back_high).abs() < 1e-9 && (high + back_low).abs() < 1e-9);
            assert!(low >= -1.0 && high <= 1.0 && low < high, "{low} {high}");
        }
    }

    /// By enumerating all outcomes: a difference is covered with about the promised probability.
    #[test]
    fn intervals_cover_as_often_as_they_say() {
        for problems in [20, 60] {
            for (better, worse) in [(0.05, 0.05), (0.1, 0.02), (0.2, 0.1), (0.02, 0.3)] {
                let truth = better - worse;
                let mut covered = 0.0;
                // The chance of so many for the better, then of so many for the worse.
                let mut of_better = (1.0_f64 - better).powi(problems);
                for second in 0..=problems {
                    let share = worse / (1.0 - better);
                    let rest = problems - second;
                    let mut of_worse = (1.0_f64 - share).powi(rest);
                    for first in 0..=rest {
                        let counts =
                            [problems, first, second].map(|it| usize::try_from(it).unwrap());
                        let (low, high) = interval(counts[0], counts[1], counts[2]);
                        if (low..=high).contains(&truth) {
                            covered += of_better * of_worse;
                        }
                        of_worse *=
                            f64::from(rest - first) / f64::from(first + 1) * share / (1.0 - share);
                    }
                    of_better *= f64::from(rest) / f64::from(second + 1) * better / (1.0 - better);
                }
                assert!((0.93..=0.99).contains(&covered), "{problems} {better} {worse}: {covered}");
            }
        }
    }
}
