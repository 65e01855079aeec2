//! A toy engine and its settings, for tests.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

use std::sync::Arc;
use std::time::Duration;

use forerun_decode::{
    Decoder, Drafter, DrafterId, EditDrafter, Embedder, EngineError, ModelDrafter, Sampling,
    Special, Token, TokenizeError, Tokenizer, ToyEngine, ToyModel,
};

use crate::config::{DraftDefaults, Engine, HostConfig, ModelInfo};

/// Tokens of [`Letters`].
pub(crate) const VOCAB: usize = 6;

/// The end token of [`Letters`].
pub(crate) const END: Token = Token(5);

/// Tokens are the letters a to e, and an end.
pub(crate) struct Letters;

impl Tokenizer for Letters {
    fn vocab_len(&self) -> usize {
        VOCAB
    }
    fn tokenize(&self, text: &str, _: Special) -> Result<Vec<Token>, TokenizeError> {
        Ok(text.bytes().map(|byte| Token(u32::from(byte - b'a'))).collect())
    }
    fn start(&self) -> Option<Token> {
        None
    }
    fn is_end(&self, token: Token) -> bool {
        token == END
    }
    fn bytes(&self, token: Token, out: &mut Vec<u8>) {
        out.push(b'a' + u8::try_from(token.0).unwrap());
    }
}

/// A model of so many tokens.
pub(crate) fn model(vocab_len: usize, seed: u64) -> ToyModel {
    ToyModel { vocab_len, order: 3, seed, spread: 2.0 }
}

/// An engine of [`Letters`] with three slots.
pub(crate) fn toy(seed: u64, paths_max: usize) -> Box<dyn forerun_decode::Engine> {
    Box::new(ToyEngine::new(model(VOCAB, seed), 512).slots(3).paths(paths_max))
}

/// A target of [`Letters`], a draft model, and drafts from predictions.
pub(crate) fn engine() -> Engine {
    engine_of(Arc::new(Letters), toy(1, 1))
}

/// This target, a draft model with the same vocabulary, and drafts from predictions.
pub(crate) fn engine_of(
    tokenizer: Arc<dyn Tokenizer>,
    target: Box<dyn forerun_decode::Engine>,
) -> Engine {
    let drafter = ToyEngine::new(model(tokenizer.vocab_len(), 2), target.context_len());
    let drafter = ModelDrafter::new(Box::new(drafter.slots(target.slot_count()).paths(1)));
    let drafters: Vec<Box<dyn Drafter>> = vec![Box::new(drafter), Box::new(EditDrafter::default())];
    let decoder = Decoder::new(target, drafters).unwrap();
    Engine {
        controller: None,
        keep_gates: None,
        embedding: None,
        tokenizer,
        template: None,
        template_source: String::new(),
        sampling: Sampling::unshaped(),
        drafts: DraftDefaults {
            drafters: decoder.drafters().infos(),
            on_demand: vec![DrafterId(1)],
            length: 3,
            priced_length: 8,
            width: 1,
            may_stop: false,
            adaptive: false,
            suffix_shared: false,
            rule: None,
            lossy_max: None,
        },
        decoder,
        model: ModelInfo {
            names: vec!["toy".to_owned()],
            file: String::new(),
            description: String::new(),
            parameters: 0,
            size: 0,
            trained_len: 512,
        },
    }
}

/// So many sequences may wait.
pub(crate) fn config(queue_max: usize) -> HostConfig {
    HostConfig {
        queue_max,
        timeout: Duration::from_secs(60),
        log_prompts: false,
        parse_special: false,
    }
}

/// An embedder of [`Letters`] that adds up tokens, and counts its passes. A pass has eight tokens.
#[derive(Default)]
pub(crate) struct Counting {
    pub(crate) passes: u16,
    pub(crate) ranks: bool,
}

impl Embedder for Counting {
    fn ranks(&self) -> bool {
        self.ranks
    }
    fn text_len(&self) -> usize {
        8
    }
    fn row_len(&self) -> usize {
        if self.ranks { 1 } else { 2 }
    }
    fn tokenize(&self, text: &str) -> Result<Vec<Token>, TokenizeError> {
        Letters.tokenize(text, Special::AsText)
    }
    fn tokenize_pair(&self, query: &str, document: &str) -> Result<Vec<Token>, TokenizeError> {
        self.tokenize(&format!("{query}{document}"))
    }
    fn embed(&mut self, texts: &[Vec<Token>]) -> Result<Vec<Vec<f32>>, EngineError> {
        self.passes += 1;
        let (mut rows, mut room) = (Vec::new(), self.text_len());
        for text in texts {
            if let Some(&token) = text.iter().find(|token| token.0 as usize >= VOCAB) {
                return Err(EngineError::Token { token, vocab_len: VOCAB });
            }
            let Some(left) = room.checked_sub(text.len()) else { break };
            room = left;
            let sum: u32 = text.iter().map(|token| token.0).sum();
            let mut row = vec![f32::from(u16::try_from(sum).unwrap()), f32::from(self.passes)];
            row.truncate(self.row_len());
            rows.push(row);
        }
        Ok(rows)
    }
}
