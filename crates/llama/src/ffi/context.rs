//! A model's memory and the passes over it.

use std::ffi::c_void;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use llama_cpp_sys_2 as sys;

use super::batch::Batch;
use super::log;
use super::model::RawModel;
use crate::options::{CacheType, FlashAttention};

/// Everything llama.cpp is told about a context.
#[derive(Debug, Clone)]
pub(crate) struct ContextParams {
    /// Cells of the cache, over all sequences.
    pub(crate) cells: u32,
    /// How many sequences there are.
    pub(crate) sequences: u32,
    /// Whether all sequences share one pool of cells.
    pub(crate) unified: bool,
    /// Most tokens in a call.
    pub(crate) batch_len: u32,
    /// Most tokens in a pass.
    pub(crate) pass_len: u32,
    /// Threads for one token, and for several.
    pub(crate) threads: (i32, i32),
    /// Number formats of keys and values.
    pub(crate) cache_types: (CacheType, CacheType),
    /// Whether attention is fused.
    pub(crate) flash_attention: FlashAttention,
    /// Stops a pass while it is `true`.
    pub(crate) interrupt: Option<Arc<AtomicBool>>,
}

/// How a pass ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passed {
    /// Well.
    Done,
    /// There were not enough cells; the memory is as before.
    Full,
    /// It was interrupted; part of it may be in memory.
    Interrupted,
    /// It was malformed; the memory is as before.
    Refused,
    /// It failed with this code; the memory is in doubt.
    Failed(i32),
}

/// A context: the memory of one or more sequences.
#[derive(Debug)]
pub(crate) struct Context {
    raw: NonNull<sys::llama_context>,
    memory: NonNull<sys::llama_memory_i>,
    vocab_len: usize,
    // Both are pointed to by `raw` and so dropped after it.
    _interrupt: Option<Arc<AtomicBool>>,
    _model: Arc<RawModel>,
}

// SAFETY: a context has no thread of its own and is only used through `&mut self`.
unsafe impl Send for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: `raw` came from `llama_init_from_model` and is not used again.
        unsafe { sys::llama_free(self.raw.as_ptr()) };
    }
}

impl Context {
    /// Makes the memory for `model`, or says in llama.cpp's words why not.
    pub(crate) fn new(model: Arc<RawModel>, params: ContextParams) -> Result<Self, String> {
        let raw_params = raw_params(&params);
        log::forget();
        // SAFETY: the model is live and held by the context; the parameters point to the flag
        // alone, which it holds as well.
        let raw = unsafe { sys::llama_init_from_model(model.as_ptr(), raw_params) };
        let raw = NonNull::new(raw).ok_or_else(log::reason)?;
        // SAFETY: `raw` is live; llama.h gives null for a model without memory.
        let memory = NonNull::new(unsafe { sys::llama_get_memory(raw.as_ptr()) });
        let Some(memory) = memory else {
            // SAFETY: `raw` is live and not used again.
            unsafe { sys::llama_free(raw.as_ptr()) };
            return Err("the model keeps no memory of what it read".to_owned());
        };
        let vocab_len = model.vocab_len();
        Ok(Self { raw, memory, vocab_len, _interrupt: params.interrupt, _model: model })
    }

    /// Most tokens in a call.
    pub(crate) fn batch_len(&self) -> usize {
        // SAFETY: the context is live while `self` is.
        unsafe { sys::llama_n_batch(self.raw.as_ptr()) as usize }
    }

    /// Cells one sequence can use.
    pub(crate) fn sequence_len(&self) -> usize {
        // SAFETY: the context is live while `self` is.
        unsafe { sys::llama_n_ctx_seq(self.raw.as_ptr()) as usize }
    }

    /// Runs some of a batch's entries, at most [`Context::batch_len`].
    pub(crate) fn decode(&mut self, batch: &mut Batch, range: Range<usize>) -> Passed {
        debug_assert!(range.len() <= self.batch_len(), "llama.cpp aborts on a longer batch");
        let view = batch.view(range);
        // SAFETY: the context is live; the view's arrays have `n_tokens` entries each and `batch`
        // is borrowed for as long.
        match unsafe { sys::llama_decode(self.raw.as_ptr(), view) } {
            0 => Passed::Done,
            1 => Passed::Full,
            2 => Passed::Interrupted,
            -1 => Passed::Refused,
            code => Passed::Failed(code),
        }
    }

    /// Logits after the `index`-th entry of the last pass, or `None` if none were requested.
    pub(crate) fn logits(&mut self, index: usize) -> Option<&[f32]> {
        let index = i32::try_from(index).ok()?;
        // SAFETY: `raw` is live while `self` is; llama.h gives null for an index without logits.
        let row = NonNull::new(unsafe { sys::llama_get_logits_ith(self.raw.as_ptr(), index) })?;
        // SAFETY: llama.h promises `n_vocab` floats until the next decode, which needs `&mut self`.
        Some(unsafe { std::slice::from_raw_parts(row.as_ptr(), self.vocab_len) })
    }

    /// Forgets a sequence from a position on; `false` if the memory cannot be cut there.
    pub(crate) fn remove(&mut self, sequence: i32, from: i32) -> bool {
        // SAFETY: the memory is live; the engine only names sequences that exist.
        unsafe { sys::llama_memory_seq_rm(self.memory.as_ptr(), sequence, from, -1) }
    }

    /// Makes the cells of one sequence in a range of positions those of another too.
    pub(crate) fn share(&mut self, from: i32, to: i32, positions: Range<i32>) {
        let (memory, Range { start, end }) = (self.memory.as_ptr(), positions);
        // SAFETY: the memory is live and both sequences exist in the same pool of cells.
        unsafe { sys::llama_memory_seq_cp(memory, from, to, start, end) };
    }

    /// Bytes that a sequence's cells would take outside.
    pub(crate) fn saved_len(&mut self, sequence: i32) -> usize {
        // SAFETY: the context is live; the engine only names sequences that exist.
        unsafe { sys::llama_state_seq_get_size(self.raw.as_ptr(), sequence) }
    }

    /// Copies a sequence's cells out; `false` if that fails.
    pub(crate) fn save(&mut self, sequence: i32, into: &mut Vec<u8>) -> bool {
        into.resize(self.saved_len(sequence), 0);
        let (to, len) = (into.as_mut_ptr(), into.len());
        // SAFETY: the context is live; `to` has room for `len` bytes.
        let saved = unsafe { sys::llama_state_seq_get_data(self.raw.as_ptr(), to, len, sequence) };
        saved == len
    }

    /// Restores a sequence to what was saved, and nothing else; `false` if that fails.
    pub(crate) fn restore(&mut self, sequence: i32, from: &[u8]) -> bool {
        let (start, len) = (from.as_ptr(), from.len());
        // An empty one is not cleared by what follows.
        self.remove(sequence, 0)
            // SAFETY: the context is live; `start` has `len` bytes, which this context saved.
            && unsafe { sys::llama_state_seq_set_data(self.raw.as_ptr(), start, len, sequence) } == len
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        // SAFETY: the memory is live while `self` is.
        unsafe { sys::llama_memory_clear(self.memory.as_ptr(), false) };
    }

    /// The first and last position of a sequence, or `None` if it is empty.
    pub(crate) fn positions(&self, sequence: i32) -> Option<(i32, i32)> {
        // SAFETY: the memory is live; the engine only names sequences that exist.
        let first = unsafe { sys::llama_memory_seq_pos_min(self.memory.as_ptr(), sequence) };
        // SAFETY: as above.
        let last = unsafe { sys::llama_memory_seq_pos_max(self.memory.as_ptr(), sequence) };
        (first >= 0).then_some((first, last))
    }
}

/// Most sequences of one context.
pub(crate) fn sequences_max() -> usize {
    // SAFETY: takes nothing and returns a constant.
    unsafe { sys::llama_max_parallel_sequences() }
}

/// Whether this build runs models on more than the processor.
pub(crate) fn offers_accelerator() -> bool {
    // SAFETY: takes nothing and looks through the registered devices.
    unsafe { sys::llama_supports_gpu_offload() }
}

fn raw_params(params: &ContextParams) -> sys::llama_context_params {
    // SAFETY: takes nothing and returns a plain struct.
    let mut raw = unsafe { sys::llama_context_default_params() };
    raw.n_ctx = params.cells;
    raw.n_batch = params.batch_len;
    raw.n_ubatch = params.pass_len;
    raw.n_seq_max = params.sequences;
    (raw.n_threads, raw.n_threads_batch) = params.threads;
    raw.flash_attn_type = match params.flash_attention {
        FlashAttention::On => sys::LLAMA_FLASH_ATTN_TYPE_ENABLED,
        FlashAttention::Off => sys::LLAMA_FLASH_ATTN_TYPE_DISABLED,
        FlashAttention::Auto => sys::LLAMA_FLASH_ATTN_TYPE_AUTO,
    };
    raw.type_k = raw_type(params.cache_types.0);
    raw.type_v = raw_type(params.cache_types.1);
    if let Some(flag) = &params.interrupt {
        raw.abort_callback = Some(interrupted);
        raw.abort_callback_data = Arc::as_ptr(flag).cast_mut().cast();
    }
    raw.no_perf = true;
    // A window that drops old cells could not be cut back.
    raw.swa_full = true;
    raw.kv_unified = params.unified;
    raw
}

fn raw_type(kind: CacheType) -> sys::ggml_type {
    match kind {
        CacheType::F32 => sys::GGML_TYPE_F32,
        CacheType::F16 => sys::GGML_TYPE_F16,
        CacheType::Bf16 => sys::GGML_TYPE_BF16,
        CacheType::Q8_0 => sys::GGML_TYPE_Q8_0,
        CacheType::Q4_0 => sys::GGML_TYPE_Q4_0,
        CacheType::Q4_1 => sys::GGML_TYPE_Q4_1,
        CacheType::Iq4Nl => sys::GGML_TYPE_IQ4_NL,
        CacheType::Q5_0 => sys::GGML_TYPE_Q5_0,
        CacheType::Q5_1 => sys::GGML_TYPE_Q5_1,
    }
}

/// Tells a pass whether to stop.
unsafe extern "C" fn interrupted(flag: *mut c_void) -> bool {
    // SAFETY: `flag` is the one the context holds an `Arc` of, and it is only read.
    let flag = unsafe { &*flag.cast::<AtomicBool>() };
    flag.load(Ordering::Relaxed)
}
