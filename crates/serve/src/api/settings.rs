//! How a request's tokens are drawn, by llama-server's names.

use forerun_decode::Token;
use serde_json::{Value, json};

use crate::request::Settings;

/// What llama-server reports as the seed of a request that has none.
const NO_SEED: u32 = u32::MAX;

/// The settings of a request, without what its client wrote. Samplers that this server does not have
/// are there too, and off.
pub(crate) fn settings(settings: &Settings) -> Value {
    let Settings { sampling, samplers, seed, max_tokens, ignore_eos, logprobs, .. } = settings;
    let max_tokens = max_tokens.map_or(-1, i64::from);
    json!({
        "seed": seed.unwrap_or(NO_SEED.into()),
        "temperature": sampling.temperature,
        "dynatemp_range": 0.0,
        "dynatemp_exponent": 1.0,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "top_n_sigma": -1.0,
        "xtc_probability": 0.0,
        "xtc_threshold": 0.1,
        "typical_p": sampling.typical_p,
        "repeat_last_n": sampling.repeat_last_n.map_or(json!(-1), |len| json!(len)),
        "repeat_penalty": sampling.repeat_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "dry_multiplier": 0.0,
        "mirostat": 0,
        "max_tokens": max_tokens,
        "n_predict": max_tokens,
        "n_keep": 0,
        "ignore_eos": ignore_eos,
        "n_probs": logprobs.unwrap_or(0),
        "min_keep": 0,
        "samplers": samplers,
        "post_sampling_probs": false,
        "lora": [],
    })
}

/// The same with what the client wrote: stop strings, biases, a grammar.
pub(crate) fn settings_of_client(own: &Settings, stream: bool, grammar: &str) -> Value {
    let mut all = settings(own);
    all["stream"] = json!(stream);
    let bias = |(token, bias): &(Token, f32)| json!({ "token": token.0, "bias": bias });
    all["stop"] = json!(own.stop);
    all["logit_bias"] = own.sampling.logit_bias.iter().map(bias).collect();
    all["grammar"] = json!(grammar);
    all
}
