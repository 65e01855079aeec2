//! `forerun serve`: an OpenAI-compatible server.

mod flags;

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use anyhow::Context;
use forerun_decode::{Embedder as _, RuleChoice};
use forerun_lab::file_name;
use forerun_llama::{EmbedderOptions, LlamaEmbedder, Model, ModelOptions};
use forerun_serve::{
    DraftDefaults, EmbeddingModel, Engine, KeepGates, ModelInfo, ServeConfig, Server,
};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use self::flags::ServingFlags;
use crate::flags::{
    ConfigError, DraftConfig, DraftFlags, DrafterConfig, GPU, ModelConfig, ModelFlags,
    OutputConfig, SamplingFlags, within,
};
use crate::gate_file;
use crate::interrupt::Interrupt;
use crate::load::{Loaded, Wanted, load_for};
use crate::template::{TemplateFlags, TemplateSource};
use crate::terminal::Screen;

/// Most sequences at once; llama.cpp numbers its sequences.
const SLOTS_MAX: u32 = 256;

/// How the server is reached and what it allows, as given.
///
/// Seeds and predictions belong to requests: the two flags are refused with a message that says so.
#[derive(Debug, Clone, clap::Args)]
#[command(mut_arg("seed", |flag| flag.hide(true)))]
#[command(mut_arg("prediction", |flag| flag.hide(true)))]
pub(crate) struct ServeFlags {
    #[command(flatten)]
    serving: ServingFlags,
    #[command(flatten)]
    template: TemplateFlags,
    #[command(flatten)]
    model: ModelFlags,
    #[command(flatten)]
    draft: DraftFlags,
    #[command(flatten)]
    sampling: SamplingFlags,
}

impl ServeFlags {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let Self { serving, template, model, draft, sampling } = self;
        let gpu_missing = !GPU && (model.wants_gpu() || draft.wants_gpu());
        check_is_not_a_requests(&sampling, &draft)?;
        let slots = within("--parallel", serving.parallel, 1..=SLOTS_MAX)?;
        let slots = NonZeroU32::new(slots).expect("1 or more");
        if let Some(most) = serving.lossy_max {
            within("--lossy-max", most, 0.0..=1.0)?;
        }
        // What can be wrong with these is said before a model is brought.
        let (sampling, mut config) = (sampling.resolve()?, serving.config()?);
        let hub = model.hub();
        let (mut target, context) = model.resolve()?;
        target.engine.unified = serving.kv_unified;
        let rule_said = draft.rule_said();
        let draft = draft.fetched(&hub, &target.path)?.resolve(&target, false)?;
        let several = draft.drafters.len() + draft.width.get() > 2;
        if several && serving.kv_unified == Some(false) {
            let reason = "several paths of a text need one pool";
            return Err(unused("--kv-unified off", reason, "leave it out, or draft one path"));
        }
        let suffix = |drafter: &DrafterConfig| matches!(drafter, DrafterConfig::Suffix);
        if serving.spec_suffix_shared && !draft.drafters.iter().any(suffix) {
            let instead = "add --spec-type suffix";
            return Err(unused("--spec-suffix-shared", "no suffix drafter drafts", instead));
        }
        config.host.parse_special = template.parse_special();
        serving.start_log();
        check_files(&target, &draft)?;
        if let Some(path) = &serving.embedding_model {
            Model::check(path)?;
        }
        let without_keys = config.api_keys.is_empty() && config.tenants.is_empty();
        let server = listen(&serving.addresses()?, &config)?;
        let open = !server.address().ip().is_loopback() && without_keys;
        tracing::info!(address = %server.address(), "listening");
        let mut interrupt = Interrupt::install()?;
        let told = interrupt.or_terminated()?;
        let mut screen = Screen::new(&OutputConfig::notes());
        let wanted = Wanted {
            target: &target,
            context,
            draft: &draft,
            sampling: &sampling,
            gpu_missing,
            slots,
            serves: true,
        };
        let loaded = load_for(&wanted, &interrupt, &mut screen);
        if told.load(Ordering::SeqCst) {
            return Ok(ExitCode::SUCCESS);
        }
        if interrupt.is_pressed() {
            return interrupt.or_stopped(loaded.map(|_| ExitCode::SUCCESS));
        }
        // From here on Ctrl-C stops the server, and no pass.
        interrupt.release();
        let loaded = loaded?;
        let embedding = embedding(&serving, &target, &interrupt)?;
        let defaults = drafts(&loaded, &draft, rule_said, &serving);
        let mut engine = engine(loaded, &template.source(), serving.alias.clone(), defaults)?;
        engine.keep_gates = keep_gates(draft.gate.file);
        engine.embedding = embedding;
        if let Some(most) = serving.lossy_max {
            screen.warn(&format!("lossy: requests may ask for up to {most} per token"));
        }
        if open {
            screen.warn("anybody who reaches this address may use the model: add --api-key");
        }
        stop_on_signals(&server)?;
        server.run(engine, Some(interrupt.flag()))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Refuses flags that only a request can mean.
fn check_is_not_a_requests(sampling: &SamplingFlags, draft: &DraftFlags) -> anyhow::Result<()> {
    if sampling.is_seeded() {
        return Err(unused("--seed", "a seed is a request's", "send `seed` with it"));
    }
    if draft.predicts() {
        let instead = "send `prediction` with it";
        return Err(unused("--prediction", "a prediction is a request's", instead));
    }
    if draft.lossy().is_some() {
        let instead = "start the server with --lossy-max 0.02 and send `speculative.lossy`";
        return Err(unused("--lossy", "loss is a request's", instead));
    }
    Ok(())
}

fn unused(flag: &'static str, reason: &'static str, instead: &'static str) -> anyhow::Error {
    ConfigError::Unused { flag, reason, instead }.into()
}

/// The model that embeds texts, on as many threads as prompts are read with.
fn embedding(
    serving: &ServingFlags,
    target: &ModelConfig,
    interrupt: &Interrupt,
) -> anyhow::Result<Option<EmbeddingModel>> {
    let Some(path) = &serving.embedding_model else { return Ok(None) };
    let model = Model::load(ModelOptions { embeds: true, ..ModelOptions::new(path) })?;
    let engine = &target.engine;
    let options = EmbedderOptions {
        threads: engine.threads_batch.or(engine.threads),
        pooling: serving.pooling,
        interrupt: Some(interrupt.flag()),
        ..EmbedderOptions::default()
    };
    let embedder = LlamaEmbedder::new(model, &options)
        .with_context(|| format!("--embedding-model {}", path.display()))?;
    tracing::info!(ranks = embedder.ranks(), dimensions = embedder.row_len(), "embedding model");
    Ok(Some(EmbeddingModel { name: file_name(path), embedder: Box::new(embedder) }))
}

/// Refuses files that are not there or no models before anybody is told that the server listens.
fn check_files(target: &ModelConfig, draft: &DraftConfig) -> anyhow::Result<()> {
    let model = |drafter: &DrafterConfig| match drafter {
        DrafterConfig::Model(config) => Some(config.model.path.clone()),
        _ => None,
    };
    let drafters = draft.drafters.iter().filter_map(model);
    for path in [target.path.clone()].into_iter().chain(drafters) {
        Model::check(&path)?;
    }
    Ok(())
}

/// Listens on the first address that can be listened on; the error is of the first of all.
fn listen(addresses: &[SocketAddr], config: &ServeConfig) -> anyhow::Result<Server> {
    let mut first = None;
    for address in addresses {
        match Server::listen(*address, config.clone()) {
            Ok(server) => return Ok(server),
            Err(error) => first = first.or(Some(error)),
        }
    }
    Err(first.map_or_else(|| anyhow::anyhow!("there is no address to listen on"), Into::into))
}

/// What is drafted where a request says nothing.
fn drafts(
    loaded: &Loaded,
    draft: &DraftConfig,
    rule: Option<RuleChoice>,
    serving: &ServingFlags,
) -> DraftDefaults {
    DraftDefaults {
        drafters: loaded.decoder.drafters().infos(),
        on_demand: loaded.on_demand.into_iter().collect(),
        priced_length: draft.priced_len.get(),
        length: draft.len.get(),
        width: draft.width.get(),
        may_stop: draft.may_stop(),
        adaptive: draft.adaptive,
        suffix_shared: serving.spec_suffix_shared,
        rule,
        lossy_max: serving.lossy_max,
    }
}

fn engine(
    loaded: Loaded,
    source: &TemplateSource,
    names: Vec<String>,
    drafts: DraftDefaults,
) -> anyhow::Result<Engine> {
    let model = &loaded.model;
    let text = source.text(model)?;
    let template = match source.template(model) {
        Ok(template) => Some(template),
        // A model for completions alone is served all the same.
        Err(_) if matches!(source, TemplateSource::Model) => None,
        Err(error) => return Err(error),
    };
    let file = file_name(model.path());
    let names = if names.is_empty() { vec![file.clone()] } else { names };
    Ok(Engine {
        tokenizer: loaded.tokenizer(),
        template,
        template_source: text,
        sampling: loaded.sampling.clone(),
        drafts,
        model: ModelInfo {
            names,
            file,
            description: model.description(),
            parameters: model.parameter_count(),
            size: model.size(),
            trained_len: model.context_len(),
        },
        controller: loaded.controller,
        keep_gates: None,
        embedding: None,
        decoder: loaded.decoder,
    })
}

/// Stores what gates have learned.
fn keep_gates(file: Option<PathBuf>) -> Option<KeepGates> {
    let file = file?;
    Some(Box::new(move |gates| {
        if let Err(error) = gate_file::write(&file, gates) {
            tracing::warn!("{error:#}");
        }
    }))
}

/// Has the server stop in an orderly way when it is told to, and at once when told again.
fn stop_on_signals(server: &Server) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot listen for signals")?;
    let stop = server.stop();
    std::thread::spawn(move || {
        for _ in signals.forever() {
            stop.send_modify(|times| *times += 1);
        }
    });
    Ok(())
}

#[cfg(test)]
#[path = "../tests/line/serve.rs"]
mod tests;
