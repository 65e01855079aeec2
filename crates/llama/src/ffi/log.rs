//! llama.cpp's log: silent by default, and the place its error messages come from.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_void};
use std::io::Write;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use llama_cpp_sys_2 as sys;

/// Most error lines kept for a message.
const LINES_MAX: usize = 16;

static VERBOSE: AtomicBool = AtomicBool::new(false);

thread_local! {
    // llama.cpp logs on the thread that calls it, so calls on two threads do not mix.
    static HEARD: RefCell<Heard> = const { RefCell::new(Heard::new()) };
}

/// What this thread's calls have logged as errors, and the level of the line being continued.
struct Heard {
    level: sys::ggml_log_level,
    lines: VecDeque<String>,
}

impl Heard {
    const fn new() -> Self {
        Self { level: sys::GGML_LOG_LEVEL_NONE, lines: VecDeque::new() }
    }

    fn hear(&mut self, level: sys::ggml_log_level, text: &str) {
        if level != sys::GGML_LOG_LEVEL_CONT {
            self.level = level;
        }
        if self.level != sys::GGML_LOG_LEVEL_ERROR {
            return;
        }
        if self.lines.len() == LINES_MAX {
            self.lines.pop_front();
        }
        self.lines.push_back(text.trim().to_owned());
    }
}

/// Whether llama.cpp's own log goes to standard error; it is silent by default.
pub(crate) fn set_verbose(verbose: bool) {
    VERBOSE.store(verbose, Ordering::Relaxed);
}

/// Starts llama.cpp, once, with its log redirected.
pub(crate) fn start() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: `sink` is a function that lives as long as the program and uses no user data.
        unsafe { sys::llama_log_set(Some(sink), ptr::null_mut()) };
        // SAFETY: as above.
        unsafe { sys::ggml_log_set(Some(sink), ptr::null_mut()) };
        #[cfg(feature = "portable")]
        {
            super::backends::load();
            if !super::backends::are_loaded() {
                return;
            }
        }
        // SAFETY: called once, before any other function of llama.cpp that uses a backend.
        unsafe { sys::llama_backend_init() };
    });
}

/// Forgets this thread's error lines, so that the next ones belong to the next call.
pub(crate) fn forget() {
    HEARD.with_borrow_mut(|heard| heard.lines.clear());
}

/// Why the last call on this thread failed, as llama.cpp put it.
pub(crate) fn reason() -> String {
    HEARD.with_borrow_mut(|heard| {
        let mut reasons: Vec<String> = Vec::new();
        for line in heard.lines.drain(..) {
            let said = spoken(&line);
            // Some lines only say that loading failed, which the error says already.
            let says = !said.is_empty() && !said.starts_with("failed to load model");
            if says && reasons.iter().all(|reason| reason != said) {
                reasons.push(said.to_owned());
            }
        }
        if reasons.is_empty() { "it gave no reason".to_owned() } else { reasons.join("; ") }
    })
}

/// A log line without the names of the functions it passed through.
fn spoken(line: &str) -> &str {
    let mut said = line;
    while let Some((head, rest)) = said.split_once(": ") {
        let is_name = head.contains('_') && !head.contains(' ');
        if !is_name && head != "error loading model" {
            break;
        }
        said = rest;
    }
    said.trim()
}

unsafe extern "C" fn sink(level: sys::ggml_log_level, text: *const c_char, _: *mut c_void) {
    if text.is_null() {
        return;
    }
    // SAFETY: not null, and ggml.h passes a C string that lives for this call.
    let text = unsafe { CStr::from_ptr(text) };
    // Nothing here may panic: a log is lost if standard error is closed or the thread is ending.
    if VERBOSE.load(Ordering::Relaxed) {
        let _ = std::io::stderr().write_all(text.to_bytes());
    }
    let _ = HEARD.try_with(|heard| {
        if let Ok(mut heard) = heard.try_borrow_mut() {
            heard.hear(level, &text.to_string_lossy());
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn function_names_are_left_out_of_reasons() {
        assert_eq!(
            spoken("llama_model_load: error loading model: tensor 'a: b' is missing"),
            "tensor 'a: b' is missing"
        );
        assert_eq!(
            spoken("gguf_init_from_file_impl: failed to read magic"),
            "failed to read magic"
        );
        assert_eq!(spoken("key not found: llama.block_count"), "key not found: llama.block_count");
    }

    #[test]
    fn a_continued_line_keeps_its_level() {
        let mut heard = Heard::new();
        heard.hear(sys::GGML_LOG_LEVEL_INFO, "loading");
        heard.hear(sys::GGML_LOG_LEVEL_CONT, ".....");
        assert!(heard.lines.is_empty());
        heard.hear(sys::GGML_LOG_LEVEL_ERROR, "no\n");
        assert_eq!(heard.lines, ["no"]);
    }
}
