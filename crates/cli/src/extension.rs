//! Commands that are programs of their own, found as git finds its own: `forerun-NAME` beside this
//! program, or else in a folder of `PATH`.
//!
//! They bring what the server is to be without, such as what trains models.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};

/// The command that trains draft models.
const DISTILL: &str = "distill";

/// What the program `forerun-distill` is given.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct DistillFlags {
    /// Flags; --help lists them
    #[arg(value_name = "FLAGS", trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

impl DistillFlags {
    /// The same from a command line that begins with the command: its flags are not for this program
    /// to read.
    pub(crate) fn asked(mut argv: impl Iterator<Item = OsString>) -> Option<Self> {
        argv.nth(1).filter(|command| command == DISTILL)?;
        Some(Self { args: argv.collect() })
    }

    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        start(DISTILL, &self.args)
    }
}

/// Runs the program of a command in place of this one.
fn start(name: &str, args: &[OsString]) -> anyhow::Result<ExitCode> {
    let program = format!("forerun-{name}{}", env::consts::EXE_SUFFIX);
    let Some(path) = find(&program) else {
        bail!(
            "forerun {name} is a program of its own, {program}, which is neither beside this one nor in \
             PATH: install it with cargo install --path {name}"
        );
    };
    let mut command = Command::new(&path);
    command.args(args);
    replaced_by(command).with_context(|| path.display().to_string())
}

fn find(program: &str) -> Option<PathBuf> {
    let own = env::current_exe().ok().and_then(|path| Some(path.parent()?.join(program)));
    let path = env::var_os("PATH").unwrap_or_default();
    let others = env::split_paths(&path).filter(|folder| folder.as_os_str() != OsStr::new(""));
    own.into_iter().chain(others.map(|folder| folder.join(program))).find(|path| path.is_file())
}

/// On Unix nothing is left of this program, so that Ctrl-C reaches the other alone.
#[cfg(unix)]
fn replaced_by(mut command: Command) -> anyhow::Result<ExitCode> {
    use std::os::unix::process::CommandExt;

    Err(command.exec().into())
}

#[cfg(not(unix))]
fn replaced_by(mut command: Command) -> anyhow::Result<ExitCode> {
    let code = command.status()?.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}
