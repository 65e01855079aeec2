//! The controller: what to draft in the next round, and whether to draft at all.
//!
//! For each choice of drafters, width and length it forecasts how many tokens a round commits, from
//! how often each depth was accepted lately, and how long the round takes, from the measured cost
//! of passes. It chooses the most tokens per second, plain decoding included. What is not in use is
//! tried again from time to time, at a bounded cost.
//!
//! Its choices depend on rounds that are over, never on the draft at hand, so they leave the
//! distribution of the output alone: each round is lossless for whatever plan it is given.
//!
//! With gates, every choice of a draft model comes in two kinds: paths of one length, and paths that a
//! gate ends where they no longer pay. The second is chosen where its rounds bring more.

mod forecast;
mod gated;
mod record;

use std::collections::BTreeMap;
use std::sync::Arc;

use forerun_verify::Rule;

use crate::commit::{Commit, Passes};
use crate::cost::{CostCurve, Pass};
use crate::draft::DrafterId;
use crate::gate::Gates;
use crate::policy::{DraftPolicy, Plan};
use crate::price::Price;

use forecast::Forecast;
pub use forecast::Load;
use record::{Estimate, Record};

/// Another choice must be better by this much to be taken.
const HYSTERESIS: f64 = 0.02;

/// Plain decoding must be better by this much than drafters that heed their price: where they are
/// unsure they draft nothing and cost nothing, and where they are sure again nobody else would know.
const PRICED_MARGIN: f64 = 0.05;

/// The share of the time that may be lost on trying what is not in use.
const TRIAL_SHARE: f64 = 0.01;

/// Trials that may be saved up, in tokens of plain decoding; and how many there are at first.
const SAVED_MAX: f64 = 6.0;
const SAVED_FIRST: f64 = 6.0;

/// A trial need not be longer to show whether it is of use. It is often shorter, where that promises
/// more; but where a pass over two tokens takes nearly as long as one over five, short drafts never
/// pay, and would show nothing of what longer ones bring.
const TRIAL_LEN: usize = 4;

/// A drafter that is tried again and is far behind prefills so many tokens: it drafts worse for it,
/// but shows whether things have changed. The first time it prefills all, as nothing is known of
/// it.
const TRIAL_PREFILL: usize = 32;

/// A gain over plain decoding below this is checked: a plain round after so many others shows what a
/// pass over one token takes now. Rounds that draft only guess it, and where the guess is too high,
/// drafts that do not pay seem to.
const CHECKED_GAIN: f64 = 1.3;
const CHECKED_AFTER: u32 = 12;

/// Tokens over which taking up a drafter has to pay for what it must prefill first.
const AHEAD_MAX: usize = 256;

/// Drafters that propose together, and how many paths those with a model draw.
///
/// ```
/// use forerun_decode::{Arm, DrafterId};
/// let arm = Arm { drafters: vec![DrafterId(0)], width: 2 };
/// assert!(arm.covers(&Arm { drafters: vec![DrafterId(0)], width: 1 }));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arm {
    /// The drafters.
    pub drafters: Vec<DrafterId>,
    /// The paths.
    pub width: usize,
}

impl Arm {
    /// Whether it drafts all that the other does, or more.
    pub fn covers(&self, other: &Self) -> bool {
        self.width >= other.width && other.drafters.iter().all(|it| self.drafters.contains(it))
    }
}

/// What rounds may cost: the curves of the target and of each drafter that has a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Costs {
    /// The target's.
    pub target: CostCurve,
    /// Those of drafters with a model.
    pub drafters: BTreeMap<DrafterId, CostCurve>,
}

impl Costs {
    /// Seconds that drafts of so many tokens add to a pass of `sequences`: drafting them, one pass
    /// for each token of a path, and scoring them.
    ///
    /// ```
    /// use std::collections::BTreeMap;
    /// use forerun_decode::{CostCurve, Costs, DrafterId};
    /// let curve = |seconds| CostCurve::new([(1, seconds), (9, 9.0 * seconds)]);
    /// let drafters = BTreeMap::from([(DrafterId(0), curve(1.0))]);
    /// let costs = Costs { target: curve(2.0), drafters };
    /// assert_eq!(costs.drafting(&[DrafterId(0)], 1, 4, 1), 4.0 * 1.0 + 4.0 * 2.0);
    /// assert_eq!(costs.drafting(&[DrafterId(1)], 1, 4, 1), 4.0 * 2.0);
    /// ```
    pub fn drafting(
        &self,
        drafters: &[DrafterId],
        width: usize,
        len: usize,
        sequences: usize,
    ) -> f64 {
        let models = drafters.iter().filter_map(|drafter| self.drafters.get(drafter));
        let drafted: f64 = models.clone().map(|it| len as f64 * it.seconds(width, 1)).sum();
        let paths = drafters.len() + models.count() * width.saturating_sub(1);
        let scored = self.target.seconds(sequences + len * paths, sequences);
        drafted + scored - self.target.seconds(sequences, sequences)
    }

    /// Takes a round's passes into account. A drafter that ran none follows the target: machines
    /// get slower and faster as a whole, and one that looks too expensive would never run any.
    pub fn observe(&mut self, passes: &Passes) {
        let plain = |pass: &Pass| pass.tokens == pass.sequences;
        let slowdown = passes.target.as_ref().map_or(1.0, |pass| {
            let moved = self.target.observe(pass);
            if plain(pass) { moved } else { 1.0 }
        });
        for (drafter, curve) in &mut self.drafters {
            let mut own = passes.drafters.iter().filter(|(of, _)| of == drafter).peekable();
            if own.peek().is_none() {
                curve.scale(slowdown);
            }
            for (_, pass) in own {
                curve.observe(pass);
            }
        }
    }
}

/// A drafter that may draft for a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Available {
    /// Which one.
    pub id: DrafterId,
    /// How many tokens it would have to prefill first.
    pub behind: usize,
    /// See [`crate::Drafter::heeds_price`].
    pub heeds_price: bool,
    /// See [`crate::Drafter::block_len`].
    pub block_len: Option<usize>,
}

/// What a choice for a sequence depends on beside what was learned.
#[derive(Debug, Clone, PartialEq)]
pub struct Outlook {
    /// How many more tokens are wanted.
    pub wanted: usize,
    /// Most tokens of a path that its request allows.
    pub draft_len_max: usize,
    /// Whether the first token is yet to come. Nothing is drafted for it, whatever is chosen, so
    /// there is nothing to learn from that round.
    pub first: bool,
    /// The drafters its request allows and that have not failed.
    pub drafters: Vec<Available>,
    /// What else is in the target's pass.
    pub load: Load,
    /// Whether a gate may end its paths: see [`crate::DraftPolicy::may_stop`].
    pub may_stop: bool,
    /// The temperature that its tokens are drawn at.
    pub temperature: f32,
}

/// What was chosen for a round.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// What it drafts.
    pub plan: Plan,
    /// The arm, by index; none for plain decoding.
    pub arm: Option<usize>,
    /// Whether it is a trial of what is not in use.
    pub trial: bool,
    /// Whether its drafters choose how much they draft, by [`Plan::price`].
    pub priced: bool,
    /// Tokens it is expected to commit.
    pub tokens: f64,
    /// Seconds it is expected to take, with what drafters must prefill first.
    pub seconds: f64,
    /// Seconds that one token takes in plain decoding.
    pub plain_seconds: f64,
    /// See [`Outlook::draft_len_max`].
    draft_len_max: usize,
    /// See [`Outlook::first`].
    pub(crate) first: bool,
    /// See [`Outlook::load`].
    load: Load,
    /// See [`Outlook::temperature`].
    temperature: f32,
}

impl Choice {
    /// Changes the draft length, also to zero: sequences that share a pass only as far as their
    /// drafts have one length do better with the same one. A plain choice stays plain.
    pub fn align(&mut self, len: usize) {
        if self.arm.is_none() {
            return;
        }
        self.plan.draft_len = len.min(self.draft_len_max);
        if len == 0 {
            self.plan = Plan::plain();
            (self.arm, self.trial) = (None, false);
        }
    }
}

/// Chooses for all sequences of a decoder.
#[derive(Debug, Clone)]
pub struct Controller {
    costs: Costs,
    arms: Vec<KnownArm>,
    draft_len_max: usize,
    /// Seconds that trials may still lose.
    saved: f64,
    /// What a token cost each drafter with a model at the start, in the target's.
    shares: BTreeMap<DrafterId, f64>,
    /// Rounds since a pass over one token for each sequence.
    since_plain: u32,
    /// What may end the paths of drafters with a model, if anything may.
    gates: Option<Gates>,
}

/// An arm, and what all sequences saw of it.
#[derive(Debug, Clone)]
struct KnownArm {
    arm: Arm,
    /// The arm that it is, but for a gate that ends its paths.
    gate_of: Option<usize>,
    record: Record,
}

/// What the controller knows of one sequence.
#[derive(Debug, Clone)]
pub struct History {
    /// For each of the controller's arms.
    arms: Vec<OwnArm>,
    /// The arm and length in use.
    current: Option<(Option<usize>, usize)>,
    /// Seconds that a token takes with what is in use.
    token_seconds: f64,
    /// Tokens committed since one was rejected.
    since_rejection: usize,
}

/// An arm as one sequence knows it.
#[derive(Debug, Clone)]
struct OwnArm {
    /// Whether the sequence may use it.
    allowed: bool,
    record: Record,
}

impl Controller {
    /// Chooses among these arms and plain decoding, and lengths up to `draft_len_max`.
    pub fn new(costs: Costs, arms: Vec<Arm>, draft_len_max: usize) -> Self {
        let known = |arm| KnownArm { arm, gate_of: None, record: Record::default() };
        let one = costs.target.seconds(1, 1);
        let saved = SAVED_FIRST * one;
        let share = |(id, curve): (&DrafterId, &CostCurve)| (*id, curve.seconds(1, 1) / one);
        let shares = costs.drafters.iter().map(share).collect();
        let arms = arms.into_iter().map(known).collect();
        Self { costs, arms, draft_len_max, saved, shares, since_plain: 0, gates: None }
    }

    /// For a sequence that begins and may use those of the arms that `may` admits.
    pub fn history(&self, may: impl Fn(&Arm) -> bool) -> History {
        let own = |it: &KnownArm| OwnArm { allowed: may(&it.arm), record: Record::default() };
        History {
            arms: self.arms.iter().map(own).collect(),
            current: None,
            token_seconds: self.costs.target.seconds(1, 1),
            since_rejection: 0,
        }
    }

    /// Returns the policy that allows all it may choose.
    pub fn policy(&self, rule: Arc<dyn Rule>) -> DraftPolicy {
        let mut drafters: Vec<DrafterId> =
            self.arms.iter().flat_map(|it| it.arm.drafters.iter().copied()).collect();
        drafters.sort_unstable();
        drafters.dedup();
        let width_max = self.arms.iter().map(|it| it.arm.width).max().unwrap_or(1);
        DraftPolicy::drafted(drafters, self.draft_len_max, rule).wide(width_max)
    }

    /// What passes cost, as it is known now.
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    /// Chooses what a sequence drafts in the next round.
    pub fn choose(&mut self, history: &mut History, outlook: &Outlook) -> Choice {
        let load = outlook.load;
        let plain = self.plain(load);
        let current = self.in_use(history, outlook, plain);
        history.current = Some((current.arm, current.len));
        history.token_seconds = current.seconds / current.tokens;
        let check = self.since_plain == CHECKED_AFTER
            && current.rate() < CHECKED_GAIN * plain.rate()
            && !outlook.first;
        let trial = if check { None } else { self.trial(history, outlook, current) };
        let in_use = if check { plain } else { current };
        let (forecast, drafter_prefill_max) = trial.unwrap_or((in_use, None));
        let prefill_max = drafter_prefill_max.unwrap_or(usize::MAX);
        let prefill = forecast.arm.map_or(0.0, |arm| self.prefill(arm, outlook, prefill_max));
        let arm = forecast.arm.map(|arm| &self.arms[arm].arm);
        let gates = self.watches(forecast.arm, history, outlook, current);
        let plan = arm.map_or_else(Plan::plain, |arm| Plan {
            gates,
            drafters: arm.drafters.clone(),
            draft_len: forecast.len,
            width: arm.width,
            drafter_prefill_max,
            // A trial also shows what passes cost.
            price: if trial.is_some() { Price::default() } else { self.price(current, load) },
        });
        Choice {
            plan,
            arm: forecast.arm,
            trial: trial.is_some(),
            priced: forecast.priced,
            tokens: forecast.tokens,
            seconds: forecast.seconds + prefill,
            plain_seconds: plain.seconds,
            draft_len_max: outlook.draft_len_max.min(self.draft_len_max),
            first: outlook.first,
            load,
            temperature: outlook.temperature,
        }
    }

    /// Learns what the passes of a round took. Other work may have slowed a drafter when it was last
    /// seen; at a price that is too high it would not be seen again. So while it does not run, its
    /// costs go back to the share of the target's that they were at the start.
    pub fn observe(&mut self, passes: &Passes) {
        self.costs.observe(passes);
        let plain = passes.target.is_some_and(|pass| pass.tokens == pass.sequences);
        // Where other sequences of the round draft nevertheless, the check waits as long again.
        let again = plain || self.since_plain == CHECKED_AFTER;
        self.since_plain = if again { 0 } else { self.since_plain + 1 };
        let one = self.costs.target.seconds(1, 1);
        for (id, curve) in self.costs.drafters.iter_mut().filter(|_| plain) {
            if passes.drafters.iter().all(|(ran, _)| ran != id) {
                curve.recover(one * self.shares.get(id).copied().unwrap_or(f64::INFINITY));
            }
        }
    }

    /// Learns what a round that is over did for a sequence. It took so many seconds in all.
    pub fn learn(&mut self, history: &mut History, choice: &Choice, commit: &Commit, seconds: f64) {
        if choice.first || commit.committed == 0 {
            return;
        }
        // A trial holds up all sequences of a round, and gains for one of them.
        let sequences = (1 + choice.load.sequences) as f64;
        let gained = history.token_seconds * (1.0 + (commit.committed - 1) as f64 / sequences);
        self.saved +=
            if choice.trial { gained - seconds } else { TRIAL_SHARE * seconds / sequences };
        self.saved = self.saved.min(SAVED_MAX * self.costs.target.seconds(1, 1));
        self.teach_gates(history, choice, commit);
        let tokens = commit.committed as f64;
        let own = history.arms.iter_mut().map(|arm| &mut arm.record);
        let shared = self.arms.iter_mut().map(|arm| &mut arm.record);
        own.chain(shared).for_each(|record| record.age += tokens);
        if let Some(arm) = choice.arm.filter(|_| commit.draft_len_max > 0) {
            let len = choice.plan.draft_len.min(commit.draft_len_max);
            history.arms[arm].record.add(commit, len, record::MEMORY_OWN);
            self.arms[arm].record.add(commit, len, record::MEMORY_SHARED);
        }
    }

    fn plain(&self, load: Load) -> Forecast {
        let seconds = load.seconds(&self.costs.target, 0.0);
        Forecast { arm: None, len: 0, priced: false, tokens: 1.0, seconds }
    }

    /// What is in use from now on: what was, unless something else is clearly better.
    fn in_use(&self, history: &History, outlook: &Outlook, plain: Forecast) -> Forecast {
        let load = outlook.load;
        let ahead = outlook.wanted.clamp(1, AHEAD_MAX) as f64;
        // What nobody has seen may be tried, at a bounded cost. Only drafters that heed their price are
        // used on trust.
        let priced = |arm: &usize| self.heeds_price(*arm, outlook);
        let trusted = |arm: &usize| priced(arm) || self.arms[*arm].record.is_known();
        let margin =
            if self.usable(history, outlook).any(|arm| priced(&arm)) { PRICED_MARGIN } else { 0.0 };
        let mut best = (plain, (1.0 + margin) * plain.seconds_for(ahead));
        let mut current = best;
        for arm in self.usable(history, outlook).filter(trusted) {
            // If all sequences take a drafter up, each waits for the prefill of the others.
            let prefill = (1 + load.sequences) as f64 * self.prefill(arm, outlook, usize::MAX);
            for forecast in self.forecasts(arm, history, outlook, Estimate::Mean) {
                let seconds = prefill + forecast.seconds_for(ahead);
                if history.current == Some((forecast.arm, forecast.len)) {
                    current = (forecast, seconds);
                }
                if seconds < best.1 {
                    best = (forecast, seconds);
                }
            }
        }
        let better = history.current.is_none() || best.1 < current.1 * (1.0 - HYSTERESIS);
        if better { best.0 } else { current.0 }
    }

    /// What is worth trying now, if there is something and it can be afforded; and how many tokens
    /// its drafters prefill at most, if not all.
    fn trial(
        &self,
        history: &History,
        outlook: &Outlook,
        current: Forecast,
    ) -> Option<(Forecast, Option<usize>)> {
        let arms = self.usable(history, outlook).filter(|arm| Some(*arm) != current.arm);
        let candidates =
            arms.flat_map(|arm| self.forecasts(arm, history, outlook, Estimate::Optimistic));
        // What heeds its price has one length, and loses little.
        let short = |it: &Forecast| it.priced || it.len <= current.len.max(TRIAL_LEN);
        let candidates = candidates.filter(short);
        let candidate = candidates.max_by(|one, other| one.rate().total_cmp(&other.rate()))?;
        let arm = candidate.arm?;
        // At worst all of it is rejected.
        let lost = |prefill_max| {
            let prefill = self.prefill(arm, outlook, prefill_max);
            prefill + candidate.seconds - current.seconds / current.tokens
        };
        let all = !self.arms[arm].record.is_known() && lost(usize::MAX) <= self.saved;
        let drafter_prefill_max = (!all).then_some(TRIAL_PREFILL);
        let worth = candidate.rate() > current.rate() && (all || lost(TRIAL_PREFILL) <= self.saved);
        worth.then_some((candidate, drafter_prefill_max))
    }

    /// What drafted tokens cost while a round brings what is forecast.
    fn price(&self, current: Forecast, load: Load) -> Price {
        let tokens =
            |nodes: usize| current.rate() * load.uneven_drafts(&self.costs.target, nodes as f64);
        Price::new((1..=self.draft_len_max.max(1)).map(tokens))
    }

    /// The arms that a sequence may use and whose drafters are available.
    fn usable<'a>(
        &'a self,
        history: &'a History,
        outlook: &'a Outlook,
    ) -> impl Iterator<Item = usize> + 'a {
        let available = |id: &DrafterId| outlook.drafters.iter().any(|drafter| drafter.id == *id);
        let known = self.arms.iter().zip(&history.arms).enumerate();
        let usable = known.filter(move |(_, (it, own))| {
            let gated = it.gate_of.is_none() || self.may_gate(&it.arm, outlook);
            own.allowed && gated && it.arm.drafters.iter().all(available)
        });
        usable.map(|(index, _)| index)
    }

    /// Seconds that the arm's drafters prefill before they can draft.
    fn prefill(&self, arm: usize, outlook: &Outlook, prefill_max: usize) -> f64 {
        let seconds = |id: &DrafterId| {
            let curve = self.costs.drafters.get(id)?;
            let drafter = outlook.drafters.iter().find(|drafter| drafter.id == *id)?;
            let tokens = drafter.behind.min(prefill_max);
            // The last of them is part of every draft.
            (tokens > 2).then(|| curve.seconds(tokens, 1) - curve.seconds(1, 1))
        };
        self.arms[arm].arm.drafters.iter().filter_map(seconds).sum()
    }
}

#[cfg(test)]
mod tests;
