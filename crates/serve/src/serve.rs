//! A server's life: it listens, serves, and stops in an orderly way.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forerun_grammar::GrammarEnv;
use hyper::server::conn::http1::Builder;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, watch};

use crate::api;
use crate::metrics::Metrics;
use crate::state::{Engine, ServeConfig, State};
use crate::worker::Worker;

/// Once texts were broken off, how long their clients have to read that.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The vocabulary cannot be used for grammars.
    #[error("the vocabulary cannot be used for grammars: {0}")]
    Grammar(String),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        error: std::io::Error,
    },
    /// The runtime could not be made.
    #[error("cannot start threads: {0}")]
    Threads(std::io::Error),
}

/// A server that listens.
pub struct Server {
    runtime: tokio::runtime::Runtime,
    listener: TcpListener,
    address: SocketAddr,
    engine: Engine,
    config: ServeConfig,
    stop: watch::Sender<u32>,
}

impl Server {
    /// Listens on an address; port 0 takes a free one.
    ///
    /// # Errors
    /// Where that cannot be done.
    pub fn listen(
        address: SocketAddr,
        engine: Engine,
        config: ServeConfig,
    ) -> Result<Self, ServeError> {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).thread_name("http").enable_all().build();
        let runtime = runtime.map_err(ServeError::Threads)?;
        let listener = runtime.block_on(TcpListener::bind(address));
        let listener = listener.map_err(|error| ServeError::Listen { address, error })?;
        let address = listener.local_addr().unwrap_or(address);
        let (stop, _) = watch::channel(0);
        Ok(Self { runtime, listener, address, engine, config, stop })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Counts up when it is to stop: at once it takes no more requests and lets texts end; at twice
    /// it breaks them off.
    pub fn stop(&self) -> watch::Sender<u32> {
        self.stop.clone()
    }

    /// Serves until it is stopped.
    ///
    /// # Errors
    /// Where the vocabulary cannot be used for grammars.
    pub fn run(self) -> Result<(), ServeError> {
        let Self { runtime, listener, engine, config, stop, .. } = self;
        let grammar = GrammarEnv::new(&*engine.tokenizer)
            .map_err(|error| ServeError::Grammar(error.to_string()))?;
        let metrics = Arc::new(Metrics::new(&engine.model.names[0]));
        let target = engine.decoder.target();
        let places = (target.slot_count() + config.queue_max).min(Semaphore::MAX_PERMITS);
        let (sender, jobs) = mpsc::channel(places);
        let state = Arc::new(State {
            context_len: target.context_len(),
            slot_count: target.slot_count(),
            paths_max: target.paths_max(),
            tokenizer: Arc::clone(&engine.tokenizer),
            template: engine.template,
            template_source: engine.template_source,
            grammar,
            sampling: engine.sampling,
            drafts: engine.drafts,
            model: engine.model,
            metrics: Arc::clone(&metrics),
            jobs: sender,
            places: Arc::new(Semaphore::new(places)),
            stopping: false.into(),
            config,
        });
        let worker =
            Worker::new(engine.decoder, engine.controller, engine.tokenizer, metrics, jobs);
        let abort = worker.abort();
        let thread = std::thread::Builder::new().name("engine".to_owned());
        let thread = thread.spawn(move || worker.run()).map_err(ServeError::Threads)?;
        let stopped = stop.subscribe();
        runtime.block_on(serve(listener, state, stopped, || abort.store(true, Ordering::Relaxed)));
        // Dropping the runtime drops the last sender of jobs, and with it the engine's thread ends.
        runtime.shutdown_timeout(Duration::from_secs(1));
        abort.store(true, Ordering::Relaxed);
        if thread.join().is_err() {
            tracing::error!("the engine's thread panicked");
        }
        Ok(())
    }
}

/// Serves connections until told to stop, then lets them end.
async fn serve(
    listener: TcpListener,
    state: Arc<State>,
    mut stopped: watch::Receiver<u32>,
    break_off: impl Fn(),
) {
    let router = api::router(Arc::clone(&state));
    let graceful = GracefulShutdown::new();
    let mut builder = Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(state.config.read_timeout);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.changed() => break,
        };
        let (stream, _) = match accepted {
            Ok(accepted) => accepted,
            // Too many files are open, or the client is gone already: the next may do better.
            Err(error) => {
                tracing::warn!(%error, "a connection could not be taken");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let service = TowerToHyperService::new(router.clone());
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        let watched = graceful.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = watched.await {
                tracing::debug!(%error, "a connection broke");
            }
        });
    }
    drop(listener);
    state.stopping.store(true, Ordering::Relaxed);
    let grace = state.config.grace;
    tracing::info!(seconds = grace.as_secs(), "stopping: texts may end");
    let ended = graceful.shutdown();
    tokio::pin!(ended);
    tokio::select! {
        () = &mut ended => return,
        () = tokio::time::sleep(grace) => {}
        _ = stopped.changed() => {}
    }
    tracing::info!("stopping: texts are broken off");
    break_off();
    let _ = tokio::time::timeout(LAST_WORDS, ended).await;
}
