//! The Python module: a view of `forerun-verify` on NumPy's arrays.
//!
//! No logic: one file for each Rust type, names and errors as they are there. Rows are read where they
//! lie, and Python's lock is released while they are.

mod arrays;
mod chance;
mod draft;
mod errors;
mod model;
mod noise;
mod paths;
mod promise;
mod rows;
mod rules;

use pyo3::prelude::*;

/// The compiled part of `forerun`.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::draft::{Draft, DraftBuilder};
    #[pymodule_export]
    use super::errors::{
        BatchError, BlockError, DraftError, ForerunError, PathError, PromiseError, Refusal,
        RowError,
    };
    #[pymodule_export]
    use super::model::{kinds, random_rows};
    #[pymodule_export]
    use super::noise::Noise;
    #[pymodule_export]
    use super::paths::verify_paths;
    #[pymodule_export]
    use super::promise::{Budget, Near};
    #[pymodule_export]
    use super::rows::Row;
    #[pymodule_export]
    use super::rules::{gaps, lossy_rules, path_rules, rules, verify_block};
}
