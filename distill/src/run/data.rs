//! The target's sequences and rows, from their file or from the target.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::ensure;
use forerun_distill::collect::{Collected, Running, Watch, collect};
use forerun_distill::rows::{Rows, Settings};
use forerun_distill::sealed::{beside, hex, sha256_of};
use forerun_lab::Span;
use forerun_lab::prompts::{self, Prompt};
use sha2::{Digest, Sha256};

use super::say::{Line, say};
use crate::flags::Flags;

/// Where sequences and rows come from.
pub(super) struct Source<'a> {
    flags: &'a Flags,
    prompts: Vec<Prompt>,
    pub(super) settings: Settings,
    path: PathBuf,
}

impl<'a> Source<'a> {
    pub(super) fn new(flags: &'a Flags, vocab: usize) -> anyhow::Result<Self> {
        let path = flags.rows.clone().unwrap_or_else(|| beside(&flags.output, "rows"));
        let prompts = read_prompts(&flags.prompts)?;
        let settings = settings(flags, vocab, &prompts)?;
        Ok(Self { flags, prompts, settings, path })
    }

    /// Most sequences.
    fn sequences(&self) -> usize {
        let Settings { held_out, samples, .. } = self.settings;
        held_out + samples * self.prompts.len().saturating_sub(held_out)
    }

    /// Most rows.
    pub(super) fn row_count(&self) -> usize {
        let Settings { predict, len, prompt_rows, .. } = self.settings;
        self.sequences() * if prompt_rows { len } else { predict }
    }

    /// Most tokens of all sequences.
    pub(super) fn token_count(&self) -> usize {
        self.sequences() * self.settings.len
    }

    /// Where the rows are kept.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes that are still to be written of them, at most.
    pub(super) fn size(&self) -> u64 {
        let Settings { listed, len, .. } = self.settings;
        match self.path.exists() {
            true => 0,
            false => (self.row_count() * 8 * listed + self.sequences() * 4 * len) as u64,
        }
    }

    /// The rows, from their file or from the target. None if it was stopped.
    pub(super) fn rows(self, stop: &Arc<AtomicBool>) -> anyhow::Result<Option<Rows>> {
        let Self { flags, prompts, settings, path } = self;
        if path.exists() {
            return Ok(Some(known(&path, &settings)?));
        }
        let partial = beside(&path, "partial");
        let done = match partial.exists() {
            true => known(&partial, &settings)?.sequences,
            false => Vec::new(),
        };
        let running =
            Running { slots: flags.data.parallel, threads: flags.threads, stop: Arc::clone(stop) };
        let mut watch = Collecting {
            line: Line::new(),
            start: Instant::now(),
            before: done.len(),
            partial: &partial,
            kept: Instant::now(),
            every: flags.training.checkpoint_every.duration(),
        };
        let source = (&*flags.model, &prompts[..]);
        let Collected { rows, complete } = collect(source, settings, done, &running, &mut watch)?;
        if !complete {
            rows.write(&partial)?;
            say(&format!(
                "stopped after {} sequences: the same flags go on from there",
                rows.sequences.len()
            ));
            return Ok(None);
        }
        rows.write(&path)?;
        // It is in the other file now, and that it stays is no failure.
        let _ = std::fs::remove_file(&partial);
        Ok(Some(rows))
    }
}

/// What is said and kept while the target generates.
struct Collecting<'a> {
    line: Line,
    start: Instant,
    /// Sequences that an earlier run made.
    before: usize,
    partial: &'a Path,
    kept: Instant,
    every: Duration,
}

impl Watch for Collecting<'_> {
    fn pass_done(&mut self, done: usize, wanted: usize, drawn: usize) {
        let spent = self.start.elapsed().as_secs_f64();
        let pace = drawn as f64 / spent;
        let left = match done - self.before {
            0 => String::new(),
            own => {
                let left = Span { seconds: spent / own as f64 * (wanted - done) as f64 };
                format!(", about {left} left")
            }
        };
        self.line.show(done == wanted, || {
            format!("{done} of {wanted} sequences, {pace:.0} tokens a second{left}")
        });
    }

    fn group_done(&mut self, rows: &Rows) -> anyhow::Result<()> {
        if self.kept.elapsed() >= self.every {
            rows.write(self.partial)?;
            self.kept = Instant::now();
        }
        Ok(())
    }
}

/// Rows from a file, if they were made with these settings.
fn known(path: &Path, settings: &Settings) -> anyhow::Result<Rows> {
    let rows = Rows::read(path)?;
    ensure!(
        rows.settings == *settings,
        "{}: these rows were made with other settings ({:?}; now {settings:?}): name another file by \
         --rows, or remove it",
        path.display(),
        rows.settings
    );
    Ok(rows)
}

fn read_prompts(files: &[PathBuf]) -> anyhow::Result<Vec<Prompt>> {
    if files.is_empty() {
        return Ok(prompts::field());
    }
    let mut all = Vec::new();
    for path in files {
        all.extend(prompts::file(path)?);
    }
    Ok(all)
}

fn settings(flags: &Flags, vocab: usize, prompts: &[Prompt]) -> anyhow::Result<Settings> {
    let data = &flags.data;
    ensure!(data.temp >= 0.0 && data.temp.is_finite(), "--temp {}: expected 0 or more", data.temp);
    ensure!((1..=vocab).contains(&data.listed), "--listed {}: expected 1 to {vocab}", data.listed);
    ensure!(data.held_out > 0, "--held-out 0: something must be there to measure with");
    ensure!(data.predict > 0 && data.samples > 0, "--predict and --samples must be 1 at least");
    let mut hash = Sha256::new();
    for prompt in prompts {
        hash.update([u8::from(prompt.rendered)]);
        hash.update(serde_json::to_vec(&prompt.messages)?);
    }
    Ok(Settings {
        target: sha256_of(&flags.model)?,
        vocab,
        prompts: hex(&hash.finalize()),
        held_out: data.held_out,
        samples: data.samples,
        predict: data.predict,
        len: data.ctx_size,
        temperature: data.temp,
        listed: data.listed,
        prompt_rows: data.learn_prompts,
        seed: flags.seed,
    })
}
