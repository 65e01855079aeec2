//! Which slot a text gets: the prefix cache.
//!
//! A slot keeps what its last text left in the caches. A text that begins alike is put there, or,
//! where that would throw away a longer conversation or the slot is busy, gets a copy of the
//! beginning they share. Only texts of the same scope do so: what another left is forgotten first.

use std::collections::VecDeque;

use forerun_decode::{Decoder, Slot, Token};

use crate::job::Scope;

/// The slots, and whose tokens each holds.
#[derive(Debug)]
pub(crate) struct Slots {
    /// Those in which nothing is being made, the longest unused first.
    idle: VecDeque<Slot>,
    /// The scope of the last text of each.
    scopes: Vec<Scope>,
}

impl Slots {
    pub(crate) fn new(count: usize) -> Self {
        let slots = (0..u32::try_from(count).unwrap_or(u32::MAX)).map(Slot);
        Self { idle: slots.collect(), scopes: vec![Scope::Nobody; count] }
    }

    pub(crate) fn none_is_idle(&self) -> bool {
        self.idle.is_empty()
    }

    /// Those whose prefixes a text of this scope may use.
    pub(crate) fn of<'a>(&'a self, scope: &'a Scope) -> impl Iterator<Item = Slot> + 'a {
        (0..).map(Slot).zip(&self.scopes).filter(|(_, it)| scope.admits(it)).map(|(slot, _)| slot)
    }

    /// Takes back the slot of a text that has ended or was suspended.
    pub(crate) fn put(&mut self, slot: Slot) {
        self.idle.push_back(slot);
    }

    /// A slot for a text of this scope that begins with these tokens, with as many of them cached as
    /// any slot has that it may use. Nothing where all slots are busy.
    pub(crate) fn take(
        &mut self,
        decoder: &mut Decoder,
        tokens: &[Token],
        scope: &Scope,
    ) -> Option<Slot> {
        let shares = |slot: Slot| decoder.shares(slot, tokens);
        let own = |at: &usize| scope.admits(&self.scopes[self.idle[*at].0 as usize]);
        let best = (0..self.idle.len()).filter(own).max_by_key(|at| shares(self.idle[*at]));
        // A slot most of whose text goes on is the place; another's text would be thrown away.
        let goes_on = |at: &usize| {
            let slot = self.idle[*at];
            2 * shares(slot) >= decoder.cached_tokens(slot).len()
        };
        let slot = self.idle.remove(best.filter(goes_on).unwrap_or(0))?;
        if !scope.admits(&self.scopes[slot.0 as usize]) {
            decoder.forget(slot);
        }
        let from = self.of(scope).filter(|from| *from != slot);
        let from = from.max_by_key(|from| decoder.shares(*from, tokens));
        if let Some(from) = from {
            decoder.share(from, slot, tokens);
        }
        self.scopes[slot.0 as usize] = scope.clone();
        Some(slot)
    }
}
