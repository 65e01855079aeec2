//! Tenants with weights and priorities, and the time of the engine, which passes as the test says.

use std::num::NonZeroU32;

use forerun_decode::{Clock, EngineError, Output, SimulatedClock, Step};

use super::*;
use crate::tenants::{Priority, TenantConfig, Tenants};

/// An engine whose pass takes ten milliseconds and one for each token.
struct Timed {
    inner: Box<dyn Engine>,
    clock: Arc<SimulatedClock>,
}

impl Engine for Timed {
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
        self.inner.can_cut()
    }
    fn copy(&mut self, from: Slot, to: Slot, len: usize) -> bool {
        self.inner.copy(from, to, len)
    }
    fn extend(&mut self, steps: &[Step<'_>], output: &mut Output) -> Result<(), EngineError> {
        let tokens: usize = steps.iter().map(|step| step.trunk.len() + step.tree.len()).sum();
        self.clock.sleep(Duration::from_millis(10 + tokens as u64));
        self.inner.extend(steps, output)
    }
}

const A: Client = Client::Tenant(0);
const B: Client = Client::Tenant(1);

/// A worker of so many slots for tenants with these weights and priorities.
struct Bench {
    worker: Worker,
    clock: Arc<SimulatedClock>,
    events: Vec<(Client, mpsc::Receiver<Event>)>,
    _requests: mpsc::Sender<Vec<SequenceRequest>>,
    sent: usize,
}

impl Bench {
    fn new(slots: usize, tenants: &[(u32, Priority)]) -> Self {
        let clock = Arc::new(SimulatedClock::default());
        let model = crate::fixtures::model(VOCAB, 1);
        let inner = Box::new(ToyEngine::new(model, 512).slots(slots).paths(1));
        let target = Box::new(Timed { inner, clock: Arc::clone(&clock) });
        let decoder = Decoder::new(target, Vec::new()).unwrap();
        let decoder = decoder.with_clock(Arc::clone(&clock) as Arc<dyn Clock>);
        let (requests, queue) = mpsc::channel(64);
        let metrics = Arc::new(Metrics::new("toy", 1536));
        let config = |(weight, priority): &(u32, Priority)| TenantConfig {
            weight: NonZeroU32::new(*weight).unwrap(),
            priority: *priority,
            ..TenantConfig::of_key("key".to_owned())
        };
        let tenants = Tenants::new(&tenants.iter().map(config).collect::<Vec<_>>());
        let worker = Worker::new(decoder, None, metrics, queue).serving(Arc::new(tenants));
        Self { worker, clock, events: Vec::new(), _requests: requests, sent: 0 }
    }

    /// Sends a sequence with a prompt of its own.
    fn send(&mut self, client: Client, prompt_len: usize, len: usize) {
        let letters = |at: usize| char::from(b'a' + u8::try_from((self.sent >> at) % 5).unwrap());
        let prompt: String = (0..prompt_len).map(|at| letters(at % 11)).collect();
        self.sent += 1;
        let (mut request, events) = request(&prompt, len, &[]);
        request.client = client;
        let now = self.clock.now();
        (request.arrived, request.deadline) = (now, now + Duration::from_secs(3600));
        self.worker.wait(vec![request]);
        self.events.push((client, events));
    }

    fn waits(&self, client: Client) -> bool {
        self.worker.waiting.clients().any(|it| it == client)
    }

    fn holds(&self, client: Client) -> usize {
        self.worker.active.iter().filter(|it| it.client == client).count()
    }

    /// Tokens that came to a client since it was asked last.
    fn tokens(&mut self, client: Client) -> usize {
        let mut tokens = 0;
        for (_, events) in self.events.iter_mut().filter(|(it, _)| *it == client) {
            while let Ok(Event::Progress(progress)) = events.try_recv() {
                tokens += progress.pieces.len();
            }
        }
        tokens
    }
}

#[test]
fn slots_are_shared_by_weight() {
    for weights in [[3, 1], [1, 1], [1, 3]] {
        let mut bench = Bench::new(4, &weights.map(|weight| (weight, Priority::Normal)));
        let mut tokens = [0, 0];
        for round in 0..400 {
            for client in [A, B] {
                while bench.worker.waiting.iter().count() < 20 || !bench.waits(client) {
                    bench.send(client, 3, 10);
                }
            }
            step(&mut bench.worker);
            if round >= 20 {
                tokens[0] += bench.tokens(A);
                tokens[1] += bench.tokens(B);
            }
        }
        let share = tokens[0] as f64 / (tokens[0] + tokens[1]) as f64;
        let expected = f64::from(weights[0]) / f64::from(weights[0] + weights[1]);
        assert!((share - expected).abs() < 0.1 * expected, "{share} instead of {expected}");
    }
}

#[test]
fn a_weight_takes_slots_back_and_gives_the_last_one_to_nobody_else() {
    let mut bench = Bench::new(4, &[(1, Priority::Normal), (100, Priority::Normal)]);
    (0..8).for_each(|_| bench.send(A, 3, 100));
    step(&mut bench.worker);
    assert_eq!(bench.holds(A), 4, "alone, it has all");
    (0..8).for_each(|_| bench.send(B, 3, 100));
    step(&mut bench.worker);
    assert_eq!((bench.holds(A), bench.holds(B)), (1, 3), "the smallest share is a slot");
}

#[test]
fn a_higher_priority_has_every_slot_it_needs_and_gives_back_what_it_does_not() {
    let mut bench = Bench::new(3, &[(100, Priority::Low), (1, Priority::High)]);
    (0..6).for_each(|_| bench.send(A, 3, 60));
    step(&mut bench.worker);
    bench.send(B, 3, 10);
    step(&mut bench.worker);
    assert_eq!((bench.holds(A), bench.holds(B)), (2, 1));
    (0..4).for_each(|_| bench.send(B, 3, 10));
    step(&mut bench.worker);
    assert_eq!((bench.holds(A), bench.holds(B)), (0, 3), "even the last one");
    while bench.waits(B) || bench.holds(B) > 0 {
        step(&mut bench.worker);
        assert!(bench.holds(A) == 0 || !bench.waits(B), "a lower one has a slot before it");
    }
    step(&mut bench.worker);
    assert_eq!(bench.holds(A), 3, "nothing is kept for it from those below");
}

#[test]
fn tenants_beyond_the_slots_take_turns_by_the_time_they_had() {
    // Sequences of one are six times as long as those of the others.
    let mut bench = Bench::new(1, &[(1, Priority::Normal); 3]);
    let clients = [A, B, Client::Tenant(2)];
    let mut tokens = [0; 3];
    for _ in 0..6000 {
        for (client, len) in clients.into_iter().zip([60, 10, 10]) {
            if !bench.waits(client) {
                bench.send(client, 3, len);
            }
        }
        step(&mut bench.worker);
        for (count, client) in tokens.iter_mut().zip(clients) {
            *count += bench.tokens(client);
        }
    }
    let (least, most) = (tokens.iter().min().unwrap(), tokens.iter().max().unwrap());
    assert!(*most as f64 <= 1.1 * *least as f64, "{tokens:?}");
}

#[test]
fn nobody_waits_for_ever_behind_those_who_come_later() {
    let mut bench = Bench::new(1, &[(1, Priority::Normal)]);
    // Two outputs of one request, the first of them long, while other connections come and go all the time.
    let patient = Client::Connection(0);
    bench.send(patient, 3, 200);
    bench.send(patient, 3, 5);
    let mut others = 0;
    for _ in 0..1500 {
        while bench.worker.waiting.iter().count() < 4 {
            others += 1;
            bench.send(Client::Connection(others), 3, 5);
        }
        step(&mut bench.worker);
    }
    assert!(!bench.waits(patient), "behind {others} that came later");
}

#[test]
fn a_tenant_is_not_owed_the_time_it_was_away() {
    let mut bench = Bench::new(1, &[(1, Priority::Normal); 3]);
    // One works alone for a long time, and then two others beside each other.
    for _ in 0..40 {
        bench.send(A, 3, 50);
    }
    while bench.waits(A) || bench.holds(A) > 0 {
        step(&mut bench.worker);
    }
    let other = Client::Tenant(2);
    let mut turns = Vec::new();
    for _ in 0..400 {
        for client in [A, B, other] {
            if !bench.waits(client) {
                bench.send(client, 3, 10);
            }
        }
        step(&mut bench.worker);
        let holder = bench.worker.active.first().map(|it| it.client);
        if holder.is_some() && turns.last() != holder.as_ref() {
            turns.extend(holder);
        }
    }
    let count = |client| turns.iter().filter(|it| **it == client).count();
    assert!(count(A) + 2 >= count(B), "{turns:?}");
}

#[test]
fn prefill_takes_no_more_than_its_share_of_the_time_of_others() {
    let mut bench = Bench::new(4, &[(1, Priority::Normal); 2]);
    let round = |bench: &mut Bench, flood: bool| {
        while flood && bench.worker.waiting.iter().count() < 4 {
            // As much prefill as possible: long prompts, and outputs of one token.
            bench.send(A, 400, 1);
        }
        step(&mut bench.worker);
    };
    // A token of the polite one takes eleven milliseconds alone.
    bench.send(B, 3, 400);
    round(&mut bench, false);
    for _ in 0..20 {
        round(&mut bench, true);
    }
    let (started, _) = (bench.clock.now(), bench.tokens(B));
    let mut prefilled = 0;
    for _ in 0..300 {
        round(&mut bench, true);
        prefilled += bench.tokens(A);
    }
    let seconds = (bench.clock.now() - started).as_secs_f64();
    let rate = bench.tokens(B) as f64 / seconds;
    let share = 0.5 / 0.011;
    assert!(rate > 0.8 * share, "{rate} tokens a second of {share}");
    assert!(prefilled > 0, "nobody is starved");
    // With its output at an end, the other prefills without a pause.
    while bench.holds(B) > 0 {
        round(&mut bench, true);
    }
    let (started, before) = (bench.clock.now(), bench.tokens(A));
    for _ in 0..50 {
        round(&mut bench, true);
    }
    let seconds = (bench.clock.now() - started).as_secs_f64();
    let each = bench.tokens(A) as f64 / seconds;
    assert!(each * 0.45 > 0.8, "{each} prompts of 400 tokens a second after {before}");
}

/// Seconds to the first token of a tenant that asks one thing after the other, alone or beside a flood.
fn first_token(flood: bool, think_ms: u64) -> f64 {
    let mut bench = Bench::new(4, &[(1, Priority::Normal); 2]);
    let more = |bench: &mut Bench| {
        while flood && bench.worker.waiting.iter().count() < 4 {
            bench.send(A, 400, 2);
        }
    };
    let mut times = Vec::new();
    for turn in 0..10 {
        // A request comes in the middle of a round, if that goes on for longer than its sender takes.
        let sent = bench.clock.now() + Duration::from_millis(think_ms);
        while bench.clock.now() < sent {
            more(&mut bench);
            step(&mut bench.worker);
            if !flood {
                bench.clock.sleep(Duration::from_millis(1));
            }
        }
        bench.send(B, 150, 8);
        let mut first = None;
        while bench.holds(B) > 0 || bench.waits(B) {
            more(&mut bench);
            step(&mut bench.worker);
            if bench.tokens(B) > 0 {
                first = first.or(Some(bench.clock.now() - sent));
            }
        }
        // The flood is there from the second turn on.
        if turn > 1 {
            times.push(first.unwrap().as_secs_f64());
        }
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

#[test]
fn the_first_token_of_a_tenant_comes_in_time_beside_a_flood_of_prompts() {
    // Asked again at once; a moment later, for which others wait; and later than that.
    for think_ms in [0, 10, 50] {
        let (idle, beside) = (first_token(false, think_ms), first_token(true, think_ms));
        assert!(beside < 1.7 * idle, "{beside} s instead of {idle} s after {think_ms} ms");
    }
}
