//! How tokens are drawn.

use forerun_decode::{Sampling, Token};
use forerun_lab::SamplingConfig;

use super::ConfigError;

/// How tokens are drawn, as given; names and defaults are llama.cpp's.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingFlags {
    /// Random seed; -1 picks one and prints it [default: -1]
    #[arg(short, long, value_name = "N", allow_negative_numbers = true, value_parser = seed)]
    seed: Option<Seed>,
    /// Temperature; 0 always takes the likeliest token [default: 0.8]
    #[arg(long = "temp", visible_alias = "temperature", value_name = "T")]
    #[arg(allow_negative_numbers = true)]
    temperature: Option<f32>,
    /// Keep only the N likeliest tokens; 0 keeps all [default: 40]
    #[arg(long, value_name = "N")]
    top_k: Option<u32>,
    /// Keep the likeliest tokens whose probabilities add up to P; 1 keeps all [default: 0.95]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// Keep tokens with at least P times the probability of the likeliest one; 0 keeps all
    /// [default: 0.05]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    min_p: Option<f32>,
    /// Keep the most typical tokens whose probabilities add up to P; 1 keeps all [default: 1]
    #[arg(long = "typical", visible_alias = "typical-p", value_name = "P")]
    #[arg(allow_negative_numbers = true)]
    typical_p: Option<f32>,
    /// Penalty for repeated tokens; 1 for none [default: 1]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    repeat_penalty: Option<f32>,
    /// Number of recent tokens that the penalties consider; 0 for none, -1 for all [default: 64]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    repeat_last_n: Option<i64>,
    /// Subtract X from the logit of every token that has occurred; 0 for none [default: 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    presence_penalty: Option<f32>,
    /// Subtract X from the logit of a token for each time it has occurred; 0 for none [default: 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    frequency_penalty: Option<f32>,
    /// Add a bias to the logit of a token, as in 15043+1 or 15043-inf; may be repeated
    #[arg(short, long, value_name = "TOKEN_ID(+/-)BIAS")]
    logit_bias: Vec<String>,
    /// Forbid end tokens, so that the model does not end the output
    #[arg(long)]
    ignore_eos: bool,
}

/// A seed, or the wish for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seed {
    Random,
    Fixed(u64),
}

impl SamplingFlags {
    /// Whether a text is to be made again.
    pub(crate) fn is_seeded(&self) -> bool {
        matches!(self.seed, Some(Seed::Fixed(_)))
    }

    /// What was said about the law of tokens, to say it again; a seed is not part of that.
    pub(crate) fn said(&self) -> Vec<String> {
        let real = |value: Option<f32>| value.map(|value| value.to_string());
        let valued = [
            ("--temp", real(self.temperature)),
            ("--top-k", self.top_k.map(|value| value.to_string())),
            ("--top-p", real(self.top_p)),
            ("--min-p", real(self.min_p)),
            ("--typical", real(self.typical_p)),
            ("--repeat-penalty", real(self.repeat_penalty)),
            ("--repeat-last-n", self.repeat_last_n.map(|value| value.to_string())),
            ("--presence-penalty", real(self.presence_penalty)),
            ("--frequency-penalty", real(self.frequency_penalty)),
        ];
        let valued = valued.into_iter().filter_map(|(flag, value)| Some([flag.to_owned(), value?]));
        let biases = self.logit_bias.iter().map(|bias| ["--logit-bias".to_owned(), bias.clone()]);
        let ends = self.ignore_eos.then(|| "--ignore-eos".to_owned());
        valued.chain(biases).flatten().chain(ends).collect()
    }

    /// Decides every default.
    pub(crate) fn resolve(self) -> Result<SamplingConfig, ConfigError> {
        let default = Sampling::default();
        let repeat_last_n = match self.repeat_last_n {
            None => default.repeat_last_n,
            Some(-1) => None,
            Some(len) => Some(usize::try_from(len).map_err(|_| {
                ConfigError::out_of_range("--repeat-last-n", len, "0 or more, or -1 for all")
            })?),
        };
        let biases = self.logit_bias.into_iter().map(bias);
        let sampling = Sampling {
            temperature: self.temperature.unwrap_or(default.temperature),
            top_k: self.top_k.map_or(default.top_k, |top_k| top_k as usize),
            top_p: self.top_p.unwrap_or(default.top_p),
            min_p: self.min_p.unwrap_or(default.min_p),
            typical_p: self.typical_p.unwrap_or(default.typical_p),
            repeat_penalty: self.repeat_penalty.unwrap_or(default.repeat_penalty),
            repeat_last_n,
            presence_penalty: self.presence_penalty.unwrap_or(default.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(default.frequency_penalty),
            logit_bias: biases.collect::<Result<_, _>>()?,
            infill: None,
        };
        // The vocabulary is not known yet; what does not depend on it is refused before loading.
        sampling.check(usize::MAX)?;
        let seed = match self.seed {
            Some(Seed::Fixed(seed)) => seed,
            None | Some(Seed::Random) => random_seed(),
        };
        Ok(SamplingConfig { sampling, ignore_end: self.ignore_eos, seed })
    }
}

fn seed(text: &str) -> Result<Seed, String> {
    match text {
        "-1" => Ok(Seed::Random),
        _ => text.parse().map(Seed::Fixed).map_err(|_| "expected 0 or more, or -1".to_owned()),
    }
}

/// A seed nobody chose, short enough to be typed again.
fn random_seed() -> u64 {
    getrandom::u32().expect("the system has random numbers").into()
}

fn bias(text: String) -> Result<(Token, f32), ConfigError> {
    let read = |text: &str| {
        let sign = text.find(['+', '-'])?;
        let token = text[..sign].trim().parse().ok()?;
        let size: f32 = text[sign + 1..].trim().parse().ok()?;
        Some((Token(token), if text[sign..].starts_with('-') { -size } else { size }))
    };
    read(&text).ok_or(ConfigError::Bias { text })
}

#[cfg(test)]
#[path = "../../tests/line/sampling.rs"]
mod tests;
