//! A server's life: it listens, serves, and stops in an orderly way.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use forerun_decode::SpecialTokens;
use forerun_grammar::GrammarEnv;
use hyper::server::conn::http1::Builder;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::Instant;

use crate::api;
use crate::metrics::Metrics;
use crate::state::{Engine, Front, ServeConfig, State};
use crate::worker::{CacheWatch, Worker};

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
    address: SocketAddr,
    front: Arc<Front>,
    stop: watch::Sender<u32>,
    /// Takes connections until it is stopped.
    serving: tokio::task::JoinHandle<()>,
}

impl Server {
    /// Listens on an address; port 0 takes a free one. Until it runs, whoever asks is told that the
    /// model is being loaded.
    ///
    /// # Errors
    /// Where that cannot be done.
    pub fn listen(address: SocketAddr, config: ServeConfig) -> Result<Self, ServeError> {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).thread_name("http").enable_all().build();
        let runtime = runtime.map_err(ServeError::Threads)?;
        let listener = runtime.block_on(TcpListener::bind(address));
        let listener = listener.map_err(|error| ServeError::Listen { address, error })?;
        let address = listener.local_addr().unwrap_or(address);
        let (stop, stopped) = watch::channel(0);
        let front = Arc::new(Front { config, state: OnceLock::new() });
        let serving = runtime.spawn(serve(listener, Arc::clone(&front), stopped));
        Ok(Self { runtime, address, front, stop, serving })
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

    /// Serves with this engine until it is stopped.
    ///
    /// # Errors
    /// Where the vocabulary cannot be used for grammars.
    pub fn run(self, engine: Engine) -> Result<(), ServeError> {
        let Self { runtime, front, serving, .. } = self;
        let (state, thread) = start(engine, front.config.clone(), None)?;
        let abort = Arc::clone(&state.abort);
        let _ = front.state.set(Arc::new(state));
        tracing::info!("ready");
        let served = runtime.block_on(serving);
        // Dropping these drops the last sender of jobs, and with it the engine's thread ends.
        drop(front);
        runtime.shutdown_timeout(Duration::from_secs(1));
        abort.store(true, Ordering::Relaxed);
        if thread.join().is_err() || served.is_err() {
            tracing::error!("a thread panicked");
        }
        Ok(())
    }
}

/// Starts the thread that owns the engine; gives what requests to it share.
pub(crate) fn start(
    engine: Engine,
    config: ServeConfig,
    watch: Option<Box<dyn CacheWatch>>,
) -> Result<(State, JoinHandle<()>), ServeError> {
    let grammar = GrammarEnv::new(&*engine.tokenizer)
        .map_err(|error| ServeError::Grammar(error.to_string()))?;
    let target = engine.decoder.target();
    let (context_len, slot_count) = (target.context_len(), target.slot_count());
    let paths_max = target.paths_max();
    let metrics = Arc::new(Metrics::new(&engine.model.names[0], slot_count * context_len));
    let places = slot_count.saturating_add(config.queue_max);
    let places = u32::try_from(places).unwrap_or(u32::MAX);
    let (sender, jobs) = mpsc::channel(places as usize);
    let worker = Worker::new(engine.decoder, engine.controller, Arc::clone(&metrics), jobs);
    let worker = worker.watched(watch);
    let specials = match config.parse_special {
        true => SpecialTokens::default(),
        false => SpecialTokens::of(&*engine.tokenizer),
    };
    let state = State {
        context_len,
        slot_count,
        paths_max,
        tokenizer: engine.tokenizer,
        specials,
        template: engine.template,
        template_source: engine.template_source,
        grammar,
        sampling: engine.sampling,
        drafts: engine.drafts,
        model: engine.model,
        metrics,
        jobs: sender,
        places: Arc::new(Semaphore::new(places as usize)),
        place_count: places,
        stopping: false.into(),
        abort: worker.abort(),
        config,
    };
    let thread = std::thread::Builder::new().name("engine".to_owned());
    let thread = thread.spawn(move || worker.run()).map_err(ServeError::Threads)?;
    Ok((state, thread))
}

/// Serves connections until told to stop and all texts have ended, then lets connections end.
async fn serve(listener: TcpListener, front: Arc<Front>, mut stopped: watch::Receiver<u32>) {
    let connections = GracefulShutdown::new();
    let over = tokio::select! {
        () = accept(&listener, &front, &connections) => Instant::now(),
        over = drained(&front, &mut stopped) => over,
    };
    drop(listener);
    // A slow client may still read what was made for it.
    let over = over.max(Instant::now() + LAST_WORDS);
    tokio::select! {
        () = connections.shutdown() => {}
        () = tokio::time::sleep_until(over) => {}
        _ = stopped.changed() => {}
    }
}

/// Takes connections; also while texts come to their end, so that whoever asks is told so.
async fn accept(listener: &TcpListener, front: &Arc<Front>, connections: &GracefulShutdown) {
    let router = api::router(Arc::clone(front));
    let mut builder = Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(front.config.read_timeout);
    for number in 0.. {
        let (stream, _) = match listener.accept().await {
            Ok(accepted) => accepted,
            // Too many files are open, or the client is gone already: the next may do better.
            Err(error) => {
                tracing::warn!(%error, "a connection could not be taken");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let router = router.clone().layer(axum::Extension(api::Connection(number)));
        let service = TowerToHyperService::new(router);
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        let watched = connections.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = watched.await {
                tracing::debug!(%error, "a connection broke");
            }
        });
    }
}

/// Ends when the server was told to stop, and its texts have ended or were broken off. Gives until
/// when all may take.
async fn drained(front: &Front, stopped: &mut watch::Receiver<u32>) -> Instant {
    let _ = stopped.changed().await;
    let grace = front.config.grace;
    let over = Instant::now() + grace;
    let Some(state) = front.state.get() else { return over };
    state.stopping.store(true, Ordering::Relaxed);
    tracing::info!(seconds = grace.as_secs(), "stopping: texts may end");
    tokio::select! {
        () = state.idle() => return over,
        () = tokio::time::sleep_until(over) => {}
        _ = stopped.changed() => {}
    }
    tracing::info!("stopping: texts are broken off");
    state.abort.store(true, Ordering::Relaxed);
    let _ = tokio::time::timeout(LAST_WORDS, state.idle()).await;
    Instant::now()
}
