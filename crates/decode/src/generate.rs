//! One text: rounds until it ends, and what the reader gets of each.
//!
//! The round knows tokens; this knows text: where it ends (an end token, a stop string, a length),
//! also in the middle of a block, and how bytes become characters. It does not choose what to draft.

use std::sync::Arc;
use std::time::Instant;

use forerun_verify::{Philox, Random, Token};

use crate::control::{Choice, Controller, Load, Pace};
use crate::engine::Slot;
use crate::logprob::TokenLogprob;
use crate::round::{Commit, DecodeError, Decoder, Dropped, Times, Turn};
use crate::sequence::Sequence;
use crate::stats::Stats;
use crate::stop::{StopFilter, StopStrings};
use crate::text::{Detokenizer, Tokenizer};

/// Where a committed token comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Drafted and accepted.
    Accepted,
    /// The target's, where a drafted token was rejected.
    Corrected,
    /// The target's, where nothing was drafted.
    Plain,
}

/// Why a text ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// The model ended it.
    End,
    /// A stop string came.
    Stop,
    /// It has as many tokens as were wanted.
    Length,
    /// The context is full.
    Context,
}

/// A token and the text it releases, which may be none while a character or a stop string is
/// incomplete, or more than its own where one was.
#[derive(Debug, Clone, PartialEq)]
pub struct Piece {
    /// The token.
    pub token: Token,
    /// The text.
    pub text: String,
    /// Where the token comes from.
    pub origin: Origin,
    /// How likely the model held it to be, where that is wanted.
    pub logprob: Option<TokenLogprob>,
}

/// What one round added to a text.
#[derive(Debug, Default)]
pub struct Chunk {
    /// Its tokens, none while the prompt is being read.
    pub pieces: Vec<Piece>,
    /// Why the text ended, where it did.
    pub finish: Option<Finish>,
    /// Drafters that failed; the text goes on without them.
    pub dropped: Vec<Dropped>,
}

/// How a text's tokens become what its reader gets: characters are whole, and of a stop string
/// nothing shows.
pub struct Reading {
    tokenizer: Arc<dyn Tokenizer>,
    detokenizer: Detokenizer,
    stops: StopFilter,
}

impl Reading {
    /// Nothing was read.
    pub fn new(tokenizer: Arc<dyn Tokenizer>, stops: &StopStrings) -> Self {
        Self { tokenizer, detokenizer: Detokenizer::new(), stops: StopFilter::new(stops) }
    }

    /// Takes a token and appends the text it releases; says whether the text ends with it.
    pub fn push(&mut self, token: Token, text: &mut String) -> Option<Finish> {
        let (mut bytes, mut raw) = (Vec::new(), String::new());
        let end = self.tokenizer.is_end(token);
        if !end {
            self.tokenizer.bytes(token, &mut bytes);
        }
        self.detokenizer.push(&bytes, &mut raw);
        match (end, self.stops.push(&raw, text).is_some()) {
            (true, _) => Some(Finish::End),
            (_, true) => Some(Finish::Stop),
            _ => None,
        }
    }

    /// What was held back of a text that goes no further: a character or a stop string that did
    /// not come to its end.
    fn held_back(&mut self) -> String {
        let (mut raw, mut text) = (String::new(), String::new());
        self.detokenizer.finish(&mut raw);
        self.stops.push(&raw, &mut text);
        self.stops.finish(&mut text);
        text
    }
}

/// A text being made.
pub struct Generation {
    sequence: Sequence,
    chance: Random<Philox>,
    reading: Reading,
    stats: Stats,
    finish: Option<Finish>,
    last: Instant,
    pace: Option<Pace>,
    choice: Option<Choice>,
}

impl Generation {
    /// A text that continues `sequence`, which has begun. The seed fixes every random choice.
    pub fn new(
        sequence: Sequence,
        tokenizer: Arc<dyn Tokenizer>,
        stops: &StopStrings,
        seed: u64,
    ) -> Self {
        Self::resumed(sequence, Reading::new(tokenizer, stops), seed)
    }

    /// A text that continues `sequence`, whose output so far was read.
    pub fn resumed(sequence: Sequence, reading: Reading, seed: u64) -> Self {
        Self {
            sequence,
            chance: Random(Philox::new(seed)),
            reading,
            stats: Stats::default(),
            finish: None,
            last: Instant::now(),
            pace: None,
            choice: None,
        }
    }

    /// Its part in the next round. For one text alone, [`Generation::next`] is simpler.
    pub fn turn(&mut self) -> Turn<'_> {
        Turn { sequence: &mut self.sequence, chance: &mut self.chance }
    }

    /// With what a controller is to know of it.
    #[must_use]
    pub fn paced(mut self, pace: Pace) -> Self {
        self.pace = Some(pace);
        self
    }

    /// As [`Generation::next`], drafting what the controller chooses.
    ///
    /// # Errors
    /// As [`Decoder::round`]; the text stays as it was.
    pub fn next_chosen(
        &mut self,
        decoder: &mut Decoder,
        controller: &mut Controller,
    ) -> Result<Option<Chunk>, DecodeError> {
        if self.finish.is_some() {
            return Ok(None);
        }
        let load = Load::default();
        self.choose(decoder, controller, load);
        let started = Instant::now();
        let mut round = decoder.round(&mut [self.turn()])?;
        let commit = round.commits.pop().expect("one turn, one commit");
        controller.observe(&round.passes);
        self.learn(controller, &commit, started.elapsed().as_secs_f64(), load);
        Ok(Some(self.committed(commit, round.times, decoder.target().context_len())))
    }

    /// Reads at most so many tokens of its prompt in the next round.
    pub fn read_at_most(&mut self, tokens: usize) {
        self.sequence.read_max = tokens;
    }

    /// Moves it to another slot, as [`Sequence::move_to`].
    pub fn move_to(&mut self, slot: Slot) {
        self.sequence.move_to(slot);
    }

    /// Drafts paths of at most so many tokens from the next round on, unless a controller chooses.
    pub fn draft_at_most(&mut self, len: usize) {
        self.sequence.plan.draft_len = len;
    }

    /// Drafts no more in the next round than its constraint's masks are expected to have time for, as
    /// [`Sequence::mask_budget`]. `false` where the next mask alone is expected to take longer: it is
    /// being worked out on another thread, and a round would wait for it.
    pub fn mask_within(&mut self, budget: std::time::Duration) -> bool {
        self.sequence.mask_budget = Some(budget);
        let slow = self.sequence.mask_time() > budget;
        let constraint = self.sequence.constraint.as_mut().filter(|_| slow);
        constraint.is_none_or(|it| it.prepare())
    }

    /// Has the controller choose what this text drafts in the next round.
    pub fn choose(&mut self, decoder: &mut Decoder, controller: &mut Controller, load: Load) {
        let pace = self.pace.get_or_insert_with(|| controller.pace(|_| true));
        let (slot, tokens) = (self.sequence.slot(), self.sequence.tokens());
        let behind = decoder.drafters().iter().map(|drafter| drafter.behind(slot, tokens));
        let behind: Vec<usize> = behind.collect();
        self.choice = Some(controller.choose(pace, &mut self.sequence, &behind, load));
    }

    /// How long a draft was chosen for the next round; nothing where none was chosen.
    pub fn chosen(&self) -> Option<usize> {
        self.choice.map(|choice| choice.len)
    }

    /// Changes that length, as [`Controller::settle`].
    pub fn settle(&mut self, controller: &Controller, len: usize) {
        if let Some(pace) = self.pace.as_mut().filter(|_| self.choice.is_some()) {
            self.choice = Some(controller.settle(pace, &mut self.sequence, len));
        }
    }

    /// Has the controller learn from the round it chose for, before that is taken over.
    pub fn learn(
        &mut self,
        controller: &mut Controller,
        commit: &Commit,
        seconds: f64,
        load: Load,
    ) {
        // In the round of the first token nothing is drafted, whatever was chosen.
        let first = self.stats.output_len == 0;
        let choice = self.choice.take().filter(|_| !first);
        if let (Some(pace), Some(choice)) = (&mut self.pace, choice) {
            controller.learn(pace, commit, seconds, load);
            self.stats.chose(&choice);
        }
    }

    /// Runs a round for this text alone; `None` once it has ended.
    ///
    /// # Errors
    /// As [`Decoder::round`]; the text stays as it was.
    pub fn next(&mut self, decoder: &mut Decoder) -> Result<Option<Chunk>, DecodeError> {
        if self.finish.is_some() {
            return Ok(None);
        }
        let mut round = decoder.round(&mut [self.turn()])?;
        let commit = round.commits.pop().expect("one turn, one commit");
        Ok(Some(self.committed(commit, round.times, decoder.target().context_len())))
    }

    /// Takes over what a round committed: ends the text where it must, and drops what was
    /// committed after that.
    pub fn committed(&mut self, mut commit: Commit, times: Times, context_len: usize) -> Chunk {
        let mut logprobs = std::mem::take(&mut commit.logprobs).into_iter();
        let mut chunk = Chunk::default();
        let first = self.sequence.tokens().len() - commit.committed;
        for index in 0..commit.committed {
            let origin = match commit {
                Commit { accepted, .. } if index < accepted => Origin::Accepted,
                Commit { corrected: true, .. } => Origin::Corrected,
                _ => Origin::Plain,
            };
            let token = self.sequence.tokens()[first + index];
            let mut text = String::new();
            self.finish = self.reading.push(token, &mut text);
            chunk.pieces.push(Piece { token, text, origin, logprob: None });
            if let (Some(piece), Some(logprob)) = (chunk.pieces.last_mut(), logprobs.next()) {
                piece.logprob = Some(logprob);
            }
            let len = first + index + 1;
            if self.finish.is_none()
                && len - self.sequence.prompt_len() >= self.sequence.output_len_max()
            {
                self.finish = Some(Finish::Length);
            }
            if self.finish.is_none() && len > context_len {
                self.finish = Some(Finish::Context);
            }
            if self.finish.is_some() {
                self.sequence.trim(len);
                break;
            }
        }
        let time = std::mem::replace(&mut self.last, Instant::now()).elapsed();
        self.stats.add(&commit, times, time);
        self.stats.trimmed(first + commit.committed - self.sequence.tokens().len());
        if let (Some(_), Some(last)) = (self.finish, chunk.pieces.last_mut()) {
            last.text.push_str(&self.held_back());
        }
        chunk.finish = self.finish;
        chunk.dropped = commit.dropped;
        chunk
    }

    /// What was held back of a text that goes no further: a character or a stop string that did
    /// not come to its end.
    pub fn held_back(&mut self) -> String {
        self.reading.held_back()
    }

    /// The tokens so far.
    pub fn sequence(&self) -> &Sequence {
        &self.sequence
    }

    /// The sums over its rounds.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Why it ended, once it has.
    pub fn finish(&self) -> Option<Finish> {
        self.finish
    }

    /// Gives the sequence back, to begin the next text where its cache is of use.
    pub fn into_sequence(self) -> Sequence {
        self.sequence
    }
}
