//! Files that are no models get errors that say so; none of them ends the process.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

mod common;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Command;

use common::{Dice, MODEL, Scratch, model_path};
use forerun_llama::{LoadError, Model, ModelOptions, QuantizeType, quantize};

fn holding(name: &str, bytes: &[u8]) -> Scratch {
    let scratch = Scratch::new(name);
    fs::write(&scratch.0, bytes).unwrap();
    scratch
}

/// The first `len` bytes of the model.
fn start_of_model(name: &str, len: u64) -> Scratch {
    let scratch = Scratch::new(name);
    let mut from = File::open(model_path(MODEL)).unwrap().take(len);
    std::io::copy(&mut from, &mut File::create(&scratch.0).unwrap()).unwrap();
    scratch
}

fn load(path: &Path) -> Result<Model, LoadError> {
    Model::load(ModelOptions::new(path))
}

#[test]
fn a_missing_file_and_a_directory_are_told_apart() {
    let missing = load(Path::new("no/such/model.gguf")).unwrap_err();
    assert!(matches!(missing, LoadError::Missing { .. }), "{missing}");
    let directory = load(&std::env::temp_dir()).unwrap_err();
    assert!(matches!(directory, LoadError::Directory { .. }), "{directory}");
}

#[test]
fn an_empty_file_and_a_text_are_told_apart() {
    let empty = holding("empty.gguf", b"");
    assert!(matches!(load(&empty.0).unwrap_err(), LoadError::Empty { .. }));
    for text in [b"GGU".as_slice(), b"It was a dark and stormy night.", &[0; 64]] {
        let file = holding("text.gguf", text);
        assert!(matches!(load(&file.0).unwrap_err(), LoadError::NotGguf { .. }));
    }
}

#[test]
fn a_file_cut_short_says_how_much_is_missing() {
    let whole = fs::metadata(model_path(MODEL)).unwrap().len();
    for len in [5, 24, 1000, 1 << 20, 50 << 20, whole - 100] {
        let file = start_of_model("cut.gguf", len);
        let error = load(&file.0).unwrap_err();
        let LoadError::Truncated { len: found, needed, .. } = error else { panic!("{error}") };
        assert_eq!(found, len);
        assert!(needed > len && needed <= whole, "{needed}");
    }
}

#[test]
fn a_header_without_a_model_is_rejected_in_the_words_of_llama_cpp() {
    // Version 3, no tensors, no entries.
    let bytes = [b"GGUF".as_slice(), &3_u32.to_le_bytes(), &[0; 16]].concat();
    let file = holding("bare.gguf", &bytes);
    let error = load(&file.0).unwrap_err();
    let LoadError::Rejected { reason, .. } = &error else { panic!("{error}") };
    assert!(!reason.contains("gave no reason") && !reason.contains("llama_model_load"), "{reason}");
    println!("{error}");
}

#[test]
fn a_load_stops_when_told_to() {
    let mut options = ModelOptions::new(model_path(MODEL));
    options.progress = Some(Box::new(|share| share < 0.1));
    let error = Model::load(options).unwrap_err();
    assert!(matches!(error, LoadError::Stopped { .. }), "{error}");
}

#[test]
fn a_panic_of_the_progress_callback_comes_through() {
    let mut options = ModelOptions::new(model_path(MODEL));
    options.progress = Some(Box::new(|_| panic!("enough")));
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| Model::load(options)));
    assert_eq!(panic.unwrap_err().downcast_ref::<&str>(), Some(&"enough"));
}

/// The variable that names the file for the process below.
const CHILD: &str = "FORERUN_TEST_DAMAGED";

#[test]
#[ignore = "run by the next test in a process of its own"]
fn child_loads_the_file_it_is_given() {
    let path = std::env::var_os(CHILD).unwrap();
    match load(Path::new(&path)) {
        Ok(_) => println!("loaded"),
        Err(error) => println!("refused: {error}"),
    }
}

/// How a load of the file ended, in a process of its own.
fn load_apart(path: &Path) -> Result<String, String> {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_loads_the_file_it_is_given", "--ignored", "--nocapture"])
        .env(CHILD, path)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let line = said.lines().find(|line| line.contains("loaded") || line.contains("refused"));
    match line {
        Some(line) if output.status.success() => Ok(line.to_owned()),
        _ => Err(format!("{}: {said}{}", output.status, String::from_utf8_lossy(&output.stderr))),
    }
}

#[test]
fn a_damaged_header_never_ends_the_process() {
    let file = start_of_model("damaged.gguf", u64::MAX);
    let mut handle = OpenOptions::new().read(true).write(true).open(&file.0).unwrap();
    let count = std::env::var("FORERUN_DAMAGES").ok().and_then(|n| n.parse().ok()).unwrap_or(64);
    let mut dice =
        Dice(std::env::var("FORERUN_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(1));
    let (mut ended, mut loaded) = (Vec::new(), 0);
    for _ in 0..count {
        // Counts and hyperparameters come first; then the vocabulary; then the tensors' names.
        let at = match dice.below(3) {
            0 => 4 + dice.below(20),
            1 => 24 + dice.below(2000),
            _ => 24 + dice.below(1_700_000),
        };
        let bit = 1_u8 << dice.below(8);
        let mut byte = [0];
        let at = SeekFrom::Start(at as u64);
        handle.seek(at).unwrap();
        handle.read_exact(&mut byte).unwrap();
        handle.seek(at).unwrap();
        handle.write_all(&[byte[0] ^ bit]).unwrap();
        match load_apart(&file.0) {
            Ok(line) => {
                loaded += usize::from(line.contains("loaded"));
                println!("{at:?} bit {bit}: {line}");
            }
            Err(end) => ended.push(format!("{at:?} bit {bit}: {end}")),
        }
        handle.seek(at).unwrap();
        handle.write_all(&byte).unwrap();
    }
    println!("{loaded} of {count} loaded");
    assert!(ended.is_empty(), "{} of {count}:\n{}", ended.len(), ended.join("\n"));
}

#[test]
fn numbers_out_of_bounds_in_the_header_never_end_the_process() {
    let file = start_of_model("numbers.gguf", u64::MAX);
    let mut handle = OpenOptions::new().read(true).write(true).open(&file.0).unwrap();
    let mut head = vec![0; 1 << 12];
    handle.read_exact(&mut head).unwrap();
    let keys = [
        "llama.block_count",
        "llama.context_length",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.attention.head_count",
        "llama.attention.head_count_kv",
        "llama.attention.layer_norm_rms_epsilon",
        "llama.rope.dimension_count",
        "llama.rope.freq_base",
        "llama.vocab_size",
    ];
    let mut ended = Vec::new();
    for key in keys {
        // A key is its length, its name, the type of its value and the value.
        let name = [&(key.len() as u64).to_le_bytes(), key.as_bytes()].concat();
        let found = head.windows(name.len()).position(|window| window == name);
        let at = found.unwrap_or_else(|| panic!("{key} is in the header")) + name.len() + 4;
        let right = head[at..at + 4].to_vec();
        for wrong in [0_u32, 1, 1 << 20, u32::MAX] {
            handle.seek(SeekFrom::Start(at as u64)).unwrap();
            handle.write_all(&wrong.to_le_bytes()).unwrap();
            match load_apart(&file.0) {
                Ok(line) => println!("{key} = {wrong}: {line}"),
                Err(end) => ended.push(format!("{key} = {wrong}: {end}")),
            }
        }
        handle.seek(SeekFrom::Start(at as u64)).unwrap();
        handle.write_all(&right).unwrap();
    }
    assert!(ended.is_empty(), "{}:\n{}", ended.len(), ended.join("\n"));
}

#[test]
fn a_quantised_model_loads_and_an_existing_file_is_kept() {
    let (from, to) = (model_path(MODEL), Scratch::new("q8.gguf"));
    quantize(&from, &to.0, QuantizeType::Q8_0).unwrap();
    let model = load(&to.0).unwrap();
    assert!(model.description().contains("Q8_0"), "{}", model.description());
    assert_eq!(model.vocab_len(), 49_152);
    let error = quantize(&from, &to.0, QuantizeType::Q8_0).unwrap_err();
    assert!(error.to_string().contains("there is a file already"), "{error}");
    let nowhere = quantize(&from, Path::new("no/such/dir/out.gguf"), QuantizeType::Q8_0);
    println!("{}", nowhere.unwrap_err());
}
