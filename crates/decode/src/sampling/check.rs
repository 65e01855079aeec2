//! Which settings are refused before a row is shaped by them.

use forerun_verify::Token;

use super::Sampling;
use super::infill::CANDIDATES_MAX;

/// Beyond it every distribution is flat to the eye.
const TEMPERATURE_MAX: f32 = 100.0;

/// The repeat penalty, or its inverse.
const REPEAT_MAX: f32 = 100.0;

/// Presence and frequency penalties of either sign, far below where a logit would overflow.
const PENALTY_MAX: f32 = 100.0;

/// Finite biases of either sign, far below where a logit would overflow.
const BIAS_MAX: f32 = 1e6;

/// Why settings are refused. No row was shaped.
///
/// ```
/// # use forerun_decode::Sampling;
/// let error = Sampling { top_p: 1.5, ..Sampling::default() }.check(100).unwrap_err();
/// assert_eq!(error.to_string(), "top_p is 1.5; expected 0 to 1");
/// ```
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplingError {
    /// A number is NaN, or below or above what it may be.
    #[error("{name} is {value}; expected {least} to {most}")]
    OutOfRange {
        /// The field's name.
        name: &'static str,
        /// What it is.
        value: f32,
        /// The least it may be.
        least: f32,
        /// The most it may be.
        most: f32,
    },
    /// A bias is NaN, `+inf` or too large.
    #[error("bias of token {} is {bias}; expected -inf or {} to {most}", token.0, -most)]
    Bias {
        /// Whose bias it is.
        token: Token,
        /// What it is.
        bias: f32,
        /// The most it may be, of either sign.
        most: f32,
    },
    /// A bias is for a token outside the vocabulary.
    #[error("bias is for token {}; expected a token of a vocabulary of {vocab_len}", token.0)]
    BiasToken {
        /// The token.
        token: Token,
        /// The vocabulary's length.
        vocab_len: usize,
    },
    /// There are more biases than tokens.
    #[error("logit_bias has {count} entries; expected at most {vocab_len}, one for each token")]
    BiasCount {
        /// How many there are.
        count: usize,
        /// The vocabulary's length.
        vocab_len: usize,
    },
}

impl Sampling {
    /// Refuses settings that mean nothing for a vocabulary of `vocab_len` tokens.
    ///
    /// # Errors
    /// Names the first setting that is NaN or out of range, and what was expected.
    ///
    /// ```
    /// # use forerun_decode::Sampling;
    /// # use forerun_verify::Token;
    /// assert!(Sampling::default().check(49_152).is_ok());
    /// let sampling = Sampling { logit_bias: vec![(Token(7), 1.0)], ..Sampling::default() };
    /// assert!(sampling.check(8).is_ok());
    /// assert!(sampling.check(7).is_err());
    /// ```
    pub fn check(&self, vocab_len: usize) -> Result<(), SamplingError> {
        let ranges = [
            ("temperature", self.temperature, 0.0, TEMPERATURE_MAX),
            ("top_p", self.top_p, 0.0, 1.0),
            ("min_p", self.min_p, 0.0, 1.0),
            ("typical_p", self.typical_p, 0.0, 1.0),
            ("repeat_penalty", self.repeat_penalty, 1.0 / REPEAT_MAX, REPEAT_MAX),
            ("presence_penalty", self.presence_penalty, -PENALTY_MAX, PENALTY_MAX),
            ("frequency_penalty", self.frequency_penalty, -PENALTY_MAX, PENALTY_MAX),
        ];
        for (name, value, least, most) in ranges {
            // NaN is in no range.
            if !(least..=most).contains(&value) {
                return Err(SamplingError::OutOfRange { name, value, least, most });
            }
        }
        if self.infill.is_some() && !(1..=CANDIDATES_MAX).contains(&self.top_k) {
            let (value, most) = (self.top_k as f32, CANDIDATES_MAX as f32);
            return Err(SamplingError::OutOfRange { name: "top_k", value, least: 1.0, most });
        }
        if self.logit_bias.len() > vocab_len {
            return Err(SamplingError::BiasCount { count: self.logit_bias.len(), vocab_len });
        }
        for &(token, bias) in &self.logit_bias {
            if bias != f32::NEG_INFINITY && !(-BIAS_MAX..=BIAS_MAX).contains(&bias) {
                return Err(SamplingError::Bias { token, bias, most: BIAS_MAX });
            }
            if token.index() >= vocab_len {
                return Err(SamplingError::BiasToken { token, vocab_len });
            }
        }
        Ok(())
    }
}
