//! What a download tells whoever waits for it.

use std::time::Duration;

/// Something that happened.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A file begins to arrive.
    Begin {
        /// Its path in the repository.
        file: &'a str,
        /// Which of the files of this model it is, from one on.
        part: usize,
        /// How many files the model has.
        parts: usize,
        /// Its bytes.
        size: u64,
    },
    /// That many bytes of the file are there; the first time, those of an earlier download.
    Arrived {
        /// Counted from the start of the file.
        bytes: u64,
    },
    /// The file is whole, checked and in the cache.
    End,
    /// Another process brings the same file.
    Waiting {
        /// Its path in the repository.
        file: &'a str,
    },
    /// The connection failed and is tried again.
    Retry {
        /// What happened.
        cause: &'a str,
        /// How long to wait before.
        wait: Duration,
    },
    /// The hub cannot be asked, and the cache is used as it is.
    FromCache {
        /// Why.
        cause: &'a str,
    },
}

/// Is told what happens.
pub trait Observer {
    /// Something happened.
    fn event(&mut self, event: Event<'_>);
}

/// Lets everything pass.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Observer for Silent {
    fn event(&mut self, _: Event<'_>) {}
}
