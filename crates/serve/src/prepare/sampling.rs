//! How the tokens of a request are drawn.

use std::sync::Arc;

use forerun_decode::{InfillSampler, Sampling, SamplingError, Token};

use super::SamplingParameters;
use super::samplers::keep_only;
use crate::error::RequestError;
use crate::service::Service;

impl Service {
    /// The sampling of a request, with the server's defaults for the samplers that are on.
    pub(super) fn sampling(
        &self,
        set: SamplingParameters,
        on: &[&str],
    ) -> Result<Sampling, RequestError> {
        let own = &self.sampling;
        let top_k = match set.top_k {
            None => own.top_k,
            Some(-1) => 0,
            Some(k) => usize::try_from(k).map_err(|_| {
                let message = format!("top_k is {k}; expected 0 or more, or -1");
                RequestError::parameter("top_k", message)
            })?,
        };
        let repeat_last_n = match set.repeat_last_n {
            None => own.repeat_last_n,
            Some(-1) => None,
            Some(n) => Some(usize::try_from(n).map_err(|_| {
                let message = format!("repeat_last_n is {n}; expected 0 or more, or -1 for all");
                RequestError::parameter("repeat_last_n", message)
            })?),
        };
        let mut sampling = Sampling {
            temperature: set.temperature.unwrap_or(own.temperature),
            top_k,
            top_p: set.top_p.unwrap_or(own.top_p),
            min_p: set.min_p.unwrap_or(own.min_p),
            typical_p: set.typical_p.unwrap_or(own.typical_p),
            repeat_penalty: set.repeat_penalty.unwrap_or(own.repeat_penalty),
            repeat_last_n,
            presence_penalty: set.presence_penalty.unwrap_or(own.presence_penalty),
            frequency_penalty: set.frequency_penalty.unwrap_or(own.frequency_penalty),
            logit_bias: own.logit_bias.clone(),
            infill: on.contains(&"infill").then(|| self.infill(on)).transpose()?,
        };
        sampling.logit_bias.extend(set.logit_bias);
        if set.ignore_eos {
            let ends = (0..).map(Token).take(self.tokenizer.vocab_len());
            let ends = ends.filter(|token| self.tokenizer.is_end(*token));
            sampling.logit_bias.extend(ends.map(|end| (end, f32::NEG_INFINITY)));
        }
        let sampling = keep_only(on, sampling);
        sampling.check(self.tokenizer.vocab_len()).map_err(|error| match error {
            SamplingError::OutOfRange { name, .. } => RequestError::parameter(name, error),
            _ => RequestError::parameter("logit_bias", error),
        })?;
        Ok(sampling)
    }

    /// The sampler for the text of a gap.
    fn infill(&self, on: &[&str]) -> Result<InfillSampler, RequestError> {
        let reject = |message| RequestError::parameter("samplers", message);
        if !on.contains(&"top_k") {
            return Err(reject("infill compares all candidates: put top_k before it"));
        }
        let end = self.tokenizer.infill_tokens().end;
        let end =
            end.ok_or_else(|| reject("infill needs a token that ends a text: leave it out"))?;
        Ok(InfillSampler::new(Arc::clone(&self.tokenizer), end))
    }
}
