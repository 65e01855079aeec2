//! One file, from the hub into the cache: continued where it broke off, checked while it arrives.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use ureq::Body;
use ureq::http::{Response, StatusCode};

use crate::client::{ATTEMPTS_MAX, Client, Failure, announced};
use crate::listing::{Hasher, RepoFile};
use crate::observer::{Event, Observer};
use crate::{Error, RepoId, Result};

/// Bytes that are read at once.
const BUFFER_LEN: usize = 256 << 10;

/// Bytes after which a connection that breaks counts as a new one: a line that breaks now and then
/// never ends a download, one that brings nothing does.
const PROGRESS_LEN: u64 = 1 << 20;

/// A file to bring.
pub(crate) struct Download<'a> {
    pub(crate) client: &'a Client,
    pub(crate) repo: &'a RepoId,
    pub(crate) url: String,
    pub(crate) file: &'a RepoFile,
    /// Where it goes.
    pub(crate) blob: PathBuf,
}

/// What an attempt came to.
enum Attempt {
    /// All bytes are there.
    Whole,
    /// The connection failed.
    Broke(Failure),
    /// The server sent another part than the one that was asked for.
    Restart(String),
}

/// A file that is not whole yet.
struct Partial {
    file: File,
    path: PathBuf,
    /// Over all bytes that are there.
    hasher: Hasher,
    len: u64,
}

impl Download<'_> {
    /// Brings the file. `observer` hears how much of it is there.
    pub(crate) fn run(&self, observer: &mut dyn Observer) -> Result<()> {
        let mut partial = self.open()?;
        self.check_space(partial.len)?;
        let resumed = partial.len;
        observer.event(Event::Arrived { bytes: partial.len });
        let mut restarted = false;
        loop {
            self.fill(&mut partial, observer)?;
            let found = partial.hasher.clone().hex();
            if found == self.file.checksum.hex {
                return self.finish(&partial);
            }
            // What an earlier download left may be what is wrong.
            if resumed > 0 && !restarted {
                restarted = true;
                partial.restart(self.file)?;
                observer.event(Event::Arrived { bytes: 0 });
                continue;
            }
            std::fs::remove_file(&partial.path)
                .map_err(Error::io("cannot delete the damaged file", &partial.path))?;
            return Err(Error::Checksum {
                file: self.file.path.clone(),
                algorithm: self.file.checksum.algorithm,
                expected: self.file.checksum.hex.clone(),
                found,
            });
        }
    }

    /// Opens what an earlier download left, or an empty file.
    fn open(&self) -> Result<Partial> {
        let mut name = self.blob.clone().into_os_string();
        name.push(".incomplete");
        let path = PathBuf::from(name);
        let folder = self.blob.parent().expect("a blob is in a folder");
        std::fs::create_dir_all(folder).map_err(Error::io("cannot make the folder", folder))?;
        let file =
            OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path);
        let file = file.map_err(Error::io("cannot write", &path))?;
        let mut partial =
            Partial { file, path, hasher: self.file.checksum.hasher(self.file.size), len: 0 };
        partial.read_again(self.file)?;
        Ok(partial)
    }

    /// Asks again and again until all bytes are there.
    fn fill(&self, partial: &mut Partial, observer: &mut dyn Observer) -> Result<()> {
        let (mut attempt, mut restarts) = (1, 0);
        while partial.len < self.file.size {
            let before = partial.len;
            let failure = match self.attempt(partial, observer)? {
                Attempt::Whole => return Ok(()),
                Attempt::Broke(failure) => failure,
                Attempt::Restart(what) => {
                    restarts += 1;
                    if restarts > 1 {
                        return Err(Error::Malformed { url: self.url.clone(), what });
                    }
                    partial.restart(self.file)?;
                    continue;
                }
            };
            attempt = if partial.len >= before + PROGRESS_LEN { 1 } else { attempt + 1 };
            if !failure.is_passing() {
                return Err(self.client.explain(failure, self.repo));
            }
            if attempt > ATTEMPTS_MAX {
                return Err(self.broken_off(partial, failure));
            }
            self.client.pause(&failure, attempt, observer);
        }
        Ok(())
    }

    fn broken_off(&self, partial: &Partial, failure: Failure) -> Error {
        if partial.len == 0 && matches!(failure, Failure::Connection(_)) {
            return self.client.explain(failure, self.repo);
        }
        Error::BrokenOff {
            file: self.file.path.clone(),
            arrived: partial.len,
            size: self.file.size,
            cause: failure.cause(),
        }
    }

    /// Asks once for the bytes that are missing, and writes those that come.
    fn attempt(&self, partial: &mut Partial, observer: &mut dyn Observer) -> Result<Attempt> {
        let response = match self.client.get(&self.url, partial.len) {
            Ok(response) => response,
            // More is there than the server has: whatever that is, it is not this file.
            Err(Failure::Status { status: StatusCode::RANGE_NOT_SATISFIABLE, .. })
                if partial.len > 0 =>
            {
                return Ok(Attempt::Restart("a refusal of the missing part".to_owned()));
            }
            Err(failure) => return Ok(Attempt::Broke(failure)),
        };
        let (len, start) = announced(response.headers());
        let start = match response.status() {
            StatusCode::PARTIAL_CONTENT => start.unwrap_or(u64::MAX),
            _ => 0,
        };
        if start != partial.len {
            // A server that cannot send parts sends the whole.
            return match start {
                0 => {
                    partial.restart(self.file)?;
                    self.receive(response, partial, observer)
                }
                _ => Ok(Attempt::Restart(format!("the part from byte {start} on"))),
            };
        }
        let missing = self.file.size - partial.len;
        if len.is_some_and(|len| len != missing) {
            let what = format!("{} bytes instead of {missing}", len.unwrap_or_default());
            return Ok(Attempt::Broke(Failure::Final(Error::Malformed {
                url: self.url.clone(),
                what,
            })));
        }
        self.receive(response, partial, observer)
    }

    fn receive(
        &self,
        response: Response<Body>,
        partial: &mut Partial,
        observer: &mut dyn Observer,
    ) -> Result<Attempt> {
        let mut body = response.into_body().into_reader();
        let mut buffer = vec![0; BUFFER_LEN];
        while partial.len < self.file.size {
            let room = usize::try_from(self.file.size - partial.len).unwrap_or(usize::MAX);
            let room = room.min(buffer.len());
            let len = match body.read(&mut buffer[..room]) {
                Ok(0) => return Ok(Attempt::Broke(ended_early())),
                Ok(len) => len,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    let error = ureq::Error::from(error);
                    return Ok(Attempt::Broke(Failure::Connection(Box::new(error))));
                }
            };
            partial.append(&buffer[..len]).map_err(|error| self.unwritten(error, partial))?;
            observer.event(Event::Arrived { bytes: partial.len });
        }
        Ok(Attempt::Whole)
    }

    /// The error that a failed write is.
    fn unwritten(&self, error: std::io::Error, partial: &Partial) -> Error {
        let folder = partial.path.parent().unwrap_or(&partial.path);
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Error::NoSpace {
                file: self.file.path.clone(),
                folder: folder.to_owned(),
                needed: self.file.size - partial.len,
                free: free_space(folder).unwrap_or(0),
            },
            _ => Error::io("cannot write", &partial.path)(error),
        }
    }

    /// Looks whether the rest of the file fits on the disk, before hours are spent on it.
    fn check_space(&self, arrived: u64) -> Result<()> {
        let folder = self.blob.parent().expect("a blob is in a folder");
        let needed = self.file.size - arrived;
        match free_space(folder) {
            Some(free) if free < needed => Err(Error::NoSpace {
                file: self.file.path.clone(),
                folder: folder.to_owned(),
                needed,
                free,
            }),
            _ => Ok(()),
        }
    }

    /// Gives the whole, checked file its name.
    fn finish(&self, partial: &Partial) -> Result<()> {
        partial.file.sync_all().map_err(Error::io("cannot write", &partial.path))?;
        match std::fs::rename(&partial.path, &self.blob) {
            // Where locks are not honoured, another process may have been faster with the same bytes.
            Err(error) if error.kind() == ErrorKind::NotFound && self.blob.exists() => Ok(()),
            renamed => renamed.map_err(Error::io("cannot rename", &partial.path)),
        }
    }
}

fn ended_early() -> Failure {
    let error = std::io::Error::from(ErrorKind::UnexpectedEof);
    Failure::Connection(Box::new(ureq::Error::Io(error)))
}

impl Partial {
    /// Hashes what is there. More than the whole is not this file.
    fn read_again(&mut self, file: &RepoFile) -> Result<()> {
        let read = |error| Error::io("cannot read", &self.path)(error);
        if self.file.metadata().map_err(read)?.len() > file.size {
            return self.restart(file);
        }
        let mut buffer = vec![0; BUFFER_LEN];
        loop {
            let len = self.file.read(&mut buffer).map_err(Error::io("cannot read", &self.path))?;
            if len == 0 {
                return Ok(());
            }
            self.hasher.update(&buffer[..len]);
            self.len += len as u64;
        }
    }

    /// Forgets what is there.
    fn restart(&mut self, file: &RepoFile) -> Result<()> {
        let empty = |opened: &mut File| {
            opened.set_len(0)?;
            opened.seek(SeekFrom::Start(0))
        };
        empty(&mut self.file).map_err(Error::io("cannot write", &self.path))?;
        (self.hasher, self.len) = (file.checksum.hasher(file.size), 0);
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.file.write_all(bytes)?;
        self.hasher.update(bytes);
        self.len += bytes.len() as u64;
        Ok(())
    }
}

/// Bytes that are free where a folder is, if the system says so.
#[cfg(unix)]
pub(crate) fn free_space(folder: &Path) -> Option<u64> {
    let about = rustix::fs::statvfs(folder).ok()?;
    about.f_bavail.checked_mul(about.f_frsize)
}

#[cfg(not(unix))]
pub(crate) fn free_space(_: &Path) -> Option<u64> {
    None
}
