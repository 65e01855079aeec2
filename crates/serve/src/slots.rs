//! Which slot a sequence gets: the prefix cache.
//!
//! A slot keeps the KV cache of its last sequence. A sequence with the same prefix continues there.
//! If the slot is busy, or most of a longer conversation would be lost, another slot gets a copy of
//! the prefix. Only sequences of one scope share prefixes: a slot of another scope is emptied
//! first.

use std::collections::VecDeque;

use forerun_decode::{Decoder, Slot, Token};

use crate::request::Scope;

/// The slots, and whose tokens each holds.
#[derive(Debug)]
pub(crate) struct Slots {
    /// Those that no sequence uses, the longest unused first.
    idle: VecDeque<Slot>,
    /// The scope of the last sequence of each.
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

    /// How many slots no sequence holds.
    #[cfg(test)]
    pub(crate) fn idle_count(&self) -> usize {
        self.idle.len()
    }

    /// Those whose prefixes a sequence of this scope may use.
    pub(crate) fn of<'a>(&'a self, scope: &'a Scope) -> impl Iterator<Item = Slot> + 'a {
        (0..).map(Slot).zip(&self.scopes).filter(|(_, it)| scope.admits(it)).map(|(slot, _)| slot)
    }

    /// Takes back the slot of a sequence that has ended or was suspended.
    pub(crate) fn put(&mut self, slot: Slot) {
        self.idle.push_back(slot);
    }

    /// Returns a slot for a sequence of this scope that begins with these tokens, with as many of
    /// them cached as any slot that it may use has; `None` if all slots are busy.
    pub(crate) fn take(
        &mut self,
        decoder: &mut Decoder,
        tokens: &[Token],
        scope: &Scope,
    ) -> Option<Slot> {
        let shares = |slot: Slot| decoder.shares(slot, tokens);
        let own = |at: &usize| scope.admits(&self.scopes[self.idle[*at].0 as usize]);
        let best = (0..self.idle.len()).filter(own).max_by_key(|at| shares(self.idle[*at]));
        // Reuse a slot only if most of its tokens are shared: else a longer conversation would be
        // lost.
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
