//! How much of whose prompts is prefilled in a round.
//!
//! Prompts of a client go on alike. Tenants beside each other have their share of the time for it: one
//! that has prefilled for longer pauses, also for a moment in which another is likely to come again, and of
//! the others the one that prefilled least goes first (docs/adr/0051).

use std::time::{Duration, Instant};

use super::{Active, PREFILL_SMALL, Worker};
use crate::request::Client;

/// How long prefill may take in a round if sequences decode, and if none does.
const STALL: Duration = Duration::from_millis(100);
const ROUND_MAX: Duration = Duration::from_millis(250);

/// Prompt tokens that are prefilled in a round: at least while sequences decode, at least while none
/// does, and at most. A slow machine exceeds its time with the first two: in smaller portions, a
/// prompt would take it far longer, and all who wait with it.
pub(super) const PREFILL_MIN: usize = 128;
pub(super) const PREFILL_ALONE_MIN: usize = 256;
pub(super) const PREFILL_MAX: usize = 512;

/// Prompt tokens that a tenant prefills in a round beside others if it has nothing saved up: what it
/// begins, they must wait for.
const PREFILL_UNSAVED: usize = 32;

/// How long a tenant that has prefilled for longer than its share waits for one that was just served. A client
/// that sends one request after the other comes again within it.
const COMES_AGAIN: Duration = Duration::from_millis(30);

impl Worker {
    /// How many prompt tokens are prefilled in a round in which so many sequences decode.
    pub(super) fn prefill_budget(&self, decoding: usize) -> usize {
        let alone = decoding == 0 && !self.serves_several_tenants();
        let (time, least) = match alone {
            true => (ROUND_MAX, PREFILL_ALONE_MIN),
            false => (STALL, PREFILL_MIN),
        };
        let budget = match &self.controller {
            Some(controller) => controller.costs().target.tokens_within(time.as_secs_f64()),
            None if alone => PREFILL_MAX,
            None => PREFILL_MIN,
        };
        budget.clamp(least, PREFILL_MAX)
    }

    /// Whether tenants are served beside each other. One that was just served is likely to come again,
    /// and then waits for the round at hand.
    fn serves_several_tenants(&self) -> bool {
        let active = self.active.iter().map(|active| active.client);
        let clients = active.chain(self.served.iter().map(|(client, _)| *client));
        let mut tenants = clients.filter(is_tenant);
        tenants.next().is_some_and(|first| tenants.any(|other| other != first))
    }

    /// Divides a budget of prompt tokens among sequences that need so many each.
    pub(super) fn divide_prefill(&self, needs: &[usize], mut budget: usize) -> Vec<usize> {
        let goes_on = |index: &usize| {
            needs[*index] > PREFILL_SMALL && !self.pauses_prefill(&self.active[*index], needs)
        };
        let mut order: Vec<usize> = (0..needs.len()).filter(goes_on).collect();
        let saved = |index: usize| self.shares.prefill_left(self.active[index].client);
        order.sort_by(|one, other| {
            let least_first = saved(*other).total_cmp(&saved(*one));
            least_first.then(needs[*one].cmp(&needs[*other]))
        });
        let (mut parts, mut portion) = (vec![0; needs.len()], 0);
        let several = self.serves_several_tenants();
        // Prompts go on alike, so a short one does not wait until a long one is through.
        for (at, &index) in order.iter().enumerate() {
            let is_first = at == 0 || !self.go_on_alike(order[at - 1], index);
            if is_first {
                let saved_little = several && saved(index) < STALL.as_secs_f64();
                portion = budget.min(if saved_little { PREFILL_UNSAVED } else { usize::MAX });
            }
            let alike = order[at..].iter().filter(|it| self.go_on_alike(**it, index)).count();
            parts[index] = needs[index].min(portion.div_ceil(alike));
            budget -= parts[index];
            portion -= parts[index];
        }
        parts
    }

    /// Whether two sequences share what there is alike: those of one tenant, or of no tenant.
    fn go_on_alike(&self, one: usize, other: usize) -> bool {
        let tenant = |index: usize| Some(self.active[index].client).filter(is_tenant);
        tenant(one) == tenant(other)
    }

    /// Whether a sequence does not prefill in this round: its client has prefilled for longer than its
    /// share of the time, and a sequence of another client, of no lower priority, can go on or is about to come.
    fn pauses_prefill(&self, active: &Active, needs: &[usize]) -> bool {
        let client = active.client;
        let has_share = |client| self.shares.prefill_left(client) >= 0.0;
        let yields_to = |other: Client| {
            other != client && self.shares.priority(other) >= self.shares.priority(client)
        };
        let goes_on = |(other, need): (&Active, &usize)| {
            yields_to(other.client) && (*need <= PREFILL_SMALL || has_share(other.client))
        };
        let now = self.decoder.clock().now();
        let comes_again =
            |(other, ended): &(Client, Instant)| yields_to(*other) && now - *ended < COMES_AGAIN;
        !has_share(client)
            && (self.active.iter().zip(needs).any(goes_on) || self.served.iter().any(comes_again))
    }
}

fn is_tenant(client: &Client) -> bool {
    matches!(client, Client::Tenant(_))
}
