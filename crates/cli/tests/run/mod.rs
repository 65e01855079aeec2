//! Runs the program as a user does.
#![allow(dead_code, reason = "each file of tests uses a part of it")]

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The target of all tests.
pub(crate) const TARGET: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// A draft model for it: some of its blocks.
pub(crate) const DRAFT: &str = "SmolLM2-pruned-10+10.gguf";

/// The files that `just models` brings.
const MODELS: &str = include_str!("../../../../models/tests.txt");

/// Where a model is.
///
/// # Panics
/// If it is not there, or `just models` does not bring it.
pub(crate) fn model(name: &str) -> String {
    // Those of the zoo are made, not brought.
    let known = name.starts_with("zoo/") || MODELS.lines().any(|line| line == name);
    assert!(known, "{name} is not listed in models/tests.txt");
    let folder = std::env::var_os("FORERUN_MODELS").map(PathBuf::from).unwrap_or_else(|| {
        let home = std::env::home_dir().expect("a home directory");
        home.join(".cache/forerun/models")
    });
    let path = folder.join(name);
    assert!(path.exists(), "{} is missing: run just models", path.display());
    path.into_os_string().into_string().expect("a path in UTF-8")
}

/// A file that a test leaves behind for the next run to replace; no two tests may share a name, as they
/// run at once.
pub(crate) fn temporary(name: &str, content: &[u8]) -> String {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, content).expect("the target directory can be written");
    path.into_os_string().into_string().expect("a path in UTF-8")
}

/// What came of a run.
pub(crate) struct Run {
    /// Exit code; none after a signal.
    pub(crate) code: Option<i32>,
    /// Standard output.
    pub(crate) out: String,
    /// Standard error.
    pub(crate) err: String,
}

impl From<Output> for Run {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("text in UTF-8");
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

fn command(args: &[impl AsRef<OsStr>]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forerun"));
    // Settings of whoever runs the tests must not become theirs.
    command.env_clear().env("FORERUN_CONFIG", "").args(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs the program to its end.
pub(crate) fn forerun(args: &[impl AsRef<OsStr>]) -> Run {
    command(args).output().expect("the program runs").into()
}

/// Runs it with some variables set.
pub(crate) fn forerun_with(args: &[impl AsRef<OsStr>], variables: &[(&str, &str)]) -> Run {
    command(args).envs(variables.iter().copied()).output().expect("the program runs").into()
}

/// Runs it in a home folder, whose configuration file counts.
pub(crate) fn forerun_at_home(home: &Path, args: &[impl AsRef<OsStr>]) -> Run {
    let mut command = command(args);
    command.env_remove("FORERUN_CONFIG").env("HOME", home);
    command.output().expect("the program runs").into()
}

/// Runs it with something on standard input.
pub(crate) fn forerun_with_input(args: &[impl AsRef<OsStr>], input: &str) -> Run {
    let mut child = command(args).stdin(Stdio::piped()).spawn().expect("the program runs");
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin.write_all(input.as_bytes()).expect("the program reads");
    drop(stdin);
    child.wait_with_output().expect("the program ends").into()
}

/// A run that is not over.
#[cfg(unix)]
pub(crate) struct Running(Child);

#[cfg(unix)]
impl Running {
    /// Starts it.
    pub(crate) fn start(args: &[impl AsRef<OsStr>]) -> Self {
        Self(command(args).spawn().expect("the program runs"))
    }

    /// Waits until a few words are said.
    pub(crate) fn some_text(&mut self) {
        let out = self.0.stdout.as_mut().expect("it is piped");
        out.read_exact(&mut [0; 24]).expect("some text");
    }

    /// Waits until something is said on standard error; gives all of that until then, to the end
    /// of its line.
    pub(crate) fn noted(&mut self, said: &str) -> String {
        let err = self.0.stderr.as_mut().expect("it is piped");
        let (mut text, mut byte) = (Vec::new(), [0]);
        loop {
            err.read_exact(&mut byte).expect("it is said");
            text.push(byte[0]);
            let so_far = String::from_utf8_lossy(&text);
            if byte == *b"\n" && so_far.contains(said) {
                return so_far.into_owned();
            }
        }
    }

    /// Presses Ctrl-C, and says how long that took.
    pub(crate) fn interrupted(self) -> (Run, Duration) {
        let pressed = Instant::now();
        let id = self.0.id().to_string();
        let sent = Command::new("kill").args(["-INT", &id]).status().expect("kill runs");
        assert!(sent.success());
        (self.0.wait_with_output().expect("the program ends").into(), pressed.elapsed())
    }

    /// Closes standard output.
    pub(crate) fn left(mut self) -> Run {
        drop(self.0.stdout.take());
        self.0.wait_with_output().expect("the program ends").into()
    }
}
