//! `forerun tune`: which drafter, how many paths and how long, on this machine and these prompts.
//!
//! Every candidate drafts for the same prompts, taking turns with plain decoding. From what is
//! accepted and what passes cost it forecasts every length, then runs the best setting of each
//! drafter, and the controller, beside plain decoding. What is not clearly faster is not recommended.

mod measure;
mod plot;
mod recommend;
mod trial;

use std::fmt::Write as _;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use forerun_decode::{
    CostCurve, Decoder, Drafter, Engine, NgramDrafter, Special, SuffixDrafter, Token, Tokenizer,
};
use forerun_llama::{EngineOptions, Model};

use crate::flags::{
    ConfigError, ContextLen, DraftModelConfig, EngineFlags, ModelConfig, OutputConfig,
    SamplingConfig, SamplingFlags, TargetFlags,
};
use crate::interrupt::{EXIT_CODE, Interrupt};
use crate::load;
use crate::progress::Outline;
use crate::prompts::{self, Prompt};
use crate::report::milliseconds;
use crate::span::{Limit, Span};
use crate::terminal::{Screen, file_name};

use measure::{Trials, finals_table};
use recommend::recommendation;
use trial::Bench;

/// Tokens of each text, and what the command may take.
const TEXT_LEN: usize = 64;
const TIME_LIMIT: Duration = Duration::from_secs(600);

/// The same for a first impression, and the prompts of one: three are enough for an interval.
const QUICK_TEXT_LEN: usize = 32;
const QUICK_TIME_LIMIT: Duration = Duration::from_secs(60);
const QUICK_PROMPTS: usize = 3;

/// What to tune, as given.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct TuneFlags {
    #[command(flatten)]
    target: TargetFlags,
    /// GGUF file of a draft model to try; may be given several times [-md]
    #[arg(long, visible_aliases = ["model-draft", "spec-draft-model"], value_name = "FILE")]
    draft: Vec<PathBuf>,
    /// File of prompts: a JSON object with "prompt" on each line, or a prompt on each line
    /// [default: five built-in ones]
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// Tokens of each text [default: 64; 32 with --quick]
    #[arg(short = 'n', long, value_name = "N")]
    predict: Option<usize>,
    /// Longest draft to try
    #[arg(long, visible_alias = "draft-max", default_value_t = 8, value_name = "N")]
    spec_draft_n_max: usize,
    /// Most paths of a draft model to try
    #[arg(long, visible_alias = "draft-paths", default_value_t = 2, value_name = "K")]
    spec_draft_paths: usize,
    /// Stop after this long, as in 90s, 15m or 1h30m, loading included; half of it is for
    /// acceptance [default: 10m; 1m with --quick]
    #[arg(long, value_name = "TIME")]
    time_limit: Option<Span>,
    /// A first impression within a minute: three prompts, short texts
    #[arg(long)]
    quick: bool,
    /// Write the plot of speed-up against draft length to this SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineFlags,
    #[command(flatten)]
    sampling: SamplingFlags,
}

/// The same, checked.
struct TuneConfig {
    target: ModelConfig,
    context: ContextLen,
    drafts: Vec<PathBuf>,
    prompts: Vec<Prompt>,
    text_len: usize,
    len_max: usize,
    paths: usize,
    limit: Limit,
    quick: bool,
    plot: Option<PathBuf>,
    sampling: SamplingConfig,
    said: Said,
}

/// What was said that a recommended command must say again.
#[derive(Debug, Default)]
struct Said {
    /// About the target.
    engine: Vec<String>,
    /// About a draft model, so that it is run as the target is.
    draft: Vec<String>,
    /// About the law of tokens.
    sampling: Vec<String>,
}

impl TuneFlags {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let config = self.resolve()?;
        let interrupt = Interrupt::install()?;
        interrupt.or_stopped(tune(&config, &interrupt))
    }

    /// Decides every default. The time starts to count.
    fn resolve(self) -> anyhow::Result<TuneConfig> {
        let within = |flag, value: usize, most: usize| {
            if (1..=most).contains(&value) {
                return Ok(value);
            }
            let expected = format!("1 to {most}");
            Err(ConfigError::OutOfRange { flag, value: value.to_string(), expected })
        };
        let (time, text_len) = match self.quick {
            true => (QUICK_TIME_LIMIT, QUICK_TEXT_LEN),
            false => (TIME_LIMIT, TEXT_LEN),
        };
        let said = Said {
            engine: self.engine.said(),
            draft: self.engine.said_of_draft(),
            sampling: self.sampling.said(),
        };
        let (target, context) = self.engine.resolve(self.target.path()?)?;
        let text_len = within("--predict", self.predict.unwrap_or(text_len), 4096)?;
        let len_max = within("--spec-draft-n-max", self.spec_draft_n_max, 16)?;
        let paths = within("--spec-draft-paths", self.spec_draft_paths, 8)?;
        let sampling = self.sampling.resolve()?;
        let mut prompts = match &self.prompts {
            Some(path) => prompts::file(path)?,
            None => prompts::few(),
        };
        if self.quick {
            prompts.truncate(QUICK_PROMPTS);
        }
        Ok(TuneConfig {
            target,
            context,
            drafts: self.draft,
            prompts,
            text_len,
            len_max,
            paths,
            limit: Limit::from_now(self.time_limit.map_or(time, Span::duration)),
            quick: self.quick,
            plot: self.plot,
            sampling,
            said,
        })
    }
}

/// A drafter to try: its name for people, and the flags that choose it.
struct Candidate {
    name: String,
    flags: Vec<String>,
    is_model: bool,
}

fn tune(config: &TuneConfig, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
    let mut screen = Screen::new(&OutputConfig::notes());
    let progress = screen.progress();
    interrupt.expire_after(config.limit.time);
    progress.begin(&outline(config));
    let tuned = run(config, interrupt, &mut screen);
    progress.end();
    match tuned {
        Err(_) if interrupt.is_expired() => bail!(
            "the time limit of {} was over before anything was measured: raise --time-limit",
            Span::from(config.limit.time)
        ),
        tuned => tuned?,
    }
    let stopped = interrupt.is_pressed() && !interrupt.is_expired();
    Ok(if stopped { ExitCode::from(EXIT_CODE) } else { ExitCode::SUCCESS })
}

/// What is going to happen.
fn outline(config: &TuneConfig) -> Outline {
    let (models, prompts) = (1 + config.drafts.len(), config.prompts.len());
    let settings = config.drafts.len() * config.paths + 2;
    let count =
        |many: usize, what: &str| format!("{many} {what}{}", if many == 1 { "" } else { "s" });
    let shorter = if config.quick { "" } else { "--quick (1 minute), " };
    Outline {
        command: "tune",
        phases: vec![
            ("load", format!("load {} and time their passes", count(models, "model"))),
            (
                "acceptance",
                format!("{settings} settings and plain decoding on {}", count(prompts, "prompt")),
            ),
            ("measurement", "the best of each drafter beside plain decoding".to_owned()),
        ],
        limit: config.limit,
        notes: vec![format!(
            "Ctrl-C ends it with what was measured.\nShorter: {shorter}--time-limit TIME, -n N."
        )],
    }
}

/// Tunes; what Ctrl-C or the clock ends is told as far as it went.
fn run(config: &TuneConfig, interrupt: &Interrupt, screen: &mut Screen) -> anyhow::Result<()> {
    let progress = screen.progress();
    let (candidates, bench, prompts) = load_all(config, interrupt, screen)?;
    let mut trials = Trials { config, candidates: &candidates, prompts: &prompts, progress, bench };

    trials.progress.phase(1);
    let forecasts = trials.survey()?;
    let mut text = String::new();
    costs_table(&mut text, &candidates, &trials.bench);
    for forecast in &forecasts {
        forecast.table(&mut text, &candidates[forecast.setting.drafter].name);
    }
    screen.result(text.trim_end())?;

    trials.progress.phase(2);
    let finals = trials.finals(&forecasts)?;
    trials.progress.end();
    let mut text = "\n".to_owned();
    finals_table(&mut text, &candidates, &finals);
    text.push('\n');
    text.push_str(&plot::terminal(&forecasts, &candidates));
    text.push_str(&recommendation(config, &candidates, &finals));
    screen.result(text.trim_end())?;
    if let Some(path) = &config.plot {
        std::fs::write(path, plot::svg(&forecasts, &finals, &candidates))
            .with_context(|| format!("cannot write {}", path.display()))?;
        screen.note(&format!("plot written to {}", path.display()));
    }
    Ok(())
}

/// Target and drafters, and the prompts as the target reads them.
fn load_all<'a>(
    config: &TuneConfig,
    interrupt: &'a Interrupt,
    screen: &mut Screen,
) -> anyhow::Result<(Vec<Candidate>, Bench<'a>, Vec<Vec<Token>>)> {
    let progress = screen.progress();
    progress.expect_files(1 + config.drafts.len());
    let model = load::load_model("target", &config.target, interrupt, &progress)?;
    let paths = NonZeroU32::new(u32::try_from(config.paths)?).unwrap_or(NonZeroU32::MIN);
    let options = EngineOptions {
        context_len: load::context_len(config.context, &model),
        paths,
        ..config.target.engine.clone()
    };
    let target = load::engine("target", &model, options, interrupt)?;
    let mut candidates = Vec::new();
    let mut drafters: Vec<Box<dyn Drafter>> = Vec::new();
    for path in &config.drafts {
        let engine = EngineOptions { paths, ..config.target.engine.clone() };
        let own = ModelConfig { path: path.clone(), engine, ..config.target.clone() };
        let draft = DraftModelConfig { model: own, confidence_min: 0.0 };
        let room = load::Room { context_len: target.context_len(), slots: NonZeroU32::MIN };
        let (drafter, _) = load::draft_model(&draft, &model, &room, interrupt, screen)?;
        drafters.push(Box::new(drafter));
        let flags = vec!["--spec-draft-model".to_owned(), path.display().to_string()];
        let name = file_name(path).trim_end_matches(".gguf").to_owned();
        candidates.push(Candidate { name, flags, is_model: true });
    }
    let found: [(&str, Box<dyn Drafter>); 2] = [
        ("ngram", Box::new(NgramDrafter::default())),
        ("suffix", Box::new(SuffixDrafter::default())),
    ];
    for (name, drafter) in found {
        drafters.push(drafter);
        let flags = vec!["--spec-type".to_owned(), name.to_owned()];
        candidates.push(Candidate { name: name.to_owned(), flags, is_model: false });
    }
    let context_len = target.context_len();
    let decoder = Decoder::new(Box::new(target), drafters)?;
    let prompts = prompt_tokens(config, &model, context_len)?;
    let sampling = load::sampling(&config.sampling, &model)?;
    progress.show(1.0, "timing passes");
    let bench = Bench::new(decoder, &model, sampling, config.text_len, interrupt)?;
    Ok((candidates, bench, prompts))
}

fn prompt_tokens(
    config: &TuneConfig,
    model: &Model,
    context_len: usize,
) -> anyhow::Result<Vec<Vec<Token>>> {
    let texts = prompts::in_chat_format(&config.prompts, model)?;
    let vocab = model.vocab();
    let mut all = Vec::new();
    for text in &texts {
        let tokens = vocab.tokenize(text, Special::Parse).context("prompt")?;
        let needed = tokens.len() + config.text_len;
        anyhow::ensure!(
            !tokens.is_empty() && needed <= context_len,
            "a prompt of {} tokens and {} more do not fit a context of {context_len}: raise \
             --ctx-size or leave it out",
            tokens.len(),
            config.text_len
        );
        all.push(tokens);
    }
    Ok(all)
}

fn costs_table(text: &mut String, candidates: &[Candidate], bench: &Bench<'_>) {
    let costs = bench.costs();
    text.push_str("What a pass takes, by its tokens (ms)\n");
    let width = candidates.iter().map(|it| it.name.chars().count()).max().unwrap_or(0).max(6);
    let mut row = |name: &str, curve: &CostCurve| {
        writeln!(text, "  {name:<width$}  {}", milliseconds(curve)).expect("strings take all text");
    };
    row("target", &costs.target);
    for (candidate, curve) in candidates.iter().zip(&costs.drafters) {
        if let Some(curve) = curve {
            row(&candidate.name, curve);
        }
    }
    text.push('\n');
}
