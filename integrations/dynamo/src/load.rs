//! Models for the engine's thread, by the flags people know from `forerun serve`.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use forerun_decode::{Arm, Controller, Decoder, Drafter, DrafterId, ModelDrafter, Sampling, VocabMap};
use forerun_llama::{EngineOptions, LlamaEngine, Model, ModelOptions};
use forerun_serve::{DraftDefaults, Engine, Host, HostConfig, ModelInfo};

use crate::blocks::Blocks;

/// How long measuring the cost of passes may take.
const MEASURE: Duration = Duration::from_millis(1500);

/// The models, and how they are run.
#[derive(Debug, Clone, clap::Args)]
pub struct ModelFlags {
    /// GGUF file of the target
    #[arg(short, long, value_name = "FILE")]
    pub model: PathBuf,
    /// GGUF file of the draft model
    #[arg(long, visible_alias = "model-draft", value_name = "FILE")]
    pub spec_draft_model: Option<PathBuf>,
    /// Most tokens of a draft
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub spec_draft_n_max: usize,
    /// Draft that many tokens always, instead of what pays
    #[arg(long)]
    pub spec_fixed: bool,
    /// Tokens of context of a text
    #[arg(short, long, value_name = "N", default_value = "4096")]
    pub ctx_size: NonZeroU32,
    /// Texts at once
    #[arg(long, value_name = "N", default_value = "4")]
    pub parallel: NonZeroU32,
    /// Threads of a pass
    #[arg(short, long, value_name = "N")]
    pub threads: Option<NonZeroU32>,
    /// Requests that may wait
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub max_queued_requests: usize,
    /// Seconds texts may go on once the worker is told to stop; others go on elsewhere, or fail where they may not
    /// be moved. Keep it below DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    pub shutdown_timeout: u64,
}

impl ModelFlags {
    /// How long texts may go on once the worker is told to stop.
    pub(crate) fn shutdown_timeout(&self) -> Duration {
        Duration::from_secs(self.shutdown_timeout)
    }

    fn options(&self) -> EngineOptions {
        EngineOptions {
            context_len: Some(self.ctx_size),
            slots: self.parallel,
            threads: self.threads,
            ..EngineOptions::default()
        }
    }

    /// Loads the models and starts their thread.
    ///
    /// # Errors
    /// Where a file is not what it should be, or the two do not fit together.
    pub(crate) fn host(&self, name: &str, watch: Blocks) -> anyhow::Result<Host> {
        let model = load(&self.model)?;
        let target = LlamaEngine::new(&model, &self.options()).context("target")?;
        let mut drafters: Vec<Box<dyn Drafter>> = Vec::new();
        if let Some(path) = &self.spec_draft_model {
            drafters.push(Box::new(self.drafter(path, &model)?));
        }
        let mut decoder = Decoder::new(Box::new(target), drafters)?;
        let adaptive = !decoder.drafters().is_empty() && !self.spec_fixed;
        let controller = if adaptive {
            let costs = decoder.measure(MEASURE).context("measuring what passes cost")?;
            let arms = vec![Arm { drafters: vec![DrafterId(0)], width: 1 }];
            Some(Controller::new(costs, arms, self.spec_draft_n_max))
        } else {
            None
        };
        let engine = Engine {
            tokenizer: Arc::new(model.vocab().clone()),
            template: None,
            template_source: String::new(),
            sampling: Sampling::default(),
            drafts: DraftDefaults {
                drafters: decoder.drafters().infos(),
                on_demand: Vec::new(),
                length: self.spec_draft_n_max,
                priced_length: self.spec_draft_n_max,
                width: 1,
                may_stop: false,
                adaptive,
                suffix_shared: false,
                rule: None,
                lossy_max: None,
            },
            model: ModelInfo {
                names: vec![name.to_owned()],
                file: self.model.display().to_string(),
                description: model.description(),
                parameters: model.parameter_count(),
                size: model.size(),
                trained_len: model.context_len(),
            },
            controller,
            keep_gates: None,
            embedding: None,
            decoder,
        };
        let config = HostConfig {
            queue_max: self.max_queued_requests,
            timeout: Duration::from_secs(24 * 3600),
            log_prompts: false,
            record_prompts: None,
            parse_special: false,
        };
        Ok(Host::start(engine, config, Some(Box::new(watch)))?)
    }

    fn drafter(&self, path: &Path, target: &Model) -> anyhow::Result<ModelDrafter> {
        let model = load(path)?;
        let map = VocabMap::between(target.vocab(), model.vocab())
            .context("choose a draft model of the same family")?;
        let engine = LlamaEngine::new(&model, &self.options()).context("draft model")?;
        let (of_target, own) = (target.vocab().clone(), model.vocab().clone());
        Ok(ModelDrafter::new(Box::new(engine)).translated(map, Arc::new(of_target), Arc::new(own)))
    }
}

fn load(path: &Path) -> anyhow::Result<Model> {
    tracing::info!(model = %path.display(), "loading");
    Model::load(ModelOptions::new(path)).with_context(|| path.display().to_string())
}
