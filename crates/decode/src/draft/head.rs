//! Drafts from a head: a small model that reads the target's hidden states. What it has of a sequence
//! is in [`trail`]; how paths branch is in [`super::branch`]; how the rows of a block are made to go
//! together is in [`refine`].

mod refine;
mod trail;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use forerun_verify::Token;

use crate::clock::{self, Clock};
use crate::cost::{CostCurve, Pass};
use crate::draft::branch::{self, Shaped, Tip};
use crate::draft::{DraftFailure, DraftRequest, Drafter, DrafterKind, Shown};
use crate::engine::{BlockShape, Branch, EngineError, Head, Keep, Output, Rows, Slot, Step};
use refine::Refiner;
use trail::Trail;

/// Rows of a sequence that wait for the next draft. More of them run at once: they are many numbers.
const WAITING_MAX: usize = 64;

/// Pairs of a sequence that run with the newest one, each with a row that nobody reads.
const ROWS_UNREAD_MAX: usize = 8;

/// A draft head: draws paths for each request, from rows shaped as the target's are.
///
/// Committed tokens are paired with the target's hidden states, which it is shown after every round.
/// Drafted tokens are paired with its own, so their pairs never stay: those of tokens that were accepted
/// run again with the target's.
pub struct HeadDrafter {
    timed: TimedHead,
    kind: DrafterKind,
    confidence_min: f64,
    trails: Vec<Trail>,
    /// One for each slot if it drafts blocks, whose rows are independent.
    refiners: Vec<Refiner>,
    /// Why it could not run what it was shown.
    failure: Option<DraftFailure>,
    // Reused for their memory alone.
    features: Vec<f32>,
    hidden: Vec<f32>,
}

/// A head, the rows of its last pass, and what passes took.
struct TimedHead {
    head: Box<dyn Head>,
    output: Output,
    passes: Vec<Pass>,
    clock: Arc<dyn Clock>,
}

impl TimedHead {
    fn extend(
        &mut self,
        head: usize,
        steps: &[Step<'_>],
        hidden: &[f32],
    ) -> Result<(), EngineError> {
        let started = self.clock.now();
        let result = self.head.extend_hidden(head, steps, hidden, &mut self.output);
        let tokens = steps.iter().map(|step| step.trunk.len() + step.tree.len()).sum();
        let time = self.clock.now() - started;
        self.passes.push(Pass { tokens, sequences: steps.len(), time });
        result
    }
}

/// A draft while it grows.
struct Growing<'q, 'a> {
    request: &'q mut DraftRequest<'a>,
    /// Where paths may go on.
    tips: Vec<Tip>,
    /// Which row is the first tip's; the others' follow.
    row: usize,
    /// The hidden row after each node that tips grew from, by the node in the head's cache.
    hidden: Vec<(usize, Vec<f32>)>,
    /// What ran of the draft, with the hidden row that each went in with.
    nodes: Vec<Branch>,
    inputs: Vec<f32>,
}

impl Growing<'_, '_> {
    /// Adds the last token of each path to what runs.
    fn run_tips(&mut self) {
        for tip in &mut self.tips {
            let token = *tip.path.last().expect("a token was drafted");
            let hidden = self.hidden.iter().find(|(node, _)| *node == tip.cached);
            self.inputs.extend_from_slice(&hidden.expect("it grew from there").1);
            self.nodes.push(Branch { parent: tip.cached, token });
            tip.cached = self.nodes.len();
        }
    }
}

impl HeadDrafter {
    /// A head of the decoder's target, by what it is to be called.
    pub fn new(head: Box<dyn Head>, kind: DrafterKind) -> Self {
        let slots = head.slot_count();
        let trails = vec![Trail::default(); slots];
        let refiners = vec![Refiner::default(); if head.block().is_some() { slots } else { 0 }];
        let (output, passes, clock) = (Output::default(), Vec::new(), clock::system());
        Self {
            timed: TimedHead { head, output, passes, clock },
            kind,
            confidence_min: 0.0,
            trails,
            refiners,
            failure: None,
            features: Vec::new(),
            hidden: Vec::new(),
        }
    }

    /// See [`crate::ModelDrafter::confident`].
    #[must_use]
    pub fn confident(mut self, confidence_min: f64) -> Self {
        self.confidence_min = confidence_min;
        self
    }

    /// Draws from the rows of a block as the head gives them, instead of refining them by what followed
    /// the drafted tokens earlier in the text: to compare the two.
    #[must_use]
    pub fn unrefined(mut self) -> Self {
        self.refiners.clear();
        self
    }

    /// Runs pairs of committed tokens; the rows are those after each slot's last, if any are wanted.
    fn run(&mut self, pairs: &[(Slot, Range<usize>)], rows: Rows) -> Result<(), EngineError> {
        let pairs = pairs.iter().filter(|(_, pairs)| !pairs.is_empty());
        let pairs: Vec<(Slot, Range<usize>)> = pairs.cloned().collect();
        if pairs.is_empty() {
            return Ok(());
        }
        let result = self.encode(&pairs).and_then(|()| {
            let step = |(slot, pairs): &(Slot, Range<usize>)| {
                let trail = &self.trails[slot.0 as usize];
                let keep = Keep::Trunk(pairs.start - trail.cached().start);
                let trunk = trail.tokens(pairs.clone());
                Step { slot: *slot, keep, trunk, tree: &[], rows: Rows::None }
            };
            let mut steps: Vec<Step<'_>> = pairs.iter().map(step).collect();
            for head in 1..self.timed.head.head_count() {
                self.timed.extend(head, &steps, &self.hidden)?;
            }
            // Drafts begin with the first head, whose rows stay as those of the last pass.
            steps.iter_mut().for_each(|step| step.rows = rows);
            self.timed.extend(0, &steps, &self.hidden)
        });
        self.or_start_over(result)?;
        pairs.iter().for_each(|(slot, pairs)| self.trails[slot.0 as usize].ran(pairs.end));
        Ok(())
    }

    /// Makes hidden rows for pairs of committed tokens.
    fn encode(&mut self, pairs: &[(Slot, Range<usize>)]) -> Result<(), EngineError> {
        self.features.clear();
        let all = || pairs.iter().flat_map(|(slot, pairs)| pairs.clone().map(|pair| (*slot, pair)));
        for (slot, pair) in all() {
            self.features.extend_from_slice(self.trails[slot.0 as usize].row(pair).unwrap_or(&[]));
        }
        self.hidden.clear();
        self.timed.head.encode(&self.features, &mut self.hidden)?;
        // No hidden row goes before a sequence's first token.
        let zeros = vec![0.0; self.timed.head.hidden_len()];
        for (index, _) in all().enumerate().filter(|(_, (_, pair))| *pair == 0) {
            let at = index * zeros.len();
            self.hidden.splice(at..at, zeros.iter().copied());
        }
        Ok(())
    }

    /// Forgets everything after a failure: the caches are in doubt.
    fn or_start_over(&mut self, result: Result<(), EngineError>) -> Result<(), EngineError> {
        if result.is_err() {
            self.trails.fill(Trail::default());
        }
        result
    }

    /// The pairs of committed tokens that are still to run.
    fn pending(&self, growing: &[Growing<'_, '_>]) -> Vec<(Slot, Range<usize>)> {
        let slots = growing.iter().map(|draft| draft.request.slot);
        slots.map(|slot| (slot, self.trails[slot.0 as usize].pending())).collect()
    }

    /// Runs the committed tokens' pairs; a row for each request.
    fn catch_up(&mut self, growing: &[Growing<'_, '_>]) -> Result<(), EngineError> {
        let mut last = self.pending(growing);
        // A head computes a row for every pair of a pass or for none.
        let mut before = Vec::new();
        for (slot, pairs) in last.iter_mut().filter(|(_, pairs)| pairs.len() > ROWS_UNREAD_MAX) {
            before.push((*slot, pairs.start..pairs.end - 1));
            pairs.start = pairs.end - 1;
        }
        self.run(&before, Rows::None)?;
        self.run(&last, Rows::Trunk)
    }

    /// Drafts a block for each request in one pass, and draws all depths from its rows.
    fn draft_blocks(
        &mut self,
        shape: &BlockShape,
        mut growing: Vec<Growing<'_, '_>>,
    ) -> Result<(), DraftFailure> {
        self.run(&self.pending(&growing), Rows::None)?;
        // A block is as long as it was trained: its rows depend on how many masks there are.
        let len = shape.len_max;
        let block = |draft: &Growing<'_, '_>| -> Vec<Branch> {
            let newest = draft.request.tokens.last().copied();
            let masks = std::iter::repeat_n(shape.mask, len + shape.first_row - 1);
            let tokens = newest.into_iter().chain(masks);
            tokens.enumerate().map(|(parent, token)| Branch { parent, token }).collect()
        };
        let blocks: Vec<Vec<Branch>> = growing.iter().map(block).collect();
        let steps = growing.iter().zip(&blocks).map(|(draft, block)| Step {
            slot: draft.request.slot,
            keep: Keep::Trunk(self.trails[draft.request.slot.0 as usize].cached().len()),
            trunk: &[],
            tree: block,
            rows: Rows::Tree,
        });
        let result = self.timed.extend(0, &steps.collect::<Vec<_>>(), &[]);
        self.or_start_over(result)?;
        let output = &mut self.timed.output;
        for (number, draft) in growing.iter_mut().enumerate() {
            let mut refiner = self.refiners.get_mut(draft.request.slot.0 as usize);
            if let Some(refiner) = &mut refiner {
                refiner.turn_to(draft.request.tokens, draft.request.prompt_len);
            }
            let first = number * (len + shape.first_row) + shape.first_row;
            for depth in 0..len.min(draft.request.len_max) {
                let tips = std::mem::take(&mut draft.tips);
                let row = first + depth;
                let grown =
                    branch::grow(draft.request, tips, self.confidence_min, |request, _, path| {
                        // Every path draws from the same row, shaped for what is drawn before.
                        let logits = output.copied(row);
                        let Some(refiner) = &mut refiner else {
                            return branch::shaped(request, path, logits);
                        };
                        let mut view = None;
                        let dist = refiner.refined(path, logits, |logits| {
                            let shaped = branch::shaped(request, path, logits)?;
                            view = shaped.view;
                            Ok::<_, DraftFailure>(shaped.dist)
                        })?;
                        Ok(Shaped { dist, view })
                    });
                match grown {
                    Ok(tips) if !tips.is_empty() => draft.tips = tips,
                    Ok(_) => break,
                    Err(failure) => {
                        draft.request.failure = Some(failure);
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Runs the last drafted token of each path, so many tokens deep; a row for each.
    fn advance(
        &mut self,
        depth: usize,
        growing: &mut [Growing<'_, '_>],
    ) -> Result<(), EngineError> {
        let takes_turns = self.timed.head.head_count() > 1;
        let hidden_len = self.timed.head.hidden_len();
        self.hidden.clear();
        let (mut steps, mut rows) = (Vec::with_capacity(growing.len()), 0);
        for draft in growing {
            // A head whose turn it is has not seen what those before it drafted.
            let cached = if takes_turns { 0 } else { draft.nodes.len() };
            draft.run_tips();
            let (slot, trunk) = (draft.request.slot, &[]);
            let tree = &draft.nodes[cached..];
            self.hidden.extend_from_slice(&draft.inputs[cached * hidden_len..]);
            rows += tree.len();
            draft.row = rows - draft.tips.len();
            let trunk_len = self.trails[slot.0 as usize].cached().len();
            let keep = match takes_turns {
                true => Keep::Trunk(trunk_len),
                false => Keep::All(trunk_len + cached),
            };
            steps.push(Step { slot, keep, trunk, tree, rows: Rows::Tree });
        }
        let head = if takes_turns { depth } else { 0 };
        let result = self.timed.extend(head, &steps, &self.hidden);
        self.or_start_over(result)
    }

    /// Draws the next tokens of a draft from the rows of its tips.
    fn branch(&mut self, draft: &mut Growing<'_, '_>) -> Result<(), DraftFailure> {
        let (tips, row) = (std::mem::take(&mut draft.tips), draft.row);
        let output = &mut self.timed.output;
        let hidden =
            |(offset, tip): (usize, &Tip)| (tip.cached, output.feature(row + offset).to_vec());
        draft.hidden = tips.iter().enumerate().map(hidden).collect();
        let grown = branch::grow(draft.request, tips, self.confidence_min, |request, tip, path| {
            branch::shaped(request, path, output.row_mut(row + tip))
        });
        draft.tips = grown?;
        Ok(())
    }
}

impl Drafter for HeadDrafter {
    fn kind(&self) -> DrafterKind {
        self.kind
    }

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), DraftFailure> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let (context_len, paths_max) = (self.timed.head.context_len(), self.timed.head.paths_max());
        let unpaired = self.timed.head.pairing().unpaired();
        let mut growing = Vec::with_capacity(requests.len());
        for request in requests {
            let width = request.width;
            if width > paths_max {
                request.failure = Some(DraftFailure::Paths { width, paths_max });
                continue;
            }
            let Some(trail) = self.trails.get_mut(request.slot.0 as usize) else { continue };
            trail.turn_to(request.tokens, unpaired);
            if !trail.reach_newest() {
                continue;
            }
            let drafted = match self.timed.head.block() {
                Some(shape) => shape.len_max + shape.first_row,
                None => request.len_max * width,
            };
            let wanted = trail.pending().end - trail.cached().start + drafted;
            if wanted > context_len {
                request.failure = Some(EngineError::Full { tokens: wanted - context_len }.into());
                continue;
            }
            let tips = vec![Tip::root(width)];
            let (row, hidden) = (growing.len(), Vec::new());
            growing.push(Growing {
                request,
                tips,
                row,
                hidden,
                nodes: Vec::new(),
                inputs: Vec::new(),
            });
        }
        if growing.is_empty() {
            return Ok(());
        }
        if let Some(shape) = self.timed.head.block() {
            return self.draft_blocks(&shape, growing);
        }
        self.catch_up(&growing)?;
        let depth_max = match self.timed.head.head_count() {
            1 => usize::MAX,
            heads => heads,
        };
        for depth in 1.. {
            growing.retain_mut(|draft| {
                draft.request.failure = self.branch(draft).err();
                !draft.tips.is_empty() && depth < draft.request.len_max.min(depth_max)
            });
            if growing.is_empty() {
                break;
            }
            self.advance(depth, &mut growing)?;
        }
        Ok(())
    }

    fn block_len(&self) -> Option<usize> {
        self.timed.head.block().map(|shape| shape.len_max + shape.first_row)
    }

    fn show(&mut self, shown: &[Shown<'_>]) {
        let unpaired = self.timed.head.pairing().unpaired();
        let mut waiting = Vec::new();
        for shown in shown {
            let Some(trail) = self.trails.get_mut(shown.slot.0 as usize) else { continue };
            trail.show(shown, unpaired);
            let pending = trail.pending();
            if pending.len() > WAITING_MAX {
                // The last is left for the draft, which wants the row after it.
                waiting.push((shown.slot, pending.start..pending.end - 1));
            }
        }
        if let Err(error) = self.run(&waiting, Rows::None) {
            self.failure = Some(error.into());
        }
    }

    fn shown_until(&self, slot: Slot, tokens: &[Token]) -> Option<usize> {
        self.trails.get(slot.0 as usize).map(|trail| trail.shown_until(tokens))
    }

    fn copy(&mut self, from: Slot, to: Slot, len: usize) {
        let Some(prefix) = self.trails.get(from.0 as usize).map(|trail| trail.prefix(len)) else {
            return;
        };
        let pairs = prefix.cached().len();
        let copied = pairs == 0 || self.timed.head.copy(from, to, pairs);
        if let Some(trail) = self.trails.get_mut(to.0 as usize) {
            *trail = if copied { prefix } else { Trail::default() };
        }
    }

    fn forget(&mut self, slot: Slot) {
        if let Some(trail) = self.trails.get_mut(slot.0 as usize) {
            *trail = Trail::default();
        }
        if let Some(refiner) = self.refiners.get_mut(slot.0 as usize) {
            *refiner = Refiner::default();
        }
    }

    fn use_clock(&mut self, clock: Arc<dyn Clock>) {
        self.timed.clock = clock;
    }

    fn passes(&mut self) -> Vec<Pass> {
        std::mem::take(&mut self.timed.passes)
    }

    fn measure(&mut self, may_take: Duration) -> Result<Option<CostCurve>, EngineError> {
        let measured = CostCurve::measure(&mut *self.timed.head, may_take, &*self.timed.clock);
        self.trails.fill(Trail::default());
        measured.map(Some)
    }

    fn behind(&self, slot: Slot, _tokens: &[Token]) -> usize {
        self.trails.get(slot.0 as usize).map_or(0, |trail| trail.pending().len())
    }
}
