//! The controller: what to draft in the next round, and whether to draft at all.
//!
//! For each choice of drafters, width and length it forecasts how many tokens a round commits, from
//! how often each depth was accepted lately, and how long the round takes, from the measured cost
//! of passes. It takes the choice with the most tokens a second, plain decoding among them. What is
//! not in use is tried again from time to time, at a cost that is bounded.
//!
//! Its choices depend on rounds that are over, never on the draft at hand, so they leave the law of
//! the output alone: each round is lossless for whatever plan it is given.

mod forecast;
mod record;

use crate::cost::{CostCurve, Pass};
use crate::round::{Commit, Passes};
use crate::sequence::Sequence;

use forecast::Forecast;
pub use forecast::Load;
use record::Record;

/// Another choice must be better by this much to be taken.
const HYSTERESIS: f64 = 0.02;

/// The share of the time that may be lost on trying what is not in use.
const TRIAL_SHARE: f64 = 0.01;

/// Trials that may be saved up, in tokens of plain decoding; and what there is to begin with.
const SAVED_MAX: f64 = 6.0;
const SAVED_FIRST: f64 = 6.0;

/// A trial need not be longer to show whether it is of use, and costs less.
const TRIAL_LEN: usize = 2;

/// A drafter that is tried again and is far behind reads so many tokens: it drafts worse for it, but
/// shows whether things have changed. The first time it reads all, as nothing is known of it.
const GLANCE: usize = 32;

/// Tokens over which taking up a drafter has to pay for what it must read first.
const AHEAD_MAX: usize = 256;

/// Drafters that propose together, and how many paths those with a model draw.
///
/// ```
/// use forerun_decode::Arm;
/// let arm = Arm { drafters: vec![0], width: 2 };
/// assert!(arm.covers(&Arm { drafters: vec![0], width: 1 }));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arm {
    /// The drafters, by the decoder's index.
    pub drafters: Vec<usize>,
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
    /// The drafters', by index.
    pub drafters: Vec<Option<CostCurve>>,
}

impl Costs {
    /// Seconds that drafts of so many tokens add to a pass of `sequences`: drafting them, one pass
    /// for each token of a path, and scoring them.
    ///
    /// ```
    /// use forerun_decode::{CostCurve, Costs};
    /// let curve = |seconds| CostCurve::new([(1, seconds), (9, 9.0 * seconds)]);
    /// let costs = Costs { target: curve(2.0), drafters: vec![Some(curve(1.0)), None] };
    /// assert_eq!(costs.drafting(&[0], 1, 4, 1), 4.0 * 1.0 + 4.0 * 2.0);
    /// assert_eq!(costs.drafting(&[1], 1, 4, 1), 4.0 * 2.0);
    /// ```
    pub fn drafting(&self, drafters: &[usize], width: usize, len: usize, sequences: usize) -> f64 {
        let curve = |drafter: &usize| self.drafters.get(*drafter)?.as_ref();
        let models = drafters.iter().filter_map(curve);
        let drafted: f64 = models.clone().map(|it| len as f64 * it.seconds(width, 1)).sum();
        let paths = drafters.len() + models.count() * width.saturating_sub(1);
        let scored = self.target.seconds(sequences + len * paths, sequences);
        drafted + scored - self.target.seconds(sequences, sequences)
    }

    /// Takes a round's passes into account. A drafter that ran none goes by the target's: machines
    /// get slower and faster as a whole, and one that looks too dear would never run any.
    pub fn observe(&mut self, passes: &Passes) {
        let plain = |pass: &Pass| pass.tokens == pass.sequences;
        let pace = passes.target.as_ref().map_or(1.0, |pass| {
            let moved = self.target.observe(pass);
            if plain(pass) { moved } else { 1.0 }
        });
        for (drafter, curve) in self.drafters.iter_mut().enumerate() {
            let Some(curve) = curve else { continue };
            let mut own = passes.drafters.iter().filter(|(of, _)| *of == drafter).peekable();
            if own.peek().is_none() {
                curve.scale(pace);
            }
            for (_, pass) in own {
                curve.observe(pass);
            }
        }
    }
}

/// What was chosen for a round.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Choice {
    /// The arm, by index; none for plain decoding.
    pub arm: Option<usize>,
    /// Tokens of a path.
    pub len: usize,
    /// Whether it is a trial of what is not in use.
    pub trial: bool,
    /// Tokens it is expected to commit, and the seconds it is expected to take, with what drafters
    /// must read first.
    pub tokens: f64,
    /// The latter.
    pub seconds: f64,
    /// Seconds a token takes in plain decoding.
    pub plain_seconds: f64,
}

/// Chooses for all sequences of a decoder.
#[derive(Debug, Clone)]
pub struct Controller {
    costs: Costs,
    arms: Vec<Arm>,
    len_max: usize,
    /// What all sequences saw of each arm.
    shared: Vec<Record>,
    /// Seconds that trials may still lose.
    saved: f64,
}

/// What the controller knows of one text.
#[derive(Debug, Clone)]
pub struct Pace {
    /// The arms it may not use.
    barred: Vec<bool>,
    /// What this text saw of each arm.
    own: Vec<Record>,
    /// The arm and length in use.
    current: Option<(Option<usize>, usize)>,
    choice: Choice,
    /// Seconds a token takes with what is in use.
    token_seconds: f64,
    /// Drafters it must not use: they failed.
    shunned: Vec<usize>,
}

impl Controller {
    /// Chooses among these arms and plain decoding, and lengths up to `len_max`.
    pub fn new(costs: Costs, arms: Vec<Arm>, len_max: usize) -> Self {
        let shared = vec![Record::default(); arms.len()];
        let saved = SAVED_FIRST * costs.target.seconds(1, 1);
        Self { costs, arms, len_max, shared, saved }
    }

    /// For a text that begins and may use these of the arms.
    pub fn pace(&self, may: impl Fn(&Arm) -> bool) -> Pace {
        Pace {
            barred: self.arms.iter().map(|arm| !may(arm)).collect(),
            own: vec![Record::default(); self.arms.len()],
            current: None,
            choice: Choice::default(),
            token_seconds: self.costs.target.seconds(1, 1),
            shunned: Vec::new(),
        }
    }

    /// What passes cost, as it is known now.
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    /// Chooses for the next round and changes the sequence's plan accordingly. `behind` says how
    /// many tokens each drafter would have to read before it could draft; `load` what else is in the
    /// target's pass.
    pub fn choose(
        &mut self,
        pace: &mut Pace,
        sequence: &mut Sequence,
        behind: &[usize],
        load: Load,
    ) -> Choice {
        let ahead = sequence.wanted().clamp(1, AHEAD_MAX) as f64;
        let texts = (1 + load.sequences) as f64;
        let plain = self.plain(load);
        let mut best = (plain, plain.seconds_for(ahead));
        let mut current = (plain, plain.seconds_for(ahead));
        // What nobody has seen may be tried, at a cost that is bounded; it is not used on trust.
        for arm in self.alive(pace).filter(|arm| self.shared[*arm].is_known()) {
            // Where all take a drafter up, each waits for what it reads of the others.
            let read = texts * self.reading(arm, behind, usize::MAX);
            for forecast in self.forecasts(arm, pace, load, record::Mood::Even) {
                let using = pace.current == Some((forecast.arm, forecast.len));
                let seconds = read + forecast.seconds_for(ahead);
                if using {
                    current = (forecast, seconds);
                }
                if seconds < best.1 {
                    best = (forecast, seconds);
                }
            }
        }
        if pace.current.is_none() || best.1 < current.1 * (1.0 - HYSTERESIS) {
            current = best;
        }
        let current = current.0;
        pace.current = Some((current.arm, current.len));
        pace.token_seconds = current.seconds / current.tokens;
        let chosen = self.trial(pace, behind, load, current);
        let trial = chosen.is_some();
        let (forecast, glance) = chosen.unwrap_or((current, None));
        let most = glance.unwrap_or(usize::MAX);
        let read = forecast.arm.map_or(0.0, |arm| self.reading(arm, behind, most));
        let Forecast { arm, len, tokens, seconds } = forecast;
        let (seconds, plain_seconds) = (seconds + read, plain.seconds);
        pace.choice = Choice { arm, len, trial, tokens, seconds, plain_seconds };
        let plan = &mut sequence.plan;
        plan.draft_len = forecast.len;
        plan.glance = glance;
        match forecast.arm {
            None => plan.drafters.clear(),
            Some(arm) => {
                plan.drafters.clone_from(&self.arms[arm].drafters);
                plan.width = self.arms[arm].width;
            }
        }
        pace.choice
    }

    /// Changes the length of what was chosen, to nothing too: where texts share a pass only as far as
    /// their drafts are of one length, they are better of one mind. What is plain stays so. Gives what
    /// it came to.
    pub fn settle(&self, pace: &mut Pace, sequence: &mut Sequence, len: usize) -> Choice {
        let len = len.min(self.len_max);
        if pace.choice.arm.is_none() || pace.choice.len == len {
            return pace.choice;
        }
        pace.choice.len = len;
        sequence.plan.draft_len = len;
        if len == 0 {
            (pace.choice.arm, pace.choice.trial) = (None, false);
            sequence.plan.drafters.clear();
        }
        pace.choice
    }

    /// Learns what the passes of a round took.
    pub fn observe(&mut self, passes: &Passes) {
        self.costs.observe(passes);
    }

    /// Learns what a round that is over did for a text. It took so many seconds, all told, and had
    /// this load besides.
    pub fn learn(&mut self, pace: &mut Pace, commit: &Commit, seconds: f64, load: Load) {
        pace.shunned.extend(commit.dropped.iter().map(|drop| drop.drafter));
        if commit.committed == 0 {
            return;
        }
        let Choice { arm, len, trial, .. } = pace.choice;
        // A trial holds up all texts of a round, and gains for one of them.
        let texts = (1 + load.sequences) as f64;
        let gained = pace.token_seconds * (1.0 + (commit.committed - 1) as f64 / texts);
        self.saved += if trial { gained - seconds } else { TRIAL_SHARE * seconds / texts };
        self.saved = self.saved.min(SAVED_MAX * self.costs.target.seconds(1, 1));
        let tokens = commit.committed as f64;
        for record in pace.own.iter_mut().chain(&mut self.shared) {
            record.age += tokens;
        }
        if let Some(arm) = arm.filter(|_| commit.asked > 0) {
            let len = len.min(commit.asked);
            pace.own[arm].add(commit, len, record::MEMORY_OWN);
            self.shared[arm].add(commit, len, record::MEMORY_SHARED);
        }
    }

    fn plain(&self, load: Load) -> Forecast {
        let seconds = load.seconds(&self.costs.target, 0.0);
        Forecast { arm: None, len: 0, tokens: 1.0, seconds }
    }

    /// What is worth trying now, where there is something and it can be afforded; and how much of
    /// the text is read for it, where not all.
    fn trial(
        &self,
        pace: &Pace,
        behind: &[usize],
        load: Load,
        current: Forecast,
    ) -> Option<(Forecast, Option<usize>)> {
        let arms = self.alive(pace).filter(|arm| Some(*arm) != current.arm);
        let hopes = arms.flat_map(|arm| self.forecasts(arm, pace, load, record::Mood::Hopeful));
        let hopes = hopes.filter(|hope| hope.len <= current.len.max(TRIAL_LEN));
        let hope = hopes.max_by(|one, other| one.rate().total_cmp(&other.rate()))?;
        let arm = hope.arm?;
        // At worst all of it is rejected.
        let lost = |most| {
            self.reading(arm, behind, most) + hope.seconds - current.seconds / current.tokens
        };
        let all = !self.shared[arm].is_known() && lost(usize::MAX) <= self.saved;
        let glance = (!all).then_some(GLANCE);
        let worth = hope.rate() > current.rate() && (all || lost(GLANCE) <= self.saved);
        worth.then_some((hope, glance))
    }

    /// The arms it may use and whose drafters have not failed.
    fn alive<'a>(&'a self, pace: &'a Pace) -> impl Iterator<Item = usize> + 'a {
        let well = |arm: &Arm| !arm.drafters.iter().any(|drafter| pace.shunned.contains(drafter));
        (0..self.arms.len()).filter(move |arm| !pace.barred[*arm] && well(&self.arms[*arm]))
    }

    /// Seconds the arm's drafters read before they can draft.
    fn reading(&self, arm: usize, behind: &[usize], most: usize) -> f64 {
        let read = |drafter: &usize| {
            let curve = self.costs.drafters.get(*drafter)?.as_ref()?;
            let tokens = behind.get(*drafter)?.min(&most);
            // The last of them is part of every draft.
            (*tokens > 2).then(|| curve.seconds(*tokens, 1) - curve.seconds(1, 1))
        };
        self.arms[arm].drafters.iter().filter_map(read).sum()
    }
}

#[cfg(test)]
mod tests;
