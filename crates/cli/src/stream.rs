//! One text from prompt to end, written as it comes.

use anyhow::Context;
use forerun_decode::{
    DecodeError, DraftFailure, DraftPolicy, DrafterId, EngineError, Finish, Generation, History,
    Sequence, Stats, Token,
};
use forerun_lab::SLOT;

use crate::flags::RunConfig;
use crate::interrupt::Interrupt;
use crate::load::Loaded;
use crate::terminal::Screen;

/// Why a text is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It ended.
    Finished(Finish),
    /// Ctrl-C.
    Interrupted,
}

/// A text that is over.
#[derive(Debug)]
pub(crate) struct Text {
    /// The text.
    pub(crate) text: String,
    /// Its tokens, an end token included.
    pub(crate) tokens: Vec<Token>,
    /// How many tokens its prompt had.
    pub(crate) prompt_len: usize,
    /// Why it is over.
    pub(crate) ending: Ending,
    /// What its rounds did.
    pub(crate) stats: Stats,
    /// Its seed.
    pub(crate) seed: u64,
}

impl Text {
    /// How many tokens of the prompt did not have to be read; `None` where it was not read to its
    /// end.
    pub(crate) fn cached_len(&self) -> Option<u64> {
        let read = self.stats.prompt_prefilled;
        (!self.tokens.is_empty()).then(|| (self.prompt_len as u64).saturating_sub(read))
    }
}

/// What makes outputs, one after the other, each reusing what is cached of the one before.
pub(crate) struct Writer<'a> {
    /// Target and drafters.
    pub(crate) loaded: Loaded,
    config: &'a RunConfig,
    interrupt: &'a Interrupt,
    /// Which drafters still work.
    drafters: Vec<DrafterId>,
    texts: u64,
}

impl<'a> Writer<'a> {
    /// Begins with an empty cache.
    pub(crate) fn new(loaded: Loaded, config: &'a RunConfig, interrupt: &'a Interrupt) -> Self {
        let mut writer = Self { loaded, config, interrupt, drafters: Vec::new(), texts: 0 };
        writer.forget_failures();
        writer
    }

    /// Gives drafters that failed another chance: a text that was too long for one is forgotten.
    pub(crate) fn forget_failures(&mut self) {
        self.drafters = self.loaded.decoder.drafters().iter().map(|(id, _)| id).collect();
    }

    /// Makes a text. It goes to the screen as it comes, unless one JSON object is wanted.
    ///
    /// # Errors
    /// Where a pass fails, or the reader of the text is gone.
    pub(crate) fn write(
        &mut self,
        prompt: Vec<Token>,
        screen: &mut Screen,
    ) -> anyhow::Result<Text> {
        // Each text of a session has a seed of its own, so that the same question can be asked twice.
        let seed = self.config.sampling.seed.wrapping_add(self.texts);
        self.texts += 1;
        let draft = &self.config.draft;
        let rule = draft.rule_with_seed(seed);
        let policy = DraftPolicy::drafted(self.drafters.clone(), draft.len.get(), rule)
            .wide(draft.width.get())
            .drawn(draft.scheme);
        let mut sequence = Sequence::new(SLOT, self.loaded.sampling.clone());
        sequence.begin(prompt, self.config.text.len_max);
        let stops = &self.config.text.stops;
        let mut generation =
            Generation::new(sequence, policy, self.loaded.tokenizer(), stops, seed);
        let mut history = self.loaded.controller.as_ref().map(|it| it.history(|_| true));
        let mut text = String::new();
        let result = self.rounds(&mut generation, &mut history, &mut text, screen);
        if matches!(result, Ok(Ending::Interrupted)) {
            let rest = generation.held_back();
            text.push_str(&rest);
            if !self.config.output.json {
                screen.plain(&rest).context("cannot write the text")?;
            }
        }
        let (prompt_len, stats) = (generation.sequence().prompt_len(), generation.stats().clone());
        let tokens = generation.sequence().output().to_vec();
        for (_, drafter) in self.loaded.decoder.drafters_mut().iter_mut() {
            drafter.ended(SLOT, &tokens);
        }
        if let Err(error) = self.loaded.keep_gates(&self.config.draft.gate) {
            screen.warn(&format!("{error:#}"));
        }
        Ok(Text { text, tokens, prompt_len, ending: result?, stats, seed })
    }

    fn rounds(
        &mut self,
        generation: &mut Generation,
        history: &mut Option<History>,
        text: &mut String,
        screen: &mut Screen,
    ) -> anyhow::Result<Ending> {
        loop {
            if self.interrupt.is_pressed() {
                return Ok(Ending::Interrupted);
            }
            let Loaded { decoder, controller, .. } = &mut self.loaded;
            let next = match (controller, &mut *history) {
                (Some(controller), Some(history)) => controller.next(history, generation, decoder),
                _ => generation.next(decoder),
            };
            let chunk = match next {
                Ok(Some(chunk)) => chunk,
                Ok(None) => {
                    return Ok(Ending::Finished(generation.finish().unwrap_or(Finish::End)));
                }
                Err(DecodeError::Engine(EngineError::Interrupted)) => {
                    return Ok(Ending::Interrupted);
                }
                Err(error) => return Err(error.into()),
            };
            for drop in &chunk.dropped {
                // A drafter that was interrupted is well; the text goes no further anyway.
                if drop.failure != DraftFailure::Engine(EngineError::Interrupted) {
                    self.drafters.retain(|drafter| *drafter != drop.drafter);
                    let (name, failure) = (drop.kind.name(), &drop.failure);
                    screen.warn(&format!("drafter {name} failed ({failure}): going on without it"));
                }
            }
            text.extend(chunk.pieces.iter().map(|piece| piece.text.as_str()));
            if !self.config.output.json {
                screen.text(&chunk).context("cannot write the text")?;
            }
        }
    }
}
