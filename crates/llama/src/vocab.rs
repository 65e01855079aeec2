//! Text to tokens and tokens to bytes, by the model's own vocabulary.
//!
//! The bytes of all tokens are looked up once and stored in one table, because a stream needs
//! them at every token. Chat templates are not applied here.

use std::sync::Arc;

use forerun_decode::{InfillTokens, Special, SpecialToken, TokenizeError, Tokenizer};
use forerun_verify::Token;

use crate::ffi::model::{InfillToken, RawModel, SpecialKind};

/// A model's vocabulary. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Vocab {
    raw: Arc<RawModel>,
    table: Arc<Table>,
}

/// What is known of every token.
#[derive(Debug)]
struct Table {
    bytes: Vec<u8>,
    // Token `i` has `bytes[starts[i]..starts[i + 1]]`.
    starts: Vec<usize>,
    // One bit for each token.
    ends: Vec<u64>,
}

impl Vocab {
    pub(crate) fn new(raw: Arc<RawModel>) -> Self {
        let len = raw.vocab_len();
        let mut bytes = Vec::with_capacity(len * 8);
        let mut starts = Vec::with_capacity(len + 1);
        let mut ends = vec![0; len.div_ceil(64)];
        starts.push(0);
        for token in (0..len).filter_map(|token| u32::try_from(token).ok()) {
            raw.token_bytes(token, false, &mut bytes);
            starts.push(bytes.len());
            if raw.is_end(token) {
                ends[token as usize / 64] |= 1 << (token % 64);
            }
        }
        bytes.shrink_to_fit();
        Self { raw, table: Arc::new(Table { bytes, starts, ends }) }
    }

    /// Whether a token controls the dialogue rather than standing for text.
    pub fn is_control(&self, token: Token) -> bool {
        self.raw.is_control(token.0)
    }

    /// A token as the vocabulary writes it, control tokens included; for people to read.
    pub fn text(&self, token: Token) -> Option<String> {
        self.raw.token_text(token.0)
    }
}

impl Tokenizer for Vocab {
    fn vocab_len(&self) -> usize {
        self.table.starts.len() - 1
    }

    fn tokenize(&self, text: &str, special: Special) -> Result<Vec<Token>, TokenizeError> {
        if i32::try_from(text.len()).is_err() {
            return Err(TokenizeError::TooLong { bytes: text.len() });
        }
        let tokens = self.raw.tokenize(text, special == Special::Parse);
        let tokens = tokens.ok_or(TokenizeError::Failed { backend: "llama.cpp" })?;
        Ok(tokens.into_iter().map(Token).collect())
    }

    fn start(&self) -> Option<Token> {
        self.raw.start().map(Token)
    }

    fn is_end(&self, token: Token) -> bool {
        let word = self.table.ends.get(token.0 as usize / 64);
        word.is_some_and(|word| word >> (token.0 % 64) & 1 == 1)
    }

    fn bytes(&self, token: Token, out: &mut Vec<u8>) {
        let token = token.0 as usize;
        if let Some(&[start, end]) = self.table.starts.get(token..=token.saturating_add(1)) {
            out.extend_from_slice(&self.table.bytes[start..end]);
        }
    }

    fn special_tokens(&self) -> Vec<SpecialToken> {
        let tokens = (0..self.vocab_len()).filter_map(|token| u32::try_from(token).ok());
        let special = |token| {
            let kind = self.raw.special_kind(token)?;
            let text = self.raw.token_text(token)?;
            let SpecialKind { control, strip_left, strip_right } = kind;
            Some(SpecialToken { token: Token(token), text, control, strip_left, strip_right })
        };
        tokens.filter_map(special).collect()
    }

    fn infill_tokens(&self) -> InfillTokens {
        let token = |of| self.raw.infill_token(of).map(Token);
        InfillTokens {
            prefix: token(InfillToken::Prefix),
            suffix: token(InfillToken::Suffix),
            middle: token(InfillToken::Middle),
            repository: token(InfillToken::Repository),
            file: token(InfillToken::File),
            end: token(InfillToken::TurnEnd).or_else(|| token(InfillToken::End)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Instant;

    use super::*;
    use crate::model::check_file;
    use crate::options::ModelOptions;

    #[test]
    fn the_table_holds_what_llama_cpp_says_of_each_token() {
        let dir = std::env::var_os("FORERUN_MODELS").map(PathBuf::from).or_else(|| {
            std::env::home_dir().map(|home| home.join(".cache").join("forerun").join("models"))
        });
        let path = dir.expect("there is a home directory").join("SmolLM2-135M-Instruct.Q4_1.gguf");
        assert!(path.is_file(), "{} is missing: run `just models`", path.display());
        let start = Instant::now();
        check_file(&path).unwrap();
        let checked = start.elapsed();
        let Ok(raw) = RawModel::load(&mut ModelOptions::new(path)) else { panic!("no model") };
        let raw = Arc::new(raw);
        let start = Instant::now();
        let vocab = Vocab::new(Arc::clone(&raw));
        println!("{} tokens: {:?}, file checked in {checked:?}", raw.vocab_len(), start.elapsed());

        let (mut kept, mut asked) = (Vec::new(), Vec::new());
        for token in 0..u32::try_from(raw.vocab_len()).unwrap() {
            kept.clear();
            asked.clear();
            vocab.bytes(Token(token), &mut kept);
            raw.token_bytes(token, false, &mut asked);
            assert_eq!(kept, asked, "token {token}");
            assert_eq!(vocab.is_end(Token(token)), raw.is_end(token), "token {token}");
            // Control tokens have no bytes, though they have a name.
            if raw.is_control(token) {
                assert!(kept.is_empty() && raw.token_text(token).is_some(), "token {token}");
            }
        }
    }
}
