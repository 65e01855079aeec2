//! Every exported metric, once. Names are vLLM's if it has the metric; our own begin with `forerun:`.

use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use forerun_decode::{Commit, Finish, Load, LossyMode, Spending, Times};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use crate::event::{SequenceStats, finish_reason};

/// The block size gateways assume when they compare prefixes. Ours are compared token by token.
const BLOCK: usize = 16;

/// How fast the measured speedup forgets: some fifty rounds count.
const FORGET: f64 = 0.98;

type Seconds = Counter<f64, AtomicU64>;
type Level = Gauge<f64, AtomicU64>;

/// A label of one name.
macro_rules! label {
    ($name:ident, $field:ident) => {
        #[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
        struct $name {
            $field: String,
        }
    };
}

label!(Reason, reason);
label!(FinishedReason, finished_reason);
label!(At, position);
label!(PartOf, part);
label!(Mode, mode);

/// Why nothing was drafted in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Skipped {
    /// The request said so.
    Requested,
    /// The server has no drafter the request may use.
    NoDrafter,
    /// The first token does not wait for a drafter.
    FirstToken,
    /// It would be slower.
    DoesNotPay,
    /// The drafters had nothing to propose.
    NothingToSay,
    /// A drafter failed.
    DrafterFailed,
    /// The sequence is at its end.
    NoRoom,
    /// The masks of its constraint take too long.
    SlowMasks,
}

impl Skipped {
    fn name(self) -> &'static str {
        match self {
            Self::Requested => "requested",
            Self::NoDrafter => "no_drafter",
            Self::FirstToken => "first_token",
            Self::DoesNotPay => "does_not_pay",
            Self::NothingToSay => "nothing_to_say",
            Self::DrafterFailed => "drafter_failed",
            Self::NoRoom => "no_room",
            Self::SlowMasks => "slow_masks",
        }
    }
}

/// Why a prompt was not recorded by a server that records prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unrecorded {
    /// The request said so.
    OptedOut,
    /// No text is tokenized to its tokens.
    NoText,
    /// Too many wait to be written.
    QueueFull,
    /// The file is full, or could not be written.
    Stopped,
}

impl Unrecorded {
    fn name(self) -> &'static str {
        match self {
            Self::OptedOut => "opted_out",
            Self::NoText => "no_text",
            Self::QueueFull => "queue_full",
            Self::Stopped => "stopped",
        }
    }
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    running: Gauge,
    waiting: Gauge,
    cache: Level,
    /// Tokens in it; the same in another unit, so not registered.
    held: Gauge,
    first_token: Histogram,
    between_tokens: Histogram,
    per_token: Histogram,
    whole: Histogram,
    prompt_tokens: Counter,
    cache_queries: Counter,
    cache_hits: Counter,
    generation_tokens: Counter,
    preemptions: Counter,
    success: Family<FinishedReason, Counter>,
    failed: Counter,
    refused: Family<Reason, Counter>,
    form_queries: Counter,
    form_hits: Counter,
    form_seconds: Histogram,
    recorded: Counter,
    unrecorded: Family<Reason, Counter>,
    drafts: Counter,
    draft_tokens: Counter,
    accepted_tokens: Counter,
    accepted_at: Family<At, Counter>,
    seconds: Family<PartOf, Seconds>,
    skipped: Family<Reason, Counter>,
    stopped: Counter,
    speedup: Level,
    lossy_spend: Family<Mode, Seconds>,
    lossy_tokens: Family<Mode, Counter>,
    lossy_forgiven: Family<Mode, Counter>,
    /// Seconds plain decoding would have taken, and those that were taken, of late.
    recent: std::sync::Mutex<Recent>,
}

/// What the speedup and the rate are made of.
#[derive(Debug, Default)]
struct Recent {
    plain: f64,
    spent: f64,
    committed: f64,
    /// Tokens and seconds of rounds, of late.
    tokens: f64,
    seconds: f64,
}

/// What a gateway balances by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Levels {
    /// Sequences being decoded.
    pub(crate) running: i64,
    /// Sequences that wait.
    pub(crate) waiting: i64,
    /// Tokens of them in the cache, and the share of it they take.
    pub(crate) held: i64,
    pub(crate) cache: f64,
    /// Share of prompt tokens that were cached.
    pub(crate) hit_rate: f64,
    /// Tokens a second, of late.
    pub(crate) tokens_per_second: f64,
}

impl Metrics {
    /// The metrics of a server with this model, whose KV cache holds so many tokens.
    pub(crate) fn new(model: &str, room: usize) -> Self {
        let latencies = || {
            Histogram::new([0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0])
        };
        let long = || Histogram::new([0.1, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0]);
        let mut metrics = Self {
            registry: Registry::with_labels(
                [("model_name".into(), model.to_owned().into())].into_iter(),
            ),
            running: Gauge::default(),
            waiting: Gauge::default(),
            cache: Level::default(),
            held: Gauge::default(),
            first_token: long(),
            between_tokens: latencies(),
            per_token: latencies(),
            whole: long(),
            prompt_tokens: Counter::default(),
            cache_queries: Counter::default(),
            cache_hits: Counter::default(),
            generation_tokens: Counter::default(),
            preemptions: Counter::default(),
            success: Family::default(),
            failed: Counter::default(),
            refused: Family::default(),
            form_queries: Counter::default(),
            form_hits: Counter::default(),
            form_seconds: latencies(),
            recorded: Counter::default(),
            unrecorded: Family::default(),
            drafts: Counter::default(),
            draft_tokens: Counter::default(),
            accepted_tokens: Counter::default(),
            accepted_at: Family::default(),
            seconds: Family::default(),
            skipped: Family::default(),
            stopped: Counter::default(),
            speedup: Level::default(),
            lossy_spend: Family::default(),
            lossy_tokens: Family::default(),
            lossy_forgiven: Family::default(),
            recent: std::sync::Mutex::default(),
        };
        metrics.speedup.set(1.0);
        let blocks =
            [("block_size", BLOCK.to_string()), ("num_gpu_blocks", (room / BLOCK).to_string())];
        metrics.registry.register(
            "vllm:cache_config",
            "The cache, in blocks as gateways count",
            Info::new(blocks.to_vec()),
        );
        metrics.register_requests();
        metrics.register_speculation();
        metrics
    }

    fn register_requests(&mut self) {
        let Self { registry: all, .. } = self;
        all.register("vllm:num_requests_running", "Sequences being decoded", self.running.clone());
        all.register("vllm:num_requests_waiting", "Sequences in the queue", self.waiting.clone());
        all.register(
            "vllm:kv_cache_usage_perc",
            "Share of the KV cache in use, of 1",
            self.cache.clone(),
        );
        all.register(
            "vllm:time_to_first_token_seconds",
            "From a request to its first token",
            self.first_token.clone(),
        );
        all.register(
            "vllm:inter_token_latency_seconds",
            "Between tokens; those of one round share its time",
            self.between_tokens.clone(),
        );
        all.register(
            "vllm:request_time_per_output_token_seconds",
            "After the first token, by request",
            self.per_token.clone(),
        );
        all.register("vllm:e2e_request_latency_seconds", "Whole requests", self.whole.clone());
        all.register("vllm:prompt_tokens", "Prompt tokens", self.prompt_tokens.clone());
        all.register(
            "vllm:prefix_cache_queries",
            "Prompt tokens looked up in the prefix cache",
            self.cache_queries.clone(),
        );
        all.register("vllm:prefix_cache_hits", "Those that were found", self.cache_hits.clone());
        all.register("vllm:generation_tokens", "Tokens decoded", self.generation_tokens.clone());
        all.register(
            "vllm:num_preemptions",
            "Sequences that gave up their slot to another client's",
            self.preemptions.clone(),
        );
        all.register("vllm:request_success", "Requests that finished", self.success.clone());
        all.register("forerun:requests_failed", "Requests that did not", self.failed.clone());
        all.register(
            "forerun:requests_refused",
            "Requests that were not begun, by status",
            self.refused.clone(),
        );
        all.register(
            "forerun:grammar_cache_queries",
            "Schemas and grammars looked up among those compiled",
            self.form_queries.clone(),
        );
        all.register("forerun:grammar_cache_hits", "Those that were found", self.form_hits.clone());
        all.register(
            "forerun:grammar_compilation_seconds",
            "Time to compile a schema or grammar",
            self.form_seconds.clone(),
        );
        all.register("forerun:prompts_recorded", "Prompts written to disk", self.recorded.clone());
        all.register(
            "forerun:prompts_unrecorded",
            "Prompts that were not, though the server records prompts, by reason",
            self.unrecorded.clone(),
        );
    }

    fn register_speculation(&mut self) {
        let Self { registry: all, .. } = self;
        all.register("vllm:spec_decode_num_drafts", "Drafts", self.drafts.clone());
        all.register(
            "vllm:spec_decode_num_draft_tokens",
            "Tokens drafted, on all paths",
            self.draft_tokens.clone(),
        );
        all.register(
            "vllm:spec_decode_num_accepted_tokens",
            "Draft tokens accepted",
            self.accepted_tokens.clone(),
        );
        all.register(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "The same by position in the draft, from 0",
            self.accepted_at.clone(),
        );
        all.register(
            "forerun:round_seconds",
            "Time of rounds: in draft models, the rest of drafting, the target, and verification",
            self.seconds.clone(),
        );
        all.register(
            "forerun:draft_skipped_rounds",
            "Rounds of a sequence in which nothing was drafted, by reason",
            self.skipped.clone(),
        );
        all.register(
            "forerun:gate_stopped_paths",
            "Drafted paths that a gate ended before their length",
            self.stopped.clone(),
        );
        all.register(
            "forerun:speedup_over_plain",
            "Tokens of late over what plain decoding makes in the time, by measured passes",
            self.speedup.clone(),
        );
        all.register(
            "forerun:lossy_spend",
            "Tokens of finished lossy requests that are expected not to be the target's own, by mode",
            self.lossy_spend.clone(),
        );
        all.register(
            "forerun:lossy_tokens",
            "Tokens of finished lossy requests, by mode",
            self.lossy_tokens.clone(),
        );
        all.register(
            "forerun:lossy_forgiven_tokens",
            "Of these, tokens that are certainly not the target's own",
            self.lossy_forgiven.clone(),
        );
    }

    /// The text that Prometheus reads.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)
            .expect("a string takes all that is written");
        text
    }

    /// A sequence was put into the queue.
    pub(crate) fn queued(&self) {
        self.waiting.inc();
    }

    /// A sequence left it.
    pub(crate) fn left_queue(&self) {
        self.waiting.dec();
    }

    /// A sequence was preempted and waits for a slot.
    pub(crate) fn preempted(&self) {
        self.preemptions.inc();
        self.queued();
    }

    /// A request was refused.
    pub(crate) fn refused(&self, status: u16) {
        self.refused.get_or_create(&Reason { reason: status.to_string() }).inc();
    }

    /// A prompt was recorded.
    pub(crate) fn recorded_prompt(&self) {
        self.recorded.inc();
    }

    /// A prompt was not recorded, though others are.
    pub(crate) fn left_prompt_out(&self, reason: Unrecorded) {
        self.unrecorded.get_or_create(&Reason { reason: reason.name().to_owned() }).inc();
    }

    /// A form was looked up among those compiled.
    pub(crate) fn looked_up_form(&self, found: bool) {
        self.form_queries.inc();
        self.form_hits.inc_by(u64::from(found));
    }

    /// A form was compiled, or refused.
    pub(crate) fn compiled_form(&self, took: Duration) {
        self.form_seconds.observe(took.as_secs_f64());
    }

    /// How many sequences are being decoded, and how many tokens of the KV cache they use, of how
    /// many.
    pub(crate) fn show(&self, running: usize, (held, room): (usize, usize)) {
        let level = |count| i64::try_from(count).unwrap_or(i64::MAX);
        self.running.set(level(running));
        self.held.set(level(held));
        self.cache.set(held as f64 / room as f64);
    }

    /// A prompt of this many tokens was begun, so many of which were cached.
    pub(crate) fn prompt(&self, len: usize, cached: usize) {
        self.prompt_tokens.inc_by(len as u64);
        self.cache_queries.inc_by(len as u64);
        self.cache_hits.inc_by(cached as u64);
    }

    /// A sequence's first token came.
    pub(crate) fn first_token(&self, after: Duration) {
        self.first_token.observe(after.as_secs_f64());
    }

    /// Further tokens came together.
    pub(crate) fn tokens(&self, after: Duration, count: usize) {
        let each = after.as_secs_f64() / count as f64;
        (0..count).for_each(|_| self.between_tokens.observe(each));
    }

    /// Tokens were decoded.
    pub(crate) fn generated(&self, count: usize) {
        self.generation_tokens.inc_by(count as u64);
        let mut recent = self.recent();
        recent.committed += count as f64;
        recent.tokens += count as f64;
    }

    /// A sequence ended: finished, or without a finish reason if it failed or was cancelled.
    pub(crate) fn ended(&self, stats: &SequenceStats, arrived: Instant, finish: Option<Finish>) {
        let Some(finish) = finish else {
            self.failed.inc();
            return;
        };
        let reason = finish_reason(finish).to_owned();
        self.success.get_or_create(&FinishedReason { finished_reason: reason }).inc();
        self.whole.observe(arrived.elapsed().as_secs_f64());
        let rounds = &stats.rounds;
        if rounds.committed > 0 {
            self.per_token.observe(rounds.time.as_secs_f64() / rounds.committed as f64);
        }
    }

    /// What a request spent of a lossy mode's promise.
    pub(crate) fn spent(&self, mode: LossyMode, spending: &Spending) {
        let mode = Mode { mode: mode.name().to_owned() };
        self.lossy_spend.get_or_create(&mode).inc_by(spending.sum);
        self.lossy_tokens.get_or_create(&mode).inc_by(spending.tokens);
        self.lossy_forgiven.get_or_create(&mode).inc_by(spending.forgiven.len() as u64);
    }

    /// A round took so many seconds, in these parts.
    pub(crate) fn round(&self, times: &Times, seconds: f64) {
        let mut recent = self.recent();
        recent.tokens *= FORGET;
        recent.seconds = FORGET * recent.seconds + seconds;
        drop(recent);
        let parts = [
            ("draft_pass", times.draft_pass),
            ("draft", times.draft),
            ("target", times.target),
            ("verify", times.verify),
        ];
        for (part, time) in parts {
            let of = PartOf { part: part.to_owned() };
            self.seconds.get_or_create(&of).inc_by(time.as_secs_f64());
        }
    }

    /// What was drafted for a sequence in a round, or why nothing was.
    pub(crate) fn drafted(&self, commit: &Commit, skipped: Option<Skipped>) {
        if let Some(reason) = skipped {
            self.skipped.get_or_create(&Reason { reason: reason.name().to_owned() }).inc();
        }
        self.stopped.inc_by(commit.stopped as u64);
        if commit.drafted == 0 {
            return;
        }
        self.drafts.inc();
        self.draft_tokens.inc_by(commit.drafted as u64);
        self.accepted_tokens.inc_by(commit.accepted as u64);
        for position in 0..commit.accepted {
            self.accepted_at.get_or_create(&At { position: position.to_string() }).inc();
        }
    }

    /// A round took so many seconds; a plain one would have taken `plain`.
    pub(crate) fn speed(&self, plain: f64, seconds: f64, load: Load) {
        let mut recent = self.recent();
        // Prefill makes no tokens, and plain decoding would need it too.
        let sequences = (1 + load.sequences) as f64;
        if load.tokens == 0 {
            let committed = std::mem::take(&mut recent.committed);
            recent.plain = FORGET * recent.plain + plain * committed / sequences;
            recent.spent = FORGET * recent.spent + seconds;
            if recent.spent > 0.0 {
                self.speedup.set(recent.plain / recent.spent);
            }
        }
        recent.committed = 0.0;
    }

    /// What a gateway balances by.
    pub(crate) fn levels(&self) -> Levels {
        let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        let (hits, queries) = (self.cache_hits.get() as f64, self.cache_queries.get() as f64);
        let (running, recent) = (self.running.get(), self.recent());
        Levels {
            running,
            waiting: self.waiting.get(),
            held: self.held.get(),
            cache: self.cache.get(),
            hit_rate: share(hits, queries),
            tokens_per_second: match running {
                0 => 0.0,
                _ => share(recent.tokens, recent.seconds),
            },
        }
    }

    fn recent(&self) -> std::sync::MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
