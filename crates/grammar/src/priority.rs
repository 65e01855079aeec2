//! Work that gives way to decoding.

/// How much lower the priority is. It gets about a tenth of a processor that decoding wants for itself, so
/// that a form which is compiled in milliseconds does not wait long.
#[cfg(target_os = "linux")]
const LOWER_BY: i32 = 10;

/// Lowers the priority of the calling thread, for good: for work that takes long and holds up only its
/// own request. An engine's threads wait for each other many times in a pass, so whatever takes a
/// processor from one of them slows all down. Only Linux has priorities for threads.
pub fn give_way() {
    // It is lower than before or as it was; nothing depends on it.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::nice(LOWER_BY);
}
