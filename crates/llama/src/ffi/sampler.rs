//! llama.cpp's own sampler for gaps, to compare ours with.

use forerun_verify::Token;
use llama_cpp_sys_2 as sys;

use super::model::RawModel;

/// Which of the candidates llama.cpp keeps, in order.
pub(crate) fn infill_kept(model: &RawModel, candidates: &[(Token, f32)]) -> Vec<Token> {
    let data = |(token, logit): &(Token, f32)| sys::llama_token_data {
        id: token.0.cast_signed(),
        logit: *logit,
        p: 0.0,
    };
    let mut data: Vec<_> = candidates.iter().map(data).collect();
    let mut array = sys::llama_token_data_array {
        data: data.as_mut_ptr(),
        size: data.len(),
        selected: -1,
        sorted: false,
    };
    // SAFETY: the model is live; its vocabulary is part of it.
    let vocab = unsafe { sys::llama_model_get_vocab(model.as_ptr()) };
    // SAFETY: the vocabulary is live until the sampler is freed.
    let sampler = unsafe { sys::llama_sampler_init_infill(vocab) };
    // SAFETY: the sampler is live, and `array` says how many entries `data` has.
    unsafe { sys::llama_sampler_apply(sampler, &raw mut array) };
    // SAFETY: it was made above and is not used again.
    unsafe { sys::llama_sampler_free(sampler) };
    let left = data[..array.size].iter().filter(|it| it.logit > f32::NEG_INFINITY);
    let mut left: Vec<Token> = left.map(|it| Token(it.id.cast_unsigned())).collect();
    left.sort_unstable();
    left
}
