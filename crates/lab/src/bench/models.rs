//! Outputs by models of our own: target and all drafters in one decoder, settings taking turns.
//!
//! Decoding is what is compared, so target and drafters have read the prompt before time counts; what
//! that takes is reported apart. The cached prompt is shared by all settings. Drafters are made to
//! forget each text before the next: none drafts what it has seen another setting write. Only one that
//! is to learn from earlier outputs remembers them, and never another one of the same prompt.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Instant;

use forerun_decode::{
    Arm, Controller, CostCurve, Costs, Decoder, DraftFailure, DraftPolicy, DraftRequest, Drafter,
    DrafterId, DrafterKind, Drafts, Generation, History, Limits, Load, Pass, RuleChoice, Sampling,
    Sequence, Special, Stats, StopStrings, Tenant, Token, Tokenizer,
};
use forerun_verify::{Philox, Random, Scheme};

use super::lossy::LossyWay;
use super::plan::{Drafting, Ended, ORACLE, PREDICTION, SHARED_SUFFIX, turns};
use super::record::{Config, LeftOut, Measure, PositionRecord, Setting};
use super::report::Curve;
use super::session::{Session, Source};
use crate::cancellation::Cancellation;
use crate::error::{Error, Result};
use crate::machine::EngineRecord;
use crate::models::{EngineShape, MEASURE, Models, Parts, SLOT, Target};
use crate::prompts::{self, Prompt};
use crate::sampling::SamplingConfig;

/// Tokens of a text that nobody counts, by each setting, before anything is measured.
const WARM_UP_LEN: usize = 16;

/// Contexts are made in steps of so many tokens.
const CONTEXT_STEP: usize = 256;

/// What is to be decoded with the models.
pub(super) struct Wanted<'a> {
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
    vocab: Arc<dyn Tokenizer>,
    tokens: Vec<PromptTokens>,
    drafters: Vec<Drafting>,
    /// How they are run.
    pub(super) engine: EngineRecord,
    /// The prompts that fit.
    pub(super) prompts: Vec<Prompt>,
    /// Those that do not.
    pub(super) left_out: Vec<LeftOut>,
}

/// A prompt as the model reads it.
struct PromptTokens {
    prompt: Vec<Token>,
    /// What its output is an edited version of, if it is one.
    original: Option<Vec<Token>>,
    /// See [`Prompt::ends`].
    ends: bool,
}

/// Loads target and drafters, with as much context as the prompts need.
///
/// # Errors
/// Where a file is not what it should be, or no prompt fits.
pub(super) fn load(
    wanted: &Wanted<'_>,
    prompts: Vec<Prompt>,
    models: &mut dyn Models,
) -> Result<Loaded> {
    let target = models.target()?;
    let most = target.context_len;
    let read = read(prompts, &target, most.saturating_sub(wanted.text_len))?;
    let longest = read.tokens.iter().map(|it| it.prompt.len()).max();
    let longest = longest.ok_or_else(|| {
        let len = wanted.text_len;
        Error::refused(format!("no prompt and {len} more tokens fit a context of {most}"))
    })?;
    // Drafts may reach beyond the last token that is kept.
    let needed = (longest + wanted.text_len + 1).next_multiple_of(CONTEXT_STEP);
    let paths = u32::try_from(wanted.paths).ok().and_then(NonZeroU32::new);
    let (slots, paths) = (NonZeroU32::MIN, paths.unwrap_or(NonZeroU32::MIN));
    let shape = EngineShape { context_len: Some(needed.min(most)), slots, paths };
    let Parts { engine, drafters } = models.parts(&shape, paths)?;
    let context_len = engine.context_len();
    Ok(Loaded {
        decoder: Decoder::new(engine, drafters)?,
        vocab: target.vocab,
        tokens: read.tokens,
        drafters: wanted.drafters.to_vec(),
        engine: models.record(context_len, paths.get()),
        prompts: read.prompts,
        left_out: read.left_out,
    })
}

/// Prompts and their tokens.
struct Read {
    prompts: Vec<Prompt>,
    tokens: Vec<PromptTokens>,
    left_out: Vec<LeftOut>,
}

/// Prompts as the model reads them; those that are too long are left out.
fn read(prompts: Vec<Prompt>, target: &Target, len_max: usize) -> Result<Read> {
    let texts = prompts::in_chat_format(&prompts, target.chat_template.as_deref())?;
    let mut read = Read { prompts: Vec::new(), tokens: Vec::new(), left_out: Vec::new() };
    for (prompt, text) in prompts.into_iter().zip(texts) {
        let tokenized =
            |text: &str, special| target.vocab.tokenize(text, special).map_err(Error::Prompt);
        let tokens = tokenized(&text, Special::Parse)?;
        let original = prompt.original.as_deref().map(|it| tokenized(it, Special::AsText));
        if tokens.is_empty() || tokens.len() > len_max {
            let what = format!("prompt {} of {}", prompt.id, prompt.task);
            let reason = format!("{} tokens do not fit the context", tokens.len());
            read.left_out.push(LeftOut { what, reason });
            continue;
        }
        let (original, ends) = (original.transpose()?, prompt.ends);
        read.prompts.push(prompt);
        read.tokens.push(PromptTokens { prompt: tokens, original, ends });
    }
    Ok(read)
}

/// How drafts are verified.
enum Verification {
    Lossless(RuleChoice),
    Lossy(LossyWay),
}

/// A setting as the decoder wants it.
struct Way {
    drafters: Vec<DrafterId>,
    verification: Verification,
    scheme: Scheme,
    width: usize,
    len: usize,
    adaptive: bool,
}

impl Way {
    fn new(setting: &Setting, drafters: &[Drafting]) -> Result<Self> {
        let position = |name: &String| drafters.iter().position(|drafter| drafter.name == *name);
        let id = |name: &String| position(name).map(DrafterId);
        let named: Option<Vec<DrafterId>> = setting.drafters.iter().map(id).collect();
        let named = named.ok_or_else(|| {
            Error::refused(format!("no such drafter was loaded: {}", setting.drafters.join(", ")))
        })?;
        let name = setting.rule.as_deref().unwrap_or("block");
        let verification = match LossyWay::of_setting(name) {
            Some(way) => Verification::Lossy(way),
            None => Verification::Lossless(name.parse()?),
        };
        let rule = match &verification {
            Verification::Lossless(rule) => *rule,
            // Drafts are drawn as for the rule it stands in for.
            Verification::Lossy(_) => RuleChoice::Block,
        };
        let scheme = rule.scheme(&Drafts {
            drafters: named.len(),
            has_model: named.iter().any(|id| drafters[id.0].kind.is_model()),
            may_stop: false,
            width: setting.paths,
            paths: None,
        })?;
        let (width, len, adaptive) = (setting.paths, setting.length, setting.adaptive);
        Ok(Self { drafters: named, verification, scheme, width, len, adaptive })
    }

    fn policy(&self, seed: u64) -> DraftPolicy {
        let rule = match &self.verification {
            Verification::Lossless(rule) => rule.with_seed(seed),
            Verification::Lossy(way) => way.rule(),
        };
        DraftPolicy::drafted(self.drafters.clone(), self.len, rule)
            .wide(self.width)
            .drawn(self.scheme)
    }

    fn controller(&self, costs: &Costs) -> Option<Controller> {
        let arm = |width| Arm { drafters: self.drafters.clone(), width };
        let arms = || (1..=self.width).map(arm).collect();
        self.adaptive.then(|| Controller::new(costs.clone(), arms(), self.len))
    }
}

/// Plain decoding is the first setting of every run.
const PLAIN_SETTING: usize = 0;

/// What is decoded once.
struct Text<'a> {
    prompt: usize,
    tokens: &'a PromptTokens,
    temperature: usize,
    setting: usize,
    seed: u64,
    len: usize,
    /// Whose outputs a drafter that shares them learns from: those of one repeat at one temperature.
    tenant: Option<Tenant>,
}

/// An output as text.
pub(super) struct Answered {
    pub(super) text: String,
    /// Whether it ended by itself.
    pub(super) ended: bool,
    /// Its tokens.
    pub(super) tokens: u64,
    /// Total variation they spent together, of a lossy mode that says so.
    pub(super) spent: Option<f64>,
}

/// Decodes outputs, and keeps what passes cost current.
pub(super) struct Decoding<'a> {
    decoder: Decoder,
    costs: Costs,
    vocab: Arc<dyn Tokenizer>,
    tokens: Arc<[PromptTokens]>,
    drafters: Vec<Drafting>,
    ways: Vec<Way>,
    /// How tokens are drawn, by temperature.
    samplings: Vec<Samplings>,
    /// For each setting and temperature that has one.
    controllers: Vec<Option<Controller>>,
    /// What was last written without an oracle, and from which prompt.
    written: Option<(usize, Vec<Token>)>,
    cancellation: &'a Cancellation,
}

impl<'a> Decoding<'a> {
    /// Measures what passes cost, and has every setting write a text that nobody counts.
    ///
    /// # Errors
    /// Where a pass fails.
    pub(super) fn start(
        mut loaded: Loaded,
        config: &Config,
        cancellation: &'a Cancellation,
    ) -> Result<Self> {
        let foretold = loaded.drafters.iter().any(|drafter| drafter.kind == ORACLE);
        if foretold && config.temperatures.iter().any(|it| *it > 0.0) {
            return Err(Error::refused(
                "oracle drafts what another setting wrote, and what is drawn at random is written \
                 once: measure it at temperature 0 (--temp 0)",
            ));
        }
        let models = u32::try_from(config.drafters.len()).unwrap_or(0) + 1;
        let costs = loaded.decoder.measure(models * MEASURE);
        let costs = costs.map_err(Error::Costs)?;
        let ways: Vec<Way> = config
            .settings
            .iter()
            .map(|setting| Way::new(setting, &loaded.drafters))
            .collect::<Result<_>>()?;
        let samplings: Vec<Samplings> = config
            .temperatures
            .iter()
            .map(|temperature| Samplings::new(config, *temperature, &*loaded.vocab))
            .collect::<Result<_>>()?;
        let each = ways.iter().flat_map(|way| samplings.iter().map(|_| way.controller(&costs)));
        let mut models = Self {
            controllers: each.collect(),
            decoder: loaded.decoder,
            costs,
            vocab: loaded.vocab,
            tokens: loaded.tokens.into(),
            drafters: loaded.drafters,
            ways,
            samplings,
            written: None,
            cancellation,
        };
        models.warm_up(config)?;
        Ok(models)
    }

    fn warm_up(&mut self, config: &Config) -> Result<()> {
        let (all, len) = (Arc::clone(&self.tokens), config.text_len.min(WARM_UP_LEN));
        let Some(tokens) = all.first() else { return Ok(()) };
        for setting in 0..self.ways.len() {
            let seed = config.seed;
            let tenant = None;
            self.write(&Text { prompt: 0, tokens, temperature: 0, setting, seed, len, tenant })?;
        }
        Ok(())
    }

    /// What passes cost, as it is known now.
    pub(super) fn curves(&self) -> Vec<Curve> {
        let curve = |model: &str, curve: &CostCurve| Curve {
            model: model.to_owned(),
            points: curve.points().to_vec(),
        };
        let drafters = self.costs.drafters.iter();
        let drafters = drafters.map(|(id, costs)| curve(&self.drafters[id.0].name, costs));
        std::iter::once(curve("target", &self.costs.target)).chain(drafters).collect()
    }

    /// Writes a text and says what it took.
    fn write(&mut self, text: &Text<'_>) -> Result<Measure> {
        let (mut draft_read, mut draft_read_s) = (0, 0.0);
        let PromptTokens { prompt, original, .. } = text.tokens;
        let foretold = self.foretells(text.setting);
        if foretold && self.written.as_ref().is_none_or(|(of, _)| *of != text.prompt) {
            // A run that was continued does not know what it wrote.
            self.write(&Text { setting: PLAIN_SETTING, ..*text })?;
        }
        let output = self.written.as_ref().map(|(_, output)| output.clone()).unwrap_or_default();
        for id in self.ways[text.setting].drafters.clone() {
            let (kind, vocab_len) = (self.drafters[id.0].kind, self.vocab.vocab_len());
            let drafter = &mut self.decoder.drafters_mut()[id];
            match kind {
                SHARED_SUFFIX => drafter.share(SLOT, text.tenant),
                PREDICTION => drafter.predict(SLOT, original.as_deref().unwrap_or_default()),
                ORACLE => drafter.predict(SLOT, &output),
                DrafterKind::Edit => drafter.forget(SLOT),
                _ => {}
            }
            for pass in ready(drafter, prompt, vocab_len)? {
                draft_read += pass.tokens as u64;
                draft_read_s += pass.time.as_secs_f64();
            }
        }
        let mut generation = self.begin(text);
        let mut history =
            self.controllers[self.place(text)].as_ref().map(|it| it.history(|_| true));
        let mut draft_passes = 0;
        while generation.finish().is_none() {
            self.cancellation.check()?;
            draft_passes += self.round(text, &mut generation, &mut history)?;
        }
        let output = generation.sequence().output();
        for id in &self.ways[text.setting].drafters {
            if self.drafters[id.0].kind == SHARED_SUFFIX {
                self.decoder.drafters_mut()[*id].ended(SLOT, output);
            }
        }
        if !foretold {
            self.written = Some((text.prompt, output.to_vec()));
        }
        let mut hasher = DefaultHasher::new();
        output.iter().for_each(|token| token.0.hash(&mut hasher));
        Ok(Measure {
            prompt: text.prompt,
            setting: text.setting,
            temperature: self.samplings[text.temperature].fixed_len.temperature,
            prompt_tokens: prompt.len() as u64,
            draft_passes,
            draft_read,
            draft_read_s,
            text: Some(format!("{:016x}", hasher.finish())),
            ..of_stats(generation.stats())
        })
    }

    /// Has a setting answer a prompt once. All settings and temperatures have the same seed.
    ///
    /// # Errors
    /// Where a pass fails.
    pub(super) fn answer(
        &mut self,
        (prompt, setting, temperature): (usize, usize, usize),
        config: &Config,
    ) -> Result<Answered> {
        let all = Arc::clone(&self.tokens);
        let (tokens, len) = (&all[prompt], config.text_len);
        let seed = config.seed.wrapping_add(prompt as u64);
        let text = Text { prompt, tokens, temperature, setting, seed, len, tenant: None };
        let measure = self.write(&text)?;
        let output = self.written.as_ref().map_or(&[][..], |(_, output)| output);
        let mut bytes = Vec::new();
        for token in output.iter().filter(|token| !self.vocab.is_end(**token)) {
            self.vocab.bytes(*token, &mut bytes);
        }
        Ok(Answered {
            text: String::from_utf8_lossy(&bytes).into_owned(),
            ended: output.len() < len || output.last().is_some_and(|it| self.vocab.is_end(*it)),
            tokens: output.len() as u64,
            spent: measure.spent,
        })
    }

    /// Whether a setting drafts what was written before.
    fn foretells(&self, setting: usize) -> bool {
        self.ways[setting].drafters.iter().any(|id| self.drafters[id.0].kind == ORACLE)
    }

    fn begin(&self, text: &Text<'_>) -> Generation {
        let samplings = &self.samplings[text.temperature];
        let sampling = if text.tokens.ends { &samplings.ending } else { &samplings.fixed_len };
        let mut sequence = Sequence::new(SLOT, sampling.clone());
        let policy = self.ways[text.setting].policy(text.seed);
        sequence.begin(text.tokens.prompt.clone(), text.len);
        let stops = StopStrings::new(Vec::<String>::new()).expect("none is fine");
        Generation::new(sequence, policy, Arc::clone(&self.vocab), &stops, text.seed)
    }

    /// Where the controller of a text is.
    fn place(&self, text: &Text<'_>) -> usize {
        text.setting * self.samplings.len() + text.temperature
    }

    /// One round; gives how many passes drafting took.
    fn round(
        &mut self,
        text: &Text<'_>,
        generation: &mut Generation,
        history: &mut Option<History>,
    ) -> Result<u64> {
        let place = self.place(text);
        let mut adaptive = self.controllers[place].as_mut().zip(history.as_mut());
        let choice = adaptive.as_mut().map(|(controller, history)| {
            controller.choose(history, &generation.outlook(&self.decoder, Load::default()))
        });
        let plan = choice.as_ref().map_or_else(|| generation.plan(), |it| it.plan.clone());
        let started = Instant::now();
        let mut round = self.decoder.round(&mut [generation.turn(&plan, Limits::default())])?;
        let seconds = started.elapsed().as_secs_f64();
        let commit = round.commits.pop().expect("one turn, one commit");
        self.costs.observe(&round.passes);
        if let (Some((controller, history)), Some(choice)) = (adaptive, choice) {
            controller.observe(&round.passes);
            controller.learn(history, &choice, &commit, seconds);
            generation.chose(&choice);
        }
        let context_len = self.decoder.target().context_len();
        let chunk = generation.committed(commit, round.times, context_len);
        if let Some(dropped) = chunk.dropped.first() {
            return Err(cannot_draft(dropped.kind, &dropped.failure));
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
        spent: (stats.spending.tokens > 0).then_some(stats.spending.sum),
        prompt_read: stats.prompt_prefilled,
        first_token_s: stats.prompt_time.as_secs_f64(),
        ..Measure::default()
    }
}

/// How tokens are drawn at a temperature.
struct Samplings {
    /// End tokens are forbidden: all outputs have one length.
    fixed_len: Sampling,
    /// They are not: an edit has an end, and what came after it would be no edit.
    ending: Sampling,
}

impl Samplings {
    fn new(config: &Config, temperature: f32, vocab: &dyn Tokenizer) -> Result<Self> {
        let unshaped = Sampling::unshaped();
        let sampling = Sampling {
            temperature,
            top_k: config.top_k.map_or(unshaped.top_k, |top_k| top_k as usize),
            top_p: config.top_p.unwrap_or(unshaped.top_p),
            min_p: config.min_p.unwrap_or(unshaped.min_p),
            ..unshaped
        };
        let ended = |ignore_end| {
            let sampling = sampling.clone();
            SamplingConfig { sampling, ignore_end, seed: config.seed }.for_vocab(vocab)
        };
        Ok(Self { fixed_len: ended(true)?, ending: ended(false)? })
    }
}

fn cannot_draft(kind: DrafterKind, failure: &DraftFailure) -> Error {
    Error::refused(format!("{} cannot draft here: {failure}", kind.name()))
}

/// Has a drafter read a prompt, so that it holds that and nothing of the last text; gives the passes
/// that took.
fn ready(drafter: &mut dyn Drafter, prompt: &[Token], vocab_len: usize) -> Result<Vec<Pass>> {
    let mut chance = Random(Philox::new(0));
    let sampling = Sampling::greedy();
    let mut request = DraftRequest::next_token(SLOT, prompt, &sampling, &mut chance, vocab_len);
    drafter.draft(std::slice::from_mut(&mut request))?;
    match request.failure {
        Some(failure) => Err(cannot_draft(drafter.kind(), &failure)),
        None => Ok(drafter.passes()),
    }
}

impl Source for Decoding<'_> {
    fn repeat(&mut self, repeat: usize, session: &mut Session<'_>) -> Result<Option<Ended>> {
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

impl Decoding<'_> {
    /// One prompt by all settings at all temperatures.
    fn prompt(
        &mut self,
        repeat: usize,
        prompt: usize,
        session: &mut Session<'_>,
    ) -> Result<Option<Ended>> {
        let all = Arc::clone(&self.tokens);
        let tokens = &all[prompt];
        let (len, count) = (session.config.text_len, session.config.prompts.len());
        let seed = session.config.seed.wrapping_add((repeat * count + prompt) as u64);
        let texts = self.forecast(repeat, prompt, session);
        for (temperature, degrees) in session.config.temperatures.clone().into_iter().enumerate() {
            let mut order: Vec<usize> =
                turns(self.ways.len(), repeat + prompt + temperature).collect();
            order.sort_by_key(|setting| self.foretells(*setting));
            for setting in order {
                let key =
                    Measure { repeat, prompt, setting, temperature: degrees, ..Measure::default() };
                if session.is_done(&key) {
                    continue;
                }
                session.show(repeat, texts);
                let tenant = Some(Tenant((repeat * self.samplings.len() + temperature) as u64));
                let text = Text { prompt, tokens, temperature, setting, seed, len, tenant };
                match self.write(&text) {
                    _ if self.cancellation.is_cancelled() => return Ok(Some(session.broken_off())),
                    measure => session.add(Measure { repeat, ..measure? })?,
                }
            }
        }
        Ok(None)
    }

    /// How many outputs there will be in all, as far as one can tell after so many prompts.
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
