//! How tokens are drawn.

use std::hash::{BuildHasher, RandomState};

use forerun_decode::{Sampling, Token};

use super::ConfigError;

/// How tokens are drawn, as given; names and defaults are llama.cpp's.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingFlags {
    /// Seed of all random choices; -1 for a random one, which is shown [default: -1]
    #[arg(short, long, value_name = "N", allow_negative_numbers = true, value_parser = seed)]
    seed: Option<Seed>,
    /// Temperature; 0 takes the likeliest token [default: 0.8]
    #[arg(long = "temp", visible_alias = "temperature", value_name = "T")]
    #[arg(allow_negative_numbers = true)]
    temperature: Option<f32>,
    /// Keep this many of the likeliest tokens; 0 keeps all [default: 40]
    #[arg(long, value_name = "N")]
    top_k: Option<u32>,
    /// Keep the fewest tokens whose probabilities add up to this; 1 keeps all [default: 0.95]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// Keep tokens at least this share as probable as the likeliest; 0 keeps all [default: 0.05]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    min_p: Option<f32>,
    /// Keep the most typical tokens whose probabilities add up to this; 1 keeps all [default: 1]
    #[arg(long = "typical", visible_alias = "typical-p", value_name = "P")]
    #[arg(allow_negative_numbers = true)]
    typical_p: Option<f32>,
    /// Penalty of tokens said before; 1 for none [default: 1]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    repeat_penalty: Option<f32>,
    /// How many of the last tokens the penalties look at; 0 for none, -1 for all [default: 64]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    repeat_last_n: Option<i64>,
    /// Taken off the logits of tokens said before; 0 for nothing [default: 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    presence_penalty: Option<f32>,
    /// Taken off for each time a token was said; 0 for nothing [default: 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    frequency_penalty: Option<f32>,
    /// Make a token likelier or less likely, as in 15043+1 or 15043-inf; may be given several
    /// times
    #[arg(short, long, value_name = "TOKEN_ID(+/-)BIAS")]
    logit_bias: Vec<String>,
    /// Never end the text: forbid all end tokens
    #[arg(long)]
    ignore_eos: bool,
}

/// A seed, or the wish for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seed {
    Random,
    Fixed(u64),
}

/// How tokens are drawn, checked but for what depends on the vocabulary.
#[derive(Debug)]
pub(crate) struct SamplingConfig {
    /// How rows are shaped.
    pub(crate) sampling: Sampling,
    /// Whether end tokens are forbidden.
    pub(crate) ignore_end: bool,
    /// The seed of all random choices.
    pub(crate) seed: u64,
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
                let expected = "0 or more, or -1 for all".to_owned();
                ConfigError::OutOfRange {
                    flag: "--repeat-last-n",
                    value: len.to_string(),
                    expected,
                }
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
    // The standard library keys its hash maps from the system's source of randomness.
    RandomState::new().hash_one(0) >> 32
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
mod tests {
    use super::*;

    #[test]
    fn a_bias_is_a_token_a_sign_and_a_number() {
        assert_eq!(bias("15043+1.5".into()), Ok((Token(15043), 1.5)));
        assert_eq!(bias("15043-1e1".into()), Ok((Token(15043), -10.0)));
        assert_eq!(bias("7-inf".into()), Ok((Token(7), f32::NEG_INFINITY)));
        for text in ["15043", "+1", "a+1", "7=1", "7+x", "-1+2"] {
            assert_eq!(bias(text.into()), Err(ConfigError::Bias { text: text.into() }));
        }
    }

    #[test]
    fn random_seeds_differ_and_are_short() {
        assert_ne!(random_seed(), random_seed());
        assert!(random_seed() <= u64::from(u32::MAX));
    }
}
