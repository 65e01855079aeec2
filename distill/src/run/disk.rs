//! Whether there is room for what a run writes, before hours are spent on it.

use std::path::Path;

use anyhow::ensure;
use forerun_lab::bytes;

/// Copies of the trained weights in a checkpoint: they, two means of their gradients, and the best.
const CHECKPOINT_COPIES: u64 = 4;

/// Bytes that a run takes at most beside the rows: a checkpoint, and while it is replaced, or the student is
/// written, as much again. The student is written in `f32` first, with so many numbers that are not trained.
pub(super) fn written(trained: usize, frozen: usize) -> u64 {
    let trained = 4 * trained as u64;
    let whole = trained + 4 * frozen as u64;
    CHECKPOINT_COPIES * trained + (CHECKPOINT_COPIES * trained).max(2 * whole)
}

/// Refuses to begin if the disk of `output` has no room for this.
pub(super) fn check(output: &Path, needed: u64) -> anyhow::Result<()> {
    let folder = output.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Some(free) = free(folder) else { return Ok(()) };
    ensure!(
        needed <= free,
        "{}: this may take {} of disk, and {} are free: make room, or choose a folder on another disk",
        folder.display(),
        bytes(needed),
        bytes(free)
    );
    Ok(())
}

/// Bytes that are free there, if the system says so.
#[cfg(unix)]
fn free(folder: &Path) -> Option<u64> {
    let about = rustix::fs::statvfs(folder).ok()?;
    Some(about.f_bavail.saturating_mul(about.f_frsize))
}

#[cfg(not(unix))]
fn free(_: &Path) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_fit_is_refused_before_anything_is_written() {
        let error = check(Path::new("draft.gguf"), u64::MAX).unwrap_err().to_string();
        assert!(error.contains("are free: make room"), "{error}");
        check(Path::new("draft.gguf"), 1).unwrap();
    }
}
