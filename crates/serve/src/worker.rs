//! The thread that owns the engine: admits sequences, runs rounds, delivers tokens.
//!
//! Sequences join and leave between rounds. A round serves all of them in shared passes; long prompts
//! are prefilled in pieces, so that they delay the others little. What each sequence drafts is its own, or
//! the controller's choice by what the round costs with all of them in it. Who gets a slot, and who
//! gives one up, is in `schedule`; what each sequence does in a round, and for how long, in `phases` and `prefill`;
//! what becomes of its tokens in `deliver`.

mod deliver;
mod phases;
mod prefill;
mod schedule;
mod shares;

use std::hash::RandomState;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forerun_decode::{
    Choice, Controller, Decoder, Generation, History, Limits, LossyMode, Plan, Slot, Token, Turn,
};
use tokio::sync::mpsc;

use self::shares::Shares;
use crate::admission::Permit;
use crate::board::{Board, SlotTask};
use crate::config::KeepGates;
use crate::error::Failure;
use crate::event::{Event, SequenceStats};
use crate::metrics::Metrics;
use crate::queue::Queue;
use crate::request::{Client, Scope, SequenceRequest, Settings};
use crate::slots::Slots;
use crate::tenants::Tenants;

/// A sequence with so few uncached tokens decodes: they are part of the same pass.
const PREFILL_SMALL: usize = 16;

/// How long the thread sleeps if all sequences wait for their masks.
const MASK_WAIT: Duration = Duration::from_millis(1);

/// The engine and the sequences that use it.
pub(crate) struct Worker {
    decoder: Decoder,
    controller: Option<Controller>,
    metrics: Arc<Metrics>,
    /// Set to end all sequences.
    abort: Arc<AtomicBool>,
    requests: mpsc::Receiver<Vec<SequenceRequest>>,
    waiting: Queue<Waiting>,
    /// Tenants whose sequences ended of late, and when the last of them did.
    served: Vec<(Client, Instant)>,
    /// What each client had and may have.
    shares: Shares,
    slots: Slots,
    active: Vec<Active>,
    /// What the slots do, for who asks.
    board: Arc<Board>,
    /// How many sequences were begun.
    begun: u64,
    slot_count: usize,
    /// Who is told what slots hold, and how many tokens of each were reported.
    watch: Option<(Box<dyn CacheWatch>, Vec<usize>)>,
    /// Makes a tenant of a scope.
    tenants: RandomState,
    /// Whether clients without a key are one tenant, or none.
    anonymous_share: bool,
    /// Is given what gates have learned at the end.
    keep_gates: Option<KeepGates>,
}

/// Is told what the target's KV cache holds, for routers that send a request where its prefix is
/// cached.
pub trait CacheWatch: Send {
    /// A slot holds these tokens now; none after its cache was lost.
    fn holds(&mut self, slot: Slot, tokens: &[Token]);
}

/// What waits for a slot.
enum Waiting {
    /// A sequence that was not begun.
    New(Box<SequenceRequest>),
    /// One that gave its slot up to another client's.
    Suspended(Box<Active>),
}

/// A sequence that holds a slot.
struct Active {
    /// Its number.
    id: u64,
    client: Client,
    scope: Scope,
    choice: usize,
    generation: Generation,
    events: mpsc::Sender<Event>,
    arrived: Instant,
    deadline: Instant,
    /// How long after its first token it may go on beyond the next line break.
    predict_time: Option<Duration>,
    /// What the controller knows of it; none if its request has fixed what is drafted.
    history: Option<History>,
    refused: bool,
    /// How its drafts are verified, if with loss.
    lossy: Option<LossyMode>,
    /// What its output is expected to be.
    prediction: Vec<Token>,
    settings: Arc<Settings>,
    /// Whether there is a line break in its output.
    has_new_line: bool,
    stats: SequenceStats,
    /// When its first token was committed, and its last.
    first: Option<Instant>,
    last: Option<Instant>,
    /// What it does in the current round.
    phase: Phase,
    /// What it drafts in the current round, made anew for each.
    drafts: RoundDrafts,
    /// How much it may do beside.
    limits: Limits,
    /// Whether drafts of the length its request has fixed would hold up another client.
    crowded: bool,
    /// Held until it ends.
    _permit: Option<Arc<Permit>>,
}

/// What a sequence does in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Commits a token or more.
    Decode,
    /// Computes the KV entries of so many tokens of its prompt.
    Prefill(usize),
    /// Nothing: others prefill first, or its next mask is still being computed.
    Waiting,
}

/// What a sequence drafts in a round.
#[derive(Debug)]
enum RoundDrafts {
    /// What its request has fixed.
    Fixed(Plan),
    /// What the controller chose.
    Chosen(Choice),
}

impl RoundDrafts {
    fn plan(&self) -> &Plan {
        match self {
            Self::Fixed(plan) => plan,
            Self::Chosen(choice) => &choice.plan,
        }
    }
}

impl Active {
    /// What is shown of it.
    fn task(&self) -> SlotTask {
        let (sequence, rounds) = (self.generation.sequence(), &self.stats.rounds);
        SlotTask {
            id: self.id,
            client: self.client,
            settings: Arc::clone(&self.settings),
            speculative: !self.generation.policy().drafters.is_empty(),
            prompt_len: sequence.prompt_len(),
            cached: self.stats.cached,
            prefilled: rounds.prompt_prefilled,
            decoded: rounds.output_len,
            has_new_line: self.has_new_line,
        }
    }

    /// Its part in the current round.
    fn turn(&mut self) -> Turn<'_> {
        self.generation.turn(self.drafts.plan(), self.limits)
    }
}

impl Worker {
    pub(crate) fn new(
        decoder: Decoder,
        controller: Option<Controller>,
        metrics: Arc<Metrics>,
        requests: mpsc::Receiver<Vec<SequenceRequest>>,
    ) -> Self {
        let slot_count = decoder.target().slot_count();
        Self {
            slots: Slots::new(slot_count),
            decoder,
            controller,
            metrics,
            abort: Arc::default(),
            requests,
            waiting: Queue::default(),
            served: Vec::new(),
            shares: Shares::default(),
            active: Vec::new(),
            board: Arc::new(Board::new(slot_count)),
            begun: 0,
            slot_count,
            watch: None,
            tenants: RandomState::new(),
            anonymous_share: false,
            keep_gates: None,
        }
    }

    /// Gives what gates have learned to this at the end.
    pub(crate) fn keeping_gates(mut self, keep_gates: Option<KeepGates>) -> Self {
        self.keep_gates = keep_gates;
        self
    }

    /// Has drafters learn from the outputs of all clients without a key for all of them.
    pub(crate) fn anonymous_share(mut self, anonymous_share: bool) -> Self {
        self.anonymous_share = anonymous_share;
        self
    }

    /// For these tenants.
    pub(crate) fn serving(mut self, tenants: Arc<Tenants>) -> Self {
        self.shares = Shares::new(tenants);
        self
    }

    /// With a watch that is told what the cache holds.
    pub(crate) fn watched(mut self, watch: Option<Box<dyn CacheWatch>>) -> Self {
        self.watch = watch.map(|watch| (watch, vec![0; self.slot_count]));
        self
    }

    /// The flag that ends all sequences.
    pub(crate) fn abort(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.abort)
    }

    /// Where it shows what the slots do.
    pub(crate) fn board(&self) -> Arc<Board> {
        Arc::clone(&self.board)
    }

    /// Works until nobody can send a sequence any more and all have ended.
    pub(crate) fn run(mut self) {
        while self.receive() {
            self.schedule();
            self.advance();
        }
        let gates = self.controller.as_ref().and_then(Controller::gates);
        if let (Some(keep), Some(gates)) = (self.keep_gates.take(), gates) {
            keep(gates);
        }
    }

    /// Decides who holds a slot: ends what is over, then admits what waits.
    fn schedule(&mut self) {
        self.drop_cancelled_and_expired();
        self.shares.leave_all_but(&self.present(), self.decoder.clock().now());
        self.admit();
        self.show_slots();
    }

    /// Runs a round for those that hold a slot, and reports what it changed.
    fn advance(&mut self) {
        self.round();
        self.report_caches();
        self.metrics.show(self.active.len(), self.cache_use());
    }

    /// Shows what the slots do.
    fn show_slots(&self) {
        let task = |active: &Active| (active.generation.sequence().slot(), active.task());
        self.board.show(self.active.iter().map(task));
    }

    /// Receives new sequences, and waits for one if there is nothing else to do. Returns `false` at
    /// the end.
    fn receive(&mut self) -> bool {
        if self.active.is_empty() && self.waiting.is_empty() {
            self.metrics.show(0, self.cache_use());
            self.show_slots();
            match self.requests.blocking_recv() {
                Some(requests) => self.wait(requests),
                None => return false,
            }
        }
        while let Ok(requests) = self.requests.try_recv() {
            self.wait(requests);
        }
        true
    }

    /// Puts the sequences of a request into the queue.
    fn wait(&mut self, requests: Vec<SequenceRequest>) {
        for request in requests {
            let now = self.decoder.clock().now();
            self.shares.joins(request.client, &self.present(), now);
            self.waiting.push(request.client, Waiting::New(Box::new(request)));
        }
    }

    /// Ends sequences whose clients have left, and those whose deadline has passed.
    fn drop_cancelled_and_expired(&mut self) {
        let now = self.decoder.clock().now();
        let abort = self.abort.load(Ordering::Relaxed);
        let over = |events: &mpsc::Sender<Event>, deadline: Instant| {
            let failure = match (abort, now >= deadline) {
                (true, _) => Some(Failure::Stopping),
                (_, true) => Some(Failure::Expired),
                _ => None,
            };
            let over = events.is_closed() || failure.is_some();
            if let Some(failure) = failure {
                // If it is full or closed, closing it says the same.
                let _ = events.try_send(Event::Failed(failure));
            }
            over
        };
        let metrics = &self.metrics;
        self.waiting.retain(|waiting| {
            let over = match waiting {
                Waiting::New(request) => over(&request.events, request.deadline),
                Waiting::Suspended(active) => over(&active.events, active.deadline),
            };
            if over {
                metrics.left_queue();
            }
            if let (true, Waiting::Suspended(active)) = (over, waiting) {
                metrics.ended(&active.stats, active.arrived, None);
            }
            !over
        });
        let mut index = 0;
        while index < self.active.len() {
            let active = &self.active[index];
            if over(&active.events, active.deadline) {
                self.metrics.ended(&active.stats, active.arrived, None);
                self.leave(index);
            } else {
                index += 1;
            }
        }
    }

    /// Runs one round for all sequences that do not wait.
    fn round(&mut self) {
        if self.active.is_empty() {
            return;
        }
        let load = self.assign_phases();
        self.plan_drafts(load);
        let started = self.decoder.clock().now();
        let mut turns = Vec::with_capacity(self.active.len());
        for active in &mut self.active {
            if active.phase != Phase::Waiting {
                turns.push(active.turn());
            }
        }
        if turns.is_empty() {
            self.decoder.clock().sleep(MASK_WAIT);
            return;
        }
        match self.decoder.round(&mut turns) {
            Ok(round) => {
                let time = self.decoder.clock().now() - started;
                self.commit(round, time.as_secs_f64(), load);
            }
            Err(error) if turns.len() == 1 => {
                let part = |active: &Active| active.phase != Phase::Waiting;
                if let Some(index) = self.active.iter().position(part) {
                    self.fail(index, error.into());
                }
            }
            // One of them caused it, and the others must not fail with it.
            Err(_) => self.one_by_one(),
        }
    }

    /// Reports what slots hold: those in use, and those whose cache was cut or lost since the last report.
    fn report_caches(&mut self) {
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

    /// Tokens of the target's cache in use, and all it holds. What ended sequences left there gives way to
    /// others, so it is no load: gateways turn away from a server whose cache is full.
    fn cache_use(&self) -> (usize, usize) {
        let busy = self.active.iter().map(|active| active.generation.sequence());
        let held: usize = busy.map(|it| self.decoder.cached_tokens(it.slot()).len()).sum();
        (held, self.slot_count * self.decoder.target().context_len())
    }
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
pub(crate) mod tests;
