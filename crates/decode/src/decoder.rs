//! A target, its drafters, and what is cached of which sequence. A round over them is in
//! `round.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use forerun_verify::Token;

use crate::cache::{Reuse, SlotCaches};
use crate::clock::{self, Clock};
use crate::control::Costs;
use crate::cost::CostCurve;
use crate::draft::Drafter;
use crate::drafters::Drafters;
use crate::engine::{Engine, Keep, Output, Slot};
use crate::error::DecodeError;
use crate::sequence::Sequence;

/// Most cached tokens of a sequence that run again to show their hidden states.
const RUN_AGAIN_MAX: usize = 8;

/// A target, its drafters, and the memory that rounds reuse.
pub struct Decoder {
    pub(crate) target: Box<dyn Engine>,
    pub(crate) drafters: Drafters,
    /// What the target's slots have cached.
    pub(crate) caches: SlotCaches,
    pub(crate) output: Output,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Decoder {
    /// A target, and the drafters that plans may name: their ids count from zero, in this order.
    ///
    /// # Errors
    /// If there are drafters but the target cannot forget what is rejected.
    pub fn new(
        target: Box<dyn Engine>,
        drafters: Vec<Box<dyn Drafter>>,
    ) -> Result<Self, DecodeError> {
        if !drafters.is_empty() && !target.can_cut() {
            return Err(DecodeError::CannotDraft);
        }
        let caches = SlotCaches::new(target.slot_count());
        let (drafters, output) = (Drafters::new(drafters), Output::default());
        Ok(Self { target, drafters, caches, output, clock: clock::system() })
    }

    /// Measures time by this clock, drafters included.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        for (_, drafter) in self.drafters.iter_mut() {
            drafter.use_clock(Arc::clone(&clock));
        }
        self.clock = clock;
        self
    }

    /// The clock that rounds are measured by.
    pub fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    /// The target.
    pub fn target(&self) -> &dyn Engine {
        &*self.target
    }

    /// The drafters.
    pub fn drafters(&self) -> &Drafters {
        &self.drafters
    }

    /// The drafters, to be told something.
    pub fn drafters_mut(&mut self) -> &mut Drafters {
        &mut self.drafters
    }

    /// Measures what passes cost. The caches must be empty, and are so afterwards.
    ///
    /// # Errors
    /// If a pass fails.
    pub fn measure(&mut self, may_take: Duration) -> Result<Costs, DecodeError> {
        let share = may_take / (1 + u32::try_from(self.drafters.len()).unwrap_or(u32::MAX - 1));
        let mut drafters = BTreeMap::new();
        let started = self.clock.now();
        for (id, drafter) in self.drafters.iter_mut() {
            let curve = drafter.measure(share.min(may_take / 3))?;
            drafters.extend(curve.map(|curve| (id, curve)));
        }
        let left = may_take.saturating_sub(self.clock.now() - started);
        let target = CostCurve::measure(&mut *self.target, left, &*self.clock);
        self.caches.clear();
        Ok(Costs { target: target?, drafters })
    }

    /// Copies the prefix of `tokens` that one slot has cached to another, for target and drafters,
    /// if the other has less of it and the engine can. Returns whether it did.
    pub fn share(&mut self, from: Slot, to: Slot, tokens: &[Token]) -> bool {
        let len = self.shares(from, tokens);
        let worth = from != to && len > self.shares(to, tokens);
        if !worth || !self.target.copy(from, to, len) {
            return false;
        }
        self.caches.copied(from, to, len);
        for (_, drafter) in self.drafters.iter_mut() {
            drafter.copy(from, to, len);
        }
        true
    }

    /// Forgets what a slot has cached, in the target and all drafters, so that the next sequence
    /// there uses and learns nothing of it.
    pub fn forget(&mut self, slot: Slot) {
        self.caches.extended(slot, 0, &[], &[]);
        for (_, drafter) in self.drafters.iter_mut() {
            drafter.forget(slot);
        }
    }

    /// How many of these tokens the target's slot has cached as a prefix, whoever left them there.
    pub fn shares(&self, slot: Slot, tokens: &[Token]) -> usize {
        self.caches.of(slot).shared(tokens)
    }

    /// How many tokens of a sequence the target has yet to run before the next can be drawn, or before
    /// those that are not scored yet can be.
    pub fn uncached_len(&self, sequence: &Sequence) -> usize {
        sequence.scored_len() - self.reuse(sequence).len
    }

    /// What of a sequence's cache its next pass keeps: nothing, if the memory cannot forget the rest. A
    /// drafter that reads hidden states may lack those of tokens that are cached: a few run again for it.
    pub(crate) fn reuse(&self, sequence: &Sequence) -> Reuse {
        // Tokens that are not scored yet run again, whoever has cached them, and the one before them
        // for its row.
        let (slot, tokens) = (sequence.slot(), &sequence.tokens[..sequence.scored_len()]);
        let cached = self.caches.of(slot);
        let reuse = cached.reuse(tokens);
        let forgets = |kept: usize| {
            kept == 0 || kept == cached.len() || self.target.can_forget(slot, cached.len() - kept)
        };
        if !forgets(reuse.len) {
            return Reuse { keep: Keep::Trunk(0), len: 0 };
        }
        if self.target.feature_len() == 0 {
            return reuse;
        }
        let shown = self.drafters.iter().filter_map(|(_, it)| it.shown_until(slot, tokens));
        let shown = shown.min().unwrap_or(usize::MAX);
        let few = (1..=RUN_AGAIN_MAX).contains(&reuse.len.saturating_sub(shown));
        let possible = shown <= cached.trunk().len() && forgets(shown);
        if few && possible { Reuse { keep: Keep::Trunk(shown), len: shown } } else { reuse }
    }

    /// The tokens the target's slot has cached; none after an error that lost the caches
    /// ([`crate::Caches::Lost`]).
    pub fn cached_tokens(&self, slot: Slot) -> &[Token] {
        self.caches.of(slot).trunk()
    }
}
