//! One download of a file at a time, also across processes and programs.
//!
//! The lock is `huggingface_hub`'s: the same file and the same system call. Nothing goes wrong
//! where locks are not honoured, as on some network file systems: whoever downloads writes the same
//! bytes to the same places.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use std::time::Duration;

use crate::{Error, Result};

/// How often to look whether the lock is free.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A lock that is held until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: Option<File>,
}

impl Lock {
    /// Takes a lock; `waiting` is called again and again while another holds it.
    pub(crate) fn take(path: &Path, mut waiting: impl FnMut()) -> Result<Self> {
        let folder = path.parent().expect("a lock is in a folder");
        std::fs::create_dir_all(folder).map_err(Error::io("cannot make the folder", folder))?;
        loop {
            let file = OpenOptions::new().create(true).truncate(false).write(true).open(path);
            let file = file.map_err(Error::io("cannot open the lock", path))?;
            match file.try_lock() {
                // Others delete a lock when they are done: one that has no name any more locks nothing.
                Ok(()) if is_at(&file, path) => return Ok(Self { _file: Some(file) }),
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    waiting();
                    std::thread::sleep(LOOK_AGAIN);
                }
                Err(TryLockError::Error(_)) => return Ok(Self { _file: None }),
            }
        }
    }
}

/// Whether a file still has the name it was opened by.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let id = |about: std::fs::Metadata| (about.dev(), about.ino());
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(own), Ok(named)) => id(own) == id(named),
        _ => false,
    }
}

#[cfg(not(unix))]
fn is_at(_: &File, path: &Path) -> bool {
    path.exists()
}
