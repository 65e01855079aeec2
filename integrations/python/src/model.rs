//! The battery of small models of the check.

use forerun_verify::Token;
use forerun_verify::check::{Kind, Model, Shape};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The names of all kinds of model.
#[pyfunction]
pub(crate) fn kinds() -> Vec<String> {
    Kind::ALL.iter().map(|kind| format!("{kind:?}")).collect()
}

/// The rows of a random model after every prefix, shortest first: the target's and a drafter's.
#[pyfunction]
#[expect(clippy::type_complexity, reason = "a list of three lists, as Python wants it")]
pub(crate) fn random_rows(
    kind: &str,
    shape: (usize, usize),
    seed: u64,
) -> PyResult<Vec<(Vec<u32>, Vec<f64>, Vec<f64>)>> {
    let (vocab_len, len) = shape;
    let named = Kind::ALL.into_iter().find(|known| format!("{known:?}") == kind);
    let kind =
        named.ok_or_else(|| PyValueError::new_err(format!("no kind of model is {kind:?}")))?;
    let model = Model::random(kind, Shape { vocab_len, len }, seed);
    let tokens = || (0u32..).take(vocab_len).map(Token);
    let mut prefixes: Vec<Vec<Token>> = vec![vec![]];
    let mut rows = Vec::new();
    let mut next = 0;
    while let Some(prefix) = prefixes.get(next).cloned() {
        let target = tokens().map(|token| model.target(&prefix).prob(token)).collect();
        let draft = tokens().map(|token| model.draft(0, &prefix).prob(token)).collect();
        rows.push((prefix.iter().map(|token| token.0).collect(), target, draft));
        if prefix.len() < len {
            prefixes.extend(tokens().map(|token| [&prefix[..], &[token]].concat()));
        }
        next += 1;
    }
    Ok(rows)
}
