//! From files to a file: what the program does, and what it says meanwhile.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use forerun_distill::collect::{Running, collect};
use forerun_distill::gguf;
use forerun_distill::loss::Divergence;
use forerun_distill::rows::{Rows, Settings};
use forerun_distill::sealed::{beside, hex, sha256_of};
use forerun_distill::train::{Plan, Point, Trainer, memory};
use forerun_lab::prompts::{self, Prompt};
use forerun_lab::{Span, bytes, file_name};
use forerun_llama::{Model, ModelFile, TokenNames};
use sha2::{Digest, Sha256};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::flags::Flags;

/// What shells report of a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;
/// Steps after which the time of the others is known.
const TIMED_STEPS: u64 = 5;
/// Time between lines about the same work.
const SAID_EVERY: Duration = Duration::from_secs(15);

pub(crate) fn run(flags: &Flags) -> anyhow::Result<ExitCode> {
    ensure!(
        !flags.output.exists(),
        "{}: there is a file already: move it away or choose another name",
        flags.output.display()
    );
    if let Some(threads) = flags.threads {
        let threads = usize::try_from(threads.get())?;
        rayon::ThreadPoolBuilder::new().num_threads(threads).build_global()?;
    }
    let source = flags.student.as_ref().unwrap_or(&flags.model);
    let file = ModelFile::open(source)?;
    let keep = flags.keep_blocks.as_ref().map(|blocks| &blocks.0[..]);
    if flags.no_training {
        let student = gguf::student(&file, keep, 1)?;
        gguf::export(&student, &file, &flags.output, flags.format)?;
        say(&format!("wrote {}", described(&flags.output)));
        return Ok(ExitCode::SUCCESS);
    }
    // Before anything that takes long, what would be refused after it.
    let shape = gguf::shape(&file)?;
    ensure!(
        TokenNames::read(source)? == TokenNames::read(&flags.model)?,
        "{}: its tokens are not those of {}: a student must have the target's vocabulary",
        source.display(),
        flags.model.display()
    );
    let stop = watched()?;
    let Some(rows) = rows(flags, shape.vocab, &stop)? else {
        return Ok(ExitCode::from(INTERRUPTED));
    };
    let student = gguf::student(&file, keep, rows.len_max())?;
    let needed = memory(&student, &rows, flags.training.batch_tokens);
    say(&format!(
        "{} of {} blocks, {:.1} M weights to train, on {} rows; {} are held out; this takes about {} of \
         memory",
        student.shape().blocks,
        shape.blocks,
        student.shape().trained() as f64 / 1e6,
        rows.row_count(false),
        rows.row_count(true),
        bytes(needed as u64)
    ));
    let mut trainer = Trainer::new(plan(flags, &rows, source)?, &rows, student);
    let checkpoint = beside(&flags.output, "checkpoint");
    match (checkpoint.exists(), flags.resume) {
        (true, true) => trainer.load(&checkpoint)?,
        (true, false) => bail!(
            "{}: there is a checkpoint of an earlier run: go on from it with --resume, or remove it",
            checkpoint.display()
        ),
        (false, true) => bail!("{}: there is no such checkpoint", checkpoint.display()),
        (false, false) => {}
    }
    if !train(flags, &mut trainer, &checkpoint, &stop)? {
        say(&format!(
            "stopped after step {}: go on with the same flags and --resume",
            trainer.progress().step
        ));
        return Ok(ExitCode::from(INTERRUPTED));
    }
    let curve = trainer.progress().curve.clone();
    let best = trainer.progress().best().map(|(point, _)| *point);
    gguf::export(&trainer.into_best(), &file, &flags.output, flags.format)?;
    // The file is there; what it was made from is no longer needed, and that it stays is no failure.
    let _ = std::fs::remove_file(&checkpoint);
    if let (Some(first), Some(best)) = (curve.first(), best) {
        say(&format!(
            "wrote {}: overlap of what is held out {:.3}, {:.3} at the start; the same token likeliest \
             in {:.3}, {:.3} at the start",
            described(&flags.output),
            best.overlap,
            first.overlap,
            best.agreement,
            first.agreement
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// The flag that Ctrl-C sets; a second press ends the program.
fn watched() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let watch = || -> std::io::Result<()> {
        for signal in [SIGINT, SIGTERM] {
            flag::register_conditional_shutdown(signal, INTERRUPTED.into(), Arc::clone(&stop))?;
            flag::register(signal, Arc::clone(&stop))?;
        }
        Ok(())
    };
    watch().context("cannot listen for Ctrl-C")?;
    Ok(stop)
}

/// The target's texts and rows, from their file or from the target. None if it was stopped.
fn rows(flags: &Flags, vocab: usize, stop: &Arc<AtomicBool>) -> anyhow::Result<Option<Rows>> {
    let path = flags.rows.clone().unwrap_or_else(|| beside(&flags.output, "rows"));
    let prompts = read_prompts(&flags.prompts)?;
    let settings = settings(flags, vocab, &prompts)?;
    if path.exists() {
        return Ok(Some(known(&path, &settings)?));
    }
    let partial = beside(&path, "partial");
    let done = match partial.exists() {
        true => known(&partial, &settings)?.texts,
        false => Vec::new(),
    };
    Model::check(&flags.model)?;
    let listed = 8 * settings.listed + 4;
    let texts =
        settings.held_out + settings.samples * prompts.len().saturating_sub(settings.held_out);
    say(&format!(
        "{} continues {} prompts; {} takes at most {} of disk",
        file_name(&flags.model),
        texts,
        file_name(&path),
        bytes((texts * (settings.predict * listed + 4 * settings.len)) as u64)
    ));
    let running =
        Running { slots: flags.data.parallel, threads: flags.threads, stop: Arc::clone(stop) };
    let (start, before, mut line) = (Instant::now(), done.len(), Line::new());
    let mut told = |done: usize, all: usize, drawn: usize| {
        let spent = start.elapsed().as_secs_f64();
        let left = Span { seconds: spent / (done - before) as f64 * (all - done) as f64 };
        let pace = drawn as f64 / spent;
        line.show(done == all, || {
            format!("{done} of {all} texts, {pace:.0} tokens a second, about {left} left")
        });
    };
    let source = (&*flags.model, &prompts[..]);
    let collected = collect(source, settings, done, &running, &mut told)?;
    let (rows, wanted) = (collected.rows, collected.wanted);
    if rows.texts.len() < wanted {
        rows.write(&partial)?;
        let texts = rows.texts.len();
        say(&format!("stopped with {texts} of {wanted} texts: the same flags go on from there"));
        return Ok(None);
    }
    rows.write(&path)?;
    // It is in the other file now, and that it stays is no failure.
    let _ = std::fs::remove_file(&partial);
    Ok(Some(rows))
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
        seed: flags.seed,
    })
}

fn plan(flags: &Flags, rows: &Rows, source: &Path) -> anyhow::Result<Plan> {
    let training = &flags.training;
    ensure!(training.rate > 0.0, "--rate {}: expected more than 0", training.rate);
    ensure!(
        training.epochs > 0 && training.measure_every > 0,
        "expected 1 or more epochs and steps"
    );
    let usual = match flags.data.temp > 0.0 {
        true => Divergence::Jsd,
        false => Divergence::ForwardKl,
    };
    let kept = flags.keep_blocks.as_ref().map(|blocks| &blocks.0);
    Ok(Plan {
        divergence: training.loss.unwrap_or(usual),
        rate: training.rate,
        warm_up: training.warm_up,
        epochs: training.epochs,
        batch_tokens: training.batch_tokens,
        measure_every: training.measure_every,
        patience: training.patience,
        seed: flags.seed,
        of: format!("{} {kept:?} {}", sha256_of(source)?, serde_json::to_string(&rows.settings)?),
    })
}

/// Trains to the end; whether it came there.
fn train(
    flags: &Flags,
    trainer: &mut Trainer<'_>,
    checkpoint: &Path,
    stop: &AtomicBool,
) -> anyhow::Result<bool> {
    let (mut saved, mut line) = (Instant::now(), Line::new());
    let mut measuring = 0.0;
    loop {
        if trainer.is_due() {
            let start = Instant::now();
            let point = trainer.measure()?;
            measuring = start.elapsed().as_secs_f64();
            say(&measured(&point, trainer.progress().steps));
        }
        if trainer.is_done() {
            return Ok(true);
        }
        let start = Instant::now();
        let found = trainer.step()?;
        trainer.spend(start.elapsed().as_secs_f64());
        let progress = trainer.progress();
        let done = progress.step;
        let pace = progress.seconds / done as f64 + measuring / flags.training.measure_every as f64;
        if let (Some(limit), TIMED_STEPS) = (flags.training.time_limit, done) {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a number of steps"
            )]
            trainer.shorten((limit.seconds / pace) as u64);
        }
        let all = trainer.progress().steps;
        let left = Span { seconds: pace * (all - done.min(all)) as f64 };
        line.show(false, || {
            format!(
                "step {done} of {all}: loss {:.3}, overlap {:.3}, about {left} left",
                found.loss, found.overlap
            )
        });
        let stopped = stop.load(Ordering::Relaxed);
        if stopped || saved.elapsed() >= flags.training.checkpoint_every.duration() {
            trainer.save(checkpoint)?;
            saved = Instant::now();
        }
        if stopped {
            return Ok(false);
        }
    }
}

fn measured(point: &Point, steps: u64) -> String {
    format!(
        "step {} of {steps}, {} rows: held out: loss {:.4}, overlap {:.4}, the same token likeliest {:.4}",
        point.step, point.rows, point.loss, point.overlap, point.agreement
    )
}

fn described(path: &Path) -> String {
    let size = std::fs::metadata(path).map_or(0, |about| about.len());
    format!("{} ({})", file_name(path), bytes(size))
}

/// Writes a line to standard error. Where that is closed there is nobody to tell.
fn say(line: &str) {
    let clear = if std::io::stderr().is_terminal() { "\r\x1b[K" } else { "" };
    let _ = writeln!(std::io::stderr(), "{clear}{line}");
}

/// A line that changes: on a terminal in its place, in a log now and then.
struct Line {
    terminal: bool,
    said: Option<Instant>,
}

impl Line {
    fn new() -> Self {
        Self { terminal: std::io::stderr().is_terminal(), said: None }
    }

    fn show(&mut self, last: bool, line: impl FnOnce() -> String) {
        let every = if self.terminal { Duration::from_millis(200) } else { SAID_EVERY };
        if !last && self.said.is_some_and(|said| said.elapsed() < every) {
            return;
        }
        self.said = Some(Instant::now());
        match self.terminal && !last {
            true => {
                let mut out = std::io::stderr();
                let _ = write!(out, "\r\x1b[K{}", line());
                let _ = out.flush();
            }
            false => say(&line()),
        }
    }
}
