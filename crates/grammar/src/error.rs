//! Why a form cannot be held to.

use crate::form::Form;

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
    #[error("the form has {bytes} bytes, at most {} are taken", Form::BYTES_MAX)]
    Long {
        /// Its length.
        bytes: usize,
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

/// The library's reason without the traces of its internals, which follow in angle brackets.
pub(crate) fn reason(error: impl std::fmt::Display) -> String {
    let whole = error.to_string();
    match whole.split("\n<").next().unwrap_or_default().trim_end() {
        "NoExtensionBias" => "no token of the vocabulary may follow".to_owned(),
        head => head.to_owned(),
    }
}
