//! Permits that are taken and come back.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A fixed number of permits.
#[derive(Debug)]
pub(crate) struct Permits {
    free: Arc<Semaphore>,
    len: u32,
}

impl Permits {
    pub(crate) fn new(len: u32) -> Self {
        Self { free: Arc::new(Semaphore::new(len as usize)), len }
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn take(&self, count: u32) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.free).try_acquire_many_owned(count).ok()
    }

    /// Waits until all are free.
    pub(crate) async fn idle(&self) {
        let _ = self.free.acquire_many(self.len).await;
    }
}
