//! glibc's allocator: how many arenas it may have.

/// Bounds the arenas of glibc's allocator; other C libraries have none to bound.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn bound_arenas(count: std::ffi::c_int) {
    /// `M_ARENA_MAX` of malloc.h.
    const ARENA_MAX: std::ffi::c_int = -8;
    unsafe extern "C" {
        fn mallopt(param: std::ffi::c_int, value: std::ffi::c_int) -> std::ffi::c_int;
    }
    // SAFETY: mallopt(3) may be called at any time; a value it does not like changes nothing.
    unsafe { mallopt(ARENA_MAX, count) };
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn bound_arenas(_count: std::ffi::c_int) {}
