//! Making a smaller model file from a larger one, as drafters are made.
//!
//! The numbers are llama.cpp's work; importance matrices, and the formats that need one, are left
//! to its own tools.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::ffi;
use crate::model::{LoadError, check_file};
use crate::options::{UnknownName, by_name};

macro_rules! formats {
    ($($variant:ident $name:literal $doc:literal,)*) => {
        /// Number format of a model's weights, by the names llama.cpp gives them. Small tensors stay as
        /// they are.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(non_camel_case_types, reason = "these are the names people know")]
        pub enum QuantizeType {
            $(#[doc = $doc] $variant,)*
        }

        impl QuantizeType {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Its name.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

formats! {
    F32 "F32" "32-bit floats.",
    F16 "F16" "16-bit floats.",
    BF16 "BF16" "16-bit floats with the range of 32.",
    Q8_0 "Q8_0" "8 bits.",
    Q6_K "Q6_K" "6 bits, in blocks of blocks.",
    Q5_0 "Q5_0" "5 bits with a scale.",
    Q5_1 "Q5_1" "5 bits with a scale and an offset.",
    Q5_K_S "Q5_K_S" "5 bits, in blocks of blocks.",
    Q5_K_M "Q5_K_M" "5 bits, in blocks of blocks, more for what matters.",
    Q4_0 "Q4_0" "4 bits with a scale.",
    Q4_1 "Q4_1" "4 bits with a scale and an offset.",
    Q4_K_S "Q4_K_S" "4 bits, in blocks of blocks.",
    Q4_K_M "Q4_K_M" "4 bits, in blocks of blocks, more for what matters.",
    IQ4_NL "IQ4_NL" "4 bits on a curve.",
    IQ4_XS "IQ4_XS" "4 bits on a curve, in blocks of blocks.",
    Q3_K_S "Q3_K_S" "3 bits, in blocks of blocks.",
    Q3_K_M "Q3_K_M" "3 bits, in blocks of blocks, more for what matters.",
    Q3_K_L "Q3_K_L" "3 bits, in blocks of blocks, yet more for what matters.",
    Q2_K "Q2_K" "2 bits, in blocks of blocks.",
}

impl FromStr for QuantizeType {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        by_name("number format", name, Self::ALL, Self::name)
    }
}

impl fmt::Display for QuantizeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

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
        /// The format asked for.
        kind: QuantizeType,
        /// Its own words.
        reason: String,
    },
}

/// Writes the model at `input` to `output` with weights of another format. Weights that are
/// quantised already are taken as they are, so their errors add up: fine for a drafter.
///
/// # Errors
/// Where the input is not a model, the output exists, or llama.cpp fails; then no output is left.
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
