//! Texts of tokens for those who bring a front of their own: the engine's thread without HTTP.

use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use forerun_decode::{Finish, TokenLogprob};
use forerun_grammar::Form;

use crate::api::answer::token_ids;
use crate::api::error::ApiError;
use crate::api::types::{Common, Shape};
use crate::ask::Wanted;
use crate::job::Client;
use crate::serve::{ServeError, start};
use crate::state::{Engine, ServeConfig, State};
use crate::texts::Texts;
use crate::worker::CacheWatch;

/// A text that is wanted. What is not said is as the engine has it.
#[derive(Debug, Clone, Default)]
pub struct TokenRequest {
    /// The tokens it continues. They may be a prompt and the beginning of its answer: with a seed and
    /// the coupled rule, which a seed means here, the rest is what it would have been.
    pub prompt: Vec<u32>,
    /// Most tokens of it.
    pub max_tokens: Option<u32>,
    /// Divides the logits; 0 takes the likeliest token.
    pub temperature: Option<f32>,
    /// Keeps the fewest likeliest tokens whose probabilities add up to this.
    pub top_p: Option<f32>,
    /// Keeps this many of the likeliest tokens; 0 or -1 keeps all.
    pub top_k: Option<i32>,
    /// Keeps tokens at least this share as probable as the likeliest.
    pub min_p: Option<f32>,
    /// Taken off the logit of a token that was said.
    pub presence_penalty: Option<f32>,
    /// Taken off once for each time it was said.
    pub frequency_penalty: Option<f32>,
    /// Divides the logit of a token that was said.
    pub repeat_penalty: Option<f32>,
    /// Fixes the text.
    pub seed: Option<i64>,
    /// Whether end tokens are forbidden.
    pub ignore_eos: bool,
    /// Of how many of the likeliest tokens log-probabilities are wanted beside each.
    pub logprobs: Option<u32>,
    /// What it is held to.
    pub form: Option<Form>,
}

/// What a round brought.
#[derive(Debug, Clone)]
pub struct TokenChunk {
    /// Its tokens, an end token included.
    pub tokens: Vec<u32>,
    /// Their log-probabilities, where they are wanted.
    pub logprobs: Vec<TokenLogprob>,
    /// Why the text ended, where it did.
    pub finish: Option<Finish>,
}

/// Why a text is not made, or no further.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct HostError {
    /// What is wrong, and what to do.
    pub message: String,
    /// Whether the request is at fault; otherwise it may be made again.
    pub of_request: bool,
}

impl From<ApiError> for HostError {
    fn from(error: ApiError) -> Self {
        let of_request = error.is_of_request();
        Self { message: error.body_only().error.message, of_request }
    }
}

/// How busy a host is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HostLoad {
    /// Texts being made.
    pub running: usize,
    /// Texts that wait.
    pub waiting: usize,
    /// Tokens of the cache in use, of how many.
    pub held: usize,
    /// All that it holds.
    pub room: usize,
    /// Share of prompt tokens that were cached.
    pub hit_rate: f64,
}

impl HostLoad {
    /// Texts that were begun or are to be.
    pub fn unfinished(&self) -> usize {
        self.running + self.waiting
    }
}

/// An engine on a thread of its own, which ends with the host and its last text.
pub struct Host {
    state: State,
    thread: JoinHandle<()>,
}

impl Host {
    /// Starts the thread. The watch is told what the cache holds.
    ///
    /// # Errors
    /// Where the vocabulary cannot be used for grammars, or there is no thread to be had.
    pub fn start(
        engine: Engine,
        config: ServeConfig,
        watch: Option<Box<dyn CacheWatch>>,
    ) -> Result<Self, ServeError> {
        let (state, thread) = start(engine, config, watch)?;
        Ok(Self { state, thread })
    }

    /// Begins a text. Dropping the stream ends it.
    ///
    /// # Errors
    /// Where it cannot be honoured, or the queue is full.
    pub async fn begin(&self, request: TokenRequest) -> Result<TokenStream, HostError> {
        let place = self.state.place(Client::Host, 1, 1)?;
        let TokenRequest { prompt, max_tokens, logprobs, form, .. } = &request;
        let tokens = prompt.iter().copied().map(forerun_decode::Token).collect();
        let wanted = Wanted {
            prompts: vec![tokens],
            len_max: *max_tokens,
            logprobs: *logprobs,
            form: form.clone(),
        };
        let asked = self.state.ask(place, common(&request), wanted)?;
        Ok(TokenStream { texts: Texts::begin(&self.state, asked).await? })
    }

    /// How busy it is.
    pub fn load(&self) -> HostLoad {
        let levels = self.state.metrics.levels();
        let count = |level: i64| usize::try_from(level).unwrap_or(0);
        HostLoad {
            running: count(levels.running),
            waiting: count(levels.waiting),
            held: count(levels.held),
            room: self.state.slot_count * self.state.context_len,
            hit_rate: levels.hit_rate,
        }
    }

    /// The metrics, as Prometheus reads them.
    pub fn metrics(&self) -> String {
        self.state.metrics.text()
    }

    /// Breaks off its texts and waits until the engine is released.
    pub fn stop(self) {
        let Self { state, thread } = self;
        state.abort.store(true, Ordering::Relaxed);
        // The thread ends once nobody can send it a job.
        drop(state);
        if thread.join().is_err() {
            tracing::error!("the engine's thread panicked");
        }
    }

    /// Tokens of context a text has, and texts that are made at once.
    pub fn room(&self) -> (usize, usize) {
        (self.state.context_len, self.state.slot_count)
    }
}

/// A text as it comes.
pub struct TokenStream {
    texts: Texts,
}

impl TokenStream {
    /// What comes next; `None` once it has ended.
    pub async fn next(&mut self) -> Option<Result<TokenChunk, HostError>> {
        let progress = match self.texts.next().await? {
            Ok(progress) => progress,
            Err(error) => return Some(Err(error.into())),
        };
        let tokens = token_ids(&progress.pieces);
        let logprobs = progress.pieces.into_iter().filter_map(|piece| piece.logprob).collect();
        Some(Ok(TokenChunk { tokens, logprobs, finish: progress.finish }))
    }
}

/// What all requests have in common, of this one.
fn common(request: &TokenRequest) -> Common {
    Common {
        n: 1,
        stream: true,
        seed: request.seed,
        shape: Shape {
            temperature: request.temperature,
            top_p: request.top_p,
            top_k: request.top_k,
            min_p: request.min_p,
            presence_penalty: request.presence_penalty,
            frequency_penalty: request.frequency_penalty,
            repeat_penalty: request.repeat_penalty,
            ignore_eos: request.ignore_eos,
            ..Shape::default()
        },
        ..Common::default()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

    use std::sync::{Arc, mpsc};
    use std::time::Duration;

    use forerun_decode::{Decoder, ModelDrafter, Sampling, Slot, Token};

    use super::*;
    use crate::state::{DraftDefaults, DrafterInfo, ModelInfo};
    use crate::worker::tests::{Letters, toy};

    /// Says what slots hold.
    struct Heard(mpsc::Sender<(Slot, usize)>);

    impl CacheWatch for Heard {
        fn holds(&mut self, slot: Slot, tokens: &[Token]) {
            let _ = self.0.send((slot, tokens.len()));
        }
    }

    /// A toy.
    pub(crate) fn engine() -> Engine {
        let drafter = Box::new(ModelDrafter::new(toy(2, 1)));
        Engine {
            decoder: Decoder::new(toy(1, 1), vec![drafter]).unwrap(),
            controller: None,
            tokenizer: Arc::new(Letters),
            template: None,
            template_source: String::new(),
            sampling: Sampling::unshaped(),
            drafts: DraftDefaults {
                drafters: vec![DrafterInfo { name: "draft-model", is_model: true }],
                length: 3,
                width: 1,
                may_stop: false,
                adaptive: false,
                rule: None,
            },
            model: ModelInfo {
                names: vec!["toy".to_owned()],
                file: String::new(),
                description: String::new(),
                parameters: 0,
                size: 0,
                trained_len: 512,
            },
        }
    }

    /// So many sequences may wait.
    pub(crate) fn config(queue_max: usize) -> ServeConfig {
        ServeConfig {
            api_keys: Vec::new(),
            allowed_hosts: Vec::new(),
            queue_max,
            timeout: Duration::from_secs(60),
            read_timeout: Duration::from_secs(1),
            write_timeout: Duration::from_secs(30),
            connections_max: 1,
            body_max: 0,
            grace: Duration::ZERO,
            log_prompts: false,
            parse_special: false,
        }
    }

    fn host(watch: Option<Box<dyn CacheWatch>>) -> Host {
        Host::start(engine(), config(4), watch).unwrap()
    }

    fn wanted(prompt: Vec<u32>, max_tokens: u32) -> TokenRequest {
        TokenRequest {
            prompt,
            max_tokens: Some(max_tokens),
            seed: Some(3),
            ignore_eos: true,
            ..TokenRequest::default()
        }
    }

    async fn tokens(host: &Host, request: TokenRequest) -> (Vec<u32>, usize) {
        let mut stream = host.begin(request).await.unwrap();
        let (mut all, mut chunks) = (Vec::new(), 0);
        while let Some(chunk) = stream.next().await {
            all.extend(chunk.unwrap().tokens);
            chunks += 1;
        }
        (all, chunks)
    }

    #[tokio::test]
    async fn a_longer_prompt_with_the_same_seed_goes_on_as_the_text_would_have() {
        let (one, other) = (host(None), host(None));
        let (whole, chunks) = tokens(&one, wanted(vec![0, 1, 2], 40)).await;
        assert!(whole.len() == 40 && chunks < 40, "several tokens a chunk: {chunks}");
        for cut in [1, 7, 39] {
            let prompt = [&[0, 1, 2], &whole[..cut]].concat();
            let rest = tokens(&other, wanted(prompt, 40 - u32::try_from(cut).unwrap())).await.0;
            assert_eq!(rest, whole[cut..], "after {cut}");
        }
        one.stop();
        other.stop();
    }

    #[tokio::test]
    async fn what_the_cache_holds_is_told() {
        let (sender, heard) = mpsc::channel();
        let host = host(Some(Box::new(Heard(sender))));
        tokens(&host, wanted(vec![0, 1, 2, 3], 20)).await;
        let lens: Vec<usize> = heard.try_iter().map(|(_, len)| len).collect();
        assert!(lens.iter().max() >= Some(&20) && lens.is_sorted(), "{lens:?}");
        host.stop();
    }

    #[tokio::test]
    async fn what_cannot_be_honoured_is_refused_and_whose_fault_it_is_said() {
        let host = host(None);
        for request in [wanted(vec![], 4), wanted(vec![99], 4)] {
            let refused = host.begin(request).await.err().unwrap();
            assert!(refused.of_request, "{refused}");
        }
        host.stop();
    }

    #[tokio::test]
    async fn a_request_without_a_place_compiles_nothing() {
        let host = Host::start(engine(), config(0), None).unwrap();
        let held = host.state.place(Client::Host, host.state.places.shared_len(), 1).unwrap();
        let form = Some(Form::Regex("a+".to_owned()));
        let request = TokenRequest { form, ..wanted(vec![0, 1], 4) };
        let refused = host.begin(request.clone()).await.err().unwrap();
        assert!(!refused.of_request && refused.message.contains("queue"), "{refused}");
        let compiled = "forerun:grammar_cache_queries_total{model_name=\"toy\"}";
        assert!(host.metrics().contains(&format!("{compiled} 0")));
        drop(held);
        assert!(host.begin(request).await.is_ok());
        assert!(host.metrics().contains(&format!("{compiled} 1")));
        host.stop();
    }

    #[tokio::test]
    async fn a_form_is_held_to_and_refused_by_its_reason() {
        let host = host(None);
        let form = |text: &str| Some(Form::Regex(text.to_owned()));
        let request = TokenRequest { form: form("a+"), ..wanted(vec![1, 2], 6) };
        let (said, _) = tokens(&host, request.clone()).await;
        assert!(said.len() == 6 && said.iter().all(|token| *token == said[0]), "{said:?}");
        let refused = host.begin(TokenRequest { form: form("[a"), ..request }).await.err().unwrap();
        assert!(refused.of_request && refused.message.contains("unclosed"), "{refused}");
        host.stop();
    }
}
