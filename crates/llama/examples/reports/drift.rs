//! How far rows scored in a block are from rows scored one by one.

use forerun_decode::{Drift, drift};
use forerun_llama::{CacheType, EngineOptions, FlashAttention, LlamaEngine};

use crate::lab;

const POSITIONS: usize = 32;

/// What the engine is set to: flash attention, formats of keys and values.
const SETTINGS: [(&str, FlashAttention, [CacheType; 2]); 4] = [
    ("on, f16 and f16", FlashAttention::On, [CacheType::F16, CacheType::F16]),
    ("on, f16 and bf16", FlashAttention::On, [CacheType::F16, CacheType::Bf16]),
    ("on, bf16 and f16 (default)", FlashAttention::On, [CacheType::Bf16, CacheType::F16]),
    ("off, f16 and f16", FlashAttention::Off, [CacheType::F16, CacheType::F16]),
];

pub(crate) fn report() {
    let mut text = format!(
        "# Drift: rows of a block against rows one by one\n\n\
         Made by `just drift`. {POSITIONS} positions of a text behind a prompt, each row scored alone and in blocks of\n\
         drafted tokens, with so many tokens cached. *attention*: `--flash-attn`, `--cache-type-k` and `-v`. *gap*: largest\n\
         difference of a logit. *TV*: mean total variation of the laws at temperature 1. *argmax*: how often the likeliest\n\
         token is the same. `equal`: every logit the same to the last bit.\n\n\
         This is the engine's error and not a rule's: a rule is lossless for the rows it is given. **`--flash-attn on` with\n\
         keys or values in bf16, the default, removes it** here for one path. With both caches in f16, llama.cpp splits the sums of a single\n\
         token among threads from 256 cached tokens on, and then a block differs. A tree drifts where another path than\n\
         the first is accepted, whatever the setting: its cells are not in the order of the text.\n\nMachine: {}.\n\n\
         | weights | attention | cached | block of | rows | gap | TV | argmax |\n|---|---|--:|--:|---|--:|--:|--:|\n",
        lab::machine()
    );
    for name in [lab::SMOL, "SmolLM2-135M-Instruct.Q8_0.gguf", "SmolLM2-135M-Instruct.Q4_0.gguf"] {
        let model = lab::model(name);
        let prompt = lab::tokens(&model, &lab::prompts(&model, "spec_bench.jsonl", 16)[1]);
        for (setting, flash_attention, [cache_keys, cache_values]) in SETTINGS {
            let options = EngineOptions {
                flash_attention,
                cache_keys: Some(cache_keys),
                cache_values: Some(cache_values),
                ..lab::options()
            };
            let mut engine = LlamaEngine::new(&model, &options).expect("the engine starts");
            for cached in [128, 400] {
                for len in [2, 8] {
                    let found = drift(&mut engine, &prompt[..cached], POSITIONS, len);
                    let line = said(&found.expect("the passes succeed"));
                    let line = format!("| {name} | {setting} | {cached} | {len} | {line} |\n");
                    eprint!("{line}");
                    text.push_str(&line);
                }
            }
        }
    }
    lab::write("drift.md", &text);
}

fn said(found: &Drift) -> String {
    if found.is_none() {
        return "equal | 0 | 0 | 100 %".to_owned();
    }
    let Drift { rows, equal, gap, distance, same_best } = found;
    let agree = 100 * same_best / rows;
    format!("{equal} of {rows} equal | {gap:.3} | {distance:.5} | {agree} %")
}
