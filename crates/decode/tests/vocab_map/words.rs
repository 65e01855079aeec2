// A vocabulary of given texts, for tests and for the examples in the documentation.

use forerun_decode::{Special, SpecialToken, Token, TokenizeError, Tokenizer};

/// Token `n` has the `n`-th text. Those without a text are control tokens: `<s>` starts, `</s>`
/// ends, and others begin with `<` too.
pub(super) struct Words(pub(super) Vec<&'static str>);

impl Tokenizer for Words {
    fn vocab_len(&self) -> usize {
        self.0.len()
    }

    /// The longest token first, the latest of several; what no token begins with is left out.
    fn tokenize(&self, text: &str, _: Special) -> Result<Vec<Token>, TokenizeError> {
        let mut tokens = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let fits = |id: &usize| !self.0[*id].starts_with('<') && rest.starts_with(self.0[*id]);
            let longest = (0..self.0.len()).filter(fits).max_by_key(|id| self.0[*id].len());
            let Some(id) = longest.filter(|id| !self.0[*id].is_empty()) else {
                rest = rest.get(1..).unwrap_or_default();
                continue;
            };
            tokens.push(Token(u32::try_from(id).expect("a short vocabulary")));
            rest = &rest[self.0[id].len()..];
        }
        Ok(tokens)
    }

    fn start(&self) -> Option<Token> {
        let id = self.0.iter().position(|text| *text == "<s>")?;
        u32::try_from(id).ok().map(Token)
    }

    fn is_end(&self, token: Token) -> bool {
        self.0.get(token.index()).is_some_and(|text| text.starts_with("</s"))
    }

    fn special_tokens(&self) -> Vec<SpecialToken> {
        let controls = (0..).zip(&self.0).filter(|(_, text)| text.starts_with('<'));
        controls.map(|(id, text)| SpecialToken::control(Token(id), *text)).collect()
    }

    fn bytes(&self, token: Token, out: &mut Vec<u8>) {
        let text = self.0.get(token.index()).filter(|text| !text.starts_with('<'));
        out.extend_from_slice(text.map_or(b"", |text| text.as_bytes()));
    }
}
