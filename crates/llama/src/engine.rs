//! llama.cpp as an engine: steps become passes over its memory.
//!
//! A call is planned in full before anything is touched, so that a mistake of the caller leaves the
//! caches as they were. Then the caches are cut, and then the new tokens run. [`Tree`] knows what a
//! slot has cached; this file carries its changes out and never looks inside.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forerun_decode::{Engine, EngineError, Output, Rows, Slot, Step};
use forerun_verify::Token;

use crate::ffi::batch::Batch;
use crate::ffi::context::{Context, Handle, HeadOf, Passed};
use crate::layout::SlotLayout;
use crate::model::Model;
use crate::options::EngineOptions;
use crate::setup::{self, SetupError};
use crate::tree::{Change, Tree};

const BACKEND: &str = "llama.cpp";

/// Passes that a slot's move may cost, in bytes, as each pass streams all weights: it saves one of each round.
const PAYS_BACK: usize = 4;

/// A model with a cache for each slot.
#[derive(Debug)]
pub struct LlamaEngine {
    context: Context,
    vocab_len: usize,
    context_len: usize,
    paths: usize,
    // Most tokens, and most rows, of one call to llama.cpp.
    batch_len: usize,
    cut: Cut,
    // Tokens of each slot's last pass, none of which was forgotten.
    fresh: Vec<usize>,
    // Whether all slots have their cells in one pool.
    unified: bool,
    // Where slots lie, and the bytes that may be moved to save a pass; 0 if none can.
    layout: SlotLayout,
    moved_max: usize,
    interrupt: Option<Arc<AtomicBool>>,
    // What a feature row consists of; a head gives one with each row alone.
    features: Vec<HiddenState>,
    head: Option<HeadInput>,
    slots: Vec<Tree>,
    // From here on: reused between calls for their memory alone.
    effects: Vec<StepEffect>,
    order: Vec<usize>,
    batch: Batch,
    entries: Entries,
}

/// How much of a slot's cache can be forgotten while the rest stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// As much as one likes.
    Anywhere,
    /// So many of the last tokens, once, if the last pass had more: a recurrent state that is kept as it
    /// was after each of that pass's tokens. What it was before the pass is gone.
    Last(usize),
    /// Nothing.
    Never,
}

impl Cut {
    /// Whether so many tokens can be forgotten in a slot whose last pass had `fresh`.
    fn allows(self, tokens: usize, fresh: usize) -> bool {
        match self {
            Self::Anywhere => true,
            Self::Last(most) => tokens == 0 || (tokens <= most && tokens < fresh),
            Self::Never => tokens == 0,
        }
    }
}

/// What a head reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeadInput {
    /// A token and a hidden row of so many numbers together.
    Paired {
        /// The numbers.
        hidden_len: usize,
    },
    /// Either hidden rows of committed tokens, or a block of tokens.
    Blocks {
        /// Whether a block's tokens see only those before them.
        causal: bool,
    },
}

/// A hidden state of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HiddenState {
    /// What goes into a layer.
    LayerInput(u32),
    /// What comes out of the last one.
    Last,
}

/// What a step will do to its slot.
#[derive(Debug, Default)]
struct StepEffect {
    slot: usize,
    // Where the slot lies.
    place: usize,
    cut: Tree,
    grown: Tree,
    cutting: Vec<Change>,
    sharing: Vec<Change>,
    // Where in the batch its tokens are.
    tokens: Range<usize>,
}

/// Which paths each new node belongs to: counts, then lists one after the other.
#[derive(Debug, Default)]
struct Entries {
    ends: Vec<usize>,
    paths: Vec<usize>,
}

impl LlamaEngine {
    /// Makes an engine for a model, and runs it over two tokens: that warms it up and shows
    /// whether its memory can be cut.
    ///
    /// # Errors
    /// If the options contradict each other or the model, or llama.cpp cannot make the cache.
    pub fn new(model: &Model, options: &EngineOptions) -> Result<Self, SetupError> {
        if model.is_head_alone() {
            return Err(SetupError::HeadAlone);
        }
        let context_len = setup::context_len(model, options)?;
        Self::build(model, options, context_len, None)
    }

    /// The same, for a model that may be another one's head.
    pub(crate) fn build(
        model: &Model,
        options: &EngineOptions,
        context_len: usize,
        head: Option<(HeadOf, HeadInput)>,
    ) -> Result<Self, SetupError> {
        let params = setup::params(model, options, context_len)?;
        let unified = params.unified;
        let (head, input) = head.unzip();
        let mut context = Context::new(Arc::clone(model.raw()), params, head)
            .map_err(|reason| SetupError::Rejected { reason })?;
        match input {
            Some(HeadInput::Paired { .. }) => context.give_last_hidden(true),
            Some(HeadInput::Blocks { causal: false }) => context.look_both_ways(),
            Some(HeadInput::Blocks { causal: true }) | None => {}
        }
        let (slots, paths) = (options.slots.get() as usize, options.paths.get() as usize);
        let mut engine = Self {
            vocab_len: model.vocab_len(),
            context_len: context_len.min(context.sequence_len()),
            paths,
            batch_len: context.batch_len(),
            cut: Cut::Anywhere,
            fresh: vec![0; slots],
            unified,
            layout: SlotLayout::new(slots),
            moved_max: 0,
            interrupt: options.interrupt.clone(),
            features: match input {
                Some(HeadInput::Paired { .. }) => vec![HiddenState::Last],
                Some(HeadInput::Blocks { .. }) | None => Vec::new(),
            },
            head: input,
            slots: vec![Tree::default(); slots],
            context,
            effects: Vec::new(),
            order: Vec::new(),
            batch: Batch::default(),
            entries: Entries::default(),
        };
        let rollback = engine.context.rollback();
        engine.cut = match engine.probe(model)? {
            _ if rollback > 0 => Cut::Last(rollback),
            true => Cut::Anywhere,
            false => Cut::Never,
        };
        let anywhere = engine.cut == Cut::Anywhere;
        if paths > 1 && !anywhere {
            return Err(SetupError::OnePathOnly { paths });
        }
        // Cells beyond a window are not saved, and a sequence may be cut back to where they are needed.
        if !unified && anywhere && !model.raw().has_window() {
            let weights = usize::try_from(model.size()).unwrap_or(usize::MAX);
            engine.moved_max = weights.saturating_mul(PAYS_BACK);
        }
        Ok(engine)
    }

    /// Has passes give these hidden states of every token from now on. The architecture must offer
    /// them.
    pub(crate) fn give(&mut self, states: Vec<HiddenState>) {
        for state in &states {
            match state {
                HiddenState::LayerInput(layer) => self.context.give_layer_input(*layer),
                HiddenState::Last => self.context.give_last_hidden(false),
            }
        }
        self.features = states;
    }

    /// What keeps llama.cpp's object alive.
    pub(crate) fn handle(&self) -> Arc<Handle> {
        self.context.handle()
    }

    /// Runs a head's encoder over rows of `len` numbers, in as many calls as it takes.
    pub(crate) fn encode(
        &mut self,
        rows: &[f32],
        len: usize,
        into: &mut Vec<f32>,
    ) -> Result<(), EngineError> {
        for rows in rows.chunks(len * self.context.pass_len()) {
            match self.context.encode(rows, len, into) {
                Passed::Done => {}
                Passed::Interrupted => return Err(EngineError::Interrupted),
                other => return Err(self.broken(other)),
            }
        }
        Ok(())
    }

    /// How many tokens a slot has cached, trunk and tree together.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn cached_len(&self, slot: Slot) -> usize {
        self.slots[slot.0 as usize].len()
    }

    /// Where a slot lies in llama.cpp's memory. For tests.
    #[doc(hidden)]
    pub fn place(&self, slot: Slot) -> usize {
        self.layout.of(slot.0 as usize)
    }

    /// Whether llama.cpp's memory has what the engine believes it has. For tests.
    #[doc(hidden)]
    pub fn is_consistent(&self) -> bool {
        self.slots.iter().enumerate().all(|(slot, tree)| {
            (0..self.paths).all(|path| {
                let place = self.layout.of(slot);
                let cached = self.context.positions(sequence(self.paths, place, path));
                cached.map_or(0, |(first, last)| last - first + 1) == position(tree.len_of(path))
            })
        })
    }

    /// Whether the memory can be cut: tries to forget one token of two.
    fn probe(&mut self, model: &Model) -> Result<bool, SetupError> {
        let ids = self.batch.ids(std::iter::once(0));
        for position in 0..2 {
            self.batch.push(Token(0), position, ids);
        }
        if let Some(HeadInput::Paired { hidden_len }) = self.head {
            self.batch.push_hidden(&vec![0.0; 2 * hidden_len], hidden_len);
        }
        self.batch.want_row(1);
        let passed = self.context.decode(&mut self.batch, 0..2);
        let can_cut = self.context.remove(0, 1);
        self.context.clear();
        match passed {
            Passed::Done => Ok(can_cut),
            // Whoever set the flag wants to stop, so there was nothing to forget: the model knows.
            Passed::Interrupted => Ok(!model.is_recurrent()),
            other => Err(SetupError::FirstPass { code: code(other) }),
        }
    }

    /// Checks every step and works out what it does. Nothing is touched. Returns whether all fits.
    fn plan(&mut self, steps: &[Step<'_>]) -> Result<bool, EngineError> {
        self.effects.resize_with(steps.len().max(self.effects.len()), StepEffect::default);
        let mut fits = true;
        for (index, step) in steps.iter().enumerate() {
            let (before, rest) = self.effects.split_at_mut(index);
            let refuse = |reason: String| EngineError::Step { slot: step.slot, reason };
            let slot = step.slot.0 as usize;
            let Some(tree) = self.slots.get(slot) else {
                return Err(refuse(format!("there are only {} slots", self.slots.len())));
            };
            if before.iter().any(|effect| effect.slot == slot) {
                return Err(refuse("it occurs in two steps of one pass".to_owned()));
            }
            check_tokens(step, self.vocab_len)?;
            let effect = &mut rest[0];
            effect.slot = slot;
            effect.place = self.layout.of(slot);
            effect.work_out(tree, step, self.paths).map_err(refuse)?;
            let (kept, forgotten) = (effect.cut.len(), tree.len() - effect.cut.len());
            if kept > 0 && !self.cut.allows(forgotten, self.fresh[slot]) {
                return Err(EngineError::CannotCut { slot: step.slot });
            }
            fits &= effect.grown.len() <= self.context_len;
        }
        Ok(fits)
    }

    /// Cuts every slot to what its step keeps.
    fn cut(&mut self, steps: &[Step<'_>]) -> Result<(), EngineError> {
        for effect in &self.effects[..steps.len()] {
            if !apply(&mut self.context, self.paths, effect.place, &effect.cutting) {
                return Err(self.broken(Passed::Refused));
            }
            self.slots[effect.slot].clone_from(&effect.cut);
            self.fresh[effect.slot] = 0;
        }
        Ok(())
    }

    /// Fills the batch with the tokens of all steps, and the hidden rows that a head wants with them.
    fn fill(&mut self, steps: &[Step<'_>], hidden: &[f32], tokens: usize) {
        let hidden_len = hidden.len() / tokens.max(1);
        self.batch.clear();
        self.order.clear();
        self.order.extend(0..steps.len());
        // Slots with cells of their own only share a pass if they follow each other. Rows must
        // come in the order of the steps, so what takes several calls is left as it is.
        if tokens <= self.batch_len {
            self.order.sort_unstable_by_key(|&index| self.effects[index].place);
        }
        for &index in &self.order {
            let (step, effect) = (&steps[index], &mut self.effects[index]);
            let start = self.batch.len();
            effect.fill(step, self.paths, &mut self.entries, &mut self.batch);
            effect.tokens = start..self.batch.len();
            if hidden_len > 0 {
                let before = steps[..index].iter().map(token_count).sum::<usize>();
                let rows = &hidden[before * hidden_len..][..token_count(step) * hidden_len];
                self.batch.push_hidden(rows, hidden_len);
            }
            if hidden_len > 0 && matches!(self.head, Some(HeadInput::Blocks { .. })) {
                self.batch.drop_tokens();
            }
            let trunk_end = start + step.trunk.len();
            if matches!(step.rows, Rows::Trunk | Rows::All) {
                self.batch.want_row(trunk_end - 1);
            }
            if matches!(step.rows, Rows::Tree | Rows::All) {
                (trunk_end..effect.tokens.end).for_each(|index| self.batch.want_row(index));
            }
        }
    }

    /// Runs the batch, in as many calls as it takes, and copies the rows out after each.
    fn run(&mut self, step_count: usize, output: &mut Output) -> Result<(), Passed> {
        let mut start = 0;
        while start < self.batch.len() {
            // llama.cpp looks only if it runs on the processor, so look between calls as well.
            if self.interrupt.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed)) {
                return Err(Passed::Interrupted);
            }
            let end = self.batch.len().min(start + self.batch_len);
            let passed = self.context.decode(&mut self.batch, start..end);
            if passed != Passed::Done {
                return Err(passed);
            }
            for effect in &self.effects[..step_count] {
                let ran = effect.tokens.start.max(start)..effect.tokens.end.min(end);
                for index in ran {
                    let wants_row = self.batch.wants_row(index);
                    if wants_row {
                        let row = self.context.logits(index - start);
                        output.push(row.ok_or(Passed::Failed(NO_ROW))?);
                    }
                    if !self.features.is_empty() && (wants_row || self.head.is_none()) {
                        let parts = self.features.iter().map(|state| match state {
                            HiddenState::LayerInput(layer) => {
                                Some(self.context.layer_input(*layer, index - start))
                            }
                            HiddenState::Last => self.context.last_hidden(index - start),
                        });
                        let parts: Option<Vec<&[f32]>> = parts.collect();
                        output.push_feature(&parts.ok_or(Passed::Failed(NO_ROW))?);
                    }
                }
            }
            start = end;
        }
        Ok(())
    }

    /// Takes back what a failed run left in the memory. Returns what the failure means.
    fn take_back(&mut self, steps: &[Step<'_>], passed: Passed, tokens: usize) -> EngineError {
        if let Passed::Failed(_) | Passed::Done = passed {
            return self.broken(passed);
        }
        for effect in &self.effects[..steps.len()] {
            for path in 0..self.paths {
                let from = effect.cut.len_of(path);
                let sequence = sequence(self.paths, effect.place, path);
                if effect.grown.len_of(path) > from
                    && !self.context.remove(sequence, position(from))
                {
                    return self.broken(passed);
                }
            }
        }
        match passed {
            Passed::Full => EngineError::Full { tokens },
            Passed::Interrupted => EngineError::Interrupted,
            _ => EngineError::Refused { backend: BACKEND },
        }
    }

    /// Moves the slots of the last pass next to each other, so that the next one is one pass. It comes after a
    /// pass, as pending copies are made with one.
    fn settle(&mut self, step_count: usize) -> Result<(), EngineError> {
        if self.moved_max == 0 || step_count < 2 {
            return Ok(());
        }
        let in_use = self.effects[..step_count].iter().map(|effect| effect.slot);
        for (one, other) in self.layout.changes(in_use) {
            let [first, second] =
                [one, other].map(|slot| sequence(self.paths, self.layout.of(slot), 0));
            let bytes = self.context.saved_len(first) + self.context.saved_len(second);
            if bytes > self.moved_max {
                continue;
            }
            let (mut at_first, mut at_second) = (Vec::new(), Vec::new());
            let changed = self.context.save(first, &mut at_first)
                && self.context.save(second, &mut at_second)
                && self.context.restore(first, &at_second)
                && self.context.restore(second, &at_first);
            if !changed {
                return Err(self.broken(Passed::Refused));
            }
            self.layout.change(one, other);
        }
        Ok(())
    }

    /// Forgets everything, as nothing can be trusted.
    fn broken(&mut self, passed: Passed) -> EngineError {
        self.context.clear();
        self.slots.iter_mut().for_each(Tree::clear);
        self.fresh.fill(0);
        EngineError::Broken { backend: BACKEND, code: code(passed) }
    }
}

impl Engine for LlamaEngine {
    fn vocab_len(&self) -> usize {
        self.vocab_len
    }

    fn context_len(&self) -> usize {
        self.context_len
    }

    fn slot_count(&self) -> usize {
        self.slots.len()
    }

    fn paths_max(&self) -> usize {
        self.paths
    }

    fn can_cut(&self) -> bool {
        self.cut != Cut::Never
    }

    fn can_forget(&self, slot: Slot, tokens: usize) -> bool {
        self.fresh.get(slot.0 as usize).is_some_and(|&fresh| self.cut.allows(tokens, fresh))
    }

    fn forgets_max(&self) -> usize {
        match self.cut {
            Cut::Anywhere => usize::MAX,
            Cut::Last(tokens) => tokens,
            Cut::Never => 0,
        }
    }

    fn feature_len(&self) -> usize {
        let len = |state: &HiddenState| match state {
            HiddenState::LayerInput(_) => self.context.hidden_len(),
            HiddenState::Last => self.context.last_hidden_len(),
        };
        self.features.iter().map(len).sum()
    }

    fn extend(&mut self, steps: &[Step<'_>], output: &mut Output) -> Result<(), EngineError> {
        self.extend_hidden(steps, &[], output)
    }

    fn copy(&mut self, from: Slot, to: Slot, len: usize) -> bool {
        self.copy_trunk(from, to, len)
    }
}

impl LlamaEngine {
    /// Runs all steps, with a hidden row for each token if it is a head.
    pub(crate) fn extend_hidden(
        &mut self,
        steps: &[Step<'_>],
        hidden: &[f32],
        output: &mut Output,
    ) -> Result<(), EngineError> {
        output.clear(self.vocab_len);
        let fits = self.plan(steps)?;
        self.cut(steps)?;
        let tokens = steps.iter().map(token_count).sum();
        if !fits {
            return Err(EngineError::Full { tokens });
        }
        for effect in &self.effects[..steps.len()] {
            // Sharing cells cannot fail.
            apply(&mut self.context, self.paths, effect.place, &effect.sharing);
        }
        self.fill(steps, hidden, tokens);
        if let Err(passed) = self.run(steps.len(), output) {
            output.clear(self.vocab_len);
            return Err(self.take_back(steps, passed, tokens));
        }
        for effect in &self.effects[..steps.len()] {
            self.slots[effect.slot].clone_from(&effect.grown);
            self.fresh[effect.slot] = effect.tokens.len();
        }
        self.settle(steps.len())
    }

    fn copy_trunk(&mut self, from: Slot, to: Slot, len: usize) -> bool {
        let (from, to) = (from.0 as usize, to.0 as usize);
        let trunk_len = |slot: usize| self.slots.get(slot).map(Tree::trunk_len);
        let fits = trunk_len(from).is_some_and(|trunk| len <= trunk) && trunk_len(to).is_some();
        // A memory that cannot be cut cannot be cut to what is shared.
        if !fits || from == to || self.cut != Cut::Anywhere {
            return false;
        }
        let source = sequence(self.paths, self.layout.of(from), 0);
        for path in 0..self.paths {
            let target = sequence(self.paths, self.layout.of(to), path);
            self.context.remove(target, 0);
            // Cells of their own are copied as a whole, so the rest goes afterwards.
            let end = if self.unified { position(len) } else { -1 };
            self.context.share(source, target, 0..end);
            self.context.remove(target, position(len));
        }
        self.slots[to].clear();
        self.slots[to].append_trunk(len).is_ok()
    }
}

impl StepEffect {
    fn work_out(&mut self, tree: &Tree, step: &Step<'_>, paths: usize) -> Result<(), String> {
        self.cutting.clear();
        self.sharing.clear();
        self.cut.clone_from(tree);
        self.cut.cut(step.keep, paths, &mut self.cutting)?;
        let (kept, relied) = (self.cut.len(), step.keep.len());
        if kept != relied {
            return Err(format!("the step relies on {relied} cached tokens, and it keeps {kept}"));
        }
        self.grown.clone_from(&self.cut);
        self.grown.append_trunk(step.trunk.len())?;
        self.grown.append_nodes(step.tree, paths, &mut self.sharing)?;
        if matches!(step.rows, Rows::Trunk | Rows::All) && step.trunk.is_empty() {
            return Err("the row after its trunk is wanted, but the trunk gets no token".to_owned());
        }
        Ok(())
    }

    /// Appends the step's tokens to the batch: the trunk's to every path, each node's to its own.
    fn fill(&self, step: &Step<'_>, paths: usize, entries: &mut Entries, batch: &mut Batch) {
        let ids = batch.ids((0..paths).map(|path| sequence(paths, self.place, path)));
        for (offset, &token) in step.trunk.iter().enumerate() {
            batch.push(token, self.cut.trunk_len() + offset, ids);
        }
        let cached = self.cut.node_count();
        entries.collect(&self.grown, cached);
        for (offset, branch) in step.tree.iter().enumerate() {
            let through = entries.paths_of(offset).iter();
            let ids = batch.ids(through.map(|&path| sequence(paths, self.place, path)));
            batch.push(branch.token, self.grown.position(cached + offset + 1), ids);
        }
    }
}

impl Entries {
    /// Notes the paths of each node after the first `cached`.
    fn collect(&mut self, tree: &Tree, cached: usize) {
        // Count, turn counts into starts, and fill: every start then moves to its list's end.
        self.ends.clear();
        self.ends.resize(tree.node_count() - cached, 0);
        tree.for_each_since(cached, |_, node| self.ends[node - cached - 1] += 1);
        let mut total = 0;
        for count in &mut self.ends {
            (*count, total) = (total, total + *count);
        }
        self.paths.clear();
        self.paths.resize(total, 0);
        tree.for_each_since(cached, |path, node| {
            let end = &mut self.ends[node - cached - 1];
            self.paths[*end] = path;
            *end += 1;
        });
    }

    /// The paths of the `offset`-th new node.
    fn paths_of(&self, offset: usize) -> &[usize] {
        let start = offset.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.paths[start..self.ends[offset]]
    }
}

/// The code for a row that is not there; llama.cpp has none.
const NO_ROW: i32 = -100;

fn code(passed: Passed) -> i32 {
    match passed {
        Passed::Done => 0,
        Passed::Full => 1,
        Passed::Interrupted => 2,
        Passed::Refused => -1,
        Passed::Failed(code) => code,
    }
}

/// Tokens that a step runs.
fn token_count(step: &Step<'_>) -> usize {
    step.trunk.len() + step.tree.len()
}

fn check_tokens(step: &Step<'_>, vocab_len: usize) -> Result<(), EngineError> {
    let drafted = step.tree.iter().map(|branch| branch.token);
    let mut tokens = step.trunk.iter().copied().chain(drafted);
    match tokens.find(|token| token.0 as usize >= vocab_len) {
        Some(token) => Err(EngineError::Token { token, vocab_len }),
        None => Ok(()),
    }
}

/// Carries changes out. Returns `false` if the memory refuses to forget.
fn apply(context: &mut Context, paths: usize, place: usize, changes: &[Change]) -> bool {
    changes.iter().all(|change| match change {
        Change::Remove { path, from } => {
            context.remove(sequence(paths, place, *path), position(*from))
        }
        Change::Share { from, to, positions } => {
            let (from, to) = (sequence(paths, place, *from), sequence(paths, place, *to));
            context.share(from, to, position(positions.start)..position(positions.end));
            true
        }
    })
}

/// llama.cpp's number of a path of the slot at a place.
fn sequence(paths: usize, place: usize, path: usize) -> i32 {
    i32::try_from(place * paths + path).expect("at most 256 sequences")
}

fn position(n: usize) -> i32 {
    i32::try_from(n).expect("a position is within the context")
}
