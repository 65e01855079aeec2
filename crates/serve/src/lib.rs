//! An OpenAI-compatible server over the round of speculative decoding.
//!
//! One thread owns the engine (`worker`): texts join and leave between rounds,
//! and a round serves all of them in shared passes. Connections are tokio's: a request is read and
//! checked (`api`), turned into jobs where every default is decided (`ask`), and put into a bounded
//! queue; what the engine's thread gives comes back over a bounded channel.
//!
//! Nothing here knows llama.cpp: an [`Engine`] is handed in whole. A [`Server`] speaks HTTP; a [`Host`] is
//! the same engine's thread for a front of another kind.

mod admission;
mod api;
mod ask;
mod forms;
mod host;
mod job;
mod metrics;
mod queue;
mod resume;
mod serve;
mod slots;
mod socket;
mod state;
mod texts;
mod worker;

pub use host::{Host, HostError, HostLoad, TokenChunk, TokenRequest, TokenStream};
pub use serve::{ServeError, Server};
pub use state::{DraftDefaults, DrafterInfo, Engine, ModelInfo, ServeConfig};
pub use worker::CacheWatch;

/// What the clock says.
#[expect(clippy::disallowed_methods, reason = "answers are dated, and templates may ask")]
fn now() -> std::time::SystemTime {
    std::time::SystemTime::now()
}

/// A number nobody can foresee.
fn random() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _};
    std::hash::RandomState::new().build_hasher().finish()
}
