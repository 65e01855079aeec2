//! An OpenAI-compatible server over the round of speculative decoding.
//!
//! One thread owns the engine (`worker`): sequences join and leave between rounds, and a round serves
//! all of them in shared passes. The layers, from the bottom:
//!
//! 1. `request`, `event`, `error`: a prepared request with its sequences, what the engine's thread
//!    reports of them, and what can go wrong.
//! 2. `worker`, `queue`, `slots`, `board`, `admission`, `tenants`, `forms`, `metrics`: scheduling and decoding.
//! 3. `service`, `prepare`, `response`: admits a request, decides its defaults, follows its sequences.
//! 4. [`Host`]: the same for front ends other than HTTP. `api`: HTTP, JSON and status codes.
//! 5. [`Server`]: listens, serves, and stops.
//!
//! Nothing here knows llama.cpp: an [`Engine`] is handed in whole.

mod admission;
mod api;
mod audit;
mod blocking;
mod board;
mod client;
mod config;
mod dialect;
mod embedding;
mod error;
mod event;
#[cfg(test)]
mod fixtures;
mod forms;
mod host;
mod limits;
mod metrics;
mod permits;
mod prepare;
mod queue;
mod request;
mod response;
mod serve;
mod service;
mod slots;
mod socket;
mod tenants;
mod trace;
mod worker;

pub use api::LossySummary;
pub use audit::AuditLog;
pub use config::{DraftDefaults, Engine, HostConfig, KeepGates, ModelInfo, Origins, ServeConfig};
pub use embedding::EmbeddingModel;
pub use error::ServeError;
pub use host::{Host, HostError, HostLoad, TokenChunk, TokenRequest, TokenStream};
pub use serve::Server;
pub use tenants::{Priority, TenantConfig, TenantLimits};
pub use trace::{EndpointError, TraceConfig, TraceEndpoint};
pub use worker::CacheWatch;

/// The current time.
#[expect(
    clippy::disallowed_methods,
    reason = "responses are dated, and templates may use the date"
)]
fn now() -> std::time::SystemTime {
    std::time::SystemTime::now()
}

/// An unpredictable number.
fn random() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _};
    std::hash::RandomState::new().build_hasher().finish()
}
