//! A model's memory and the passes over it.

use std::ffi::c_void;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use llama_cpp_sys_2 as sys;

use super::batch::Batch;
use super::model::RawModel;
use super::workers::Workers;
use super::{hidden, log};
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
    /// Tokens that a recurrent state can forget again.
    pub(crate) rollback: u32,
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

/// What a context is made for, beside a model's own text.
#[derive(Debug, Clone)]
pub(crate) struct HeadOf {
    /// The target's, whose token embeddings and output a head may use.
    pub(crate) target: Arc<Handle>,
    /// Which of the model's blocks it is, if it is one that predicts: the first is 0.
    pub(crate) block: Option<usize>,
}

/// llama.cpp's object, and what it points to.
#[derive(Debug)]
pub(crate) struct Handle {
    raw: NonNull<sys::llama_context>,
    // All are pointed to by `raw` and so dropped after it.
    _workers: Option<Workers>,
    _interrupt: Option<Arc<AtomicBool>>,
    _model: Arc<RawModel>,
    _target: Option<Arc<Handle>>,
}

// SAFETY: a context has no thread of its own. It is used through the one `Context` that made it; who
// else holds the handle only keeps it alive, and llama.cpp then reads which model it is of, which
// never changes.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: `raw` came from `llama_init_from_model` and is not used again.
        unsafe { sys::llama_free(self.raw.as_ptr()) };
    }
}

/// A context: the memory of one or more sequences.
#[derive(Debug)]
pub(crate) struct Context {
    raw: NonNull<sys::llama_context>,
    memory: NonNull<sys::llama_memory_i>,
    vocab_len: usize,
    hidden_len: usize,
    last_hidden_len: usize,
    handle: Arc<Handle>,
}

// SAFETY: it is only used through `&mut self`, see `Handle`.
unsafe impl Send for Context {}

impl Context {
    /// Makes the memory for `model`, or says in llama.cpp's words why not.
    pub(crate) fn new(
        model: Arc<RawModel>,
        params: ContextParams,
        head: Option<HeadOf>,
    ) -> Result<Self, String> {
        let mut raw_params = raw_params(&params);
        if let Some(head) = &head {
            raw_params.ctx_other = head.target.raw.as_ptr();
            if head.block.is_some() {
                raw_params.ctx_type = sys::LLAMA_CONTEXT_TYPE_MTP;
            }
        }
        log::forget();
        // SAFETY: the model is live and held by the handle; the parameters point to the flag and the
        // target's context alone, which it holds as well.
        let raw = unsafe { sys::llama_init_from_model(model.as_ptr(), raw_params) };
        let raw = NonNull::new(raw).ok_or_else(log::reason)?;
        let (vocab_len, hidden_len) = (model.vocab_len(), model.hidden_len());
        let last_hidden_len = model.last_hidden_len();
        if let Some(block) = head.as_ref().and_then(|head| head.block) {
            let block = i32::try_from(block).expect("few blocks");
            // SAFETY: the context is live; the head names blocks that the model has.
            unsafe { hidden::forerun_use_nextn(raw.as_ptr(), block) };
        }
        let target = head.map(|head| head.target);
        // SAFETY: the context is live, and the handle frees it first.
        let workers = unsafe { Workers::attach(raw) };
        let handle = Arc::new(Handle {
            raw,
            _workers: workers,
            _interrupt: params.interrupt,
            _model: model,
            _target: target,
        });
        // SAFETY: `raw` is live; llama.h gives null for a model without memory.
        let memory = NonNull::new(unsafe { sys::llama_get_memory(raw.as_ptr()) });
        let memory = memory.ok_or("the model keeps no memory of what it read")?;
        Ok(Self { raw, memory, vocab_len, hidden_len, last_hidden_len, handle })
    }

    /// What keeps llama.cpp's object alive.
    pub(crate) fn handle(&self) -> Arc<Handle> {
        Arc::clone(&self.handle)
    }

    /// Has passes give what goes into a layer. The architecture must offer it.
    pub(crate) fn give_layer_input(&mut self, layer: u32) {
        // SAFETY: the context is live; the engine only names layers that the model has.
        unsafe { hidden::forerun_give_layer_input(self.raw.as_ptr(), layer) };
    }

    /// Has passes give the hidden rows before the output: of every entry, or of those with a row.
    pub(crate) fn give_last_hidden(&mut self, with_rows_only: bool) {
        // SAFETY: the context is live.
        unsafe { hidden::forerun_give_nextn(self.raw.as_ptr(), with_rows_only) };
    }

    /// Has every entry of a pass see all others of its sequence, also those after it.
    pub(crate) fn look_both_ways(&mut self) {
        // SAFETY: the context is live.
        unsafe { sys::llama_set_causal_attn(self.raw.as_ptr(), false) };
    }

    /// What went into a layer at the `index`-th entry of the last pass, which must give it.
    pub(crate) fn layer_input(&self, layer: u32, index: usize) -> &[f32] {
        // SAFETY: the context is live; the engine asks for layers that it had passes give.
        let rows = unsafe { hidden::forerun_layer_input(self.raw.as_ptr(), layer) };
        let row = rows.wrapping_add(index * self.hidden_len);
        // SAFETY: llama.cpp gives a row for every entry of the pass, until the next one, which needs
        // `&mut self`; the engine only names entries that ran.
        unsafe { std::slice::from_raw_parts(row, self.hidden_len) }
    }

    /// The hidden row before the output at the `index`-th entry of the last pass; `None` if there is
    /// none.
    pub(crate) fn last_hidden(&self, index: usize) -> Option<&[f32]> {
        let index = i32::try_from(index).ok()?;
        // SAFETY: the context is live; llama.cpp gives null for an entry without one.
        let row = unsafe { hidden::forerun_nextn_ith(self.raw.as_ptr(), index) };
        let row = NonNull::new(row)?;
        // SAFETY: the row has as many numbers as the model is wide, until the next pass, which needs
        // `&mut self`.
        Some(unsafe { std::slice::from_raw_parts(row.as_ptr(), self.last_hidden_len) })
    }

    /// Runs a head's encoder over rows of `len` numbers each, at most as many as a pass takes; appends
    /// what it makes of them.
    pub(crate) fn encode(&mut self, rows: &[f32], len: usize, into: &mut Vec<f32>) -> Passed {
        let count = rows.len() / len;
        let mut rows = rows.to_vec();
        // They mean nothing to an encoder, but must follow those of the sequence.
        let first = self.positions(0).map_or(0, |(_, last)| last + 1);
        let mut positions: Vec<i32> = (first..).take(count).collect();
        let mut counts = vec![1; count];
        let mut sequence = 0;
        let mut sequences = vec![ptr::from_mut(&mut sequence); count];
        let mut wanted = vec![1; count];
        let batch = sys::llama_batch {
            n_tokens: i32::try_from(count).expect("few rows"),
            token: ptr::null_mut(),
            embd: rows.as_mut_ptr(),
            pos: positions.as_mut_ptr(),
            n_seq_id: counts.as_mut_ptr(),
            seq_id: sequences.as_mut_ptr(),
            logits: wanted.as_mut_ptr(),
        };
        // SAFETY: the context is live; the batch's arrays have `n_tokens` entries each, its rows as
        // many numbers as the model's encoder takes, and all outlive the call.
        let code = unsafe { sys::llama_encode(self.raw.as_ptr(), batch) };
        if code != 0 {
            return passed(code);
        }
        // SAFETY: the context is live.
        let made = unsafe { hidden::forerun_nextn(self.raw.as_ptr()) };
        let Some(made) = NonNull::new(made) else { return Passed::Failed(NOT_ENCODED) };
        // SAFETY: the encoder gives a row as wide as the model for each that went in.
        let made =
            unsafe { std::slice::from_raw_parts(made.as_ptr(), count * self.last_hidden_len) };
        into.extend_from_slice(made);
        Passed::Done
    }

    /// Most tokens in a call.
    pub(crate) fn batch_len(&self) -> usize {
        // SAFETY: the context is live while `self` is.
        unsafe { sys::llama_n_batch(self.raw.as_ptr()) as usize }
    }

    /// Most tokens in a pass.
    pub(crate) fn pass_len(&self) -> usize {
        // SAFETY: the context is live while `self` is.
        unsafe { sys::llama_n_ubatch(self.raw.as_ptr()) as usize }
    }

    /// How many numbers what goes into a layer has.
    pub(crate) fn hidden_len(&self) -> usize {
        self.hidden_len
    }

    /// How many numbers the hidden row before the output has.
    pub(crate) fn last_hidden_len(&self) -> usize {
        self.last_hidden_len
    }

    /// Tokens that a recurrent state can forget again; zero if llama.cpp cannot take it back.
    pub(crate) fn rollback(&self) -> usize {
        // SAFETY: the context is live while `self` is.
        unsafe { sys::llama_n_rs_seq(self.raw.as_ptr()) as usize }
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
        passed(unsafe { sys::llama_decode(self.raw.as_ptr(), view) })
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

/// The code for hidden rows that an encoder did not give; llama.cpp has none.
const NOT_ENCODED: i32 = -101;

pub(super) fn passed(code: i32) -> Passed {
    match code {
        0 => Passed::Done,
        1 => Passed::Full,
        2 => Passed::Interrupted,
        -1 => Passed::Refused,
        code => Passed::Failed(code),
    }
}

/// Most sequences of one context.
pub(crate) fn sequences_max() -> usize {
    // SAFETY: takes nothing and returns a constant.
    unsafe { sys::llama_max_parallel_sequences() }
}

/// Whether this build runs models on more than the processor.
pub(crate) fn offers_accelerator() -> bool {
    #[cfg(feature = "portable")]
    if !super::backends::are_loaded() {
        return false;
    }
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
        watch_interrupt(&mut raw, flag);
    }
    raw.n_rs_seq = params.rollback;
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

/// Has passes stop while the flag, which the context must hold, is `true`.
pub(super) fn watch_interrupt(raw: &mut sys::llama_context_params, flag: &Arc<AtomicBool>) {
    raw.abort_callback = Some(interrupted);
    raw.abort_callback_data = Arc::as_ptr(flag).cast_mut().cast();
}

/// Tells a pass whether to stop.
unsafe extern "C" fn interrupted(flag: *mut c_void) -> bool {
    // SAFETY: `flag` is the one the context holds an `Arc` of, and it is only read.
    let flag = unsafe { &*flag.cast::<AtomicBool>() };
    flag.load(Ordering::Relaxed)
}
