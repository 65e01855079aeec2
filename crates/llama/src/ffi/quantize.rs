//! Quantisation of model files, and the sizes of number formats.

use std::path::Path;

use llama_cpp_sys_2 as sys;

use super::log;
use super::model::c_path;
use crate::weights::QuantizeType;

/// Quantises a file, or says in llama.cpp's words why not.
pub(crate) fn quantize(input: &Path, output: &Path, kind: QuantizeType) -> Result<(), String> {
    log::start();
    let (input, output) = (c_path(input)?, c_path(output)?);
    // SAFETY: takes nothing and returns a plain struct.
    let mut params = unsafe { sys::llama_model_quantize_default_params() };
    params.ftype = raw_type(kind);
    params.allow_requantize = true;
    log::forget();
    // SAFETY: both paths are C strings, and `params` points to nothing else.
    let code = unsafe { sys::llama_model_quantize(input.as_ptr(), output.as_ptr(), &params) };
    if code == 0 { Ok(()) } else { Err(log::reason()) }
}

/// The elements of a block of a tensor type and the bytes it takes, if the type exists.
pub(crate) fn block_of(kind: u32) -> Option<(u64, u64)> {
    let kind = sys::ggml_type::try_from(kind).ok().filter(|&kind| kind < sys::GGML_TYPE_COUNT)?;
    // SAFETY: ggml.h wants a type below the count, and only looks it up.
    let elements = unsafe { sys::ggml_blck_size(kind) };
    // SAFETY: as above.
    let bytes = unsafe { sys::ggml_type_size(kind) };
    // A type that was given up has no size.
    let elements = u64::try_from(elements).ok().filter(|&elements| elements > 0)?;
    Some((elements, bytes as u64)).filter(|&(_, bytes)| bytes > 0)
}

fn raw_type(kind: QuantizeType) -> sys::llama_ftype {
    match kind {
        QuantizeType::F32 => sys::LLAMA_FTYPE_ALL_F32,
        QuantizeType::F16 => sys::LLAMA_FTYPE_MOSTLY_F16,
        QuantizeType::BF16 => sys::LLAMA_FTYPE_MOSTLY_BF16,
        QuantizeType::Q8_0 => sys::LLAMA_FTYPE_MOSTLY_Q8_0,
        QuantizeType::Q6_K => sys::LLAMA_FTYPE_MOSTLY_Q6_K,
        QuantizeType::Q5_0 => sys::LLAMA_FTYPE_MOSTLY_Q5_0,
        QuantizeType::Q5_1 => sys::LLAMA_FTYPE_MOSTLY_Q5_1,
        QuantizeType::Q5_K_S => sys::LLAMA_FTYPE_MOSTLY_Q5_K_S,
        QuantizeType::Q5_K_M => sys::LLAMA_FTYPE_MOSTLY_Q5_K_M,
        QuantizeType::Q4_0 => sys::LLAMA_FTYPE_MOSTLY_Q4_0,
        QuantizeType::Q4_1 => sys::LLAMA_FTYPE_MOSTLY_Q4_1,
        QuantizeType::Q4_K_S => sys::LLAMA_FTYPE_MOSTLY_Q4_K_S,
        QuantizeType::Q4_K_M => sys::LLAMA_FTYPE_MOSTLY_Q4_K_M,
        QuantizeType::IQ4_NL => sys::LLAMA_FTYPE_MOSTLY_IQ4_NL,
        QuantizeType::IQ4_XS => sys::LLAMA_FTYPE_MOSTLY_IQ4_XS,
        QuantizeType::Q3_K_S => sys::LLAMA_FTYPE_MOSTLY_Q3_K_S,
        QuantizeType::Q3_K_M => sys::LLAMA_FTYPE_MOSTLY_Q3_K_M,
        QuantizeType::Q3_K_L => sys::LLAMA_FTYPE_MOSTLY_Q3_K_L,
        QuantizeType::Q2_K => sys::LLAMA_FTYPE_MOSTLY_Q2_K,
    }
}
