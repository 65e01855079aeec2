//! Logits to weights in one pass: a chunk is read, exponentiated and summed while it is in cache.
//!
//! No row maximum is needed first. The largest logit of the first chunk is the origin; weights
//! relative to it stay in range while no later logit is more than [`HEADROOM`] above it, and only
//! a row that breaks this is read again from its true maximum.

use fearless_simd::prelude::*;
use fearless_simd::{Simd, dispatch, f32x16, f64x8};

use crate::simd::{CHUNK, LANES, fold_halves, level};

/// How far above the origin a scaled logit may lie; `exp` of it is far from the end of `f32`.
pub(crate) const HEADROOM: f32 = 60.0;

/// Below this `exp` leaves the normal `f32` numbers; such weights are zero.
const FLOOR: f32 = -87.0;

/// What a softmax pass found.
pub(super) struct Pass {
    pub(super) weights: Vec<f32>,
    pub(super) sums: Vec<f64>,
}

/// Weights proportional to `exp(logit * sharpness)`, or `None` where a logit is NaN or `+inf`.
pub(super) fn softmax(logits: &[f32], sharpness: f32) -> Option<Pass> {
    let mut pass = Pass {
        weights: vec![0.0; logits.len()],
        sums: Vec::with_capacity(logits.len().div_ceil(CHUNK)),
    };
    let done = dispatch!(level(), simd => pass_from(simd, logits, sharpness, None, &mut pass));
    match done {
        Ok(()) => Some(pass),
        Err(Stop::Unsound) => None,
        Err(Stop::TooHigh) => {
            pass.sums.clear();
            let origin = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            dispatch!(level(), simd => pass_from(simd, logits, sharpness, Some(origin), &mut pass))
                .ok()?;
            Some(pass)
        }
    }
}

enum Stop {
    Unsound,
    TooHigh,
}

#[inline(always)]
fn pass_from<S: Simd>(
    simd: S,
    logits: &[f32],
    sharpness: f32,
    origin: Option<f32>,
    pass: &mut Pass,
) -> Result<(), Stop> {
    let mut origin = origin;
    for (logits, weights) in logits.chunks(CHUNK).zip(pass.weights.chunks_mut(CHUNK)) {
        let highest = highest(simd, logits).ok_or(Stop::Unsound)?;
        if highest == f32::NEG_INFINITY {
            weights.fill(0.0);
            pass.sums.push(0.0);
            continue;
        }
        let origin = *origin.get_or_insert(highest);
        if (highest - origin) * sharpness > HEADROOM {
            return Err(Stop::TooHigh);
        }
        pass.sums.push(exp_chunk(simd, logits, (origin, sharpness), weights));
    }
    Ok(())
}

/// The largest logit, or `None` where one is NaN or `+inf`.
#[inline(always)]
pub(crate) fn highest<S: Simd>(simd: S, logits: &[f32]) -> Option<f32> {
    let (groups, tail) = logits.as_chunks::<LANES>();
    let most = f32x16::splat(simd, f32::MAX);
    let mut highest = f32x16::splat(simd, f32::NEG_INFINITY);
    // Written so that NaN fails; `-inf` marks a masked token.
    let mut sound = simd.simd_le_f32x16(highest, most);
    for group in groups {
        let group = f32x16::from_slice(simd, group);
        sound &= simd.simd_le_f32x16(group, most);
        highest = highest.max(group);
    }
    let tail_sound = tail.iter().all(|logit| *logit <= f32::MAX);
    let mut lanes = [0.0; LANES];
    highest.store_slice(&mut lanes);
    let highest = lanes.iter().chain(tail).copied().fold(f32::NEG_INFINITY, f32::max);
    (tail_sound && simd.all_true_mask32x16(sound)).then_some(highest)
}

/// Writes the weights of a chunk and returns their sum, in the order of
/// [`row_sum`](crate::simd::row_sum).
#[inline(always)]
pub(crate) fn exp_chunk<S: Simd>(
    simd: S,
    logits: &[f32],
    (origin, sharpness): (f32, f32),
    weights: &mut [f32],
) -> f64 {
    let (origins, sharpnesses) = (f32x16::splat(simd, origin), f32x16::splat(simd, sharpness));
    let (groups, tail) = logits.as_chunks::<LANES>();
    let (weight_groups, weight_tail) = weights.as_chunks_mut::<LANES>();
    let mut halves = [f64x8::splat(simd, 0.0); 2];
    for (group, out) in groups.iter().zip(weight_groups) {
        let weight = exp_lanes(simd, (f32x16::from_slice(simd, group) - origins) * sharpnesses);
        weight.store_slice(out);
        let wide = simd.widen_f32x16(weight);
        halves[0] += wide.0;
        halves[1] += wide.1;
    }
    let mut tails = [0.0; LANES];
    for ((&logit, out), sum) in tail.iter().zip(weight_tail).zip(&mut tails) {
        *out = exp((logit - origin) * sharpness);
        *sum = f64::from(*out);
    }
    fold_halves(halves, tails)
}

const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// Adding it rounds to an integer, which then stands in the low bits of the sum.
const ROUNDER: f32 = 12_582_912.0;
/// The polynomial's coefficients, the highest power's first.
const COEFFICIENTS: [f32; 6] =
    [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_66, 0.5];

/// `exp` for `x <= HEADROOM` within two units in the last place, zero below [`FLOOR`].
///
/// The standard library's `exp` differs between platforms and does not vectorise; this one is a
/// power of two times a polynomial (the coefficients of Cephes' `expf`), all in products and sums.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let rounded = x * std::f32::consts::LOG2_E + ROUNDER;
    let power = rounded - ROUNDER;
    let rest = x - power * LN2_HIGH - power * LN2_LOW;
    let mut poly = COEFFICIENTS[0];
    for coefficient in &COEFFICIENTS[1..] {
        poly = poly * rest + coefficient;
    }
    let mantissa = poly * rest * rest + rest + 1.0;
    let scale = f32::from_bits((rounded.to_bits() << 23).wrapping_add(127 << 23));
    if x >= FLOOR { mantissa * scale } else { 0.0 }
}

/// [`exp`] of sixteen numbers, bit for bit: the compiler prefers narrower vectors by itself.
#[inline(always)]
fn exp_lanes<S: Simd>(simd: S, x: f32x16<S>) -> f32x16<S> {
    let splat = |value| f32x16::splat(simd, value);
    let rounded = x * splat(std::f32::consts::LOG2_E) + splat(ROUNDER);
    let power = rounded - splat(ROUNDER);
    let rest = x - power * splat(LN2_HIGH) - power * splat(LN2_LOW);
    let mut poly = splat(COEFFICIENTS[0]);
    for coefficient in &COEFFICIENTS[1..] {
        poly = poly * rest + splat(*coefficient);
    }
    let mantissa = poly * rest * rest + rest + splat(1.0);
    let scale = f32x16::from_bits((rounded.to_bits() << 23) + (127 << 23));
    simd.select_f32x16(simd.simd_ge_f32x16(x, splat(FLOOR)), mantissa * scale, splat(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_units_of_the_last_place() {
        let mut x = FLOOR;
        while x < HEADROOM {
            let truth = f64::from(x).exp();
            let error = (f64::from(exp(x)) / truth - 1.0).abs();
            assert!(error < 2.4e-7, "exp({x}) is off by {error:e}");
            x += 0.000_97;
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-1e30), 0.0);
    }

    /// Every lane and every instruction set, in and out of the range, says what one number says.
    #[test]
    fn lanes_are_the_same_to_the_last_bit() {
        let special = [f32::NEG_INFINITY, f32::NAN, FLOOR, -87.000_01, -0.0, 0.0, HEADROOM];
        let many = (0..4_000_u16).map(|n| f32::from(n) * 0.036_7 - 86.9);
        let logits: Vec<f32> = special.into_iter().chain(many).collect();
        for level in [fearless_simd::Level::fallback(), level()] {
            let mut weights = vec![-1.0; logits.len()];
            dispatch!(level, simd => exp_chunk(simd, &logits, (0.0, 1.0), &mut weights));
            for (logit, weight) in logits.iter().zip(weights) {
                assert_eq!(weight.to_bits(), exp(*logit).to_bits(), "exp({logit})");
            }
        }
    }

    #[test]
    fn weights_do_not_depend_on_the_instruction_set() {
        let logits: Vec<f32> = (0..3_001).map(|i| (i * 37 % 911) as f32 * 0.031 - 9.0).collect();
        let best = softmax(&logits, 1.3).unwrap();
        let mut scalar = Pass { weights: vec![0.0; logits.len()], sums: Vec::new() };
        let level = fearless_simd::Level::fallback();
        let done = dispatch!(level, simd => pass_from(simd, &logits, 1.3, None, &mut scalar));
        assert!(done.is_ok());
        assert_eq!((best.weights, best.sums), (scalar.weights, scalar.sums));
    }

    #[test]
    fn a_high_logit_late_in_the_row_changes_nothing() {
        let mut logits = vec![0.0; 4 * CHUNK];
        logits[3 * CHUNK] = 500.0;
        logits[3 * CHUNK + 1] = 499.0;
        let pass = softmax(&logits, 1.0).unwrap();
        let mass: f64 = pass.sums.iter().sum();
        assert!((f64::from(pass.weights[3 * CHUNK]) / mass - 0.731_058_6).abs() < 1e-6);
        assert_eq!(pass.weights[0], 0.0);
    }
}
