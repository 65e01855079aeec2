//! A batch of verdicts beside one streaming read of the rows that they depend on.
//!
//! `just verify-batch` runs it: `bench/verify/batch.py` writes the rows to a file, asks for rounds
//! on standard input, one a line (`threads` and `drafted` or `fixed`), and gets times back.

use std::collections::HashMap;
use std::fs;
use std::hint::black_box;
use std::io::{self, BufRead, Write};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fearless_simd::prelude::*;
use fearless_simd::{Level, Simd, dispatch, f32x16};
use forerun_verify::*;

type Failure = Box<dyn std::error::Error>;

/// The rows of all sequences, as the file has them: target logits, draft logits, drafted tokens.
struct Recorded {
    sequences: usize,
    len: usize,
    vocab_len: usize,
    target: Vec<f32>,
    draft: Vec<f32>,
    tokens: Vec<u32>,
}

impl Recorded {
    fn open(file: &str, sizes: [usize; 3]) -> Result<Self, Failure> {
        let [sequences, len, vocab_len] = sizes;
        let bytes = fs::read(file)?;
        let mut words = bytes.as_chunks::<4>().0.iter().copied();
        let mut numbers =
            |count: usize| words.by_ref().take(count).map(f32::from_le_bytes).collect::<Vec<_>>();
        let target = numbers(sequences * (len + 1) * vocab_len);
        let draft = numbers(sequences * len * vocab_len);
        let tokens: Vec<u32> = words.map(u32::from_le_bytes).collect();
        if tokens.len() != sequences * len {
            return Err(format!("{file} has rows of another size").into());
        }
        Ok(Self { sequences, len, vocab_len, target, draft, tokens })
    }

    fn verify(
        &self,
        verifier: &mut BatchVerifier,
        drafted: bool,
        seeds: &[u64],
        verdicts: &mut [PathVerdict],
    ) -> Result<Duration, BatchError> {
        let lengths = vec![self.len; self.sequences];
        let rows = |values| Rows::logits(Values::F32(values), self.vocab_len, 1.0);
        let batch = Batch::new(
            Layout::Padded { len_max: self.len, lengths: &lengths },
            &self.tokens,
            drafted.then(|| rows(&self.draft)),
            rows(&self.target),
        );
        let start = Instant::now();
        verifier.verify(&batch, PathRule::Block, seeds, verdicts)?;
        Ok(start.elapsed())
    }

    /// The rows that a verdict depends on: every one before a drafted token, as the weight of the
    /// whole path says whether all of it is accepted, and the last row if it is.
    fn touched(&self, sequence: usize, verdict: PathVerdict, drafted: bool) -> Vec<&[f32]> {
        let all_accepted = usize::from(verdict.accepted == self.len);
        let targets = self.target.chunks(self.vocab_len).skip(sequence * (self.len + 1));
        let drafts = self.draft.chunks(self.vocab_len).skip(sequence * self.len);
        let draft_len = if drafted { self.len } else { 0 };
        targets.take(self.len + all_accepted).chain(drafts.take(draft_len)).collect()
    }
}

/// One streaming read of rows, as wide as the machine reads: the yardstick.
#[inline(always)]
fn read_on<S: Simd>(simd: S, rows: &[&[f32]]) -> f32 {
    let mut sums = [f32x16::splat(simd, 0.0); 8];
    for row in rows {
        for group in row.as_chunks::<128>().0 {
            for (sum, part) in sums.iter_mut().zip(group.as_chunks::<16>().0) {
                *sum += f32x16::from_slice(simd, part);
            }
        }
    }
    let mut total = [0.0; 16];
    sums.into_iter().fold(f32x16::splat(simd, 0.0), |a, b| a + b).store_slice(&mut total);
    total.iter().sum()
}

/// Reads the rows of all sequences; each thread takes the next sequence, as the verifier's do.
fn read(level: Level, rows: &[Vec<&[f32]>], threads: usize) -> Duration {
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(rows) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
            black_box(dispatch!(level, simd => read_on(simd, rows)));
        }
    };
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    start.elapsed()
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, sizes @ ..] = &arguments[..] else { return Err("which file?".into()) };
    let sizes: Vec<usize> = sizes.iter().map(|size| size.parse()).collect::<Result<_, _>>()?;
    let rows =
        Recorded::open(file, sizes.try_into().map_err(|_| "sequences, tokens, vocabulary?")?)?;
    let level = Level::new();
    let mut verdicts = vec![PathVerdict::NONE; rows.sequences];
    // Kept, as an engine keeps its own.
    let mut verifiers: HashMap<NonZeroUsize, BatchVerifier> = HashMap::new();
    let mut seed = 0;
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let line = line?;
        let (threads, drafts) = line.split_once(' ').ok_or("threads and drafts?")?;
        let (threads, drafted) = (threads.parse::<NonZeroUsize>()?, drafts == "drafted");
        let seeds: Vec<u64> = (seed..).take(rows.sequences).collect();
        seed += rows.sequences as u64;
        let verifier = verifiers.entry(threads).or_insert_with(|| BatchVerifier::new(threads));
        let judged = rows.verify(verifier, drafted, &seeds, &mut verdicts)?;
        let touched: Vec<Vec<&[f32]>> =
            verdicts.iter().enumerate().map(|(n, it)| rows.touched(n, *it, drafted)).collect();
        let reading = read(level, &touched, threads.get());
        let count: usize = touched.iter().map(Vec::len).sum();
        let listed = |number: fn(&PathVerdict) -> usize| {
            verdicts.iter().map(|it| number(it).to_string()).collect::<Vec<_>>().join(",")
        };
        let (accepted, next) = (listed(|it| it.accepted), listed(|it| it.next.index()));
        let (judged, reading) = (judged.as_nanos(), reading.as_nanos());
        writeln!(out, "{judged} {reading} {count} {accepted} {next}")?;
        out.flush()?;
    }
    Ok(())
}
