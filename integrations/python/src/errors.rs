//! Errors, one exception for each Rust type; all of them are `ValueError`s.

use forerun_verify as verify;
use pyo3::PyErr;
use pyo3::create_exception;
use pyo3::exceptions::PyValueError;

create_exception!(forerun, ForerunError, PyValueError, "What cannot be judged, and why.");
create_exception!(forerun, RowError, ForerunError, "A row is no distribution.");
create_exception!(forerun, DraftError, ForerunError, "A draft cannot have been drawn so.");
create_exception!(forerun, BlockError, ForerunError, "Draft and rows do not belong together.");
create_exception!(forerun, PathError, ForerunError, "A path and its rows cannot be judged.");
create_exception!(forerun, BatchError, ForerunError, "A batch cannot be judged.");
create_exception!(forerun, PromiseError, ForerunError, "A bound that means nothing.");
create_exception!(forerun, Refusal, ForerunError, "The rule keeps no promise for such a draft.");

pub(crate) fn row(error: verify::RowError) -> PyErr {
    RowError::new_err(error.to_string())
}

pub(crate) fn draft(error: verify::DraftError) -> PyErr {
    DraftError::new_err(error.to_string())
}

pub(crate) fn block(error: verify::BlockError) -> PyErr {
    BlockError::new_err(error.to_string())
}

pub(crate) fn promise(error: verify::PromiseError) -> PyErr {
    PromiseError::new_err(error.to_string())
}

pub(crate) fn refusal(error: verify::Refusal) -> PyErr {
    Refusal::new_err(error.to_string())
}

pub(crate) fn batch(error: verify::BatchError) -> PyErr {
    match error {
        verify::BatchError::Path { sequence, error } => match error {
            verify::PathError::Row { .. } => {
                RowError::new_err(format!("sequence {sequence}: {error}"))
            }
            _ => PathError::new_err(format!("sequence {sequence}: {error}")),
        },
        _ => BatchError::new_err(error.to_string()),
    }
}
