//! How many sequences the server admits: those being decoded and those that wait.
//!
//! All clients share some permits, and a client that sends a lot can take all of them. So every API
//! key has a few permits of its own beside: whoever holds a key is always admitted. Connections
//! without a key have none of their own, as anybody can open more of them.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::request::Client;

/// Admits sequences as long as there are permits.
pub(crate) struct Admission {
    shared: Permits,
    /// By key.
    reserved: Vec<Permits>,
}

/// A fixed number of permits.
struct Permits {
    free: Arc<Semaphore>,
    len: u32,
}

impl Permits {
    fn new(len: u32) -> Self {
        Self { free: Arc::new(Semaphore::new(len as usize)), len }
    }

    fn take(&self, count: u32) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.free).try_acquire_many_owned(count).ok()
    }

    /// Waits until all are free.
    async fn idle(&self) {
        let _ = self.free.acquire_many(self.len).await;
    }
}

impl Admission {
    /// So many permits that all clients share, and so many more for each key.
    pub(crate) fn new(shared: u32, keys: usize, reserved: u32) -> Self {
        let reserved = (0..keys).map(|_| Permits::new(reserved)).collect();
        Self { shared: Permits::new(shared), reserved }
    }

    /// The number of permits that all clients share.
    #[cfg(test)]
    pub(crate) fn shared_len(&self) -> u32 {
        self.shared.len
    }

    /// The number of all permits.
    pub(crate) fn len(&self) -> usize {
        let all = std::iter::once(&self.shared).chain(&self.reserved);
        all.map(|permits| permits.len as usize).sum()
    }

    /// Returns permits for the sequences of a request, either all shared or all of the key's own;
    /// `None` if there are too few. A request with more sequences than there are shared permits
    /// takes all of these.
    pub(crate) fn admit(&self, client: Client, sequences: u32) -> Option<OwnedSemaphorePermit> {
        self.shared.take(sequences.min(self.shared.len)).or_else(|| match client {
            Client::Key(key) => self.reserved.get(usize::try_from(key).ok()?)?.take(sequences),
            _ => None,
        })
    }

    /// Waits until all permits are free.
    pub(crate) async fn idle(&self) {
        for permits in std::iter::once(&self.shared).chain(&self.reserved) {
            permits.idle().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_with_a_key_is_admitted_however_much_others_send() {
        let admission = Admission::new(4, 2, 2);
        assert_eq!(admission.len(), 8);
        let (polite, hostile) = (Client::Key(0), Client::Key(1));
        // A request larger than the queue has all of it; then the hostile client's own are taken.
        let shared = admission.admit(hostile, 16);
        assert_eq!(shared.as_ref().map(OwnedSemaphorePermit::num_permits), Some(4));
        let own = admission.admit(hostile, 2);
        assert!(own.is_some() && admission.admit(hostile, 1).is_none());
        assert!(admission.admit(Client::Connection(0), 1).is_none());
        let first = admission.admit(polite, 1);
        assert!(first.is_some() && admission.admit(polite, 1).is_some());
        assert!(admission.admit(polite, 2).is_none(), "one of its two is taken");
        drop((shared, own));
        assert!(admission.admit(polite, 4).is_some());
    }
}
