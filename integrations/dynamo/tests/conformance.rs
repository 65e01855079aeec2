//! Dynamo's own conformance kit, on real weights.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

use std::path::PathBuf;

use forerun_dynamo::{ForerunEngine, ModelFlags, Moves};

fn weights(name: &str) -> PathBuf {
    let folder = std::env::var("FORERUN_MODELS").map(PathBuf::from).unwrap_or_else(|_| {
        let home = std::env::var("HOME").unwrap();
        PathBuf::from(home).join(".cache/forerun/models")
    });
    folder.join(name)
}

fn engine() -> ForerunEngine {
    let flags = ModelFlags {
        model: weights("SmolLM2-135M-Instruct.Q8_0.gguf"),
        spec_draft_model: Some(weights("SmolLM2-135M-Instruct.Q4_0.gguf")),
        spec_draft_n_max: 3,
        spec_fixed: true,
        ctx_size: 512.try_into().unwrap(),
        parallel: 4.try_into().unwrap(),
        threads: Some(1.try_into().unwrap()),
        max_queued_requests: 64,
        shutdown_timeout: 1,
    };
    ForerunEngine::new(flags, "smollm2".to_owned(), Moves::Possible)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_engine_keeps_dynamo_s_contract() {
    dynamo_backend_common::testing::run_conformance(engine).await.expect("conformance");
}
