//! Constraints whose masks are slow.

use std::sync::atomic::AtomicUsize;

use super::*;

/// Forbids nothing, and says what a mask takes. One that is prepared is there once it was asked for
/// three times.
struct Takes {
    time: Duration,
    asked: usize,
    /// Masks that a round was held up by.
    inline: Arc<AtomicUsize>,
}

impl Takes {
    fn ms(ms: u64) -> (Option<Box<dyn Constraint>>, Arc<AtomicUsize>) {
        let inline = Arc::default();
        let new = Self { time: Duration::from_millis(ms), asked: 0, inline: Arc::clone(&inline) };
        (Some(Box::new(new)), inline)
    }
}

impl Constraint for Takes {
    fn mask(&mut self, _: &[Token], _: &mut [f32]) -> Result<(), ConstraintError> {
        self.inline.fetch_add(usize::from(self.asked < 3), Ordering::Relaxed);
        Ok(())
    }
    fn admitted(&mut self, path: &[Token]) -> usize {
        path.len()
    }
    fn commit(&mut self, _: &[Token]) {
        self.asked = 0;
    }
    fn prepare(&mut self) -> bool {
        self.asked += 1;
        self.asked >= 3
    }
    fn mask_time(&mut self) -> Duration {
        self.time
    }
}

#[test]
fn slow_masks_hold_up_nobody_but_their_own_text() {
    let (mut worker, _jobs, _) = worker(false, 8);
    let mut events = Vec::new();
    let ((quick, _), (slow, inline)) = (Takes::ms(1), Takes::ms(60));
    for (prompt, constraint) in [("abc", None), ("cab", quick), ("bca", slow)] {
        let (mut job, receiver) = job(prompt, 100, vec![0]);
        (job.constraint, job.drafting.adaptive) = (constraint, false);
        worker.wait(vec![job]);
        events.push(receiver);
    }
    worker.admit();
    for _ in 0..30 {
        worker.round();
    }
    let said = worker.active.iter().map(|text| text.generation.sequence().output().len());
    let said: Vec<usize> = said.collect();
    assert!(said[0] >= 30 && said[1] >= 30, "{said:?}");
    assert!(said[2] >= 10, "{said:?}");
    // Only the first, of which nothing was known.
    assert_eq!(inline.load(Ordering::Relaxed), 1);
    assert_eq!(worker.active[2].generation.stats().drafted, 0);
    assert!(worker.active[1].generation.stats().drafted > 0);
}

#[test]
fn slow_masks_of_all_texts_change_nothing_they_say() {
    let alone = Running::start(false);
    let expected = ["abc", "cab", "bca"].map(|prompt| alone.text(prompt, 30, vec![]).text);
    alone.stop();
    let server = Running::start(false);
    let sent = ["abc", "cab", "bca"].map(|prompt| {
        let (mut job, events) = job(prompt, 30, vec![0]);
        job.constraint = Takes::ms(60).0;
        server.send(job);
        events
    });
    assert_eq!(sent.map(|events| done(events).text), expected);
    server.stop();
}
