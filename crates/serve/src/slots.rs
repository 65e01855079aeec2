//! Which slot a text gets: the prefix cache.
//!
//! A slot keeps what its last text left in the caches. A text that begins alike is put there, or,
//! where that would throw away a longer conversation or the slot is busy, gets a copy of the
//! beginning they share.

use std::collections::VecDeque;

use forerun_decode::{Decoder, Slot, Token};

/// Slots in which nothing is being made, the longest unused first.
#[derive(Debug, Default)]
pub(crate) struct Idle(VecDeque<Slot>);

impl Idle {
    pub(crate) fn new(slots: impl IntoIterator<Item = Slot>) -> Self {
        Self(slots.into_iter().collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Slot> {
        self.0.iter().copied()
    }

    /// Takes back the slot of a text that has ended or was suspended.
    pub(crate) fn put(&mut self, slot: Slot) {
        self.0.push_back(slot);
    }

    /// A slot for a text that begins with these tokens, with as many of them cached as any slot has;
    /// `busy` are the others. Nothing where all slots are busy.
    pub(crate) fn take(
        &mut self,
        decoder: &mut Decoder,
        tokens: &[Token],
        busy: impl Iterator<Item = Slot>,
    ) -> Option<Slot> {
        let shares = |slot: Slot| decoder.shares(slot, tokens);
        let best = (0..self.0.len()).max_by_key(|at| shares(self.0[*at]))?;
        // A slot most of whose text goes on is the place; another's text would be thrown away.
        let goes_on = 2 * shares(self.0[best]) >= decoder.cached_tokens(self.0[best]).len();
        let slot = self.0.remove(if goes_on { best } else { 0 })?;
        let idle = self.0.iter().copied().max_by_key(|slot| shares(*slot));
        let busy = busy.max_by_key(|slot| shares(*slot));
        for from in [idle, busy].into_iter().flatten() {
            decoder.share(from, slot, tokens);
        }
        Some(slot)
    }
}
