//! Sends spans to a collector, in batches. What it does not take is dropped: requests never wait for it.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::{FinishedSpan, TraceConfig, TraceEndpoint, otlp};

/// Most spans that are sent together.
const BATCH_MAX: usize = 256;

/// How long a span waits for others.
const BATCH_WAIT: Duration = Duration::from_secs(1);

/// How long a collector may take.
const SEND_MAX: Duration = Duration::from_secs(10);

/// How long the last spans of a server may take.
const LAST_MAX: Duration = Duration::from_secs(2);

/// The task that sends spans.
pub(crate) struct Exporter {
    task: JoinHandle<()>,
    stop: oneshot::Sender<()>,
}

impl Exporter {
    /// Sends the spans that come.
    pub(crate) fn start(
        runtime: &Handle,
        config: TraceConfig,
        spans: mpsc::Receiver<FinishedSpan>,
    ) -> Self {
        let (stop, stopped) = oneshot::channel();
        Self { task: runtime.spawn(run(config, spans, stopped)), stop }
    }

    /// Sends what has come, and ends.
    pub(crate) async fn stop(self) {
        let _ = self.stop.send(());
        let _ = tokio::time::timeout(LAST_MAX, self.task).await;
    }
}

async fn run(
    config: TraceConfig,
    mut spans: mpsc::Receiver<FinishedSpan>,
    mut stopped: oneshot::Receiver<()>,
) {
    let (mut batch, mut broken) = (Vec::new(), false);
    loop {
        let mut last = tokio::select! {
            count = spans.recv_many(&mut batch, BATCH_MAX) => count == 0,
            _ = &mut stopped => true,
        };
        if !last {
            let more = async { while spans.recv_many(&mut batch, BATCH_MAX).await > 0 {} };
            tokio::select! {
                _ = tokio::time::timeout(BATCH_WAIT, more) => {}
                _ = &mut stopped => last = true,
            }
        }
        if last {
            // What has come before is still sent.
            spans.close();
            while spans.recv_many(&mut batch, BATCH_MAX).await > 0 {}
        }
        for some in batch.chunks(BATCH_MAX) {
            let sent = send(&config, some).await;
            match &sent {
                // Said once, not with every batch.
                Err(reason) if !broken => tracing::warn!(reason, "traces cannot be sent"),
                Ok(()) if broken => tracing::info!("traces are sent again"),
                _ => {}
            }
            broken = sent.is_err();
        }
        if last {
            return;
        }
        batch.clear();
    }
}

/// Sends spans, or says why the collector does not have them.
async fn send(config: &TraceConfig, spans: &[FinishedSpan]) -> Result<(), String> {
    let body = otlp::body(&config.service, spans).to_string();
    let posted = tokio::time::timeout(SEND_MAX, post(&config.endpoint, body)).await;
    let status = match posted {
        Ok(Ok(status)) => status,
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => return Err(format!("no response within {} s", SEND_MAX.as_secs())),
    };
    if status.is_success() { Ok(()) } else { Err(format!("the collector answered {status}")) }
}

async fn post(
    endpoint: &TraceEndpoint,
    body: String,
) -> Result<StatusCode, Box<dyn std::error::Error + Send + Sync>> {
    let TraceEndpoint { host, port, path } = endpoint;
    let authority = match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    };
    let request = Request::post(path)
        .header(header::HOST, authority)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::CONNECTION, "close")
        .body(Body::from(body))?;
    let stream = TcpStream::connect((host.as_str(), *port)).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let response = sender.send_request(request).await;
    // Nothing but the status is read.
    connection.abort();
    Ok(response?.status())
}
