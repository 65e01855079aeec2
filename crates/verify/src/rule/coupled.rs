//! The coupled rule: the output is a function of seed and target alone.

use fearless_simd::{Simd, dispatch};

use super::{Refusal, Rule, Verdict, walk};
use crate::block::Block;
use crate::chance::Chance;
use crate::dist::{Dist, Entries, Token};
use crate::draft::Draft;
use crate::philox::noise_pair;
use crate::simd::level;

/// Noise that is a function of the seed, the position in the sequence and the token: the
/// same for target and drafters, whatever the round, the batch or the machine.
///
/// A row's *choice* is the token with the smallest `noise / probability`, the noise being
/// exponential: the Gumbel-max trick, by which each choice is an exact sample of its row.
///
/// ```
/// use forerun_verify::{Dist, Noise, Token};
/// let noise = Noise::new(42);
/// let (target, drafter) = (Dist::dense(vec![0.6, 0.4])?, Dist::dense(vec![0.5, 0.5])?);
/// // Rows that are alike mostly choose alike.
/// let agree = (0..100).filter(|n| noise.choose(*n, &target) == noise.choose(*n, &drafter));
/// assert!(agree.count() > 75);
/// # Ok::<(), forerun_verify::RowError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Noise {
    seed: u64,
}

impl Noise {
    /// The noise of this seed.
    ///
    /// ```
    /// # use forerun_verify::*;
    /// assert_eq!(Noise::new(3), Noise::new(3));
    /// ```
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// The exponential variable of a position and token.
    ///
    /// ```
    /// # use forerun_verify::*;
    /// assert!(Noise::new(3).at(0, Token(5)) > 0.0);
    /// ```
    pub fn at(self, position: u64, token: Token) -> f64 {
        let bits = noise_pair(self.seed, position, token.0 / 2)[token.index() % 2];
        const STEP: f64 = 1.0 / (1u64 << 53) as f64;
        // The middle of one of 2^53 steps: never zero, never one.
        -libm::log(((bits >> 11) as f64 + 0.5) * STEP)
    }

    /// What a row chooses at a position of the sequence.
    ///
    /// ```
    /// # use forerun_verify::*;
    /// let row = Dist::point(9, Token(4))?;
    /// assert_eq!(Noise::new(3).choose(17, &row), Token(4));
    /// # Ok::<(), RowError>(())
    /// ```
    pub fn choose(self, position: u64, row: &Dist) -> Token {
        self.choose_several(position, row, 1)[0]
    }

    /// The `count` best choices of a row at a position, best first: what a drafter branches into.
    /// Fewer where the row has fewer tokens.
    ///
    /// ```
    /// # use forerun_verify::*;
    /// let row = Dist::dense(vec![0.2, 0.3, 0.5])?;
    /// let two = Noise::new(3).choose_several(0, &row, 2);
    /// assert_eq!(two[0], Noise::new(3).choose(0, &row));
    /// assert_ne!(two[0], two[1]);
    /// # Ok::<(), RowError>(())
    /// ```
    pub fn choose_several(self, position: u64, row: &Dist, count: usize) -> Vec<Token> {
        if count == 0 {
            return Vec::new();
        }
        let mut race = Race::new(self, position, count, Vec::new());
        match row.entries() {
            Entries::Dense { weights, .. } => race.enter_row(0, weights),
            Entries::Sparse { tokens, weights } => {
                for (token, weight) in tokens.iter().zip(weights) {
                    race.enter(Token(*token), *weight);
                }
            }
        }
        race.finish().into_iter().map(|(_, token)| token).collect()
    }
}

/// Tokens whose noise is made at once.
const BLOCK: usize = 64;

/// The smallest `noise / weight` so far.
pub(crate) struct Race {
    noise: Noise,
    position: u64,
    count: usize,
    best: Vec<(f64, Token)>,
}

impl Race {
    /// A race for the `count` best places, in a buffer that may have been used before.
    pub(crate) fn new(
        noise: Noise,
        position: u64,
        count: usize,
        mut best: Vec<(f64, Token)>,
    ) -> Self {
        best.clear();
        Self { noise, position, count, best }
    }

    /// The best places, best first.
    pub(crate) fn finish(self) -> Vec<(f64, Token)> {
        self.best
    }

    /// Enters the weights of neighbouring tokens; the first is a multiple of [`BLOCK`].
    pub(crate) fn enter_row(&mut self, first: usize, weights: &[f32]) {
        debug_assert_eq!(first % BLOCK, 0, "noise is made in blocks");
        for (block, weights) in weights.chunks(BLOCK).enumerate() {
            self.enter_block(first / BLOCK + block, weights);
        }
    }

    fn enter(&mut self, token: Token, weight: f32) {
        if weight <= 0.0 {
            return;
        }
        let arrival = self.noise.at(self.position, token) / f64::from(weight);
        // Equal arrivals go to the lower id, which came first.
        let place = self.best.partition_point(|(best, _)| *best <= arrival);
        if place < self.count {
            self.best.truncate(self.count - 1);
            self.best.insert(place, (arrival, token));
        }
    }

    /// An arrival that any further token must beat.
    fn bar(&self) -> f64 {
        if self.best.len() < self.count { f64::INFINITY } else { self.best[self.count - 1].0 }
    }

    /// Only tokens that may win are worth a logarithm: `-ln(u)` is at least `1 - u`, so a bound on
    /// the noise comes from its bits alone.
    fn enter_block(&mut self, block: usize, weights: &[f32]) {
        let first = Token::at(block * BLOCK);
        // Raised to stay a bound through rounding, even where the bar is no normal number.
        #[expect(clippy::cast_possible_truncation, reason = "raised to stay a bound")]
        let bar = (self.bar() * (1.0 + 1e-6)) as f32 + f32::MIN_POSITIVE;
        let noise = (self.noise.seed, self.position);
        let hopeful = dispatch!(level(), simd => hopefuls(simd, noise, first, weights, bar));
        if hopeful != 0 {
            for (index, &weight) in weights.iter().enumerate() {
                if hopeful >> index & 1 == 1 {
                    self.enter(Token::at(first.index() + index), weight);
                }
            }
        }
    }
}

/// One bit for each token whose noise may be below `bar * weight`.
#[inline(always)]
fn hopefuls<S: Simd>(
    _: S,
    (seed, position): (u64, u64),
    first: Token,
    weights: &[f32],
    bar: f32,
) -> u64 {
    /// Two to the -32, less a rounding.
    const STEP: f32 = 2.328_303e-10;
    let mut least = [0.0; BLOCK];
    for (pair, least) in (first.0 / 2..).zip(least.as_chunks_mut::<2>().0) {
        let bits = noise_pair(seed, position, pair);
        let bound = |bits: u64| !((bits >> 32) as u32) as f32 * STEP;
        *least = [bound(bits[0]), bound(bits[1])];
    }
    let mut hopeful = 0;
    for (index, (&weight, least)) in weights.iter().zip(least).enumerate() {
        hopeful |= u64::from((weight > 0.0) & (least <= bar * weight)) << index;
    }
    hopeful
}

/// The coupled, drafter-invariant rule (Daliri, Musco and Suresh, arXiv 2408.07978): target and
/// drafter choose by the same [`Noise`], and a drafted token is accepted when it is the target's
/// own choice. On a tree, the walk goes on along any path that holds the target's choice.
///
/// **Theorem.** Every token is the target's choice at its position, an exact sample of its row by
/// noise that no other position uses; so the output has the target's distribution, and is a
/// function of seed, prompt and target alone: not of drafters, draft lengths, paths, batches, or
/// where a resumed request begins. Lossless for any draft. Per token, rows at total variation `d`
/// agree with probability at least `(1 - d) / (1 + d)`, against `1 - d` for token verification:
/// that is the price of reproducible output.
///
/// The block must know its position ([`Block::at`]). The `chance` given to [`Rule::verify`] is not
/// used.
///
/// ```
/// use forerun_verify::*;
/// let noise = Noise::new(42);
/// let row = |weights: [f32; 3]| Dist::dense(weights.to_vec()).unwrap();
/// let (drafter, target) = (row([0.5, 0.3, 0.2]), row([0.4, 0.4, 0.2]));
/// let guess = noise.choose(7, &drafter);
/// let draft = Draft::fixed_path(3, [guess])?;
/// let rows = [target.clone(), target.clone()];
/// let block = Block::new(&draft, &rows)?.at(7);
/// let verdict = CoupledRule { noise }.verify(&block, &mut Random(Philox::new(0)))?;
/// let output = [draft.path_to(verdict.node), vec![verdict.next]].concat();
/// // What is said does not depend on what was drafted.
/// assert_eq!(output[0], noise.choose(7, &target));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct CoupledRule {
    /// The noise of the request's seed.
    pub noise: Noise,
}

impl Rule for CoupledRule {
    fn name(&self) -> &'static str {
        "coupled"
    }

    fn admits(&self, _: &Draft) -> Result<(), Refusal> {
        Ok(())
    }

    fn noise(&self) -> Option<Noise> {
        Some(self.noise)
    }

    fn decide(&self, block: &Block<'_>, _: &mut dyn Chance) -> Verdict {
        walk(block, |node| {
            let position = block.position().wrapping_add(block.draft().depth(node) as u64);
            self.noise.choose(position, block.target(node))
        })
    }
}
