//! Compiled forms: JSON schemas and grammars are compiled on a few threads of their own, within a
//! time limit, and cached for the next request that has the same.
//!
//! The library that compiles cannot be interrupted. So what it is given is limited (by
//! `forerun-grammar`), few compilations run at once, few wait, and nothing else waits for the threads
//! that run them: they hold neither the service nor a permit.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use forerun_grammar::{CompiledForm, Form, GrammarEnv, GrammarError, give_way};
use tokio::sync::oneshot;

use crate::error::{Failure, RequestError};
use crate::metrics::Metrics;

/// Most compilations at once; half of the processors if those are fewer.
const THREADS_MAX: usize = 2;

/// Most forms that wait for one of these threads.
const WAITING_MAX: usize = 16;

/// How long a request waits for its form.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Most compiled forms in the cache, and most bytes of them.
const CACHED_MAX: usize = 64;
const CACHED_BYTES_MAX: usize = 64 << 20;

/// Compiles forms, and caches them.
pub(crate) struct Forms {
    shared: Arc<Shared>,
    work: SyncSender<Work>,
}

/// What the threads share with requests.
struct Shared {
    cache: Mutex<FormCache>,
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
        let shared = Arc::new(Shared { cache: Mutex::default(), metrics });
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
    ) -> Result<Arc<CompiledForm>, RequestError> {
        let key = form.key();
        let found = self.shared.cache().get(&key);
        self.shared.metrics.looked_up_form(found.is_some());
        if let Some(found) = found {
            return Ok(found);
        }
        let (reply, compiled) = oneshot::channel();
        let begun = Arc::new(AtomicBool::new(false));
        let work = Work { key, form, begun: Arc::clone(&begun), reply };
        self.work.try_send(work).map_err(|error| match error {
            TrySendError::Full(_) => RequestError::CompilersBusy,
            TrySendError::Disconnected(_) => RequestError::Internal("no thread compiles forms"),
        })?;
        let patience = Instant::now() + WAIT_MAX;
        match tokio::time::timeout_at(until.min(patience).into(), compiled).await {
            Ok(Ok(compiled)) => compiled.map_err(|error| RequestError::Form(error.to_string())),
            Ok(Err(_)) => Err(RequestError::Internal("compiling the form made the server stumble")),
            Err(_) if until < patience => Err(Failure::Expired.into()),
            Err(_) if begun.load(Ordering::Relaxed) => Err(RequestError::Form(format!(
                "the schema or grammar took longer than {} s to compile: make it smaller",
                WAIT_MAX.as_secs()
            ))),
            Err(_) => Err(RequestError::CompilersBusy),
        }
    }
}

impl Shared {
    fn cache(&self) -> std::sync::MutexGuard<'_, FormCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
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
            // The client may have left in the meantime.
            if reply.is_closed() {
                continue;
            }
            // Another request may have had the same meanwhile.
            if let Some(cached) = self.cache().get(&key) {
                let _ = reply.send(Ok(cached));
                continue;
            }
            begun.store(true, Ordering::Relaxed);
            let started = Instant::now();
            let compiling = std::panic::AssertUnwindSafe(|| compile(&form));
            // Without a reply, the request fails.
            let Ok(compiled) = std::panic::catch_unwind(compiling) else { continue };
            self.metrics.compiled_form(started.elapsed());
            let compiled = compiled.map(Arc::new);
            if let Ok(compiled) = &compiled {
                self.cache().insert(key, Arc::clone(compiled));
            }
            let _ = reply.send(compiled);
        }
    }
}

/// Compiled forms by key, the most recently used last.
#[derive(Default)]
struct FormCache {
    forms: Vec<(String, Arc<CompiledForm>)>,
    bytes: usize,
}

impl FormCache {
    fn get(&mut self, key: &str) -> Option<Arc<CompiledForm>> {
        let at = self.forms.iter().position(|(own, _)| own == key)?;
        let found = self.forms.remove(at);
        let form = Arc::clone(&found.1);
        self.forms.push(found);
        Some(form)
    }

    /// Adds a form, and drops the least recently used ones if there is no room.
    fn insert(&mut self, key: String, form: Arc<CompiledForm>) {
        if self.get(&key).is_some() || size(&key, &form) > CACHED_BYTES_MAX {
            return;
        }
        self.bytes += size(&key, &form);
        self.forms.push((key, form));
        while self.forms.len() > CACHED_MAX || self.bytes > CACHED_BYTES_MAX {
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
    use crate::fixtures::Letters;

    fn regex(text: impl ToString) -> Form {
        Form::Regex(text.to_string())
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// Forms whose compilation reports that it begins and waits at a gate; and how many were
    /// compiled.
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
        // Both are requested before anything is compiled.
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
    async fn a_form_that_nobody_waits_for_is_not_compiled() {
        let (forms, go, begun, count) = slow(1);
        let forms = Arc::new(forms);
        let request = |text: &'static str| {
            let forms = Arc::clone(&forms);
            tokio::spawn(async move { forms.get(regex(text), later()).await.is_ok() })
        };
        let first = request("a");
        tokio::task::yield_now().await;
        assert_eq!(begun.recv().unwrap(), regex("a"));
        let left = request("b");
        tokio::task::yield_now().await;
        let last = request("c");
        tokio::task::yield_now().await;
        left.abort();
        assert!(left.await.is_err());
        (0..3).for_each(|_| go.send(()).unwrap());
        assert!(first.await.unwrap() && last.await.unwrap());
        assert_eq!(begun.recv().unwrap(), regex("c"));
        assert_eq!(count.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_and_a_compilation_that_takes_too_long_are_reported() {
        let (forms, go, begun, _) = slow(1);
        let forms = Arc::new(forms);
        let mut waiting = Vec::new();
        for count in 0..WAITING_MAX + 2 {
            let forms = Arc::clone(&forms);
            waiting.push(tokio::spawn(async move {
                forms.get(regex(format!("a{{{}}}", count + 1)), later()).await.err().unwrap()
            }));
            tokio::task::yield_now().await;
            if count == 0 {
                begun.recv().unwrap();
            }
        }
        let before = tokio::time::Instant::now();
        assert_eq!(waiting.pop().unwrap().await.unwrap(), RequestError::CompilersBusy);
        assert_eq!(before.elapsed(), Duration::ZERO, "it did not wait");
        // Time passes once all wait.
        let begun = waiting.remove(0).await.unwrap();
        assert!(
            matches!(&begun, RequestError::Form(it) if it.contains("longer than 10 s")),
            "{begun}"
        );
        for waited in waiting {
            assert_eq!(waited.await.unwrap(), RequestError::CompilersBusy);
        }
        assert!(before.elapsed() < 2 * WAIT_MAX, "they waited {:?}", before.elapsed());
        drop(go);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_whose_own_time_passes_first_is_late_and_not_at_fault() {
        let (forms, go, begun, _) = slow(1);
        let forms = Arc::new(forms);
        let soon = Instant::now() + WAIT_MAX / 2;
        let request = |text: &'static str| {
            let forms = Arc::clone(&forms);
            tokio::spawn(async move { forms.get(regex(text), soon).await.err().unwrap() })
        };
        // One is being compiled before time passes, the other waits.
        let one = request("a");
        tokio::task::yield_now().await;
        assert_eq!(begun.recv().unwrap(), regex("a"));
        let other = request("b");
        for late in [one, other] {
            assert_eq!(late.await.unwrap(), RequestError::Failed(Failure::Expired));
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
        let failed = forms.get(regex("b"), later()).await.err().unwrap();
        assert!(failed.to_string().contains("stumble"), "{failed}");
        assert!(forms.get(regex("a"), later()).await.is_ok(), "the thread goes on");
    }

    #[test]
    fn the_most_recently_used_forms_stay_cached() {
        let env = GrammarEnv::new(&Letters).unwrap();
        let form = |text: &str| Arc::new(env.compile(&regex(text)).unwrap());
        let mut cache = FormCache::default();
        for count in 0..CACHED_MAX {
            cache.insert(count.to_string(), form("a"));
        }
        assert!(cache.get("0").is_some());
        cache.insert("new".to_owned(), form("a"));
        assert!(cache.get("0").is_some() && cache.get("1").is_none() && cache.get("2").is_some());
        assert_eq!(cache.forms.len(), CACHED_MAX);
        // A key counts too, and a form larger than the cache is not cached.
        cache.insert("x".repeat(CACHED_BYTES_MAX - size("", &form("a"))), form("a"));
        assert_eq!((cache.forms.len(), cache.bytes), (1, CACHED_BYTES_MAX));
        cache.insert("x".repeat(CACHED_BYTES_MAX), form("a"));
        assert_eq!(cache.forms.len(), 1);
        let sum: usize = cache.forms.iter().map(|(key, form)| size(key, form)).sum();
        assert_eq!(cache.bytes, sum);
    }
}
