//! The noise of the coupled rule.

use forerun_verify as verify;
use pyo3::prelude::*;

use crate::rows::Row;

/// Noise that is a function of seed, position and token.
#[pyclass(frozen, module = "forerun")]
pub(crate) struct Noise(verify::Noise);

#[pymethods]
impl Noise {
    #[new]
    fn new(seed: u64) -> Self {
        Self(verify::Noise::new(seed))
    }

    /// The exponential variable of a position and token.
    fn at(&self, position: u64, token: u32) -> f64 {
        self.0.at(position, verify::Token(token))
    }

    /// What a row chooses at a position.
    fn choose_row(&self, py: Python<'_>, position: u64, row: &Row) -> u32 {
        let (noise, row) = (self.0, &row.0);
        py.detach(|| noise.choose(position, row)).0
    }
}
