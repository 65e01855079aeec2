//! What a certificate needs beside the decoder: engines that run the models again.

use std::num::NonZeroU32;
use std::time::Instant;

use forerun_decode::{DrafterKind, Drift, NgramDrafter, SuffixDrafter, Token, drift};
use serde_json::{Value, json};

use super::config::ModelSubject;
use super::writer::{Reader, Suspect};
use crate::error::Result;
use crate::models::{EngineShape, Models};
use crate::observer::Observer;

/// Positions at which rows are compared.
const DRIFT_POSITIONS: usize = 24;

/// What is needed beside the decoder: engines that run the models again.
pub(super) struct Engines<'a> {
    pub(super) subject: &'a ModelSubject,
    pub(super) models: &'a mut dyn Models,
    pub(super) prompts: &'a [Vec<Token>],
    pub(super) observer: &'a dyn Observer,
}

impl Engines<'_> {
    /// A slot for each prompt.
    fn shape(&self, paths: usize) -> EngineShape {
        let count = |count: usize| u32::try_from(count).ok().and_then(NonZeroU32::new);
        EngineShape {
            context_len: None,
            slots: count(self.prompts.len()).unwrap_or(NonZeroU32::MIN),
            paths: count(paths).unwrap_or(NonZeroU32::MIN),
        }
    }

    /// The target, to score outputs with.
    pub(super) fn reader(&mut self) -> Result<Reader> {
        let shape = self.shape(1);
        Ok(Reader::new(self.models.engine(&shape)?))
    }

    /// The first draft model, or else the first drafter, to know what it would say.
    pub(super) fn suspect(&mut self) -> Result<Option<Suspect>> {
        let kinds = &self.subject.drafters;
        if kinds.contains(&DrafterKind::DraftModel) {
            let shape = self.shape(self.subject.width.get());
            let engine = self.models.draft_engine(&shape)?;
            if engine.is_none() {
                self.observer
                    .note("the drafter has a vocabulary of its own: no bets on what it would say");
            }
            return Ok(engine.map(|engine| Suspect::Model(Reader::new(engine))));
        }
        Ok(match kinds.first() {
            Some(DrafterKind::Ngram) => Some(Suspect::Guesser(Box::new(NgramDrafter::default()))),
            Some(DrafterKind::Suffix) => Some(Suspect::Guesser(Box::new(SuffixDrafter::default()))),
            _ => None,
        })
    }

    /// Rows in blocks as long as drafts, and as long as outputs are scored in; on as many prompts as
    /// there is time for, but one.
    pub(super) fn drift(&mut self, until: Instant) -> Result<Vec<(usize, Drift)>> {
        let shape = self.shape(1);
        let mut engine = self.models.engine(&shape)?;
        let lens = [self.subject.len.get() + 1, DRIFT_POSITIONS];
        let mut all = lens.map(|len| (len, Drift::default())).to_vec();
        let count = self.prompts.len();
        for (index, prompt) in self.prompts.iter().enumerate() {
            if index > 0 && Instant::now() >= until {
                break;
            }
            self.observer
                .show(index as f64 / count as f64, &format!("prompt {}/{count}", index + 1));
            for (len, sum) in &mut all {
                *sum = sum.and(drift(&mut *engine, prompt, DRIFT_POSITIONS, *len)?);
            }
        }
        Ok(all)
    }

    pub(super) fn settings(&self, seed: u64) -> Value {
        let subject = self.subject;
        let names: Vec<&str> = subject.drafters.iter().map(|kind| kind.name()).collect();
        json!({
            "prompts": self.prompts.len(),
            "rule": subject.lossy.map_or_else(|| subject.rule.name().to_owned(), |it| format!("lossy {it}")),
            "drafters": names.join(", "),
            "draft_length": subject.len.get(),
            "paths": subject.width.get(),
            "texts_at_once": subject.slots.get(),
            "seed": seed,
        })
    }
}
