//! Files that are whole or not there: a header, a body, and a checksum at the end.
//!
//! A file is written beside its place and moved there when it is complete and on the disk. Whoever
//! reads one reads it twice: once for the checksum, and then for what it says.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Take, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

const MAGIC: &[u8; 8] = b"FORERUN1";
const CHECKSUM_LEN: u64 = 32;
/// No header comes near.
const HEADER_MAX: u32 = 1 << 26;
const BUFFER_LEN: usize = 1 << 18;

/// A file that is being written.
pub struct Writer {
    path: PathBuf,
    part: PathBuf,
    file: BufWriter<File>,
    hash: Sha256,
    done: bool,
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.done {
            // What is left of a failure is worth nothing, and there is nobody to tell.
            let _ = fs::remove_file(&self.part);
        }
    }
}

impl Writer {
    /// Begins a file that will be at `path`.
    ///
    /// # Errors
    /// If there is no room, or no right to write there.
    pub fn create(path: &Path, header: &impl Serialize) -> anyhow::Result<Self> {
        let part = beside(path, "part");
        let file = File::create(&part).with_context(|| unwritten(&part))?;
        let file = BufWriter::with_capacity(BUFFER_LEN, file);
        let mut writer =
            Self { path: path.to_owned(), part, file, hash: Sha256::new(), done: false };
        let header = serde_json::to_vec(header)?;
        writer.write(MAGIC)?;
        writer.write(&u32::try_from(header.len())?.to_le_bytes())?;
        writer.write(&header)?;
        Ok(writer)
    }

    /// Appends to the body.
    ///
    /// # Errors
    /// If there is no room on the disk.
    pub fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.hash.update(bytes);
        self.file.write_all(bytes).with_context(|| unwritten(&self.part))
    }

    /// Appends numbers to the body.
    ///
    /// # Errors
    /// As for [`Writer::write`].
    pub fn write_floats(&mut self, numbers: &[f32]) -> anyhow::Result<()> {
        let mut bytes = Vec::with_capacity(BUFFER_LEN);
        for some in numbers.chunks(BUFFER_LEN / 4) {
            bytes.clear();
            bytes.extend(some.iter().flat_map(|number| number.to_le_bytes()));
            self.write(&bytes)?;
        }
        Ok(())
    }

    /// Appends numbers to the body.
    ///
    /// # Errors
    /// As for [`Writer::write`].
    pub fn write_integers(&mut self, numbers: &[u32]) -> anyhow::Result<()> {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.write(&bytes)
    }

    /// Puts the file in its place.
    ///
    /// # Errors
    /// As for [`Writer::write`].
    pub fn finish(mut self) -> anyhow::Result<()> {
        let checksum = std::mem::take(&mut self.hash).finalize();
        let failed = || unwritten(&self.part);
        self.file.write_all(&checksum).with_context(failed)?;
        self.file.flush().with_context(failed)?;
        self.file.get_ref().sync_all().with_context(failed)?;
        fs::rename(&self.part, &self.path).with_context(|| unwritten(&self.path))?;
        self.done = true;
        Ok(())
    }
}

/// A file that was found whole.
#[derive(Debug)]
pub struct Reader {
    file: Take<BufReader<File>>,
    /// Where the body begins, and how long it is.
    body: (u64, u64),
}

impl Reader {
    /// Checks a file, and reads its header.
    ///
    /// # Errors
    /// If it is not there, no such file, or not as it was written.
    pub fn open<H: DeserializeOwned>(path: &Path) -> anyhow::Result<(H, Self)> {
        let shown = path.display();
        let mut file = File::open(path).with_context(|| format!("{shown}: cannot be read"))?;
        let len = file.metadata()?.len();
        let body = len.saturating_sub(CHECKSUM_LEN);
        let mut magic = [0; MAGIC.len()];
        if len < CHECKSUM_LEN + 12 || file.read_exact(&mut magic).is_err() || magic != *MAGIC {
            bail!("{shown}: this is not a file of forerun distill");
        }
        file.rewind()?;
        let mut hash = Sha256::new();
        let mut checked = BufReader::with_capacity(BUFFER_LEN, &file).take(body);
        hash_all(&mut checked, &mut hash).with_context(|| format!("{shown}: cannot be read"))?;
        let mut stated = [0; 32];
        checked.into_inner().read_exact(&mut stated)?;
        ensure!(
            hash.finalize()[..] == stated,
            "{shown}: the file is damaged: its checksum is not that of its content; remove it and \
             start again"
        );
        file.seek(SeekFrom::Start(MAGIC.len() as u64))?;
        let rest = body - MAGIC.len() as u64;
        let file = BufReader::with_capacity(BUFFER_LEN, file).take(rest);
        let mut reader = Self { file, body: (0, 0) };
        let header_len = reader.integer()?;
        ensure!(header_len <= HEADER_MAX, "{shown}: a header of {header_len} bytes");
        let mut header = vec![0; header_len as usize];
        reader.file.read_exact(&mut header)?;
        reader.body = (body - reader.file.limit(), reader.file.limit());
        let header = serde_json::from_slice(&header).with_context(|| {
            format!("{shown}: its header is of another version: remove it and start again")
        })?;
        Ok((header, reader))
    }

    /// The next number.
    ///
    /// # Errors
    /// If the body ends before it.
    pub fn integer(&mut self) -> anyhow::Result<u32> {
        let mut bytes = [0; 4];
        self.file.read_exact(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// The next so many numbers.
    ///
    /// # Errors
    /// If the body ends before them.
    pub fn integers(&mut self, count: usize) -> anyhow::Result<Vec<u32>> {
        self.numbers(count, u32::from_le_bytes)
    }

    /// The next so many numbers.
    ///
    /// # Errors
    /// If the body ends before them.
    pub fn floats(&mut self, count: usize) -> anyhow::Result<Vec<f32>> {
        self.numbers(count, f32::from_le_bytes)
    }

    fn numbers<T>(&mut self, count: usize, from: fn([u8; 4]) -> T) -> anyhow::Result<Vec<T>> {
        // Before any memory is taken, the file must be that long.
        ensure!(4 * count as u64 <= self.file.limit(), "the file ends too soon");
        let mut numbers = Vec::with_capacity(count);
        let mut bytes = [0; 4];
        for _ in 0..count {
            self.file.read_exact(&mut bytes)?;
            numbers.push(from(bytes));
        }
        Ok(numbers)
    }

    /// Bytes of the body.
    pub fn body_len(&self) -> u64 {
        self.body.1
    }

    /// So many bytes of the body, from a place in it on.
    ///
    /// # Errors
    /// If the body ends before them, or they cannot be read.
    pub fn bytes_at(&mut self, place: u64, count: usize) -> anyhow::Result<Vec<u8>> {
        let (start, len) = self.body;
        ensure!(place + count as u64 <= len, "the file ends too soon");
        self.file.get_mut().seek(SeekFrom::Start(start + place))?;
        self.file.set_limit(len - place);
        let mut bytes = vec![0; count];
        self.file.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Whether all was read.
    pub fn is_at_end(&self) -> bool {
        self.file.limit() == 0
    }
}

/// A file's name with something appended.
pub fn beside(path: &Path, what: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(what);
    path.with_file_name(name)
}

fn unwritten(path: &Path) -> String {
    format!("{}: it could not be written: is there room on the disk?", path.display())
}

/// The SHA-256 of a file, in hexadecimal.
///
/// # Errors
/// If it cannot be read.
pub fn sha256_of(path: &Path) -> anyhow::Result<String> {
    let shown = || format!("{}: cannot be read", path.display());
    let mut file = BufReader::with_capacity(BUFFER_LEN, File::open(path).with_context(shown)?);
    let mut hash = Sha256::new();
    hash_all(&mut file, &mut hash).with_context(shown)?;
    Ok(hex(&hash.finalize()))
}

fn hash_all(file: &mut impl BufRead, hash: &mut Sha256) -> std::io::Result<()> {
    loop {
        let some = file.fill_buf()?;
        let len = some.len();
        if len == 0 {
            return Ok(());
        }
        hash.update(some);
        file.consume(len);
    }
}

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("forerun-distill-{}-{name}", std::process::id()))
    }

    fn write(path: &Path) {
        let mut writer = Writer::create(path, &"header").unwrap();
        writer.write_floats(&[1.5, -2.5]).unwrap();
        writer.write_integers(&[7]).unwrap();
        writer.finish().unwrap();
    }

    #[test]
    fn what_was_written_is_read() {
        let path = place("sealed");
        write(&path);
        let (header, mut reader) = Reader::open::<String>(&path).unwrap();
        assert_eq!(header, "header");
        assert_eq!(reader.floats(2).unwrap(), [1.5, -2.5]);
        assert!(reader.floats(2).is_err(), "there is one number left");
        assert_eq!((reader.integer().unwrap(), reader.is_at_end()), (7, true));
        assert_eq!(reader.body_len(), 12);
        assert_eq!(reader.bytes_at(4, 8).unwrap(), [0, 0, 32, 192, 7, 0, 0, 0]);
        assert_eq!(reader.bytes_at(8, 4).unwrap(), [7, 0, 0, 0]);
        assert!(reader.bytes_at(8, 5).is_err(), "the checksum is no part of the body");
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_file_that_was_changed_or_cut_anywhere_is_refused() {
        let path = place("damaged");
        write(&path);
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            fs::write(&path, &changed).unwrap();
            assert!(Reader::open::<String>(&path).is_err(), "byte {at}");
            fs::write(&path, &whole[..at]).unwrap();
            assert!(Reader::open::<String>(&path).is_err(), "{at} bytes");
        }
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_file_that_was_not_finished_is_not_there() {
        let path = place("unfinished");
        let mut writer = Writer::create(&path, &"header").unwrap();
        writer.write(b"some").unwrap();
        drop(writer);
        assert!(!path.exists() && !beside(&path, "part").exists());
    }
}
