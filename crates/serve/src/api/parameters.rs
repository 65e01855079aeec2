//! From the fields of an HTTP request to a prepared request.

use std::sync::Arc;
use std::time::Duration;

use forerun_decode::{Special, Token};
use forerun_grammar::Form;

use super::error::ApiError;
use super::notes::Notes;
use super::tools::Calling;
use super::types::{
    CommonFields, FormatKind, LogitBias, OneOrMany, ResponseFormat, Speculative, StructuredOutputs,
    TokenOrText,
};
use crate::prepare::{LossyParameters, RequestParameters, SpeculativeParameters};
use crate::request::{CachePolicy, PreparedRequest};
use crate::service::{Admitted, Service};

/// Most of the likeliest tokens whose log-probabilities are returned.
const TOP_LOGPROBS_MAX: u32 = 20;

/// The parameters that an endpoint reads from fields of its own.
#[derive(Debug)]
pub(crate) struct EndpointParameters<'a> {
    pub(crate) prompts: Vec<Vec<Token>>,
    pub(crate) max_tokens: Option<u32>,
    pub(crate) logprobs: Option<u32>,
    pub(crate) form: Option<Form>,
    /// Which functions may be called; `None` at an endpoint without calls and thoughts.
    pub(crate) calling: Option<&'a Calling>,
}

/// What a response contains beside text.
#[derive(Debug, Clone)]
pub(crate) struct ResponseOptions {
    /// Whether it is a stream.
    pub(crate) stream: bool,
    /// Whether the last chunk of a stream has the usage.
    pub(crate) include_usage: bool,
    /// Whether every chunk has the usage so far.
    pub(crate) continuous_usage: bool,
    /// Whether every chunk has timings.
    pub(crate) timings: bool,
    /// Whether it says where tokens come from.
    pub(crate) trace: bool,
    /// Whether it has log-probabilities.
    pub(crate) logprobs: bool,
    /// Whether it has token ids.
    pub(crate) token_ids: bool,
}

impl ResponseOptions {
    fn new(fields: &CommonFields, logprobs: bool) -> Self {
        let stream_options = &fields.stream_options;
        Self {
            stream: fields.stream,
            include_usage: stream_options.include_usage.unwrap_or(false),
            continuous_usage: stream_options.continuous_usage_stats.unwrap_or(false),
            timings: fields.timings_per_token,
            trace: fields.speculative.trace.unwrap_or(false),
            logprobs,
            token_ids: fields.return_token_ids,
        }
    }
}

/// A prepared request, and how its response is to be written.
pub(crate) struct ApiRequest {
    /// The name of the model in the response.
    pub(crate) model: String,
    pub(crate) options: ResponseOptions,
    pub(crate) request: PreparedRequest,
}

impl ApiRequest {
    /// Checks the fields of a request that was admitted, and prepares it.
    pub(crate) fn prepare(
        service: &Service,
        admitted: Admitted,
        mut fields: CommonFields,
        own: EndpointParameters<'_>,
        notes: &Notes,
    ) -> Result<Self, ApiError> {
        let model = model_name(fields.model.take(), &service.model.names, notes)?;
        check_support(&fields, notes)?;
        let options = ResponseOptions::new(&fields, own.logprobs.is_some());
        let form = one_form(&mut fields, own.form)?;
        let (form, calls) = match own.calling {
            Some(calling) => (None, calling.form(form)?),
            None => (form, None),
        };
        let mut sampling = fields.sampling;
        sampling.logit_bias = logit_bias(service, &fields.logit_bias)?;
        let parameters = RequestParameters {
            prompts: own.prompts,
            n: fields.n as usize,
            max_tokens: own.max_tokens,
            logprobs: own.logprobs,
            form,
            calls,
            stop: fields.stop,
            stop_tokens: fields.stop_token_ids.into_iter().map(Token).collect(),
            min_tokens: fields.min_tokens as usize,
            indent_min: fields.n_indent as usize,
            predict_time: milliseconds(fields.t_max_predict_ms),
            seed: fields.seed,
            sampling,
            prediction: fields.prediction.map(|it| it.content.text()),
            speculative: speculative(fields.speculative),
            resume_token_ids: fields.resume_token_ids,
            cache: CachePolicy {
                shared: fields.cache_prompt.unwrap_or(true),
                salt: fields.cache_salt.map(Arc::from),
            },
            // OpenAI's word for it: whether a request is stored to train other models with.
            recordable: fields.store != Some(false),
        };
        let request = service.prepare(admitted, parameters)?;
        Ok(Self { model, options, request })
    }
}

/// The name of the model in the response. There is one model: unless the server is strict, it
/// answers to any name, and says its own.
pub(crate) fn model_name(
    requested: Option<String>,
    names: &[String],
    notes: &Notes,
) -> Result<String, ApiError> {
    match requested {
        Some(name) if names.contains(&name) => Ok(name),
        Some(name) if notes.is_strict() => Err(ApiError::no_model(&name, names)),
        _ => Ok(names[0].clone()),
    }
}

/// Rejects what the server does not support, or notes it if the output does not depend on it.
fn check_support(fields: &CommonFields, notes: &Notes) -> Result<(), ApiError> {
    if fields.store == Some(true) {
        notes.ignore("store", "this server keeps no answers: leave `store` out")?;
    }
    if fields.cache_salt.as_deref() == Some("") {
        let message = "`cache_salt` is empty: give at least one character, or leave it out";
        return Err(ApiError::field("cache_salt", message));
    }
    let options = &fields.stream_options;
    let has_options = options.include_usage.is_some() || options.continuous_usage_stats.is_some();
    if has_options && !fields.stream {
        let message = "`stream_options` is for streams: add `stream`, or leave it out";
        notes.ignore("stream_options", message)?;
    }
    if fields.resume_token_ids.is_some() && !fields.stream {
        let message = "only a stream can break off half-way: add `stream`, or leave this out";
        return Err(ApiError::field("resume_token_ids", message));
    }
    Ok(())
}

/// The one form that the output is constrained to.
fn one_form(fields: &mut CommonFields, own: Option<Form>) -> Result<Option<Form>, ApiError> {
    let mut forms: Vec<Form> = own.into_iter().collect();
    // llama-server: an empty grammar is none.
    forms.extend(fields.grammar.take().filter(|it| !it.is_empty()).map(Form::Grammar));
    forms.extend(fields.json_schema.take().map(Form::JsonSchema));
    let guided = std::mem::take(&mut fields.guided);
    for outputs in fields.structured_outputs.take().into_iter().chain([guided]) {
        let StructuredOutputs { json, regex, choice, grammar } = outputs;
        forms.extend(json.map(Form::JsonSchema));
        forms.extend(regex.map(Form::Regex));
        forms.extend(choice.map(Form::Choice));
        forms.extend(grammar.map(Form::Grammar));
    }
    if forms.len() > 1 {
        let message = "an answer is held to one form: give one of response_format, grammar, \
                       json_schema, structured_outputs and a required tool";
        return Err(ApiError::field("response_format", message));
    }
    Ok(forms.pop())
}

fn logit_bias(service: &Service, fields: &LogitBias) -> Result<Vec<(Token, f32)>, ApiError> {
    let reject = |message: String| ApiError::field("logit_bias", message);
    let checked = |token: &dyn std::fmt::Display, bias: f32| match bias {
        // OpenAI: -100 bans a token; llama-server: `false` does.
        -100.0 | f32::NEG_INFINITY => Ok(f32::NEG_INFINITY),
        -100.0..=100.0 => Ok(bias),
        _ => Err(reject(format!("the bias of {token} is {bias}; expected -100 to 100"))),
    };
    let mut biases = Vec::new();
    match fields {
        LogitBias::ById(by_id) => {
            for (token, bias) in by_id {
                let id = token
                    .parse()
                    .map_err(|_| reject(format!("{token:?} is no token id; expected a number")))?;
                biases.push((Token(id), checked(token, *bias)?));
            }
        }
        LogitBias::Pairs(pairs) => {
            for (token, bias) in pairs {
                match token {
                    TokenOrText::Token(id) => biases.push((Token(*id), checked(id, *bias)?)),
                    TokenOrText::Text(text) => {
                        let bias = checked(text, *bias)?;
                        let tokens = service.tokenizer.tokenize(text, Special::AsText);
                        let tokens =
                            tokens.map_err(|error| ApiError::field("logit_bias", error))?;
                        biases.extend(tokens.into_iter().map(|token| (token, bias)));
                    }
                }
            }
        }
    }
    Ok(biases)
}

/// A time; none if it is not above zero.
fn milliseconds(time: i64) -> Option<Duration> {
    u64::try_from(time).ok().filter(|ms| *ms > 0).map(Duration::from_millis)
}

fn speculative(fields: Speculative) -> SpeculativeParameters {
    let Speculative { enabled, drafter, length, paths, rule, lossy, trace: _ } = fields;
    let drafter = drafter.map(OneOrMany::into_vec);
    let lossy = lossy.map(|it| LossyParameters {
        mode: it.mode,
        per_token: it.per_token,
        factor: it.factor,
        gap: it.gap,
    });
    SpeculativeParameters { enabled, drafter, length, paths, rule, lossy }
}

/// The form of a `response_format`.
///
/// # Errors
/// If there is no schema and one is needed, or the other way round.
pub(crate) fn form_of(format: Option<ResponseFormat>) -> Result<Option<Form>, ApiError> {
    let reject = |message| Err(ApiError::field("response_format.json_schema", message));
    let (format, schema) = match format {
        Some(ResponseFormat { schema: Some(_), kind, .. }) if kind != FormatKind::JsonObject => {
            let message = "`response_format.schema` needs \"type\": \"json_object\": set it, or use \
                           `json_schema`";
            return Err(ApiError::field("response_format.schema", message));
        }
        Some(mut format) => (Some((format.kind, format.json_schema)), format.schema.take()),
        None => (None, None),
    };
    Ok(match format {
        None | Some((FormatKind::Text, None)) => None,
        Some((FormatKind::JsonObject, None)) => {
            Some(schema.map_or(Form::JsonObject, Form::JsonSchema))
        }
        Some((FormatKind::JsonSchema, Some(named))) => Some(Form::JsonSchema(named.schema)),
        Some((FormatKind::JsonSchema, None)) => {
            return reject(
                "`response_format.json_schema` is missing: add it, e.g. \"json_schema\": \
                 {\"name\": \"answer\", \"schema\": {\"type\": \"object\"}}",
            );
        }
        Some((_, Some(_))) => {
            return reject(
                "`response_format.json_schema` needs \"type\": \"json_schema\": set it, or leave the \
                 schema out",
            );
        }
    })
}

/// Most tokens of the output, by a field of this name; `None` for no limit.
///
/// # Errors
/// If it is neither -1 nor 1 or more.
pub(crate) fn token_limit(name: &str, tokens: i64) -> Result<Option<u32>, ApiError> {
    match tokens {
        -1 => Ok(None),
        1.. => Ok(Some(u32::try_from(tokens).unwrap_or(u32::MAX))),
        _ => {
            let message = format!("{name} is {tokens}; expected 1 or more, or -1 for no limit");
            Err(ApiError::field(name, message))
        }
    }
}

/// Most tokens of the output, by llama-server's name; `None` for no limit. With 0, the prompt is
/// prefilled for later requests, and nothing is decoded.
///
/// # Errors
/// If it is less than -1.
pub(crate) fn predict_limit(tokens: i64) -> Result<Option<u32>, ApiError> {
    match tokens {
        0 => Ok(Some(0)),
        _ => token_limit("n_predict", tokens),
    }
}

/// Of how many of the likeliest tokens log-probabilities are returned, by a field of this name.
///
/// # Errors
/// If there are too many.
pub(crate) fn top_logprobs(name: &str, top: Option<u32>) -> Result<Option<u32>, ApiError> {
    if top.is_some_and(|top| top > TOP_LOGPROBS_MAX) {
        let message = format!("at most {TOP_LOGPROBS_MAX} log-probabilities are given");
        return Err(ApiError::field(name, message));
    }
    Ok(top)
}
