//! The gate: decides, before a drafted token is drawn, whether it is worth drawing.
//!
//! Two small logistic models say how likely a drafted token is accepted: one before it is drawn, from
//! the drafter's row, and one after, from the row and the token. Every round that verifies a draft
//! yields examples for both, whatever its rule. A path goes on while what it is expected to bring is
//! worth more than what it costs.
//!
//! A path is ended by what leads to its end: rows and tokens above, and earlier rounds. So whether a
//! node goes on is a function of the node, as every [`forerun_verify::Scheme`] but that of whole paths
//! allows. Nothing that was drawn is dropped, and no path looks at another.

mod auc;
mod book;
mod logistic;

use forerun_verify::{Block, Dist, Node, Token};

use crate::drafter_id::DrafterId;
use crate::price::Price;
use auc::Auc;
pub use book::{BookError, Gates, SavedFit, SavedGate, SavedGates};
use logistic::{Example, Logistic};

/// What is known before a draw, and after it.
const ROW: usize = 6;
const TOKEN: usize = 8;

/// Examples that must have been seen before a gate ends paths, and after how many it is fitted again.
const READY: f64 = 64.0;
const BATCH: usize = 32;

/// How much of earlier examples stays when a batch is added: some fifteen hundred count.
const MEMORY: f64 = 0.98;

/// An example that counts less than this is left out.
const WEIGHT_MIN: f64 = 0.01;

/// The share of what one path of several leaves unaccepted that the next does not accept either.
const FURTHER_PATH: f64 = 0.8;

/// Logits this far below the largest add nothing to what is known of a row.
const LOGIT_DEPTH: f32 = 16.0;
/// How many ranks are told apart.
const RANKS: usize = 8;
/// Logits that are looked at together: nearly all blocks have nothing of interest.
const SCANNED: usize = 32;

/// What is known of a draft row before a token is drawn from it: how sure the drafter is, whatever the
/// temperature.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RowView {
    likeliest: Token,
    best: f64,
    entropy: f64,
    /// How far the largest logits are below the largest.
    gaps: [f64; RANKS],
}

impl RowView {
    /// Of logits after bias, penalties and masks, which are a distribution.
    pub(crate) fn of(logits: &[f32]) -> Self {
        let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let (mut sum, mut gap_sum) = (0.0_f64, 0.0_f64);
        let mut gaps = [f64::INFINITY; RANKS];
        let mut likeliest = None;
        let bar = highest - LOGIT_DEPTH;
        for (block, logits) in logits.chunks(SCANNED).enumerate() {
            if !logits.iter().fold(false, |any, logit| any | (*logit > bar)) {
                continue;
            }
            for (index, logit) in logits.iter().enumerate().filter(|(_, logit)| **logit > bar) {
                if *logit == highest {
                    likeliest = likeliest.or(Some(block * SCANNED + index));
                }
                let gap = f64::from(highest - logit);
                let weight = (-gap).exp();
                sum += weight;
                gap_sum += gap * weight;
                if gap < gaps[RANKS - 1] {
                    let at = gaps.partition_point(|known| *known <= gap);
                    gaps[at..].rotate_right(1);
                    gaps[at] = gap;
                }
            }
        }
        let likeliest = Token(u32::try_from(likeliest.unwrap_or(0)).unwrap_or(0));
        Self { likeliest, best: 1.0 / sum, entropy: sum.ln() + gap_sum / sum, gaps }
    }

    /// How far below the largest logit a token's is that has this probability in a row of it.
    fn gap(&self, probability: f64, row: &Dist, temperature: f64) -> f64 {
        (temperature * (row.prob(self.likeliest) / probability).ln()).max(0.0)
    }

    /// What a prediction before the draw goes by.
    fn features(&self, depth: usize, since_rejection: usize) -> [f64; ROW] {
        let odds = (self.best / (1.0 - self.best).max(1e-6)).ln();
        let margin = self.best * (1.0 - (-self.gaps[1]).exp());
        let since = (since_rejection + depth) as f64;
        [1.0, odds / 4.0, margin, self.entropy / 3.0, depth as f64 / 4.0, since.ln_1p() / 3.0]
    }
}

/// What weights a fit came to, as a round uses them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Fitted {
    row: [f64; ROW],
    token: [f64; TOKEN],
    /// How likely a token is accepted of which nothing is known.
    mean: f64,
}

/// What decides for a drafter in one round how far paths go.
///
/// It is made from rounds that are over, and stays as it is while the round draws.
#[derive(Debug, Clone, PartialEq)]
pub struct Watch {
    pub(crate) drafter: DrafterId,
    pub(crate) fitted: Fitted,
    /// Tokens committed since one was rejected.
    pub(crate) since_rejection: usize,
    /// What paths must be worth; none if it only looks.
    pub(crate) worth: Option<Worth>,
}

/// What drafted tokens cost, in tokens that the same time would commit.
#[derive(Debug, Clone, PartialEq)]
pub struct Worth {
    /// Of scoring nodes.
    pub scored: Price,
    /// Of one pass of the drafter.
    pub pass: f64,
    /// Paths that share both.
    pub width: usize,
}

/// Where a path ends so far, as a gate sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PathEnd {
    /// How likely all of it is accepted.
    pub(crate) reach: f64,
    pub(crate) depth: usize,
    pub(crate) len_max: usize,
    /// How many paths end there.
    pub(crate) paths: usize,
}

/// A drafted token, as it is looked at when it is drawn.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SeenToken {
    pub(crate) node: Node,
    features: [f64; TOKEN],
}

/// A drafted token and whether it was accepted, for the drafter's gate.
#[derive(Debug, Clone, PartialEq)]
pub struct Lesson {
    pub(crate) drafter: DrafterId,
    example: Example<TOKEN>,
}

impl Lesson {
    /// Of a token that was accepted with this chance, if those before it were, which counts so much.
    pub(crate) fn new(drafter: DrafterId, seen: &SeenToken, hit: f64, weight: f64) -> Self {
        Self { drafter, example: Example { features: seen.features, hit, weight } }
    }
}

impl Watch {
    /// Whether it ends paths, or only looks.
    pub fn stops(&self) -> bool {
        self.worth.is_some()
    }

    /// Whether a token is to be drawn from the row after a path.
    pub(crate) fn draws(&self, end: &PathEnd, view: &RowView) -> bool {
        let features = view.features(end.depth, self.since_rejection);
        let chance = logistic::chance(&self.fitted.row, &features);
        self.worth.as_ref().is_none_or(|worth| worth.goes_on(end, chance, self.fitted.mean, 0.0))
    }

    /// Whether the drafter is to run once more after a path.
    pub(crate) fn runs(&self, end: &PathEnd) -> bool {
        let mean = self.fitted.mean;
        self.worth.as_ref().is_none_or(|worth| worth.goes_on(end, mean, mean, 1.0))
    }

    /// Looks at a token that was drawn from a row with this probability. Returns what to learn from
    /// later, and how likely it is accepted.
    pub(crate) fn look(&self, node: Node, depth: usize, drawn: &Drawn) -> (SeenToken, f64) {
        let before = drawn.view.features(depth, self.since_rejection);
        let slack = 1e-3 * (1.0 + drawn.gap);
        let rank = drawn.view.gaps.iter().filter(|gap| **gap < drawn.gap - slack).count();
        let mut features = [0.0; TOKEN];
        features[..ROW].copy_from_slice(&before);
        features[ROW] = drawn.gap.min(f64::from(LOGIT_DEPTH)) / 4.0;
        features[ROW + 1] = (rank as f64).ln_1p() / 2.0;
        (SeenToken { node, features }, logistic::chance(&self.fitted.token, &features))
    }
}

/// A token that was drawn, and the row it was drawn from.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Drawn {
    view: RowView,
    /// How far its logit is below the largest.
    gap: f64,
}

impl Drawn {
    pub(crate) fn new(view: &RowView, row: &Dist, probability: f64, temperature: f32) -> Self {
        let gap = view.gap(probability, row, f64::from(temperature));
        Self { view: view.clone(), gap }
    }
}

impl Worth {
    /// Whether a path brings more than it costs if it goes on by one token or more. The next is
    /// accepted with chance `next`, those after it with `mean`; so many passes come before it.
    fn goes_on(&self, end: &PathEnd, next: f64, mean: f64, passes: f64) -> bool {
        let width = self.width.max(1);
        // Paths that end in one place all try.
        let further = FURTHER_PATH.powf(end.paths.saturating_sub(1) as f64);
        let mut reach = end.reach;
        let mut brought = 0.0;
        let left = end.len_max.saturating_sub(end.depth);
        (1..=left).any(|tokens| {
            let chance = if tokens == 1 { next } else { mean };
            reach *= 1.0 - (1.0 - chance) * further;
            brought += reach;
            let nodes = |depth: usize| self.scored.of(depth * width);
            let scored = nodes(end.depth + tokens) - nodes(end.depth);
            let run = self.pass * (passes + (tokens - 1) as f64);
            // Several paths share what a depth costs.
            brought > (scored + run) / width as f64
        })
    }
}

/// What the tokens of a draft teach, now that the target's rows are known: how likely each was
/// accepted once all before it were.
pub(crate) fn lessons(block: &Block<'_>, seen: &[(DrafterId, SeenToken)]) -> Vec<Lesson> {
    let draft = block.draft();
    let mut accepted = vec![1.0; draft.len() + 1];
    let mut reached = vec![1.0; draft.len() + 1];
    for (node, token, parent) in draft.nodes() {
        let drafted = draft.drawn_from(node).map_or(1.0, |row| row.prob(token));
        accepted[node.index()] = (block.target(parent).prob(token) / drafted).min(1.0);
        reached[node.index()] = reached[parent.index()] * accepted[node.index()];
    }
    let lesson = |(drafter, seen): &(DrafterId, SeenToken)| {
        let parent = draft.parent(seen.node)?;
        let weight = reached[parent.index()];
        let hit = accepted[seen.node.index()];
        (weight >= WEIGHT_MIN).then(|| Lesson::new(*drafter, seen, hit, weight))
    };
    seen.iter().filter_map(lesson).collect()
}

/// What all rounds of a drafter at one temperature taught.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Gate {
    row: Logistic<ROW>,
    token: Logistic<TOKEN>,
    /// Examples, and those accepted, with the past fading.
    seen: f64,
    accepted: f64,
    /// Examples since the last fit.
    fresh: Vec<Example<TOKEN>>,
    /// How well it told accepted tokens from others, before and after the draw: each example is
    /// predicted before it is learned from.
    before: Auc,
    after: Auc,
}

impl Gate {
    /// Whether it has seen enough to go by.
    pub fn is_ready(&self) -> bool {
        self.seen >= READY
    }

    /// The area under the curve of what it predicted before tokens were drawn and after: how often a
    /// token that was accepted seemed likelier to be than one that was not. None while it has seen
    /// none of the one or the other since it was made or loaded.
    pub fn auc(&self) -> Option<(f64, f64)> {
        self.before.area().zip(self.after.area())
    }

    pub(crate) fn fitted(&self) -> Fitted {
        let mean = (self.accepted + 1.0) / (self.seen + 2.0);
        Fitted { row: *self.row.weights(), token: *self.token.weights(), mean }
    }

    pub(crate) fn learn(&mut self, lesson: &Lesson) {
        let Example { features, hit, weight } = lesson.example;
        let was_ready = self.is_ready();
        if was_ready {
            self.before.add(logistic::chance(self.row.weights(), &row_of(&features)), hit, weight);
            self.after.add(logistic::chance(self.token.weights(), &features), hit, weight);
        }
        self.seen += weight;
        self.accepted += weight * hit;
        self.fresh.push(lesson.example);
        if self.fresh.len() < BATCH && was_ready == self.is_ready() {
            return;
        }
        let batch = std::mem::take(&mut self.fresh);
        let before = |it: &Example<TOKEN>| Example {
            features: row_of(&it.features),
            hit: it.hit,
            weight: it.weight,
        };
        self.row.fit(&batch.iter().map(before).collect::<Vec<_>>(), MEMORY);
        self.token.fit(&batch, MEMORY);
        if self.is_ready() {
            // What is known stays known while it fades.
            let kept = MEMORY.max(READY / self.seen);
            self.seen *= kept;
            self.accepted *= kept;
        }
    }
}

fn row_of(features: &[f64; TOKEN]) -> [f64; ROW] {
    std::array::from_fn(|index| features[index])
}

#[cfg(test)]
mod tests;
