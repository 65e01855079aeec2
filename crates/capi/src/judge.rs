//! What C asks for, in Rust's terms.

use std::ffi::CString;
use std::num::NonZeroUsize;

use forerun_verify::{
    Batch, BatchError, BatchVerifier, Layout, PathError, PathRule, PathVerdict, Rows,
};

/// What a call came to; the values are those of the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Status {
    /// Judged.
    Ok = 0,
    /// A pointer is null.
    Null = 1,
    /// An argument is unknown or does not fit.
    Argument = 2,
    /// A row is no distribution.
    Row = 3,
    /// A path and its rows do not belong together.
    Path = 4,
    /// A bug on our side.
    Panic = 5,
}

/// Why a call failed.
pub(crate) struct Failure {
    pub(crate) status: Status,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn null(what: &str) -> Self {
        Self { status: Status::Null, message: format!("{what} is null") }
    }

    pub(crate) fn argument(message: impl Into<String>) -> Self {
        Self { status: Status::Argument, message: message.into() }
    }
}

impl From<BatchError> for Failure {
    fn from(error: BatchError) -> Self {
        let status = match &error {
            BatchError::Path { error: PathError::Row { .. }, .. } => Status::Row,
            BatchError::Path { .. } => Status::Path,
            _ => Status::Argument,
        };
        Self { status, message: error.to_string() }
    }
}

pub(crate) fn rule(number: i32) -> Result<PathRule, Failure> {
    match number {
        0 => Ok(PathRule::Block),
        1 => Ok(PathRule::Token),
        2 => Ok(PathRule::Nss),
        3 => Ok(PathRule::Coupled),
        _ => Err(Failure::argument(format!("rule {number}; expected FORERUN_BLOCK to COUPLED"))),
    }
}

/// A batch whose pointers are slices.
pub(crate) struct Asked<'a> {
    pub(crate) tokens: &'a [u32],
    pub(crate) offsets: Option<&'a [usize]>,
    pub(crate) len_max: usize,
    pub(crate) lengths: Option<&'a [usize]>,
    pub(crate) sequences: usize,
    pub(crate) seeds: &'a [u64],
    pub(crate) positions: Option<&'a [u64]>,
    pub(crate) temperatures: Option<&'a [f32]>,
    pub(crate) draft: Option<Rows<'a>>,
    pub(crate) target: Rows<'a>,
}

/// A verifier and what it has to say.
pub(crate) struct Judge {
    verifier: BatchVerifier,
    lengths: Vec<usize>,
    pub(crate) verdicts: Vec<PathVerdict>,
    message: CString,
}

impl Judge {
    pub(crate) fn new(threads: NonZeroUsize) -> Self {
        let verifier = BatchVerifier::new(threads);
        Self { verifier, lengths: Vec::new(), verdicts: Vec::new(), message: CString::default() }
    }

    pub(crate) fn message(&self) -> &CString {
        &self.message
    }

    pub(crate) fn say(&mut self, message: &str) {
        // No message of ours has a zero in it.
        self.message = CString::new(message).unwrap_or_default();
    }

    /// Writes a verdict for each sequence into the judge's own buffer.
    pub(crate) fn judge(&mut self, asked: &Asked<'_>, rule: PathRule) -> Result<(), Failure> {
        self.verdicts.clear();
        self.verdicts.resize(asked.sequences, PathVerdict::NONE);
        self.lengths.clear();
        self.lengths.resize(asked.sequences, asked.len_max);
        let layout = match (asked.offsets, asked.lengths) {
            (Some(offsets), _) => Layout::Ragged { offsets },
            (None, Some(lengths)) => Layout::Padded { len_max: asked.len_max, lengths },
            (None, None) => Layout::Padded { len_max: asked.len_max, lengths: &self.lengths },
        };
        let mut batch = Batch::new(layout, asked.tokens, asked.draft, asked.target);
        if let Some(positions) = asked.positions {
            batch = batch.at(positions);
        }
        if let Some(temperatures) = asked.temperatures {
            batch = batch.with_temperatures(temperatures);
        }
        Ok(self.verifier.verify(&batch, rule, asked.seeds, &mut self.verdicts)?)
    }
}
