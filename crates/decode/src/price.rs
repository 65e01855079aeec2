//! What a drafted token must bring to be worth scoring.

use std::sync::Arc;

/// What drafted tokens cost, counted in tokens that the same time would commit without them.
///
/// A drafter that knows how likely its tokens are accepted drafts as many as bring more than they
/// cost. The price depends on rounds that are over, never on the draft at hand.
///
/// ```
/// use forerun_decode::Price;
/// // One token is cheap, the second dear, those after it cheap again.
/// let price = Price::new([0.2, 0.9, 1.0, 1.1]);
/// assert_eq!(price.best([0.9, 0.5]), 1);
/// assert_eq!(price.best([0.9, 0.8, 0.7, 0.6]), 4);
/// assert_eq!(price.best([0.1]), 0);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Price {
    /// Of one token, of two, and so on, all together; the last difference goes on.
    totals: Arc<[f64]>,
}

impl Price {
    /// Without a measured cost of passes: a token is drafted if its chance is at least this.
    ///
    /// ```
    /// # use forerun_decode::Price;
    /// assert_eq!(Price::per_token(0.25).best([0.9, 0.5, 0.3, 0.2]), 3);
    /// ```
    pub fn per_token(tokens: f64) -> Self {
        Self::new([tokens])
    }

    /// From what one token costs, two tokens, and so on.
    ///
    /// # Panics
    /// If there is no price.
    ///
    /// ```
    /// # use forerun_decode::Price;
    /// assert_eq!(Price::new([0.5, 0.75]).of(4), 1.25);
    /// ```
    pub fn new(totals: impl IntoIterator<Item = f64>) -> Self {
        let totals: Arc<[f64]> = totals.into_iter().collect();
        assert!(!totals.is_empty(), "a price has a first token");
        Self { totals }
    }

    /// What so many tokens cost.
    ///
    /// ```
    /// # use forerun_decode::Price;
    /// assert_eq!(Price::per_token(0.5).of(0), 0.0);
    /// assert_eq!(Price::per_token(0.5).of(3), 1.5);
    /// ```
    pub fn of(&self, tokens: usize) -> f64 {
        let known = self.totals.len();
        let total = |tokens: usize| tokens.checked_sub(1).map_or(0.0, |index| self.totals[index]);
        let further = tokens.saturating_sub(known) as f64;
        total(tokens.min(known)) + further * (total(known) - total(known - 1))
    }

    /// How many tokens to draft, given the chance of each to be accepted, in the order in which they
    /// would be added: as many as bring most more than they cost.
    pub fn best(&self, chances: impl IntoIterator<Item = f64>) -> usize {
        let mut brought = 0.0;
        let (mut best, mut gain_max) = (0, 0.0);
        for (tokens, chance) in (1..).zip(chances) {
            brought += chance;
            let gain = brought - self.of(tokens);
            if gain > gain_max {
                (best, gain_max) = (tokens, gain);
            }
        }
        best
    }
}

/// A quarter of a token each: about what it costs where passes over many tokens are cheap.
impl Default for Price {
    fn default() -> Self {
        Self::per_token(0.25)
    }
}

/// How much a drafter may propose that knows how likely its tokens are.
#[derive(Debug, Clone, PartialEq)]
pub struct Allowance {
    /// Most tokens, on all paths together.
    pub tokens: usize,
    /// Most paths.
    pub paths: usize,
    /// What tokens must be worth.
    pub price: Price,
}

impl Allowance {
    /// One path of at most so many tokens, at the default price.
    ///
    /// ```
    /// # use forerun_decode::Allowance;
    /// assert_eq!(Allowance::one_path(8).paths, 1);
    /// ```
    pub fn one_path(tokens: usize) -> Self {
        Self { tokens, paths: 1, price: Price::default() }
    }
}
