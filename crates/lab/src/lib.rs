//! What speculative decoding does on a machine, and whether it does it right: `bench` measures it,
//! `certify` tests it, `tune` chooses settings, `simulate` scales it to a fleet.
//!
//! Models come in as [`Models`], which makes engines and drafters; a run reports to an [`Observer`]
//! and ends early when its [`Cancellation`] says so. No command line, terminal or llama.cpp is known
//! here, so everything runs on the toy engine too. Error messages and outlines name the flags of the
//! `forerun` command, which is the front of this crate.

#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod bench;
pub mod certify;
pub mod prompts;
pub mod simulate;
pub mod tune;

mod cancellation;
mod client;
mod curves;
mod error;
mod html;
mod machine;
mod models;
mod observer;
mod plot;
mod sampling;
mod span;
#[cfg(test)]
mod toy;
mod words;

pub use cancellation::Cancellation;
pub use curves::{Curves, CurvesPage};
pub use error::{Error, Result};
pub use machine::{Build, EngineRecord, Machine, Provenance};
pub use models::{EngineShape, MEASURE, Models, Parts, SLOT, Subject, Target};
pub use observer::{Observer, Outline};
pub use sampling::SamplingConfig;
pub use span::{Limit, Span};
pub use words::{bytes, file_name, milliseconds};
