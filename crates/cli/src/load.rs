//! From configuration to a decoder: models, drafters, and how they fit together.

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use forerun_decode::{
    Arm, Controller, Decoder, Drafter, DrafterId, EditDrafter, Engine, Gates, HeadDrafter,
    ModelDrafter, NgramDrafter, Sampling, Special, SuffixDrafter, TenantSuffixDrafter, Token,
    Tokenizer, VocabMap,
};
use forerun_lab::{MEASURE, SLOT, SamplingConfig, bytes, file_name};
use forerun_llama::{EngineOptions, LlamaEngine, LlamaHead, Model, ModelOptions};

use crate::flags::{
    ContextLen, DraftConfig, DraftModelConfig, DrafterConfig, GateConfig, ModelConfig, RunConfig,
};
use crate::gate_file;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::terminal::Screen;

/// All that text is made with.
pub(crate) struct Loaded {
    /// Target and drafters.
    pub(crate) decoder: Decoder,
    /// The target.
    pub(crate) model: Model,
    /// How tokens are drawn, checked against the vocabulary.
    pub(crate) sampling: Sampling,
    /// What drafts, for people.
    pub(crate) drafters: Vec<String>,
    /// The drafter that was not named, for sequences that may be edits.
    pub(crate) on_demand: Option<DrafterId>,
    /// What decides how much is drafted, where that is not fixed.
    pub(crate) controller: Option<Controller>,
}

impl Loaded {
    /// Stores what gates have learned, if that is wanted.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub(crate) fn keep_gates(&self, config: &GateConfig) -> anyhow::Result<()> {
        let gates = self.controller.as_ref().and_then(Controller::gates);
        match (gates, &config.file) {
            (Some(gates), Some(file)) => gate_file::write(file, gates),
            _ => Ok(()),
        }
    }

    /// The target's vocabulary.
    pub(crate) fn tokenizer(&self) -> Arc<dyn Tokenizer> {
        Arc::new(self.model.vocab().clone())
    }

    /// The target's context, as it was made.
    pub(crate) fn context_len(&self) -> usize {
        self.decoder.target().context_len()
    }

    /// The tokens of a prompt, a start token first where the model wants one.
    ///
    /// # Errors
    /// Where there would be none, or more than the context holds.
    pub(crate) fn prompt(&self, text: &str, special: Special) -> anyhow::Result<Vec<Token>> {
        self.begun(self.model.vocab().tokenize(text, special).context("prompt")?)
    }

    /// These tokens as a prompt: see [`Loaded::prompt`].
    ///
    /// # Errors
    /// As there.
    pub(crate) fn begun(&self, mut tokens: Vec<Token>) -> anyhow::Result<Vec<Token>> {
        if let Some(start) =
            self.model.vocab().start().filter(|start| tokens.first() != Some(start))
        {
            tokens.insert(0, start);
        }
        if tokens.is_empty() {
            bail!("the prompt is empty, and this model has no start token to begin with: say more");
        }
        let (len, context_len) = (tokens.len(), self.context_len());
        if len > context_len {
            bail!(
                "the prompt has {len} tokens, more than a context of {context_len}: \
                 shorten it or raise --ctx-size"
            );
        }
        Ok(tokens)
    }
}

/// What is loaded, and for how many sequences at once.
pub(crate) struct Wanted<'a> {
    /// The target.
    pub(crate) target: &'a ModelConfig,
    /// How much context a text gets.
    pub(crate) context: ContextLen,
    /// What drafts for it.
    pub(crate) draft: &'a DraftConfig,
    /// How tokens are drawn.
    pub(crate) sampling: &'a SamplingConfig,
    /// Whether layers were to go to a GPU, which this build cannot use.
    pub(crate) gpu_missing: bool,
    /// Sequences at once.
    pub(crate) slots: NonZeroU32,
    /// Whether it is for a server: edits are drafted where there may be some, though no such drafter
    /// was named, and no tenant learns what another was told.
    pub(crate) serves: bool,
}

impl RunConfig {
    fn wanted(&self) -> Wanted<'_> {
        Wanted {
            target: &self.target,
            context: self.context,
            draft: &self.draft,
            sampling: &self.sampling,
            gpu_missing: self.gpu_missing,
            slots: NonZeroU32::MIN,
            serves: false,
        }
    }
}

/// Loads the target and makes the drafters.
///
/// # Errors
/// Where a file is not what it should be, or the parts do not fit together.
pub(crate) fn load(
    config: &RunConfig,
    interrupt: &Interrupt,
    screen: &mut Screen,
) -> anyhow::Result<Loaded> {
    forerun_llama::set_verbose(config.output.verbose);
    if let Some(mode) = config.draft.lossy {
        screen.warn(&format!("lossy {mode}: {}; without --lossy nothing is changed", mode.about()));
    }
    load_for(&config.wanted(), interrupt, screen)
}

/// The same, for any number of sequences.
pub(crate) fn load_for(
    wanted: &Wanted<'_>,
    interrupt: &Interrupt,
    screen: &mut Screen,
) -> anyhow::Result<Loaded> {
    if wanted.gpu_missing {
        screen.warn("this build cannot use a GPU: the layers stay on the processor");
    }
    if forerun_llama::lacks_amx() {
        screen.warn(
            "this build does not use the processor's AMX, so drafts gain less: build it with clang 16 \
             or later, for instance with CC=clang-19 CXX=clang++-19",
        );
    }
    let own_head = wanted.draft.drafters.iter().any(|it| it.path() == Some(&wanted.target.path));
    let model = load_model("target", wanted.target, own_head, interrupt, &screen.progress())?;
    let sampling = wanted.sampling.for_vocab(model.vocab())?;
    let context_len = context_len(wanted.context, &model);
    let drafts = wanted.draft;
    let options = EngineOptions {
        context_len,
        paths: wanted.paths(),
        slots: wanted.slots,
        rollback: drafts.rollback(),
        ..wanted.target.engine.clone()
    };
    let mut target = engine("target", &model, options, interrupt)?;
    let context_len = target.context_len();
    let room = Room { context_len, slots: wanted.slots, rollback: drafts.rollback() };
    let mut drafters = Vec::new();
    for drafter in &drafts.drafters {
        let watch = &mut Watch { interrupt, screen };
        let drafter = match drafter {
            DrafterConfig::Suffix if wanted.serves => &DrafterConfig::TenantSuffix,
            drafter => drafter,
        };
        drafters.push(LoadedDrafter::load(drafter, (&model, &mut target), &room, watch)?);
    }
    // A memory that cannot forget what is rejected cannot be drafted for; a drafter that was named
    // is refused below.
    let edits = wanted.edits() && (target.can_cut() || !drafts.drafters.is_empty());
    let on_demand = edits.then_some(DrafterId(drafters.len()));
    if edits {
        drafters.push(LoadedDrafter::new(EditDrafter::default(), ""));
    }
    let (drafters, descriptions) =
        drafters.into_iter().map(|it| (it.drafter, it.description)).unzip();
    let mut decoder = Decoder::new(Box::new(target), drafters)?;
    let controller = if drafts.adaptive && !decoder.drafters().is_empty() {
        let costs = decoder.measure(MEASURE).context("measuring what passes cost")?;
        let len_max = if edits { drafts.priced_len } else { drafts.len };
        let controller = Controller::new(costs, arms(drafts, edits), len_max.get());
        Some(match drafts.gate.on {
            true => controller.gated(gates(drafts, &model)?),
            false => controller,
        })
    } else {
        None
    };
    Ok(Loaded { decoder, model, sampling, drafters: descriptions, on_demand, controller })
}

impl Wanted<'_> {
    /// Whether edits are drafted though no such drafter was named.
    fn edits(&self) -> bool {
        let named = |drafter: &DrafterConfig| matches!(drafter, DrafterConfig::Edit(_));
        self.serves && !self.draft.drafters.iter().any(named)
    }

    /// Paths of a text: one of each drafter, and the further ones of the draft model. Edits on
    /// demand get one where there is a pool of cells anyway; else they take turns with the drafter.
    fn paths(&self) -> NonZeroU32 {
        let drafts = self.draft;
        let own = (drafts.drafters.len() + drafts.width.get() - 1).max(1);
        let pool = own > 1 || self.target.engine.unified == Some(true);
        let paths = own + usize::from(self.edits() && pool && !drafts.drafters.is_empty());
        u32::try_from(paths).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN)
    }
}

/// What the controller chooses among: each drafter alone and all together, with and without edits
/// on demand, the draft model and edits with as many paths as they may propose.
fn arms(drafts: &DraftConfig, edits: bool) -> Vec<Arm> {
    let count = drafts.drafters.len();
    let own: Vec<DrafterId> = (0..count).map(DrafterId).collect();
    let all: Vec<DrafterId> = (0..count + usize::from(edits)).map(DrafterId).collect();
    let mut sets: Vec<Vec<DrafterId>> = all.iter().map(|drafter| vec![*drafter]).collect();
    sets.extend([own, all].into_iter().filter(|set| set.len() > 1));
    sets.dedup();
    let is_model =
        |id: &DrafterId| matches!(drafts.drafters.get(id.0), Some(DrafterConfig::Model(_)));
    let is_edit =
        |id: &DrafterId| matches!(drafts.drafters.get(id.0), Some(DrafterConfig::Edit(_)));
    let mut arms = Vec::new();
    for drafters in sets {
        let several = drafters.iter().any(is_model) || drafters.iter().all(is_edit);
        let width_max = if several { drafts.width.get() } else { 1 };
        arms.extend((1..=width_max).map(|width| Arm { drafters: drafters.clone(), width }));
    }
    arms
}

/// Gates for the drafters with a model, with what their file holds.
fn gates(drafts: &DraftConfig, target: &Model) -> anyhow::Result<Gates> {
    let target = file_name(target.path());
    let named = |(index, drafter): (usize, &DrafterConfig)| {
        let path = drafter.path()?;
        Some((DrafterId(index), format!("{} for {target}", file_name(path))))
    };
    let mut gates = Gates::new(drafts.drafters.iter().enumerate().filter_map(named));
    if let Some(file) = &drafts.gate.file {
        gate_file::read(file, &mut gates)?;
    }
    Ok(gates)
}

/// A drafter, and what it is in words.
pub(crate) struct LoadedDrafter {
    pub(crate) drafter: Box<dyn Drafter>,
    description: String,
}

/// What cancels the loading of a model, and where its progress is shown.
pub(crate) struct Watch<'a> {
    pub(crate) interrupt: &'a Interrupt,
    pub(crate) screen: &'a mut Screen,
}

impl LoadedDrafter {
    /// Loads a drafter for a target.
    ///
    /// # Errors
    /// Where its file is not what it should be.
    pub(crate) fn load(
        config: &DrafterConfig,
        (target, engine): (&Model, &mut LlamaEngine),
        room: &Room,
        watch: &mut Watch<'_>,
    ) -> anyhow::Result<Self> {
        Ok(match config {
            DrafterConfig::Ngram => Self::new(NgramDrafter::default(), ""),
            DrafterConfig::Suffix => Self::new(SuffixDrafter::default(), ""),
            DrafterConfig::TenantSuffix => Self::new(TenantSuffixDrafter::default(), ""),
            DrafterConfig::Edit(None) => Self::new(EditDrafter::default(), ""),
            DrafterConfig::Edit(Some(path)) => Self::new(edit(path, target)?, &file_name(path)),
            DrafterConfig::Model(draft) => {
                let Watch { interrupt, screen } = watch;
                let model = match draft.model.path == target.path() {
                    true => target.clone(),
                    false => {
                        let progress = screen.progress();
                        load_model("draft model", &draft.model, false, interrupt, &progress)?
                    }
                };
                let about = format!("{} ({})", file_name(model.path()), bytes(model.size()));
                match model.head_kind() {
                    Some(kind) => {
                        let head = draft_head(draft, &model, (target, engine), room, interrupt)?;
                        let drafter = HeadDrafter::new(Box::new(head), kind.drafter());
                        Self::new(drafter.confident(draft.confidence_min), &about)
                    }
                    None => Self::new(draft_model(draft, &model, target, room, watch)?, &about),
                }
            }
        })
    }

    fn new(drafter: impl Drafter + 'static, about: &str) -> Self {
        let description = format!("{} {about}", drafter.kind().name()).trim_end().to_owned();
        Self { drafter: Box::new(drafter), description }
    }
}

/// Loads a model, with its own draft head or without, showing how far that is.
pub(crate) fn load_model(
    what: &'static str,
    config: &ModelConfig,
    prediction_layers: bool,
    interrupt: &Interrupt,
    progress: &Progress,
) -> anyhow::Result<Model> {
    let (shown, stop, path) = (progress.clone(), interrupt.clone(), config.path.clone());
    let loading = format!("loading {what}");
    let options = ModelOptions {
        gpu_layers: config.gpu_layers,
        load_mode: config.load_mode,
        prediction_layers,
        progress: Some(Box::new(move |share| {
            shown.file(&loading, &path, share.into());
            !stop.is_pressed()
        })),
        ..ModelOptions::new(&config.path)
    };
    let model = Model::load(options);
    progress.rest();
    model.context(what)
}

pub(crate) fn engine(
    what: &'static str,
    model: &Model,
    options: EngineOptions,
    interrupt: &Interrupt,
) -> anyhow::Result<LlamaEngine> {
    let options = EngineOptions { interrupt: Some(interrupt.flag()), ..options };
    LlamaEngine::new(model, &options).context(what)
}

pub(crate) fn context_len(wanted: ContextLen, model: &Model) -> Option<NonZeroU32> {
    match wanted {
        ContextLen::Trained => None,
        ContextLen::Exactly(len) => Some(len),
        ContextLen::AtMost(len) => {
            let trained = u32::try_from(model.context_len()).ok().and_then(NonZeroU32::new);
            Some(trained.map_or(len, |trained| trained.min(len)))
        }
    }
}

fn edit(path: &Path, model: &Model) -> anyhow::Result<EditDrafter> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("prediction {}", path.display()))?;
    let tokens = model.vocab().tokenize(&text, Special::AsText).context("prediction")?;
    let mut drafter = EditDrafter::default();
    drafter.predict(SLOT, &tokens);
    Ok(drafter)
}

/// What a draft model's cache must hold.
pub(crate) struct Room {
    /// Tokens of a text.
    pub(crate) context_len: usize,
    /// Sequences at once.
    pub(crate) slots: NonZeroU32,
    /// Tokens that a recurrent state must be able to forget.
    pub(crate) rollback: u32,
}

/// A head of the target, which reads its hidden states.
fn draft_head(
    config: &DraftModelConfig,
    model: &Model,
    target: (&Model, &mut LlamaEngine),
    room: &Room,
    interrupt: &Interrupt,
) -> anyhow::Result<LlamaHead> {
    let options = EngineOptions {
        slots: room.slots,
        interrupt: Some(interrupt.flag()),
        ..config.model.engine.clone()
    };
    LlamaHead::new(model, target, &options).with_context(|| file_name(model.path()))
}

fn draft_model(
    config: &DraftModelConfig,
    model: &Model,
    target: &Model,
    room: &Room,
    Watch { interrupt, screen }: &mut Watch<'_>,
) -> anyhow::Result<ModelDrafter> {
    let (target_vocab, draft_vocab) = (target.vocab(), model.vocab());
    let map = VocabMap::between(target_vocab, draft_vocab).with_context(|| {
        let (draft, target) = (file_name(model.path()), file_name(target.path()));
        format!("{draft} cannot draft for {target}: choose a draft model of the same family")
    })?;
    if !map.is_identity() {
        screen.note(&format!(
            "the draft model has a vocabulary of its own: drafts are translated, {:.0} % of the \
             target's tokens can be drafted",
            100.0 * map.coverage()
        ));
    }
    // In a vocabulary of its own a sequence may be longer. A model must not be run beyond what it was
    // trained with; where a sequence gets longer, drafting ends with a warning.
    let longer = if map.is_identity() { 1 } else { 2 };
    let len = (longer * room.context_len).min(model.context_len());
    let options = EngineOptions {
        context_len: u32::try_from(len).ok().and_then(NonZeroU32::new),
        slots: room.slots,
        rollback: room.rollback,
        ..config.model.engine.clone()
    };
    let engine = engine("draft model", model, options, interrupt)?;
    Ok(ModelDrafter::new(Box::new(engine))
        .translated(map, Arc::new(target_vocab.clone()), Arc::new(draft_vocab.clone()))
        .confident(config.confidence_min))
}
