//! Compiled forms: JSON schemas and grammars are compiled on few threads of their own, within a time,
//! and kept for the next request that has the same.
//!
//! The library that compiles cannot be interrupted. So what it is given is limited (by
//! `forerun-grammar`), few compilations run at once, few wait, and nothing else waits for the threads
//! that run them: they hold neither the state nor a place in the queue.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use forerun_grammar::{CompiledForm, Form, GrammarEnv, GrammarError, give_way};
use tokio::sync::oneshot;

use crate::api::error::ApiError;
use crate::metrics::Metrics;

/// Most compilations at once; half of the processors if those are fewer.
const THREADS_MAX: usize = 2;

/// Most forms that wait for one of these threads.
const WAITING_MAX: usize = 16;

/// How long a request waits for its form.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Most compiled forms that are kept, and most bytes of them.
const KEPT_MAX: usize = 64;
const KEPT_BYTES_MAX: usize = 64 << 20;

/// Compiles forms, and keeps them.
pub(crate) struct Forms {
    shared: Arc<Shared>,
    work: SyncSender<Work>,
}

/// What the threads share with those who ask.
struct Shared {
    kept: Mutex<Kept>,
    metrics: Arc<Metrics>,
}

/// A form to compile.
struct Work {
    key: String,
    form: Form,
    /// Set once it is being compiled.
    begun: Arc<AtomicBool>,
    reply: oneshot::Sender<Result<Arc<CompiledForm>, GrammarError>>,
}

impl Forms {
    /// Starts the threads. They end once this is dropped and they have done what they are at.
    pub(crate) fn start(env: &GrammarEnv, metrics: Arc<Metrics>) -> std::io::Result<Self> {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        Self::with(processors.div_ceil(2).min(THREADS_MAX), metrics, {
            let env = env.clone();
            move |form| env.compile(form)
        })
    }

    fn with(
        threads: usize,
        metrics: Arc<Metrics>,
        compile: impl Fn(&Form) -> Result<CompiledForm, GrammarError> + Clone + Send + 'static,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared { kept: Mutex::default(), metrics });
        let (work, queue) = sync_channel(WAITING_MAX);
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..threads {
            let (shared, queue, compile) =
                (Arc::clone(&shared), Arc::clone(&queue), compile.clone());
            let thread = thread::Builder::new().name("forms".to_owned());
            thread.spawn(move || {
                give_way();
                shared.run(&queue, compile);
            })?;
        }
        Ok(Self { shared, work })
    }

    /// Returns the form compiled. Dropping the future takes it out of the queue.
    pub(crate) async fn get(
        &self,
        form: Form,
        until: Instant,
    ) -> Result<Arc<CompiledForm>, ApiError> {
        let key = form.key();
        let found = self.shared.kept().get(&key);
        self.shared.metrics.looked_up_form(found.is_some());
        if let Some(found) = found {
            return Ok(found);
        }
        let (reply, compiled) = oneshot::channel();
        let begun = Arc::new(AtomicBool::new(false));
        let work = Work { key, form, begun: Arc::clone(&begun), reply };
        self.work.try_send(work).map_err(|error| match error {
            TrySendError::Full(_) => ApiError::forms_busy(),
            TrySendError::Disconnected(_) => ApiError::internal("no thread compiles forms"),
        })?;
        let until = until.min(Instant::now() + WAIT_MAX);
        match tokio::time::timeout_at(until.into(), compiled).await {
            Ok(Ok(compiled)) => compiled.map_err(ApiError::invalid),
            Ok(Err(_)) => Err(ApiError::internal("compiling the form made the server stumble")),
            Err(_) if begun.load(Ordering::Relaxed) => Err(ApiError::invalid(format!(
                "the schema or grammar took longer than {} s to compile: make it smaller",
                WAIT_MAX.as_secs()
            ))),
            Err(_) => Err(ApiError::forms_busy()),
        }
    }
}

impl Shared {
    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compiles what comes, until nobody can send any more.
    fn run(
        &self,
        queue: &Mutex<Receiver<Work>>,
        compile: impl Fn(&Form) -> Result<CompiledForm, GrammarError>,
    ) {
        loop {
            let work = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(Work { key, form, begun, reply }) = work else { return };
            // The client may have left while it waited.
            if reply.is_closed() {
                continue;
            }
            // Another request may have brought the same meanwhile.
            if let Some(kept) = self.kept().get(&key) {
                let _ = reply.send(Ok(kept));
                continue;
            }
            begun.store(true, Ordering::Relaxed);
            let started = Instant::now();
            let compiling = std::panic::AssertUnwindSafe(|| compile(&form));
            // Without a reply, whoever waits is told that something went wrong.
            let Ok(compiled) = std::panic::catch_unwind(compiling) else { continue };
            self.metrics.compiled_form(started.elapsed());
            let compiled = compiled.map(Arc::new);
            if let Ok(compiled) = &compiled {
                self.kept().insert(key, Arc::clone(compiled));
            }
            let _ = reply.send(compiled);
        }
    }
}

/// Compiled forms by key, the one used last at the end.
#[derive(Default)]
struct Kept {
    forms: Vec<(String, Arc<CompiledForm>)>,
    bytes: usize,
}

impl Kept {
    fn get(&mut self, key: &str) -> Option<Arc<CompiledForm>> {
        let at = self.forms.iter().position(|(own, _)| own == key)?;
        let found = self.forms.remove(at);
        let form = Arc::clone(&found.1);
        self.forms.push(found);
        Some(form)
    }

    /// Keeps it, and drops the ones that were not used for longest if there is no room.
    fn insert(&mut self, key: String, form: Arc<CompiledForm>) {
        if self.get(&key).is_some() || size(&key, &form) > KEPT_BYTES_MAX {
            return;
        }
        self.bytes += size(&key, &form);
        self.forms.push((key, form));
        while self.forms.len() > KEPT_MAX || self.bytes > KEPT_BYTES_MAX {
            let (key, form) = self.forms.remove(0);
            self.bytes -= size(&key, &form);
        }
    }
}

fn size(key: &str, form: &CompiledForm) -> usize {
    key.len() + form.bytes()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc;

    use super::*;
    use crate::worker::tests::Letters;

    fn regex(text: impl ToString) -> Form {
        Form::Regex(text.to_string())
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// Forms whose compilation waits for a word each, and says when it begins; and how many were.
    fn slow(threads: usize) -> (Forms, mpsc::Sender<()>, Receiver<Form>, Arc<AtomicUsize>) {
        let env = GrammarEnv::new(&Letters).unwrap();
        let (go, gate) = mpsc::channel();
        let (begin, begun) = mpsc::channel();
        let count = Arc::new(AtomicUsize::new(0));
        let (gate, counted) = (Arc::new(Mutex::new(gate)), Arc::clone(&count));
        let metrics = Arc::new(Metrics::new("toy", 1));
        let forms = Forms::with(threads, metrics, move |form: &Form| {
            begin.send(form.clone()).unwrap();
            gate.lock().unwrap().recv().unwrap();
            counted.fetch_add(1, Ordering::Relaxed);
            env.compile(form)
        });
        (forms.unwrap(), go, begun, count)
    }

    fn metric(forms: &Forms, name: &str) -> String {
        let text = forms.shared.metrics.text();
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.rsplit(' ').next().unwrap().to_owned()
    }

    #[tokio::test]
    async fn the_same_form_is_compiled_once() {
        let (forms, go, begun, count) = slow(1);
        // They are asked for in this order, and both before anything is compiled.
        let (one, other, ()) =
            tokio::join!(forms.get(regex("a+"), later()), forms.get(regex("a+"), later()), async {
                begun.recv().unwrap();
                (0..4).for_each(|_| go.send(()).unwrap());
            });
        let again = forms.get(regex("a+"), later()).await.unwrap();
        assert!(Arc::ptr_eq(&one.unwrap(), &again) && Arc::ptr_eq(&other.unwrap(), &again));
        assert_eq!(count.load(Ordering::Relaxed), 1);
        assert_eq!(metric(&forms, "forerun:grammar_cache_queries_total"), "3");
        assert_eq!(metric(&forms, "forerun:grammar_cache_hits_total"), "1");
        assert_eq!(metric(&forms, "forerun:grammar_compilation_seconds_count"), "1");
    }

    #[tokio::test]
    async fn what_nobody_waits_for_any_more_is_not_compiled() {
        let (forms, go, begun, count) = slow(1);
        let forms = Arc::new(forms);
        let ask = |text: &'static str| {
            let forms = Arc::clone(&forms);
            tokio::spawn(async move { forms.get(regex(text), later()).await.is_ok() })
        };
        let first = ask("a");
        tokio::task::yield_now().await;
        assert_eq!(begun.recv().unwrap(), regex("a"));
        let left = ask("b");
        tokio::task::yield_now().await;
        let last = ask("c");
        tokio::task::yield_now().await;
        left.abort();
        assert!(left.await.is_err());
        (0..3).for_each(|_| go.send(()).unwrap());
        assert!(first.await.unwrap() && last.await.unwrap());
        assert_eq!(begun.recv().unwrap(), regex("c"));
        assert_eq!(count.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn beyond_the_queue_and_the_time_it_says_so() {
        let (forms, go, begun, _) = slow(1);
        let forms = Arc::new(forms);
        let mut asked = Vec::new();
        for count in 0..WAITING_MAX + 2 {
            let forms = Arc::clone(&forms);
            asked.push(tokio::spawn(async move {
                let refused = forms.get(regex(format!("a{{{}}}", count + 1)), later()).await;
                refused.err().unwrap().body_only().error
            }));
            tokio::task::yield_now().await;
            if count == 0 {
                begun.recv().unwrap();
            }
        }
        let before = tokio::time::Instant::now();
        let too_many = asked.pop().unwrap().await.unwrap();
        assert_eq!(too_many.code, Some("busy"), "{}", too_many.message);
        assert_eq!(before.elapsed(), Duration::ZERO, "it did not wait");
        // Time passes once all wait.
        let own = asked.remove(0).await.unwrap();
        assert!(own.message.contains("longer than 10 s"), "{}", own.message);
        for waited in asked {
            assert_eq!(waited.await.unwrap().code, Some("busy"));
        }
        drop(go);
    }

    #[tokio::test]
    async fn a_form_that_makes_the_compiler_panic_fails_alone() {
        let env = GrammarEnv::new(&Letters).unwrap();
        let metrics = Arc::new(Metrics::new("toy", 1));
        let forms = Forms::with(1, metrics, move |form: &Form| {
            assert_ne!(form, &regex("b"), "as a defect of the compiler would");
            env.compile(form)
        });
        let forms = forms.unwrap();
        let failed = forms.get(regex("b"), later()).await.err().unwrap().body_only().error;
        assert!(failed.message.contains("stumble"), "{}", failed.message);
        assert!(forms.get(regex("a"), later()).await.is_ok(), "the thread goes on");
    }

    #[test]
    fn what_was_used_of_late_is_kept() {
        let env = GrammarEnv::new(&Letters).unwrap();
        let form = |text: &str| Arc::new(env.compile(&regex(text)).unwrap());
        let mut kept = Kept::default();
        for count in 0..KEPT_MAX {
            kept.insert(count.to_string(), form("a"));
        }
        assert!(kept.get("0").is_some());
        kept.insert("new".to_owned(), form("a"));
        assert!(kept.get("0").is_some() && kept.get("1").is_none() && kept.get("2").is_some());
        assert_eq!(kept.forms.len(), KEPT_MAX);
        // A key counts too, and one that would leave room for nothing else is not kept.
        kept.insert("x".repeat(KEPT_BYTES_MAX - size("", &form("a"))), form("a"));
        assert_eq!((kept.forms.len(), kept.bytes), (1, KEPT_BYTES_MAX));
        kept.insert("x".repeat(KEPT_BYTES_MAX), form("a"));
        assert_eq!(kept.forms.len(), 1);
        let sum: usize = kept.forms.iter().map(|(key, form)| size(key, form)).sum();
        assert_eq!(kept.bytes, sum);
    }
}
