//! Students with the target's vocabulary in place of their own.
//!
//! A token is read and said as the mean of the tokens that the student spelled it by, its own one alone if it
//! has it. Embeddings and output have to be trained afterwards.

use std::path::Path;

use forerun_decode::{Token, VocabMap};
use forerun_llama::{Model, ModelOptions, transplant as write_transplanted};

use crate::rows::Sequence;

/// Writes the donor with `size` tokens of the target's vocabulary: those that are most frequent in the
/// sequences that are learned from.
///
/// # Errors
/// If a file cannot be read or written, or the vocabularies have too little in common.
pub fn transplant(
    (donor, target): (&Path, &Path),
    sequences: &[Sequence],
    size: usize,
    output: &Path,
) -> anyhow::Result<()> {
    let load = |path: &Path| Model::load(ModelOptions::new(path));
    let models = (load(target)?, load(donor)?);
    let vocabs = (models.0.vocab(), models.1.vocab());
    let map = VocabMap::between(vocabs.0, vocabs.1)?;
    let spelled = |token: usize| {
        let token = Token(u32::try_from(token).unwrap_or(u32::MAX));
        map.spell(token, vocabs.0, vocabs.1).iter().map(|it| it.index()).collect()
    };
    let counts = counts(sequences, models.0.vocab_len());
    let chosen = (size < counts.len()).then_some((size, &counts[..]));
    write_transplanted(donor, (target, chosen), output, spelled)?;
    Ok(())
}

/// How often each token occurs in what is learned from.
fn counts(sequences: &[Sequence], vocab: usize) -> Vec<u64> {
    let mut counts = vec![0; vocab];
    for sequence in sequences.iter().filter(|sequence| !sequence.held_out) {
        for &token in &sequence.tokens {
            counts[token as usize] += 1;
        }
    }
    counts
}
