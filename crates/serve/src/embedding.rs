//! Embeddings and scores: a model beside the target, on a thread of its own.
//!
//! Requests take turns pass by pass, so a long one delays a short one by a pass of its own, not by
//! all of them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use forerun_decode::{DecodeError, Embedder, EngineError, Token};
use tokio::sync::oneshot;

use crate::error::{Failure, RequestError, ServeError};

/// A model that embeds texts, and what it is.
pub struct EmbeddingModel {
    /// The name of its file, which is its name in requests and responses.
    pub name: String,
    /// The model.
    pub embedder: Box<dyn Embedder>,
}

/// What is to be embedded, or scored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Input {
    Text(String),
    Tokens(Vec<u32>),
    Pair { query: Arc<str>, document: String },
}

/// What the model made of an input.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Embedded {
    pub(crate) row: Vec<f32>,
    /// Tokens of the input.
    pub(crate) len: usize,
}

type Reply = oneshot::Sender<Result<Vec<Embedded>, RequestError>>;

/// The inputs of a request.
struct Job {
    inputs: Vec<Input>,
    /// The field of the request that has them.
    field: &'static str,
    reply: Reply,
}

/// Sends requests to the model's thread.
pub(crate) struct Embeddings {
    pub(crate) name: String,
    pub(crate) ranks: bool,
    pub(crate) row_len: usize,
    jobs: Mutex<Option<Sender<Job>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Embeddings {
    /// Starts the thread. While the flag is set, requests fail.
    pub(crate) fn start(model: EmbeddingModel, abort: Arc<AtomicBool>) -> Result<Self, ServeError> {
        let EmbeddingModel { name, embedder } = model;
        let (ranks, row_len) = (embedder.ranks(), embedder.row_len());
        let (jobs, received) = channel();
        let worker = Worker { embedder, jobs: received, begun: VecDeque::new(), abort };
        let thread = std::thread::Builder::new().name("embedder".to_owned());
        let thread = thread.spawn(move || worker.run()).map_err(ServeError::Threads)?;
        let (jobs, thread) = (Mutex::new(Some(jobs)), Mutex::new(Some(thread)));
        Ok(Self { name, ranks, row_len, jobs, thread })
    }

    /// Waits until all that the thread was sent has ended, and the thread with it.
    pub(crate) fn stop(&self) {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).take();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the embedding model's thread panicked");
        }
    }

    /// Embeds or scores the inputs of a request, which are in this field of it. Dropping the future
    /// cancels what is left of it.
    pub(crate) async fn embed(
        &self,
        inputs: Vec<Input>,
        field: &'static str,
    ) -> Result<Vec<Embedded>, RequestError> {
        let (reply, embedded) = oneshot::channel();
        let job = Job { inputs, field, reply };
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let sent = jobs.is_some_and(|jobs| jobs.send(job).is_ok());
        let gone = RequestError::Internal("the embedding model has stopped");
        if !sent {
            return Err(gone);
        }
        embedded.await.unwrap_or(Err(gone))
    }
}

/// A request whose texts are tokenized.
struct Begun {
    texts: Vec<Vec<Token>>,
    field: &'static str,
    embedded: Vec<Embedded>,
    reply: Reply,
}

struct Worker {
    embedder: Box<dyn Embedder>,
    jobs: Receiver<Job>,
    begun: VecDeque<Begun>,
    abort: Arc<AtomicBool>,
}

impl Worker {
    /// Runs until nobody can send anything and all is done.
    fn run(mut self) {
        loop {
            if self.begun.is_empty() {
                let Ok(job) = self.jobs.recv() else { return };
                self.begin(job);
            }
            while let Ok(job) = self.jobs.try_recv() {
                self.begin(job);
            }
            if let Some(begun) = self.begun.pop_front() {
                self.pass(begun);
            }
        }
    }

    fn begin(&mut self, job: Job) {
        let Job { inputs, field, reply } = job;
        let texts = inputs.iter().map(|input| self.tokens(input, field));
        match texts.collect::<Result<Vec<_>, _>>() {
            Ok(texts) => self.begun.push_back(Begun { texts, field, embedded: Vec::new(), reply }),
            // The client may have left, here and below.
            Err(error) => drop(reply.send(Err(error))),
        }
    }

    fn tokens(&self, input: &Input, field: &str) -> Result<Vec<Token>, RequestError> {
        let wrong = |message: String| RequestError::parameter(field, message);
        let tokens = match input {
            Input::Text(text) => self.embedder.tokenize(text),
            Input::Tokens(ids) => Ok(ids.iter().map(|id| Token(*id)).collect()),
            Input::Pair { query, document } => self.embedder.tokenize_pair(query, document),
        };
        let tokens = tokens.map_err(|error| wrong(error.to_string()))?;
        let (len, most) = (tokens.len(), self.embedder.text_len());
        match len {
            0 => Err(wrong("an input has no tokens: leave it out".to_owned())),
            _ if len > most => Err(wrong(format!(
                "an input has {len} tokens, and this embedding model reads {most}: shorten it"
            ))),
            _ => Ok(tokens),
        }
    }

    /// Runs a pass for a request, which is then done or waits for its next turn.
    fn pass(&mut self, mut begun: Begun) {
        if begun.reply.is_closed() {
            return;
        }
        if self.abort.load(Ordering::Relaxed) {
            drop(begun.reply.send(Err(Failure::Stopping.into())));
            return;
        }
        let left = &begun.texts[begun.embedded.len()..];
        match self.embedder.embed(left) {
            Ok(rows) => {
                let rows = rows.into_iter().zip(left);
                let rows = rows.map(|(row, text)| Embedded { row, len: text.len() });
                begun.embedded.extend(rows.collect::<Vec<_>>());
            }
            Err(error) => {
                let error = match error {
                    EngineError::Token { .. } => RequestError::parameter(begun.field, error),
                    error => Failure::Decode(DecodeError::Engine(error)).into(),
                };
                drop(begun.reply.send(Err(error)));
                return;
            }
        }
        match begun.embedded.len() == begun.texts.len() {
            true => drop(begun.reply.send(Ok(begun.embedded))),
            false => self.begun.push_back(begun),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

    use super::*;
    use crate::fixtures::Counting;

    fn start(abort: bool) -> Embeddings {
        let model =
            EmbeddingModel { name: "toy".to_owned(), embedder: Box::new(Counting::default()) };
        Embeddings::start(model, Arc::new(abort.into())).unwrap()
    }

    fn texts(texts: &[&str]) -> Vec<Input> {
        texts.iter().map(|text| Input::Text((*text).to_owned())).collect()
    }

    #[tokio::test]
    async fn a_request_of_several_passes_has_its_rows_in_order() {
        let embeddings = start(false);
        let embedded =
            embeddings.embed(texts(&["a", "abc", "ab", "b", "abcd"]), "input").await.unwrap();
        let lens: Vec<usize> = embedded.iter().map(|it| it.len).collect();
        assert_eq!(lens, [1, 3, 2, 1, 4]);
        let sums: Vec<f32> = embedded.iter().map(|it| it.row[0]).collect();
        assert_eq!(sums, [0.0, 3.0, 1.0, 1.0, 6.0]);
        embeddings.stop();
    }

    #[tokio::test]
    async fn requests_take_turns() {
        let embeddings = start(false);
        let all = ["abcd"; 40];
        let (long, short) =
            (embeddings.embed(texts(&all), "input"), embeddings.embed(texts(&["b"]), "input"));
        // The row's second number is that of the pass.
        let (long, short) = tokio::join!(long, short);
        let (long, short) = (long.unwrap(), short.unwrap());
        assert!(short[0].row[1] <= 3.0, "{short:?}");
        assert!(long[39].row[1] >= 20.0);
        embeddings.stop();
    }

    #[tokio::test]
    async fn wrong_inputs_are_refused_and_the_field_is_named() {
        let embeddings = start(false);
        for (wrong, said) in [("", "has no tokens"), ("abcdeabcde", "has 10 tokens")] {
            let error = embeddings.embed(texts(&["a", wrong]), "input").await.unwrap_err();
            let RequestError::Parameter { name, message } = error else { panic!("{error}") };
            assert!(name == "input" && message.contains(said), "{message}");
        }
        let ids = vec![Input::Tokens(vec![99])];
        let error = embeddings.embed(ids, "input").await.unwrap_err();
        assert!(matches!(error, RequestError::Parameter { name, .. } if name == "input"));
        embeddings.stop();
        assert!(embeddings.embed(texts(&["a"]), "input").await.is_err());
    }

    #[tokio::test]
    async fn an_aborted_request_says_so() {
        let embeddings = start(true);
        let error = embeddings.embed(texts(&["a"]), "input").await.unwrap_err();
        assert_eq!(error, Failure::Stopping.into());
        embeddings.stop();
    }
}
