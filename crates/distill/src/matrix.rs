//! Products of matrices, the only place with `unsafe`: the crate `gemm` takes pointers.
//!
//! Numbers are `f32`, or `f64` where gradients are compared with differences.

use std::fmt::Debug;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub};

use gemm::Parallelism;

/// What is computed with.
pub trait Real:
    Copy
    + Debug
    + Send
    + Sync
    + PartialOrd
    + Sum
    + Neg<Output = Self>
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + AddAssign
    + MulAssign
    + 'static
{
    /// Nothing.
    const ZERO: Self;
    /// One.
    const ONE: Self;
    /// The nearest number of this kind.
    fn of(value: f64) -> Self;
    /// The same number.
    fn wide(self) -> f64;
    /// The exponential.
    fn exp(self) -> Self;
    /// The square root.
    fn sqrt(self) -> Self;
}

macro_rules! real {
    ($kind:ty) => {
        impl Real for $kind {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;

            #[allow(clippy::cast_possible_truncation, reason = "rounding is what is wanted")]
            fn of(value: f64) -> Self {
                value as Self
            }

            #[allow(clippy::useless_conversion, reason = "one of the two kinds is wide")]
            fn wide(self) -> f64 {
                f64::from(self)
            }

            fn exp(self) -> Self {
                self.exp()
            }

            fn sqrt(self) -> Self {
                self.sqrt()
            }
        }
    };
}

real!(f32);
real!(f64);

/// A matrix somewhere in memory.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a, F> {
    values: &'a [F],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a, F: Real> Matrix<'a, F> {
    /// Rows one after the other.
    ///
    /// # Panics
    /// If there are not as many values.
    pub fn new(values: &'a [F], rows: usize, columns: usize) -> Self {
        assert_eq!(values.len(), rows * columns, "{rows} rows of {columns}");
        Self { values, rows, columns, row_stride: columns, column_stride: 1 }
    }

    /// The same with rows for columns; nothing is moved.
    #[must_use]
    pub fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }
}

/// Whether a product uses all threads. One inside a parallel loop does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threads {
    /// This one alone.
    One,
    /// All of the pool.
    All,
}

/// Adds `scale` times the product of two matrices to `out`, or puts it there.
///
/// # Panics
/// If the sizes do not fit.
pub fn multiply<F: Real>(
    out: &mut [F],
    (left, right): (Matrix<'_, F>, Matrix<'_, F>),
    scale: F,
    add: bool,
    threads: Threads,
) {
    assert_eq!(left.columns, right.rows, "sizes that fit");
    assert_eq!(out.len(), left.rows * right.columns, "sizes that fit");
    let parallelism = match threads {
        Threads::One => Parallelism::None,
        Threads::All => Parallelism::Rayon(0),
    };
    let signed = usize::cast_signed;
    // SAFETY: each matrix has as many values as its rows and columns say, `out` too, and the strides
    // were made from them; `out` is borrowed mutably, so it overlaps with neither.
    #[expect(unsafe_code, reason = "gemm takes pointers")]
    unsafe {
        gemm::gemm(
            left.rows,
            right.columns,
            left.columns,
            out.as_mut_ptr(),
            1,
            signed(right.columns),
            add,
            left.values.as_ptr(),
            signed(left.column_stride),
            signed(left.row_stride),
            right.values.as_ptr(),
            signed(right.column_stride),
            signed(right.row_stride),
            F::ONE,
            scale,
            false,
            false,
            false,
            parallelism,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_is_that_of_its_definition_however_the_matrices_lie() {
        let values = |count: usize| (0..count).map(|at| (at as f64).sin()).collect::<Vec<_>>();
        let (rows, inner, columns) = (5, 7, 3);
        let (left, right) = (values(rows * inner), values(inner * columns));
        let mut expected = vec![0.5; rows * columns];
        for row in 0..rows {
            for column in 0..columns {
                for at in 0..inner {
                    expected[row * columns + column] +=
                        2.0 * left[row * inner + at] * right[at * columns + column];
                }
            }
        }
        let flipped: Vec<f64> =
            (0..inner * columns).map(|at| right[at % inner * columns + at / inner]).collect();
        let left = Matrix::new(&left, rows, inner);
        for right in [
            Matrix::new(&right, inner, columns),
            Matrix::new(&flipped, columns, inner).transposed(),
        ] {
            let mut out = vec![0.5; rows * columns];
            multiply(&mut out, (left, right), 2.0, true, Threads::All);
            let far = out.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(far < 1e-12, "{far}");
        }
    }
}
