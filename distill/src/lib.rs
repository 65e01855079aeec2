//! Draft models made for a target: a small model learns the target's rows (DistillSpec,
//! arXiv 2310.08461), from GGUF files to a GGUF file.
//!
//! [`collect`] has the target generate and [`own`] the student, [`rows`] keeps sequences and rows, [`gguf`] makes a student
//! of a model file or of some of its blocks, [`train`] trains it by a [`loss`], and [`gguf`] writes it;
//! [`speedup`] says what it would gain. [`head`] is a student that reads the target's hidden states; [`pupil`] is
//! what it has in common with a model. [`words`] is for students with another vocabulary, which [`transplant`]
//! makes the target's.
//! [`model`] is run forward and back by candle, on the processor. The server knows nothing of this crate:
//! `forerun distill` starts its program.

pub mod collect;
pub mod gguf;
pub mod head;
pub mod loss;
pub mod model;
pub mod optimizer;
pub mod own;
pub mod pupil;
pub mod rows;
pub mod sealed;
pub mod speedup;
pub mod train;
pub mod transplant;
pub mod words;
