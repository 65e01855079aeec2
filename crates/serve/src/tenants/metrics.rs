//! What is counted of tenants that have names. There are as many as the server was started with, so
//! the labels are bounded. They are shown apart from the other metrics: names and use of tenants are
//! nobody else's business.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

type Seconds = Counter<f64, AtomicU64>;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Named {
    tenant: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    tenant: String,
    status: u16,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct TenantMetrics {
    registry: Registry,
    requests: Family<Answered, Counter>,
    prompt_tokens: Family<Named, Counter>,
    generation_tokens: Family<Named, Counter>,
    engine_seconds: Family<Named, Seconds>,
    first_token: Family<Named, Histogram, fn() -> Histogram>,
}

fn latencies() -> Histogram {
    Histogram::new([0.1, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0])
}

impl Default for TenantMetrics {
    fn default() -> Self {
        Self::new(std::iter::empty())
    }
}

fn of(tenant: &str) -> Named {
    Named { tenant: tenant.to_owned() }
}

impl TenantMetrics {
    /// Of tenants with these names.
    pub(super) fn new<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        let mut all = Registry::default();
        let (requests, prompt_tokens) = (Family::default(), Family::default());
        let (generation_tokens, engine_seconds) = (Family::default(), Family::default());
        let first_token = Family::new_with_constructor(latencies as fn() -> Histogram);
        all.register("forerun:tenant_requests", "Requests by status", Family::clone(&requests));
        all.register(
            "forerun:tenant_prompt_tokens",
            "Prompt tokens, cached ones included",
            Family::clone(&prompt_tokens),
        );
        all.register(
            "forerun:tenant_generation_tokens",
            "Tokens decoded",
            Family::clone(&generation_tokens),
        );
        all.register(
            "forerun:tenant_engine_seconds",
            "Time of rounds, divided among those who had a part in them",
            Family::clone(&engine_seconds),
        );
        all.register(
            "forerun:tenant_time_to_first_token_seconds",
            "From a request to its first token",
            Family::clone(&first_token),
        );
        let metrics = Self {
            registry: all,
            requests,
            prompt_tokens,
            generation_tokens,
            engine_seconds,
            first_token,
        };
        for name in names {
            metrics.prompt(Some(name), 0);
            metrics.generated(Some(name), 0);
            metrics.engine(Some(name), 0.0);
        }
        metrics
    }

    /// The text that Prometheus reads.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)
            .expect("a string takes all that is written");
        text
    }

    /// A request was answered with this status.
    pub(crate) fn answered(&self, tenant: Option<&str>, status: u16) {
        if let Some(tenant) = tenant {
            let label = Answered { tenant: tenant.to_owned(), status };
            self.requests.get_or_create(&label).inc();
        }
    }

    pub(super) fn prompt(&self, tenant: Option<&str>, len: usize) {
        if let Some(tenant) = tenant {
            self.prompt_tokens.get_or_create(&of(tenant)).inc_by(len as u64);
        }
    }

    pub(super) fn generated(&self, tenant: Option<&str>, count: usize) {
        if let Some(tenant) = tenant {
            self.generation_tokens.get_or_create(&of(tenant)).inc_by(count as u64);
        }
    }

    /// A tenant had so many seconds of the engine.
    pub(crate) fn engine(&self, tenant: Option<&str>, seconds: f64) {
        if let Some(tenant) = tenant {
            self.engine_seconds.get_or_create(&of(tenant)).inc_by(seconds);
        }
    }

    /// A tenant's sequence has its first token.
    pub(crate) fn first_token(&self, tenant: Option<&str>, after: Duration) {
        if let Some(tenant) = tenant {
            self.first_token.get_or_create(&of(tenant)).observe(after.as_secs_f64());
        }
    }
}
