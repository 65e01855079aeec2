//! How a run ends before it is done: its owner cancels it, or its time is over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::{Error, Result};

/// Whether a run is to end: because it was cancelled, or because its time is over. Clones share it;
/// engines may look at the same flag inside a pass.
///
/// ```
/// let cancellation = forerun_lab::Cancellation::default();
/// assert!(!cancellation.is_cancelled());
/// cancellation.flag().store(true, std::sync::atomic::Ordering::SeqCst);
/// assert!(cancellation.is_cancelled() && !cancellation.is_expired());
/// ```
#[derive(Debug, Clone, Default)]
pub struct Cancellation {
    cancelled: Arc<AtomicBool>,
    /// Whether it was the clock.
    expired: Arc<AtomicBool>,
}

impl Cancellation {
    /// Cancels when so much time is over, whatever is under way then: a pass, the loading of a file.
    pub fn expire_after(&self, time: Duration) {
        let (cancelled, expired) = (self.flag(), Arc::clone(&self.expired));
        std::thread::spawn(move || {
            std::thread::sleep(time);
            // What its owner has ended, the clock does not end.
            if !cancelled.load(Ordering::SeqCst) {
                expired.store(true, Ordering::SeqCst);
                cancelled.store(true, Ordering::SeqCst);
            }
        });
    }

    /// Whether the run is to end, for either reason.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst)
    }

    /// Fails if the run is to end.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_cancelled() { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// Whether it was the clock, and not the owner.
    pub fn is_expired(&self) -> bool {
        self.expired.load(Ordering::SeqCst)
    }

    /// The flag, for engines and signal handlers.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.cancelled)
    }
}
