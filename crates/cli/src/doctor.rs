//! `forerun doctor`: what machine, which build, what models, and what is wrong with them.
//!
//! Nothing is downloaded and no model is loaded. The JSON is for bug reports: it has no token, and
//! the home folder is written as `~`.

mod findings;

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory as _;
use forerun_hub::{Cache, LocalModel, Settings};
use forerun_lab::{Build, Machine, bytes};
use forerun_llama::Model;
use serde::Serialize;

use crate::config::{self, Source};
use crate::flags::{AccessFlags, OutputConfig};
use crate::lab::provenance;
use crate::plain::plain;
use crate::terminal::Screen;
use findings::Finding;

/// What to examine, as given.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct DoctorFlags {
    /// Print a JSON object, for bug reports and programs
    #[arg(long)]
    json: bool,
}

/// What was found.
#[derive(Debug, Serialize)]
struct Examination {
    build: Build,
    /// What the build can use beside the processor.
    gpu: Vec<&'static str>,
    machine: Machine,
    /// Bytes that programs could take now.
    memory_available_bytes: Option<u64>,
    /// What the processor can do, in the system's words.
    processor_flags: Vec<String>,
    configuration: ConfigurationState,
    hub: Option<HubState>,
    models: Vec<ModelState>,
    /// Variables that are set and heard.
    environment: Vec<String>,
    /// Variables that look as if they were meant for this program, which does not know them.
    environment_ignored: Vec<String>,
    /// What is wrong; the exit status is 1 if there is any.
    problems: Vec<Finding>,
    /// What is good to know.
    notes: Vec<Finding>,
}

/// Where settings come from.
#[derive(Debug, Default, Serialize)]
struct ConfigurationState {
    /// The file that is read.
    file: Option<String>,
    /// Where it would be, if there is none.
    missing: Option<String>,
    /// Why no command but this one runs with it.
    error: Option<String>,
}

/// Where models come from and go to.
#[derive(Debug, Serialize)]
struct HubState {
    endpoint: String,
    has_token: bool,
    offline: bool,
    cache: String,
    /// Why nothing can be written there.
    cache_error: Option<String>,
    free_bytes: Option<u64>,
    /// Downloads that broke off, and the bytes they take.
    partial: (usize, u64),
}

/// A model on this machine.
#[derive(Debug, Serialize)]
struct ModelState {
    #[serde(flatten)]
    model: LocalModel,
    architecture: Option<String>,
    /// Why it cannot be loaded.
    error: Option<String>,
}

impl DoctorFlags {
    /// Runs the command.
    pub(crate) fn run(self, config: Option<&OsStr>) -> anyhow::Result<ExitCode> {
        let examination = Examination::new(config);
        let mut screen = Screen::new(&OutputConfig::notes());
        screen.result(&match self.json {
            true => tilded(&serde_json::to_string_pretty(&examination)?),
            false => plain(&tilded(&examination.text())),
        })?;
        Ok(ExitCode::from(u8::from(!examination.problems.is_empty())))
    }
}

impl Examination {
    fn new(config: Option<&OsStr>) -> Self {
        let provenance = provenance();
        let settings = AccessFlags::default().settings();
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let (processor, memory) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
        let (environment, environment_ignored) = environment();
        let mut examination = Self {
            build: provenance.build,
            gpu: gpu_features(),
            machine: provenance.machine,
            memory_available_bytes: available(&memory),
            processor_flags: flags(&processor),
            configuration: ConfigurationState::new(config),
            hub: settings.as_ref().ok().map(HubState::new),
            models: settings.as_ref().map_or_else(|_| Vec::new(), models),
            environment,
            environment_ignored,
            problems: Vec::new(),
            notes: Vec::new(),
        };
        examination.problems = examination.find_problems();
        if let Err(error) = &settings {
            let advice = "set the variable that is named, or unset it";
            examination.problems.push(Finding::new(error.to_string(), advice));
        }
        examination.notes = examination.find_notes();
        examination
    }

    /// The same for people.
    fn text(&self) -> String {
        let mut out = String::new();
        let unknown = || "unknown".to_owned();
        let Build { version, profile, llama, .. } = &self.build;
        let size = |size: Option<u64>| size.map_or_else(unknown, bytes);
        let lines = [
            ("forerun", format!("{version}, {profile} build, {llama}")),
            ("commit", self.build.commit.clone().unwrap_or_else(unknown)),
            ("processor", self.machine.processor.clone().unwrap_or_else(unknown)),
            ("system", format!("{} on {}", self.machine.system, self.machine.architecture)),
            ("threads", self.machine.threads.to_string()),
            ("memory", {
                let all = size(self.machine.memory_bytes);
                format!("{all}, {} available", size(self.memory_available_bytes))
            }),
            ("llama.cpp uses", self.build.processor_features.trim().to_owned()),
            (
                "GPU",
                if self.gpu.is_empty() { "not in this build".into() } else { self.gpu.join(", ") },
            ),
            ("variables", words(&self.environment)),
            ("configuration", self.configuration.text()),
        ];
        for (name, value) in lines {
            let _ = writeln!(out, "{name:16}{value}");
        }
        if let Some(hub) = &self.hub {
            let token = if hub.has_token { "with a token" } else { "without a token" };
            let offline = if hub.offline { ", offline" } else { "" };
            let _ = writeln!(out, "{:16}{} {token}{offline}", "hub", hub.endpoint);
            let free = size(hub.free_bytes);
            let _ = writeln!(out, "{:16}{}, {free} free", "cache", hub.cache);
        }
        let _ = writeln!(out, "{:16}{}", "models", self.models.len());
        for ModelState { model, architecture, error } in &self.models {
            let kind = architecture.as_deref().unwrap_or("unknown");
            let state = if error.is_some() { ", damaged" } else { "" };
            let _ = writeln!(out, "  {} ({}, {kind}{state})", model.name, bytes(model.size));
        }
        for note in &self.notes {
            let _ = writeln!(out, "\nnote: {}: {}", note.what, note.advice);
        }
        for problem in &self.problems {
            let _ = writeln!(out, "\nproblem: {}\n  {}", problem.what, problem.advice);
        }
        if self.problems.is_empty() {
            let _ = write!(out, "\nno problem was found");
        }
        out.trim_end().to_owned()
    }
}

impl ConfigurationState {
    fn new(named: Option<&OsStr>) -> Self {
        match Source::find(named) {
            Source::None => Self::default(),
            Source::Missing(path) => {
                Self { missing: Some(path.display().to_string()), ..Self::default() }
            }
            Source::File(path) => {
                let error = config::read(&path, &crate::Cli::command()).err();
                Self {
                    file: Some(path.display().to_string()),
                    error: error.map(|error| plain(&format!("{error:#}"))),
                    ..Self::default()
                }
            }
        }
    }

    fn text(&self) -> String {
        match (&self.file, &self.missing) {
            (Some(file), _) => file.clone(),
            (None, Some(file)) => format!("no file; it would be {file}"),
            (None, None) => "no file".to_owned(),
        }
    }
}

impl HubState {
    fn new(settings: &Settings) -> Self {
        let cache = Cache::new(&settings.cache);
        Self {
            endpoint: settings.endpoint.clone(),
            has_token: settings.token.is_some(),
            offline: settings.offline,
            cache: settings.cache.display().to_string(),
            cache_error: cache.check_writable().err().map(|error| plain(&error.to_string())),
            free_bytes: cache.free_bytes(),
            partial: cache.partial(),
        }
    }
}

fn models(settings: &Settings) -> Vec<ModelState> {
    let state = |model: LocalModel| {
        let header = Model::check(&model.location);
        ModelState {
            architecture: header.as_ref().ok().map(|header| header.architecture.clone()),
            error: header.err().map(|error| plain(&error.to_string())),
            model,
        }
    };
    LocalModel::all(settings).into_iter().map(state).collect()
}

fn gpu_features() -> Vec<&'static str> {
    let features = [
        ("cuda", cfg!(feature = "cuda")),
        ("metal", cfg!(feature = "metal")),
        ("rocm", cfg!(feature = "rocm")),
        ("vulkan", cfg!(feature = "vulkan")),
    ];
    features.into_iter().filter(|(_, on)| *on).map(|(name, _)| name).collect()
}

/// What a processor can do, as Linux lists it.
fn flags(processor: &str) -> Vec<String> {
    let line =
        processor.lines().find(|line| line.starts_with("flags") || line.starts_with("Features"));
    let words = line.and_then(|line| line.split_once(':')).map_or("", |(_, words)| words);
    words.split_whitespace().map(str::to_owned).collect()
}

fn available(memory: &str) -> Option<u64> {
    let line = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(1024 * kibibytes)
}

/// What the environment says to this program: what is heard, and what is not.
fn environment() -> (Vec<String>, Vec<String>) {
    let command = crate::Cli::command();
    let heard: Vec<String> = command
        .get_subcommands()
        .flat_map(clap::Command::get_arguments)
        .chain(command.get_arguments())
        .filter_map(|arg| arg.get_env()?.to_str().map(str::to_owned))
        .collect();
    let mut set: Vec<String> =
        std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect();
    set.sort();
    let is_hubs = |name: &str| Settings::VARIABLES.contains(&name);
    let (known, others): (Vec<String>, Vec<String>) =
        set.into_iter().partition(|name| heard.contains(name) || is_hubs(name));
    let ours = |name: &String| name.starts_with("LLAMA_ARG_") || name.starts_with("FORERUN_");
    // Those that tests and builds of this project use.
    let built =
        ["FORERUN_BIN", "FORERUN_CACHE", "FORERUN_MODELS", "FORERUN_PULL", "FORERUN_COMMIT"];
    let ignored = others.into_iter().filter(|name| ours(name) && !built.contains(&&**name));
    (known, ignored.collect())
}

fn words(list: &[String]) -> String {
    if list.is_empty() { "none set".to_owned() } else { list.join(", ") }
}

/// The text with the home folder as `~`: a bug report is public.
fn tilded(text: &str) -> String {
    let home = std::env::home_dir();
    match home.as_deref().and_then(Path::to_str).filter(|home| home.len() > 1) {
        Some(home) => text.replace(home, "~"),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_s_words_are_read() {
        assert_eq!(flags("processor: 0\nflags\t\t: fpu avx2\n"), ["fpu", "avx2"]);
        assert_eq!(flags("Features\t: fp asimddp\n"), ["fp", "asimddp"]);
        assert_eq!(flags(""), Vec::<String>::new());
        assert_eq!(available("MemTotal: 9 kB\nMemAvailable:   2048 kB\n"), Some(2048 * 1024));
        assert_eq!(available("MemTotal: 9 kB\n"), None);
    }
}
