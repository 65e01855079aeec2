//! Rows of NumPy arrays, read where they lie. Half precision comes as its bits.

use forerun_verify::Values;
use numpy::ndarray::{ArrayViewD, Axis};
use numpy::{PyReadonlyArrayDyn, PyUntypedArrayMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

/// An array of rows: the last axis is the vocabulary.
pub(crate) enum Held<'py> {
    F32(PyReadonlyArrayDyn<'py, f32>),
    F64(PyReadonlyArrayDyn<'py, f64>),
    F16(PyReadonlyArrayDyn<'py, u16>),
    Bf16(PyReadonlyArrayDyn<'py, u16>),
}

impl<'py> Held<'py> {
    /// `kind` says what the numbers are, and what the bits of 16-bit ones mean.
    pub(crate) fn new(array: &Bound<'py, PyAny>, kind: &str) -> PyResult<Self> {
        match kind {
            "f32" => Ok(Self::F32(array.extract()?)),
            "f64" => Ok(Self::F64(array.extract()?)),
            "f16" => Ok(Self::F16(array.extract()?)),
            "bf16" => Ok(Self::Bf16(array.extract()?)),
            _ => {
                Err(PyTypeError::new_err(format!("rows of {kind}; expected f32, f64, f16 or bf16")))
            }
        }
    }

    pub(crate) fn vocab_len(&self) -> usize {
        let shape = match self {
            Self::F32(array) => array.shape(),
            Self::F64(array) => array.shape(),
            Self::F16(array) | Self::Bf16(array) => array.shape(),
        };
        shape.last().copied().unwrap_or(0)
    }

    /// All rows in order, none of them copied.
    pub(crate) fn rows(&self) -> PyResult<Vec<Values<'_>>> {
        let mut rows = Vec::new();
        let whole = match self {
            Self::F32(array) => collect(array.as_array(), Values::F32, &mut rows),
            Self::F64(array) => collect(array.as_array(), Values::F64, &mut rows),
            Self::F16(bits) => collect(bits.as_array(), Values::F16, &mut rows),
            Self::Bf16(bits) => collect(bits.as_array(), Values::Bf16, &mut rows),
        };
        whole.then_some(rows).ok_or_else(|| {
            PyValueError::new_err(
                "the numbers of a row do not lie side by side; the vocabulary must be the last axis \
                 with a stride of one, as numpy.ascontiguousarray makes it",
            )
        })
    }

    /// All rows as single numbers.
    pub(crate) fn numbers(&self) -> PyResult<Vec<Vec<f32>>> {
        let rows = self.rows()?;
        Ok(rows.iter().map(|row| (0..row.len()).map(|index| row.get(index)).collect()).collect())
    }
}

/// False if a row is not in one piece.
fn collect<'a, T>(
    view: ArrayViewD<'a, T>,
    form: impl Fn(&'a [T]) -> Values<'a> + Copy,
    rows: &mut Vec<Values<'a>>,
) -> bool {
    match view.ndim() {
        0 => false,
        1 => view.to_slice().map(|row| rows.push(form(row))).is_some(),
        _ => (0..view.len_of(Axis(0)))
            .all(|index| collect(view.clone().index_axis_move(Axis(0), index), form, rows)),
    }
}
