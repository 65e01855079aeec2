//! Drafts for edits: from the original that the output is a changed version of.
//!
//! The original is the output that the request predicts, or else the prompt. The output is aligned
//! with it token by token (`align.rs`). What was replaced once is replaced in what is proposed next,
//! so a rename is drafted after its first occurrence. Beside the aligned original stands what
//! followed the same tokens in the output itself. How often each is right is learned (`rates.rs`),
//! and a draft ends where the product of those rates says that the rest is not worth scoring.

mod align;
mod original;
mod rates;

use std::cmp::Reverse;
use std::collections::HashMap;

use forerun_verify::{NODES_MAX, Token};

use super::automaton::{Automaton, Cursor, End};
use super::fixed::{Seen, add_predicted_path};
use crate::draft::{DraftFailure, DraftRequest, Drafter, DrafterKind};
use crate::engine::Slot;

use align::{Alignment, Replacements};
use original::Original;
use rates::{Agreement, Rates, Source};

/// The longest context that is looked up in the output itself.
const CONTEXT_MAX: usize = 8;

/// A path ends where the estimated chance of all of it is less.
const CHANCE_MIN: f64 = 0.25;

/// Drafts a changed version of an original.
///
/// An original that a request predicts begins where the output begins. In a prompt the place is
/// found by the first tokens of the output that occur there, the last place first: of several
/// versions of a file, the newest is edited.
///
/// A committed token costs a constant, or a few binary searches while its place is lost; so does a
/// drafted one. An original takes 4 bytes a token and 16 for each length of match. What is learned
/// of how often a source is right is shared by all slots, and tells nothing of their texts.
///
/// ```
/// use forerun_decode::{EditDrafter, Slot, Token};
/// let mut drafter = EditDrafter::default();
/// drafter.predict(Slot(0), &[1, 7, 2, 3, 7, 4, 5, 7, 6].map(Token));
/// // Token 7 became token 9 once: it is drafted as such from then on.
/// let output = [1, 9, 2, 3].map(Token);
/// assert_eq!(drafter.propose(Slot(0), &[], &output, 3), [9, 4, 5].map(Token));
/// ```
#[derive(Debug, Clone, Default)]
pub struct EditDrafter {
    predictions: HashMap<Slot, Edit>,
    prompts: HashMap<Slot, (Seen, Edit)>,
    /// What earlier sequences taught, of predictions and of prompts.
    rates: [Rates; 2],
}

impl EditDrafter {
    /// Most tokens of an original; what is beyond is not looked at.
    ///
    /// ```
    /// # use forerun_decode::*;
    /// let mut drafter = EditDrafter::default();
    /// drafter.predict(Slot(0), &vec![Token(1); EditDrafter::TOKENS_MAX + 1]);
    /// let output = vec![Token(1); EditDrafter::TOKENS_MAX - 1];
    /// assert_eq!(drafter.propose(Slot(0), &[], &output, 9)[0], Token(1));
    /// ```
    pub const TOKENS_MAX: usize = 1 << 20;

    /// Sets what the output of the sequence in `slot` is expected to be a version of. It stays until
    /// it is set again, so whoever gives the slot to another sequence sets what is expected of that
    /// one. If `tokens` is empty, the prompt is what is edited.
    ///
    /// ```
    /// # use forerun_decode::*;
    /// let mut drafter = EditDrafter::default();
    /// drafter.predict(Slot(0), &[7, 8].map(Token));
    /// assert_eq!(drafter.propose(Slot(0), &[], &[], 8), [7, 8].map(Token));
    /// drafter.predict(Slot(0), &[]);
    /// assert_eq!(drafter.propose(Slot(0), &[], &[], 8), []);
    /// ```
    pub fn predict(&mut self, slot: Slot, tokens: &[Token]) {
        let tokens = &tokens[..tokens.len().min(Self::TOKENS_MAX)];
        if tokens.is_empty() {
            self.predictions.remove(&slot);
        } else {
            let edit = Edit::new(tokens, Alignment::at_start(), self.rates[0].prior());
            self.predictions.insert(slot, edit);
        }
    }

    /// What it drafts after `output`, the tokens committed after `prompt`: `len_max` tokens at most
    /// ([`NODES_MAX`] in any case).
    ///
    /// ```
    /// # use forerun_decode::*;
    /// let mut drafter = EditDrafter::default();
    /// let prompt = [9, 9, 1, 2, 3, 4, 5, 6].map(Token);
    /// assert_eq!(drafter.propose(Slot(0), &prompt, &[1, 2, 3].map(Token), 2), [4, 5].map(Token));
    /// ```
    pub fn propose(
        &mut self,
        slot: Slot,
        prompt: &[Token],
        output: &[Token],
        len_max: usize,
    ) -> Vec<Token> {
        let [predicted, prompted] = &mut self.rates;
        let (edit, rates) = match self.predictions.get_mut(&slot) {
            Some(edit) => (edit, predicted),
            None => {
                let prompt = &prompt[prompt.len().saturating_sub(Self::TOKENS_MAX)..];
                let new = || Edit::new(prompt, Alignment::unknown(), prompted.prior());
                let (seen, edit) =
                    self.prompts.entry(slot).or_insert_with(|| (Seen::default(), new()));
                if seen.len() != prompt.len() || seen.update(prompt) < prompt.len() {
                    *edit = new();
                    seen.update(prompt);
                }
                (edit, prompted)
            }
        };
        edit.update(output, rates);
        edit.propose(len_max.min(NODES_MAX))
    }
}

impl Drafter for EditDrafter {
    fn kind(&self) -> DrafterKind {
        DrafterKind::Edit
    }

    fn predict(&mut self, slot: Slot, tokens: &[Token]) {
        Self::predict(self, slot, tokens);
    }

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), DraftFailure> {
        for request in requests {
            let (prompt, output) = request.tokens.split_at(request.prompt_len);
            let path = self.propose(request.slot, prompt, output, request.len_max);
            let edit = self.predictions.get(&request.slot);
            add_predicted_path(request, &path, edit.map(Edit::predicted).unwrap_or_default());
        }
        Ok(())
    }

    fn forget(&mut self, slot: Slot) {
        self.predictions.remove(&slot);
        self.prompts.remove(&slot);
    }
}

/// One sequence's original, and how far its output has come.
#[derive(Debug, Clone)]
struct Edit {
    original: Original,
    /// Where the output begins in it.
    start: Alignment,
    alignment: Alignment,
    replacements: Replacements,
    seen: Seen,
    /// The output's tokens; while a draft is made, its tokens too.
    text: Vec<Token>,
    /// What followed what in the output.
    output: Automaton,
    end: End,
    rates: Rates,
    /// What was proposed after the tokens seen, and what would have come next.
    proposed: Vec<Step>,
}

/// A token of a draft, and what each source proposed for it.
#[derive(Debug, Clone)]
struct Step {
    token: Token,
    sources: Vec<(Source, Agreement, Token)>,
}

impl Edit {
    fn new(original: &[Token], start: Alignment, rates: Rates) -> Self {
        Self {
            original: Original::new(original),
            start,
            alignment: start,
            replacements: Replacements::default(),
            seen: Seen::default(),
            text: Vec::new(),
            output: Automaton::new(CONTEXT_MAX),
            end: End::START,
            rates,
            proposed: Vec::new(),
        }
    }

    /// Takes what was committed, and learns from what was proposed for it.
    fn update(&mut self, output: &[Token], shared: &mut Rates) {
        let seen_len = self.seen.len();
        let mut known = self.seen.update(output);
        if known < seen_len {
            // Another output of the same original.
            self.alignment = self.start;
            self.replacements = Replacements::default();
            (self.output, self.end) = (Automaton::new(CONTEXT_MAX), End::START);
            self.text.clear();
            self.proposed.clear();
            known = 0;
        }
        let mut proposed = std::mem::take(&mut self.proposed).into_iter();
        for token in &output[known..] {
            if let Some(step) = proposed.next() {
                for (source, agreement, own) in &step.sources {
                    self.rates.learn(*source, *agreement, own == token);
                    shared.learn(*source, *agreement, own == token);
                }
                if step.token != *token {
                    proposed = Vec::new().into_iter();
                }
            }
            self.text.push(*token);
            self.end = self.output.append(self.end, *token);
            let lesson = self.alignment.follow(&self.original, &self.replacements, &self.text);
            if let Some(lesson) = lesson {
                self.replacements.learn(lesson, &self.original, &self.text);
            }
        }
    }

    fn propose(&mut self, len_max: usize) -> Vec<Token> {
        let (mut alignment, mut cursor) = (self.alignment, self.end.cursor());
        let committed = self.text.len();
        let mut chance = 1.0;
        self.proposed.clear();
        let mut path = Vec::new();
        while path.len() < len_max {
            let aligned = alignment.expected(&self.original, &self.replacements);
            let sources = compared(aligned, self.followed(&mut cursor));
            let rated = sources
                .iter()
                .map(|(source, agreement, token)| (self.rates.chance(*source, *agreement), *token));
            let Some((likely, token)) = rated.max_by(|(one, _), (other, _)| one.total_cmp(other))
            else {
                break;
            };
            // What is not drafted is learned from too: else a source that was wrong once would
            // never be tried again.
            self.proposed.push(Step { token, sources });
            chance *= likely;
            if chance < CHANCE_MIN {
                break;
            }
            path.push(token);
            self.text.push(token);
            cursor = self.output.advance(cursor, token);
            // A draft teaches nothing: it may be wrong.
            let _ = alignment.follow(&self.original, &self.replacements, &self.text);
        }
        self.text.truncate(committed);
        path
    }

    /// Which of the tokens last proposed come from the original, as it is or as it was changed.
    fn predicted(&self) -> Vec<bool> {
        let of_original = |step: &Step| {
            let mut sources = step.sources.iter();
            sources.any(|(source, _, token)| source.is_original() && *token == step.token)
        };
        self.proposed.iter().map(of_original).collect()
    }

    /// What most often followed the longest context that was followed by anything.
    fn followed(&self, cursor: &mut Cursor) -> Option<(Source, Token)> {
        *cursor = self.output.followed(*cursor);
        if cursor.len() == 0 {
            return None;
        }
        let followers = self.output.followers(*cursor);
        let (token, _) = followers.max_by_key(|(token, count)| (*count, Reverse(*token)))?;
        Some((Source::Output(cursor.len()), token))
    }
}

/// What the sources propose, and whether they agree.
fn compared(
    one: Option<(Source, Token)>,
    other: Option<(Source, Token)>,
) -> Vec<(Source, Agreement, Token)> {
    let agreement = match (one, other) {
        (Some((_, one)), Some((_, other))) if one == other => Agreement::Agrees,
        (Some(_), Some(_)) => Agreement::Differs,
        _ => Agreement::Alone,
    };
    let sources = [one, other].into_iter().flatten();
    sources.map(|(source, token)| (source, agreement, token)).collect()
}
