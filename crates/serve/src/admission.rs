//! How many sequences the server admits: those being decoded and those that wait.
//!
//! All clients share some permits, and a client that sends a lot can take all of them. So every
//! tenant has a few permits of its own beside: whoever holds a key is always admitted, up to the
//! tenant's own limit. Connections without a key have none of their own, as anybody can open more of
//! them.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use crate::client::Client;
use crate::error::RequestError;
use crate::permits::Permits;
use crate::tenants::Tenants;

/// Admits sequences as long as there are permits.
pub(crate) struct Admission {
    shared: Permits,
    /// By tenant.
    reserved: Vec<Permits>,
}

/// Admits sequences of one request, until it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    /// What counts for the tenant's own limit, until all sequences of the request have ended. It is
    /// released before the place.
    own: Option<Arc<OwnedSemaphorePermit>>,
    place: OwnedSemaphorePermit,
}

impl Permit {
    fn new(place: OwnedSemaphorePermit, own: Option<OwnedSemaphorePermit>) -> Self {
        Self { place, own: own.map(Arc::new) }
    }

    /// A place, of a client without a limit of its own.
    #[cfg(test)]
    pub(crate) fn of_place(place: OwnedSemaphorePermit) -> Self {
        Self::new(place, None)
    }

    /// How many places there are.
    #[cfg(test)]
    pub(crate) fn places(&self) -> usize {
        self.place.num_permits()
    }

    /// Takes one place out; `None` once there is no other.
    pub(crate) fn split(&mut self) -> Option<Self> {
        Some(Self { place: self.place.split(1)?, own: self.own.clone() })
    }
}

impl Admission {
    /// So many permits that all clients share, and so many more for each tenant.
    pub(crate) fn new(shared: u32, tenants: usize, reserved: u32) -> Self {
        let reserved = (0..tenants).map(|_| Permits::new(reserved)).collect();
        Self { shared: Permits::new(shared), reserved }
    }

    /// The number of permits that all clients share.
    #[cfg(test)]
    pub(crate) fn shared_len(&self) -> u32 {
        self.shared.len()
    }

    /// The number of all permits.
    pub(crate) fn len(&self) -> usize {
        let all = std::iter::once(&self.shared).chain(&self.reserved);
        all.map(|permits| permits.len() as usize).sum()
    }

    /// Returns a permit for the sequences of a request. Its places are either all shared or all of
    /// the tenant's own. A request with more sequences than there are shared places takes all of
    /// these.
    ///
    /// # Errors
    /// If there are too few places, or the tenant has as many sequences as it may.
    pub(crate) fn admit(
        &self,
        client: Client,
        tenants: &Tenants,
        sequences: u32,
    ) -> Result<Permit, RequestError> {
        let own = match tenants.of(client) {
            Some(tenant) => tenant.take_sequences(sequences)?,
            None => None,
        };
        let place = self.shared.take(sequences.min(self.shared.len())).or_else(|| match client {
            Client::Tenant(index) => {
                self.reserved.get(usize::try_from(index).ok()?)?.take(sequences)
            }
            _ => None,
        });
        Ok(Permit::new(place.ok_or(RequestError::QueueFull)?, own))
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
        let admit = |client, count| admission.admit(client, &Tenants::default(), count).ok();
        assert_eq!(admission.len(), 8);
        let (polite, hostile) = (Client::Tenant(0), Client::Tenant(1));
        // A request larger than the queue has all of it; then the hostile client's own are taken.
        let shared = admit(hostile, 16);
        assert_eq!(shared.as_ref().map(Permit::places), Some(4));
        let own = admit(hostile, 2);
        assert!(own.is_some() && admit(hostile, 1).is_none());
        assert!(admit(Client::Connection(0), 1).is_none());
        let first = admit(polite, 1);
        assert!(first.is_some() && admit(polite, 1).is_some());
        assert!(admit(polite, 2).is_none(), "one of its two is taken");
        drop((shared, own));
        assert!(admit(polite, 4).is_some());
    }
}
