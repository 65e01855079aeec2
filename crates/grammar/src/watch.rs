//! Stops masks that take too long. The library looks at a flag while it works; one thread of the
//! process sets the flags of those whose time is up.

use std::collections::VecDeque;
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use llguidance::CancellationHandle;

/// Most time for the mask of one position. Masks take some milliseconds; those of an ambiguous
/// grammar grow with the text without end.
pub(crate) const MASK_MAX: Duration = Duration::from_secs(1);

/// What is being worked out.
#[derive(Default)]
struct Running {
    works: VecDeque<Work>,
    next: u64,
    /// Until when the thread sleeps; for ever if there is nothing to watch.
    asleep: Option<Instant>,
}

struct Work {
    id: u64,
    deadline: Instant,
    flag: CancellationHandle,
}

#[derive(Default)]
struct Watch {
    running: Mutex<Running>,
    more: Condvar,
}

static WATCH: LazyLock<Watch> = LazyLock::new(|| {
    let watching = thread::Builder::new().name("grammar-watch".into());
    // Without a thread nothing is stopped early; the library's own limits still hold.
    let _ = watching.spawn(|| WATCH.watch());
    Watch::default()
});

/// Work that is watched until this is dropped.
pub(crate) struct Watched(u64);

/// Sets the flag if the work takes longer than this.
pub(crate) fn watch(flag: &CancellationHandle, most: Duration) -> Watched {
    let watch = &*WATCH;
    let mut running = watch.lock();
    let id = running.next;
    running.next += 1;
    let deadline = Instant::now() + most;
    running.works.push_back(Work { id, deadline, flag: flag.clone() });
    if running.asleep.is_none_or(|until| deadline < until) {
        running.asleep = Some(deadline);
        watch.more.notify_one();
    }
    Watched(id)
}

impl Drop for Watched {
    fn drop(&mut self) {
        WATCH.lock().works.retain(|work| work.id != self.0);
    }
}

impl Watch {
    fn lock(&self) -> MutexGuard<'_, Running> {
        // Nothing panics while it is held.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self) {
        let mut running = self.lock();
        loop {
            let now = Instant::now();
            running
                .works
                .iter()
                .filter(|work| work.deadline <= now)
                .for_each(|it| it.flag.cancel());
            running.works.retain(|work| work.deadline > now);
            running.asleep = running.works.iter().map(|work| work.deadline).min();
            running = match running.asleep {
                Some(deadline) => {
                    let waited = self.more.wait_timeout(running, deadline - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.more.wait(running).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_too_long_is_stopped_and_nothing_else() {
        let [quick, slow, patient] = [(); 3].map(|()| CancellationHandle::default());
        drop(watch(&quick, Duration::from_millis(1)));
        let _patient = watch(&patient, Duration::from_secs(3600));
        // Once the thread has said again until when it sleeps, it does: for an hour, unless it is told of
        // what is due before.
        WATCH.lock().asleep = None;
        WATCH.more.notify_one();
        while WATCH.lock().asleep.is_none() {
            thread::yield_now();
        }
        let _slow = watch(&slow, Duration::from_millis(1));
        let started = Instant::now();
        while !slow.is_cancelled() {
            assert!(started.elapsed() < Duration::from_secs(60), "nobody stops it");
            thread::yield_now();
        }
        assert!(!quick.is_cancelled() && !patient.is_cancelled());
    }
}
