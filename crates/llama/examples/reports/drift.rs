//! How far rows scored in a block are from rows scored one by one.

use forerun_decode::{Branch, Engine, Keep, Output, Rows, Slot, Step, Token};
use forerun_llama::{CacheType, EngineOptions, FlashAttention, LlamaEngine};
use forerun_verify::Dist;

use crate::lab;

const POSITIONS: usize = 32;

/// What the engine is set to: flash attention, format of the values, longest prompt.
const SETTINGS: [(&str, FlashAttention, CacheType); 3] = [
    ("on, f16 and f16", FlashAttention::On, CacheType::F16),
    ("on, f16 and bf16 (default)", FlashAttention::On, CacheType::Bf16),
    ("off, f16 and f16", FlashAttention::Off, CacheType::F16),
];

pub(crate) fn report() {
    let mut text = format!(
        "# Drift: rows of a block against rows one by one\n\n\
         Made by `just drift`. {POSITIONS} positions of a text behind a prompt, each row scored alone and in blocks of\n\
         drafted tokens, with so many tokens cached. *attention*: `--flash-attn`, `--cache-type-k` and `-v`. *gap*: largest\n\
         difference of a logit. *TV*: mean total variation of the laws at temperature 1. *argmax*: how often the likeliest\n\
         token is the same. `equal`: every logit the same to the last bit.\n\n\
         This is the engine's error and not a rule's: a rule is lossless for the rows it is given. **`--flash-attn on` with\n\
         `--cache-type-v bf16` removes it** here for one path. With both caches in f16, llama.cpp splits the sums of a single\n\
         token among threads from 256 cached tokens on, and then a block differs. A tree drifts where another path than\n\
         the first is accepted, whatever the setting: its cells are not in the order of the text.\n\nMachine: {}.\n\n\
         | weights | attention | cached | block of | rows | gap | TV | argmax |\n|---|---|--:|--:|---|--:|--:|--:|\n",
        lab::machine()
    );
    for name in [lab::SMOL, "SmolLM2-135M-Instruct.Q8_0.gguf", "SmolLM2-135M-Instruct.Q4_0.gguf"] {
        let model = lab::model(name);
        let prompt = lab::tokens(&model, &lab::prompts(&model, "spec_bench.jsonl", 16)[1]);
        for (setting, flash_attention, cache_values) in SETTINGS {
            let options = EngineOptions {
                flash_attention,
                cache_values: Some(cache_values),
                ..lab::options()
            };
            let mut engine = LlamaEngine::new(&model, &options).expect("the engine starts");
            for cached in [128, 400] {
                let (tokens, singles) = alone(&mut engine, prompt[..cached].to_vec());
                for len in [2, 8] {
                    let line = compare(&singles, &in_blocks(&mut engine, &tokens, len));
                    let line = format!("| {name} | {setting} | {cached} | {len} | {line} |\n");
                    eprint!("{line}");
                    text.push_str(&line);
                }
            }
        }
    }
    lab::write("drift.md", &text);
}

/// Reads a prompt but its last token, so that all passes after it start from the same cache.
fn read(engine: &mut LlamaEngine, prompt: &[Token]) {
    let trunk = &prompt[..prompt.len() - 1];
    let step = Step { slot: Slot(0), keep: Keep::Trunk(0), trunk, tree: &[], rows: Rows::None };
    engine.extend(&[step], &mut Output::default()).expect("the pass succeeds");
}

/// Greedy text and its rows, one token a pass.
fn alone(engine: &mut LlamaEngine, mut tokens: Vec<Token>) -> (Vec<Token>, Vec<Vec<f32>>) {
    read(engine, &tokens);
    let (mut rows, mut output) = (Vec::new(), Output::default());
    for _ in 0..POSITIONS {
        let trunk = &tokens[tokens.len() - 1..];
        let step = Step { slot: Slot(0), keep: Keep::All, trunk, tree: &[], rows: Rows::Trunk };
        engine.extend(&[step], &mut output).expect("the pass succeeds");
        rows.push(output.row(0).to_vec());
        tokens.push(argmax(output.row(0)));
    }
    (tokens, rows)
}

/// The same rows, in blocks: a committed token and `len - 1` drafted ones, all of them accepted.
fn in_blocks(engine: &mut LlamaEngine, tokens: &[Token], len: usize) -> Vec<Vec<f32>> {
    let mut done = tokens.len() - POSITIONS - 1;
    read(engine, &tokens[..=done]);
    let (mut rows, mut output, mut keep) = (Vec::new(), Output::default(), Keep::All);
    while rows.len() < POSITIONS {
        let drafted = &tokens[done + 1..tokens.len().min(done + len)];
        let branch = |(parent, token): (usize, &Token)| Branch { parent, token: *token };
        let tree: Vec<Branch> = drafted.iter().enumerate().map(branch).collect();
        let trunk = &tokens[done..=done];
        let step = Step { slot: Slot(0), keep, trunk, tree: &tree, rows: Rows::All };
        engine.extend(&[step], &mut output).expect("the pass succeeds");
        rows.extend((0..output.len()).map(|row| output.row(row).to_vec()));
        (keep, done) = (Keep::To(tree.len()), done + 1 + tree.len());
    }
    rows.truncate(POSITIONS);
    rows
}

fn compare(singles: &[Vec<f32>], blocks: &[Vec<f32>]) -> String {
    let (mut gap, mut distance, mut agree, mut equal) = (0.0_f32, 0.0, 0, 0);
    for (single, block) in singles.iter().zip(blocks) {
        equal += usize::from(single == block);
        agree += usize::from(argmax(single) == argmax(block));
        let gaps = single.iter().zip(block).map(|(one, other)| (one - other).abs());
        gap = gaps.fold(gap, f32::max);
        let law = |row: &[f32]| Dist::softmax(row, 1.0).expect("a row is a law");
        let (one, other) = (law(single), law(block));
        let ids = (0..u32::try_from(single.len()).expect("it fits")).map(Token);
        distance += ids.map(|id| (one.prob(id) - other.prob(id)).abs()).sum::<f64>() / 2.0;
    }
    let count = singles.len();
    if equal == count {
        return "equal | 0 | 0 | 100 %".to_owned();
    }
    let (distance, agree) = (distance / count as f64, 100 * agree / count);
    format!("{equal} of {count} equal | {gap:.3} | {distance:.5} | {agree} %")
}

fn argmax(row: &[f32]) -> Token {
    let best = (0..row.len()).reduce(|best, at| if row[at] > row[best] { at } else { best });
    Token(u32::try_from(best.unwrap_or(0)).expect("a vocabulary fits"))
}
