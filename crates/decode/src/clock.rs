//! What time it is, so that a simulation can decide it.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A clock. What a decoder and a server do depends on time only through it.
pub trait Clock: Debug + Send + Sync {
    /// Returns the current time.
    fn now(&self) -> Instant;

    /// Lets time pass.
    fn sleep(&self, time: Duration);
}

/// The system's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// The system's clock, shared.
pub(crate) fn system() -> Arc<dyn Clock> {
    Arc::new(SystemClock)
}
