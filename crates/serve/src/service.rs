//! The running engine as requests see it: admission, the queue to its thread, and what the model is.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use forerun_decode::{ChatTemplate, Sampling, SpecialTokens, Token, Tokenizer};
use forerun_grammar::GrammarEnv;
use tokio::sync::mpsc;

use crate::admission::{Admission, Permit};
use crate::board::Board;
use crate::config::{DraftDefaults, Engine, HostConfig, ModelInfo};
use crate::dialect::{Dialect, Leads, Shown};
use crate::embedding::Embeddings;
use crate::error::{Failure, RequestError, ServeError};
use crate::forms::Forms;
use crate::metrics::Metrics;
use crate::request::{Caller, PreparedRequest, SequenceRequest};
use crate::tenants::Tenants;
use crate::worker::{CacheWatch, Worker};

/// Most sequences of a request.
const SEQUENCES_MAX: usize = 16;

/// What all requests share.
pub(crate) struct Service {
    pub(crate) config: HostConfig,
    pub(crate) tokenizer: Arc<dyn Tokenizer>,
    /// The special tokens whose texts messages may contain without becoming these tokens.
    pub(crate) specials: SpecialTokens,
    /// The texts of all special tokens, once somebody has asked for them.
    special_texts: OnceLock<HashMap<Token, String>>,
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) template_source: String,
    /// How the model writes thoughts and calls.
    pub(crate) dialect: Arc<Dialect>,
    /// What comes before its calls.
    pub(crate) leads: Leads,
    pub(crate) forms: Forms,
    pub(crate) sampling: Sampling,
    pub(crate) drafts: DraftDefaults,
    pub(crate) model: ModelInfo,
    pub(crate) context_len: usize,
    pub(crate) slot_count: usize,
    /// Paths that the target's KV cache holds for a sequence.
    pub(crate) paths_max: usize,
    pub(crate) metrics: Arc<Metrics>,
    /// What the slots do.
    pub(crate) board: Arc<Board>,
    pub(crate) tenants: Arc<Tenants>,
    pub(crate) worker: WorkerSender,
    /// Embeds texts or scores documents, if there is a model for that.
    pub(crate) embeddings: Option<Embeddings>,
    pub(crate) admission: Admission,
    /// Set when no more requests are accepted.
    pub(crate) stopping: AtomicBool,
    /// Set to end all sequences at once.
    pub(crate) abort: Arc<AtomicBool>,
}

/// A request that was admitted, before any work is done for it.
#[derive(Debug)]
pub(crate) struct Admitted {
    /// Who sent it.
    pub(crate) caller: Caller,
    /// A permit for each of its sequences, as far as there are so many.
    pub(crate) permit: Permit,
}

/// Sends sequences to the engine's thread. Closing it ends the thread, whoever else holds the
/// service.
pub(crate) struct WorkerSender(Mutex<Option<mpsc::Sender<Vec<SequenceRequest>>>>);

impl WorkerSender {
    fn new(sender: mpsc::Sender<Vec<SequenceRequest>>) -> Self {
        Self(Mutex::new(Some(sender)))
    }

    fn sender(&self) -> MutexGuard<'_, Option<mpsc::Sender<Vec<SequenceRequest>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the thread takes no more sequences.
    pub(crate) fn is_closed(&self) -> bool {
        self.sender().as_ref().is_none_or(mpsc::Sender::is_closed)
    }

    /// Lets the thread end once all that it was sent has ended.
    pub(crate) fn close(&self) {
        self.sender().take();
    }

    fn send(&self, sequences: Vec<SequenceRequest>) -> Result<(), RequestError> {
        let sent = self.sender().as_ref().is_some_and(|sender| sender.try_send(sequences).is_ok());
        if sent { Ok(()) } else { Err(RequestError::Internal("the engine has stopped")) }
    }
}

impl Service {
    /// Starts the thread that owns the engine. Each tenant has permits reserved for it; the watch is
    /// told what the KV cache holds.
    pub(crate) fn start(
        engine: Engine,
        config: HostConfig,
        tenants: Arc<Tenants>,
        watch: Option<Box<dyn CacheWatch>>,
    ) -> Result<(Self, JoinHandle<()>), ServeError> {
        let dialect = dialect_of(&engine);
        let tokenizer = Shown::over(Arc::clone(&engine.tokenizer), &dialect);
        let grammar =
            GrammarEnv::new(&*tokenizer).map_err(|error| ServeError::Grammar(error.to_string()))?;
        let target = engine.decoder.target();
        let (context_len, slot_count) = (target.context_len(), target.slot_count());
        let paths_max = target.paths_max();
        let metrics = Arc::new(Metrics::new(&engine.model.names[0], slot_count * context_len));
        let shared = slot_count.saturating_add(config.queue_max);
        let shared = u32::try_from(shared).unwrap_or(u32::MAX);
        // A tenant has as many permits of its own as there are slots, so that it can always use those.
        let reserved = u32::try_from(slot_count).unwrap_or(u32::MAX);
        let admission = Admission::new(shared, tenants.len(), reserved);
        let (sender, requests) = mpsc::channel(admission.len());
        let worker = Worker::new(engine.decoder, engine.controller, Arc::clone(&metrics), requests);
        let worker = worker.watched(watch).anonymous_share(engine.drafts.suffix_shared);
        let worker = worker.serving(Arc::clone(&tenants));
        let worker = worker.keeping_gates(engine.keep_gates);
        let embeddings = engine.embedding.map(|model| Embeddings::start(model, worker.abort()));
        let specials = match config.parse_special {
            true => SpecialTokens::default(),
            false => SpecialTokens::of(&*tokenizer),
        };
        let forms = Forms::start(&grammar, Arc::clone(&metrics)).map_err(ServeError::Threads)?;
        let service = Self {
            config,
            specials,
            special_texts: OnceLock::new(),
            template: engine.template,
            template_source: engine.template_source,
            leads: Leads::new(&*tokenizer, &dialect),
            dialect: Arc::new(dialect),
            tokenizer,
            forms,
            sampling: engine.sampling,
            drafts: engine.drafts,
            model: engine.model,
            context_len,
            slot_count,
            paths_max,
            metrics,
            board: worker.board(),
            tenants,
            worker: WorkerSender::new(sender),
            embeddings: embeddings.transpose()?,
            admission,
            stopping: false.into(),
            abort: worker.abort(),
        };
        let thread = std::thread::Builder::new().name("engine".to_owned());
        let thread = thread.spawn(move || worker.run()).map_err(ServeError::Threads)?;
        Ok((service, thread))
    }

    /// Waits until no request is served or waits.
    pub(crate) async fn idle(&self) {
        self.admission.idle().await;
    }

    /// Admits a request for `n` sequences of each of its prompts, before any work is done for it.
    pub(crate) fn admit(
        &self,
        caller: impl Into<Caller>,
        n: u32,
        prompts: usize,
    ) -> Result<Admitted, RequestError> {
        let caller = caller.into();
        if self.stopping.load(Ordering::Relaxed) {
            return Err(Failure::Stopping.into());
        }
        let sequences = prompts.saturating_mul(n as usize);
        if n == 0 || sequences > SEQUENCES_MAX {
            let message = format!(
                "{sequences} answers were asked for; this server makes 1 to {SEQUENCES_MAX}"
            );
            return Err(RequestError::parameter("n", message));
        }
        let sequences = u32::try_from(sequences).unwrap_or(u32::MAX);
        if let Some(tenant) = self.tenants.of(caller.client) {
            tenant.check_tokens(Instant::now())?;
        }
        let permit = self.admission.admit(caller.client, &self.tenants, sequences)?;
        Ok(Admitted { caller, permit })
    }

    /// Puts the sequences of a request into the queue. Each keeps its permit until it has ended.
    pub(crate) fn submit(&self, request: &mut PreparedRequest) -> Result<(), RequestError> {
        let mut permit = None;
        for sequence in &mut request.sequences {
            // A request larger than the queue has fewer permits than sequences: the last is shared.
            permit = request.permit.split().map(Arc::new).or(permit);
            sequence.permit.clone_from(&permit);
            self.metrics.queued();
        }
        // The channel holds as many requests as there are permits.
        self.worker.send(std::mem::take(&mut request.sequences))
    }

    /// The text of tokens, with that of control tokens.
    pub(crate) fn written(&self, tokens: &[Token]) -> String {
        let special = self.special_texts.get_or_init(|| {
            let special = self.tokenizer.special_tokens().into_iter();
            special.map(|it| (it.token, it.text)).collect()
        });
        let mut bytes = Vec::new();
        for token in tokens {
            let before = bytes.len();
            self.tokenizer.bytes(*token, &mut bytes);
            if let Some(text) = special.get(token).filter(|_| bytes.len() == before) {
                bytes.extend_from_slice(text.as_bytes());
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The text of tokens.
    pub(crate) fn text(&self, tokens: &[Token]) -> String {
        let mut bytes = Vec::new();
        tokens.iter().for_each(|token| self.tokenizer.bytes(*token, &mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// How a model writes thoughts and calls, by its template.
fn dialect_of(engine: &Engine) -> Dialect {
    let Some(template) = &engine.template else { return Dialect::default() };
    let tokens = engine.tokenizer.special_tokens().into_iter();
    let ends = tokens.filter(|it| engine.tokenizer.is_end(it.token)).map(|it| it.text).collect();
    let dialect = Dialect::of(template, &engine.template_source, ends);
    let native = dialect.native.is_some();
    tracing::info!(native, opening = dialect.calls.opening(), "calls of functions");
    dialect
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

    use super::*;
    use crate::fixtures::{config, engine};
    use crate::request::Client;

    #[test]
    fn permits_are_counted_in_sequences() {
        let (service, thread) = Service::start(engine(), config(4), Arc::default(), None).unwrap();
        let all = service.admission.shared_len();
        assert_eq!(all as usize, service.slot_count + 4);
        let admit = |n, prompts| service.admit(Client::Host, n, prompts);
        let full = |n, prompts| admit(n, prompts).err() == Some(RequestError::QueueFull);
        let most = admit(all - 1, 1).unwrap();
        assert!(full(2, 1) && full(1, 2));
        let last = admit(1, 1).unwrap();
        assert!(full(1, 1));
        drop(most);
        assert!(admit(all - 1, 1).is_ok());
        // A request that is larger than the queue has to wait until all others have ended.
        assert!(full(all + 1, 1));
        drop(last);
        assert_eq!(admit(all + 1, 1).unwrap().permit.places(), all as usize);
        for n in [0, 17] {
            let refused = admit(n, 1).unwrap_err();
            assert!(matches!(refused, RequestError::Parameter { name, .. } if name == "n"));
        }
        service.worker.close();
        thread.join().unwrap();
    }

    #[test]
    fn the_thread_ends_though_the_state_is_held() {
        let (service, thread) = Service::start(engine(), config(4), Arc::default(), None).unwrap();
        assert!(!service.worker.is_closed());
        service.worker.close();
        thread.join().unwrap();
        assert!(service.worker.is_closed());
    }
}
