//! What candidates take from a target row by passing a bar on the likelihood ratio, and what they
//! leave.

use crate::chance::Weights;
use crate::dist::{Dist, Entries, Token};
use crate::profile::{Class, Ratio, capped};
use crate::simd::{CHUNK, pair_sums};

/// The tokens of a class are taken in the measure `amount * min(1, ratio / bar)` of their draft
/// probability.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) class: Class,
    pub(crate) bar: f64,
    pub(crate) amount: f64,
}

impl Piece {
    /// The chance that a drawn token of this ratio passes the bar; zero outside the class.
    pub(crate) fn passes(&self, ratio: f64) -> f64 {
        if self.class.holds(ratio) { (ratio / self.bar).min(1.0) } else { 0.0 }
    }
}

/// What the candidates of one draft row take.
#[derive(Debug, Clone)]
pub(crate) struct Take<'a> {
    pub(crate) row: &'a Dist,
    pub(crate) pieces: Vec<Piece>,
}

/// What the takes and the fixed tokens leave of `scale * target`.
#[derive(Debug)]
pub(crate) struct Leftover<'a> {
    target: &'a Dist,
    scale: f64,
    ratio: &'a Ratio<'a>,
    takes: &'a [Take<'a>],
    fixed: &'a [Token],
    mass: f64,
    /// Of a dense target: the sum of each chunk. Of a sparse one: the weight of each entry.
    parts: Vec<f64>,
}

impl<'a> Leftover<'a> {
    /// One pass over the target row.
    pub(crate) fn new(
        (scale, target): (f64, &'a Dist),
        ratio: &'a Ratio<'a>,
        takes: &'a [Take<'a>],
        fixed: &'a [Token],
    ) -> Self {
        let mut leftover =
            Self { target, scale, ratio, takes, fixed, mass: 0.0, parts: Vec::new() };
        leftover.parts = match (target.entries(), ratio.as_quotient()) {
            (Entries::Sparse { tokens, .. }, _) => {
                tokens.iter().map(|token| leftover.weight(*token as usize)).collect()
            }
            (_, Some(rows)) if fixed.is_empty() => leftover.quotient_sums(rows),
            (Entries::Dense { weights, .. }, _) => (0..weights.len().div_ceil(CHUNK))
                .map(|chunk| target.chunk(chunk).map(|index| leftover.weight(index)).sum())
                .collect(),
        };
        leftover.mass = leftover.parts.iter().sum();
        leftover
    }

    /// The sums of all chunks, where one dense row faces a dense target.
    fn quotient_sums(&self, (target, draft, factor): (&[f32], &[f32], f32)) -> Vec<f64> {
        let (scale, take) = (self.scale * self.target.unit(), &self.takes[0]);
        let (unit, pieces) = (take.row.unit(), &take.pieces[..]);
        pair_sums(target, draft, move |target, draft| {
            let ratio = f64::from(capped(target, draft, factor));
            let mut passing = 0.0;
            for piece in pieces {
                passing += piece.amount * piece.passes(ratio);
            }
            let left = f64::from(target) * scale - f64::from(draft) * unit * passing;
            if left > 0.0 { left } else { 0.0 }
        })
    }

    fn weight(&self, index: usize) -> f64 {
        let token = Token::at(index);
        if self.fixed.contains(&token) {
            return 0.0;
        }
        let whole = f64::from(self.target.weight(token)) * (self.scale * self.target.unit());
        left_at(whole, self.ratio, self.takes, token)
    }
}

/// What the takes leave at one token.
pub(crate) fn left_at(whole: f64, ratio: &Ratio<'_>, takes: &[Take<'_>], token: Token) -> f64 {
    let ratio = ratio.at(token);
    let taken = |take: &Take<'_>| {
        let passing = take.pieces.iter().map(|piece| piece.amount * piece.passes(ratio));
        take.row.prob(token) * passing.sum::<f64>()
    };
    (whole - takes.iter().map(taken).sum::<f64>()).max(0.0)
}

impl Weights for Leftover<'_> {
    fn mass(&self) -> f64 {
        self.mass
    }

    fn locate(&self, point: f64) -> usize {
        self.target.locate_part(&self.parts, point, |index| self.weight(index))
    }

    fn visit(&self, each: &mut dyn FnMut(usize, f64)) {
        self.target.visit_with(|index| self.weight(index), each);
    }
}
