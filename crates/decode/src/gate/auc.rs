//! How well predictions tell hits from misses.

const BUCKETS: usize = 100;

/// Hits and misses by what was predicted, in buckets: enough for the area under the curve, and of a
/// fixed size however many there were.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Auc {
    hits: [f64; BUCKETS],
    misses: [f64; BUCKETS],
}

impl Default for Auc {
    fn default() -> Self {
        Self { hits: [0.0; BUCKETS], misses: [0.0; BUCKETS] }
    }
}

impl Auc {
    /// Adds a prediction that came true with the chance `hit`.
    pub(super) fn add(&mut self, predicted: f64, hit: f64, weight: f64) {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
        let bucket = (predicted.clamp(0.0, 1.0) * BUCKETS as f64) as usize;
        let bucket = bucket.min(BUCKETS - 1);
        self.hits[bucket] += weight * hit;
        self.misses[bucket] += weight * (1.0 - hit);
    }

    /// The chance that a hit was predicted to be likelier than a miss, equal ones counting half; none
    /// while there is no hit or no miss.
    pub(super) fn area(&self) -> Option<f64> {
        let (hits, misses) = (self.hits.iter().sum::<f64>(), self.misses.iter().sum::<f64>());
        let (mut below, mut right) = (0.0, 0.0);
        for (hit, miss) in self.hits.iter().zip(&self.misses) {
            right += hit * (below + miss / 2.0);
            below += miss;
        }
        (hits > 0.0 && misses > 0.0).then(|| right / (hits * misses))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area(predictions: &[(f64, f64)]) -> Option<f64> {
        let mut auc = Auc::default();
        predictions.iter().for_each(|(predicted, hit)| auc.add(*predicted, *hit, 1.0));
        auc.area()
    }

    #[test]
    fn the_area_is_the_share_of_pairs_in_the_right_order() {
        assert_eq!(area(&[(0.9, 1.0), (0.1, 0.0)]), Some(1.0));
        assert_eq!(area(&[(0.1, 1.0), (0.9, 0.0)]), Some(0.0));
        assert_eq!(area(&[(0.5, 1.0), (0.5, 0.0)]), Some(0.5));
        // Of four pairs, three are in order.
        assert_eq!(area(&[(0.9, 1.0), (0.3, 1.0), (0.6, 0.0), (0.1, 0.0)]), Some(0.75));
        assert_eq!(area(&[(0.9, 1.0)]), None);
        assert_eq!(area(&[]), None);
    }

    #[test]
    fn a_hit_by_chance_counts_on_both_sides() {
        // Each prediction is right as often as it says: hits and misses are drawn from 2x and 2(1-x),
        // whose area is 5/6.
        let even: Vec<(f64, f64)> =
            (0..1000).map(|at| (f64::from(at) + 0.5) / 1000.0).map(|it| (it, it)).collect();
        let area = area(&even).unwrap();
        assert!((area - 5.0 / 6.0).abs() < 1e-3, "{area}");
    }
}
