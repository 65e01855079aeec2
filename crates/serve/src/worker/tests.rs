//! The engine's thread over a toy engine: sequences do not disturb each other, whatever fails. Who is
//! served when is in `turns`; slow masks are in `masks`.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

mod masks;
mod turns;

use forerun_decode::{
    Arm, Constraint, ConstraintError, CostCurve, Costs, Drafter, Engine, ModelDrafter,
    PredictedDrafter, Reading, RuleChoice, Sampling, Special, StopStrings, Token, TokenizeError,
    Tokenizer, ToyEngine, ToyModel,
};

use super::*;
use crate::job::{Cache, Drafting};

const VOCAB: usize = 6;
const END: Token = Token(5);

/// Tokens are the letters a to e, and an end.
pub(crate) struct Letters;

impl Tokenizer for Letters {
    fn vocab_len(&self) -> usize {
        VOCAB
    }
    fn tokenize(&self, text: &str, _: Special) -> Result<Vec<Token>, TokenizeError> {
        Ok(text.bytes().map(|byte| Token(u32::from(byte - b'a'))).collect())
    }
    fn start(&self) -> Option<Token> {
        None
    }
    fn is_end(&self, token: Token) -> bool {
        token == END
    }
    fn bytes(&self, token: Token, out: &mut Vec<u8>) {
        out.push(b'a' + u8::try_from(token.0).unwrap());
    }
}

pub(crate) fn toy(seed: u64, paths_max: usize) -> Box<dyn Engine> {
    let model = ToyModel { vocab_len: VOCAB, order: 3, seed, spread: 2.0 };
    Box::new(ToyEngine::new(model, 512).slots(3).paths(paths_max))
}

/// A worker that nobody runs, and where its jobs would go.
fn worker(adaptive: bool, paths_max: usize) -> (Worker, mpsc::Sender<Vec<Job>>, Arc<Metrics>) {
    worker_of(toy(1, paths_max), adaptive, paths_max)
}

/// A worker with this target.
fn worker_of(
    target: Box<dyn Engine>,
    adaptive: bool,
    paths_max: usize,
) -> (Worker, mpsc::Sender<Vec<Job>>, Arc<Metrics>) {
    let drafter = Box::new(ModelDrafter::new(toy(2, paths_max)));
    let drafters: Vec<Box<dyn Drafter>> = vec![drafter, Box::new(PredictedDrafter::default())];
    let decoder = Decoder::new(target, drafters).unwrap();
    let curve = CostCurve::new([(1, 1e-4), (64, 2e-4)]);
    // Cheap enough to be tried whatever comes of it.
    let cheap = CostCurve::new([(1, 1e-6), (64, 2e-6)]);
    let costs = Costs { target: curve, drafters: vec![Some(cheap), None] };
    let arms = [vec![0], vec![1], vec![0, 1]].map(|drafters| Arm { drafters, width: 1 });
    let controller = adaptive.then(|| Controller::new(costs, arms.to_vec(), 4));
    let metrics = Arc::new(Metrics::new("toy", 1536));
    let (jobs, queue) = mpsc::channel(64);
    (Worker::new(decoder, controller, Arc::clone(&metrics), queue), jobs, metrics)
}

/// A server's thread, and where its jobs go.
struct Running {
    jobs: mpsc::Sender<Vec<Job>>,
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

    fn run((worker, jobs, metrics): (Worker, mpsc::Sender<Vec<Job>>, Arc<Metrics>)) -> Self {
        let abort = worker.abort();
        let thread = std::thread::spawn(move || worker.run());
        Self { jobs, abort, metrics, thread }
    }

    fn send(&self, job: Job) {
        self.metrics.queued();
        self.jobs.blocking_send(vec![job]).unwrap();
    }

    fn stop(self) {
        drop(self.jobs);
        self.thread.join().unwrap();
    }

    /// A text alone.
    fn text(&self, prompt: &str, len: usize, drafters: Vec<usize>) -> Done {
        let (job, events) = job(prompt, len, drafters);
        self.send(job);
        done(events)
    }
}

/// A job whose text depends on its prompt alone, whatever is drafted.
fn job(prompt: &str, len: usize, drafters: Vec<usize>) -> (Job, mpsc::Receiver<Event>) {
    let (events, receiver) = mpsc::channel(1024);
    let rule = RuleChoice::Coupled;
    let plan = Plan::drafted(drafters, 3, rule.verification(7));
    let never = (END, f32::NEG_INFINITY);
    let now = Instant::now();
    let job = Job {
        client: Client::default(),
        cache: Cache { prompt: true, salt: None },
        choice: 0,
        prompt: Letters.tokenize(prompt, Special::AsText).unwrap(),
        output: Vec::new(),
        output_len_max: len,
        sampling: Sampling { logit_bias: vec![never], ..Sampling::unshaped() },
        reading: Reading::new(Arc::new(Letters), &StopStrings::default()),
        seed: 7,
        constraint: None,
        logprobs: None,
        drafting: Drafting { plan, rule, adaptive: true, refused: false },
        prediction: Vec::new(),
        arrived: now,
        deadline: now + Duration::from_secs(60),
        events,
        place: None,
    };
    (job, receiver)
}

/// What came of a text.
#[derive(Debug, Default)]
struct Done {
    text: String,
    finish: Option<Finish>,
    failure: Option<Failure>,
    tally: Tally,
    rounds: usize,
}

fn done(mut events: mpsc::Receiver<Event>) -> Done {
    let mut done = Done::default();
    while let Some(event) = events.blocking_recv() {
        match event {
            Event::Round(progress) => {
                progress.pieces.iter().for_each(|piece| done.text.push_str(&piece.text));
                done.rounds += 1;
                done.finish = progress.finish;
                done.tally = progress.tally;
            }
            Event::Failed(failure) => done.failure = Some(failure),
        }
    }
    done
}

const PROMPTS: [&str; 7] = ["abc", "cab", "eeee", "abca", "d", "bbcc", "edcba"];

#[test]
fn texts_are_the_same_alone_and_beside_others_with_any_drafter_or_none() {
    let alone = Running::start(false);
    let expected: Vec<String> =
        PROMPTS.iter().map(|prompt| alone.text(prompt, 60, vec![]).text).collect();
    alone.stop();
    for adaptive in [false, true] {
        let server = Running::start(adaptive);
        // More texts than slots, of different lengths, drafters and beginnings.
        let sent: Vec<_> = PROMPTS
            .iter()
            .enumerate()
            .map(|(index, prompt)| {
                let drafters = [vec![], vec![0], vec![0, 1]][index % 3].clone();
                let (mut job, events) = job(prompt, 60, drafters);
                job.prediction = Letters.tokenize("abcabcabc", Special::AsText).unwrap();
                server.send(job);
                events
            })
            .collect();
        let texts: Vec<Done> = sent.into_iter().map(done).collect();
        for (text, expected) in texts.iter().zip(&expected) {
            assert_eq!((&text.text, text.finish), (expected, Some(Finish::Length)));
        }
        let accepted = texts.iter().any(|text| text.tally.stats.accepted > 0);
        assert!(accepted || adaptive, "something was drafted");
        server.stop();
    }
}

#[test]
fn a_long_prompt_does_not_hold_up_the_others() {
    let (mut worker, _jobs, _) = worker(false, 8);
    let (short, _short_events) = job("abc", 300, vec![]);
    worker.wait(vec![short]);
    step(&mut worker);
    // Once the short one speaks, the long one comes.
    let (long, long_events) = job(&"abcde".repeat(80), 1, vec![]);
    worker.wait(vec![long]);
    let mut rounds = 0;
    while rounds == 0 || worker.active.len() == 2 {
        step(&mut worker);
        rounds += 1;
    }
    let long = done(long_events);
    assert_eq!(long.finish, Some(Finish::Length));
    let read = usize::try_from(long.tally.stats.prompt_read).unwrap();
    assert_eq!(read + long.tally.cached, 400);
    // 400 tokens in pieces of 32 take 13 rounds, and the other had a token in each.
    assert_eq!(rounds, 13);
    assert_eq!(worker.active[0].generation.sequence().output().len(), 1 + rounds);
}

#[test]
fn what_is_cached_is_not_read_again() {
    let server = Running::start(false);
    let prompt = "abcde".repeat(20);
    assert_eq!(server.text(&prompt, 5, vec![0]).tally.cached, 0);
    // The same slot goes on; then another gets a copy of what they share.
    let longer = format!("{prompt}ab");
    assert_eq!(server.text(&longer, 5, vec![0]).tally.cached, 100);
    let (long, events) = job(&format!("{prompt}ea"), 200, vec![0]);
    server.send(long);
    let beside = server.text(&format!("{prompt}eb"), 5, vec![0]);
    assert!(beside.tally.cached >= 100, "{}", beside.tally.cached);
    assert_eq!(done(events).finish, Some(Finish::Length));
    // Both speak as they would have without a cache.
    let fresh = Running::start(false);
    assert_eq!(beside.text, fresh.text(&format!("{prompt}eb"), 5, vec![]).text);
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
fn one_text_that_fails_leaves_the_others_alone() {
    let alone = Running::start(false);
    let expected = alone.text("abc", 100, vec![]).text;
    alone.stop();
    let server = Running::start(false);
    let (well, events) = job("abc", 100, vec![0]);
    server.send(well);
    let (mut bad, bad_events) = job("cab", 100, vec![0]);
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
        let (job, mut events) = job("abc", 400, vec![0]);
        server.send(job);
        events.blocking_recv().unwrap();
        drop(events);
    }
    let text = server.text("abc", 10, vec![]);
    assert_eq!(text.text.len(), 10);
    let shown = server.metrics.text();
    assert!(shown.contains("vllm:num_requests_waiting{model_name=\"toy\"} 0"), "{shown}");
    server.stop();
}

#[test]
fn what_takes_too_long_or_is_broken_off_says_so() {
    let server = Running::start(false);
    let (mut late, events) = job("abc", 400, vec![]);
    late.deadline = Instant::now();
    server.send(late);
    assert_eq!(done(events).failure, Some(Failure::Late));
    let (job, mut events) = job("abc", usize::MAX, vec![]);
    server.send(job);
    events.blocking_recv().unwrap();
    server.abort.store(true, Ordering::Relaxed);
    let stopped = done(events);
    // The context may have been full before the flag was seen.
    assert!(stopped.failure == Some(Failure::Stopping) || stopped.finish == Some(Finish::Context));
    server.stop();
}

#[test]
fn predictions_are_counted() {
    let server = Running::start(false);
    let expected = server.text("abc", 40, vec![]).text;
    let (mut predicted, events) = job("abc", 40, vec![1]);
    predicted.drafting.adaptive = false;
    predicted.prediction = Letters.tokenize(&expected, Special::AsText).unwrap();
    server.send(predicted);
    let predicted = done(events);
    assert_eq!(predicted.text, expected);
    // The first token is not drafted, and of each round one token is the target's own.
    assert!(predicted.tally.predicted >= 27, "{}", predicted.tally.predicted);
    assert!(predicted.rounds < 15, "{}", predicted.rounds);
    server.stop();
}

#[test]
fn texts_that_still_read_count_as_load() {
    let (mut worker, _jobs, _) = worker(true, 1);
    for prompt in ["abc", &"abcde".repeat(40)] {
        let (job, _events) = job(prompt, 10, vec![0]);
        worker.wait(vec![job]);
    }
    worker.admit();
    // To whom it is one that speaks, the other is a text beside it that soon will too.
    assert_eq!(worker.share_out().sequences, 1);
    assert_eq!(worker.active[0].part, Part::Speaks);
    assert!(matches!(worker.active[1].part, Part::Reads(_)));
}

#[test]
fn with_cells_of_their_own_nobody_drafts_unless_all_do() {
    for (paths_max, beside) in [(1, 0), (8, 1)] {
        let (mut worker, _jobs, _) = worker(true, paths_max);
        let (plain, _plain_events) = job("abc", 480, vec![]);
        let (drafted, events) = job("cab", 60, vec![0]);
        worker.wait(vec![plain, drafted]);
        step(&mut worker);
        while worker.active.len() == 2 {
            step(&mut worker);
        }
        let drafted = done(events).tally.stats.drafted;
        assert_eq!(drafted.min(1), beside, "{drafted} tokens drafted where {paths_max} paths fit");
    }
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
        let said = server.text(&prompt, 10, vec![]).text;
        (format!("{prompt}{said}{next}"), format!("{prompt}{}{next}", &said[..4]))
    });
    let failed = server.text("eeee", 10, vec![]);
    assert!(matches!(failed.failure, Some(Failure::Decode(_))), "{failed:?}");
    for prompt in [&turns[0].0, &turns[1].1] {
        let next = server.text(prompt, 20, vec![]);
        assert_eq!((next.failure, next.tally.cached), (None, 0));
        let fresh = Running::start(false);
        assert_eq!(next.text, fresh.text(prompt, 20, vec![]).text);
        fresh.stop();
    }
    server.stop();
}

#[test]
fn texts_in_one_round_go_on_as_ever_after_the_caches_were_lost() {
    let fresh = Running::start(false);
    let prompts = ["abc".repeat(20), "cab".repeat(20), "eeee".to_owned()];
    let expected = prompts.each_ref().map(|prompt| fresh.text(prompt, 40, vec![]).text);
    fresh.stop();
    for passes in 1..20 {
        let server = Running::run(worker_of(losing(passes), false, 8));
        let sent = prompts.each_ref().map(|prompt| {
            let (job, events) = job(prompt, 40, vec![0]);
            server.send(job);
            events
        });
        for (done, expected) in sent.map(done).iter().zip(&expected) {
            // Who is alone in the failing round is told of it.
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
    let (worker, _jobs, _) = worker_of(losing(8), false, 8);
    let told = Arc::default();
    let mut worker = worker.watched(Some(Box::new(Told(Arc::clone(&told)))));
    let mut text = |prompt: &str| {
        let (job, events) = job(prompt, 5, vec![]);
        worker.wait(vec![job]);
        worker.admit();
        while !worker.active.is_empty() {
            worker.round();
            worker.tell();
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
    worker.drop_the_late();
    worker.admit();
    worker.round();
}
