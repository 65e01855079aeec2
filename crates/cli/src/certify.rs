//! `forerun certify`: proof, on the user's own model or server, that speculation left the output
//! alone; or that it did not.
//!
//! Four parts: the rule by enumeration, the decoder by tests on texts, the engine by comparing rows,
//! a server by its answers. What was tested, what would have been found and the verdict go into a
//! certificate.

mod broken;
mod certificate;
mod decoder;
mod law;
mod pairs;
mod rule;
mod server;
mod writer;

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use forerun_decode::{
    Decoder, Drift, Engine, NgramDrafter, Plan, RuleChoice, Special, SuffixDrafter, Token,
    Tokenizer, VocabMap, drift,
};
use forerun_llama::{EngineOptions, Model};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value, json};

use crate::client::Client;
use crate::flags::{
    ConfigError, ContextLen, DraftConfig, DraftFlags, DrafterConfig, EngineFlags, ModelConfig,
    OutputConfig, SamplingConfig, SamplingFlags,
};
use crate::interrupt::{EXIT_CODE, Interrupt};
use crate::load::{self, Loaded, Wanted};
use crate::machine;
use crate::prompts::{self, Prompt};
use crate::terminal::Screen;

use broken::{Fault, PenaltiesAtRoot};
use certificate::Certificate;
use decoder::{DecoderTest, Limits};
use rule::InUse;
use server::ServerTest;
use writer::{Reader, Scorer, Suspect, Writer};

/// Positions at which rows are compared.
const DRIFT_POSITIONS: usize = 24;

/// Most prompts of one test: each has a slot of its own that holds it.
const PROMPTS_MAX: usize = 8;

/// Tokens of context each text gets unless told otherwise.
const CONTEXT_LEN: u32 = 512;

/// What to certify, as given.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct CertifyFlags {
    /// GGUF file of the target
    #[arg(short, long, env = "LLAMA_ARG_MODEL", value_name = "FILE")]
    #[arg(required_unless_present = "url", conflicts_with = "url")]
    model: Option<PathBuf>,
    /// Address of a server to certify instead, ours or any OpenAI-compatible one
    #[arg(long, value_name = "URL", conflicts_with_all = ["EngineFlags", "DraftFlags"])]
    url: Option<String>,
    /// Address of the same model without speculation, where the server cannot switch it off for a
    /// request
    #[arg(long, value_name = "URL", requires = "url")]
    plain_url: Option<String>,
    /// Fields of requests with speculation, as JSON [default: for Forerun, drafts of 4 tokens]
    #[arg(long, value_name = "JSON", requires = "url")]
    on: Option<String>,
    /// Fields of requests without [default: {"speculative": {"enabled": false}}, or none with
    /// --plain-url]
    #[arg(long, value_name = "JSON", requires = "url")]
    off: Option<String>,
    /// Key for the server
    #[arg(
        long,
        env = "OPENAI_API_KEY",
        hide_env_values = true,
        value_name = "KEY",
        requires = "url"
    )]
    api_key: Option<String>,
    /// The model's name at the server, where it wants one
    #[arg(long, value_name = "NAME", requires = "url")]
    model_name: Option<String>,
    /// Requests under way at once [default: 4]
    #[arg(long, value_name = "N", requires = "url")]
    concurrency: Option<usize>,
    /// Most pairs of texts that are asked of a server [default: 2000]
    #[arg(long, value_name = "N", requires = "url")]
    pairs: Option<u64>,
    /// File of prompts: a JSON object with "prompt" on each line, or a prompt on each line; the
    /// first eight are used [default: five built-in ones]
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// How often a right decoder may fail
    #[arg(long, default_value_t = 0.001, value_name = "P")]
    false_alarm: f64,
    /// Stop once a share of wrong tokens this small would have been found [default: 0.01, or never
    /// with --broken]
    #[arg(long, value_name = "P", conflicts_with_all = ["url", "broken"])]
    power: Option<f64>,
    /// Stop after so many seconds
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    time_limit: u64,
    /// Tokens of each text [default: 32; 12 of a server's]
    #[arg(short = 'n', long, value_name = "N")]
    predict: Option<usize>,
    /// Texts made at once [default: 16]
    #[arg(long, value_name = "N", conflicts_with = "url")]
    parallel: Option<u32>,
    /// Break the decoder on purpose, to see the certificate fail
    #[arg(long, value_name = "FAULT", conflicts_with = "url")]
    broken: Option<Fault>,
    /// Where the certificate goes as a page
    #[arg(long, default_value = "certificate.html", value_name = "FILE")]
    out: PathBuf,
    /// Where it goes as JSON [default: beside the page]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineFlags,
    #[command(flatten)]
    draft: DraftFlags,
    #[command(flatten)]
    sampling: SamplingFlags,
}

/// The same, checked.
struct CertifyConfig {
    subject: Subject,
    prompts: Option<PathBuf>,
    sampling: SamplingConfig,
    limits: Limits,
    out: PathBuf,
    json: PathBuf,
}

/// What is certified.
enum Subject {
    Model(Box<ModelSubject>),
    Server(Box<ServerSubject>),
}

/// A decoder in this process.
struct ModelSubject {
    target: ModelConfig,
    context: ContextLen,
    draft: DraftConfig,
    slots: NonZeroU32,
    broken: Option<Fault>,
}

/// Somebody's server.
struct ServerSubject {
    on: Client,
    off: Client,
    on_body: Map<String, Value>,
    off_body: Map<String, Value>,
    model: Option<String>,
    users: usize,
    pairs_max: u64,
}

impl CertifyFlags {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let config = self.resolve()?;
        let interrupt = Interrupt::install()?;
        interrupt.or_stopped(certify(&config, &interrupt))
    }

    fn resolve(self) -> anyhow::Result<CertifyConfig> {
        let share = |flag: &'static str, value: f64| {
            if value > 0.0 && value < 1.0 {
                return Ok(value);
            }
            let expected = "above 0 and below 1".to_owned();
            Err(ConfigError::OutOfRange { flag, value: value.to_string(), expected })
        };
        let of_server = self.url.is_some();
        let text_len = self.predict.unwrap_or(if of_server { 12 } else { 32 });
        if !(2..=256).contains(&text_len) {
            let (flag, value) = ("--predict", text_len.to_string());
            Err(ConfigError::OutOfRange { flag, value, expected: "2 to 256".to_owned() })?;
        }
        // What is broken is to be found, however long it takes.
        let power = match self.power {
            None if self.broken.is_some() => 0.0,
            power => share("--power", power.unwrap_or(0.01))?,
        };
        let limits = Limits {
            false_alarm: share("--false-alarm", self.false_alarm)?,
            power,
            time: Duration::from_secs(self.time_limit),
            text_len,
        };
        let json = self.json.clone().unwrap_or_else(|| self.out.with_extension("json"));
        let (prompts, out) = (self.prompts.clone(), self.out.clone());
        let sampling = self.sampling.clone().resolve()?;
        let subject = match (&self.url, &self.model) {
            (Some(url), _) => Subject::Server(Box::new(self.server(url)?)),
            (None, Some(model)) => Subject::Model(Box::new(self.clone().local(model.clone())?)),
            (None, None) => unreachable!("clap wants one of them"),
        };
        Ok(CertifyConfig { subject, prompts, sampling, limits, out, json })
    }

    fn local(self, model: PathBuf) -> anyhow::Result<ModelSubject> {
        let (target, context) = self.engine.resolve(model)?;
        let context = match context {
            ContextLen::AtMost(len) => {
                ContextLen::AtMost(len.min(NonZeroU32::new(CONTEXT_LEN).unwrap_or(len)))
            }
            other => other,
        };
        // Always drafted for, so that what is tested is speculation and not the choice against it.
        let draft = self.draft.resolve(&target, true)?;
        ensure!(
            !draft.drafters.is_empty(),
            "nothing drafts, so there is nothing to certify: add --spec-draft-model FILE or --spec-type"
        );
        if let Some(fault) = self.broken {
            let one_model = matches!(draft.drafters.as_slice(), [DrafterConfig::Model(_)]);
            ensure!(
                one_model && draft.width.get() == 1 && draft.rule == RuleChoice::Block,
                "{} can be shown with one path of a draft model under --verify block: leave out other \
                 drafters, paths and rules",
                fault.about()
            );
        }
        let slots = within("--parallel", self.parallel.map_or(16, u64::from))?;
        let slots = u32::try_from(slots).ok().and_then(NonZeroU32::new).context("64 at most")?;
        Ok(ModelSubject { target, context, draft, slots, broken: self.broken })
    }

    fn server(&self, url: &str) -> anyhow::Result<ServerSubject> {
        let client = |url: &str| Client::new(url, self.api_key.clone(), server::ANSWER);
        let on = client(url)?;
        let off = self.plain_url.as_deref().map_or_else(|| Ok(on.clone()), client)?;
        let fields = |text: &Option<String>, flag: &str| -> anyhow::Result<Option<Map<_, _>>> {
            let Some(text) = text else { return Ok(None) };
            let value: Value = serde_json::from_str(text).with_context(|| flag.to_owned())?;
            let Value::Object(fields) = value else { bail!("{flag} is no JSON object: {text}") };
            Ok(Some(fields))
        };
        let object = |value: Value| value.as_object().cloned().unwrap_or_default();
        let (on_said, off_said) = (fields(&self.on, "--on")?, fields(&self.off, "--off")?);
        // Only Forerun knows the field; others would refuse or ignore it.
        let ours = on_said.is_none() && off_said.is_none() && self.plain_url.is_none();
        let on_default = if ours { json!({ "speculative": { "length": 4 } }) } else { json!({}) };
        let off_default =
            if ours { json!({ "speculative": { "enabled": false } }) } else { json!({}) };
        Ok(ServerSubject {
            on,
            off,
            on_body: on_said.unwrap_or_else(|| object(on_default)),
            off_body: off_said.unwrap_or_else(|| object(off_default)),
            model: self.model_name.clone(),
            users: usize::try_from(within(
                "--concurrency",
                self.concurrency.map_or(4, |n| n as u64),
            )?)?,
            pairs_max: self.pairs.unwrap_or(2000),
        })
    }
}

/// How many at once.
fn within(flag: &'static str, value: u64) -> Result<u64, ConfigError> {
    if (1..=64).contains(&value) {
        return Ok(value);
    }
    let expected = "1 to 64".to_owned();
    Err(ConfigError::OutOfRange { flag, value: value.to_string(), expected })
}

fn certify(config: &CertifyConfig, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
    let mut screen = Screen::new(&OutputConfig::notes());
    let read = config.prompts.as_deref().map_or_else(|| Ok(prompts::few()), prompts::file)?;
    let prompts: Vec<Prompt> = read.into_iter().take(PROMPTS_MAX).collect();
    let certificate = match &config.subject {
        Subject::Model(subject) => of_model(config, subject, &prompts, interrupt, &mut screen)?,
        Subject::Server(subject) => of_server(config, subject, &prompts, interrupt)?,
    };
    let write = |path: &Path, text: &str| {
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    write(&config.out, &certificate.html())?;
    write(&config.json, &format!("{:#}\n", certificate.json()))?;
    screen.result(&certificate.text())?;
    screen.note(&format!("written to {} and {}", config.out.display(), config.json.display()));
    Ok(match (certificate.is_interrupted(), certificate.passed()) {
        (true, true) => ExitCode::from(EXIT_CODE),
        (_, true) => ExitCode::SUCCESS,
        (_, false) => ExitCode::FAILURE,
    })
}

fn of_server(
    config: &CertifyConfig,
    subject: &ServerSubject,
    prompts: &[Prompt],
    interrupt: &Interrupt,
) -> anyhow::Result<Certificate> {
    let test = ServerTest {
        on: subject.on.clone(),
        off: subject.off.clone(),
        on_body: subject.on_body.clone(),
        off_body: subject.off_body.clone(),
        model: subject.model.clone(),
        prompts,
        sampling: &config.sampling,
        users: subject.users,
        limits: config.limits,
        pairs_max: subject.pairs_max,
        interrupt,
    };
    let bar = bar(config.limits.time);
    let found = test.run(&bar);
    bar.finish_and_clear();
    Ok(Certificate {
        about: about(&[], interrupt)?,
        settings: settings(config, json!({ "prompts": prompts.len() })),
        broken: None,
        false_alarm: config.limits.false_alarm,
        rule: None,
        decoder: None,
        drift: Vec::new(),
        server: Some(found?),
    })
}

fn of_model(
    config: &CertifyConfig,
    subject: &ModelSubject,
    prompts: &[Prompt],
    interrupt: &Interrupt,
    screen: &mut Screen,
) -> anyhow::Result<Certificate> {
    let draft = &subject.draft;
    let verification = subject.broken.and_then(Fault::rule);
    let verification = verification.unwrap_or_else(|| draft.rule.verification(0));
    let proof = in_use(draft).prove(&verification).context("the rule refuses these drafts")?;
    let sampling = &config.sampling;
    let wanted = Wanted {
        target: &subject.target,
        context: subject.context,
        draft,
        sampling,
        gpu_missing: false,
        slots: subject.slots,
        predictions: false,
    };
    let Loaded { mut decoder, model, sampling, .. } =
        load::load_for(&wanted, interrupt, screen, |engine| match subject.broken {
            Some(Fault::Penalties) => {
                Box::new(PenaltiesAtRoot::new(engine, config.sampling.sampling.clone()))
            }
            _ => engine,
        })?;
    ensure!(
        subject.broken != Some(Fault::Penalties) || sampling.needs_path(),
        "without a penalty there is none to ignore: add --presence-penalty 1"
    );
    if let Some(fault) = subject.broken {
        fault.break_drafter(&mut decoder);
    }
    let tokens = tokens(prompts, &model, &decoder, config.limits.text_len + draft.len.get() + 1)?;
    let lab = Lab { subject, model: &model, prompts: &tokens, interrupt };
    let drift = lab.drift()?;
    let scorer = Scorer::new(lab.reader()?, lab.suspect(screen)?, &tokens, sampling.clone());
    let drafters = (0..decoder.drafters().len()).collect();
    let plan = Plan::drafted(drafters, draft.len.get(), verification)
        .wide(draft.width.get())
        .drawn(draft.scheme);
    let vocab = model.vocab();
    let test = DecoderTest {
        writer: Writer::new(decoder, &tokens, vocab, config.sampling.seed, interrupt),
        scorer,
        plan,
        drawn_with: subject.broken.map_or_else(|| sampling.clone(), |it| it.sampling(&sampling)),
        sampling,
        coupled: draft.rule == RuleChoice::Coupled && subject.broken.is_none(),
        limits: config.limits,
        interrupt,
    };
    let bar = bar(config.limits.time);
    let found = test.run(&bar);
    bar.finish_and_clear();
    Ok(Certificate {
        about: about(&lab.files(), interrupt)?,
        settings: settings(config, lab.settings(config.sampling.seed)),
        broken: subject.broken.map(Fault::about),
        false_alarm: config.limits.false_alarm,
        rule: proof,
        decoder: Some(found?),
        drift,
        server: None,
    })
}

/// How drafts are made, for the enumeration.
fn in_use(draft: &DraftConfig) -> InUse {
    let is_model = |drafter: &&DrafterConfig| matches!(drafter, DrafterConfig::Model(_));
    let models = draft.drafters.iter().filter(is_model).count();
    InUse {
        scheme: draft.scheme,
        width: draft.width.get(),
        models,
        guessers: draft.drafters.len() - models,
        may_stop: draft.may_stop(),
    }
}

/// The prompts as tokens.
fn tokens(
    prompts: &[Prompt],
    model: &Model,
    decoder: &Decoder,
    room: usize,
) -> anyhow::Result<Vec<Vec<Token>>> {
    let context_len = decoder.target().context_len();
    let tokens = |text: String| {
        let tokens = model.vocab().tokenize(&text, Special::Parse).context("prompt")?;
        ensure!(
            !tokens.is_empty() && tokens.len() + room <= context_len,
            "a prompt of {} tokens and {room} more do not fit a context of {context_len}: raise \
             --ctx-size or leave it out",
            tokens.len()
        );
        Ok(tokens)
    };
    prompts::in_chat_format(prompts, model)?.into_iter().map(tokens).collect()
}

/// What is needed beside the decoder: engines that run the models again.
struct Lab<'a> {
    subject: &'a ModelSubject,
    model: &'a Model,
    prompts: &'a [Vec<Token>],
    interrupt: &'a Interrupt,
}

impl Lab<'_> {
    fn engine(
        &self,
        what: &'static str,
        model: &Model,
        config: &ModelConfig,
    ) -> anyhow::Result<Box<dyn Engine>> {
        let slots = u32::try_from(self.prompts.len()).ok().and_then(NonZeroU32::new);
        let options = EngineOptions {
            context_len: load::context_len(self.subject.context, model),
            slots: slots.unwrap_or(NonZeroU32::MIN),
            ..config.engine.clone()
        };
        Ok(Box::new(load::engine(what, model, options, self.interrupt)?))
    }

    /// The target, to score texts with.
    fn reader(&self) -> anyhow::Result<Reader> {
        Ok(Reader::new(self.engine("target", self.model, &self.subject.target)?))
    }

    /// The first draft model, or else the first drafter, to know what it would say.
    fn suspect(&self, screen: &mut Screen) -> anyhow::Result<Option<Suspect>> {
        let drafters = &self.subject.draft.drafters;
        let models = drafters.iter().filter_map(|drafter| match drafter {
            DrafterConfig::Model(config) => Some(config),
            _ => None,
        });
        if let Some(config) = { models }.next() {
            let model = load::load_model("draft model", &config.model, self.interrupt)?;
            if !VocabMap::between(self.model.vocab(), model.vocab())?.is_identity() {
                screen
                    .note("the drafter has a vocabulary of its own: no bets on what it would say");
                return Ok(None);
            }
            let engine = self.engine("draft model", &model, &config.model)?;
            return Ok(Some(Suspect::Model(Reader::new(engine))));
        }
        Ok(match drafters.first() {
            Some(DrafterConfig::Ngram) => Some(Suspect::Guesser(Box::new(NgramDrafter::default()))),
            Some(DrafterConfig::Suffix) => {
                Some(Suspect::Guesser(Box::new(SuffixDrafter::default())))
            }
            _ => None,
        })
    }

    /// Rows in blocks as long as drafts, and as long as texts are scored in.
    fn drift(&self) -> anyhow::Result<Vec<(usize, Drift)>> {
        let mut engine = self.engine("target", self.model, &self.subject.target)?;
        let mut all = Vec::new();
        for len in [self.subject.draft.len.get() + 1, DRIFT_POSITIONS] {
            let mut sum = Drift::default();
            for prompt in self.prompts {
                sum = sum.and(drift(&mut *engine, prompt, DRIFT_POSITIONS, len)?);
            }
            all.push((len, sum));
        }
        Ok(all)
    }

    /// The model files.
    fn files(&self) -> Vec<(&'static str, PathBuf)> {
        let mut files = vec![("target", self.subject.target.path.clone())];
        for drafter in &self.subject.draft.drafters {
            if let DrafterConfig::Model(config) = drafter {
                files.push(("draft_model", config.model.path.clone()));
            }
        }
        files
    }

    fn settings(&self, seed: u64) -> Value {
        let draft = &self.subject.draft;
        let names: Vec<&str> = draft.drafters.iter().map(DrafterConfig::name).collect();
        json!({
            "prompts": self.prompts.len(),
            "rule": draft.rule.name(),
            "drafters": names.join(", "),
            "draft_length": draft.len.get(),
            "paths": draft.width.get(),
            "texts_at_once": self.subject.slots.get(),
            "seed": seed,
        })
    }
}

/// What was asked for, for both kinds of subject.
fn settings(config: &CertifyConfig, own: Value) -> Value {
    let sampling = &config.sampling.sampling;
    let mut all = json!({
        "tokens_of_a_text": config.limits.text_len,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "typical_p": sampling.typical_p,
        "repeat_penalty": sampling.repeat_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "power_asked_for": config.limits.power,
    });
    if let (Some(all), Value::Object(own)) = (all.as_object_mut(), own) {
        all.extend(own);
    }
    all
}

/// When, on what machine, with what build and which files.
fn about(files: &[(&'static str, PathBuf)], interrupt: &Interrupt) -> anyhow::Result<Value> {
    let (here, build) = (machine::machine(), machine::build());
    let mut about = json!({
        "date": machine::today(),
        "processor": here.processor,
        "threads": here.threads,
        "system": format!("{} {}", here.system, here.architecture),
        "forerun": build.version,
        "commit": build.commit,
        "llama": build.llama,
    });
    let fields = about.as_object_mut().context("an object")?;
    for (what, path) in files {
        let file = machine::model_file(path, interrupt)?;
        let text = format!("{}, {} bytes, SHA-256 {}", file.name, file.bytes, file.sha256);
        fields.insert((*what).to_owned(), json!(text));
    }
    Ok(about)
}

fn bar(time: Duration) -> ProgressBar {
    let bar = ProgressBar::new(time.as_secs());
    let style =
        ProgressStyle::with_template("testing [{bar:16}] {elapsed} of at most {len} s: {msg}");
    bar.set_style(style.expect("the template is right").progress_chars("=> "));
    bar
}
