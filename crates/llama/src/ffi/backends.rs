//! Where a portable build has llama.cpp's code for each processor and graphics card: in libraries beside
//! the program, of which the best is loaded at start.

use std::ffi::CString;
use std::path::{Path, PathBuf};

use llama_cpp_sys_2 as sys;

/// Loads what suits this machine. Only from the program's own folder: llama.cpp by itself also looks in
/// the current one, where anybody may have put a library.
pub(super) fn load() {
    let Some(folder) = folder().and_then(|folder| CString::new(folder.to_str()?).ok()) else {
        return;
    };
    // SAFETY: `folder` is a C string that outlives the call, before any other of llama.cpp's.
    unsafe { sys::ggml_backend_load_all_from_path(folder.as_ptr()) };
}

/// Whether anything was loaded. If not, no function of llama.cpp may be called that would look for
/// libraries itself.
pub(super) fn are_loaded() -> bool {
    // SAFETY: takes nothing.
    unsafe { sys::ggml_backend_reg_count() > 0 }
}

/// Why no model can run, if nothing was loaded.
pub(super) fn missing() -> Option<String> {
    let place = || folder().unwrap_or_default().display().to_string();
    (!are_loaded()).then(|| {
        format!(
            "no library for this processor in {}; install forerun again, with its libraries",
            place()
        )
    })
}

/// `lib/forerun` beside the program's folder, as packages have it.
fn folder() -> Option<PathBuf> {
    let program = std::env::current_exe().and_then(|program| program.canonicalize()).ok()?;
    folder_of(&program)
}

fn folder_of(program: &Path) -> Option<PathBuf> {
    Some(program.parent()?.parent()?.join("lib").join("forerun"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_looked_for_beside_the_program_alone() {
        let folder = folder_of(Path::new("/opt/forerun/bin/forerun"));
        assert_eq!(folder, Some(PathBuf::from("/opt/forerun/lib/forerun")));
        assert_eq!(folder_of(Path::new("/forerun")), None);
    }
}
