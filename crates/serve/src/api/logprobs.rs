//! Log-probabilities of tokens, in the shapes of chat and text completions.

use std::collections::BTreeMap;

use forerun_decode::{Piece, Token, TokenLogprob, Tokenizer};
use serde::Serialize;
use utoipa::ToSchema;

/// The log-probability reported for what is impossible: JSON has no infinity.
const LOGPROB_MIN: f64 = -9999.0;

/// Log-probabilities of a choice's tokens, in chats.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub(crate) struct ChatLogprobs {
    /// For each token.
    pub(crate) content: Vec<ChatLogprob>,
}

/// A token's log-probability.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ChatLogprob {
    #[serde(flatten)]
    own: TopLogprob,
    /// The likeliest tokens at its position.
    top_logprobs: Vec<TopLogprob>,
}

/// A token and its log-probability.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct TopLogprob {
    /// Its text, with the bytes spelled out if they are no whole characters.
    token: String,
    /// The natural logarithm of its probability.
    logprob: f64,
    /// Its bytes.
    bytes: Vec<u8>,
}

/// A token's log-probability, by llama-server's names.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct NativeLogprob {
    #[serde(flatten)]
    own: NativeTop,
    /// The likeliest tokens at its position.
    top_logprobs: Vec<NativeTop>,
}

/// A token, its id and its log-probability.
#[derive(Debug, Clone, Serialize)]
struct NativeTop {
    id: u32,
    #[serde(flatten)]
    logprob: TopLogprob,
}

impl NativeLogprob {
    /// Those of tokens, end tokens included.
    pub(crate) fn all(pieces: &[Piece], tokenizer: &dyn Tokenizer) -> Vec<Self> {
        let top = |(token, logprob): &(Token, f64)| NativeTop {
            id: token.0,
            logprob: TopLogprob::new(*token, *logprob, tokenizer),
        };
        let one = |it: &TokenLogprob| Self {
            own: top(&(it.token, it.logprob)),
            top_logprobs: it.top.iter().map(top).collect(),
        };
        pieces.iter().filter_map(|piece| piece.logprob.as_ref()).map(one).collect()
    }
}

/// Log-probabilities of a choice's tokens, in text completions.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub(crate) struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<f64>,
    top_logprobs: Vec<BTreeMap<String, f64>>,
    text_offset: Vec<usize>,
}

/// The log-probabilities of tokens, without end tokens, which are no part of a choice.
fn logprobs<'a>(
    pieces: &'a [Piece],
    tokenizer: &'a dyn Tokenizer,
) -> impl Iterator<Item = &'a TokenLogprob> {
    let without_ends = pieces.iter().filter(|piece| !tokenizer.is_end(piece.token));
    without_ends.filter_map(|piece| piece.logprob.as_ref())
}

impl TopLogprob {
    fn new(token: Token, logprob: f64, tokenizer: &dyn Tokenizer) -> Self {
        let mut bytes = Vec::new();
        tokenizer.bytes(token, &mut bytes);
        Self { token: name(token, &bytes), logprob: logprob.max(LOGPROB_MIN), bytes }
    }
}

/// A token's text. Bytes that are no whole characters are spelled out as OpenAI does, and a token
/// without text goes by its id, so that no two tokens share a name.
fn name(token: Token, bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok("") => format!("<{}>", token.0),
        Ok(text) => text.to_owned(),
        Err(_) => {
            bytes.iter().fold("bytes:".to_owned(), |name, byte| name + &format!("\\x{byte:02x}"))
        }
    }
}

impl ChatLogprobs {
    pub(crate) fn new(pieces: &[Piece], tokenizer: &dyn Tokenizer) -> Self {
        let top = |(token, logprob): &(Token, f64)| TopLogprob::new(*token, *logprob, tokenizer);
        let one = |it: &TokenLogprob| ChatLogprob {
            own: TopLogprob::new(it.token, it.logprob, tokenizer),
            top_logprobs: it.top.iter().map(top).collect(),
        };
        Self { content: logprobs(pieces, tokenizer).map(one).collect() }
    }
}

impl CompletionLogprobs {
    /// The offset after tokens: characters of their names.
    pub(crate) fn offset_after(tokens: &[Token], tokenizer: &dyn Tokenizer) -> usize {
        let name = |token: &Token| TopLogprob::new(*token, 0.0, tokenizer).token;
        tokens.iter().map(|token| name(token).chars().count()).sum()
    }

    /// Those of tokens at this offset, which is moved behind them.
    pub(crate) fn new(pieces: &[Piece], tokenizer: &dyn Tokenizer, offset: &mut usize) -> Self {
        let mut all = Self::default();
        for it in logprobs(pieces, tokenizer) {
            let own = TopLogprob::new(it.token, it.logprob, tokenizer);
            let top = it.top.iter().map(|(id, of)| TopLogprob::new(*id, *of, tokenizer));
            all.text_offset.push(*offset);
            *offset += own.token.chars().count();
            all.token_logprobs.push(own.logprob);
            all.top_logprobs.push(top.map(|it| (it.token, it.logprob)).collect());
            all.tokens.push(own.token);
        }
        all
    }
}
