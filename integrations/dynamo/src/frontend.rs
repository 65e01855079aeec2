//! `forerun-dynamo-frontend`: Dynamo's OpenAI front end, without Python.

use clap::Parser;
use dynamo_backend_common::RuntimeConfig;
use dynamo_llm::entrypoint::input::{Input, run_input};
use dynamo_llm::entrypoint::{EngineConfig, RouterConfig};
use dynamo_llm::local_model::LocalModelBuilder;
use dynamo_runtime::pipeline::RouterMode;
use dynamo_runtime::{DistributedRuntime, Runtime, logging};

/// Dynamo's OpenAI front end: finds workers, routes by what they have cached, and carries streams
/// through the death of one
#[derive(Debug, Parser)]
struct Flags {
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// Port to listen on
    #[arg(long, default_value_t = 8000)]
    port: u16,
    /// How often a stream may go on at another worker
    #[arg(long, default_value_t = 3)]
    migration_limit: u32,
    /// Spread requests in turn, instead of by what workers have cached
    #[arg(long)]
    round_robin: bool,
    #[command(flatten)]
    runtime: RuntimeConfig,
}

fn main() -> anyhow::Result<()> {
    let flags = Flags::parse();
    logging::init();
    let runtime = Runtime::from_settings()?;
    runtime.secondary().block_on(async {
        let config = flags.runtime.to_distributed_config()?;
        let distributed = DistributedRuntime::new(runtime.clone(), config).await?;
        let mode = if flags.round_robin { RouterMode::RoundRobin } else { RouterMode::KV };
        let model = LocalModelBuilder::default()
            .http_host(Some(flags.host))
            .http_port(flags.port)
            .migration_limit(Some(flags.migration_limit))
            .router_config(Some(RouterConfig::new(mode, Default::default())))
            .build()
            .await?;
        let engine = EngineConfig::Dynamic {
            model: Box::new(model),
            chat_engine_factory: None,
            prefill_load_estimator: None,
        };
        run_input(distributed, Input::Http, engine).await
    })
}
