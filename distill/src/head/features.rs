//! What a head reads of the target: the inputs of some layers at each position of all sequences, in a file.
//!
//! They are computed once, each sequence by itself from an empty cache, and kept as `f16`; a batch reads those of
//! its sequences. So they are the same after a stop, and memory has those of one batch.

use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, ensure};
use forerun_decode::{Engine, Keep, Output, Rows as WantedRows, Slot, Step, Token};
use forerun_llama::{LlamaEngine, Model, ModelOptions};
use half::f16;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::HeadShape;
use super::pupil::entry_count;
use crate::collect::{Running, engine_options};
use crate::rows::{Rows, Sequence};
use crate::sealed::{Reader, Writer, beside, hex};

const NUMBER_LEN: usize = size_of::<f16>();

/// What states are of. Others are other states.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Origin {
    /// SHA-256 of the target's file.
    target: String,
    /// SHA-256 of the sequences' tokens.
    sequences: String,
    /// The layers whose inputs they are.
    layers: Vec<u32>,
    /// Numbers at each position.
    len: usize,
}

impl Origin {
    fn new(rows: &Rows, head: &HeadShape) -> Self {
        let mut hash = Sha256::new();
        for sequence in &rows.sequences {
            hash.update(sequence.tokens.len().to_le_bytes());
            sequence.tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
        }
        Self {
            target: rows.settings.target.clone(),
            sequences: hex(&hash.finalize()),
            layers: head.layers.to_vec(),
            len: head.features(),
        }
    }
}

/// Bytes that the states of so many tokens take.
pub fn size(head: &HeadShape, tokens: usize) -> u64 {
    (tokens * head.features() * NUMBER_LEN) as u64
}

/// The target's states of all sequences.
#[derive(Debug)]
pub struct Features {
    reader: Mutex<Reader>,
    /// Where each sequence's begin in the file, and where the last one's end.
    starts: Vec<u64>,
}

impl Features {
    /// The states in a file.
    ///
    /// # Errors
    /// If it is damaged, or of other sequences or layers.
    pub fn open(path: &Path, rows: &Rows, head: &HeadShape) -> anyhow::Result<Self> {
        let features = Self::known(path, rows, head)?;
        let (has, needed) = (features.reader().body_len(), features.starts.last());
        ensure!(Some(&has) == needed, "{}: it lacks states: remove it", path.display());
        Ok(features)
    }

    /// The same, of the first sequences alone if there are no more.
    fn known(path: &Path, rows: &Rows, head: &HeadShape) -> anyhow::Result<Self> {
        let (origin, reader) = Reader::open::<Origin>(path)?;
        ensure!(
            origin == Origin::new(rows, head),
            "{}: these states are of other sequences or layers: remove it, or name other rows by --rows",
            path.display()
        );
        let mut starts = vec![0];
        for sequence in &rows.sequences {
            starts.push(starts[starts.len() - 1] + size(head, entry_count(sequence)));
        }
        Ok(Self { reader: Mutex::new(reader), starts })
    }

    /// Appends the states that a head reads of a sequence.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn read(&self, sequence: &Sequence, into: &mut Vec<f32>) -> anyhow::Result<()> {
        let bytes = self.bytes(sequence.id as usize)?;
        let numbers = bytes.chunks_exact(NUMBER_LEN);
        into.extend(numbers.map(|it| f16::from_le_bytes([it[0], it[1]]).to_f32()));
        Ok(())
    }

    fn bytes(&self, sequence: usize) -> anyhow::Result<Vec<u8>> {
        let (start, end) = (self.starts[sequence], self.starts[sequence + 1]);
        let count = usize::try_from(end - start)?;
        self.reader().bytes_at(start, count).context("the target's states")
    }

    fn reader(&self) -> MutexGuard<'_, Reader> {
        // A read that panicked has changed nothing that the next one needs.
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many of the first sequences it has.
    fn complete(&self) -> usize {
        let has = self.reader().body_len();
        self.starts[1..].iter().take_while(|&&end| end <= has).count()
    }
}

/// Has the target read all sequences, and writes its states to a file. `passed` is told how many sequences of all are
/// done. Returns false if it was stopped; then the sequences that are done are kept beside the file, and the next
/// call goes on from there.
///
/// # Errors
/// If the target cannot be loaded or fails, or there is no room on the disk.
pub fn collect(
    target: &Path,
    (rows, head): (&Rows, &HeadShape),
    path: &Path,
    running: &Running,
    mut passed: impl FnMut(usize, usize),
) -> anyhow::Result<bool> {
    let partial = beside(path, "partial");
    let before = match partial.exists() {
        true => Some(Features::known(&partial, rows, head)?),
        false => None,
    };
    let done = before.as_ref().map_or(0, Features::complete);
    let mut writer = Writer::create(&partial, &Origin::new(rows, head))?;
    if let Some(before) = &before {
        for sequence in 0..done {
            writer.write(&before.bytes(sequence)?)?;
        }
    }
    let model = Model::load(ModelOptions::new(target))?;
    let mut engine = LlamaEngine::new(&model, &engine_options(&rows.settings, running)?)?;
    engine.give_layer_inputs(&model, &head.layers)?;
    let mut output = Output::default();
    for (at, sequence) in rows.sequences.iter().enumerate().skip(done) {
        let states = states(&mut engine, sequence, &mut output);
        if running.stop.load(Ordering::Relaxed) {
            writer.finish()?;
            return Ok(false);
        }
        writer.write(&states?)?;
        passed(at + 1, rows.sequences.len());
    }
    writer.finish()?;
    fs::rename(&partial, path).with_context(|| format!("{}", path.display()))?;
    Ok(true)
}

/// The states that a head reads of a sequence.
fn states(
    engine: &mut LlamaEngine,
    sequence: &Sequence,
    output: &mut Output,
) -> anyhow::Result<Vec<u8>> {
    let count = entry_count(sequence);
    let trunk: Vec<Token> = sequence.tokens[..count].iter().copied().map(Token).collect();
    if trunk.is_empty() {
        return Ok(Vec::new());
    }
    let (slot, keep) = (Slot(0), Keep::Trunk(0));
    let step = Step { slot, keep, trunk: &trunk, tree: &[], rows: WantedRows::None };
    engine.extend(&[step], output).context("the target failed")?;
    let mut bytes = Vec::with_capacity(count * engine.feature_len() * NUMBER_LEN);
    for position in 0..count {
        for &number in output.feature(position) {
            // Some models have states beyond what f16 holds, at a few places.
            let within = number.clamp(f16::MIN.to_f32(), f16::MAX.to_f32());
            bytes.extend(f16::from_f32(within).to_le_bytes());
        }
    }
    Ok(bytes)
}
