//! `forerun tune`: what can be said to it, and what it means. What it does is in the lab.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use forerun_lab::tune::{self, Said, TuneConfig};
use forerun_lab::{Limit, Span};

use crate::download::say;
use crate::flags::{
    ConfigError, DrafterConfig, EngineFlags, HubFlags, SamplingFlags, TargetFlags, candidates,
    is_auto, within,
};
use crate::interrupt::{EXIT_CODE, Interrupt};
use crate::lab::{Console, Gguf, GgufConfig};

/// Tokens of each text, and what the command may take.
const TEXT_LEN: usize = 64;
const TIME_LIMIT: Duration = Duration::from_secs(600);

/// The same for a first impression.
const QUICK_TEXT_LEN: usize = 32;
const QUICK_TIME_LIMIT: Duration = Duration::from_secs(60);

/// Most draft models that are tried of those that were found.
const FOUND_MAX: usize = 3;

/// What to tune, as given.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct TuneFlags {
    #[command(flatten)]
    target: TargetFlags,
    /// GGUF file of a draft model to try; may be repeated; auto for those that are found with the
    /// target's vocabulary, here and on the hub
    #[arg(long, visible_aliases = ["model-draft", "spec-draft-model"], value_name = "FILE")]
    draft: Vec<PathBuf>,
    /// File with prompts: each line is a prompt, or a JSON object with "prompt" [default: five
    /// built-in prompts]
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// Tokens per output [default: 64; 32 with --quick]
    #[arg(short = 'n', long, value_name = "N")]
    predict: Option<usize>,
    /// Maximum draft length to try
    #[arg(long, visible_alias = "draft-max", default_value_t = 8, value_name = "N")]
    spec_draft_n_max: usize,
    /// Maximum number of paths of a draft model to try
    #[arg(long, visible_alias = "draft-paths", default_value_t = 2, value_name = "K")]
    spec_draft_paths: u32,
    /// Stop after this time, such as 90s, 15m or 1h30m, including loading; acceptance is measured
    /// in the first half of it [default: 10m; 1m with --quick]
    #[arg(long, value_name = "TIME")]
    time_limit: Option<Span>,
    /// Get a first impression within a minute: three prompts, short outputs
    #[arg(long)]
    quick: bool,
    /// Write a plot of speedup against draft length to this SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineFlags,
    #[command(flatten)]
    sampling: SamplingFlags,
}

impl TuneFlags {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let (config, gguf) = self.resolve()?;
        let (interrupt, console) = (Interrupt::install()?, Console::new());
        let mut models = Gguf::new(&gguf, &interrupt, &console);
        let tuned = tune::run(&config, &mut models, &console, interrupt.cancellation());
        let code = |()| match interrupt.is_users() {
            true => ExitCode::from(EXIT_CODE),
            false => ExitCode::SUCCESS,
        };
        interrupt.or_stopped(tuned.map(code))
    }

    /// Decides every default. The time starts to count.
    fn resolve(self) -> Result<(TuneConfig, GgufConfig), ConfigError> {
        let (time, text_len) = match self.quick {
            true => (QUICK_TIME_LIMIT, QUICK_TEXT_LEN),
            false => (TIME_LIMIT, TEXT_LEN),
        };
        let said = Said {
            engine: self.engine.said(),
            draft: self.engine.said_of_draft(),
            sampling: self.sampling.said(),
        };
        let hub = self.target.hub();
        let (target, context) = self.engine.resolve(self.target.path()?)?;
        let drafts = found(self.draft, &target.path, &hub)?;
        let text_len = within("--predict", self.predict.unwrap_or(text_len), 1..=4096)?;
        let len_max = within("--spec-draft-n-max", self.spec_draft_n_max, 1..=16)?;
        let paths = within("--spec-draft-paths", self.spec_draft_paths, 1..=8)?;
        let model = |path: &PathBuf| DrafterConfig::like_target(path.clone(), &target);
        let looked_up = TuneConfig::LOOKING_UP.into_iter().filter_map(DrafterConfig::looking_up);
        let drafters = drafts.iter().map(model).chain(looked_up).collect();
        let config = TuneConfig {
            target: target.path.clone(),
            drafts,
            prompts: self.prompts,
            text_len,
            len_max,
            paths: NonZeroU32::new(paths).expect("1 or more"),
            limit: Limit::from_now(self.time_limit.map_or(time, Span::duration)),
            quick: self.quick,
            plot: self.plot,
            sampling: self.sampling.resolve()?,
            said,
        };
        Ok((config, GgufConfig { target, context, drafters }))
    }
}

/// The draft models to try, with those that are found instead of `auto`.
fn found(drafts: Vec<PathBuf>, target: &Path, hub: &HubFlags) -> Result<Vec<PathBuf>, ConfigError> {
    let mut all = Vec::new();
    for draft in drafts {
        if is_auto(&draft) {
            let found = candidates(target, hub)?.into_iter().map(|found| found.path);
            let found: Vec<PathBuf> = found.take(FOUND_MAX).collect();
            if found.is_empty() {
                say(
                    "no draft model was found that has the target's vocabulary and at most half its size",
                );
            }
            all.extend(found);
        } else {
            all.push(draft);
        }
    }
    Ok(all)
}

#[cfg(test)]
#[path = "../tests/line/tune.rs"]
mod tests;
