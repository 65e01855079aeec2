//! What can be said on the command line, and what it means.
//!
//! `…Flags` are raw: unset means "not said", never a default, and a switch that is off was not
//! said. `…Config` are checked, and `resolve` is the one place where a default is decided. Names
//! are those of `llama-server` and `llama-cli`; a flag of theirs that would do nothing is not taken.

mod draft;
mod error;
mod gate;
mod hub;
mod model;
mod named;
mod output;
mod sampling;
mod spec_type;
mod switch;
mod text;

pub(crate) use draft::{
    DraftConfig, DraftFlags, DraftModelConfig, DrafterConfig, candidates, is_auto,
};
pub(crate) use error::{ConfigError, within};
pub(crate) use gate::GateConfig;
pub(crate) use hub::{AccessFlags, HubFlags};
pub(crate) use model::{ContextLen, EngineFlags, ModelConfig, ModelFlags, TargetFlags};
pub(crate) use named::named;
pub(crate) use output::{ColorChoice, OutputConfig};
pub(crate) use sampling::SamplingFlags;
pub(crate) use text::{TextConfig, unescape};

use forerun_lab::SamplingConfig;

/// Whether this build can use a GPU.
pub(crate) const GPU: bool =
    cfg!(any(feature = "cuda", feature = "metal", feature = "rocm", feature = "vulkan"));

/// What all commands that make text have in common.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct RunFlags {
    /// What ends a text.
    #[command(flatten)]
    pub(crate) text: text::TextFlags,
    /// The target.
    #[command(flatten)]
    pub(crate) model: ModelFlags,
    /// What drafts for it.
    #[command(flatten)]
    pub(crate) draft: DraftFlags,
    /// How tokens are drawn.
    #[command(flatten)]
    pub(crate) sampling: SamplingFlags,
    /// What is shown.
    #[command(flatten)]
    pub(crate) output: output::OutputFlags,
}

/// The same, checked.
#[derive(Debug)]
pub(crate) struct RunConfig {
    /// What ends a text.
    pub(crate) text: TextConfig,
    /// The target.
    pub(crate) target: ModelConfig,
    /// How much context it gets.
    pub(crate) context: ContextLen,
    /// What drafts for it.
    pub(crate) draft: DraftConfig,
    /// How tokens are drawn.
    pub(crate) sampling: SamplingConfig,
    /// What is shown.
    pub(crate) output: OutputConfig,
    /// Whether layers were to go to a GPU, which this build cannot use.
    pub(crate) gpu_missing: bool,
}

impl RunFlags {
    /// Decides every default.
    pub(crate) fn resolve(self) -> Result<RunConfig, ConfigError> {
        let gpu_missing = !GPU && (self.model.wants_gpu() || self.draft.wants_gpu());
        let seeded = self.sampling.is_seeded();
        // What can be wrong with these is said before a model is brought.
        let (text, sampling) = (self.text.resolve()?, self.sampling.resolve()?);
        let hub = self.model.hub();
        let (target, context) = self.model.resolve()?;
        let draft = self.draft.fetched(&hub, &target.path)?.resolve(&target, seeded)?;
        draft.check_lossy(&sampling)?;
        Ok(RunConfig {
            text,
            draft,
            target,
            context,
            gpu_missing,
            sampling,
            output: self.output.resolve(),
        })
    }
}

#[cfg(test)]
#[path = "../tests/line/flags.rs"]
mod tests;
