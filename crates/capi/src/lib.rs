//! The rules of `forerun-verify` for one path, for C and C++: see `include/forerun.h`.
//!
//! `ffi.rs` is the fence: pointers come in, slices go on. `judge.rs` has no pointer.

mod ffi;
mod judge;

pub use ffi::{
    RawBatch, RawRows, RawVerdict, RawVerifier, forerun_message, forerun_verifier_free,
    forerun_verifier_new, forerun_verify_batch, forerun_verify_path,
};
pub use judge::Status;
