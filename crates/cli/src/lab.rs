//! Where the lab meets models and a terminal: GGUF files as its models, the screen as its observer.

use std::cell::RefCell;
use std::io;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use forerun_decode::{Engine, VocabMap};
use forerun_lab::{
    Build, EngineRecord, EngineShape, Error, Models, Observer, Outline, Parts, Provenance, Result,
    Target,
};
use forerun_llama::{EngineOptions, GpuLayers, LlamaEngine, LoadMode, Model};

use crate::flags::{ContextLen, DrafterConfig, ModelConfig, OutputConfig};
use crate::interrupt::Interrupt;
use crate::load::{self, LoadedDrafter, Room, Watch};
use crate::progress::Progress;
use crate::terminal::Screen;

/// The screen of a command that makes no text.
pub(crate) struct Console {
    screen: RefCell<Screen>,
    progress: Progress,
}

impl Console {
    pub(crate) fn new() -> Self {
        let screen = Screen::new(&OutputConfig::notes());
        Self { progress: screen.progress(), screen: RefCell::new(screen) }
    }

    /// Says something the user should know.
    pub(crate) fn warn(&self, text: &str) {
        self.screen.borrow_mut().warn(text);
    }
}

impl Observer for Console {
    fn begin(&self, outline: &Outline) {
        self.progress.begin(outline);
    }

    fn phase(&self, phase: usize) {
        self.progress.phase(phase);
    }

    fn show(&self, share: f64, detail: &str) {
        self.progress.show(share, detail);
    }

    fn expect_files(&self, count: usize) {
        self.progress.expect_files(count);
    }

    fn file(&self, what: &str, path: &Path, share: f64) {
        self.progress.file(what, path, share);
    }

    fn end(&self) {
        self.progress.end();
    }

    fn note(&self, text: &str) {
        self.screen.borrow_mut().note(text);
    }

    fn result(&self, text: &str) -> io::Result<()> {
        self.screen.borrow_mut().result(text)
    }
}

/// Tokens that a recurrent state can forget again: drafts are no longer than that.
const ROLLBACK: u32 = 8;

/// Models in GGUF files, run by llama.cpp.
pub(crate) struct Gguf<'a> {
    config: &'a GgufConfig,
    interrupt: &'a Interrupt,
    console: &'a Console,
    target: Option<Model>,
}

/// Which files, and how they are run.
pub(crate) struct GgufConfig {
    /// The target.
    pub(crate) target: ModelConfig,
    /// How much context it gets.
    pub(crate) context: ContextLen,
    /// What drafts for it.
    pub(crate) drafters: Vec<DrafterConfig>,
}

impl<'a> Gguf<'a> {
    pub(crate) fn new(
        config: &'a GgufConfig,
        interrupt: &'a Interrupt,
        console: &'a Console,
    ) -> Self {
        Self { config, interrupt, console, target: None }
    }

    fn loaded(&self) -> &Model {
        self.target.as_ref().expect("the target is asked for first")
    }

    fn start(
        &self,
        what: &'static str,
        (model, config): (&Model, &ModelConfig),
        shape: &EngineShape,
    ) -> Result<LlamaEngine> {
        let len = |len: usize| u32::try_from(len).ok().and_then(NonZeroU32::new);
        let options = EngineOptions {
            context_len: match shape.context_len {
                Some(context_len) => len(context_len),
                None => load::context_len(self.config.context, model),
            },
            slots: shape.slots,
            paths: shape.paths,
            rollback: if self.config.drafters.is_empty() { 0 } else { ROLLBACK },
            ..config.engine.clone()
        };
        load::engine(what, model, options, self.interrupt).map_err(failed)
    }
}

impl Models for Gguf<'_> {
    fn target(&mut self) -> Result<Target> {
        let (config, progress) = (self.config, &self.console.progress);
        let own_head = config.drafters.iter().any(|it| it.path() == Some(&config.target.path));
        let model = load::load_model("target", &config.target, own_head, self.interrupt, progress);
        let model = model.map_err(failed)?;
        let context_len = load::context_len(config.context, &model);
        let target = Target {
            vocab: Arc::new(model.vocab().clone()),
            chat_template: model.chat_template(),
            context_len: context_len.map_or(model.context_len(), |len| len.get() as usize),
        };
        self.target = Some(model);
        Ok(target)
    }

    fn engine(&mut self, shape: &EngineShape) -> Result<Box<dyn Engine>> {
        Ok(Box::new(self.start("target", (self.loaded(), &self.config.target), shape)?))
    }

    fn parts(&mut self, shape: &EngineShape, draft_paths: NonZeroU32) -> Result<Parts> {
        let model = self.loaded();
        let mut engine = self.start("target", (model, &self.config.target), shape)?;
        let (context_len, slots) = (engine.context_len(), shape.slots);
        let room = Room { context_len, slots, rollback: ROLLBACK };
        let (interrupt, screen) = (self.interrupt, &mut *self.console.screen.borrow_mut());
        let mut watch = Watch { interrupt, screen };
        let mut drafters = Vec::new();
        for drafter in &self.config.drafters {
            let mut drafter = drafter.clone();
            if let DrafterConfig::Model(draft) = &mut drafter {
                draft.model.engine.paths = draft_paths;
            }
            let target = (model, &mut engine);
            let loaded = LoadedDrafter::load(&drafter, target, &room, &mut watch);
            drafters.push(loaded.map_err(failed)?.drafter);
        }
        Ok(Parts { engine: Box::new(engine), drafters })
    }

    fn draft_engine(&mut self, shape: &EngineShape) -> Result<Option<Box<dyn Engine>>> {
        let models = self.config.drafters.iter().filter_map(|drafter| match drafter {
            DrafterConfig::Model(config) => Some(config),
            _ => None,
        });
        let Some(draft) = { models }.next() else { return Ok(None) };
        let progress = &self.console.progress;
        let model = load::load_model("draft model", &draft.model, false, self.interrupt, progress);
        let model = model.map_err(failed)?;
        let map = VocabMap::between(self.loaded().vocab(), model.vocab()).map_err(failed)?;
        if !map.is_identity() {
            return Ok(None);
        }
        Ok(Some(Box::new(self.start("draft model", (&model, &draft.model), shape)?)))
    }

    fn record(&self, context_len: usize, paths: u32) -> EngineRecord {
        let ModelConfig { gpu_layers, load_mode, engine, .. } = &self.config.target;
        let all = std::thread::available_parallelism().map_or(1, usize::from);
        let all = u32::try_from(all).unwrap_or(u32::MAX);
        let threads = engine.threads.map_or(all, NonZeroU32::get);
        let gpu_layers = match gpu_layers {
            GpuLayers::All => "all".to_owned(),
            GpuLayers::Last(count) => count.to_string(),
        };
        let load_mode = match load_mode {
            LoadMode::Map => "map",
            LoadMode::MapAndLock => "map-and-lock",
            LoadMode::Read => "read",
        };
        EngineRecord {
            context_len,
            threads,
            threads_batch: engine.threads_batch.map_or(threads, NonZeroU32::get),
            batch_len: engine.batch_len.get(),
            pass_len: engine.pass_len.get(),
            paths,
            cache_keys: engine.cache_keys.map(|kind| kind.name().to_owned()),
            cache_values: engine.cache_values.map(|kind| kind.name().to_owned()),
            flash_attention: engine.flash_attention.name().to_owned(),
            gpu_layers,
            load_mode: load_mode.to_owned(),
        }
    }
}

fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Models(error.into())
}

/// Today, here, by this program. Whoever builds it may name the commit in `FORERUN_COMMIT`.
#[expect(clippy::disallowed_methods, reason = "a report says when it was made, and nothing else")]
pub(crate) fn provenance() -> Provenance {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    let build = Build {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: option_env!("FORERUN_COMMIT").map(str::to_owned),
        profile: profile.to_owned(),
        llama: forerun_llama::BINDING.to_owned(),
        processor_features: forerun_llama::system_info(),
    };
    Provenance::here(forerun_decode::date(since), build)
}
