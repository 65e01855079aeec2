//! A prepared request and its sequences: what the engine's thread is given.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forerun_decode::{
    Constraint, DraftPolicy, DrafterKind, LossyMode, MinTokens, Reading, RuleChoice, Sampling,
    Token,
};
use forerun_grammar::Form;
use tokio::sync::mpsc;

use crate::admission::Permit;
use crate::audit::Record;
pub(crate) use crate::client::Client;
use crate::dialect::CallForm;
use crate::event::Event;
use crate::tenants::Tenants;
use crate::trace::Span;

/// What is told of a request to those who run the server.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reports {
    /// For the audit log, if there is one.
    pub(crate) record: Option<Arc<Record>>,
    /// For traces, if the request is traced.
    pub(crate) span: Option<Arc<Span>>,
}

/// Who sent a request, and what is told of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Caller {
    pub(crate) client: Client,
    pub(crate) reports: Reports,
}

impl From<Client> for Caller {
    fn from(client: Client) -> Self {
        Self { client, reports: Reports::default() }
    }
}

/// Which cached prefixes a sequence may use, and who may use what it leaves: sequences of the same
/// scope. So neither `cached_tokens` nor the time to the first token tells a client what another
/// one sent.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Scope {
    /// All of the same tenant, or of tenants that share a cache, with the same `cache_salt`; without
    /// keys, all with the same salt.
    Shared {
        /// Whose cache it is.
        owner: Option<u64>,
        /// The salt.
        salt: Option<Arc<str>>,
    },
    /// Nobody: `cache_prompt` is false.
    Nobody,
}

impl Scope {
    /// Whether a sequence of this scope may use what one of the other left.
    pub(crate) fn admits(&self, other: &Self) -> bool {
        *self != Self::Nobody && self == other
    }

    /// Whether its sequences may be drafted for from each other's outputs, which their speed would
    /// tell: not if it is everybody without a key, unless the server says so.
    pub(crate) fn learns(&self, anonymous_share: bool) -> bool {
        match self {
            Self::Shared { owner: None, salt: None } => anonymous_share,
            Self::Shared { .. } => true,
            Self::Nobody => false,
        }
    }
}

/// How a request uses the prefix cache.
#[derive(Debug, Clone)]
pub(crate) struct CachePolicy {
    /// Whether it may use cached prefixes, and others what it leaves.
    pub(crate) shared: bool,
    /// Separates its prefixes from those of others of the same tenant.
    pub(crate) salt: Option<Arc<str>>,
}

/// A request with every default decided.
pub(crate) struct PreparedRequest {
    /// Its sequences, none of them constrained yet. There is none if all had finished before the
    /// client resumed them.
    pub(crate) sequences: Vec<SequenceRequest>,
    /// What all of them are constrained to.
    pub(crate) form: Option<Form>,
    /// What their calls are held to instead.
    pub(crate) calls: Option<CallForm>,
    /// Admits each of them.
    pub(crate) permit: Permit,
    /// What the engine's thread reports of them.
    pub(crate) events: mpsc::Receiver<Event>,
    /// When they must have finished.
    pub(crate) deadline: Instant,
    /// What a response says of the request.
    pub(crate) summary: RequestSummary,
    /// What is told of it.
    pub(crate) reports: Reports,
}

/// What a response says of its request, and what is known of its prompts.
#[derive(Debug, Clone)]
pub(crate) struct RequestSummary {
    /// Sequences of the request.
    pub(crate) choices: usize,
    /// Sequences of each prompt: its tokens count once.
    pub(crate) n: usize,
    /// The prompts.
    pub(crate) prompts: Vec<Vec<Token>>,
    /// Tokens of the prediction.
    pub(crate) prediction_len: usize,
    /// What the client has of a response that it resumes.
    pub(crate) resumed: Resumed,
    /// What is drafted, with the seed of no sequence.
    pub(crate) drafting: Drafting,
    /// The drafters of the request.
    pub(crate) drafters: Vec<DrafterKind>,
    /// How its tokens are drawn.
    pub(crate) settings: Arc<Settings>,
    /// Whether its prompts may be recorded.
    pub(crate) recordable: bool,
}

/// The samplers there are, by llama.cpp's names and in the order in which they are applied.
pub(crate) const SAMPLERS: [&str; 7] =
    ["penalties", "top_k", "typ_p", "top_p", "min_p", "infill", "temperature"];

/// Those that are on unless a request names others.
pub(crate) const SAMPLERS_ON: [&str; 6] =
    ["penalties", "top_k", "typ_p", "top_p", "min_p", "temperature"];

/// How the tokens of a request are drawn and where its output ends, with every default decided.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// How tokens are drawn.
    pub(crate) sampling: Sampling,
    /// The samplers that are on.
    pub(crate) samplers: Vec<&'static str>,
    /// The seed, if the request has one.
    pub(crate) seed: Option<i64>,
    /// Most tokens of the output.
    pub(crate) max_tokens: Option<u32>,
    /// Texts that end the output.
    pub(crate) stop: Vec<String>,
    /// Whether end tokens are forbidden.
    pub(crate) ignore_eos: bool,
    /// Of how many of the likeliest tokens log-probabilities are returned.
    pub(crate) logprobs: Option<u32>,
}

impl Settings {
    /// Tokens drawn so, without an end but the model's own.
    pub(crate) fn of(sampling: Sampling) -> Self {
        Self {
            sampling,
            samplers: SAMPLERS_ON.to_vec(),
            seed: None,
            max_tokens: None,
            stop: Vec::new(),
            ignore_eos: false,
            logprobs: None,
        }
    }
}

/// What a client has of a response whose stream broke off.
#[derive(Debug, Clone, Default)]
pub(crate) struct Resumed {
    /// The tokens.
    pub(crate) tokens: Vec<Token>,
    /// Their text.
    pub(crate) text: String,
}

/// A sequence to decode.
pub(crate) struct SequenceRequest {
    /// Whose it is.
    pub(crate) client: Client,
    /// How it uses the prefix cache.
    pub(crate) cache: CachePolicy,
    /// Its index in its request.
    pub(crate) choice: usize,
    /// The prompt.
    pub(crate) prompt: Vec<Token>,
    /// The output so far, if it resumes a sequence that broke off.
    pub(crate) output: Vec<Token>,
    /// Most tokens of the output.
    pub(crate) output_len_max: usize,
    /// How tokens are drawn.
    pub(crate) settings: Arc<Settings>,
    /// Turns tokens into text and finds its end. It has read the output so far.
    pub(crate) reading: Reading,
    /// Determines its random choices.
    pub(crate) seed: u64,
    /// What its output is constrained to.
    pub(crate) constraint: Option<Box<dyn Constraint>>,
    /// How many tokens come before any of these, which would end it.
    pub(crate) min_tokens: Option<(usize, Arc<[Token]>)>,
    /// Whether to compute log-probabilities, and of how many of the likeliest tokens beside.
    pub(crate) logprobs: Option<usize>,
    /// What is drafted.
    pub(crate) drafting: Drafting,
    /// The expected output.
    pub(crate) prediction: Vec<Token>,
    /// When the request arrived.
    pub(crate) arrived: Instant,
    /// When it must have finished.
    pub(crate) deadline: Instant,
    /// How long after its first token it may go on beyond the next line break.
    pub(crate) predict_time: Option<Duration>,
    /// Where progress and failures go. Closing the other end cancels the sequence.
    pub(crate) events: mpsc::Sender<Event>,
    /// Admits it; released when the last sequence that shares it has ended.
    pub(crate) permit: Option<Arc<Permit>>,
}

impl SequenceRequest {
    /// Constrains it to its least length, beside what else it is constrained to.
    pub(crate) fn constrain_length(&mut self) {
        if let Some((min, ends)) = self.min_tokens.take() {
            let least = MinTokens::new(min, ends).beside(self.constraint.take(), &self.output);
            self.constraint = Some(Box::new(least));
        }
    }

    /// Which cached prefixes it may use.
    pub(crate) fn scope(&self, tenants: &Tenants) -> Scope {
        let owner = tenants.scope(self.client);
        match self.cache.shared {
            true => Scope::Shared { owner, salt: self.cache.salt.clone() },
            false => Scope::Nobody,
        }
    }
}

/// What may be drafted for a sequence.
#[derive(Debug, Clone)]
pub(crate) struct Drafting {
    /// What it allows to be drafted, and how drafts are verified.
    pub(crate) policy: DraftPolicy,
    /// The lossless rule's name.
    pub(crate) rule: RuleChoice,
    /// How drafts are verified instead, if with loss.
    pub(crate) lossy: Option<LossyMode>,
    /// Whether the controller decides.
    pub(crate) adaptive: bool,
    /// Whether the request turned drafting off.
    pub(crate) refused: bool,
}

impl Drafting {
    /// The same with this seed.
    pub(crate) fn seeded(&self, seed: u64) -> Self {
        let mut seeded = self.clone();
        seeded.policy.rule = self.lossy.map_or_else(|| self.rule.with_seed(seed), LossyMode::rule);
        seeded
    }
}
