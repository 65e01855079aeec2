//! The program as people run it: trained, stopped, killed, resumed, and refused.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output as Ran, Stdio};
use std::sync::Arc;

use common::{BASE, engine, folder, load, model_path, tokens};
use forerun_decode::{
    Decoder, DraftPolicy, Drafter, DrafterId, Generation, ModelDrafter, Sampling, Sequence, Slot,
    StopStrings, Tokenizer,
};
use forerun_llama::trim;
use forerun_verify::BlockRule;

const PROGRAM: &str = env!("CARGO_BIN_EXE_forerun-distill");

/// Runs of one target, in a folder of their own.
struct Runs {
    folder: PathBuf,
    flags: Vec<String>,
}

impl Runs {
    /// Two blocks of a small model, with prompts of some words each.
    fn new(name: &str, flags: &[&str]) -> Self {
        let folder = folder(name);
        let words = ["the sea", "a lamp", "an old book", "gulls", "ships", "wind"];
        let line = |at: usize| format!("Tell me about {} and {}.\n", words[at % 6], words[at / 6]);
        fs::write(folder.join("prompts.txt"), (0..36).map(line).collect::<String>()).unwrap();
        let target = model_path("zoo/llama.gguf");
        let usual = "-t 1 -n 40 -c 160 --held-out 6 --parallel 4 --keep-blocks 0,2 --type F16 \
                     --batch-tokens 600 --measure-every 10 --rate 2e-3";
        let mut all: Vec<String> = usual.split_whitespace().map(str::to_owned).collect();
        all.extend(["-m".to_owned(), target.to_str().unwrap().to_owned()]);
        all.extend(["--prompts".to_owned(), "prompts.txt".to_owned()]);
        all.extend(flags.iter().map(|&flag| flag.to_owned()));
        Self { folder, flags: all }
    }

    fn command(&self, output: &str, more: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.current_dir(&self.folder).args(&self.flags).args(["-o", output]).args(more);
        command
    }

    fn run(&self, output: &str, more: &[&str]) -> Ran {
        self.command(output, more).output().unwrap()
    }

    /// Runs it to its end, which must be a good one.
    fn done(&self, output: &str, more: &[&str]) -> String {
        let ran = self.run(output, more);
        assert!(ran.status.success(), "{}", said(&ran));
        said(&ran)
    }

    /// Runs it to its end, which must be an error.
    fn refused(&self, output: &str, more: &[&str]) -> String {
        let ran = self.run(output, more);
        assert_eq!(ran.status.code(), Some(1), "{}", said(&ran));
        said(&ran)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        fs::read(self.file(name)).unwrap()
    }
}

fn said(ran: &Ran) -> String {
    String::from_utf8(ran.stderr.clone()).unwrap()
}

/// The measurements of what is held out, by what the program said.
fn overlaps(said: &str) -> Vec<f64> {
    let lines = said.lines().filter(|line| line.contains("held out: loss"));
    let overlap = |line: &str| {
        let (_, rest) = line.split_once("overlap ").unwrap();
        rest.split(',').next().unwrap().parse().unwrap()
    };
    lines.map(overlap).collect()
}

#[test]
fn a_draft_model_is_trained_from_file_to_file_and_changes_no_output() {
    let runs = Runs::new("trained", &["--epochs", "6"]);
    let said = runs.done("draft.gguf", &[]);
    let curve = overlaps(&said);
    assert!(curve.len() > 2 && curve.last().unwrap() > &(curve[0] + 0.05), "{curve:?}\n{said}");
    assert!(said.contains("predicted speedup"), "{said}");
    let mut left: Vec<String> = fs::read_dir(&runs.folder)
        .unwrap()
        .map(|it| it.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort_unstable();
    assert_eq!(left, ["draft.gguf", "draft.gguf.html", "draft.gguf.rows", "prompts.txt"]);
    let page = fs::read_to_string(runs.file("draft.gguf.html")).unwrap();
    let best = curve.iter().copied().fold(0.0, f64::max);
    assert!(page.contains(&format!("Overlap of what is held out: {best:.3}")), "{page}");
    assert_eq!(page.matches("<svg").count(), 3);

    let (target, draft) = (load(&model_path("zoo/llama.gguf")), load(&runs.file("draft.gguf")));
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

/// A run that goes on, and what it says.
struct Going {
    child: Child,
    lines: Lines<BufReader<ChildStderr>>,
}

impl Going {
    fn begin(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Waits for something it says.
    fn until(&mut self, enough: impl Fn(&str) -> bool) {
        let found = self.lines.by_ref().map(Result::unwrap).find(|line| enough(line));
        assert!(found.is_some(), "it ended before it said so");
    }
}

#[cfg(unix)]
#[test]
fn a_run_that_was_stopped_and_killed_writes_the_same_file_once_it_is_resumed() {
    let flags = ["--epochs", "40", "--patience", "1000", "--checkpoint-every", "1s"];
    let runs = Runs::new("resumed", &[&flags[..], &["--rows", "all.rows"]].concat());
    runs.done("whole.gguf", &[]);
    let checkpoint = runs.file("draft.gguf.checkpoint");

    // Ctrl-C, which leaves a checkpoint of this very step.
    let mut going = Going::begin(runs.command("draft.gguf", &[]));
    going.until(|line| line.contains("step 20 of"));
    let process = going.child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &process]).status().unwrap().success());
    going.until(|line| line.contains("go on with the same flags and --resume"));
    assert_eq!(going.child.wait().unwrap().code(), Some(130));
    let again = runs.refused("draft.gguf", &[]);
    assert!(again.contains("go on from it with --resume"), "{again}");

    // A damaged checkpoint is refused, and so is one of other settings.
    let good = fs::read(&checkpoint).unwrap();
    let mut damaged = good.clone();
    damaged[good.len() / 3] ^= 1;
    fs::write(&checkpoint, damaged).unwrap();
    let refused = runs.refused("draft.gguf", &["--resume"]);
    assert!(refused.contains("damaged"), "{refused}");
    fs::write(&checkpoint, &good).unwrap();
    let refused = runs.refused("draft.gguf", &["--resume", "--warm-up", "3"]);
    assert!(refused.contains("other settings"), "{refused}");

    // Killed outright, after a checkpoint that the clock asked for.
    let mut going = Going::begin(runs.command("draft.gguf", &["--resume"]));
    going.until(|_| fs::read(&checkpoint).unwrap() != good);
    going.child.kill().unwrap();
    going.child.wait().unwrap();
    assert!(!runs.file("draft.gguf").exists());
    runs.done("draft.gguf", &["--resume"]);
    assert!(runs.bytes("draft.gguf") == runs.bytes("whole.gguf"), "the files differ");
}

#[cfg(unix)]
#[test]
fn a_student_learns_from_its_own_sequences_and_is_the_same_after_a_stop() {
    let runs = Runs::new(
        "own",
        &["--epochs", "10", "--on-policy", "0.5", "--patience", "1000", "--rows", "all.rows"],
    );
    let said = runs.done("whole.gguf", &[]);
    assert!(said.contains("epoch 2: the student generated 15 sequences"), "{said}");
    let curve = overlaps(&said);
    assert!(curve.last().unwrap() > &(curve[0] + 0.05), "{curve:?}");
    let mut going = Going::begin(runs.command("draft.gguf", &[]));
    going.until(|line| line.contains("epoch 4: the student generated"));
    let process = going.child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &process]).status().unwrap().success());
    going.until(|line| line.contains("go on with the same flags and --resume"));
    going.child.wait().unwrap();
    runs.done("draft.gguf", &["--resume"]);
    assert!(runs.bytes("draft.gguf") == runs.bytes("whole.gguf"), "the files differ");
}

#[test]
fn a_student_that_could_not_be_written_is_written_by_the_next_run() {
    let runs = Runs::new("unwritten", &["--epochs", "2", "--rows", "all.rows"]);
    runs.done("whole.gguf", &[]);
    // Something is in the way of the file that is written first.
    fs::create_dir(runs.file("draft.gguf.f32")).unwrap();
    let refused = runs.refused("draft.gguf", &[]);
    assert!(refused.contains("make room, and go on with --resume"), "{refused}");
    fs::remove_dir(runs.file("draft.gguf.f32")).unwrap();
    let said = runs.done("draft.gguf", &["--resume"]);
    assert!(overlaps(&said).is_empty(), "nothing is left to learn");
    assert!(runs.bytes("draft.gguf") == runs.bytes("whole.gguf"), "the files differ");
}

#[cfg(unix)]
#[test]
fn a_full_disk_ends_it_with_a_plain_word_and_no_half_files() {
    let runs = Runs::new("full", &["--epochs", "2", "--rows", "all.rows"]);
    // No file may be longer: what a full disk does, without one.
    let limited = |kibibytes: u32, output: &str| {
        let script = format!("trap '' XFSZ; ulimit -f {}; exec \"$@\"", 2 * kibibytes);
        let mut command = Command::new("sh");
        command.current_dir(&runs.folder).args(["-c", &script, "sh", PROGRAM]);
        command.args(&runs.flags).args(["-o", output]).output().unwrap()
    };
    let ran = limited(100, "rows.gguf");
    assert_eq!(ran.status.code(), Some(1), "{}", said(&ran));
    assert!(said(&ran).contains("is there room on the disk?"), "{}", said(&ran));
    let left = |path: &Path| path.extension().is_some_and(|it| it != "txt");
    let files = || fs::read_dir(&runs.folder).unwrap().map(|it| it.unwrap().path());
    assert_eq!(files().filter(|it| left(it)).collect::<Vec<_>>(), Vec::<PathBuf>::new());

    runs.done("whole.gguf", &[]);
    let ran = limited(100, "draft.gguf");
    assert_eq!(ran.status.code(), Some(1), "{}", said(&ran));
    assert!(said(&ran).contains("is there room on the disk?"), "{}", said(&ran));
    let own = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("draft");
    assert_eq!(files().filter(own).collect::<Vec<_>>(), Vec::<PathBuf>::new());

    // Checkpoints are the longest files: without room for them there is a student all the same.
    let ran = limited(800, "draft.gguf");
    assert!(ran.status.success(), "{}", said(&ran));
    assert!(runs.bytes("draft.gguf") == runs.bytes("whole.gguf"), "the files differ");
}

#[test]
fn a_student_whose_tokens_mean_nothing_to_the_target_is_refused() {
    let runs = Runs::new("foreign", &[]);
    let student = model_path(BASE);
    let refused = runs.refused("draft.gguf", &["--student", student.to_str().unwrap()]);
    assert!(refused.contains("have a counterpart in the target's"), "{refused}");
}

#[test]
fn a_student_with_a_trimmed_vocabulary_is_trained() {
    let runs = Runs::new("cut", &["--epochs", "6"]);
    trim(&model_path("zoo/llama.gguf"), &runs.file("cut.gguf"), 280, None).unwrap();
    let said = runs.done("draft.gguf", &["--student", "cut.gguf"]);
    let curve = overlaps(&said);
    assert!(curve.last().unwrap() > &(curve[0] + 0.05), "{curve:?}");
    assert_eq!(load(&runs.file("draft.gguf")).vocab_len(), 280);
    fs::remove_file(runs.file("draft.gguf")).unwrap();
    let refused = runs.refused("draft.gguf", &["--student", "cut.gguf", "--on-policy", "0.5"]);
    assert!(refused.contains("for students with the same"), "{refused}");
}

#[test]
fn a_student_with_a_transplanted_vocabulary_is_trained_with_its_embeddings() {
    let runs = Runs::new("transplanted", &["--epochs", "6", "--rows", "all.rows"]);
    trim(&model_path("zoo/llama.gguf"), &runs.file("cut.gguf"), 280, None).unwrap();
    let student = ["--student", "cut.gguf"];
    let said = runs.done("draft.gguf", &[&student[..], &["--transplant", "285"]].concat());
    let curve = overlaps(&said);
    assert!(curve.last().unwrap() > &(curve[0] + 0.05), "{curve:?}");
    assert_eq!(load(&runs.file("draft.gguf")).vocab_len(), 285);
    assert!(!runs.file("draft.gguf.transplanted").exists());
    // With all tokens it is as if it had always had them: it may write its own sequences.
    let own = ["--transplant", "1000000", "--on-policy", "0.5"];
    let said = runs.done("all.gguf", &[&student[..], &own].concat());
    assert!(said.contains("epoch 2: the student generated"), "{said}");
    let target = load(&model_path("zoo/llama.gguf"));
    assert_eq!(load(&runs.file("all.gguf")).vocab_len(), target.vocab_len());
    let refused = runs.refused("no.gguf", &[&student[..], &["--transplant", "5"]].concat());
    assert!(refused.contains("out of range"), "{refused}");
}

#[test]
fn rows_of_other_settings_and_outputs_that_exist_are_refused_with_what_to_do() {
    let runs = Runs::new("refused", &["--epochs", "1", "--rows", "all.rows"]);
    let refused = runs.refused("draft.gguf", &["--resume"]);
    assert!(refused.contains("there is no such checkpoint"), "{refused}");
    runs.done("draft.gguf", &[]);
    let refused = runs.refused("draft.gguf", &[]);
    assert!(refused.contains("there is a file already"), "{refused}");
    let refused = runs.refused("other.gguf", &["--seed", "5"]);
    assert!(refused.contains("other settings") && refused.contains("--rows"), "{refused}");
}
