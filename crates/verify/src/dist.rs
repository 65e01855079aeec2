//! Tokens and checked probability rows, dense and sparse.
//!
//! A [`Dist`] is refused at construction unless it is a distribution, so no rule behind it ever
//! meets a NaN. Truncation and penalties are the caller's: rows arrive as they are to be sampled.

mod softmax;

pub(crate) use softmax::{HEADROOM, exp, exp_chunk, highest};

use crate::chance::{Chance, Weights, locate_in};
use crate::simd::{CHUNK, checked_sums};

/// A token id, below the length of its vocabulary.
///
/// ```
/// # use forerun_verify::Token;
/// assert_eq!(Token(3).index(), 3);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u32);

impl Token {
    /// The id as an index into a row.
    ///
    /// ```
    /// # use forerun_verify::Token;
    /// assert_eq!(Token(3).index(), 3);
    /// ```
    pub fn index(self) -> usize {
        self.0 as usize
    }

    pub(crate) fn at(index: usize) -> Self {
        Self(u32::try_from(index).expect("rows are no longer than u32 allows"))
    }
}

/// Why a row is no distribution.
///
/// ```
/// # use forerun_verify::{Dist, RowError, Token};
/// assert_eq!(Dist::dense(vec![0.5, f32::NAN]), Err(RowError::Nan { token: Token(1) }));
/// ```
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RowError {
    /// The row has no entries.
    #[error("row is empty; expected one entry for each token")]
    Empty,
    /// Every weight is zero, or every logit is masked.
    #[error("row has no mass: every entry is zero or masked; expected at least one above")]
    NoMass,
    /// An entry is not a number.
    #[error("entry of token {} is NaN", token.0)]
    Nan {
        /// Whose entry it is.
        token: Token,
    },
    /// An entry is infinite. A logit of `-inf` is a mask and allowed.
    #[error("entry of token {} is infinite", token.0)]
    Infinite {
        /// Whose entry it is.
        token: Token,
    },
    /// A weight is below zero.
    #[error("weight of token {} is {weight}; expected zero or more", token.0)]
    Negative {
        /// Whose weight it is.
        token: Token,
        /// What it is.
        weight: f32,
    },
    /// A token is outside the vocabulary.
    #[error("token {} is outside a vocabulary of {vocab_len}", token.0)]
    OutOfRange {
        /// The token.
        token: Token,
        /// The vocabulary's length.
        vocab_len: usize,
    },
    /// A sparse row names a token twice.
    #[error("token {} appears twice in a sparse row", token.0)]
    Duplicate {
        /// The token.
        token: Token,
    },
    /// The temperature is not a positive finite number; at zero, use [`Dist::argmax`].
    #[error("temperature is {temperature}; expected above zero and finite")]
    Temperature {
        /// What was given.
        temperature: f32,
    },
    /// A top-k row was to have no tokens.
    #[error("top-k of 0 tokens leaves no row; expected at least 1")]
    TopNone,
}

/// A probability row over a vocabulary: non-negative weights of positive total.
///
/// Weights need not add up to one: a probability is a weight over the [mass](Dist::mass), so a
/// softmax needs no second pass. A sparse row costs in proportion to its entries everywhere.
///
/// # Precision
/// Weights are `f32`, sums and probabilities `f64`. The row *is* what is stored: draw a draft
/// token from the same row that is later handed to a rule and rounding cannot bias the output.
///
/// ```
/// use forerun_verify::{Dist, Token};
/// let row = Dist::dense(vec![1.0, 3.0])?;
/// assert_eq!(row.prob(Token(1)), 0.75);
/// # Ok::<(), forerun_verify::RowError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Dist {
    vocab_len: usize,
    entries: Entries,
    mass: f64,
    /// One over the mass.
    unit: f64,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Entries {
    Dense { weights: Vec<f32>, sums: Vec<f64> },
    Sparse { tokens: Vec<u32>, weights: Vec<f32> },
}

impl Dist {
    /// A row with a weight for every token of the vocabulary.
    ///
    /// # Errors
    /// If the weights are no distribution.
    ///
    /// ```
    /// # use forerun_verify::{Dist, RowError, Token};
    /// assert_eq!(Dist::dense(vec![0.2, 0.8])?.vocab_len(), 2);
    /// assert_eq!(Dist::dense(vec![0.0, 0.0]), Err(RowError::NoMass));
    /// # Ok::<(), RowError>(())
    /// ```
    pub fn dense(weights: Vec<f32>) -> Result<Self, RowError> {
        if weights.is_empty() {
            return Err(RowError::Empty);
        }
        let Some(sums) = checked_sums(&weights) else {
            return Err(unsound(weights.iter().copied().enumerate()));
        };
        Self::finish(weights.len(), Entries::Dense { weights, sums })
    }

    /// A row whose unnamed tokens have probability zero.
    ///
    /// # Errors
    /// If the weights are no distribution, or a token is named twice or out of range.
    ///
    /// ```
    /// # use forerun_verify::{Dist, Token};
    /// let row = Dist::sparse(50_000, [(Token(9), 1.0), (Token(7), 1.0)])?;
    /// assert_eq!(row.prob(Token(7)), 0.5);
    /// assert_eq!(row.prob(Token(8)), 0.0);
    /// # Ok::<(), forerun_verify::RowError>(())
    /// ```
    pub fn sparse(
        vocab_len: usize,
        entries: impl IntoIterator<Item = (Token, f32)>,
    ) -> Result<Self, RowError> {
        let mut entries: Vec<(Token, f32)> = entries.into_iter().collect();
        check_tokens(vocab_len, &mut entries)?;
        if !entries.iter().all(|(_, weight)| (0.0..=f32::MAX).contains(weight)) {
            return Err(unsound(entries.iter().map(|(token, weight)| (token.index(), *weight))));
        }
        Self::from_sorted(vocab_len, entries)
    }

    /// All mass on one token: the row of a deterministic choice.
    ///
    /// # Errors
    /// If the token is out of range.
    ///
    /// ```
    /// # use forerun_verify::{Dist, Token};
    /// assert_eq!(Dist::point(100, Token(4))?.prob(Token(4)), 1.0);
    /// # Ok::<(), forerun_verify::RowError>(())
    /// ```
    pub fn point(vocab_len: usize, token: Token) -> Result<Self, RowError> {
        Self::sparse(vocab_len, [(token, 1.0)])
    }

    /// The softmax of a row of logits, in one pass. A logit of `-inf` masks its token.
    ///
    /// # Precision
    /// Tokens more than `exp(-87)` below the largest of the row's first tokens have weight zero.
    ///
    /// # Errors
    /// If a logit is NaN or `+inf`, all are masked, or the temperature is not above zero.
    ///
    /// ```
    /// # use forerun_verify::{Dist, Token};
    /// let row = Dist::softmax(&[0.0, 2.0_f32.ln(), f32::NEG_INFINITY], 1.0)?;
    /// assert!((row.prob(Token(1)) - 2.0 / 3.0).abs() < 1e-7);
    /// assert_eq!(row.prob(Token(2)), 0.0);
    /// # Ok::<(), forerun_verify::RowError>(())
    /// ```
    pub fn softmax(logits: &[f32], temperature: f32) -> Result<Self, RowError> {
        let sharpness = sharpness(temperature)?;
        if logits.is_empty() {
            return Err(RowError::Empty);
        }
        let Some(pass) = softmax::softmax(logits, sharpness) else {
            return Err(unsound_logit(logits.iter().copied().enumerate()));
        };
        let entries = Entries::Dense { weights: pass.weights, sums: pass.sums };
        Self::finish(logits.len(), entries)
    }

    /// The softmax over the named tokens alone, as truncated and grammar-masked rows have it.
    ///
    /// # Errors
    /// As [`Dist::softmax`], and where a token is named twice or out of range.
    ///
    /// ```
    /// # use forerun_verify::{Dist, Token};
    /// let row = Dist::softmax_of(1_000, [(Token(2), 5.0), (Token(900), 5.0)], 0.7)?;
    /// assert_eq!(row.prob(Token(900)), 0.5);
    /// # Ok::<(), forerun_verify::RowError>(())
    /// ```
    pub fn softmax_of(
        vocab_len: usize,
        logits: impl IntoIterator<Item = (Token, f32)>,
        temperature: f32,
    ) -> Result<Self, RowError> {
        let sharpness = sharpness(temperature)?;
        let mut entries: Vec<(Token, f32)> = logits.into_iter().collect();
        check_tokens(vocab_len, &mut entries)?;
        if !entries.iter().all(|(_, logit)| *logit <= f32::MAX) {
            let logits = entries.iter().map(|(token, logit)| (token.index(), *logit));
            return Err(unsound_logit(logits));
        }
        let origin = entries.iter().map(|(_, logit)| *logit).fold(f32::NEG_INFINITY, f32::max);
        if origin == f32::NEG_INFINITY {
            return Err(RowError::NoMass);
        }
        for (_, entry) in &mut entries {
            *entry = exp((*entry - origin) * sharpness);
        }
        Self::from_sorted(vocab_len, entries)
    }

    /// The softmax over the `count` largest logits, ties to the lower id, in one pass.
    ///
    /// # Errors
    /// As [`Dist::softmax`], and where `count` is zero.
    ///
    /// ```
    /// # use forerun_verify::{Dist, Token};
    /// let row = Dist::top_k(&[1.0, 3.0, 3.0, 2.0], 1.0, 2)?;
    /// assert_eq!(row.prob(Token(1)), 0.5);
    /// assert_eq!(row.prob(Token(3)), 0.0);
    /// # Ok::<(), forerun_verify::RowError>(())
    /// ```
    pub fn top_k(logits: &[f32], temperature: f32, count: usize) -> Result<Self, RowError> {
        if count == 0 {
            return Err(RowError::TopNone);
        }
        if logits.is_empty() {
            return Err(RowError::Empty);
        }
        let count = count.min(logits.len());
        let mut kept: Vec<(Token, f32)> = Vec::with_capacity(2 * count);
        let mut bar = f32::NEG_INFINITY;
        for (index, &logit) in logits.iter().enumerate() {
            if logit <= bar {
                continue;
            }
            // NaN passes the bar too, and is refused here.
            if logit.is_nan() || logit == f32::INFINITY {
                return Err(unsound_logit([(index, logit)].into_iter()));
            }
            kept.push((Token::at(index), logit));
            if kept.len() >= 2 * count {
                bar = keep_largest(&mut kept, count);
            }
        }
        keep_largest(&mut kept, count);
        if kept.is_empty() {
            return Err(RowError::NoMass);
        }
        Self::softmax_of(logits.len(), kept, temperature)
    }

    /// All mass on the largest logit, the lowest id among equals: the row at temperature zero.
    ///
    /// # Errors
    /// If a logit is NaN or `+inf`, or all are masked.
    ///
    /// ```
    /// # use forerun_verify::{Dist, Token};
    /// assert_eq!(Dist::argmax(&[1.0, 5.0, 5.0])?.prob(Token(1)), 1.0);
    /// # Ok::<(), forerun_verify::RowError>(())
    /// ```
    pub fn argmax(logits: &[f32]) -> Result<Self, RowError> {
        Self::top_k(logits, 1.0, 1)
    }

    fn from_sorted(vocab_len: usize, entries: Vec<(Token, f32)>) -> Result<Self, RowError> {
        let (tokens, weights) =
            entries.into_iter().filter(|(_, w)| *w > 0.0).map(|(t, w)| (t.0, w)).unzip();
        Self::finish(vocab_len, Entries::Sparse { tokens, weights })
    }

    fn finish(vocab_len: usize, entries: Entries) -> Result<Self, RowError> {
        let mass: f64 = match &entries {
            Entries::Dense { sums, .. } => sums.iter().sum(),
            Entries::Sparse { weights, .. } => weights.iter().copied().map(f64::from).sum(),
        };
        if mass > 0.0 {
            Ok(Self { vocab_len, entries, mass, unit: 1.0 / mass })
        } else {
            Err(RowError::NoMass)
        }
    }

    /// How many tokens the vocabulary has.
    ///
    /// ```
    /// # use forerun_verify::{Dist, Token};
    /// assert_eq!(Dist::point(100, Token(4))?.vocab_len(), 100);
    /// # Ok::<(), forerun_verify::RowError>(())
    /// ```
    pub fn vocab_len(&self) -> usize {
        self.vocab_len
    }

    /// The probability of a token; zero outside the vocabulary.
    ///
    /// ```
    /// # use forerun_verify::{Dist, Token};
    /// assert_eq!(Dist::dense(vec![1.0, 3.0])?.prob(Token(0)), 0.25);
    /// # Ok::<(), forerun_verify::RowError>(())
    /// ```
    pub fn prob(&self, token: Token) -> f64 {
        f64::from(self.weight(token)) * self.unit
    }

    /// Draws a token with its probability.
    ///
    /// ```
    /// # use forerun_verify::{Dist, Philox, Random, Token};
    /// let row = Dist::sparse(10, [(Token(8), 0.3)])?;
    /// assert_eq!(row.draw(&mut Random(Philox::new(1))), Token(8));
    /// # Ok::<(), forerun_verify::RowError>(())
    /// ```
    pub fn draw(&self, chance: &mut dyn Chance) -> Token {
        Token::at(chance.pick(self))
    }

    /// Draws a token that is none of `taken`, each with its share of what they leave; `None` where
    /// they leave nothing. Called again with what it gave, it draws without replacement.
    ///
    /// ```
    /// # use forerun_verify::{Dist, Philox, Random, Token};
    /// let row = Dist::dense(vec![1.0, 0.0, 5.0])?;
    /// let mut chance = Random(Philox::new(1));
    /// assert_eq!(row.draw_except(&[Token(2)], &mut chance), Some(Token(0)));
    /// assert_eq!(row.draw_except(&[Token(2), Token(0)], &mut chance), None);
    /// # Ok::<(), forerun_verify::RowError>(())
    /// ```
    pub fn draw_except(&self, taken: &[Token], chance: &mut dyn Chance) -> Option<Token> {
        let rest = Rest { row: self, taken };
        (rest.mass() > 0.0).then(|| Token::at(chance.pick(&rest)))
    }

    /// The likeliest token and its probability; of equals, the one with the lowest id.
    ///
    /// ```
    /// # use forerun_verify::{Dist, Token};
    /// let row = Dist::dense(vec![1.0, 2.0, 2.0, 0.0])?;
    /// assert_eq!(row.likeliest(), (Token(1), 0.4));
    /// # Ok::<(), forerun_verify::RowError>(())
    /// ```
    pub fn likeliest(&self) -> (Token, f64) {
        let likelier =
            |best: (Token, f64), next: (Token, f64)| if next.1 > best.1 { next } else { best };
        self.support().reduce(likelier).expect("a row has mass")
    }

    /// The row without a token: what is drawn from when that token is not to be drawn. `None` if no
    /// other is possible.
    ///
    /// ```
    /// # use forerun_verify::{Dist, Token};
    /// let row = Dist::dense(vec![2.0, 1.0, 1.0])?;
    /// assert_eq!(row.without(Token(0)).map(|rest| rest.prob(Token(2))), Some(0.5));
    /// assert_eq!(Dist::point(3, Token(0))?.without(Token(0)), None);
    /// # Ok::<(), forerun_verify::RowError>(())
    /// ```
    pub fn without(&self, token: Token) -> Option<Self> {
        match &self.entries {
            Entries::Dense { weights, .. } => {
                let mut weights = weights.clone();
                *weights.get_mut(token.index())? = 0.0;
                Self::dense(weights).ok()
            }
            Entries::Sparse { tokens, weights } => {
                let entries = tokens.iter().zip(weights).map(|(id, weight)| (Token(*id), *weight));
                let rest = entries.filter(|(other, _)| *other != token).collect();
                Self::from_sorted(self.vocab_len, rest).ok()
            }
        }
    }

    /// The tokens that can be drawn, with their probabilities, in order.
    ///
    /// ```
    /// # use forerun_verify::{Dist, Token};
    /// let row = Dist::dense(vec![0.0, 1.0, 1.0])?;
    /// assert_eq!(row.support().collect::<Vec<_>>(), [(Token(1), 0.5), (Token(2), 0.5)]);
    /// # Ok::<(), forerun_verify::RowError>(())
    /// ```
    pub fn support(&self) -> impl Iterator<Item = (Token, f64)> {
        let (dense, sparse) = match &self.entries {
            Entries::Dense { weights, .. } => (Some(weights), None),
            Entries::Sparse { tokens, weights } => (None, Some((tokens, weights))),
        };
        let dense = dense.into_iter().flatten().enumerate().map(|(index, w)| (Token::at(index), w));
        let sparse = sparse.into_iter().flat_map(|(tokens, weights)| tokens.iter().zip(weights));
        dense
            .chain(sparse.map(|(token, w)| (Token(*token), w)))
            .filter(|(_, weight)| **weight > 0.0)
            .map(|(token, weight)| (token, f64::from(*weight) * self.unit))
    }

    pub(crate) fn weight(&self, token: Token) -> f32 {
        match &self.entries {
            Entries::Dense { weights, .. } => weights.get(token.index()).copied().unwrap_or(0.0),
            Entries::Sparse { tokens, weights } => {
                tokens.binary_search(&token.0).map_or(0.0, |place| weights[place])
            }
        }
    }

    /// One over the mass: what turns a weight into a probability.
    pub(crate) fn unit(&self) -> f64 {
        self.unit
    }

    pub(crate) fn entries(&self) -> &Entries {
        &self.entries
    }

    /// The tokens of a chunk of a dense row.
    pub(crate) fn chunk(&self, chunk: usize) -> std::ops::Range<usize> {
        let from = chunk * CHUNK;
        from..self.vocab_len.min(from + CHUNK)
    }

    /// The index at `point` of the running sum of other weights over this row's tokens, of which
    /// `parts` is known: the sum of each chunk of a dense row, each entry's weight of a sparse one.
    pub(crate) fn locate_part(
        &self,
        parts: &[f64],
        point: f64,
        weight: impl Fn(usize) -> f64,
    ) -> usize {
        match &self.entries {
            Entries::Dense { .. } => locate_chunked(parts, point, |chunk| {
                self.chunk(chunk).map(|index| (index, weight(index)))
            }),
            Entries::Sparse { tokens, .. } => {
                let entries = tokens.iter().map(|token| *token as usize);
                locate_in(entries.zip(parts.iter().copied()), point)
                    .expect("weights that are drawn from have mass")
            }
        }
    }

    /// Calls `each` with every token of this row to which `weight` gives any.
    pub(crate) fn visit_with(
        &self,
        weight: impl Fn(usize) -> f64,
        each: &mut dyn FnMut(usize, f64),
    ) {
        for (token, _) in self.support() {
            let weight = weight(token.index());
            if weight > 0.0 {
                each(token.index(), weight);
            }
        }
    }

    /// How many entries are stored: what a pass over the row costs.
    pub(crate) fn stored_len(&self) -> usize {
        match &self.entries {
            Entries::Dense { weights, .. } => weights.len(),
            Entries::Sparse { weights, .. } => weights.len(),
        }
    }
}

impl Weights for Dist {
    fn mass(&self) -> f64 {
        self.mass
    }

    fn locate(&self, point: f64) -> usize {
        match &self.entries {
            Entries::Dense { weights, sums } => {
                self.locate_part(sums, point, |index| f64::from(weights[index]))
            }
            Entries::Sparse { tokens, weights } => {
                let entries = tokens.iter().zip(weights).map(|(t, w)| (*t as usize, f64::from(*w)));
                locate_in(entries, point).expect("a row has mass")
            }
        }
    }

    fn visit(&self, each: &mut dyn FnMut(usize, f64)) {
        self.visit_with(|index| f64::from(self.weight(Token::at(index))), each);
    }
}

/// A row without some of its tokens.
struct Rest<'a> {
    row: &'a Dist,
    taken: &'a [Token],
}

impl Rest<'_> {
    fn support(&self) -> impl Iterator<Item = (usize, f64)> {
        let left = self.row.support().filter(|(token, _)| !self.taken.contains(token));
        left.map(|(token, probability)| (token.index(), probability))
    }
}

impl Weights for Rest<'_> {
    fn mass(&self) -> f64 {
        self.support().map(|(_, probability)| probability).sum()
    }

    fn locate(&self, point: f64) -> usize {
        locate_in(self.support(), point).unwrap_or_default()
    }

    fn visit(&self, each: &mut dyn FnMut(usize, f64)) {
        self.support().for_each(|(index, probability)| each(index, probability));
    }
}

/// Calls `each` with every token that two rows both give weight, and the weights, in order.
pub(crate) fn common(one: &Dist, two: &Dist, mut each: impl FnMut(Token, f32, f32)) {
    let two_is_shorter = two.stored_len() < one.stored_len();
    let (few, many) = if two_is_shorter { (two, one) } else { (one, two) };
    let mut cursor = Cursor::new(many);
    let mut meet = |token: Token, here: f32| {
        let there = if here > 0.0 { cursor.weight(token) } else { 0.0 };
        if there > 0.0 {
            let (first, second) = if two_is_shorter { (there, here) } else { (here, there) };
            each(token, first, second);
        }
    };
    match &few.entries {
        Entries::Dense { weights, .. } => {
            weights.iter().enumerate().for_each(|(index, w)| meet(Token::at(index), *w));
        }
        Entries::Sparse { tokens, weights } => {
            tokens.iter().zip(weights).for_each(|(token, w)| meet(Token(*token), *w));
        }
    }
}

/// Looks weights up in rising order of tokens, each in constant time on average.
pub(crate) struct Cursor<'a> {
    row: &'a Dist,
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(row: &'a Dist) -> Self {
        Self { row, at: 0 }
    }

    pub(crate) fn weight(&mut self, token: Token) -> f32 {
        match &self.row.entries {
            Entries::Dense { weights, .. } => weights[token.index()],
            Entries::Sparse { tokens, weights } => {
                while tokens.get(self.at).is_some_and(|known| *known < token.0) {
                    self.at += 1;
                }
                let here = tokens.get(self.at).is_some_and(|known| *known == token.0);
                if here { weights[self.at] } else { 0.0 }
            }
        }
    }
}

/// The index at `point` of a long row's running sum, from the sums of its chunks and the one
/// chunk that holds it.
pub(crate) fn locate_chunked<I: Iterator<Item = (usize, f64)>>(
    sums: &[f64],
    point: f64,
    chunk: impl Fn(usize) -> I,
) -> usize {
    let mut left = point;
    let mut last = 0;
    for (place, &sum) in sums.iter().enumerate() {
        if sum > 0.0 {
            last = place;
            if left < sum {
                break;
            }
            left -= sum;
        }
    }
    // Where rounding alone gave the chunk its mass, any index with weight is as good.
    locate_in(chunk(last), left)
        .or_else(|| (0..sums.len()).find_map(|place| locate_in(chunk(place), 0.0)))
        .expect("a row that is drawn from has mass")
}

pub(crate) fn sharpness(temperature: f32) -> Result<f32, RowError> {
    // NaN is in no range; the least normal number keeps the inverse finite.
    if (f32::MIN_POSITIVE..=f32::MAX).contains(&temperature) {
        Ok(1.0 / temperature)
    } else {
        Err(RowError::Temperature { temperature })
    }
}

/// Sorts the entries and refuses an empty list, a stray token or a duplicate.
fn check_tokens(vocab_len: usize, entries: &mut [(Token, f32)]) -> Result<(), RowError> {
    entries.sort_unstable_by_key(|(token, _)| *token);
    let Some(&(last, _)) = entries.last() else { return Err(RowError::Empty) };
    if last.index() >= vocab_len {
        return Err(RowError::OutOfRange { token: last, vocab_len });
    }
    match entries.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some(pair) => Err(RowError::Duplicate { token: pair[0].0 }),
        None => Ok(()),
    }
}

/// Cuts the list to the `count` largest logits and says which is the least of them.
fn keep_largest(kept: &mut Vec<(Token, f32)>, count: usize) -> f32 {
    if kept.len() > count {
        // Adding zero makes the two zeros one.
        let order = |a: &(Token, f32), b: &(Token, f32)| {
            (b.1 + 0.0).total_cmp(&(a.1 + 0.0)).then(a.0.cmp(&b.0))
        };
        kept.select_nth_unstable_by(count - 1, order);
        kept.truncate(count);
    }
    if kept.len() < count {
        return f32::NEG_INFINITY;
    }
    kept.iter().map(|(_, logit)| *logit).fold(f32::INFINITY, f32::min)
}

pub(crate) fn unsound(weights: impl Iterator<Item = (usize, f32)>) -> RowError {
    for (index, weight) in weights {
        let token = Token::at(index);
        if weight.is_nan() {
            return RowError::Nan { token };
        } else if weight.is_infinite() {
            return RowError::Infinite { token };
        } else if weight < 0.0 {
            return RowError::Negative { token, weight };
        }
    }
    unreachable!("called only where a weight is unsound")
}

pub(crate) fn unsound_logit(logits: impl Iterator<Item = (usize, f32)>) -> RowError {
    for (index, logit) in logits {
        let token = Token::at(index);
        if logit.is_nan() {
            return RowError::Nan { token };
        } else if logit == f32::INFINITY {
            return RowError::Infinite { token };
        }
    }
    unreachable!("called only where a logit is unsound")
}
