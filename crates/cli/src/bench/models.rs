//! Texts by models of our own: target and all drafters in one decoder, settings taking turns.
//!
//! Decoding is what is compared, so target and drafters have read the prompt before time counts; what
//! that takes is reported apart. The cached prompt is shared by all settings. Drafters are made to
//! forget each text before the next: none drafts what it has seen another setting write.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, bail};
use forerun_decode::{
    Arm, Ask, Controller, CostCurve, Costs, Decoder, Drafter, Drafts, Engine, Generation, Load,
    NgramDrafter, Pass, Plan, RuleChoice, Sampling, Sequence, Special, Stats, StopStrings,
    SuffixDrafter, Token, Tokenizer,
};
use forerun_llama::{EngineOptions, GpuLayers, LoadMode, Model};
use forerun_verify::{Philox, Random, Scheme};

use super::plan::{Drafting, Ended, Kind, turns};
use super::record::{Config, EngineRecord, LeftOut, Measure, PositionRecord, Setting};
use super::report::Curve;
use super::session::{Session, Source};
use crate::flags::{ContextLen, DraftModelConfig, ModelConfig, SamplingConfig};
use crate::interrupt::Interrupt;
use crate::load::{self, MEASURE, SLOT};
use crate::prompts::{self, Prompt};
use crate::terminal::Screen;

/// Tokens of a text that nobody counts, by each setting, before anything is measured.
const WARM_UP_LEN: usize = 16;

/// Contexts are made in steps of so many tokens.
const CONTEXT_STEP: usize = 256;

/// Which models, and what they may draft.
pub(super) struct Wanted<'a> {
    /// The target.
    pub(super) target: &'a ModelConfig,
    /// How much context it gets.
    pub(super) context: ContextLen,
    /// The files of draft models, in the order of their names.
    pub(super) files: &'a [PathBuf],
    /// All drafters, draft models first.
    pub(super) drafters: &'a [Drafting],
    /// Most paths of a draft.
    pub(super) paths: usize,
    /// Tokens of a text.
    pub(super) text_len: usize,
}

/// Models that are loaded, and the prompts they can read.
pub(super) struct Loaded {
    decoder: Decoder,
    model: Model,
    tokens: Vec<Vec<Token>>,
    drafters: Vec<Drafting>,
    /// How they are run.
    pub(super) engine: EngineRecord,
    /// The prompts that fit.
    pub(super) prompts: Vec<Prompt>,
    /// Those that do not.
    pub(super) left_out: Vec<LeftOut>,
}

/// Loads target and drafters, with as much context as the prompts need.
///
/// # Errors
/// Where a file is not what it should be, or no prompt fits.
pub(super) fn load(
    wanted: &Wanted<'_>,
    prompts: Vec<Prompt>,
    interrupt: &Interrupt,
    screen: &mut Screen,
) -> anyhow::Result<Loaded> {
    let model = load::load_model("target", wanted.target, interrupt, &screen.progress())?;
    let most = load::context_len(wanted.context, &model)
        .map_or(model.context_len(), |len| len.get() as usize);
    let read = read(prompts, &model, most.saturating_sub(wanted.text_len))?;
    let longest = read.tokens.iter().map(Vec::len).max();
    let longest = longest.with_context(|| {
        format!("no prompt and {} more tokens fit a context of {most}", wanted.text_len)
    })?;
    // Drafts may reach beyond the last token that is kept.
    let needed = (longest + wanted.text_len + 1).next_multiple_of(CONTEXT_STEP);
    let count = |count: usize| u32::try_from(count).ok().and_then(NonZeroU32::new);
    let paths = count(wanted.paths).unwrap_or(NonZeroU32::MIN);
    let options = EngineOptions { paths, ..wanted.target.engine.clone() };
    let own = EngineOptions { context_len: count(needed.min(most)), ..options.clone() };
    let engine = load::engine("target", &model, own, interrupt)?;
    let context_len = engine.context_len();
    let mut drafters: Vec<Box<dyn Drafter>> = Vec::new();
    for path in wanted.files {
        let config =
            ModelConfig { path: path.clone(), engine: options.clone(), ..wanted.target.clone() };
        let draft = DraftModelConfig { model: config, confidence_min: 0.0 };
        let room = load::Room { context_len, slots: NonZeroU32::MIN };
        let (drafter, _) = load::draft_model(&draft, &model, &room, interrupt, screen)?;
        drafters.push(Box::new(drafter));
    }
    for drafter in wanted.drafters {
        match drafter.kind {
            Kind::Model => {}
            Kind::Ngram => drafters.push(Box::new(NgramDrafter::default())),
            Kind::Suffix => drafters.push(Box::new(SuffixDrafter::default())),
        }
    }
    Ok(Loaded {
        decoder: Decoder::new(Box::new(engine), drafters)?,
        model,
        tokens: read.tokens,
        drafters: wanted.drafters.to_vec(),
        engine: record(wanted.target, &options, context_len),
        prompts: read.prompts,
        left_out: read.left_out,
    })
}

/// Prompts and their tokens.
struct Read {
    prompts: Vec<Prompt>,
    tokens: Vec<Vec<Token>>,
    left_out: Vec<LeftOut>,
}

/// Prompts as the model reads them; those that are too long are left out.
fn read(prompts: Vec<Prompt>, model: &Model, len_max: usize) -> anyhow::Result<Read> {
    let texts = prompts::in_chat_format(&prompts, model)?;
    let mut read = Read { prompts: Vec::new(), tokens: Vec::new(), left_out: Vec::new() };
    for (prompt, text) in prompts.into_iter().zip(texts) {
        let tokens = model.vocab().tokenize(&text, Special::Parse).context("prompt")?;
        if tokens.is_empty() || tokens.len() > len_max {
            let what = format!("prompt {} of {}", prompt.id, prompt.task);
            let reason = format!("{} tokens do not fit the context", tokens.len());
            read.left_out.push(LeftOut { what, reason });
            continue;
        }
        read.prompts.push(prompt);
        read.tokens.push(tokens);
    }
    Ok(read)
}

fn record(target: &ModelConfig, options: &EngineOptions, context_len: usize) -> EngineRecord {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    let all = u32::try_from(all).unwrap_or(u32::MAX);
    let threads = options.threads.map_or(all, NonZeroU32::get);
    let gpu_layers = match target.gpu_layers {
        GpuLayers::All => "all".to_owned(),
        GpuLayers::Last(count) => count.to_string(),
    };
    let load_mode = match target.load_mode {
        LoadMode::Map => "map",
        LoadMode::MapAndLock => "map-and-lock",
        LoadMode::Read => "read",
    };
    EngineRecord {
        context_len,
        threads,
        threads_batch: options.threads_batch.map_or(threads, NonZeroU32::get),
        batch_len: options.batch_len.get(),
        pass_len: options.pass_len.get(),
        paths: options.paths.get(),
        cache_keys: options.cache_keys.name().to_owned(),
        cache_values: options.cache_values.map(|kind| kind.name().to_owned()),
        flash_attention: options.flash_attention.name().to_owned(),
        gpu_layers,
        load_mode: load_mode.to_owned(),
    }
}

/// A setting as the decoder wants it.
struct Way {
    drafters: Vec<usize>,
    rule: RuleChoice,
    scheme: Scheme,
    width: usize,
    len: usize,
    adaptive: bool,
}

impl Way {
    fn new(setting: &Setting, drafters: &[Drafting]) -> anyhow::Result<Self> {
        let index = |name: &String| drafters.iter().position(|drafter| drafter.name == *name);
        let named: Option<Vec<usize>> = setting.drafters.iter().map(index).collect();
        let named = named.context("a drafter nobody knows")?;
        let rule: RuleChoice = setting.rule.as_deref().unwrap_or("block").parse()?;
        let scheme = rule.scheme(&Drafts {
            drafters: named.len(),
            has_model: named.iter().any(|index| drafters[*index].kind == Kind::Model),
            may_stop: false,
            width: setting.paths,
            paths: None,
        })?;
        let (width, len, adaptive) = (setting.paths, setting.length, setting.adaptive);
        Ok(Self { drafters: named, rule, scheme, width, len, adaptive })
    }

    fn plan(&self, seed: u64) -> Plan {
        let verification = self.rule.verification(seed);
        // A controller names the drafters itself, round by round.
        let drafters = if self.adaptive { Vec::new() } else { self.drafters.clone() };
        Plan::drafted(drafters, self.len, verification).wide(self.width).drawn(self.scheme)
    }

    fn controller(&self, costs: &Costs) -> Option<Controller> {
        let arm = |width| Arm { drafters: self.drafters.clone(), width };
        let arms = || (1..=self.width).map(arm).collect();
        self.adaptive.then(|| Controller::new(costs.clone(), arms(), self.len))
    }
}

/// What is decoded once.
struct Text<'a> {
    prompt: usize,
    tokens: &'a [Token],
    temperature: usize,
    setting: usize,
    seed: u64,
    len: usize,
}

/// Decodes texts, and keeps what passes cost current.
pub(super) struct Models<'a> {
    decoder: Decoder,
    costs: Costs,
    vocab: Arc<dyn Tokenizer>,
    tokens: Arc<[Vec<Token>]>,
    drafters: Vec<Drafting>,
    ways: Vec<Way>,
    /// How tokens are drawn, by temperature.
    samplings: Vec<Sampling>,
    /// For each setting and temperature that has one.
    controllers: Vec<Option<Controller>>,
    sequence: Option<Sequence>,
    interrupt: &'a Interrupt,
}

impl<'a> Models<'a> {
    /// Measures what passes cost, and has every setting write a text that nobody counts.
    ///
    /// # Errors
    /// Where a pass fails.
    pub(super) fn start(
        mut loaded: Loaded,
        config: &Config,
        interrupt: &'a Interrupt,
    ) -> anyhow::Result<Self> {
        let models = u32::try_from(config.drafters.len()).unwrap_or(0) + 1;
        let costs = loaded.decoder.measure(models * MEASURE);
        let costs = costs.context("measuring what passes cost")?;
        let ways: Vec<Way> = config
            .settings
            .iter()
            .map(|setting| Way::new(setting, &loaded.drafters))
            .collect::<anyhow::Result<_>>()?;
        let samplings: Vec<Sampling> = config
            .temperatures
            .iter()
            .map(|temperature| sampling(config, *temperature, &loaded.model))
            .collect::<anyhow::Result<_>>()?;
        let each = ways.iter().flat_map(|way| samplings.iter().map(|_| way.controller(&costs)));
        let mut models = Self {
            controllers: each.collect(),
            decoder: loaded.decoder,
            costs,
            vocab: Arc::new(loaded.model.vocab().clone()),
            tokens: loaded.tokens.into(),
            drafters: loaded.drafters,
            ways,
            samplings,
            sequence: None,
            interrupt,
        };
        models.warm_up(config)?;
        Ok(models)
    }

    fn warm_up(&mut self, config: &Config) -> anyhow::Result<()> {
        let (all, len) = (Arc::clone(&self.tokens), config.text_len.min(WARM_UP_LEN));
        let Some(tokens) = all.first() else { return Ok(()) };
        for setting in 0..self.ways.len() {
            let seed = config.seed;
            self.write(&Text { prompt: 0, tokens, temperature: 0, setting, seed, len })?;
        }
        Ok(())
    }

    /// What passes cost, as it is known now.
    pub(super) fn curves(&self) -> Vec<Curve> {
        let curve = |model: &str, curve: &CostCurve| Curve {
            model: model.to_owned(),
            points: curve.points().to_vec(),
        };
        let drafters = self.drafters.iter().zip(&self.costs.drafters);
        let drafters = drafters.filter_map(|(it, costs)| Some(curve(&it.name, costs.as_ref()?)));
        std::iter::once(curve("target", &self.costs.target)).chain(drafters).collect()
    }

    /// Writes a text and says what it took.
    fn write(&mut self, text: &Text<'_>) -> anyhow::Result<Measure> {
        let (mut draft_read, mut draft_read_s) = (0, 0.0);
        for drafter in self.ways[text.setting].drafters.clone() {
            let vocab_len = self.vocab.vocab_len();
            for pass in ready(&mut *self.decoder.drafters()[drafter], text.tokens, vocab_len)? {
                draft_read += pass.tokens as u64;
                draft_read_s += pass.time.as_secs_f64();
            }
        }
        let mut generation = self.begin(text);
        let mut draft_passes = 0;
        while generation.finish().is_none() {
            anyhow::ensure!(!self.interrupt.is_pressed(), "interrupted");
            draft_passes += self.round(text, &mut generation)?;
        }
        let mut hasher = DefaultHasher::new();
        generation.sequence().output().iter().for_each(|token| token.0.hash(&mut hasher));
        let measure = Measure {
            prompt: text.prompt,
            setting: text.setting,
            temperature: self.samplings[text.temperature].temperature,
            prompt_tokens: text.tokens.len() as u64,
            draft_passes,
            draft_read,
            draft_read_s,
            text: Some(format!("{:016x}", hasher.finish())),
            ..of_stats(generation.stats())
        };
        self.sequence = Some(generation.into_sequence());
        Ok(measure)
    }

    fn begin(&mut self, text: &Text<'_>) -> Generation {
        let fresh = || Sequence::new(SLOT, Sampling::unshaped(), Plan::plain());
        let mut sequence = self.sequence.take().unwrap_or_else(fresh);
        sequence.sampling = self.samplings[text.temperature].clone();
        sequence.plan = self.ways[text.setting].plan(text.seed);
        sequence.begin(text.tokens.to_vec(), text.len);
        let stops = StopStrings::new(Vec::<String>::new()).expect("none is fine");
        Generation::new(sequence, Arc::clone(&self.vocab), &stops, text.seed)
    }

    /// One round; gives how many passes drafting took.
    fn round(&mut self, text: &Text<'_>, generation: &mut Generation) -> anyhow::Result<u64> {
        let place = text.setting * self.samplings.len() + text.temperature;
        let mut controller = self.controllers[place].as_mut();
        if let Some(controller) = &mut controller {
            generation.choose(&mut self.decoder, controller, Load::default());
        }
        let started = Instant::now();
        let mut round = self.decoder.round(&mut [generation.turn()])?;
        let seconds = started.elapsed().as_secs_f64();
        let commit = round.commits.pop().expect("one turn, one commit");
        self.costs.observe(&round.passes);
        if let Some(controller) = controller {
            controller.observe(&round.passes);
            generation.learn(controller, &commit, seconds, Load::default());
        }
        let context_len = self.decoder.target().context_len();
        let chunk = generation.committed(commit, round.times, context_len);
        if let Some(dropped) = chunk.dropped.first() {
            bail!("{} cannot draft here: {}", dropped.name, dropped.failure);
        }
        // What drafts for the first token is not in use yet.
        let decoding = generation.stats().rounds > 0;
        Ok(if decoding { round.passes.drafters.len() as u64 } else { 0 })
    }
}

/// The sums of a text's rounds, as files hold them.
fn of_stats(stats: &Stats) -> Measure {
    let position = |it: &forerun_decode::Position| PositionRecord {
        drafted: it.drafted,
        reached: it.reached,
        accepted: it.accepted,
    };
    Measure {
        tokens: stats.committed,
        seconds: stats.time.as_secs_f64(),
        rounds: stats.rounds,
        drafted: stats.drafted,
        accepted: stats.accepted,
        positions: stats.positions.iter().map(position).collect(),
        draft_pass_s: stats.times.draft_pass.as_secs_f64(),
        draft_s: stats.times.draft.as_secs_f64(),
        target_s: stats.times.target.as_secs_f64(),
        verify_s: stats.times.verify.as_secs_f64(),
        prompt_read: stats.prompt_read,
        first_token_s: stats.prompt_time.as_secs_f64(),
        ..Measure::default()
    }
}

/// How tokens are drawn at a temperature. End tokens are forbidden: all texts have one length.
fn sampling(config: &Config, temperature: f32, model: &Model) -> anyhow::Result<Sampling> {
    let unshaped = Sampling::unshaped();
    let sampling = Sampling {
        temperature,
        top_k: config.top_k.map_or(unshaped.top_k, |top_k| top_k as usize),
        top_p: config.top_p.unwrap_or(unshaped.top_p),
        min_p: config.min_p.unwrap_or(unshaped.min_p),
        ..unshaped
    };
    load::sampling(&SamplingConfig { sampling, ignore_end: true, seed: config.seed }, model)
}

/// Has a drafter read a prompt, so that it holds that and nothing of the last text; gives the passes
/// that took.
fn ready(
    drafter: &mut dyn Drafter,
    prompt: &[Token],
    vocab_len: usize,
) -> anyhow::Result<Vec<Pass>> {
    let mut chance = Random(Philox::new(0));
    let sampling = Sampling::greedy();
    let mut ask = Ask::next_token(SLOT, prompt, &sampling, &mut chance, vocab_len);
    drafter.draft(std::slice::from_mut(&mut ask))?;
    match ask.failure {
        Some(failure) => bail!("{} cannot draft here: {failure}", drafter.name()),
        None => Ok(drafter.passes()),
    }
}

impl Source for Models<'_> {
    fn repeat(
        &mut self,
        repeat: usize,
        session: &mut Session<'_>,
    ) -> anyhow::Result<Option<Ended>> {
        let timed = repeat == 0 && session.config.prompts_per_task.is_none();
        let count = match repeat {
            0 => session.config.prompts.len(),
            _ => session.prompts_taken(),
        };
        for prompt in 0..count {
            let begun =
                session.measures.iter().any(|it| it.repeat == repeat && it.prompt == prompt);
            let (spent, elapsed) = (session.spent_s(repeat), session.elapsed_s());
            if timed && !begun && !session.config.stop.room_for_prompt(prompt, spent, elapsed) {
                break;
            }
            if session.is_late() && (repeat, prompt) != (0, 0) {
                return Ok(Some(Ended::Time));
            }
            if let Some(ended) = self.prompt(repeat, prompt, session)? {
                return Ok(Some(ended));
            }
        }
        Ok(None)
    }
}

impl Models<'_> {
    /// One prompt by all settings at all temperatures.
    fn prompt(
        &mut self,
        repeat: usize,
        prompt: usize,
        session: &mut Session<'_>,
    ) -> anyhow::Result<Option<Ended>> {
        let all = Arc::clone(&self.tokens);
        let tokens = &all[prompt];
        let (len, count) = (session.config.text_len, session.config.prompts.len());
        let seed = session.config.seed.wrapping_add((repeat * count + prompt) as u64);
        let texts = self.forecast(repeat, prompt, session);
        for (temperature, degrees) in session.config.temperatures.clone().into_iter().enumerate() {
            for setting in turns(self.ways.len(), repeat + prompt + temperature) {
                let key =
                    Measure { repeat, prompt, setting, temperature: degrees, ..Measure::default() };
                if session.is_done(&key) {
                    continue;
                }
                session.show(repeat, texts);
                match self.write(&Text { prompt, tokens, temperature, setting, seed, len }) {
                    _ if self.interrupt.is_pressed() => return Ok(Some(session.broken_off())),
                    measure => session.add(Measure { repeat, ..measure? })?,
                }
            }
        }
        Ok(None)
    }

    /// How many texts there will be in all, as far as one can tell after so many prompts.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count of prompts or repeats, for a bar"
    )]
    fn forecast(&self, repeat: usize, prompt: usize, session: &Session<'_>) -> usize {
        let (config, stop) = (&session.config, &session.config.stop);
        let each = self.ways.len() * self.samplings.len();
        let mut prompts = if repeat == 0 { config.prompts.len() } else { session.prompts_taken() };
        let mut repeats = stop.repeats;
        let taken = if repeat == 0 { prompt } else { prompts };
        if taken > 0 {
            let seconds = session.spent_s(0) / taken as f64;
            let most =
                |share: f64| (stop.time_limit_s / share / seconds.max(1e-9)).floor() as usize;
            if repeat == 0 && config.prompts_per_task.is_none() {
                prompts = prompts.min(most(stop.repeats.min(2) as f64)).max(prompt + 1);
            }
            repeats = repeats.min(most(prompts as f64)).max(repeat + 1);
        }
        each * prompts * repeats
    }
}
