//! Token sequences for front ends other than HTTP, which bring their own protocol and tokenization.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use forerun_decode::{Finish, Token, TokenLogprob};
use forerun_grammar::Form;

use crate::config::{Engine, HostConfig};
use crate::error::{RequestError, ServeError};
use crate::prepare::{RequestParameters, SamplingParameters};
use crate::request::Client;
use crate::response::ResponseStream;
use crate::service::Service;
use crate::worker::CacheWatch;

/// A request for one sequence. What is `None` has the engine's default.
#[derive(Debug, Clone, Default)]
pub struct TokenRequest {
    /// The prompt. It may end with the beginning of an output: with a seed, which chooses the coupled
    /// rule, the rest is what it would have been.
    pub prompt: Vec<u32>,
    /// Most tokens of the output.
    pub max_tokens: Option<u32>,
    /// Divides the logits; 0 takes the likeliest token.
    pub temperature: Option<f32>,
    /// Keeps the fewest likeliest tokens whose probabilities add up to this.
    pub top_p: Option<f32>,
    /// Keeps this many of the likeliest tokens; 0 or -1 keeps all.
    pub top_k: Option<i32>,
    /// Keeps tokens at least this many times as probable as the likeliest.
    pub min_p: Option<f32>,
    /// Subtracted from the logit of a token that occurred before.
    pub presence_penalty: Option<f32>,
    /// Subtracted once for each time the token occurred before.
    pub frequency_penalty: Option<f32>,
    /// Divides the logit of a token that occurred before.
    pub repeat_penalty: Option<f32>,
    /// Determines the output.
    pub seed: Option<i64>,
    /// Whether end tokens are forbidden.
    pub ignore_eos: bool,
    /// Whether to return log-probabilities, and of how many of the likeliest tokens beside.
    pub logprobs: Option<u32>,
    /// What the output is constrained to.
    pub form: Option<Form>,
}

impl TokenRequest {
    fn into_parameters(self) -> RequestParameters {
        let prompt = self.prompt.into_iter().map(Token).collect();
        RequestParameters {
            max_tokens: self.max_tokens,
            logprobs: self.logprobs,
            form: self.form,
            seed: self.seed,
            sampling: SamplingParameters {
                temperature: self.temperature,
                top_p: self.top_p,
                top_k: self.top_k,
                min_p: self.min_p,
                presence_penalty: self.presence_penalty,
                frequency_penalty: self.frequency_penalty,
                repeat_penalty: self.repeat_penalty,
                ignore_eos: self.ignore_eos,
                ..SamplingParameters::default()
            },
            ..RequestParameters::new(prompt)
        }
    }
}

/// The tokens that a round committed.
#[derive(Debug, Clone)]
pub struct TokenChunk {
    /// The tokens, an end token included.
    pub tokens: Vec<u32>,
    /// Their log-probabilities, if the request wants them.
    pub logprobs: Vec<TokenLogprob>,
    /// Why the sequence finished, once it has.
    pub finish: Option<Finish>,
}

/// Why a request is rejected or fails.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct HostError {
    /// What is wrong, and what to do.
    pub message: String,
    /// Whether the request is at fault; otherwise it may be sent again.
    pub of_request: bool,
}

impl From<RequestError> for HostError {
    fn from(error: RequestError) -> Self {
        Self { message: error.to_string(), of_request: error.is_of_request() }
    }
}

/// How busy a host is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HostLoad {
    /// Sequences being decoded.
    pub running: usize,
    /// Sequences that wait.
    pub waiting: usize,
    /// Tokens of the KV cache that these sequences use.
    pub cache_used_len: usize,
    /// Tokens that the KV cache holds.
    pub cache_len: usize,
    /// Share of prompt tokens that were in the prefix cache.
    pub hit_rate: f64,
}

impl HostLoad {
    /// Sequences that have not ended.
    pub fn unfinished(&self) -> usize {
        self.running + self.waiting
    }
}

/// An engine on a thread of its own, which ends with the host and its last sequence.
pub struct Host {
    service: Service,
    thread: JoinHandle<()>,
}

impl Host {
    /// Starts the thread. The watch is told what the KV cache holds.
    ///
    /// # Errors
    /// If the vocabulary cannot be used for grammars, or a thread cannot be started.
    pub fn start(
        engine: Engine,
        config: HostConfig,
        watch: Option<Box<dyn CacheWatch>>,
    ) -> Result<Self, ServeError> {
        let (service, thread) = Service::start(engine, config, Arc::default(), watch)?;
        Ok(Self { service, thread })
    }

    /// Begins a sequence. Dropping the stream cancels it.
    ///
    /// # Errors
    /// If a parameter is not supported, or the queue is full.
    pub async fn begin(&self, request: TokenRequest) -> Result<TokenStream, HostError> {
        let admitted = self.service.admit(Client::Host, 1, 1)?;
        let request = self.service.prepare(admitted, request.into_parameters())?;
        Ok(TokenStream { response: ResponseStream::begin(&self.service, request).await? })
    }

    /// How busy it is.
    pub fn load(&self) -> HostLoad {
        let levels = self.service.metrics.levels();
        let count = |level: i64| usize::try_from(level).unwrap_or(0);
        HostLoad {
            running: count(levels.running),
            waiting: count(levels.waiting),
            cache_used_len: count(levels.held),
            cache_len: self.service.slot_count * self.service.context_len,
            hit_rate: levels.hit_rate,
        }
    }

    /// The metrics, in Prometheus' text format.
    pub fn metrics(&self) -> String {
        self.service.metrics.text()
    }

    /// Ends all sequences and waits until the engine is released.
    pub fn stop(self) {
        let Self { service, thread } = self;
        service.abort.store(true, Ordering::Relaxed);
        if let Some(recorder) = &service.recorder {
            recorder.flush();
        }
        // The thread ends once nobody can send it a sequence.
        drop(service);
        if thread.join().is_err() {
            tracing::error!("the engine's thread panicked");
        }
    }

    /// Tokens of context of a sequence.
    pub fn context_len(&self) -> usize {
        self.service.context_len
    }

    /// Sequences that are decoded in one batch.
    pub fn slot_count(&self) -> usize {
        self.service.slot_count
    }
}

/// A sequence as it is decoded.
pub struct TokenStream {
    response: ResponseStream,
}

impl TokenStream {
    /// Returns the tokens of the next round, and `None` once the sequence has finished.
    pub async fn next(&mut self) -> Option<Result<TokenChunk, HostError>> {
        let progress = match self.response.next().await? {
            Ok(progress) => progress,
            Err(error) => return Some(Err(error.into())),
        };
        let tokens = progress.pieces.iter().map(|piece| piece.token.0).collect();
        let logprobs = progress.pieces.into_iter().filter_map(|piece| piece.logprob).collect();
        Some(Ok(TokenChunk { tokens, logprobs, finish: progress.finish }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

    use std::sync::mpsc;

    use forerun_decode::Slot;

    use super::*;
    use crate::fixtures::{config, engine};

    /// Says what slots hold.
    struct Heard(mpsc::Sender<(Slot, usize)>);

    impl CacheWatch for Heard {
        fn holds(&mut self, slot: Slot, tokens: &[Token]) {
            let _ = self.0.send((slot, tokens.len()));
        }
    }

    fn host(watch: Option<Box<dyn CacheWatch>>) -> Host {
        Host::start(engine(), config(4), watch).unwrap()
    }

    fn request(prompt: Vec<u32>, max_tokens: u32) -> TokenRequest {
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
    async fn a_longer_prompt_with_the_same_seed_continues_as_the_sequence_would_have() {
        let (one, other) = (host(None), host(None));
        let (whole, chunks) = tokens(&one, request(vec![0, 1, 2], 40)).await;
        assert!(whole.len() == 40 && chunks < 40, "several tokens a chunk: {chunks}");
        for cut in [1, 7, 39] {
            let prompt = [&[0, 1, 2], &whole[..cut]].concat();
            let rest = tokens(&other, request(prompt, 40 - u32::try_from(cut).unwrap())).await.0;
            assert_eq!(rest, whole[cut..], "after {cut}");
        }
        one.stop();
        other.stop();
    }

    #[tokio::test]
    async fn a_watch_is_told_what_the_cache_holds() {
        let (sender, heard) = mpsc::channel();
        let host = host(Some(Box::new(Heard(sender))));
        tokens(&host, request(vec![0, 1, 2, 3], 20)).await;
        let lens: Vec<usize> = heard.try_iter().map(|(_, len)| len).collect();
        assert!(lens.iter().max() >= Some(&20) && lens.is_sorted(), "{lens:?}");
        host.stop();
    }

    #[tokio::test]
    async fn errors_say_whether_the_request_is_at_fault() {
        let host = host(None);
        for request in [request(vec![], 4), request(vec![99], 4)] {
            let refused = host.begin(request).await.err().unwrap();
            assert!(refused.of_request, "{refused}");
        }
        host.stop();
    }

    #[tokio::test]
    async fn a_request_that_is_not_admitted_compiles_nothing() {
        let host = Host::start(engine(), config(0), None).unwrap();
        let all = host.service.admission.shared_len();
        let others = host.service.admit(Client::Host, all, 1).unwrap();
        let form = Some(Form::Regex("a+".to_owned()));
        let request = TokenRequest { form, ..request(vec![0, 1], 4) };
        let refused = host.begin(request.clone()).await.err().unwrap();
        assert!(!refused.of_request && refused.message.contains("queue"), "{refused}");
        let compiled = "forerun:grammar_cache_queries_total{model_name=\"toy\"}";
        assert!(host.metrics().contains(&format!("{compiled} 0")));
        drop(others);
        assert!(host.begin(request).await.is_ok());
        assert!(host.metrics().contains(&format!("{compiled} 1")));
        host.stop();
    }

    #[tokio::test]
    async fn output_is_constrained_to_the_form_and_a_wrong_form_is_rejected_by_its_reason() {
        let host = host(None);
        let form = |text: &str| Some(Form::Regex(text.to_owned()));
        let request = TokenRequest { form: form("a+"), ..request(vec![1, 2], 6) };
        let (output, _) = tokens(&host, request.clone()).await;
        assert!(output.len() == 6 && output.iter().all(|it| *it == output[0]), "{output:?}");
        let refused = host.begin(TokenRequest { form: form("[a"), ..request }).await.err().unwrap();
        assert!(refused.of_request && refused.message.contains("unclosed"), "{refused}");
        host.stop();
    }
}
