//! Declarations of what `hidden.cpp` wraps.

use llama_cpp_sys_2::{llama_context, llama_model};

unsafe extern "C" {
    /// Has passes give the hidden row before the output: of every token, or with `masked` of those
    /// that have a row.
    pub(super) fn forerun_give_nextn(context: *mut llama_context, masked: bool);

    /// Those rows, one after the other; null if there are none.
    pub(super) fn forerun_nextn(context: *mut llama_context) -> *mut f32;

    /// That of an entry of the last pass; null if it has none.
    pub(super) fn forerun_nextn_ith(context: *mut llama_context, index: i32) -> *mut f32;

    /// Has passes run another of the model's own blocks that predict; the first unless told. Ends the
    /// process at the next pass if there is no such block.
    pub(super) fn forerun_use_nextn(context: *mut llama_context, block: i32);

    /// Has passes give what goes into a layer, for every token. Ends the process at the next pass if
    /// the architecture does not offer it.
    pub(super) fn forerun_give_layer_input(context: *mut llama_context, layer: u32);

    /// That, one token after the other in the order of the batch. Ends the process if it was not
    /// asked for.
    pub(super) fn forerun_layer_input(context: *mut llama_context, layer: u32) -> *mut f32;

    /// Which of its target's layers a head reads; null with a count of zero if it is none.
    pub(super) fn forerun_target_layers(model: *const llama_model, count: *mut u32) -> *const i32;
}
