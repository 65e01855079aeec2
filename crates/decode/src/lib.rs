//! The round of speculative decoding over any engine: draft, score, verify, commit.
//!
//! A [`Decoder`] owns a target and its drafters. A [`Sequence`] is one request's tokens and how
//! they are sampled, a [`DraftPolicy`] what the request allows to be drafted, a [`Plan`] what one
//! round drafts of that. [`Decoder::round`] serves any number of sequences: drafters propose, the
//! target scores all proposals in one pass, a rule of `forerun-verify` decides, and each sequence
//! commits what was accepted and one token more. A [`Generation`] turns the tokens into text and
//! knows where it ends; a [`Controller`] chooses plans. An [`Engine`] is a model with a cache and
//! one verb; `forerun-llama` has a real one, the feature `toy` one by formula.
//!
//! The output has the target's own distribution, whatever the drafters propose: `tests/lossless.rs`
//! replays every random choice of several rounds and compares exact probabilities.
//!
#![cfg_attr(feature = "toy", doc = "```")]
#![cfg_attr(not(feature = "toy"), doc = "```ignore")]
//! use std::sync::Arc;
//! use forerun_decode::*;
//! use forerun_verify::{BlockRule, Philox, Random};
//!
//! // A target, and a draft model that is another function of the same tokens.
//! let toy = |seed| ToyModel { vocab_len: 9, order: 2, seed, spread: 3.0 };
//! let target = Box::new(ToyEngine::new(toy(1), 128));
//! let drafter = ModelDrafter::new(Box::new(ToyEngine::new(toy(2), 128)));
//! let mut decoder = Decoder::new(target, vec![Box::new(drafter)])?;
//!
//! // Drafts of up to four tokens by the first drafter, verified as a block.
//! let policy = DraftPolicy::drafted(vec![DrafterId(0)], 4, Arc::new(BlockRule));
//! let (plan, limits) = (policy.plan(), Limits::default());
//! let mut sequence = Sequence::new(Slot(0), Sampling::default());
//! sequence.begin(vec![Token(3), Token(5)], 20);
//!
//! let chance = &mut Random(Philox::new(42));
//! while sequence.wanted() > 0 {
//!     let sequence = &mut sequence;
//!     let turn = Turn { sequence, policy: &policy, plan: &plan, limits, chance };
//!     let round = decoder.round(&mut [turn])?;
//!     assert_eq!(round.commits[0].committed, round.commits[0].accepted + 1);
//! }
//! assert_eq!(sequence.output().len(), 20);
//! # Ok::<(), DecodeError>(())
//! ```

mod adaptive;
mod cache;
mod chat;
mod clock;
mod commit;
mod constraint;
mod control;
mod cost;
mod decoder;
mod defer;
mod draft;
mod drafter_id;
mod drafters;
mod drift;
mod embedder;
mod engine;
mod error;
mod gate;
mod generate;
mod indent;
mod judge;
mod logprob;
mod lossy;
mod policy;
mod price;
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
pub use clock::{Clock, SystemClock};
pub use commit::{Commit, Dropped, FixedPath, Passes, Round, Times};
pub use constraint::{Constraint, ConstraintError, MinTokens};
pub use control::{Arm, Available, Choice, Controller, Costs, History, Load, Outlook};
pub use cost::{CostCurve, Pass};
pub use decoder::Decoder;
pub use defer::{Foreseen, Risk, RiskByProbability};
pub use draft::Watched;
pub use draft::{DraftFailure, DraftRequest, Drafter, DrafterId, DrafterInfo, DrafterKind, Draw};
pub use draft::{EditDrafter, FixedTokens, HeadDrafter, MatchLen, MatchLenError, ModelDrafter};
pub use draft::{NgramDrafter, Shown, SuffixConfig, SuffixDrafter, Tenant, TenantSuffixDrafter};
pub use drafters::Drafters;
pub use drift::{Drift, DriftError, drift};
pub use embedder::Embedder;
pub use engine::{
    BlockShape, Branch, Caches, Engine, EngineError, Head, Keep, Output, Pairing, Rows, Slot, Step,
};
pub use error::DecodeError;
pub use forerun_verify::Token;
pub use gate::{BookError, Gate, Gates, Lesson, SavedFit, SavedGate, SavedGates, Watch, Worth};
pub use generate::{Chunk, Finish, Generation, Origin, Piece, Reading};
pub use indent::IndentFilter;
pub use judge::{Drafts, PathsChoice, RuleChoice, RuleMismatch, UnknownRule};
pub use logprob::TokenLogprob;
pub use lossy::{Demands, LossyError, LossyMismatch, LossyMode, Spending};
pub use policy::{DraftPolicy, Limits, Plan};
pub use price::{Allowance, Price};
pub use round::Turn;
pub use sampling::{InfillSampler, Sampling, SamplingError};
pub use sequence::Sequence;
pub use special::{RenderedPrompt, SpecialTokens};
pub use stats::{Position, Stats};
pub use stop::{StopError, StopFilter, StopStrings};
pub use text::{Detokenizer, InfillTokens, Special, SpecialToken, TokenizeError, Tokenizer};
#[cfg(feature = "toy")]
pub use toy::{SimulatedClock, ToyEngine, ToyHead, ToyModel};
pub use vocab_map::{VocabMap, VocabMismatch};
