//! Logits to weights in one pass: a chunk is read, exponentiated and summed while it is in cache.
//!
//! No row maximum is needed first. The largest logit of the first chunk is the origin; weights
//! relative to it stay in range while no later logit is more than [`HEADROOM`] above it, and only
//! a row that breaks this is read again from its true maximum.

use fearless_simd::{Simd, dispatch};

use crate::simd::{CHUNK, LANES, level, row_sum};

/// How far above the origin a scaled logit may lie; `exp` of it is far from the end of `f32`.
const HEADROOM: f32 = 60.0;

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
    _: S,
    logits: &[f32],
    sharpness: f32,
    origin: Option<f32>,
    pass: &mut Pass,
) -> Result<(), Stop> {
    let mut origin = origin;
    for (logits, weights) in logits.chunks(CHUNK).zip(pass.weights.chunks_mut(CHUNK)) {
        let highest = highest(logits).ok_or(Stop::Unsound)?;
        if highest == f32::NEG_INFINITY {
            weights.fill(0.0);
            pass.sums.push(0.0);
            continue;
        }
        let origin = *origin.get_or_insert(highest);
        if (highest - origin) * sharpness > HEADROOM {
            return Err(Stop::TooHigh);
        }
        for (weight, &logit) in weights.iter_mut().zip(logits) {
            *weight = exp((logit - origin) * sharpness);
        }
        pass.sums.push(row_sum(weights));
    }
    Ok(())
}

/// The largest logit, or `None` where one is NaN or `+inf`.
#[inline(always)]
fn highest(logits: &[f32]) -> Option<f32> {
    let (groups, tail) = logits.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let mut sound = [true; LANES];
    for group in groups {
        for lane in 0..LANES {
            // Written so that NaN fails; `-inf` marks a masked token.
            sound[lane] &= group[lane] <= f32::MAX;
            lanes[lane] = if group[lane] > lanes[lane] { group[lane] } else { lanes[lane] };
        }
    }
    for (lane, &logit) in tail.iter().enumerate() {
        sound[lane] &= logit <= f32::MAX;
        lanes[lane] = if logit > lanes[lane] { logit } else { lanes[lane] };
    }
    let sound = sound.iter().all(|lane| *lane);
    sound.then(|| lanes.iter().copied().fold(f32::NEG_INFINITY, f32::max))
}

/// `exp` for `x <= HEADROOM` within two units in the last place, zero below [`FLOOR`].
///
/// The standard library's `exp` differs between platforms and does not vectorise; this one is a
/// power of two times a polynomial (the coefficients of Cephes' `expf`), all in products and sums.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    /// Adding it rounds to an integer, which then stands in the low bits of the sum.
    const ROUNDER: f32 = 12_582_912.0;
    let rounded = x * std::f32::consts::LOG2_E + ROUNDER;
    let power = rounded - ROUNDER;
    let rest = x - power * LN2_HIGH - power * LN2_LOW;
    let mut poly = 1.987_569_1e-4;
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_66, 0.5] {
        poly = poly * rest + coefficient;
    }
    let mantissa = poly * rest * rest + rest + 1.0;
    let scale = f32::from_bits((rounded.to_bits() << 23).wrapping_add(127 << 23));
    if x >= FLOOR { mantissa * scale } else { 0.0 }
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
