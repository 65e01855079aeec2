//! How tokens are drawn, before the vocabulary is known and after.

use forerun_decode::{Sampling, SamplingError, Token, Tokenizer};

/// How tokens are drawn, checked but for what depends on the vocabulary.
#[derive(Debug, Clone)]
pub struct SamplingConfig {
    /// How rows are shaped.
    pub sampling: Sampling,
    /// Whether end tokens are forbidden.
    pub ignore_end: bool,
    /// The seed of all random choices.
    pub seed: u64,
}

impl SamplingConfig {
    /// The sampling for a vocabulary, with its end tokens forbidden if that is wanted.
    ///
    /// # Errors
    /// If it biases a token the vocabulary does not have.
    pub fn for_vocab(&self, vocab: &dyn Tokenizer) -> Result<Sampling, SamplingError> {
        let mut sampling = self.sampling.clone();
        if self.ignore_end {
            let tokens = (0..).map(Token).take(vocab.vocab_len());
            let ends = tokens.filter(|token| vocab.is_end(*token));
            sampling.logit_bias.extend(ends.map(|end| (end, f32::NEG_INFINITY)));
        }
        sampling.check(vocab.vocab_len())?;
        Ok(sampling)
    }
}
