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
mod tree;

use std::cmp::Reverse;
use std::collections::HashMap;

use forerun_verify::{NODES_MAX, Token};

use super::automaton::{Automaton, Cursor, End};
use super::fixed::{Seen, add_path};
use crate::draft::{DraftFailure, DraftRequest, Drafter, DrafterKind, FixedTokens};
use crate::engine::Slot;
use crate::price::Allowance;

use align::{Alignment, Replacements};
use original::Original;
use rates::{Agreement, Rates, Source};
use tree::{Offer, State, Tree};

/// The longest context that is looked up in the output itself.
const CONTEXT_MAX: usize = 8;

/// Nothing grows where it is less likely to be reached: no token is worth drafting there.
const CHANCE_MIN: f64 = 0.01;

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

    /// The one path it drafts after `output`, the tokens committed after `prompt`, at the default
    /// price: `len_max` tokens at most ([`NODES_MAX`] in any case).
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
        let paths = self.propose_paths(slot, prompt, output, &Allowance::one_path(len_max));
        paths.into_iter().next().map(|path| path.tokens).unwrap_or_default()
    }

    /// The paths it drafts: as much as is allowed and worth its price.
    ///
    /// ```
    /// # use forerun_decode::*;
    /// let mut drafter = EditDrafter::default();
    /// drafter.predict(Slot(0), &[7, 1, 2, 7, 1, 3, 4, 5].map(Token));
    /// // What comes after 1 now: what comes there in the original, or what came in the output?
    /// let output = [7, 1, 2, 7, 1].map(Token);
    /// let cheap = Allowance { tokens: 8, paths: 2, price: Price::per_token(0.02) };
    /// let paths = drafter.propose_paths(Slot(0), &[], &output, &cheap);
    /// let firsts: Vec<Token> = paths.iter().map(|path| path.tokens[0]).collect();
    /// assert_eq!(firsts, [3, 2].map(Token));
    /// ```
    pub fn propose_paths(
        &mut self,
        slot: Slot,
        prompt: &[Token],
        output: &[Token],
        allowance: &Allowance,
    ) -> Vec<FixedTokens> {
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
        edit.propose(allowance)
    }
}

impl Drafter for EditDrafter {
    fn kind(&self) -> DrafterKind {
        DrafterKind::Edit
    }

    fn heeds_price(&self) -> bool {
        true
    }

    fn predict(&mut self, slot: Slot, tokens: &[Token]) {
        Self::predict(self, slot, tokens);
    }

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), DraftFailure> {
        for request in requests {
            let (prompt, output) = request.tokens.split_at(request.prompt_len);
            let (slot, allowance) = (request.slot, request.allowance());
            let mut paths = self.propose_paths(slot, prompt, output, &allowance);
            if !self.predictions.contains_key(&slot) {
                paths.iter_mut().for_each(|path| path.predicted.clear());
            }
            paths.into_iter().for_each(|path| add_path(request, path));
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
    /// What was proposed after the tokens seen, and more that was not worth drafting.
    proposed: Option<Tree>,
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
            proposed: None,
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
            self.proposed = None;
            known = 0;
        }
        // What was not drafted is learned from too: else a source that was wrong once would never
        // be tried again.
        let mut proposed = self.proposed.take();
        let mut node = None;
        for token in &output[known..] {
            if let Some(tree) = &proposed {
                for offer in &tree.state(node).offers {
                    self.rates.learn(offer.source, offer.agreement, offer.token == *token);
                    shared.learn(offer.source, offer.agreement, offer.token == *token);
                }
                node = tree.child(node, *token);
                proposed = proposed.filter(|_| node.is_some());
            }
            self.text.push(*token);
            self.end = self.output.append(self.end, *token);
            let lesson = self.alignment.follow(&self.original, &self.replacements, &self.text);
            if let Some(lesson) = lesson {
                self.replacements.learn(lesson, &self.original, &self.text);
            }
        }
    }

    /// Grows what may follow, and returns the paths that are worth drafting.
    fn propose(&mut self, allowance: &Allowance) -> Vec<FixedTokens> {
        let Allowance { tokens, paths, price } = allowance;
        let committed = self.text.len();
        let root = self.state(self.alignment, self.end.cursor());
        let mut tree = Tree::new(root, &self.rates);
        while tree.nodes().len() < (*tokens).min(NODES_MAX) {
            let Some(node) = tree.likeliest(*paths).filter(|it| it.chance > CHANCE_MIN) else {
                break;
            };
            let State { mut alignment, cursor, .. } = *tree.state(node.parent);
            self.text.extend(tree.path_to(node.parent));
            self.text.push(node.token);
            // A draft teaches nothing: it may be wrong.
            let _ = alignment.follow(&self.original, &self.replacements, &self.text);
            self.text.truncate(committed);
            let state = self.state(alignment, self.output.advance(cursor, node.token));
            tree.add(node, state, &self.rates);
        }
        let paths = tree.paths(price.best(tree.nodes().map(|node| node.chance)));
        self.proposed = Some(tree);
        paths
    }

    /// What the sources propose next.
    fn state(&self, alignment: Alignment, mut cursor: Cursor) -> State {
        let [aligned, resumed] = alignment.expected(&self.original, &self.replacements);
        let offers = compared([aligned, resumed, self.followed(&mut cursor)]);
        State { alignment, cursor, offers }
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
fn compared(sources: [Option<(Source, Token)>; 3]) -> Vec<Offer> {
    let all = || sources.iter().flatten();
    let agreement = |token: Token| {
        if all().count() == 1 {
            Agreement::Alone
        } else if all().filter(|(_, other)| *other == token).count() > 1 {
            Agreement::Agrees
        } else {
            Agreement::Differs
        }
    };
    all()
        .map(|(source, token)| Offer {
            source: *source,
            agreement: agreement(*token),
            token: *token,
        })
        .collect()
}
