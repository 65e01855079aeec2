//! What slots take from a target row by passing a bar on the likelihood ratio, and what they
//! leave.

use crate::chance::{Weights, locate_in};
use crate::dist::{Dist, Token};
use crate::profile::{Class, Ratio};

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

/// What the slots of one draft row take.
#[derive(Debug, Clone)]
pub(crate) struct Take<'a> {
    pub(crate) row: &'a Dist,
    pub(crate) pieces: Vec<Piece>,
}

/// What the takes and the fixed tokens leave of `scale * target`.
#[derive(Debug)]
pub(crate) struct Leftover {
    weights: Vec<(usize, f64)>,
    mass: f64,
}

impl Leftover {
    /// One pass over the target row.
    pub(crate) fn new(
        (scale, target): (f64, &Dist),
        ratio: Ratio<'_>,
        takes: Vec<Take<'_>>,
        fixed: &[Token],
    ) -> Self {
        let weights: Vec<(usize, f64)> = target
            .support()
            .filter(|(token, _)| !fixed.contains(token))
            .map(|(token, prob)| (token.index(), left_at(scale * prob, &ratio, &takes, token)))
            .collect();
        let mass = weights.iter().map(|(_, weight)| weight).sum();
        Self { weights, mass }
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

impl Weights for Leftover {
    fn mass(&self) -> f64 {
        self.mass
    }

    fn locate(&self, point: f64) -> usize {
        locate_in(self.weights.iter().copied(), point).expect("drawn from only where it has mass")
    }

    fn visit(&self, each: &mut dyn FnMut(usize, f64)) {
        self.weights.iter().filter(|(_, w)| *w > 0.0).for_each(|(index, w)| each(*index, *w));
    }
}
