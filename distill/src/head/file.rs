//! Heads from their target's file, and files of heads.
//!
//! A head begins as what it is to become: the target's last block, over the state that goes into it. Its file
//! has the target's tokenizer and no embeddings: llama.cpp takes the target's.

use std::path::Path;

use anyhow::{Context, ensure};
use forerun_llama::{Model, ModelFile, Numbers, QuantizeType, Value, gives_layer_inputs};
use forerun_verify::Philox;

use super::shape::LAYERS;
use super::{DraftHead, DraftVocab, HeadShape};
use crate::collect::unit;
use crate::gguf::write_as;
use crate::model::{Activation, EMBEDDING, OUTPUT, OUTPUT_NORM, Pairs, Shape, block_name};

/// Numbers of a head of attention where the target does not have one number for all blocks.
const HEAD_LEN: usize = 64;
/// How far weights that nothing is known about are from zero, as a standard deviation.
const SPREAD: f64 = 0.02;
/// What projections of both inputs are scaled by at first: each of them was made to read one.
const OF_TWO: f32 = 0.7;

/// The sizes of a head for the target in a file that drafts `drafted` tokens, or all if there are fewer.
///
/// # Errors
/// If it cannot have one, or not of these layers.
pub fn shape(
    file: &ModelFile,
    layers: Option<&[usize]>,
    drafted: usize,
) -> anyhow::Result<HeadShape> {
    let shown = file.path().display();
    let header = Model::check(file.path())?;
    let architecture = &header.architecture;
    ensure!(
        gives_layer_inputs(architecture) && header.can_be_drafted_for(),
        "{shown}: llama.cpp does not give the states of {architecture} that a head reads: leave --head out \
         and train a draft model, of its own blocks (--keep-blocks) or another (--student)"
    );
    let number = |name: &str| {
        file.number(&format!("{architecture}.{name}")).map(|it| it as usize).filter(|&it| it > 0)
    };
    let float = |name: &str| file.float(&format!("{architecture}.{name}")).map(f64::from);
    let embedding = file.tensor_sizes(EMBEDDING);
    let embedding = embedding.with_context(|| format!("{shown}: it has no embeddings"))?;
    let (target_vocab, width) = (embedding[0], embedding[1]);
    let blocks = number("block_count");
    let blocks = blocks.with_context(|| format!("{shown}: it does not state its blocks"))?;
    ensure!(drafted > 0, "--head-vocab 0: a head needs something to draft");
    // Some targets have other numbers of heads in other blocks; a head need not be like any.
    let stated = number("attention.head_count");
    let stated_len = number("attention.key_length");
    let head = stated_len.or(stated.map(|it| width / it)).unwrap_or(HEAD_LEN);
    let heads = stated.unwrap_or((width / head).max(1));
    let key_heads = number("attention.head_count_kv").filter(|it| heads.is_multiple_of(*it));
    let block = Shape {
        vocab: drafted.min(target_vocab),
        width,
        blocks: 1,
        feed_forward: number("feed_forward_length").unwrap_or(4 * width),
        heads,
        key_heads: key_heads.unwrap_or(heads),
        head,
        biased: false,
        normed_heads: false,
        normed_results: false,
        activation: Activation::Silu,
        embedding_scale: 1.0,
        pairs: Pairs::Neighbours,
        base: float("rope.freq_base").unwrap_or(10_000.0),
        epsilon: float("attention.layer_norm_rms_epsilon").unwrap_or(1e-5),
        window: None,
        trained_vocab: None,
    };
    Ok(HeadShape { block, target_vocab, layers: chosen(layers, blocks)? })
}

/// The layers to read: those that were named, or an early, the middle and the last one.
fn chosen(layers: Option<&[usize]>, blocks: usize) -> anyhow::Result<[u32; LAYERS]> {
    let middle = blocks / 2;
    let usual =
        [(blocks / 10).max(1).min(middle.saturating_sub(1)), middle, blocks.saturating_sub(1)];
    let layers = layers.unwrap_or(&usual);
    ensure!(
        layers.len() == LAYERS && layers.is_sorted_by(|a, b| a < b) && layers[LAYERS - 1] < blocks,
        "--head-layers: a head reads {LAYERS} layers in rising order, and the target's are numbered from 0 \
         to {}",
        blocks.saturating_sub(1)
    );
    let mut chosen = [0; LAYERS];
    for (chosen, &layer) in chosen.iter_mut().zip(layers) {
        *chosen = u32::try_from(layer)?;
    }
    Ok(chosen)
}

/// A head for the target in a file that has learned nothing yet, for sequences of at most `len` tokens.
///
/// # Errors
/// If a tensor cannot be read.
pub fn head(
    file: &ModelFile,
    shape: HeadShape,
    vocab: &DraftVocab,
    (len, seed): (usize, u64),
) -> anyhow::Result<DraftHead<f32>> {
    let embedding = file.tensor(EMBEDDING).context("the embeddings cannot be read")?.values;
    let width = shape.block.width;
    let mut beginning = Beginning { file, shape: &shape, chance: Philox::new(seed) };
    let mut weights = Vec::new();
    for (name, sizes) in shape.tensors() {
        weights.push(match &*name {
            OUTPUT => {
                let own = file.tensor(OUTPUT);
                let rows = own.as_ref().map_or(&embedding, |it| &it.values);
                let row = |&token: &u32| &rows[token as usize * width..][..width];
                vocab.tokens().iter().flat_map(row).copied().collect()
            }
            _ => beginning.tensor(&name, &sizes),
        });
    }
    Ok(DraftHead::new(shape, embedding, weights, len)?)
}

/// What the tensors of a head begin as.
struct Beginning<'a> {
    file: &'a ModelFile,
    shape: &'a HeadShape,
    chance: Philox,
}

impl Beginning<'_> {
    fn tensor(&mut self, name: &str, sizes: &[usize]) -> Vec<f32> {
        let architecture = self.file.text("general.architecture").unwrap_or_default();
        let blocks = self.file.number(&format!("{architecture}.block_count"));
        let last = blocks.map_or(0, |it| it as usize).saturating_sub(1);
        let part = name.strip_prefix("blk.0.").unwrap_or(name);
        let taken = match part {
            "fc.weight" => Some(self.last_state(sizes)),
            OUTPUT_NORM => self.target(OUTPUT_NORM, sizes),
            "attn_norm.weight" => self.target(&block_name(0, part), sizes),
            "attn_norm_2.weight" => self.target(&block_name(last, "attn_norm.weight"), sizes),
            "attn_q.weight" | "attn_k.weight" | "attn_v.weight" => {
                // Those of other architectures are turned by other pairs.
                (architecture == "llama").then(|| self.both(part, last, sizes)).flatten()
            }
            _ => self.target(&block_name(last, part), sizes),
        };
        taken.unwrap_or_else(|| match sizes.len() {
            1 => vec![1.0; sizes[0]],
            _ => self.noise(sizes.iter().product()),
        })
    }

    /// A tensor of the target, if there is one of these sizes.
    fn target(&self, name: &str, sizes: &[usize]) -> Option<Vec<f32>> {
        let alike = self.file.tensor_sizes(name).is_some_and(|it| it == sizes);
        alike.then(|| self.file.tensor(name)).flatten().map(|it| it.values)
    }

    /// The state that goes into the last layer, as it is.
    fn last_state(&self, sizes: &[usize]) -> Vec<f32> {
        let mut values = vec![0.0; sizes.iter().product()];
        let start = sizes[1] - self.shape.block.width;
        for row in 0..sizes[0] {
            values[row * sizes[1] + start + row] = 1.0;
        }
        values
    }

    /// Of the embedding what the first block makes of it, and of the state what the last one does.
    fn both(&self, part: &str, last: usize, sizes: &[usize]) -> Option<Vec<f32>> {
        let half = [sizes[0], sizes[1] / 2];
        let first = self.target(&block_name(0, part), &half)?;
        let last = self.target(&block_name(last, part), &half)?;
        let rows = first.chunks(half[1]).zip(last.chunks(half[1]));
        Some(rows.flat_map(|(a, b)| a.iter().chain(b)).map(|it| OF_TWO * it).collect())
    }

    #[expect(clippy::cast_possible_truncation, reason = "weights are f32")]
    fn noise(&mut self, count: usize) -> Vec<f32> {
        let width = SPREAD * 12.0_f64.sqrt();
        (0..count).map(|_| (width * (unit(&mut self.chance) - 0.5)) as f32).collect()
    }
}

/// Writes a head to a file of this format that llama.cpp runs beside its target.
///
/// # Errors
/// If there is a file already, or no room on the disk.
pub fn export(
    head: &DraftHead<f32>,
    vocab: &DraftVocab,
    target: &Path,
    (output, format): (&Path, QuantizeType),
) -> anyhow::Result<()> {
    let target = ModelFile::open(target)?;
    write_as(output, format, |path| write_whole(head, vocab, &target, path))
}

#[expect(clippy::cast_possible_truncation, reason = "the file states them as f32")]
fn write_whole(
    head: &DraftHead<f32>,
    vocab: &DraftVocab,
    target: &ModelFile,
    path: &Path,
) -> anyhow::Result<()> {
    let HeadShape { block, target_vocab, layers } = head.shape();
    let architecture = target.text("general.architecture").unwrap_or_default();
    let context_len = target.number(&format!("{architecture}.context_length"));
    let context_len = context_len.context("the target does not state its context length")?;
    let name = target.text("general.name").unwrap_or_default();
    let name = format!("{name} eagle3 head").trim_start().to_owned();
    let layers: Vec<i32> = layers.iter().map(|it| it.cast_signed()).collect();
    // Of the target's metadata only what names it and its tokenizer are the head's too.
    let keys = target.keys();
    let foreign = |key: &&String| !key.starts_with("general.") && !key.starts_with("tokenizer.");
    let mut changed: Vec<(&str, Value<'_>)> =
        keys.iter().filter(foreign).map(|key| (&**key, Value::Nothing)).collect();
    changed.push(("general.architecture", Value::Text("eagle3")));
    changed.push(("general.name", Value::Text(&name)));
    changed.push(("eagle3.target_layers", Value::Integers(&layers)));
    changed.push(("eagle3.context_length", Value::Number(context_len)));
    for (key, number) in [
        ("eagle3.target_hidden_size", block.width),
        ("eagle3.vocab_size", *target_vocab),
        ("eagle3.block_count", 1),
        ("eagle3.embedding_length", block.width),
        ("eagle3.feed_forward_length", block.feed_forward),
        ("eagle3.attention.head_count", block.heads),
        ("eagle3.attention.head_count_kv", block.key_heads),
        ("eagle3.attention.key_length", block.head),
        ("eagle3.attention.value_length", block.head),
        ("eagle3.rope.dimension_count", block.head),
    ] {
        changed.push((key, Value::Number(u32::try_from(number)?)));
    }
    let epsilon = ("eagle3.attention.layer_norm_rms_epsilon", block.epsilon);
    for (key, number) in [epsilon, ("eagle3.rope.freq_base", block.base)] {
        changed.push((key, Value::Float(number as f32)));
    }
    let names = head.shape().tensors();
    let weights = names.iter().zip(&head.weights);
    let weights =
        weights.map(|((name, sizes), it)| (&**name, &sizes[..], Numbers::Floats(&it[..])));
    // Without it the output is of the whole vocabulary.
    let d2t: Vec<i64> = vocab.tokens().iter().map(|&token| i64::from(token)).collect();
    let d2t_sizes = [d2t.len()];
    let d2t = ("d2t", &d2t_sizes[..], Numbers::Integers(&d2t));
    let d2t = (!vocab.is_whole()).then_some(d2t);
    target.write_like(path, &changed, weights.chain(d2t))?;
    Ok(())
}
