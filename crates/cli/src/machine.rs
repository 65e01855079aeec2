//! Where a run takes place, and with what: what a report needs so that nobody compares the wrong
//! things.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::terminal::file_name;

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
pub(crate) struct Machine {
    /// The processor, where the system says so.
    pub(crate) processor: Option<String>,
    /// Threads it runs at once.
    pub(crate) threads: usize,
    /// Its memory, where the system says so.
    pub(crate) memory_bytes: Option<u64>,
    /// The operating system.
    pub(crate) system: String,
    /// The kind of processor.
    pub(crate) architecture: String,
}

/// What ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Build {
    /// Of Forerun.
    pub(crate) version: String,
    /// The commit, where the builder named it.
    pub(crate) commit: Option<String>,
    /// `release` or `debug`.
    pub(crate) profile: String,
    /// The library llama.cpp came with.
    pub(crate) llama: String,
    /// What llama.cpp uses of the processor.
    pub(crate) processor_features: String,
}

/// This machine.
pub(crate) fn machine() -> Machine {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let processor = after(&read("/proc/cpuinfo"), "model name").map(str::to_owned);
    let memory = read("/proc/meminfo");
    let kibibytes =
        after(&memory, "MemTotal").and_then(|size| size.split(' ').next()?.parse().ok());
    Machine {
        processor,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        memory_bytes: kibibytes.map(|size: u64| 1024 * size),
        system: std::env::consts::OS.to_owned(),
        architecture: std::env::consts::ARCH.to_owned(),
    }
}

/// What stands after a name and a colon.
fn after<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_once(':').map(|(_, value)| value.trim())
}

/// This program. Whoever builds it may name the commit in `FORERUN_COMMIT`.
pub(crate) fn build() -> Build {
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    Build {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: option_env!("FORERUN_COMMIT").map(str::to_owned),
        profile: profile.to_owned(),
        llama: forerun_llama::BINDING.to_owned(),
        processor_features: forerun_llama::system_info(),
    }
}

/// A file of weights and what is in it.
///
/// # Errors
/// Where it cannot be read, or Ctrl-C was pressed.
pub(crate) fn model_file(
    path: &Path,
    interrupt: &Interrupt,
    progress: &Progress,
) -> anyhow::Result<ModelFile> {
    let read = || -> anyhow::Result<ModelFile> {
        let mut file = File::open(path)?;
        let all = file.metadata()?.len().max(1) as f64;
        let (mut hash, mut bytes) = (Sha256::new(), 0u64);
        let mut buffer = vec![0; 1 << 20];
        loop {
            let count = file.read(&mut buffer)?;
            if count == 0 {
                break;
            }
            anyhow::ensure!(!interrupt.is_pressed(), "interrupted");
            hash.update(&buffer[..count]);
            bytes += count as u64;
            progress.file("hashing", path, bytes as f64 / all);
        }
        Ok(ModelFile { name: file_name(path), bytes, sha256: hex(&hash.finalize()) })
    };
    read().with_context(|| format!("cannot read {}", path.display()))
}

/// The SHA-256 of a text.
pub(crate) fn sha256(text: &[u8]) -> String {
    hex(&Sha256::digest(text))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Today, in Greenwich.
#[expect(clippy::disallowed_methods, reason = "a report says when it was made, and nothing else")]
pub(crate) fn today() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    forerun_decode::date(since)
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
