//! What is left of a target row when draft rows are taken from it: the distribution of the
//! token after the accepted ones.
//!
//! Every published rule's residual, however often it is renormalised on paper, is
//! `relu(scale * target - sum of coefficient * draft row)` for some scalars, because
//! `relu(relu(a) - b) = relu(a - b)` for non-negative `b`. So no row is ever modified: one pass
//! gives the mass, and a draw reads one chunk again.

use crate::chance::{Chance, Weights};
use crate::dist::{Cursor, Dist, Entries, Token};
use crate::draft::Proposal;
use crate::simd::{CHUNK, residual_sums};

/// `relu(scale * target - sum of coefficient * row)`, with its mass: what the next token is drawn
/// from where a draft is not accepted further. For rules written elsewhere too.
///
/// ```
/// use forerun_verify::*;
/// let target = Dist::dense(vec![0.5, 0.25, 0.25])?;
/// let draft = Dist::dense(vec![0.25, 0.5, 0.25])?;
/// let residual = Residual::new((1.0, &target), [(1.0, Proposal::Row(&draft))]);
/// assert_eq!((residual.mass(), residual.weight(Token(0))), (0.25, 0.25));
/// assert_eq!(residual.draw(&mut Random(Philox::new(1))), Token(0));
/// # Ok::<(), RowError>(())
/// ```
#[derive(Debug)]
pub struct Residual<'a> {
    target: &'a Dist,
    scale: f64,
    terms: Vec<(f64, Proposal<'a>)>,
    mass: f64,
    /// Of a dense target: the sum of each chunk. Of a sparse one: the weight of each entry.
    parts: Vec<f64>,
}

impl<'a> Residual<'a> {
    /// Takes `coefficient * draft` from `scale * target`, of each term. Coefficients are zero or
    /// more.
    pub fn new(
        (scale, target): (f64, &'a Dist),
        terms: impl IntoIterator<Item = (f64, Proposal<'a>)>,
    ) -> Self {
        let mut residual = Self {
            target,
            scale,
            terms: terms.into_iter().collect(),
            mass: 0.0,
            parts: Vec::new(),
        };
        residual.parts = match target.entries() {
            Entries::Dense { weights, sums } => residual.chunk_sums(weights, sums),
            Entries::Sparse { tokens, weights } => residual.entry_weights(tokens, weights),
        };
        residual.mass = residual.parts.iter().sum();
        residual
    }

    fn chunk_sums(&self, weights: &[f32], sums: &[f64]) -> Vec<f64> {
        if let [(coefficient, Proposal::Row(draft))] = self.terms[..]
            && let Entries::Dense { weights: draft_weights, .. } = draft.entries()
        {
            let scale = self.scale * self.target.unit();
            let take = coefficient * draft.unit();
            return residual_sums(weights, draft_weights, (scale, take));
        }
        let scale = self.scale * self.target.unit();
        let mut parts: Vec<f64> = sums.iter().map(|sum| sum * scale).collect();
        for chunk in self.touched(parts.len()) {
            parts[chunk] =
                self.target.chunk(chunk).map(|index| self.weight(Token::at(index))).sum();
        }
        parts
    }

    /// The weight of each entry of a sparse target, bit for bit as [`Residual::weight`] has it.
    fn entry_weights(&self, tokens: &[u32], weights: &[f32]) -> Vec<f64> {
        let scale = self.scale * self.target.unit();
        let mut parts: Vec<f64> = weights.iter().map(|weight| f64::from(*weight) * scale).collect();
        for (coefficient, draft) in &self.terms {
            let take = coefficient * draft.unit();
            match draft {
                Proposal::Fixed(token) => {
                    if let Ok(place) = tokens.binary_search(&token.0) {
                        parts[place] -= take;
                    }
                }
                Proposal::Row(row) => {
                    let mut cursor = Cursor::new(row);
                    for (part, token) in parts.iter_mut().zip(tokens) {
                        *part -= f64::from(cursor.weight(Token(*token))) * take;
                    }
                }
            }
        }
        parts.iter_mut().for_each(|part| *part = part.max(0.0));
        parts
    }

    /// The chunks in which some term takes anything.
    fn touched(&self, chunks: usize) -> Vec<usize> {
        let mut touched = vec![false; chunks];
        for (_, draft) in &self.terms {
            match draft {
                Proposal::Fixed(token) => touched[token.index() / CHUNK] = true,
                Proposal::Row(row) => match row.entries() {
                    Entries::Dense { .. } => touched.fill(true),
                    Entries::Sparse { tokens, .. } => {
                        tokens.iter().for_each(|token| touched[*token as usize / CHUNK] = true);
                    }
                },
            }
        }
        (0..chunks).filter(|chunk| touched[*chunk]).collect()
    }

    /// Draws the next token; from the target where nothing is left, which only rounding can reach.
    pub fn draw(&self, chance: &mut dyn Chance) -> Token {
        match self.mass > 0.0 {
            true => Token::at(chance.pick(self)),
            false => self.target.draw(chance),
        }
    }

    /// The weight of one token.
    pub fn weight(&self, token: Token) -> f64 {
        // The very products of the fused pass, so that a draw agrees with the sums to the bit.
        let target = f64::from(self.target.weight(token)) * (self.scale * self.target.unit());
        let take = |(coefficient, draft): &(f64, Proposal<'_>)| {
            draft.weight(token) * (coefficient * draft.unit())
        };
        self.terms.iter().map(take).fold(target, |left, take| left - take).max(0.0)
    }
}

impl Weights for Residual<'_> {
    fn mass(&self) -> f64 {
        self.mass
    }

    fn locate(&self, point: f64) -> usize {
        self.target.locate_part(&self.parts, point, |index| self.weight(Token::at(index)))
    }

    fn visit(&self, each: &mut dyn FnMut(usize, f64)) {
        self.target.visit_with(|index| self.weight(Token::at(index)), each);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(len: usize, step: usize) -> Vec<f32> {
        (0..len).map(|i| 1.0 / (1.0 + ((i * step) % 97) as f32)).collect()
    }

    /// Dense and sparse forms of one pair of rows, in every combination.
    #[test]
    fn the_form_of_a_row_changes_nothing() {
        let len = 1_500;
        let forms = |weights: &[f32]| {
            let entries = weights.iter().enumerate().map(|(i, w)| (Token::at(i), *w));
            [Dist::dense(weights.to_vec()).unwrap(), Dist::sparse(len, entries).unwrap()]
        };
        let (target, one, two) = (row(len, 7), row(len, 31), row(len, 55));
        let mut masses = Vec::new();
        for target in &forms(&target) {
            for one in &forms(&one) {
                for two in &forms(&two) {
                    let residual = Residual::new(
                        (0.9, target),
                        [(0.5, Proposal::Row(one)), (0.2, Proposal::Row(two))],
                    );
                    let mut visited = 0.0;
                    residual.visit(&mut |_, weight| visited += weight);
                    assert!((visited - residual.mass()).abs() < 1e-12);
                    let places = [0.0, 0.25, 0.5, 0.99].map(|u| residual.locate(u * visited));
                    masses.push((residual.mass(), places));
                }
            }
        }
        for (mass, places) in &masses {
            assert!((mass - masses[0].0).abs() < 1e-12);
            assert_eq!(places, &masses[0].1);
        }
    }
}
