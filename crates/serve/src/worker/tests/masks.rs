//! Constraints whose masks are slow.

use std::sync::atomic::AtomicUsize;

use super::*;

/// Forbids nothing, and says how long a mask takes. A mask that is prepared is there at the third
/// call.
struct Takes {
    time: Duration,
    asked: usize,
    /// Masks that held up a round.
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
fn slow_masks_hold_up_nobody_but_their_own_sequence() {
    let (mut worker, _requests, _) = worker(false, 8);
    let mut events = Vec::new();
    let ((quick, _), (slow, inline)) = (Takes::ms(1), Takes::ms(60));
    for (prompt, constraint) in [("abc", None), ("cab", quick), ("bca", slow)] {
        let (mut request, receiver) = request(prompt, 100, &[0]);
        (request.constraint, request.drafting.adaptive) = (constraint, false);
        worker.wait(vec![request]);
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
fn slow_masks_of_all_sequences_change_no_output() {
    let alone = Running::start(false);
    let expected = ["abc", "cab", "bca"].map(|prompt| alone.text(prompt, 30, &[]).text);
    alone.stop();
    let server = Running::start(false);
    let sent = ["abc", "cab", "bca"].map(|prompt| {
        let (mut request, events) = request(prompt, 30, &[0]);
        request.constraint = Takes::ms(60).0;
        server.send(request);
        events
    });
    assert_eq!(sent.map(|events| done(events).text), expected);
    server.stop();
}
