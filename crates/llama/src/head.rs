//! Draft heads: small models that read a target's hidden states.

use forerun_decode::{BlockShape, Engine, EngineError, Head, Output, Pairing, Slot, Step, Token};

use crate::engine::{HeadInput, HiddenState, LlamaEngine};
use crate::ffi::context::HeadOf;
use crate::gguf::Header;
use crate::model::{HeadKind, Model};
use crate::options::EngineOptions;
use crate::setup::SetupError;

/// Architectures whose graphs give what goes into their layers. llama.cpp ends the process where it is
/// asked of another.
const GIVE_LAYER_INPUTS: [&str; 20] = [
    "bailingmoe3",
    "deepseek4",
    "gemma4",
    "gpt-oss",
    "hunyuan_vl",
    "lfm2",
    "lfm2moe",
    "llama",
    "mimo2",
    "minimax-01",
    "minimax-m2",
    "muse-glimmer",
    "nanbeige",
    "nemotron_h",
    "qwen3",
    "qwen35",
    "qwen35moe",
    "qwen3moe",
    "qwen3next",
    "qwen4exp",
];

/// Whether llama.cpp gives what goes into the layers of an architecture, as most heads want it.
pub fn gives_layer_inputs(architecture: &str) -> bool {
    GIVE_LAYER_INPUTS.contains(&architecture)
}

impl LlamaEngine {
    /// Has passes give what goes into these layers, one after the other as a feature row of every token, from
    /// now on. `model` is the engine's.
    ///
    /// # Errors
    /// If the architecture does not give it, or there is no such layer.
    pub fn give_layer_inputs(&mut self, model: &Model, layers: &[u32]) -> Result<(), SetupError> {
        let architecture = model.architecture();
        if !gives_layer_inputs(&architecture) {
            return Err(SetupError::NoHiddenStates { architecture });
        }
        self.give(states_of(layers.iter().copied(), model)?);
        Ok(())
    }
}

/// Architectures with a graph for their own prediction blocks.
const PREDICT: [&str; 14] = [
    "bailingmoe3",
    "cohere2moe",
    "deepseek2",
    "deepseek32",
    "deepseek4",
    "glm-dsa",
    "glm4moe",
    "hy_v3",
    "mimo2",
    "nemotron_h_moe",
    "qwen35",
    "qwen35moe",
    "qwen3next",
    "step35",
];

/// Those of them whose graphs know several such blocks. llama.cpp ends the process where another has
/// more than one.
const PREDICT_IN_TURN: [&str; 3] = ["hy_v3", "mimo2", "step35"];

/// Tokens of a DFlash block whose file does not say.
const BLOCK_LEN: usize = 16;

/// A head with a cache for each slot.
#[derive(Debug)]
pub struct LlamaHead {
    /// One, or one for each of a model's blocks that predict.
    engines: Vec<LlamaEngine>,
    kind: HeadKind,
    /// Numbers of a hidden row that goes in with a token.
    hidden_len: usize,
    /// Numbers of the target's feature row.
    feature_len: usize,
    block: Option<BlockShape>,
    /// No hidden states at all, for passes that are only timed.
    zeros: Vec<f32>,
}

impl LlamaHead {
    /// Makes a head for an engine, whose passes give hidden states from then on. `model` is the head's
    /// file, or the target's own model if its blocks are the head.
    ///
    /// # Errors
    /// If the model is no head, or not one of this target; if the target's architecture does not give
    /// what it reads; as for [`LlamaEngine::new`].
    pub fn new(
        model: &Model,
        target: (&Model, &mut LlamaEngine),
        options: &EngineOptions,
    ) -> Result<Self, SetupError> {
        let (target_model, target) = target;
        let kind = model.head_kind().ok_or(SetupError::NoHead)?;
        let states = match kind {
            HeadKind::Eagle3 | HeadKind::Dflash => layer_inputs(model, target_model)?,
            HeadKind::Mtp => last_hidden(model, target_model)?,
        };
        let architecture = target_model.architecture();
        let given = match kind {
            HeadKind::Eagle3 | HeadKind::Dflash => gives_layer_inputs(&architecture),
            HeadKind::Mtp => PREDICT.contains(&&*architecture),
        };
        if !given {
            return Err(SetupError::NoHiddenStates { architecture });
        }
        let blocks = match kind {
            HeadKind::Eagle3 | HeadKind::Dflash => vec![None],
            HeadKind::Mtp => (0..model.raw().prediction_layers()).map(Some).collect(),
        };
        if blocks.len() > 1 && !PREDICT_IN_TURN.contains(&&*architecture) {
            let kind =
                "one of several in a file, which llama.cpp does not run for this architecture";
            return Err(SetupError::HeadNotRun { kind });
        }
        let (block, input) = match kind {
            HeadKind::Eagle3 => (None, HeadInput::Paired { hidden_len: model.raw().hidden_len() }),
            HeadKind::Mtp => {
                (None, HeadInput::Paired { hidden_len: model.raw().last_hidden_len() })
            }
            HeadKind::Dflash => {
                let causal =
                    model.metadata("dflash.attention.causal").is_some_and(|it| it == "true");
                (Some(block_shape(model)?), HeadInput::Blocks { causal })
            }
        };
        let context_len = target.context_len().min(model.context_len());
        // A head has no recurrent state of its own.
        let mut options = EngineOptions { rollback: 0, ..options.clone() };
        if block.is_some() {
            // llama.cpp ends the process if tokens that see each other do not fit one pass.
            options.batch_len = options.pass_len;
        }
        let engine = |block| {
            let head = HeadOf { target: target.handle(), block };
            LlamaEngine::build(model, &options, context_len, Some((head, input)))
        };
        let engines = blocks.into_iter().map(engine).collect::<Result<Vec<_>, _>>()?;
        target.give(states);
        let feature_len = target.feature_len();
        let hidden_len = match input {
            HeadInput::Paired { hidden_len } => hidden_len,
            HeadInput::Blocks { .. } => feature_len,
        };
        Ok(Self { engines, kind, hidden_len, feature_len, block, zeros: Vec::new() })
    }

    /// Whether a model has blocks that predict, of an architecture whose head can be run.
    pub fn is_in(model: &Header) -> bool {
        match model.prediction_layers {
            0 => false,
            1 => PREDICT.contains(&&*model.architecture),
            _ => PREDICT_IN_TURN.contains(&&*model.architecture),
        }
    }

    /// What kind it is.
    pub fn kind(&self) -> HeadKind {
        self.kind
    }

    /// The head that drafts the first token. All have the same shape.
    fn first(&self) -> &LlamaEngine {
        &self.engines[0]
    }
}

/// How a DFlash head drafts.
fn block_shape(model: &Model) -> Result<BlockShape, SetupError> {
    let number = |key: &str| model.metadata(&format!("dflash.{key}"))?.parse::<usize>().ok();
    if number("selector_top_k").is_some_and(|count| count > 0) {
        let kind = "DFlash2, which gives no rows to draw from";
        return Err(SetupError::HeadNotRun { kind });
    }
    let mask = model.raw().mask().ok_or(SetupError::HeadNotRun { kind: "without a mask token" })?;
    let size = number("block_size").unwrap_or(BLOCK_LEN).max(2);
    // DSpark's blocks begin with the first drafted token, unless its file says otherwise.
    let anchored = model.metadata("dflash.sample_from_anchor");
    let from_newest = model.is_chained() && anchored.is_none_or(|it| it == "true");
    let first_row = usize::from(!from_newest);
    Ok(BlockShape { mask: Token(mask), len_max: size - first_row, first_row })
}

/// What blocks that predict read of a target, if they are its own or were taken from it.
fn last_hidden(head: &Model, target: &Model) -> Result<Vec<HiddenState>, SetupError> {
    let shape = |model: &Model| {
        let (vocab, hidden) = (model.vocab_len(), model.raw().last_hidden_len());
        format!("{} of {vocab} tokens and {hidden} numbers a state", model.architecture())
    };
    let (own, other) = (shape(head), shape(target));
    if own != other {
        let reason = format!("it is of a {own}, and the target is a {other}");
        return Err(SetupError::OtherTarget { reason });
    }
    Ok(vec![HiddenState::Last])
}

/// What a head in a file of its own reads of a target, if it is one of that target.
fn layer_inputs(head: &Model, target: &Model) -> Result<Vec<HiddenState>, SetupError> {
    let other = |reason: String| SetupError::OtherTarget { reason };
    let own = match head.head_kind() {
        Some(HeadKind::Dflash) => Some(head.raw().hidden_len().to_string()),
        _ => head.metadata("eagle3.target_hidden_size"),
    };
    let width = target.raw().hidden_len();
    if let Some(own) = own.filter(|own| *own != width.to_string()) {
        return Err(other(format!(
            "it reads states of {own} numbers, and the target's have {width}"
        )));
    }
    let (own, words) = (head.vocab_len(), target.vocab_len());
    if own != words {
        return Err(other(format!("it has {own} tokens, and the target has {words}")));
    }
    states_of(head.raw().target_layers(), target)
}

/// What goes into these layers of a target, if it has them.
fn states_of(
    layers: impl IntoIterator<Item = u32>,
    target: &Model,
) -> Result<Vec<HiddenState>, SetupError> {
    let count = target.layer_count();
    let state = |layer: u32| match (layer as usize) < count {
        true => Ok(HiddenState::LayerInput(layer)),
        false => {
            let reason = format!("it reads layer {layer}, and the target has {count}");
            Err(SetupError::OtherTarget { reason })
        }
    };
    layers.into_iter().map(state).collect()
}

impl Engine for LlamaHead {
    fn vocab_len(&self) -> usize {
        self.first().vocab_len()
    }

    fn context_len(&self) -> usize {
        self.first().context_len()
    }

    fn slot_count(&self) -> usize {
        self.first().slot_count()
    }

    fn paths_max(&self) -> usize {
        self.first().paths_max()
    }

    fn can_cut(&self) -> bool {
        self.first().can_cut()
    }

    fn can_forget(&self, slot: Slot, tokens: usize) -> bool {
        self.engines.iter().all(|engine| engine.can_forget(slot, tokens))
    }

    fn feature_len(&self) -> usize {
        self.first().feature_len()
    }

    fn extend(&mut self, steps: &[Step<'_>], output: &mut Output) -> Result<(), EngineError> {
        if self.block.is_some() {
            return self.engines[0].extend(steps, output);
        }
        let tokens: usize = steps.iter().map(|step| step.trunk.len() + step.tree.len()).sum();
        self.zeros.resize(tokens * self.hidden_len, 0.0);
        self.engines[0].extend_hidden(steps, &self.zeros, output)
    }

    fn copy(&mut self, from: Slot, to: Slot, len: usize) -> bool {
        self.engines.iter_mut().all(|engine| engine.copy(from, to, len))
    }
}

impl Head for LlamaHead {
    fn pairing(&self) -> Pairing {
        match self.kind {
            HeadKind::Eagle3 | HeadKind::Dflash => Pairing::AfterFirst,
            HeadKind::Mtp => Pairing::FromFirst,
        }
    }

    fn hidden_len(&self) -> usize {
        self.hidden_len
    }

    fn head_count(&self) -> usize {
        self.engines.len()
    }

    fn block(&self) -> Option<BlockShape> {
        self.block
    }

    fn encode(&mut self, features: &[f32], hidden: &mut Vec<f32>) -> Result<(), EngineError> {
        match self.kind {
            HeadKind::Eagle3 => self.engines[0].encode(features, self.feature_len, hidden),
            HeadKind::Mtp | HeadKind::Dflash => {
                hidden.extend_from_slice(features);
                Ok(())
            }
        }
    }

    fn extend_hidden(
        &mut self,
        head: usize,
        steps: &[Step<'_>],
        hidden: &[f32],
        output: &mut Output,
    ) -> Result<(), EngineError> {
        self.engines[head].extend_hidden(steps, hidden, output)
    }
}
