//! What each text does in a round, and for how long it may hold up the others.

use std::time::Duration;

use forerun_decode::{Load, Plan};

use super::{Active, Part, READ_SMALL, Worker};
use crate::job::Client;

/// How long prefill may hold up sequences that decode, a round; and if none does, whoever comes next.
const STALL: Duration = Duration::from_millis(100);
const ROUND_MAX: Duration = Duration::from_millis(250);

/// How many times as long as without them drafts whose length a request has fixed may make a round that
/// serves a client that asked for none.
const SLOWER_MAX: f64 = 1.5;

/// How long the masks of all constrained texts may hold up a round. Drafts are kept short to stay within
/// it, and masks that take longer are worked out beside the rounds.
const MASK_STALL: Duration = Duration::from_millis(25);

/// Tokens of prompts read in a round: at least while others wait, and at most.
const READ_MIN: usize = 32;
const READ_MAX: usize = 512;

impl Worker {
    /// Decides who reads and who speaks, and how much is read.
    pub(super) fn share_out(&mut self) -> Load {
        let unread = |text: &Active| self.decoder.unread(text.generation.sequence());
        let speaking = self.active.iter().filter(|text| unread(text) <= READ_SMALL).count();
        let time = if speaking == 0 { ROUND_MAX } else { STALL };
        let budget = match &self.controller {
            Some(controller) => controller.costs().target.tokens_within(time.as_secs_f64()),
            None if speaking == 0 => READ_MAX,
            None => READ_MIN,
        };
        let mut budget = budget.clamp(READ_MIN, READ_MAX);
        let mut order: Vec<(usize, usize)> = self.active.iter().map(unread).zip(0..).collect();
        order.sort_unstable();
        let mut reading = order.len() - speaking;
        let mut read = 0;
        // All prompts go on alike, so a short one does not wait until a long one is through.
        for (unread, index) in order {
            let text = &mut self.active[index];
            text.part = Part::Speaks;
            text.generation.read_at_most(READ_MAX);
            if unread > READ_SMALL {
                let tokens = unread.min(budget.div_ceil(reading));
                (budget, reading, read) = (budget - tokens, reading - 1, read + tokens);
                text.part = if tokens == 0 { Part::Waits } else { Part::Reads(tokens) };
                text.generation.read_at_most(tokens);
            }
        }
        self.ration_masks();
        // Those that still read will speak in a moment: a drafter taken up for the few that do now
        // would have read their texts for nothing.
        Load { sequences: self.active.len().saturating_sub(1), tokens: read }
    }

    /// Shares out the time for masks. Who needs longer for its next mask waits until that was worked
    /// out on another thread. It changes when a text goes on, not what it says.
    fn ration_masks(&mut self) {
        let constrained = |text: &Active| {
            text.part == Part::Speaks && text.generation.sequence().constraint.is_some()
        };
        let count = self.active.iter().filter(|text| constrained(text)).count();
        let share = MASK_STALL / u32::try_from(count.max(1)).unwrap_or(u32::MAX);
        for text in self.active.iter_mut().filter(|text| constrained(text)) {
            if !text.generation.mask_within(share) {
                text.part = Part::Waits;
            }
        }
    }

    /// Has every text's plan for this round decided.
    pub(super) fn choose(&mut self, load: Load) {
        for text in &mut self.active {
            match &mut self.controller {
                Some(controller) if text.adaptive && text.part == Part::Speaks => {
                    text.generation.choose(&mut self.decoder, controller, load);
                }
                _ => {}
            }
        }
        self.bound_drafts(load);
        self.be_of_one_mind();
    }

    /// Keeps drafts whose length a request has fixed so short that they make a round no more than
    /// [`SLOWER_MAX`] times as long, where that holds up a client that asked for no such drafts. Else
    /// they are as long as was asked for.
    fn bound_drafts(&mut self, load: Load) {
        let Some(controller) = &self.controller else { return };
        let asks = |text: &Active| !text.adaptive && !text.plan.drafters.is_empty();
        let drafts = |text: &Active| asks(text) && text.part == Part::Speaks;
        let (asking, others): (Vec<&Active>, Vec<&Active>) =
            self.active.iter().partition(|text| asks(text));
        // One that was just served is likely to come again while a round goes on.
        let mut others: Vec<Client> = others.iter().map(|text| text.client).collect();
        let served = self.served.iter().map(|(client, _)| *client);
        others.extend(served.filter(|client| asking.iter().all(|text| text.client != *client)));
        let count = asking.iter().filter(|text| drafts(text)).count();
        let (sequences, target) = (1 + load.sequences, &controller.costs().target);
        let spare = (SLOWER_MAX - 1.0) * target.seconds(sequences, sequences);
        // With cells of their own, sequences with drafts take a pass beside the others'.
        let apart = self.decoder.target().paths_max() == 1;
        for text in self.active.iter_mut().filter(|text| drafts(text)) {
            let Plan { drafters, width, draft_len, .. } = &text.plan;
            let costs = |len: &usize| {
                let pass = if apart { target.seconds(1, 1) } else { 0.0 };
                let drafting = controller.costs().drafting(drafters, *width, *len, sequences);
                pass + drafting <= spare / count as f64
            };
            let alone = others.iter().all(|client| *client == text.client);
            let within = (1..=*draft_len).take_while(|len| alone || costs(len)).last();
            let len = within.unwrap_or(0);
            text.crowded = len == 0;
            text.generation.draft_at_most(len);
        }
    }

    /// With cells of their own, texts share a pass only as far as their drafts are of one length: a
    /// longer one costs a pass more, which it hardly ever repays. So all take the middle one, and
    /// nobody drafts unless all do.
    fn be_of_one_mind(&mut self) {
        let Some(controller) = &self.controller else { return };
        if self.decoder.target().paths_max() > 1 {
            return;
        }
        let speaking = self.active.iter().filter(|text| text.part == Part::Speaks);
        let mut lens: Vec<usize> =
            speaking.map(|text| text.generation.chosen().unwrap_or(text.fixed_len())).collect();
        lens.sort_unstable();
        let len = if lens.first() == Some(&0) {
            0
        } else {
            lens.get(lens.len() / 2).copied().unwrap_or(0)
        };
        self.active.iter_mut().for_each(|text| text.generation.settle(controller, len));
    }
}
