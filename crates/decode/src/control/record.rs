//! How often drafts were accepted, depth by depth, with the past fading.

use crate::round::Commit;

/// How much of a text's own past stays when a round is added: some sixteen rounds count.
pub(super) const MEMORY_OWN: f64 = 0.94;
/// The same for what all texts saw.
pub(super) const MEMORY_SHARED: f64 = 0.99;

/// Tokens after which half of what was seen is no longer believed, and how many drafted tokens are
/// believed at most where hope asks: what lies long back must not outweigh that things change.
const HALF_LIFE: f64 = 48.0;
const BELIEVED_MAX: f64 = 12.0;

/// What is believed of an arm nobody has seen, and how firmly, in drafted tokens.
const UNSEEN: f64 = 0.6;
const UNSEEN_WEIGHT: f64 = 2.0;
/// Drafted tokens that must have been judged before an arm is used.
const KNOWN: f64 = 3.0;
/// How firmly narrower arms speak for a wider one: what a further path brings is known well enough
/// not to try it again and again.
const COVERED_WEIGHT: f64 = 8.0;
/// How firmly all texts speak for a new one, and all depths for one of them.
const SHARED_WEIGHT: f64 = 10.0;
const DEPTHS_WEIGHT: f64 = 8.0;

/// What an arm's rounds came to.
#[derive(Debug, Clone, Default)]
pub(super) struct Record {
    /// By depth: rounds that were asked for it and had accepted all before it, and those that
    /// accepted it too.
    depths: Vec<(f64, f64)>,
    /// Rounds, rounds in which something was drafted, and depths they were asked for.
    rounds: f64,
    spoke: f64,
    asked: f64,
    /// Drafted nodes.
    nodes: f64,
    /// Tokens since it was last added to.
    pub(super) age: f64,
}

/// How to read what was seen long ago.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mood {
    /// As it was.
    Even,
    /// As if it had mostly been forgotten, and giving the benefit of the doubt.
    Hopeful,
}

impl Record {
    /// Adds a round that was asked for paths of this length.
    pub(super) fn add(&mut self, commit: &Commit, len: usize, memory: f64) {
        self.fade(memory * self.trust());
        self.age = 0.0;
        self.rounds += 1.0;
        self.spoke += f64::from(u8::from(commit.drafted > 0));
        self.asked += len as f64;
        self.nodes += commit.drafted as f64;
        if self.depths.len() < len {
            self.depths.resize(len, (0.0, 0.0));
        }
        for (index, (tries, hits)) in self.depths.iter_mut().enumerate().take(len) {
            if commit.accepted >= index {
                *tries += 1.0;
                *hits += f64::from(u8::from(commit.accepted > index));
            }
        }
    }

    fn fade(&mut self, factor: f64) {
        let sums = [&mut self.rounds, &mut self.spoke, &mut self.asked, &mut self.nodes];
        let depths = self.depths.iter_mut().flat_map(|(tries, hits)| [tries, hits]);
        sums.into_iter().chain(depths).for_each(|sum| *sum *= factor);
    }

    /// How much of it still counts.
    fn trust(&self) -> f64 {
        0.5f64.powf(self.age / HALF_LIFE)
    }

    /// By how much its sums count.
    fn factor(&self, mood: Mood) -> f64 {
        match mood {
            Mood::Even => 1.0,
            Mood::Hopeful => {
                let tries: f64 = self.depths.iter().map(|depth| depth.0).sum();
                self.trust() * (BELIEVED_MAX / tries.max(1.0)).min(1.0)
            }
        }
    }

    /// Tries and hits of all depths.
    fn total(&self, mood: Mood) -> (f64, f64) {
        let factor = self.factor(mood);
        let sum = |of: fn(&(f64, f64)) -> f64| self.depths.iter().map(of).sum::<f64>() * factor;
        (sum(|depth| depth.0), sum(|depth| depth.1))
    }

    /// Whether enough was seen to go by.
    pub(super) fn is_known(&self) -> bool {
        self.depths.iter().map(|depth| depth.0).sum::<f64>() >= KNOWN
    }

    /// Whether anything was seen.
    pub(super) fn is_empty(&self) -> bool {
        self.rounds == 0.0
    }

    /// Share of rounds in which something was drafted, by this and a record behind it.
    pub(super) fn spoken(&self, behind: &Self) -> f64 {
        let (rounds, spoke) = (self.rounds + behind.rounds, self.spoke + behind.spoke);
        (spoke + 1.0) / (rounds + 1.0)
    }

    /// Nodes drafted for each depth asked for, likewise; `unseen` where nothing was.
    pub(super) fn nodes_per_depth(&self, behind: &Self, unseen: f64) -> f64 {
        let (asked, nodes) = (self.asked + behind.asked, self.nodes + behind.nodes);
        (nodes + unseen) / (asked + 1.0)
    }
}

/// What is believed of an arm's acceptance.
#[derive(Debug, Clone)]
pub(super) struct Belief {
    /// A depth given those before it.
    overall: f64,
    /// By depth, tries and hits of the text itself.
    depths: Vec<(f64, f64)>,
    /// What is added for hope.
    hope: f64,
}

impl Belief {
    /// From what this text saw and what all texts saw; `unseen` where neither saw anything.
    pub(super) fn new(own: &Record, shared: &Record, unseen: Option<f64>, mood: Mood) -> Self {
        let (tries, hits) = shared.total(mood);
        let (unseen, firmly) =
            unseen.map_or((UNSEEN, UNSEEN_WEIGHT), |unseen| (unseen, COVERED_WEIGHT));
        let everyone = (hits + firmly * unseen) / (tries + firmly);
        let weight = (tries + firmly).min(SHARED_WEIGHT);
        let (tries, hits) = own.total(mood);
        let overall = (hits + weight * everyone) / (tries + weight);
        // One standard deviation of what was seen.
        let spread = (overall * (1.0 - overall) / (tries + weight)).sqrt();
        let hope = if mood == Mood::Hopeful { spread } else { 0.0 };
        let factor = own.factor(mood);
        let depths = own.depths.iter().map(|(tries, hits)| (tries * factor, hits * factor));
        Self { overall, depths: depths.collect(), hope }
    }

    /// The chance that a depth (from 0) is accepted, given that all before it were.
    pub(super) fn accepts(&self, depth: usize) -> f64 {
        let (tries, hits) = self.depths.get(depth).copied().unwrap_or((0.0, 0.0));
        let mean = (hits + DEPTHS_WEIGHT * self.overall) / (tries + DEPTHS_WEIGHT);
        (mean + self.hope).clamp(0.0, 1.0)
    }

    /// The same, whatever the depth.
    pub(super) fn overall(&self) -> f64 {
        self.overall
    }
}
