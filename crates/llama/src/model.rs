//! A model file in memory, and what it says about itself.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forerun_decode::DrafterKind;

use crate::ffi::model::{NoModel, RawModel};
use crate::ffi::quantize::block_of;
use crate::gguf::{self, Fault, Header};
use crate::options::ModelOptions;
use crate::vocab::Vocab;

/// A loaded model. Cheap to clone; engines and vocabularies made from it share it.
#[derive(Debug, Clone)]
pub struct Model {
    raw: Arc<RawModel>,
    vocab: Vocab,
    path: PathBuf,
    /// Whether its prediction blocks are loaded too.
    predicts: bool,
    header: Header,
}

/// What kind of head a model has or is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadKind {
    /// A file of its own that reads three of the target's layers.
    Eagle3,
    /// A file of its own that reads some of the target's layers and drafts a block in one pass (DFlash,
    /// DSpark).
    Dflash,
    /// The target's own blocks for the tokens after the next (multi-token prediction).
    Mtp,
}

impl HeadKind {
    /// The drafter it makes.
    pub fn drafter(self) -> DrafterKind {
        match self {
            Self::Eagle3 => DrafterKind::Eagle3,
            Self::Mtp => DrafterKind::Mtp,
            Self::Dflash => DrafterKind::Dflash,
        }
    }
}

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// There is no such file.
    #[error("{}: there is no such file: check the path", .path.display())]
    Missing {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// It is a directory.
    #[error("{}: this is a directory: name the GGUF file in it", .path.display())]
    Directory {
        /// Where.
        path: PathBuf,
    },
    /// It could not be read.
    #[error("{}: cannot be read: {source}", .path.display())]
    Unreadable {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is empty.
    #[error("{}: the file is empty: download it again", .path.display())]
    Empty {
        /// Where.
        path: PathBuf,
    },
    /// It is some other kind of file.
    #[error("{}: this is not a GGUF file: convert the model to GGUF first", .path.display())]
    NotGguf {
        /// Where.
        path: PathBuf,
    },
    /// It ends too soon.
    #[error(
        "{}: the file ends after {len} bytes but needs {needed} at least: download it again",
        .path.display()
    )]
    Truncated {
        /// Where.
        path: PathBuf,
        /// Its length in bytes.
        len: u64,
        /// What its header asks for.
        needed: u64,
    },
    /// Its header makes no sense.
    #[error("{}: the header is damaged ({reason}): download it again", .path.display())]
    Damaged {
        /// Where.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// It is a kind of model that does not generate text.
    #[error("{}: {kind} models cannot continue a text: choose a decoder", .path.display())]
    Unsupported {
        /// Where.
        path: PathBuf,
        /// Which kind.
        kind: &'static str,
    },
    /// It drafts from its target's cache.
    #[error(
        "{}: Gemma 4's assistants read their target's cache, which Forerun does not run yet: name a \
         draft model instead", .path.display()
    )]
    Assistant {
        /// Where.
        path: PathBuf,
    },
    /// The progress callback stopped the loading.
    #[error("{}: the loading was stopped", .path.display())]
    Stopped {
        /// Where.
        path: PathBuf,
    },
    /// llama.cpp does not take it.
    #[error("{}: llama.cpp cannot load it: {reason}", .path.display())]
    Rejected {
        /// Where.
        path: PathBuf,
        /// Its own words.
        reason: String,
    },
}

impl Model {
    /// Loads a model.
    ///
    /// # Errors
    /// [`LoadError`] tells what is wrong with the file.
    pub fn load(mut options: ModelOptions) -> Result<Self, LoadError> {
        let header = check_file(&options.path)?;
        let path = options.path.clone();
        if header.architecture == "gemma4-assistant" {
            return Err(LoadError::Assistant { path });
        }
        options.prediction_layers |= header.head_only;
        let raw = match RawModel::load(&mut options) {
            Ok(raw) => Arc::new(raw),
            Err(NoModel::Stopped) => return Err(LoadError::Stopped { path }),
            Err(NoModel::Rejected(reason)) => return Err(LoadError::Rejected { path, reason }),
        };
        if let Some(kind) = unsupported(&raw).filter(|kind| !(options.embeds && *kind == ENCODER)) {
            return Err(LoadError::Unsupported { path, kind });
        }
        let predicts = options.prediction_layers && header.prediction_layers > 0;
        Ok(Self { vocab: Vocab::new(Arc::clone(&raw)), raw, path, predicts, header })
    }

    /// Looks whether a file is there, whole, and a model by its header and metadata. Takes
    /// milliseconds; loading can still fail.
    ///
    /// # Errors
    /// [`LoadError`] tells what is wrong with the file.
    ///
    /// ```
    /// use std::path::Path;
    ///
    /// use forerun_llama::{LoadError, Model};
    ///
    /// let error = Model::check(Path::new("no/such/file.gguf")).unwrap_err();
    /// assert!(matches!(error, LoadError::Missing { .. }));
    /// ```
    pub fn check(path: &Path) -> Result<Header, LoadError> {
        check_file(path)
    }

    pub(crate) fn raw(&self) -> &Arc<RawModel> {
        &self.raw
    }

    /// The file it came from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The name its makers gave it, else its file's.
    pub fn name(&self) -> String {
        let stem = || self.path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        self.metadata("general.name").filter(|name| !name.is_empty()).unwrap_or_else(stem)
    }

    /// What llama.cpp calls it: architecture, size, number format.
    pub fn description(&self) -> String {
        self.raw.description()
    }

    /// How many parameters it has.
    pub fn parameter_count(&self) -> u64 {
        self.raw.parameter_count()
    }

    /// How many bytes its weights take.
    pub fn size(&self) -> u64 {
        self.raw.size()
    }

    /// How many layers it has.
    pub fn layer_count(&self) -> usize {
        self.raw.layer_count()
    }

    /// How many tokens of context it was trained with.
    pub fn context_len(&self) -> usize {
        self.raw.context_len()
    }

    /// How many tokens its vocabulary has.
    pub fn vocab_len(&self) -> usize {
        self.raw.vocab_len()
    }

    /// Its vocabulary.
    pub fn vocab(&self) -> &Vocab {
        &self.vocab
    }

    /// The model's architecture, as llama.cpp names it.
    pub fn architecture(&self) -> String {
        self.metadata("general.architecture").unwrap_or_default()
    }

    /// What kind of draft head this is, or has: a file of its own, or blocks of the model that were
    /// loaded with [`ModelOptions::prediction_layers`].
    pub fn head_kind(&self) -> Option<HeadKind> {
        match &*self.architecture() {
            "eagle3" => Some(HeadKind::Eagle3),
            "dflash" => Some(HeadKind::Dflash),
            _ => self.predicts.then_some(HeadKind::Mtp),
        }
    }

    /// Whether its rows in a block depend on each other.
    pub(crate) fn is_chained(&self) -> bool {
        self.header.chained
    }

    /// Whether it has weights that score a whole text.
    pub(crate) fn scores(&self) -> bool {
        self.header.scores
    }

    /// Whether it writes nothing without the target whose head it is.
    pub(crate) fn is_head_alone(&self) -> bool {
        self.header.head_only || !self.raw.target_layers().is_empty()
    }

    /// Whether its memory is recurrent, wholly or in part, so that it may not be cut.
    pub fn is_recurrent(&self) -> bool {
        self.raw.is_recurrent() || self.raw.is_hybrid()
    }

    /// The template that turns a dialogue into a prompt, as its makers wrote it.
    pub fn chat_template(&self) -> Option<String> {
        self.raw.chat_template()
    }

    /// The value of a metadata key such as `general.architecture`; arrays are not given.
    pub fn metadata(&self, key: &str) -> Option<String> {
        self.raw.metadata(key)
    }
}

/// The kind of models that read a text from both sides.
const ENCODER: &str = "encoder-only";

/// The kind of model this is, if it is one that does not generate text.
fn unsupported(raw: &RawModel) -> Option<&'static str> {
    let architecture = raw.metadata("general.architecture").unwrap_or_default();
    let causal = raw.metadata(&format!("{architecture}.attention.causal"));
    if !raw.target_layers().is_empty() {
        // A draft head is asked for by those who know what it is.
        None
    } else if !raw.has_decoder() || causal.as_deref() == Some("false") {
        Some(ENCODER)
    } else if raw.has_encoder() {
        Some("encoder-decoder")
    } else if raw.is_diffusion() {
        Some("diffusion")
    } else if !raw.has_vocab() {
        Some("vocabulary-less")
    } else {
        None
    }
}

/// Looks at the file before llama.cpp does, which tells its faults less well apart.
pub(crate) fn check_file(path: &Path) -> Result<Header, LoadError> {
    Ok(read_file(path)?.0)
}

/// The same, with the names of its tokens.
pub(crate) fn read_file(path: &Path) -> Result<(Header, Vec<Vec<u8>>), LoadError> {
    let path = || path.to_owned();
    let unreadable = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => LoadError::Missing { path: path() },
        _ => LoadError::Unreadable { path: path(), source },
    };
    let about = fs::metadata(path()).map_err(unreadable)?;
    if about.is_dir() {
        return Err(LoadError::Directory { path: path() });
    }
    // A pipe or a device would not end, or wait.
    if !about.is_file() {
        return Err(LoadError::NotGguf { path: path() });
    }
    let len = about.len();
    if len == 0 {
        return Err(LoadError::Empty { path: path() });
    }
    let file = File::open(path()).map_err(unreadable)?;
    gguf::read(file, len, block_of).map_err(|fault| match fault {
        Fault::NotGguf => LoadError::NotGguf { path: path() },
        Fault::Truncated(needed) => LoadError::Truncated { path: path(), len, needed },
        Fault::Damaged(reason) => LoadError::Damaged { path: path(), reason },
        Fault::Unreadable(source) => LoadError::Unreadable { path: path(), source },
    })
}
