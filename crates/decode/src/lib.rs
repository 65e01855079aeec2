//! The round of speculative decoding over any engine: draft, score, verify, commit.

mod cache;
mod chat;
mod draft;
mod engine;
mod generate;
mod round;
mod sampling;
mod sequence;
mod stats;
mod stop;
mod text;
#[cfg(feature = "toy")]
mod toy;
mod vocab_map;

pub use chat::{ChatError, ChatOptions, ChatTemplate, Fields, Message};
pub use draft::{Ask, DraftFailure, Drafter, Draw};
pub use draft::{MatchLen, MatchLenError, ModelDrafter, NgramDrafter, PredictedDrafter};
pub use draft::{SuffixConfig, SuffixDrafter};
pub use engine::{Branch, Caches, Engine, EngineError, Keep, Output, Rows, Slot, Step};
pub use forerun_verify::Token;
pub use generate::{Chunk, Finish, Generation, Origin, Piece};
pub use round::{Commit, DecodeError, Decoder, Dropped, Round, Times, Turn};
pub use sampling::{Sampling, SamplingError};
pub use sequence::{Plan, Sequence, Verification};
pub use stats::{Position, Stats};
pub use stop::{StopError, StopFilter, StopStrings};
pub use text::{Detokenizer, Special, TokenizeError, Tokenizer};
#[cfg(feature = "toy")]
pub use toy::{ToyEngine, ToyModel};
pub use vocab_map::{VocabMap, VocabMismatch};
