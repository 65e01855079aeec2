//! From one vocabulary to another, so that a drafter of another family can serve a target.
//!
//! Tokens correspond where their bytes do. A drafter's row is carried over to the target's
//! vocabulary before it is shaped and drawn from, so tokens are drawn from and verified by one and
//! the same distribution and verification stays lossless, whatever is lost in translation: a bad
//! map costs acceptance, never truth.

use std::collections::HashMap;

use forerun_verify::Token;

use crate::text::{Special, Tokenizer};

/// Why a drafter's vocabulary does not serve a target.
///
/// ```
/// use forerun_decode::VocabMismatch;
/// let error = VocabMismatch::TooFewShared { shared: 1, draft_len: 10 };
/// assert_eq!(
///     error.to_string(),
///     "1 of the draft vocabulary's 10 tokens have a counterpart in the target's; expected 50 %"
/// );
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VocabMismatch {
    /// A vocabulary has no tokens.
    #[error(
        "a vocabulary of {target_len} tokens for the target and {draft_len} for the drafter; expected some"
    )]
    Empty {
        /// The target's length.
        target_len: usize,
        /// The drafter's length.
        draft_len: usize,
    },
    /// Most of the drafter's tokens mean nothing to the target.
    #[error(
        "{shared} of the draft vocabulary's {draft_len} tokens have a counterpart in the target's; \
         expected {} %",
        VocabMap::SHARED_PERCENT_MIN
    )]
    TooFewShared {
        /// The drafter's tokens that have a counterpart.
        shared: usize,
        /// The drafter's tokens, those without bytes aside unless they have a counterpart.
        draft_len: usize,
    },
}

/// Which token of a drafter's vocabulary is which of the target's: one to one.
///
/// ```
/// # use {forerun_decode::*, words::Words};
/// # mod words { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vocab_map/words.rs")); }
/// let target = Words(vec!["so ", "it ", "goes", "is", "</s>"]);
/// let draft = Words(vec!["goes", "it ", "so ", "</s>"]);
/// let map = VocabMap::between(&target, &draft)?;
/// assert_eq!(map.to_target(Token(0)), Some(Token(2)));
/// assert_eq!(map.to_target(Token(3)), Some(Token(4)), "the end");
/// assert_eq!(map.to_draft(Token(3)), None, "the drafter has no such word");
/// # Ok::<(), VocabMismatch>(())
/// ```
#[derive(Debug, Clone)]
pub struct VocabMap {
    target_len: usize,
    draft_len: usize,
    pairs: Pairs,
}

#[derive(Debug, Clone)]
enum Pairs {
    /// Ids below the shorter vocabulary's length mean the same.
    Identity,
    /// By draft token and by target token.
    Table { to_target: Vec<Option<Token>>, to_draft: Vec<Option<Token>> },
}

impl VocabMap {
    /// A vocabulary is refused where fewer of a hundred of its tokens have a counterpart.
    ///
    /// ```
    /// # use forerun_decode::VocabMap;
    /// assert_eq!(VocabMap::SHARED_PERCENT_MIN, 50);
    /// ```
    pub const SHARED_PERCENT_MIN: usize = 50;

    /// Finds out which tokens correspond.
    ///
    /// It is the identity where every id that both vocabularies have stands for the same bytes; one
    /// may be longer, as vocabularies that are padded are. Otherwise tokens correspond where their
    /// bytes agree. Where several tokens of a vocabulary have the same bytes, the one counts that
    /// its tokeniser makes of them, else the one with the lowest id, and the others have no
    /// counterpart. Tokens without bytes correspond by id where nine in ten of the ids with bytes
    /// agree, because such vocabularies are editions of one. Otherwise they do by their role: ends
    /// to ends, from the highest id down, because the end of a turn comes after the end of a
    /// document wherever a vocabulary has both; then start to start; then those with the same text, such
    /// as `<|im_start|>`.
    ///
    /// # Errors
    /// If fewer than half of the drafter's tokens have a counterpart.
    ///
    /// ```
    /// # use {forerun_decode::*, words::Words};
    /// # mod words { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vocab_map/words.rs")); }
    /// let (target, draft) = (Words(vec!["a", "b", "c"]), Words(vec!["a", "b"]));
    /// assert!(VocabMap::between(&target, &draft)?.is_identity());
    /// assert!(VocabMap::between(&target, &Words(vec!["x", "y"])).is_err());
    /// # Ok::<(), VocabMismatch>(())
    /// ```
    pub fn between(target: &dyn Tokenizer, draft: &dyn Tokenizer) -> Result<Self, VocabMismatch> {
        let (target_len, draft_len) = (target.vocab_len(), draft.vocab_len());
        if target_len == 0 || draft_len == 0 {
            return Err(VocabMismatch::Empty { target_len, draft_len });
        }
        let (target_bytes, draft_bytes) = (TokenBytes::of(target), TokenBytes::of(draft));
        let mut common = common(&target_bytes, &draft_bytes);
        let pairs = if common.all(|id| target_bytes.get(id) == draft_bytes.get(id)) {
            Pairs::Identity
        } else {
            table(&target_bytes, &draft_bytes)
        };
        let map = Self { target_len, draft_len, pairs };
        let shared = map.shared();
        let silent = ids(draft_len)
            .filter(|id| draft_bytes.get(*id).is_empty() && map.to_target(*id).is_none());
        let draft_len = draft_len - silent.count();
        if shared == 0 || 100 * shared < Self::SHARED_PERCENT_MIN * draft_len {
            return Err(VocabMismatch::TooFewShared { shared, draft_len });
        }
        Ok(map)
    }

    /// The target's token for one of the drafter's.
    ///
    /// ```
    /// # use {forerun_decode::*, words::Words};
    /// # mod words { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vocab_map/words.rs")); }
    /// let map = VocabMap::between(&Words(vec!["a", "b"]), &Words(vec!["b", "c"]))?;
    /// assert_eq!(map.to_target(Token(0)), Some(Token(1)));
    /// assert_eq!(map.to_target(Token(1)), None);
    /// # Ok::<(), VocabMismatch>(())
    /// ```
    pub fn to_target(&self, token: Token) -> Option<Token> {
        match &self.pairs {
            Pairs::Identity => self.shares(token),
            Pairs::Table { to_target, .. } => *to_target.get(token.index())?,
        }
    }

    /// The drafter's token for one of the target's.
    ///
    /// ```
    /// # use {forerun_decode::*, words::Words};
    /// # mod words { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vocab_map/words.rs")); }
    /// let map = VocabMap::between(&Words(vec!["a", "b"]), &Words(vec!["b", "c"]))?;
    /// assert_eq!(map.to_draft(Token(1)), Some(Token(0)));
    /// # Ok::<(), VocabMismatch>(())
    /// ```
    pub fn to_draft(&self, token: Token) -> Option<Token> {
        match &self.pairs {
            Pairs::Identity => self.shares(token),
            Pairs::Table { to_draft, .. } => *to_draft.get(token.index())?,
        }
    }

    /// Whether ids mean the same in both vocabularies.
    ///
    /// ```
    /// # use {forerun_decode::*, words::Words};
    /// # mod words { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vocab_map/words.rs")); }
    /// let map = VocabMap::between(&Words(vec!["a", "b"]), &Words(vec!["b", "c"]))?;
    /// assert!(!map.is_identity());
    /// # Ok::<(), VocabMismatch>(())
    /// ```
    pub fn is_identity(&self) -> bool {
        matches!(self.pairs, Pairs::Identity)
    }

    /// The share of the target's tokens that the drafter can draft.
    ///
    /// ```
    /// # use {forerun_decode::*, words::Words};
    /// # mod words { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vocab_map/words.rs")); }
    /// let map = VocabMap::between(&Words(vec!["a", "b"]), &Words(vec!["b", "c"]))?;
    /// assert_eq!(map.coverage(), 0.5);
    /// # Ok::<(), VocabMismatch>(())
    /// ```
    pub fn coverage(&self) -> f64 {
        self.shared() as f64 / self.target_len as f64
    }

    /// Carries a drafter's row over to the target's vocabulary: the logits of tokens that
    /// correspond, and `-inf` for all others.
    ///
    /// # Panics
    /// If the row is not of the drafter's vocabulary.
    ///
    /// ```
    /// # use {forerun_decode::*, words::Words};
    /// # mod words { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vocab_map/words.rs")); }
    /// let map = VocabMap::between(&Words(vec!["a", "b"]), &Words(vec!["b", "c"]))?;
    /// let mut row = Vec::new();
    /// map.translate_row(&[0.5, 2.0], &mut row);
    /// assert_eq!(row, [f32::NEG_INFINITY, 0.5]);
    /// # Ok::<(), VocabMismatch>(())
    /// ```
    pub fn translate_row(&self, draft_logits: &[f32], target_logits: &mut Vec<f32>) {
        assert_eq!(draft_logits.len(), self.draft_len, "a row has one logit for each token");
        target_logits.clear();
        match &self.pairs {
            Pairs::Identity => {
                let common = self.target_len.min(self.draft_len);
                target_logits.extend_from_slice(&draft_logits[..common]);
                target_logits.resize(self.target_len, f32::NEG_INFINITY);
            }
            Pairs::Table { to_draft, .. } => {
                let logit = |token: Token| draft_logits[token.index()];
                let row = to_draft.iter().map(|token| token.map_or(f32::NEG_INFINITY, logit));
                target_logits.extend(row);
            }
        }
    }

    /// The drafter's tokens for a committed token of the target: its counterpart, or what the
    /// drafter's tokeniser makes of its text; none where it has no text, or part of a character.
    ///
    /// ```
    /// # use {forerun_decode::*, words::Words};
    /// # mod words { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vocab_map/words.rs")); }
    /// let (target, draft) = (Words(vec!["a", "b", "ba"]), Words(vec!["b", "a"]));
    /// let map = VocabMap::between(&target, &draft)?;
    /// assert_eq!(map.spell(Token(2), &target, &draft), [Token(0), Token(1)]);
    /// # Ok::<(), VocabMismatch>(())
    /// ```
    pub fn spell(&self, token: Token, target: &dyn Tokenizer, draft: &dyn Tokenizer) -> Vec<Token> {
        if let Some(token) = self.to_draft(token) {
            return vec![token];
        }
        let mut bytes = Vec::new();
        target.bytes(token, &mut bytes);
        let text = std::str::from_utf8(&bytes).unwrap_or_default();
        let roughly = || draft.tokenize(text, Special::AsText).ok();
        spelling(&bytes, draft).or_else(roughly).unwrap_or_default()
    }

    fn shares(&self, token: Token) -> Option<Token> {
        (token.index() < self.target_len.min(self.draft_len)).then_some(token)
    }

    fn shared(&self) -> usize {
        match &self.pairs {
            Pairs::Identity => self.target_len.min(self.draft_len),
            Pairs::Table { to_target, .. } => to_target.iter().flatten().count(),
        }
    }
}

/// The bytes of all tokens of a vocabulary.
struct TokenBytes<'a> {
    tokenizer: &'a dyn Tokenizer,
    bytes: Vec<u8>,
    /// Where each token's end.
    offsets: Vec<usize>,
}

impl<'a> TokenBytes<'a> {
    fn of(tokenizer: &'a dyn Tokenizer) -> Self {
        let mut bytes = Vec::new();
        let read = |token| {
            tokenizer.bytes(token, &mut bytes);
            bytes.len()
        };
        let offsets = ids(tokenizer.vocab_len()).map(read).collect();
        Self { tokenizer, bytes, offsets }
    }

    fn get(&self, token: Token) -> &[u8] {
        let start = token.index().checked_sub(1).map_or(0, |before| self.offsets[before]);
        &self.bytes[start..self.offsets[token.index()]]
    }

    fn ids(&self) -> impl DoubleEndedIterator<Item = Token> {
        ids(self.offsets.len())
    }

    /// Tokens without bytes that end a generation, from the highest id down.
    fn last_ends(&self) -> impl Iterator<Item = Token> {
        let ends = |token: &Token| self.get(*token).is_empty() && self.tokenizer.is_end(*token);
        self.ids().rev().filter(ends)
    }

    /// Control tokens without bytes, by their text.
    fn controls(&self) -> impl Iterator<Item = (String, Token)> {
        let named = self.tokenizer.special_tokens().into_iter().map(|it| (it.text, it.token));
        named.filter(|(_, it)| it.index() < self.offsets.len() && self.get(*it).is_empty())
    }

    fn start(&self) -> Option<Token> {
        self.tokenizer.start().filter(|token| token.index() < self.offsets.len())
    }

    /// Whether nine in ten ids with bytes stand for the same ones: a later edition of the same
    /// vocabulary, with tokens added or put to use.
    fn is_kin(&self, other: &Self) -> bool {
        let texts = common(self, other).map(|id| (self.get(id), other.get(id)));
        let texts: Vec<_> = texts.filter(|(one, two)| !one.is_empty() || !two.is_empty()).collect();
        let same = texts.iter().filter(|(one, two)| one == two).count();
        10 * same >= 9 * texts.len()
    }

    /// The token for each text.
    fn tokens(&self) -> HashMap<&[u8], Token> {
        let mut tokens: HashMap<&[u8], Vec<Token>> = HashMap::with_capacity(self.offsets.len());
        for token in self.ids().filter(|token| !self.get(*token).is_empty()) {
            tokens.entry(self.get(token)).or_default().push(token);
        }
        tokens.into_iter().map(|(text, tokens)| (text, self.choose(text, &tokens))).collect()
    }

    /// Which of the tokens with this text is meant.
    fn choose(&self, text: &[u8], tokens: &[Token]) -> Token {
        let lowest = tokens[0];
        if tokens.len() == 1 {
            return lowest;
        }
        match spelling(text, self.tokenizer).as_deref() {
            Some([token]) if tokens.contains(token) => *token,
            _ => lowest,
        }
    }
}

fn ids(len: usize) -> impl DoubleEndedIterator<Item = Token> {
    (0..u32::try_from(len).expect("tokens are numbered by u32")).map(Token)
}

/// The ids that both vocabularies have.
fn common(one: &TokenBytes<'_>, two: &TokenBytes<'_>) -> impl Iterator<Item = Token> {
    ids(one.offsets.len().min(two.offsets.len()))
}

fn table(target: &TokenBytes<'_>, draft: &TokenBytes<'_>) -> Pairs {
    let mut to_target = vec![None; draft.offsets.len()];
    let mut to_draft = vec![None; target.offsets.len()];
    let mut pair = |target: Token, draft: Token| {
        let (draft_side, target_side) =
            (&mut to_target[draft.index()], &mut to_draft[target.index()]);
        if draft_side.is_none() && target_side.is_none() {
            (*draft_side, *target_side) = (Some(target), Some(draft));
        }
    };
    let target_tokens = target.tokens();
    for (text, token) in draft.tokens() {
        if let Some(counterpart) = target_tokens.get(text) {
            pair(*counterpart, token);
        }
    }
    if target.is_kin(draft) {
        let silent = |id: &Token| target.get(*id).is_empty() && draft.get(*id).is_empty();
        common(target, draft).filter(silent).for_each(|id| pair(id, id));
    }
    target.last_ends().zip(draft.last_ends()).for_each(|(target, draft)| pair(target, draft));
    if let (Some(target), Some(draft)) = (target.start(), draft.start()) {
        pair(target, draft);
    }
    // Marks of a chat template that both know, such as <|im_start|>.
    let named: HashMap<String, Token> = target.controls().collect();
    for (name, draft) in draft.controls() {
        if let Some(target) = named.get(&name) {
            pair(*target, draft);
        }
    }
    Pairs::Table { to_target, to_draft }
}

/// The tokens a tokeniser makes of a text, if their bytes are the text's.
fn spelling(bytes: &[u8], tokenizer: &dyn Tokenizer) -> Option<Vec<Token>> {
    let text = std::str::from_utf8(bytes).ok().filter(|text| !text.is_empty())?;
    // Some tokenisers put a space before the beginning of a text, but none after a line break.
    ["", "\n"].into_iter().find_map(|before| {
        let mut tokens = tokenizer.tokenize(&format!("{before}{text}"), Special::AsText).ok()?;
        let mut spelled = Vec::new();
        for start in (0..tokens.len()).rev() {
            let mut whole = Vec::new();
            tokenizer.bytes(tokens[start], &mut whole);
            whole.append(&mut spelled);
            spelled = whole;
            if spelled == bytes {
                return Some(tokens.split_off(start));
            }
        }
        None
    })
}
