//! What can be chosen about a model and an engine, as types that only hold meaningful values.
//!
//! Flags, files and environment are read elsewhere; here every default is decided.

use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Called with the share of the model that is loaded, from 0 to 1; `false` stops the loading.
pub type Progress = Box<dyn FnMut(f32) -> bool + Send>;

/// How to load a model.
pub struct ModelOptions {
    /// The GGUF file; of a split model, the first part.
    pub path: PathBuf,
    /// How much of the model goes to the GPU. Without a GPU it makes no difference.
    pub gpu_layers: GpuLayers,
    /// How the file comes into memory.
    pub load_mode: LoadMode,
    /// Whether every weight is checked to be a number, which reads the whole file.
    pub check_tensors: bool,
    /// Whether the blocks that predict tokens after the next are loaded, if the file has some.
    pub prediction_layers: bool,
    /// Whether it is to embed texts, so that a model which generates none will do.
    pub embeds: bool,
    /// Told how far the loading is.
    pub progress: Option<Progress>,
}

impl ModelOptions {
    /// The defaults for a file: everything on the GPU if there is one, mapped into memory.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            gpu_layers: GpuLayers::All,
            load_mode: LoadMode::Map,
            check_tensors: false,
            prediction_layers: false,
            embeds: false,
            progress: None,
        }
    }
}

impl fmt::Debug for ModelOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelOptions")
            .field("path", &self.path)
            .field("gpu_layers", &self.gpu_layers)
            .field("load_mode", &self.load_mode)
            .field("check_tensors", &self.check_tensors)
            .field("prediction_layers", &self.prediction_layers)
            .field("embeds", &self.embeds)
            .finish_non_exhaustive()
    }
}

/// How many of a model's layers are on the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GpuLayers {
    /// All of them.
    #[default]
    All,
    /// The last so many; the processor runs the rest.
    Last(u16),
}

/// What one row is made of a text's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// The first.
    Cls,
    /// The last.
    Last,
    /// Scores of how well a document answers a query, by the model's own head.
    Rank,
}

impl Pooling {
    const ALL: [Self; 4] = [Self::Mean, Self::Cls, Self::Last, Self::Rank];

    fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::Cls => "cls",
            Self::Last => "last",
            Self::Rank => "rank",
        }
    }
}

impl fmt::Display for Pooling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Pooling {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        by_name("pooling", name, &Self::ALL, Self::name)
    }
}

/// How a model's file comes into memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LoadMode {
    /// Mapped: read as it is needed, shared between processes.
    #[default]
    Map,
    /// Mapped, and held in memory by the system.
    MapAndLock,
    /// Read into memory of its own.
    Read,
}

/// How an engine runs a model.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Tokens that one slot has room for, trunk and tree together; unset, what the model was trained with.
    /// Every slot has this much for itself, however many there are.
    pub context_len: Option<NonZeroU32>,
    /// How many sequences can be cached at once.
    pub slots: NonZeroU32,
    /// Most paths of one slot's tree. With one, each slot has a cache of its own; with more, all
    /// share one, which costs time if there are many slots.
    pub paths: NonZeroU32,
    /// Threads for a pass over one token; unset, as many as the machine offers.
    pub threads: Option<NonZeroU32>,
    /// Threads for a pass over several tokens; unset, as for one.
    pub threads_batch: Option<NonZeroU32>,
    /// Most tokens handed to llama.cpp at once (its `n_batch`).
    pub batch_len: NonZeroU32,
    /// Most tokens that run through the model at once (its `n_ubatch`).
    pub pass_len: NonZeroU32,
    /// Number format of the cached keys. Where the fused kernel runs on the processor and one of the
    /// two is not named, it is chosen so that rows do not drift: by default `bf16` keys and `f16`
    /// values on x86-64, `f16` keys and `bf16` values elsewhere. With an accelerator both are `f16`. Models
    /// with latent attention have one format for both.
    pub cache_keys: Option<CacheType>,
    /// Number format of the cached values.
    pub cache_values: Option<CacheType>,
    /// Whether attention is computed in one fused kernel.
    pub flash_attention: FlashAttention,
    /// Whether all slots have their cells in one pool: several paths need that, and it lets
    /// sequences with drafts of different lengths share a pass. Cells of their own make rows
    /// independent of other sequences to the last bit. By default, a pool for several paths or one
    /// slot.
    pub unified: Option<bool>,
    /// Tokens that a recurrent state can forget again, if the model has one and llama.cpp can take it
    /// back: drafts are no longer than that, and it takes as much memory again for each.
    pub rollback: u32,
    /// While it is `true`, a pass stops as soon as it can. Whoever set it clears it.
    pub interrupt: Option<Arc<AtomicBool>>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            context_len: None,
            slots: NonZeroU32::MIN,
            paths: NonZeroU32::MIN,
            threads: None,
            threads_batch: None,
            batch_len: const { NonZeroU32::new(2048).expect("2048 > 0") },
            pass_len: const { NonZeroU32::new(512).expect("512 > 0") },
            cache_keys: None,
            cache_values: None,
            flash_attention: FlashAttention::On,
            unified: None,
            rollback: 0,
            interrupt: None,
        }
    }
}

/// Whether attention is computed in one fused kernel.
///
/// The default is *on* because rows then depend least on how many tokens a pass scores. With
/// quantised weights on a processor, a block of fewer than 64 tokens gives the rows of its tokens
/// one by one to the last bit; without it the two differ by as much as the weights' own rounding.
/// Even with it they differ, by as much, after a path was accepted that is not the first of its
/// tree: later tokens fill the holes the others left, and attention adds up in the order of the
/// cells. With cached keys and values as `f16` they also differ
/// - with several threads and 256 cached tokens or more: a pass over one token then adds up in
///   parts;
/// - in a pass over 64 tokens or more, such as a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FlashAttention {
    /// Always.
    #[default]
    On,
    /// Never.
    Off,
    /// If llama.cpp thinks it pays.
    Auto,
}

/// Number format of cached keys or values, by the names `llama-server` gives them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CacheType {
    /// 32-bit floats; flash attention rounds them to 16 bits before use, so they gain nothing there.
    F32,
    /// 16-bit floats.
    #[default]
    F16,
    /// 16-bit floats with the range of 32.
    Bf16,
    /// 8 bits, in blocks with a scale.
    Q8_0,
    /// 4 bits, in blocks with a scale.
    Q4_0,
    /// 4 bits, in blocks with a scale and an offset.
    Q4_1,
    /// 4 bits on a curve, in blocks with a scale.
    Iq4Nl,
    /// 5 bits, in blocks with a scale.
    Q5_0,
    /// 5 bits, in blocks with a scale and an offset.
    Q5_1,
}

impl CacheType {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Iq4Nl,
        Self::Q5_0,
        Self::Q5_1,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
            Self::Iq4Nl => "iq4_nl",
            Self::Q5_0 => "q5_0",
            Self::Q5_1 => "q5_1",
        }
    }

    /// Whether its numbers come in blocks, which llama.cpp needs flash attention for.
    pub fn is_quantised(self) -> bool {
        !matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }
}

/// An unknown name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} {name:?}: choose one of {choices}")]
pub struct UnknownName {
    what: &'static str,
    name: String,
    choices: String,
}

/// The member of `all` with this name, whatever its case.
pub(crate) fn by_name<T: Copy>(
    what: &'static str,
    name: &str,
    all: &[T],
    name_of: fn(T) -> &'static str,
) -> Result<T, UnknownName> {
    let found = all.iter().find(|member| name_of(**member).eq_ignore_ascii_case(name));
    found.copied().ok_or_else(|| {
        let choices: Vec<&str> = all.iter().map(|member| name_of(*member)).collect();
        UnknownName { what, name: name.to_owned(), choices: choices.join(", ") }
    })
}

impl FromStr for CacheType {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        by_name("cache type", name, &Self::ALL, Self::name)
    }
}

impl fmt::Display for CacheType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FlashAttention {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::On, Self::Off, Self::Auto];

    /// Its name: `on`, `off` or `auto`.
    pub fn name(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
            Self::Auto => "auto",
        }
    }
}

impl FromStr for FlashAttention {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        by_name("flash attention", name, &Self::ALL, Self::name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cache_type_has_its_own_name() {
        for kind in CacheType::ALL {
            assert_eq!(kind.name().parse::<CacheType>().unwrap(), kind);
            assert_eq!(kind.name().to_uppercase().parse::<CacheType>().unwrap(), kind);
        }
    }

    #[test]
    fn an_unknown_cache_type_is_told_the_known_ones() {
        let said = "q3".parse::<CacheType>().unwrap_err().to_string();
        assert!(said.starts_with("unknown cache type \"q3\": choose one of f32, f16"), "{said}");
    }
}
