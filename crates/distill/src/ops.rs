//! What a block of the llama family is made of, each operation with its gradient.
//!
//! Gradients are written by hand, so that what they take is known beforehand and nothing is left out
//! in silence; `model.rs` compares them with differences. A batch has its sequences one after the
//! other, without padding. Sums run in a fixed order, so that the same numbers give the same bits.

use rayon::prelude::*;

use crate::matrix::{Matrix, Real, Threads, multiply};

/// Rows whose share of a sum over rows is added up by itself.
const SUM_ROWS: usize = 64;

/// Which numbers of a head are turned together by the rotary embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairs {
    /// Neighbours, as in files of the llama architecture.
    Neighbours,
    /// One of each half, as in those of qwen2.
    Halves,
}

/// The rotary embedding: how far each pair is turned at each position.
#[derive(Debug)]
pub struct Rotary<F> {
    pairs: Pairs,
    half: usize,
    // Cosine and sine, for each position and pair.
    turns: Vec<(F, F)>,
}

impl<F: Real> Rotary<F> {
    /// For heads of `head` numbers and positions below `len`.
    pub fn new(pairs: Pairs, head: usize, base: f64, len: usize) -> Self {
        let half = head / 2;
        let turn = |at: usize| {
            let speed = base.powf(-2.0 * (at % half) as f64 / head as f64);
            let (sine, cosine) = ((at / half) as f64 * speed).sin_cos();
            (F::of(cosine), F::of(sine))
        };
        Self { pairs, half, turns: (0..len * half).map(turn).collect() }
    }

    /// Turns a head's numbers at a position, or back.
    fn turn(&self, numbers: &mut [F], position: usize, back: bool) {
        let turns = &self.turns[position * self.half..][..self.half];
        for (pair, &(cosine, sine)) in turns.iter().enumerate() {
            let (one, two) = match self.pairs {
                Pairs::Neighbours => (2 * pair, 2 * pair + 1),
                Pairs::Halves => (pair, pair + self.half),
            };
            let sine = if back { -sine } else { sine };
            let (a, b) = (numbers[one], numbers[two]);
            numbers[one] = a * cosine - b * sine;
            numbers[two] = a * sine + b * cosine;
        }
    }
}

/// Scales rows to a mean square of one, and each number by its weight. Gives the rows and what each
/// was scaled by.
pub fn norm<F: Real>(rows: &[F], weight: &[F], epsilon: F) -> (Vec<F>, Vec<F>) {
    let width = weight.len();
    let mut out = vec![F::ZERO; rows.len()];
    let mut scales = vec![F::ZERO; rows.len() / width];
    let each = out.par_chunks_mut(width).zip(rows.par_chunks(width)).zip(&mut scales);
    each.for_each(|((out, row), scale)| {
        let squares: F = row.iter().map(|&x| x * x).sum();
        *scale = F::ONE / (squares / F::of(width as f64) + epsilon).sqrt();
        for ((out, &x), &weight) in out.iter_mut().zip(row).zip(weight) {
            *out = x * *scale * weight;
        }
    });
    (out, scales)
}

/// The gradient of [`norm`]: added to that of its rows and to that of its weight.
pub fn norm_back<F: Real>(
    from: &[F],
    (rows, scales): (&[F], &[F]),
    weight: &[F],
    to_rows: &mut [F],
    to_weight: &mut [F],
) {
    let width = weight.len();
    let many = SUM_ROWS * width;
    let parts: Vec<Vec<F>> = (to_rows.par_chunks_mut(many), from.par_chunks(many))
        .into_par_iter()
        .zip((rows.par_chunks(many), scales.par_chunks(SUM_ROWS)).into_par_iter())
        .map(|((to_rows, from), (rows, scales))| {
            let mut part = vec![F::ZERO; width];
            let each = to_rows.chunks_mut(width).zip(from.chunks(width)).zip(rows.chunks(width));
            for (((to, from), row), &scale) in each.zip(scales) {
                let mut along = F::ZERO;
                for at in 0..width {
                    let straight = row[at] * scale;
                    part[at] += from[at] * straight;
                    along += from[at] * weight[at] * straight;
                }
                along = along / F::of(width as f64);
                for at in 0..width {
                    to[at] += scale * (from[at] * weight[at] - row[at] * scale * along);
                }
            }
            part
        })
        .collect();
    add_all(to_weight, &parts);
}

/// Rows times a matrix that has a row for each output, plus a bias.
pub fn linear<F: Real>(rows: &[F], weight: &[F], bias: Option<&[F]>, inputs: usize) -> Vec<F> {
    let (count, outputs) = (rows.len() / inputs, weight.len() / inputs);
    let mut out = vec![F::ZERO; count * outputs];
    let weight = Matrix::new(weight, outputs, inputs).transposed();
    multiply(&mut out, (Matrix::new(rows, count, inputs), weight), F::ONE, false, Threads::All);
    if let Some(bias) = bias {
        out.par_chunks_mut(outputs).for_each(|row| add(row, bias));
    }
    out
}

/// The gradient of [`linear`], by its rows: added to it.
pub fn linear_back<F: Real>(from: &[F], weight: &[F], outputs: usize, to_rows: &mut [F]) {
    let (count, inputs) = (from.len() / outputs, weight.len() / outputs);
    let pair = (Matrix::new(from, count, outputs), Matrix::new(weight, outputs, inputs));
    multiply(to_rows, pair, F::ONE, true, Threads::All);
}

/// The gradient of [`linear`], by its matrix: added to it.
pub fn weight_back<F: Real>(from: &[F], rows: &[F], inputs: usize, to_weight: &mut [F]) {
    let count = rows.len() / inputs;
    let outputs = from.len() / count;
    let pair = (Matrix::new(from, count, outputs).transposed(), Matrix::new(rows, count, inputs));
    multiply(to_weight, pair, F::ONE, true, Threads::All);
}

/// The gradient of [`linear`], by its bias: added to it.
pub fn bias_back<F: Real>(from: &[F], to_bias: &mut [F]) {
    let outputs = to_bias.len();
    let sum = |rows: &[F]| {
        let mut part = vec![F::ZERO; outputs];
        rows.chunks(outputs).for_each(|row| add(&mut part, row));
        part
    };
    let parts: Vec<Vec<F>> = from.par_chunks(SUM_ROWS * outputs).map(sum).collect();
    add_all(to_bias, &parts);
}

/// How a batch's heads lie: for each sequence each head, in it each token, in it the head's numbers.
#[derive(Debug, Clone, Copy)]
pub struct Heads<'a> {
    /// Tokens of each sequence.
    pub lens: &'a [usize],
    /// Heads of each token.
    pub count: usize,
    /// Numbers of each head.
    pub len: usize,
}

impl Heads<'_> {
    /// Where a token's heads lie, as (place among tokens, position, place of the first head, stride).
    fn tokens(&self) -> impl Iterator<Item = (usize, usize, usize, usize)> {
        let (count, len) = (self.count, self.len);
        let starts = self.lens.iter().scan(0, |next, &tokens| {
            let start = *next;
            *next += tokens;
            Some((start, tokens))
        });
        starts.flat_map(move |(start, tokens)| {
            (0..tokens).map(move |position| {
                let first = start * count * len + position * len;
                (start + position, position, first, tokens * len)
            })
        })
    }

    /// From token by token to head by head, turned where there is a rotary embedding.
    pub fn split<F: Real>(&self, rows: &[F], rotary: Option<&Rotary<F>>) -> Vec<F> {
        let mut out = vec![F::ZERO; rows.len()];
        for (token, position, first, stride) in self.tokens() {
            for head in 0..self.count {
                let to = &mut out[first + head * stride..][..self.len];
                to.copy_from_slice(&rows[(token * self.count + head) * self.len..][..self.len]);
                if let Some(rotary) = rotary {
                    rotary.turn(to, position, false);
                }
            }
        }
        out
    }

    /// The way back, which is also the gradient of the way there.
    pub fn join<F: Real>(&self, heads: &[F], rotary: Option<&Rotary<F>>) -> Vec<F> {
        let mut out = vec![F::ZERO; heads.len()];
        for (token, position, first, stride) in self.tokens() {
            for head in 0..self.count {
                let to = &mut out[(token * self.count + head) * self.len..][..self.len];
                to.copy_from_slice(&heads[first + head * stride..][..self.len]);
                if let Some(rotary) = rotary {
                    rotary.turn(to, position, true);
                }
            }
        }
        out
    }

    /// The pieces of a buffer that belong to each sequence and group of heads, `groups` of them.
    fn pieces<'a, F>(&self, groups: usize, mut buffer: &'a mut [F]) -> Vec<&'a mut [F]> {
        let mut pieces = Vec::with_capacity(self.lens.len() * groups);
        for &tokens in self.lens {
            for _ in 0..groups {
                let (piece, rest) = buffer.split_at_mut(tokens * self.count / groups * self.len);
                pieces.push(piece);
                buffer = rest;
            }
        }
        pieces
    }
}

/// Queries, keys and values, head by head.
#[derive(Debug)]
pub struct Attended<F> {
    /// Turned queries.
    pub queries: Vec<F>,
    /// Turned keys.
    pub keys: Vec<F>,
    /// Values.
    pub values: Vec<F>,
}

/// What attention sees of each sequence and each head of keys: the heads of queries that share it, one
/// after the other.
struct Group<'a, F> {
    queries: &'a [F],
    keys: &'a [F],
    values: &'a [F],
    tokens: usize,
    len: usize,
}

impl<F: Real> Group<'_, F> {
    fn rows(&self) -> usize {
        self.queries.len() / self.len
    }

    fn scale(&self) -> F {
        F::ONE / F::of(self.len as f64).sqrt()
    }

    /// How much each query attends to each key, with nothing for those that come later.
    fn weights(&self) -> Vec<F> {
        let tokens = self.tokens;
        let mut weights = vec![F::ZERO; self.rows() * tokens];
        let pair = (
            Matrix::new(self.queries, self.rows(), self.len),
            Matrix::new(self.keys, tokens, self.len).transposed(),
        );
        multiply(&mut weights, pair, self.scale(), false, Threads::One);
        for (row, weights) in weights.chunks_mut(tokens).enumerate() {
            let (seen, later) = weights.split_at_mut(row % tokens + 1);
            let most = seen.iter().fold(seen[0], |most, &it| if it > most { it } else { most });
            seen.iter_mut().for_each(|it| *it = (*it - most).exp());
            let share = F::ONE / seen.iter().copied().sum();
            seen.iter_mut().for_each(|it| *it *= share);
            later.fill(F::ZERO);
        }
        weights
    }
}

impl<F: Real> Attended<F> {
    /// The groups, in the order of [`Heads::pieces`].
    fn groups<'a>(&'a self, queries: Heads<'a>, keys: Heads<'a>) -> Vec<Group<'a, F>> {
        let shared = queries.count / keys.count;
        let mut groups = Vec::new();
        let mut start = 0;
        for &tokens in queries.lens {
            for head in 0..keys.count {
                let at = (start * keys.count + head * tokens) * keys.len;
                let len = tokens * keys.len;
                groups.push(Group {
                    queries: &self.queries[at * shared..][..len * shared],
                    keys: &self.keys[at..][..len],
                    values: &self.values[at..][..len],
                    tokens,
                    len: keys.len,
                });
            }
            start += tokens;
        }
        groups
    }

    /// The mix of values that each query attends to, head by head.
    pub fn mix(&self, queries: Heads<'_>, keys: Heads<'_>) -> Vec<F> {
        let mut out = vec![F::ZERO; self.queries.len()];
        let pieces = queries.pieces(keys.count, &mut out);
        let groups = self.groups(queries, keys);
        groups.into_par_iter().zip(pieces).for_each(|(group, out)| {
            let weights = group.weights();
            let pair = (
                Matrix::new(&weights, group.rows(), group.tokens),
                Matrix::new(group.values, group.tokens, group.len),
            );
            multiply(out, pair, F::ONE, false, Threads::One);
        });
        out
    }

    /// The gradient of [`Attended::mix`] by queries, keys and values. Weights are computed again, which
    /// takes less than keeping them.
    pub fn mix_back(&self, from: &[F], queries: Heads<'_>, keys: Heads<'_>) -> Self {
        let zeros = |like: &[F]| vec![F::ZERO; like.len()];
        let mut to = Self {
            queries: zeros(&self.queries),
            keys: zeros(&self.keys),
            values: zeros(&self.values),
        };
        let pieces = queries
            .pieces(keys.count, &mut to.queries)
            .into_iter()
            .zip(keys.pieces(keys.count, &mut to.keys))
            .zip(keys.pieces(keys.count, &mut to.values));
        let mut at = 0;
        let froms = self.groups(queries, keys).into_iter().map(|group| {
            let piece = &from[at..][..group.queries.len()];
            at += piece.len();
            (group, piece)
        });
        let all: Vec<_> = froms.zip(pieces).collect();
        all.into_par_iter().for_each(|((group, from), ((to_queries, to_keys), to_values))| {
            let (rows, tokens, len) = (group.rows(), group.tokens, group.len);
            let weights = group.weights();
            let from = Matrix::new(from, rows, len);
            let by_weight = Matrix::new(&weights, rows, tokens).transposed();
            multiply(to_values, (by_weight, from), F::ONE, false, Threads::One);
            let mut slopes = zeros(&weights);
            let values = Matrix::new(group.values, tokens, len).transposed();
            multiply(&mut slopes, (from, values), F::ONE, false, Threads::One);
            for (slopes, weights) in slopes.chunks_mut(tokens).zip(weights.chunks(tokens)) {
                let mean: F = slopes.iter().zip(weights).map(|(&a, &b)| a * b).sum();
                for (slope, &weight) in slopes.iter_mut().zip(weights) {
                    *slope = weight * (*slope - mean);
                }
            }
            let slopes = Matrix::new(&slopes, rows, tokens);
            let pair = (slopes, Matrix::new(group.keys, tokens, len));
            multiply(to_queries, pair, group.scale(), false, Threads::One);
            let pair = (slopes.transposed(), Matrix::new(group.queries, rows, len));
            multiply(to_keys, pair, group.scale(), false, Threads::One);
        });
        to
    }
}

/// The gated activation of a feed-forward layer (SwiGLU).
pub fn gate<F: Real>(gates: &[F], ups: &[F]) -> Vec<F> {
    let each = gates.par_iter().zip(ups);
    each.with_min_len(4096).map(|(&gate, &up)| gate * up / (F::ONE + (-gate).exp())).collect()
}

/// The gradient of [`gate`], in place of the gates and the ups.
pub fn gate_back<F: Real>(from: &[F], gates: &mut [F], ups: &mut [F]) {
    let each = from.par_iter().zip(gates).zip(ups);
    each.with_min_len(4096).for_each(|((&from, gate), up)| {
        let share = F::ONE / (F::ONE + (-*gate).exp());
        let slope = share * (F::ONE + *gate * (F::ONE - share));
        (*gate, *up) = (from * *up * slope, from * *gate * share);
    });
}

/// Adds numbers one by one.
pub fn add<F: Real>(to: &mut [F], from: &[F]) {
    to.iter_mut().zip(from).for_each(|(to, &from)| *to += from);
}

fn add_all<F: Real>(to: &mut [F], parts: &[Vec<F>]) {
    parts.iter().for_each(|part| add(to, part));
}
