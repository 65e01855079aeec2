//! From GGUF files to GGUF files, with real models: what a student says is what llama.cpp says of its
//! file.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

use std::fs;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::{Command, Output as Ran};
use std::sync::{Arc, Mutex};

use forerun_decode::{
    Branch, Decoder, DraftPolicy, Drafter, DrafterId, Engine, Generation, Keep, ModelDrafter,
    Output, Rows, Sampling, Sequence, Slot, Special, Step, StopStrings, Token, Tokenizer,
};
use forerun_distill::gguf;
use forerun_distill::loss::Measures;
use forerun_distill::model::{Batch, Student};
use forerun_llama::{EngineOptions, LlamaEngine, Model, ModelFile, ModelOptions, QuantizeType};
use forerun_verify::BlockRule;

const TEXT: &str = "The old lighthouse keeper climbed the stairs every evening to light the lamp.";
const BASE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// A file that `just models` brings or makes.
fn model_path(name: &str) -> PathBuf {
    let folder = std::env::var_os("FORERUN_MODELS").map(PathBuf::from).unwrap_or_else(|| {
        std::env::home_dir().expect("a home directory").join(".cache/forerun/models")
    });
    let path = folder.join(name);
    assert!(path.is_file(), "{} is missing: run `just models`", path.display());
    path
}

/// A place for a file, with nothing there.
fn place(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    for more in ["", ".rows", ".rows.partial", ".checkpoint", ".f32", ".part"] {
        let _ = fs::remove_file(format!("{}{more}", path.display()));
    }
    path
}

fn load(path: &Path) -> Model {
    Model::load(ModelOptions::new(path)).unwrap()
}

fn engine(model: &Model) -> LlamaEngine {
    let options = EngineOptions {
        context_len: NonZeroU32::new(256),
        threads: NonZeroU32::new(1),
        ..EngineOptions::default()
    };
    LlamaEngine::new(model, &options).unwrap()
}

fn tokens(model: &Model) -> Vec<Token> {
    model.vocab().tokenize(TEXT, Special::AsText).unwrap()
}

/// llama.cpp's row after each token but the first, as a path above it.
fn rows(model: &Model, tokens: &[Token]) -> Vec<Vec<f32>> {
    let tree: Vec<Branch> =
        (0..).zip(&tokens[1..]).map(|(parent, &token)| Branch { parent, token }).collect();
    let (keep, trunk) = (Keep::Trunk(0), &tokens[..1]);
    let step = Step { slot: Slot(0), keep, trunk, tree: &tree, rows: Rows::Tree };
    let mut output = Output::default();
    engine(model).extend(&[step], &mut output).unwrap();
    (0..output.len()).map(|row| output.row(row).to_vec()).collect()
}

/// The student's rows at the same places.
fn student_rows(student: &Student<f32>, tokens: &[Token]) -> Vec<Vec<f32>> {
    let batch = Batch {
        tokens: tokens.iter().map(|token| token.0).collect(),
        lens: vec![tokens.len()],
        asked: (1..tokens.len()).collect(),
    };
    let rows = Mutex::new(vec![Vec::new(); batch.asked.len()]);
    let note = |at: usize, logits: &mut [f32]| {
        rows.lock().unwrap()[at] = logits.to_vec();
        Measures::default()
    };
    student.measure(&batch, &note).unwrap();
    rows.into_inner().unwrap()
}

/// Half the sum of what the probabilities of two rows differ by, at most over all rows.
fn apart(some: &[Vec<f32>], others: &[Vec<f32>]) -> f64 {
    assert!(some.len() == others.len() && some.len() > 5);
    let shares = |row: &[f32]| {
        let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weights: Vec<f64> = row.iter().map(|&it| f64::from(it - most).exp()).collect();
        let all: f64 = weights.iter().sum();
        weights.into_iter().map(|it| it / all).collect::<Vec<f64>>()
    };
    let gap = |(one, other): (&Vec<f32>, &Vec<f32>)| {
        let pairs = shares(one).into_iter().zip(shares(other));
        0.5 * pairs.map(|(a, b)| (a - b).abs()).sum::<f64>()
    };
    some.iter().zip(others).map(gap).fold(0.0, f64::max)
}

#[test]
fn a_student_s_rows_are_those_of_llama_cpp() {
    // Weights of the zoo are f32, so only the order of sums differs, and attention's rounding.
    for architecture in ["llama", "qwen2"] {
        let path = model_path(&format!("zoo/{architecture}.gguf"));
        let (model, file) = (load(&path), ModelFile::open(&path).unwrap());
        let tokens = tokens(&model);
        let student = gguf::student(&file, None, tokens.len()).unwrap();
        let gap = apart(&student_rows(&student, &tokens), &rows(&model, &tokens));
        assert!(gap < 0.01, "{architecture}: {gap}");
    }
}

#[test]
fn a_quantised_model_is_read_as_llama_cpp_reads_it() {
    // llama.cpp rounds what goes into products with quantised weights.
    let path = model_path(BASE);
    let (model, file) = (load(&path), ModelFile::open(&path).unwrap());
    let tokens = tokens(&model);
    let student = gguf::student(&file, None, tokens.len()).unwrap();
    let gap = apart(&student_rows(&student, &tokens), &rows(&model, &tokens));
    assert!(gap < 0.06, "{gap}");
}

#[test]
fn blocks_that_are_kept_make_the_model_that_prune_py_makes() {
    let (from, out) = (model_path(BASE), place("kept.gguf"));
    let file = ModelFile::open(&from).unwrap();
    let blocks: Vec<usize> = (0..8).collect();
    let student = gguf::student(&file, Some(&blocks), 1).unwrap();
    for format in [QuantizeType::BF16, QuantizeType::Q8_0] {
        gguf::export(&student, &file, &out, format).unwrap();
        let (made, expected) = (load(&out), load(&model_path("SmolLM2-pruned-8+0.gguf")));
        assert_eq!((made.layer_count(), made.vocab_len()), (8, expected.vocab_len()));
        assert_eq!(made.chat_template(), expected.chat_template());
        assert_eq!(made.metadata("tokenizer.ggml.pre"), expected.metadata("tokenizer.ggml.pre"));
        let tokens = tokens(&made);
        assert_eq!(tokens, self::tokens(&expected));
        let gap = apart(&rows(&made, &tokens), &rows(&expected, &tokens));
        assert!(gap < 0.06, "{format}: {gap}");
        assert!(gguf::export(&student, &file, &out, format).is_err(), "it would replace a file");
        fs::remove_file(&out).unwrap();
    }
}

#[test]
fn what_cannot_be_trained_is_refused_by_name() {
    let refused = |name: &str, blocks: Option<&[usize]>| {
        let file = ModelFile::open(&model_path(name)).unwrap();
        gguf::student(&file, blocks, 1).unwrap_err().to_string()
    };
    assert!(refused("zoo/gemma3.gguf", None).contains("gemma3"));
    assert!(refused(BASE, Some(&[0, 30])).contains("no block 30"));
    assert!(refused(BASE, Some(&[3, 1])).contains("rising order"));
    assert!(refused(BASE, Some(&[])).contains("one block"));
}

#[test]
fn a_student_with_another_vocabulary_is_refused() {
    let (target, student) = (model_path(BASE), model_path("zoo/llama.gguf"));
    let out = place("foreign.gguf");
    let [target, student, out] = [&target, &student, &out].map(|path| path.to_str().unwrap());
    let ran = distill(&["-m", target, "--student", student, "-o", out]);
    assert!(
        !ran.status.success() && said(&ran).contains("the target's vocabulary"),
        "{}",
        said(&ran)
    );
}

fn distill(args: &[&str]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forerun-distill"));
    command.args(["-t", "1"]).args(args).output().unwrap()
}

fn said(ran: &Ran) -> String {
    String::from_utf8(ran.stderr.clone()).unwrap()
}

/// Prompts of some words each.
fn prompts(name: &str) -> PathBuf {
    let (path, words) =
        (place(name), ["the sea", "a lamp", "an old book", "gulls", "ships", "wind"]);
    let line = |at: usize| format!("Tell me about {} and {}.\n", words[at % 6], words[at / 6]);
    fs::write(&path, (0..36).map(line).collect::<String>()).unwrap();
    path
}

#[test]
fn a_draft_model_is_trained_from_file_to_file_and_changes_no_output() {
    let target = model_path("zoo/llama.gguf");
    let (out, prompts) = (place("trained.gguf"), prompts("prompts.txt"));
    let [model, prompts, output] = [&target, &prompts, &out].map(|path| path.to_str().unwrap());
    let flags = [
        "-m",
        model,
        "--keep-blocks",
        "0,2",
        "--prompts",
        prompts,
        "-o",
        output,
        "--type",
        "F16",
        "-n",
        "40",
        "-c",
        "160",
        "--held-out",
        "6",
        "--epochs",
        "6",
        "--parallel",
        "4",
        "--rate",
        "2e-3",
        "--measure-every",
        "10",
        "--batch-tokens",
        "600",
    ];
    let ran = distill(&flags);
    let said = said(&ran);
    assert!(ran.status.success(), "{said}");
    let curve: Vec<f64> = said
        .lines()
        .filter(|line| line.contains("held out: loss"))
        .map(|line| {
            let (_, rest) = line.split_once("overlap ").unwrap();
            rest.split(',').next().unwrap().parse().unwrap()
        })
        .collect();
    assert!(curve.len() > 2 && curve.last().unwrap() > &(curve[0] + 0.05), "{curve:?}\n{said}");
    // Its rows are kept for the next time, and refused for another target's settings.
    assert!(out.with_file_name("trained.gguf.rows").is_file());
    assert!(!out.with_file_name("trained.gguf.checkpoint").exists());

    let (target, draft) = (load(&target), load(&out));
    assert_eq!(draft.layer_count(), 2);
    let text = |drafter: Option<Box<dyn Drafter>>| {
        let ids = (0..usize::from(drafter.is_some())).map(DrafterId).collect();
        let drafters = drafter.into_iter().collect();
        let mut decoder = Decoder::new(Box::new(engine(&target)), drafters).unwrap();
        let mut sequence = Sequence::new(Slot(0), Sampling::greedy());
        sequence.begin(tokens(&target), 60);
        let policy = DraftPolicy::drafted(ids, 4, Arc::new(BlockRule));
        let vocab: Arc<dyn Tokenizer> = Arc::new(target.vocab().clone());
        let stops = StopStrings::new(Vec::<String>::new()).unwrap();
        let mut generation = Generation::new(sequence, policy, vocab, &stops, 1);
        while generation.next(&mut decoder).unwrap().is_some() {}
        generation.sequence().output().to_vec()
    };
    let plain = text(None);
    assert_eq!(plain.len(), 60);
    assert_eq!(text(Some(Box::new(ModelDrafter::new(Box::new(engine(&draft)))))), plain);
}

#[test]
fn rows_of_other_settings_and_outputs_that_exist_are_refused_with_what_to_do() {
    let target = model_path("zoo/llama.gguf");
    let (out, prompts) = (place("refused.gguf"), prompts("refused.txt"));
    let [model, prompts, output] = [&target, &prompts, &out].map(|path| path.to_str().unwrap());
    let flags =
        ["-m", model, "--prompts", prompts, "-o", output, "-n", "8", "-c", "160", "--epochs", "1"];
    let ran = distill(&[&flags[..], &["--held-out", "4"]].concat());
    assert!(ran.status.success(), "{}", said(&ran));
    let ran = distill(&[&flags[..], &["--held-out", "4"]].concat());
    assert!(
        !ran.status.success() && said(&ran).contains("there is a file already"),
        "{}",
        said(&ran)
    );
    fs::remove_file(&out).unwrap();
    let ran = distill(&[&flags[..], &["--held-out", "5"]].concat());
    assert!(
        said(&ran).contains("other settings") && said(&ran).contains("--rows"),
        "{}",
        said(&ran)
    );
    let ran = distill(&[&flags[..], &["--held-out", "4", "--resume"]].concat());
    assert!(said(&ran).contains("there is no such checkpoint"), "{}", said(&ran));
}
