//! Tenants: who may use a server, with which API keys, how much, and what share of it.
//!
//! A tenant is a client that is told apart by its keys. A key without a name is a tenant without
//! limits. Nothing here knows HTTP; how slots are shared is in `worker/schedule.rs`.

mod meter;
mod metrics;

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use subtle::{ConditionallySelectable, ConstantTimeEq};
use tokio::sync::OwnedSemaphorePermit;

use self::meter::Meter;
pub(crate) use self::meter::Reading;
use self::metrics::TenantMetrics;
use crate::client::Client;
use crate::error::RequestError;
use crate::limits::{LimitReached, Limited};
use crate::permits::Permits;

/// Who may use a server, with which keys, and how much.
#[derive(Debug, Clone)]
pub struct TenantConfig {
    /// Its name in metrics and in the audit log; a key may have none.
    pub name: Option<String>,
    /// Its API keys.
    pub keys: Vec<String>,
    /// How large its share of the slots is beside those of others.
    pub weight: NonZeroU32,
    /// Whether it is served before others or after them.
    pub priority: Priority,
    /// The most it may use.
    pub limits: TenantLimits,
    /// Tenants that name the same cache use each other's prefixes; one that names none is alone.
    pub cache: Option<String>,
}

impl TenantConfig {
    /// Whoever has this key, without limits.
    pub fn of_key(key: String) -> Self {
        Self {
            name: None,
            keys: vec![key],
            weight: NonZeroU32::MIN,
            priority: Priority::default(),
            limits: TenantLimits::default(),
            cache: None,
        }
    }
}

/// The most a tenant may use; `None` for no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TenantLimits {
    /// Requests a minute.
    pub requests_per_minute: Option<NonZeroU32>,
    /// Tokens a minute, of prompts and of outputs.
    pub tokens_per_minute: Option<NonZeroU32>,
    /// Sequences at once, those that wait included.
    pub sequences: Option<NonZeroU32>,
}

/// Who is served first. Tenants of one priority share what those above them leave.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// After all others.
    Low,
    /// After those of high priority.
    #[default]
    Normal,
    /// Before all others.
    High,
}

/// How long a client is told to wait until one of its sequences may have ended.
const SEQUENCE_WAIT: Duration = Duration::from_secs(1);

/// All tenants.
#[derive(Debug, Default)]
pub(crate) struct Tenants {
    tenants: Vec<Tenant>,
    /// Each key, and the tenant that has it.
    keys: Vec<(String, u64)>,
    metrics: TenantMetrics,
}

/// A tenant and what it has used.
#[derive(Debug)]
pub(crate) struct Tenant {
    name: Option<Arc<str>>,
    weight: u32,
    priority: Priority,
    /// Whose prefixes it uses: tenants with the same number share them.
    scope: u64,
    sequences: Option<Permits>,
    meters: Mutex<Meters>,
}

/// What a tenant has left of its minute.
#[derive(Debug)]
struct Meters {
    requests: Option<Meter>,
    tokens: Option<Meter>,
}

/// What a tenant has left, for the headers of a response; `None` without a limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Readings {
    pub(crate) requests: Option<Reading>,
    pub(crate) tokens: Option<Reading>,
}

impl Tenants {
    /// These tenants, in this order.
    pub(crate) fn new(configs: &[TenantConfig]) -> Self {
        let now = Instant::now();
        let named = configs.iter().filter_map(|it| it.name.as_deref());
        let metrics = TenantMetrics::new(named);
        let mut all = Self { metrics, ..Self::default() };
        for (index, config) in (0..).zip(configs) {
            let shares =
                |other: &TenantConfig| other.cache.is_some() && other.cache == config.cache;
            let first = configs.iter().position(shares).and_then(|it| u64::try_from(it).ok());
            let TenantLimits { requests_per_minute, tokens_per_minute, sequences } = config.limits;
            let meter = |limit: NonZeroU32| Meter::new(limit.get(), now);
            all.tenants.push(Tenant {
                name: config.name.as_deref().map(Arc::from),
                weight: config.weight.get(),
                priority: config.priority,
                scope: first.unwrap_or(index),
                sequences: sequences.map(|most| Permits::new(most.get())),
                meters: Mutex::new(Meters {
                    requests: requests_per_minute.map(meter),
                    tokens: tokens_per_minute.map(meter),
                }),
            });
            all.keys.extend(config.keys.iter().map(|key| (key.clone(), index)));
        }
        all
    }

    pub(crate) fn len(&self) -> usize {
        self.tenants.len()
    }

    /// Whether nobody needs a key.
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The tenant that has a key. All keys are compared, each in constant time, so that the time
    /// tells nothing.
    pub(crate) fn find(&self, sent: &str) -> Option<u64> {
        let none = (subtle::Choice::from(0), 0);
        let (known, found) = self.keys.iter().fold(none, |(known, found), (key, tenant)| {
            let same = key.as_bytes().ct_eq(sent.as_bytes());
            (known | same, u64::conditional_select(&found, tenant, same))
        });
        bool::from(known).then_some(found)
    }

    /// A client's tenant, if it has one.
    pub(crate) fn of(&self, client: Client) -> Option<&Tenant> {
        let Client::Tenant(index) = client else { return None };
        self.tenants.get(usize::try_from(index).ok()?)
    }

    /// How large a client's share of the slots is beside those of others.
    pub(crate) fn weight(&self, client: Client) -> usize {
        self.of(client).map_or(1, |tenant| tenant.weight as usize)
    }

    /// Whether a client is served before others.
    pub(crate) fn priority(&self, client: Client) -> Priority {
        self.of(client).map_or(Priority::default(), |tenant| tenant.priority)
    }

    /// Whose prefixes a client uses; `None` for everybody without a key.
    pub(crate) fn scope(&self, client: Client) -> Option<u64> {
        let Client::Tenant(index) = client else { return None };
        Some(self.of(client).map_or(index, |tenant| tenant.scope))
    }

    /// What is counted of those that have names.
    pub(crate) fn metrics(&self) -> &TenantMetrics {
        &self.metrics
    }

    /// A client's prompt of so many tokens is about to be decoded.
    pub(crate) fn prompted(&self, client: Client, len: usize) -> Result<(), RequestError> {
        let Some(tenant) = self.of(client) else { return Ok(()) };
        tenant.take_tokens(len, Instant::now())?;
        self.metrics.prompt(tenant.name(), len);
        Ok(())
    }

    /// So many tokens of a client were embedded, or scored.
    pub(crate) fn embedded(&self, client: Client, len: usize, now: Instant) {
        let Some(tenant) = self.of(client) else { return };
        tenant.charge_tokens(len, now);
        self.metrics.prompt(tenant.name(), len);
    }

    /// Tokens were decoded for a client.
    pub(crate) fn decoded(&self, client: Client, count: usize, now: Instant) {
        let Some(tenant) = self.of(client) else { return };
        tenant.charge_tokens(count, now);
        self.metrics.generated(tenant.name(), count);
    }
}

impl Tenant {
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    fn meters(&self) -> MutexGuard<'_, Meters> {
        self.meters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request.
    ///
    /// # Errors
    /// If it is one too many; then it does not count.
    pub(crate) fn take_request(&self, now: Instant) -> Result<(), LimitReached> {
        let mut meters = self.meters();
        let Some(meter) = &mut meters.requests else { return Ok(()) };
        let limit = meter.limit();
        meter.take(1, now).map_err(|wait| LimitReached { limited: Limited::Requests, limit, wait })
    }

    /// Whether there are tokens left; outputs may have taken more than there were.
    pub(crate) fn check_tokens(&self, now: Instant) -> Result<(), LimitReached> {
        let mut meters = self.meters();
        let Some(meter) = &mut meters.tokens else { return Ok(()) };
        let limit = meter.limit();
        meter.check(now).map_err(|wait| LimitReached { limited: Limited::Tokens, limit, wait })
    }

    /// Counts the tokens of a prompt, as long as there are any left.
    fn take_tokens(&self, count: usize, now: Instant) -> Result<(), LimitReached> {
        let mut meters = self.meters();
        let Some(meter) = &mut meters.tokens else { return Ok(()) };
        let limit = meter.limit();
        let checked = meter.check(now);
        checked.map_err(|wait| LimitReached { limited: Limited::Tokens, limit, wait })?;
        meter.charge(count, now);
        Ok(())
    }

    /// Counts tokens of an output, which may take more than there are: what is owed is paid off
    /// before the next request.
    fn charge_tokens(&self, count: usize, now: Instant) {
        if let Some(meter) = &mut self.meters().tokens {
            meter.charge(count, now);
        }
    }

    /// Returns a permit for so many sequences beside those that the tenant has; `None` inside if it
    /// needs none.
    ///
    /// # Errors
    /// If there are too many, now or ever.
    pub(crate) fn take_sequences(
        &self,
        count: u32,
    ) -> Result<Option<OwnedSemaphorePermit>, RequestError> {
        let Some(permits) = &self.sequences else { return Ok(None) };
        let limit = permits.len();
        if count > limit {
            let message = format!(
                "{count} answers were asked for; this key may have {limit} sequences at once"
            );
            return Err(RequestError::parameter("n", message));
        }
        let full = LimitReached { limited: Limited::Sequences, limit, wait: SEQUENCE_WAIT };
        permits.take(count).map(Some).ok_or(RequestError::LimitReached(full))
    }

    /// What is left.
    pub(crate) fn readings(&self, now: Instant) -> Readings {
        let mut meters = self.meters();
        let read = |meter: &mut Option<Meter>| meter.as_mut().map(|meter| meter.read(now));
        Readings { requests: read(&mut meters.requests), tokens: read(&mut meters.tokens) }
    }
}

#[cfg(test)]
mod tests;
