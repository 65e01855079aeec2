//! What requests say and responses answer, by OpenAI's names; llama-server's and vLLM's for what
//! OpenAI has none.
//!
//! Fields nobody knows are refused: a setting that is quietly ignored is worse than none.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

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

/// A request with what all of them have in common, and its own fields.
macro_rules! request {
    ($(#[$about:meta])* $name:ident { $($(#[$attr:meta])* $field:ident: $kind:ty,)* }) => {
        $(#[$about])*
        #[derive(Debug, Deserialize, ToSchema)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct $name {
            $($(#[$attr])* pub(crate) $field: $kind,)*
            /// The model, by the name this server gives it.
            pub(crate) model: Option<String>,
            /// Whether tokens are sent as they come.
            pub(crate) stream: Option<bool>,
            /// What else is sent with them.
            pub(crate) stream_options: Option<StreamOptions>,
            /// How many answers, 1 to 16.
            #[schema(minimum = 1, maximum = 16)]
            pub(crate) n: Option<u32>,
            /// Text that ends the answer and is not part of it.
            pub(crate) stop: Option<OneOrMany>,
            /// Fixes the text; see `speculative.rule`.
            pub(crate) seed: Option<i64>,
            /// Added to the logits of single tokens, by id, -100 to 100.
            pub(crate) logit_bias: Option<BTreeMap<String, f32>>,
            /// Divides the logits; 0 takes the likeliest token.
            pub(crate) temperature: Option<f32>,
            /// Keeps the fewest likeliest tokens whose probabilities add up to this.
            pub(crate) top_p: Option<f32>,
            /// Keeps this many of the likeliest tokens; 0 or -1 keeps all.
            pub(crate) top_k: Option<i32>,
            /// Keeps tokens at least this share as probable as the likeliest.
            pub(crate) min_p: Option<f32>,
            /// Locally typical sampling.
            pub(crate) typical_p: Option<f32>,
            /// Taken off the logit of a token that was said.
            pub(crate) presence_penalty: Option<f32>,
            /// Taken off once for each time it was said.
            pub(crate) frequency_penalty: Option<f32>,
            /// Divides the logit of a token that was said.
            #[serde(alias = "repetition_penalty")]
            pub(crate) repeat_penalty: Option<f32>,
            /// How many of the last tokens penalties look at; -1 for all.
            pub(crate) repeat_last_n: Option<i64>,
            /// Whether end tokens are forbidden.
            pub(crate) ignore_eos: Option<bool>,
            /// A grammar the answer is held to: Lark, or llama.cpp's GBNF.
            pub(crate) grammar: Option<String>,
            /// A JSON schema the answer is held to.
            pub(crate) json_schema: Option<Value>,
            /// A form the answer is held to, as vLLM names it.
            pub(crate) structured_outputs: Option<StructuredOutputs>,
            /// What the answer is expected to be.
            pub(crate) prediction: Option<Prediction>,
            /// What is drafted and how drafts are judged.
            pub(crate) speculative: Option<Speculative>,
            /// Whether the answer names its tokens and those of the prompt, as vLLM does.
            pub(crate) return_token_ids: Option<bool>,
            /// The answer's tokens so far, from a stream that broke off: this one goes on after
            /// them. All else is to be as it was, the seed above all.
            pub(crate) resume_token_ids: Option<Vec<u32>>,
            /// Whether every chunk says what it took.
            pub(crate) timings_per_token: Option<bool>,
            /// Whether what is cached of the prompt may be used, and what this request leaves.
            /// Without, it is.
            pub(crate) cache_prompt: Option<bool>,
            /// Parts the prefix cache: only requests with the same salt (and the same API key) use
            /// each other's prefixes.
            #[schema(min_length = 1)]
            pub(crate) cache_salt: Option<String>,
            /// Who asks. Kept nowhere.
            #[allow(dead_code, reason = "clients may send it")]
            pub(crate) user: Option<String>,
            /// Notes of the client's. Kept nowhere.
            #[allow(dead_code, reason = "clients may send it")]
            pub(crate) metadata: Option<Value>,
            /// Whether the answer is to be kept; only `false` can be honoured.
            pub(crate) store: Option<bool>,
        }

        impl $name {
            /// What all requests have in common.
            pub(crate) fn common(&mut self) -> Common {
                Common {
                    model: self.model.take(),
                    stream: self.stream.unwrap_or(false),
                    stream_options: self.stream_options.take().unwrap_or_default(),
                    n: self.n.unwrap_or(1),
                    stop: self.stop.take().map(OneOrMany::into_vec).unwrap_or_default(),
                    seed: self.seed,
                    shape: Shape {
                        logit_bias: self.logit_bias.take().unwrap_or_default(),
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
                    },
                    grammar: self.grammar.take(),
                    json_schema: self.json_schema.take(),
                    structured_outputs: self.structured_outputs.take(),
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
    /// A conversation to be continued.
    ChatRequest {
        /// The conversation.
        messages: Vec<ChatMessage>,
        /// Most tokens of the answer, by OpenAI's old name; -1 for no limit.
        #[schema(minimum = -1)]
        max_tokens: Option<i64>,
        /// Most tokens of the answer; -1 for no limit.
        #[schema(minimum = -1)]
        max_completion_tokens: Option<i64>,
        /// Whether log-probabilities of tokens are wanted.
        logprobs: Option<bool>,
        /// Of how many of the likeliest tokens beside, 0 to 20.
        #[schema(maximum = 20)]
        top_logprobs: Option<u32>,
        /// The form of the answer.
        response_format: Option<ResponseFormat>,
        /// Functions the model may call.
        tools: Option<Vec<Tool>>,
        /// Whether it must, or which.
        tool_choice: Option<ToolChoice>,
        /// Whether several calls may be made at once.
        #[allow(dead_code, reason = "a model may make one call or several")]
        parallel_tool_calls: Option<bool>,
        /// Further variables of the chat template.
        chat_template_kwargs: Option<BTreeMap<String, Value>>,
    }
}

request! {
    /// A text to be continued.
    CompletionRequest {
        /// The text, texts, tokens, or lists of tokens.
        prompt: Prompt,
        /// Most tokens of the answer; -1 for no limit.
        #[schema(minimum = -1)]
        max_tokens: Option<i64>,
        /// Of how many of the likeliest tokens log-probabilities are wanted, 0 to 20.
        #[schema(maximum = 20)]
        logprobs: Option<u32>,
        /// The form of the answer.
        response_format: Option<ResponseFormat>,
    }
}

/// What all requests have in common.
#[derive(Debug, Default)]
pub(crate) struct Common {
    pub(crate) model: Option<String>,
    pub(crate) stream: bool,
    pub(crate) stream_options: StreamOptions,
    pub(crate) n: u32,
    pub(crate) stop: Vec<String>,
    pub(crate) seed: Option<i64>,
    pub(crate) shape: Shape,
    pub(crate) grammar: Option<String>,
    pub(crate) json_schema: Option<Value>,
    pub(crate) structured_outputs: Option<StructuredOutputs>,
    pub(crate) prediction: Option<Prediction>,
    pub(crate) speculative: Speculative,
    pub(crate) return_token_ids: bool,
    pub(crate) resume_token_ids: Option<Vec<u32>>,
    pub(crate) timings_per_token: bool,
    pub(crate) cache_prompt: Option<bool>,
    pub(crate) cache_salt: Option<String>,
    pub(crate) store: Option<bool>,
}

/// How tokens are drawn, as far as the request says.
#[derive(Debug, Default)]
pub(crate) struct Shape {
    pub(crate) logit_bias: BTreeMap<String, f32>,
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) top_k: Option<i32>,
    pub(crate) min_p: Option<f32>,
    pub(crate) typical_p: Option<f32>,
    pub(crate) presence_penalty: Option<f32>,
    pub(crate) frequency_penalty: Option<f32>,
    pub(crate) repeat_penalty: Option<f32>,
    pub(crate) repeat_last_n: Option<i64>,
    pub(crate) ignore_eos: bool,
}

/// A message of a conversation.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChatMessage {
    /// Who: system, developer, user, assistant or tool.
    pub(crate) role: Role,
    /// What; none where an assistant's message only calls functions.
    pub(crate) content: Option<Content>,
    /// The speaker's name.
    pub(crate) name: Option<String>,
    /// The calls of an assistant's message.
    pub(crate) tool_calls: Option<Vec<ToolCall>>,
    /// The call a tool's message answers.
    pub(crate) tool_call_id: Option<String>,
    /// An assistant's refusal; sent back by clients with their history.
    pub(crate) refusal: Option<String>,
    /// Notes to an earlier answer; likewise.
    #[allow(dead_code, reason = "clients send back what they got")]
    pub(crate) annotations: Option<Value>,
    /// What a client made of an earlier answer; likewise.
    #[allow(dead_code, reason = "clients send back what they got")]
    pub(crate) parsed: Option<Value>,
    /// Spoken answers; only null can be honoured.
    pub(crate) audio: Option<Value>,
    /// The old way to call functions; only null can be honoured.
    pub(crate) function_call: Option<Value>,
}

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    /// Instructions.
    System,
    /// Instructions, by their newer name.
    Developer,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// What a function gave.
    Tool,
}

/// What a message says.
#[derive(Debug, Clone, ToSchema)]
#[serde(untagged)]
pub(crate) enum Content {
    /// Text.
    Text(String),
    /// Parts of text.
    Parts(Vec<ContentPart>),
}

/// A part of a message: only text can be read.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ContentPart {
    /// Always `text`.
    #[serde(rename = "type")]
    #[allow(dead_code, reason = "it has one value, which is checked in reading")]
    pub(crate) kind: PartKind,
    /// The text.
    pub(crate) text: String,
}

/// The one kind of part.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PartKind {
    /// Text.
    Text,
}

impl Content {
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => parts.iter().map(|part| part.text.as_str()).collect(),
        }
    }
}

/// A prompt: text, texts, tokens, or lists of tokens.
#[derive(Debug, Clone, ToSchema)]
#[serde(untagged)]
pub(crate) enum Prompt {
    /// A text.
    Text(String),
    /// Several.
    Texts(Vec<String>),
    /// Tokens.
    Tokens(Vec<u32>),
    /// Several lists of them.
    TokenLists(Vec<Vec<u32>>),
}

/// What is sent beside tokens.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StreamOptions {
    /// Whether a last chunk says what it took.
    pub(crate) include_usage: Option<bool>,
    /// Whether every chunk does.
    pub(crate) continuous_usage_stats: Option<bool>,
}

/// The form of an answer.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResponseFormat {
    /// Which.
    #[serde(rename = "type")]
    pub(crate) kind: FormatKind,
    /// The schema of `json_schema`.
    pub(crate) json_schema: Option<NamedSchema>,
}

/// The forms of answers.
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
    /// Whether it must be kept to; it always is.
    #[allow(dead_code, reason = "answers always keep to the schema")]
    pub(crate) strict: Option<bool>,
}

/// A form by vLLM's names; one of them.
#[derive(Debug, Clone, Deserialize, ToSchema)]
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

/// What the answer is expected to be.
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

/// What is drafted for a request and how drafts are judged.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Speculative {
    /// Whether anything is drafted.
    pub(crate) enabled: Option<bool>,
    /// What drafts, of the server's drafters.
    pub(crate) drafter: Option<OneOrMany>,
    /// Tokens of a drafted path, at most the server's `--spec-draft-n-max`. Fixes it; without, as
    /// many as pay.
    #[schema(minimum = 1, maximum = 64)]
    pub(crate) length: Option<usize>,
    /// Paths of the draft model.
    #[schema(minimum = 1, maximum = 16)]
    pub(crate) paths: Option<usize>,
    /// How drafts are judged; all rules are lossless. Without one: block, pooled for several paths,
    /// and coupled where a seed is given, so that the seed fixes the text whatever is drafted.
    pub(crate) rule: Option<String>,
    /// Whether tokens say where they come from.
    pub(crate) trace: Option<bool>,
}

/// A function the model may call.
#[derive(Debug, Clone, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tool {
    /// Always `function`.
    #[serde(rename = "type")]
    pub(crate) kind: ToolKind,
    /// The function.
    pub(crate) function: Function,
}

/// The one kind of tool.
#[derive(Debug, Clone, Copy, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ToolKind {
    /// A function.
    Function,
}

/// A function by its name and parameters.
#[derive(Debug, Clone, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Function {
    /// Its name.
    pub(crate) name: String,
    /// What it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) description: Option<String>,
    /// Its parameters, as a JSON schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) parameters: Option<Value>,
    /// Whether they must be kept to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) strict: Option<bool>,
}

/// Whether a function is called.
#[derive(Debug, Clone, ToSchema)]
#[serde(untagged)]
pub(crate) enum ToolChoice {
    /// `none`, `auto` or `required`.
    Mode(ToolMode),
    /// This one.
    Named(NamedTool),
}

/// Whether a function is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ToolMode {
    /// None.
    None,
    /// As the model likes.
    Auto,
    /// One of them.
    Required,
}

/// A function that must be called.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NamedTool {
    /// Always `function`.
    #[serde(rename = "type")]
    #[allow(dead_code, reason = "it has one value, which is checked in reading")]
    pub(crate) kind: ToolKind,
    /// Its name.
    pub(crate) function: FunctionName,
}

/// A function's name.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FunctionName {
    /// The name.
    pub(crate) name: String,
}

/// A call of a function.
#[derive(Debug, Clone, Deserialize, Serialize, ToSchema)]
pub(crate) struct ToolCall {
    /// Its place, in streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) index: Option<u32>,
    /// Its name for the answer.
    pub(crate) id: String,
    /// Always `function`.
    #[serde(rename = "type")]
    pub(crate) kind: ToolKind,
    /// The function and its arguments.
    pub(crate) function: CalledFunction,
}

/// A function and its arguments.
#[derive(Debug, Clone, Deserialize, Serialize, ToSchema)]
pub(crate) struct CalledFunction {
    /// Its name.
    pub(crate) name: String,
    /// JSON, as text.
    pub(crate) arguments: String,
}
