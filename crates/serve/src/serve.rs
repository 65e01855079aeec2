//! The life of a server: it listens, serves, drains and stops.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::server::conn::http1::Builder;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

use crate::api::{self, App};
use crate::config::{Engine, ServeConfig};
use crate::error::ServeError;
use crate::service::Service;
use crate::socket::Socket;
use crate::trace::{Exporter, Tracer};

/// How long clients have to read that their sequences were ended.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How long blocking work may go on once connections are closed.
const LAST_WORK: Duration = Duration::from_secs(1);

/// Threads for blocking work: rendering, tokenization, the masks of resumed responses.
const BLOCKING_MAX: usize = 8;

/// Most bytes of a request's headers, and of a response that wait to be written.
const BUFFER_MAX: usize = 64 << 10;

/// The body of the response to a connection too many, in the form of other errors.
const TOO_MANY: &str = "{\"error\":{\"message\":\"there are too many connections: try again \
                        later\",\"type\":\"server_error\",\"param\":null,\"code\":\"too_many_connections\"}}";

/// A server that listens.
pub struct Server {
    runtime: tokio::runtime::Runtime,
    address: SocketAddr,
    app: Arc<App>,
    stop: watch::Sender<u32>,
    /// Accepts connections until it is stopped.
    serving: tokio::task::JoinHandle<()>,
    /// Sends traces, if requests are traced.
    exporter: Option<Exporter>,
}

impl Server {
    /// Listens on an address; port 0 takes a free one. Until [`Server::run`], requests are answered
    /// with "Loading model".
    ///
    /// # Errors
    /// If it cannot listen there, or threads cannot be started.
    pub fn listen(address: SocketAddr, config: ServeConfig) -> Result<Self, ServeError> {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).max_blocking_threads(BLOCKING_MAX);
        let runtime = runtime.thread_name("http").enable_all().build();
        let runtime = runtime.map_err(ServeError::Threads)?;
        let listener = runtime.block_on(TcpListener::bind(address));
        let listener = listener.map_err(|error| ServeError::Listen { address, error })?;
        let address = listener.local_addr().unwrap_or(address);
        let (stop, stopped) = watch::channel(0);
        let traced = config.traces.clone().map(|traces| (traces, Tracer::new()));
        let (tracer, exporter) = traced.map_or((None, None), |(traces, (tracer, spans))| {
            (Some(tracer), Some(Exporter::start(runtime.handle(), traces, spans)))
        });
        let app = Arc::new(App::new(config, tracer));
        let serving = runtime.spawn(serve(listener, Arc::clone(&app), stopped));
        Ok(Self { runtime, address, app, stop, serving, exporter })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops the server by counting up: at 1 it accepts no more requests and lets sequences finish,
    /// at 2 it ends them.
    pub fn stop(&self) -> watch::Sender<u32> {
        self.stop.clone()
    }

    /// Serves with this engine until it is stopped. The flag, if there is one, is then set to
    /// interrupt a pass of the engine that nobody waits for any more.
    ///
    /// # Errors
    /// If the vocabulary cannot be used for grammars.
    pub fn run(self, engine: Engine, interrupt: Option<Arc<AtomicBool>>) -> Result<(), ServeError> {
        let Self { runtime, address, app, serving, exporter, .. } = self;
        let (host, tenants) = (app.config.host.clone(), Arc::clone(&app.tenants));
        let (service, thread) = Service::start(engine, host, tenants, None)?;
        let service = Arc::new(service);
        let _ = app.service.set(Arc::clone(&service));
        tracing::info!(url = %url(address), "ready");
        let served = runtime.block_on(serving);
        // Requests being prepared may hold the service for longer; the engine's thread does not
        // wait for them.
        service.abort.store(true, Ordering::Relaxed);
        service.worker.close();
        if let Some(interrupt) = interrupt {
            interrupt.store(true, Ordering::Relaxed);
        }
        if let Some(exporter) = exporter {
            runtime.block_on(exporter.stop());
        }
        runtime.shutdown_timeout(LAST_WORK);
        if let Some(embeddings) = &service.embeddings {
            embeddings.stop();
        }
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

/// Serves connections until told to stop and all sequences have ended, then lets connections end.
async fn serve(listener: TcpListener, app: Arc<App>, mut stopped: watch::Receiver<u32>) {
    let connections = GracefulShutdown::new();
    let over = tokio::select! {
        () = accept(&listener, &app, &connections) => Instant::now(),
        over = drained(&app, &mut stopped) => over,
    };
    drop(listener);
    // A slow client may still read the rest of its response.
    let over = over.max(Instant::now() + LAST_WORDS);
    tokio::select! {
        () = connections.shutdown() => {}
        () = tokio::time::sleep_until(over) => {}
        _ = stopped.changed() => {}
    }
}

/// Accepts connections, also while sequences finish, so that new requests are told of the shutdown.
async fn accept(listener: &TcpListener, app: &Arc<App>, connections: &GracefulShutdown) {
    let router = api::router(Arc::clone(app));
    let mut builder = Builder::new();
    let config = &app.config;
    // The time to read headers includes the time that a connection is idle before them.
    builder.timer(TokioTimer::new()).header_read_timeout(config.read_timeout);
    builder.max_buf_size(BUFFER_MAX);
    let permits = Arc::new(Semaphore::new(config.connections_max.min(Semaphore::MAX_PERMITS)));
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
        let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
            refuse(&stream);
            continue;
        };
        let socket = TokioIo::new(Socket::of(stream, config.write_timeout));
        let router = router.clone().layer(axum::Extension(api::Connection(number)));
        let service = TowerToHyperService::new(router);
        let connection = connections.watch(builder.serve_connection(socket, service));
        tokio::spawn(serve_connection(connection, permit));
    }
}

/// Serves a connection, which keeps its permit until it ends.
async fn serve_connection(
    connection: impl Future<Output = hyper::Result<()>>,
    permit: OwnedSemaphorePermit,
) {
    if let Err(error) = connection.await {
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        tracing::debug!(%error, cause, "a connection broke");
    }
    drop(permit);
}

/// Rejects a connection too many, if the socket takes the response at once.
fn refuse(stream: &TcpStream) {
    let length = TOO_MANY.len();
    let response = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
         connection: close\r\ncontent-length: {length}\r\n\r\n{TOO_MANY}"
    );
    let _ = stream.try_write(response.as_bytes());
    tracing::debug!("there are too many connections (--max-connections)");
}

/// Waits until the server is told to stop and its sequences have ended. Returns until when
/// connections may go on.
async fn drained(app: &App, stopped: &mut watch::Receiver<u32>) -> Instant {
    let _ = stopped.changed().await;
    let grace = app.config.grace;
    let over = Instant::now() + grace;
    let Some(service) = app.service.get() else { return over };
    service.stopping.store(true, Ordering::Relaxed);
    tracing::info!(seconds = grace.as_secs(), "stopping: sequences may finish");
    tokio::select! {
        () = service.idle() => return over,
        () = tokio::time::sleep_until(over) => {}
        _ = stopped.changed() => {}
    }
    tracing::info!("stopping: sequences are ended");
    service.abort.store(true, Ordering::Relaxed);
    let _ = tokio::time::timeout(LAST_WORDS, service.idle()).await;
    Instant::now()
}
