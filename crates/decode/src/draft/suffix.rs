//! Drafts from all sequences of this session, by how often their strings occurred.
//!
//! As in SuffixDecoding (arXiv 2411.04975) and SAM decoding (arXiv 2411.10666): the longest suffix
//! of the sequence that occurred before is found, and what most often followed it is drafted for as
//! long as that is worth its price. How likely a token is follows from its counts and from how often
//! what followed a suffix of that length came again, which is learned as it goes.
//!
//! Ended sequences are shared between all that follow, so the speed of an output may tell what others
//! were told: for users who must not learn of each other there is [`super::TenantSuffixDrafter`].

use std::collections::HashMap;

use forerun_verify::{NODES_MAX, Token};

use super::automaton::{Automaton, Cursor, End};
use super::fixed::{MatchLen, Seen, add_path};
use super::rate::{EARLIER_MAX, OWN_MAX, Rate};
use crate::draft::{DraftFailure, DraftRequest, Drafter, DrafterKind, FixedTokens};
use crate::engine::Slot;
use crate::price::Allowance;

/// How a [`SuffixDrafter`] drafts, and how much it remembers.
///
/// ```
/// use forerun_decode::SuffixConfig;
/// let config = SuffixConfig { tokens_max: 1 << 10, ..SuffixConfig::default() };
/// assert_eq!((config.match_len.min(), config.match_len.max()), (2, 32));
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SuffixConfig {
    /// How long the suffix is.
    pub match_len: MatchLen,
    /// Most tokens of ended sequences to remember, never more than 2^30; 0 learns nothing from
    /// them. A token takes about 120 bytes, and 224 at most.
    pub tokens_max: usize,
}

/// A suffix of 2 to 32 tokens, and about a million tokens.
impl Default for SuffixConfig {
    fn default() -> Self {
        Self { match_len: MatchLen::of(2, 32), tokens_max: 1 << 20 }
    }
}

/// Drafts what most often followed the longest suffix of a sequence that occurred before: in the
/// sequence itself, prompt included, or in a sequence that ended.
///
/// Each token of the path is chosen as if those before it were committed. Of tokens that followed
/// equally often the one with the lowest id is drafted. The drafts are a function of the sequence
/// and of the sequences that ended, in their order, and of how often earlier drafts were right.
///
/// A committed token costs an amortised constant: the match is carried along, and found again, at
/// the cost of its length, after a sequence ended. Ended sequences are stored in two halves of
/// [`SuffixConfig::tokens_max`]; when the younger is full the older is dropped, so at least the
/// last half is always known and nothing is ever built again. Of a longer sequence, the last half
/// is remembered. For each slot, the last sequence is stored beside that.
///
/// ```
/// use forerun_decode::{Drafter, Slot, SuffixConfig, SuffixDrafter, Token};
/// let mut drafter = SuffixDrafter::new(SuffixConfig::default());
/// drafter.ended(Slot(0), &[1, 2, 3, 4].map(Token));
/// drafter.ended(Slot(0), &[1, 2, 3, 5].map(Token));
/// drafter.ended(Slot(0), &[1, 2, 3, 5].map(Token));
/// assert_eq!(drafter.propose(Slot(0), &[9, 1, 2, 3].map(Token), 8), [Token(5)]);
/// ```
#[derive(Debug, Clone)]
pub struct SuffixDrafter {
    config: SuffixConfig,
    older: Automaton,
    younger: Automaton,
    /// How many sequences ended: what was found before may since have become longer.
    edition: u64,
    /// What sequences begin with.
    hits: Hits,
    slots: HashMap<Slot, Own>,
}

/// What is known of one slot's sequence.
#[derive(Debug, Clone)]
struct Own {
    seen: Seen,
    automaton: Automaton,
    end: End,
    /// Its suffix in the older and in the younger half, as of `edition`.
    older: Cursor,
    younger: Cursor,
    edition: u64,
    hits: Hits,
    /// What may follow the tokens seen, drafted or not.
    expected: Vec<Next>,
}

impl Default for SuffixDrafter {
    fn default() -> Self {
        Self::new(SuffixConfig::default())
    }
}

impl SuffixDrafter {
    /// A drafter that has seen nothing.
    ///
    /// ```
    /// # use forerun_decode::*;
    /// let config = SuffixConfig { match_len: MatchLen::new(1..=8)?, ..SuffixConfig::default() };
    /// let mut drafter = SuffixDrafter::new(config);
    /// assert_eq!(drafter.propose(Slot(0), &[4, 9, 4].map(Token), 8), [9, 4].map(Token));
    /// # Ok::<(), MatchLenError>(())
    /// ```
    pub fn new(config: SuffixConfig) -> Self {
        let automaton = Automaton::new(config.match_len.max());
        let (older, younger) = (automaton.clone(), automaton);
        let (hits, slots) = (Hits::default(), HashMap::new());
        Self { config, older, younger, edition: 0, hits, slots }
    }

    /// How many tokens of ended sequences it remembers.
    pub(super) fn remembered_len(&self) -> usize {
        self.older.len() + self.younger.len()
    }

    /// What it drafts after `tokens`, the committed tokens of the sequence in `slot`, at the default
    /// price: `len_max` tokens at most ([`NODES_MAX`] in any case).
    ///
    /// ```
    /// # use forerun_decode::*;
    /// let mut drafter = SuffixDrafter::default();
    /// let tokens = [3, 4, 9, 8, 3, 4].map(Token);
    /// assert_eq!(drafter.propose(Slot(0), &tokens, 2), [9, 8].map(Token));
    /// assert_eq!(drafter.propose(Slot(0), &tokens[..5], 2), []);
    /// ```
    pub fn propose(&mut self, slot: Slot, tokens: &[Token], len_max: usize) -> Vec<Token> {
        self.propose_within(slot, tokens, &Allowance::one_path(len_max))
    }

    /// What it drafts: as much as is allowed on one path and worth its price.
    ///
    /// ```
    /// # use forerun_decode::*;
    /// let mut drafter = SuffixDrafter::default();
    /// let tokens = [3, 4, 9, 8, 3, 4].map(Token);
    /// let mut drafted = |price| {
    ///     let price = Price::per_token(price);
    ///     let allowance = Allowance { price, ..Allowance::one_path(8) };
    ///     drafter.propose_within(Slot(0), &tokens, &allowance).len()
    /// };
    /// assert_eq!((drafted(0.0), drafted(1.0)), (8, 0));
    /// ```
    pub fn propose_within(
        &mut self,
        slot: Slot,
        tokens: &[Token],
        allowance: &Allowance,
    ) -> Vec<Token> {
        let match_max = self.config.match_len.max();
        let new = || Own::new(match_max, self.hits.prior());
        let own = self.slots.entry(slot).or_insert_with(new);
        let fresh = own.update(tokens, match_max, &mut self.hits);
        if own.edition == self.edition && fresh.len() < match_max {
            own.older = carry(&self.older, own.older, fresh);
            own.younger = carry(&self.younger, own.younger, fresh);
        } else {
            own.older = self.older.find(tokens);
            own.younger = self.younger.find(tokens);
            own.edition = self.edition;
        }
        let sources = [
            (&own.automaton, own.end.cursor()),
            (&self.older, own.older),
            (&self.younger, own.younger),
        ];
        let len_max = allowance.tokens.min(NODES_MAX);
        own.expected = expected(sources, self.config.match_len.min(), len_max);
        let mut chance = 1.0;
        let chances = own.expected.iter().map(|next| {
            chance *= own.hits.chance(next);
            chance
        });
        let drafted = allowance.price.best(chances);
        own.expected[..drafted].iter().map(|next| next.token).collect()
    }
}

impl Drafter for SuffixDrafter {
    fn kind(&self) -> DrafterKind {
        DrafterKind::Suffix
    }

    fn heeds_price(&self) -> bool {
        true
    }

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), DraftFailure> {
        for request in requests {
            let allowance = request.allowance();
            let path = self.propose_within(request.slot, request.tokens, &allowance);
            add_path(request, FixedTokens::of(path));
        }
        Ok(())
    }

    fn forget(&mut self, slot: Slot) {
        self.slots.remove(&slot);
    }

    fn ended(&mut self, _: Slot, tokens: &[Token]) {
        let half = self.config.tokens_max.min(1 << 30) / 2;
        let tokens = &tokens[tokens.len().saturating_sub(half)..];
        if tokens.is_empty() {
            return;
        }
        if self.younger.len() + tokens.len() > half {
            let fresh = Automaton::new(self.config.match_len.max());
            self.older = std::mem::replace(&mut self.younger, fresh);
        }
        let mut end = End::START;
        for token in tokens {
            end = self.younger.append(end, *token);
        }
        self.edition += 1;
    }
}

impl Own {
    fn new(match_max: usize, hits: Hits) -> Self {
        Self {
            seen: Seen::default(),
            automaton: Automaton::new(match_max),
            end: End::START,
            older: Cursor::EMPTY,
            younger: Cursor::EMPTY,
            edition: 0,
            hits,
            expected: Vec::new(),
        }
    }

    /// Takes the tokens that are in the slot now, learns from what was expected, and returns those
    /// that were not known.
    fn update<'a>(
        &mut self,
        tokens: &'a [Token],
        match_max: usize,
        shared: &mut Hits,
    ) -> &'a [Token] {
        let seen_len = self.seen.len();
        let mut common = self.seen.update(tokens);
        if common < seen_len {
            let seen = std::mem::take(&mut self.seen);
            *self = Self { seen, ..Self::new(match_max, shared.prior()) };
            common = 0;
        }
        let expected = std::mem::take(&mut self.expected);
        for (next, token) in expected.iter().zip(&tokens[common..]) {
            let right = next.token == *token;
            self.hits.learn(next, right);
            shared.learn(next, right);
            if !right {
                break;
            }
        }
        for token in &tokens[common..] {
            self.end = self.automaton.append(self.end, *token);
        }
        &tokens[common..]
    }
}

/// Suffixes of more tokens than this are not told apart.
const LEN_MAX: usize = 16;

/// How often what followed a suffix came again, by the suffix's length.
#[derive(Debug, Clone)]
struct Hits([Rate; LEN_MAX + 1]);

/// The longer the suffix, the likelier.
impl Default for Hits {
    fn default() -> Self {
        Self(std::array::from_fn(|len| Rate::guessed(0.9 * (1.0 - 1.0 / (2.0 + len as f32)))))
    }
}

impl Hits {
    /// What a new sequence begins with: the same rates, of which it is less sure.
    fn prior(&self) -> Self {
        let mut own = self.clone();
        own.0.iter_mut().for_each(|rate| rate.bound(EARLIER_MAX));
        own
    }

    /// The estimated chance that a token comes after those before it.
    fn chance(&self, next: &Next) -> f64 {
        (next.share * f64::from(self.0[next.match_len.min(LEN_MAX)].chance())).min(1.0)
    }

    #[expect(clippy::cast_possible_truncation, reason = "a share, for a rate")]
    fn learn(&mut self, next: &Next, right: bool) {
        self.0[next.match_len.min(LEN_MAX)].learn(right, next.share as f32, OWN_MAX);
    }
}

fn carry(automaton: &Automaton, cursor: Cursor, tokens: &[Token]) -> Cursor {
    tokens.iter().fold(cursor, |cursor, token| automaton.advance(cursor, *token))
}

/// A sequence's suffix in each of the halves where it is looked for.
type Sources<'a> = [(&'a Automaton, Cursor); 3];

/// The likeliest token, the likeliest after it, and so on.
fn expected(mut sources: Sources<'_>, match_min: usize, len_max: usize) -> Vec<Next> {
    let mut path: Vec<Next> = Vec::new();
    while path.len() < len_max {
        let Some(next) = likeliest(&mut sources, match_min) else { break };
        for (automaton, cursor) in &mut sources {
            *cursor = automaton.advance(*cursor, next.token);
        }
        path.push(next);
    }
    path
}

/// What most often followed the longest suffix that was followed by anything.
#[derive(Debug, Clone)]
struct Next {
    token: Token,
    /// Its share of all that followed.
    share: f64,
    match_len: usize,
}

fn likeliest(sources: &mut Sources<'_>, match_min: usize) -> Option<Next> {
    for (automaton, cursor) in &mut *sources {
        *cursor = automaton.followed(*cursor);
    }
    let match_len = sources.iter().map(|(_, cursor)| cursor.len()).max()?;
    if match_len < match_min {
        return None;
    }
    let longest = || sources.iter().enumerate().filter(|(_, (_, at))| at.len() == match_len);
    let mut total = 0;
    let mut best: Option<(u64, Token)> = None;
    for (source, (automaton, cursor)) in longest() {
        for (token, count) in automaton.followers(*cursor) {
            total += u64::from(count);
            let others = longest().filter(|(other, _)| *other != source);
            let elsewhere = others.map(|(_, (other, at))| other.follower_count(*at, token));
            let count = u64::from(count) + elsewhere.map(u64::from).sum::<u64>();
            if best.is_none_or(|(most, lowest)| count > most || count == most && token < lowest) {
                best = Some((count, token));
            }
        }
    }
    best.map(|(count, token)| Next { token, share: count as f64 / total as f64, match_len })
}
