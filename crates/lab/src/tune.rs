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

use forerun_decode::{CostCurve, Decoder, DrafterKind, Special, Token};

use crate::cancellation::Cancellation;
use crate::error::{Error, Result};
use crate::models::{EngineShape, Models, Parts, Target};
use crate::observer::{Observer, Outline};
use crate::prompts::{self, Prompt};
use crate::sampling::SamplingConfig;
use crate::span::{Limit, Span};
use crate::words::{file_name, milliseconds};

use measure::{Trials, finals_table};
use recommend::recommendation;
use trial::Bench;

/// The prompts of a first impression: three are enough for an interval.
const QUICK_PROMPTS: usize = 3;

/// What to tune.
#[derive(Debug, Clone)]
pub struct TuneConfig {
    /// The target's file, for the command that is recommended.
    pub target: PathBuf,
    /// The draft models' files; they draft before what looks tokens up.
    pub drafts: Vec<PathBuf>,
    /// A file of prompts.
    pub prompts: Option<PathBuf>,
    /// Tokens of each text.
    pub text_len: usize,
    /// Longest draft to try.
    pub len_max: usize,
    /// Most paths of a draft model to try.
    pub paths: NonZeroU32,
    /// What it may take.
    pub limit: Limit,
    /// Whether a first impression is enough.
    pub quick: bool,
    /// Where the plot goes.
    pub plot: Option<PathBuf>,
    /// How tokens are drawn.
    pub sampling: SamplingConfig,
    /// What was said that the recommended command must say again.
    pub said: Said,
}

/// What was said that a recommended command must say again.
#[derive(Debug, Clone, Default)]
pub struct Said {
    /// About the target.
    pub engine: Vec<String>,
    /// About a draft model, so that it is run as the target is.
    pub draft: Vec<String>,
    /// About the law of tokens.
    pub sampling: Vec<String>,
}

impl TuneConfig {
    /// What drafts beside the draft models.
    pub const LOOKING_UP: [DrafterKind; 2] = [DrafterKind::Ngram, DrafterKind::Suffix];

    fn prompts(&self) -> Result<Vec<Prompt>> {
        let mut prompts = match &self.prompts {
            Some(path) => prompts::file(path)?,
            None => prompts::few(),
        };
        if self.quick {
            prompts.truncate(QUICK_PROMPTS);
        }
        Ok(prompts)
    }
}

/// A drafter to try: its name for people, and the flags that choose it.
struct Candidate {
    name: String,
    flags: Vec<String>,
    is_model: bool,
}

/// Tunes, and says what to do. What cancellation or the clock ends is told as far as it went.
///
/// # Errors
/// If something fails, or the time was over before anything was measured.
pub fn run(
    config: &TuneConfig,
    models: &mut dyn Models,
    observer: &dyn Observer,
    cancellation: &Cancellation,
) -> Result<()> {
    let prompts = config.prompts()?;
    cancellation.expire_after(config.limit.time);
    observer.begin(&outline(config, prompts.len()));
    let run = Run { config, observer, cancellation };
    let tuned = run.tune(&prompts, models);
    observer.end();
    match tuned {
        Err(_) if cancellation.is_expired() => Err(Error::refused(format!(
            "the time limit of {} was over before anything was measured: raise --time-limit",
            Span::from(config.limit.time)
        ))),
        tuned => tuned,
    }
}

/// What is going to happen.
fn outline(config: &TuneConfig, prompts: usize) -> Outline {
    let models = 1 + config.drafts.len();
    let settings = config.drafts.len() * config.paths.get() as usize + 2;
    let count =
        |many: usize, what: &str| format!("{many} {what}{}", if many == 1 { "" } else { "s" });
    let shorter = if config.quick { "" } else { "--quick (1 minute), " };
    Outline {
        command: "tune",
        phases: vec![
            ("load", format!("load {} and time passes", count(models, "model"))),
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

/// One run.
struct Run<'a> {
    config: &'a TuneConfig,
    observer: &'a dyn Observer,
    cancellation: &'a Cancellation,
}

impl<'a> Run<'a> {
    fn tune(&self, prompts: &[Prompt], models: &mut dyn Models) -> Result<()> {
        let (config, observer) = (self.config, self.observer);
        let candidates = candidates(config);
        let (bench, prompts) = self.load_all(prompts, models)?;
        let mut trials =
            Trials { config, candidates: &candidates, prompts: &prompts, observer, bench };

        observer.phase(1);
        let forecasts = trials.survey()?;
        let mut text = String::new();
        costs_table(&mut text, &candidates, &trials.bench);
        for forecast in &forecasts {
            forecast.table(&mut text, &candidates[forecast.setting.drafter].name);
        }
        observer.result(text.trim_end()).map_err(Error::Output)?;

        observer.phase(2);
        let finals = trials.finals(&forecasts)?;
        observer.end();
        let mut text = "\n".to_owned();
        finals_table(&mut text, &candidates, &finals);
        text.push('\n');
        text.push_str(&plot::terminal(&forecasts, &candidates));
        text.push_str(&recommendation(config, &candidates, &finals));
        observer.result(text.trim_end()).map_err(Error::Output)?;
        if let Some(path) = &config.plot {
            let svg = plot::svg(&forecasts, &finals, &candidates);
            std::fs::write(path, svg).map_err(Error::writing(path))?;
            observer.note(&format!("plot written to {}", path.display()));
        }
        Ok(())
    }

    /// Target and drafters, and the prompts as the target reads them.
    fn load_all(
        &self,
        prompts: &[Prompt],
        models: &mut dyn Models,
    ) -> Result<(Bench<'a>, Vec<Vec<Token>>)> {
        let config = self.config;
        self.observer.expect_files(1 + config.drafts.len());
        let target = models.target()?;
        let (slots, paths) = (NonZeroU32::MIN, config.paths);
        let shape = EngineShape { context_len: None, slots, paths };
        let Parts { engine, drafters } = models.parts(&shape, paths)?;
        let context_len = engine.context_len();
        let decoder = Decoder::new(engine, drafters)?;
        let prompts = prompt_tokens(prompts, &target, config.text_len, context_len)?;
        let sampling = config.sampling.for_vocab(&*target.vocab)?;
        self.observer.show(1.0, "timing passes");
        let bench =
            Bench::new(decoder, target.vocab, sampling, config.text_len, self.cancellation)?;
        Ok((bench, prompts))
    }
}

/// What is tried, in the order of the drafters.
fn candidates(config: &TuneConfig) -> Vec<Candidate> {
    let model = |path: &PathBuf| Candidate {
        name: file_name(path).trim_end_matches(".gguf").to_owned(),
        flags: vec!["--spec-draft-model".to_owned(), path.display().to_string()],
        is_model: true,
    };
    let looking_up = |kind: DrafterKind| Candidate {
        name: kind.name().to_owned(),
        flags: vec!["--spec-type".to_owned(), kind.name().to_owned()],
        is_model: false,
    };
    config.drafts.iter().map(model).chain(TuneConfig::LOOKING_UP.map(looking_up)).collect()
}

fn prompt_tokens(
    prompts: &[Prompt],
    target: &Target,
    text_len: usize,
    context_len: usize,
) -> Result<Vec<Vec<Token>>> {
    let texts = prompts::in_chat_format(prompts, target.chat_template.as_deref())?;
    let mut all = Vec::new();
    for text in &texts {
        let tokens = target.vocab.tokenize(text, Special::Parse).map_err(Error::Prompt)?;
        if tokens.is_empty() || tokens.len() + text_len > context_len {
            return Err(Error::refused(format!(
                "a prompt of {} tokens and {text_len} more do not fit a context of {context_len}: \
                 raise --ctx-size or leave it out",
                tokens.len(),
            )));
        }
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
    for (drafter, curve) in &costs.drafters {
        row(&candidates[drafter.0].name, curve);
    }
    text.push('\n');
}

#[cfg(test)]
mod tests;
