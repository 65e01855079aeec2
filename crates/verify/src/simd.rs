//! Loops over whole rows, compiled once per instruction set and chosen at run time.
//!
//! Every sum keeps [`LANES`] running totals and adds them up in one fixed order, and no loop
//! contracts a product and a sum, so a result is the same to the last bit on every machine: the
//! instruction set changes how fast it arrives, never what it is.

use fearless_simd::prelude::*;
use fearless_simd::{Level, Simd, dispatch, f32x16, f64x8};
use std::sync::LazyLock;

/// Independent running totals of a sum; a multiple of every vector width in use.
pub(crate) const LANES: usize = 16;

/// Tokens summed together: the grain at which a draw finds its place in a long row.
pub(crate) const CHUNK: usize = 512;

static LEVEL: LazyLock<Level> = LazyLock::new(Level::new);

/// The best instruction set of this machine.
pub(crate) fn level() -> Level {
    *LEVEL
}

/// Adds up the lanes in a fixed order.
#[inline(always)]
pub(crate) fn fold(lanes: [f64; LANES]) -> f64 {
    let mut width = LANES;
    let mut lanes = lanes;
    while width > 1 {
        width /= 2;
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
    }
    lanes[0]
}

/// Adds up the lanes of two vectors and of a tail that follows them.
#[inline(always)]
pub(crate) fn fold_halves<S: Simd>(halves: [f64x8<S>; 2], tail: [f64; LANES]) -> f64 {
    let mut lanes = [0.0; LANES];
    halves[0].store_slice(&mut lanes[..LANES / 2]);
    halves[1].store_slice(&mut lanes[LANES / 2..]);
    for lane in 0..LANES {
        lanes[lane] += tail[lane];
    }
    fold(lanes)
}

/// Sums of `relu(scale * target - take * draft)` over each chunk of two dense rows.
pub(crate) fn residual_sums(target: &[f32], draft: &[f32], (scale, take): (f64, f64)) -> Vec<f64> {
    debug_assert_eq!(target.len(), draft.len(), "rows of one vocabulary");
    dispatch!(level(), simd => residual_sums_on(simd, target, draft, (scale, take)))
}

#[inline(always)]
fn residual_sums_on<S: Simd>(
    simd: S,
    target: &[f32],
    draft: &[f32],
    (scale, take): (f64, f64),
) -> Vec<f64> {
    // A plain loop: a closure handed to an iterator may be compiled for the baseline.
    let mut sums = Vec::with_capacity(target.len().div_ceil(CHUNK));
    for (target, draft) in target.chunks(CHUNK).zip(draft.chunks(CHUNK)) {
        sums.push(residual_sum(simd, target, draft, (scale, take)));
    }
    sums
}

/// Sum of `relu(scale * target - take * draft)` over one chunk of two dense rows.
#[inline(always)]
pub(crate) fn residual_sum<S: Simd>(
    simd: S,
    target: &[f32],
    draft: &[f32],
    (scale, take): (f64, f64),
) -> f64 {
    let (scales, takes) = (f64x8::splat(simd, scale), f64x8::splat(simd, take));
    let zero = f64x8::splat(simd, 0.0);
    let (targets, target_tail) = target.as_chunks::<LANES>();
    let (drafts, draft_tail) = draft.as_chunks::<LANES>();
    let mut halves = [zero; 2];
    for (target, draft) in targets.iter().zip(drafts) {
        let target = simd.widen_f32x16(f32x16::from_slice(simd, target));
        let draft = simd.widen_f32x16(f32x16::from_slice(simd, draft));
        halves[0] += (target.0 * scales - draft.0 * takes).max(zero);
        halves[1] += (target.1 * scales - draft.1 * takes).max(zero);
    }
    let mut tail = [0.0; LANES];
    for (sum, (&target, &draft)) in tail.iter_mut().zip(target_tail.iter().zip(draft_tail)) {
        *sum = (f64::from(target) * scale - f64::from(draft) * take).max(0.0);
    }
    fold_halves(halves, tail)
}

/// Sums of `value(target, draft)` over each chunk of two dense rows of equal length.
pub(crate) fn pair_sums(
    target: &[f32],
    draft: &[f32],
    value: impl Fn(f32, f32) -> f64 + Copy,
) -> Vec<f64> {
    debug_assert_eq!(target.len(), draft.len(), "rows of one vocabulary");
    dispatch!(level(), simd => pair_sums_on(simd, target, draft, value))
}

#[inline(always)]
fn pair_sums_on<S: Simd>(
    _: S,
    target: &[f32],
    draft: &[f32],
    value: impl Fn(f32, f32) -> f64 + Copy,
) -> Vec<f64> {
    let mut sums = Vec::with_capacity(target.len().div_ceil(CHUNK));
    for (target, draft) in target.chunks(CHUNK).zip(draft.chunks(CHUNK)) {
        // Values first, then their sum: two loops of one kind of work each, which vectorise well.
        let mut values = [0.0; CHUNK];
        for ((out, &target), &draft) in values.iter_mut().zip(target).zip(draft) {
            *out = value(target, draft);
        }
        let mut lanes = [0.0; LANES];
        for group in values[..target.len().next_multiple_of(LANES)].as_chunks::<LANES>().0 {
            for lane in 0..LANES {
                lanes[lane] += group[lane];
            }
        }
        sums.push(fold(lanes));
    }
    sums
}

/// Sums over each chunk of a row of weights, or `None` where a weight is no finite number from
/// zero up.
pub(crate) fn checked_sums(weights: &[f32]) -> Option<Vec<f64>> {
    dispatch!(level(), simd => checked_sums_on(simd, weights))
}

#[inline(always)]
fn checked_sums_on<S: Simd>(simd: S, weights: &[f32]) -> Option<Vec<f64>> {
    let mut sums = Vec::with_capacity(weights.len().div_ceil(CHUNK));
    let mut sound = true;
    for chunk in weights.chunks(CHUNK) {
        sums.push(row_sum(simd, chunk));
        for &weight in chunk {
            // NaN is in no range.
            sound &= (0.0..=f32::MAX).contains(&weight);
        }
    }
    sound.then_some(sums)
}

/// Sum of one chunk of a row.
#[inline(always)]
pub(crate) fn row_sum<S: Simd>(simd: S, weights: &[f32]) -> f64 {
    let (groups, tail) = weights.as_chunks::<LANES>();
    let mut halves = [f64x8::splat(simd, 0.0); 2];
    for group in groups {
        let wide = simd.widen_f32x16(f32x16::from_slice(simd, group));
        halves[0] += wide.0;
        halves[1] += wide.1;
    }
    let mut tails = [0.0; LANES];
    for (sum, &weight) in tails.iter_mut().zip(tail) {
        *sum = f64::from(weight);
    }
    fold_halves(halves, tails)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scalar code, whatever this build may assume of the processor: the baseline of a build for
    /// the native processor is its best level, and would be compared with itself.
    fn scalar() -> Level {
        let scalar = Level::fallback();
        assert!(scalar.is_fallback() && !level().is_fallback(), "two levels to compare");
        scalar
    }

    fn row(len: usize, step: usize) -> Vec<f32> {
        (0..len).map(|i| 1.0 / (1.0 + (i * step % 97) as f32)).collect()
    }

    #[test]
    fn sums_do_not_depend_on_the_instruction_set() {
        let (row, other) = (row(5_003, 7), row(5_003, 31));
        let best = checked_sums(&row).unwrap();
        assert_eq!(best, dispatch!(scalar(), simd => checked_sums_on(simd, &row)).unwrap());
        let value = |target: f32, draft: f32| f64::from(target).min(f64::from(draft) * 0.7);
        let best = pair_sums(&row, &other, value);
        assert_eq!(best, dispatch!(scalar(), simd => pair_sums_on(simd, &row, &other, value)));
    }

    #[test]
    fn residuals_do_not_depend_on_the_instruction_set() {
        let (target, draft, factors) = (row(1_303, 7), row(1_303, 31), (0.9, 0.7));
        let best = residual_sums(&target, &draft, factors);
        let scalar = dispatch!(scalar(), simd => residual_sums_on(simd, &target, &draft, factors));
        assert_eq!(best, scalar);
        let plain: f64 = target
            .iter()
            .zip(&draft)
            .map(|(target, draft)| (f64::from(*target) * 0.9 - f64::from(*draft) * 0.7).max(0.0))
            .sum();
        assert!((best.iter().sum::<f64>() - plain).abs() < 1e-10);
    }

    #[test]
    fn unsound_weights_are_seen_anywhere_in_a_row() {
        for bad in [f32::NAN, f32::INFINITY, -1.0, f32::NEG_INFINITY] {
            for place in [0, 15, 16, 511, 512, 1_000] {
                let mut row = vec![1.0; 1_001];
                row[place] = bad;
                assert!(checked_sums(&row).is_none(), "{bad} at {place}");
            }
        }
    }
}
