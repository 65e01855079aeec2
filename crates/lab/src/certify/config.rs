//! What is to be certified, checked.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::sync::Arc;

use forerun_decode::{DrafterKind, LossyMode, RuleChoice};
use forerun_verify::{Rule, Scheme};
use serde_json::{Map, Value, json};

use super::broken::Fault;
use super::verdict::Limits;
use crate::client::Client;
use crate::error::Result;
use crate::machine::Provenance;
use crate::sampling::SamplingConfig;

/// How to certify.
#[derive(Debug, Clone)]
pub struct CertifyConfig {
    /// A file of prompts.
    pub prompts: Option<PathBuf>,
    /// How tokens are drawn.
    pub sampling: SamplingConfig,
    /// When to stop, and what counts as proof.
    pub limits: Limits,
    /// Whether it is for a first impression.
    pub quick: bool,
    /// Where the certificate goes as a page.
    pub out: PathBuf,
    /// Where it goes as JSON.
    pub json: PathBuf,
    /// When, where and with what it is made.
    pub provenance: Provenance,
}

/// A decoder in this process.
#[derive(Debug, Clone)]
pub struct ModelSubject {
    /// The target's file.
    pub target: PathBuf,
    /// The draft models' files.
    pub draft_models: Vec<PathBuf>,
    /// The drafters, in the order they propose.
    pub drafters: Vec<DrafterKind>,
    /// Tokens of a path.
    pub len: NonZeroUsize,
    /// Paths the draft model draws.
    pub width: NonZeroUsize,
    /// How they are drawn.
    pub scheme: Scheme,
    /// Whether a draft may end before its length.
    pub may_stop: bool,
    /// How drafts are judged.
    pub rule: RuleChoice,
    /// How drafts are verified instead, with loss.
    pub lossy: Option<LossyMode>,
    /// Outputs made at once.
    pub slots: NonZeroU32,
    /// What is broken on purpose.
    pub broken: Option<Fault>,
}

impl ModelSubject {
    /// The rule that drafts are verified by, broken where that is wanted.
    pub(super) fn verification(&self) -> Arc<dyn Rule> {
        match (self.lossy, self.broken) {
            (Some(mode), Some(fault)) => fault.lossy_rule(mode).unwrap_or_else(|| mode.rule()),
            (Some(mode), None) => mode.rule(),
            (None, fault) => fault.and_then(Fault::rule).unwrap_or_else(|| self.rule.with_seed(0)),
        }
    }
}

/// Somebody's server.
#[derive(Clone)]
pub struct ServerSubject {
    /// With speculation.
    pub url: String,
    /// Without, where that is another.
    pub plain_url: Option<String>,
    /// The key of both.
    pub key: Option<String>,
    /// Fields of requests with speculation.
    pub on: Option<Map<String, Value>>,
    /// Fields of requests without.
    pub off: Option<Map<String, Value>>,
    /// The model's name, where the server wants one.
    pub model: Option<String>,
    /// Requests under way at once.
    pub users: usize,
    /// Most pairs of outputs.
    pub pairs_max: u64,
}

impl ServerSubject {
    /// Clients with speculation and without.
    pub(super) fn clients(&self) -> Result<(Client, Client)> {
        let client = |url: &str| Client::new(url, self.key.clone(), super::server::ANSWER);
        let on = client(&self.url)?;
        let off = self.plain_url.as_deref().map_or_else(|| Ok(on.clone()), client)?;
        Ok((on, off))
    }

    /// What requests of either kind say beside what all say.
    pub(super) fn bodies(&self) -> (Map<String, Value>, Map<String, Value>) {
        let object = |value: Value| value.as_object().cloned().unwrap_or_default();
        // Only Forerun knows the field; others would refuse or ignore it.
        let ours = self.on.is_none() && self.off.is_none() && self.plain_url.is_none();
        let on = if ours { json!({ "speculative": { "length": 4 } }) } else { json!({}) };
        let off = if ours { json!({ "speculative": { "enabled": false } }) } else { json!({}) };
        let said = |said: &Option<Map<_, _>>, default| said.clone().unwrap_or(object(default));
        (said(&self.on, on), said(&self.off, off))
    }
}
