//! Where one text is in its form, and what may follow there.
//!
//! The library's matcher is a state with steps back. It is moved to each path that is asked for and
//! left there, as the next path is most often one token longer, or what is committed.

use std::collections::HashMap;
use std::fmt;
use std::iter;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forerun_decode::{ConstraintError, Token};
use llguidance::toktrie::SimpleVob;
use llguidance::{CancellationHandle, Matcher};

use crate::error::reason;
use crate::watch::{MASK_MAX, watch};
use crate::words::{Kind, Words};

/// Most masks kept of one round; a mask has a bit for each token.
const MASKS_MAX: usize = 256;

/// Where a text is in its form.
pub(crate) struct State {
    matcher: Matcher,
    words: Arc<Words>,
    /// What the matcher has taken in beyond what is committed.
    ahead: Vec<Token>,
    /// Whether an end token is committed.
    ended: bool,
    /// What went wrong with a commit.
    failure: Option<ConstraintError>,
    /// Masks by path since the last commit: target and drafter ask for the same ones. None where the
    /// path is not allowed.
    masks: HashMap<Vec<Token>, Option<SimpleVob>>,
    /// The longest that one position took since somebody asked.
    mask_time: Duration,
    /// What stops the matcher.
    flag: Option<CancellationHandle>,
}

impl State {
    /// The text has not begun. The first mask is made, as a form without texts shows by it.
    pub(crate) fn new(matcher: Matcher, words: Arc<Words>) -> Result<Self, ConstraintError> {
        let (ahead, masks) = (Vec::new(), HashMap::new());
        let (failure, mask_time) = (None, Duration::ZERO);
        let flag = matcher.cancellation_handle();
        let mut new = Self { matcher, words, ahead, ended: false, failure, masks, mask_time, flag };
        let first = new.find(&[])?;
        new.masks.insert(Vec::new(), first);
        Ok(new)
    }

    /// A copy that is on its own from here on.
    pub(crate) fn separate(&self) -> Self {
        self.copied(self.matcher.deep_clone())
    }

    /// A copy that shares what the library finds out about the form, and its limit.
    pub(crate) fn fork(&self) -> Self {
        self.copied(self.matcher.clone())
    }

    fn copied(&self, matcher: Matcher) -> Self {
        Self {
            // A copy is stopped on its own.
            flag: matcher.cancellation_handle(),
            matcher,
            words: Arc::clone(&self.words),
            ahead: self.ahead.clone(),
            ended: self.ended,
            failure: self.failure.clone(),
            masks: self.masks.clone(),
            mask_time: Duration::ZERO,
        }
    }

    /// Moves the matcher along the path as far as it is allowed, and says how far that is.
    fn advance(&mut self, path: &[Token]) -> Result<usize, ConstraintError> {
        let shared =
            iter::zip(&self.ahead, path).take_while(|(ours, theirs)| ours == theirs).count();
        let back = self.ahead.len() - shared;
        if back > 0 {
            self.matcher.rollback(back).map_err(failed)?;
            // The library's last mask is known by the length of its parse, not by its content.
            self.matcher.invalidate_bias_cache();
            self.ahead.truncate(shared);
        }
        let words =
            path[shared..].iter().take_while(|&&token| self.words.kind(token) == Kind::Word);
        let ids: Vec<u32> = words.map(|token| token.0).collect();
        let taken = self.matcher.try_consume_tokens(&ids).map_err(failed)?;
        self.ahead.extend_from_slice(&path[shared..shared + taken]);
        Ok(shared + taken)
    }

    /// What may follow the path, or none where it is not allowed or goes beyond the end.
    fn find(&mut self, path: &[Token]) -> Result<Option<SimpleVob>, ConstraintError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let started = Instant::now();
        let watched = self.flag.as_ref().map(|flag| watch(flag, MASK_MAX));
        let found = match self.ended {
            true => Ok(None),
            false => self.advance(path).and_then(|taken| match taken < path.len() {
                true => Ok(None),
                false => self.matcher.compute_mask_or_eos().map(Some).map_err(failed),
            }),
        };
        drop(watched);
        self.took(started, 1);
        found.map_err(|error| self.or_too_slow(error))
    }

    fn took(&mut self, started: Instant, positions: usize) {
        let positions = u32::try_from(positions.max(1)).unwrap_or(u32::MAX);
        self.mask_time = self.mask_time.max(started.elapsed() / positions);
    }

    /// An error, or that it comes from work that was stopped.
    fn or_too_slow(&self, error: ConstraintError) -> ConstraintError {
        if !self.flag.as_ref().is_some_and(CancellationHandle::is_cancelled) {
            return error;
        }
        let seconds = MASK_MAX.as_secs_f32();
        let reason = format!(
            "what may follow took longer than {seconds} s to work out: make the grammar less ambiguous"
        );
        ConstraintError { reason }
    }

    /// How many of the tokens may follow, the end token that may come after them included.
    fn admit(&mut self, path: &[Token]) -> Result<usize, ConstraintError> {
        if self.ended || self.failure.is_some() {
            return Ok(0);
        }
        let started = Instant::now();
        let watched = self.flag.as_ref().map(|flag| watch(flag, MASK_MAX));
        let words = self.advance(path);
        drop(watched);
        self.took(started, path.len());
        let words = words.map_err(|error| self.or_too_slow(error))?;
        let end = match path.get(words) {
            Some(&token) if self.words.kind(token) == Kind::End => {
                self.matcher.is_accepting().map_err(failed)?
            }
            _ => false,
        };
        Ok(words + usize::from(end))
    }
}

impl State {
    pub(crate) fn mask(
        &mut self,
        path: &[Token],
        logits: &mut [f32],
    ) -> Result<(), ConstraintError> {
        if let Some(mask) = self.masks.get(path) {
            forbid(mask.as_ref(), logits);
            return Ok(());
        }
        let mask = self.find(path)?;
        forbid(mask.as_ref(), logits);
        if self.masks.len() < MASKS_MAX {
            self.masks.insert(path.to_vec(), mask);
        }
        Ok(())
    }

    /// Works out what may follow the committed output. What goes wrong is said by the next mask.
    pub(crate) fn prepare(&mut self) {
        match self.find(&[]) {
            Ok(mask) => drop(self.masks.insert(Vec::new(), mask)),
            Err(error) => self.failure = Some(error),
        }
    }

    /// Whether the next mask takes no work.
    pub(crate) fn is_prepared(&self) -> bool {
        self.failure.is_some() || self.masks.contains_key(&[][..])
    }

    pub(crate) fn admitted(&mut self, path: &[Token]) -> usize {
        // A failed matcher stays so: the next mask tells.
        self.admit(path).unwrap_or(0)
    }

    pub(crate) fn commit(&mut self, tokens: &[Token]) {
        if self.ended || self.failure.is_some() {
            return;
        }
        let end = tokens.iter().position(|&token| self.words.kind(token) == Kind::End);
        let until = end.map_or(tokens.len(), |position| position + 1);
        match self.admit(&tokens[..until]) {
            Ok(admitted) if admitted == until => self.ended = end.is_some(),
            Ok(admitted) => {
                let reason = format!("token {} is committed but not allowed", tokens[admitted].0);
                self.failure = Some(ConstraintError { reason });
            }
            Err(error) => self.failure = Some(error),
        }
        self.ahead.clear();
        self.masks.clear();
    }

    pub(crate) fn mask_time(&mut self) -> Duration {
        std::mem::take(&mut self.mask_time)
    }
}

fn failed(error: impl fmt::Display) -> ConstraintError {
    ConstraintError { reason: reason(error) }
}

/// Sets to `-inf` what is not in the mask, which has 32 tokens in each of its words.
fn forbid(mask: Option<&SimpleVob>, logits: &mut [f32]) {
    let Some(mask) = mask else { return };
    // A row longer than the vocabulary has nothing to say beyond it.
    let words = mask.as_slice().iter().copied().chain(iter::repeat(0));
    for (row, allowed) in iter::zip(logits.chunks_mut(32), words) {
        match allowed {
            0 => row.fill(f32::NEG_INFINITY),
            u32::MAX => {}
            _ => {
                // A choice without a branch: which tokens are allowed has no pattern.
                for (bit, logit) in row.iter_mut().enumerate() {
                    let is_allowed = allowed & (1 << bit) != 0;
                    *logit = if is_allowed { *logit } else { f32::NEG_INFINITY };
                }
            }
        }
    }
}
