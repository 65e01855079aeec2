//! `forerun completions` and `forerun man`: the command line, for shells and for readers.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::Cli;

/// For which shell, as given.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
Examples:
  bash        forerun completions bash > ~/.local/share/bash-completion/completions/forerun
  zsh         forerun completions zsh > \"${fpath[1]}/_forerun\"
  fish        forerun completions fish > ~/.config/fish/completions/forerun.fish
  PowerShell  forerun completions powershell >> $PROFILE")]
pub(crate) struct CompletionsFlags {
    /// Shell to complete commands and flags in
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

impl CompletionsFlags {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "forerun", &mut script);
        std::io::stdout().lock().write_all(&script)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Where manual pages go, as given.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ManFlags {
    /// Folder to write a page for every command to [default: print that of forerun itself, as for
    /// `forerun man | man -l -`]
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
}

impl ManFlags {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let Some(folder) = self.folder else {
            let mut page = Vec::new();
            clap_mangen::Man::new(Cli::command()).render(&mut page)?;
            std::io::stdout().lock().write_all(&page)?;
            return Ok(ExitCode::SUCCESS);
        };
        let write = || -> std::io::Result<()> {
            std::fs::create_dir_all(&folder)?;
            clap_mangen::generate_to(Cli::command(), &folder)
        };
        write().with_context(|| format!("cannot write to {}", folder.display()))?;
        Ok(ExitCode::SUCCESS)
    }
}
