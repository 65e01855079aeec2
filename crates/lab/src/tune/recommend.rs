//! What to do, why, and the whole command for it.

use super::measure::{Final, interval};
use super::{Candidate, TuneConfig};
use crate::words::wrapped;

/// A setting that gains less is not worth recommending.
const WORTH: f64 = 1.02;

/// The setting to recommend, if any: the one that is surely fastest.
fn best(finals: &[Final]) -> Option<&Final> {
    let low = |it: &Final| it.speedup.and_then(|it| it.low).unwrap_or(0.0);
    let clear = |it: &&Final| low(it) > 1.0 && it.measured().is_some_and(|value| value >= WORTH);
    finals.iter().filter(clear).max_by(|one, other| low(one).total_cmp(&low(other)))
}

/// What to do, with the reason and the command.
pub(super) fn recommendation(
    config: &TuneConfig,
    candidates: &[Candidate],
    finals: &[Final],
) -> String {
    let best = best(finals);
    let command = command(config, candidates, best);
    let reason = match best {
        Some(best) => because(best, candidates, config.text_len),
        None => because_not(finals, candidates),
    };
    format!("\n{}\n  {command}\n", wrapped(&format!("Recommendation: {reason}")))
}

fn because(best: &Final, candidates: &[Candidate], text_len: usize) -> String {
    let name = best.name(candidates);
    let figure = best.speedup.as_ref().map_or("–".to_owned(), interval);
    let forecast = best.forecast;
    let outside = best.speedup.is_some_and(|it| it.excludes(forecast));
    let agreement = match outside {
        false => "within that interval",
        true => "outside that interval: count on the smaller of the two",
    };
    format!(
        "{name}. It is {figure} times as fast as plain decoding, measured on {} prompts of {text_len} \
         tokens each: the whole 95 % interval lies above 1.\nThe forecast from acceptance and the cost \
         of passes is {forecast:.2}, {agreement}.",
        best.prompts
    )
}

fn because_not(finals: &[Final], candidates: &[Candidate]) -> String {
    let value = |it: &&Final| it.measured().unwrap_or(0.0);
    let fastest = finals.iter().max_by(|one, other| value(one).total_cmp(&value(other)));
    let Some((fastest, speedup)) = fastest.and_then(|it| Some((it, it.speedup?))) else {
        return match finals.is_empty() {
            true => "no drafts. By forecast nothing that was tried comes near plain decoding.",
            false => "no drafts, as far as is known: it was stopped before anything was measured.",
        }
        .to_owned();
    };
    let (name, figure) = (fastest.name(candidates), interval(&speedup));
    let why = match (speedup.low, speedup.high) {
        (Some(_), Some(high)) if high < 1.0 => "slower than plain decoding",
        (Some(low), _) if low > 1.0 => "the gain is too small to matter",
        (Some(_), Some(_)) => "the interval includes 1, so drafting does not clearly pay here",
        _ => "too few outputs were measured to know whether drafting pays",
    };
    let more = match (speedup.low, speedup.high) {
        (Some(low), Some(high)) if low <= 1.0 && high >= 1.0 => {
            "\nMore prompts (--prompts FILE) or longer outputs (-n) make the interval narrower."
        }
        (None, _) | (_, None) => "\nA longer --time-limit measures more.",
        _ => "",
    };
    format!(
        "no drafts. The fastest that was tried, {name}, is {figure} times as fast: {why}.{more}"
    )
}

/// The whole command, with all that was said to this one and matters.
fn command(config: &TuneConfig, candidates: &[Candidate], best: Option<&Final>) -> String {
    let mut words = ["forerun", "chat", "-m"].map(str::to_owned).to_vec();
    words.push(config.target.display().to_string());
    words.extend_from_slice(&config.said.engine);
    if let Some(best) = best {
        let candidate = &candidates[best.setting.drafter];
        words.extend_from_slice(&candidate.flags);
        if candidate.is_model {
            words.extend_from_slice(&config.said.draft);
        }
        if best.setting.width > 1 {
            words.extend(["--spec-draft-paths".to_owned(), best.setting.width.to_string()]);
        }
        let len = if best.adaptive { config.len_max } else { best.setting.len };
        words.extend(["--spec-draft-n-max".to_owned(), len.to_string()]);
        if !best.adaptive {
            words.extend(["--spec-adaptive", "off"].map(str::to_owned));
        }
    }
    words.extend_from_slice(&config.said.sampling);
    let quoted: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    quoted.join(" ")
}

/// A word as a shell reads it back.
fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=,+%@".contains(&byte);
    match !word.is_empty() && word.bytes().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::path::PathBuf;
    use std::time::Duration;

    use forerun_decode::{Sampling, Stats};

    use super::super::Said;
    use super::super::trial::Setting;
    use super::*;
    use crate::bench::Interval;
    use crate::sampling::SamplingConfig;
    use crate::span::Limit;

    fn tried(forecast: f64, (value, low, high): (f64, f64, f64)) -> Final {
        Final {
            setting: Setting { drafter: 0, width: 1, len: 3 },
            adaptive: false,
            forecast,
            speedup: Some(Interval { value, low: Some(low), high: Some(high) }),
            stats: Stats::default(),
            prompts: 5,
        }
    }

    /// What is recommended, on one line.
    fn recommended(finals: &[Final]) -> String {
        let said = recommendation(&config("t"), &candidates(), finals);
        let mut prose = said.lines().filter(|line| !line.starts_with("  forerun "));
        assert!(prose.all(|line| line.chars().count() < 80), "{said}");
        said.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    fn candidates() -> Vec<Candidate> {
        let flags = ["--spec-draft-model", "my drafts/d.gguf"].map(str::to_owned).to_vec();
        vec![Candidate { name: "d.gguf".to_owned(), flags, is_model: true }]
    }

    fn config(target: &str) -> TuneConfig {
        TuneConfig {
            target: PathBuf::from(target),
            drafts: Vec::new(),
            prompts: None,
            text_len: 64,
            len_max: 8,
            paths: NonZeroU32::MIN,
            limit: Limit::from_now(Duration::from_secs(600)),
            quick: false,
            plot: None,
            sampling: SamplingConfig { sampling: Sampling::default(), ignore_end: false, seed: 1 },
            said: Said::default(),
        }
    }

    #[test]
    fn what_is_not_clearly_faster_is_not_recommended() {
        assert!(best(&[]).is_none());
        let noisy = tried(1.18, (1.52, 0.97, 2.3));
        assert!(best(&[noisy.clone(), tried(0.9, (0.8, 0.7, 0.9))]).is_none());
        let said = recommended(std::slice::from_ref(&noisy));
        assert!(said.contains("no drafts") && said.contains("1.52 (0.97–2.30)"), "{said}");
        assert!(said.contains("the interval includes 1"), "{said}");
        assert!(said.ends_with(" forerun chat -m t"), "{said}");
        // The surer gain goes before the larger one.
        let finals = [noisy, tried(1.4, (1.5, 1.05, 2.2)), tried(1.3, (1.3, 1.2, 1.4))];
        assert_eq!(best(&finals).and_then(Final::measured), Some(1.3));
        let one = Final {
            speedup: Some(Interval { value: 2.0, low: None, high: None }),
            ..finals[0].clone()
        };
        let said = recommended(&[one]);
        assert!(said.contains("too few outputs were measured"), "{said}");
    }

    #[test]
    fn the_interval_and_the_forecast_are_the_reason() {
        let said = recommended(&[tried(1.18, (1.52, 1.3, 1.8))]);
        assert!(said.contains("d.gguf, drafts of 3. It is 1.52 (1.30–1.80) times"), "{said}");
        assert!(said.contains("is 1.18, outside that interval: count on the smaller"), "{said}");
        let said = recommended(&[tried(1.4, (1.52, 1.3, 1.8))]);
        assert!(said.contains("is 1.40, within that interval."), "{said}");
    }

    #[test]
    fn the_command_says_again_what_was_said() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect();
        let said = Said {
            engine: words("-c 4096 -t 2 -ngl 7 -ctk q8_0 -ctv q4_0 -fa off --no-mmap"),
            draft: words("-ngld 7 -ctkd q8_0 -ctvd q4_0"),
            sampling: words("--temp 0.7 --top-k 20 --logit-bias 5+1"),
        };
        let config = TuneConfig { said, ..config("t.gguf") };
        let said = command(&config, &candidates(), Some(&tried(1.5, (1.5, 1.4, 1.6))));
        assert_eq!(
            said,
            "forerun chat -m t.gguf -c 4096 -t 2 -ngl 7 -ctk q8_0 -ctv q4_0 -fa off --no-mmap \
             --spec-draft-model 'my drafts/d.gguf' -ngld 7 -ctkd q8_0 -ctvd q4_0 --spec-draft-n-max 3 \
             --spec-adaptive off --temp 0.7 --top-k 20 --logit-bias 5+1"
        );
    }

    #[test]
    fn words_are_quoted_where_a_shell_would_take_them_apart() {
        assert_eq!(quoted("/a/b-c_d.gguf"), "/a/b-c_d.gguf");
        assert_eq!(quoted("it's $5"), "'it'\\''s $5'");
        assert_eq!(quoted(""), "''");
    }
}
