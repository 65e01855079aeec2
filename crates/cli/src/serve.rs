//! `forerun serve`: an OpenAI-compatible server.

use std::io::IsTerminal as _;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context;
use forerun_decode::RuleChoice;
use forerun_lab::file_name;
use forerun_llama::Model;
use forerun_serve::{
    AuditLog, DraftDefaults, Engine, HostConfig, KeepGates, ModelInfo, Origins, ServeConfig, Server,
};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::flags::{
    ConfigError, DraftConfig, DraftFlags, DrafterConfig, GPU, ModelConfig, ModelFlags,
    OutputConfig, SamplingFlags, within,
};
use crate::gate_file;
use crate::interrupt::Interrupt;
use crate::load::{Loaded, Wanted, load_for};
use crate::template::{TemplateFlags, TemplateSource};
use crate::tenants;
use crate::terminal::Screen;

/// Sequences at once, unless told otherwise; llama-server's default.
const SLOTS: u32 = 4;

/// No request takes longer, and clocks can count it.
const YEAR_S: u64 = 365 * 24 * 3600;

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

/// How the server is reached and what it allows.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Server")]
struct ServingFlags {
    /// Address or host name to listen on; 0.0.0.0 accepts connections from other machines
    #[arg(long, env = "LLAMA_ARG_HOST", value_name = "HOST", default_value = "127.0.0.1")]
    host: String,
    /// Further host names to accept if there is no API key, separated by commas; * accepts any
    ///
    /// Without a key, the Host header of a request must be an IP address, localhost, the name of
    /// this machine or --host. This keeps web pages from reaching the server under a name of their
    /// own (DNS rebinding). If a proxy forwards the name that its clients use, add that name here.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    allowed_hosts: Vec<String>,
    /// Web pages that may use this server from a browser, by origin (`https://chat.example`),
    /// separated by commas; * for any, none for none [default: pages of this machine]
    ///
    /// A page of this machine is one at localhost, 127.0.0.1 or ::1, at any port.
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',')]
    cors_origins: Vec<String>,
    /// Reject request fields that this server does not have, and names of other models
    ///
    /// Without it, fields that do not change the output are named in the header forerun-ignored, and
    /// the model answers to any name. Fields that would change the output are always rejected.
    #[arg(long)]
    strict: bool,
    /// Port to listen on; 0 picks a free one
    #[arg(long, env = "LLAMA_ARG_PORT", value_name = "N", default_value_t = 8080)]
    port: u16,
    /// Number of slots: sequences decoded in one batch; further ones wait [-np]
    #[arg(long, visible_alias = "max-num-seqs", env = "LLAMA_ARG_N_PARALLEL", value_name = "N")]
    #[arg(default_value_t = SLOTS)]
    parallel: u32,
    /// Whether all sequences share one KV cache [-kvu] [default: on if several drafters or paths
    /// need it]
    ///
    /// If on, a prediction and the drafter's draft are verified together, and sequences whose
    /// drafts differ in length share a pass. If off, a sequence gets the same logits to the last
    /// bit alone and in a batch, a round uses either the prediction or the drafter, and large
    /// batches are faster.
    #[arg(long, env = "LLAMA_ARG_KV_UNIFIED", value_name = "ON|OFF", value_parser = on_or_off)]
    kv_unified: Option<bool>,
    /// Let the suffix drafter learn from outputs of clients without an API key, for all of them
    ///
    /// The speed of an output may then tell a client what others were told. Clients with a key, or
    /// requests with the same `cache_salt`, always share what the drafter learned, among themselves
    /// alone.
    #[arg(long)]
    spec_suffix_shared: bool,
    /// Let requests trade exactness for speed, up to this total variation per token
    /// (`speculative.lossy`) [default: requests for loss are refused]
    #[arg(long, value_name = "E", allow_negative_numbers = true)]
    lossy_max: Option<f64>,
    /// Name of the model in requests and responses; may be repeated [default: the file name]
    #[arg(
        short,
        long,
        visible_alias = "served-model-name",
        env = "LLAMA_ARG_ALIAS",
        value_name = "NAME"
    )]
    alias: Vec<String>,
    /// API key that requests must have; may be repeated
    #[arg(long, env = "LLAMA_API_KEY", value_name = "KEY", hide_env_values = true)]
    api_key: Vec<String>,
    /// File with API keys, one per line; blank lines and lines that begin with # are skipped
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// TOML file with tenants: names, API keys, limits and shares
    ///
    /// Each is a table [tenant.NAME] with keys and, if needed, weight, priority (high, normal or low),
    /// requests-per-minute, tokens-per-minute, sequences and cache. See docs/serving.md.
    #[arg(long, value_name = "FILE")]
    tenants: Option<PathBuf>,
    /// File to append a JSON line for each request to, without its content; - for standard error
    #[arg(long, value_name = "FILE")]
    audit_log: Option<PathBuf>,
    /// Maximum number of waiting sequences (a request has `n`); further requests get 429
    #[arg(long, value_name = "N", default_value_t = 64)]
    max_queued_requests: usize,
    /// Seconds that a request may take, including the time in the queue [-to]
    #[arg(long, env = "LLAMA_ARG_TIMEOUT", value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
    /// Seconds that a client may take to send a request
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    read_timeout: u64,
    /// Seconds that a client may read nothing of its response; then its request is cancelled
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=YEAR_S))]
    write_timeout: u64,
    /// Maximum number of open connections; further ones get 503
    #[arg(long, value_name = "N", default_value_t = 512)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    max_connections: u32,
    /// Maximum size of a request body
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 20)]
    max_body_size: usize,
    /// Seconds that sequences may continue after SIGTERM or Ctrl-C; a second signal aborts them
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    shutdown_timeout: u64,
    /// Format of the log
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: LogFormat,
    /// Include prompts in the log
    #[arg(long)]
    log_prompts: bool,
}

/// How the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum LogFormat {
    /// Text for humans
    Text,
    /// One JSON object per line
    Json,
}

fn on_or_off(text: &str) -> Result<bool, String> {
    match text {
        "on" | "true" | "1" => Ok(true),
        "off" | "false" | "0" => Ok(false),
        _ => Err("expected on or off".to_owned()),
    }
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
        let defaults = drafts(&loaded, &draft, rule_said, &serving);
        let mut engine = engine(loaded, &template.source(), serving.alias.clone(), defaults)?;
        engine.keep_gates = keep_gates(draft.gate.file);
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

impl ServingFlags {
    fn config(&self) -> anyhow::Result<ServeConfig> {
        let mut api_keys = self.api_key.clone();
        api_keys.retain(|key| !key.is_empty());
        if let Some(path) = &self.api_key_file {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            let keys = text.lines().map(str::trim);
            let keys = keys.filter(|line| !line.is_empty() && !line.starts_with('#'));
            let before = api_keys.len();
            api_keys.extend(keys.map(str::to_owned));
            if api_keys.len() == before {
                let path = path.display();
                anyhow::bail!("there is no API key in {path}: one a line; # begins a comment");
            }
        }
        if api_keys.is_empty() && !self.api_key.is_empty() {
            anyhow::bail!("--api-key is empty, which would let all in: give a key or leave it out");
        }
        let tenants =
            self.tenants.as_deref().map(|path| tenants::read(path, &api_keys)).transpose()?;
        let (tenants, metrics_key) =
            tenants.map_or((Vec::new(), None), |it| (it.tenants, it.metrics_key));
        let host = HostConfig {
            queue_max: self.max_queued_requests,
            timeout: Duration::from_secs(self.timeout.min(YEAR_S)),
            log_prompts: self.log_prompts,
            parse_special: false,
        };
        Ok(ServeConfig {
            host,
            api_keys,
            tenants,
            metrics_key,
            audit: self.audit()?,
            allowed_hosts: self.hosts(),
            strict: self.strict,
            origins: self.origins()?,
            read_timeout: Duration::from_secs(self.read_timeout),
            write_timeout: Duration::from_secs(self.write_timeout),
            connections_max: self.max_connections as usize,
            body_max: self.max_body_size,
            grace: Duration::from_secs(self.shutdown_timeout),
        })
    }

    /// Where requests are recorded.
    fn audit(&self) -> anyhow::Result<Option<Arc<AuditLog>>> {
        let Some(path) = &self.audit_log else { return Ok(None) };
        let log = match path.as_os_str() == "-" {
            true => AuditLog::stderr(),
            false => AuditLog::append(path)
                .with_context(|| format!("--audit-log: cannot write {}", path.display()))?,
        };
        Ok(Some(Arc::new(log)))
    }

    /// Pages that may use the server from a browser.
    fn origins(&self) -> anyhow::Result<Origins> {
        match self.cors_origins.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            [] => return Ok(Origins::Local),
            ["*"] => return Ok(Origins::Any),
            ["none"] => return Ok(Origins::Listed(Vec::new())),
            _ => {}
        }
        let listed = self.cors_origins.iter().map(|origin| origin.trim_end_matches('/').to_owned());
        let listed: Vec<String> = listed.collect();
        let is_origin = |it: &String| {
            let host = it.split_once("://").map(|(_, host)| host);
            host.is_some_and(|host| !host.is_empty() && !host.contains(['/', '*', ' ']))
        };
        match listed.iter().find(|it| !is_origin(it)) {
            Some(odd) => anyhow::bail!(
                "--cors-origins: {odd:?} is no origin; expected one such as https://chat.example, \
                 or * or none alone"
            ),
            None => Ok(Origins::Listed(listed)),
        }
    }

    /// The names that this machine and its server go by.
    fn hosts(&self) -> Vec<String> {
        let own = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
        let own = own.or_else(|| std::env::var("HOSTNAME").ok());
        let own = own.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
        let own = own.into_iter().flat_map(|name| [format!("{name}.local"), name]);
        self.allowed_hosts.iter().cloned().chain([self.host.clone()]).chain(own).collect()
    }

    /// Where to listen: the first that can be, IPv4 before IPv6.
    fn addresses(&self) -> anyhow::Result<Vec<SocketAddr>> {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        let found = (host, self.port).to_socket_addrs();
        let unknown = || {
            format!(
                "--host {host} has no address: expected an IP address of this machine or a name that has one, such as localhost"
            )
        };
        let mut found: Vec<SocketAddr> = found.with_context(unknown)?.collect();
        found.sort_by_key(SocketAddr::is_ipv6);
        found.dedup();
        if found.is_empty() { Err(anyhow::anyhow!(unknown())) } else { Ok(found) }
    }

    fn start_log(&self) {
        let log = tracing_subscriber::fmt().with_writer(std::io::stderr).with_target(false);
        let log = log.with_ansi(std::io::stderr().is_terminal());
        match self.log_format {
            LogFormat::Text => log.init(),
            LogFormat::Json => log.json().flatten_event(true).init(),
        }
    }
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
