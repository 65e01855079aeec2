//! Sequences that a student generates itself, with the target's rows of them: on-policy data.
//!
//! In use, a draft model goes on from its own tokens as far as they are accepted. Here it does so too, and
//! the target says of each token what it would have said there.

use std::path::Path;
use std::sync::atomic::Ordering;

use forerun_llama::{LlamaEngine, Model, ModelOptions};
use forerun_verify::Philox;
use forerun_verify::rand_core::Rng;

use crate::collect::{Decoding, Running, continue_group, engine_options, score};
use crate::rows::{Sequence, Settings};

/// Has the student continue the prompts of these sequences, and the target tell its rows. Returns nothing if
/// it was stopped.
///
/// # Errors
/// If a model cannot be loaded or fails.
pub fn write(
    (student, target): (&Path, &Path),
    sequences: &[&Sequence],
    settings: &Settings,
    seed: u64,
    running: &Running,
) -> anyhow::Result<Option<Vec<Sequence>>> {
    let model = Model::load(ModelOptions::new(student))?;
    let mut seeds = Philox::new(seed);
    let mut decodings: Vec<Decoding> = sequences
        .iter()
        .map(|sequence| {
            let tokens = sequence.tokens[..sequence.prompt_len].to_vec();
            let sequence = Sequence {
                id: sequence.id,
                prompt_len: sequence.prompt_len,
                tokens,
                ..Sequence::default()
            };
            Decoding::new(sequence, seeds.next_u64())
        })
        .collect();
    for group in decodings.chunks_mut(running.slots.get() as usize) {
        if !continue_group(&model, group, settings, running, |_, _| ())? {
            return Ok(None);
        }
    }
    drop(model);
    let model = Model::load(ModelOptions::new(target))?;
    let mut engine = LlamaEngine::new(&model, &engine_options(settings, running)?)?;
    let mut written = Vec::with_capacity(decodings.len());
    for decoding in decodings {
        let scored = score_own(&mut engine, decoding.sequence, settings);
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
    mut sequence: Sequence,
    settings: &Settings,
) -> anyhow::Result<Sequence> {
    sequence.row_tokens.clear();
    sequence.row_probs.clear();
    for row in score(engine, &sequence.tokens, sequence.prompt_len, settings)? {
        sequence.row_tokens.extend(row.tokens);
        sequence.row_probs.extend(row.probs);
    }
    Ok(sequence)
}
