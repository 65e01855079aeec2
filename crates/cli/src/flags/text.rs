//! What ends a text, and how text on the command line is read.

use forerun_decode::StopStrings;

use super::ConfigError;

/// Where a text ends, as given.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Generation")]
pub(crate) struct TextFlags {
    /// Maximum number of tokens to generate; -1 for no limit but the context [default: -1]
    #[arg(short = 'n', long, visible_alias = "n-predict", env = "LLAMA_ARG_N_PREDICT")]
    #[arg(value_name = "N", allow_negative_numbers = true)]
    predict: Option<i64>,
    /// Stop string: ends the output and is not part of it; may be repeated
    #[arg(short = 'r', long, visible_alias = "reverse-prompt", value_name = "TEXT")]
    #[arg(allow_hyphen_values = true)]
    stop: Vec<String>,
    /// Process the escapes \n, \r, \t, \", \' and \\ in --prompt, --system-prompt and --stop, as
    /// llama.cpp does by default
    #[arg(short, long)]
    pub(crate) escape: bool,
}

/// Where a text ends, checked.
#[derive(Debug)]
pub(crate) struct TextConfig {
    /// Most tokens after the prompt.
    pub(crate) len_max: usize,
    /// What ends the output.
    pub(crate) stops: StopStrings,
}

impl TextFlags {
    /// Decides every default.
    pub(crate) fn resolve(self) -> Result<TextConfig, ConfigError> {
        let len_max = match self.predict {
            None | Some(-1) => usize::MAX,
            Some(len) => usize::try_from(len).ok().filter(|len| *len > 0).ok_or_else(|| {
                ConfigError::out_of_range("--predict", len, "1 or more, or -1 for no limit")
            })?,
        };
        let stops = self.stop.into_iter().map(|stop| unescape(self.escape, stop));
        Ok(TextConfig { len_max, stops: StopStrings::new(stops)? })
    }
}

/// Reads escapes in text from the command line, where they are to be read. What is no escape stays.
pub(crate) fn unescape(escape: bool, text: String) -> String {
    if !escape {
        return text;
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some((before, after)) = rest.split_once('\\') {
        out.push_str(before);
        let mut chars = after.chars();
        match chars.next() {
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('t') => out.push('\t'),
            Some(char @ ('"' | '\'' | '\\')) => out.push(char),
            other => {
                out.push('\\');
                out.extend(other);
            }
        }
        rest = chars.as_str();
    }
    out + rest
}

#[cfg(test)]
#[path = "../../tests/line/text.rs"]
mod tests;
