//! Drafts from a smaller model: passes and cache. How paths branch is in [`super::branch`].

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use forerun_verify::Token;

use crate::cache::SlotCaches;
use crate::clock::{self, Clock};
use crate::cost::{CostCurve, Pass};
use crate::draft::branch::{self, Tip};
use crate::draft::{DraftFailure, DraftRequest, Drafter, DrafterKind};
use crate::engine::{Branch, Engine, EngineError, Keep, Output, Rows, Slot, Step};
use crate::text::Tokenizer;
use crate::vocab_map::VocabMap;

/// A draft model: draws paths for each request, from rows shaped as the target's are.
///
/// All paths of all sequences of a round are drafted together, in one pass for each depth; what two
/// paths have in common is computed once. What it still has cached of a sequence is found out at
/// the next call.
pub struct ModelDrafter {
    engine: Box<dyn Engine>,
    translation: Option<Translation>,
    confidence_min: f64,
    /// What the engine's slots have cached: each a sequence from one of its tokens on.
    caches: SlotCaches,
    /// Which token that is.
    starts: Vec<usize>,
    output: Output,
    passes: Vec<Pass>,
    clock: Arc<dyn Clock>,
}

/// Between a target's vocabulary and a drafter's.
struct Translation {
    map: VocabMap,
    target: Arc<dyn Tokenizer>,
    draft: Arc<dyn Tokenizer>,
    /// Target tokens that are several of the drafter's.
    spelled: HashMap<Token, Vec<Token>>,
    row: Vec<f32>,
}

/// A draft while it grows.
struct Growing<'q, 'a> {
    request: &'q mut DraftRequest<'a>,
    /// The committed tokens that are prefilled, in the drafter's vocabulary.
    tokens: Cow<'a, [Token]>,
    /// Where paths may go on.
    tips: Vec<Tip>,
    /// Nodes in the drafter's cache.
    cached: usize,
}

impl ModelDrafter {
    /// A model whose vocabulary is the target's.
    pub fn new(engine: Box<dyn Engine>) -> Self {
        let slot_count = engine.slot_count();
        Self {
            engine,
            translation: None,
            confidence_min: 0.0,
            caches: SlotCaches::new(slot_count),
            starts: vec![0; slot_count],
            output: Output::default(),
            passes: Vec::new(),
            clock: clock::system(),
        }
    }

    /// Drafts in a vocabulary of its own. Tokens without a counterpart are never drafted.
    #[must_use]
    pub fn translated(
        mut self,
        map: VocabMap,
        target: Arc<dyn Tokenizer>,
        draft: Arc<dyn Tokenizer>,
    ) -> Self {
        let same = map.is_identity() && target.vocab_len() == draft.vocab_len();
        let (spelled, row) = (HashMap::new(), Vec::new());
        self.translation = (!same).then_some(Translation { map, target, draft, spelled, row });
        self
    }

    /// Ends a path before a token if the likeliest one is less likely than this. The decision
    /// looks at the row alone, before a token is drawn from it, so it costs no exactness.
    #[must_use]
    pub fn confident(mut self, confidence_min: f64) -> Self {
        self.confidence_min = confidence_min;
        self
    }

    /// What is prefilled of a sequence: all of it, or if the plan bounds prefill and the cache is
    /// far behind, its last tokens. What was begun so is continued until all is wanted.
    fn first_prefilled(&self, request: &DraftRequest<'_>, tokens: &[Token]) -> usize {
        let start = self.starts[request.slot.0 as usize];
        let Some(drafter_prefill_max) = request.drafter_prefill_max else { return 0 };
        let rest = tokens.get(start..).filter(|rest| !rest.is_empty());
        match rest.map(|rest| rest.len() - self.caches.of(request.slot).reuse(rest).len) {
            Some(behind) if behind <= drafter_prefill_max => start,
            _ => tokens.len().saturating_sub(drafter_prefill_max.max(1)),
        }
    }

    /// Runs the committed tokens that are not cached; a row for each request.
    fn catch_up(&mut self, growing: &[Growing<'_, '_>]) -> Result<(), EngineError> {
        let reuse =
            |draft: &Growing<'_, '_>| self.caches.of(draft.request.slot).reuse(&draft.tokens);
        let reuses: Vec<_> = growing.iter().map(reuse).collect();
        let steps = growing.iter().zip(&reuses).map(|(draft, reuse)| Step {
            slot: draft.request.slot,
            keep: reuse.keep,
            trunk: &draft.tokens[reuse.len..],
            tree: &[],
            rows: Rows::Trunk,
        });
        self.pass(&steps.collect::<Vec<_>>())?;
        for (draft, reuse) in growing.iter().zip(&reuses) {
            self.caches.extended(draft.request.slot, reuse.len, &draft.tokens, &[]);
        }
        Ok(())
    }

    /// Runs the last drafted token of each path; a row for each.
    fn advance(&mut self, growing: &mut [Growing<'_, '_>]) -> Result<(), EngineError> {
        let branch = |tip: &Tip| {
            let token = *tip.path.last().expect("a token was drafted");
            let token = self.translation.as_ref().map_or(token, |words| {
                words.map.to_draft(token).expect("drawn from a row of mapped tokens")
            });
            Branch { parent: tip.cached, token }
        };
        let branches: Vec<Vec<Branch>> =
            growing.iter().map(|draft| draft.tips.iter().map(branch).collect()).collect();
        let steps = growing.iter().zip(&branches).map(|(draft, branches)| Step {
            slot: draft.request.slot,
            keep: Keep::All(draft.tokens.len() + draft.cached),
            trunk: &[],
            tree: branches,
            rows: Rows::Tree,
        });
        self.pass(&steps.collect::<Vec<_>>())?;
        for (draft, branches) in growing.iter_mut().zip(&branches) {
            self.caches.grown(draft.request.slot, branches);
            for tip in &mut draft.tips {
                draft.cached += 1;
                tip.cached = draft.cached;
            }
        }
        Ok(())
    }

    fn pass(&mut self, steps: &[Step<'_>]) -> Result<(), EngineError> {
        let started = self.clock.now();
        let result = self.engine.extend(steps, &mut self.output);
        let tokens = steps.iter().map(|step| step.trunk.len() + step.tree.len()).sum();
        let time = self.clock.now() - started;
        self.passes.push(Pass { tokens, sequences: steps.len(), time });
        if let Err(error) = &result {
            self.caches.failed(steps.iter().map(|step| (step.slot, step.keep)), error);
        }
        result
    }

    /// Draws the next tokens of a draft from the rows of its tips, the first of which is given.
    fn branch(&mut self, row: usize, draft: &mut Growing<'_, '_>) -> Result<(), DraftFailure> {
        let tips = std::mem::take(&mut draft.tips);
        let (output, translation) = (&mut self.output, &mut self.translation);
        let grown = branch::grow(draft.request, tips, self.confidence_min, |request, tip, path| {
            let logits = match translation {
                Some(words) => {
                    words.map.translate_row(output.row(row + tip), &mut words.row);
                    &mut words.row
                }
                None => output.row_mut(row + tip),
            };
            branch::shaped(request, path, logits)
        });
        draft.tips = grown?;
        Ok(())
    }
}

impl Translation {
    fn spell_all(&mut self, tokens: &[Token]) -> Vec<Token> {
        let mut translated = Vec::with_capacity(tokens.len());
        for token in tokens {
            match self.map.to_draft(*token) {
                Some(token) => translated.push(token),
                None => {
                    let spell = || self.map.spell(*token, &*self.target, &*self.draft);
                    translated.extend_from_slice(self.spelled.entry(*token).or_insert_with(spell));
                }
            }
        }
        translated
    }
}

impl Drafter for ModelDrafter {
    fn kind(&self) -> DrafterKind {
        DrafterKind::DraftModel
    }

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), DraftFailure> {
        let (context_len, paths_max) = (self.engine.context_len(), self.engine.paths_max());
        let mut growing = Vec::with_capacity(requests.len());
        for request in requests {
            let tokens = match &mut self.translation {
                Some(words) => Cow::Owned(words.spell_all(request.tokens)),
                None => Cow::Borrowed(request.tokens),
            };
            if tokens.is_empty() {
                continue;
            }
            let width = request.width;
            if width > paths_max {
                request.failure = Some(DraftFailure::Paths { width, paths_max });
                continue;
            }
            let start = self.first_prefilled(request, &tokens);
            let wanted = tokens.len() - start + request.len_max * width;
            if wanted > context_len {
                request.failure = Some(EngineError::Full { tokens: wanted - context_len }.into());
                continue;
            }
            self.starts[request.slot.0 as usize] = start;
            let tokens = match tokens {
                Cow::Borrowed(tokens) => Cow::Borrowed(&tokens[start..]),
                Cow::Owned(mut tokens) => Cow::Owned(tokens.split_off(start)),
            };
            let tips = vec![Tip::root(width)];
            growing.push(Growing { request, tokens, tips, cached: 0 });
        }
        if growing.is_empty() {
            return Ok(());
        }
        self.catch_up(&growing)?;
        for depth in 1.. {
            let mut row = 0;
            growing.retain_mut(|draft| {
                let rows = draft.tips.len();
                let branched = self.branch(row, draft);
                row += rows;
                draft.request.failure = branched.err();
                !draft.tips.is_empty() && depth < draft.request.len_max
            });
            if growing.is_empty() {
                break;
            }
            self.advance(&mut growing)?;
        }
        Ok(())
    }

    fn copy(&mut self, from: Slot, to: Slot, len: usize) {
        let Some(0) = self.starts.get(from.0 as usize) else { return };
        // In a vocabulary of its own a sequence has another length.
        let len = len.min(self.caches.of(from).trunk().len());
        if self.translation.is_none() && len > 0 && self.engine.copy(from, to, len) {
            self.caches.copied(from, to, len);
            self.starts[to.0 as usize] = 0;
        }
    }

    fn forget(&mut self, slot: Slot) {
        self.caches.extended(slot, 0, &[], &[]);
        if let Some(start) = self.starts.get_mut(slot.0 as usize) {
            *start = 0;
        }
    }

    fn use_clock(&mut self, clock: Arc<dyn Clock>) {
        self.clock = clock;
    }

    fn passes(&mut self) -> Vec<Pass> {
        std::mem::take(&mut self.passes)
    }

    fn measure(&mut self, may_take: Duration) -> Result<Option<CostCurve>, EngineError> {
        let measured = CostCurve::measure(&mut *self.engine, may_take, &*self.clock);
        self.caches.clear();
        measured.map(Some)
    }

    fn behind(&self, slot: Slot, tokens: &[Token]) -> usize {
        let Some(start) = self.starts.get(slot.0 as usize) else { return 0 };
        let cached = self.caches.of(slot);
        let cached_len = match (start, &self.translation) {
            (0, None) => cached.reuse(tokens).len,
            // Near enough: a sequence is about as long in both vocabularies.
            (0, Some(_)) => cached.trunk().len(),
            _ => 0,
        };
        tokens.len().saturating_sub(cached_len)
    }
}
