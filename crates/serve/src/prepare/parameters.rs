//! The parameters of a request, as far as it sets them. `None` means "not set", never a default.

use std::time::Duration;

use forerun_decode::Token;
use forerun_grammar::Form;

use crate::dialect::CallForm;
use crate::request::CachePolicy;

/// The parameters of a request.
#[derive(Debug)]
pub(crate) struct RequestParameters {
    /// The prompts.
    pub(crate) prompts: Vec<Vec<Token>>,
    /// Sequences of each prompt.
    pub(crate) n: usize,
    /// Most tokens of the output of a sequence.
    pub(crate) max_tokens: Option<u32>,
    /// Whether to compute log-probabilities, and of how many of the likeliest tokens beside.
    pub(crate) logprobs: Option<u32>,
    /// What the output is constrained to.
    pub(crate) form: Option<Form>,
    /// What its calls are held to instead.
    pub(crate) calls: Option<CallForm>,
    /// Texts that end the output.
    pub(crate) stop: Vec<String>,
    /// Tokens that end the output.
    pub(crate) stop_tokens: Vec<Token>,
    /// Tokens of the output before it may end.
    pub(crate) min_tokens: usize,
    /// White space that a line after the first begins with, else the output ends.
    pub(crate) indent_min: usize,
    /// How long after the first token the output may go on beyond the next line break.
    pub(crate) predict_time: Option<Duration>,
    /// Determines the output, whatever is drafted.
    pub(crate) seed: Option<i64>,
    /// How tokens are drawn.
    pub(crate) sampling: SamplingParameters,
    /// The text that the output is expected to be.
    pub(crate) prediction: Option<String>,
    /// What is drafted.
    pub(crate) speculative: SpeculativeParameters,
    /// The output's tokens so far, if the request resumes a response that broke off.
    pub(crate) resume_token_ids: Option<Vec<u32>>,
    /// How the prefix cache is used.
    pub(crate) cache: CachePolicy,
    /// Whether the prompts may be recorded.
    pub(crate) recordable: bool,
}

impl RequestParameters {
    /// One sequence of a prompt, all else by default.
    pub(crate) fn new(prompt: Vec<Token>) -> Self {
        Self {
            prompts: vec![prompt],
            n: 1,
            max_tokens: None,
            logprobs: None,
            form: None,
            calls: None,
            stop: Vec::new(),
            stop_tokens: Vec::new(),
            min_tokens: 0,
            indent_min: 0,
            predict_time: None,
            seed: None,
            sampling: SamplingParameters::default(),
            prediction: None,
            speculative: SpeculativeParameters::default(),
            resume_token_ids: None,
            cache: CachePolicy { shared: true, salt: None },
            recordable: true,
        }
    }
}

/// How tokens are drawn.
#[derive(Debug, Default)]
pub(crate) struct SamplingParameters {
    /// Added to the logits of single tokens.
    pub(crate) logit_bias: Vec<(Token, f32)>,
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    /// 0 or -1 keeps all tokens.
    pub(crate) top_k: Option<i32>,
    pub(crate) min_p: Option<f32>,
    pub(crate) typical_p: Option<f32>,
    pub(crate) presence_penalty: Option<f32>,
    pub(crate) frequency_penalty: Option<f32>,
    pub(crate) repeat_penalty: Option<f32>,
    /// -1 for all tokens.
    pub(crate) repeat_last_n: Option<i64>,
    /// Whether end tokens are forbidden.
    pub(crate) ignore_eos: bool,
    /// The samplers that are on; all if `None`.
    pub(crate) samplers: Option<Vec<String>>,
}

/// What is drafted.
#[derive(Debug, Default)]
pub(crate) struct SpeculativeParameters {
    /// Whether anything is drafted.
    pub(crate) enabled: Option<bool>,
    /// The names of the drafters.
    pub(crate) drafter: Option<Vec<String>>,
    /// Tokens of a path. Setting it turns adaptive drafting off.
    pub(crate) length: Option<usize>,
    /// Paths of the draft model.
    pub(crate) paths: Option<usize>,
    /// The name of the verification rule.
    pub(crate) rule: Option<String>,
    /// A lossy mode instead.
    pub(crate) lossy: Option<LossyParameters>,
}

/// A lossy mode, and the bound it is to keep.
#[derive(Debug, Clone)]
pub(crate) struct LossyParameters {
    /// Its name.
    pub(crate) mode: String,
    /// Its bound per token.
    pub(crate) per_token: f64,
    /// Most by which a token becomes likelier.
    pub(crate) factor: Option<f64>,
    /// Most nats by which a token is less likely than the likeliest.
    pub(crate) gap: Option<f64>,
}
