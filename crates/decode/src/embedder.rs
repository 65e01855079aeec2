//! What a model that embeds texts, or scores documents, offers.

use forerun_verify::Token;

use crate::engine::EngineError;
use crate::text::TokenizeError;

/// Embeds texts, or scores documents. Nothing is kept between calls.
pub trait Embedder: Send {
    /// Whether it scores documents instead of embedding texts.
    fn ranks(&self) -> bool;

    /// Most tokens of a text.
    fn text_len(&self) -> usize;

    /// How many numbers there are for a text.
    fn row_len(&self) -> usize;

    /// The tokens of a text, with those that the model expects around it.
    ///
    /// # Errors
    /// If it cannot be tokenized.
    fn tokenize(&self, text: &str) -> Result<Vec<Token>, TokenizeError>;

    /// The tokens of a query and a document, as a model that scores documents expects them.
    ///
    /// # Errors
    /// If they cannot be tokenized.
    fn tokenize_pair(&self, query: &str, document: &str) -> Result<Vec<Token>, TokenizeError>;

    /// Rows of the first texts, as many as fit into a pass: one at least.
    ///
    /// # Errors
    /// If a text has no tokens, or more than [`Embedder::text_len`], or the pass fails.
    fn embed(&mut self, texts: &[Vec<Token>]) -> Result<Vec<Vec<f32>>, EngineError>;
}
