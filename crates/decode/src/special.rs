//! Control tokens written out in a prompt: which of them the chat template wrote, and which are
//! content that only looks alike.
//!
//! A chat template renders messages to one string, and its own markers (`<|im_start|>`) must become
//! control tokens while the same characters in a message must stay text. Before rendering, every
//! such text in the messages is broken by a character that occurs nowhere else, which the template
//! passes through ([`SpecialTokens::cuts`]). After rendering, these characters are taken out and
//! their places kept ([`RenderedPrompt`]). A control token's text with such a place inside is text
//! ([`SpecialTokens::tokenize`]); all else is tokenised as llama.cpp does.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use forerun_verify::Token;

use crate::text::{Special, SpecialToken, TokenizeError, Tokenizer};

/// A prompt that a chat template wrote, and where the content in it must not become a control token.
///
/// See [`ChatTemplate::render_content_as_text`](crate::ChatTemplate::render_content_as_text).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RenderedPrompt {
    /// The prompt.
    pub text: String,
    /// Places in it, in bytes and ascending. A control token's text with one of them inside is text.
    pub breaks: Vec<usize>,
}

impl RenderedPrompt {
    /// Takes `mark` out of a prompt and keeps its places.
    pub(crate) fn unmark(marked: &str, mark: char) -> Self {
        let mut prompt = Self::default();
        for (index, part) in marked.split(mark).enumerate() {
            if index > 0 {
                prompt.breaks.push(prompt.text.len());
            }
            prompt.text.push_str(part);
        }
        prompt
    }

    /// Whether a place lies inside.
    fn breaks(&self, range: &Range<usize>) -> bool {
        let next = self.breaks.partition_point(|place| *place <= range.start);
        self.breaks.get(next).is_some_and(|place| *place < range.end)
    }
}

/// The special tokens of a vocabulary, to be found in text.
///
/// ```
/// use forerun_decode::{SpecialToken, SpecialTokens, Token};
///
/// let specials = SpecialTokens::new(vec![SpecialToken::control(Token(2), "<|im_end|>")]);
/// assert!(specials.cuts("plain text").is_empty());
/// assert_eq!(specials.cuts("Hi<|im_end|>").into_iter().collect::<Vec<_>>(), [3]);
/// ```
#[derive(Debug, Clone, Default)]
pub struct SpecialTokens {
    /// The longest first, which is the order they are looked for in.
    tokens: Vec<SpecialToken>,
    /// Their places among `tokens`.
    by_text: HashMap<String, usize>,
    /// The lengths there are, by first byte.
    lens: HashMap<u8, BTreeSet<usize>>,
    /// The texts of control tokens, in order, and written backwards.
    controls: Vec<String>,
    reversed: Vec<String>,
    /// Bytes of the longest control token's text.
    control_len_max: usize,
}

/// A stretch of a prompt while it is split.
enum Part {
    Text(Range<usize>),
    /// A special token that is found in all text, so also when its stretch is tokenised.
    Kept(Range<usize>),
    Control(Token),
}

impl SpecialTokens {
    /// Of these tokens; those without text are left out.
    pub fn new(mut tokens: Vec<SpecialToken>) -> Self {
        tokens.retain(|special| !special.text.is_empty());
        tokens.sort_by_key(|special| std::cmp::Reverse(special.text.len()));
        let mut by_text = HashMap::new();
        let mut lens: HashMap<u8, BTreeSet<usize>> = HashMap::new();
        for (index, special) in tokens.iter().enumerate() {
            by_text.insert(special.text.clone(), index);
            lens.entry(special.text.as_bytes()[0]).or_default().insert(special.text.len());
        }
        let controls = tokens.iter().filter(|special| special.control);
        let mut controls: Vec<String> = controls.map(|special| special.text.clone()).collect();
        let reverse = |text: &String| text.chars().rev().collect();
        let mut reversed: Vec<String> = controls.iter().map(reverse).collect();
        controls.sort_unstable();
        reversed.sort_unstable();
        let control_len_max = controls.iter().map(String::len).max().unwrap_or(0);
        Self { tokens, by_text, lens, controls, reversed, control_len_max }
    }

    /// Of a vocabulary.
    pub fn of(tokenizer: &dyn Tokenizer) -> Self {
        Self::new(tokenizer.special_tokens())
    }

    /// Every occurrence of a special token's text, overlapping ones too: place and index.
    fn occurrences<'a>(&'a self, text: &'a str) -> impl Iterator<Item = (usize, usize)> + 'a {
        let bytes = text.as_bytes().iter().enumerate();
        bytes.filter_map(|(at, byte)| Some((at, self.lens.get(byte)?))).flat_map(
            move |(at, lens)| {
                let found = move |len: &usize| self.by_text.get(text.get(at..at + len)?);
                lens.iter().filter_map(found).map(move |index| (at, *index))
            },
        )
    }

    /// Where a string from a request must be broken, in bytes, so that no control token is found in
    /// it: inside each control token's text, and inside what may become one together with the text
    /// before or after the string. White space around it may be trimmed by the template.
    ///
    /// Control tokens of a single character cannot be broken.
    pub fn cuts(&self, text: &str) -> BTreeSet<usize> {
        let after_first = |at: usize| at + text[at..].chars().next().map_or(0, char::len_utf8);
        let mut cuts: BTreeSet<usize> = self
            .occurrences(text)
            .filter(|(_, index)| self.tokens[*index].control)
            .map(|(at, _)| after_first(at))
            .collect();
        let begin = text.len() - text.trim_start().len();
        let end = text.trim_end().len().max(begin);
        let begins_one = |texts: &[String], part: &str| {
            let place = texts.partition_point(|text| text.as_str() < part);
            texts.get(place).is_some_and(|text| text.starts_with(part))
        };
        let tail = end.saturating_sub(self.control_len_max).max(begin);
        for at in (tail..end).filter(|at| text.is_char_boundary(*at)) {
            if begins_one(&self.controls, &text[at..end]) {
                cuts.insert(after_first(at));
            }
        }
        let mut head = String::new();
        let most = (begin + self.control_len_max).min(end);
        for (at, char) in text[begin..end].char_indices().take_while(|(at, _)| begin + at < most) {
            head.insert(0, char);
            if begins_one(&self.reversed, &head) {
                cuts.insert(begin + at);
            }
        }
        cuts
    }

    /// The tokens of a prompt, without a start token. Content that looks like a control token is
    /// tokenised as text; a prompt without such content becomes what [`Tokenizer::tokenize`] makes
    /// of it under [`Special::Parse`].
    ///
    /// # Errors
    /// If the text cannot be tokenised.
    pub fn tokenize(
        &self,
        tokenizer: &dyn Tokenizer,
        prompt: &RenderedPrompt,
    ) -> Result<Vec<Token>, TokenizeError> {
        let text = prompt.text.as_str();
        let looks_alike = |(at, index): (usize, usize)| {
            let special = &self.tokens[index];
            special.control && prompt.breaks(&(at..at + special.text.len()))
        };
        if prompt.breaks.is_empty() || !self.occurrences(text).any(looks_alike) {
            return tokenizer.tokenize(text, Special::Parse);
        }
        let mut tokens = Vec::new();
        let mut plain: Option<Range<usize>> = None;
        for part in self.split(prompt) {
            match part {
                Part::Text(range) | Part::Kept(range) => {
                    let start = plain.map_or(range.start, |plain| plain.start);
                    plain = Some(start..range.end);
                }
                Part::Control(token) => {
                    if let Some(range) = plain.take() {
                        tokens.extend(tokenizer.tokenize(&text[range], Special::AsText)?);
                    }
                    tokens.push(token);
                }
            }
        }
        if let Some(range) = plain {
            tokens.extend(tokenizer.tokenize(&text[range], Special::AsText)?);
        }
        Ok(tokens)
    }

    /// Splits a prompt at its special tokens as llama.cpp does (`tokenizer_st_partition`): for each
    /// of them, the longest first, what is still text is split at its occurrences.
    fn split(&self, prompt: &RenderedPrompt) -> Vec<Part> {
        let found: BTreeSet<usize> =
            self.occurrences(&prompt.text).map(|(_, index)| index).collect();
        let mut parts = vec![Part::Text(0..prompt.text.len())];
        for special in found.into_iter().map(|index| &self.tokens[index]) {
            for part in std::mem::take(&mut parts) {
                match part {
                    Part::Text(range) => split_at(special, prompt, range, &mut parts),
                    other => parts.push(other),
                }
            }
        }
        parts
    }
}

/// Splits a stretch of text at the occurrences of one token.
fn split_at(
    special: &SpecialToken,
    prompt: &RenderedPrompt,
    range: Range<usize>,
    parts: &mut Vec<Part>,
) {
    // What C's `isspace` takes.
    let is_space = |at: usize| matches!(prompt.text.as_bytes()[at], b' ' | b'\t'..=b'\r');
    let (mut start, mut from) = (range.start, range.start);
    while let Some(at) = prompt.text[from..range.end].find(&special.text).map(|at| from + at) {
        let end = at + special.text.len();
        if special.control && prompt.breaks(&(at..end)) {
            from = at + special.text.chars().next().map_or(1, char::len_utf8);
            continue;
        }
        let mut left = at;
        while special.strip_left && left > start && is_space(left - 1) {
            left -= 1;
        }
        if left > start {
            parts.push(Part::Text(start..left));
        }
        parts.push(match special.control {
            true => Part::Control(special.token),
            false => Part::Kept(at..end),
        });
        start = end;
        while special.strip_right && start < range.end && is_space(start) {
            start += 1;
        }
        from = start;
    }
    if start < range.end {
        parts.push(Part::Text(start..range.end));
    }
}
