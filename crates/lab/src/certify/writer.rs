//! Makes outputs, many at once, and scores them again with the target alone.

use std::sync::Arc;

use forerun_decode::{
    Branch, Decoder, DraftPolicy, DraftRequest, Drafter, Engine, Keep, Limits, Output, Plan, Rows,
    Sampling, Sequence, Slot, Spending, Step, Token, Tokenizer, Turn,
};
use forerun_verify::rand_core::Rng as _;
use forerun_verify::{CoupledRule, Dist, Philox, Random};

use super::broken::bare;
use super::law::Position;
use crate::cancellation::Cancellation;
use crate::error::{Error, Result};

/// A text and the prompt it answers, by number.
#[derive(Debug, Clone)]
pub(super) struct Text {
    pub(super) prompt: usize,
    pub(super) tokens: Vec<Token>,
}

/// What drafting did for some outputs.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally {
    pub(super) drafted: u64,
    pub(super) accepted: u64,
    pub(super) rounds: u64,
    /// What a lossy rule says that it spent.
    pub(super) spending: Spending,
}

/// Makes outputs: one in each slot, each slot with a prompt of its own so that it stays cached.
pub(super) struct Writer<'a> {
    decoder: Decoder,
    prompts: &'a [Vec<Token>],
    slots: Vec<Place>,
    seeds: Philox,
    vocab: &'a dyn Tokenizer,
    cancellation: &'a Cancellation,
}

/// A slot's text.
struct Place {
    sequence: Sequence,
    policy: DraftPolicy,
    chance: Random<Philox>,
    seed: u64,
}

/// How outputs are made.
pub(super) struct Way<'a> {
    pub(super) policy: &'a DraftPolicy,
    /// Whether noise from a seed decides, a seed for each text.
    pub(super) coupled: bool,
    pub(super) sampling: &'a Sampling,
    /// Tokens of a text.
    pub(super) len: usize,
}

impl<'a> Writer<'a> {
    pub(super) fn new(
        decoder: Decoder,
        prompts: &'a [Vec<Token>],
        vocab: &'a dyn Tokenizer,
        seed: u64,
        cancellation: &'a Cancellation,
    ) -> Self {
        let slots =
            (0..u32::try_from(decoder.target().slot_count()).unwrap_or(1)).map(|slot| Place {
                sequence: Sequence::new(Slot(slot), Sampling::greedy()),
                policy: DraftPolicy::plain(),
                chance: Random(Philox::new(0)),
                seed: 0,
            });
        let slots = slots.collect();
        Self { decoder, prompts, slots, seeds: Philox::new(seed), vocab, cancellation }
    }

    /// Makes a text in each slot, with new seeds or those of the outputs before.
    pub(super) fn texts(
        &mut self,
        way: &Way<'_>,
        again: bool,
        tally: &mut Tally,
    ) -> Result<Vec<Text>> {
        for (index, place) in self.slots.iter_mut().enumerate() {
            if !again {
                place.seed = self.seeds.next_u64();
            }
            place.chance = Random(Philox::new(place.seed));
            place.policy = way.policy.clone();
            if way.coupled {
                let noise = forerun_verify::Noise::new(place.seed);
                place.policy.rule = Arc::new(CoupledRule { noise });
            }
            let sequence = &mut place.sequence;
            sequence.sampling = way.sampling.clone();
            // Longer than is looked at, so that the last draft is not cut short.
            let prompt = self.prompts[index % self.prompts.len()].clone();
            sequence.begin(prompt, way.len + way.policy.draft_len_max + 1);
        }
        while self.round(way.len, tally)? {
            self.cancellation.check()?;
        }
        let text = |(index, place): (usize, &Place)| {
            let mut tokens = place.sequence.output().to_vec();
            tokens.truncate(self.end(&tokens).unwrap_or(usize::MAX).min(way.len));
            Text { prompt: index % self.prompts.len(), tokens }
        };
        Ok(self.slots.iter().enumerate().map(text).collect())
    }

    /// How many tokens there are up to the end token.
    fn end(&self, tokens: &[Token]) -> Option<usize> {
        tokens.iter().position(|token| self.vocab.is_end(*token)).map(|index| index + 1)
    }

    /// Runs a round for all outputs that are not over; `false` where there is none.
    fn round(&mut self, len: usize, tally: &mut Tally) -> Result<bool> {
        let over = |place: &Place| {
            let output = place.sequence.output();
            output.len() >= len || output.iter().any(|token| self.vocab.is_end(*token))
        };
        let plans: Vec<Plan> = self.slots.iter().map(|place| place.policy.plan()).collect();
        let mut turns: Vec<Turn<'_>> = Vec::new();
        for (place, plan) in self.slots.iter_mut().zip(&plans) {
            if !over(place) {
                let Place { sequence, policy, chance, .. } = place;
                turns.push(Turn { sequence, policy, plan, limits: Limits::default(), chance });
            }
        }
        if turns.is_empty() {
            return Ok(false);
        }
        for commit in self.decoder.round(&mut turns)?.commits {
            if let Some(dropped) = commit.dropped.first() {
                let (name, failure) = (dropped.kind.name(), &dropped.failure);
                return Err(Error::refused(format!("{name} failed: {failure}")));
            }
            tally.drafted += commit.drafted as u64;
            tally.accepted += commit.accepted as u64;
            tally.rounds += 1;
            tally.spending.add(0, &commit.spent);
        }
        Ok(true)
    }
}

/// A model that scores outputs: a slot for each prompt.
pub(super) struct Reader {
    engine: Box<dyn Engine>,
    /// How many tokens each slot holds, of its prompt and the last text.
    holds: Vec<usize>,
    output: Output,
}

impl Reader {
    pub(super) fn new(engine: Box<dyn Engine>) -> Self {
        let holds = vec![0; engine.slot_count()];
        Self { engine, holds, output: Output::default() }
    }

    /// Runs a text in one pass, so that there is a row for each of its tokens.
    fn read(&mut self, prompt: &[Token], text: &Text) -> Result<()> {
        let slot = Slot(u32::try_from(text.prompt).expect("a few prompts"));
        let all = &text.tokens[..text.tokens.len() - 1];
        let branch = |(parent, token): (usize, &Token)| Branch { parent, token: *token };
        let tree: Vec<Branch> = all.iter().enumerate().map(branch).collect();
        // Where the slot can go back to the prompt, its last token alone is run again.
        let begun = prompt.len() - 1;
        let after = self.holds[text.prompt].checked_sub(begun);
        let held = after.is_some_and(|after| self.engine.can_forget(slot, after));
        let held = if held { begun } else { 0 };
        let (keep, trunk) = (Keep::Trunk(held), &prompt[held..]);
        let step = Step { slot, keep, trunk, tree: &tree, rows: Rows::All };
        self.engine.extend(&[step], &mut self.output)?;
        self.holds[text.prompt] = prompt.len() + tree.len();
        Ok(())
    }

    /// The law of a token of that text.
    fn law(
        &self,
        index: usize,
        prompt: &[Token],
        text: &Text,
        sampling: &Sampling,
    ) -> Result<Dist> {
        let mut row = self.output.row(index).to_vec();
        let law = sampling.row(&mut row, prompt, &text.tokens[..index]);
        law.map_err(|error| {
            Error::refused(format!("the target's row is not a probability distribution: {error}"))
        })
    }
}

/// Who may have put in a token that the target did not want.
pub(super) enum Suspect {
    /// A draft model, run apart from the decoder's.
    Model(Reader),
    /// A drafter that fixed_paths from the text.
    Guesser(Box<dyn Drafter>),
}

/// The law every token of a text should follow, from the target alone.
pub(super) struct Scorer<'a> {
    target: Reader,
    suspect: Option<Suspect>,
    prompts: &'a [Vec<Token>],
    sampling: Sampling,
    /// Without cuts, and without penalties, where that makes a difference.
    uncut: Option<Sampling>,
    bare: Option<Sampling>,
}

impl<'a> Scorer<'a> {
    pub(super) fn new(
        target: Reader,
        suspect: Option<Suspect>,
        prompts: &'a [Vec<Token>],
        sampling: Sampling,
    ) -> Self {
        let temperature = if sampling.temperature > 0.0 { sampling.temperature } else { 1.0 };
        let all = Sampling { top_k: 0, top_p: 1.0, min_p: 0.0, typical_p: 1.0, ..sampling.clone() };
        let uncut = Some(Sampling { temperature, ..all }).filter(|uncut| *uncut != sampling);
        let bare = Some(bare(&sampling)).filter(|bare| *bare != sampling);
        Self { target, suspect, prompts, sampling, uncut, bare }
    }

    /// Shows a text to a test, token by token.
    pub(super) fn show(
        &mut self,
        text: &Text,
        mut see: impl FnMut(&Position<'_>, Token),
    ) -> Result<()> {
        let prompt = &self.prompts[text.prompt];
        self.target.read(prompt, text)?;
        if let Some(Suspect::Model(reader)) = &mut self.suspect {
            reader.read(prompt, text)?;
        }
        let mut luck = 1.0;
        for (index, token) in text.tokens.iter().enumerate() {
            let of_target = |sampling: &Sampling| self.target.law(index, prompt, text, sampling);
            let law = of_target(&self.sampling)?;
            let uncut = self.uncut.as_ref().map(of_target).transpose()?;
            let bare = self.bare.as_ref().map(of_target).transpose()?;
            let drafter = match &mut self.suspect {
                Some(Suspect::Model(reader)) => {
                    Some(reader.law(index, prompt, text, &self.sampling)?)
                }
                Some(Suspect::Guesser(drafter)) => {
                    let before = [prompt, &text.tokens[..index]].concat();
                    propose(&mut **drafter, &before, law.vocab_len())?
                }
                None => None,
            };
            let position = Position {
                law: &law,
                uncut: uncut.as_ref().unwrap_or(&law),
                bare: bare.as_ref().unwrap_or(&law),
                drafter: drafter.as_ref(),
                luck,
            };
            see(&position, *token);
            luck = drafter.as_ref().map_or(1.0, |it| law.prob(*token) / it.prob(*token));
        }
        Ok(())
    }
}

/// What a guesser says next, as a law.
fn propose(drafter: &mut dyn Drafter, tokens: &[Token], vocab_len: usize) -> Result<Option<Dist>> {
    let (mut chance, sampling) = (Random(Philox::new(0)), Sampling::greedy());
    let mut request = DraftRequest::next_token(Slot(0), tokens, &sampling, &mut chance, vocab_len);
    drafter.draft(std::slice::from_mut(&mut request))?;
    let draft = request.tree.finish();
    let draft = draft.map_err(|error| Error::refused(format!("a guess: {error}")))?;
    let first = draft.nodes().next().map(|(_, token, _)| token);
    let point = first.map(|token| Dist::point(vocab_len, token)).transpose();
    point.map_err(|error| Error::refused(format!("a guess: {error}")))
}
