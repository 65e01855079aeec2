//! An accelerator gives the processor's rows but for rounding, cuts its cache where it is told to, and an error where memory
//! is short. `just vulkan` runs this on a driver that needs no card.
#![cfg(any(feature = "cuda", feature = "metal", feature = "rocm", feature = "vulkan"))]
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

mod common;

use common::{
    MODEL, Scratch, TEXT, apart, model_path, options, path_to, row_after, rows, step, tokens,
};
use forerun_decode::{Branch, Keep, Rows, Token};
use forerun_llama::{
    GpuLayers, LlamaEngine, Model, ModelOptions, QuantizeType, quantize, system_info,
};

/// The likeliest token of a row.
fn best(row: &[f32]) -> usize {
    row.iter().enumerate().max_by(|one, other| one.1.total_cmp(other.1)).unwrap().0
}

#[test]
fn rows_are_the_processor_s_but_for_rounding() {
    println!("{}", system_info());
    let by_device = common::model();
    let mut host = ModelOptions::new(model_path(MODEL));
    host.gpu_layers = GpuLayers::Last(0);
    let by_host = Model::load(host).unwrap();
    let text = tokens(&by_device, TEXT);
    let read = |model: &Model| {
        let mut engine = LlamaEngine::new(model, &options(1, 1)).unwrap();
        let mut found = Vec::new();
        for (index, token) in text.iter().enumerate() {
            let token = std::slice::from_ref(token);
            found.extend(rows(&mut engine, step(Keep::Trunk(index), token, &[], Rows::Trunk)));
        }
        found
    };
    let (device, host) = (read(&by_device), read(&by_host));
    let pairs = || device.iter().zip(&host);
    let total = text.len() as f64;
    let drift = pairs().map(|(one, other)| apart(one, other)).sum::<f64>() / total;
    let agree = pairs().filter(|(one, other)| best(one) == best(other)).count() as f64 / total;
    println!(
        "{} rows: {drift:.4} apart on average, {agree:.3} of most likely tokens equal",
        text.len()
    );
    assert!(device != host, "not a bit differs: nothing ran on the device");
    assert!(drift < 0.05 && agree > 0.9, "{drift} apart, {agree} equal");
}

#[test]
fn a_tree_s_rows_and_the_cells_kept_of_it_are_those_of_its_paths() {
    // Weights that round nothing between layers, so that a wrong cell shows.
    let file = Scratch::new("gpu-f16.gguf");
    quantize(&model_path(MODEL), &file.0, QuantizeType::F16).unwrap();
    let model = Model::load(ModelOptions::new(&file.0)).unwrap();
    let text = tokens(&model, TEXT);
    let prompt = &text[..24];
    let mut engine = LlamaEngine::new(&model, &options(1, 3)).unwrap();
    let mut alone = LlamaEngine::new(&model, &options(1, 1)).unwrap();
    let tree: Vec<Branch> = [(0, 30), (1, 31), (1, 32), (0, 40), (4, 41), (3, 33), (5, 42)]
        .map(|(parent, index)| Branch { parent, token: text[index] })
        .to_vec();
    let after = |node: usize| -> Vec<Token> { [prompt, &path_to(&tree, node)].concat() };
    let joint = rows(&mut engine, step(Keep::Trunk(0), prompt, &tree, Rows::All));
    for (node, row) in joint.iter().enumerate() {
        let near = apart(row, &row_after(&mut alone, &after(node)));
        assert!(near < 0.02, "row of node {node} is {near} from its path's");
    }
    let tail = &text[44..48];
    for node in 1..=tree.len() {
        rows(&mut engine, step(Keep::Trunk(0), prompt, &tree, Rows::None));
        let keep = Keep::To { node, len: after(node).len() };
        let row = &rows(&mut engine, step(keep, tail, &[], Rows::Trunk))[0];
        assert!(engine.is_consistent());
        let near = apart(row, &row_after(&mut alone, &[&after(node), tail].concat()));
        let cut = after(tree[node - 1].parent);
        let far = apart(row, &row_after(&mut alone, &[&cut, tail].concat()));
        println!("node {node}: {near:.5} from the right row, {far:.5} from a wrong one");
        assert!(near < 0.02 && far > 4.0 * near, "node {node}: {near} against {far}");
    }
}

#[test]
fn a_cache_that_does_not_fit_is_an_error_and_the_next_engine_runs() {
    let model = common::model();
    let mut large = options(200, 1);
    large.context_len = None;
    let error = LlamaEngine::new(&model, &large).map(|_| ()).unwrap_err();
    println!("{error}");
    let mut small = LlamaEngine::new(&model, &options(1, 1)).unwrap();
    let text = tokens(&model, TEXT);
    assert_eq!(rows(&mut small, step(Keep::All(0), &text, &[], Rows::Trunk)).len(), 1);
}
