//! A constraint that begins at a mark. What comes before the mark is free, and costs no masks: most of
//! what a model writes is text, and a grammar that allows any text is slow to say so.

use std::sync::Arc;
use std::time::Duration;

use forerun_decode::{Constraint, ConstraintError, Token, Tokenizer};

use super::grammar::{Begins, CallForm};
use super::{Dialect, Marks};

/// A text to be found in bytes that come one by one.
#[derive(Debug, Clone)]
struct Mark {
    bytes: Vec<u8>,
    /// For each length of a match, the longest shorter one that ends the same.
    shorter: Vec<usize>,
}

impl Mark {
    fn new(text: &str) -> Self {
        let bytes = text.trim().as_bytes().to_vec();
        let mut shorter = vec![0; bytes.len()];
        for at in 1..bytes.len() {
            let mut len = shorter[at - 1];
            while len > 0 && bytes[at] != bytes[len] {
                len = shorter[len - 1];
            }
            shorter[at] = len + usize::from(bytes[at] == bytes[len]);
        }
        Self { bytes, shorter }
    }

    /// How much of the mark the text ends with after this byte.
    fn found(&self, mut len: usize, byte: u8) -> usize {
        while len > 0 && self.bytes[len] != byte {
            len = self.shorter[len - 1];
        }
        len + usize::from(self.bytes[len] == byte)
    }

    /// The same if the mark must begin where it began.
    fn goes_on(&self, len: usize, byte: u8) -> Option<usize> {
        (self.bytes[len] == byte).then_some(len + 1)
    }
}

/// What comes before a constraint.
#[derive(Debug)]
pub(crate) struct Lead {
    mark: Mark,
    /// The marks of thoughts, in which no other mark counts.
    thoughts: Option<(Mark, Mark)>,
    /// Whether the mark must come first, but for thoughts and white space.
    first_only: bool,
    /// Whether the output may end before the mark.
    may_end: bool,
    /// Tokens in which the mark may end before they do.
    beyond: Vec<Token>,
    ends: Vec<Token>,
}

/// What comes before the calls of a dialect.
#[derive(Debug, Clone)]
pub(crate) struct Leads {
    mark: Arc<Lead>,
    thought: Option<Arc<Lead>>,
}

impl Leads {
    pub(crate) fn new(tokenizer: &dyn Tokenizer, dialect: &Dialect) -> Self {
        let thoughts = dialect.thoughts.as_ref();
        let mark = Lead::new(tokenizer, dialect.calls.opening());
        let mark = mark.thinking(thoughts).first_only(dialect.calls.first_only);
        let thought = thoughts.map(|marks| Arc::new(Lead::new(tokenizer, &marks.end).needed()));
        Self { mark: Arc::new(mark), thought }
    }

    /// Holds an output to a constraint from where on it begins.
    pub(crate) fn hold(
        &self,
        call: &CallForm,
        tokenizer: &Arc<dyn Tokenizer>,
        inner: Box<dyn Constraint>,
    ) -> Box<dyn Constraint> {
        match (call.begins, &self.thought) {
            (Begins::AtMark, _) => {
                Box::new(FromMark::new(&self.mark, tokenizer, call.opened, inner))
            }
            (Begins::AfterThought, Some(thought)) => {
                Box::new(FromMark::new(thought, tokenizer, false, inner))
            }
            _ => inner,
        }
    }
}

/// Where in what comes before the mark a text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Text {
        /// How much of the mark of a thought the text begins with; `None` once it cannot.
        start: Option<usize>,
        /// How much of the mark was found last; `None` once it cannot come.
        mark: Option<usize>,
        /// Whether there was more than white space.
        begun: bool,
    },
    /// How much of the end of the thought was found last.
    Thought(usize),
    Marked,
}

/// Where a text is after some tokens.
enum Walked {
    Before(Place),
    /// After so many of the tokens the mark was whole.
    Marked(usize),
    /// The mark ends inside the token at this index, or the text may not end with it.
    Refused(usize),
}

impl Lead {
    /// Text, and thoughts before it, up to a mark.
    pub(crate) fn new(tokenizer: &dyn Tokenizer, mark: &str) -> Self {
        let mark = Mark::new(mark);
        let last = mark.bytes.last().copied().unwrap_or_default();
        let (mut beyond, mut ends, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
        for token in (0..).map(Token).take(tokenizer.vocab_len()) {
            if tokenizer.is_end(token) {
                ends.push(token);
                continue;
            }
            bytes.clear();
            tokenizer.bytes(token, &mut bytes);
            if bytes.split_last().is_some_and(|(_, before)| before.contains(&last)) {
                beyond.push(token);
            }
        }
        Self { mark, thoughts: None, first_only: false, may_end: true, beyond, ends }
    }

    /// The same for outputs that may begin with a thought.
    pub(crate) fn thinking(mut self, thoughts: Option<&Marks>) -> Self {
        self.thoughts = thoughts.map(|marks| (Mark::new(&marks.start), Mark::new(&marks.end)));
        self
    }

    /// The same for a mark that must come first.
    pub(crate) fn first_only(self, first_only: bool) -> Self {
        Self { first_only, ..self }
    }

    /// The same for a mark that must come.
    pub(crate) fn needed(self) -> Self {
        Self { may_end: false, ..self }
    }

    fn begin(&self, opened: bool) -> Place {
        match (opened, &self.thoughts) {
            (true, Some(_)) => Place::Thought(0),
            (_, thoughts) => {
                let start = thoughts.as_ref().map(|_| 0);
                Place::Text { start, mark: Some(0), begun: false }
            }
        }
    }

    fn after(&self, place: Place, byte: u8) -> Place {
        match (place, &self.thoughts) {
            (Place::Thought(len), Some((_, end))) => match end.found(len, byte) {
                len if len == end.bytes.len() => {
                    Place::Text { start: None, mark: Some(0), begun: false }
                }
                len => Place::Thought(len),
            },
            (Place::Text { start, mark, begun }, thoughts) => {
                let space = !begun && byte.is_ascii_whitespace();
                let start = match (start, thoughts) {
                    (Some(0), _) if space => Some(0),
                    (Some(len), Some((mark, _))) => mark.goes_on(len, byte),
                    _ => None,
                };
                let thinks = thoughts.as_ref().is_some_and(|(it, _)| start == Some(it.bytes.len()));
                let mark = match mark {
                    Some(0) if space => Some(0),
                    Some(len) if self.first_only => self.mark.goes_on(len, byte),
                    Some(len) => Some(self.mark.found(len, byte)),
                    None => None,
                };
                match mark {
                    _ if thinks => Place::Thought(0),
                    Some(len) if len == self.mark.bytes.len() => Place::Marked,
                    mark => Place::Text { start, mark, begun: begun || !space },
                }
            }
            (place, _) => place,
        }
    }

    /// The place after a token; `None` if the mark ends before the token does.
    fn after_token(&self, mut place: Place, bytes: &[u8]) -> Option<Place> {
        for byte in bytes {
            if place == Place::Marked {
                return None;
            }
            place = self.after(place, *byte);
        }
        Some(place)
    }
}

/// Holds an output to a constraint from a mark on.
pub(crate) struct FromMark {
    lead: Arc<Lead>,
    tokenizer: Arc<dyn Tokenizer>,
    place: Place,
    inner: Box<dyn Constraint>,
}

impl FromMark {
    /// For an output that begins inside a thought if `opened`.
    pub(crate) fn new(
        lead: &Arc<Lead>,
        tokenizer: &Arc<dyn Tokenizer>,
        opened: bool,
        inner: Box<dyn Constraint>,
    ) -> Self {
        let place = lead.begin(opened);
        Self { lead: Arc::clone(lead), tokenizer: Arc::clone(tokenizer), place, inner }
    }

    fn walk(&self, tokens: &[Token]) -> Walked {
        let (mut place, mut bytes) = (self.place, Vec::new());
        for (index, token) in tokens.iter().enumerate() {
            if place == Place::Marked {
                return Walked::Marked(index);
            }
            if !self.lead.may_end && self.lead.ends.contains(token) {
                return Walked::Refused(index);
            }
            bytes.clear();
            self.tokenizer.bytes(*token, &mut bytes);
            match self.lead.after_token(place, &bytes) {
                Some(next) => place = next,
                None => return Walked::Refused(index),
            }
        }
        match place {
            Place::Marked => Walked::Marked(tokens.len()),
            place => Walked::Before(place),
        }
    }
}

impl Constraint for FromMark {
    fn mask(&mut self, path: &[Token], logits: &mut [f32]) -> Result<(), ConstraintError> {
        let place = match self.walk(path) {
            Walked::Marked(index) => return self.inner.mask(&path[index..], logits),
            Walked::Refused(_) => return Ok(()),
            Walked::Before(place) => place,
        };
        if !self.lead.may_end {
            self.lead.ends.iter().for_each(|end| logits[end.index()] = f32::NEG_INFINITY);
        }
        let mut bytes = Vec::new();
        for token in &self.lead.beyond {
            bytes.clear();
            self.tokenizer.bytes(*token, &mut bytes);
            if self.lead.after_token(place, &bytes).is_none() {
                logits[token.index()] = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    fn admitted(&mut self, path: &[Token]) -> usize {
        match self.walk(path) {
            Walked::Marked(index) => index + self.inner.admitted(&path[index..]),
            Walked::Refused(index) => index,
            Walked::Before(_) => path.len(),
        }
    }

    fn commit(&mut self, tokens: &[Token]) {
        match self.walk(tokens) {
            Walked::Marked(index) => {
                self.place = Place::Marked;
                self.inner.commit(&tokens[index..]);
            }
            Walked::Before(place) => self.place = place,
            // What is not allowed is never committed.
            Walked::Refused(_) => {}
        }
    }

    fn prepare(&mut self) -> bool {
        self.place != Place::Marked || self.inner.prepare()
    }

    fn mask_time(&mut self) -> Duration {
        self.inner.mask_time()
    }
}
