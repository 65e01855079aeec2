//! What llama.cpp says about itself.

use std::ffi::CStr;
use std::sync::OnceLock;

use llama_cpp_sys_2 as sys;

use super::log;

/// The parts of the processor it uses. Asked once: llama.cpp writes the answer over the last one.
pub(crate) fn info() -> String {
    static INFO: OnceLock<String> = OnceLock::new();
    let ask = || {
        log::start();
        // SAFETY: takes nothing; only this call ever writes what it points to.
        let text = unsafe { sys::llama_print_system_info() };
        if text.is_null() {
            return String::new();
        }
        // SAFETY: a C string that stays where it is.
        let text = unsafe { CStr::from_ptr(text) };
        text.to_string_lossy().trim().trim_end_matches('|').trim_end().to_owned()
    };
    INFO.get_or_init(ask).clone()
}
