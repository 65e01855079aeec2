//! The engine's thread over a toy engine: sequences do not disturb each other, whatever fails. Who is
//! served when is in `turns` and `shares`; slow masks are in `masks`.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

mod masks;
mod shares;
mod turns;

use forerun_decode::{
    Arm, Constraint, ConstraintError, CostCurve, Costs, DraftPolicy, Drafter, DrafterId,
    EditDrafter, Engine, Finish, ModelDrafter, Reading, RuleChoice, Sampling, Special, StopStrings,
    TenantSuffixDrafter, Token, Tokenizer, ToyEngine, ToyModel,
};

use super::*;
use crate::fixtures::{END, Letters, VOCAB, toy};
use crate::request::{CachePolicy, Drafting, Settings};

fn ids(drafters: &[usize]) -> Vec<DrafterId> {
    drafters.iter().copied().map(DrafterId).collect()
}

/// A worker that nobody runs, and where its requests would go.
fn worker(
    adaptive: bool,
    paths_max: usize,
) -> (Worker, mpsc::Sender<Vec<SequenceRequest>>, Arc<Metrics>) {
    worker_of(toy(1, paths_max), adaptive, paths_max)
}

/// A worker with this target.
fn worker_of(
    target: Box<dyn Engine>,
    adaptive: bool,
    paths_max: usize,
) -> (Worker, mpsc::Sender<Vec<SequenceRequest>>, Arc<Metrics>) {
    let drafter = Box::new(ModelDrafter::new(toy(2, paths_max)));
    let drafters: Vec<Box<dyn Drafter>> = vec![drafter, Box::new(EditDrafter::default())];
    let decoder = Decoder::new(target, drafters).unwrap();
    let curve = CostCurve::new([(1, 1e-4), (64, 2e-4)]);
    // Cheap enough to be tried whatever comes of it.
    let cheap = CostCurve::new([(1, 1e-6), (64, 2e-6)]);
    let costs = Costs { target: curve, drafters: [(DrafterId(0), cheap)].into() };
    let arms = [&[0][..], &[1], &[0, 1]].map(|drafters| Arm { drafters: ids(drafters), width: 1 });
    let controller = adaptive.then(|| Controller::new(costs, arms.to_vec(), 4));
    let metrics = Arc::new(Metrics::new("toy", 1536));
    let (requests, queue) = mpsc::channel(64);
    (Worker::new(decoder, controller, Arc::clone(&metrics), queue), requests, metrics)
}

/// A server's thread, and where its requests go.
struct Running {
    requests: mpsc::Sender<Vec<SequenceRequest>>,
    abort: Arc<AtomicBool>,
    metrics: Arc<Metrics>,
    thread: std::thread::JoinHandle<()>,
}

impl Running {
    fn start(adaptive: bool) -> Self {
        Self::with_paths(adaptive, 8)
    }

    fn with_paths(adaptive: bool, paths_max: usize) -> Self {
        Self::run(worker(adaptive, paths_max))
    }

    fn run(
        (worker, requests, metrics): (Worker, mpsc::Sender<Vec<SequenceRequest>>, Arc<Metrics>),
    ) -> Self {
        let abort = worker.abort();
        let thread = std::thread::spawn(move || worker.run());
        Self { requests, abort, metrics, thread }
    }

    fn send(&self, request: SequenceRequest) {
        self.metrics.queued();
        self.requests.blocking_send(vec![request]).unwrap();
    }

    fn stop(self) {
        drop(self.requests);
        self.thread.join().unwrap();
    }

    /// Decodes a sequence and waits for it.
    fn text(&self, prompt: &str, len: usize, drafters: &[usize]) -> Done {
        let (request, events) = request(prompt, len, drafters);
        self.send(request);
        done(events)
    }
}

/// A sequence whose output depends on its prompt alone, whatever is drafted.
fn request(
    prompt: &str,
    len: usize,
    drafters: &[usize],
) -> (SequenceRequest, mpsc::Receiver<Event>) {
    let (events, receiver) = mpsc::channel(1024);
    let rule = RuleChoice::Coupled;
    let policy = DraftPolicy::drafted(ids(drafters), 3, rule.with_seed(7));
    let never = (END, f32::NEG_INFINITY);
    let now = Instant::now();
    let request = SequenceRequest {
        client: Client::default(),
        cache: CachePolicy { shared: true, salt: None },
        choice: 0,
        prompt: Letters.tokenize(prompt, Special::AsText).unwrap(),
        output: Vec::new(),
        output_len_max: len,
        settings: Arc::new(Settings::of(Sampling {
            logit_bias: vec![never],
            ..Sampling::unshaped()
        })),
        reading: Reading::new(Arc::new(Letters), &StopStrings::default()),
        seed: 7,
        constraint: None,
        min_tokens: None,
        logprobs: None,
        drafting: Drafting { policy, rule, lossy: None, adaptive: true, refused: false },
        prediction: Vec::new(),
        arrived: now,
        deadline: now + Duration::from_secs(60),
        predict_time: None,
        events,
        permit: None,
    };
    (request, receiver)
}

/// What became of a sequence.
#[derive(Debug, Default)]
struct Done {
    text: String,
    finish: Option<Finish>,
    failure: Option<Failure>,
    stats: SequenceStats,
    rounds: usize,
}

fn done(mut events: mpsc::Receiver<Event>) -> Done {
    let mut done = Done::default();
    while let Some(event) = events.blocking_recv() {
        match event {
            Event::Progress(progress) => {
                progress.pieces.iter().for_each(|piece| done.text.push_str(&piece.text));
                done.rounds += 1;
                done.finish = progress.finish;
                done.stats = progress.stats;
            }
            Event::Failed(failure) => done.failure = Some(failure),
        }
    }
    done
}

const PROMPTS: [&str; 7] = ["abc", "cab", "eeee", "abca", "d", "bbcc", "edcba"];

#[test]
fn outputs_are_the_same_alone_and_beside_others_with_any_drafter_or_none() {
    let alone = Running::start(false);
    let expected: Vec<String> =
        PROMPTS.iter().map(|prompt| alone.text(prompt, 60, &[]).text).collect();
    alone.stop();
    for adaptive in [false, true] {
        let server = Running::start(adaptive);
        // More sequences than slots, with different drafters and prompts.
        let sent: Vec<_> = PROMPTS
            .iter()
            .enumerate()
            .map(|(index, prompt)| {
                let drafters = [&[][..], &[0], &[0, 1]][index % 3];
                let (mut request, events) = request(prompt, 60, drafters);
                request.prediction = Letters.tokenize("abcabcabc", Special::AsText).unwrap();
                server.send(request);
                events
            })
            .collect();
        let texts: Vec<Done> = sent.into_iter().map(done).collect();
        for (text, expected) in texts.iter().zip(&expected) {
            assert_eq!((&text.text, text.finish), (expected, Some(Finish::Length)));
        }
        let accepted = texts.iter().any(|text| text.stats.rounds.accepted > 0);
        assert!(accepted || adaptive, "something was drafted");
        server.stop();
    }
}

#[test]
fn a_long_prompt_does_not_hold_up_the_others() {
    let (mut worker, _requests, _) = worker(false, 8);
    let (short, _short_events) = request("abc", 300, &[]);
    worker.wait(vec![short]);
    step(&mut worker);
    // The long one comes once the short one decodes.
    let (long, long_events) = request(&"abcde".repeat(80), 1, &[]);
    worker.wait(vec![long]);
    let mut rounds = 0;
    while rounds == 0 || worker.active.len() == 2 {
        step(&mut worker);
        rounds += 1;
    }
    let long = done(long_events);
    assert_eq!(long.finish, Some(Finish::Length));
    let read = usize::try_from(long.stats.rounds.prompt_prefilled).unwrap();
    assert_eq!(read + long.stats.cached, 400);
    // 400 tokens in pieces of 128 take 4 rounds, and the other had a token in each.
    assert_eq!(rounds, 4);
    assert_eq!(worker.active[0].generation.sequence().output().len(), 1 + rounds);
}

#[test]
fn what_is_cached_is_not_prefilled_again() {
    let server = Running::start(false);
    let prompt = "abcde".repeat(20);
    assert_eq!(server.text(&prompt, 5, &[0]).stats.cached, 0);
    // The same slot goes on; then another gets a copy of what they share.
    let longer = format!("{prompt}ab");
    assert_eq!(server.text(&longer, 5, &[0]).stats.cached, 100);
    let (long, events) = request(&format!("{prompt}ea"), 200, &[0]);
    server.send(long);
    let beside = server.text(&format!("{prompt}eb"), 5, &[0]);
    assert!(beside.stats.cached >= 100, "{}", beside.stats.cached);
    assert_eq!(done(events).finish, Some(Finish::Length));
    // The output is what it would have been without a cache.
    let fresh = Running::start(false);
    assert_eq!(beside.text, fresh.text(&format!("{prompt}eb"), 5, &[]).text);
    fresh.stop();
    server.stop();
}

/// Fails after a few tokens.
#[derive(Debug)]
struct Fails(usize);

impl Constraint for Fails {
    fn mask(&mut self, _: &[Token], _: &mut [f32]) -> Result<(), ConstraintError> {
        match self.0 {
            0 => Err(ConstraintError { reason: "enough".to_owned() }),
            _ => Ok(()),
        }
    }
    fn admitted(&mut self, path: &[Token]) -> usize {
        path.len()
    }
    fn commit(&mut self, tokens: &[Token]) {
        self.0 = self.0.saturating_sub(tokens.len());
    }
}

#[test]
fn a_sequence_that_fails_leaves_the_others_alone() {
    let alone = Running::start(false);
    let expected = alone.text("abc", 100, &[]).text;
    alone.stop();
    let server = Running::start(false);
    let (well, events) = request("abc", 100, &[0]);
    server.send(well);
    let (mut bad, bad_events) = request("cab", 100, &[0]);
    bad.constraint = Some(Box::new(Fails(9)));
    server.send(bad);
    let bad = done(bad_events);
    assert!(matches!(bad.failure, Some(Failure::Decode(_))), "{bad:?}");
    assert!(!bad.text.is_empty() && bad.finish.is_none());
    assert_eq!(done(events).text, expected);
    server.stop();
}

#[test]
fn a_client_that_leaves_frees_its_slot() {
    let server = Running::start(false);
    for _ in 0..20 {
        let (request, mut events) = request("abc", 400, &[0]);
        server.send(request);
        events.blocking_recv().unwrap();
        drop(events);
    }
    let text = server.text("abc", 10, &[]);
    assert_eq!(text.text.len(), 10);
    let shown = server.metrics.text();
    assert!(shown.contains("vllm:num_requests_waiting{model_name=\"toy\"} 0"), "{shown}");
    server.stop();
}

#[test]
fn a_sequence_past_its_deadline_or_ended_by_the_server_fails() {
    let server = Running::start(false);
    let (mut late, events) = request("abc", 400, &[]);
    late.deadline = Instant::now();
    server.send(late);
    assert_eq!(done(events).failure, Some(Failure::Expired));
    let (request, mut events) = request("abc", usize::MAX, &[]);
    server.send(request);
    events.blocking_recv().unwrap();
    server.abort.store(true, Ordering::Relaxed);
    let stopped = done(events);
    // The context may have been full before the flag was seen.
    assert!(stopped.failure == Some(Failure::Stopping) || stopped.finish == Some(Finish::Context));
    server.stop();
}

/// Rounds that a sequence takes whose output another one had before, for each of these two.
fn repeated(anonymous_share: bool, clients: [Client; 2], salts: [Option<&str>; 2]) -> [usize; 2] {
    let drafters: Vec<Box<dyn Drafter>> = vec![Box::new(TenantSuffixDrafter::default())];
    let decoder = Decoder::new(toy(1, 1), drafters).unwrap();
    let metrics = Arc::new(Metrics::new("toy", 1536));
    let (requests, queue) = mpsc::channel(64);
    let worker = Worker::new(decoder, None, Arc::clone(&metrics), queue);
    let server = Running::run((worker.anonymous_share(anonymous_share), requests, metrics));
    let each = [0, 1].map(|index| {
        let (mut request, events) = request("abc", 40, &[0]);
        request.client = clients[index];
        request.cache.salt = salts[index].map(Arc::from);
        request.drafting.adaptive = false;
        server.send(request);
        done(events)
    });
    assert_eq!(each[0].text, each[1].text);
    server.stop();
    each.map(|done| done.rounds)
}

#[test]
fn outputs_are_drafted_from_for_the_same_tenant_alone() {
    let (one, other) = (Client::Tenant(0), Client::Tenant(1));
    let (near, far) = (Client::Connection(0), Client::Connection(1));
    let [first, again] = repeated(false, [one, one], [None, None]);
    assert!(again + 10 < first, "{again} rounds after {first}");
    let alone = |clients, salts| repeated(false, clients, salts) == [first, first];
    assert!(alone([one, other], [None, None]), "another key");
    assert!(alone([one, one], [None, Some("a")]), "another salt");
    assert!(alone([near, near], [None, None]), "no key");
    assert_eq!(repeated(true, [near, far], [None, None]), [first, again], "as the server says");
    assert_eq!(repeated(false, [near, far], [Some("a"); 2]), [first, again], "the same salt");
}

#[test]
fn predictions_are_counted() {
    let server = Running::start(false);
    let expected = server.text("abc", 40, &[]).text;
    let (mut predicted, events) = request("abc", 40, &[1]);
    predicted.drafting.adaptive = false;
    predicted.prediction = Letters.tokenize(&expected, Special::AsText).unwrap();
    server.send(predicted);
    let predicted = done(events);
    assert_eq!(predicted.text, expected);
    // The first token is not drafted, and of each round one token is the target's own.
    assert!(predicted.stats.predicted >= 27, "{}", predicted.stats.predicted);
    assert!(predicted.rounds < 15, "{}", predicted.rounds);
    server.stop();
}

#[test]
fn sequences_that_prefill_count_as_load() {
    let (mut worker, _requests, _) = worker(true, 1);
    for prompt in ["abc", &"abcde".repeat(40)] {
        let (request, _events) = request(prompt, 10, &[0]);
        worker.wait(vec![request]);
    }
    worker.admit();
    // For the one that decodes, the other soon will too.
    assert_eq!(worker.assign_phases().sequences, 1);
    assert_eq!(worker.active[0].phase, Phase::Decode);
    assert!(matches!(worker.active[1].phase, Phase::Prefill(_)));
}

#[test]
fn with_cells_of_their_own_nobody_drafts_unless_all_do() {
    for (paths_max, beside) in [(1, 0), (8, 1)] {
        let (mut worker, _requests, _) = worker(true, paths_max);
        let (plain, _plain_events) = request("abc", 480, &[]);
        let (drafted, events) = request("cab", 60, &[0]);
        worker.wait(vec![plain, drafted]);
        step(&mut worker);
        while worker.active.len() == 2 {
            step(&mut worker);
        }
        let drafted = done(events).stats.rounds.drafted;
        assert_eq!(drafted.min(1), beside, "{drafted} tokens drafted where {paths_max} paths fit");
    }
}

#[test]
fn with_cells_of_its_own_an_edit_drafts_beside_one_that_does_not() {
    let alone = Running::start(false);
    let expected = alone.text("cab", 60, &[]).text;
    alone.stop();
    let (mut worker, _requests, _) = worker(true, 1);
    let (plain, _plain_events) = request("abc", 480, &[]);
    let (mut edit, events) = request("cab", 60, &[1]);
    edit.prediction = Letters.tokenize(&expected, Special::AsText).unwrap();
    worker.wait(vec![plain, edit]);
    step(&mut worker);
    while worker.active.len() == 2 {
        step(&mut worker);
    }
    let edit = done(events);
    assert_eq!(edit.text, expected);
    assert!(edit.rounds < 40, "{} rounds for 60 tokens that were foretold", edit.rounds);
}

#[test]
fn on_a_slow_machine_prompts_are_still_prefilled_in_portions_worth_a_pass() {
    let (mut worker, _requests, _) = worker(true, 8);
    // Passes that exceed the time for prefill with a single token.
    let slow = CostCurve::new([(1, 1.0), (64, 8.0)]);
    let costs = Costs { target: slow, drafters: [].into() };
    worker.controller = Some(Controller::new(costs, Vec::new(), 4));
    let (long, _long_events) = request(&"abcde".repeat(80), 10, &[]);
    worker.wait(vec![long]);
    worker.admit();
    worker.assign_phases();
    assert_eq!(
        worker.active[0].phase,
        Phase::Prefill(prefill::PREFILL_ALONE_MIN),
        "nobody is held up"
    );
    let (short, _short_events) = request("cab", 10, &[]);
    worker.wait(vec![short]);
    worker.admit();
    worker.assign_phases();
    assert_eq!(worker.active[0].phase, Phase::Prefill(prefill::PREFILL_MIN));
}

/// A target that loses all its caches once, after so many passes.
fn losing(passes: usize) -> Box<dyn Engine> {
    let lost = forerun_decode::EngineError::Broken { backend: "toy", code: -3 };
    let model = ToyModel { vocab_len: VOCAB, order: 3, seed: 1, spread: 2.0 };
    Box::new(ToyEngine::new(model, 512).slots(3).failing(passes, lost))
}

#[test]
fn conversations_go_on_as_ever_after_the_caches_were_lost() {
    // The first turns of two conversations take ten passes each; a third meets the failure.
    let server = Running::run(worker_of(losing(20), false, 8));
    let turns = [("abc".repeat(10), "ab"), ("cab".repeat(10), "e")].map(|(prompt, next)| {
        let said = server.text(&prompt, 10, &[]).text;
        (format!("{prompt}{said}{next}"), format!("{prompt}{}{next}", &said[..4]))
    });
    let failed = server.text("eeee", 10, &[]);
    assert!(matches!(failed.failure, Some(Failure::Decode(_))), "{failed:?}");
    for prompt in [&turns[0].0, &turns[1].1] {
        let next = server.text(prompt, 20, &[]);
        assert_eq!((next.failure, next.stats.cached), (None, 0));
        let fresh = Running::start(false);
        assert_eq!(next.text, fresh.text(prompt, 20, &[]).text);
        fresh.stop();
    }
    server.stop();
}

#[test]
fn sequences_in_one_round_go_on_as_ever_after_the_caches_were_lost() {
    let fresh = Running::start(false);
    let prompts = ["abc".repeat(20), "cab".repeat(20), "eeee".to_owned()];
    let expected = prompts.each_ref().map(|prompt| fresh.text(prompt, 40, &[]).text);
    fresh.stop();
    for passes in 1..20 {
        let server = Running::run(worker_of(losing(passes), false, 8));
        let sent = prompts.each_ref().map(|prompt| {
            let (request, events) = request(prompt, 40, &[0]);
            server.send(request);
            events
        });
        for (done, expected) in sent.map(done).iter().zip(&expected) {
            // A sequence that is alone in the failing round fails.
            let failed = matches!(done.failure, Some(Failure::Decode(_)));
            assert!(failed || done.text == *expected, "after {passes} passes: {done:?}");
        }
        server.stop();
    }
}

/// Keeps what it was told slots hold.
struct Told(Arc<std::sync::Mutex<[usize; 3]>>);

impl CacheWatch for Told {
    fn holds(&mut self, slot: Slot, tokens: &[Token]) {
        self.0.lock().unwrap()[slot.0 as usize] = tokens.len();
    }
}

#[test]
fn a_watch_is_told_that_idle_slots_hold_nothing_any_more() {
    let (worker, _requests, _) = worker_of(losing(8), false, 8);
    let told = Arc::default();
    let mut worker = worker.watched(Some(Box::new(Told(Arc::clone(&told)))));
    let mut text = |prompt: &str| {
        let (request, events) = request(prompt, 5, &[]);
        worker.wait(vec![request]);
        worker.admit();
        while !worker.active.is_empty() {
            worker.round();
            worker.report_caches();
        }
        done(events)
    };
    assert_eq!(text("abc").failure, None);
    assert_eq!(told.lock().unwrap().iter().max(), Some(&7));
    assert!(text("dddd").failure.is_some());
    assert_eq!(*told.lock().unwrap(), [0; 3]);
}

/// One turn of the engine's thread.
fn step(worker: &mut Worker) {
    worker.schedule();
    worker.round();
}
