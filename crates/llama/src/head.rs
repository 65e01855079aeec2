//! Draft heads: small models that read a target's hidden states.

use forerun_decode::{BlockShape, Engine, EngineError, Head, Output, Pairing, Slot, Step, Token};

use crate::engine::{HeadInput, HiddenState, LlamaEngine};
use crate::ffi::context::HeadOf;
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

/// Architectures with a graph for their own prediction blocks.
const PREDICT: [&str; 13] = [
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
];

/// Tokens of a DFlash block whose file does not say.
const BLOCK_LEN: usize = 16;

/// A head with a cache for each slot.
#[derive(Debug)]
pub struct LlamaHead {
    engine: LlamaEngine,
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
        if kind == HeadKind::Mtp && model.raw().prediction_layers() > 1 {
            // llama.cpp ends the process for most architectures.
            return Err(SetupError::HeadNotRun { kind: "one of several in a file" });
        }
        let states = match kind {
            HeadKind::Eagle3 | HeadKind::Dflash => layer_inputs(model, target_model)?,
            HeadKind::Mtp => vec![HiddenState::Last],
        };
        let architecture = target_model.architecture();
        let given = match kind {
            HeadKind::Eagle3 | HeadKind::Dflash => GIVE_LAYER_INPUTS.contains(&&*architecture),
            HeadKind::Mtp => PREDICT.contains(&&*architecture),
        };
        if !given {
            return Err(SetupError::NoHiddenStates { architecture });
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
        let head = HeadOf { target: target.handle(), own_blocks: kind == HeadKind::Mtp };
        // A head has no recurrent state of its own.
        let mut options = EngineOptions { rollback: 0, ..options.clone() };
        if block.is_some() {
            // llama.cpp ends the process if tokens that see each other do not fit one pass.
            options.batch_len = options.pass_len;
        }
        let engine = LlamaEngine::build(model, &options, context_len, Some((head, input)))?;
        target.give(states);
        let feature_len = target.feature_len();
        let hidden_len = match input {
            HeadInput::Paired { hidden_len } => hidden_len,
            HeadInput::Blocks { .. } => feature_len,
        };
        Ok(Self { engine, kind, hidden_len, feature_len, block, zeros: Vec::new() })
    }

    /// What kind it is.
    pub fn kind(&self) -> HeadKind {
        self.kind
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
    let layers = target.layer_count();
    let state = |layer: u32| match (layer as usize).cmp(&layers) {
        std::cmp::Ordering::Less => Ok(HiddenState::LayerInput(layer)),
        _ => Err(other(format!("it reads layer {layer}, and the target has {layers}"))),
    };
    head.raw().target_layers().into_iter().map(state).collect()
}

impl Engine for LlamaHead {
    fn vocab_len(&self) -> usize {
        self.engine.vocab_len()
    }

    fn context_len(&self) -> usize {
        self.engine.context_len()
    }

    fn slot_count(&self) -> usize {
        self.engine.slot_count()
    }

    fn paths_max(&self) -> usize {
        self.engine.paths_max()
    }

    fn can_cut(&self) -> bool {
        self.engine.can_cut()
    }

    fn can_forget(&self, slot: Slot, tokens: usize) -> bool {
        self.engine.can_forget(slot, tokens)
    }

    fn feature_len(&self) -> usize {
        self.engine.feature_len()
    }

    fn extend(&mut self, steps: &[Step<'_>], output: &mut Output) -> Result<(), EngineError> {
        if self.block.is_some() {
            return self.engine.extend(steps, output);
        }
        let tokens: usize = steps.iter().map(|step| step.trunk.len() + step.tree.len()).sum();
        self.zeros.resize(tokens * self.hidden_len, 0.0);
        self.engine.extend_hidden(steps, &self.zeros, output)
    }

    fn copy(&mut self, from: Slot, to: Slot, len: usize) -> bool {
        self.engine.copy(from, to, len)
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

    fn block(&self) -> Option<BlockShape> {
        self.block
    }

    fn encode(&mut self, features: &[f32], hidden: &mut Vec<f32>) -> Result<(), EngineError> {
        match self.kind {
            HeadKind::Eagle3 => self.engine.encode(features, self.feature_len, hidden),
            HeadKind::Mtp | HeadKind::Dflash => {
                hidden.extend_from_slice(features);
                Ok(())
            }
        }
    }

    fn extend_hidden(
        &mut self,
        steps: &[Step<'_>],
        hidden: &[f32],
        output: &mut Output,
    ) -> Result<(), EngineError> {
        self.engine.extend_hidden(steps, hidden, output)
    }
}
