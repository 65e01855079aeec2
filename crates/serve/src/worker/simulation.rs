//! Breaks the worker on purpose: everything below HTTP over the toy engine, with random requests, clients
//! that leave or stop reading, deadlines, and engines that fail in every way [`EngineError`] knows. One
//! seed fixes a run, and time is simulated.
//!
//! In every round nobody who left or is late holds a slot, and no client waits for one while another has
//! more than its share. After each run every sequence whose output its request fixes is compared with plain
//! decoding of that request alone, nothing was lost or delivered twice, and slots, queue and places are as
//! they were before.
//!
//! `just faults 1 SEED` replays a run; `just planted` shows that mistakes are found.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use forerun_decode::{
    Arm, Clock, Constraint, ConstraintError, CostCurve, Costs, DecodeError, DraftPolicy, Drafter,
    DrafterId, EditDrafter, Engine, EngineError, Finish, Gates, ModelDrafter, Output, Reading,
    RuleChoice, Sampling, Sequence, SimulatedClock, Step, StopStrings, TenantSuffixDrafter,
    ToyEngine, ToyModel,
};
use forerun_verify::Philox;
use forerun_verify::rand_core::Rng as _;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::error::TryRecvError;

use super::*;
use crate::fixtures::{Letters, VOCAB};
use crate::request::{CachePolicy, Drafting, Settings};
use crate::tenants::{Priority, TenantConfig};

/// Rounds with new requests in them; then what was begun is brought to its end.
const ROUNDS: usize = 200;
const SLOTS: usize = 3;
const CONTEXT_LEN: usize = 160;
/// No run has more sequences than this.
const PLACES: usize = 4096;
/// Rounds that the longest possible backlog may take to drain.
const DRAIN_MAX: usize = 40_000;

/// Why a step is refused that is in order.
const ON_PURPOSE: &str = "on purpose";

/// Random choices of a run.
#[derive(Clone)]
struct Dice(Arc<Mutex<Philox>>);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(Philox::new(seed))))
    }

    fn below(&self, end: usize) -> usize {
        let drawn = self.0.lock().unwrap().next_u64();
        usize::try_from(drawn % end as u64).unwrap()
    }

    /// Any token but the end.
    fn letter(&self) -> Token {
        Token(u32::try_from(self.below(VOCAB - 1)).unwrap())
    }

    fn one_in(&self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn of<T: Clone>(&self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }
}

/// Two tenants with random weights and priorities.
fn tenants(dice: &Dice) -> Tenants {
    let tenant = |_| TenantConfig {
        weight: dice.of(&[NonZeroU32::MIN, NonZeroU32::new(3).unwrap()]),
        priority: dice.of(&[Priority::Normal, Priority::Normal, Priority::High, Priority::Low]),
        ..TenantConfig::of_key("key".to_owned())
    };
    Tenants::new(&[0, 1].map(tenant))
}

/// How often things go wrong: one in so many passes; never for none.
#[derive(Debug, Clone, Copy)]
struct Trouble {
    target_fails: Option<usize>,
    drafter_fails: Option<usize>,
    slow: Option<usize>,
}

/// A toy engine that takes simulated time and fails at random.
struct Unreliable {
    inner: ToyEngine,
    clock: Arc<SimulatedClock>,
    dice: Dice,
    fails: Option<usize>,
    slow: Option<usize>,
    /// Whether it fails at all: not while what was begun is brought to its end.
    calm: Arc<AtomicBool>,
}

impl Engine for Unreliable {
    fn vocab_len(&self) -> usize {
        self.inner.vocab_len()
    }
    fn context_len(&self) -> usize {
        self.inner.context_len()
    }
    fn slot_count(&self) -> usize {
        self.inner.slot_count()
    }
    fn paths_max(&self) -> usize {
        self.inner.paths_max()
    }
    fn can_cut(&self) -> bool {
        true
    }
    fn copy(&mut self, from: Slot, to: Slot, len: usize) -> bool {
        self.inner.copy(from, to, len)
    }
    fn extend(&mut self, steps: &[Step<'_>], output: &mut Output) -> Result<(), EngineError> {
        let tokens: usize = steps.iter().map(|step| step.trunk.len() + step.tree.len()).sum();
        self.clock.sleep(Duration::from_micros(1_000 + 50 * tokens as u64));
        let calm = self.calm.load(Ordering::Relaxed);
        if self.slow.is_some_and(|count| !calm && self.dice.one_in(count)) {
            self.clock.sleep(Duration::from_millis(300));
        }
        if self.fails.is_some_and(|count| !calm && self.dice.one_in(count)) {
            let slot = steps.first().map_or(Slot(0), |step| step.slot);
            let vocab_len = VOCAB;
            self.inner.fail_next(self.dice.of(&[
                EngineError::Full { tokens },
                EngineError::Token { token: Token(0), vocab_len },
                EngineError::Step { slot, reason: ON_PURPOSE.to_owned() },
                EngineError::CannotCut { slot },
                EngineError::Interrupted,
                EngineError::Refused { backend: "simulated" },
                EngineError::Broken { backend: "simulated", code: -3 },
            ]));
        }
        self.inner.extend(steps, output)
    }
}

/// Never the same token twice in a row; a function of what was committed and the path alone. Its masks may
/// have to be prepared.
#[derive(Clone)]
struct NoRepeat {
    last: Option<Token>,
    slow: bool,
    asked: usize,
}

impl Constraint for NoRepeat {
    fn mask(&mut self, path: &[Token], logits: &mut [f32]) -> Result<(), ConstraintError> {
        if let Some(last) = path.last().copied().or(self.last) {
            logits[last.index()] = f32::NEG_INFINITY;
        }
        Ok(())
    }
    fn admitted(&mut self, path: &[Token]) -> usize {
        let before = std::iter::once(self.last).chain(path.iter().copied().map(Some));
        before.zip(path).take_while(|(before, token)| *before != Some(**token)).count()
    }
    fn commit(&mut self, tokens: &[Token]) {
        self.last = tokens.last().copied().or(self.last);
        self.asked = 0;
    }
    fn prepare(&mut self) -> bool {
        self.asked += 1;
        self.asked > 2
    }
    fn mask_time(&mut self) -> Duration {
        Duration::from_millis(if self.slow { 60 } else { 0 })
    }
}

/// What a request asks for.
#[derive(Clone)]
struct Spec {
    prompt: Vec<Token>,
    output_len_max: usize,
    sampling: Sampling,
    stops: StopStrings,
    constraint: Option<NoRepeat>,
    rule: RuleChoice,
    seed: u64,
}

impl Spec {
    /// Whether plain decoding gives the same tokens.
    fn is_fixed(&self) -> bool {
        self.rule == RuleChoice::Coupled || self.sampling.temperature == 0.0
    }

    fn reading(&self) -> Reading {
        Reading::new(Arc::new(Letters), &self.stops)
    }

    fn constraint(&self) -> Option<Box<dyn Constraint>> {
        self.constraint.clone().map(|it| Box::new(it) as Box<dyn Constraint>)
    }

    /// Plain decoding of this request alone.
    fn alone(&self) -> Expected {
        let engine = ToyEngine::new(model(1), CONTEXT_LEN);
        let mut decoder = Decoder::new(Box::new(engine), Vec::new()).unwrap();
        let policy = DraftPolicy::drafted(Vec::new(), 0, self.rule.with_seed(self.seed));
        let mut sequence = Sequence::new(Slot(0), self.sampling.clone());
        sequence.begin(self.prompt.clone(), self.output_len_max);
        sequence.constraint = self.constraint();
        let mut generation = Generation::resumed(sequence, policy, self.reading(), self.seed);
        let mut text = String::new();
        while let Some(chunk) = generation.next(&mut decoder).unwrap() {
            chunk.pieces.iter().for_each(|piece| text.push_str(&piece.text));
        }
        let tokens = generation.sequence().output().to_vec();
        Expected { tokens, text, finish: generation.finish() }
    }
}

/// What plain decoding makes of a request.
struct Expected {
    tokens: Vec<Token>,
    text: String,
    finish: Option<Finish>,
}

/// A client that waits for a sequence.
struct Waiter {
    spec: Spec,
    expected: Expected,
    events: Option<mpsc::Receiver<Event>>,
    /// Reads in one of so many rounds.
    reads_in: usize,
    /// Events that its channel holds before the worker gives it up.
    unread_max: usize,
    unread_most: usize,
    /// When it leaves, in rounds.
    leaves_at: Option<usize>,
    deadline: Instant,
    text: String,
    finish: Option<Finish>,
    failure: Option<Failure>,
    closed: bool,
}

impl Waiter {
    fn read(&mut self) {
        let Some(events) = &mut self.events else { return };
        self.unread_most = self.unread_most.max(events.len());
        loop {
            match events.try_recv() {
                Ok(event) => {
                    assert!(self.finish.is_none() && self.failure.is_none(), "told after its end");
                    match event {
                        Event::Progress(progress) => {
                            assert!(!progress.pieces.is_empty(), "told of nothing");
                            let mut failed = HashSet::new();
                            let mut dropped = progress.stats.dropped.iter();
                            let once = dropped.all(|drop| failed.insert(drop.drafter));
                            assert!(once, "a drafter that failed drafted again");
                            let pieces = progress.pieces.iter();
                            pieces.for_each(|piece| self.text.push_str(&piece.text));
                            self.finish = progress.finish;
                        }
                        Event::Failed(failure) => self.failure = Some(failure),
                    }
                }
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.closed = true;
                    return;
                }
            }
        }
    }
}

fn model(seed: u64) -> ToyModel {
    ToyModel { vocab_len: VOCAB, order: 3, seed, spread: 2.0 }
}

/// One run.
struct Simulation {
    dice: Dice,
    clock: Arc<SimulatedClock>,
    started: Instant,
    calm: Arc<AtomicBool>,
    worker: Worker,
    metrics: Arc<Metrics>,
    places: Arc<Semaphore>,
    waiters: Vec<Waiter>,
    /// Prompts begin with one of these.
    prefixes: Vec<Vec<Token>>,
    adaptive: bool,
    trouble: Trouble,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let dice = Dice::new(seed);
        let clock = Arc::new(SimulatedClock::default());
        let calm = Arc::new(AtomicBool::new(false));
        let often = [None, Some(20), Some(100)];
        let trouble = Trouble {
            target_fails: dice.of(&often),
            drafter_fails: dice.of(&often),
            slow: dice.of(&often),
        };
        let paths_max = dice.of(&[1, 8]);
        let engine = |model_seed, fails| -> Box<dyn Engine> {
            let inner =
                ToyEngine::new(model(model_seed), CONTEXT_LEN).slots(SLOTS).paths(paths_max);
            let (clock, dice, calm) = (Arc::clone(&clock), dice.clone(), Arc::clone(&calm));
            Box::new(Unreliable { inner, clock, dice, fails, slow: trouble.slow, calm })
        };
        let drafters: Vec<Box<dyn Drafter>> = vec![
            Box::new(ModelDrafter::new(engine(2, trouble.drafter_fails))),
            Box::new(EditDrafter::default()),
            Box::new(TenantSuffixDrafter::default()),
        ];
        let decoder = Decoder::new(engine(1, trouble.target_fails), drafters).unwrap();
        let decoder = decoder.with_clock(Arc::clone(&clock) as Arc<dyn Clock>);
        let adaptive = dice.one_in(2);
        let controller = adaptive.then(|| {
            let curve = CostCurve::new([(1, 1e-3), (64, 4e-3)]);
            let drafters = [(DrafterId(0), CostCurve::new([(1, 1e-5), (64, 2e-5)]))].into();
            let arms = [0, 1, 2].map(|id| Arm { drafters: vec![DrafterId(id)], width: 1 });
            let gates = Gates::new([(DrafterId(0), "toy".to_owned())]);
            Controller::new(Costs { target: curve, drafters }, arms.to_vec(), 4).gated(gates)
        });
        let metrics = Arc::new(Metrics::new("toy", 1));
        let (_, requests) = mpsc::channel(1);
        let worker = Worker::new(decoder, controller, Arc::clone(&metrics), requests);
        let worker = worker.serving(Arc::new(tenants(&dice)));
        let letters = |len| (0..len).map(|_| dice.letter()).collect();
        let prefixes = (0..3).map(|_| letters(1 + dice.below(60))).collect();
        let places = Arc::new(Semaphore::new(PLACES));
        Self {
            dice,
            started: clock.now(),
            clock,
            calm,
            worker,
            metrics,
            places,
            waiters: Vec::new(),
            prefixes,
            adaptive,
            trouble,
        }
    }

    /// A random request.
    fn spec(&self) -> Spec {
        let dice = &self.dice;
        let mut prompt = dice.of(&self.prefixes);
        prompt.extend((0..dice.below(6)).map(|_| dice.letter()));
        let penalty = if dice.one_in(4) { 0.5 } else { 0.0 };
        let sampling = Sampling {
            temperature: dice.of(&[0.0, 0.7, 1.0]),
            presence_penalty: penalty,
            ..Sampling::unshaped()
        };
        let stops = match dice.below(4) {
            0 => vec!["ab".to_owned()],
            1 => vec!["cd".to_owned(), "eea".to_owned()],
            _ => Vec::new(),
        };
        let slow = dice.one_in(2);
        Spec {
            prompt,
            output_len_max: 1 + dice.below(60),
            sampling,
            stops: StopStrings::new(stops).unwrap(),
            constraint: dice.one_in(4).then_some(NoRepeat { last: None, slow, asked: 0 }),
            rule: dice.of(&[RuleChoice::Coupled, RuleChoice::Coupled, RuleChoice::Block]),
            seed: dice.below(1 << 30) as u64,
        }
    }

    /// Sends a request with one sequence or several, and begins to wait for them.
    fn send(&mut self, round: usize) {
        let dice = self.dice.clone();
        let client = dice.of(&[Client::Tenant(0), Client::Tenant(1), Client::Connection(7)]);
        let place = Arc::clone(&self.places).try_acquire_owned().unwrap();
        let permit = Arc::new(Permit::of_place(place));
        let now = self.clock.now();
        let spec = self.spec();
        let mut requests = Vec::new();
        for choice in 0..dice.of(&[1, 1, 2, 4]) {
            let spec = Spec { seed: spec.seed + choice as u64, ..spec.clone() };
            let unread_max = dice.of(&[3, 1024]);
            let (events, receiver) = mpsc::channel(unread_max);
            let drafters = dice.of(&[None, Some(0), Some(1), Some(2)]).map(DrafterId);
            let rule = spec.rule.with_seed(spec.seed);
            let policy =
                DraftPolicy::drafted(drafters.into_iter().collect(), 1 + dice.below(4), rule);
            let expected = spec.alone();
            let prediction = dice.of(&[vec![], spec.prompt.clone(), expected.tokens.clone()]);
            let late = Duration::from_millis(if dice.one_in(8) { 40 } else { 3_600_000 });
            requests.push(SequenceRequest {
                client,
                cache: CachePolicy { shared: !dice.one_in(8), salt: None },
                choice,
                prompt: spec.prompt.clone(),
                output: Vec::new(),
                output_len_max: spec.output_len_max,
                settings: Arc::new(Settings::of(spec.sampling.clone())),
                reading: spec.reading(),
                seed: spec.seed,
                constraint: spec.constraint(),
                min_tokens: None,
                logprobs: dice.one_in(4).then_some(2),
                drafting: Drafting {
                    policy,
                    rule: spec.rule,
                    lossy: None,
                    adaptive: self.adaptive && dice.one_in(2),
                    refused: false,
                },
                prediction,
                arrived: now,
                deadline: now + late,
                predict_time: None,
                events,
                permit: Some(Arc::clone(&permit)),
            });
            self.waiters.push(Waiter {
                spec,
                expected,
                events: Some(receiver),
                reads_in: dice.of(&[1, 1, 1, 12]),
                unread_max,
                unread_most: 0,
                leaves_at: dice.one_in(6).then(|| round + dice.below(30)),
                deadline: now + late,
                text: String::new(),
                finish: None,
                failure: None,
                closed: false,
            });
        }
        requests.iter().for_each(|_| self.metrics.queued());
        self.worker.wait(requests);
    }

    /// One turn of the worker, and what clients do meanwhile.
    fn step(&mut self, round: usize) {
        self.worker.schedule();
        self.check_schedule();
        self.worker.advance();
        for waiter in &mut self.waiters {
            if waiter.leaves_at.is_some_and(|at| round >= at) {
                waiter.events = None;
            }
            if self.dice.one_in(waiter.reads_in) {
                waiter.read();
            }
        }
    }

    /// What holds whenever slots were given out.
    fn check_schedule(&self) {
        let now = self.clock.now();
        let worker = &self.worker;
        let over = |events: &mpsc::Sender<Event>, deadline| events.is_closed() || now >= deadline;
        let active_over = worker.active.iter().any(|it| over(&it.events, it.deadline));
        let waiting_over = worker.waiting.iter().any(|waiting| match waiting {
            Waiting::New(request) => over(&request.events, request.deadline),
            Waiting::Suspended(active) => over(&active.events, active.deadline),
        });
        let over = active_over || waiting_over;
        assert!(!over, "a sequence goes on whose client left or whose deadline passed");
        let mut slots: Vec<Slot> =
            worker.active.iter().map(|it| it.generation.sequence().slot()).collect();
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len(), worker.active.len(), "two sequences in one slot");
        assert_eq!(
            worker.slots.idle_count(),
            SLOTS - slots.len(),
            "a slot was lost or freed twice"
        );
        self.check_shares();
    }

    /// No client waits without a slot while one is free or another client has more than its share.
    fn check_shares(&self) {
        let worker = &self.worker;
        let held = |client| worker.active.iter().filter(|it| it.client == client).count();
        let may_begin = |waiting: &Waiting| !worker.waits_for_another(waiting);
        let next = worker.waiting.next(|one, other| worker.order(one, other), may_begin);
        let Some(next) = next.filter(|client| held(*client) == 0) else { return };
        assert_eq!(worker.slots.idle_count(), 0, "a slot is free and a client waits");
        let rank = worker.shares.priority(next);
        for other in worker.active.iter().map(|it| it.client) {
            let above = worker.shares.priority(other);
            assert!(above >= rank, "a client waits while one of lower priority has a slot");
            let share = worker.share(other, std::iter::empty());
            let within = above > rank || held(other) <= share;
            assert!(within, "a client waits while another has more than its share");
        }
    }

    fn run(mut self) -> Outcome {
        for round in 0..ROUNDS {
            if self.dice.one_in(6) {
                self.send(round);
            }
            self.step(round);
            // Nobody is idle for long.
            if self.worker.active.is_empty() {
                self.clock.sleep(Duration::from_millis(5));
            }
        }
        self.calm.store(true, Ordering::Relaxed);
        let mut rounds = ROUNDS;
        while !(self.worker.active.is_empty() && self.worker.waiting.is_empty()) {
            assert!(rounds < DRAIN_MAX, "what was begun does not come to its end");
            self.step(rounds);
            self.clock.sleep(Duration::from_millis(1));
            rounds += 1;
        }
        self.waiters.iter_mut().for_each(Waiter::read);
        self.check()
    }

    /// Every promise, once all is over.
    fn check(self) -> Outcome {
        let mut counts = Counts::default();
        let mut trace = DefaultHasher::new();
        for waiter in &self.waiters {
            let Waiter { spec, expected, text, finish, failure, .. } = waiter;
            (text, format!("{finish:?} {failure:?}")).hash(&mut trace);
            if spec.is_fixed() {
                let Expected { text: whole, finish: end, .. } = expected;
                assert!(whole.starts_with(text.as_str()), "{text:?} instead of {whole:?}");
                if finish.is_some() {
                    assert_eq!((text, finish), (whole, end));
                    counts.compared += 1;
                }
            }
            match (finish, failure) {
                (Some(_), None) => counts.finished += 1,
                (None, Some(Failure::Expired)) => {
                    assert!(self.clock.now() >= waiter.deadline, "late before its time");
                    counts.late += 1;
                }
                (None, Some(Failure::Decode(error))) => {
                    assert!(self.trouble.target_fails.is_some(), "failed without a cause: {error}");
                    // An engine that refuses a step found the decoder wrong about its caches.
                    if let DecodeError::Engine(EngineError::Step { reason, .. }) = error {
                        assert_eq!(reason, ON_PURPOSE, "a step relied on what is not cached");
                    }
                    counts.failed += 1;
                }
                (None, None) if waiter.events.is_none() => counts.left += 1,
                (None, None) => {
                    let unread = waiter.unread_most >= waiter.unread_max;
                    assert!(waiter.closed && unread, "nobody told it of its end: {text:?}");
                    counts.given_up += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        let shown = self.metrics.text();
        for gauge in ["waiting", "running"] {
            let line = format!("vllm:num_requests_{gauge}{{model_name=\"toy\"}} ");
            let line = shown.lines().find(|it| it.starts_with(&line)).unwrap();
            assert!(line.ends_with(" 0"), "{line}");
        }
        assert_eq!(self.places.available_permits(), PLACES, "places are held for nobody");
        (self.clock.now() - self.started).hash(&mut trace);
        Outcome { counts, trace: trace.finish() }
    }
}

/// What became of a run.
struct Outcome {
    counts: Counts,
    /// A hash of all that clients were told and of the time it took.
    trace: u64,
}

/// What became of the sequences of a run.
#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    finished: usize,
    compared: usize,
    failed: usize,
    late: usize,
    left: usize,
    given_up: usize,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.finished += other.finished;
        self.compared += other.compared;
        self.failed += other.failed;
        self.late += other.late;
        self.left += other.left;
        self.given_up += other.given_up;
    }
}

/// Runs these seeds on all processors; a failure says how to replay it.
fn run(seeds: Range<u64>) -> Counts {
    let next = AtomicU64::new(seeds.start);
    let work = || {
        let mut counts = Counts::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return counts;
            }
            let Ok(run) = std::panic::catch_unwind(|| Simulation::new(seed).run()) else {
                panic!("seed {seed}: replay it with `just faults 1 {seed}`");
            };
            counts += run.counts;
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut counts = Counts::default();
        for thread in threads {
            counts += thread.join().unwrap_or_else(|payload| std::panic::resume_unwind(payload));
        }
        counts
    })
}

/// What never happens is not tested.
fn assert_covered(counts: Counts, runs: u64) {
    let Counts { finished, compared, failed, late, left, given_up } = counts;
    let least = [finished, compared, failed, late, left, given_up].into_iter().min();
    assert!(least.is_some_and(|least| 50 * least as u64 > runs), "{runs} runs: {counts:?}");
}

#[test]
fn the_worker_keeps_its_promises_whatever_fails() {
    assert_covered(run(0..300), 300);
}

#[test]
fn a_seed_fixes_a_run() {
    for seed in 0..30 {
        let [one, other] = [(); 2].map(|()| Simulation::new(seed).run().trace);
        assert_eq!(one, other, "seed {seed}");
    }
}

/// `just faults`: so many runs from a seed on.
#[test]
#[ignore = "takes minutes: `just faults`"]
fn many_runs() {
    let number = |name| std::env::var(name).ok().map(|number: String| number.parse().unwrap());
    let first: u64 = number("FORERUN_SIMULATION_SEED").unwrap_or(0);
    let count: u64 = number("FORERUN_SIMULATION_RUNS").unwrap_or(20_000);
    let counts = run(first..first + count);
    if count >= 1_000 {
        assert_covered(counts, count);
    }
    let Counts { finished, compared, failed, late, left, given_up } = counts;
    let report = format!(
        "# The server with failing engines, in simulated time\n\nMade by `just faults-report`: \
         {count} runs from seed {first}, {ROUNDS} rounds with new requests each. Every promise \
         of `crates/serve/src/worker/simulation.rs` held in every run.\n\n\
         | what became of a sequence | how many |\n|---|--:|\n\
         | finished | {finished} |\n\
         | of these, compared with plain decoding to the token | {compared} |\n\
         | failed, because the target did | {failed} |\n\
         | ended by its deadline | {late} |\n\
         | cancelled by its client | {left} |\n\
         | given up because its client did not read | {given_up} |\n"
    );
    println!("{count} runs from seed {first}: {counts:?}");
    if let Ok(path) = std::env::var("FORERUN_SIMULATION_REPORT") {
        std::fs::write(path, report).unwrap();
    }
}
