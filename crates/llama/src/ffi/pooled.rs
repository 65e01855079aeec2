//! A context that gives one row for a whole sequence: an embedding, or scores.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use llama_cpp_sys_2 as sys;

use super::batch::Batch;
use super::context::{Passed, passed, watch_interrupt};
use super::log;
use super::model::RawModel;
use crate::options::Pooling;

/// Everything llama.cpp is told about such a context.
#[derive(Debug, Clone)]
pub(crate) struct PooledParams {
    /// Most tokens in a pass, over all sequences. A sequence is in one pass as a whole.
    pub(crate) pass_len: u32,
    /// Most sequences in a pass.
    pub(crate) sequences: u32,
    /// Threads of a pass.
    pub(crate) threads: i32,
    /// What becomes of a sequence's rows; `None` if the model says so.
    pub(crate) pooling: Option<Pooling>,
    /// Stops a pass while it is `true`.
    pub(crate) interrupt: Option<Arc<AtomicBool>>,
}

/// llama.cpp's object.
#[derive(Debug)]
pub(crate) struct PooledContext {
    raw: NonNull<sys::llama_context>,
    // Both are pointed to by `raw` and so dropped after it.
    _interrupt: Option<Arc<AtomicBool>>,
    model: Arc<RawModel>,
}

// SAFETY: a context has no thread of its own, and it is only used through `&mut self`.
unsafe impl Send for PooledContext {}

impl Drop for PooledContext {
    fn drop(&mut self) {
        // SAFETY: `raw` came from `llama_init_from_model` and is not used again.
        unsafe { sys::llama_free(self.raw.as_ptr()) };
    }
}

impl PooledContext {
    /// Makes it, or says in llama.cpp's words why not.
    pub(crate) fn new(model: Arc<RawModel>, params: PooledParams) -> Result<Self, String> {
        // SAFETY: takes nothing and returns a plain struct.
        let mut raw = unsafe { sys::llama_context_default_params() };
        raw.n_ctx = params.pass_len;
        raw.n_batch = params.pass_len;
        raw.n_ubatch = params.pass_len;
        raw.n_seq_max = params.sequences;
        (raw.n_threads, raw.n_threads_batch) = (params.threads, params.threads);
        raw.embeddings = true;
        raw.kv_unified = true;
        raw.no_perf = true;
        if let Some(pooling) = params.pooling {
            raw.pooling_type = raw_pooling(pooling);
        }
        if let Some(flag) = &params.interrupt {
            watch_interrupt(&mut raw, flag);
        }
        log::forget();
        // SAFETY: the model is live and held by the context; the parameters point to the flag alone,
        // which it holds as well.
        let raw = unsafe { sys::llama_init_from_model(model.as_ptr(), raw) };
        let raw = NonNull::new(raw).ok_or_else(log::reason)?;
        Ok(Self { raw, _interrupt: params.interrupt, model })
    }

    /// What becomes of a sequence's rows; `None` if they stay as they are.
    pub(crate) fn pooling(&self) -> Option<Pooling> {
        // SAFETY: the context is live while `self` is.
        match unsafe { sys::llama_pooling_type(self.raw.as_ptr()) } {
            sys::LLAMA_POOLING_TYPE_MEAN => Some(Pooling::Mean),
            sys::LLAMA_POOLING_TYPE_CLS => Some(Pooling::Cls),
            sys::LLAMA_POOLING_TYPE_LAST => Some(Pooling::Last),
            sys::LLAMA_POOLING_TYPE_RANK => Some(Pooling::Rank),
            _ => None,
        }
    }

    /// Reads whole sequences from nothing, all in one pass.
    pub(crate) fn run(&mut self, batch: &mut Batch) -> Passed {
        // SAFETY: the context is live; llama.h gives null for a model without memory.
        let memory = NonNull::new(unsafe { sys::llama_get_memory(self.raw.as_ptr()) });
        if let Some(memory) = memory {
            // SAFETY: the memory is live while the context is.
            unsafe { sys::llama_memory_clear(memory.as_ptr(), false) };
        }
        let view = batch.view(0..batch.len());
        // SAFETY: the context is live; the view's arrays have `n_tokens` entries each and `batch`
        // is borrowed for as long.
        passed(unsafe { sys::llama_decode(self.raw.as_ptr(), view) })
    }

    /// The row of a sequence of the last pass, of so many numbers; `None` if there is none.
    pub(crate) fn row(&mut self, sequence: i32, len: usize) -> Option<&[f32]> {
        // SAFETY: the context is live; llama.h gives null for a sequence without one.
        let row = unsafe { sys::llama_get_embeddings_seq(self.raw.as_ptr(), sequence) };
        let row = NonNull::new(row)?;
        // SAFETY: llama.h promises as many numbers as the model gives embeddings, or scores, until
        // the next pass, which needs `&mut self`.
        Some(unsafe { std::slice::from_raw_parts(row.as_ptr(), len) })
    }

    /// How many numbers a sequence's row has.
    pub(crate) fn row_len(&self) -> usize {
        match self.pooling() {
            Some(Pooling::Rank) => self.model.score_count(),
            _ => self.model.last_hidden_len(),
        }
    }
}

fn raw_pooling(pooling: Pooling) -> sys::llama_pooling_type {
    match pooling {
        Pooling::Mean => sys::LLAMA_POOLING_TYPE_MEAN,
        Pooling::Cls => sys::LLAMA_POOLING_TYPE_CLS,
        Pooling::Last => sys::LLAMA_POOLING_TYPE_LAST,
        Pooling::Rank => sys::LLAMA_POOLING_TYPE_RANK,
    }
}
