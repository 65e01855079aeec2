//! Why a form cannot be held to.

use std::fmt;

/// Most bytes of a form.
pub(crate) const FORM_BYTES_MAX: usize = 256 * 1024;

/// What a grammar can ask for that is not text.
pub(crate) const TOKEN: &str = "a token in a grammar";

/// Why a vocabulary or a form is refused.
///
/// ```
/// use forerun_grammar::GrammarError;
///
/// let error = GrammarError::Gbnf { line: 3, reason: "unclosed `(`".into() };
/// assert_eq!(error.to_string(), "grammar, line 3: unclosed `(`");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// The vocabulary has no end token, so no text held to a form could end.
    #[error("the vocabulary has no end token")]
    Endless,
    /// The vocabulary is too large.
    #[error("the vocabulary has {tokens} tokens, more than grammars take")]
    Vocabulary {
        /// Its length.
        tokens: usize,
    },
    /// The form is too long.
    #[error("the form has {bytes} bytes, at most {} are taken: make it shorter", FORM_BYTES_MAX)]
    Long {
        /// Its length.
        bytes: usize,
    },
    /// The form would take too long to compile.
    #[error("there are {value} {what}, at most {limit} are taken: {instead}")]
    Exceeded {
        /// What there is too much of.
        what: &'static str,
        /// How much.
        value: u64,
        /// The most that is taken.
        limit: u64,
        /// What to do.
        instead: &'static str,
    },
    /// A grammar in llama.cpp's format is malformed.
    #[error("grammar, line {line}: {reason}")]
    Gbnf {
        /// Where, from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// The form asks for what cannot be done while drafting.
    #[error("{feature} is not supported")]
    Unsupported {
        /// What it asks for.
        feature: &'static str,
    },
    /// The form is invalid, unsupported, too large, or has no text.
    #[error("{reason}")]
    Refused {
        /// The library's reason.
        reason: String,
    },
}

/// What a reason starts with where the library panicked, which it catches.
pub(crate) const PANIC: &str = "llguidance failed: ";

/// Most bytes of a reason's beginning, and of its end; it may quote the whole form.
const REASON_HALF: usize = 1000;

/// The library's reason without the traces of its internals, which follow in angle brackets.
pub(crate) fn reason(error: impl fmt::Display) -> String {
    let whole = error.to_string();
    let reason = whole.split("\n<").next().unwrap_or_default().trim_end();
    match reason {
        "NoExtensionBias" => return "no token of the vocabulary may follow".to_owned(),
        "panic: missing special token prefix" => return format!("{TOKEN} is not supported"),
        _ => {}
    }
    let reason = match reason.strip_prefix("panic: ") {
        Some(panic) => format!("{PANIC}{panic}"),
        None => reason.to_owned(),
    };
    if reason.len() <= 2 * REASON_HALF {
        return reason;
    }
    let head = &reason[..reason.floor_char_boundary(REASON_HALF)];
    let tail = &reason[reason.ceil_char_boundary(reason.len() - REASON_HALF)..];
    format!("{head} … {tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_without_traces_and_not_long() {
        assert_eq!(reason("too big\n<state>\nrows\n</state>"), "too big");
        assert_eq!(
            reason("NoExtensionBias\n<non-verbose/>"),
            "no token of the vocabulary may follow"
        );
        assert_eq!(reason("panic: at\n<backtrace>"), "llguidance failed: at");
        let long = format!("start {}é end", "é".repeat(5000));
        let short = reason(long);
        assert!(short.starts_with("start éé") && short.ends_with("éé end") && short.len() < 2100);
    }
}
