//! Feature `toy`: an engine whose rows come from a formula, so that the whole loop runs without a
//! model and its distribution can be written down.
//!
//! A row depends on the last few *cached* tokens. A decoder that keeps what should be cut, or cuts
//! what should stay, gets the row of another sequence, which the distribution of its output shows.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use forerun_verify::Token;

use crate::clock::Clock;
use crate::engine::{Branch, Engine, EngineError, Head, Keep, Output, Pairing, Rows, Slot, Step};

/// Logits as a function of the last tokens.
///
/// ```
/// use forerun_decode::{ToyModel, Token};
/// let model = ToyModel { vocab_len: 3, order: 2, seed: 1, spread: 2.0 };
/// assert_eq!(model.logits(&[Token(0), Token(1), Token(2)]), model.logits(&[Token(1), Token(2)]));
/// assert_ne!(model.logits(&[Token(1)]), model.logits(&[Token(2)]));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct ToyModel {
    /// How many tokens the vocabulary has.
    pub vocab_len: usize,
    /// How many tokens back a row looks.
    pub order: usize,
    /// Chooses the table.
    pub seed: u64,
    /// Logits lie within this of zero.
    pub spread: f32,
}

impl ToyModel {
    /// The row after `context`.
    pub fn logits(&self, context: &[Token]) -> Vec<f32> {
        let seen = &context[context.len().saturating_sub(self.order)..];
        let state =
            seen.iter().fold(mix(self.seed), |state, token| mix(state ^ u64::from(token.0)));
        let unit = |bits: u64| (bits >> 40) as f32 / (1u64 << 24) as f32;
        (0..self.vocab_len as u64)
            .map(|id| self.spread * (2.0 * unit(mix(state ^ (id << 32))) - 1.0))
            .collect()
    }
}

/// The finaliser of SplitMix64: a hash good enough for a table.
fn mix(state: u64) -> u64 {
    let state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

/// A clock by which time passes only when somebody sleeps.
///
/// ```
/// use std::time::Duration;
/// use forerun_decode::{Clock, SimulatedClock};
/// let clock = SimulatedClock::default();
/// let started = clock.now();
/// clock.sleep(Duration::from_secs(3600));
/// assert_eq!(clock.now() - started, Duration::from_secs(3600));
/// ```
#[derive(Debug)]
pub struct SimulatedClock(Mutex<Instant>);

impl Default for SimulatedClock {
    fn default() -> Self {
        Self(Mutex::new(Instant::now()))
    }
}

impl Clock for SimulatedClock {
    fn now(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sleep(&self, time: Duration) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) += time;
    }
}

/// An engine over a [`ToyModel`]. Strict: a step that contradicts the cache is refused.
///
/// ```
/// use forerun_decode::*;
/// let model = ToyModel { vocab_len: 3, order: 2, seed: 1, spread: 2.0 };
/// let mut engine = ToyEngine::new(model.clone(), 16);
/// let mut output = Output::default();
/// let trunk = [Token(0), Token(1)];
/// let keep = Keep::Trunk(0);
/// let step = Step { slot: Slot(0), keep, trunk: &trunk, tree: &[], rows: Rows::Trunk };
/// engine.extend(&[step], &mut output)?;
/// assert_eq!(output.row(0), model.logits(&trunk));
/// # Ok::<(), EngineError>(())
/// ```
#[derive(Debug, Clone)]
pub struct ToyEngine {
    model: ToyModel,
    context_len: usize,
    paths_max: usize,
    slots: Vec<ToySlot>,
    /// Passes left before the failure, and the failure.
    fault: Option<(usize, EngineError)>,
    gives_features: bool,
}

#[derive(Debug, Clone, Default)]
struct ToySlot {
    trunk: Vec<Token>,
    tree: Vec<Branch>,
}

impl ToyEngine {
    /// An engine with one slot.
    pub fn new(model: ToyModel, context_len: usize) -> Self {
        Self {
            model,
            context_len,
            paths_max: 8,
            slots: vec![ToySlot::default()],
            fault: None,
            gives_features: false,
        }
    }

    /// An engine with this many slots.
    #[must_use]
    pub fn slots(mut self, count: usize) -> Self {
        self.slots = vec![ToySlot::default(); count];
        self
    }

    /// An engine with room for this many paths of a sequence.
    #[must_use]
    pub fn paths(mut self, count: usize) -> Self {
        self.paths_max = count;
        self
    }

    /// Gives feature rows, for a [`ToyHead`]: a token's position, and a number that stands for all
    /// tokens up to it.
    #[must_use]
    pub fn with_features(mut self) -> Self {
        self.gives_features = true;
        self
    }

    /// Fails once, after this many passes.
    #[must_use]
    pub fn failing(mut self, passes: usize, error: EngineError) -> Self {
        self.fault = Some((passes, error));
        self
    }

    /// Fails at the next pass.
    pub fn fail_next(&mut self, error: EngineError) {
        self.fault = Some((0, error));
    }

    fn check(&self, steps: &[Step<'_>]) -> Result<(), EngineError> {
        for (index, step) in steps.iter().enumerate() {
            let slot = step.slot;
            let fail = |reason: String| Err(EngineError::Step { slot, reason });
            let Some(cache) = self.slots.get(slot.0 as usize) else {
                return fail(format!("there are {} slots", self.slots.len()));
            };
            if steps[..index].iter().any(|other| other.slot == slot) {
                return fail("two steps in one pass".into());
            }
            let (base, room) = match step.keep {
                Keep::All(_) => (cache.tree.len(), cache.trunk.len() + cache.tree.len()),
                Keep::To { node, .. } if node <= cache.tree.len() => (0, cache.path(node).len()),
                Keep::Trunk(len) if len <= cache.trunk.len() => (0, len),
                keep => return fail(format!("{keep:?} of {cache:?}")),
            };
            if room != step.keep.len() {
                return fail(format!("{:?} of {cache:?}, which keeps {room} tokens", step.keep));
            }
            if base > 0 && !step.trunk.is_empty() {
                return fail("a trunk under a tree that is kept".into());
            }
            if step.tree.iter().enumerate().any(|(at, branch)| branch.parent > base + at) {
                return fail("a child before its parent".into());
            }
            let branches = step.tree.iter().map(|branch| branch.token);
            let vocab_len = self.model.vocab_len;
            if let Some(token) =
                step.trunk.iter().copied().chain(branches).find(|token| token.index() >= vocab_len)
            {
                return Err(EngineError::Token { token, vocab_len });
            }
            let tokens = step.trunk.len() + step.tree.len();
            if room + tokens > self.context_len {
                return Err(EngineError::Full { tokens });
            }
        }
        Ok(())
    }
}

impl ToySlot {
    /// The trunk and the path to a node.
    fn path(&self, node: usize) -> Vec<Token> {
        let mut above = Vec::new();
        let mut at = node;
        while at > 0 {
            above.push(self.tree[at - 1].token);
            at = self.tree[at - 1].parent;
        }
        self.trunk.iter().copied().chain(above.into_iter().rev()).collect()
    }

    fn cut(&mut self, keep: Keep) {
        match keep {
            Keep::All(_) => {}
            Keep::To { node, .. } => *self = Self { trunk: self.path(node), tree: Vec::new() },
            Keep::Trunk(len) => {
                self.trunk.truncate(len);
                self.tree.clear();
            }
        }
    }
}

impl Engine for ToyEngine {
    fn vocab_len(&self) -> usize {
        self.model.vocab_len
    }

    fn context_len(&self) -> usize {
        self.context_len
    }

    fn slot_count(&self) -> usize {
        self.slots.len()
    }

    fn paths_max(&self) -> usize {
        self.paths_max
    }

    fn can_cut(&self) -> bool {
        true
    }

    fn feature_len(&self) -> usize {
        if self.gives_features { 2 } else { 0 }
    }

    fn copy(&mut self, from: Slot, to: Slot, len: usize) -> bool {
        let trunk = self.slots.get(from.0 as usize).and_then(|slot| slot.trunk.get(..len));
        let Some(trunk) = trunk.map(<[Token]>::to_vec).filter(|_| from != to) else { return false };
        let Some(slot) = self.slots.get_mut(to.0 as usize) else { return false };
        *slot = ToySlot { trunk, tree: Vec::new() };
        true
    }

    fn extend(&mut self, steps: &[Step<'_>], output: &mut Output) -> Result<(), EngineError> {
        let checked = self.check(steps);
        let fault = match &mut self.fault {
            Some((0, _)) => self.fault.take().map(|(_, error)| error),
            Some((passes, _)) => {
                *passes -= 1;
                None
            }
            None => None,
        };
        if let Some(error) = checked.err().or(fault) {
            match error.caches() {
                crate::Caches::Untouched => {}
                crate::Caches::Cut => {
                    steps.iter().for_each(|step| self.slots[step.slot.0 as usize].cut(step.keep))
                }
                crate::Caches::Lost => self.slots.fill(ToySlot::default()),
            }
            return Err(error);
        }
        output.clear(self.model.vocab_len);
        for step in steps {
            let cache = &mut self.slots[step.slot.0 as usize];
            cache.cut(step.keep);
            cache.trunk.extend_from_slice(step.trunk);
            let base = cache.tree.len();
            cache.tree.extend_from_slice(step.tree);
            let first = if matches!(step.rows, Rows::Trunk | Rows::All) { Some(0) } else { None };
            let above = base + 1..cache.tree.len() + 1;
            let above = if matches!(step.rows, Rows::Tree | Rows::All) { above } else { 0..0 };
            for node in first.into_iter().chain(above) {
                output.push(&self.model.logits(&cache.path(node)));
            }
            if self.gives_features {
                let trunk_len = cache.trunk.len();
                for end in trunk_len - step.trunk.len() + 1..=trunk_len {
                    output.push_feature(&[&feature(&cache.trunk[..end])]);
                }
                for node in base + 1..=cache.tree.len() {
                    output.push_feature(&[&feature(&cache.path(node))]);
                }
            }
        }
        Ok(())
    }
}

/// The feature row of the last of these tokens.
fn feature(tokens: &[Token]) -> [f32; 2] {
    tokens.iter().fold([-1.0, 0.0], |before, token| next_feature(before, *token))
}

/// The feature row of the token after one with this row.
fn next_feature(before: [f32; 2], token: Token) -> [f32; 2] {
    let [position, text] = before;
    // Numbers below 2^24 are exact.
    let text = mix(u64::from(text.to_bits()) ^ (u64::from(token.0) << 32)) >> 40;
    [position + 1.0, text as f32]
}

/// A head over a [`ToyModel`], whose rows depend on the hidden row of the last pair as well. Strict: it
/// panics if a committed token comes with another hidden row than a [`ToyEngine`] gave before it, or a
/// drafted one with another than its own.
#[derive(Debug, Clone)]
pub struct ToyHead {
    pairing: Pairing,
    /// One, or one for each that takes its turn.
    heads: Vec<OneToyHead>,
}

#[derive(Debug, Clone)]
struct OneToyHead {
    engine: ToyEngine,
    /// The hidden rows of each slot's trunk.
    trunks: Vec<Vec<[f32; 2]>>,
}

impl ToyHead {
    /// A head that runs like this engine.
    pub fn new(engine: ToyEngine, pairing: Pairing) -> Self {
        let trunks = vec![Vec::new(); engine.slots.len()];
        Self { pairing, heads: vec![OneToyHead { engine, trunks }] }
    }

    /// So many heads that take turns, each drafting one token.
    #[must_use]
    pub fn in_turn(mut self, count: usize) -> Self {
        self.heads.resize(count, self.heads[0].clone());
        self
    }

    fn engine(&self) -> &ToyEngine {
        &self.heads[0].engine
    }
}

/// The hidden row that goes with a token which a head drew after a path.
fn own_hidden(head: usize, path: &[Token]) -> [f32; 2] {
    let [_, text] = feature(path);
    [-2.0 - head as f32, text]
}

impl Engine for ToyHead {
    fn vocab_len(&self) -> usize {
        self.engine().vocab_len()
    }

    fn context_len(&self) -> usize {
        self.engine().context_len()
    }

    fn slot_count(&self) -> usize {
        self.engine().slot_count()
    }

    fn paths_max(&self) -> usize {
        self.engine().paths_max()
    }

    fn can_cut(&self) -> bool {
        self.engine().can_cut()
    }

    fn feature_len(&self) -> usize {
        2
    }

    fn extend(&mut self, steps: &[Step<'_>], output: &mut Output) -> Result<(), EngineError> {
        self.heads[0].engine.extend(steps, output)
    }

    fn copy(&mut self, from: Slot, to: Slot, len: usize) -> bool {
        self.heads.iter_mut().all(|head| {
            let copied = head.engine.copy(from, to, len);
            if copied {
                head.trunks[to.0 as usize] = head.trunks[from.0 as usize][..len].to_vec();
            }
            copied
        })
    }
}

impl Head for ToyHead {
    fn pairing(&self) -> Pairing {
        self.pairing
    }

    fn hidden_len(&self) -> usize {
        2
    }

    fn head_count(&self) -> usize {
        self.heads.len()
    }

    fn encode(&mut self, features: &[f32], hidden: &mut Vec<f32>) -> Result<(), EngineError> {
        hidden.extend_from_slice(features);
        Ok(())
    }

    fn extend_hidden(
        &mut self,
        head: usize,
        steps: &[Step<'_>],
        hidden: &[f32],
        output: &mut Output,
    ) -> Result<(), EngineError> {
        let takes_turns = self.heads.len() > 1;
        let OneToyHead { engine, trunks } = &mut self.heads[head];
        engine.extend(steps, output)?;
        let mut hidden = hidden.chunks_exact(2).map(|row| [row[0], row[1]]);
        let mut given = || hidden.next().expect("a hidden row for each token");
        let mut row = 0;
        for step in steps {
            let cache = &engine.slots[step.slot.0 as usize];
            let trunk = &mut trunks[step.slot.0 as usize];
            trunk.truncate(cache.trunk.len() - step.trunk.len());
            for _ in step.trunk {
                let given = given();
                match trunk.last() {
                    Some(last) => {
                        // The first token is paired with zeros, which are no row of the target.
                        let first = *last == [0.0, 0.0] && self.pairing == Pairing::FromFirst;
                        let before = if first { [-1.0, 0.0] } else { *last };
                        let expected = next_feature(before, cache.trunk[trunk.len() - 1]);
                        assert_eq!(given, expected, "another row than the token's before");
                    }
                    None if self.pairing == Pairing::FromFirst => {}
                    None => assert!(given[0] >= 0.0, "{given:?} is not of the target"),
                }
                trunk.push(given);
            }
            let base = cache.tree.len() - step.tree.len();
            for (offset, branch) in step.tree.iter().enumerate() {
                let path = cache.path(branch.parent);
                let drawn_by = if takes_turns { path.len() - cache.trunk.len() } else { 0 };
                assert!(!takes_turns || drawn_by < head, "it is not the turn of head {head}");
                let (given, own) = (given(), own_hidden(drawn_by, &path));
                assert_eq!(given, own, "node {} goes with another's row", base + offset + 1);
            }
            // Rows as the engine wrote them, moved by what came in beside the last committed token.
            let first = matches!(step.rows, Rows::Trunk | Rows::All).then_some(0);
            let above = base + 1..cache.tree.len() + 1;
            let above = if matches!(step.rows, Rows::Tree | Rows::All) { above } else { 0..0 };
            let seen = trunk.last().copied().unwrap_or_default();
            for node in first.into_iter().chain(above) {
                let favoured = seen[1].to_bits() as usize % engine.model.vocab_len;
                output.row_mut(row)[favoured] += 1.0;
                output.push_feature(&[&own_hidden(head, &cache.path(node))]);
                row += 1;
            }
        }
        Ok(())
    }
}
