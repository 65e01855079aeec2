//! What a server or a host is started with.

use std::sync::Arc;
use std::time::Duration;

use forerun_decode::{
    ChatTemplate, Controller, Decoder, DrafterId, DrafterInfo, Gates, RuleChoice, Sampling,
    Tokenizer,
};

use crate::audit::AuditLog;
use crate::embedding::EmbeddingModel;
use crate::tenants::TenantConfig;
use crate::trace::TraceConfig;

/// What is done with gates that have learned something.
pub type KeepGates = Box<dyn FnOnce(&Gates) + Send>;

/// The models, and the defaults of requests to them.
pub struct Engine {
    /// The target model and the drafters.
    pub decoder: Decoder,
    /// Decides how much is drafted; `None` if that is fixed.
    pub controller: Option<Controller>,
    /// Is given what the controller's gates have learned when the server stops, to be stored.
    pub keep_gates: Option<KeepGates>,
    /// Embeds texts or scores documents, for `/v1/embeddings` and `/v1/rerank`.
    pub embedding: Option<EmbeddingModel>,
    /// The target's vocabulary.
    pub tokenizer: Arc<dyn Tokenizer>,
    /// Turns conversations into prompts; without it there are no chats.
    pub template: Option<ChatTemplate>,
    /// The source of the template, for `/props`.
    pub template_source: String,
    /// Sampling parameters that a request does not set.
    pub sampling: Sampling,
    /// What is drafted unless a request says otherwise.
    pub drafts: DraftDefaults,
    /// What the model is.
    pub model: ModelInfo,
}

/// What is drafted unless a request says otherwise.
#[derive(Debug, Clone)]
pub struct DraftDefaults {
    /// The drafters, in the decoder's order.
    pub drafters: Vec<DrafterInfo>,
    /// Those of them that draft if a request predicts its output or its prompt holds code.
    pub on_demand: Vec<DrafterId>,
    /// Tokens of a path: always, or at most if drafts are adaptive.
    pub length: usize,
    /// The same for drafters that heed their price: they end a draft where they are unsure.
    pub priced_length: usize,
    /// Paths of the draft model.
    pub width: usize,
    /// Whether a draft may end early.
    pub may_stop: bool,
    /// Whether a controller decides.
    pub adaptive: bool,
    /// Whether clients without a key are drafted for from each other's outputs.
    pub suffix_shared: bool,
    /// The verification rule, if one was chosen.
    pub rule: Option<RuleChoice>,
    /// Most that a request may have per token of a lossy mode; `None` if there is none to be had.
    pub lossy_max: Option<f64>,
}

/// What the model is.
#[derive(Debug, Clone)]
pub struct ModelInfo {
    /// Its names in requests; responses use the first one unless a request names another.
    pub names: Vec<String>,
    /// The name of its file.
    pub file: String,
    /// Its architecture and size, in words.
    pub description: String,
    /// The number of its parameters.
    pub parameters: u64,
    /// Bytes of its file.
    pub size: u64,
    /// Tokens of context it was trained with.
    pub trained_len: usize,
}

/// How requests are served, whatever front end they come from.
#[derive(Debug, Clone)]
pub struct HostConfig {
    /// Most sequences that wait.
    pub queue_max: usize,
    /// Most time a request may take, waiting included.
    pub timeout: Duration,
    /// Whether prompts are logged.
    pub log_prompts: bool,
    /// Whether the text of a control token in a message becomes that token.
    pub parse_special: bool,
}

/// Web pages that may use a server from a browser, by their origin (`https://chat.example`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Origins {
    /// Pages of this machine: `localhost` and loopback addresses, at any port.
    #[default]
    Local,
    /// These alone.
    Listed(Vec<String>),
    /// Any page.
    Any,
}

/// How the HTTP server behaves.
#[derive(Debug, Clone)]
pub struct ServeConfig {
    /// How requests are served once they were read.
    pub host: HostConfig,
    /// API keys of tenants without names and limits. Every request must have a key of a tenant; if
    /// there are none, no key is needed.
    pub api_keys: Vec<String>,
    /// Further tenants.
    pub tenants: Vec<TenantConfig>,
    /// The key that shows the metrics of tenants, beside the others, at `/metrics`.
    pub metrics_key: Option<String>,
    /// Where requests are recorded.
    pub audit: Option<Arc<AuditLog>>,
    /// Host names that a server without keys answers to, beside `localhost` and addresses; `*` for
    /// any.
    pub allowed_hosts: Vec<String>,
    /// Whether fields that the server does not have, and names of other models, are rejected.
    pub strict: bool,
    /// Web pages that may use the server from a browser.
    pub origins: Origins,
    /// Where traces of requests go, if anywhere.
    pub traces: Option<TraceConfig>,
    /// Whether `/slots` says what the slots do.
    pub slots: bool,
    /// Whether prompts of `/infill` have the text after the gap before the text in front of it, as some
    /// models were trained.
    pub infill_suffix_first: bool,
    /// Most time a client may take to send a request.
    pub read_timeout: Duration,
    /// Most time a client may take no byte of its response.
    pub write_timeout: Duration,
    /// Most connections at once.
    pub connections_max: usize,
    /// Most bytes of a request.
    pub body_max: usize,
    /// How long sequences may go on once the server is told to stop.
    pub grace: Duration,
}
