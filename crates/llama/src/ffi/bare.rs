//! Feature `bare`: the shortest loop over llama.cpp there is, to measure the decoder against.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use llama_cpp_sys_2 as sys;

use super::model::RawModel;

/// Decodes greedily with one `llama_decode` and one look at the logits a token. Returns the tokens
/// and the time from the first of them to the last.
///
/// # Panics
/// If a call fails.
pub(crate) fn greedy(
    model: &Arc<RawModel>,
    threads: i32,
    prompt: &[i32],
    count: usize,
) -> (Vec<i32>, Duration) {
    // SAFETY: takes nothing and returns a plain struct.
    let mut params = unsafe { sys::llama_context_default_params() };
    params.n_ctx = 2048;
    (params.n_threads, params.n_threads_batch) = (threads, threads);
    params.flash_attn_type = sys::LLAMA_FLASH_ATTN_TYPE_ENABLED;
    params.no_perf = true;
    // SAFETY: the model is live for the whole function; the parameters point to nothing.
    let context = unsafe { sys::llama_init_from_model(model.as_ptr(), params) };
    let context = NonNull::new(context).expect("a context is made").as_ptr();
    let mut tokens = prompt.to_vec();
    let mut pending = tokens.clone();
    let mut started = Instant::now();
    for index in 0..count {
        let len = i32::try_from(pending.len()).expect("a short prompt");
        // SAFETY: the pointer is to `len` tokens that outlive the batch.
        let batch = unsafe { sys::llama_batch_get_one(pending.as_mut_ptr(), len) };
        // SAFETY: the context is live, and so is what the batch points to.
        assert_eq!(unsafe { sys::llama_decode(context, batch) }, 0, "the pass succeeds");
        // SAFETY: the context is live; -1 is the last token, whose logits are always there.
        let logits = unsafe { sys::llama_get_logits_ith(context, -1) };
        // SAFETY: llama.h promises `n_vocab` floats until the next decode.
        let logits = unsafe { std::slice::from_raw_parts(logits, model.vocab_len()) };
        let mut best = 0;
        for (token, logit) in logits.iter().enumerate() {
            if *logit > logits[best] {
                best = token;
            }
        }
        let next = i32::try_from(best).expect("a vocabulary fits");
        tokens.push(next);
        pending = vec![next];
        if index == 0 {
            started = Instant::now();
        }
    }
    let time = started.elapsed();
    // SAFETY: the context is live and not used again.
    unsafe { sys::llama_free(context) };
    (tokens.split_off(prompt.len()), time)
}
