//! The threads that share a pass with the one that asked for it.
//!
//! llama.cpp starts new ones for every pass unless it is given some. Where the kernel puts a thread that has just
//! begun is a matter of luck: beside the one that waits for it, on the same processor, it costs both whole time slices.

use std::ffi::{CStr, c_void};
use std::mem::transmute;
use std::ptr::{self, NonNull};

use llama_cpp_sys_2 as sys;

/// Threads that sleep until there is a pass. They are of one context, as they compute one pass at a time.
#[derive(Debug)]
pub(super) struct Workers {
    raw: NonNull<sys::ggml_threadpool>,
    free: Free,
}

type New = unsafe extern "C" fn(*mut sys::ggml_threadpool_params) -> *mut sys::ggml_threadpool;
type Free = unsafe extern "C" fn(*mut sys::ggml_threadpool);
type Function = unsafe extern "C" fn();

impl Workers {
    /// As many as the longest passes of `context` want. None if that is the caller alone, or if llama.cpp has none to
    /// give: then it goes on as it does by itself.
    ///
    /// # Safety
    /// `context` must be live, and be freed before what is returned is dropped.
    pub(super) unsafe fn attach(context: NonNull<sys::llama_context>) -> Option<Self> {
        let context = context.as_ptr();
        // SAFETY: the context is live.
        let for_one = unsafe { sys::llama_n_threads(context) };
        // SAFETY: as above.
        let for_several = unsafe { sys::llama_n_threads_batch(context) };
        let threads = Some(for_one.max(for_several)).filter(|threads| *threads > 1)?;
        let (new, free) = (function(c"ggml_threadpool_new")?, function(c"ggml_threadpool_free")?);
        // SAFETY: ggml-cpu.h gives the function of this name this type.
        let new = unsafe { transmute::<Function, New>(new) };
        // SAFETY: as above.
        let free = unsafe { transmute::<Function, Free>(free) };
        // SAFETY: takes a number and returns a plain struct.
        let mut params = unsafe { sys::ggml_threadpool_params_default(threads) };
        // Threads that watch for work would take the processor from another context, such as a drafter's.
        params.poll = 0;
        // SAFETY: the parameters are live during the call.
        let raw = NonNull::new(unsafe { new(&raw mut params) })?;
        // SAFETY: both are live, and the context is freed first.
        unsafe { sys::llama_attach_threadpool(context, raw.as_ptr(), ptr::null_mut()) };
        Some(Self { raw, free })
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        // SAFETY: it came from `ggml_threadpool_new`, and the context that used it is gone.
        unsafe { (self.free)(self.raw.as_ptr()) };
    }
}

/// A function of llama.cpp's library for the processor, which a portable build does not link.
fn function(name: &CStr) -> Option<Function> {
    // SAFETY: takes a constant; null if there is no such device.
    let device = unsafe { sys::ggml_backend_dev_by_type(sys::GGML_BACKEND_DEVICE_TYPE_CPU) };
    let device = NonNull::new(device)?.as_ptr();
    // SAFETY: the device is registered for good.
    let registry = unsafe { sys::ggml_backend_dev_backend_reg(device) };
    // SAFETY: so is its registry, and the name is a C string; null if there is no such function.
    let found = unsafe { sys::ggml_backend_reg_get_proc_address(registry, name.as_ptr()) };
    // SAFETY: a pointer to a function, or null, which is none.
    unsafe { transmute::<*mut c_void, Option<Function>>(found) }
}
