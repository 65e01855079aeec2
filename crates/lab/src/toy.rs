//! For tests: the toy engine as a run's models, and an observer that remembers what it is told.

use std::cell::RefCell;
use std::fs;
use std::io;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;

use forerun_decode::{
    Drafter, DrafterKind, EditDrafter, Engine, ModelDrafter, NgramDrafter, Special, SuffixDrafter,
    TenantSuffixDrafter, Token, TokenizeError, Tokenizer, ToyEngine, ToyModel,
};

use crate::bench::{ORACLE, PREDICTION, SHARED_SUFFIX};
use crate::error::Result;
use crate::machine::{Build, EngineRecord, Provenance};
use crate::models::{EngineShape, Models, Parts, Target};
use crate::observer::Observer;

/// Tokens of the vocabulary, the last of which ends a text.
const VOCAB_LEN: u32 = 8;

const CONTEXT_LEN: usize = 256;

/// Every byte is a token; several bytes share one.
struct Bytes;

impl Tokenizer for Bytes {
    fn vocab_len(&self) -> usize {
        VOCAB_LEN as usize
    }

    fn tokenize(&self, text: &str, _: Special) -> Result<Vec<Token>, TokenizeError> {
        Ok(text.bytes().map(|byte| Token(u32::from(byte) % (VOCAB_LEN - 1))).collect())
    }

    fn start(&self) -> Option<Token> {
        None
    }

    fn is_end(&self, token: Token) -> bool {
        token.0 == VOCAB_LEN - 1
    }

    fn bytes(&self, token: Token, out: &mut Vec<u8>) {
        out.push(b'a' + u8::try_from(token.0).expect("a short vocabulary"));
    }
}

/// A toy target and its drafters. The draft model knows what the target wants and is less sure of it.
pub(crate) struct Toy {
    pub(crate) drafters: Vec<DrafterKind>,
}

impl Toy {
    fn start(spread: f32, shape: &EngineShape) -> ToyEngine {
        let model = ToyModel { vocab_len: VOCAB_LEN as usize, order: 2, seed: 3, spread };
        ToyEngine::new(model, shape.context_len.unwrap_or(CONTEXT_LEN))
            .slots(shape.slots.get() as usize)
            .paths(shape.paths.get() as usize)
    }

    fn draft(shape: &EngineShape) -> ToyEngine {
        Self::start(1.5, shape)
    }
}

impl Models for Toy {
    fn target(&mut self) -> Result<Target> {
        Ok(Target { vocab: Arc::new(Bytes), chat_template: None, context_len: CONTEXT_LEN })
    }

    fn engine(&mut self, shape: &EngineShape) -> Result<Box<dyn Engine>> {
        Ok(Box::new(Self::start(3.0, shape)))
    }

    fn parts(&mut self, shape: &EngineShape, draft_paths: NonZeroU32) -> Result<Parts> {
        let draft_shape = EngineShape { paths: draft_paths, ..*shape };
        let drafter = |kind: &DrafterKind| -> Box<dyn Drafter> {
            match *kind {
                DrafterKind::Ngram => Box::new(NgramDrafter::default()),
                DrafterKind::Suffix => Box::new(SuffixDrafter::default()),
                SHARED_SUFFIX => Box::new(TenantSuffixDrafter::default()),
                DrafterKind::Edit | PREDICTION | ORACLE => Box::new(EditDrafter::default()),
                _ => Box::new(ModelDrafter::new(Box::new(Self::draft(&draft_shape)))),
            }
        };
        let drafters = self.drafters.iter().map(drafter).collect();
        Ok(Parts { engine: self.engine(shape)?, drafters })
    }

    fn draft_engine(&mut self, shape: &EngineShape) -> Result<Option<Box<dyn Engine>>> {
        Ok(Some(Box::new(Self::draft(shape))))
    }

    fn record(&self, context_len: usize, paths: u32) -> EngineRecord {
        EngineRecord {
            context_len,
            threads: 1,
            threads_batch: 1,
            batch_len: 1,
            pass_len: 1,
            paths,
            cache_keys: None,
            cache_values: None,
            flash_attention: "off".to_owned(),
            gpu_layers: "0".to_owned(),
            load_mode: "read".to_owned(),
        }
    }
}

/// Remembers results and notes.
#[derive(Default)]
pub(crate) struct Heard {
    pub(crate) results: RefCell<Vec<String>>,
    pub(crate) notes: RefCell<Vec<String>>,
}

impl Observer for Heard {
    fn note(&self, text: &str) {
        self.notes.borrow_mut().push(text.to_owned());
    }

    fn result(&self, text: &str) -> io::Result<()> {
        self.results.borrow_mut().push(text.to_owned());
        Ok(())
    }
}

pub(crate) fn provenance() -> Provenance {
    let build = Build {
        version: "0.0.0".to_owned(),
        commit: None,
        profile: "debug".to_owned(),
        llama: "none".to_owned(),
        processor_features: String::new(),
    };
    Provenance::here("2026-01-02".to_owned(), build)
}

/// A folder of a test's own.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("forerun-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).expect("temporary folders can be made");
        Self(path)
    }

    /// The path of a file that need not exist.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A file with this content.
    pub(crate) fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, content).expect("temporary files can be written");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
