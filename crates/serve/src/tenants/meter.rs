//! A limit per minute. A minute's worth may be used at once and comes back evenly, so nobody waits
//! for the turn of a minute, and no two minutes' worth fall together at one.

use std::time::{Duration, Instant};

const MINUTE_S: f64 = 60.0;

/// What is left of a limit per minute. It may be owed.
#[derive(Debug)]
pub(super) struct Meter {
    limit: u32,
    left: f64,
    /// When `left` was true.
    at: Instant,
}

/// What is left of a limit per minute, in whole units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) limit: u32,
    pub(crate) remaining: u32,
    /// How long it takes until all of it is there again.
    pub(crate) reset: Duration,
}

impl Meter {
    /// All of it is there.
    pub(super) fn new(limit: u32, now: Instant) -> Self {
        Self { limit, left: f64::from(limit), at: now }
    }

    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    fn per_second(&self) -> f64 {
        f64::from(self.limit) / MINUTE_S
    }

    /// What comes back with time. Threads may look at the clock in one order and come here in another.
    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.left = (self.left + passed * self.per_second()).min(f64::from(self.limit));
        self.at = self.at.max(now);
    }

    /// How long it takes until so many are there.
    fn wait_for(&self, count: f64) -> Duration {
        Duration::from_secs_f64((count - self.left).max(0.0) / self.per_second())
    }

    /// Takes so many.
    ///
    /// # Errors
    /// If there are fewer: how long to wait. Nothing is taken.
    pub(super) fn take(&mut self, count: u32, now: Instant) -> Result<(), Duration> {
        self.refill(now);
        if self.left < f64::from(count) {
            return Err(self.wait_for(f64::from(count)));
        }
        self.left -= f64::from(count);
        Ok(())
    }

    /// Whether any is left.
    ///
    /// # Errors
    /// If there is less than one: how long to wait.
    pub(super) fn check(&mut self, now: Instant) -> Result<(), Duration> {
        self.take(1, now)?;
        self.left += 1.0;
        Ok(())
    }

    /// Takes so many, whatever is left.
    pub(super) fn charge(&mut self, count: usize, now: Instant) {
        self.refill(now);
        self.left -= count as f64;
    }

    pub(super) fn read(&mut self, now: Instant) -> Reading {
        self.refill(now);
        let reset = self.wait_for(f64::from(self.limit));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to limit")]
        let remaining = self.left.max(0.0) as u32;
        Reading { limit: self.limit, remaining, reset }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_minutes_worth_comes_at_once_and_then_evenly() {
        let start = Instant::now();
        let mut meter = Meter::new(6, start);
        assert!((0..6).all(|_| meter.take(1, start).is_ok()));
        assert_eq!(meter.take(1, start), Err(seconds(10)));
        // What is refused costs nothing, however often it is tried.
        assert!((0..100).all(|_| meter.take(1, start + seconds(9)).is_err()));
        assert_eq!(meter.take(1, start + seconds(10)), Ok(()));
        assert_eq!(meter.take(1, start + seconds(10)), Err(seconds(10)));
        // An hour later there is a minute's worth, and no more.
        let later = start + seconds(3600);
        let taken = (0..100).filter(|_| meter.take(1, later).is_ok()).count();
        assert_eq!(taken, 6);
    }

    #[test]
    fn what_is_owed_is_paid_off_first() {
        let start = Instant::now();
        let mut meter = Meter::new(60, start);
        assert_eq!(meter.check(start), Ok(()));
        meter.charge(180, start);
        assert_eq!(meter.check(start), Err(seconds(121)));
        let reading = Reading { limit: 60, remaining: 0, reset: seconds(180) };
        assert_eq!(meter.read(start), reading);
        assert!(meter.check(start + seconds(120)).is_err());
        assert_eq!(meter.check(start + seconds(121)), Ok(()));
    }

    #[test]
    fn a_clock_that_was_read_earlier_gives_nothing_twice() {
        let start = Instant::now();
        let mut meter = Meter::new(60, start);
        meter.charge(60, start + seconds(30));
        assert_eq!(meter.read(start).remaining, 0);
        assert_eq!(meter.read(start + seconds(31)).remaining, 1);
    }
}
