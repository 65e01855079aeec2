//! `forerun generate`: continues a text.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use forerun_decode::Special;

use crate::flags::{RunConfig, RunFlags, unescape};
use crate::interrupt::{self, Interrupt};
use crate::load::load;
use crate::report::Report;
use crate::stream::{Ending, Writer};
use crate::terminal::Screen;

/// What continues, as given.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct GenerateFlags {
    /// Prompt to complete
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    prompt: Option<String>,
    /// File with the prompt, or - for standard input; a final line break is removed
    #[arg(short, long)]
    file: Option<PathBuf>,
    /// Treat control tokens in the prompt, such as <|im_start|>, as plain text
    #[arg(long)]
    no_parse_special: bool,
    #[command(flatten)]
    run: RunFlags,
}

impl GenerateFlags {
    #[cfg(test)]
    pub(crate) fn run_flags(self) -> RunFlags {
        self.run
    }

    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let escape = self.run.text.escape;
        let config = self.run.resolve()?;
        let prompt = match &self.file {
            Some(path) => read_text(path)?,
            None => unescape(escape, self.prompt.unwrap_or_default()),
        };
        let special = if self.no_parse_special { Special::AsText } else { Special::Parse };
        // Only now: while a prompt is typed, Ctrl-C is the system's.
        let interrupt = Interrupt::install()?;
        interrupt.or_stopped(generate(&config, &prompt, special, &interrupt))
    }
}

fn generate(
    config: &RunConfig,
    prompt: &str,
    special: Special,
    interrupt: &Interrupt,
) -> anyhow::Result<ExitCode> {
    let mut screen = Screen::new(&config.output);
    let loaded = load(config, interrupt, &mut screen)?;
    let prompt = loaded.prompt(prompt, special)?;
    screen.legend();
    let mut writer = Writer::new(loaded, config, interrupt);
    let text = writer.write(prompt, &mut screen)?;
    let report = Report { config, loaded: &writer.loaded, text: &text };
    if config.output.json {
        screen.result(&report.json())?;
    } else {
        screen.end_text()?;
        screen.stats(&report.after_text());
    }
    Ok(match text.ending {
        Ending::Finished(_) => ExitCode::SUCCESS,
        Ending::Interrupted => ExitCode::from(interrupt::EXIT_CODE),
    })
}

/// The text of a file, or of standard input for `-`, less a line end at its end.
pub(crate) fn read_text(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    if path == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
    } else {
        text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
    }
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}
