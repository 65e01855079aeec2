//! A model file as numbers: its tensors in `f32`, and files like it with others.
//!
//! What the numbers mean is not known here. Files are written in `f32`; [`quantize`](crate::quantize)
//! makes any other format of them.

use std::path::{Path, PathBuf};

use crate::ffi::gguf::{Sink, Source};
use crate::model::{LoadError, check_file};

/// Why a file was not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// What is there would be lost.
    #[error("{}: there is a file already: move it away or choose another name", .path.display())]
    Exists {
        /// Where.
        path: PathBuf,
    },
    /// The file could not be written.
    #[error("{}: it could not be written: is there room on the disk?", .path.display())]
    Unwritten {
        /// Where.
        path: PathBuf,
    },
}

/// A tensor by its name in the file.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// Its name, such as `blk.0.attn_q.weight`.
    pub name: String,
    /// Its sizes, the slowest first: a matrix has its rows before its columns, unlike in ggml.
    pub sizes: Vec<usize>,
    /// Its numbers, row by row.
    pub values: Vec<f32>,
}

/// A value of the metadata.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Value<'a> {
    /// None: the key is left out.
    Nothing,
    /// A number, as `u32`.
    Number(u32),
    /// A number, as `f32`.
    Float(f32),
    /// A text.
    Text(&'a str),
    /// A list of yes and no.
    Booleans(&'a [bool]),
    /// A list of numbers, as `i32`.
    Integers(&'a [i32]),
}

/// What a tensor that is written consists of.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Numbers<'a> {
    /// Weights.
    Floats(&'a [f32]),
    /// Token numbers and the like; no format changes them.
    Integers(&'a [i64]),
}

impl<'a> From<&'a [f32]> for Numbers<'a> {
    fn from(values: &'a [f32]) -> Self {
        Self::Floats(values)
    }
}

/// A model file, read as a whole.
pub struct ModelFile {
    path: PathBuf,
    source: Source,
}

impl std::fmt::Debug for ModelFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelFile").field("path", &self.path).finish_non_exhaustive()
    }
}

impl ModelFile {
    /// Reads a file into memory. Of a split model only the first part is read.
    ///
    /// # Errors
    /// [`LoadError`] tells what is wrong with the file.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        check_file(path)?;
        let damaged = || LoadError::Damaged {
            path: path.to_owned(),
            reason: "ggml cannot read it".to_owned(),
        };
        let source = Source::open(path).ok_or_else(damaged)?;
        Ok(Self { path: path.to_owned(), source })
    }

    /// The file it came from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A value of the metadata that is a `u32`.
    pub fn number(&self, key: &str) -> Option<u32> {
        self.source.number(key)
    }

    /// A value of the metadata that is an `f32`.
    pub fn float(&self, key: &str) -> Option<f32> {
        self.source.float(key)
    }

    /// A value of the metadata that is a text.
    pub fn text(&self, key: &str) -> Option<String> {
        self.source.text(key)
    }

    /// A value of the metadata that is a list of yes and no.
    pub fn booleans(&self, key: &str) -> Option<Vec<bool>> {
        self.source.booleans(key)
    }

    /// A value of the metadata that is a list of `i32`.
    pub fn integers(&self, key: &str) -> Option<Vec<i32>> {
        self.source.integers(key)
    }

    /// The keys of its metadata.
    pub fn keys(&self) -> Vec<String> {
        self.source.keys()
    }

    /// The names of its tensors.
    pub fn tensor_names(&self) -> Vec<String> {
        self.source.tensor_names()
    }

    /// The sizes of a tensor, the slowest first; none if there is no such tensor.
    pub fn tensor_sizes(&self, name: &str) -> Option<Vec<usize>> {
        self.source.tensor_sizes(name)
    }

    /// A tensor in `f32`; none if there is no such tensor.
    pub fn tensor(&self, name: &str) -> Option<Tensor> {
        let (sizes, values) = self.source.tensor(name)?;
        Some(Tensor { name: name.to_owned(), sizes, values })
    }

    /// Writes a file with this one's metadata, some values of it changed, and other tensors.
    ///
    /// # Errors
    /// If there is a file already, or it cannot be written; then no output is left.
    ///
    /// # Panics
    /// If a tensor has another number of values than its sizes say.
    pub fn write_like<'a, N: Into<Numbers<'a>>>(
        &self,
        output: &Path,
        changed: &[(&str, Value<'_>)],
        tensors: impl IntoIterator<Item = (&'a str, &'a [usize], N)>,
    ) -> Result<(), WriteError> {
        if output.exists() {
            return Err(WriteError::Exists { path: output.to_owned() });
        }
        let mut sink = Sink::like(&self.source);
        for (key, value) in changed {
            match value {
                Value::Nothing => sink.remove(key),
                Value::Number(number) => sink.set_number(key, *number),
                Value::Float(number) => sink.set_float(key, *number),
                Value::Text(text) => sink.set_text(key, text),
                Value::Booleans(values) => sink.set_booleans(key, values),
                Value::Integers(values) => sink.set_integers(key, values),
            }
        }
        for (name, sizes, values) in tensors {
            match values.into() {
                Numbers::Floats(values) => sink.add_floats(name, sizes, values),
                Numbers::Integers(values) => sink.add_integers(name, sizes, values),
            }
        }
        if !sink.write(output) {
            // Half a model is worth nothing; that it may not have been begun is no error.
            let _ = std::fs::remove_file(output);
            return Err(WriteError::Unwritten { path: output.to_owned() });
        }
        Ok(())
    }
}
