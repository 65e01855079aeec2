//! Where a run takes place, and with what: what a report needs so that nobody compares the wrong
//! things.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::cancellation::Cancellation;
use crate::error::{Error, Result};
use crate::observer::Observer;
use crate::words::file_name;

/// A file of weights. Its folder is nobody's business.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ModelFile {
    /// The file's name.
    pub(crate) name: String,
    /// Its size.
    pub(crate) bytes: u64,
    /// Its content; of a model in several files, the first.
    pub(crate) sha256: String,
}

/// Where a run took place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor, where the system says so.
    pub processor: Option<String>,
    /// Threads it runs at once.
    pub threads: usize,
    /// Its memory, where the system says so.
    pub memory_bytes: Option<u64>,
    /// The operating system.
    pub system: String,
    /// The kind of processor.
    pub architecture: String,
}

/// What ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Build {
    /// Of Forerun.
    pub version: String,
    /// The commit, where the builder named it.
    pub commit: Option<String>,
    /// `release` or `debug`.
    pub profile: String,
    /// The library llama.cpp came with.
    pub llama: String,
    /// What llama.cpp uses of the processor.
    pub processor_features: String,
}

/// How models are run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EngineRecord {
    /// Tokens of context.
    pub context_len: usize,
    /// Threads for a pass over one token.
    pub threads: u32,
    /// Threads for a pass over several.
    pub threads_batch: u32,
    /// llama.cpp's `n_batch`.
    pub batch_len: u32,
    /// llama.cpp's `n_ubatch`.
    pub pass_len: u32,
    /// Most paths of a draft that the caches hold.
    pub paths: u32,
    /// Number formats of cached keys and values, where they were named.
    pub cache_keys: Option<String>,
    /// See `cache_keys`.
    pub cache_values: Option<String>,
    /// Fused attention.
    pub flash_attention: String,
    /// Layers on a GPU, where there is one.
    pub gpu_layers: String,
    /// How files come into memory.
    pub load_mode: String,
}

/// When, where and with what a run took place.
#[derive(Debug, Clone)]
pub struct Provenance {
    /// The day, in Greenwich, as in 2026-01-31.
    pub date: String,
    /// Where.
    pub machine: Machine,
    /// What ran.
    pub build: Build,
}

impl Provenance {
    /// On this machine, on this day.
    pub fn here(date: String, build: Build) -> Self {
        Self { date, machine: Machine::here(), build }
    }
}

impl Machine {
    /// This machine.
    pub fn here() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let processor = after(&read("/proc/cpuinfo"), "model name").map(str::to_owned);
        let memory = read("/proc/meminfo");
        let kibibytes =
            after(&memory, "MemTotal").and_then(|size| size.split(' ').next()?.parse().ok());
        Self {
            processor,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: kibibytes.map(|size: u64| 1024 * size),
            system: std::env::consts::OS.to_owned(),
            architecture: std::env::consts::ARCH.to_owned(),
        }
    }
}

/// What stands after a name and a colon.
fn after<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_once(':').map(|(_, value)| value.trim())
}

/// A file of weights and what is in it.
///
/// # Errors
/// Where it cannot be read, or Ctrl-C was pressed.
pub(crate) fn model_file(
    path: &Path,
    cancellation: &Cancellation,
    observer: &dyn Observer,
) -> Result<ModelFile> {
    let failed = |source| Error::File { doing: "read", path: path.to_owned(), source };
    let mut file = File::open(path).map_err(failed)?;
    let all = file.metadata().map_err(failed)?.len().max(1) as f64;
    let (mut hash, mut bytes) = (Sha256::new(), 0u64);
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = file.read(&mut buffer).map_err(failed)?;
        if count == 0 {
            break;
        }
        cancellation.check()?;
        hash.update(&buffer[..count]);
        bytes += count as u64;
        observer.file("hashing", path, bytes as f64 / all);
    }
    Ok(ModelFile { name: file_name(path), bytes, sha256: hex(&hash.finalize()) })
}

/// The SHA-256 of a text.
pub(crate) fn sha256(text: &[u8]) -> String {
    hex(&Sha256::digest(text))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_standard_s() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(sha256(b""), empty);
    }

    #[test]
    fn the_system_s_lines_are_found() {
        let text = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n";
        assert_eq!(after(text, "model name"), Some("Some CPU @ 2 GHz"));
        assert_eq!(after(text, "MemTotal"), None);
    }
}
