//! Drafts from a smaller model.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forerun_verify::{Dist, Node, Token};

use crate::cache::Cached;
use crate::draft::{Ask, DraftFailure, Drafter};
use crate::engine::{Branch, Engine, EngineError, Keep, Output, Rows, Step};
use crate::text::Tokenizer;
use crate::vocab_map::VocabMap;

/// A draft model: samples one path for each ask, from rows shaped as the target's are.
///
/// All sequences of a round are drafted together, in one pass for each position. What its cache
/// still holds of a sequence is found out at the next call.
pub struct ModelDrafter {
    engine: Box<dyn Engine>,
    translation: Option<Translation>,
    confidence_min: f64,
    cached: Vec<Cached>,
    output: Output,
    pass_time: Duration,
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

/// A path while it grows.
struct Growing<'q, 'a> {
    ask: &'q mut Ask<'a>,
    /// The committed tokens, in the drafter's vocabulary.
    tokens: Cow<'a, [Token]>,
    /// The drafted tokens, in the target's.
    path: Vec<Token>,
    /// The last of them.
    node: Node,
}

impl ModelDrafter {
    /// A model whose vocabulary is the target's.
    pub fn new(engine: Box<dyn Engine>) -> Self {
        let cached = vec![Cached::default(); engine.slot_count()];
        Self {
            engine,
            translation: None,
            confidence_min: 0.0,
            cached,
            output: Output::default(),
            pass_time: Duration::ZERO,
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

    /// Ends a path before a token where the likeliest one is less likely than this. The decision
    /// looks at the row alone, before a token is drawn from it, so it costs no exactness.
    #[must_use]
    pub fn confident(mut self, confidence_min: f64) -> Self {
        self.confidence_min = confidence_min;
        self
    }

    /// Runs the committed tokens the cache does not hold; a row for each path.
    fn catch_up(&mut self, growing: &[Growing<'_, '_>]) -> Result<(), EngineError> {
        let reuse = |path: &Growing<'_, '_>| self.cached[path.slot()].reuse(&path.tokens);
        let reuses: Vec<_> = growing.iter().map(reuse).collect();
        let steps = growing.iter().zip(&reuses).map(|(path, reuse)| Step {
            slot: path.ask.slot,
            keep: reuse.keep,
            trunk: &path.tokens[reuse.len..],
            tree: &[],
            rows: Rows::Trunk,
        });
        let result = self.pass(&steps.collect::<Vec<_>>());
        for (path, reuse) in growing.iter().zip(&reuses) {
            let cached = &mut self.cached[path.slot()];
            match &result {
                Ok(()) => cached.extended(reuse.len, &path.tokens, &[]),
                Err(error) => cached.failed(reuse.len, &path.tokens, error),
            }
        }
        result
    }

    /// Runs the last drafted token of each path; a row for each.
    fn advance(&mut self, growing: &[Growing<'_, '_>]) -> Result<(), EngineError> {
        let branch = |path: &Growing<'_, '_>| {
            let token = *path.path.last().expect("a token was drafted");
            let token = self.translation.as_ref().map_or(token, |words| {
                words.map.to_draft(token).expect("drawn from a row of mapped tokens")
            });
            [Branch { parent: path.path.len() - 1, token }]
        };
        let branches: Vec<_> = growing.iter().map(branch).collect();
        let steps = growing.iter().zip(&branches).map(|(path, branch)| Step {
            slot: path.ask.slot,
            keep: Keep::All,
            trunk: &[],
            tree: branch,
            rows: Rows::Tree,
        });
        let result = self.pass(&steps.collect::<Vec<_>>());
        for (path, branch) in growing.iter().zip(&branches) {
            let cached = &mut self.cached[path.slot()];
            match &result {
                Ok(()) => cached.grown(branch),
                Err(error) => cached.not_grown(error),
            }
        }
        result
    }

    fn pass(&mut self, steps: &[Step<'_>]) -> Result<(), EngineError> {
        let started = Instant::now();
        let result = self.engine.extend(steps, &mut self.output);
        self.pass_time += started.elapsed();
        result
    }

    /// Draws the next token of a path from its row; false where the path ends before it.
    fn draw(&mut self, row: usize, path: &mut Growing<'_, '_>) -> Result<bool, DraftFailure> {
        let logits = match &mut self.translation {
            Some(words) => {
                words.map.translate_row(self.output.row(row), &mut words.row);
                &mut words.row
            }
            None => self.output.row_mut(row),
        };
        let law = path.ask.sampling.row(logits, path.ask.tokens, &path.path).map_err(unusable)?;
        if self.confidence_min > 0.0 && likeliest(&law) < self.confidence_min {
            return Ok(false);
        }
        let token = path.ask.draw(path.path.len(), &law);
        let tree = &mut path.ask.tree;
        let row = tree.row(law).map_err(unusable)?;
        path.node = tree.sampled(path.node, row, token).map_err(unusable)?;
        path.path.push(token);
        Ok(true)
    }
}

impl Growing<'_, '_> {
    fn slot(&self) -> usize {
        self.ask.slot.0 as usize
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

fn unusable(error: impl ToString) -> DraftFailure {
    DraftFailure::Row(error.to_string())
}

fn likeliest(law: &Dist) -> f64 {
    law.support().map(|(_, probability)| probability).fold(0.0, f64::max)
}

impl Drafter for ModelDrafter {
    fn name(&self) -> &'static str {
        "draft-model"
    }

    fn draft(&mut self, asks: &mut [Ask<'_>]) -> Result<(), DraftFailure> {
        let context_len = self.engine.context_len();
        let mut growing = Vec::with_capacity(asks.len());
        for ask in asks {
            let tokens = match &mut self.translation {
                Some(words) => Cow::Owned(words.spell_all(ask.tokens)),
                None => Cow::Borrowed(ask.tokens),
            };
            if tokens.is_empty() {
                continue;
            }
            if tokens.len() + ask.len_max > context_len {
                let tokens = tokens.len() + ask.len_max - context_len;
                ask.failure = Some(EngineError::Full { tokens }.into());
                continue;
            }
            growing.push(Growing { ask, tokens, path: Vec::new(), node: Node::ROOT });
        }
        let mut ready = !growing.is_empty();
        if ready {
            self.catch_up(&growing)?;
        }
        while ready {
            let mut row = 0;
            growing.retain_mut(|path| {
                let drawn = self.draw(row, path);
                row += 1;
                match drawn {
                    Ok(drawn) => drawn && path.path.len() < path.ask.len_max,
                    Err(failure) => {
                        path.ask.failure = Some(failure);
                        false
                    }
                }
            });
            ready = !growing.is_empty();
            if ready {
                self.advance(&growing)?;
            }
        }
        Ok(())
    }

    fn pass_time(&self) -> Duration {
        self.pass_time
    }
}
