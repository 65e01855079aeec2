//! How much of the engine each client had, and may have: by its weight, its priority and the time that
//! its part of the rounds took (docs/adr/0051).

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::request::Client;
use crate::tenants::{Priority, Tenants};

/// Clients whose times differ by less are as good as equal: then turns decide.
const QUANTUM: Duration = Duration::from_millis(50);

/// Prefill that a tenant may do without a pause beside others, if it did none of late.
const PREFILL_BURST: Duration = Duration::from_millis(500);

/// What each client had of the engine.
#[derive(Debug, Default)]
pub(super) struct Shares {
    tenants: Arc<Tenants>,
    /// Those that hold a slot or wait, and all tenants that did.
    known: Vec<Had>,
    /// The time that a client would have had if all that were there had had theirs at once, each by its weight.
    /// It goes on with every round, so nobody waits for ever behind those who come after it.
    fair: f64,
}

/// What a client had.
#[derive(Debug)]
struct Had {
    client: Client,
    /// Seconds of the engine, divided by its weight. A client that comes back is not owed the time it
    /// was away: it begins with the fair time.
    time: f64,
    /// Seconds of prefill that it may do now. What comes back with time is its share of that time.
    prefill: f64,
    /// Whether it has something to decode, and since when it has not.
    is_there: bool,
    left_at: Instant,
}

/// What a client had in a round, in seconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub(super) client: Client,
    pub(super) seconds: f64,
    /// Those of them that prefilled a prompt.
    pub(super) prefill: f64,
}

impl Part {
    /// Nothing.
    pub(super) fn none(client: Client) -> Self {
        Self { client, seconds: 0.0, prefill: 0.0 }
    }
}

impl Shares {
    pub(super) fn new(tenants: Arc<Tenants>) -> Self {
        Self { tenants, ..Self::default() }
    }

    pub(super) fn tenants(&self) -> &Arc<Tenants> {
        &self.tenants
    }

    pub(super) fn weight(&self, client: Client) -> usize {
        self.tenants.weight(client)
    }

    pub(super) fn priority(&self, client: Client) -> Priority {
        self.tenants.priority(client)
    }

    /// A client has something to decode. These had before, sorted.
    pub(super) fn joins(&mut self, client: Client, present: &[Client], now: Instant) {
        if present.binary_search(&client).is_ok() {
            return;
        }
        let (fair, burst) = (self.fair, PREFILL_BURST.as_secs_f64());
        match self.known.iter_mut().find(|it| it.client == client) {
            Some(had) => {
                had.time = had.time.max(fair);
                let away = now.saturating_duration_since(had.left_at).as_secs_f64();
                had.prefill = (had.prefill + away).min(burst);
                had.is_there = true;
            }
            None => {
                let (time, prefill, is_there, left_at) = (fair, burst, true, now);
                self.known.push(Had { client, time, prefill, is_there, left_at });
            }
        }
    }

    /// All clients but these, sorted, have nothing more to decode. A tenant comes again; a connection
    /// may be gone.
    pub(super) fn leave_all_but(&mut self, present: &[Client], now: Instant) {
        let is_there = |client: &Client| present.binary_search(client).is_ok();
        for had in self.known.iter_mut().filter(|it| it.is_there && !is_there(&it.client)) {
            (had.is_there, had.left_at) = (false, now);
        }
        self.known.retain(|it| it.is_there || matches!(it.client, Client::Tenant(_)));
    }

    /// Counts what clients that hold a slot had in a round of so many seconds.
    pub(super) fn count(&mut self, parts: &[Part], seconds: f64) {
        let mut clients: Vec<Client> = parts.iter().map(|part| part.client).collect();
        clients.sort_unstable();
        clients.dedup();
        let weights: usize = clients.iter().map(|client| self.weight(*client)).sum();
        let alone = clients.len() == 1;
        let burst = PREFILL_BURST.as_secs_f64();
        let there = self.known.iter().filter(|had| had.is_there);
        let all: usize = there.map(|had| self.weight(had.client)).sum();
        self.fair += seconds / all.max(1) as f64;
        for client in clients {
            let own = parts.iter().filter(|part| part.client == client);
            let (time, prefill) =
                own.fold((0.0, 0.0), |sum, it| (sum.0 + it.seconds, sum.1 + it.prefill));
            let weight = self.weight(client) as f64;
            let tenant = self.tenants.of(client).and_then(|it| it.name());
            self.tenants.metrics().engine(tenant, time);
            if let Some(had) = self.known.iter_mut().find(|it| it.client == client) {
                had.time += time / weight;
                let back = seconds * weight / weights as f64;
                // Alone it may do as it likes, but whoever comes then goes first, for a moment.
                had.prefill = match alone {
                    true => (had.prefill + back / 2.0 - prefill).clamp(-burst, burst),
                    false => (had.prefill + back - prefill).min(burst),
                };
            }
        }
    }

    /// Seconds that a client may prefill now beside others; below zero it has for longer than its share of
    /// the time. Only tenants are held to it: without keys all connections may be one person's.
    pub(super) fn prefill_left(&self, client: Client) -> f64 {
        let tenant = Some(client).filter(|it| matches!(it, Client::Tenant(_)));
        tenant.and_then(|it| self.had(it)).map_or(0.0, |had| had.prefill)
    }

    /// Who of two clients that hold so many slots gets the next one: the one with the higher priority,
    /// with fewer slots for its weight, with less time.
    pub(super) fn order(&self, (one, holds): (Client, usize), other: (Client, usize)) -> Ordering {
        let (other, other_holds) = other;
        let priority = self.priority(other).cmp(&self.priority(one));
        let slots = (holds * self.weight(other)).cmp(&(other_holds * self.weight(one)));
        priority.then(slots).then_with(|| self.quanta(one).total_cmp(&self.quanta(other)))
    }

    /// A client's time in whole quanta.
    fn quanta(&self, client: Client) -> f64 {
        let time = self.had(client).map_or(self.fair, |it| it.time);
        (time / QUANTUM.as_secs_f64()).floor()
    }

    fn had(&self, client: Client) -> Option<&Had> {
        self.known.iter().find(|it| it.client == client)
    }
}
