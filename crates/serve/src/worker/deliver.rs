//! What a round committed goes to those who wait for it: tokens, failures, statistics.

use std::time::Instant;

use forerun_decode::{Commit, Load, Round, Times};

use super::shares::Part;
use super::{Active, Phase, RoundDrafts, Worker};
use crate::error::Failure;
use crate::event::{Event, Progress};
use crate::metrics::Skipped;

impl Worker {
    /// Takes over what a round committed.
    pub(super) fn commit(&mut self, round: Round, seconds: f64, load: Load) {
        if let Some(controller) = &mut self.controller {
            controller.observe(&round.passes);
        }
        self.metrics.round(&round.times, seconds);
        let took_part = |index: &usize| self.active[*index].phase != Phase::Waiting;
        let places: Vec<usize> = (0..self.active.len()).filter(took_part).collect();
        let mut over = Vec::new();
        self.count(&places, &round.commits, seconds);
        for (index, commit) in places.into_iter().zip(round.commits) {
            let Active { history, drafts, generation, .. } = &mut self.active[index];
            if let (Some(controller), Some(history), RoundDrafts::Chosen(choice)) =
                (&mut self.controller, history, drafts)
            {
                controller.learn(history, choice, &commit, seconds);
                generation.chose(choice);
            }
            if !self.deliver(index, commit, round.times) {
                over.push(index);
            }
        }
        if let Some(controller) = &self.controller {
            let plain = load.seconds(&controller.costs().target, 0.0);
            self.metrics.speed(plain, seconds, load);
        }
        over.into_iter().rev().for_each(|index| self.leave(index));
    }

    /// Divides the time of a round among the clients of these sequences, by the tokens that the target ran
    /// for each.
    fn count(&mut self, places: &[usize], commits: &[Commit], seconds: f64) {
        let work = |commit: &Commit| (commit.prefilled + commit.drafted) as f64;
        let whole: f64 = commits.iter().map(work).sum::<f64>().max(1.0);
        // Those that waited had no part, and are there all the same.
        let mut parts: Vec<Part> = self.active.iter().map(|it| Part::none(it.client)).collect();
        for (index, commit) in places.iter().zip(commits) {
            let own = seconds * work(commit) / whole;
            let prefills = matches!(self.active[*index].phase, Phase::Prefill(_));
            parts[*index].seconds = own;
            parts[*index].prefill = if prefills { own } else { 0.0 };
        }
        self.shares.count(&parts, seconds);
    }

    /// Sends a sequence's new tokens. Returns `false` once it is over.
    fn deliver(&mut self, index: usize, commit: Commit, times: Times) -> bool {
        let context_len = self.decoder.target().context_len();
        let active = &mut self.active[index];
        if active.is_late(self.decoder.clock().now()) {
            active.generation.hurry();
        }
        let skipped = active.skipped(&commit);
        self.metrics.drafted(&commit, skipped);
        if commit.drafted > 0 {
            let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
            active.stats.drafts.push((count(commit.draft_len), count(commit.accepted)));
        }
        active.stats.predicted += commit.fixed_paths.iter().map(|it| it.predicted).sum::<usize>();
        let chunk = active.generation.committed(commit, times, context_len);
        active.stats.dropped.extend(chunk.dropped);
        active.stats.rounds = active.generation.stats().clone();
        active.has_new_line |= chunk.pieces.iter().any(|piece| piece.text.contains('\n'));
        let (count, finish) = (chunk.pieces.len(), chunk.finish);
        if count > 0 {
            let now = self.decoder.clock().now();
            match active.last.replace(now) {
                None => {
                    active.first = Some(now);
                    let (tenants, after) = (self.shares.tenants(), now - active.arrived);
                    self.metrics.first_token(after);
                    let name = tenants.of(active.client).and_then(|it| it.name());
                    tenants.metrics().first_token(name, after);
                }
                Some(last) => self.metrics.tokens(now - last, count),
            }
            self.metrics.generated(count);
            self.shares.tenants().decoded(active.client, count, now);
        } else if finish.is_none() {
            return true;
        }
        let (choice, stats) = (active.choice, active.stats.report(finish.is_some()));
        let stopped_by = active.generation.stopped_by().map(str::to_owned);
        let slot = active.generation.sequence().slot();
        let progress = Progress { choice, pieces: chunk.pieces, finish, stopped_by, slot, stats };
        if let Some(mode) = active.lossy.filter(|_| finish.is_some()) {
            self.metrics.spent(mode, &active.stats.rounds.spending);
        }
        // A client that does not read for so long that its queue is full is given up.
        let sent = active.events.try_send(Event::Progress(Box::new(progress))).is_ok();
        if sent && finish.is_none() {
            return true;
        }
        self.metrics.ended(&active.stats, active.arrived, finish.filter(|_| sent));
        if finish.is_some() {
            let sequence = active.generation.sequence();
            for (_, drafter) in self.decoder.drafters_mut().iter_mut() {
                drafter.ended(sequence.slot(), sequence.output());
            }
        }
        false
    }

    /// Runs a round for each sequence alone, after one for all failed.
    pub(super) fn one_by_one(&mut self) {
        let mut index = 0;
        while index < self.active.len() {
            let active = &mut self.active[index];
            if active.phase == Phase::Waiting {
                index += 1;
                continue;
            }
            let started = self.decoder.clock().now();
            let decoded = self.decoder.round(&mut [active.turn()]);
            let seconds = (self.decoder.clock().now() - started).as_secs_f64();
            match decoded {
                Ok(mut round) => {
                    self.count(&[index], &round.commits, seconds);
                    let commit = round.commits.pop().expect("one turn, one commit");
                    if self.deliver(index, commit, round.times) {
                        index += 1;
                    } else {
                        self.leave(index);
                    }
                }
                Err(error) => self.fail(index, error.into()),
            }
        }
    }

    pub(super) fn fail(&mut self, index: usize, failure: Failure) {
        let active = &self.active[index];
        tracing::error!(%failure, "a sequence failed");
        self.metrics.ended(&active.stats, active.arrived, None);
        let _ = active.events.try_send(Event::Failed(failure));
        self.leave(index);
    }
}

impl Active {
    /// Whether it may not go on beyond the next line break.
    fn is_late(&self, now: Instant) -> bool {
        let first = self.first.zip(self.predict_time);
        first.is_some_and(|(first, most)| now - first > most)
    }

    /// How much it drafts if no controller decides.
    pub(super) fn fixed_len(&self) -> usize {
        let policy = self.generation.policy();
        if policy.drafters.is_empty() { 0 } else { policy.draft_len_max }
    }

    /// Whether its constraint has no time for drafts.
    fn masks_are_slow(&self) -> bool {
        let mask_time = self.generation.sequence().mask_time();
        self.limits.mask_budget.is_some_and(|budget| 2 * mask_time > budget)
    }

    /// Why nothing was drafted, if nothing was.
    fn skipped(&self, commit: &Commit) -> Option<Skipped> {
        match commit {
            Commit { committed: 0, .. } => None,
            Commit { drafted: 1.., .. } => None,
            _ if self.refused => Some(Skipped::Requested),
            _ if self.generation.policy().drafters.is_empty() => Some(Skipped::NoDrafter),
            _ if self.last.is_none() => Some(Skipped::FirstToken),
            _ if !self.stats.dropped.is_empty() => Some(Skipped::DrafterFailed),
            Commit { draft_len_max: 0, .. } if self.masks_are_slow() => Some(Skipped::SlowMasks),
            Commit { draft_len_max: 0, .. } if self.history.is_some() || self.crowded => {
                Some(Skipped::DoesNotPay)
            }
            Commit { draft_len_max: 0, .. } => Some(Skipped::NoRoom),
            Commit { stopped: 1.., .. } => Some(Skipped::DoesNotPay),
            _ => Some(Skipped::NothingToSay),
        }
    }
}
