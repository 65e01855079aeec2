//! Logits to the distribution the next token is drawn from, for target and drafter alike.
//!
//! Names, defaults and order are llama.cpp's: bias, penalties, top-k, typical, top-p, min-p, infill, and
//! temperature last, so that truncation does not depend on the temperature. Nothing is drawn here,
//! and the distribution is a function of the logits and the tokens before alone: no state, so a row
//! in the middle of a path is shaped as it would be once the path is committed.

mod check;
mod infill;
mod penalty;
mod scan;
mod truncate;

use forerun_verify::{Dist, RowError, Token};

pub use check::SamplingError;
pub use infill::InfillSampler;
use truncate::Kept;

/// How tokens are drawn: what is done to a row of logits before a token is drawn from it.
///
/// ```
/// use forerun_decode::Sampling;
/// use forerun_verify::Token;
/// let sampling = Sampling { top_k: 2, ..Sampling::unshaped() };
/// let dist = sampling.row(&mut [1.0, 0.0, 1.0, -1.0], &[Token(3)], &[])?;
/// assert_eq!(dist.prob(Token(2)), 0.5);
/// # Ok::<(), forerun_verify::RowError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// Divides the logits of the tokens that are kept; 0 takes the likeliest token.
    pub temperature: f32,
    /// Keeps this many of the likeliest tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps the fewest likeliest tokens whose probabilities add up to this; 1 keeps all.
    pub top_p: f32,
    /// Keeps the tokens that are at least this share as probable as the likeliest; 0 keeps all.
    pub min_p: f32,
    /// Keeps the fewest tokens whose probabilities add up to more than this, those first whose
    /// surprise is nearest to the entropy (arXiv 2202.00666); 1 keeps all.
    pub typical_p: f32,
    /// Divides the logit of a token that occurred, or multiplies it if it is not above zero; 1
    /// changes nothing.
    pub repeat_penalty: f32,
    /// How many of the last tokens the penalties look at, prompt included; 0 turns them off and
    /// `None` looks at all.
    pub repeat_last_n: Option<usize>,
    /// Taken off the logit of a token that occurred.
    pub presence_penalty: f32,
    /// Taken off the logit of a token once for each time it occurred.
    pub frequency_penalty: f32,
    /// Added to the logits of single tokens before all else; `-inf` forbids a token. Biases of the
    /// same token add up.
    pub logit_bias: Vec<(Token, f32)>,
    /// Keeps what may come next in a gap between texts, or ends the text; needs a `top_k` of 1 to 256.
    pub infill: Option<InfillSampler>,
}

/// llama.cpp's defaults.
///
/// ```
/// # use forerun_decode::Sampling;
/// assert_eq!(Sampling::default().top_k, 40);
/// ```
impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, ..Self::unshaped() }
    }
}

impl Sampling {
    /// Whether the likeliest token is always taken.
    ///
    /// ```
    /// use forerun_decode::Sampling;
    /// assert!(Sampling::greedy().is_greedy() && !Sampling::default().is_greedy());
    /// ```
    pub fn is_greedy(&self) -> bool {
        // Below the normal numbers a temperature has no inverse.
        self.temperature < f32::MIN_POSITIVE
    }

    /// The model's own distribution: temperature 1 and nothing else.
    ///
    /// ```
    /// # use forerun_decode::Sampling;
    /// # use forerun_verify::Token;
    /// let dist = Sampling::unshaped().row(&mut [3.0_f32.ln(), 0.0], &[Token(0)], &[])?;
    /// assert!((dist.prob(Token(0)) - 0.75).abs() < 1e-6);
    /// # Ok::<(), forerun_verify::RowError>(())
    /// ```
    pub fn unshaped() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repeat_penalty: 1.0,
            repeat_last_n: Some(64),
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            infill: None,
        }
    }

    /// Always the likeliest token.
    ///
    /// ```
    /// # use forerun_decode::Sampling;
    /// # use forerun_verify::{Dist, Token};
    /// let dist = Sampling::greedy().row(&mut [0.1, 0.3, 0.2], &[Token(0)], &[])?;
    /// assert_eq!(dist, Dist::point(3, Token(1))?);
    /// # Ok::<(), forerun_verify::RowError>(())
    /// ```
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::unshaped() }
    }

    /// Whether a row depends on the tokens before it other than through its logits: whether a
    /// penalty is on. If not, [`Sampling::row`] never looks at them.
    ///
    /// ```
    /// # use forerun_decode::Sampling;
    /// assert!(!Sampling::default().needs_path());
    /// assert!(Sampling { repeat_penalty: 1.1, ..Sampling::default() }.needs_path());
    /// ```
    pub fn needs_path(&self) -> bool {
        let penalty = self.repeat_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0;
        penalty && self.repeat_last_n != Some(0)
    }

    /// Whether [`Sampling::row`] changes the logits it is given.
    pub(crate) fn changes_logits(&self) -> bool {
        !self.logit_bias.is_empty() || self.needs_path()
    }

    /// The distribution plain decoding would draw the token after `committed` and then `path` from,
    /// given its logits. Bias and penalties are left in `logits`.
    ///
    /// A token of `path` counts as a committed one does. Equal logits are ranked by id. A token
    /// whose logit is `-inf` stays impossible, and biases and tokens outside the row are
    /// ignored: a drafter's vocabulary may be shorter. At temperature 0 all of it is on the
    /// likeliest token after bias and penalties, whatever else is set but `infill`.
    ///
    /// # Precision
    /// Probabilities are sums, products and quotients in a fixed order, the same on all platforms.
    /// A sum that is compared with `top_p` or `typical_p` counts as equal within a millionth.
    ///
    /// # Errors
    /// If a logit is NaN or `+inf`, or none is left above `-inf`. Settings that
    /// [`Sampling::check`] refuses may give any distribution or error.
    ///
    /// ```
    /// # use forerun_decode::Sampling;
    /// # use forerun_verify::{RowError, Token};
    /// let sampling = Sampling { presence_penalty: 9.0, ..Sampling::greedy() };
    /// let likeliest = |path: &[Token]| {
    ///     let dist = sampling.row(&mut [2.0, 1.0, 0.0], &[Token(2)], path)?;
    ///     Ok::<_, RowError>(dist.support().next().map(|(token, _)| token))
    /// };
    /// assert_eq!(likeliest(&[])?, Some(Token(0)));
    /// assert_eq!(likeliest(&[Token(0)])?, Some(Token(1)));
    /// # Ok::<(), RowError>(())
    /// ```
    pub fn row(
        &self,
        logits: &mut [f32],
        committed: &[Token],
        path: &[Token],
    ) -> Result<Dist, RowError> {
        for (token, bias) in &self.logit_bias {
            if let Some(logit) = logits.get_mut(token.index()) {
                *logit += bias;
            }
        }
        if self.needs_path() {
            self.penalise(logits, committed, path);
        }
        if self.is_greedy() && self.infill.is_none() {
            return Dist::point(logits.len(), Token(scan::highest(logits)?.place));
        }
        let mut kept = Kept::all(logits);
        kept.top_k(self.top_k)?;
        kept.typical(self.typical_p)?;
        kept.top_p(self.top_p)?;
        kept.min_p(self.min_p)?;
        if let Some(infill) = &self.infill {
            let end = infill.end();
            let may_end = logits.get(end.index()).is_some_and(|logit| *logit > f32::NEG_INFINITY);
            if !kept.infill(infill)? && may_end {
                return Dist::point(logits.len(), end);
            }
        }
        match self.is_greedy() {
            true => Dist::point(logits.len(), kept.likeliest()?),
            false => kept.dist(self.temperature),
        }
    }
}
