//! What all requests share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use forerun_decode::{
    ChatTemplate, Controller, Decoder, RuleChoice, Sampling, SpecialTokens, Tokenizer,
};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::admission::Places;
use crate::api::error::ApiError;
use crate::ask::{ANSWERS_MAX, Asked};
use crate::forms::Forms;
use crate::job::{Client, Job};
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
    /// Host names that a server without keys answers to, beside `localhost` and addresses; `*` for
    /// any.
    pub allowed_hosts: Vec<String>,
    /// Most requests that wait.
    pub queue_max: usize,
    /// Most time a request may take.
    pub timeout: Duration,
    /// Most time a client may take to send a request.
    pub read_timeout: Duration,
    /// Most time a client may take no byte of its response.
    pub write_timeout: Duration,
    /// Most connections at once.
    pub connections_max: usize,
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
    pub(crate) forms: Forms,
    pub(crate) sampling: Sampling,
    pub(crate) drafts: DraftDefaults,
    pub(crate) model: ModelInfo,
    pub(crate) context_len: usize,
    pub(crate) slot_count: usize,
    /// Paths the target's cache holds for a text.
    pub(crate) paths_max: usize,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) jobs: Jobs,
    /// A place for each sequence that is decoded or waits.
    pub(crate) places: Places,
    /// Whether no new request is taken.
    pub(crate) stopping: AtomicBool,
    /// Set when texts are to be broken off.
    pub(crate) abort: Arc<AtomicBool>,
}

/// Where jobs are sent. Closing it ends the engine's thread, whoever else holds the state.
pub(crate) struct Jobs(Mutex<Option<mpsc::Sender<Vec<Job>>>>);

impl Jobs {
    pub(crate) fn new(sender: mpsc::Sender<Vec<Job>>) -> Self {
        Self(Mutex::new(Some(sender)))
    }

    fn sender(&self) -> MutexGuard<'_, Option<mpsc::Sender<Vec<Job>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nobody takes jobs any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.sender().as_ref().is_none_or(mpsc::Sender::is_closed)
    }

    /// Lets the engine's thread end once it has done what it was sent.
    pub(crate) fn close(&self) {
        self.sender().take();
    }

    fn send(&self, jobs: Vec<Job>) -> Result<(), ApiError> {
        let sent = self.sender().as_ref().is_some_and(|sender| sender.try_send(jobs).is_ok());
        if sent { Ok(()) } else { Err(ApiError::internal("the engine has stopped")) }
    }
}

impl State {
    /// Waits until no request is answered or waits.
    pub(crate) async fn idle(&self) {
        self.places.idle().await;
    }

    /// Takes a place in the queue for each of a request's sequences, before any work is done for it.
    pub(crate) fn place(
        &self,
        client: Client,
        n: u32,
        prompts: usize,
    ) -> Result<OwnedSemaphorePermit, ApiError> {
        if self.stopping.load(Ordering::Relaxed) {
            return Err(ApiError::stopping());
        }
        let sequences = prompts.saturating_mul(n as usize);
        if n == 0 || sequences > ANSWERS_MAX {
            let message =
                format!("{sequences} answers were asked for; this server makes 1 to {ANSWERS_MAX}");
            return Err(ApiError::field("n", message));
        }
        let wanted = u32::try_from(sequences).unwrap_or(u32::MAX);
        self.places.take(client, wanted).ok_or_else(ApiError::busy)
    }

    /// Puts a request's sequences into the queue; each has its place until it has ended.
    pub(crate) fn queue(&self, asked: &mut Asked) -> Result<(), ApiError> {
        let mut place = None;
        for job in &mut asked.jobs {
            // Beyond the queue, the last place is shared.
            place = asked.place.split(1).map(Arc::new).or(place);
            job.place.clone_from(&place);
            self.metrics.queued();
        }
        // There is room for as many as have a place.
        self.jobs.send(std::mem::take(&mut asked.jobs))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

    use crate::host::tests::{config, engine};
    use crate::job::Client;
    use crate::serve::start;

    #[test]
    fn places_are_counted_in_sequences() {
        let (state, thread) = start(engine(), config(4), None).unwrap();
        let all = state.places.shared_len();
        assert_eq!(all as usize, state.slot_count + 4);
        let code = |n, prompts| {
            state.place(Client::Host, n, prompts).err().unwrap().body_only().error.code
        };
        let held = state.place(Client::Host, all - 1, 1).unwrap();
        assert_eq!((code(2, 1), code(1, 2)), (Some("queue_full"), Some("queue_full")));
        let last = state.place(Client::Host, 1, 1).unwrap();
        assert_eq!(code(1, 1), Some("queue_full"));
        drop(held);
        assert!(state.place(Client::Host, all - 1, 1).is_ok());
        // One that is larger than the queue has to wait until all others have ended.
        assert_eq!(code(all + 1, 1), Some("queue_full"));
        drop(last);
        assert_eq!(state.place(Client::Host, all + 1, 1).unwrap().num_permits(), all as usize);
        assert!(
            state.place(Client::Host, 0, 1).is_err() && state.place(Client::Host, 17, 1).is_err()
        );
        state.jobs.close();
        thread.join().unwrap();
    }

    #[test]
    fn the_engine_ends_though_the_state_is_held() {
        let (state, thread) = start(engine(), config(4), None).unwrap();
        assert!(!state.jobs.is_closed());
        state.jobs.close();
        thread.join().unwrap();
        assert!(state.jobs.is_closed());
    }
}
