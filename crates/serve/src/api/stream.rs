//! Server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::sync::mpsc;

use super::error::ApiError;
use crate::error::RequestError;
use crate::event::Progress;
use crate::response::ResponseStream;

/// If nothing else is sent for this long, a comment is, so that proxies keep the connection open.
const PING: Duration = Duration::from_secs(15);

/// Chunks between the task that makes them and the connection.
const CHUNKS: usize = 4;

/// Where chunks go.
pub(crate) struct Sink(mpsc::Sender<Event>);

impl Sink {
    /// Sends a chunk. Returns `false` once the client has left.
    pub(crate) async fn send(&self, chunk: &impl Serialize) -> bool {
        let data = serde_json::to_string(chunk).expect("numbers, strings and lists of them");
        self.0.send(Event::default().data(data)).await.is_ok()
    }

    /// Sends an event by its name. Returns `false` once the client has left.
    pub(crate) async fn send_event(&self, name: &'static str, event: &impl Serialize) -> bool {
        let data = serde_json::to_string(event).expect("numbers, strings and lists of them");
        self.0.send(Event::default().event(name).data(data)).await.is_ok()
    }

    /// Returns what was decoded next; `None` once all sequences have finished or the client has left.
    pub(crate) async fn next(
        &self,
        sequences: &mut ResponseStream,
    ) -> Option<Result<Progress, RequestError>> {
        tokio::select! {
            progress = sequences.next() => progress,
            () = self.0.closed() => None,
        }
    }

    /// Ends the stream with an error.
    pub(crate) async fn fail(&self, error: ApiError) {
        self.send(&error.body_only()).await;
    }

    /// Ends the stream.
    pub(crate) async fn done(&self) {
        let _ = self.0.send(Event::default().data("[DONE]")).await;
    }
}

/// A response whose chunks a task sends.
pub(crate) fn respond<F>(task: impl FnOnce(Sink) -> F) -> Response
where
    F: Future<Output = ()> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(CHUNKS);
    tokio::spawn(task(Sink(sender)));
    let events = futures_util::stream::unfold(receiver, |mut receiver| async move {
        let event = receiver.recv().await?;
        Some((Ok::<_, Infallible>(event), receiver))
    });
    Sse::new(events).keep_alive(KeepAlive::new().interval(PING)).into_response()
}
