//! How `forerun serve` is reached and what it allows, as given.

use std::io::IsTerminal as _;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use forerun_llama::Pooling;
use forerun_serve::{AuditLog, HostConfig, Origins, ServeConfig, TraceConfig, TraceEndpoint};

use crate::tenants;

/// Sequences at once, unless told otherwise; llama-server's default.
const SLOTS: u32 = 4;

/// No request takes longer, and clocks can count it.
const YEAR_S: u64 = 365 * 24 * 3600;

/// How the server is reached and what it allows.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Server")]
pub(super) struct ServingFlags {
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
    /// Show what the slots do at /slots, without prompts and outputs; this is the default
    #[arg(long, overrides_with = "no_slots")]
    slots: bool,
    /// Do not show what the slots do
    #[arg(long, overrides_with = "slots")]
    no_slots: bool,
    /// Put the text after a gap before the text in front of it at /infill, for models that were trained so
    #[arg(long)]
    spm_infill: bool,
    /// Port to listen on; 0 picks a free one
    #[arg(long, env = "LLAMA_ARG_PORT", value_name = "N", default_value_t = 8080)]
    port: u16,
    /// Number of slots: sequences decoded in one batch; further ones wait [-np]
    #[arg(long, visible_alias = "max-num-seqs", env = "LLAMA_ARG_N_PARALLEL", value_name = "N")]
    #[arg(default_value_t = SLOTS)]
    pub(super) parallel: u32,
    /// Whether all sequences share one KV cache [-kvu] [default: on if several drafters or paths
    /// need it]
    ///
    /// If on, a prediction and the drafter's draft are verified together, and sequences whose
    /// drafts differ in length share a pass. If off, a sequence gets the same logits to the last
    /// bit alone and in a batch, a round uses either the prediction or the drafter, and large
    /// batches are faster.
    #[arg(long, env = "LLAMA_ARG_KV_UNIFIED", value_name = "ON|OFF", value_parser = on_or_off)]
    pub(super) kv_unified: Option<bool>,
    /// Let the suffix drafter learn from outputs of clients without an API key, for all of them
    ///
    /// The speed of an output may then tell a client what others were told. Clients with a key, or
    /// requests with the same `cache_salt`, always share what the drafter learned, among themselves
    /// alone.
    #[arg(long)]
    pub(super) spec_suffix_shared: bool,
    /// Let requests trade exactness for speed, up to this total variation per token
    /// (`speculative.lossy`) [default: requests for loss are refused]
    #[arg(long, value_name = "E", allow_negative_numbers = true)]
    pub(super) lossy_max: Option<f64>,
    /// GGUF file of an embedding model or a reranker, for /v1/embeddings or /v1/rerank
    ///
    /// It is loaded beside the target. A text may have as many tokens as it was trained with, but not
    /// more than 2048.
    #[arg(long, value_name = "FILE")]
    pub(super) embedding_model: Option<PathBuf>,
    /// How --embedding-model makes one row of a text's: mean, cls, last or rank [default: as its file
    /// says]
    #[arg(long, env = "LLAMA_ARG_POOLING", value_name = "TYPE", requires = "embedding_model")]
    pub(super) pooling: Option<Pooling>,
    /// Name of the model in requests and responses; may be repeated [default: the file name]
    #[arg(
        short,
        long,
        visible_alias = "served-model-name",
        env = "LLAMA_ARG_ALIAS",
        value_name = "NAME"
    )]
    pub(super) alias: Vec<String>,
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
    /// URL of a collector that takes traces of requests by OTLP over HTTP, such as
    /// http://localhost:4318/v1/traces
    ///
    /// Each request becomes a span with OpenTelemetry's names for generative AI, without its content.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", value_name = "URL")]
    otlp_traces_endpoint: Option<TraceEndpoint>,
    /// Name of this server in traces
    #[arg(long, env = "OTEL_SERVICE_NAME", value_name = "NAME", default_value = "forerun")]
    otlp_service_name: String,
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
pub(super) enum LogFormat {
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

impl ServingFlags {
    pub(super) fn config(&self) -> anyhow::Result<ServeConfig> {
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
            traces: self
                .otlp_traces_endpoint
                .clone()
                .map(|endpoint| TraceConfig { endpoint, service: self.otlp_service_name.clone() }),
            slots: !self.no_slots,
            infill_suffix_first: self.spm_infill,
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
    pub(super) fn addresses(&self) -> anyhow::Result<Vec<SocketAddr>> {
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

    pub(super) fn start_log(&self) {
        let log = tracing_subscriber::fmt().with_writer(std::io::stderr).with_target(false);
        let log = log.with_ansi(std::io::stderr().is_terminal());
        match self.log_format {
            LogFormat::Text => log.init(),
            LogFormat::Json => log.json().flatten_event(true).init(),
        }
    }
}
