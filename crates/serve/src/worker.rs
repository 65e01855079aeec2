//! The thread that owns the engine: takes texts in, runs rounds, gives tokens out.
//!
//! Texts join and leave between rounds. A round serves all of them in shared passes; long prompts
//! are read in pieces, so that they hold up the others little. What each text drafts is its own, or
//! the controller's choice by what the round costs with all of them in it. Who gets a slot, and who
//! gives one up, is in `schedule`; what each text does in a round, and for how long, in `parts`.

mod parts;
mod schedule;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forerun_decode::{
    Commit, Controller, Decoder, Finish, Generation, Load, Plan, Round, Slot, Times, Token,
};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::job::{Client, Event, Failure, Job, Progress, Scope, Tally};
use crate::metrics::{Metrics, Skipped};
use crate::queue::Queue;
use crate::slots::Slots;

/// So few tokens are not worth counting as a prompt that is being read.
const READ_SMALL: usize = 16;

/// How long nothing is looked at while all wait for their masks.
const MASK_WAIT: Duration = Duration::from_millis(1);

/// What the engine's thread works with.
pub(crate) struct Worker {
    decoder: Decoder,
    controller: Option<Controller>,
    metrics: Arc<Metrics>,
    /// Set when texts are to be broken off.
    abort: Arc<AtomicBool>,
    jobs: mpsc::Receiver<Vec<Job>>,
    waiting: Queue<Waiting>,
    /// Keys whose sequences ended of late, and when the last of them did.
    served: Vec<(Client, Instant)>,
    slots: Slots,
    active: Vec<Active>,
    slot_count: usize,
    /// Which drafters are models.
    models: Vec<bool>,
    /// Who is told what slots hold, and how many tokens of each it was told of.
    watch: Option<(Box<dyn CacheWatch>, Vec<usize>)>,
}

/// Is told what the target's cache holds, for routers that send requests where their beginning is.
pub trait CacheWatch: Send {
    /// A slot holds these tokens now; none after its cache was lost.
    fn holds(&mut self, slot: Slot, tokens: &[Token]);
}

/// What waits for a slot.
enum Waiting {
    /// A text that was not begun.
    New(Box<Job>),
    /// One that gave its slot up to another client's.
    Suspended(Box<Active>),
}

/// A text being made.
struct Active {
    client: Client,
    scope: Scope,
    choice: usize,
    generation: Generation,
    events: mpsc::Sender<Event>,
    arrived: Instant,
    deadline: Instant,
    adaptive: bool,
    refused: bool,
    plan: Plan,
    /// What its output is expected to be.
    prediction: Vec<Token>,
    tally: Tally,
    /// When the last token came.
    last: Option<Instant>,
    /// Its part in the round at hand.
    part: Part,
    /// Whether drafts of the length its request has fixed would hold up another client.
    crowded: bool,
    /// Held until it ends.
    _place: Option<Arc<OwnedSemaphorePermit>>,
}

/// A text's part in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// A token or more.
    Speaks,
    /// So many tokens of its prompt.
    Reads(usize),
    /// None: others read first, or its next mask is still being worked out.
    Waits,
}

impl Worker {
    pub(crate) fn new(
        mut decoder: Decoder,
        controller: Option<Controller>,
        metrics: Arc<Metrics>,
        jobs: mpsc::Receiver<Vec<Job>>,
    ) -> Self {
        let slot_count = decoder.target().slot_count();
        let models = decoder.drafters().iter().map(|it| it.name() == "draft-model").collect();
        Self {
            slots: Slots::new(slot_count),
            decoder,
            controller,
            metrics,
            abort: Arc::default(),
            jobs,
            waiting: Queue::default(),
            served: Vec::new(),
            active: Vec::new(),
            slot_count,
            models,
            watch: None,
        }
    }

    /// With somebody who is told what the cache holds.
    pub(crate) fn watched(mut self, watch: Option<Box<dyn CacheWatch>>) -> Self {
        self.watch = watch.map(|watch| (watch, vec![0; self.slot_count]));
        self
    }

    /// The flag that breaks off all texts.
    pub(crate) fn abort(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.abort)
    }

    /// Works until nobody can send a job any more and all texts have ended.
    pub(crate) fn run(mut self) {
        while self.take_in() {
            self.drop_the_late();
            self.admit();
            self.round();
            self.tell();
            self.metrics.show(self.active.len(), self.cache_use());
        }
    }

    /// Takes in new jobs, and waits for one where there is nothing else to do. `false` at the end.
    fn take_in(&mut self) -> bool {
        if self.active.is_empty() && self.waiting.is_empty() {
            self.metrics.show(0, self.cache_use());
            match self.jobs.blocking_recv() {
                Some(jobs) => self.wait(jobs),
                None => return false,
            }
        }
        while let Ok(jobs) = self.jobs.try_recv() {
            self.wait(jobs);
        }
        true
    }

    fn wait(&mut self, jobs: Vec<Job>) {
        for job in jobs {
            self.waiting.push(job.client, Waiting::New(Box::new(job)));
        }
    }

    /// Ends texts nobody waits for any more, and those that took too long.
    fn drop_the_late(&mut self) {
        let now = Instant::now();
        let abort = self.abort.load(Ordering::Relaxed);
        let over = |events: &mpsc::Sender<Event>, deadline: Instant| {
            let failure = match (abort, now >= deadline) {
                (true, _) => Some(Failure::Stopping),
                (_, true) => Some(Failure::Late),
                _ => None,
            };
            let over = events.is_closed() || failure.is_some();
            if let Some(failure) = failure {
                // Where it is full or closed, closing it says the same.
                let _ = events.try_send(Event::Failed(failure));
            }
            over
        };
        let metrics = &self.metrics;
        self.waiting.retain(|waiting| {
            let over = match waiting {
                Waiting::New(job) => over(&job.events, job.deadline),
                Waiting::Suspended(text) => over(&text.events, text.deadline),
            };
            if over {
                metrics.left_queue();
            }
            if let (true, Waiting::Suspended(text)) = (over, waiting) {
                metrics.ended(&text.tally, text.arrived, None);
            }
            !over
        });
        let mut index = 0;
        while index < self.active.len() {
            let text = &self.active[index];
            if over(&text.events, text.deadline) {
                self.metrics.ended(&text.tally, text.arrived, None);
                self.leave(index);
            } else {
                index += 1;
            }
        }
    }

    /// Runs one round for all texts that have a part in it.
    fn round(&mut self) {
        if self.active.is_empty() {
            return;
        }
        let load = self.share_out();
        self.choose(load);
        let started = Instant::now();
        let mut turns = Vec::with_capacity(self.active.len());
        for text in &mut self.active {
            if text.part != Part::Waits {
                turns.push(text.generation.turn());
            }
        }
        if turns.is_empty() {
            std::thread::sleep(MASK_WAIT);
            return;
        }
        match self.decoder.round(&mut turns) {
            Ok(round) => self.commit(round, started.elapsed().as_secs_f64(), load),
            Err(error) if turns.len() == 1 => {
                let part = |text: &Active| text.part != Part::Waits;
                if let Some(index) = self.active.iter().position(part) {
                    self.fail(index, error.into());
                }
            }
            // One of them is to blame, and the others are not to suffer for it.
            Err(_) => self.one_by_one(),
        }
    }

    fn commit(&mut self, round: Round, seconds: f64, load: Load) {
        if let Some(controller) = &mut self.controller {
            controller.observe(&round.passes);
        }
        self.metrics.round(&round.times, seconds);
        let took_part = |index: &usize| self.active[*index].part != Part::Waits;
        let places: Vec<usize> = (0..self.active.len()).filter(took_part).collect();
        let mut over = Vec::new();
        for (index, commit) in places.into_iter().zip(round.commits) {
            let text = &mut self.active[index];
            if let Some(controller) = &mut self.controller {
                text.generation.learn(controller, &commit, seconds, load);
            }
            if !self.deliver(index, commit, round.times) {
                over.push(index);
            }
        }
        if let Some(controller) = &self.controller {
            let plain = load.seconds(&controller.costs().target, 0.0);
            self.metrics.speed(plain, seconds, load);
        }
        over.into_iter().rev().for_each(|index| self.leave(index));
    }

    /// Gives a text's new tokens out; `false` where it is over.
    fn deliver(&mut self, index: usize, commit: Commit, times: Times) -> bool {
        let context_len = self.decoder.target().context_len();
        let predicted = self.decoder.drafters().iter().position(|it| it.name() == "predicted");
        let text = &mut self.active[index];
        let skipped = text.skipped(&commit);
        self.metrics.drafted(&commit, skipped);
        if commit.drafted > 0 {
            let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
            text.tally.steps.push((count(commit.draft_len), count(commit.accepted)));
        }
        let of_prediction = commit.guesses.iter().filter(|it| Some(it.drafter) == predicted);
        text.tally.predicted += of_prediction.map(|guess| guess.accepted).sum::<usize>();
        let chunk = text.generation.committed(commit, times, context_len);
        text.tally.dropped.extend(chunk.dropped);
        text.tally.stats = text.generation.stats().clone();
        let count = chunk.pieces.len();
        if count == 0 {
            return true;
        }
        let now = Instant::now();
        match text.last.replace(now) {
            None => self.metrics.first_token(now - text.arrived),
            Some(last) => self.metrics.tokens(now - last, count),
        }
        self.metrics.generated(count);
        let finish = chunk.finish;
        let (choice, tally) = (text.choice, text.tally.told(finish.is_some()));
        let progress = Progress { choice, pieces: chunk.pieces, finish, tally };
        // A client that does not read for so long that its queue is full is given up.
        let sent = text.events.try_send(Event::Round(Box::new(progress))).is_ok();
        if sent && finish.is_none() {
            return true;
        }
        self.metrics.ended(&text.tally, text.arrived, finish.filter(|_| sent));
        false
    }

    /// Runs a round for each text alone, after one for all failed.
    fn one_by_one(&mut self) {
        let mut index = 0;
        while index < self.active.len() {
            let text = &mut self.active[index];
            if text.part == Part::Waits {
                index += 1;
                continue;
            }
            match self.decoder.round(&mut [text.generation.turn()]) {
                Ok(mut round) => {
                    let commit = round.commits.pop().expect("one turn, one commit");
                    if self.deliver(index, commit, round.times) {
                        index += 1;
                    } else {
                        self.leave(index);
                    }
                }
                Err(error) => self.fail(index, error.into()),
            }
        }
    }

    fn fail(&mut self, index: usize, failure: Failure) {
        let text = &self.active[index];
        tracing::error!(%failure, "a text failed");
        self.metrics.ended(&text.tally, text.arrived, None);
        let _ = text.events.try_send(Event::Failed(failure));
        self.leave(index);
    }

    /// Tells what slots hold: those in use, and those whose cache was cut or lost since it was told.
    fn tell(&mut self) {
        let Some((watch, told)) = &mut self.watch else { return };
        for (slot, told) in (0..).map(Slot).zip(told) {
            let held = self.decoder.cached_tokens(slot);
            let in_use = self.active.iter().any(|it| it.generation.sequence().slot() == slot);
            if in_use || held.len() != *told {
                watch.holds(slot, held);
                *told = held.len();
            }
        }
    }

    /// Tokens of the target's cache in use, and all it holds. What ended texts left there gives way to
    /// others, so it is no load: gateways turn away from a server whose cache is full.
    fn cache_use(&self) -> (usize, usize) {
        let busy = self.active.iter().map(|text| text.generation.sequence());
        let held: usize = busy.map(|it| self.decoder.cached_tokens(it.slot()).len()).sum();
        (held, self.slot_count * self.decoder.target().context_len())
    }
}

impl Active {
    /// How much it drafts where no controller chooses.
    fn fixed_len(&self) -> usize {
        if self.plan.drafters.is_empty() { 0 } else { self.plan.draft_len }
    }

    /// Whether its constraint has no time for drafts.
    fn masks_are_slow(&self) -> bool {
        let sequence = self.generation.sequence();
        sequence.mask_budget.is_some_and(|budget| 2 * sequence.mask_time() > budget)
    }

    /// Why nothing was drafted, where nothing was.
    fn skipped(&self, commit: &Commit) -> Option<Skipped> {
        match commit {
            Commit { committed: 0, .. } => None,
            Commit { drafted: 1.., .. } => None,
            _ if self.refused => Some(Skipped::Requested),
            _ if self.plan.drafters.is_empty() => Some(Skipped::NoDrafter),
            _ if self.last.is_none() => Some(Skipped::FirstToken),
            _ if !self.tally.dropped.is_empty() => Some(Skipped::DrafterFailed),
            Commit { asked: 0, .. } if self.masks_are_slow() => Some(Skipped::SlowMasks),
            Commit { asked: 0, .. } if self.adaptive || self.crowded => Some(Skipped::DoesNotPay),
            Commit { asked: 0, .. } => Some(Skipped::NoRoom),
            _ => Some(Skipped::NothingToSay),
        }
    }
}

/// The finish reason OpenAI's API knows.
pub(crate) fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::End | Finish::Stop => "stop",
        Finish::Length | Finish::Context => "length",
    }
}

#[cfg(test)]
pub(crate) mod tests;
