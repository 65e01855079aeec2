//! Recorded prompts: what requests asked, kept if who runs the server wants it, to train a draft model
//! with.
//!
//! A line of the file is a JSON object with the text of a prompt, in the model's format. It is tokenized
//! to the very tokens that were decoded; a prompt without such a text is left out. Nothing else of a
//! request comes here: no answer, key, header, tenant or address. A thread of its own writes, so that no
//! request waits for a disk.

use std::collections::HashMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::time::Duration;

use forerun_decode::{Special, Token, Tokenizer};
use forerun_grammar::give_way;
use serde::Serialize;

use crate::metrics::{Metrics, Unrecorded};

/// Most prompts that wait to be written.
const WAITING_MAX: usize = 256;

/// How long a server that stops waits for them.
const FLUSH_MAX: Duration = Duration::from_secs(1);

/// A file that prompts are appended to, up to a number of them.
#[derive(Debug)]
pub struct PromptFile {
    path: PathBuf,
    file: File,
    /// Its lines when it was opened.
    len: usize,
    /// Whether the last of them has its end.
    complete: bool,
    max: usize,
}

impl PromptFile {
    /// Appends to a file that may have `max` lines. Only its owner may read it if it is made here, and no
    /// other process records to it meanwhile.
    ///
    /// # Errors
    /// If it cannot be read and written, is no regular file, or another process records to it.
    pub fn append(path: &Path, max: usize) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.create(true).read(true).append(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
        }
        // Two writers would not know of each other's lines, and could cut them off.
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => io::Error::other("another process records to it"),
            TryLockError::Error(error) => error,
        })?;
        Self::of(file, path, max)
    }

    fn of(file: File, path: &Path, max: usize) -> io::Result<Self> {
        let (mut len, mut complete, mut line) = (0, true, Vec::new());
        let mut lines = BufReader::new(&file);
        while lines.read_until(b'\n', &mut line)? > 0 {
            len += 1;
            complete = line.ends_with(b"\n");
            line.clear();
        }
        Ok(Self { path: path.to_owned(), file, len, complete, max })
    }

    /// A file that can only be read.
    #[cfg(test)]
    pub(crate) fn unwritable(path: &Path) -> io::Result<Self> {
        File::create(path)?;
        Self::of(File::open(path)?, path, usize::MAX)
    }

    fn write(&self, line: &[u8]) -> io::Result<()> {
        let before = self.file.metadata()?.len();
        (&self.file).write_all(line).inspect_err(|_| {
            // Half a line, as a full disk leaves it, would make the file unreadable.
            let _ = self.file.set_len(before);
        })
    }
}

/// A line of the file. `forerun_lab::prompts` reads it.
#[derive(Debug, Serialize)]
struct Line<'a> {
    rendered_prompt: &'a str,
}

/// What the thread that writes is told.
enum Entry {
    Prompt(Vec<Token>),
    /// Answered when all before it is written.
    Flush(mpsc::Sender<()>),
}

/// Takes prompts for the thread that writes them.
pub(crate) struct PromptRecorder {
    entries: SyncSender<Entry>,
    metrics: Arc<Metrics>,
}

impl PromptRecorder {
    /// Starts the thread, and says in the log what is recorded.
    pub(crate) fn start(
        file: Arc<PromptFile>,
        tokenizer: Arc<dyn Tokenizer>,
        metrics: Arc<Metrics>,
    ) -> io::Result<Self> {
        let (path, len, max) = (file.path.display(), file.len, file.max);
        tracing::warn!(
            file = %path, recorded = len, max,
            "prompts are recorded, and kept until this file is deleted"
        );
        let (entries, queue) = mpsc::sync_channel(WAITING_MAX);
        let writer = Writer {
            len,
            file,
            texts: PromptTexts::new(tokenizer),
            metrics: Arc::clone(&metrics),
            left_out: false,
        };
        let thread = std::thread::Builder::new().name("record".to_owned());
        thread.spawn(move || {
            give_way();
            writer.run(&queue);
        })?;
        Ok(Self { entries, metrics })
    }

    /// Records the prompts of a request, unless it does not allow that. Never waits.
    pub(crate) fn record(&self, prompts: &[Vec<Token>], allowed: bool) {
        for prompt in prompts {
            let taken = if allowed { self.take(prompt) } else { Err(Unrecorded::OptedOut) };
            if let Err(reason) = taken {
                self.metrics.left_prompt_out(reason);
            }
        }
    }

    fn take(&self, prompt: &[Token]) -> Result<(), Unrecorded> {
        let taken = self.entries.try_send(Entry::Prompt(prompt.to_vec()));
        taken.map_err(|error| match error {
            TrySendError::Full(_) => Unrecorded::QueueFull,
            TrySendError::Disconnected(_) => Unrecorded::Stopped,
        })
    }

    /// Waits until what was taken is written, but not for long.
    pub(crate) fn flush(&self) {
        let (sender, flushed) = mpsc::channel();
        if self.entries.try_send(Entry::Flush(sender)).is_ok() {
            let _ = flushed.recv_timeout(FLUSH_MAX);
        }
    }
}

/// The thread that writes. When it ends, no more is recorded.
struct Writer {
    file: Arc<PromptFile>,
    /// Lines of the file.
    len: usize,
    texts: PromptTexts,
    metrics: Arc<Metrics>,
    /// Whether the log says that a prompt was left out.
    left_out: bool,
}

impl Writer {
    /// Writes what comes, until the file is full, cannot be written, or nobody can send any more.
    fn run(mut self, entries: &Receiver<Entry>) {
        while self.len < self.file.max {
            match entries.recv() {
                Ok(Entry::Prompt(tokens)) => {
                    if let Err(error) = self.write(&tokens) {
                        tracing::error!(%error, "no more prompts are recorded: the file cannot be written");
                        self.metrics.left_prompt_out(Unrecorded::Stopped);
                        return;
                    }
                }
                Ok(Entry::Flush(done)) => drop(done.send(())),
                Err(_) => return,
            }
        }
        tracing::warn!(
            max = self.file.max,
            "no more prompts are recorded: there are as many as --record-prompts-max allows"
        );
    }

    fn write(&mut self, tokens: &[Token]) -> io::Result<()> {
        let Some(text) = self.texts.of(tokens) else {
            // Said once, not with every request.
            if !std::mem::replace(&mut self.left_out, true) {
                tracing::info!("a prompt is not recorded: no text is tokenized to its tokens");
            }
            self.metrics.left_prompt_out(Unrecorded::NoText);
            return Ok(());
        };
        let begins = self.len == self.file.len && !self.file.complete;
        let mut line = if begins { vec![b'\n'] } else { Vec::new() };
        serde_json::to_writer(&mut line, &Line { rendered_prompt: &text })?;
        line.push(b'\n');
        self.file.write(&line)?;
        self.len += 1;
        self.metrics.recorded_prompt();
        Ok(())
    }
}

/// Turns prompts back into text.
struct PromptTexts {
    tokenizer: Arc<dyn Tokenizer>,
    special: HashMap<Token, String>,
    /// Whether a space is put before text at its beginning and after a special token, as SentencePiece's
    /// vocabularies want it.
    spaced: bool,
}

impl PromptTexts {
    fn new(tokenizer: Arc<dyn Tokenizer>) -> Self {
        let special = tokenizer.special_tokens().into_iter();
        let special = special.map(|it| (it.token, it.text)).collect();
        let mut bytes = Vec::new();
        for token in tokenizer.tokenize("a", Special::AsText).unwrap_or_default() {
            tokenizer.bytes(token, &mut bytes);
        }
        Self { tokenizer, special, spaced: bytes == b" a" }
    }

    /// The text that is tokenized to these tokens, if there is one: also by readers that put the start
    /// token first where it is missing. There is none if a message contains the text of a control token, which
    /// is not that token, or if a client sent tokens of its own choice.
    fn of(&self, tokens: &[Token]) -> Option<String> {
        let (mut bytes, mut begins) = (Vec::new(), true);
        for token in tokens {
            let from = bytes.len();
            self.tokenizer.bytes(*token, &mut bytes);
            let special = self.special.get(token);
            if let Some(text) = special.filter(|_| bytes.len() == from) {
                bytes.extend_from_slice(text.as_bytes());
            }
            if begins && self.spaced && special.is_none() && bytes.get(from) == Some(&b' ') {
                bytes.remove(from);
            }
            begins = special.is_some();
        }
        let text = String::from_utf8(bytes).ok()?;
        let started = self.tokenizer.start().is_none_or(|start| tokens.first() == Some(&start));
        let read = self.tokenizer.tokenize(&text, Special::Parse).ok()?;
        (started && read == tokens).then_some(text)
    }
}

#[cfg(test)]
mod tests;
