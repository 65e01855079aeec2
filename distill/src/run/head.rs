//! A head in place of a draft model.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::ensure;
use forerun_distill::collect::Running;
use forerun_distill::head::{self, DraftVocab, Features, HeadPupil, HeadShape};
use forerun_distill::rows::Rows;
use forerun_distill::sealed::beside;
use forerun_distill::train::{Trainer, len_max};
use forerun_lab::{bytes, file_name};
use forerun_llama::ModelFile;

use super::say::{Line, say};
use super::{INTERRUPTED, Training, data, disk, forecast, plan, watched};
use crate::flags::{Flags, HeadKind};

/// Trains a head and writes it.
pub(super) fn run(flags: &Flags, kind: HeadKind, checkpoint: &Path) -> anyhow::Result<ExitCode> {
    let HeadKind::Eagle3 = kind;
    refuse(flags)?;
    let depth = flags.head.head_depth;
    let layers = flags.head.head_layers.as_ref().map(|layers| &layers.0[..]);
    let file = ModelFile::open(&flags.model)?;
    let shape = head::shape(&file, layers, flags.head.head_vocab)?;
    let source = data::Source::new(flags, shape.target_vocab)?;
    let features = beside(source.path(), "features");
    let states = match features.exists() {
        true => 0,
        false => head::size(&shape, source.token_count()),
    };
    let written = source.size() + states + disk::written(shape.trained(), 0);
    disk::check(&flags.output, written)?;
    let sizes = (depth, flags.training.batch_tokens);
    let needed = head::memory(&shape, source.row_count(), &source.settings, sizes);
    let [low, middle, high] = shape.layers;
    let student = format!(
        "an EAGLE-3 head that reads layers {low}, {middle} and {high} and drafts {} tokens, {:.1} million \
         weights trained",
        shape.block.vocab,
        shape.trained() as f64 / 1e6
    );
    say(&format!(
        "{student}; this takes up to {} of memory and {} of disk",
        bytes(needed as u64),
        bytes(written)
    ));
    let stop = watched()?;
    let Some(rows) = source.rows(&stop)? else {
        return Ok(ExitCode::from(INTERRUPTED));
    };
    if !features.exists() && !read(flags, (&rows, &shape), &features, &stop)? {
        return Ok(ExitCode::from(INTERRUPTED));
    }
    let vocab = DraftVocab::frequent(&rows, shape.block.vocab);
    say(&format!(
        "{} rows; {} are held out, and {:.3} of their tokens can be drafted",
        rows.row_count(false),
        rows.row_count(true),
        vocab.reach(&rows)
    ));
    let of = format!("eagle3 {:?} {} {depth}", shape.layers, shape.block.vocab);
    let features = Features::open(&features, &rows, &shape)?;
    let len = len_max(&rows, None);
    let head = head::head(&file, shape, &vocab, (len, flags.seed))?;
    // It may be large, and is read again when the head is written.
    drop(file);
    let pupil = HeadPupil { head, vocab, features, depth };
    let mut trainer = Trainer::new(plan(flags, &rows, of)?, &rows, pupil);
    if flags.resume {
        trainer.load(checkpoint)?;
    }
    let write = |pupil: &HeadPupil, path: &Path| {
        head::export(&pupil.head, &pupil.vocab, &flags.model, (path, flags.format))
    };
    let forecast = forecast(flags, |path| write(trainer.pupil(), path))?;
    let student = format!("{student}, written as {}", flags.format);
    let rows = &rows;
    Training { flags, rows, forecast, checkpoint, student, write: &write }.done(&mut trainer, &stop)
}

/// Refuses what makes no sense for a head.
fn refuse(flags: &Flags) -> anyhow::Result<()> {
    ensure!(
        flags.keep_blocks.is_none() && flags.student.is_none(),
        "--head trains a head of the target: leave out --keep-blocks and --student, or leave out --head"
    );
    ensure!(
        flags.training.on_policy == 0.0,
        "--head learns to go on from its own states over the target's sequences: leave out --on-policy"
    );
    ensure!(
        !flags.training.train_embeddings,
        "--head reads the target's own embeddings: leave out --train-embeddings"
    );
    ensure!(
        !flags.no_training,
        "--no-training: a head that was not trained drafts nothing of use; leave it out"
    );
    ensure!(
        (1..=16).contains(&flags.head.head_depth),
        "--head-depth {}: expected 1 to 16",
        flags.head.head_depth
    );
    Ok(())
}

/// Has the target read the sequences. Returns false if it was stopped.
fn read(
    flags: &Flags,
    (rows, shape): (&Rows, &HeadShape),
    features: &Path,
    stop: &Arc<AtomicBool>,
) -> anyhow::Result<bool> {
    let running = Running {
        slots: std::num::NonZeroU32::MIN,
        threads: flags.threads,
        stop: Arc::clone(stop),
    };
    let mut line = Line::new();
    let passed = |done: usize, all: usize| {
        line.show(done == all, || {
            format!("{done} of {all} sequences read by {}", file_name(&flags.model))
        });
    };
    let complete = head::collect(&flags.model, (rows, shape), features, &running, passed)?;
    if !complete {
        say("stopped while the target read the sequences: the same flags go on from there");
    }
    Ok(complete)
}
