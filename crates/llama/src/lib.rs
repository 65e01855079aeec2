//! llama.cpp behind one `unsafe` fence, as an engine and a tokeniser for Forerun.
//!
//! [`Model::load`] reads a GGUF file, [`Model::vocab`] turns text into tokens and back, and
//! [`LlamaEngine`] runs the model over slots with a cache each. Only `ffi` calls llama.cpp;
//! nothing of its C interface can be seen from outside. Sampling, drafting and chat templates are
//! not here: engines give rows, and what becomes of them is decided elsewhere.

mod embedder;
mod engine;
mod ffi;
mod gguf;
mod head;
mod layout;
mod model;
mod model_file;
mod options;
mod quantize;
mod setup;
mod token_names;
mod tree;
mod trim;
mod vocab;
mod weights;

pub use embedder::{EmbedderOptions, LlamaEmbedder};
pub use engine::LlamaEngine;
pub use gguf::Header;
pub use head::{LlamaHead, gives_layer_inputs};
pub use model::{HeadKind, LoadError, Model};
pub use model_file::{ModelFile, Numbers, Tensor, Value, WriteError};
pub use options::{
    CacheType, EngineOptions, FlashAttention, GpuLayers, LoadMode, ModelOptions, Pooling, Progress,
    UnknownName,
};
pub use quantize::{QuantizeError, quantize};
pub use setup::SetupError;
pub use token_names::TokenNames;
pub use trim::{TrimError, Trimmed, transplant, trim};
pub use vocab::Vocab;
pub use weights::QuantizeType;

/// Whether llama.cpp's own log goes to standard error; it is silent by default.
pub fn set_verbose(verbose: bool) {
    ffi::log::set_verbose(verbose);
}

/// Keeps glibc from giving every thread an arena of its own, each of which stays at its high-water
/// mark: the memory of a server with many threads would grow in steps. To be called before threads
/// are started. `MALLOC_ARENA_MAX`, glibc's own variable, wins if it is set.
pub fn bound_memory_arenas() {
    const ARENAS: std::ffi::c_int = 2;
    if std::env::var_os("MALLOC_ARENA_MAX").is_none() {
        ffi::malloc::bound_arenas(ARENAS);
    }
}

/// The library that llama.cpp comes with; its version names llama.cpp's.
pub const BINDING: &str = "llama-cpp-sys-2 0.1.160";

/// What llama.cpp uses of the processor, in its own words.
pub fn system_info() -> String {
    ffi::system::info()
}

/// Whether the processor has AMX and llama.cpp was built without: a compiler that does not name it
/// as llama.cpp expects, as clang before version 16, leaves it out without a word. Passes over
/// several tokens then take about twice as long.
pub fn lacks_amx() -> bool {
    let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    processor.contains(" amx_int8") && !system_info().contains("AMX_INT8 = 1")
}

/// Decodes greedily with nothing but llama.cpp's calls: the yardstick of `just overhead`. Returns
/// the tokens and the time from the first of them to the last.
///
/// # Panics
/// If a call fails.
#[cfg(feature = "bare")]
pub fn bare_greedy(
    model: &Model,
    threads: std::num::NonZeroU32,
    prompt: &[forerun_verify::Token],
    count: usize,
) -> (Vec<forerun_verify::Token>, std::time::Duration) {
    let threads = i32::try_from(threads.get()).expect("a machine has fewer threads");
    let prompt: Vec<i32> = prompt.iter().map(|token| token.0.cast_signed()).collect();
    let (tokens, time) = ffi::bare::greedy(model.raw(), threads, &prompt, count);
    (tokens.into_iter().map(|token| forerun_verify::Token(token.cast_unsigned())).collect(), time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_binding_is_the_one_that_is_linked() {
        let lock = include_str!("../../../Cargo.lock");
        let (name, version) = BINDING.split_once(' ').unwrap();
        assert!(lock.contains(&format!("name = \"{name}\"\nversion = \"{version}\"")));
    }

    #[test]
    fn llama_cpp_uses_what_the_processor_has() {
        assert!(!lacks_amx(), "build with clang 16 or later: {}", system_info());
    }

    #[test]
    fn llama_cpp_says_what_it_uses() {
        assert!(system_info().contains(" = "), "{}", system_info());
    }
}
