//! Embeddings of texts, and scores of documents, by a model that was trained for them.
//!
//! A text is read in one pass as a whole, several texts together. Nothing is kept between passes.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use forerun_decode::{Embedder, EngineError, TokenizeError};
use forerun_verify::Token;

use crate::ffi::batch::Batch;
use crate::ffi::context::Passed;
use crate::ffi::pooled::{PooledContext, PooledParams};
use crate::model::Model;
use crate::options::Pooling;
use crate::setup::{SetupError, machine_threads, thread_count};

/// Most tokens of a text unless told otherwise: attention over a pass takes memory by its square.
const TEXT_LEN_MAX: u32 = 2048;

/// Most texts of a pass.
const TEXTS: u32 = 8;

const BACKEND: &str = "llama.cpp";

/// How texts are embedded.
#[derive(Debug, Clone, Default)]
pub struct EmbedderOptions {
    /// Most tokens of a text; unset, what the model was trained with, but not more than 2,048.
    pub text_len: Option<NonZeroU32>,
    /// Threads of a pass; unset, as many as the machine offers.
    pub threads: Option<NonZeroU32>,
    /// What one row is made of a text's; unset, what the model says.
    pub pooling: Option<Pooling>,
    /// While it is `true`, a pass stops as soon as it can. Whoever set it clears it.
    pub interrupt: Option<Arc<AtomicBool>>,
}

/// Embeds texts, or scores documents.
#[derive(Debug)]
pub struct LlamaEmbedder {
    model: Model,
    context: PooledContext,
    pooling: Pooling,
    text_len: usize,
    batch: Batch,
}

impl LlamaEmbedder {
    /// For a model, which may be one that generates no text
    /// ([`ModelOptions::embeds`](crate::ModelOptions::embeds)).
    ///
    /// # Errors
    /// If neither model nor options say what one row is made of a text's, if it is to score documents
    /// without having been trained for it, or if memory is short.
    pub fn new(model: Model, options: &EmbedderOptions) -> Result<Self, SetupError> {
        let trained = u32::try_from(model.context_len()).unwrap_or(u32::MAX);
        let text_len = options.text_len.map_or(TEXT_LEN_MAX.min(trained), NonZeroU32::get);
        if text_len > trained {
            let (asked, trained) = (text_len as usize, trained as usize);
            return Err(SetupError::ContextTooLong { asked, trained });
        }
        let threads = options.threads.map_or_else(machine_threads, |n| thread_count(n.get()));
        let params = PooledParams {
            pass_len: text_len,
            sequences: TEXTS,
            threads,
            // A file that has the weights may not say what they are for.
            pooling: options.pooling.or(model.scores().then_some(Pooling::Rank)),
            interrupt: options.interrupt.clone(),
        };
        let context = PooledContext::new(Arc::clone(model.raw()), params);
        let context = context.map_err(|reason| SetupError::Rejected { reason })?;
        let pooling = context.pooling().ok_or(SetupError::NoPooling)?;
        // Without them llama.cpp gives the first number of a row as a score.
        if pooling == Pooling::Rank && !model.scores() {
            return Err(SetupError::NoScores);
        }
        let text_len = text_len as usize;
        Ok(Self { model, context, pooling, text_len, batch: Batch::default() })
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }
}

impl Embedder for LlamaEmbedder {
    fn ranks(&self) -> bool {
        self.pooling == Pooling::Rank
    }

    fn text_len(&self) -> usize {
        self.text_len
    }

    fn row_len(&self) -> usize {
        self.context.row_len()
    }

    /// The text of a control token becomes that token, as in llama-server.
    fn tokenize(&self, text: &str) -> Result<Vec<Token>, TokenizeError> {
        self.model.vocab().tokenize_whole(text)
    }

    fn tokenize_pair(&self, query: &str, document: &str) -> Result<Vec<Token>, TokenizeError> {
        self.model.vocab().tokenize_pair(query, document)
    }

    fn embed(&mut self, texts: &[Vec<Token>]) -> Result<Vec<Vec<f32>>, EngineError> {
        if texts.is_empty() {
            return Ok(Vec::new());
        }
        self.batch.clear();
        let vocab_len = self.model.vocab_len();
        let mut count = 0;
        for (text, sequence) in texts.iter().zip(0..TEXTS.cast_signed()) {
            if text.is_empty() || text.len() > self.text_len {
                return Err(EngineError::Full { tokens: text.len() });
            }
            if let Some(&token) = text.iter().find(|token| token.0 as usize >= vocab_len) {
                return Err(EngineError::Token { token, vocab_len });
            }
            if self.batch.len() + text.len() > self.text_len {
                break;
            }
            let ids = self.batch.ids(std::iter::once(sequence));
            for (position, &token) in text.iter().enumerate() {
                self.batch.push(token, position, ids);
                self.batch.want_row(self.batch.len() - 1);
            }
            count = sequence + 1;
        }
        match self.context.run(&mut self.batch) {
            Passed::Done => {}
            Passed::Full => return Err(EngineError::Full { tokens: self.batch.len() }),
            Passed::Interrupted => return Err(EngineError::Interrupted),
            Passed::Refused => return Err(EngineError::Refused { backend: BACKEND }),
            Passed::Failed(code) => return Err(EngineError::Broken { backend: BACKEND, code }),
        }
        let len = self.row_len();
        let missing = EngineError::Refused { backend: BACKEND };
        let row = |sequence| self.context.row(sequence, len).map(<[f32]>::to_vec);
        (0..count).map(row).collect::<Option<_>>().ok_or(missing)
    }
}
