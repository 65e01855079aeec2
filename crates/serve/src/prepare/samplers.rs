//! Which samplers are on, by llama-server's `samplers`.

use forerun_decode::Sampling;

use crate::error::RequestError;
use crate::request::{SAMPLERS, SAMPLERS_ON};

/// Samplers of llama.cpp that this server does not have. A request that turns one on is rejected by
/// the field that does, so that naming one changes nothing.
const ALWAYS_OFF: [&str; 3] = ["dry", "top_n_sigma", "xtc"];

/// The name of a sampler by another that llama.cpp reads.
fn canonical(name: &str) -> &str {
    match name {
        "top-k" => "top_k",
        "typical" | "typical_p" | "typical-p" | "typ" | "typ-p" => "typ_p",
        "top-p" | "nucleus" => "top_p",
        "min-p" => "min_p",
        "temp" => "temperature",
        other => other,
    }
}

/// Those of the samplers that a request names; the usual ones if it does not say.
///
/// # Errors
/// If there is no such sampler, or they are in another order than the one they are applied in.
pub(super) fn named(names: Option<&[String]>) -> Result<Vec<&'static str>, RequestError> {
    let Some(names) = names else { return Ok(SAMPLERS_ON.to_vec()) };
    let reject = |message: String| RequestError::parameter("samplers", message);
    let mut on: Vec<usize> = Vec::new();
    for name in names.iter().map(|name| canonical(name)).filter(|it| !ALWAYS_OFF.contains(it)) {
        let place = SAMPLERS.iter().position(|it| *it == name).ok_or_else(|| {
            reject(format!("there is no sampler {name:?}: use some of {}", SAMPLERS.join(", ")))
        })?;
        if let Some(before) = on.last().filter(|before| **before >= place) {
            return Err(reject(format!(
                "{name} cannot come after {}: samplers are applied in the order {}",
                SAMPLERS[*before],
                SAMPLERS.join(", ")
            )));
        }
        on.push(place);
    }
    Ok(on.into_iter().map(|place| SAMPLERS[place]).collect())
}

/// Turns all other samplers off.
pub(super) fn keep_only(on: &[&str], sampling: Sampling) -> Sampling {
    let neutral = Sampling { logit_bias: sampling.logit_bias.clone(), ..Sampling::unshaped() };
    let of = |name: &str| if on.contains(&name) { &sampling } else { &neutral };
    let penalties = of("penalties");
    Sampling {
        repeat_penalty: penalties.repeat_penalty,
        repeat_last_n: penalties.repeat_last_n,
        presence_penalty: penalties.presence_penalty,
        frequency_penalty: penalties.frequency_penalty,
        top_k: of("top_k").top_k,
        typical_p: of("typ_p").typical_p,
        top_p: of("top_p").top_p,
        min_p: of("min_p").min_p,
        temperature: of("temperature").temperature,
        infill: of("infill").infill.clone(),
        logit_bias: neutral.logit_bias,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

    use super::*;

    fn on(names: &[&str]) -> Result<Vec<&'static str>, RequestError> {
        let names: Vec<String> = names.iter().map(|it| (*it).to_owned()).collect();
        named(Some(&names))
    }

    #[test]
    fn samplers_that_are_not_named_are_off() {
        let all = Sampling {
            temperature: 0.5,
            top_k: 7,
            top_p: 0.8,
            min_p: 0.1,
            typical_p: 0.9,
            repeat_penalty: 1.2,
            repeat_last_n: None,
            presence_penalty: 0.3,
            frequency_penalty: 0.4,
            logit_bias: vec![(forerun_decode::Token(1), 2.0)],
            infill: None,
        };
        assert_eq!(keep_only(&named(None).unwrap(), all.clone()), all);
        let bare = Sampling { logit_bias: all.logit_bias.clone(), ..Sampling::unshaped() };
        assert_eq!(keep_only(&on(&[]).unwrap(), all.clone()), bare);
        let two = on(&["dry", "min-p", "temp", "xtc"]).unwrap();
        assert_eq!(two, ["min_p", "temperature"]);
        let expected = Sampling { min_p: 0.1, temperature: 0.5, ..bare.clone() };
        assert_eq!(keep_only(&two, all.clone()), expected);
        let penalised = keep_only(&on(&["penalties"]).unwrap(), all);
        assert_eq!((penalised.repeat_penalty, penalised.repeat_last_n), (1.2, None));
        assert_eq!((penalised.temperature, penalised.top_k), (1.0, 0));
    }

    #[test]
    fn other_orders_and_other_samplers_are_rejected() {
        for names in [
            &["temperature", "top_k"][..],
            &["top_p", "top_k"],
            &["top_k", "top-k"],
            &["infill", "top_p"],
            &["mirostat"],
            &["adaptive_p"],
            &[""],
        ] {
            let error = on(names).unwrap_err();
            assert!(matches!(&error, RequestError::Parameter { name, .. } if name == "samplers"));
            assert!(error.to_string().contains("penalties, top_k, typ_p"), "{error}");
        }
    }
}
