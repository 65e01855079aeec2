//! Operations over rows, each with its pass back.
//!
//! Composed of candle's elementary operations, each would read and write all numbers several times. Its own
//! fused ones have no pass back.

use candle_core::backend::BackendStorage;
use candle_core::{
    CpuStorage, CustomOp1, CustomOp2, CustomOp3, DType, Layout, Result, Shape as Sizes, Tensor,
};
use rayon::prelude::*;

use super::shape::{Activation, Pairs};
use crate::loss::Real;

/// Numbers that a thread works on at once, at least.
const CHUNK: usize = 1 << 14;

/// What is done with the numbers of some tensors, in either precision.
trait Kernel<const N: usize>: Sync {
    fn run<F: Real>(&self, inputs: [&[F]; N]) -> Vec<F>;
}

/// Runs a kernel on tensors that are each in one piece.
fn run<const N: usize>(
    kernel: &impl Kernel<N>,
    inputs: [(&CpuStorage, &Layout); N],
) -> Result<CpuStorage> {
    fn typed<const N: usize, F: Real>(
        kernel: &impl Kernel<N>,
        inputs: [(&CpuStorage, &Layout); N],
    ) -> Result<CpuStorage> {
        let mut numbers = [&[][..]; N];
        for (numbers, (storage, layout)) in numbers.iter_mut().zip(inputs) {
            let Some((start, end)) = layout.contiguous_offsets() else {
                candle_core::bail!("a tensor in pieces: {layout:?}");
            };
            *numbers = &F::cpu_storage_as_slice(storage)?[start..end];
        }
        Ok(F::to_cpu_storage_owned(kernel.run(numbers)))
    }
    match inputs[0].0.dtype() {
        DType::F64 => typed::<N, f64>(kernel, inputs),
        _ => typed::<N, f32>(kernel, inputs),
    }
}

/// Rows that a thread works on at once.
fn rows_at_once(width: usize) -> usize {
    CHUNK.div_ceil(width)
}

fn dot<F: Real>(some: &[F], others: &[F]) -> F {
    // Several sums, so that they need not wait for each other.
    let mut sums = [F::zero(); 16];
    let (chunks, other_chunks) = (some.chunks_exact(16), others.chunks_exact(16));
    let rest = chunks.remainder().iter().zip(other_chunks.remainder());
    let mut sum = rest.fold(F::zero(), |sum, (&a, &b)| sum + a * b);
    for (some, others) in chunks.zip(other_chunks) {
        for ((sum, &a), &b) in sums.iter_mut().zip(some).zip(others) {
            *sum += a * b;
        }
    }
    for part in sums {
        sum += part;
    }
    sum
}

/// Scales rows to a mean square of one, and each number by its weight.
#[derive(Clone, Copy)]
struct Norm {
    epsilon: f64,
}

impl Norm {
    /// What a row is multiplied by.
    fn scale<F: Real>(&self, row: &[F]) -> F {
        let mean = dot(row, row).to_f64() / row.len() as f64;
        F::from_f64((mean + self.epsilon).sqrt().recip())
    }
}

impl Kernel<2> for Norm {
    fn run<F: Real>(&self, [rows, weight]: [&[F]; 2]) -> Vec<F> {
        let mut made = rows.to_vec();
        let each = made.par_chunks_mut(weight.len()).with_min_len(rows_at_once(weight.len()));
        each.for_each(|row| {
            let scale = self.scale(row);
            for (number, &weight) in row.iter_mut().zip(weight) {
                *number *= scale * weight;
            }
        });
        made
    }
}

/// The slope by the rows, and after it that by the weights.
struct NormSlope(Norm);

impl Kernel<3> for NormSlope {
    fn run<F: Real>(&self, [rows, weight, slope]: [&[F]; 3]) -> Vec<F> {
        let width = weight.len();
        let at_once = rows_at_once(width) * width;
        let mut made = slope.to_vec();
        let parts = made.par_chunks_mut(at_once).zip(rows.par_chunks(at_once));
        // Sums of parts that are always the same, so that their order is.
        let sums: Vec<Vec<F>> = parts
            .map(|(made, rows)| {
                let (mut by_weight, mut weighted) =
                    (vec![F::zero(); width], vec![F::zero(); width]);
                for (made, row) in made.chunks_mut(width).zip(rows.chunks(width)) {
                    let scale = self.0.scale(row);
                    for at in 0..width {
                        by_weight[at] += made[at] * row[at] * scale;
                        weighted[at] = made[at] * weight[at];
                    }
                    let along =
                        dot(&weighted, row) * scale * scale * F::from_f64(1.0 / width as f64);
                    for ((made, &weighted), &number) in made.iter_mut().zip(&weighted).zip(row) {
                        *made = scale * (weighted - number * along);
                    }
                }
                by_weight
            })
            .collect();
        let start = made.len();
        made.resize(start + width, F::zero());
        for sum in sums {
            made[start..].iter_mut().zip(sum).for_each(|(all, part)| *all += part);
        }
        made
    }
}

impl CustomOp3 for NormSlope {
    fn name(&self) -> &'static str {
        "norm-slope"
    }

    fn cpu_fwd(
        &self,
        rows: &CpuStorage,
        rows_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
        slope: &CpuStorage,
        slope_layout: &Layout,
    ) -> Result<(CpuStorage, Sizes)> {
        let inputs = [(rows, rows_layout), (weight, weight_layout), (slope, slope_layout)];
        let count = rows_layout.shape().elem_count() + weight_layout.shape().elem_count();
        Ok((run(self, inputs)?, count.into()))
    }
}

impl CustomOp2 for Norm {
    fn name(&self) -> &'static str {
        "norm"
    }

    fn cpu_fwd(
        &self,
        rows: &CpuStorage,
        rows_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Sizes)> {
        let made = run(self, [(rows, rows_layout), (weight, weight_layout)])?;
        Ok((made, rows_layout.shape().clone()))
    }

    fn bwd(
        &self,
        rows: &Tensor,
        weight: &Tensor,
        _: &Tensor,
        slope: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let slopes = rows.apply_op3_no_bwd(weight, &slope.contiguous()?, &NormSlope(*self))?;
        let by_rows = slopes.narrow(0, 0, rows.elem_count())?.reshape(rows.shape())?;
        let by_weight = slopes.narrow(0, rows.elem_count(), weight.elem_count())?;
        Ok((Some(by_rows), Some(by_weight)))
    }
}

/// Scales rows to a mean square of one, and each number by its weight.
pub(crate) fn norm(rows: &Tensor, weight: &Tensor, epsilon: f64) -> Result<Tensor> {
    rows.contiguous()?.apply_op2(weight, Norm { epsilon })
}

/// What a row of scores is of: all of it, or of a square of them what each token sees, which is the tokens up to it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Sees {
    All,
    /// The last so many of them.
    Last(usize),
}

/// Softmax of each row of scores.
#[derive(Clone, Copy)]
struct Softmax {
    sees: Sees,
    width: usize,
}

impl Softmax {
    /// What a row sees of itself.
    fn seen(&self, row: usize) -> std::ops::Range<usize> {
        match self.sees {
            Sees::All => 0..self.width,
            Sees::Last(count) => {
                let end = row % self.width + 1;
                end.saturating_sub(count)..end
            }
        }
    }

    fn each_row<F: Real>(&self, made: &mut [F], act: impl Fn(usize, &mut [F]) + Sync) {
        let rows = made.par_chunks_mut(self.width).with_min_len(rows_at_once(self.width));
        rows.enumerate().for_each(|(at, row)| act(at, row));
    }
}

impl Kernel<1> for Softmax {
    fn run<F: Real>(&self, [scores]: [&[F]; 1]) -> Vec<F> {
        let mut made = vec![F::zero(); scores.len()];
        self.each_row(&mut made, |at, made| {
            let seen = self.seen(at);
            let (scores, made) = (&scores[at * self.width..][seen.clone()], &mut made[seen]);
            let first = scores[0];
            let most = scores.iter().fold(first, |most, &it| if it > most { it } else { most });
            let mut sum = F::zero();
            for (made, &score) in made.iter_mut().zip(scores) {
                *made = (score - most).exp();
                sum += *made;
            }
            let scale = F::one() / sum;
            made.iter_mut().for_each(|it| *it *= scale);
        });
        made
    }
}

/// The slope by the scores, from the probabilities and the slope by them.
struct SoftmaxSlope(Softmax);

impl Kernel<2> for SoftmaxSlope {
    fn run<F: Real>(&self, [probs, slope]: [&[F]; 2]) -> Vec<F> {
        let mut made = vec![F::zero(); probs.len()];
        self.0.each_row(&mut made, |at, made| {
            let (seen, start) = (self.0.seen(at), at * self.0.width);
            let (probs, slope) = (&probs[start..][seen.clone()], &slope[start..][seen.clone()]);
            let mean = dot(probs, slope);
            for ((made, &prob), &slope) in made[seen].iter_mut().zip(probs).zip(slope) {
                *made = prob * (slope - mean);
            }
        });
        made
    }
}

impl CustomOp2 for SoftmaxSlope {
    fn name(&self) -> &'static str {
        "softmax-slope"
    }

    fn cpu_fwd(
        &self,
        probs: &CpuStorage,
        probs_layout: &Layout,
        slope: &CpuStorage,
        slope_layout: &Layout,
    ) -> Result<(CpuStorage, Sizes)> {
        let made = run(self, [(probs, probs_layout), (slope, slope_layout)])?;
        Ok((made, probs_layout.shape().clone()))
    }
}

impl CustomOp1 for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn cpu_fwd(&self, scores: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Sizes)> {
        Ok((run(self, [(scores, layout)])?, layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, probs: &Tensor, slope: &Tensor) -> Result<Option<Tensor>> {
        let slope = slope.contiguous()?;
        Ok(Some(probs.apply_op2_no_bwd(&slope, &SoftmaxSlope(*self))?))
    }
}

/// Softmax over what each row of scores sees.
pub(crate) fn softmax(scores: &Tensor, sees: Sees) -> Result<Tensor> {
    let width = scores.dim(candle_core::D::Minus1)?;
    scores.contiguous()?.apply_op1(Softmax { sees, width })
}

/// Turns pairs of numbers of heads, by an angle for each token and pair.
#[derive(Clone, Copy)]
struct Turn {
    pairs: Pairs,
    heads: usize,
    len: usize,
    back: bool,
}

impl Kernel<3> for Turn {
    fn run<F: Real>(&self, [numbers, cosines, sines]: [&[F]; 3]) -> Vec<F> {
        let half = self.len / 2;
        // The places of a pair.
        let (step, apart) = match self.pairs {
            Pairs::Neighbours => (2, 1),
            Pairs::Halves => (1, half),
        };
        let mut made = vec![F::zero(); numbers.len()];
        let width = self.heads * self.len;
        let tokens = made.par_chunks_mut(width).with_min_len(rows_at_once(width));
        tokens.zip(numbers.par_chunks(width)).enumerate().for_each(|(token, (made, numbers))| {
            let (cosines, sines) =
                (&cosines[token * half..][..half], &sines[token * half..][..half]);
            for (made, numbers) in made.chunks_mut(self.len).zip(numbers.chunks(self.len)) {
                for pair in 0..half {
                    let (first, second) = (pair * step, pair * step + apart);
                    let sine = if self.back { F::zero() - sines[pair] } else { sines[pair] };
                    let (one, two) = (numbers[first], numbers[second]);
                    made[first] = one * cosines[pair] - two * sine;
                    made[second] = one * sine + two * cosines[pair];
                }
            }
        });
        made
    }
}

impl CustomOp3 for Turn {
    fn name(&self) -> &'static str {
        "turn"
    }

    fn cpu_fwd(
        &self,
        numbers: &CpuStorage,
        layout: &Layout,
        cosines: &CpuStorage,
        cosines_layout: &Layout,
        sines: &CpuStorage,
        sines_layout: &Layout,
    ) -> Result<(CpuStorage, Sizes)> {
        let inputs = [(numbers, layout), (cosines, cosines_layout), (sines, sines_layout)];
        Ok((run(self, inputs)?, layout.shape().clone()))
    }

    fn bwd(
        &self,
        _: &Tensor,
        cosines: &Tensor,
        sines: &Tensor,
        _: &Tensor,
        slope: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let turned = Self { back: !self.back, ..*self };
        let by_numbers = slope.contiguous()?.apply_op3_no_bwd(cosines, sines, &turned)?;
        Ok((Some(by_numbers), None, None))
    }
}

/// Turns the heads of tokens (tokens, heads, numbers of a head), by the angles of each token (tokens, half as many).
pub(crate) fn turn(
    numbers: &Tensor,
    pairs: Pairs,
    [cosines, sines]: [&Tensor; 2],
) -> Result<Tensor> {
    let (_, heads, len) = numbers.dims3()?;
    numbers.contiguous()?.apply_op3(cosines, sines, Turn { pairs, heads, len, back: false })
}

/// Numbers times what another function makes of their gates.
#[derive(Clone, Copy)]
struct Gated(Activation);

impl Gated {
    /// What becomes of a gate, and its slope.
    fn open<F: Real>(self, gate: F) -> (F, F) {
        let (one, two) = (F::one(), F::one() + F::one());
        match self.0 {
            Activation::Silu => {
                let sigmoid = one / (one + (F::zero() - gate).exp());
                (gate * sigmoid, sigmoid * (one + gate * (one - sigmoid)))
            }
            Activation::Gelu => {
                let (inner, cube) =
                    (F::from_f64((2.0 / std::f64::consts::PI).sqrt()), F::from_f64(0.044_715));
                let square = cube * gate * gate;
                let tanh = one - two / (one + (two * inner * gate * (one + square)).exp());
                let half = F::from_f64(0.5);
                let slope = inner * (one + F::from_f64(3.0) * square);
                (
                    half * gate * (one + tanh),
                    half * (one + tanh + gate * (one - tanh * tanh) * slope),
                )
            }
        }
    }
}

impl Kernel<2> for Gated {
    fn run<F: Real>(&self, [gates, numbers]: [&[F]; 2]) -> Vec<F> {
        let each = gates.par_iter().zip(numbers).with_min_len(CHUNK);
        each.map(|(&gate, &number)| self.open(gate).0 * number).collect()
    }
}

/// The slopes by the gates, and after them those by the numbers.
struct GatedSlope(Gated);

impl Kernel<3> for GatedSlope {
    fn run<F: Real>(&self, [gates, numbers, slope]: [&[F]; 3]) -> Vec<F> {
        let mut made = vec![F::zero(); 2 * gates.len()];
        let (by_gates, by_numbers) = made.split_at_mut(gates.len());
        let results = by_gates.par_iter_mut().zip(by_numbers).with_min_len(CHUNK);
        let inputs = gates.par_iter().zip(numbers).zip(slope);
        results.zip(inputs).for_each(|((by_gate, by_number), ((&gate, &number), &slope))| {
            let (open, open_slope) = self.0.open(gate);
            *by_gate = slope * number * open_slope;
            *by_number = slope * open;
        });
        made
    }
}

impl CustomOp3 for GatedSlope {
    fn name(&self) -> &'static str {
        "gated-slope"
    }

    fn cpu_fwd(
        &self,
        gates: &CpuStorage,
        gates_layout: &Layout,
        numbers: &CpuStorage,
        numbers_layout: &Layout,
        slope: &CpuStorage,
        slope_layout: &Layout,
    ) -> Result<(CpuStorage, Sizes)> {
        let inputs = [(gates, gates_layout), (numbers, numbers_layout), (slope, slope_layout)];
        let (rows, width) = gates_layout.shape().dims2()?;
        Ok((run(self, inputs)?, (2, rows, width).into()))
    }
}

impl CustomOp2 for Gated {
    fn name(&self) -> &'static str {
        "gated"
    }

    fn cpu_fwd(
        &self,
        gates: &CpuStorage,
        gates_layout: &Layout,
        numbers: &CpuStorage,
        numbers_layout: &Layout,
    ) -> Result<(CpuStorage, Sizes)> {
        let made = run(self, [(gates, gates_layout), (numbers, numbers_layout)])?;
        Ok((made, gates_layout.shape().clone()))
    }

    fn bwd(
        &self,
        gates: &Tensor,
        numbers: &Tensor,
        _: &Tensor,
        slope: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let slopes = gates.apply_op3_no_bwd(numbers, &slope.contiguous()?, &GatedSlope(*self))?;
        Ok((Some(slopes.get(0)?), Some(slopes.get(1)?)))
    }
}

/// Rows of numbers, each times what the activation makes of its gate.
pub(crate) fn gated(gates: &Tensor, numbers: &Tensor, activation: Activation) -> Result<Tensor> {
    gates.apply_op2(numbers, Gated(activation))
}
