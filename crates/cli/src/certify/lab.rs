//! What a certificate needs beside the decoder: engines that run the models again.

use std::num::NonZeroU32;
use std::time::Instant;

use forerun_decode::{Drift, Engine, NgramDrafter, SuffixDrafter, Token, VocabMap, drift};
use forerun_llama::{EngineOptions, Model};
use serde_json::{Value, json};

use super::flags::ModelSubject;
use super::writer::{Reader, Suspect};
use crate::flags::{DrafterConfig, ModelConfig};
use crate::interrupt::Interrupt;
use crate::load;
use crate::progress::Progress;
use crate::terminal::Screen;

/// Positions at which rows are compared.
const DRIFT_POSITIONS: usize = 24;

/// What is needed beside the decoder: engines that run the models again.
pub(super) struct Lab<'a> {
    pub(super) subject: &'a ModelSubject,
    pub(super) model: &'a Model,
    pub(super) prompts: &'a [Vec<Token>],
    pub(super) interrupt: &'a Interrupt,
    pub(super) progress: Progress,
}

impl Lab<'_> {
    fn engine(
        &self,
        what: &'static str,
        model: &Model,
        config: &ModelConfig,
    ) -> anyhow::Result<Box<dyn Engine>> {
        let slots = u32::try_from(self.prompts.len()).ok().and_then(NonZeroU32::new);
        let options = EngineOptions {
            context_len: load::context_len(self.subject.context, model),
            slots: slots.unwrap_or(NonZeroU32::MIN),
            ..config.engine.clone()
        };
        Ok(Box::new(load::engine(what, model, options, self.interrupt)?))
    }

    /// The target, to score texts with.
    pub(super) fn reader(&self) -> anyhow::Result<Reader> {
        Ok(Reader::new(self.engine("target", self.model, &self.subject.target)?))
    }

    /// The first draft model, or else the first drafter, to know what it would say.
    pub(super) fn suspect(&self, screen: &mut Screen) -> anyhow::Result<Option<Suspect>> {
        let drafters = &self.subject.draft.drafters;
        let models = drafters.iter().filter_map(|drafter| match drafter {
            DrafterConfig::Model(config) => Some(config),
            _ => None,
        });
        if let Some(config) = { models }.next() {
            let model =
                load::load_model("draft model", &config.model, self.interrupt, &self.progress)?;
            if !VocabMap::between(self.model.vocab(), model.vocab())?.is_identity() {
                screen
                    .note("the drafter has a vocabulary of its own: no bets on what it would say");
                return Ok(None);
            }
            let engine = self.engine("draft model", &model, &config.model)?;
            return Ok(Some(Suspect::Model(Reader::new(engine))));
        }
        Ok(match drafters.first() {
            Some(DrafterConfig::Ngram) => Some(Suspect::Guesser(Box::new(NgramDrafter::default()))),
            Some(DrafterConfig::Suffix) => {
                Some(Suspect::Guesser(Box::new(SuffixDrafter::default())))
            }
            _ => None,
        })
    }

    /// Rows in blocks as long as drafts, and as long as texts are scored in; on as many prompts as
    /// there is time for, but one.
    pub(super) fn drift(&self, until: Instant) -> anyhow::Result<Vec<(usize, Drift)>> {
        let mut engine = self.engine("target", self.model, &self.subject.target)?;
        let lens = [self.subject.draft.len.get() + 1, DRIFT_POSITIONS];
        let mut all = lens.map(|len| (len, Drift::default())).to_vec();
        let count = self.prompts.len();
        for (index, prompt) in self.prompts.iter().enumerate() {
            if index > 0 && Instant::now() >= until {
                break;
            }
            self.progress
                .show(index as f64 / count as f64, format!("prompt {}/{count}", index + 1));
            for (len, sum) in &mut all {
                *sum = sum.and(drift(&mut *engine, prompt, DRIFT_POSITIONS, *len)?);
            }
        }
        Ok(all)
    }

    pub(super) fn settings(&self, seed: u64) -> Value {
        let draft = &self.subject.draft;
        let names: Vec<&str> = draft.drafters.iter().map(DrafterConfig::name).collect();
        json!({
            "prompts": self.prompts.len(),
            "rule": draft.rule.name(),
            "drafters": names.join(", "),
            "draft_length": draft.len.get(),
            "paths": draft.width.get(),
            "texts_at_once": self.subject.slots.get(),
            "seed": seed,
        })
    }
}
