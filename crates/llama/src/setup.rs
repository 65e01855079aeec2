//! From options to what llama.cpp is told: every refusal and every size is decided here.

use crate::ffi::context::{ContextParams, offers_accelerator, sequences_max};
use crate::model::Model;
use crate::options::{CacheType, EngineOptions, FlashAttention};

/// llama.cpp rounds a sequence's cells up to a multiple of this.
const CELLS_STEP: usize = 256;

/// Why there is no engine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// llama.cpp numbers its sequences, and there is a largest number.
    #[error(
        "{slots} slots of {paths} paths are {} sequences, more than llama.cpp's {max}: \
         ask for fewer slots or paths", .slots * .paths
    )]
    TooManySequences {
        /// The slots requested.
        slots: usize,
        /// The paths requested.
        paths: usize,
        /// The most there can be.
        max: usize,
    },
    /// The model was trained with a shorter context.
    #[error(
        "a context of {asked} tokens is longer than the {trained} this model was trained with: \
         ask for at most {trained}"
    )]
    ContextTooLong {
        /// The tokens requested.
        asked: usize,
        /// Tokens it was trained with.
        trained: usize,
    },
    /// The cache has more cells than llama.cpp can number.
    #[error(
        "{slots} slots of {context_len} tokens are too large a cache: ask for fewer or shorter"
    )]
    CacheTooLarge {
        /// The slots requested.
        slots: usize,
        /// Tokens each.
        context_len: usize,
    },
    /// Quantised values are only read by the fused kernel.
    #[error("cached values as {kind} need flash attention: turn it on or cache them as f16")]
    NeedsFlashAttention {
        /// The format requested.
        kind: CacheType,
    },
    /// The memory is recurrent: it cannot be cut, so a tree of several paths cannot be left.
    #[error(
        "{paths} paths need a memory that can be cut, and this model's cannot: ask for one path"
    )]
    OnePathOnly {
        /// The paths requested.
        paths: usize,
    },
    /// The model is not a draft head, and has none.
    #[error("this model has no draft head: name one, or a draft model, with --spec-draft-model")]
    NoHead,
    /// A draft head writes nothing without its target.
    #[error(
        "this file is a draft head, which needs its target: name the target with --model and the head \
         with --spec-draft-model"
    )]
    HeadAlone,
    /// The head is of a kind that is not run.
    #[error("this draft head cannot be used: it is {kind}; use a draft model instead")]
    HeadNotRun {
        /// What it is.
        kind: &'static str,
    },
    /// The head was made for another target.
    #[error(
        "the draft head was made for another target: {reason}; use the head of this one, or a draft model"
    )]
    OtherTarget {
        /// What does not fit.
        reason: String,
    },
    /// llama.cpp's graph for this architecture does not give what the head reads.
    #[error(
        "llama.cpp does not give the hidden states of architecture {architecture} that the draft head \
         reads: use a draft model instead"
    )]
    NoHiddenStates {
        /// The target's architecture.
        architecture: String,
    },
    /// Neither the model nor its user says what one row is made of a text's.
    #[error(
        "the model does not say how a text's rows become one embedding: say so with --pooling (mean, cls \
         or last)"
    )]
    NoPooling,
    /// The model has no weights to score documents with.
    #[error(
        "this model has no weights that score documents: name a reranker, or leave --pooling out"
    )]
    NoScores,
    /// llama.cpp could not make the cache.
    #[error("llama.cpp cannot run this model as asked: {reason}")]
    Rejected {
        /// Its own words.
        reason: String,
    },
    /// The first pass failed.
    #[error("llama.cpp failed on its first pass with code {code}")]
    FirstPass {
        /// Its code.
        code: i32,
    },
}

/// How many tokens each slot has room for.
pub(crate) fn context_len(model: &Model, options: &EngineOptions) -> Result<usize, SetupError> {
    let trained = model.context_len();
    let asked = options.context_len.map_or(trained, |len| len.get() as usize);
    if asked > trained {
        return Err(SetupError::ContextTooLong { asked, trained });
    }
    Ok(asked)
}

/// What llama.cpp is told, once the options are known to make sense.
pub(crate) fn params(
    model: &Model,
    options: &EngineOptions,
    context_len: usize,
) -> Result<ContextParams, SetupError> {
    let (slots, paths) = (options.slots.get() as usize, options.paths.get() as usize);
    let (sequences, max) = (slots.saturating_mul(paths), sequences_max());
    if sequences > max {
        return Err(SetupError::TooManySequences { slots, paths, max });
    }
    let (keys, values) = cache_types(options, model.raw().caches_latent());
    if values.is_quantised() && options.flash_attention == FlashAttention::Off {
        return Err(SetupError::NeedsFlashAttention { kind: values });
    }
    // Trunk and tree share a slot's cells, so there is room for all slots at their fullest. Cells
    // of its own for each slot are counted in steps.
    let unified = paths > 1 || slots == 1 || options.unified == Some(true);
    let each = if unified { context_len } else { context_len.next_multiple_of(CELLS_STEP) };
    let cells = u32::try_from(each.saturating_mul(slots))
        .ok()
        .filter(|&cells| i32::try_from(cells).is_ok())
        .ok_or(SetupError::CacheTooLarge { slots, context_len })?;
    let sequences = u32::try_from(sequences).unwrap_or(u32::MAX);
    let threads = options.threads.map_or_else(machine_threads, |n| thread_count(n.get()));
    Ok(ContextParams {
        cells,
        sequences,
        unified,
        // llama.cpp wants room for a row of every sequence.
        batch_len: options.batch_len.get().max(sequences),
        pass_len: options.pass_len.get(),
        threads: (threads, options.threads_batch.map_or(threads, |n| thread_count(n.get()))),
        cache_types: (keys, values),
        flash_attention: options.flash_attention,
        rollback: if model.is_recurrent() { options.rollback } else { 0 },
        interrupt: options.interrupt.clone(),
    })
}

/// Number formats of cached keys and values.
///
/// On a processor the fused kernel gives a token the same row alone and in a block, unless both are
/// `f16` or `f32`: then it adds up in parts. Of the pairs with equal rows, `bf16` keys and `f16`
/// values are read fastest where the processor multiplies both. Kernels of accelerators want one
/// format, and so do models with latent attention, whose values are part of their keys.
fn cache_types(options: &EngineOptions, latent: bool) -> (CacheType, CacheType) {
    use CacheType::{Bf16, F16, F32};
    let (keys, values) = (options.cache_keys, options.cache_values);
    let on_processor = options.flash_attention == FlashAttention::On && !offers_accelerator();
    if latent {
        let both = keys.or(values).unwrap_or(if on_processor { Bf16 } else { F16 });
        return (keys.unwrap_or(both), values.unwrap_or(both));
    }
    let keys = keys.unwrap_or(match values {
        None | Some(F16 | F32) if on_processor && cfg!(target_arch = "x86_64") => Bf16,
        _ => F16,
    });
    let values = values.unwrap_or(match keys {
        F16 | F32 if on_processor => Bf16,
        _ => F16,
    });
    (keys, values)
}

/// Most threads llama.cpp's scheduler takes.
const THREADS_MAX: i32 = 512;

pub(crate) fn thread_count(threads: u32) -> i32 {
    i32::try_from(threads).map_or(THREADS_MAX, |n| n.min(THREADS_MAX))
}

pub(crate) fn machine_threads() -> i32 {
    let offered = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    i32::try_from(offered).map_or(THREADS_MAX, |n| n.min(THREADS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_are_never_both_f16_unless_that_is_said() {
        if offers_accelerator() {
            return;
        }
        let of = |cache_keys, cache_values, flash_attention, latent| {
            let options = EngineOptions {
                cache_keys,
                cache_values,
                flash_attention,
                ..EngineOptions::default()
            };
            cache_types(&options, latent)
        };
        let on = |keys, values| of(keys, values, FlashAttention::On, false);
        let (f16, bf16, q8_0) = (CacheType::F16, CacheType::Bf16, CacheType::Q8_0);
        let default = if cfg!(target_arch = "x86_64") { (bf16, f16) } else { (f16, bf16) };
        assert_eq!(on(None, None), default);
        assert_eq!(on(Some(f16), None), (f16, bf16));
        assert_eq!(on(None, Some(bf16)), (f16, bf16));
        assert_eq!(on(Some(bf16), None), (bf16, f16));
        assert_eq!(on(Some(q8_0), None), (q8_0, f16));
        assert_eq!(on(None, Some(q8_0)), (f16, q8_0));
        assert_eq!(on(Some(f16), Some(f16)), (f16, f16));
        assert_eq!(of(None, None, FlashAttention::Off, false), (f16, f16));
        // llama.cpp refuses two formats where values are part of the keys.
        let latent = |keys, values| of(keys, values, FlashAttention::On, true);
        assert_eq!(latent(None, None), (bf16, bf16));
        assert_eq!(latent(Some(q8_0), None), (q8_0, q8_0));
        assert_eq!(latent(None, Some(f16)), (f16, f16));
    }
}
