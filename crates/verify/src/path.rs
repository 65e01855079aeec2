//! One drafted path, straight from rows in memory: what an engine calls for each of its sequences.
//!
//! The verdicts are those of the [rules](crate::Rule) on the same rows and seeds, to the last bit.
//! But rows are read where they lie, as logits or weights in any precision, no draft is built, and
//! a [`PathVerifier`] that has seen rows of a size allocates nothing more. Trees are for the rules.

mod batch;
mod row;

use crate::chance::{Chance, Random, Weights};
use crate::dist::{RowError, Token};
use crate::philox::Philox;
use crate::rule::{Noise, Race, carried};

pub use batch::{Batch, BatchError, BatchVerifier, Layout};
pub use row::Values;
use row::{Drawn, Head, Reading, Rest, Row, push_rest};

/// Rows of one vocabulary in memory, logits or weights, at any distance from each other.
///
/// ```
/// use forerun_verify::{Rows, Values};
/// // Two rows of three entries, each padded to four.
/// let logits = [0.1, 0.3, 1.9, 0.0, 2.0, 0.1, 0.3, 0.0];
/// let rows = Rows::logits(Values::F32(&logits), 3, 0.7).with_stride(4);
/// assert_eq!(rows.vocab_len(), 3);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    place: Place<'a>,
    vocab_len: usize,
    reading: Reading,
}

/// Where rows are.
#[derive(Debug, Clone, Copy)]
enum Place<'a> {
    /// In one piece of memory.
    Strided { values: Values<'a>, stride: usize, sequence_stride: Option<usize> },
    /// Each at a place of its own.
    Apart(&'a [Values<'a>]),
}

impl<'a> Rows<'a> {
    /// Rows of logits, to be sampled at a temperature; at zero, the largest logit alone, the lowest
    /// id among equals. A logit of `-inf` masks its token.
    pub fn logits(values: Values<'a>, vocab_len: usize, temperature: f32) -> Self {
        let place = Place::Strided { values, stride: vocab_len, sequence_stride: None };
        Self { place, vocab_len, reading: Reading::Logits(temperature) }
    }

    /// Rows of weights: probabilities, or anything in proportion to them.
    pub fn weights(values: Values<'a>, vocab_len: usize) -> Self {
        Self { reading: Reading::Weights, ..Self::logits(values, vocab_len, 1.0) }
    }

    /// The same vocabulary and reading with each row at a place of its own.
    ///
    /// ```
    /// use forerun_verify::{Rows, Values};
    /// let (first, second) = ([0.1, 0.9], [0.5, 0.5]);
    /// let places = [Values::F32(&first), Values::F32(&second)];
    /// let rows = Rows::weights(Values::F32(&[]), 2).apart(&places);
    /// assert_eq!(rows.vocab_len(), 2);
    /// ```
    #[must_use]
    pub fn apart(self, rows: &'a [Values<'a>]) -> Self {
        Self { place: Place::Apart(rows), ..self }
    }

    /// How many numbers lie from the start of one row to the start of the next.
    ///
    /// # Panics
    /// If each row has a place of its own.
    #[must_use]
    pub fn with_stride(self, stride: usize) -> Self {
        let Place::Strided { values, sequence_stride, .. } = self.place else {
            panic!("rows apart have no stride")
        };
        Self { place: Place::Strided { values, stride, sequence_stride }, ..self }
    }

    /// How many numbers lie from the first row of one sequence to the first of the next, in a
    /// padded [`Batch`]. Without it, its rows follow each other without a gap.
    ///
    /// # Panics
    /// If each row has a place of its own.
    #[must_use]
    pub fn with_sequence_stride(self, sequence_stride: usize) -> Self {
        let Place::Strided { values, stride, .. } = self.place else {
            panic!("rows apart have no stride")
        };
        let sequence_stride = Some(sequence_stride);
        Self { place: Place::Strided { values, stride, sequence_stride }, ..self }
    }

    /// How many tokens the vocabulary has.
    pub fn vocab_len(&self) -> usize {
        self.vocab_len
    }

    /// Logits are read at this temperature; weights have none.
    fn at_temperature(self, temperature: f32) -> Self {
        match self.reading {
            Reading::Logits(_) => Self { reading: Reading::Logits(temperature), ..self },
            Reading::Weights => self,
        }
    }

    /// The numbers of a row, unless they end before it does.
    fn row(&self, index: usize) -> Option<Values<'a>> {
        match self.place {
            Place::Strided { values, stride, .. } => {
                let start = index.checked_mul(stride)?;
                let end = start.checked_add(self.vocab_len)?;
                (end <= values.len()).then(|| values.slice(start..end))
            }
            Place::Apart(rows) => {
                rows.get(index).copied().filter(|row| row.len() == self.vocab_len)
            }
        }
    }

    /// The rows of a sequence whose first one is the `first` of all.
    fn after_rows(&self, first: usize) -> Self {
        let place = match self.place {
            Place::Strided { values, stride, sequence_stride } => {
                let start = first.saturating_mul(stride).min(values.len());
                let values = values.slice(start..values.len());
                Place::Strided { values, stride, sequence_stride }
            }
            Place::Apart(rows) => Place::Apart(&rows[first.min(rows.len())..]),
        };
        Self { place, ..*self }
    }

    /// The rows of a padded sequence, with room for `room` in each.
    fn of_sequence(&self, sequence: usize, room: usize) -> Self {
        let Place::Strided { values, stride, sequence_stride: Some(gap) } = self.place else {
            return self.after_rows(sequence.saturating_mul(room));
        };
        let start = sequence.saturating_mul(gap).min(values.len());
        let values = values.slice(start..values.len());
        Self { place: Place::Strided { values, stride, sequence_stride: Some(gap) }, ..*self }
    }
}

/// One drafted path and its rows.
///
/// ```
/// use forerun_verify::*;
/// let (draft, target) = ([0.2, 0.2, 0.6], [0.1, 0.3, 1.9, 2.0, 0.1, 0.3]);
/// // Token 2 was drawn from the draft row; the target was scored before and after it.
/// let path = Path::new(
///     &[2],
///     Some(Rows::weights(Values::F32(&draft), 3)),
///     Rows::logits(Values::F32(&target), 3, 1.0),
/// );
/// let verdict = verify_path(&path, PathRule::Block, 42)?;
/// println!("{} accepted, then {:?}", verdict.accepted, verdict.next);
/// # Ok::<(), PathError>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Path<'a> {
    tokens: &'a [u32],
    draft: Option<Rows<'a>>,
    target: Rows<'a>,
    position: u64,
}

impl<'a> Path<'a> {
    /// Token `n` was drawn from draft row `n`, or was fixed if there are no draft rows. The target
    /// has one row more: the last is the one after all drafted tokens.
    pub fn new(tokens: &'a [u32], draft: Option<Rows<'a>>, target: Rows<'a>) -> Self {
        Self { tokens, draft, target, position: 0 }
    }

    /// The same path after so many committed tokens, for [`PathRule::Coupled`].
    #[must_use]
    pub fn at(self, position: u64) -> Self {
        Self { position, ..self }
    }
}

/// The rules for one path.
///
/// ```
/// # use forerun_verify::PathRule;
/// assert_eq!(PathRule::named("block"), Some(PathRule::Block));
/// assert_eq!(PathRule::named("pooled"), None);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PathRule {
    /// [`BlockRule`](crate::BlockRule): no lossless rule accepts more.
    Block,
    /// [`TokenRule`](crate::TokenRule).
    Token,
    /// [`NssRule`](crate::NssRule): draws from the target alone.
    Nss,
    /// [`CoupledRule`](crate::CoupledRule) by the [`Noise`] of the seed: the output does not depend
    /// on the draft. Needs the [position](Path::at).
    Coupled,
}

impl PathRule {
    /// All rules for one path.
    pub const ALL: [Self; 4] = [Self::Block, Self::Token, Self::Nss, Self::Coupled];

    /// The rule's name, as flags and reports say it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Token => "token",
            Self::Nss => "nss",
            Self::Coupled => "coupled",
        }
    }

    /// The rule of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rule| rule.name() == name)
    }
}

/// What was decided on a path.
///
/// ```
/// # use forerun_verify::*;
/// let target = Rows::weights(Values::F32(&[0.0, 1.0]), 2);
/// let verdict: PathVerdict = verify_path(&Path::new(&[], None, target), PathRule::Block, 7)?;
/// assert_eq!((verdict.accepted, verdict.next), (0, Token(1)));
/// # Ok::<(), PathError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct PathVerdict {
    /// How many drafted tokens are accepted.
    pub accepted: usize,
    /// The token after them.
    pub next: Token,
}

impl PathVerdict {
    /// Nothing accepted, token 0 next: what a buffer of verdicts is filled with before use.
    pub const NONE: Self = Self { accepted: 0, next: Token(0) };
}

/// Whose row is meant.
///
/// ```
/// # use forerun_verify::Side;
/// assert_eq!(Side::Target.to_string(), "target");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The drafter's.
    Draft,
    /// The target's.
    Target,
}

impl std::fmt::Display for Side {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(if *self == Self::Draft { "draft" } else { "target" })
    }
}

/// Why a path was not judged.
///
/// ```
/// # use forerun_verify::*;
/// let target = Rows::logits(Values::F32(&[0.5, f32::NAN]), 2, 1.0);
/// let error = verify_path(&Path::new(&[], None, target), PathRule::Block, 7).unwrap_err();
/// assert_eq!(error.to_string(), "target row 0: entry of token 1 is NaN");
/// ```
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// A row is no distribution.
    #[error("{side} row {row}: {error}")]
    Row {
        /// Whose row.
        side: Side,
        /// Which one of the path.
        row: usize,
        /// What is wrong with it.
        error: RowError,
    },
    /// A row is not there, or has not one number for each token.
    #[error(
        "{side} row {row} is missing or cut short; expected {rows} rows of {vocab_len} numbers"
    )]
    Short {
        /// Whose row.
        side: Side,
        /// The first that is not whole.
        row: usize,
        /// How many rows the path needs.
        rows: usize,
        /// How many numbers each has.
        vocab_len: usize,
    },
    /// Draft and target are of different vocabularies.
    #[error("draft rows have {draft} tokens and target rows {target}; expected one vocabulary")]
    Vocabulary {
        /// The draft's.
        draft: usize,
        /// The target's.
        target: usize,
    },
    /// A drafted token is outside the vocabulary.
    #[error("drafted token {index} is {token}, outside a vocabulary of {vocab_len}")]
    OutOfRange {
        /// Which one of the path.
        index: usize,
        /// The token.
        token: u32,
        /// The vocabulary's length.
        vocab_len: usize,
    },
    /// The draft row gives the token no probability, so the token was not drawn from it.
    #[error(
        "drafted token {index} is {token}, which has probability zero in draft row {index}; \
         without draft rows, tokens are fixed"
    )]
    Impossible {
        /// Which one of the path.
        index: usize,
        /// The token.
        token: u32,
    },
    /// The coupled rule chooses by a seed's noise and draws nothing.
    #[error("the coupled rule chooses by the noise of a seed; call `verify` with one")]
    NeedsSeed,
}

/// Judges one path by a seed. A [`PathVerifier`] does the same and keeps its buffers.
///
/// # Errors
/// As [`PathVerifier::verify`].
///
/// ```
/// # use forerun_verify::*;
/// let target = Rows::weights(Values::F32(&[1.0, 0.0, 0.0, 1.0]), 2);
/// let verdict = verify_path(&Path::new(&[0], None, target), PathRule::Block, 7)?;
/// assert_eq!((verdict.accepted, verdict.next), (1, Token(1)));
/// # Ok::<(), PathError>(())
/// ```
pub fn verify_path(path: &Path<'_>, rule: PathRule, seed: u64) -> Result<PathVerdict, PathError> {
    PathVerifier::new().verify(path, rule, seed)
}

/// Judges paths, one after the other, in buffers of its own: once they have grown, nothing is
/// allocated.
///
/// ```
/// use forerun_verify::*;
/// let mut verifier = PathVerifier::new();
/// let target = Rows::logits(Values::Bf16(&[0x3f80, 0x4000, 0x4000, 0x3f80]), 2, 0.0);
/// for seed in 0..10 {
///     let verdict = verifier.verify(&Path::new(&[1], None, target), PathRule::Block, seed)?;
///     assert_eq!((verdict.accepted, verdict.next), (1, Token(0)));
/// }
/// # Ok::<(), PathError>(())
/// ```
#[derive(Debug, Default)]
pub struct PathVerifier {
    /// Of the target row read last: the sum of each chunk.
    sums: Vec<f64>,
    /// Of the draft row read last.
    draft_sums: Vec<f64>,
    /// The weights of the target row and the draft row read last, while they are in cache.
    kept: [Vec<f32>; 2],
    /// Of residuals, one after the other.
    parts: Vec<f64>,
    heads: Vec<(Head, Option<Head>)>,
    /// The weight of each prefix.
    weights: Vec<f64>,
    race: Vec<(f64, Token)>,
}

impl PathVerifier {
    /// Without buffers yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Judges a path by the seeded generator, or by the seed's noise if the rule is coupled. A row
    /// that the verdict does not depend on is neither read nor checked.
    ///
    /// # Errors
    /// If rows are missing, are no distributions, or cannot have given the tokens.
    pub fn verify(
        &mut self,
        path: &Path<'_>,
        rule: PathRule,
        seed: u64,
    ) -> Result<PathVerdict, PathError> {
        match rule {
            PathRule::Coupled => {
                path.check()?;
                self.coupled(path, Noise::new(seed))
            }
            _ => self.verify_with(path, rule, &mut Random(Philox::new(seed))),
        }
    }

    /// The same by any [`Chance`], so that it can be enumerated (feature `check`) or drawn by a
    /// generator of your own.
    ///
    /// # Errors
    /// As [`PathVerifier::verify`], and if the rule is coupled.
    pub fn verify_with(
        &mut self,
        path: &Path<'_>,
        rule: PathRule,
        chance: &mut dyn Chance,
    ) -> Result<PathVerdict, PathError> {
        path.check()?;
        match rule {
            PathRule::Block => self.block(path, chance),
            PathRule::Token => self.token(path, chance),
            PathRule::Nss => self.nss(path, chance),
            PathRule::Coupled => Err(PathError::NeedsSeed),
        }
    }

    /// Reads the rows before drafted token `n` and returns its ratio of target to draft.
    fn ratio(&mut self, path: &Path<'_>, n: usize) -> Result<f64, PathError> {
        // Only a residual of two rows reads their weights again.
        let [target_kept, draft_kept] = &mut self.kept;
        let target_kept = path.draft.is_some().then_some(target_kept);
        let target = path.read_target(n, &mut self.sums, target_kept)?;
        let draft = path.read_draft(n, &mut self.draft_sums, draft_kept)?;
        let token = path.tokens[n] as usize;
        self.heads.push((target.head, draft.head()));
        Ok(target.prob(token) / draft.prob(token))
    }

    /// Works out the residual of the rows before drafted token `n`, which were read last.
    fn settle(&mut self, path: &Path<'_>, n: usize, weight: f64) {
        let (target, draft) = self.rows_before(path, n);
        push_rest((weight, target), draft, (&self.sums, &self.kept), &mut self.parts);
    }

    fn rows_before<'p>(&self, path: &Path<'p>, n: usize) -> (Row<'p>, Drawn<'p>) {
        let (target, draft) = self.heads[n];
        let target = Row { values: path.values(path.target, n), head: target };
        let draft = match (path.draft, draft) {
            (Some(rows), Some(head)) => Drawn::Row(Row { values: path.values(rows, n), head }),
            _ => Drawn::Fixed(path.tokens[n] as usize),
        };
        (target, draft)
    }

    /// The residual of the rows before drafted token `n`, the `place`-th that was settled.
    fn rest<'p>(&'p self, path: &Path<'p>, (n, weight): (usize, f64), place: usize) -> Rest<'p> {
        let (target, draft) = self.rows_before(path, n);
        let chunks = target.chunks();
        Rest::new((weight, target), draft, &self.parts[place * chunks..(place + 1) * chunks])
    }

    /// Ends after `accepted` tokens with a draw from the target.
    fn draw(
        &mut self,
        path: &Path<'_>,
        accepted: usize,
        chance: &mut dyn Chance,
    ) -> Result<PathVerdict, PathError> {
        let row = path.read_target(accepted, &mut self.sums, None)?;
        let next = row::token(chance.pick(&row.drawn_by(&self.sums)));
        Ok(PathVerdict { accepted, next })
    }

    /// Ends before drafted token `n` with a draw from the residual that was settled first; from the
    /// target where only rounding has left none.
    fn draw_rest(
        &mut self,
        path: &Path<'_>,
        n: usize,
        chance: &mut dyn Chance,
    ) -> Result<PathVerdict, PathError> {
        let rest = self.rest(path, (n, 1.0), 0);
        if rest.mass() <= 0.0 {
            return self.draw(path, n, chance);
        }
        Ok(PathVerdict { accepted: n, next: row::token(chance.pick(&rest)) })
    }

    /// As [`BlockRule`](crate::BlockRule) has it.
    fn block(
        &mut self,
        path: &Path<'_>,
        chance: &mut dyn Chance,
    ) -> Result<PathVerdict, PathError> {
        let len = path.tokens.len();
        self.heads.clear();
        self.parts.clear();
        self.weights.clear();
        self.weights.push(1.0);
        for n in 0..len {
            let weight = self.weights[n];
            // A prefix without weight has no residual and no weight below it: its rows say nothing.
            if weight <= 0.0 {
                self.weights.push(0.0);
                continue;
            }
            let ratio = self.ratio(path, n)?;
            self.weights.push(carried(weight, ratio));
            // Now, while the rows are in cache: whether it is needed is known only at the end.
            self.settle(path, n, weight);
        }
        if chance.coin(self.weights[len]) {
            return self.draw(path, len, chance);
        }
        for n in (1..len).rev() {
            let weight = self.weights[n];
            if weight <= 0.0 {
                continue;
            }
            let rest = self.rest(path, (n, weight), n);
            let left = rest.mass();
            // Without mass no token could follow, so this prefix must not be the last one.
            if left > 0.0 && chance.coin(left / (left + (1.0 - weight))) {
                return Ok(PathVerdict { accepted: n, next: row::token(chance.pick(&rest)) });
            }
        }
        self.draw_rest(path, 0, chance)
    }

    /// As [`TokenRule`](crate::TokenRule) has it.
    fn token(
        &mut self,
        path: &Path<'_>,
        chance: &mut dyn Chance,
    ) -> Result<PathVerdict, PathError> {
        self.heads.clear();
        for n in 0..path.tokens.len() {
            let ratio = self.ratio(path, n)?;
            if !chance.coin(ratio) {
                self.parts.clear();
                self.settle(path, n, 1.0);
                return self.draw_rest(path, n, chance);
            }
        }
        self.draw(path, path.tokens.len(), chance)
    }

    /// As [`NssRule`](crate::NssRule) has it.
    fn nss(&mut self, path: &Path<'_>, chance: &mut dyn Chance) -> Result<PathVerdict, PathError> {
        for (n, token) in path.tokens.iter().enumerate() {
            let verdict = self.draw(path, n, chance)?;
            if verdict.next != Token(*token) {
                return Ok(verdict);
            }
        }
        self.draw(path, path.tokens.len(), chance)
    }

    /// As [`CoupledRule`](crate::CoupledRule) has it.
    fn coupled(&mut self, path: &Path<'_>, noise: Noise) -> Result<PathVerdict, PathError> {
        for n in 0..=path.tokens.len() {
            let row = path.read_target(n, &mut self.sums, None)?;
            let position = path.position.wrapping_add(n as u64);
            let mut race = Race::new(noise, position, 1, std::mem::take(&mut self.race));
            row.each_chunk(|first, weights| race.enter_row(first, weights));
            self.race = race.finish();
            let next = self.race[0].1;
            if path.tokens.get(n) != Some(&next.0) {
                return Ok(PathVerdict { accepted: n, next });
            }
        }
        unreachable!("no token stands after the last one")
    }
}

impl<'a> Path<'a> {
    /// What can be said without reading a row.
    fn check(&self) -> Result<(), PathError> {
        let vocab_len = self.target.vocab_len;
        if let Some(draft) = self.draft.filter(|draft| draft.vocab_len != vocab_len) {
            return Err(PathError::Vocabulary { draft: draft.vocab_len, target: vocab_len });
        }
        if let Some(index) = self.tokens.iter().position(|token| *token as usize >= vocab_len) {
            return Err(PathError::OutOfRange { index, token: self.tokens[index], vocab_len });
        }
        let len = self.tokens.len();
        let sides = [(Side::Draft, self.draft, len), (Side::Target, Some(self.target), len + 1)];
        for (side, rows, count) in sides {
            let Some(rows) = rows else { continue };
            if let Some(row) = (0..count).find(|row| rows.row(*row).is_none()) {
                return Err(PathError::Short { side, row, rows: count, vocab_len });
            }
        }
        Ok(())
    }

    fn values(&self, rows: Rows<'a>, index: usize) -> Values<'a> {
        rows.row(index).expect("checked before")
    }

    fn read_target(
        &self,
        row: usize,
        sums: &mut Vec<f64>,
        kept: Option<&mut Vec<f32>>,
    ) -> Result<Row<'a>, PathError> {
        Row::read(self.values(self.target, row), self.target.reading, sums, kept)
            .map_err(|error| PathError::Row { side: Side::Target, row, error })
    }

    /// What drafted token `n` was drawn from.
    fn read_draft(
        &self,
        n: usize,
        sums: &mut Vec<f64>,
        kept: &mut Vec<f32>,
    ) -> Result<Drawn<'a>, PathError> {
        let token = self.tokens[n];
        let Some(rows) = self.draft else { return Ok(Drawn::Fixed(token as usize)) };
        let row = Row::read(self.values(rows, n), rows.reading, sums, Some(kept))
            .map_err(|error| PathError::Row { side: Side::Draft, row: n, error })?;
        match row.prob(token as usize) > 0.0 {
            true => Ok(Drawn::Row(row)),
            false => Err(PathError::Impossible { index: n, token }),
        }
    }
}
