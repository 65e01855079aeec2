//! A server's life: it listens, serves, and stops in an orderly way.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use forerun_decode::SpecialTokens;
use forerun_grammar::GrammarEnv;
use hyper::server::conn::http1::Builder;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::Instant;

use crate::admission::Places;
use crate::api;
use crate::forms::Forms;
use crate::metrics::Metrics;
use crate::socket::Socket;
use crate::state::{Engine, Front, Jobs, ServeConfig, State};
use crate::worker::{CacheWatch, Worker};

/// Once texts were broken off, how long their clients have to read that.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Once connections are closed, how long what was begun for them may go on.
const LAST_WORK: Duration = Duration::from_secs(1);

/// Threads for what takes a while: rendering, tokenization, the masks of resumed answers.
const BLOCKING_MAX: usize = 8;

/// Most bytes of a request's head, and of a response that wait to be written.
const BUFFER_MAX: usize = 64 << 10;

/// What a client beyond the most gets, in the words of other errors.
const TOO_MANY: &str = "{\"error\":{\"message\":\"there are too many connections: try again \
                        later\",\"type\":\"server_error\",\"param\":null,\"code\":\"too_many_connections\"}}";

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
        let runtime = runtime.worker_threads(2).max_blocking_threads(BLOCKING_MAX);
        let runtime = runtime.thread_name("http").enable_all().build();
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

    /// Serves with this engine until it is stopped. The flag, if there is one, is set to break off a
    /// pass of the engine that nobody waits for any more.
    ///
    /// # Errors
    /// Where the vocabulary cannot be used for grammars.
    pub fn run(self, engine: Engine, interrupt: Option<Arc<AtomicBool>>) -> Result<(), ServeError> {
        let Self { runtime, address, front, serving, .. } = self;
        let (state, thread) = start(engine, front.config.clone(), None)?;
        let state = Arc::new(state);
        let _ = front.state.set(Arc::clone(&state));
        tracing::info!(url = %url(address), "ready");
        let served = runtime.block_on(serving);
        // Requests in the making may hold the state for longer; the engine's thread does not wait for
        // them.
        state.abort.store(true, Ordering::Relaxed);
        state.jobs.close();
        if let Some(interrupt) = interrupt {
            interrupt.store(true, Ordering::Relaxed);
        }
        runtime.shutdown_timeout(LAST_WORK);
        if thread.join().is_err() || served.is_err() {
            tracing::error!("a thread panicked");
        }
        Ok(())
    }
}

/// A link to open on this machine.
fn url(address: SocketAddr) -> String {
    let mut address = address;
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    format!("http://{address}")
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
    // A key has as many places of its own as there are slots, so that it can always use those.
    let reserved = u32::try_from(slot_count).unwrap_or(u32::MAX);
    let places = Places::new(places, config.api_keys.len(), reserved);
    let (sender, jobs) = mpsc::channel(places.len());
    let worker = Worker::new(engine.decoder, engine.controller, Arc::clone(&metrics), jobs);
    let worker = worker.watched(watch);
    let specials = match config.parse_special {
        true => SpecialTokens::default(),
        false => SpecialTokens::of(&*engine.tokenizer),
    };
    let forms = Forms::start(&grammar, Arc::clone(&metrics)).map_err(ServeError::Threads)?;
    let state = State {
        context_len,
        slot_count,
        paths_max,
        tokenizer: engine.tokenizer,
        specials,
        template: engine.template,
        template_source: engine.template_source,
        forms,
        sampling: engine.sampling,
        drafts: engine.drafts,
        model: engine.model,
        metrics,
        jobs: Jobs::new(sender),
        places,
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
    let config = &front.config;
    // The time to read a head includes what a connection is idle before it.
    builder.timer(TokioTimer::new()).header_read_timeout(config.read_timeout);
    builder.max_buf_size(BUFFER_MAX);
    let places = Arc::new(Semaphore::new(config.connections_max.min(Semaphore::MAX_PERMITS)));
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
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            refuse(&stream);
            continue;
        };
        let socket = TokioIo::new(Socket::of(stream, config.write_timeout));
        let router = router.clone().layer(axum::Extension(api::Connection(number)));
        let service = TowerToHyperService::new(router);
        let connection = connections.watch(builder.serve_connection(socket, service));
        tokio::spawn(hold(connection, place));
    }
}

/// Serves a connection, which has its place until it ends.
async fn hold(connection: impl Future<Output = hyper::Result<()>>, place: OwnedSemaphorePermit) {
    if let Err(error) = connection.await {
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        tracing::debug!(%error, cause, "a connection broke");
    }
    drop(place);
}

/// Tells a client that there are too many, as far as it takes that at once.
fn refuse(stream: &TcpStream) {
    let length = TOO_MANY.len();
    let response = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
         connection: close\r\ncontent-length: {length}\r\n\r\n{TOO_MANY}"
    );
    let _ = stream.try_write(response.as_bytes());
    tracing::debug!("there are too many connections (--max-connections)");
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
