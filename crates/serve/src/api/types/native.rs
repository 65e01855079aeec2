//! The fields of requests in llama-server's own form.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    CommonFields, OneOrMany, Prediction, Prompt, Speculative, StreamOptions, StructuredOutputs,
};
use crate::prepare::SamplingParameters;

request! {
    /// A text to continue, by llama-server's own names.
    NativeRequest {
        /// One text or several, each as a string, as token ids, or as a list of both.
        #[schema(value_type = Prompt)]
        prompt: NativePrompt,
        /// Most tokens of the output, by OpenAI's name; -1 for no limit, 0 to cache the prompt alone.
        #[serde(alias = "max_completion_tokens")]
        #[schema(minimum = -1)]
        max_tokens: Option<i64>,
        /// How many completions of each prompt, 1 to 16.
        #[schema(minimum = 1, maximum = 16)]
        n_cmpl: Option<u32>,
        /// Of how many of the likeliest tokens at each position log-probabilities are returned, 0 to 20.
        #[serde(alias = "logprobs")]
        #[schema(maximum = 20)]
        n_probs: Option<u32>,
        /// Whether probabilities are those after sampling. They never are.
        post_sampling_probs: Option<bool>,
        /// Whether to return the ids of the output's tokens. A stream always has them.
        return_tokens: Option<bool>,
        /// The fields of the response, by their paths (`timings/predicted_n`); all if it is empty.
        response_fields: Option<Vec<String>>,
    }
}

/// One prompt or several, each of texts and token ids.
#[derive(Debug, Clone)]
pub(crate) struct NativePrompt(pub(crate) Vec<Vec<TokenOrText>>);

/// A prompt as an object.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PromptObject {
    /// The text.
    pub(crate) prompt_string: String,
    /// Images and sounds, which are not read.
    pub(crate) multimodal_data: Option<Vec<Value>>,
}

/// What is added to the logits of single tokens.
#[derive(Debug, Clone)]
pub(crate) enum LogitBias {
    /// By token id.
    ById(BTreeMap<String, f32>),
    /// By token id, or by text for all of its tokens.
    Pairs(Vec<(TokenOrText, f32)>),
}

impl Default for LogitBias {
    fn default() -> Self {
        Self::Pairs(Vec::new())
    }
}

/// A token by its id, or the tokens of a text.
#[derive(Debug, Clone)]
pub(crate) enum TokenOrText {
    /// A token.
    Token(u32),
    /// A text.
    Text(String),
}
