//! Many paths at once: padded or ragged, on one thread or several.

use std::num::NonZeroUsize;
use std::sync::Mutex;

use super::{Path, PathError, PathRule, PathVerdict, PathVerifier, Rows};

/// Where in a batch the tokens and rows of each sequence are.
///
/// ```
/// # use forerun_verify::Layout;
/// // Three sequences with 2, 0 and 1 drafted tokens, one after the other.
/// assert_eq!(Layout::Ragged { offsets: &[0, 2, 2, 3] }.len(), 3);
/// ```
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Layout<'a> {
    /// Room for `len_max` tokens in every sequence; the first `lengths[n]` of sequence `n` are
    /// drafted. Draft rows have the same room, target rows room for one more.
    Padded {
        /// How many tokens there is room for.
        len_max: usize,
        /// How many are drafted, one number for each sequence.
        lengths: &'a [usize],
    },
    /// Sequence `n` has the tokens and draft rows `offsets[n]..offsets[n + 1]`, and the target
    /// rows `offsets[n] + n ..= offsets[n + 1] + n`: each sequence has one more of them.
    Ragged {
        /// Where each sequence starts, and where the last one ends.
        offsets: &'a [usize],
    },
}

impl Layout<'_> {
    /// How many sequences there are.
    pub fn len(&self) -> usize {
        match self {
            Self::Padded { lengths, .. } => lengths.len(),
            Self::Ragged { offsets } => offsets.len().saturating_sub(1),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Drafted paths of many sequences and their rows.
///
/// ```
/// use forerun_verify::*;
/// // Two sequences of a vocabulary of 2 with room for one drafted token; only the first has one.
/// let target = [0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.5, 0.5];
/// let batch = Batch::new(
///     Layout::Padded { len_max: 1, lengths: &[1, 0] },
///     &[1, 0],
///     None,
///     Rows::weights(Values::F32(&target), 2),
/// );
/// let mut verdicts = [PathVerdict::NONE; 2];
/// BatchVerifier::on_one_thread().verify(&batch, PathRule::Block, &[1, 2], &mut verdicts)?;
/// assert_eq!((verdicts[0].accepted, verdicts[0].next), (1, Token(0)));
/// assert_eq!((verdicts[1].accepted, verdicts[1].next), (0, Token(1)));
/// # Ok::<(), BatchError>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    layout: Layout<'a>,
    tokens: &'a [u32],
    draft: Option<Rows<'a>>,
    target: Rows<'a>,
    positions: Option<&'a [u64]>,
    temperatures: Option<&'a [f32]>,
}

impl<'a> Batch<'a> {
    /// Paths as [`Path::new`] has them, placed as the layout says.
    pub fn new(
        layout: Layout<'a>,
        tokens: &'a [u32],
        draft: Option<Rows<'a>>,
        target: Rows<'a>,
    ) -> Self {
        Self { layout, tokens, draft, target, positions: None, temperatures: None }
    }

    /// How many tokens are committed before each path, for [`PathRule::Coupled`].
    #[must_use]
    pub fn at(self, positions: &'a [u64]) -> Self {
        Self { positions: Some(positions), ..self }
    }

    /// A temperature for each sequence's logits, the target's and the drafter's, instead of one for
    /// all. Rows of weights are left alone.
    #[must_use]
    pub fn with_temperatures(self, temperatures: &'a [f32]) -> Self {
        Self { temperatures: Some(temperatures), ..self }
    }

    fn path(&self, sequence: usize) -> Result<Path<'a>, BatchError> {
        let short = |what| BatchError::Short { what, sequence };
        let (first, len, room) = match self.layout {
            Layout::Padded { len_max, lengths } => {
                let length = lengths[sequence];
                if length > len_max {
                    return Err(BatchError::TooLong { sequence, length, len_max });
                }
                (sequence * len_max, length, Some(len_max))
            }
            Layout::Ragged { offsets } => {
                let (from, to) = (offsets[sequence], offsets[sequence + 1]);
                let len = to.checked_sub(from).ok_or(BatchError::Offsets { sequence, from, to })?;
                (from, len, None)
            }
        };
        let end = first.checked_add(len).ok_or(short("tokens"))?;
        let tokens = self.tokens.get(first..end).ok_or(short("tokens"))?;
        let temperature = match self.temperatures {
            Some(all) => Some(*all.get(sequence).ok_or(short("temperatures"))?),
            None => None,
        };
        let of = |rows: Rows<'a>, more: usize| {
            let rows = match room {
                Some(room) => rows.of_sequence(sequence, room + more),
                None => rows.after_rows(first + sequence * more),
            };
            temperature.map_or(rows, |temperature| rows.at_temperature(temperature))
        };
        let path = Path::new(tokens, self.draft.map(|rows| of(rows, 0)), of(self.target, 1));
        Ok(match self.positions {
            Some(all) => path.at(*all.get(sequence).ok_or(short("positions"))?),
            None => path,
        })
    }
}

/// Why a batch was not judged.
///
/// ```
/// # use forerun_verify::*;
/// let target = Rows::weights(Values::F32(&[0.0, 1.0, 0.0, -1.0]), 2);
/// let batch = Batch::new(Layout::Ragged { offsets: &[0, 0, 0] }, &[], None, target);
/// let error = BatchVerifier::on_one_thread()
///     .verify(&batch, PathRule::Block, &[1, 2], &mut [PathVerdict::NONE; 2])
///     .unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "sequence 1: target row 0: weight of token 1 is -1; expected zero or more"
/// );
/// ```
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// One of its paths was not judged; of several, the first.
    #[error("sequence {sequence}: {error}")]
    Path {
        /// Which sequence.
        sequence: usize,
        /// Why.
        error: PathError,
    },
    /// There is not one entry for each sequence.
    #[error("sequence {sequence} is beyond the {what} that were given")]
    Short {
        /// Of what there are too few.
        what: &'static str,
        /// The first sequence that has none.
        sequence: usize,
    },
    /// More tokens are drafted than there is room for.
    #[error("sequence {sequence} has {length} drafted tokens and room for {len_max}")]
    TooLong {
        /// Which sequence.
        sequence: usize,
        /// How many tokens it has.
        length: usize,
        /// How many there is room for.
        len_max: usize,
    },
    /// Offsets go down.
    #[error("sequence {sequence} starts at {from} and ends at {to}; expected rising offsets")]
    Offsets {
        /// Which sequence.
        sequence: usize,
        /// Its start.
        from: usize,
        /// Its end.
        to: usize,
    },
    /// There is not one seed and one place for a verdict for each sequence.
    #[error("{count} {what} for {sequences} sequences; expected one for each")]
    Count {
        /// Of what.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// How many sequences.
        sequences: usize,
    },
}

/// Judges batches, in buffers of its own for each of its threads.
///
/// On one thread, nothing is allocated once the buffers have grown; further threads are started for
/// each batch. A verdict depends on the sequence's own rows and seed alone, so the number of
/// threads changes nothing.
///
/// ```
/// use std::num::NonZeroUsize;
/// # use forerun_verify::*;
/// let mut verifier = BatchVerifier::new(NonZeroUsize::new(2).unwrap());
/// # let target = Rows::weights(Values::F32(&[0.0, 1.0]), 2);
/// let batch = Batch::new(Layout::Ragged { offsets: &[0, 0] }, &[], None, target);
/// let mut verdicts = [PathVerdict::NONE];
/// verifier.verify(&batch, PathRule::Nss, &[7], &mut verdicts)?;
/// assert_eq!(verdicts[0].next, Token(1));
/// # Ok::<(), BatchError>(())
/// ```
#[derive(Debug)]
pub struct BatchVerifier {
    verifiers: Vec<PathVerifier>,
}

impl BatchVerifier {
    /// With so many threads, the caller's included.
    pub fn new(threads: NonZeroUsize) -> Self {
        Self { verifiers: (0..threads.get()).map(|_| PathVerifier::new()).collect() }
    }

    /// With the caller's thread alone.
    pub fn on_one_thread() -> Self {
        Self::new(NonZeroUsize::MIN)
    }

    /// Judges every path by its own seed and writes the verdicts.
    ///
    /// # Errors
    /// Names the first sequence that cannot be judged; the verdicts are then to be thrown away.
    pub fn verify(
        &mut self,
        batch: &Batch<'_>,
        rule: PathRule,
        seeds: &[u64],
        verdicts: &mut [PathVerdict],
    ) -> Result<(), BatchError> {
        let sequences = batch.layout.len();
        for (what, count) in [("seeds", seeds.len()), ("verdicts", verdicts.len())] {
            if count != sequences {
                return Err(BatchError::Count { what, count, sequences });
            }
        }
        let judge = |verifier: &mut PathVerifier, sequence: usize| {
            let path = batch.path(sequence)?;
            verifier
                .verify(&path, rule, seeds[sequence])
                .map_err(|error| BatchError::Path { sequence, error })
        };
        let (own, others) = self.verifiers.split_first_mut().expect("at least one thread");
        if others.is_empty() || sequences < 2 {
            for (sequence, verdict) in verdicts.iter_mut().enumerate() {
                *verdict = judge(own, sequence)?;
            }
            return Ok(());
        }
        let first_error: Mutex<Option<(usize, BatchError)>> = Mutex::new(None);
        // Each thread takes the next sequence when it is done with one: rows differ in cost.
        let queue = Mutex::new(verdicts.iter_mut().enumerate());
        let work = |verifier: &mut PathVerifier| {
            while let Some((sequence, verdict)) = next(&queue) {
                match judge(verifier, sequence) {
                    Ok(judged) => *verdict = judged,
                    Err(error) => keep_first(&first_error, sequence, error),
                }
            }
        };
        std::thread::scope(|scope| {
            for verifier in others.iter_mut().take(sequences - 1) {
                scope.spawn(|| work(verifier));
            }
            work(own);
        });
        let found = first_error.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        found.map_or(Ok(()), |(_, error)| Err(error))
    }
}

fn next<I: Iterator>(queue: &Mutex<I>) -> Option<I::Item> {
    queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).next()
}

fn keep_first(found: &Mutex<Option<(usize, BatchError)>>, sequence: usize, error: BatchError) {
    let mut found = found.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if found.as_ref().is_none_or(|(earlier, _)| sequence < *earlier) {
        *found = Some((sequence, error));
    }
}
