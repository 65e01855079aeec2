//! Students from model files, and model files from students.
//!
//! Weights are read in whatever format they have and trained in `f32`. Queries and keys of the llama
//! architecture lie in its files as its rotary embedding wants them, and go out as they came in.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use forerun_llama::{ModelFile, QuantizeType, Value, quantize};

use crate::model::{
    Activation, EMBEDDING, OUTPUT, OUTPUT_NORM, Pairs, Shape, Student, TrainedVocab, Window,
    block_name,
};
use crate::sealed::beside;

const GEMMA: &str = "gemma3";
const WINDOW_PATTERN: &str = "gemma3.attention.sliding_window_pattern";

/// The sizes of the model in a file.
///
/// # Errors
/// If it has something that is not trained here.
pub fn shape(file: &ModelFile) -> anyhow::Result<Shape> {
    let architecture = file.text("general.architecture").unwrap_or_default();
    let pairs = match &*architecture {
        "llama" => Pairs::Neighbours,
        "qwen2" | "qwen3" | GEMMA => Pairs::Halves,
        other => bail!(
            "{}: a student of the architecture {other} cannot be trained: choose one of llama, qwen2, \
             qwen3 or gemma3",
            file.path().display()
        ),
    };
    let key = |name: &str| format!("{architecture}.{name}");
    let number = |name: &str| {
        let number = file.number(&key(name)).with_context(|| {
            format!("{}: it does not state {}", file.path().display(), key(name))
        })?;
        anyhow::Ok(number as usize)
    };
    let float = |name: &str| file.float(&key(name)).map(f64::from);
    let (width, heads) = (number("embedding_length")?, number("attention.head_count")?);
    let head = number("attention.key_length").or_else(|_| {
        ensure!(heads > 0, "{}: it has no heads", file.path().display());
        Ok(width / heads)
    })?;
    let embedding = file
        .tensor_sizes(EMBEDDING)
        .with_context(|| format!("{}: it has no embeddings", file.path().display()))?;
    let (blocks, gemma) = (number("block_count")?, architecture == GEMMA);
    let window = match number("attention.sliding_window") {
        Ok(len) if gemma && len > 0 => Some(window(file, len, blocks)?),
        _ => None,
    };
    let has = |part: &str| file.tensor_sizes(&block_name(0, part)).is_some();
    let shape = Shape {
        vocab: embedding[0],
        width,
        blocks,
        feed_forward: number("feed_forward_length")?,
        heads,
        key_heads: number("attention.head_count_kv")?,
        head,
        biased: has("attn_q.bias"),
        normed_heads: has("attn_q_norm.weight"),
        normed_results: has("post_ffw_norm.weight"),
        activation: if gemma { Activation::Gelu } else { Activation::Silu },
        embedding_scale: if gemma { (width as f64).sqrt() } else { 1.0 },
        pairs,
        base: float("rope.freq_base").unwrap_or(10_000.0),
        epsilon: float("attention.layer_norm_rms_epsilon").unwrap_or(1e-5),
        window,
        trained_vocab: None,
    };
    check(file, &shape, &architecture)?;
    Ok(shape)
}

/// The blocks of a gemma that see the last tokens alone: those that the file names, or five of six.
fn window(file: &ModelFile, len: usize, count: usize) -> anyhow::Result<Window> {
    let every = file.number(WINDOW_PATTERN).unwrap_or(6) as usize;
    let blocks = file
        .booleans(WINDOW_PATTERN)
        .unwrap_or_else(|| (0..count).map(|at| every == 0 || at % every < every - 1).collect());
    ensure!(
        blocks.len() == count,
        "{}: it says of {} blocks what they see, and has {count}",
        file.path().display(),
        blocks.len()
    );
    let base = file.float("gemma3.rope.freq_base_swa").map_or(10_000.0, f64::from);
    Ok(Window { len, base, blocks })
}

/// Looks for what a pass here would leave out, and a pass of llama.cpp would not.
fn check(file: &ModelFile, shape: &Shape, architecture: &str) -> anyhow::Result<()> {
    let shown = file.path().display();
    let key = |name: &str| format!("{architecture}.{name}");
    let turned = file.number(&key("rope.dimension_count"));
    ensure!(
        turned.is_none_or(|turned| turned as usize == shape.head),
        "{shown}: its rotary embedding turns a part of each head, which is not trained here"
    );
    let scaling = file.text(&key("rope.scaling.type"));
    ensure!(
        scaling.is_none_or(|kind| kind == "none"),
        "{shown}: its rotary embedding is scaled, which is not trained here"
    );
    let values = file.number(&key("attention.value_length"));
    ensure!(
        values.is_none_or(|len| len as usize == shape.head),
        "{shown}: its values are of another size than its keys, which is not trained here"
    );
    let capped = file.float(&key("final_logit_softcapping"));
    ensure!(
        capped.is_none_or(|cap| cap == 0.0),
        "{shown}: its logits are capped, which is not trained here"
    );
    // llama.cpp knows this one by its number of blocks, and scales its attention by another number.
    ensure!(
        architecture != GEMMA || shape.blocks != 62,
        "{shown}: gemma3 of 62 blocks is not trained here"
    );
    let mut known: BTreeSet<String> = shape.tensors().into_iter().map(|(name, _)| name).collect();
    known.extend([EMBEDDING.to_owned(), OUTPUT.to_owned()]);
    let there = file.tensor_names();
    if let Some(other) = there.iter().find(|name| !known.contains(*name)) {
        bail!("{shown}: it has a tensor {other}, which is not trained here");
    }
    for (name, sizes) in shape.tensors() {
        let found = file.tensor_sizes(&name);
        ensure!(
            found.as_ref() == Some(&sizes),
            "{shown}: {name} has sizes {found:?}; expected {sizes:?}"
        );
    }
    Ok(())
}

/// What of a model becomes a student.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Chosen<'a> {
    /// The blocks, if not all.
    pub blocks: Option<&'a [usize]>,
    /// Whether embeddings and output are trained.
    pub trains_vocab: bool,
}

/// The sizes of a student with what was chosen of a model.
///
/// # Errors
/// If there are none, not all of them, or in another order.
pub fn chosen(file: &ModelFile, chosen: Chosen<'_>) -> anyhow::Result<Shape> {
    let mut shape = kept(shape(file)?, chosen.blocks)?;
    shape.trained_vocab = chosen.trains_vocab.then(|| match file.tensor_sizes(OUTPUT) {
        Some(_) => TrainedVocab::Separate,
        None => TrainedVocab::Tied,
    });
    Ok(shape)
}

fn kept(shape: Shape, blocks: Option<&[usize]>) -> anyhow::Result<Shape> {
    let Some(blocks) = blocks else { return Ok(shape) };
    ensure!(!blocks.is_empty(), "a student needs one block at least");
    if let Some(block) = blocks.iter().find(|&&block| block >= shape.blocks) {
        bail!("there is no block {block}: they are numbered from 0 to {}", shape.blocks - 1);
    }
    ensure!(blocks.is_sorted_by(|a, b| a < b), "blocks to keep must be in rising order");
    let window = shape.window.as_ref().map(|window| {
        let of_blocks = blocks.iter().map(|&block| window.blocks[block]).collect();
        Window { blocks: of_blocks, ..window.clone() }
    });
    Ok(Shape { blocks: blocks.len(), window, ..shape })
}

/// The student in a file, for sequences of at most `len` tokens.
///
/// # Errors
/// If it has something that is not trained here, or not all of the blocks.
pub fn student(file: &ModelFile, what: Chosen<'_>, len: usize) -> anyhow::Result<Student<f32>> {
    let shape = chosen(file, what)?;
    let all: Vec<usize> = (0..shape.blocks).collect();
    let blocks = what.blocks.unwrap_or(&all);
    let values = |name: &str| {
        let tensor = file.tensor(name).with_context(|| format!("{name} cannot be read"))?;
        anyhow::Ok(tensor.values)
    };
    let mut weights = Vec::new();
    for &block in blocks {
        for part in shape.block_tensors() {
            weights.push(values(&block_name(block, part))?);
        }
    }
    weights.push(values(OUTPUT_NORM)?);
    let output = match file.tensor_sizes(OUTPUT) {
        Some(_) => Some(values(OUTPUT)?),
        None => None,
    };
    Ok(Student::new(shape, (values(EMBEDDING)?, output), weights, len)?)
}

/// Writes a student to a file of this format, with all else as it is in the file it came from.
///
/// # Errors
/// If there is a file already, or no room on the disk.
pub fn export(
    student: &Student<f32>,
    from: &ModelFile,
    output: &Path,
    format: QuantizeType,
) -> anyhow::Result<()> {
    write_as(output, format, |path| write_whole(student, from, path))
}

/// Writes a file of this format by way of one in `f32`, which `write_whole` writes.
pub(crate) fn write_as(
    output: &Path,
    format: QuantizeType,
    write_whole: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    ensure!(!output.exists(), "{}: there is a file already", output.display());
    let (whole, part) = (beside(output, "f32"), beside(output, "part"));
    for left in [&whole, &part] {
        // What an earlier run may have left.
        let _ = fs::remove_file(left);
    }
    let result = write_whole(&whole)
        .and_then(|()| quantize(&whole, &part, format).map_err(Into::into))
        .and_then(|()| fs::rename(&part, output).context("the file cannot be moved to its place"));
    for left in [&whole, &part] {
        let _ = fs::remove_file(left);
    }
    result
}

fn write_whole(student: &Student<f32>, from: &ModelFile, path: &Path) -> anyhow::Result<()> {
    let architecture = from.text("general.architecture").unwrap_or_default();
    let name = from.text("general.name").unwrap_or_default();
    let blocks = u32::try_from(student.shape().blocks)?;
    let (count, name) = (
        format!("{architecture}.block_count"),
        format!("{name} distilled").trim_start().to_owned(),
    );
    let mut changed = vec![(&*count, Value::Number(blocks)), ("general.name", Value::Text(&name))];
    if let Some(window) = &student.shape().window {
        changed.push((WINDOW_PATTERN, Value::Booleans(&window.blocks)));
    }
    let frozen: Vec<_> = match student.shape().trained_vocab {
        Some(_) => Vec::new(),
        None => [EMBEDDING, OUTPUT].into_iter().filter_map(|it| from.tensor(it)).collect(),
    };
    let frozen = frozen.iter().map(|it| (&*it.name, &it.sizes[..], &it.values[..]));
    let names = student.shape().tensors();
    let trained = names.iter().zip(&student.weights);
    let trained = trained.map(|((name, sizes), values)| (&**name, &sizes[..], &values[..]));
    from.write_like(path, &changed, frozen.chain(trained))?;
    Ok(())
}
