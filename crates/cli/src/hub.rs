//! `forerun pull`, `models` and `rm`: models by name, and those that are here already.

use std::process::ExitCode;

use forerun_hub::{Cache, Hub, LocalModel, ModelName, Request, Store, Want};
use forerun_lab::bytes;

use crate::download::Bar;
use crate::flags::{AccessFlags, ConfigError, OutputConfig};
use crate::plain::plain;
use crate::terminal::Screen;

/// What to bring, as given.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
Examples:
  forerun pull ggml-org/SmolLM3-3B-GGUF          the usual quantisation, Q4_K_M
  forerun pull ggml-org/SmolLM3-3B-GGUF:Q8_0     another one")]
pub(crate) struct PullFlags {
    /// Repository on the hub, and the quantisation
    #[arg(value_name = "USER/REPO[:QUANT]")]
    name: ModelName,
    /// File to download, instead of a quantisation [-hff]
    #[arg(long, value_name = "FILE")]
    hf_file: Option<String>,
    #[command(flatten)]
    access: AccessFlags,
}

impl PullFlags {
    /// Runs the command: the file's place is the result.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let settings = self.access.settings()?;
        let want = self.hf_file.map_or(Want::Model, Want::File);
        let request = Request { name: self.name, want };
        let fetched = Hub::new(&settings).fetch(&request, &mut Bar::default());
        let fetched = fetched.map_err(ConfigError::from)?;
        let mut screen = Screen::new(&OutputConfig::notes());
        let size = bytes(fetched.size);
        screen.note(&match (fetched.downloaded, settings.offline) {
            (0, true) => format!("{size}, in the cache; the hub was not asked"),
            (0, false) => format!("{size}, in the cache already"),
            _ => format!("{size}, checked and in the cache"),
        });
        screen.result(&fetched.location.display().to_string())?;
        Ok(ExitCode::SUCCESS)
    }
}

/// What to list, as given.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ModelsFlags {
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

impl ModelsFlags {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let settings = AccessFlags::default().settings()?;
        let models = LocalModel::all(&settings);
        let mut screen = Screen::new(&OutputConfig::notes());
        if self.json {
            screen.result(&serde_json::to_string_pretty(&models)?)?;
            return Ok(ExitCode::SUCCESS);
        }
        if models.is_empty() {
            let cache = settings.cache.display();
            screen.note(&format!(
                "no models in {cache}, in Ollama's store or in LM Studio's folder: bring one with \
                 `forerun pull USER/REPO`"
            ));
        }
        for group in models.chunk_by(|a, b| a.store == b.store) {
            let (title, hint) = match group[0].store {
                Store::Hub => ("Hub cache", "-hf NAME"),
                Store::Ollama => ("Ollama", "-m FILE"),
                _ => ("LM Studio", "-m FILE"),
            };
            screen.result(&format!("{title} (use with {hint}):"))?;
            for model in group {
                screen.result(&plain(&line(model)))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn line(model: &LocalModel) -> String {
    let size = bytes(model.size);
    let head = if model.is_head { ", draft head" } else { "" };
    match model.store {
        Store::Hub => format!("  {}  {size}{head}", model.name),
        _ => format!("  {}  {size}{head}\n    {}", model.name, model.location.display()),
    }
}

/// What to remove, as given.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct RemoveFlags {
    /// Repository, and the quantisation; without it, all GGUF files of the repository
    #[arg(value_name = "USER/REPO[:QUANT]")]
    name: ModelName,
}

impl RemoveFlags {
    /// Runs the command. Only the hub's cache is changed.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let cache = Cache::new(AccessFlags::default().settings()?.cache);
        let removed = cache.remove(&self.name).map_err(ConfigError::from)?;
        let mut screen = Screen::new(&OutputConfig::notes());
        for file in &removed.files {
            screen.result(&plain(&format!("removed {file}")))?;
        }
        screen.note(&format!("{} are free again", bytes(removed.bytes)));
        if removed.rest {
            screen.note(&format!("other files of {} were kept", self.name.repo));
        }
        Ok(ExitCode::SUCCESS)
    }
}
