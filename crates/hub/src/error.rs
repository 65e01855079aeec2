//! Why a model could not be brought.

use std::path::PathBuf;

use crate::listing::Algorithm;

/// What the crate's functions return.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a model could not be found or brought. The cache holds whole, checked files afterwards, and
/// beside them at most a partial file that the next download continues.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A name is not one of a model.
    #[error(
        "'{text}' is not a model's name: expected user/repo or user/repo:quant, such as \
         ggml-org/SmolLM3-3B-GGUF:Q4_K_M"
    )]
    Name {
        /// What was said.
        text: String,
    },
    /// The repository does not exist, or is hidden from whoever asks.
    #[error(
        "{repo} is not at {endpoint}: check its name; a private repository needs a token that may \
         read it, by --hf-token or HF_TOKEN ({})", token_used(*.has_token)
    )]
    NoRepo {
        /// The repository.
        repo: String,
        /// The hub.
        endpoint: String,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// The repository is only for those who accepted its terms.
    #[error(
        "{repo} is gated: accept its terms at {endpoint}{repo}, then give a token of that account by \
         --hf-token or HF_TOKEN ({})", token_used(*.has_token)
    )]
    Gated {
        /// The repository.
        repo: String,
        /// The hub.
        endpoint: String,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// The hub does not know the token, or asks for one.
    #[error(
        "{endpoint} refuses access to {repo}: give a valid token by --hf-token or HF_TOKEN ({})",
        token_used(*.has_token)
    )]
    Unauthorized {
        /// The repository.
        repo: String,
        /// The hub.
        endpoint: String,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// The token cannot be sent.
    #[error("the token has characters that no token has: check --hf-token and HF_TOKEN")]
    Token,
    /// The repository has no such model.
    #[error("{repo} has no {wanted}: {}", choices(.available))]
    NoModel {
        /// The repository.
        repo: String,
        /// What was looked for.
        wanted: String,
        /// The GGUF files there are.
        available: Vec<String>,
    },
    /// A part of a split model is missing.
    #[error("{file} is one of {count} parts, and {repo} has {found} of them: choose another file")]
    PartMissing {
        /// The repository.
        repo: String,
        /// The first part.
        file: String,
        /// How many there are.
        found: usize,
        /// How many there should be.
        count: usize,
    },
    /// Nothing may be downloaded, and the cache does not have it.
    #[error(
        "{name} is not in the cache {}, and nothing is downloaded with --offline: {}",
        .cache.display(), choices(.available)
    )]
    Offline {
        /// The model.
        name: String,
        /// Where it was looked for.
        cache: PathBuf,
        /// The files of its repository that are there.
        available: Vec<String>,
    },
    /// The hub does not answer.
    #[error("{host} cannot be reached ({source}): check the connection and HF_ENDPOINT")]
    Unreachable {
        /// The host.
        host: String,
        /// Why.
        source: Box<ureq::Error>,
    },
    /// The hub answers with an error.
    #[error("{url} answered with status {status}{}", after_colon(.message))]
    Status {
        /// What was asked.
        url: String,
        /// The answer.
        status: u16,
        /// What it said.
        message: String,
    },
    /// The hub's answer makes no sense.
    #[error("{url} answered with {what}")]
    Malformed {
        /// What was asked.
        url: String,
        /// What is wrong.
        what: String,
    },
    /// A listing names a place outside the cache, or a name that no file has.
    #[error("{repo} lists {what}, which no honest repository does: nothing was downloaded")]
    Hostile {
        /// The repository.
        repo: String,
        /// What it lists.
        what: String,
    },
    /// A download broke off and could not be continued.
    #[error(
        "{file}: {arrived} of {size} bytes arrived, then {cause}: run the command again to continue"
    )]
    BrokenOff {
        /// The file.
        file: String,
        /// Bytes that are there.
        arrived: u64,
        /// Bytes of the whole.
        size: u64,
        /// What happened last.
        cause: String,
    },
    /// What arrived is not what the hub lists.
    #[error(
        "{file} arrived damaged and was deleted: its {algorithm} is {found}, expected {expected}"
    )]
    Checksum {
        /// The file.
        file: String,
        /// How it was checked.
        algorithm: Algorithm,
        /// What the hub lists.
        expected: String,
        /// What arrived.
        found: String,
    },
    /// The disk is too small.
    #[error(
        "{file} needs {needed} more bytes, and {} has {free} free: make room, or set HF_HUB_CACHE to \
         a folder on another disk; what has arrived is kept",
        .folder.display()
    )]
    NoSpace {
        /// The file.
        file: String,
        /// The cache.
        folder: PathBuf,
        /// Bytes that are lacking.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// A file cannot be read or written.
    #[error("{what} {}", .path.display())]
    Io {
        /// What was done.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// No folder can be found for the cache.
    #[error("there is no home folder for the cache: set HF_HUB_CACHE")]
    NoHome,
    /// The cache does not hold what should be removed.
    #[error("{name} is not in the cache {}: `forerun models` lists what is", .cache.display())]
    NotCached {
        /// The model.
        name: String,
        /// The cache.
        cache: PathBuf,
    },
}

impl Error {
    /// For `map_err`: what was done with which file.
    pub(crate) fn io(
        what: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { what, path, source }
    }
}

fn token_used(has_token: bool) -> &'static str {
    if has_token { "the one given was sent" } else { "none was sent" }
}

fn after_colon(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {message}") }
}

/// Most files that a message lists.
const CHOICES_MAX: usize = 30;

fn choices(files: &[String]) -> String {
    if files.is_empty() {
        return "it has no GGUF files".to_owned();
    }
    let mut text = String::from("choose one of");
    for file in files.iter().take(CHOICES_MAX) {
        text += "\n  ";
        text += file;
    }
    if files.len() > CHOICES_MAX {
        text += &format!("\n  and {} more", files.len() - CHOICES_MAX);
    }
    text
}
