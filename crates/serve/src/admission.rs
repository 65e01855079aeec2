//! How many sequences the server takes in: those being decoded and those that wait.
//!
//! Places are shared by all clients, and a client that sends a lot can take all of them. So every API
//! key has a few of its own beside, and whoever holds a key always gets in. Connections without a key
//! have none: anybody can open more of them.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::job::Client;

/// The places of a server.
pub(crate) struct Places {
    shared: Set,
    /// By key.
    reserved: Vec<Set>,
}

/// Some places, and how many.
struct Set {
    free: Arc<Semaphore>,
    len: u32,
}

impl Set {
    fn new(len: u32) -> Self {
        Self { free: Arc::new(Semaphore::new(len as usize)), len }
    }

    fn take(&self, wanted: u32) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.free).try_acquire_many_owned(wanted).ok()
    }

    /// Waits until all are free.
    async fn idle(&self) {
        let _ = self.free.acquire_many(self.len).await;
    }
}

impl Places {
    /// So many shared ones, and so many more for each key.
    pub(crate) fn new(shared: u32, keys: usize, reserved: u32) -> Self {
        let reserved = (0..keys).map(|_| Set::new(reserved)).collect();
        Self { shared: Set::new(shared), reserved }
    }

    /// How many there are that all share.
    #[cfg(test)]
    pub(crate) fn shared_len(&self) -> u32 {
        self.shared.len
    }

    /// How many there are in all.
    pub(crate) fn len(&self) -> usize {
        let sets = std::iter::once(&self.shared).chain(&self.reserved);
        sets.map(|set| set.len as usize).sum()
    }

    /// Places for a request, all of the one or the other kind; nothing if there are too few. A request
    /// that is larger than the shared ones has all of them.
    pub(crate) fn take(&self, client: Client, wanted: u32) -> Option<OwnedSemaphorePermit> {
        self.shared.take(wanted.min(self.shared.len)).or_else(|| match client {
            Client::Key(key) => self.reserved.get(usize::try_from(key).ok()?)?.take(wanted),
            _ => None,
        })
    }

    /// Waits until all are free.
    pub(crate) async fn idle(&self) {
        for set in std::iter::once(&self.shared).chain(&self.reserved) {
            set.idle().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_a_key_gets_in_however_much_others_send() {
        let places = Places::new(4, 2, 2);
        assert_eq!(places.len(), 8);
        let (polite, hostile) = (Client::Key(0), Client::Key(1));
        // A request larger than the queue has all of it; then the hostile client's own are taken.
        let shared = places.take(hostile, 16);
        assert_eq!(shared.as_ref().map(OwnedSemaphorePermit::num_permits), Some(4));
        let own = places.take(hostile, 2);
        assert!(own.is_some() && places.take(hostile, 1).is_none());
        assert!(places.take(Client::Connection(0), 1).is_none());
        let first = places.take(polite, 1);
        assert!(first.is_some() && places.take(polite, 1).is_some());
        assert!(places.take(polite, 2).is_none(), "one of its two is taken");
        drop((shared, own));
        assert!(places.take(polite, 4).is_some());
    }
}
