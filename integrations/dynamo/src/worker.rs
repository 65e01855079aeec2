//! `forerun-dynamo-worker`: a worker of NVIDIA Dynamo.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Parser;
use dynamo_backend_common::{CommonArgs, DisaggregationMode, ModelInput, WorkerConfig};
use forerun_dynamo::{ForerunEngine, ModelFlags, Moves};

/// A worker of NVIDIA Dynamo that speculates
#[derive(Debug, Parser)]
struct Flags {
    #[command(flatten)]
    model: ModelFlags,
    /// Folder with the target's tokenizer and chat template as Hugging Face has them, for the front end; card.py
    /// writes it
    #[arg(long, value_name = "FOLDER")]
    card: PathBuf,
    /// Name of the model in requests
    #[arg(long, value_name = "NAME")]
    served_model_name: String,
    /// The front end moves no streams (its migration limit is 0): allows penalties, which depend on where an
    /// answer began
    #[arg(long)]
    no_migration: bool,
    #[command(flatten)]
    common: CommonArgs,
}

fn main() -> anyhow::Result<()> {
    let Flags { model, card, served_model_name: name, no_migration, common } = Flags::parse();
    anyhow::ensure!(
        common.disaggregation_mode == DisaggregationMode::Aggregated && !common.route_to_encoder,
        "a worker reads prompts and answers them: leave out --disaggregation-mode and --route-to-encoder"
    );
    anyhow::ensure!(
        !common.enable_rl,
        "weights are not changed while they are served: leave out --enable-rl"
    );
    anyhow::ensure!(
        card.join("tokenizer.json").is_file(),
        "{} has no tokenizer.json: write the folder with card.py {} {}",
        card.display(),
        model.model.display(),
        card.display(),
    );
    let config = WorkerConfig {
        namespace: common.namespace,
        component: common.component,
        endpoint: common.endpoint,
        endpoint_types: common.endpoint_types,
        custom_jinja_template: common.custom_jinja_template,
        tool_call_parser: common.dyn_tool_call_parser,
        reasoning_parser: common.dyn_reasoning_parser,
        exclude_tools_when_tool_choice_none: common.exclude_tools_when_tool_choice_none,
        model_name: card.display().to_string(),
        served_model_name: Some(name.clone()),
        model_input: ModelInput::Tokens,
        runtime: common.runtime,
        ..WorkerConfig::default()
    };
    let moves = if no_migration { Moves::Never } else { Moves::Possible };
    dynamo_backend_common::run(Arc::new(ForerunEngine::new(model, name, moves)), config)
}
