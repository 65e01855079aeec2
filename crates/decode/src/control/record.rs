//! How often drafts were accepted, depth by depth, with the past fading.

use crate::commit::Commit;

/// How much of a sequence's own past stays when a round is added: some sixteen rounds count.
pub(super) const MEMORY_OWN: f64 = 0.94;
/// The same for what all sequences saw.
pub(super) const MEMORY_SHARED: f64 = 0.99;

/// Tokens after which half of a record is no longer believed, and how many draft tokens an
/// optimistic estimate believes at most: the distant past must not outweigh that things change.
const HALF_LIFE: f64 = 48.0;
const BELIEVED_MAX: f64 = 12.0;

/// What is believed of an arm without a record, and how firmly, in draft tokens.
const UNSEEN: f64 = 0.6;
const UNSEEN_WEIGHT: f64 = 2.0;
/// Draft tokens that must have been verified before an arm is used.
const KNOWN: f64 = 3.0;
/// How firmly records of narrower arms count for a wider one: what a further path brings is known
/// well enough not to try it again and again.
const COVERED_WEIGHT: f64 = 8.0;
/// What is believed of a round of an arm whose drafters heed their price, and how firmly, in rounds;
/// and how firmly the record of all sequences counts for one of them.
const UNSEEN_ACCEPTED: f64 = 2.0;
const UNSEEN_ROUNDS: f64 = 1.0;
const SHARED_ROUNDS: f64 = 4.0;
/// How firmly the record of all sequences counts for a new one, and that of all depths for one.
const SHARED_WEIGHT: f64 = 10.0;
const DEPTHS_WEIGHT: f64 = 8.0;

/// What an arm's rounds came to.
#[derive(Debug, Clone, Default)]
pub(super) struct Record {
    /// By depth: rounds that could draft it and had accepted all before it, and those that accepted
    /// it too.
    depths: Vec<(f64, f64)>,
    /// Rounds, those in which something was drafted, and the lengths that could be drafted.
    rounds: f64,
    drafting: f64,
    lens: f64,
    /// Drafted nodes, and those accepted.
    nodes: f64,
    accepted: f64,
    /// Tokens since it was last added to.
    pub(super) age: f64,
}

/// What a round of an arm usually comes to, in tokens.
#[derive(Debug, Clone, Copy)]
pub(super) struct Usual {
    pub(super) accepted: f64,
    pub(super) drafted: f64,
}

/// What is believed of rounds that nobody has seen, and how firmly, in rounds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unseen {
    pub(super) usual: Usual,
    pub(super) rounds: f64,
}

impl Unseen {
    /// Of an arm whose drafters heed their price.
    pub(super) const PRICED: Self = Self {
        usual: Usual { accepted: UNSEEN_ACCEPTED, drafted: UNSEEN_ACCEPTED / UNSEEN },
        rounds: UNSEEN_ROUNDS,
    };
}

/// How to estimate from an old record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Estimate {
    /// As it was.
    Mean,
    /// As if it had mostly been forgotten, and giving the benefit of the doubt.
    Optimistic,
}

impl Record {
    /// Adds a round that could draft paths of this length.
    pub(super) fn add(&mut self, commit: &Commit, len: usize, memory: f64) {
        self.fade(memory * self.trust());
        self.age = 0.0;
        self.rounds += 1.0;
        self.drafting += f64::from(u8::from(commit.drafted > 0));
        self.lens += len as f64;
        self.nodes += commit.drafted as f64;
        self.accepted += commit.accepted as f64;
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
        let rounds = [&mut self.rounds, &mut self.drafting, &mut self.lens];
        let tokens = [&mut self.nodes, &mut self.accepted];
        let depths = self.depths.iter_mut().flat_map(|(tries, hits)| [tries, hits]);
        rounds.into_iter().chain(tokens).chain(depths).for_each(|sum| *sum *= factor);
    }

    /// How much of it still counts.
    fn trust(&self) -> f64 {
        0.5f64.powf(self.age / HALF_LIFE)
    }

    /// By how much its sums count.
    fn factor(&self, estimate: Estimate) -> f64 {
        match estimate {
            Estimate::Mean => 1.0,
            Estimate::Optimistic => {
                let tries: f64 = self.depths.iter().map(|depth| depth.0).sum();
                self.trust() * (BELIEVED_MAX / tries.max(1.0)).min(1.0)
            }
        }
    }

    /// Tries and hits of all depths.
    fn total(&self, estimate: Estimate) -> (f64, f64) {
        let factor = self.factor(estimate);
        let sum = |of: fn(&(f64, f64)) -> f64| self.depths.iter().map(of).sum::<f64>() * factor;
        (sum(|depth| depth.0), sum(|depth| depth.1))
    }

    /// Whether the record is long enough to go by.
    pub(super) fn is_known(&self) -> bool {
        self.depths.iter().map(|depth| depth.0).sum::<f64>() >= KNOWN
    }

    /// Whether nothing was recorded.
    pub(super) fn is_empty(&self) -> bool {
        self.rounds == 0.0
    }

    /// Share of rounds in which something was drafted, by this and a record behind it.
    pub(super) fn drafting(&self, behind: &Self) -> f64 {
        let (rounds, drafting) = (self.rounds + behind.rounds, self.drafting + behind.drafting);
        (drafting + 1.0) / (rounds + 1.0)
    }

    /// What a round comes to, by this and a record behind it, and by what is believed without either.
    pub(super) fn usual(&self, behind: &Self, estimate: Estimate, unseen: Unseen) -> Usual {
        let mean = |rounds: f64, tokens: f64, prior: f64, weight: f64| {
            (tokens + weight * prior) / (rounds + weight)
        };
        let of = |tokens: fn(&Self) -> f64, believed: f64| {
            let record = |record: &Self, prior: f64, weight: f64| {
                let factor = record.factor(estimate);
                mean(factor * record.rounds, factor * tokens(record), prior, weight)
            };
            record(self, record(behind, believed, unseen.rounds), SHARED_ROUNDS)
        };
        let accepted = of(|record| record.accepted, unseen.usual.accepted);
        let drafted = of(|record| record.nodes, unseen.usual.drafted);
        Usual { accepted, drafted }
    }

    /// Nodes drafted for each depth that could be drafted, likewise; `unseen` without a record.
    pub(super) fn nodes_per_depth(&self, behind: &Self, unseen: f64) -> f64 {
        let (lens, nodes) = (self.lens + behind.lens, self.nodes + behind.nodes);
        (nodes + unseen) / (lens + 1.0)
    }
}

/// What is believed of an arm's acceptance.
#[derive(Debug, Clone)]
pub(super) struct Belief {
    /// A depth given those before it.
    overall: f64,
    /// By depth, tries and hits of the sequence itself.
    depths: Vec<(f64, f64)>,
    /// What an optimistic estimate adds.
    optimism: f64,
}

impl Belief {
    /// From the records of this sequence and of all sequences; `unseen` if both are empty.
    pub(super) fn new(
        own: &Record,
        shared: &Record,
        unseen: Option<f64>,
        estimate: Estimate,
    ) -> Self {
        let (tries, hits) = shared.total(estimate);
        let (unseen, firmly) =
            unseen.map_or((UNSEEN, UNSEEN_WEIGHT), |unseen| (unseen, COVERED_WEIGHT));
        let everyone = (hits + firmly * unseen) / (tries + firmly);
        let weight = (tries + firmly).min(SHARED_WEIGHT);
        let (tries, hits) = own.total(estimate);
        let overall = (hits + weight * everyone) / (tries + weight);
        // One standard deviation of what was seen.
        let spread = (overall * (1.0 - overall) / (tries + weight)).sqrt();
        let optimism = if estimate == Estimate::Optimistic { spread } else { 0.0 };
        let factor = own.factor(estimate);
        let depths = own.depths.iter().map(|(tries, hits)| (tries * factor, hits * factor));
        Self { overall, depths: depths.collect(), optimism }
    }

    /// The chance that a depth (from 0) is accepted, given that all before it were.
    pub(super) fn accepts(&self, depth: usize) -> f64 {
        let (tries, hits) = self.depths.get(depth).copied().unwrap_or((0.0, 0.0));
        let mean = (hits + DEPTHS_WEIGHT * self.overall) / (tries + DEPTHS_WEIGHT);
        (mean + self.optimism).clamp(0.0, 1.0)
    }

    /// The same, whatever the depth.
    pub(super) fn overall(&self) -> f64 {
        self.overall
    }
}
