//! Work that takes a while, away from the threads that serve connections.

use crate::error::RequestError;

/// Runs it on a thread that may block.
pub(crate) async fn off_thread<T: Send + 'static, E: From<RequestError> + Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    let done = tokio::task::spawn_blocking(work).await;
    let panicked = RequestError::Internal("this request made the server stumble");
    done.unwrap_or_else(|_| Err(panicked.into()))
}
