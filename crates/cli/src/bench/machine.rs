//! Where a run takes place, and with what: what a report needs so that nobody compares the wrong
//! things.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::time::UNIX_EPOCH;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest as _, Sha256};

use super::record::{Build, Machine, ModelFile};
use crate::interrupt::Interrupt;
use crate::terminal::file_name;

/// This machine.
pub(super) fn machine() -> Machine {
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
pub(super) fn build() -> Build {
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
pub(super) fn model_file(path: &Path, interrupt: &Interrupt) -> anyhow::Result<ModelFile> {
    let read = || -> anyhow::Result<ModelFile> {
        let mut file = File::open(path)?;
        let bar = ProgressBar::new(file.metadata()?.len());
        let style = ProgressStyle::with_template("{msg} [{bar:24}] {percent:>3} %");
        bar.set_style(style.expect("the template is right").progress_chars("=> "));
        bar.set_message(format!("hashing {}", file_name(path)));
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
            bar.set_position(bytes);
        }
        bar.finish_and_clear();
        Ok(ModelFile { name: file_name(path), bytes, sha256: hex(&hash.finalize()) })
    };
    read().with_context(|| format!("cannot read {}", path.display()))
}

/// The SHA-256 of a text.
pub(super) fn sha256(text: &[u8]) -> String {
    hex(&Sha256::digest(text))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Today, in Greenwich.
#[expect(clippy::disallowed_methods, reason = "a report says when it was made, and nothing else")]
pub(super) fn today() -> String {
    let since = std::time::SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    date(since.as_secs() / 86_400)
}

/// The date so many days after 1970 began (Hinnant's `civil_from_days`).
fn date(days: u64) -> String {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(19_782), "2024-02-29");
        assert_eq!(date(20_088), "2024-12-31");
        assert_eq!(date(20_089), "2025-01-01");
    }

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
