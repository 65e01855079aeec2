//! Many paths at once, straight from arrays.

use std::num::NonZeroUsize;

use forerun_verify::{Batch, BatchVerifier, Layout, PathRule, PathVerdict, Rows, Values};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arrays::Held;
use crate::errors;

/// Rows as Python hands them over; no temperature means weights.
#[derive(FromPyObject)]
struct RowsGiven<'py> {
    array: Bound<'py, PyAny>,
    kind: String,
    temperature: Option<f32>,
}

impl<'py> RowsGiven<'py> {
    fn hold(&self) -> PyResult<Held<'py>> {
        Held::new(&self.array, &self.kind)
    }
}

/// A batch as Python hands it over: attributes of an object.
#[derive(FromPyObject)]
pub(crate) struct BatchGiven<'py> {
    tokens: Vec<u32>,
    /// Room for so many tokens in each sequence, or none if sequences follow each other.
    room: Option<usize>,
    /// Lengths if there is room, else offsets.
    places: Vec<usize>,
    draft: Option<RowsGiven<'py>>,
    target: RowsGiven<'py>,
    seeds: Vec<u64>,
    positions: Option<Vec<u64>>,
    temperatures: Option<Vec<f32>>,
    threads: usize,
}

fn rows<'a>(given: &RowsGiven<'_>, held: &Held<'_>, apart: &'a [Values<'a>]) -> Rows<'a> {
    let (none, vocab_len) = (Values::F32(&[]), held.vocab_len());
    let rows = match given.temperature {
        Some(temperature) => Rows::logits(none, vocab_len, temperature),
        None => Rows::weights(none, vocab_len),
    };
    rows.apart(apart)
}

/// Judges every path: how many tokens are accepted of each, and the token after them.
#[pyfunction]
pub(crate) fn verify_paths(
    py: Python<'_>,
    batch: BatchGiven<'_>,
    rule: &str,
) -> PyResult<(Vec<usize>, Vec<u32>)> {
    let rule = PathRule::named(rule).ok_or_else(|| {
        let names: Vec<_> = PathRule::ALL.iter().map(|rule| rule.name()).collect();
        let names = names.join(", ");
        PyValueError::new_err(format!("rule {rule:?} for one path; expected one of {names}"))
    })?;
    let target = batch.target.hold()?;
    let draft = batch.draft.as_ref().map(RowsGiven::hold).transpose()?;
    let target_rows = target.rows()?;
    let draft_rows = draft.as_ref().map(Held::rows).transpose()?;
    let draft = match (&batch.draft, &draft, &draft_rows) {
        (Some(given), Some(held), Some(apart)) => Some(rows(given, held, apart)),
        _ => None,
    };
    let layout = match batch.room {
        Some(len_max) => Layout::Padded { len_max, lengths: &batch.places },
        None => Layout::Ragged { offsets: &batch.places },
    };
    let target = rows(&batch.target, &target, &target_rows);
    let mut paths = Batch::new(layout, &batch.tokens, draft, target);
    if let Some(positions) = &batch.positions {
        paths = paths.at(positions);
    }
    if let Some(temperatures) = &batch.temperatures {
        paths = paths.with_temperatures(temperatures);
    }
    let mut verdicts = vec![PathVerdict::NONE; layout.len()];
    let threads = NonZeroUsize::new(batch.threads).unwrap_or(NonZeroUsize::MIN);
    let judged =
        py.detach(|| BatchVerifier::new(threads).verify(&paths, rule, &batch.seeds, &mut verdicts));
    judged.map_err(errors::batch)?;
    Ok(verdicts.iter().map(|verdict| (verdict.accepted, verdict.next.0)).unzip())
}
