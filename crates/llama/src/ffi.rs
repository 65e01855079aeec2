//! The fence: only this module and its files may use `unsafe`, and nothing of `sys` leaves it.
//!
//! Each handle owns one C object, keeps alive what that object points to, and offers the calls as
//! safe methods. What the calls mean for a slot, a tree or a sequence is decided elsewhere.
#![allow(unsafe_code)]

#[cfg(feature = "portable")]
mod backends;
#[cfg(feature = "bare")]
pub(crate) mod bare;
pub(crate) mod batch;
pub(crate) mod context;
pub(crate) mod gguf;
mod hidden;
pub(crate) mod log;
pub(crate) mod malloc;
pub(crate) mod model;
pub(crate) mod pooled;
pub(crate) mod quantize;
#[cfg(test)]
pub(crate) mod sampler;
pub(crate) mod system;
mod workers;
