//! The round of speculative decoding over any engine: draft, score, verify, commit.
//!
//! A [`Decoder`] owns a target and its drafters. A [`Sequence`] is one request's tokens and how it
//! wants them made: its [`Sampling`] and its [`Plan`]. [`Decoder::round`] serves any number of
//! sequences: drafters propose, the target scores all proposals in one pass, a rule of
//! `forerun-verify` judges, and each sequence commits what was accepted and one token more.
//! [`Generation`] makes text of it and knows where it ends. An [`Engine`] is a model with a cache and
//! one verb; `forerun-llama` has a real one, the feature `toy` one by formula.
//!
//! The text follows the target's own law, whatever the drafters propose: `tests/lossless.rs` replays
//! every random choice of several rounds and compares exact probabilities.
//!
#![cfg_attr(feature = "toy", doc = "```")]
#![cfg_attr(not(feature = "toy"), doc = "```ignore")]
//! use forerun_decode::*;
//! use forerun_verify::{BlockRule, Philox, Random};
//!
//! // A target, and a draft model that is another function of the same tokens.
//! let toy = |seed| ToyModel { vocab_len: 9, order: 2, seed, spread: 3.0 };
//! let target = Box::new(ToyEngine::new(toy(1), 128));
//! let drafter = ModelDrafter::new(Box::new(ToyEngine::new(toy(2), 128)));
//! let mut decoder = Decoder::new(target, vec![Box::new(drafter)])?;
//!
//! // Drafts of up to four tokens by drafter 0, judged by block verification.
//! let verification = Verification::rule(BlockRule);
//! let plan = Plan::drafted(vec![0], 4, verification);
//! let mut sequence = Sequence::new(Slot(0), Sampling::default(), plan);
//! sequence.begin(vec![Token(3), Token(5)], 20);
//!
//! let mut chance = Random(Philox::new(42));
//! while sequence.wanted() > 0 {
//!     let turn = Turn { sequence: &mut sequence, chance: &mut chance };
//!     let round = decoder.round(&mut [turn])?;
//!     assert_eq!(round.commits[0].committed, round.commits[0].accepted + 1);
//! }
//! assert_eq!(sequence.output().len(), 20);
//! # Ok::<(), DecodeError>(())
//! ```

mod cache;
mod chat;
mod constraint;
mod control;
mod cost;
mod draft;
mod drift;
mod engine;
mod generate;
mod judge;
mod logprob;
mod round;
mod sampling;
mod sequence;
mod special;
mod stats;
mod stop;
mod text;
#[cfg(feature = "toy")]
mod toy;
mod vocab_map;

pub use chat::{ChatError, ChatOptions, ChatTemplate, Fields, Message, date};
pub use constraint::{Constraint, ConstraintError};
pub use control::{Arm, Choice, Controller, Costs, Load, Pace};
pub use cost::{CostCurve, Pass};
pub use draft::{Ask, DraftFailure, Drafter, Draw};
pub use draft::{MatchLen, MatchLenError, ModelDrafter, NgramDrafter, PredictedDrafter};
pub use draft::{SuffixConfig, SuffixDrafter};
pub use drift::{Drift, DriftError, drift};
pub use engine::{Branch, Caches, Engine, EngineError, Keep, Output, Rows, Slot, Step};
pub use forerun_verify::Token;
pub use generate::{Chunk, Finish, Generation, Origin, Piece, Reading};
pub use judge::{Drafts, PathsChoice, RuleChoice, RuleMismatch, UnknownRule};
pub use logprob::TokenLogprob;
pub use round::{Commit, DecodeError, Decoder, Dropped, Guess, Passes, Round, Times, Turn};
pub use sampling::{Sampling, SamplingError};
pub use sequence::{Plan, Sequence, Verification};
pub use special::{RenderedPrompt, SpecialToken, SpecialTokens};
pub use stats::{Position, Stats};
pub use stop::{StopError, StopFilter, StopStrings};
pub use text::{Detokenizer, Special, TokenizeError, Tokenizer};
#[cfg(feature = "toy")]
pub use toy::{ToyEngine, ToyModel};
pub use vocab_map::{VocabMap, VocabMismatch};
