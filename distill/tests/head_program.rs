//! The program with `--head`: trained, stopped, resumed, used and refused.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output as Ran, Stdio};
use std::sync::Arc;

use common::{engine, engine_options, folder, load, model_path, tokens};
use forerun_decode::{
    Decoder, DraftPolicy, DrafterId, Generation, HeadDrafter, Sampling, Sequence, Slot,
    StopStrings, Tokenizer,
};
use forerun_llama::{HeadKind, LlamaHead, Model};
use forerun_verify::BlockRule;

/// Runs of one target, in a folder of their own.
struct Runs {
    folder: PathBuf,
    target: PathBuf,
}

impl Runs {
    fn new(name: &str, target: &str) -> Self {
        let folder = folder(name);
        let words = ["the sea", "a lamp", "an old book", "gulls", "ships", "wind"];
        let line = |at: usize| format!("Tell me about {} and {}.\n", words[at % 6], words[at / 6]);
        fs::write(folder.join("prompts.txt"), (0..36).map(line).collect::<String>()).unwrap();
        Self { folder, target: model_path(target) }
    }

    fn command(&self, output: &str, more: &str) -> Command {
        let usual = "-t 1 -n 40 -c 160 --held-out 6 --parallel 4 --head eagle3 --head-vocab 200 \
                     --head-depth 3 --type F16 --batch-tokens 600 --measure-every 10 --rate 2e-3 \
                     --rows all.rows --prompts prompts.txt";
        let mut command = Command::new(env!("CARGO_BIN_EXE_forerun-distill"));
        command.current_dir(&self.folder).arg("-m").arg(&self.target).args(["-o", output]);
        command.args(usual.split_whitespace()).args(more.split_whitespace());
        command
    }

    /// Runs it to its end, and returns what it said.
    fn ended(&self, code: i32, output: &str, more: &str) -> String {
        let ran: Ran = self.command(output, more).output().unwrap();
        let said = String::from_utf8(ran.stderr).unwrap();
        assert_eq!(ran.status.code(), Some(code), "{said}");
        said
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        fs::read(self.file(name)).unwrap()
    }
}

/// The overlaps of a draft's first tokens of what is held out, or of its third ones.
fn overlaps(said: &str, before: &str) -> Vec<f64> {
    let lines = said.lines().filter(|line| line.contains("held out: loss"));
    let overlap = |line: &str| {
        let (_, rest) = line.split_once(before).unwrap();
        rest.split([',', ';']).next().unwrap().rsplit(" / ").next().unwrap().parse().unwrap()
    };
    lines.map(overlap).collect()
}

/// What a target says greedily, with drafts of a head or without.
fn text(target: &Model, head: Option<&Path>) -> (Vec<forerun_decode::Token>, usize) {
    let mut engine = engine(target);
    let drafter = head.map(|path| {
        let model = load(path);
        assert_eq!(model.head_kind(), Some(HeadKind::Eagle3));
        let head = LlamaHead::new(&model, (target, &mut engine), &engine_options()).unwrap();
        let kind = head.kind().drafter();
        Box::new(HeadDrafter::new(Box::new(head), kind)) as Box<dyn forerun_decode::Drafter>
    });
    let ids = (0..usize::from(drafter.is_some())).map(DrafterId).collect();
    let mut decoder = Decoder::new(Box::new(engine), drafter.into_iter().collect()).unwrap();
    let mut sequence = Sequence::new(Slot(0), Sampling::greedy());
    sequence.begin(tokens(target), 60);
    let policy = DraftPolicy::drafted(ids, 3, Arc::new(BlockRule));
    let vocab: Arc<dyn Tokenizer> = Arc::new(target.vocab().clone());
    let stops = StopStrings::new(Vec::<String>::new()).unwrap();
    let mut generation = Generation::new(sequence, policy, vocab, &stops, 1);
    let mut rounds = 0;
    while generation.next(&mut decoder).unwrap().is_some() {
        rounds += 1;
    }
    (generation.sequence().output().to_vec(), rounds)
}

#[test]
fn a_head_is_trained_from_file_to_file_and_changes_no_output() {
    let runs = Runs::new("head-trained", "zoo/llama.gguf");
    let said = runs.ended(0, "head.gguf", "--epochs 8");
    println!("{said}");
    assert!(said.contains("reads layers 0, 1 and 2 and drafts 200 tokens"), "{said}");
    for (which, before) in [("first", "overlap "), ("third", "next tokens ")] {
        let curve = overlaps(&said, before);
        let rose = curve.len() > 2 && curve.last().unwrap() > &(curve[0] + 0.05);
        assert!(rose, "{which}: {curve:?}");
    }
    assert!(said.contains("predicted speedup"), "{said}");
    let mut left: Vec<String> = fs::read_dir(&runs.folder)
        .unwrap()
        .map(|it| it.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort_unstable();
    let expected = ["all.rows", "all.rows.features", "head.gguf", "head.gguf.html", "prompts.txt"];
    assert_eq!(left, expected);
    let page = fs::read_to_string(runs.file("head.gguf.html")).unwrap();
    assert!(page.contains("an EAGLE-3 head that reads layers 0, 1 and 2"), "{page}");

    let target = load(&runs.target);
    let (plain, _) = text(&target, None);
    let (drafted, rounds) = text(&target, Some(&runs.file("head.gguf")));
    assert_eq!((plain.len(), &drafted), (60, &plain));
    println!("{rounds} rounds");
}

#[cfg(unix)]
#[test]
fn a_head_s_run_that_was_stopped_writes_the_same_file_once_it_is_resumed() {
    let runs = Runs::new("head-resumed", "zoo/qwen3.gguf");
    let flags = "--epochs 20 --patience 1000";
    runs.ended(0, "whole.gguf", flags);
    let mut child = runs.command("head.gguf", flags).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("step 20 of")));
    let process = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &process]).status().unwrap().success());
    assert!(lines.any(|line| line.contains("go on with the same flags and --resume")));
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let refused = runs.ended(1, "head.gguf", &format!("{flags} --resume --loss kl"));
    assert!(refused.contains("other settings"), "{refused}");
    runs.ended(0, "head.gguf", &format!("{flags} --resume"));
    assert!(runs.bytes("head.gguf") == runs.bytes("whole.gguf"), "the files differ");
}

#[test]
fn what_makes_no_sense_for_a_head_is_refused_with_what_to_do() {
    let runs = Runs::new("head-refused", "zoo/llama.gguf");
    for (flags, expected) in [
        ("--keep-blocks 0,2", "leave out --keep-blocks"),
        ("--student prompts.txt", "leave out --keep-blocks and --student"),
        ("--on-policy 0.5", "leave out --on-policy"),
        ("--no-training", "--no-training"),
        ("--head-layers 0,1,7", "numbered from 0 to 2"),
    ] {
        let refused = runs.ended(1, "head.gguf", flags);
        assert!(refused.contains(expected), "{flags}: {refused}");
    }
    let runs = Runs::new("head-without-states", "zoo/gemma3.gguf");
    let refused = runs.ended(1, "head.gguf", "");
    assert!(refused.contains("gemma3") && refused.contains("leave --head out"), "{refused}");
}
