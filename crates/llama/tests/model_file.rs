//! A model file's numbers, and files that are like it but for what was changed.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::in_models_folder;
use forerun_llama::{Model, ModelFile, ModelOptions, Numbers, Tensor, Value, WriteError};

fn place(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_file(&path);
    path
}

#[test]
fn a_file_like_another_has_its_metadata_and_the_given_tensors() {
    let (from, out) = (in_models_folder("zoo/gemma3.gguf"), place("like.gguf"));
    let file = ModelFile::open(&from).unwrap();
    let pattern = "gemma3.attention.sliding_window_pattern";
    assert_eq!(file.booleans(pattern).unwrap(), [true, false, true]);
    assert_eq!(file.number("gemma3.block_count"), Some(3));
    // Of three blocks two are left, and one number of a tensor is another.
    let tensors: Vec<Tensor> = file
        .tensor_names()
        .iter()
        .filter(|name| !name.starts_with("blk.2"))
        .map(|name| file.tensor(name).unwrap())
        .collect();
    let mut changed = tensors.clone();
    changed[0].values[5] = 0.25;
    let values = [
        ("gemma3.block_count", Value::Number(2)),
        ("general.name", Value::Text("two")),
        (pattern, Value::Booleans(&[false, true])),
    ];
    let given = || changed.iter().map(|it| (&*it.name, &it.sizes[..], &it.values[..]));
    file.write_like(&out, &values, given()).unwrap();
    let refused = file.write_like(&out, &values, given()).unwrap_err();
    assert!(matches!(refused, WriteError::Exists { .. }), "{refused}");

    let made = ModelFile::open(&out).unwrap();
    assert_eq!(made.booleans(pattern).unwrap(), [false, true]);
    assert_eq!(made.text("general.name").unwrap(), "two");
    let epsilon = "gemma3.attention.layer_norm_rms_epsilon";
    assert_eq!(made.float(epsilon), file.float(epsilon));
    assert_eq!(made.tensor_names().len(), tensors.len());
    for (expected, whole) in changed.iter().zip(&tensors) {
        assert_eq!(made.tensor(&expected.name).as_ref(), Some(expected));
        assert_eq!(made.tensor_sizes(&expected.name).unwrap(), whole.sizes);
    }
    let model = Model::load(ModelOptions::new(&out)).unwrap();
    assert_eq!((model.layer_count(), model.vocab_len()), (2, 294));
}

#[test]
fn quantised_tensors_are_read_as_numbers() {
    // One of these was made from the other.
    let open = |name: &str| ModelFile::open(&in_models_folder(name)).unwrap();
    let (fine, coarse) =
        (open("SmolLM2-135M-Instruct.Q8_0.gguf"), open("SmolLM2-135M-Instruct.Q4_0.gguf"));
    for name in ["blk.3.attn_q.weight", "blk.29.ffn_down.weight"] {
        let (fine, coarse) = (fine.tensor(name).unwrap(), coarse.tensor(name).unwrap());
        assert_eq!(fine.sizes, coarse.sizes);
        let dot = |one: &[f32], two: &[f32]| {
            one.iter().zip(two).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>()
        };
        let (a, b) = (&fine.values[..], &coarse.values[..]);
        let alike = dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
        assert!(alike > 0.98, "{name}: {alike}");
    }
    assert!(fine.tensor("blk.99.attn_q.weight").is_none());
    assert!(ModelFile::open(Path::new("/nowhere.gguf")).is_err());
}

#[test]
fn a_file_may_have_other_keys_and_whole_numbers() {
    let (from, out) = (in_models_folder("zoo/llama-eagle3.gguf"), place("whole.gguf"));
    let file = ModelFile::open(&from).unwrap();
    let d2t: Vec<i64> = (0..file.tensor_sizes("d2t").unwrap()[0] as i64).map(|it| it + 7).collect();
    let tensors: Vec<Tensor> =
        file.tensor_names().iter().filter_map(|name| file.tensor(name)).collect();
    assert_eq!(tensors.len() + 1, file.tensor_names().len(), "all but d2t are of floats");
    let given = tensors.iter().map(|it| (&*it.name, &it.sizes[..], Numbers::Floats(&it.values)));
    let sizes = [d2t.len()];
    let given = given.chain([("d2t", &sizes[..], Numbers::Integers(&d2t))]);
    let values = [
        ("general.name", Value::Nothing),
        ("eagle3.rope.freq_base", Value::Float(5e5)),
        ("eagle3.target_layers", Value::Integers(&[1, 1, 2])),
    ];
    file.write_like(&out, &values, given).unwrap();
    let made = ModelFile::open(&out).unwrap();
    assert!(!made.keys().contains(&"general.name".to_owned()));
    assert_eq!(made.keys().len(), file.keys().len(), "one less and one more");
    assert_eq!(made.float("eagle3.rope.freq_base"), Some(5e5));
    assert_eq!(made.integers("eagle3.target_layers").unwrap(), [1, 1, 2]);
    assert_eq!(made.tensor("d2t"), None, "it has no floats");
    let bytes: Vec<u8> = d2t.iter().flat_map(|it| it.to_le_bytes()).collect();
    let has = |path: &Path| fs::read(path).unwrap().windows(bytes.len()).any(|it| it == bytes);
    assert!(has(&out) && !has(&from));
    Model::load(ModelOptions::new(&out)).unwrap();
}
