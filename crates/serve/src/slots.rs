//! Which slot a text gets: the prefix cache.
//!
//! A slot keeps what its last text left in the caches. A text that begins alike is put there, or,
//! where that would throw away a longer conversation or the slot is busy, gets a copy of the
//! beginning they share.

use std::collections::VecDeque;

use forerun_decode::{Decoder, Sequence, Slot, Token};

/// Sequences in whose slots nothing is being made, the longest unused first.
#[derive(Debug, Default)]
pub(crate) struct Idle(VecDeque<Sequence>);

impl Idle {
    pub(crate) fn new(sequences: impl IntoIterator<Item = Sequence>) -> Self {
        Self(sequences.into_iter().collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.0.iter()
    }

    /// Takes back a sequence whose text has ended.
    pub(crate) fn put(&mut self, sequence: Sequence) {
        self.0.push_back(sequence);
    }

    /// A sequence for this prompt and what came after it, begun, with as much of them cached as any
    /// slot has; `busy` are the others. Gives it with how many tokens are cached, or nothing where all slots are busy.
    pub(crate) fn take<'a>(
        &mut self,
        decoder: &mut Decoder,
        text: (Vec<Token>, &[Token]),
        output_len_max: usize,
        busy: impl Iterator<Item = &'a Sequence>,
    ) -> Option<(Sequence, usize)> {
        let (prompt, output) = text;
        let shares = |at: &usize| decoder.shares(self.0[*at].slot(), &prompt);
        let best = (0..self.0.len()).max_by_key(shares)?;
        // A slot most of whose text goes on is the place; another's text would be thrown away.
        let held = decoder.cached_tokens(self.0[best].slot()).len();
        let goes_on = 2 * shares(&best) >= held;
        let mut sequence = self.0.remove(if goes_on { best } else { 0 })?;
        sequence.resume(prompt, output, output_len_max);
        let most = |slot: &Slot| decoder.shares(*slot, sequence.tokens());
        let idle = self.0.iter().map(Sequence::slot).max_by_key(most);
        let busy = busy.map(Sequence::slot).max_by_key(most);
        for from in [idle, busy].into_iter().flatten() {
            decoder.share(from, &sequence);
        }
        let cached = sequence.tokens().len() - decoder.unread(&sequence);
        Some((sequence, cached))
    }
}
