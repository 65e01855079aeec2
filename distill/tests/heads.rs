//! A head from its target's file to a file of its own: what candle says of it is what llama.cpp says.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

mod common;

use std::num::NonZeroU32;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use common::{BASE, engine_options, folder, load, model_path, tokens};
use forerun_decode::{Branch, Engine, Head, Keep, Output, Rows, Slot, Step, Token};
use forerun_distill::collect::Running;
use forerun_distill::head::{self, DraftHead, DraftVocab, Entries, Features, HeadShape};
use forerun_distill::loss::Measures;
use forerun_distill::model::Pairs;
use forerun_distill::rows::{Rows as Sequences, Sequence, Settings};
use forerun_llama::{
    CacheType, EngineOptions, FlashAttention, LlamaEngine, LlamaHead, Model, ModelFile,
    QuantizeType,
};

const DEPTH: usize = 3;

/// One sequence of a target, whose last five tokens are its own.
fn sequences(target: &Model, tokens: &[Token]) -> Sequences {
    let settings = Settings {
        target: "it".to_owned(),
        vocab: target.vocab_len(),
        prompts: String::new(),
        held_out: 0,
        samples: 1,
        predict: 5,
        len: 256,
        temperature: 1.0,
        listed: 1,
        prompt_rows: false,
        seed: 0,
    };
    let tokens: Vec<u32> = tokens.iter().map(|it| it.0).collect();
    let prompt_len = tokens.len() - 5;
    let (row_tokens, row_probs) = (tokens[prompt_len..].to_vec(), vec![0.5; 5]);
    let sequence = Sequence { prompt_len, tokens, row_tokens, row_probs, ..Sequence::default() };
    Sequences { settings, sequences: vec![sequence] }
}

/// As little rounding as llama.cpp can.
fn exact() -> EngineOptions {
    EngineOptions {
        cache_keys: Some(CacheType::F32),
        cache_values: Some(CacheType::F32),
        flash_attention: FlashAttention::Off,
        ..engine_options()
    }
}

/// candle's rows at each depth, over the whole of the target's vocabulary: those of the entries from
/// `DEPTH - 1` on.
fn own_rows(
    head: &DraftHead<f32>,
    vocab: &DraftVocab,
    tokens: &[Token],
    features: Vec<f32>,
) -> Vec<Vec<f32>> {
    let count = tokens.len() - 2;
    let asked: Vec<usize> = (DEPTH - 1..count).collect();
    let entries = Entries {
        tokens: tokens[1..=count].iter().map(|it| it.0).collect(),
        features,
        lens: vec![count],
        asked: vec![asked; DEPTH],
    };
    let rows = Mutex::new(vec![Vec::new(); DEPTH * (count + 1 - DEPTH)]);
    let note = |at: usize, logits: &mut [f32]| {
        let mut row = vec![f32::NEG_INFINITY; head.shape().target_vocab];
        for (&token, &logit) in vocab.tokens().iter().zip(&*logits) {
            row[token as usize] = logit;
        }
        rows.lock().unwrap()[at] = row;
        Measures::default()
    };
    head.measure(&entries, &note).unwrap();
    rows.into_inner().unwrap()
}

/// llama.cpp's rows of the same, fed as a drafter feeds a head: the target's states of what is committed, and
/// then drafted tokens with the head's own.
fn llama_rows(target: &Model, head: &Model, tokens: &[Token]) -> Vec<Vec<f32>> {
    // The target runs as it did when its states were kept.
    let as_kept = EngineOptions { flash_attention: FlashAttention::Off, ..engine_options() };
    let mut engine = LlamaEngine::new(target, &as_kept).unwrap();
    let mut head = LlamaHead::new(head, (target, &mut engine), &exact()).unwrap();
    let (mut output, mut hidden) = (Output::default(), Vec::new());
    let (slot, keep) = (Slot(0), Keep::Trunk(0));
    let step = Step { slot, keep, trunk: tokens, tree: &[], rows: Rows::None };
    engine.extend(&[step], &mut output).unwrap();
    let count = tokens.len() - 2;
    let features: Vec<f32> = (0..count).flat_map(|at| output.feature(at).to_vec()).collect();
    head.encode(&features, &mut hidden).unwrap();
    let (width, paired) = (head.hidden_len(), &tokens[1..=count]);
    let mut depths = vec![Vec::new(); DEPTH];
    for entry in DEPTH - 1..count {
        for (depth, rows) in depths.iter_mut().enumerate() {
            // The draft begins so far before the entry that it is at this depth.
            let committed = entry - depth + 1;
            let mut states = hidden[..committed * width].to_vec();
            let trunk = &paired[..committed];
            let mut tree: Vec<Branch> = Vec::new();
            for drafted in 0..=depth {
                let rows = if tree.is_empty() { Rows::Trunk } else { Rows::Tree };
                let step = Step { slot, keep, trunk, tree: &tree, rows };
                head.extend_hidden(0, &[step], &states, &mut output).unwrap();
                states.extend_from_slice(output.feature(drafted.saturating_sub(1)));
                let token = paired.get(committed + drafted).copied().unwrap_or(Token(0));
                tree.push(Branch { parent: drafted, token });
            }
            rows.push(output.row(depth.saturating_sub(1)).to_vec());
        }
    }
    depths.concat()
}

/// Half the sum of what the probabilities of two rows differ by, at most over all rows.
fn apart(some: &[Vec<f32>], others: &[Vec<f32>]) -> f64 {
    assert!(some.len() == others.len() && some.len() > 5 * DEPTH);
    let softmax = |row: &[f32]| {
        let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weights: Vec<f64> = row.iter().map(|&it| f64::from(it - most).exp()).collect();
        let all: f64 = weights.iter().sum();
        weights.into_iter().map(|it| it / all).collect::<Vec<f64>>()
    };
    let gap = |(one, other): (&Vec<f32>, &Vec<f32>)| {
        let pairs = softmax(one).into_iter().zip(softmax(other));
        0.5 * pairs.map(|(a, b)| (a - b).abs()).sum::<f64>()
    };
    some.iter().zip(others).map(gap).fold(0.0, f64::max)
}

fn running() -> Running {
    let stop = Arc::new(AtomicBool::new(false));
    Running { slots: NonZeroU32::MIN, threads: NonZeroU32::new(1), stop }
}

/// A head that was written to a file, with all that its rows are made of.
struct Written {
    target: Model,
    file: ModelFile,
    tokens: Vec<Token>,
    shape: HeadShape,
    vocab: DraftVocab,
    features: Vec<f32>,
    rows: Vec<Vec<f32>>,
}

impl Written {
    fn new(name: &str, layers: Option<&[usize]>, drafted: usize, format: QuantizeType) -> Self {
        let (path, folder) =
            (model_path(name), folder(&format!("head-{}-{drafted}", name.replace('/', "-"))));
        let (target, file) = (load(&path), ModelFile::open(&path).unwrap());
        let tokens = tokens(&target);
        let sequences = sequences(&target, &tokens);
        let shape = head::shape(&file, layers, drafted).unwrap();
        let states = folder.join("features");
        assert!(
            head::collect(&path, (&sequences, &shape), &states, &running(), |_, _| ()).unwrap()
        );
        let mut features = Vec::new();
        let read = Features::open(&states, &sequences, &shape).unwrap();
        read.read(&sequences.sequences[0], &mut features).unwrap();
        let vocab = DraftVocab::frequent(&sequences, drafted);
        let head = head::head(&file, shape.clone(), &vocab, (tokens.len(), 1)).unwrap();
        let out = folder.join("head.gguf");
        head::export(&head, &vocab, &path, (&out, format)).unwrap();
        let rows = llama_rows(&target, &load(&out), &tokens);
        Self { target, file, tokens, shape, vocab, features, rows }
    }

    fn head(&self) -> DraftHead<f32> {
        let seen = (self.tokens.len(), 1);
        head::head(&self.file, self.shape.clone(), &self.vocab, seen).unwrap()
    }

    /// How far candle's rows are from llama.cpp's, at any depth.
    fn gap(&self) -> f64 {
        let own = own_rows(&self.head(), &self.vocab, &self.tokens, self.features.clone());
        apart(&own, &self.rows)
    }
}

#[test]
fn a_head_s_rows_are_those_of_llama_cpp_at_every_depth() {
    // States are kept as f16; all else is f32, and only the order of sums differs.
    for (name, layers, drafted) in [
        ("zoo/llama.gguf", Some(&[0, 1, 2][..]), 100),
        ("zoo/llama.gguf", None, 8192),
        ("zoo/qwen3.gguf", None, 100),
    ] {
        let gap = Written::new(name, layers, drafted, QuantizeType::F32).gap();
        println!("{name} {layers:?} {drafted}: {gap}");
        assert!(gap < 0.005, "{name}, {drafted} tokens: {gap}");
    }
}

#[test]
fn the_usual_mistakes_would_show() {
    let right = Written::new("zoo/llama.gguf", None, 120, QuantizeType::F32);
    let Written { target, tokens, vocab, features, shape, rows, .. } = &right;
    let gap = |head: &DraftHead<f32>, vocab: &DraftVocab, tokens: &[Token], features: Vec<f32>| {
        apart(&own_rows(head, vocab, tokens, features), rows)
    };
    let head = right.head();
    // A token with the states of its own position.
    let earlier = [&tokens[..1], &tokens[..tokens.len() - 1]].concat();
    let paired = gap(&head, vocab, &earlier, features.clone());
    // The same states in another order, as if of other layers.
    let width = shape.block.width;
    let mut turned = features.clone();
    turned.chunks_mut(3 * width).for_each(|row| row.rotate_left(width));
    let layers = gap(&head, vocab, tokens, turned);
    // The rotary embedding of most other architectures.
    let mut block = shape.block.clone();
    block.pairs = Pairs::Halves;
    let (weights, embedding) = (head.weights.clone(), right.file.tensor("token_embd.weight"));
    let halves = HeadShape { block, ..shape.clone() };
    let turning = DraftHead::new(halves, embedding.unwrap().values, weights, tokens.len()).unwrap();
    let rotary = gap(&turning, vocab, tokens, features.clone());
    // Tokens of a part of the vocabulary, taken for others.
    let others = sequences(target, &tokens[..tokens.len() - 5]);
    let others = DraftVocab::frequent(&others, vocab.tokens().len());
    assert_ne!(vocab, &others);
    let numbered = gap(&head, &others, tokens, features.clone());
    println!("{paired} {layers} {rotary} {numbered}");
    for gap in [paired, layers, rotary, numbered] {
        assert!(gap > 0.05, "{gap}");
    }
}

#[test]
fn a_quantised_head_of_a_real_target_is_run_as_it_was_trained() {
    for (format, most) in [(QuantizeType::F32, 0.005), (QuantizeType::Q8_0, 0.1)] {
        let gap = Written::new(BASE, Some(&[3, 15, 29]), 4000, format).gap();
        println!("{format}: {gap}");
        assert!(gap < most, "{format}: {gap}");
    }
}

#[test]
fn targets_without_states_and_layers_that_are_not_there_are_refused_with_what_to_do() {
    let refused = |name: &str, layers: Option<&[usize]>, drafted| {
        let file = ModelFile::open(&model_path(name)).unwrap();
        head::shape(&file, layers, drafted).unwrap_err().to_string()
    };
    let error = refused("zoo/gemma3.gguf", None, 10);
    assert!(error.contains("gemma3") && error.contains("--keep-blocks"), "{error}");
    for layers in [&[0, 1][..], &[0, 1, 3], &[0, 1, 1], &[2, 1, 0]] {
        let error = refused("zoo/llama.gguf", Some(layers), 10);
        assert!(error.contains("numbered from 0 to 2"), "{error}");
    }
    assert!(refused("zoo/llama.gguf", None, 0).contains("--head-vocab"));
}

#[test]
fn states_of_a_run_that_was_stopped_are_those_of_one_that_was_not() {
    let path = model_path("zoo/llama.gguf");
    let folder = folder("head-states");
    let (target, file) = (load(&path), ModelFile::open(&path).unwrap());
    let all = tokens(&target);
    let mut rows = sequences(&target, &all);
    for id in 1..4 {
        let one = sequences(&target, &all[id as usize..]).sequences.remove(0);
        rows.sequences.push(Sequence { id, ..one });
    }
    let shape = head::shape(&file, None, 10).unwrap();
    let (whole, parts) = (folder.join("whole"), folder.join("parts"));
    assert!(head::collect(&path, (&rows, &shape), &whole, &running(), |_, _| ()).unwrap());
    let stopped = running();
    let stop = Arc::clone(&stopped.stop);
    let after_two =
        |done: usize, _: usize| stop.store(done == 2, std::sync::atomic::Ordering::Relaxed);
    assert!(!head::collect(&path, (&rows, &shape), &parts, &stopped, after_two).unwrap());
    assert!(!parts.exists() && folder.join("parts.partial").exists());
    let mut first = None;
    let note = |done: usize, _: usize| first = first.or(Some(done));
    assert!(head::collect(&path, (&rows, &shape), &parts, &running(), note).unwrap());
    assert_eq!(first, Some(3), "two were there");
    assert!(std::fs::read(&whole).unwrap() == std::fs::read(&parts).unwrap(), "the files differ");
    let other = HeadShape { layers: [0, 0, 2], ..shape };
    let error = Features::open(&parts, &rows, &other).unwrap_err().to_string();
    assert!(error.contains("other sequences or layers"), "{error}");
}
