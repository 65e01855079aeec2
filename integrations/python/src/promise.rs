//! The bounds of lossy rules.

use forerun_verify as verify;
use pyo3::prelude::*;
use verify::PromiseError;

use crate::errors;

/// How far the output may stray from the target.
#[pyclass(frozen, module = "forerun")]
pub(crate) struct Budget(pub(crate) verify::Budget);

/// How far a greedy output may stray from the target's.
#[pyclass(frozen, module = "forerun")]
pub(crate) struct Near(pub(crate) verify::Near);

/// The bound with a number of it set, if one is given.
fn set<T>(
    bound: T,
    value: Option<f64>,
    with: impl FnOnce(T, f64) -> Result<T, PromiseError>,
) -> Result<T, PromiseError> {
    match value {
        Some(value) => with(bound, value),
        None => Ok(bound),
    }
}

#[pymethods]
impl Budget {
    /// At most this total variation at every token.
    #[staticmethod]
    #[pyo3(signature = (per_token, factor=None))]
    fn at_every_token(per_token: f64, factor: Option<f64>) -> PyResult<Self> {
        let budget = verify::Budget::at_every_token(per_token)
            .and_then(|budget| set(budget, factor, verify::Budget::with_factor));
        budget.map(Self).map_err(errors::promise)
    }

    /// At most this total variation per token over the text so far.
    #[staticmethod]
    #[pyo3(signature = (per_token, factor=None, step=None, bank=None))]
    fn on_account(
        per_token: f64,
        factor: Option<f64>,
        step: Option<f64>,
        bank: Option<f64>,
    ) -> PyResult<Self> {
        let budget = verify::Budget::on_account(per_token)
            .and_then(|budget| set(budget, factor, verify::Budget::with_factor))
            .and_then(|budget| set(budget, step, verify::Budget::with_step))
            .and_then(|budget| set(budget, bank, verify::Budget::with_bank));
        budget.map(Self).map_err(errors::promise)
    }

    /// What each token earns.
    #[getter]
    fn per_token(&self) -> f64 {
        self.0.per_token()
    }

    /// Most by which a token's probability is multiplied.
    #[getter]
    fn factor(&self) -> f64 {
        self.0.factor()
    }

    /// Most that one token spends.
    #[getter]
    fn step(&self) -> f64 {
        self.0.step()
    }

    /// Most that is saved up.
    #[getter]
    fn bank(&self) -> f64 {
        self.0.bank()
    }

    fn __repr__(&self) -> String {
        let (per_token, factor) = (self.0.per_token(), self.0.factor());
        let (step, bank) = (self.0.step(), self.0.bank());
        format!("Budget(per_token={per_token}, factor={factor}, step={step}, bank={bank})")
    }
}

#[pymethods]
impl Near {
    /// Forgives tokens within `gap` nats of the best, and at most this share of all tokens.
    #[new]
    #[pyo3(signature = (gap, share, bank=None))]
    fn new(gap: f64, share: f64, bank: Option<f64>) -> PyResult<Self> {
        let near =
            verify::Near::new(gap, share).and_then(|near| set(near, bank, verify::Near::with_bank));
        near.map(Self).map_err(errors::promise)
    }

    /// Most nats that a forgiven token is below the target's best.
    #[getter]
    fn gap(&self) -> f64 {
        self.0.gap()
    }

    /// Most tokens that are forgiven, as a share of all.
    #[getter]
    fn share(&self) -> f64 {
        self.0.share()
    }

    /// Most forgiven tokens that are saved up.
    #[getter]
    fn bank(&self) -> f64 {
        self.0.bank()
    }

    fn __repr__(&self) -> String {
        let (gap, share, bank) = (self.0.gap(), self.0.share(), self.0.bank());
        format!("Near(gap={gap}, share={share}, bank={bank})")
    }
}
