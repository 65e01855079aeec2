//! The chance that nobody came before: integrals of products over a uniform arrival time.

use std::sync::LazyLock;

use crate::rule::CANDIDATES_MAX;

/// A group of candidates that behave alike: how many, the chance that one of them is still in the
/// race, and the chance that it passes its bar.
#[derive(Debug, Clone, Copy)]
pub(super) struct Racers {
    pub(super) count: usize,
    pub(super) still: f64,
    pub(super) passes: f64,
}

/// For a candidate of each group, the integral over its arrival time `t` in `[0, 1]` of the product
/// over all *other* candidates of `still - t * passes`: the chance that none of them passed before
/// it.
///
/// A Gauss-Legendre rule of half as many nodes as candidates is exact for it, and has positive
/// terms alone.
pub(super) fn first_chances(groups: &[Racers], chances: &mut Vec<f64>) {
    let candidates: usize = groups.iter().map(|group| group.count).sum();
    chances.clear();
    chances.resize(groups.len(), 0.0);
    for &(time, weight) in nodes(candidates) {
        for (one, chance) in chances.iter_mut().enumerate() {
            let mut product = weight;
            for (other, group) in groups.iter().enumerate() {
                let factor = (group.still - time * group.passes).max(0.0);
                for _ in 0..group.count - usize::from(one == other) {
                    product *= factor;
                }
            }
            *chance += product;
        }
    }
}

/// Nodes in `[0, 1]` and weights of the rule that is exact for the product of `candidates - 1`
/// factors.
fn nodes(candidates: usize) -> &'static [(f64, f64)] {
    static RULES: LazyLock<Vec<Vec<(f64, f64)>>> = LazyLock::new(|| {
        let mut roots = vec![];
        (1..=CANDIDATES_MAX / 2)
            .map(|degree| {
                roots = legendre_roots(degree, &roots);
                roots.iter().map(|root| node(degree, *root)).collect()
            })
            .collect()
    });
    assert!(candidates <= CANDIDATES_MAX, "refused on admission");
    &RULES[candidates.div_ceil(2).max(1) - 1]
}

/// The roots of a Legendre polynomial, one between each two neighbours among the ends of the
/// interval and the roots of the polynomial before it. Bisection, so that they are the same on
/// every platform.
fn legendre_roots(degree: usize, before: &[f64]) -> Vec<f64> {
    let bounds: Vec<f64> = [-1.0].into_iter().chain(before.iter().copied()).chain([1.0]).collect();
    let root = |bounds: &[f64]| {
        let (mut low, mut high) = (bounds[0], bounds[1]);
        let rising = legendre(degree, high).0 > legendre(degree, low).0;
        for _ in 0..64 {
            let middle = 0.5 * (low + high);
            if (legendre(degree, middle).0 > 0.0) == rising {
                high = middle;
            } else {
                low = middle;
            }
        }
        0.5 * (low + high)
    };
    bounds.windows(2).map(root).collect()
}

/// The Legendre polynomials of a degree and of the one below.
fn legendre(degree: usize, x: f64) -> (f64, f64) {
    let (mut here, mut before) = (x, 1.0);
    for n in 1..degree {
        let n = n as f64;
        (here, before) = (((2.0 * n + 1.0) * x * here - n * before) / (n + 1.0), here);
    }
    (here, before)
}

/// A root on `[-1, 1]` as node and weight on `[0, 1]`.
fn node(degree: usize, root: f64) -> (f64, f64) {
    let (here, before) = legendre(degree, root);
    let slope = degree as f64 * (before - root * here) / (1.0 - root * root);
    (0.5 * (root + 1.0), 1.0 / ((1.0 - root * root) * slope * slope))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_candidates_have_the_closed_form() {
        let groups = [
            Racers { count: 1, still: 1.0, passes: 0.3 },
            Racers { count: 1, still: 0.9, passes: 0.8 },
        ];
        let mut chances = Vec::new();
        first_chances(&groups, &mut chances);
        assert!((chances[0] - (0.9 - 0.4)).abs() < 1e-15);
        assert!((chances[1] - (1.0 - 0.15)).abs() < 1e-15);
    }

    /// `n` equal candidates: the integral of `(1 - a t)^(n-1)` is `(1 - (1 - a)^n) / (n a)`.
    #[test]
    fn equal_candidates_have_the_closed_form_up_to_the_limit() {
        for candidates in 1..=CANDIDATES_MAX {
            for passes in [0.05, 0.5, 1.0_f64] {
                let mut chances = Vec::new();
                first_chances(&[Racers { count: candidates, still: 1.0, passes }], &mut chances);
                let none = (0..candidates).fold(1.0, |none, _| none * (1.0 - passes));
                let truth = (1.0 - none) / (candidates as f64 * passes);
                assert!((chances[0] - truth).abs() < 1e-13, "{candidates} candidates at {passes}");
            }
        }
    }
}
