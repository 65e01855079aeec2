//! Lossless verification rules for speculative decoding.
//!
//! A drafter proposes the next tokens, the target scores them all in one pass, and a *rule* accepts
//! as many as it may, so that the output keeps the target's own distribution. This crate is the
//! rules: no model, no I/O, no `unsafe`.
//!
//! ```
//! use forerun_verify::*;
//! // The drafter drew token 2 from its row, then token 0.
//! let draft = Draft::path(3, [
//!     (Token(2), Dist::dense(vec![0.2, 0.2, 0.6])?),
//!     (Token(0), Dist::dense(vec![0.7, 0.2, 0.1])?),
//! ])?;
//! // The target scored the path: a row after the committed tokens and one after each draft token.
//! let rows = [
//!     Dist::softmax(&[0.1, 0.3, 1.9], 1.0)?,
//!     Dist::softmax(&[2.0, 0.1, 0.3], 1.0)?,
//!     Dist::softmax(&[0.5, 0.5, 0.5], 1.0)?,
//! ];
//! let mut chance = Random(Philox::new(42));
//! let verdict = BlockRule.verify(&Block::new(&draft, &rows)?, &mut chance)?;
//! println!("commit {:?} and {:?}", draft.path_to(verdict.node), verdict.next);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The theorem
//!
//! Let `W(u)` be the probability that the accepted path reaches the drafted prefix `u`, and
//! `R(u, x)` that it ends at `u` with next token `x`. **A rule is lossless if and only if
//! `R(u, x) = W(u) target(x|u) - W(ux)` for all `u` and `x`**: whenever `u` is reached, `x` must
//! follow as often as the target says it. What is accepted as a draft counts towards that, and the
//! draw of the next token must supply exactly the rest. The expected number of accepted tokens is
//! the sum of `W(u)` over all drafted prefixes, and the rules differ in how much of it they reach.
//! Each states its own argument on its page; the feature `check` proves it by enumeration, for
//! these rules and for yours.
//!
//! # Which rule
//!
//! | draft | scheme | rule |
//! |---|---|---|
//! | one path, sampled or fixed | any | [`BlockRule`]: no lossless rule accepts more |
//! | several paths, several drafters, fixed tokens beside them | [`Scheme::Paths`], [`Scheme::Independent`] | [`PooledRule`] |
//! | children drawn without replacement, beams | [`Scheme::WithoutReplacement`], [`Scheme::Beam`] | [`TraversalRule`] |
//! | fixed tokens alone | [`Scheme::Independent`] | [`NssRule`] |
//! | any, and the output must not depend on the drafter | any | [`CoupledRule`] |
//!
//! [`TokenRule`], [`SpecInferRule`], [`SpecTrRule`], [`RsdRule`] and [`GbvRule`] are the published
//! rules these are measured against. A rule refuses a draft it is not lossless for.
//!
//! # In an engine
//!
//! [`verify_path`], [`PathVerifier`] and [`BatchVerifier`] judge one path, or one of each sequence,
//! straight from logits or probabilities in memory: the same verdicts, without a copy of any row.
//!
//! ```
//! use forerun_verify::*;
//! // Two sequences of a vocabulary of 3: one drafted token, and none.
//! let (tokens, offsets, seeds) = ([2], [0, 1, 1], [7, 8]);
//! let draft_probs: [f32; 3] = [0.2, 0.2, 0.6];
//! let target_logits: [f32; 9] = [0.1, 0.3, 1.9, 2.0, 0.1, 0.3, 0.5, 0.5, 0.5];
//! let batch = Batch::new(
//!     Layout::Ragged { offsets: &offsets },
//!     &tokens,
//!     Some(Rows::weights(Values::F32(&draft_probs), 3)),
//!     Rows::logits(Values::F32(&target_logits), 3, 0.8),
//! );
//! let mut verifier = BatchVerifier::on_one_thread(); // keep it
//! let mut verdicts = [PathVerdict::NONE; 2];
//! verifier.verify(&batch, PathRule::Block, &seeds, &mut verdicts)?;
//! assert!(verdicts[0].accepted <= 1 && verdicts[1].accepted == 0);
//! # Ok::<(), BatchError>(())
//! ```
//!
//! # Prove your own
//!
//! Implement [`Rule`], put its randomness through [`Chance`], and the feature `check` enumerates it
//! on small models: every draft, every coin, and the exact distribution of the output. The README
//! has a rule that looks harmless and is caught.
//!
//! # Lossy rules
//!
//! [`LossyBlockRule`] and, at temperature zero, [`LossyNearRule`] accept more than a lossless rule
//! can. Each keeps a bound that it [promises](Promise), for every drafter, and says what it
//! [spent](Spent). [`LossyDeferRule`] is for callers that commit tokens before they are scored. Lossy
//! rules have the word in their type's name, and no other rule is lossy.
//!
//! # Reproducible
//!
//! The same seed and rows give the same verdict on every platform: all arithmetic is sums,
//! products and quotients in a fixed order, and the seeded generator is fixed for all time.

/// The README's examples run as doc tests.
#[cfg(all(doctest, feature = "check"))]
#[doc = include_str!("../README.md")]
mod readme {}

mod bend;
mod block;
mod chance;
#[cfg(feature = "check")]
pub mod check;
mod dist;
mod draft;
mod path;
mod philox;
mod profile;
mod promise;
mod residual;
mod rule;
mod share;
mod simd;

pub use block::{Block, BlockError};
pub use chance::{Chance, Random, Weights};
pub use dist::{Dist, RowError, Token};
pub use draft::{
    Candidate, Draft, DraftBuilder, DraftError, NODES_MAX, Node, Proposal, RowId, Scheme,
};
pub use path::{
    Batch, BatchError, BatchVerifier, Layout, Path, PathError, PathRule, PathVerdict, PathVerifier,
    Rows, Side, Values, verify_path,
};
pub use philox::Philox;
pub use promise::{Budget, Deferral, Near, Promise, PromiseError, Spend, Spent};
pub use rand_core;
pub use residual::Residual;
pub use rule::{
    BlockRule, CoupledRule, GbvRule, LossyBlockRule, LossyDeferRule, LossyNearRule, Noise, NssRule,
    PooledRule, Refusal, RsdRule, Rule, SpecInferRule, SpecTrRule, TokenRule, TraversalRule,
    Verdict,
};
