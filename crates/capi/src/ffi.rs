//! The fence: the only file that may say `unsafe`. Pointers are checked for null and become slices of
//! the lengths that C states; that these are true is C's part of the contract.
#![allow(unsafe_code, reason = "the functions of a C library")]

use std::ffi::{c_char, c_void};
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};

use forerun_verify::{PathVerdict, Rows, Values};

use crate::judge::{Asked, Failure, Judge, Status, rule};

/// `forerun_rows` of the header.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct RawRows {
    /// Where the numbers are.
    pub values: *const c_void,
    /// How many there are.
    pub len: usize,
    /// What they are.
    pub number: i32,
    /// What they mean.
    pub meaning: i32,
    /// Of logits.
    pub temperature: f32,
    /// From row to row.
    pub stride: usize,
    /// From sequence to sequence.
    pub sequence_stride: usize,
}

/// `forerun_batch` of the header.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct RawBatch {
    /// How many sequences.
    pub sequences: usize,
    /// Their tokens.
    pub tokens: *const u32,
    /// How many tokens.
    pub token_count: usize,
    /// Where sequences begin, or null.
    pub offsets: *const usize,
    /// Room in each sequence.
    pub len_max: usize,
    /// How many tokens are drafted, or null.
    pub lengths: *const usize,
    /// A seed for each.
    pub seeds: *const u64,
    /// A position for each, or null.
    pub positions: *const u64,
    /// A temperature for each, or null.
    pub temperatures: *const f32,
    /// Rows that tokens were drawn from, or null.
    pub draft: *const RawRows,
    /// The target's rows.
    pub target: *const RawRows,
    /// Tokens in the vocabulary.
    pub vocab_len: usize,
}

/// `forerun_verdict` of the header.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct RawVerdict {
    /// How many tokens are accepted.
    pub accepted: usize,
    /// The token after them.
    pub next: u32,
}

/// `forerun_verifier` of the header.
pub struct RawVerifier(Judge);

/// As the header has it.
#[unsafe(no_mangle)]
pub extern "C" fn forerun_verifier_new(threads: usize) -> *mut RawVerifier {
    match NonZeroUsize::new(threads) {
        Some(threads) => Box::into_raw(Box::new(RawVerifier(Judge::new(threads)))),
        None => std::ptr::null_mut(),
    }
}

/// As the header has it.
///
/// # Safety
/// The verifier is null or from `forerun_verifier_new`, and not freed before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forerun_verifier_free(verifier: *mut RawVerifier) {
    if !verifier.is_null() {
        // SAFETY: it came from `Box::into_raw`, and the caller frees it once.
        drop(unsafe { Box::from_raw(verifier) });
    }
}

/// As the header has it.
///
/// # Safety
/// The verifier is null or from `forerun_verifier_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forerun_message(verifier: *const RawVerifier) -> *const c_char {
    // SAFETY: not null means that it is live, by the contract.
    match unsafe { verifier.as_ref() } {
        Some(verifier) => verifier.0.message().as_ptr(),
        None => c"the verifier is null".as_ptr(),
    }
}

/// As the header has it.
///
/// # Safety
/// Pointers are null or point at as many values as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forerun_verify_path(
    verifier: *mut RawVerifier,
    tokens: *const u32,
    token_count: usize,
    draft: *const RawRows,
    target: *const RawRows,
    vocab_len: usize,
    rule: i32,
    seed: u64,
    position: u64,
    verdict: *mut RawVerdict,
) -> i32 {
    let batch = RawBatch {
        sequences: 1,
        tokens,
        token_count,
        offsets: std::ptr::null(),
        len_max: token_count,
        lengths: std::ptr::null(),
        seeds: &raw const seed,
        positions: &raw const position,
        temperatures: std::ptr::null(),
        draft,
        target,
        vocab_len,
    };
    // SAFETY: the same contract, and what is local here outlives the call.
    unsafe { forerun_verify_batch(verifier, &raw const batch, rule, verdict) }
}

/// As the header has it.
///
/// # Safety
/// Pointers are null or point at as many values as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forerun_verify_batch(
    verifier: *mut RawVerifier,
    batch: *const RawBatch,
    rule_number: i32,
    verdicts: *mut RawVerdict,
) -> i32 {
    // SAFETY: not null means that it is live and this call's alone, by the contract.
    let Some(verifier) = (unsafe { verifier.as_mut() }) else { return Status::Null as i32 };
    let judge = &mut verifier.0;
    let judged = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the same contract.
        let asked = unsafe { asked(batch) }?;
        judge.judge(&asked, rule(rule_number)?)?;
        Ok::<usize, Failure>(asked.sequences)
    }));
    let failure = match judged {
        Ok(Ok(0)) => None,
        Ok(Ok(_)) if verdicts.is_null() => Some(Failure::null("verdicts")),
        Ok(Ok(sequences)) => {
            // SAFETY: not null, and the contract gives room for one for each sequence.
            let out = unsafe { std::slice::from_raw_parts_mut(verdicts, sequences) };
            for (out, PathVerdict { accepted, next, .. }) in out.iter_mut().zip(&judge.verdicts) {
                *out = RawVerdict { accepted: *accepted, next: next.0 };
            }
            None
        }
        Ok(Err(failure)) => Some(failure),
        Err(_) => Some(Failure {
            status: Status::Panic,
            message: "a bug in this library; free the verifier and report it".to_owned(),
        }),
    };
    judge.say(failure.as_ref().map_or("", |failure| &failure.message));
    failure.map_or(Status::Ok, |failure| failure.status) as i32
}

/// # Safety
/// As [`forerun_verify_batch`].
unsafe fn asked<'a>(batch: *const RawBatch) -> Result<Asked<'a>, Failure> {
    // SAFETY: not null means that it is live, by the contract.
    let batch = unsafe { batch.as_ref() }.ok_or_else(|| Failure::null("the batch"))?;
    let count = batch.sequences;
    let more = count.checked_add(1).ok_or_else(|| Failure::argument("too many sequences"))?;
    // SAFETY: the contract states each length, and all live through the call.
    let tokens = unsafe { needed(batch.tokens, batch.token_count, "tokens") }?;
    // SAFETY: the same.
    let seeds = unsafe { needed(batch.seeds, count, "seeds") }?;
    // SAFETY: the same.
    let offsets = unsafe { optional(batch.offsets, more) }?;
    // SAFETY: the same.
    let lengths = unsafe { optional(batch.lengths, count) }?;
    // SAFETY: the same.
    let positions = unsafe { optional(batch.positions, count) }?;
    // SAFETY: the same.
    let temperatures = unsafe { optional(batch.temperatures, count) }?;
    // SAFETY: the same.
    let draft = unsafe { rows(batch.draft, batch.vocab_len, "draft") }?;
    // SAFETY: the same.
    let target = unsafe { rows(batch.target, batch.vocab_len, "target") }?;
    let target = target.ok_or_else(|| Failure::null("target"))?;
    let (len_max, sequences) = (batch.len_max, count);
    Ok(Asked {
        tokens,
        offsets,
        len_max,
        lengths,
        sequences,
        seeds,
        positions,
        temperatures,
        draft,
        target,
    })
}

/// # Safety
/// If not null, there are `len` values at the pointer, and they live as long as the result is used.
unsafe fn optional<'a, T>(pointer: *const T, len: usize) -> Result<Option<&'a [T]>, Failure> {
    if pointer.is_null() {
        return Ok(None);
    }
    let size = len.checked_mul(size_of::<T>());
    if !pointer.is_aligned() || size.is_none_or(|size| isize::try_from(size).is_err()) {
        return Err(Failure::argument("an array that is not aligned or too long"));
    }
    // SAFETY: not null, aligned, not too long; the rest is the contract.
    Ok(Some(unsafe { std::slice::from_raw_parts(pointer, len) }))
}

/// # Safety
/// As [`optional`].
unsafe fn needed<'a, T>(pointer: *const T, len: usize, what: &str) -> Result<&'a [T], Failure> {
    if len == 0 {
        return Ok(&[]);
    }
    // SAFETY: the same contract.
    unsafe { optional(pointer, len) }?.ok_or_else(|| Failure::null(what))
}

/// # Safety
/// If not null, the rows are live and their values are as many as they say.
unsafe fn rows<'a>(
    pointer: *const RawRows,
    vocab_len: usize,
    what: &str,
) -> Result<Option<Rows<'a>>, Failure> {
    // SAFETY: not null means that it is live, by the contract.
    let Some(raw) = (unsafe { pointer.as_ref() }) else { return Ok(None) };
    let values = match raw.number {
        // SAFETY: the contract of the caller.
        0 => Values::F32(unsafe { needed(raw.values.cast(), raw.len, what) }?),
        // SAFETY: the same.
        1 => Values::F64(unsafe { needed(raw.values.cast(), raw.len, what) }?),
        // SAFETY: the same.
        2 => Values::F16(unsafe { needed(raw.values.cast(), raw.len, what) }?),
        // SAFETY: the same.
        3 => Values::Bf16(unsafe { needed(raw.values.cast(), raw.len, what) }?),
        other => {
            return Err(Failure::argument(format!(
                "{what} rows of number {other}; expected FORERUN_F32 to BF16"
            )));
        }
    };
    let rows = match raw.meaning {
        0 => Rows::weights(values, vocab_len),
        1 => Rows::logits(values, vocab_len, raw.temperature),
        other => {
            return Err(Failure::argument(format!(
                "{what} rows of meaning {other}; expected FORERUN_WEIGHTS or LOGITS"
            )));
        }
    };
    let rows = if raw.stride == 0 { rows } else { rows.with_stride(raw.stride) };
    Ok(Some(match raw.sequence_stride {
        0 => rows,
        stride => rows.with_sequence_stride(stride),
    }))
}
