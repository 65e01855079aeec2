//! What a run needs of models: their vocabulary, fresh engines, and drafters.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use forerun_decode::{Drafter, Engine, Slot, Tokenizer};

use crate::error::Result;
use crate::machine::EngineRecord;

/// How long measuring the cost of passes may take.
pub const MEASURE: Duration = Duration::from_millis(1500);

/// The one slot of a run that decodes one sequence at a time.
pub const SLOT: Slot = Slot(0);

/// The target model as prompts meet it.
#[derive(Clone)]
pub struct Target {
    /// Its vocabulary.
    pub vocab: Arc<dyn Tokenizer>,
    /// Its chat template, if it has one.
    pub chat_template: Option<String>,
    /// Most tokens of context an engine of it may have.
    pub context_len: usize,
}

/// How much an engine must hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineShape {
    /// Tokens of context; `None` for as many as the owner allows.
    pub context_len: Option<usize>,
    /// Sequences at once.
    pub slots: NonZeroU32,
    /// Most paths of a draft.
    pub paths: NonZeroU32,
}

/// What a decoder is made of.
pub struct Parts {
    /// The target's engine.
    pub engine: Box<dyn Engine>,
    /// What drafts for it.
    pub drafters: Vec<Box<dyn Drafter>>,
}

/// A target model and what drafts for it, loaded when it is first asked for.
///
/// Runs need several engines of one model: a decoder's, and others beside it that score what it
/// wrote. Every call returns a fresh one with empty caches.
pub trait Models {
    /// Loads the target model.
    ///
    /// # Errors
    /// If it cannot be loaded.
    fn target(&mut self) -> Result<Target>;

    /// An engine of the target.
    ///
    /// # Errors
    /// If there is no room for it.
    fn engine(&mut self, shape: &EngineShape) -> Result<Box<dyn Engine>>;

    /// An engine of the target with all its drafters, in the order the run names them. A draft model has
    /// room for `draft_paths`.
    ///
    /// # Errors
    /// If there is no room, or a draft model cannot be loaded or does not fit the target.
    fn parts(&mut self, shape: &EngineShape, draft_paths: NonZeroU32) -> Result<Parts>;

    /// An engine of the first draft model; `None` if there is none, or it has a vocabulary of its own.
    ///
    /// # Errors
    /// If it cannot be loaded.
    fn draft_engine(&mut self, shape: &EngineShape) -> Result<Option<Box<dyn Engine>>>;

    /// How an engine of this size runs, for a report.
    fn record(&self, context_len: usize, paths: u32) -> EngineRecord;
}

/// What is measured or tested.
pub enum Subject<'a, M, S> {
    /// Models in this process.
    Models(&'a M, &'a mut dyn Models),
    /// Anyone's server.
    Server(&'a S),
}
