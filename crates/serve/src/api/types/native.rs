//! The fields of requests in llama-server's own form.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    CommonFields, OneOrMany, Prediction, Prompt, Speculative, StreamOptions, StructuredOutputs,
};
use crate::prepare::SamplingParameters;

/// The fields of llama-server's form that say how the response is written.
#[derive(Debug)]
pub(crate) struct NativeFields {
    pub(crate) n: u32,
    pub(crate) max_tokens: Option<i64>,
    pub(crate) n_probs: Option<u32>,
    pub(crate) post_sampling_probs: bool,
    pub(crate) return_tokens: bool,
    pub(crate) response_fields: Vec<String>,
}

/// A request with the fields that all in llama-server's form have in common, and its own.
macro_rules! native_request {
    ($(#[$about:meta])* $name:ident { $($own:tt)* }) => {
        request! {
            $(#[$about])*
            $name {
                $($own)*
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

        impl $name {
            /// How many completions of each prompt.
            pub(crate) fn choices(&self) -> u32 {
                self.n_cmpl.or(self.n).unwrap_or(1)
            }

            /// The fields of llama-server's form.
            pub(crate) fn native(&mut self) -> NativeFields {
                NativeFields {
                    n: self.choices(),
                    max_tokens: self.n_predict.or(self.max_tokens),
                    n_probs: self.n_probs,
                    post_sampling_probs: self.post_sampling_probs.unwrap_or(false),
                    return_tokens: self.return_tokens.unwrap_or(false),
                    response_fields: self.response_fields.take().unwrap_or_default(),
                }
            }
        }
    };
}

native_request! {
    /// A text to continue, by llama-server's own names.
    NativeRequest {
        /// One text or several, each as a string, as token ids, or as a list of both.
        #[schema(value_type = Prompt)]
        prompt: NativePrompt,
    }
}

native_request! {
    /// A gap in a text to fill, by llama-server's names.
    InfillRequest {
        /// The text before the gap: a string, or a list of strings and token ids.
        #[schema(value_type = Prompt)]
        input_prefix: MixedText,
        /// The text after the gap: a string, or a list of strings and token ids.
        #[schema(value_type = Prompt)]
        input_suffix: MixedText,
        /// Texts of other files, the most important last.
        input_extra: Option<Vec<ExtraFile>>,
        /// The beginning of what fills the gap. It is not part of the output.
        prompt: Option<String>,
    }
}

/// A text of another file.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExtraFile {
    /// The name of the file. Default: `tmp`.
    pub(crate) filename: Option<String>,
    /// The text.
    pub(crate) text: String,
}

/// A text of strings and token ids.
#[derive(Debug, Clone)]
pub(crate) struct MixedText(pub(crate) Vec<TokenOrText>);

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
