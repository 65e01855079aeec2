//! Who gets a slot, and who gives one up.
//!
//! A free slot goes to the client of the highest priority, and among these to the one that holds the
//! fewest for its weight. If there is none, and a client that waits holds less than its share while
//! another holds more, or another has a lower priority, a sequence of the other is suspended: it keeps
//! its tokens and its random state, gives up its slot, and is prefilled again once it gets one, so
//! that its output is what it would have been (docs/adr/0017, 0051).

use std::cmp::Ordering;
use std::hash::BuildHasher as _;
use std::time::Duration;

use forerun_decode::{
    Arm, Decoder, Drafts, Generation, History, Limits, Plan, Sequence, Slot, Tenant, Token,
};

use super::{Active, PREFILL_SMALL, Phase, RoundDrafts, Waiting, Worker};
use crate::event::SequenceStats;
use crate::request::{Client, Drafting, Scope, SequenceRequest};

/// A prompt waits for another one if that shares this many more tokens with it than are cached.
const WORTH_WAITING: usize = 64;

/// How long a client's share of the slots is kept for it once its last sequence has ended. A client that
/// sends one request after the other would otherwise find that each time its slot was given to a
/// sequence that first has to be prefilled.
const KEPT: Duration = Duration::from_millis(250);

impl Worker {
    /// Gives waiting sequences the free slots, and those that others hold beyond their share.
    pub(super) fn admit(&mut self) {
        let now = self.decoder.clock().now();
        self.served.retain(|(_, ended)| now - *ended < KEPT);
        loop {
            let may_begin = |waiting: &Waiting| !self.waits_for_another(waiting);
            let order = |one, other| self.order(one, other);
            let Some(client) = self.waiting.next(order, may_begin) else { return };
            let victim = match self.slots.none_is_idle() {
                true => self.victim(client),
                false => None,
            };
            if self.slots.none_is_idle() && victim.is_none() || self.is_kept_from(client) {
                return;
            }
            let taken = {
                // The queue is taken out for as long as it is asked about the worker.
                let mut queue = std::mem::take(&mut self.waiting);
                let taken = queue.take(client, |waiting| !self.waits_for_another(waiting));
                self.waiting = queue;
                taken
            };
            if let Some(victim) = victim {
                self.suspend(victim);
            }
            self.metrics.left_queue();
            match taken {
                Some(Waiting::New(request)) => self.begin(*request),
                Some(Waiting::Suspended(active)) => self.go_on(*active),
                None => return,
            }
        }
    }

    /// How many slots a client holds.
    fn held(&self, client: Client) -> usize {
        self.active.iter().filter(|active| active.client == client).count()
    }

    /// Which of two clients gets a free slot first.
    pub(super) fn order(&self, one: Client, other: Client) -> Ordering {
        self.shares.order((one, self.held(one)), (other, self.held(other)))
    }

    /// The clients that have something to decode.
    pub(super) fn present(&self) -> Vec<Client> {
        let active = self.active.iter().map(|active| active.client);
        let mut present: Vec<Client> = self.waiting.clients().chain(active).collect();
        present.sort_unstable();
        present.dedup();
        present
    }

    /// The sequence that gives its slot up to a client that waits: one of a lower priority, or of a
    /// client that holds more than its share where the one that waits holds less. Of several clients it
    /// is one of the last to get a slot, and of its sequences the one begun last.
    fn victim(&self, waits: Client) -> Option<usize> {
        let rank = self.shares.priority(waits);
        let may_take = self.held(waits) < self.share(waits, std::iter::empty());
        let gives = |client: &Client| match self.shares.priority(*client).cmp(&rank) {
            Ordering::Less => true,
            Ordering::Equal => {
                may_take && self.held(*client) > self.share(*client, std::iter::empty())
            }
            Ordering::Greater => false,
        };
        let active = self.active.iter().map(|active| active.client).filter(gives);
        let last = active.max_by(|one, other| self.order(*one, *other))?;
        self.active.iter().rposition(|active| active.client == last)
    }

    /// The slots of a client, by its weight among those of its priority that wait or hold one and these.
    /// Higher priorities have theirs first.
    pub(super) fn share(&self, client: Client, more: impl Iterator<Item = Client>) -> usize {
        let rank = self.shares.priority(client);
        let active = self.active.iter().map(|active| active.client);
        let above = active.clone().filter(|it| self.shares.priority(*it) > rank).count();
        let mut clients: Vec<Client> = self.waiting.clients().chain(active).chain(more).collect();
        clients.push(client);
        clients.retain(|it| self.shares.priority(*it) == rank);
        clients.sort_unstable();
        clients.dedup();
        let weights: usize = clients.iter().map(|it| self.shares.weight(*it)).sum();
        ((self.slot_count - above) * self.shares.weight(client) / weights).max(1)
    }

    /// Whether a free slot is kept for somebody who was served a moment ago, and not for this client.
    fn is_kept_from(&self, client: Client) -> bool {
        let served = self.served.iter().map(|(client, _)| *client);
        let held = self.held(client);
        held > 0 && held >= self.share(client, served)
    }

    /// Whether another sequence is about to prefill what this one begins with.
    pub(super) fn waits_for_another(&self, waiting: &Waiting) -> bool {
        let Waiting::New(request) = waiting else { return false };
        let scope = request.scope(self.shares.tenants());
        let slots = self.slots.of(&scope);
        let cached = slots.map(|slot| self.decoder.shares(slot, &request.prompt)).max();
        let own = self.active.iter().filter(|active| scope.admits(&active.scope));
        let busy = own.map(|active| active.generation.sequence());
        let coming =
            busy.filter(|other| self.decoder.uncached_len(other) > PREFILL_SMALL).map(|other| {
                let pairs = other.tokens().iter().zip(&request.prompt);
                pairs.take_while(|(one, other)| one == other).count()
            });
        coming.max().unwrap_or(0) >= cached.unwrap_or(0) + WORTH_WAITING
    }

    fn begin(&mut self, request: SequenceRequest) {
        let tokens = [&*request.prompt, &*request.output].concat();
        let scope = request.scope(self.shares.tenants());
        let slot = self.slots.take(&mut self.decoder, &tokens, &scope);
        let Some(slot) = slot else { return };
        let mut sequence = Sequence::new(slot, request.settings.sampling.clone());
        sequence.resume(request.prompt, &request.output, request.output_len_max);
        sequence.constraint = request.constraint;
        sequence.logprobs = request.logprobs;
        self.tell_drafters(slot, &request.prediction, &scope);
        let cached = tokens.len() - self.decoder.uncached_len(&sequence);
        self.metrics.prompt(tokens.len(), cached);
        let history = self.history(&request.drafting);
        let Drafting { policy, refused, lossy, .. } = request.drafting;
        let generation = Generation::resumed(sequence, policy, request.reading, request.seed);
        self.begun += 1;
        self.active.push(Active {
            id: self.begun,
            client: request.client,
            scope,
            choice: request.choice,
            generation,
            events: request.events,
            arrived: request.arrived,
            deadline: request.deadline,
            predict_time: request.predict_time,
            history,
            refused,
            lossy,
            prediction: request.prediction,
            settings: request.settings,
            has_new_line: false,
            stats: SequenceStats { cached, ..SequenceStats::default() },
            first: None,
            last: None,
            phase: Phase::Waiting,
            drafts: RoundDrafts::Fixed(Plan::plain()),
            limits: Limits::default(),
            crowded: false,
            _permit: request.permit,
        });
    }

    /// What the controller is to know of a sequence, if it chooses for it.
    fn history(&self, drafting: &Drafting) -> Option<History> {
        let Drafting { policy, rule, .. } = drafting;
        let paths_max = self.decoder.target().paths_max();
        let may = |arm: &Arm| {
            let fits =
                arm.width <= policy.width_max && arm.drafters.len() + arm.width - 1 <= paths_max;
            fits && rule.scheme(&drafts(arm, &self.decoder)) == Ok(policy.scheme)
        };
        let controller = self.controller.as_ref().filter(|_| drafting.adaptive)?;
        Some(controller.history(may))
    }

    /// Takes a sequence's slot from it. It is the first of its client's to get one again.
    fn suspend(&mut self, index: usize) {
        let active = self.release(index);
        self.metrics.preempted();
        self.waiting.push_first(active.client, Waiting::Suspended(Box::new(active)));
    }

    /// Goes on with a sequence that was suspended.
    fn go_on(&mut self, mut active: Active) {
        let tokens = active.generation.sequence().tokens();
        let slot = self.slots.take(&mut self.decoder, tokens, &active.scope);
        let Some(slot) = slot else { return };
        active.generation.move_to(slot);
        self.tell_drafters(slot, &active.prediction, &active.scope);
        self.active.push(active);
    }

    /// Ends a sequence's part here.
    pub(super) fn leave(&mut self, index: usize) {
        let client = self.release(index).client;
        // A connection may be gone; a key comes again.
        if matches!(client, Client::Tenant(_)) {
            self.served.retain(|(known, _)| *known != client);
            self.served.push((client, self.decoder.clock().now()));
        }
    }

    /// Gives a sequence's slot back.
    fn release(&mut self, index: usize) -> Active {
        let active = self.active.remove(index);
        let slot = active.generation.sequence().slot();
        self.tell_drafters(slot, &[], &Scope::Nobody);
        self.slots.put(slot);
        active
    }

    /// Tells all drafters what is expected of the sequence in a slot, and whose it is.
    fn tell_drafters(&mut self, slot: Slot, prediction: &[Token], scope: &Scope) {
        let tenant = scope.learns(self.anonymous_share).then(|| self.tenants.hash_one(scope));
        for (_, drafter) in self.decoder.drafters_mut().iter_mut() {
            drafter.predict(slot, prediction);
            drafter.share(slot, tenant.map(Tenant));
        }
    }
}

/// What an arm would draft, for a rule that is to judge it.
fn drafts(arm: &Arm, decoder: &Decoder) -> Drafts {
    Drafts {
        drafters: arm.drafters.len(),
        has_model: arm.drafters.iter().any(|id| decoder.drafters()[*id].kind().is_model()),
        // That was asked when the request came.
        may_stop: false,
        width: arm.width,
        paths: None,
    }
}
