//! One row as it lies in memory: read chunk by chunk, turned into weights on the way, never copied.
//!
//! Every weight and every sum is the one that [`Dist`](crate::Dist) would store, to the last bit:
//! the same products in the same order, on a chunk while it is in cache.

use std::ops::Range;

use fearless_simd::{Simd, dispatch};

use crate::chance::Weights;
use crate::dist::{
    HEADROOM, RowError, Token, exp, exp_chunk, highest, locate_chunked, sharpness, unsound,
    unsound_logit,
};
use crate::simd::{CHUNK, level, residual_sum, row_sum};

/// Numbers in memory. Half precision is given by its bits, as C and NumPy have it.
///
/// ```
/// use forerun_verify::Values;
/// assert_eq!(Values::F32(&[0.5, 0.25]).get(1), 0.25);
/// assert_eq!(Values::F16(&[0x3800, 0x3400]).get(1), 0.25);
/// assert_eq!(Values::Bf16(&[0x3f00, 0x3e80]).get(1), 0.25);
/// ```
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Values<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// Double precision; each number is rounded to single when it is read.
    F64(&'a [f64]),
    /// Half precision: 5 bits of exponent, 10 of mantissa.
    F16(&'a [u16]),
    /// The upper half of single precision.
    Bf16(&'a [u16]),
}

impl<'a> Values<'a> {
    /// How many numbers there are.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F64(values) => values.len(),
            Self::F16(bits) | Self::Bf16(bits) => bits.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One number, in single precision.
    ///
    /// # Panics
    /// If there is none at this index.
    pub fn get(&self, index: usize) -> f32 {
        match self {
            Self::F32(values) => values[index],
            Self::F64(values) => single(values[index]),
            Self::F16(bits) => half(bits[index]),
            Self::Bf16(bits) => brain(bits[index]),
        }
    }

    pub(super) fn slice(&self, range: Range<usize>) -> Self {
        match self {
            Self::F32(values) => Self::F32(&values[range]),
            Self::F64(values) => Self::F64(&values[range]),
            Self::F16(bits) => Self::F16(&bits[range]),
            Self::Bf16(bits) => Self::Bf16(&bits[range]),
        }
    }

    fn iter(self) -> impl Iterator<Item = (usize, f32)> + 'a {
        (0..self.len()).map(move |index| (index, self.get(index)))
    }

    /// A chunk in single precision: as it lies there, or converted.
    #[inline(always)]
    fn chunk<'b>(self, chunk: usize, buffer: &'b mut [f32; CHUNK]) -> &'b [f32]
    where
        'a: 'b,
    {
        let range = chunk_range(self.len(), chunk);
        let out = &mut buffer[..range.len()];
        match self {
            Self::F32(values) => return &values[range],
            Self::F64(values) => convert(out, &values[range], single),
            Self::F16(bits) => convert(out, &bits[range], half),
            Self::Bf16(bits) => convert(out, &bits[range], brain),
        }
        out
    }
}

#[inline(always)]
fn convert<T: Copy>(out: &mut [f32], values: &[T], one: impl Fn(T) -> f32) {
    for (out, value) in out.iter_mut().zip(values) {
        *out = one(*value);
    }
}

#[expect(clippy::cast_possible_truncation, reason = "rows are read in single precision")]
#[inline(always)]
fn single(value: f64) -> f32 {
    value as f32
}

#[inline(always)]
fn brain(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Without a branch, so that it vectorises: the exponent is put right by a multiplication, which is
/// exact and normalises the numbers below the normal ones too.
#[inline(always)]
fn half(bits: u16) -> f32 {
    const REBIAS: f32 = f32::from_bits((127 + 127 - 15) << 23);
    let magnitude = u32::from(bits & 0x7fff) << 13;
    let finite = (f32::from_bits(magnitude) * REBIAS).to_bits();
    let special = magnitude | 0x7f80_0000;
    let value = if bits & 0x7c00 == 0x7c00 { special } else { finite };
    f32::from_bits(value | u32::from(bits & 0x8000) << 16)
}

/// What the numbers of a row are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Reading {
    /// Weights: probabilities, or anything in proportion to them.
    Weights,
    /// Logits, at this temperature; zero means the largest one alone.
    Logits(f32),
}

/// How a number becomes a weight.
#[derive(Debug, Clone, Copy)]
enum Form {
    Weights,
    Softmax { origin: f32, sharpness: f32 },
    Point(usize),
}

/// What one pass over a row found: enough to read any of its weights again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    form: Form,
    mass: f64,
    /// One over the mass.
    pub(super) unit: f64,
}

/// A row that was read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) values: Values<'a>,
    pub(super) head: Head,
}

impl<'a> Row<'a> {
    /// Reads a row once: checks every entry, finds the mass, and writes the sum of each chunk, and
    /// the weights if they are wanted and do not lie there already.
    pub(super) fn read(
        values: Values<'a>,
        reading: Reading,
        sums: &mut Vec<f64>,
        mut kept: Option<&mut Vec<f32>>,
    ) -> Result<Self, RowError> {
        if values.is_empty() {
            return Err(RowError::Empty);
        }
        if let Some(kept) = &mut kept {
            kept.resize(values.len(), 0.0);
        }
        let mut kept = kept.map(|kept| &mut kept[..]);
        let form = match reading {
            Reading::Weights => {
                if !dispatch!(level(), simd => weights_pass(simd, values, sums, kept)) {
                    return Err(unsound(values.iter()));
                }
                Form::Weights
            }
            Reading::Logits(0.0) => {
                let token = point(values, sums)?;
                if let Some(kept) = &mut kept {
                    kept.fill(0.0);
                    kept[token] = 1.0;
                }
                Form::Point(token)
            }
            Reading::Logits(temperature) => softmax(values, sharpness(temperature)?, sums, kept)?,
        };
        let mass: f64 = sums.iter().sum();
        match mass > 0.0 {
            true => Ok(Self { values, head: Head { form, mass, unit: 1.0 / mass } }),
            false => Err(RowError::NoMass),
        }
    }

    pub(super) fn weight(&self, index: usize) -> f32 {
        match self.head.form {
            Form::Weights => self.values.get(index),
            Form::Softmax { origin, sharpness } => {
                exp((self.values.get(index) - origin) * sharpness)
            }
            Form::Point(token) => f32::from(u8::from(index == token)),
        }
    }

    pub(super) fn prob(&self, index: usize) -> f64 {
        f64::from(self.weight(index)) * self.head.unit
    }

    /// All weights: where they lie, or where [`Row::read`] kept them.
    fn weights<'b>(&self, kept: &'b [f32]) -> &'b [f32]
    where
        'a: 'b,
    {
        match (self.head.form, self.values) {
            (Form::Weights, Values::F32(values)) => values,
            _ => kept,
        }
    }

    fn chunk_range(&self, chunk: usize) -> Range<usize> {
        chunk_range(self.values.len(), chunk)
    }

    pub(super) fn chunks(&self) -> usize {
        self.values.len().div_ceil(CHUNK)
    }

    /// Calls `each` with the weights of every chunk and the index of its first.
    pub(super) fn each_chunk(&self, mut each: impl FnMut(usize, &[f32])) {
        let mut buffer = [0.0; CHUNK];
        for chunk in 0..self.chunks() {
            let range = self.chunk_range(chunk);
            dispatch!(level(), simd => chunk_on(simd, self, chunk, &mut buffer));
            each(range.start, &buffer[..range.len()]);
        }
    }

    /// The row as weights to draw from, by the sums that [`Row::read`] wrote.
    pub(super) fn drawn_by(self, sums: &'a [f64]) -> Whole<'a> {
        Whole { row: self, sums }
    }
}

fn chunk_range(len: usize, chunk: usize) -> Range<usize> {
    chunk * CHUNK..len.min((chunk + 1) * CHUNK)
}

/// Writes the weights of a chunk.
#[inline(always)]
fn chunk_on<S: Simd>(simd: S, row: &Row<'_>, chunk: usize, out: &mut [f32; CHUNK]) {
    let mut buffer = [0.0; CHUNK];
    let range = row.chunk_range(chunk);
    let out = &mut out[..range.len()];
    match row.head.form {
        Form::Weights => out.copy_from_slice(row.values.chunk(chunk, &mut buffer)),
        Form::Softmax { origin, sharpness } => {
            exp_chunk(simd, row.values.chunk(chunk, &mut buffer), (origin, sharpness), out);
        }
        Form::Point(token) => {
            out.fill(0.0);
            if range.contains(&token) {
                out[token - range.start] = 1.0;
            }
        }
    }
}

/// Sums over each chunk; false where a weight is no finite number from zero up.
#[inline(always)]
fn weights_pass<S: Simd>(
    simd: S,
    values: Values<'_>,
    sums: &mut Vec<f64>,
    mut kept: Option<&mut [f32]>,
) -> bool {
    sums.clear();
    let mut buffer = [0.0; CHUNK];
    let mut sound = true;
    let is_there = matches!(values, Values::F32(_));
    for chunk in 0..values.len().div_ceil(CHUNK) {
        let weights = values.chunk(chunk, &mut buffer);
        sums.push(row_sum(simd, weights));
        for &weight in weights {
            // NaN is in no range.
            sound &= (0.0..=f32::MAX).contains(&weight);
        }
        if let Some(kept) = kept.as_mut().filter(|_| !is_there) {
            kept[chunk_range(values.len(), chunk)].copy_from_slice(weights);
        }
    }
    sound
}

fn softmax(
    values: Values<'_>,
    sharpness: f32,
    sums: &mut Vec<f64>,
    mut kept: Option<&mut [f32]>,
) -> Result<Form, RowError> {
    let mut pass = |origin, sums: &mut Vec<f64>| {
        let kept = kept.as_deref_mut();
        dispatch!(level(), simd => softmax_pass(simd, values, (origin, sharpness), sums, kept))
    };
    let found = match pass(None, sums) {
        Err(Stop::TooHigh) => {
            let highest = values.iter().map(|(_, logit)| logit).fold(f32::NEG_INFINITY, f32::max);
            pass(Some(highest), sums)
        }
        found => found,
    };
    match found {
        Ok(origin) => Ok(Form::Softmax { origin, sharpness }),
        Err(_) => Err(unsound_logit(values.iter())),
    }
}

enum Stop {
    Unsound,
    TooHigh,
}

/// As the pass of [`Dist::softmax`](crate::Dist::softmax): weights are relative to the largest
/// logit of the first chunk that has any. Returns that origin.
#[inline(always)]
fn softmax_pass<S: Simd>(
    simd: S,
    values: Values<'_>,
    (origin, sharpness): (Option<f32>, f32),
    sums: &mut Vec<f64>,
    mut kept: Option<&mut [f32]>,
) -> Result<f32, Stop> {
    sums.clear();
    let mut origin = origin;
    let (mut buffer, mut unkept) = ([0.0; CHUNK], [0.0; CHUNK]);
    for chunk in 0..values.len().div_ceil(CHUNK) {
        let logits = values.chunk(chunk, &mut buffer);
        let weights = match &mut kept {
            Some(kept) => &mut kept[chunk_range(values.len(), chunk)],
            None => &mut unkept[..logits.len()],
        };
        let highest = highest(simd, logits).ok_or(Stop::Unsound)?;
        if highest == f32::NEG_INFINITY {
            weights.fill(0.0);
            sums.push(0.0);
            continue;
        }
        let origin = *origin.get_or_insert(highest);
        if (highest - origin) * sharpness > HEADROOM {
            return Err(Stop::TooHigh);
        }
        sums.push(exp_chunk(simd, logits, (origin, sharpness), weights));
    }
    // All masked: there is no mass, whatever the origin.
    Ok(origin.unwrap_or(0.0))
}

/// The largest logit, the lowest id among equals.
fn point(values: Values<'_>, sums: &mut Vec<f64>) -> Result<usize, RowError> {
    sums.clear();
    sums.resize(values.len().div_ceil(CHUNK), 0.0);
    let mut best = (0, f32::NEG_INFINITY);
    let mut buffer = [0.0; CHUNK];
    for chunk in 0..sums.len() {
        let logits = values.chunk(chunk, &mut buffer);
        let highest = dispatch!(level(), simd => highest(simd, logits));
        let Some(highest) = highest else { return Err(unsound_logit(values.iter())) };
        if highest > best.1 {
            let place = logits.iter().position(|logit| *logit == highest).unwrap_or_default();
            best = (chunk * CHUNK + place, highest);
        }
    }
    if best.1 == f32::NEG_INFINITY {
        return Err(RowError::NoMass);
    }
    sums[best.0 / CHUNK] = 1.0;
    Ok(best.0)
}

/// A row to draw from.
pub(super) struct Whole<'a> {
    row: Row<'a>,
    sums: &'a [f64],
}

impl Weights for Whole<'_> {
    fn mass(&self) -> f64 {
        self.row.head.mass
    }

    fn locate(&self, point: f64) -> usize {
        locate_chunked(self.sums, point, |chunk| {
            self.row.chunk_range(chunk).map(|index| (index, f64::from(self.row.weight(index))))
        })
    }

    fn visit(&self, each: &mut dyn FnMut(usize, f64)) {
        visit(self.row, |index| f64::from(self.row.weight(index)), each);
    }
}

fn visit(row: Row<'_>, weight: impl Fn(usize) -> f64, each: &mut dyn FnMut(usize, f64)) {
    let weights = (0..row.values.len()).map(|index| (index, weight(index)));
    weights.filter(|(_, weight)| *weight > 0.0).for_each(|(index, weight)| each(index, weight));
}

/// What a drafted token was drawn from.
#[derive(Debug, Clone, Copy)]
pub(super) enum Drawn<'a> {
    Row(Row<'a>),
    Fixed(usize),
}

impl Drawn<'_> {
    pub(super) fn head(&self) -> Option<Head> {
        match self {
            Self::Row(row) => Some(row.head),
            Self::Fixed(_) => None,
        }
    }

    pub(super) fn prob(&self, index: usize) -> f64 {
        self.weight(index) * self.unit()
    }

    fn weight(&self, index: usize) -> f64 {
        match self {
            Self::Row(row) => f64::from(row.weight(index)),
            Self::Fixed(token) => f64::from(u8::from(index == *token)),
        }
    }

    fn unit(&self) -> f64 {
        match self {
            Self::Row(row) => row.head.unit,
            Self::Fixed(_) => 1.0,
        }
    }
}

/// `relu(scale * target - draft)`, with its mass: the [`Residual`](crate::Residual) of one term.
pub(super) struct Rest<'a> {
    target: Row<'a>,
    draft: Drawn<'a>,
    /// Of target and draft, their units included.
    factors: (f64, f64),
    parts: &'a [f64],
    mass: f64,
}

/// Appends the sums of a residual's chunks, from rows that were just read: their own sums, and the
/// weights that [`Row::read`] kept.
pub(super) fn push_rest(
    (scale, target): (f64, Row<'_>),
    draft: Drawn<'_>,
    (sums, kept): (&[f64], &[Vec<f32>; 2]),
    parts: &mut Vec<f64>,
) {
    let factors = (scale * target.head.unit, draft.unit());
    match draft {
        Drawn::Row(row) => {
            let (target, draft) = (target.weights(&kept[0]), row.weights(&kept[1]));
            dispatch!(level(), simd => rest_pass(simd, (target, draft), factors, parts));
        }
        Drawn::Fixed(token) => {
            let first = parts.len();
            parts.extend(sums.iter().map(|sum| sum * factors.0));
            // A fixed token takes from its own chunk alone.
            let range = target.chunk_range(token / CHUNK);
            parts[first + token / CHUNK] =
                range.map(|index| left((&target, &draft), factors, index)).sum();
        }
    }
}

#[inline(always)]
fn rest_pass<S: Simd>(
    simd: S,
    (target, draft): (&[f32], &[f32]),
    factors: (f64, f64),
    parts: &mut Vec<f64>,
) {
    for (target, draft) in target.chunks(CHUNK).zip(draft.chunks(CHUNK)) {
        parts.push(residual_sum(simd, target, draft, factors));
    }
}

impl<'a> Rest<'a> {
    /// By the sums that [`push_rest`] wrote of the same rows and scale.
    pub(super) fn new((scale, target): (f64, Row<'a>), draft: Drawn<'a>, parts: &'a [f64]) -> Self {
        let factors = (scale * target.head.unit, draft.unit());
        Self { target, draft, factors, parts, mass: parts.iter().sum() }
    }
}

/// The very products of the passes, so that a draw agrees with the sums to the bit.
fn left((target, draft): (&Row<'_>, &Drawn<'_>), (scale, take): (f64, f64), index: usize) -> f64 {
    (f64::from(target.weight(index)) * scale - draft.weight(index) * take).max(0.0)
}

impl Weights for Rest<'_> {
    fn mass(&self) -> f64 {
        self.mass
    }

    fn locate(&self, point: f64) -> usize {
        let weight = |index| left((&self.target, &self.draft), self.factors, index);
        locate_chunked(self.parts, point, |chunk| {
            self.target.chunk_range(chunk).map(move |index| (index, weight(index)))
        })
    }

    fn visit(&self, each: &mut dyn FnMut(usize, f64)) {
        visit(self.target, |index| left((&self.target, &self.draft), self.factors, index), each);
    }
}

/// The token at an index that a draw gave.
pub(super) fn token(index: usize) -> Token {
    Token::at(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All of them: the value by the definition of the format, in double precision.
    #[test]
    fn every_half_is_what_its_bits_say() {
        for bits in 0..=u16::MAX {
            let (exponent, mantissa) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
            let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
            let value = half(bits);
            match exponent {
                31 if mantissa == 0.0 => assert_eq!(f64::from(value), sign * f64::INFINITY),
                31 => assert!(value.is_nan()),
                0 => assert_eq!(f64::from(value), sign * mantissa / 1_024.0 * 2_f64.powi(-14)),
                _ => {
                    let magnitude = (1.0 + mantissa / 1_024.0) * 2_f64.powi(exponent - 15);
                    assert_eq!(f64::from(value), sign * magnitude);
                }
            }
        }
    }
}
