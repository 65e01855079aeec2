//! What drafts for the target, and how drafts are judged.

mod auto;

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forerun_decode::{Demands, DrafterKind, Drafts, LossyMode, PathsChoice, RuleChoice};
use forerun_hub::{HeadKind, ModelName, Request, Want};
use forerun_lab::SamplingConfig;
use forerun_lab::bench::{ORACLE, PREDICTION, SHARED_SUFFIX};
use forerun_llama::{CacheType, EngineOptions, GpuLayers, LlamaHead, Model};
use forerun_verify::{Rule, Scheme};

use super::gate::GateConfig;
use super::hub::HubFlags;
use super::model::{ModelConfig, cache_type, gpu_layers, threads};
use super::named::{paths, rule};
use super::spec_type::SpecType;
use super::switch::Switch;
use super::{ConfigError, within};

pub(crate) use auto::{candidates, is_auto};

/// Tokens of a drafted path unless told otherwise: always, or at most where it is adapted.
const LEN_FIXED: NonZeroUsize = const { NonZeroUsize::new(4).expect("4 > 0") };
const LEN_ADAPTED_MAX: NonZeroUsize = const { NonZeroUsize::new(8).expect("8 > 0") };

/// The same for drafters that heed their price: they end a draft where they are unsure.
const LEN_PRICED_MAX: NonZeroUsize = const { NonZeroUsize::new(31).expect("31 > 0") };

/// Most tokens a drafter may be told to propose in a round.
const DRAFT_LEN_MAX: usize = 64;

/// Most paths a draft model may be told to draw.
const PATHS_MAX: u32 = 16;

/// The flags that name a draft model.
const DRAFT_MODEL: &str = "draft_model";

/// What drafts, as given.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Drafts")]
#[command(group = clap::ArgGroup::new(DRAFT_MODEL).multiple(true))]
pub(crate) struct DraftFlags {
    /// GGUF file of the draft model or draft head, which it is, is found out; auto to look for one
    /// with the target's vocabulary, here and on the hub [-md]
    #[arg(long, visible_alias = "model-draft")]
    #[arg(env = "LLAMA_ARG_SPEC_DRAFT_MODEL", value_name = "FILE", group = DRAFT_MODEL)]
    spec_draft_model: Option<PathBuf>,
    /// Download the draft model or draft head from the hub unless it is cached; with -md, that file
    /// of the repository [-hfd] [-hfrd]
    #[arg(long, visible_alias = "hf-repo-draft", value_name = "USER/REPO[:QUANT]")]
    #[arg(env = "LLAMA_ARG_SPEC_DRAFT_HF_REPO", group = DRAFT_MODEL)]
    spec_draft_hf: Option<ModelName>,
    /// File that the output is an edited version of; drafts are taken from it
    #[arg(long, value_name = "FILE")]
    prediction: Option<PathBuf>,
    /// Drafters, separated by commas [default: draft-model with --spec-draft-model, edit with
    /// --prediction, draft-mtp if the model has such a head, else none]
    #[arg(long, env = "LLAMA_ARG_SPEC_TYPE", value_name = "LIST", value_delimiter = ',')]
    spec_type: Option<Vec<SpecType>>,
    /// Maximum draft length in tokens per path [default: 31 for edit and suffix; else 8, or 4
    /// with --spec-adaptive off]
    #[arg(long, visible_aliases = ["draft-max", "draft", "draft-n"], value_name = "N")]
    #[arg(env = "LLAMA_ARG_SPEC_DRAFT_N_MAX")]
    spec_draft_n_max: Option<usize>,
    /// Whether to adapt the draft length to measured cost and acceptance, down to no drafts if they
    /// do not pay [default: on, but off with --seed unless the rule is coupled, so that the same
    /// seed gives the same output]
    #[arg(long, value_name = "ON|OFF")]
    spec_adaptive: Option<Switch>,
    /// Number of paths per round that the draft model draws, or --spec-type edit proposes if it is
    /// alone; they are verified together [default: 1]
    #[arg(long, visible_alias = "draft-paths", value_name = "K")]
    spec_draft_paths: Option<u32>,
    /// How the paths are drawn [default: distinct for traversal and rsd, else independent]
    #[arg(long, value_name = "HOW", value_parser = paths(), requires = "spec_draft_paths")]
    spec_draft_draw: Option<PathsChoice>,
    /// End a draft when the draft model's likeliest token has a lower probability than this
    /// [default: 0]
    ///
    /// The decision is made before a token is drawn, so the output keeps the target's distribution.
    /// llama.cpp draws a token first and drops it if its probability is too low, which no rule here
    /// could correct.
    #[arg(long, visible_alias = "draft-p-min", value_name = "P", allow_negative_numbers = true)]
    #[arg(env = "LLAMA_ARG_SPEC_DRAFT_P_MIN", requires = DRAFT_MODEL)]
    spec_draft_p_min: Option<f64>,
    /// Whether a gate ends a draft where its next token would not pay, by the draft model's row; it is
    /// trained on every round [default: off]
    ///
    /// The decision is made before a token is drawn, so the output keeps the target's distribution. It
    /// works with --spec-adaptive on, and never ends whole paths (--verify gbv, or traversal and rsd
    /// with --spec-draft-draw independent).
    #[arg(long, value_name = "ON|OFF")]
    spec_gate: Option<Switch>,
    /// File that the gate's numbers are read from, if it is there, and written to at the end; turns the
    /// gate on
    #[arg(long, value_name = "FILE")]
    spec_gate_file: Option<PathBuf>,
    /// Verification rule; all of these are lossless [default: block, or pooled for several paths]
    #[arg(long, value_name = "RULE", value_parser = rule())]
    verify: Option<RuleChoice>,
    /// Accept more drafts at the price of exactness: budget:0.02, account:0.02, defer:0.02 (total
    /// variation from the target, per token; defer shows tokens before the target has scored them),
    /// or near:1.0@0.02 at temperature 0 [default: none, lossless]
    ///
    /// The bound is kept for every drafter, and what was spent of it is reported. See docs/lossy.md.
    #[arg(long, value_name = "MODE")]
    lossy: Option<LossyMode>,
    /// Threads for the draft model's pass over one token [-td] [default: as --threads]
    #[arg(long, visible_alias = "threads-draft", value_name = "N")]
    #[arg(allow_negative_numbers = true, requires = DRAFT_MODEL)]
    spec_draft_threads: Option<i32>,
    /// Threads for the draft model's pass over several tokens [-tbd] [default: as for one token]
    #[arg(long, visible_alias = "threads-batch-draft")]
    #[arg(value_name = "N", allow_negative_numbers = true, requires = DRAFT_MODEL)]
    spec_draft_threads_batch: Option<i32>,
    /// Number of the draft model's layers on the GPU, or all [-ngld] [default: all]
    #[arg(long, visible_aliases = ["gpu-layers-draft", "n-gpu-layers-draft"])]
    #[arg(env = "LLAMA_ARG_N_GPU_LAYERS_DRAFT", value_name = "N")]
    #[arg(value_parser = gpu_layers, requires = DRAFT_MODEL)]
    spec_draft_ngl: Option<GpuLayers>,
    /// Number format of the draft model's cached keys [-ctkd] [default: as for the target]
    #[arg(long, visible_alias = "cache-type-k-draft", value_name = "TYPE")]
    #[arg(env = "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K")]
    #[arg(value_parser = cache_type(), requires = DRAFT_MODEL)]
    spec_draft_type_k: Option<CacheType>,
    /// Number format of the draft model's cached values [-ctvd] [default: as for the target]
    #[arg(long, visible_alias = "cache-type-v-draft", value_name = "TYPE")]
    #[arg(env = "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V")]
    #[arg(value_parser = cache_type(), requires = DRAFT_MODEL)]
    spec_draft_type_v: Option<CacheType>,
}

/// One drafter, with what it drafts from.
#[derive(Debug, Clone)]
pub(crate) enum DrafterConfig {
    /// A smaller model.
    Model(Box<DraftModelConfig>),
    /// The text's own n-grams.
    Ngram,
    /// The text's own suffixes.
    Suffix,
    /// The same, and those of earlier outputs of the same tenant.
    TenantSuffix,
    /// The text that is edited: that in a file, or the prompt.
    Edit(Option<PathBuf>),
}

impl DrafterConfig {
    /// A draft model that is run as the target is.
    pub(crate) fn like_target(path: PathBuf, target: &ModelConfig) -> Self {
        let kind = kind_of(&path, target);
        let model = ModelConfig { path, ..target.clone() };
        Self::Model(Box::new(DraftModelConfig { model, confidence_min: 0.0, kind }))
    }

    /// A drafter that needs nothing but the text; none for the other kinds.
    pub(crate) fn looking_up(kind: DrafterKind) -> Option<Self> {
        match kind {
            DrafterKind::Ngram => Some(Self::Ngram),
            DrafterKind::Suffix => Some(Self::Suffix),
            SHARED_SUFFIX => Some(Self::TenantSuffix),
            // Which has a prediction is the benchmark's to say.
            DrafterKind::Edit | PREDICTION | ORACLE => Some(Self::Edit(None)),
            _ => None,
        }
    }

    /// The file of its model, if it has one.
    pub(crate) fn path(&self) -> Option<&PathBuf> {
        match self {
            Self::Model(draft) => Some(&draft.model.path),
            _ => None,
        }
    }

    /// What it is.
    pub(crate) fn kind(&self) -> DrafterKind {
        match self {
            Self::Model(draft) => draft.kind,
            Self::Ngram => DrafterKind::Ngram,
            Self::Suffix | Self::TenantSuffix => DrafterKind::Suffix,
            Self::Edit(_) => DrafterKind::Edit,
        }
    }
}

/// What the model in a file drafts as. Where the file is not there, loading it will say so.
fn kind_of(path: &PathBuf, target: &ModelConfig) -> DrafterKind {
    let Ok(header) = Model::check(path) else { return DrafterKind::DraftModel };
    let predicts = header.prediction_layers > 0 && *path == target.path;
    match &*header.architecture {
        "eagle3" => DrafterKind::Eagle3,
        "dflash" => DrafterKind::Dflash,
        _ if predicts || header.head_only => DrafterKind::Mtp,
        _ => DrafterKind::DraftModel,
    }
}

/// Whether the target has a head of its own, and a memory that can be drafted for.
fn has_usable_head(target: &ModelConfig) -> bool {
    let header = Model::check(&target.path);
    header.is_ok_and(|header| LlamaHead::is_in(&header) && header.can_be_drafted_for())
}

/// A draft model, and when it stops.
#[derive(Debug, Clone)]
pub(crate) struct DraftModelConfig {
    /// What it drafts as.
    pub(crate) kind: DrafterKind,
    /// The model; the target's own file if its blocks draft.
    pub(crate) model: ModelConfig,
    /// It stops where its likeliest token is less probable.
    pub(crate) confidence_min: f64,
}

/// What drafts, checked.
#[derive(Debug)]
pub(crate) struct DraftConfig {
    /// The drafters, in the order they propose.
    pub(crate) drafters: Vec<DrafterConfig>,
    /// Tokens of a path: always, or at most where drafts are adapted.
    pub(crate) len: NonZeroUsize,
    /// Whether that was said.
    pub(crate) len_said: bool,
    /// The same for drafters that heed their price.
    pub(crate) priced_len: NonZeroUsize,
    /// Whether a controller decides what is drafted.
    pub(crate) adaptive: bool,
    /// Whether a gate ends drafts.
    pub(crate) gate: GateConfig,
    /// Paths the draft model draws.
    pub(crate) width: NonZeroUsize,
    /// How they are drawn.
    pub(crate) scheme: Scheme,
    /// How drafts are judged, unless with loss.
    pub(crate) rule: RuleChoice,
    /// How they are judged with loss.
    pub(crate) lossy: Option<LossyMode>,
}

impl DraftConfig {
    /// Tokens that a recurrent state must be able to forget: each takes as much memory as the state, so
    /// a few unless more were asked for.
    pub(crate) fn rollback(&self) -> u32 {
        let few = if self.len_said { usize::MAX } else { LEN_FIXED.get() };
        match self.drafters.is_empty() {
            true => 0,
            false => u32::try_from(self.len.get().min(few)).unwrap_or(u32::MAX),
        }
    }

    /// The rule that judges drafts; a seed fixes the noise of the one that takes it from there.
    pub(crate) fn rule_with_seed(&self, seed: u64) -> Arc<dyn Rule> {
        self.lossy.map_or_else(|| self.rule.with_seed(seed), LossyMode::rule)
    }

    /// Looks whether a lossy mode fits how tokens are drawn.
    pub(crate) fn check_lossy(&self, sampling: &SamplingConfig) -> Result<(), ConfigError> {
        let drafts = Drafts {
            drafters: self.drafters.len(),
            has_model: self.drafters.iter().any(|drafter| drafter.kind().is_model()),
            may_stop: self.may_stop(),
            width: self.width.get(),
            paths: None,
        };
        match self.lossy {
            Some(mode) => {
                let head = self.drafters.iter().any(|drafter| drafter.kind().is_head());
                mode.meets(Demands { head, ..Demands::default() })?;
                Ok(mode.admits(&drafts, &sampling.sampling)?)
            }
            None => Ok(()),
        }
    }

    /// Whether a draft may end before its length.
    pub(crate) fn may_stop(&self) -> bool {
        self.drafters.iter().any(|drafter| match drafter {
            DrafterConfig::Model(draft) => draft.confidence_min > 0.0,
            _ => false,
        })
    }
}

impl DraftFlags {
    /// Whether layers were to go to a GPU.
    pub(crate) fn wants_gpu(&self) -> bool {
        self.spec_draft_ngl.is_some_and(|layers| layers != GpuLayers::Last(0))
    }

    /// Whether a file was named that holds what is expected.
    pub(crate) fn predicts(&self) -> bool {
        self.prediction.is_some()
    }

    /// The loss that is allowed.
    pub(crate) fn lossy(&self) -> Option<LossyMode> {
        self.lossy
    }

    /// The rule, where one was named.
    pub(crate) fn rule_said(&self) -> Option<RuleChoice> {
        self.verify
    }

    /// The same with the draft model's file, which is brought if it is named and not here. A head
    /// that is wanted without a file is looked for beside the target, and `auto` everywhere.
    pub(crate) fn fetched(mut self, hub: &HubFlags, target: &Path) -> Result<Self, ConfigError> {
        self = self.found(hub, target)?;
        if let Some(name) = self.spec_draft_hf.take() {
            let file = self.spec_draft_model.take();
            let file = file.map(|file| Want::File(file.to_string_lossy().into_owned()));
            let request = Request { name, want: file.unwrap_or(Want::Drafter) };
            self.spec_draft_model = Some(hub.access.fetch(request)?);
        }
        if let (None, Some(name)) = (&self.spec_draft_model, hub.name()) {
            let kinds = self.spec_type.iter().flatten().flat_map(|kind| kind.head_files());
            let kinds: Vec<HeadKind> = kinds.copied().collect();
            if !kinds.is_empty() {
                let request = Request { name: name.clone(), want: Want::Head(kinds) };
                self.spec_draft_model = hub.access.fetch_if_any(request)?;
            }
        }
        Ok(self)
    }

    /// Decides every default. The draft model is run as the target is, unless told otherwise.
    /// `seeded`: a text is to be made again.
    pub(crate) fn resolve(
        self,
        target: &ModelConfig,
        seeded: bool,
    ) -> Result<DraftConfig, ConfigError> {
        let types = self.types(target)?;
        let drafters: Vec<DrafterConfig> =
            types.iter().map(|kind| self.drafter(*kind, target)).collect::<Result<_, _>>()?;
        let again = seeded && self.verify != Some(RuleChoice::Coupled);
        let defers = matches!(self.lossy, Some(LossyMode::Defer(_)));
        if defers && self.spec_adaptive == Some(Switch::On) {
            return Err(ConfigError::Unused {
                flag: "--spec-adaptive",
                reason: "--lossy defer decides when the target runs",
                instead: "leave it out",
            });
        }
        let adaptive = match self.spec_adaptive {
            None => !again && !defers,
            Some(switch) => switch == Switch::On,
        };
        let len = match self.spec_draft_n_max {
            None if adaptive => LEN_ADAPTED_MAX,
            None => LEN_FIXED,
            Some(len) => NonZeroUsize::new(len)
                .filter(|len| len.get() <= DRAFT_LEN_MAX)
                .ok_or_else(|| {
                    let expected =
                        format!("1 to {DRAFT_LEN_MAX}, or --spec-type none for no drafts");
                    ConfigError::out_of_range("--spec-draft-n-max", len, expected)
                })?,
        };
        let priced_len = if self.spec_draft_n_max.is_some() { len } else { LEN_PRICED_MAX };
        let priced = |kind: &SpecType| matches!(kind, SpecType::Edit | SpecType::Suffix);
        let len = if types.iter().any(priced) { priced_len } else { len };
        let width = self.width()?;
        let has_model = types.iter().any(|kind| kind.is_model());
        let gate = GateConfig::resolve(self.spec_gate, self.spec_gate_file, adaptive, has_model)?;
        if width.get() > 1 && !has_model && types != [SpecType::Edit] {
            return Err(ConfigError::Unused {
                flag: "--spec-draft-paths",
                reason: "these drafters propose one path",
                instead: "add --spec-draft-model FILE, or draft by --spec-type edit alone",
            });
        }
        if let Some(mode) = self.lossy {
            mode.stands_in_for(self.verify)?;
        }
        let several = drafters.len() > 1 || width.get() > 1;
        let default = if several { RuleChoice::Pooled } else { RuleChoice::Block };
        let rule = self.verify.unwrap_or(default);
        let scheme = rule.scheme(&Drafts {
            drafters: drafters.len(),
            has_model: drafters.iter().any(|drafter| matches!(drafter, DrafterConfig::Model(_))),
            may_stop: self.spec_draft_p_min.is_some_and(|min| min > 0.0),
            width: width.get() as usize,
            paths: self.spec_draft_draw,
        })?;
        let width = NonZeroUsize::try_from(width).expect("at most PATHS_MAX");
        let len_said = self.spec_draft_n_max.is_some();
        let lossy = self.lossy;
        Ok(DraftConfig {
            drafters,
            len,
            len_said,
            priced_len,
            adaptive,
            gate,
            width,
            scheme,
            rule,
            lossy,
        })
    }

    /// Paths of the draft model.
    fn width(&self) -> Result<NonZeroU32, ConfigError> {
        let width = within("--spec-draft-paths", self.spec_draft_paths.unwrap_or(1), 1..=PATHS_MAX);
        Ok(NonZeroU32::new(width?).expect("1 or more"))
    }

    /// What drafts. All that was said about drafting is used, or `none` was said.
    fn types(&self, target: &ModelConfig) -> Result<Vec<SpecType>, ConfigError> {
        let Some(said) = &self.spec_type else {
            let model = self.spec_draft_model.as_ref().map(|_| SpecType::DraftModel);
            let prediction = self.prediction.as_ref().map(|_| SpecType::Edit);
            let types: Vec<SpecType> = model.into_iter().chain(prediction).collect();
            return match types.is_empty() {
                true if has_usable_head(target) => Ok(vec![SpecType::DraftMtp]),
                true => self.plain(),
                false => Ok(types),
            };
        };
        let mut types: Vec<SpecType> = Vec::new();
        for kind in said {
            if types.contains(kind) {
                return Err(ConfigError::DrafterTwice { drafter: kind.name() });
            }
            types.push(*kind);
        }
        if types.contains(&SpecType::None) {
            let some = types.iter().find(|kind| **kind != SpecType::None);
            return match some {
                Some(kind) => Err(ConfigError::NoneAndSome { drafter: kind.name() }),
                None => Ok(Vec::new()),
            };
        }
        let unused = |flag, instead| {
            let reason = "--spec-type names other drafters";
            Err(ConfigError::Unused { flag, reason, instead })
        };
        if self.spec_draft_model.is_some() && !types.iter().any(|kind| kind.is_model()) {
            return unused("--spec-draft-model", "add draft-model to --spec-type");
        }
        if self.prediction.is_some() && !types.contains(&SpecType::Edit) {
            return unused("--prediction", "add edit to --spec-type");
        }
        Ok(types)
    }

    /// No drafter, where nothing was said that needs one.
    fn plain(&self) -> Result<Vec<SpecType>, ConfigError> {
        let needing = [
            ("--spec-draft-n-max", self.spec_draft_n_max.is_some()),
            ("--spec-adaptive", self.spec_adaptive == Some(Switch::On)),
            ("--spec-draft-paths", self.spec_draft_paths.is_some()),
            ("--verify", self.verify.is_some_and(|rule| rule != RuleChoice::Coupled)),
        ];
        match needing.into_iter().find(|(_, said)| *said) {
            None => Ok(Vec::new()),
            Some((flag, _)) => Err(ConfigError::Unused {
                flag,
                reason: "nothing drafts",
                instead: "add --spec-draft-model FILE or --spec-type ngram",
            }),
        }
    }

    fn drafter(&self, kind: SpecType, target: &ModelConfig) -> Result<DrafterConfig, ConfigError> {
        let lacking = |flag| ConfigError::NothingToDraftFrom { drafter: kind.name(), flag };
        Ok(match kind {
            SpecType::Ngram => DrafterConfig::Ngram,
            SpecType::Suffix => DrafterConfig::Suffix,
            SpecType::Edit => DrafterConfig::Edit(self.prediction.clone()),
            SpecType::DraftMtp if self.spec_draft_model.is_none() => {
                self.named(kind, target.path.clone(), target)?
            }
            SpecType::DraftModel
            | SpecType::DraftEagle3
            | SpecType::DraftMtp
            | SpecType::DraftDflash
            | SpecType::None => {
                let path = self.spec_draft_model.clone();
                self.named(kind, path.ok_or_else(|| lacking("--spec-draft-model"))?, target)?
            }
        })
    }

    /// The drafter in a file, which must be what it was called.
    fn named(
        &self,
        called: SpecType,
        path: PathBuf,
        target: &ModelConfig,
    ) -> Result<DrafterConfig, ConfigError> {
        let draft = self.draft_model(path, target)?;
        // A head is found out also where it is called a draft model.
        let head = called.is_model() && called != SpecType::DraftModel;
        if head && draft.kind.name() != called.name() {
            let file = draft.model.path;
            return Err(ConfigError::OtherDrafter { file, drafter: called.name() });
        }
        Ok(DrafterConfig::Model(Box::new(draft)))
    }

    fn draft_model(
        &self,
        path: PathBuf,
        target: &ModelConfig,
    ) -> Result<DraftModelConfig, ConfigError> {
        let confidence_min = self.spec_draft_p_min.unwrap_or(0.0);
        let confidence_min = within("--spec-draft-p-min", confidence_min, 0.0..=1.0)?;
        let as_target = &target.engine;
        let own = threads("--spec-draft-threads", self.spec_draft_threads)?;
        let own_batch = threads("--spec-draft-threads-batch", self.spec_draft_threads_batch)?;
        let engine = EngineOptions {
            threads: if self.spec_draft_threads.is_some() { own } else { as_target.threads },
            threads_batch: match (self.spec_draft_threads_batch, self.spec_draft_threads) {
                (Some(_), _) => own_batch,
                (None, Some(_)) => own,
                (None, None) => as_target.threads_batch,
            },
            cache_keys: self.spec_draft_type_k,
            cache_values: self.spec_draft_type_v,
            paths: self.width()?,
            ..as_target.clone()
        };
        let gpu_layers = self.spec_draft_ngl.unwrap_or_default();
        let kind = kind_of(&path, target);
        let model = ModelConfig { path, gpu_layers, load_mode: target.load_mode, engine };
        Ok(DraftModelConfig { kind, model, confidence_min })
    }
}
