//! One sequence: rounds until it ends, and the text that each adds.
//!
//! The round knows tokens; this knows text: where it ends (an end token, a stop string, a length),
//! also in the middle of a block, and how bytes become characters. It does not choose what to
//! draft: it knows what its request allows and which drafters failed, and runs the plan it is
//! given.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forerun_verify::{Philox, Random, Token};

use crate::commit::{Commit, Dropped, Times};
use crate::control::{Available, Choice, Load, Outlook};
use crate::decoder::Decoder;
use crate::draft::DrafterId;
use crate::engine::Slot;
use crate::error::DecodeError;
use crate::indent::IndentFilter;
use crate::logprob::TokenLogprob;
use crate::lossy::is_forgiven;
use crate::policy::{DraftPolicy, Limits, Plan};
use crate::round::Turn;
use crate::sequence::Sequence;
use crate::stats::Stats;
use crate::stop::{StopFilter, StopStrings};
use crate::text::{Detokenizer, Tokenizer};

/// Where a committed token comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Drafted and accepted.
    Accepted,
    /// Drafted and accepted by a lossy rule, though it is not what the target would have said.
    Forgiven,
    /// Drafted, and committed by a lossy rule before the target has scored it.
    Deferred,
    /// The target's, where a drafted token was rejected.
    Corrected,
    /// The target's, where nothing was drafted.
    Plain,
}

/// Why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// The model ended it.
    End,
    /// A stop string or a stop token came.
    Stop,
    /// It has the most tokens that were wanted, its time is over, or a line is indented too little.
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
    /// Its log-probability, if that is wanted.
    pub logprob: Option<TokenLogprob>,
}

/// What one round added to a sequence.
#[derive(Debug, Default)]
pub struct Chunk {
    /// Its tokens, none while the prompt is prefilled.
    pub pieces: Vec<Piece>,
    /// Why the sequence ended, once it has.
    pub finish: Option<Finish>,
    /// Drafters that failed; the sequence goes on without them.
    pub dropped: Vec<Dropped>,
}

/// How a sequence's tokens become text: characters are whole, and nothing of a stop string shows.
pub struct Reading {
    tokenizer: Arc<dyn Tokenizer>,
    detokenizer: Detokenizer,
    stops: StopFilter,
    indent: IndentFilter,
    stop_tokens: Arc<[Token]>,
}

impl Reading {
    /// For a sequence without output.
    pub fn new(tokenizer: Arc<dyn Tokenizer>, stops: &StopStrings) -> Self {
        let (detokenizer, stops) = (Detokenizer::new(), StopFilter::new(stops));
        let (indent, stop_tokens) = (IndentFilter::default(), Arc::default());
        Self { tokenizer, detokenizer, stops, indent, stop_tokens }
    }

    /// The same, where a line after the first that is indented less ends the sequence, as
    /// [`IndentFilter`] says.
    #[must_use]
    pub fn indented(mut self, least: usize) -> Self {
        self.indent = IndentFilter::new(least);
        self
    }

    /// The same, where these tokens end the sequence too, as a stop string does: without their text.
    #[must_use]
    pub fn stopping_at(mut self, tokens: Arc<[Token]>) -> Self {
        self.stop_tokens = tokens;
        self
    }

    /// Takes a token and appends the text it releases. Returns why the sequence ends with it, if it
    /// does.
    pub fn push(&mut self, token: Token, text: &mut String) -> Option<Finish> {
        let (mut bytes, mut raw, mut through) = (Vec::new(), String::new(), String::new());
        let end = self.tokenizer.is_end(token);
        let stop = self.stop_tokens.contains(&token);
        if !end && !stop {
            self.tokenizer.bytes(token, &mut bytes);
        }
        self.detokenizer.push(&bytes, &mut raw);
        let stop = self.stops.push(&raw, &mut through).is_some() || stop;
        let cut = self.indent.push(&through, text);
        match (end, stop, cut) {
            (true, _, _) => Some(Finish::End),
            (_, true, _) => Some(Finish::Stop),
            (_, _, true) => Some(Finish::Length),
            _ => None,
        }
    }

    /// Returns the text withheld so far: the start of a character or of a stop string that did not
    /// come to its end.
    fn held_back(&mut self) -> String {
        let (mut raw, mut through, mut text) = (String::new(), String::new(), String::new());
        self.detokenizer.finish(&mut raw);
        self.stops.push(&raw, &mut through);
        self.stops.finish(&mut through);
        self.indent.push(&through, &mut text);
        text
    }
}

/// A sequence while it is generated.
pub struct Generation {
    sequence: Sequence,
    policy: DraftPolicy,
    /// Drafters that failed for it.
    failed: Vec<DrafterId>,
    chance: Random<Philox>,
    reading: Reading,
    stats: Stats,
    /// Whether it ends with the next line.
    hurried: bool,
    /// Why it is to end, once its last tokens are scored.
    ending: Option<Finish>,
    finish: Option<Finish>,
    last: Instant,
}

impl Generation {
    /// Continues `sequence`, which has begun, with what `policy` allows to be drafted. The seed
    /// fixes every random choice.
    pub fn new(
        sequence: Sequence,
        policy: DraftPolicy,
        tokenizer: Arc<dyn Tokenizer>,
        stops: &StopStrings,
        seed: u64,
    ) -> Self {
        Self::resumed(sequence, policy, Reading::new(tokenizer, stops), seed)
    }

    /// As [`Generation::new`], for a sequence whose output so far went through `reading`. If no token
    /// is wanted, it ends once its prompt is prefilled.
    pub fn resumed(
        mut sequence: Sequence,
        policy: DraftPolicy,
        reading: Reading,
        seed: u64,
    ) -> Self {
        let ending = (sequence.wanted() == 0).then_some(Finish::Length);
        sequence.is_over = ending.is_some();
        Self {
            sequence,
            policy,
            failed: Vec::new(),
            chance: Random(Philox::new(seed)),
            reading,
            stats: Stats::default(),
            hurried: false,
            ending,
            finish: None,
            last: Instant::now(),
        }
    }

    /// What its request allows to be drafted.
    pub fn policy(&self) -> &DraftPolicy {
        &self.policy
    }

    /// Returns the plan that drafts all its policy allows, with the drafters that have not failed.
    pub fn plan(&self) -> Plan {
        self.policy.plan().without(&self.failed)
    }

    /// Its part in the next round. For one sequence alone, [`Generation::next`] is simpler.
    pub fn turn<'a>(&'a mut self, plan: &'a Plan, limits: Limits) -> Turn<'a> {
        let Self { sequence, policy, chance, .. } = self;
        Turn { sequence, policy, plan, limits, chance }
    }

    /// Has it end with its next line break, whatever else is wanted: its time is over.
    pub fn hurry(&mut self) {
        self.hurried = true;
    }

    /// The stop string that ended it, if one did.
    pub fn stopped_by(&self) -> Option<&str> {
        self.reading.stops.hit()
    }

    /// Moves it to another slot, as [`Sequence::move_to`].
    pub fn move_to(&mut self, slot: Slot) {
        self.sequence.move_to(slot);
    }

    /// Whether the next mask of its constraint is there, or expected to take no longer than
    /// `budget`. If not, it is being computed on another thread, and a round would wait for it.
    pub fn prepare_mask(&mut self, budget: Duration) -> bool {
        let slow = self.sequence.mask_time() > budget;
        let constraint = self.sequence.constraint.as_mut().filter(|_| slow);
        constraint.is_none_or(|it| it.prepare())
    }

    /// Returns what a controller's choice for the next round depends on.
    pub fn outlook(&self, decoder: &Decoder, load: Load) -> Outlook {
        let (slot, tokens) = (self.sequence.slot(), self.sequence.tokens());
        let Plan { drafters: usable, .. } = self.plan();
        let drafters = decoder.drafters().iter().filter(|(id, _)| usable.contains(id));
        let drafters = drafters
            .map(|(id, drafter)| Available {
                id,
                behind: drafter.behind(slot, tokens),
                heeds_price: drafter.heeds_price(),
                block_len: drafter.block_len(),
            })
            .collect();
        Outlook {
            wanted: self.sequence.wanted(),
            draft_len_max: self.policy.draft_len_max,
            first: self.sequence.is_new(),
            drafters,
            load,
            may_stop: self.policy.may_stop(),
            temperature: self.sequence.sampling.temperature,
        }
    }

    /// Counts what a controller chose for a round, before [`Generation::committed`].
    pub fn chose(&mut self, choice: &Choice) {
        self.stats.chose(choice);
    }

    /// Runs a round for this sequence alone, with the fullest plan. Returns `None` once it has
    /// ended.
    ///
    /// # Errors
    /// As [`Decoder::round`]; the sequence stays as it was.
    pub fn next(&mut self, decoder: &mut Decoder) -> Result<Option<Chunk>, DecodeError> {
        if self.finish.is_some() {
            return Ok(None);
        }
        let plan = self.plan();
        let mut round = decoder.round(&mut [self.turn(&plan, Limits::default())])?;
        let commit = round.commits.pop().expect("one turn, one commit");
        Ok(Some(self.committed(commit, round.times, decoder.target().context_len())))
    }

    /// Takes over what a round committed: ends the sequence if it must, and drops what was
    /// committed after its end. A sequence whose last tokens are not scored ends one round later.
    pub fn committed(&mut self, mut commit: Commit, times: Times, context_len: usize) -> Chunk {
        let mut logprobs = std::mem::take(&mut commit.logprobs).into_iter();
        let mut chunk = Chunk::default();
        let first = self.sequence.tokens().len() - commit.committed;
        for index in 0..commit.committed {
            let origin = match commit {
                Commit { deferred, .. } if index < deferred => Origin::Deferred,
                Commit { ref spent, late, .. }
                    if spent.get(late + index).is_some_and(is_forgiven) =>
                {
                    Origin::Forgiven
                }
                Commit { accepted, .. } if index < accepted => Origin::Accepted,
                Commit { corrected: true, .. } => Origin::Corrected,
                _ => Origin::Plain,
            };
            let token = self.sequence.tokens()[first + index];
            let mut text = String::new();
            let ending = self.reading.push(token, &mut text);
            let is_late = self.hurried && text.contains('\n');
            self.ending = ending.or(is_late.then_some(Finish::Length));
            chunk.pieces.push(Piece { token, text, origin, logprob: None });
            if let (Some(piece), Some(logprob)) = (chunk.pieces.last_mut(), logprobs.next()) {
                piece.logprob = Some(logprob);
            }
            let len = first + index + 1;
            if self.ending.is_none()
                && len - self.sequence.prompt_len() >= self.sequence.output_len_max()
            {
                self.ending = Some(Finish::Length);
            }
            if self.ending.is_none() && len > context_len {
                self.ending = Some(Finish::Context);
            }
            if self.ending.is_some() {
                self.sequence.trim(len);
                break;
            }
        }
        let time = std::mem::replace(&mut self.last, Instant::now()).elapsed();
        self.stats.add(&commit, times, time);
        self.stats.trimmed(first + commit.committed - self.sequence.tokens().len());
        let spent = &commit.spent[..(commit.late + chunk.pieces.len()).min(commit.spent.len())];
        self.stats.spending.add(first - self.sequence.prompt_len() - commit.late, spent);
        if let (Some(_), Some(last)) = (self.ending, chunk.pieces.last_mut()) {
            last.text.push_str(&self.held_back());
        }
        self.sequence.is_over = self.ending.is_some();
        if self.sequence.scored_len() == self.sequence.tokens().len() && !commit.prefills {
            self.finish = self.ending;
        }
        self.failed.extend(commit.dropped.iter().map(|drop| drop.drafter));
        chunk.finish = self.finish;
        chunk.dropped = commit.dropped;
        chunk
    }

    /// Returns the text withheld so far, if the sequence goes no further: the start of a character
    /// or of a stop string that did not come to its end.
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
}
