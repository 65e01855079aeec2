//! The target: which file, and how it is run.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use clap::builder::{FalseyValueParser, PossibleValuesParser, TypedValueParser};
use forerun_hub::ModelName;
use forerun_llama::{CacheType, EngineOptions, FlashAttention, GpuLayers, LoadMode};

use super::hub::HubFlags;
use super::{ConfigError, within};

/// The context of a model whose user names none, where it was trained with more: a cache for the
/// longest contexts would not fit most machines.
const CONTEXT_LEN_DEFAULT: NonZeroU32 = const { NonZeroU32::new(8192).expect("8192 > 0") };

/// As many threads as llama.cpp takes.
const THREADS_MAX: u32 = 512;

/// Most tokens of a batch; llama.cpp's memory for it grows with its square.
const BATCH_LEN_MAX: u32 = 1 << 16;

/// The target and how it is run, as given.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Target")]
pub(crate) struct ModelFlags {
    #[command(flatten)]
    target: TargetFlags,
    #[command(flatten)]
    engine: EngineFlags,
}

/// The variable that names the target.
const MODEL_VARIABLE: &str = "LLAMA_ARG_MODEL";

/// The target's file, as given: by its place, as ollama's users type it, or by llama.cpp's flag.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Target")]
pub(crate) struct TargetFlags {
    /// GGUF file of the target model; the same as --model
    #[arg(value_name = "MODEL", help_heading = "Arguments")]
    target: Option<PathBuf>,
    /// GGUF file of the target model
    #[arg(short, long, env = MODEL_VARIABLE, value_name = "FILE")]
    model: Option<PathBuf>,
    #[command(flatten)]
    hub: HubFlags,
}

impl TargetFlags {
    /// The file that was named, or that of the model that was; it is brought if it is not here.
    pub(crate) fn path(self) -> Result<PathBuf, ConfigError> {
        let said = self.model.as_ref().is_some_and(|model| !is_of_environment(model));
        let file = match (self.target, self.model) {
            (Some(target), Some(model)) if said => {
                return Err(ConfigError::ModelTwice { target, model });
            }
            (Some(target), _) => Some((target, true)),
            (None, model) => model.map(|model| (model, said)),
        };
        match (file, self.hub.name()) {
            (Some((file, true)), Some(name)) if self.hub.is_said() => {
                Err(ConfigError::FileAndName { file, name: name.to_string() })
            }
            (Some((file, said)), name) if said || name.is_none() => {
                self.hub.check_file_has_a_repo()?;
                check_is_no_name(&file)?;
                Ok(file)
            }
            _ => self.hub.fetch()?.ok_or(ConfigError::NoModel),
        }
    }

    /// What was said about the hub.
    pub(crate) fn hub(&self) -> HubFlags {
        self.hub.clone()
    }

    /// The file that was named, where no server is.
    pub(crate) fn unless_server(self, url: Option<&str>) -> Result<Option<PathBuf>, ConfigError> {
        let said = self.target.is_some()
            || self.model.as_ref().is_some_and(|model| !is_of_environment(model))
            || self.hub.is_said();
        match url {
            Some(_) if said => Err(ConfigError::ModelAndServer),
            Some(_) => Ok(None),
            None => self.path().map(Some),
        }
    }
}

/// Refuses the name of a model where a file is expected.
fn check_is_no_name(file: &Path) -> Result<(), ConfigError> {
    let name = file.to_str().filter(|name| name.parse::<ModelName>().is_ok());
    match name {
        Some(name) if !name.ends_with(".gguf") && !file.exists() => {
            Err(ConfigError::NameAsFile { name: name.to_owned() })
        }
        _ => Ok(()),
    }
}

/// What the environment says may be overridden by the command line.
fn is_of_environment(model: &Path) -> bool {
    std::env::var_os(MODEL_VARIABLE).is_some_and(|said| said == model.as_os_str())
}

/// How the target is run, as given.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Target")]
pub(crate) struct EngineFlags {
    /// Context length in tokens; 0 for the length the model was trained with [default: as trained,
    /// but at most 8192]
    #[arg(short, long, env = "LLAMA_ARG_CTX_SIZE", value_name = "N")]
    ctx_size: Option<u32>,
    /// Threads for a pass over one token; -1 for all threads of the machine [default: -1]
    #[arg(short, long, env = "LLAMA_ARG_THREADS", value_name = "N", allow_negative_numbers = true)]
    threads: Option<i32>,
    /// Threads for a pass over several tokens [-tb] [default: as --threads]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    threads_batch: Option<i32>,
    /// Maximum number of tokens per llama.cpp batch (logical batch size) [default: 2048]
    #[arg(short, long, env = "LLAMA_ARG_BATCH", value_name = "N")]
    batch_size: Option<u32>,
    /// Maximum number of tokens per pass through the model (physical batch size) [-ub] [default:
    /// 512]
    #[arg(long, env = "LLAMA_ARG_UBATCH", value_name = "N")]
    ubatch_size: Option<u32>,
    /// Number of layers on the GPU, or all [-ngl] [default: all]
    #[arg(long, visible_alias = "n-gpu-layers", env = "LLAMA_ARG_N_GPU_LAYERS", value_name = "N")]
    #[arg(value_parser = gpu_layers)]
    gpu_layers: Option<GpuLayers>,
    /// Number format of cached keys [-ctk] [default: bf16 on an x86-64 CPU, else f16]
    #[arg(long, env = "LLAMA_ARG_CACHE_TYPE_K", value_name = "TYPE", value_parser = cache_type())]
    cache_type_k: Option<CacheType>,
    /// Number format of cached values [-ctv] [default: bf16 on a CPU other than x86-64, else f16]
    #[arg(long, env = "LLAMA_ARG_CACHE_TYPE_V", value_name = "TYPE", value_parser = cache_type())]
    cache_type_v: Option<CacheType>,
    /// Flash attention [-fa] [default: on]
    ///
    /// If on, the target's logits do not depend on the number of tokens in a pass. If off, rounding
    /// differs between plain and drafted decoding.
    #[arg(long, env = "LLAMA_ARG_FLASH_ATTN", value_name = "WHEN", value_parser = flash_attention())]
    flash_attn: Option<FlashAttention>,
    /// Load the model into memory instead of mapping the file
    #[arg(long, conflicts_with = "mlock")]
    no_mmap: bool,
    /// Lock the mapped model in memory
    #[arg(long, env = "LLAMA_ARG_MLOCK", value_parser = FalseyValueParser::new())]
    mlock: bool,
}

/// How much context a target gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContextLen {
    /// What it was trained with.
    Trained,
    /// What it was trained with, but no more than this.
    AtMost(NonZeroU32),
    /// This much.
    Exactly(NonZeroU32),
}

/// A model file and how it is run, checked.
#[derive(Debug, Clone)]
pub(crate) struct ModelConfig {
    /// The file.
    pub(crate) path: PathBuf,
    /// How much of it the GPU gets.
    pub(crate) gpu_layers: GpuLayers,
    /// How it comes into memory.
    pub(crate) load_mode: LoadMode,
    /// All else; the context is decided once the model is known.
    pub(crate) engine: EngineOptions,
}

impl ModelFlags {
    /// What was said about the hub.
    pub(crate) fn hub(&self) -> HubFlags {
        self.target.hub()
    }

    /// Whether layers were to go to a GPU.
    pub(crate) fn wants_gpu(&self) -> bool {
        self.engine.gpu_layers.is_some_and(|layers| layers != GpuLayers::Last(0))
    }

    /// Decides every default.
    pub(crate) fn resolve(self) -> Result<(ModelConfig, ContextLen), ConfigError> {
        self.engine.resolve(self.target.path()?)
    }
}

impl EngineFlags {
    /// What was said, to say it again.
    pub(crate) fn said(&self) -> Vec<String> {
        let number = |value: Option<u32>| value.map(|value| value.to_string());
        let threads = |value: Option<i32>| value.map(|value| value.to_string());
        let valued = [
            ("-c", number(self.ctx_size)),
            ("-t", threads(self.threads)),
            ("-tb", threads(self.threads_batch)),
            ("-b", number(self.batch_size)),
            ("-ub", number(self.ubatch_size)),
            ("-ngl", self.gpu_layers.map(layers)),
            ("-ctk", self.cache_type_k.map(|kind| kind.name().to_owned())),
            ("-ctv", self.cache_type_v.map(|kind| kind.name().to_owned())),
            ("-fa", self.flash_attn.map(|when| when.name().to_owned())),
        ];
        let switches = [("--no-mmap", self.no_mmap), ("--mlock", self.mlock)];
        let valued = valued.into_iter().filter_map(|(flag, value)| Some([flag.to_owned(), value?]));
        let switches = switches.into_iter().filter(|(_, on)| *on).map(|(flag, _)| flag.to_owned());
        valued.flatten().chain(switches).collect()
    }

    /// What must be said of a draft model for it to be run as the target is.
    pub(crate) fn said_of_draft(&self) -> Vec<String> {
        let valued = [
            ("-ngld", self.gpu_layers.map(layers)),
            ("-ctkd", self.cache_type_k.map(|kind| kind.name().to_owned())),
            ("-ctvd", self.cache_type_v.map(|kind| kind.name().to_owned())),
        ];
        let said = |(flag, value): (&str, Option<String>)| Some([flag.to_owned(), value?]);
        valued.into_iter().filter_map(said).flatten().collect()
    }

    /// Decides every default for the model in a file.
    pub(crate) fn resolve(self, path: PathBuf) -> Result<(ModelConfig, ContextLen), ConfigError> {
        let defaults = EngineOptions::default();
        let context = match self.ctx_size.map(NonZeroU32::new) {
            None => ContextLen::AtMost(CONTEXT_LEN_DEFAULT),
            Some(None) => ContextLen::Trained,
            Some(Some(len)) => ContextLen::Exactly(len),
        };
        let load_mode = match (self.no_mmap, self.mlock) {
            (true, _) => LoadMode::Read,
            (_, true) => LoadMode::MapAndLock,
            _ => LoadMode::Map,
        };
        let engine = EngineOptions {
            threads: threads("--threads", self.threads)?,
            threads_batch: threads("--threads-batch", self.threads_batch)?,
            batch_len: batch_len("--batch-size", self.batch_size)?.unwrap_or(defaults.batch_len),
            pass_len: batch_len("--ubatch-size", self.ubatch_size)?.unwrap_or(defaults.pass_len),
            cache_keys: self.cache_type_k,
            cache_values: self.cache_type_v,
            flash_attention: self.flash_attn.unwrap_or_default(),
            ..defaults
        };
        let gpu_layers = self.gpu_layers.unwrap_or_default();
        Ok((ModelConfig { path, gpu_layers, load_mode, engine }, context))
    }
}

/// Threads, or `None` for all the machine has.
pub(super) fn threads(
    flag: &'static str,
    said: Option<i32>,
) -> Result<Option<NonZeroU32>, ConfigError> {
    let Some(threads) = said.and_then(|threads| u32::try_from(threads).ok()) else {
        return Ok(None);
    };
    if threads > THREADS_MAX {
        let expected = format!("at most {THREADS_MAX}, or -1 for all the machine has");
        return Err(ConfigError::out_of_range(flag, threads, expected));
    }
    Ok(NonZeroU32::new(threads))
}

fn batch_len(flag: &'static str, said: Option<u32>) -> Result<Option<NonZeroU32>, ConfigError> {
    let len = said.map(|len| within(flag, len, 1..=BATCH_LEN_MAX)).transpose()?;
    Ok(len.and_then(NonZeroU32::new))
}

/// How many layers go to the GPU, as it is said.
fn layers(layers: GpuLayers) -> String {
    match layers {
        GpuLayers::All => "all".to_owned(),
        GpuLayers::Last(count) => count.to_string(),
    }
}

/// Reads how many layers go to the GPU.
pub(super) fn gpu_layers(text: &str) -> Result<GpuLayers, String> {
    match text {
        "all" => Ok(GpuLayers::All),
        _ => text.parse().map(GpuLayers::Last).map_err(|_| "expected a number or all".to_owned()),
    }
}

/// Reads a number format.
pub(super) fn cache_type() -> impl TypedValueParser<Value = CacheType> {
    PossibleValuesParser::new(CacheType::ALL.map(CacheType::name))
        .try_map(|name| name.parse::<CacheType>())
}

fn flash_attention() -> impl TypedValueParser<Value = FlashAttention> {
    PossibleValuesParser::new(FlashAttention::ALL.map(FlashAttention::name))
        .try_map(|name| name.parse::<FlashAttention>())
}
