//! What each sequence does in a round, and for how long it may hold up the others.

use std::time::Duration;

use forerun_decode::{DraftPolicy, Limits, Load, Plan};

use super::prefill::PREFILL_MAX;
use super::{Active, PREFILL_SMALL, Phase, RoundDrafts, Worker};
use crate::request::Client;

/// How much longer a round may take because of drafts of a fixed length, if it serves a client that did
/// not ask for them.
const SLOWER_MAX: f64 = 1.5;

/// How long the masks of all constrained sequences may hold up a round. Drafts are kept short to stay within
/// it, and masks that take longer are worked out beside the rounds.
const MASK_STALL: Duration = Duration::from_millis(25);

impl Worker {
    /// Decides which sequences prefill and which decode in this round, and how much is prefilled.
    pub(super) fn assign_phases(&mut self) -> Load {
        let uncached = |active: &Active| self.decoder.uncached_len(active.generation.sequence());
        let decoding =
            self.active.iter().filter(|active| uncached(active) <= PREFILL_SMALL).count();
        let needs: Vec<usize> = self.active.iter().map(uncached).collect();
        let parts = self.divide_prefill(&needs, self.prefill_budget(decoding));
        for (active, (need, tokens)) in self.active.iter_mut().zip(needs.into_iter().zip(&parts)) {
            active.phase = Phase::Decode;
            active.limits = Limits { prefill_max: PREFILL_MAX, mask_budget: None };
            if need > PREFILL_SMALL {
                active.phase = if *tokens == 0 { Phase::Waiting } else { Phase::Prefill(*tokens) };
                active.limits.prefill_max = *tokens;
            }
        }
        self.share_mask_time();
        // Sequences that still prefill will decode in a moment: a drafter chosen for the few that decode
        // now would have prefilled them for nothing.
        let apart = self.decoder.target().paths_max() == 1;
        Load { sequences: self.active.len().saturating_sub(1), tokens: parts.iter().sum(), apart }
    }

    /// Divides the time for masks among the constrained sequences. One whose next mask needs longer waits
    /// until another thread has computed it. This changes when a sequence goes on, not its output.
    fn share_mask_time(&mut self) {
        let constrained = |active: &Active| {
            active.phase == Phase::Decode && active.generation.sequence().constraint.is_some()
        };
        let count = self.active.iter().filter(|active| constrained(active)).count();
        let share = MASK_STALL / u32::try_from(count.max(1)).unwrap_or(u32::MAX);
        for active in &mut self.active {
            active.limits.mask_budget = Some(share);
            if constrained(active) && !active.generation.prepare_mask(share) {
                active.phase = Phase::Waiting;
            }
        }
    }

    /// Decides what every sequence drafts in this round.
    pub(super) fn plan_drafts(&mut self, load: Load) {
        let prefilling: Vec<Client> = self
            .active
            .iter()
            .filter(|active| matches!(active.phase, Phase::Prefill(_)))
            .map(|active| active.client)
            .collect();
        for active in &mut self.active {
            active.drafts = match (&mut self.controller, &mut active.history) {
                (Some(controller), Some(history)) if active.phase == Phase::Decode => {
                    let mut outlook = active.generation.outlook(&self.decoder, load);
                    // No drafter reads what it missed while another client waits for its first token.
                    if prefilling.iter().any(|client| *client != active.client) {
                        outlook.drafters.retain(|drafter| drafter.behind <= PREFILL_SMALL);
                    }
                    RoundDrafts::Chosen(controller.choose(history, &outlook))
                }
                // Nothing was chosen for the round that ends its prefill.
                (_, Some(_)) => RoundDrafts::Fixed(Plan::plain()),
                _ => RoundDrafts::Fixed(active.generation.plan()),
            };
        }
        self.bound_drafts(load);
        self.align_draft_lengths(load);
    }

    /// Keeps drafts whose length a request has fixed so short that they make a round no more than
    /// [`SLOWER_MAX`] times as long, where that holds up a client that asked for no such drafts. Else
    /// they are as long as was asked for.
    fn bound_drafts(&mut self, load: Load) {
        let Some(controller) = &self.controller else { return };
        let asks = |active: &Active| {
            active.history.is_none() && !active.generation.policy().drafters.is_empty()
        };
        let drafts = |active: &Active| asks(active) && active.phase == Phase::Decode;
        let (asking, others): (Vec<&Active>, Vec<&Active>) =
            self.active.iter().partition(|active| asks(active));
        // One that was just served is likely to come again while a round goes on.
        let mut others: Vec<Client> = others.iter().map(|active| active.client).collect();
        let served = self.served.iter().map(|(client, _)| *client);
        others.extend(served.filter(|client| asking.iter().all(|active| active.client != *client)));
        let count = asking.iter().filter(|active| drafts(active)).count();
        let (sequences, target) = (1 + load.sequences, &controller.costs().target);
        let spare = (SLOWER_MAX - 1.0) * target.seconds(sequences, sequences);
        for active in self.active.iter_mut().filter(|active| drafts(active)) {
            let DraftPolicy { drafters, width_max, draft_len_max, .. } = active.generation.policy();
            let costs = |len: &usize| {
                // With cells of their own, sequences with drafts take a pass beside the others'.
                let pass = if load.apart { target.seconds(1, 1) } else { 0.0 };
                let drafting = controller.costs().drafting(drafters, *width_max, *len, sequences);
                pass + drafting <= spare / count as f64
            };
            let alone = others.iter().all(|client| *client == active.client);
            let within = (1..=*draft_len_max).take_while(|len| alone || costs(len)).last();
            let len = within.unwrap_or(0);
            active.crowded = len == 0;
            if let RoundDrafts::Fixed(plan) = &mut active.drafts {
                plan.draft_len = len;
            }
        }
    }

    /// With cells of their own, sequences share a pass only as far as their drafts are of one length: a
    /// longer one costs a pass more, which a few tokens hardly ever repay. So all take the middle one,
    /// and nobody drafts unless all do. Drafts that end where they no longer pay count that pass in
    /// their price, and are left alone.
    fn align_draft_lengths(&mut self, load: Load) {
        if self.controller.is_none() || !load.apart {
            return;
        }
        let priced =
            |drafts: &RoundDrafts| matches!(drafts, RoundDrafts::Chosen(choice) if choice.priced);
        let decoding = self.active.iter().filter(|active| active.phase == Phase::Decode);
        let decoding = decoding.filter(|active| !priced(&active.drafts));
        let len = |active: &Active| match &active.drafts {
            RoundDrafts::Chosen(choice) => choice.plan.draft_len,
            RoundDrafts::Fixed(_) => active.fixed_len(),
        };
        let mut lens: Vec<usize> = decoding.map(len).collect();
        lens.sort_unstable();
        let len = if lens.first() == Some(&0) {
            0
        } else {
            lens.get(lens.len() / 2).copied().unwrap_or(0)
        };
        for active in &mut self.active {
            match &mut active.drafts {
                RoundDrafts::Chosen(choice) if !choice.priced => choice.align(len),
                _ => {}
            }
        }
    }
}
