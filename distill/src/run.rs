//! From files to a file: what the program does, and what it says meanwhile.

mod data;
mod disk;
mod head;
mod page;
mod say;

use std::env;
use std::num::NonZeroU32;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use forerun_distill::collect::Running;
use forerun_distill::gguf;
use forerun_distill::loss::Divergence;
use forerun_distill::own;
use forerun_distill::pupil::{ModelPupil, Pupil};
use forerun_distill::rows::{Rows, Sequence};
use forerun_distill::sealed::{beside, sha256_of};
use forerun_distill::speedup::Forecast;
use forerun_distill::train::{Plan, Point, Trainer, len_max, memory};
use forerun_distill::transplant::transplant;
use forerun_distill::words::Words;
use forerun_lab::{Span, bytes, file_name};
use forerun_llama::{Model, ModelFile, ModelOptions};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use self::say::{Line, say};
use crate::flags::Flags;

/// What shells report of a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;
/// Steps after which the time of the others is known.
const TIMED_STEPS: u64 = 5;

/// What candle reads from the environment, and nowhere else: to run each product on the thread that asks for it, and
/// not to have a thread without work look for some all the time. A step has a part for each thread.
const CANDLE: [(&str, &str); 2] =
    [("RAYON_NUM_THREADS", "1"), ("CANDLE_BARRIER_POOL_SPIN_LIMIT", "100")];

/// Sets how many threads there are. The program starts again for it, so that candle knows.
fn bound_threads(threads: Option<NonZeroU32>) -> anyhow::Result<()> {
    if CANDLE.iter().any(|&(name, value)| env::var(name).as_deref() != Ok(value)) {
        let mut again = Command::new(env::current_exe()?);
        let error = again.args(env::args_os().skip(1)).envs(CANDLE).exec();
        return Err(error).context("starting again with candle's settings");
    }
    let threads = match threads {
        Some(threads) => usize::try_from(threads.get())?,
        None => thread::available_parallelism()?.get(),
    };
    Ok(rayon::ThreadPoolBuilder::new().num_threads(threads).build_global()?)
}

pub(crate) fn run(flags: &Flags) -> anyhow::Result<ExitCode> {
    bound_threads(flags.threads)?;
    let origin = flags.student.as_ref().unwrap_or(&flags.model);
    let checkpoint = beside(&flags.output, "checkpoint");
    check(flags, &checkpoint)?;
    if let Some(kind) = flags.head.kind {
        return head::run(flags, kind, &checkpoint);
    }
    let file = ModelFile::open(origin)?;
    if flags.no_training {
        let student = gguf::student(&file, flags.chosen(), 1)?;
        gguf::export(&student, &file, &flags.output, flags.format)?;
        say(&format!("wrote {}", described(&flags.output)));
        return Ok(ExitCode::SUCCESS);
    }
    let mut shape = gguf::chosen(&file, flags.chosen())?;
    let (vocab, words) = words(flags, flags.student.as_deref(), shape.vocab)?;
    if let Some(size) = flags.transplant {
        shape.vocab = size.min(vocab);
    }
    let own_words = words.is_some() && flags.transplant.is_none() || shape.vocab < vocab;
    ensure!(
        !own_words || flags.training.on_policy == 0.0,
        "{}: it has another vocabulary than the target: --on-policy is for students with the same",
        origin.display()
    );
    let source = data::Source::new(flags, vocab)?;
    let written = source.size() + disk::written(shape.trained(), 2 * shape.vocab * shape.width);
    disk::check(&flags.output, written)?;
    let needed = memory(&shape, source.row_count(), &source.settings, flags.training.batch_tokens);
    say(&format!(
        "{} of {} blocks, {:.1} million weights to train; this takes up to {} of memory and {} of disk",
        shape.blocks,
        gguf::shape(&file)?.blocks,
        shape.trained() as f64 / 1e6,
        bytes(needed as u64),
        bytes(written)
    ));
    let stop = watched()?;
    let Some(rows) = source.rows(&stop)? else {
        return Ok(ExitCode::from(INTERRUPTED));
    };
    say(&format!("{} rows; {} are held out", rows.row_count(false), rows.row_count(true)));
    let Origin { file, words, sha256 } = match flags.transplant {
        Some(size) => transplanted(flags, &rows, size)?,
        None => Origin { file, words, sha256: sha256_of(origin)? },
    };
    let student = gguf::student(&file, flags.chosen(), len_max(&rows, words.as_ref()))?;
    let of = format!("{sha256} {:?}", flags.chosen());
    let mut trainer = Trainer::new(plan(flags, &rows, of)?, &rows, ModelPupil { student, words });
    if flags.resume {
        trainer.load(&checkpoint)?;
    }
    let write =
        |pupil: &ModelPupil, path: &Path| gguf::export(&pupil.student, &file, path, flags.format);
    let forecast = forecast(flags, |path| write(trainer.pupil(), path))?;
    let student = format!(
        "{} blocks of {}, {:.1} million weights trained, written as {}",
        shape.blocks,
        file_name(origin),
        shape.trained() as f64 / 1e6,
        flags.format
    );
    let (rows, checkpoint) = (&rows, &*checkpoint);
    Training { flags, rows, forecast, checkpoint, student, write: &write }.done(&mut trainer, &stop)
}

/// Refuses, before anything that takes long, what would be refused after it.
fn check(flags: &Flags, checkpoint: &Path) -> anyhow::Result<()> {
    ensure!(
        !flags.output.exists(),
        "{}: there is a file already: move it away or choose another name",
        flags.output.display()
    );
    let training = &flags.training;
    ensure!(training.rate > 0.0, "--rate {}: expected more than 0", training.rate);
    ensure!(
        training.epochs > 0 && training.measure_every > 0,
        "expected 1 or more epochs and steps"
    );
    ensure!(
        (0.0..=1.0).contains(&training.on_policy),
        "--on-policy {}: expected a share from 0 to 1",
        training.on_policy
    );
    match (checkpoint.exists(), flags.resume) {
        (true, false) => bail!(
            "{}: there is a checkpoint of an earlier run: go on from it with --resume, or remove it",
            checkpoint.display()
        ),
        (false, true) => bail!("{}: there is no such checkpoint", checkpoint.display()),
        _ => Ok(()),
    }
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

/// What a student is made from.
struct Origin {
    file: ModelFile,
    /// How the target's sequences are written in its tokens, if it has others.
    words: Option<Words>,
    sha256: String,
}

/// The student's file with the target's vocabulary. It is read, and not left on the disk.
fn transplanted(flags: &Flags, rows: &Rows, size: usize) -> anyhow::Result<Origin> {
    let path = beside(&flags.output, "transplanted");
    // What an earlier run may have left.
    let _ = std::fs::remove_file(&path);
    let donor = flags.student.as_deref().context("--transplant needs --student")?;
    let result = transplant((donor, &flags.model), &rows.sequences, size, &path).and_then(|()| {
        let file = ModelFile::open(&path)?;
        let (_, words) = words(flags, Some(&path), 0)?;
        Ok(Origin { file, words, sha256: sha256_of(&path)? })
    });
    let _ = std::fs::remove_file(&path);
    result
}

/// The plan of a run; `of` says what its student is.
fn plan(flags: &Flags, rows: &Rows, of: String) -> anyhow::Result<Plan> {
    let training = &flags.training;
    let usual = match flags.data.temp > 0.0 {
        true => Divergence::Jsd,
        false => Divergence::ForwardKl,
    };
    Ok(Plan {
        divergence: training.loss.unwrap_or(usual),
        rate: training.rate,
        warm_up: training.warm_up,
        epochs: training.epochs,
        batch_tokens: training.batch_tokens,
        measure_every: training.measure_every,
        patience: training.patience,
        on_policy: training.on_policy,
        seed: flags.seed,
        of: format!("{of} {}", serde_json::to_string(&rows.settings)?),
    })
}

/// Tokens of the target's vocabulary, and how they are written in the student's if it has others. Without a
/// student of its own, the target is one, with `len` tokens.
fn words(
    flags: &Flags,
    student: Option<&Path>,
    len: usize,
) -> anyhow::Result<(usize, Option<Words>)> {
    let Some(path) = student else { return Ok((len, None)) };
    let load = |path: &Path| Model::load(ModelOptions::new(path));
    let (target, student) = (load(&flags.model)?, load(path)?);
    let words = Words::between(
        (target.vocab(), target.vocab_len()),
        (student.vocab(), student.vocab_len()),
    );
    Ok((target.vocab_len(), words.with_context(|| format!("{}", path.display()))?))
}

/// What passes of the target and of the student take. Its weights make no difference to that, so the
/// student is written as it is, and removed.
fn forecast(
    flags: &Flags,
    write: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<Forecast> {
    let untrained = beside(&flags.output, "untrained");
    // What an earlier run may have left.
    let _ = std::fs::remove_file(&untrained);
    write(&untrained)?;
    let forecast = Forecast::measure(&flags.model, &untrained, flags.threads);
    let _ = std::fs::remove_file(&untrained);
    forecast
}

/// A training and what is said of it.
struct Training<'a, P> {
    flags: &'a Flags,
    rows: &'a Rows,
    forecast: Forecast,
    checkpoint: &'a Path,
    /// What is trained, in words.
    student: String,
    /// Writes it to a file.
    write: &'a dyn Fn(&P, &Path) -> anyhow::Result<()>,
}

impl<P: Pupil> Training<'_, P> {
    /// Trains, writes the student and says what it came to, or that it was stopped.
    fn done(
        &self,
        trainer: &mut Trainer<'_, P>,
        stop: &Arc<AtomicBool>,
    ) -> anyhow::Result<ExitCode> {
        if !self.run(trainer, stop)? {
            say(&format!(
                "stopped after step {}: go on with the same flags and --resume",
                trainer.progress().step
            ));
            return Ok(ExitCode::from(INTERRUPTED));
        }
        self.finish(trainer)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Trains to the end; whether it came there.
    fn run(&self, trainer: &mut Trainer<'_, P>, stop: &Arc<AtomicBool>) -> anyhow::Result<bool> {
        let training = &self.flags.training;
        let (mut saved, mut line) = (Instant::now(), Line::new());
        let mut measuring = 0.0;
        loop {
            if trainer.is_due() {
                let start = Instant::now();
                let point = trainer.measure()?;
                measuring = start.elapsed().as_secs_f64();
                say(&self.measured(&point, trainer));
            }
            if trainer.is_done() {
                return Ok(true);
            }
            if !self.write_own(trainer, stop)? {
                trainer.save(self.checkpoint)?;
                return Ok(false);
            }
            let start = Instant::now();
            let found = trainer.step()?;
            trainer.spend(start.elapsed().as_secs_f64());
            let progress = trainer.progress();
            let done = progress.step;
            let pace = progress.seconds / done as f64 + measuring / training.measure_every as f64;
            if let (Some(limit), TIMED_STEPS) = (training.time_limit, done) {
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
            if stop.load(Ordering::Relaxed) {
                trainer.save(self.checkpoint)?;
                return Ok(false);
            }
            if saved.elapsed() >= training.checkpoint_every.duration() {
                saved = Instant::now();
                // The last one is still there, and there may be room again by the next.
                if let Err(error) = trainer.save(self.checkpoint) {
                    say(&format!("no checkpoint: {error:#}; training goes on"));
                }
            }
        }
    }

    /// Has the student write what it is to learn from in this epoch. Returns false if it was stopped.
    fn write_own(
        &self,
        trainer: &mut Trainer<'_, P>,
        stop: &Arc<AtomicBool>,
    ) -> anyhow::Result<bool> {
        let places = trainer.wants_own();
        if places.is_empty() {
            return Ok(true);
        }
        let flags = self.flags;
        let path = beside(&flags.output, "student");
        // What an earlier run may have left.
        let _ = std::fs::remove_file(&path);
        (self.write)(trainer.pupil(), &path)?;
        let running =
            Running { slots: flags.data.parallel, threads: flags.threads, stop: Arc::clone(stop) };
        let epoch = trainer.progress().epoch;
        let sequences: Vec<&Sequence> =
            places.iter().map(|&place| &self.rows.sequences[place]).collect();
        let start = Instant::now();
        let seed = flags.seed ^ epoch.rotate_left(32);
        let written =
            own::write((&path, &flags.model), &sequences, &self.rows.settings, seed, &running);
        let _ = std::fs::remove_file(&path);
        let Some(written) = written? else { return Ok(false) };
        let rows: usize = written.iter().map(Sequence::row_count).sum();
        say(&format!(
            "epoch {}: the student generated {} sequences, {rows} rows, in {}",
            epoch + 1,
            written.len(),
            Span::from(start.elapsed())
        ));
        trainer.set_own(&places, written);
        Ok(true)
    }

    fn measured(&self, point: &Point, trainer: &Trainer<'_, P>) -> String {
        let forecast = self.forecast.best(point.accepted);
        let deeper: Vec<String> = trainer.deeper().iter().map(|it| format!("{it:.4}")).collect();
        let deeper = match deeper.is_empty() {
            true => String::new(),
            false => format!("; overlap of the draft's next tokens {}", deeper.join(" / ")),
        };
        format!(
            "step {} of {}, {} rows: held out: loss {:.4}, overlap {:.4}, the same token likeliest \
             {:.4}{deeper}; predicted speedup {:.2} with drafts of {}",
            point.step,
            trainer.progress().steps,
            point.rows,
            point.loss,
            point.overlap,
            point.agreement,
            forecast.speedup,
            forecast.len
        )
    }

    /// Writes the student that measured best, and the page about it.
    fn finish(&self, trainer: &mut Trainer<'_, P>) -> anyhow::Result<()> {
        let output = &self.flags.output;
        // If there is no room for the file, nothing is lost.
        let saved = trainer.save(self.checkpoint);
        let exported = (self.write)(trainer.best_pupil(), output);
        if saved.is_ok() {
            exported.with_context(|| {
                format!("{} has all: make room, and go on with --resume", self.checkpoint.display())
            })?;
        } else {
            exported?;
        }
        say(&format!("wrote {}", described(output)));
        let run = page::Run {
            flags: self.flags,
            rows: self.rows,
            student: &self.student,
            plan: trainer.plan(),
            progress: trainer.progress(),
            forecast: &self.forecast,
        };
        let page = beside(output, "html");
        std::fs::write(&page, run.html()).with_context(|| format!("{}", page.display()))?;
        // The file is there; what it was made from is no longer needed, and that it stays is no failure.
        let _ = std::fs::remove_file(self.checkpoint);
        for line in run.verdict() {
            say(&line);
        }
        say(&format!("all figures: {}", page.display()));
        Ok(())
    }
}

fn described(path: &Path) -> String {
    let size = std::fs::metadata(path).map_or(0, |about| about.len());
    format!("{} ({})", file_name(path), bytes(size))
}
