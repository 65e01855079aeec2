//! Tokens to text and back.
//!
//! Bytes become text as they come, whole characters only. Which text ends a generation is decided
//! in `stop`; how messages become a prompt, in `chat`.

use forerun_verify::Token;

/// Whether control tokens written out in a text (`<|im_start|>`) are read as such.
///
/// ```
/// use forerun_decode::Special;
///
/// let from_template = true;
/// let special = if from_template { Special::Parse } else { Special::AsText };
/// assert_eq!(special, Special::Parse);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// They are plain text: for what a user typed.
    AsText,
    /// They are control tokens: for what a chat template wrote.
    Parse,
}

/// Why a text could not become tokens.
///
/// ```
/// use forerun_decode::TokenizeError;
///
/// let error = TokenizeError::TooLong { bytes: 5_000_000_000 };
/// assert_eq!(error.to_string(), "the text has 5000000000 bytes, more than the tokeniser takes");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizeError {
    /// The text is longer than a tokeniser takes.
    #[error("the text has {bytes} bytes, more than the tokeniser takes")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// The tokeniser failed.
    #[error("{backend} could not tokenise the text")]
    Failed {
        /// Which backend.
        backend: &'static str,
    },
}

/// A vocabulary: text to tokens, tokens to bytes.
///
/// ```
/// use forerun_decode::{Special, TokenizeError, Tokenizer};
/// use forerun_verify::Token;
///
/// /// A token for each byte, and one more that ends a generation.
/// struct Bytes;
///
/// impl Tokenizer for Bytes {
///     fn vocab_len(&self) -> usize {
///         257
///     }
///     fn tokenize(&self, text: &str, _: Special) -> Result<Vec<Token>, TokenizeError> {
///         Ok(text.bytes().map(|byte| Token(byte.into())).collect())
///     }
///     fn start(&self) -> Option<Token> {
///         None
///     }
///     fn is_end(&self, token: Token) -> bool {
///         token == Token(256)
///     }
///     fn bytes(&self, token: Token, out: &mut Vec<u8>) {
///         out.extend(u8::try_from(token.0));
///     }
/// }
///
/// let mut bytes = Vec::new();
/// for token in Bytes.tokenize("né", Special::AsText)? {
///     Bytes.bytes(token, &mut bytes);
/// }
/// assert_eq!(bytes, "né".as_bytes());
/// # Ok::<(), TokenizeError>(())
/// ```
pub trait Tokenizer: Send + Sync {
    /// How many tokens the vocabulary has.
    fn vocab_len(&self) -> usize;

    /// The tokens of a text, without a start token.
    ///
    /// # Errors
    /// If the text cannot be tokenised.
    fn tokenize(&self, text: &str, special: Special) -> Result<Vec<Token>, TokenizeError>;

    /// The token a sequence starts with, where the model wants one.
    fn start(&self) -> Option<Token>;

    /// Whether the token ends a generation.
    fn is_end(&self, token: Token) -> bool;

    /// Appends the token's bytes, which need not be whole characters. Control tokens have none;
    /// neither has a token out of range.
    fn bytes(&self, token: Token, out: &mut Vec<u8>);

    /// The tokens that are found by their text before the rest is split into pieces. Without them,
    /// no text in a prompt can be kept from being read as a control token.
    fn special_tokens(&self) -> Vec<SpecialToken> {
        Vec::new()
    }

    /// The tokens that a prompt for filling in text is made with.
    fn infill_tokens(&self) -> InfillTokens {
        InfillTokens::default()
    }
}

/// The tokens by which a model is asked for the text between two others, as far as its vocabulary
/// has them.
///
/// ```
/// use forerun_decode::{InfillTokens, Token};
///
/// let tokens = InfillTokens { prefix: Some(Token(7)), ..InfillTokens::default() };
/// assert_eq!(tokens.missing(), ["suffix", "middle"]);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InfillTokens {
    /// Comes before the text before the gap.
    pub prefix: Option<Token>,
    /// Comes before the text after the gap.
    pub suffix: Option<Token>,
    /// Comes before the text of the gap.
    pub middle: Option<Token>,
    /// Comes before the name of a repository.
    pub repository: Option<Token>,
    /// Comes before the name of a file.
    pub file: Option<Token>,
    /// Ends the text of the gap.
    pub end: Option<Token>,
}

impl InfillTokens {
    /// The names of those that no prompt can do without and that are not there.
    pub fn missing(&self) -> Vec<&'static str> {
        let needed = [("prefix", self.prefix), ("suffix", self.suffix), ("middle", self.middle)];
        needed.into_iter().filter(|(_, token)| token.is_none()).map(|(name, _)| name).collect()
    }
}

/// A token that a tokeniser finds by its text before it splits the rest into pieces.
///
/// ```
/// use forerun_decode::{SpecialToken, Token};
///
/// let end = SpecialToken::control(Token(2), "<|im_end|>");
/// assert!(end.control && !end.strip_left && !end.strip_right);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecialToken {
    /// The token.
    pub token: Token,
    /// Its text.
    pub text: String,
    /// Whether it is a control token, found under [`Special::Parse`] alone. Others, which llama.cpp
    /// calls user-defined, are found in all text.
    pub control: bool,
    /// Whether it takes the white space before it.
    pub strip_left: bool,
    /// Whether it takes the white space after it.
    pub strip_right: bool,
}

impl SpecialToken {
    /// A control token that leaves white space alone.
    pub fn control(token: Token, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { token, text, control: true, strip_left: false, strip_right: false }
    }
}

/// Makes text of bytes as they come, emitting whole characters only.
///
/// All that is emitted is what [`String::from_utf8_lossy`] gives for all the bytes at once, however
/// they were split. At most three bytes are held back: a character's beginning.
///
/// ```
/// use forerun_decode::Detokenizer;
///
/// let mut detokenizer = Detokenizer::new();
/// let mut text = String::new();
/// detokenizer.push(b"caf\xc3", &mut text);
/// assert_eq!(text, "caf");
/// detokenizer.push(b"\xa9 \xe2\x82", &mut text);
/// assert_eq!(text, "café ");
/// detokenizer.finish(&mut text);
/// assert_eq!(text, "café \u{fffd}");
/// ```
#[derive(Debug, Clone, Default)]
pub struct Detokenizer {
    /// The beginning of a character whose other bytes have not come.
    tail: Vec<u8>,
}

impl Detokenizer {
    /// Nothing has come.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes bytes, and appends to `out` the characters that are whole with them.
    pub fn push(&mut self, bytes: &[u8], out: &mut String) {
        if self.tail.is_empty() {
            self.tail.extend_from_slice(decode(bytes, out));
        } else {
            self.tail.extend_from_slice(bytes);
            let left = decode(&self.tail, out).len();
            self.tail.drain(..self.tail.len() - left);
        }
    }

    /// Says that no more bytes come: appends U+FFFD for a character that never became whole. The
    /// next bytes begin another text.
    pub fn finish(&mut self, out: &mut String) {
        if !self.tail.is_empty() {
            out.push(char::REPLACEMENT_CHARACTER);
            self.tail.clear();
        }
    }
}

/// Appends the text of `bytes`, and gives back the beginning of a character at their end.
fn decode<'a>(bytes: &'a [u8], out: &mut String) -> &'a [u8] {
    let mut chunks = bytes.utf8_chunks().peekable();
    while let Some(chunk) = chunks.next() {
        out.push_str(chunk.valid());
        match std::str::from_utf8(chunk.invalid()) {
            Ok(_) => {}
            // Bytes that follow would have been taken in, were they the character's rest.
            Err(error) if error.error_len().is_none() && chunks.peek().is_none() => {
                return chunk.invalid();
            }
            Err(_) => out.push(char::REPLACEMENT_CHARACTER),
        }
    }
    &[]
}
