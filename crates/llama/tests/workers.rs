//! Threads of passes are started with an engine and end with it.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

mod common;

use std::collections::BTreeSet;

use common::{TEXT, count, model, options, rows, step, tokens};
use forerun_decode::{Keep, Rows};
use forerun_llama::{EngineOptions, LlamaEngine};

/// The threads of this process, by the kernel's numbers.
fn threads() -> BTreeSet<u32> {
    let number = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.unwrap().file_name().to_str().unwrap().parse().unwrap()
    };
    std::fs::read_dir("/proc/self/task").unwrap().map(number).collect()
}

/// One test alone, so that the process has no threads of others.
#[test]
fn the_same_threads_share_all_passes_of_an_engine() {
    let model = model();
    let text = tokens(&model, TEXT);
    let before = threads();
    {
        let _one = LlamaEngine::new(&model, &options(1, 1)).unwrap();
        assert_eq!(threads(), before, "a pass of one thread is the caller's");
    }
    let options = EngineOptions { threads: Some(count(3)), ..options(1, 1) };
    let mut engine = LlamaEngine::new(&model, &options).unwrap();
    let with_engine = threads();
    assert_eq!(with_engine.len(), before.len() + 2);
    for len in [0, 8] {
        rows(&mut engine, step(Keep::All(len), &text[len..len + 8], &[], Rows::Trunk));
        assert_eq!(threads(), with_engine, "after {len} tokens");
    }
    drop(engine);
    assert_eq!(threads(), before);
}
