//! What Dynamo asks for, as the host has it; what cannot be honoured is refused.

use dynamo_backend_common::PreprocessedRequest;
use forerun_grammar::Form;
use forerun_serve::TokenRequest;

/// Whether streams may come from another worker in their midst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moves {
    /// A prompt may hold the beginning of its answer, and nothing says where that begins. Penalties, which are of
    /// what was answered, cannot be honoured. Requests with a form are never moved.
    Possible,
    /// The front end moves none.
    Never,
}

/// The request for the host, or what cannot be honoured.
pub(crate) fn token_request(
    request: &PreprocessedRequest,
    moves: Moves,
) -> Result<TokenRequest, String> {
    check(request)?;
    let PreprocessedRequest { sampling_options: sampling, stop_conditions: stop, .. } = request;
    let asked = TokenRequest {
        prompt: request.token_ids.to_vec(),
        max_tokens: stop.max_tokens,
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        top_k: sampling.top_k,
        min_p: sampling.min_p,
        presence_penalty: sampling.presence_penalty,
        frequency_penalty: sampling.frequency_penalty,
        repeat_penalty: sampling.repetition_penalty,
        seed: sampling.seed,
        ignore_eos: ignores_end(request)?,
        logprobs: request.output_options.logprobs,
        form: form(request)?,
    };
    if moves == Moves::Possible {
        let set = |value: Option<f32>, none: f32| value.is_some_and(|value| value != none);
        let penalties = [
            (asked.presence_penalty, 0.0),
            (asked.frequency_penalty, 0.0),
            (asked.repeat_penalty, 1.0),
        ];
        if penalties.iter().any(|(value, none)| set(*value, *none)) {
            return Err("penalties are of what was answered, and Dynamo does not tell the worker a stream is moved to \
                        where the answer began: leave them out, or start the front end with --migration-limit 0 \
                        and workers with --no-migration"
                .into());
        }
    }
    Ok(asked)
}

fn check(request: &PreprocessedRequest) -> Result<(), &'static str> {
    let PreprocessedRequest { sampling_options: sampling, stop_conditions: stop, routing, .. } =
        request;
    let several = |count: Option<u8>| count.is_some_and(|count| count > 1);
    let routed = routing.as_ref();
    let refusals = [
        (
            several(sampling.n) || several(sampling.best_of),
            "one answer is made of a request: leave out n and best_of",
        ),
        (
            sampling.use_beam_search == Some(true),
            "beams are not searched: leave out use_beam_search",
        ),
        (
            request.multi_modal_data.is_some(),
            "only text is read: leave out images, audio and video",
        ),
        (request.prompt_embeds.is_some(), "prompts are tokens: leave out prompt_embeds"),
        (
            request.output_options.prompt_logprobs.is_some(),
            "prompt_logprobs are not given: leave them out",
        ),
        (
            stop.max_thinking_tokens.is_some(),
            "thinking is not counted: leave out max_thinking_tokens",
        ),
        (
            routed.is_some_and(|it| it.lora_name.is_some()),
            "adapters are not served: ask for the model itself",
        ),
        (
            routed.is_some_and(|it| it.cache_namespace.is_some()),
            "the cache is one for all requests: leave out cache_salt",
        ),
        (
            request.prefill_result.is_some() || request.bootstrap_info.is_some(),
            "prompts are read by the worker that answers: start no prefill workers",
        ),
    ];
    refusals.into_iter().find(|(refused, _)| *refused).map_or(Ok(()), |(_, reason)| Err(reason))
}

/// Whether end tokens are forbidden. As many tokens at least as at most is Dynamo's other way to say it.
fn ignores_end(request: &PreprocessedRequest) -> Result<bool, &'static str> {
    let stop = &request.stop_conditions;
    match stop.min_tokens {
        None | Some(0) => Ok(stop.ignore_eos == Some(true)),
        least if least == stop.max_tokens => Ok(true),
        Some(_) if stop.ignore_eos == Some(true) => Ok(true),
        Some(_) => Err(
            "min_tokens is honoured where it equals max_tokens: set both alike, or leave it out",
        ),
    }
}

/// The form an answer is held to.
fn form(request: &PreprocessedRequest) -> Result<Option<Form>, String> {
    let Some(guided) = &request.sampling_options.guided_decoding else { return Ok(None) };
    if guided.structural_tag.is_some() || guided.whitespace_pattern.is_some() {
        return Err("structural_tag and whitespace_pattern are not known: give json, regex, choice or grammar".into());
    }
    if request.require_reasoning {
        return Err("an answer is held to its form from its first token: leave out the form or the reasoning".into());
    }
    let mut forms: Vec<Form> = Vec::new();
    if let Some(schema) = &guided.json {
        // A schema may come as text.
        let schema = match schema.as_str() {
            Some(text) => {
                serde_json::from_str(text).map_err(|error| format!("guided json: {error}"))?
            }
            None => schema.clone(),
        };
        forms.push(Form::JsonSchema(schema));
    }
    forms.extend(guided.regex.clone().map(Form::Regex));
    forms.extend(guided.choice.clone().map(Form::Choice));
    forms.extend(guided.grammar.clone().map(Form::Grammar));
    match forms.len() {
        0 | 1 => Ok(forms.pop()),
        _ => Err("an answer is held to one form: give one of json, regex, choice, grammar".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use dynamo_backend_common::{
        GuidedDecodingOptions, OutputOptions, SamplingOptions, StopConditions,
    };

    fn request(change: impl FnOnce(&mut PreprocessedRequest)) -> PreprocessedRequest {
        let mut request = PreprocessedRequest::builder()
            .model("m".to_owned())
            .token_ids(vec![1, 2, 3])
            .stop_conditions(StopConditions { max_tokens: Some(9), ..StopConditions::default() })
            .sampling_options(SamplingOptions::default())
            .output_options(OutputOptions::default())
            .build()
            .unwrap();
        change(&mut request);
        request
    }

    fn guided(json: serde_json::Value) -> Option<GuidedDecodingOptions> {
        Some(GuidedDecodingOptions { json: Some(json), ..GuidedDecodingOptions::default() })
    }

    #[test]
    fn what_is_asked_for_is_passed_on() {
        let asked = token_request(
            &request(|it| {
                it.sampling_options = SamplingOptions {
                    temperature: Some(0.5),
                    top_p: Some(0.9),
                    top_k: Some(40),
                    min_p: Some(0.1),
                    seed: Some(7),
                    ..SamplingOptions::default()
                };
                it.output_options.logprobs = Some(2);
                it.stop_conditions.min_tokens = Some(9);
            }),
            Moves::Possible,
        )
        .unwrap();
        assert_eq!((asked.prompt, asked.max_tokens, asked.seed), (vec![1, 2, 3], Some(9), Some(7)));
        assert_eq!(
            (asked.temperature, asked.top_p, asked.top_k, asked.min_p),
            (Some(0.5), Some(0.9), Some(40), Some(0.1))
        );
        assert_eq!((asked.logprobs, asked.ignore_eos), (Some(2), true));
    }

    #[test]
    fn penalties_are_refused_where_streams_move() {
        let cases = [
            request(|it| it.sampling_options.presence_penalty = Some(0.5)),
            request(|it| it.sampling_options.frequency_penalty = Some(0.5)),
            request(|it| it.sampling_options.repetition_penalty = Some(1.1)),
        ];
        for case in cases {
            let refused = token_request(&case, Moves::Possible).unwrap_err();
            assert!(refused.contains("--no-migration"), "{refused}");
            assert!(token_request(&case, Moves::Never).is_ok());
        }
        let neutral = request(|it| {
            it.sampling_options.presence_penalty = Some(0.0);
            it.sampling_options.repetition_penalty = Some(1.0);
        });
        assert!(token_request(&neutral, Moves::Possible).is_ok());
    }

    #[test]
    fn what_cannot_be_honoured_is_refused() {
        let cases = [
            request(|it| it.sampling_options.n = Some(2)),
            request(|it| it.sampling_options.best_of = Some(2)),
            request(|it| it.sampling_options.use_beam_search = Some(true)),
            request(|it| it.prompt_embeds = Some(String::new())),
            request(|it| it.output_options.prompt_logprobs = Some(1)),
            request(|it| it.stop_conditions.min_tokens = Some(4)),
            request(|it| it.stop_conditions.max_thinking_tokens = Some(4)),
            request(|it| it.sampling_options.guided_decoding = guided("{".into())),
        ];
        for case in cases {
            assert!(token_request(&case, Moves::Never).is_err(), "{case:?}");
        }
    }

    #[test]
    fn a_schema_may_come_as_text() {
        let as_text = request(|it| {
            it.sampling_options.guided_decoding = guided(r#"{"type": "object"}"#.into())
        });
        let form = token_request(&as_text, Moves::Never).unwrap().form;
        assert_eq!(form, Some(Form::JsonSchema(serde_json::json!({"type": "object"}))));
    }
}
