//! Drafts from the sequence itself: what followed the last tokens when they last occurred.
//!
//! Prompt lookup, as in vLLM (`ngram`) and llama.cpp (`ngram-simple`). It pays if a sequence
//! repeats its prompt or itself: edits, summaries, code. It learns nothing from other sequences:
//! that is [`crate::SuffixDrafter`].

use std::collections::HashMap;

use forerun_verify::{NODES_MAX, Token};

use super::fixed::{MatchLen, Seen, add_path};
use super::index::{Index, Key};
use crate::draft::{DraftFailure, DraftRequest, Drafter, DrafterKind, FixedTokens};
use crate::engine::Slot;

/// Looks the last tokens of a sequence up in its prompt and output, and drafts what followed.
///
/// Tries the longest match first. Of equally long matches the latest wins; where it reaches the end
/// of the sequence the draft goes on through its own tokens, so a sequence that repeats
/// itself is continued as far as the request allows.
///
/// A committed token costs one entry for each length of match, whatever the sequence's length. For
/// each slot it stores the last sequence's tokens and, for each length, 11 to 21 bytes a token:
/// with the default lengths at most 95 bytes a token in all.
///
/// ```
/// use forerun_decode::{NgramDrafter, Slot, Token};
/// let tokens = [5, 6, 7, 8, 5, 6].map(Token);
/// let mut drafter = NgramDrafter::default();
/// assert_eq!(drafter.propose(Slot(0), &tokens, 3), [7, 8, 5].map(Token));
/// ```
#[derive(Debug, Clone)]
pub struct NgramDrafter {
    match_len: MatchLen,
    slots: HashMap<Slot, Grams>,
}

/// Matches of [`NgramDrafter::MATCH_LEN`].
impl Default for NgramDrafter {
    fn default() -> Self {
        Self::new(Self::MATCH_LEN)
    }
}

impl NgramDrafter {
    /// The default: matches of 2 to 5 tokens, as in vLLM's examples (`prompt_lookup_min` and
    /// `prompt_lookup_max`).
    ///
    /// ```
    /// # use forerun_decode::NgramDrafter;
    /// assert_eq!((NgramDrafter::MATCH_LEN.min(), NgramDrafter::MATCH_LEN.max()), (2, 5));
    /// ```
    pub const MATCH_LEN: MatchLen = MatchLen::of(2, 5);

    /// A drafter that has seen nothing.
    ///
    /// ```
    /// # use forerun_decode::*;
    /// let mut drafter = NgramDrafter::new(MatchLen::new(1..=3)?);
    /// assert_eq!(drafter.propose(Slot(0), &[4, 9, 4].map(Token), 1), [Token(9)]);
    /// # Ok::<(), MatchLenError>(())
    /// ```
    pub fn new(match_len: MatchLen) -> Self {
        Self { match_len, slots: HashMap::new() }
    }

    /// What it drafts after `tokens`, the committed tokens of the sequence in `slot`: nothing, or
    /// `len_max` tokens ([`NODES_MAX`] at most).
    ///
    /// ```
    /// # use forerun_decode::*;
    /// let mut drafter = NgramDrafter::default();
    /// assert_eq!(drafter.propose(Slot(0), &[3, 4, 9].map(Token), 8), []);
    /// assert_eq!(drafter.propose(Slot(0), &[3, 4, 9, 3, 4].map(Token), 2), [9, 3].map(Token));
    /// ```
    pub fn propose(&mut self, slot: Slot, tokens: &[Token], len_max: usize) -> Vec<Token> {
        let grams = self.slots.entry(slot).or_insert_with(|| Grams::new(self.match_len));
        grams.update(tokens);
        let Some(start) = grams.followed(tokens) else { return Vec::new() };
        let len = len_max.min(NODES_MAX);
        let mut path: Vec<Token> = Vec::with_capacity(len);
        for at in start..start + len {
            let drafted = at.checked_sub(tokens.len());
            path.push(drafted.map_or_else(|| tokens[at], |drafted| path[drafted]));
        }
        path
    }
}

impl Drafter for NgramDrafter {
    fn kind(&self) -> DrafterKind {
        DrafterKind::Ngram
    }

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), DraftFailure> {
        for request in requests {
            let path = self.propose(request.slot, request.tokens, request.len_max);
            add_path(request, FixedTokens::of(path));
        }
        Ok(())
    }

    fn forget(&mut self, slot: Slot) {
        self.slots.remove(&slot);
    }
}

/// Where the n-grams of one sequence last ended.
#[derive(Debug, Clone)]
struct Grams {
    match_len: MatchLen,
    seen: Seen,
    /// One for each length of match, the shortest first.
    ends: Vec<Index>,
    /// N-grams that end before this position are in `ends`: all but the sequence's own last.
    indexed: usize,
}

impl Grams {
    fn new(match_len: MatchLen) -> Self {
        let ends = vec![Index::default(); match_len.max() - match_len.min() + 1];
        Self { match_len, seen: Seen::default(), ends, indexed: 0 }
    }

    fn update(&mut self, tokens: &[Token]) {
        let seen_len = self.seen.len();
        if self.seen.update(tokens) < seen_len {
            self.ends.iter_mut().for_each(Index::clear);
            self.indexed = 0;
        }
        let last = tokens.len().saturating_sub(1);
        for end in self.indexed..last {
            let place = u32::try_from(end).expect("sequences are shorter than 2^32");
            for ((len, key), ends) in keys(&tokens[..=end], self.match_len).zip(&mut self.ends) {
                ends.put(key, place, |other| same(tokens, len, end, other));
            }
        }
        self.indexed = last;
    }

    /// Where the longest match, and the latest of that length, ended: the position after it.
    fn followed(&self, tokens: &[Token]) -> Option<usize> {
        let end = tokens.len().checked_sub(1)?;
        let keys: Vec<_> = keys(tokens, self.match_len).zip(&self.ends).collect();
        let mut found = keys
            .into_iter()
            .rev()
            .filter_map(|((len, key), ends)| ends.get(key, |other| same(tokens, len, end, other)));
        found.next().map(|place| place as usize + 1)
    }
}

/// The lengths of match that fit into `tokens`, with the keys of the last so many tokens.
fn keys(tokens: &[Token], match_len: MatchLen) -> impl Iterator<Item = (usize, Key)> {
    let longest = &tokens[tokens.len().saturating_sub(match_len.max())..];
    (1..).zip(Key::backwards(longest)).skip(match_len.min() - 1)
}

/// Whether the `len` tokens that end at `end` are those that end at `other`.
fn same(tokens: &[Token], len: usize, end: usize, other: u32) -> bool {
    let gram = |end: usize| (end + 1).checked_sub(len).and_then(|start| tokens.get(start..=end));
    gram(other as usize) == gram(end)
}
