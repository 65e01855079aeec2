//! The product of rows with a matrix of weights.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape as Sizes, Tensor};

/// A row's numbers times the weights of a matrix's rows.
struct Linear;

impl CustomOp2 for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(
        &self,
        rows: &CpuStorage,
        rows_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Sizes)> {
        let (count, width) = rows_layout.shape().dims2()?;
        let made = weight_layout.shape().dims2()?.0;
        let turned = weight_layout.transpose(0, 1)?;
        let product = rows.matmul(weight, (1, count, made, width), rows_layout, &turned)?;
        Ok((product, (count, made).into()))
    }

    fn bwd(
        &self,
        rows: &Tensor,
        weight: &Tensor,
        _: &Tensor,
        slope: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        // candle would make the second one turned, and turn it number by number.
        Ok((Some(slope.matmul(weight)?), Some(slope.t()?.matmul(rows)?)))
    }
}

/// Rows times a matrix that has a row of weights for each number to make.
pub(crate) fn linear(rows: &Tensor, weight: &Tensor) -> Result<Tensor> {
    rows.apply_op2(weight, Linear)
}
