//! Texts that a student writes itself, with the target's rows of them: on-policy data.
//!
//! In use, a draft model goes on from its own tokens as far as they are accepted. Here it does so too, and
//! the target says of each token what it would have said there.

use std::path::Path;
use std::sync::atomic::Ordering;

use forerun_llama::{LlamaEngine, Model, ModelOptions};
use forerun_verify::Philox;
use forerun_verify::rand_core::Rng;

use crate::collect::{Running, Sequence, continue_group, engine_options, score};
use crate::rows::{Settings, Text};

/// Has the student continue the prompts of these texts, and the target tell its rows. Returns nothing if
/// it was stopped.
///
/// # Errors
/// If a model cannot be loaded or fails.
pub fn write(
    (student, target): (&Path, &Path),
    texts: &[&Text],
    settings: &Settings,
    seed: u64,
    running: &Running,
) -> anyhow::Result<Option<Vec<Text>>> {
    let model = Model::load(ModelOptions::new(student))?;
    let mut seeds = Philox::new(seed);
    let mut sequences: Vec<Sequence> = texts
        .iter()
        .map(|text| {
            let tokens = text.tokens[..text.prompt_len].to_vec();
            let text = Text { id: text.id, prompt_len: text.prompt_len, tokens, ..Text::default() };
            Sequence::new(text, seeds.next_u64())
        })
        .collect();
    for group in sequences.chunks_mut(running.slots.get() as usize) {
        if !continue_group(&model, group, settings, running, |_, _| ())? {
            return Ok(None);
        }
    }
    drop(model);
    let model = Model::load(ModelOptions::new(target))?;
    let mut engine = LlamaEngine::new(&model, &engine_options(settings, running)?)?;
    let mut written = Vec::with_capacity(sequences.len());
    for sequence in sequences {
        let scored = score_own(&mut engine, sequence.text, settings);
        if running.stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        written.push(scored?);
    }
    Ok(Some(written))
}

/// Puts the target's rows in place of the student's.
fn score_own(
    engine: &mut LlamaEngine,
    mut text: Text,
    settings: &Settings,
) -> anyhow::Result<Text> {
    text.row_tokens.clear();
    text.row_shares.clear();
    for row in score(engine, &text.tokens, text.prompt_len, settings)? {
        text.row_tokens.extend(row.tokens);
        text.row_shares.extend(row.listed_shares);
    }
    Ok(text)
}
