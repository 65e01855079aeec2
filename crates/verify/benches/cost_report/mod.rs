//! The committed table of `cost`, from what criterion measured.
pub fn write(_: &[usize], _: &[(&str, usize)]) {}
