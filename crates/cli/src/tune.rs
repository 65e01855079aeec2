//! `forerun tune`: which drafter, how many paths and how long, on this machine and these prompts.
//!
//! Every candidate drafts for the same prompts, taking turns with plain decoding. From what is
//! accepted and what passes cost it forecasts every length, then runs the best setting of each
//! drafter, and the controller, beside plain decoding. What is not faster is not recommended.

mod plot;
mod trial;

use std::fmt::Write as _;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use forerun_decode::{
    Arm, Controller, CostCurve, Decoder, Drafter, Engine, NgramDrafter, Special, Stats,
    SuffixDrafter, Token, Tokenizer,
};
use forerun_llama::EngineOptions;
use indicatif::{ProgressBar, ProgressStyle};

use crate::flags::{
    ConfigError, ContextLen, DraftModelConfig, EngineFlags, ModelConfig, OutputConfig,
    SamplingConfig, SamplingFlags,
};
use crate::interrupt::Interrupt;
use crate::load;
use crate::prompts;
use crate::report::milliseconds;
use crate::terminal::{Screen, file_name};

use trial::{Bench, Forecasts, Setting};

/// A setting that gains less is not worth recommending.
const WORTH: f64 = 1.02;

/// What to tune, as given.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct TuneFlags {
    /// GGUF file of the target
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// GGUF file of a draft model to try; may be given several times [-md]
    #[arg(long, visible_aliases = ["model-draft", "spec-draft-model"], value_name = "FILE")]
    draft: Vec<PathBuf>,
    /// File of prompts: a JSON object with "prompt" on each line, or a prompt on each line
    /// [default: five built-in ones]
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// Tokens of each text
    #[arg(short = 'n', long, default_value_t = 64, value_name = "N")]
    predict: usize,
    /// Longest draft to try
    #[arg(long, visible_alias = "draft-max", default_value_t = 8, value_name = "N")]
    spec_draft_n_max: usize,
    /// Most paths of a draft model to try
    #[arg(long, visible_alias = "draft-paths", default_value_t = 2, value_name = "K")]
    spec_draft_paths: usize,
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
    prompts: Option<PathBuf>,
    text_len: usize,
    len_max: usize,
    paths: usize,
    plot: Option<PathBuf>,
    sampling: SamplingConfig,
}

impl TuneFlags {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let config = self.resolve()?;
        let interrupt = Interrupt::install()?;
        interrupt.or_stopped(tune(&config, &interrupt))
    }

    fn resolve(self) -> Result<TuneConfig, ConfigError> {
        let within = |flag, value: usize, most: usize| {
            if (1..=most).contains(&value) {
                return Ok(value);
            }
            let expected = format!("1 to {most}");
            Err(ConfigError::OutOfRange { flag, value: value.to_string(), expected })
        };
        let (target, context) = self.engine.resolve(self.model)?;
        Ok(TuneConfig {
            target,
            context,
            drafts: self.draft,
            prompts: self.prompts,
            text_len: within("--predict", self.predict, 4096)?,
            len_max: within("--spec-draft-n-max", self.spec_draft_n_max, 16)?,
            paths: within("--spec-draft-paths", self.spec_draft_paths, 8)?,
            plot: self.plot,
            sampling: self.sampling.resolve()?,
        })
    }
}

/// A drafter to try: its name for people, and the flags that choose it.
struct Candidate {
    name: String,
    flags: String,
    is_model: bool,
}

fn tune(config: &TuneConfig, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
    let mut screen = Screen::new(&OutputConfig::notes());
    let model = load::load_model("target", &config.target, interrupt)?;
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
        let (drafter, _) = load::draft_model(&draft, &model, &room, interrupt, &mut screen)?;
        drafters.push(Box::new(drafter));
        let flags = format!("--spec-draft-model {}", path.display());
        candidates.push(Candidate { name: file_name(path), flags, is_model: true });
    }
    let found: [(&str, Box<dyn Drafter>); 2] = [
        ("ngram", Box::new(NgramDrafter::default())),
        ("suffix", Box::new(SuffixDrafter::default())),
    ];
    for (name, drafter) in found {
        drafters.push(drafter);
        let flags = format!("--spec-type {name}");
        candidates.push(Candidate { name: name.to_owned(), flags, is_model: false });
    }
    let context_len = target.context_len();
    let decoder = Decoder::new(Box::new(target), drafters)?;
    let prompts = prompt_tokens(config, &model, context_len)?;
    let sampling = load::sampling(&config.sampling, &model)?;
    let mut bench = Bench::new(decoder, &model, sampling, config.text_len, interrupt)?;

    let forecasts = survey(config, &candidates, &prompts, &mut bench)?;
    let mut text = String::new();
    costs_table(&mut text, &candidates, &bench);
    for forecast in &forecasts {
        forecast.table(&mut text, &candidates[forecast.setting.drafter].name);
    }
    screen.result(text.trim_end())?;

    let finalists = finalists(&forecasts);
    let finals = finals(config, &finalists, &prompts, &mut bench)?;
    let mut text = String::new();
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
    Ok(ExitCode::SUCCESS)
}

fn prompt_tokens(
    config: &TuneConfig,
    model: &forerun_llama::Model,
    context_len: usize,
) -> anyhow::Result<Vec<Vec<Token>>> {
    let prompts = config.prompts.as_deref().map_or_else(|| Ok(prompts::few()), prompts::file)?;
    let texts = prompts::in_chat_format(&prompts, model)?;
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

/// Every drafter at its longest, for each width, taking turns with plain decoding, which tells what
/// a pass over one token takes now.
fn survey(
    config: &TuneConfig,
    candidates: &[Candidate],
    prompts: &[Vec<Token>],
    bench: &mut Bench<'_>,
) -> anyhow::Result<Vec<Forecasts>> {
    let mut settings = Vec::new();
    for (drafter, candidate) in candidates.iter().enumerate() {
        let widths = if candidate.is_model { config.paths } else { 1 };
        settings.extend((1..=widths).map(|width| Setting { drafter, width, len: config.len_max }));
    }
    let bar = bar("trying drafters", prompts.len() * (settings.len() + 1));
    let mut seen = vec![Stats::default(); settings.len()];
    for (index, prompt) in prompts.iter().enumerate() {
        let seed = config.sampling.seed.wrapping_add(index as u64);
        bench.text(prompt, None, seed)?;
        bar.inc(1);
        for (setting, stats) in settings.iter().zip(&mut seen) {
            stats.merge(&bench.text(prompt, Some(*setting), seed)?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let prompt_len = prompts.iter().map(Vec::len).sum::<usize>() / prompts.len();
    let forecasts = settings.into_iter().zip(seen).map(|(setting, stats)| {
        Forecasts::new(setting, stats, bench.costs(), prompt_len, config.text_len)
    });
    Ok(forecasts.collect())
}

/// The best setting of each drafter by forecast, unless it is hopeless.
fn finalists(forecasts: &[Forecasts]) -> Vec<(Setting, f64)> {
    let mut best: Vec<(Setting, f64)> = Vec::new();
    for forecast in forecasts {
        let (len, speedup) = forecast.best();
        let setting = Setting { len, ..forecast.setting };
        match best.iter_mut().find(|(known, _)| known.drafter == setting.drafter) {
            Some(known) if known.1 < speedup => *known = (setting, speedup),
            Some(_) => {}
            None => best.push((setting, speedup)),
        }
    }
    best.retain(|(_, speedup)| *speedup > 0.9);
    best
}

/// A setting that was run beside plain decoding.
struct Final {
    setting: Setting,
    /// Whether the controller chose how much of it to use.
    adaptive: bool,
    forecast: f64,
    measured: f64,
    stats: Stats,
}

impl Final {
    /// What both forecast and measurement promise: a measured gain that nothing explains is noise.
    fn gain(&self) -> f64 {
        self.measured.min(self.forecast)
    }
}

/// Runs the finalists, and the controller with the most promising of them, beside plain decoding.
fn finals(
    config: &TuneConfig,
    finalists: &[(Setting, f64)],
    prompts: &[Vec<Token>],
    bench: &mut Bench<'_>,
) -> anyhow::Result<Vec<Final>> {
    let Some((best, _)) = finalists.iter().max_by(|one, other| one.1.total_cmp(&other.1)) else {
        return Ok(Vec::new());
    };
    let arm = |width| Arm { drafters: vec![best.drafter], width };
    let arms = (1..=best.width).map(arm).collect();
    let mut controller = Controller::new(bench.costs().clone(), arms, config.len_max);
    let bar = bar("measuring the best", prompts.len() * (finalists.len() + 2));
    let (mut plain, mut adaptive) = (Stats::default(), Stats::default());
    let mut fixed = vec![Stats::default(); finalists.len()];
    for (index, prompt) in prompts.iter().enumerate() {
        let seed = config.sampling.seed.wrapping_add((prompts.len() + index) as u64);
        plain.merge(&bench.text(prompt, None, seed)?);
        bar.inc(1);
        for ((setting, _), stats) in finalists.iter().zip(&mut fixed) {
            stats.merge(&bench.text(prompt, Some(*setting), seed)?);
            bar.inc(1);
        }
        adaptive.merge(&bench.adaptive(prompt, &mut controller, seed)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let rate = plain.tokens_per_second();
    let result = |setting, adaptive, forecast, stats: Stats| {
        let measured = stats.tokens_per_second() / rate;
        Final { setting, adaptive, forecast, measured, stats }
    };
    let fixed = finalists.iter().zip(fixed);
    let fixed = fixed.map(|((setting, forecast), stats)| result(*setting, false, *forecast, stats));
    let mut finals: Vec<Final> = fixed.collect();
    finals.push(result(*best, true, adaptive.expected_speedup(), adaptive));
    Ok(finals)
}

fn bar(what: &'static str, count: usize) -> ProgressBar {
    let bar = ProgressBar::new(count as u64);
    let style = ProgressStyle::with_template("{msg} [{bar:24}] {pos}/{len} texts, {eta} left");
    bar.set_style(style.expect("the template is right").progress_chars("=> "));
    bar.set_message(what);
    bar
}

fn costs_table(text: &mut String, candidates: &[Candidate], bench: &Bench<'_>) {
    let costs = bench.costs();
    text.push_str("What a pass takes, by its tokens (ms)\n");
    let mut row = |name: &str, curve: &CostCurve| {
        writeln!(text, "  {name:<34} {}", milliseconds(curve)).expect("strings take all text");
    };
    row("target", &costs.target);
    for (candidate, curve) in candidates.iter().zip(&costs.drafters) {
        if let Some(curve) = curve {
            row(&candidate.name, curve);
        }
    }
    text.push('\n');
}

fn finals_table(text: &mut String, candidates: &[Candidate], finals: &[Final]) {
    if finals.is_empty() {
        text.push_str("No setting is worth measuring: none comes near plain decoding.\n");
        return;
    }
    text.push_str("Speed-up over plain decoding\n");
    let head = format!("  {:<44} forecast  measured  tokens/round\n", "setting");
    text.push_str(&head);
    for result in finals {
        let drafter = &candidates[result.setting.drafter].name;
        let name = match result.adaptive {
            true => format!("{drafter}, adaptive"),
            false => result.setting.name(drafter),
        };
        let forecast = format!("{:.2}", result.forecast);
        let (measured, per_round) = (result.measured, result.stats.tokens_per_round());
        writeln!(text, "  {name:<44} {forecast:>8}  {measured:>8.2}  {per_round:>12.2}")
            .expect("strings take all text");
    }
}

/// The setting to recommend, if any.
fn best(finals: &[Final]) -> Option<&Final> {
    let best = finals.iter().max_by(|one, other| one.gain().total_cmp(&other.gain()));
    best.filter(|best| best.gain() >= WORTH)
}

/// What to do, with the exact flags.
fn recommendation(config: &TuneConfig, candidates: &[Candidate], finals: &[Final]) -> String {
    let target = config.target.path.display();
    let Some(best) = best(finals) else {
        let gain = 100.0 * (WORTH - 1.0);
        return format!(
            "\nRecommendation: no drafts. Nothing that was tried is more than {gain:.0} % faster than \
             plain decoding here.\n  forerun chat -m {target}\n"
        );
    };
    let setting = best.setting;
    let mut flags = format!(" {}", candidates[setting.drafter].flags);
    if setting.width > 1 {
        write!(flags, " --spec-draft-paths {}", setting.width).expect("strings take all text");
    }
    let len = if best.adaptive { config.len_max } else { setting.len };
    write!(flags, " --spec-draft-n-max {len}").expect("strings take all text");
    if !best.adaptive {
        flags.push_str(" --spec-adaptive off");
    }
    format!(
        "\nRecommendation: {:.2} times plain decoding as measured\n  forerun chat -m {target}{flags}\n",
        best.measured
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(forecast: f64, measured: f64) -> Final {
        let setting = Setting { drafter: 0, width: 1, len: 1 };
        Final { setting, adaptive: false, forecast, measured, stats: Stats::default() }
    }

    #[test]
    fn what_is_not_both_forecast_and_measured_to_be_faster_is_not_recommended() {
        assert!(best(&[]).is_none());
        assert!(best(&[tried(1.4, 0.97), tried(0.98, 1.16)]).is_none());
        let finals = [tried(1.4, 1.3), tried(0.98, 1.5), tried(1.2, 1.4)];
        assert_eq!(best(&finals).map(|best| best.measured), Some(1.3));
    }
}
