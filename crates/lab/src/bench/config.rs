//! What a benchmark is to do, checked.

use std::path::{Path, PathBuf};

use super::plan::{Drafting, Product};
use super::record::{Config, SCHEMA, Stop};
use super::users::Address;
use crate::error::{Error, Result};
use crate::machine::Provenance;

/// What to measure.
#[derive(Debug, Clone)]
pub struct BenchConfig {
    /// The files to write.
    pub files: Files,
    /// Whether to go on with them.
    pub resume: bool,
    /// Whether to write over them.
    pub force: bool,
    /// Whether a first impression is enough.
    pub quick: bool,
    /// When it is enough.
    pub stop: Stop,
    /// A file of prompts.
    pub prompts: Option<PathBuf>,
    /// The tasks that were named.
    pub tasks: Option<Vec<String>>,
    /// Prompts of each; none where time decides.
    pub prompts_per_task: Option<usize>,
    /// Most prompts of each, where time decides.
    pub prompts_per_task_max: usize,
    /// Tokens of a text.
    pub text_len: usize,
    /// Every setting is run at each.
    pub temperatures: Vec<f32>,
    /// How rows are cut; none where a server decides.
    pub top_k: Option<u32>,
    /// The same.
    pub top_p: Option<f32>,
    /// The same.
    pub min_p: Option<f32>,
    /// Of all random choices.
    pub seed: u64,
    /// When, where and with what it runs.
    pub provenance: Provenance,
}

/// Models of our own.
#[derive(Debug, Clone)]
pub struct LocalConfig {
    /// The target's file.
    pub target: PathBuf,
    /// The draft models' files, in the order of their names.
    pub files: Vec<PathBuf>,
    /// All drafters, draft models first.
    pub drafters: Vec<Drafting>,
    /// What is compared.
    pub product: Product,
}

/// A server.
#[derive(Clone)]
pub struct ServerConfig {
    /// Where.
    pub address: Address,
    /// Users at once.
    pub users: Vec<usize>,
}

/// The files of a run.
#[derive(Debug, Clone)]
pub struct Files {
    /// The report for people.
    pub page: PathBuf,
    /// The report for programs.
    pub data: PathBuf,
    /// Measurements as they are made.
    pub journal: PathBuf,
}

impl BenchConfig {
    /// What is the same for models and servers.
    pub(super) fn record(&self) -> Config {
        Config {
            schema: SCHEMA,
            quick: self.quick,
            target: None,
            drafters: Vec::new(),
            engine: None,
            server: None,
            text_len: self.text_len,
            temperatures: self.temperatures.clone(),
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            seed: self.seed,
            prompts_per_task: self.prompts_per_task,
            prompts: Vec::new(),
            settings: Vec::new(),
            left_out: Vec::new(),
            machine: self.provenance.machine.clone(),
            build: self.provenance.build.clone(),
            stop: self.stop.clone(),
        }
    }
}

/// Refuses to write over what is there.
pub(super) fn not_there(paths: &[&Path]) -> Result<()> {
    if let Some(path) = paths.iter().find(|path| path.exists()) {
        return Err(Error::refused(format!(
            "{} is there already: go on with --resume, name another with --out, or write over it \
             with --force",
            path.display()
        )));
    }
    // Better now than after two hours.
    for folder in paths.iter().filter_map(|path| path.parent()) {
        if !folder.as_os_str().is_empty() && !folder.is_dir() {
            return Err(Error::refused(format!("there is no folder {}", folder.display())));
        }
    }
    Ok(())
}
