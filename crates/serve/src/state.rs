//! What all requests share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forerun_decode::{
    ChatTemplate, Controller, Decoder, RuleChoice, Sampling, SpecialTokens, Tokenizer,
};
use forerun_grammar::GrammarEnv;
use tokio::sync::{Semaphore, mpsc};

use crate::api::error::ApiError;
use crate::ask::Asked;
use crate::job::Job;
use crate::metrics::Metrics;

/// What text is made with.
pub struct Engine {
    /// Target and drafters. Those of a server are named by index, in this order.
    pub decoder: Decoder,
    /// What decides how much is drafted, where that is not fixed.
    pub controller: Option<Controller>,
    /// The target's vocabulary.
    pub tokenizer: Arc<dyn Tokenizer>,
    /// How conversations become prompts; without it there are no chats.
    pub template: Option<ChatTemplate>,
    /// The template's source, for those who ask.
    pub template_source: String,
    /// How tokens are drawn where a request says nothing.
    pub sampling: Sampling,
    /// What is drafted where a request says nothing.
    pub drafts: DraftDefaults,
    /// What the model is.
    pub model: ModelInfo,
}

/// What is drafted where a request says nothing.
#[derive(Debug, Clone)]
pub struct DraftDefaults {
    /// The drafters, in the decoder's order.
    pub drafters: Vec<DrafterInfo>,
    /// Tokens of a path: always, or at most where drafts are adapted.
    pub length: usize,
    /// Paths of the draft model.
    pub width: usize,
    /// Whether a draft may end early.
    pub may_stop: bool,
    /// Whether a controller decides.
    pub adaptive: bool,
    /// How drafts are judged, where that was said.
    pub rule: Option<RuleChoice>,
}

/// A drafter.
#[derive(Debug, Clone, Copy)]
pub struct DrafterInfo {
    /// Its name.
    pub name: &'static str,
    /// Whether it is a model.
    pub is_model: bool,
}

/// What the model is.
#[derive(Debug, Clone)]
pub struct ModelInfo {
    /// Its names here; the first is the one answers say.
    pub names: Vec<String>,
    /// Its file's name.
    pub file: String,
    /// Its kind and size, in words.
    pub description: String,
    /// Its parameters.
    pub parameters: u64,
    /// Bytes of its file.
    pub size: u64,
    /// Tokens of context it was trained with.
    pub trained_len: usize,
}

/// How the server behaves.
#[derive(Debug, Clone)]
pub struct ServeConfig {
    /// Keys, one of which every request must have; none are needed where there are none.
    pub api_keys: Vec<String>,
    /// Most requests that wait.
    pub queue_max: usize,
    /// Most time a request may take.
    pub timeout: Duration,
    /// Most time a client may take to send a request.
    pub read_timeout: Duration,
    /// Most bytes of a request.
    pub body_max: usize,
    /// How long texts may go on once the server is told to stop.
    pub grace: Duration,
    /// Whether prompts are logged.
    pub log_prompts: bool,
    /// Whether the text of a control token in a message becomes that token.
    pub parse_special: bool,
}

/// What connections meet: nothing but these while the model is loaded.
pub(crate) struct Front {
    pub(crate) config: ServeConfig,
    /// All else, once there is a model.
    pub(crate) state: OnceLock<Arc<State>>,
}

/// What all requests share.
pub(crate) struct State {
    pub(crate) config: ServeConfig,
    pub(crate) tokenizer: Arc<dyn Tokenizer>,
    /// The special tokens whose texts messages may hold without becoming them.
    pub(crate) specials: SpecialTokens,
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) template_source: String,
    pub(crate) grammar: GrammarEnv,
    pub(crate) sampling: Sampling,
    pub(crate) drafts: DraftDefaults,
    pub(crate) model: ModelInfo,
    pub(crate) context_len: usize,
    pub(crate) slot_count: usize,
    /// Paths the target's cache holds for a text.
    pub(crate) paths_max: usize,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) jobs: mpsc::Sender<Vec<Job>>,
    /// A place for each request that is answered or waits.
    pub(crate) places: Arc<Semaphore>,
    /// How many there are.
    pub(crate) place_count: u32,
    /// Whether no new request is taken.
    pub(crate) stopping: AtomicBool,
    /// Set when texts are to be broken off.
    pub(crate) abort: Arc<AtomicBool>,
}

impl State {
    /// Waits until no request is answered or waits.
    pub(crate) async fn idle(&self) {
        let _ = self.places.acquire_many(self.place_count).await;
    }

    /// Puts a request's texts into the queue; they have one place together, until all have ended.
    pub(crate) fn queue(&self, asked: &mut Asked) -> Result<(), ApiError> {
        if self.stopping.load(Ordering::Relaxed) {
            return Err(ApiError::stopping());
        }
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| ApiError::busy())?;
        let place = Arc::new(place);
        for job in &mut asked.jobs {
            job.place = Some(Arc::clone(&place));
            self.metrics.queued();
        }
        // There is room for as many as have a place.
        let sent = self.jobs.try_send(std::mem::take(&mut asked.jobs));
        sent.map_err(|_| ApiError::internal("the engine has stopped"))
    }
}
