//! Who gets a slot, and who gives one up.
//!
//! A free slot goes to the client that holds the fewest. If there is none, and a client that waits
//! holds less than its share while another holds more, a sequence of the other is suspended: it keeps
//! its tokens and its random state, gives up its slot, and is prefilled again once it gets one, so
//! that its output is what it would have been (docs/adr/0017).

use std::time::{Duration, Instant};

use forerun_decode::{Arm, Drafts, Generation, Plan, Sequence, Slot, Token};

use super::{Active, Part, READ_SMALL, Waiting, Worker};
use crate::job::{Client, Job, Tally};

/// A prompt waits for another that shares so much more of it than is cached.
const WORTH_WAITING: usize = 64;

/// How long a client's share of the slots is kept for it once its last sequence has ended. A client that
/// sends one request after the other would otherwise find that each time its slot was given to a
/// sequence that first has to be prefilled.
const KEPT: Duration = Duration::from_millis(250);

impl Worker {
    /// Gives waiting texts the free slots, and those that others hold beyond their share.
    pub(super) fn admit(&mut self) {
        self.served.retain(|(_, ended)| ended.elapsed() < KEPT);
        loop {
            let may_begin = |waiting: &Waiting| !self.waits_for_another(waiting);
            let Some(client) = self.waiting.next(|client| self.held(client), may_begin) else {
                return;
            };
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
                Some(Waiting::New(job)) => self.begin(*job),
                Some(Waiting::Suspended(text)) => self.go_on(*text),
                None => return,
            }
        }
    }

    /// How many slots a client holds.
    fn held(&self, client: Client) -> usize {
        self.active.iter().filter(|text| text.client == client).count()
    }

    /// The text that gives its slot up to a client that waits: of the client that holds the most
    /// slots, the one begun last. None where that holds no more than its share, or the one that
    /// waits holds as much.
    fn victim(&self, waits: Client) -> Option<usize> {
        let share = self.share(std::iter::empty());
        let active = self.active.iter().map(|text| text.client);
        let richest = active.max_by_key(|client| self.held(*client))?;
        if self.held(waits) >= share || self.held(richest) <= share {
            return None;
        }
        self.active.iter().rposition(|text| text.client == richest)
    }

    /// The slots of each client, of those that wait or hold one and these.
    fn share(&self, more: impl Iterator<Item = Client>) -> usize {
        let active = self.active.iter().map(|text| text.client);
        let mut clients: Vec<Client> = Vec::new();
        for client in self.waiting.clients().chain(active).chain(more) {
            if !clients.contains(&client) {
                clients.push(client);
            }
        }
        (self.slot_count / clients.len().max(1)).max(1)
    }

    /// Whether a free slot is kept for somebody who was served a moment ago, and not for this client.
    fn is_kept_from(&self, client: Client) -> bool {
        let served = self.served.iter().map(|(client, _)| *client);
        let held = self.held(client);
        held > 0 && held >= self.share(served)
    }

    /// Whether a text in the making is about to read what this one begins with.
    fn waits_for_another(&self, waiting: &Waiting) -> bool {
        let Waiting::New(job) = waiting else { return false };
        let scope = job.scope();
        let slots = self.slots.of(&scope);
        let cached = slots.map(|slot| self.decoder.shares(slot, &job.prompt)).max();
        let own = self.active.iter().filter(|text| scope.admits(&text.scope));
        let busy = own.map(|text| text.generation.sequence());
        let coming = busy.filter(|other| self.decoder.unread(other) > READ_SMALL).map(|other| {
            let pairs = other.tokens().iter().zip(&job.prompt);
            pairs.take_while(|(one, other)| one == other).count()
        });
        coming.max().unwrap_or(0) >= cached.unwrap_or(0) + WORTH_WAITING
    }

    fn begin(&mut self, job: Job) {
        let (tokens, scope) = ([&*job.prompt, &*job.output].concat(), job.scope());
        let slot = self.slots.take(&mut self.decoder, &tokens, &scope);
        let Some(slot) = slot else { return };
        let mut sequence = Sequence::new(slot, job.sampling, job.drafting.plan.clone());
        sequence.resume(job.prompt, &job.output, job.output_len_max);
        sequence.constraint = job.constraint;
        sequence.logprobs = job.logprobs;
        self.predict(slot, &job.prediction);
        let cached = tokens.len() - self.decoder.unread(&sequence);
        self.metrics.prompt(tokens.len(), cached);
        let mut generation = Generation::resumed(sequence, job.reading, job.seed);
        if let Some(controller) = &self.controller {
            let rule = job.drafting.rule;
            let named = &job.drafting.plan.drafters;
            let Plan { width: width_max, scheme, .. } = job.drafting.plan;
            let paths_max = self.decoder.target().paths_max();
            generation = generation.paced(controller.pace(|arm| {
                let of_plan = arm.drafters.iter().all(|drafter| named.contains(drafter));
                let fits =
                    arm.width <= width_max && arm.drafters.len() + arm.width - 1 <= paths_max;
                of_plan && fits && rule.scheme(&drafts(arm, &self.models)) == Ok(scheme)
            }));
        }
        self.active.push(Active {
            client: job.client,
            scope,
            choice: job.choice,
            generation,
            events: job.events,
            arrived: job.arrived,
            deadline: job.deadline,
            adaptive: job.drafting.adaptive && self.controller.is_some(),
            refused: job.drafting.refused,
            plan: job.drafting.plan,
            prediction: job.prediction,
            tally: Tally { cached, ..Tally::default() },
            last: None,
            part: Part::Waits,
            crowded: false,
            _place: job.place,
        });
    }

    /// Takes a text's slot from it. It is the first of its client's to get one again.
    fn suspend(&mut self, index: usize) {
        let text = self.release(index);
        self.metrics.preempted();
        self.waiting.push_first(text.client, Waiting::Suspended(Box::new(text)));
    }

    /// Goes on with a text that was suspended.
    fn go_on(&mut self, mut text: Active) {
        let tokens = text.generation.sequence().tokens();
        let slot = self.slots.take(&mut self.decoder, tokens, &text.scope);
        let Some(slot) = slot else { return };
        text.generation.move_to(slot);
        self.predict(slot, &text.prediction);
        self.active.push(text);
    }

    /// Ends a text's part here.
    pub(super) fn leave(&mut self, index: usize) {
        let client = self.release(index).client;
        // A connection may be gone; a key comes again.
        if matches!(client, Client::Key(_)) {
            self.served.retain(|(known, _)| *known != client);
            self.served.push((client, Instant::now()));
        }
    }

    /// Gives a text's slot back.
    fn release(&mut self, index: usize) -> Active {
        let text = self.active.remove(index);
        let slot = text.generation.sequence().slot();
        self.predict(slot, &[]);
        self.slots.put(slot);
        text
    }

    fn predict(&mut self, slot: Slot, tokens: &[Token]) {
        for drafter in self.decoder.drafters() {
            drafter.predict(slot, tokens);
        }
    }
}

/// What an arm would draft, for a rule that is to judge it.
fn drafts(arm: &Arm, models: &[bool]) -> Drafts {
    Drafts {
        drafters: arm.drafters.len(),
        has_model: arm.drafters.iter().any(|drafter| models[*drafter]),
        // That was asked when the request came.
        may_stop: false,
        width: arm.width,
        paths: None,
    }
}
