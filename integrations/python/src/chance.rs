//! Chance that Python answers, for a rule that is enumerated.

use forerun_verify::{Chance, Weights};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A rule cannot fail between two choices, so the first exception is kept until it has decided.
pub(crate) struct Asking<'py> {
    chance: Bound<'py, PyAny>,
    failed: Option<PyErr>,
}

impl<'py> Asking<'py> {
    pub(crate) fn new(chance: &Bound<'py, PyAny>) -> Self {
        Self { chance: chance.clone(), failed: None }
    }

    /// Whether every question was answered.
    pub(crate) fn answered(self) -> PyResult<()> {
        self.failed.map_or(Ok(()), Err)
    }

    fn ask<T>(&mut self, question: impl FnOnce(&Bound<'py, PyAny>) -> PyResult<T>) -> Option<T> {
        if self.failed.is_some() {
            return None;
        }
        question(&self.chance).map_err(|error| self.failed = Some(error)).ok()
    }
}

impl Chance for Asking<'_> {
    fn coin(&mut self, probability: f64) -> bool {
        // Rules rely on this, whatever Python would say.
        if probability <= 0.0 || probability >= 1.0 {
            return probability >= 1.0;
        }
        let answer = self.ask(|chance| chance.call_method1("coin", (probability,))?.is_truthy());
        answer.unwrap_or(false)
    }

    fn pick(&mut self, weights: &dyn Weights) -> usize {
        let mut all: Vec<f64> = Vec::new();
        weights.visit(&mut |index, weight| {
            all.resize(index, 0.0);
            all.push(weight);
        });
        let chosen = self.ask(|chance| {
            let chosen: usize = chance.call_method1("pick", (all.clone(),))?.extract()?;
            match all.get(chosen).is_some_and(|weight| *weight > 0.0) {
                true => Ok(chosen),
                false => Err(PyValueError::new_err(format!(
                    "chance.pick returned {chosen}, which has no weight"
                ))),
            }
        });
        chosen.unwrap_or_else(|| weights.locate(0.0))
    }
}
