//! Drafts from an output that the user expects: the file before the edit, the form to fill in.
//!
//! What OpenAI's API calls a prediction. Where the output leaves the prediction its place is found
//! again by the last tokens, so an edited line costs no more than that line. Where the prediction
//! comes from, and its tokens, are the caller's.

use std::collections::HashMap;

use forerun_verify::{NODES_MAX, Token};

use super::fixed::{MatchLen, Seen, add_path};
use super::index::Key;
use crate::draft::{DraftFailure, DraftRequest, Drafter, DrafterKind};
use crate::engine::Slot;

/// Drafts the rest of a predicted output.
///
/// The prediction begins where the output begins. Where the two part, the last tokens of the output
/// are looked up in the prediction, the longest match first. Of several places the first at or
/// after the one where they parted is taken, else the last before it; nothing is drafted until
/// there is one.
///
/// A committed token costs a constant, or, while the place is lost, a binary search for each length
/// of match. A prediction takes 4 bytes a token and 16 for each length of match.
///
/// ```
/// use forerun_decode::{PredictedDrafter, Slot, Token};
/// let mut drafter = PredictedDrafter::default();
/// drafter.predict(Slot(0), &[1, 2, 3, 4, 5, 6].map(Token));
/// assert_eq!(drafter.propose(Slot(0), &[], 2), [1, 2].map(Token));
/// assert_eq!(drafter.propose(Slot(0), &[1, 2, 9].map(Token), 2), []);
/// assert_eq!(drafter.propose(Slot(0), &[1, 2, 9, 4, 5].map(Token), 2), [Token(6)]);
/// ```
#[derive(Debug, Clone)]
pub struct PredictedDrafter {
    match_len: MatchLen,
    slots: HashMap<Slot, Prediction>,
}

/// Matches of [`PredictedDrafter::MATCH_LEN`].
impl Default for PredictedDrafter {
    fn default() -> Self {
        Self::new(Self::MATCH_LEN)
    }
}

impl PredictedDrafter {
    /// The default: a place is found again by 2 to 5 tokens.
    ///
    /// ```
    /// # use forerun_decode::PredictedDrafter;
    /// assert_eq!(PredictedDrafter::MATCH_LEN.min(), 2);
    /// ```
    pub const MATCH_LEN: MatchLen = MatchLen::of(2, 5);

    /// Most tokens of a prediction; what is beyond is not looked at.
    ///
    /// ```
    /// # use forerun_decode::*;
    /// let mut drafter = PredictedDrafter::default();
    /// drafter.predict(Slot(0), &vec![Token(1); PredictedDrafter::TOKENS_MAX + 1]);
    /// assert!(drafter.propose(Slot(0), &vec![Token(1); PredictedDrafter::TOKENS_MAX], 1).is_empty());
    /// ```
    pub const TOKENS_MAX: usize = 1 << 20;

    /// A drafter without predictions.
    ///
    /// ```
    /// # use forerun_decode::*;
    /// let mut drafter = PredictedDrafter::new(MatchLen::new(1..=1)?);
    /// drafter.predict(Slot(0), &[1, 2, 3].map(Token));
    /// assert_eq!(drafter.propose(Slot(0), &[9, 2].map(Token), 8), [Token(3)]);
    /// # Ok::<(), MatchLenError>(())
    /// ```
    pub fn new(match_len: MatchLen) -> Self {
        Self { match_len, slots: HashMap::new() }
    }

    /// Sets what the output of the sequence in `slot` is expected to be. It stays until it is set
    /// again, so whoever gives the slot to another sequence sets what is expected of that one.
    /// Nothing is expected if `tokens` is empty.
    ///
    /// ```
    /// # use forerun_decode::*;
    /// let mut drafter = PredictedDrafter::default();
    /// drafter.predict(Slot(0), &[Token(7)]);
    /// assert_eq!(drafter.propose(Slot(0), &[], 8), [Token(7)]);
    /// drafter.predict(Slot(0), &[]);
    /// assert_eq!(drafter.propose(Slot(0), &[], 8), []);
    /// ```
    pub fn predict(&mut self, slot: Slot, tokens: &[Token]) {
        let tokens = &tokens[..tokens.len().min(Self::TOKENS_MAX)];
        if tokens.is_empty() {
            self.slots.remove(&slot);
        } else {
            self.slots.insert(slot, Prediction::new(tokens, self.match_len));
        }
    }

    /// What it drafts after `output`, the tokens committed after the prompt: `len_max` tokens at
    /// most ([`NODES_MAX`] in any case).
    ///
    /// ```
    /// # use forerun_decode::*;
    /// let mut drafter = PredictedDrafter::default();
    /// drafter.predict(Slot(3), &[1, 2, 3].map(Token));
    /// assert_eq!(drafter.propose(Slot(3), &[Token(1)], 8), [2, 3].map(Token));
    /// assert_eq!(drafter.propose(Slot(4), &[Token(1)], 8), []);
    /// ```
    pub fn propose(&mut self, slot: Slot, output: &[Token], len_max: usize) -> Vec<Token> {
        let Some(prediction) = self.slots.get_mut(&slot) else { return Vec::new() };
        prediction.update(output);
        let rest = prediction.next.map_or(&[][..], |next| &prediction.tokens[next..]);
        rest[..rest.len().min(len_max).min(NODES_MAX)].to_vec()
    }
}

impl Drafter for PredictedDrafter {
    fn kind(&self) -> DrafterKind {
        DrafterKind::Predicted
    }

    fn predict(&mut self, slot: Slot, tokens: &[Token]) {
        Self::predict(self, slot, tokens);
    }

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), DraftFailure> {
        for request in requests {
            let output = request.tokens.get(request.prompt_len..).unwrap_or_default();
            let path = self.propose(request.slot, output, request.len_max);
            add_path(request, &path);
        }
        Ok(())
    }
}

/// A predicted output, and how far the output has come in it.
#[derive(Debug, Clone)]
struct Prediction {
    tokens: Vec<Token>,
    match_len: MatchLen,
    /// For each length of match, the shortest first: the keys of all matches and the positions
    /// after them, in order.
    places: Vec<Vec<(Key, u32)>>,
    seen: Seen,
    /// The position of the token expected next, unless the place is lost.
    next: Option<usize>,
    /// How many tokens came as expected since the place was found.
    run: usize,
    /// Where output and prediction parted last, as far as that is certain.
    parted: usize,
}

impl Prediction {
    fn new(tokens: &[Token], match_len: MatchLen) -> Self {
        let mut places = vec![Vec::new(); match_len.max() - match_len.min() + 1];
        for (end, after) in (1..=tokens.len()).zip(1u32..) {
            for (key, places) in keys(&tokens[..end], match_len).zip(&mut places) {
                places.push((key, after));
            }
        }
        places.iter_mut().for_each(|places| places.sort_unstable());
        let (tokens, seen) = (tokens.to_vec(), Seen::default());
        Self { tokens, match_len, places, seen, next: Some(0), run: 0, parted: 0 }
    }

    fn update(&mut self, output: &[Token]) {
        let seen_len = self.seen.len();
        let mut common = self.seen.update(output);
        if common < seen_len {
            (self.next, self.run, self.parted, common) = (Some(0), 0, 0, 0);
        }
        for token in &output[common..] {
            self.follow(*token);
        }
        if self.next.is_none() && common < output.len() {
            self.next = self.find(output);
            self.run = 0;
        }
    }

    fn follow(&mut self, token: Token) {
        let Some(next) = self.next else { return };
        if self.tokens.get(next) == Some(&token) {
            self.next = Some(next + 1);
            self.run += 1;
            return;
        }
        self.next = None;
        // A place that was found by chance is soon lost again, and tells nothing.
        if self.run >= self.match_len.min() {
            self.parted = next;
        }
    }

    /// The position after the longest match with the end of `output`.
    fn find(&self, output: &[Token]) -> Option<usize> {
        let parted = u32::try_from(self.parted).expect("at most TOKENS_MAX");
        let keys: Vec<_> = keys(output, self.match_len).zip(&self.places).collect();
        let found = keys.into_iter().rev().find_map(|(key, places)| {
            let at = places.partition_point(|place| *place < (key, parted));
            let around = [places.get(at), at.checked_sub(1).map(|before| &places[before])];
            around.into_iter().flatten().find(|(other, _)| *other == key)
        });
        found.map(|(_, after)| *after as usize)
    }
}

/// The keys of the last tokens, for each length of match that fits, the shortest first.
fn keys(tokens: &[Token], match_len: MatchLen) -> impl Iterator<Item = Key> {
    let longest = &tokens[tokens.len().saturating_sub(match_len.max())..];
    Key::backwards(longest).skip(match_len.min() - 1)
}
