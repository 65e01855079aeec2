//! llama.cpp's sampler for the text of a gap: it ends the text early, and else follows the few
//! beginnings that the model is sure of.
//!
//! What can end a text does so if it is a third as probable as the average of the candidates. Else
//! candidates that begin alike count as one, the likeliest of them, and those that remain improbable
//! are dropped. If that is all, the text ends too.

use std::fmt;
use std::sync::Arc;

use forerun_verify::{Dist, RowError, Token};

use super::scan::Entry;
use super::truncate::Kept;
use crate::text::Tokenizer;

/// Most candidates. Each is compared with each.
pub(super) const CANDIDATES_MAX: usize = 256;

/// Candidates that are less probable are dropped.
const PROB_MIN: f64 = 0.2;

/// Which tokens of a vocabulary end the text of a gap, and which begin alike.
///
/// ```
/// use std::sync::Arc;
/// use forerun_decode::{InfillSampler, Sampling, Special, Token, TokenizeError, Tokenizer};
///
/// /// Two letters, both letters at once, and an end.
/// struct Letters;
///
/// impl Tokenizer for Letters {
///     fn vocab_len(&self) -> usize {
///         4
///     }
///     fn tokenize(&self, text: &str, _: Special) -> Result<Vec<Token>, TokenizeError> {
///         Ok(text.bytes().map(|byte| Token(u32::from(byte - b'a'))).collect())
///     }
///     fn start(&self) -> Option<Token> {
///         None
///     }
///     fn is_end(&self, token: Token) -> bool {
///         token == Token(3)
///     }
///     fn bytes(&self, token: Token, out: &mut Vec<u8>) {
///         out.extend_from_slice([&b"a"[..], b"b", b"ab", b""][token.index()]);
///     }
/// }
///
/// let infill = Some(InfillSampler::new(Arc::new(Letters), Token(3)));
/// let sampling = Sampling { infill, top_k: 4, ..Sampling::unshaped() };
/// let row = |probs: [f32; 4]| sampling.row(&mut probs.map(f32::ln), &[], &[]);
/// // "a" begins as "ab" does, and is likelier.
/// let dist = row([0.35, 0.34, 0.30, 0.01])?;
/// assert_eq!((dist.prob(Token(2)), dist.support().count()), (0.0, 3));
/// // The text may well end.
/// assert_eq!(row([0.3, 0.3, 0.3, 0.1])?.prob(Token(3)), 1.0);
/// # Ok::<(), forerun_verify::RowError>(())
/// ```
#[derive(Clone)]
pub struct InfillSampler {
    tokenizer: Arc<dyn Tokenizer>,
    end: Token,
}

impl InfillSampler {
    /// For a vocabulary and the token that ends a text in it.
    pub fn new(tokenizer: Arc<dyn Tokenizer>, end: Token) -> Self {
        Self { tokenizer, end }
    }

    /// The token that ends a text.
    pub(super) fn end(&self) -> Token {
        self.end
    }
}

impl fmt::Debug for InfillSampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InfillSampler").field("end", &self.end).finish_non_exhaustive()
    }
}

impl PartialEq for InfillSampler {
    fn eq(&self, other: &Self) -> bool {
        self.end == other.end && Arc::ptr_eq(&self.tokenizer, &other.tokenizer)
    }
}

/// A token in play.
struct Candidate {
    entry: Entry,
    prob: f64,
    is_end: bool,
    bytes: Vec<u8>,
}

impl Kept<'_> {
    /// Keeps what may come next in a gap. Returns whether anything may; if not, nothing is dropped.
    pub(super) fn infill(&mut self, sampler: &InfillSampler) -> Result<bool, RowError> {
        let mut all = self.candidates(sampler)?;
        let ends: f64 = all.iter().filter(|it| it.is_end).map(|it| it.prob).sum();
        let texts: f64 = all.iter().filter(|it| !it.is_end).map(|it| it.prob).sum();
        if 3.0 * ends * all.len() as f64 > texts {
            all.retain(|it| it.is_end);
        } else {
            merge(&mut all);
            all.retain(|it| it.is_end || it.prob >= PROB_MIN);
            let count = all.iter().filter(|it| !it.is_end).count();
            if count == 0 {
                return Ok(false);
            }
            let mass: f64 = all.iter().map(|it| it.prob).sum();
            let bar = mass / (count + 1) as f64;
            all.retain(|it| it.is_end || it.prob >= bar);
        }
        let mut left: Vec<Entry> = all.into_iter().map(|it| it.entry).collect();
        left.sort_unstable_by_key(|entry| entry.place);
        self.keep(&left)?;
        Ok(true)
    }

    /// What is in play, the likeliest first.
    fn candidates(&self, sampler: &InfillSampler) -> Result<Vec<Candidate>, RowError> {
        let dist = Dist::softmax(self.logits(), 1.0)?;
        let mut entries: Vec<Entry> = (0..)
            .zip(self.logits())
            .filter(|(_, logit)| **logit > f32::NEG_INFINITY)
            .map(|(place, logit)| Entry { logit: *logit, place })
            .collect();
        entries.sort_unstable_by(Entry::order);
        let candidate = |entry: Entry| {
            let token = self.token(entry);
            let mut bytes = Vec::new();
            sampler.tokenizer.bytes(token, &mut bytes);
            let is_end = sampler.tokenizer.is_end(token);
            Candidate { entry, prob: dist.prob(Token(entry.place)), is_end, bytes }
        };
        Ok(entries.into_iter().map(candidate).collect())
    }
}

/// Lets the likelier of two candidates stand for both if one begins with the other.
fn merge(all: &mut Vec<Candidate>) {
    let mut merged = vec![false; all.len()];
    for short in 0..all.len() {
        for long in 0..all.len() {
            let begins =
                !all[short].bytes.is_empty() && all[long].bytes.starts_with(&all[short].bytes);
            if merged[short] || merged[long] || short == long || !begins {
                continue;
            }
            let likelier = if all[long].prob > all[short].prob { long } else { short };
            let other = short + long - likelier;
            all[likelier].prob += all[other].prob;
            merged[other] = true;
        }
    }
    let mut merged = merged.into_iter();
    all.retain(|_| !merged.next().unwrap_or(false));
}
