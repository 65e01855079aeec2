//! Making a smaller model file from a larger one, as drafters are made.
//!
//! The numbers are llama.cpp's work; importance matrices, and the formats that need one, are left
//! to its own tools.

use std::path::{Path, PathBuf};

use crate::ffi;
use crate::model::{LoadError, check_file};
use crate::weights::QuantizeType;

/// Why a model was not quantised.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuantizeError {
    /// The model to start from is not in order.
    #[error(transparent)]
    Input(#[from] LoadError),
    /// What is there would be lost.
    #[error("{}: there is a file already: move it away or choose another name", .path.display())]
    Exists {
        /// Where.
        path: PathBuf,
    },
    /// llama.cpp failed.
    #[error("{}: llama.cpp cannot quantise it as {kind}: {reason}", .path.display())]
    Failed {
        /// The model to start from.
        path: PathBuf,
        /// The format requested.
        kind: QuantizeType,
        /// Its own words.
        reason: String,
    },
}

/// Writes the model at `input` to `output` with weights of another format. Weights that are
/// quantised already are taken as they are, so their errors add up: fine for a drafter.
///
/// # Errors
/// If the input is not a model, the output exists, or llama.cpp fails; then no output is left.
pub fn quantize(input: &Path, output: &Path, kind: QuantizeType) -> Result<(), QuantizeError> {
    check_file(input)?;
    if output.exists() {
        return Err(QuantizeError::Exists { path: output.to_owned() });
    }
    ffi::quantize::quantize(input, output, kind).map_err(|reason| {
        // Half a model is worth nothing; that it may not have been begun is no error.
        let _ = std::fs::remove_file(output);
        QuantizeError::Failed { path: input.to_owned(), kind, reason }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_has_its_own_name() {
        for &kind in QuantizeType::ALL {
            assert_eq!(kind.name().parse::<QuantizeType>().unwrap(), kind);
        }
        assert!("Q9".parse::<QuantizeType>().is_err());
    }
}
