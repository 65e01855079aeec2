//! A vocabulary in which the control tokens of a dialect's marks are text.
//!
//! Control tokens have no text, so that none shows in an output. Those that mark thoughts and calls
//! must: the splitter looks for them, and the grammar of calls is of text.

use std::collections::HashMap;
use std::sync::Arc;

use forerun_decode::{InfillTokens, Special, SpecialToken, Token, TokenizeError, Tokenizer};

use super::Dialect;

/// A vocabulary with more text.
pub(crate) struct Shown {
    inner: Arc<dyn Tokenizer>,
    texts: HashMap<Token, String>,
}

impl Shown {
    /// The same vocabulary, with the text of control tokens that are part of a mark.
    pub(crate) fn over(inner: Arc<dyn Tokenizer>, dialect: &Dialect) -> Arc<dyn Tokenizer> {
        let marks = dialect.marks();
        let is_mark = |it: &SpecialToken| {
            let text = it.text.trim();
            it.control && !text.is_empty() && marks.iter().any(|mark| mark.contains(text))
        };
        let hidden = |token: Token| {
            let mut bytes = Vec::new();
            inner.bytes(token, &mut bytes);
            bytes.is_empty() && !inner.is_end(token)
        };
        let shown =
            inner.special_tokens().into_iter().filter(is_mark).filter(|it| hidden(it.token));
        let texts: HashMap<Token, String> = shown.map(|it| (it.token, it.text)).collect();
        if texts.is_empty() { inner } else { Arc::new(Self { inner, texts }) }
    }
}

impl Tokenizer for Shown {
    fn vocab_len(&self) -> usize {
        self.inner.vocab_len()
    }
    fn tokenize(&self, text: &str, special: Special) -> Result<Vec<Token>, TokenizeError> {
        self.inner.tokenize(text, special)
    }
    fn start(&self) -> Option<Token> {
        self.inner.start()
    }
    fn is_end(&self, token: Token) -> bool {
        self.inner.is_end(token)
    }
    fn bytes(&self, token: Token, out: &mut Vec<u8>) {
        match self.texts.get(&token) {
            Some(text) => out.extend_from_slice(text.as_bytes()),
            None => self.inner.bytes(token, out),
        }
    }
    fn special_tokens(&self) -> Vec<SpecialToken> {
        self.inner.special_tokens()
    }
    fn infill_tokens(&self) -> InfillTokens {
        self.inner.infill_tokens()
    }
}
