//! The fields of requests, by OpenAI's names, and by llama-server's or vLLM's if OpenAI has none.
//!
//! What happens to other fields is decided in `read/sift.rs`: none is silently ignored.

mod message;
mod tool;

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

pub(crate) use self::message::{ChatMessage, Content, ContentPart, Role};
pub(crate) use self::tool::{
    CalledFunction, CalledFunctionDelta, Function, NamedTool, Tool, ToolCall, ToolCallDelta,
    ToolChoice, ToolKind, ToolMode,
};
use crate::prepare::SamplingParameters;

/// One string or several.
#[derive(Debug, Clone, ToSchema)]
#[serde(untagged)]
pub(crate) enum OneOrMany {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

impl OneOrMany {
    pub(crate) fn into_vec(self) -> Vec<String> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }
}

/// A request with the fields that all of them have in common, and its own.
macro_rules! request {
    ($(#[$about:meta])* $name:ident { $($(#[$attr:meta])* $field:ident: $kind:ty,)* }) => {
        $(#[$about])*
        #[derive(Debug, Deserialize, ToSchema)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct $name {
            $($(#[$attr])* pub(crate) $field: $kind,)*
            /// The model, by the name this server gives it.
            pub(crate) model: Option<String>,
            /// Whether tokens are sent as they are decoded.
            pub(crate) stream: Option<bool>,
            /// What a stream contains beside tokens.
            pub(crate) stream_options: Option<StreamOptions>,
            /// How many choices, 1 to 16.
            #[schema(minimum = 1, maximum = 16)]
            pub(crate) n: Option<u32>,
            /// Text that ends the output and is not part of it.
            pub(crate) stop: Option<OneOrMany>,
            /// Tokens that end the output and are not part of it, as in vLLM.
            pub(crate) stop_token_ids: Option<Vec<u32>>,
            /// How many tokens the output has at least before it may end, as in vLLM.
            pub(crate) min_tokens: Option<u32>,
            /// Most tokens of the output, by llama-server's name; -1 for no limit.
            #[schema(minimum = -1)]
            pub(crate) n_predict: Option<i64>,
            /// Determines the output; see `speculative.rule`.
            pub(crate) seed: Option<i64>,
            /// Added to the logits of single tokens, by id, -100 to 100. A list of pairs is read too, as in
            /// llama-server: of an id, or a text for all of its tokens, and a number, or `false` to
            /// forbid them.
            #[schema(value_type = Option<BTreeMap<String, f32>>)]
            pub(crate) logit_bias: Option<LogitBias>,
            /// Divides the logits; 0 takes the likeliest token.
            pub(crate) temperature: Option<f32>,
            /// Keeps the fewest likeliest tokens whose probabilities add up to this.
            pub(crate) top_p: Option<f32>,
            /// Keeps this many of the likeliest tokens; 0 or -1 keeps all.
            pub(crate) top_k: Option<i32>,
            /// Keeps tokens at least this many times as probable as the likeliest.
            pub(crate) min_p: Option<f32>,
            /// Locally typical sampling.
            pub(crate) typical_p: Option<f32>,
            /// Subtracted from the logit of a token that occurred before.
            pub(crate) presence_penalty: Option<f32>,
            /// Subtracted once for each time the token occurred before.
            pub(crate) frequency_penalty: Option<f32>,
            /// Divides the logit of a token that occurred before.
            #[serde(alias = "repetition_penalty")]
            pub(crate) repeat_penalty: Option<f32>,
            /// How many of the last tokens penalties count; -1 for all.
            pub(crate) repeat_last_n: Option<i64>,
            /// Whether end tokens are forbidden.
            pub(crate) ignore_eos: Option<bool>,
            /// The samplers that are on, as in llama-server: of `penalties`, `top_k`, `typ_p`, `top_p`,
            /// `min_p`, `infill` and `temperature`, in this order. Without it, all are but `infill`, which
            /// is for text between two others and needs `top_k`.
            pub(crate) samplers: Option<Vec<String>>,
            /// Ends the output at a line, after its first, with less white space at its beginning than
            /// this, as in llama-server.
            pub(crate) n_indent: Option<u32>,
            /// Milliseconds after the first token from which on the output ends with its next line
            /// break, as in llama-server; 0 for no limit.
            pub(crate) t_max_predict_ms: Option<i64>,
            /// A grammar that the output follows: Lark, or llama.cpp's GBNF.
            pub(crate) grammar: Option<String>,
            /// A JSON schema that the output follows.
            pub(crate) json_schema: Option<Value>,
            /// A constraint of the output, by vLLM's names.
            pub(crate) structured_outputs: Option<StructuredOutputs>,
            /// A JSON schema that the output follows, by vLLM's old name.
            pub(crate) guided_json: Option<Value>,
            /// A regular expression that the output matches, by vLLM's old name.
            pub(crate) guided_regex: Option<String>,
            /// Texts that the output is one of, by vLLM's old name.
            pub(crate) guided_choice: Option<Vec<String>>,
            /// A grammar that the output follows, by vLLM's old name.
            pub(crate) guided_grammar: Option<String>,
            /// What the output is expected to be.
            pub(crate) prediction: Option<Prediction>,
            /// What is drafted and how drafts are verified.
            pub(crate) speculative: Option<Speculative>,
            /// Whether the response has the ids of its tokens and of the prompt's, as vLLM does.
            pub(crate) return_token_ids: Option<bool>,
            /// The output's tokens so far, from a stream that broke off: this response continues
            /// after them. All other fields must be as they were, the seed above all.
            pub(crate) resume_token_ids: Option<Vec<u32>>,
            /// Whether every chunk has timings.
            pub(crate) timings_per_token: Option<bool>,
            /// Whether this request may use cached prefixes, and others what it leaves. Default:
            /// true.
            pub(crate) cache_prompt: Option<bool>,
            /// Divides the prefix cache: only requests with the same salt (and the same API key)
            /// share prefixes.
            #[schema(min_length = 1)]
            pub(crate) cache_salt: Option<String>,
            /// The end user. Ignored.
            #[allow(dead_code, reason = "clients may send it")]
            pub(crate) user: Option<String>,
            /// Notes of the client. Ignored.
            #[allow(dead_code, reason = "clients may send it")]
            pub(crate) metadata: Option<Value>,
            /// Whether the response is stored. It never is.
            pub(crate) store: Option<bool>,
        }

        impl $name {
            /// The fields that all requests have in common.
            pub(crate) fn common(&mut self) -> CommonFields {
                CommonFields {
                    model: self.model.take(),
                    stream: self.stream.unwrap_or(false),
                    stream_options: self.stream_options.take().unwrap_or_default(),
                    n: self.n.unwrap_or(1),
                    stop: self.stop.take().map(OneOrMany::into_vec).unwrap_or_default(),
                    stop_token_ids: self.stop_token_ids.take().unwrap_or_default(),
                    min_tokens: self.min_tokens.unwrap_or(0),
                    seed: self.seed,
                    logit_bias: self.logit_bias.take().unwrap_or_default(),
                    sampling: SamplingParameters {
                        logit_bias: Vec::new(),
                        temperature: self.temperature,
                        top_p: self.top_p,
                        top_k: self.top_k,
                        min_p: self.min_p,
                        typical_p: self.typical_p,
                        presence_penalty: self.presence_penalty,
                        frequency_penalty: self.frequency_penalty,
                        repeat_penalty: self.repeat_penalty,
                        repeat_last_n: self.repeat_last_n,
                        ignore_eos: self.ignore_eos.unwrap_or(false),
                        samplers: self.samplers.take(),
                    },
                    n_indent: self.n_indent.unwrap_or(0),
                    t_max_predict_ms: self.t_max_predict_ms.unwrap_or(0),
                    grammar: self.grammar.take(),
                    json_schema: self.json_schema.take(),
                    structured_outputs: self.structured_outputs.take(),
                    guided: StructuredOutputs {
                        json: self.guided_json.take(),
                        regex: self.guided_regex.take(),
                        choice: self.guided_choice.take(),
                        grammar: self.guided_grammar.take(),
                    },
                    prediction: self.prediction.take(),
                    speculative: self.speculative.take().unwrap_or_default(),
                    return_token_ids: self.return_token_ids.unwrap_or(false),
                    resume_token_ids: self.resume_token_ids.take(),
                    timings_per_token: self.timings_per_token.unwrap_or(false),
                    cache_prompt: self.cache_prompt,
                    cache_salt: self.cache_salt.take(),
                    store: self.store,
                }
            }
        }
    };
}

request! {
    /// A conversation to continue.
    ChatRequest {
        /// The conversation.
        messages: Vec<ChatMessage>,
        /// Most tokens of the output, by OpenAI's old name; -1 for no limit.
        #[schema(minimum = -1)]
        max_tokens: Option<i64>,
        /// Most tokens of the output; -1 for no limit.
        #[schema(minimum = -1)]
        max_completion_tokens: Option<i64>,
        /// Whether to return log-probabilities.
        logprobs: Option<bool>,
        /// Of how many of the likeliest tokens at each position, 0 to 20.
        #[schema(maximum = 20)]
        top_logprobs: Option<u32>,
        /// The format of the output.
        response_format: Option<ResponseFormat>,
        /// Functions the model may call.
        tools: Option<Vec<Tool>>,
        /// Whether the model must call a function, or which.
        tool_choice: Option<ToolChoice>,
        /// Whether the model may make several calls, as far as its format has them. Default: true.
        parallel_tool_calls: Option<bool>,
        /// Additional variables of the chat template.
        chat_template_kwargs: Option<BTreeMap<String, Value>>,
        /// How much the model is to reason, for templates that read it; `none` also turns thinking
        /// off where the template can.
        reasoning_effort: Option<String>,
        /// The same by OpenRouter's name.
        reasoning: Option<ReasoningOptions>,
        /// Whether the model is to think first, for templates that read it.
        enable_thinking: Option<bool>,
        /// What the output is made of; only `["text"]` is supported.
        modalities: Option<Vec<String>>,
    }
}

/// How much the model is to reason.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReasoningOptions {
    /// See `reasoning_effort`.
    pub(crate) effort: Option<String>,
}

request! {
    /// A text to continue.
    CompletionRequest {
        /// One text or several, as strings or as token ids.
        prompt: Prompt,
        /// Most tokens of the output; -1 for no limit.
        #[schema(minimum = -1)]
        max_tokens: Option<i64>,
        /// Whether to return log-probabilities, and of how many of the likeliest tokens at each
        /// position, 0 to 20.
        #[schema(maximum = 20)]
        logprobs: Option<u32>,
        /// The format of the output.
        response_format: Option<ResponseFormat>,
    }
}

mod native;

pub(crate) use self::native::{
    ExtraFile, InfillRequest, LogitBias, MixedText, NativeFields, NativePrompt, NativeRequest,
    PromptObject, TokenOrText,
};

/// The fields that all requests have in common.
#[derive(Debug)]
pub(crate) struct CommonFields {
    pub(crate) model: Option<String>,
    pub(crate) stream: bool,
    pub(crate) stream_options: StreamOptions,
    pub(crate) n: u32,
    pub(crate) stop: Vec<String>,
    pub(crate) stop_token_ids: Vec<u32>,
    pub(crate) min_tokens: u32,
    pub(crate) seed: Option<i64>,
    pub(crate) logit_bias: LogitBias,
    /// All but `logit_bias`.
    pub(crate) sampling: SamplingParameters,
    pub(crate) n_indent: u32,
    pub(crate) t_max_predict_ms: i64,
    pub(crate) grammar: Option<String>,
    pub(crate) json_schema: Option<Value>,
    pub(crate) structured_outputs: Option<StructuredOutputs>,
    /// The same by vLLM's old names.
    pub(crate) guided: StructuredOutputs,
    pub(crate) prediction: Option<Prediction>,
    pub(crate) speculative: Speculative,
    pub(crate) return_token_ids: bool,
    pub(crate) resume_token_ids: Option<Vec<u32>>,
    pub(crate) timings_per_token: bool,
    pub(crate) cache_prompt: Option<bool>,
    pub(crate) cache_salt: Option<String>,
    pub(crate) store: Option<bool>,
}

/// One prompt or several, as strings or as token ids.
#[derive(Debug, Clone, ToSchema)]
#[serde(untagged)]
pub(crate) enum Prompt {
    /// One string.
    Text(String),
    /// Several strings.
    Texts(Vec<String>),
    /// The tokens of one prompt.
    Tokens(Vec<u32>),
    /// The tokens of several.
    TokenLists(Vec<Vec<u32>>),
}

/// What a stream contains beside tokens.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StreamOptions {
    /// Whether a last chunk has the usage.
    pub(crate) include_usage: Option<bool>,
    /// Whether every chunk has the usage so far.
    pub(crate) continuous_usage_stats: Option<bool>,
}

/// The format of the output.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResponseFormat {
    /// Which.
    #[serde(rename = "type")]
    pub(crate) kind: FormatKind,
    /// The schema of `json_schema`.
    pub(crate) json_schema: Option<NamedSchema>,
    /// The schema of a `json_object`, as in llama-server.
    pub(crate) schema: Option<Value>,
}

/// The formats of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FormatKind {
    /// Any text.
    Text,
    /// A JSON object.
    JsonObject,
    /// JSON by a schema.
    JsonSchema,
}

/// A schema and its name.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NamedSchema {
    /// Its name.
    #[allow(dead_code, reason = "clients must send it")]
    pub(crate) name: Option<String>,
    /// What it is for.
    #[allow(dead_code, reason = "clients may send it")]
    pub(crate) description: Option<String>,
    /// The schema.
    pub(crate) schema: Value,
    /// Whether the output must follow it. Ignored: it always does.
    #[allow(dead_code, reason = "the output always follows the schema")]
    pub(crate) strict: Option<bool>,
}

/// A constraint of the output, by vLLM's names; one of them.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StructuredOutputs {
    /// A JSON schema.
    pub(crate) json: Option<Value>,
    /// A regular expression.
    pub(crate) regex: Option<String>,
    /// Texts to choose from.
    pub(crate) choice: Option<Vec<String>>,
    /// A grammar.
    pub(crate) grammar: Option<String>,
}

/// What the output is expected to be.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Prediction {
    /// Always `content`.
    #[serde(rename = "type")]
    #[allow(dead_code, reason = "it has one value, which is checked in reading")]
    pub(crate) kind: PredictionKind,
    /// The text.
    pub(crate) content: Content,
}

/// The one kind of prediction.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PredictionKind {
    /// Text.
    Content,
}

/// What is drafted for a request and how drafts are verified.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Speculative {
    /// Whether anything is drafted.
    pub(crate) enabled: Option<bool>,
    /// The names of the drafters to use.
    pub(crate) drafter: Option<OneOrMany>,
    /// Tokens of a drafted path, at most the server's `--spec-draft-n-max`. If it is not set, the
    /// server adapts the length to what pays.
    #[schema(minimum = 1, maximum = 64)]
    pub(crate) length: Option<usize>,
    /// Paths of the draft model.
    #[schema(minimum = 1, maximum = 16)]
    pub(crate) paths: Option<usize>,
    /// The verification rule; all of them are lossless. Default: block, pooled for several paths, and
    /// coupled with a seed, so that the seed determines the output whatever is drafted.
    pub(crate) rule: Option<String>,
    /// Accept more drafts at the price of exactness, if the server allows it (`--lossy-max`).
    pub(crate) lossy: Option<LossyRequest>,
    /// Whether the response says where its tokens come from.
    pub(crate) trace: Option<bool>,
}

/// A lossy mode, and the bound it is to keep.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LossyRequest {
    /// `budget` (at every token), `account` (on average over the output so far), `defer` (tokens are
    /// shown before the target has scored them; on average over the output, and 16 beside), or `near`
    /// at temperature 0.
    pub(crate) mode: String,
    /// `budget`, `account`, `defer`: total variation from the target's distribution. `near`: the share of
    /// tokens that are not the likeliest.
    #[schema(minimum = 0, maximum = 1)]
    pub(crate) per_token: f64,
    /// `budget`, `account`: most by which any token becomes likelier. Default: 4.
    #[schema(minimum = 1)]
    pub(crate) factor: Option<f64>,
    /// `near`: most nats by which such a token is less likely than the likeliest. Default: 1.
    #[schema(minimum = 0)]
    pub(crate) gap: Option<f64>,
}
