//! One checked row.

use forerun_verify::{Dist, Philox, Random, Token};
use pyo3::prelude::*;

use crate::arrays::Held;
use crate::errors;

/// A probability row over a vocabulary, dense or sparse.
#[pyclass(frozen, module = "forerun")]
pub(crate) struct Row(pub(crate) Dist);

/// A row in memory: the array and what its numbers are.
pub(crate) type Array<'py> = (Bound<'py, PyAny>, String);

fn numbers((array, kind): &Array<'_>) -> PyResult<Vec<f32>> {
    let mut rows = Held::new(array, kind)?.numbers()?;
    match rows.len() {
        1 => Ok(rows.remove(0)),
        count => {
            Err(pyo3::exceptions::PyValueError::new_err(format!("{count} rows; expected one")))
        }
    }
}

#[pymethods]
impl Row {
    /// Weights for every token: probabilities, or anything in proportion to them.
    #[staticmethod]
    fn weights(array: Array<'_>) -> PyResult<Self> {
        Dist::dense(numbers(&array)?).map(Self).map_err(errors::row)
    }

    /// The softmax of logits; at temperature 0 all on the largest.
    #[staticmethod]
    fn softmax(array: Array<'_>, temperature: f32) -> PyResult<Self> {
        let logits = numbers(&array)?;
        let row = match temperature == 0.0 {
            true => Dist::argmax(&logits),
            false => Dist::softmax(&logits, temperature),
        };
        row.map(Self).map_err(errors::row)
    }

    /// The softmax of the largest logits alone.
    #[staticmethod]
    fn top_k(array: Array<'_>, temperature: f32, count: usize) -> PyResult<Self> {
        Dist::top_k(&numbers(&array)?, temperature, count).map(Self).map_err(errors::row)
    }

    /// Weights of the named tokens; all others have none.
    #[staticmethod]
    fn sparse(vocab_len: usize, ids: Vec<u32>, array: Array<'_>) -> PyResult<Self> {
        let weights = numbers(&array)?;
        if ids.len() != weights.len() {
            let message = format!("{} ids for {} weights", ids.len(), weights.len());
            return Err(pyo3::exceptions::PyValueError::new_err(message));
        }
        let entries = ids.into_iter().map(Token).zip(weights);
        Dist::sparse(vocab_len, entries).map(Self).map_err(errors::row)
    }

    /// How many tokens the vocabulary has.
    #[getter]
    fn vocab_len(&self) -> usize {
        self.0.vocab_len()
    }

    /// The probability of a token.
    fn prob(&self, token: u32) -> f64 {
        self.0.prob(Token(token))
    }

    /// The tokens that can be drawn, with their probabilities.
    fn support(&self) -> Vec<(u32, f64)> {
        self.0.support().map(|(token, probability)| (token.0, probability)).collect()
    }

    /// One token, drawn by a seed.
    fn draw(&self, seed: u64) -> u32 {
        self.0.draw(&mut Random(Philox::new(seed))).0
    }
}
