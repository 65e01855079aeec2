//! The number formats of a model's weights.

use std::fmt;
use std::str::FromStr;

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
