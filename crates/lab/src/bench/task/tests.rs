//! A task from its problems to its report, on the toy engine.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;

use forerun_decode::{Engine, Special, Token, TokenizeError, Tokenizer};

use super::*;
use crate::bench::config::Files;
use crate::bench::record::Stop;
use crate::bench::{Axes, drafters, teams};
use crate::machine::EngineRecord;
use crate::models::{EngineShape, Parts, Target};
use crate::toy::{Folder, Heard, Toy, provenance};

const PROBLEMS: usize = 12;

/// Tokens that say their number.
struct Digits(Arc<dyn Tokenizer>);

impl Tokenizer for Digits {
    fn vocab_len(&self) -> usize {
        self.0.vocab_len()
    }

    fn tokenize(&self, text: &str, special: Special) -> Result<Vec<Token>, TokenizeError> {
        self.0.tokenize(text, special)
    }

    fn start(&self) -> Option<Token> {
        None
    }

    fn is_end(&self, token: Token) -> bool {
        self.0.is_end(token)
    }

    fn bytes(&self, token: Token, out: &mut Vec<u8>) {
        out.extend(format!(" {}", token.0).bytes());
    }
}

/// The toy, and a flag to raise after so many prompts were begun.
struct Speaking(Toy);

impl Models for Speaking {
    fn target(&mut self) -> Result<Target> {
        let target = self.0.target()?;
        Ok(Target { vocab: Arc::new(Digits(target.vocab)), ..target })
    }

    fn engine(&mut self, shape: &EngineShape) -> Result<Box<dyn Engine>> {
        self.0.engine(shape)
    }

    fn parts(&mut self, shape: &EngineShape, draft_paths: NonZeroU32) -> Result<Parts> {
        self.0.parts(shape, draft_paths)
    }

    fn draft_engine(&mut self, shape: &EngineShape) -> Result<Option<Box<dyn Engine>>> {
        self.0.draft_engine(shape)
    }

    fn record(&self, context_len: usize, paths: u32) -> EngineRecord {
        self.0.record(context_len, paths)
    }
}

fn config(folder: &Folder, name: &str) -> BenchConfig {
    let data = folder.path(name).with_extension("json");
    BenchConfig {
        files: Files {
            page: folder.path("none.html"),
            journal: data.with_extension("jsonl"),
            data,
        },
        resume: false,
        force: false,
        quick: false,
        stop: Stop { repeats: 1, precision: 0.05, time_limit_s: 60.0 },
        prompts: None,
        tasks: None,
        prompts_per_task: None,
        prompts_per_task_max: 8,
        text_len: 24,
        temperatures: vec![1.0],
        top_k: Some(0),
        top_p: Some(1.0),
        min_p: Some(0.0),
        seed: 1,
        provenance: provenance(),
    }
}

fn local(folder: &Folder) -> LocalConfig {
    let teams = teams(&["draft".to_owned()], &[]).unwrap();
    let drafters = drafters(&teams);
    let axes = Axes {
        teams,
        rules: vec![],
        lossy: vec!["account:0.5".parse().unwrap()],
        widths: vec![1],
        lens: vec![3],
        adaptive: vec![false],
    };
    LocalConfig {
        target: folder.file("target.gguf", "a target"),
        files: vec![folder.file("draft.gguf", "a draft")],
        drafters,
        product: axes.product().unwrap().without_lossless(),
    }
}

/// Problems with these answers.
fn task(folder: &Folder, answers: &[String]) -> TaskConfig {
    let line = |(index, answer): (usize, &String)| {
        format!("{{\"question\": \"How many fish in {index}?\", \"answer\": \"#### {answer}\"}}\n")
    };
    let lines: String = answers.iter().enumerate().map(line).collect();
    TaskConfig { task: Task::Gsm8k, file: Some(folder.file("problems.jsonl", &lines)) }
}

fn solved(folder: &Folder, config: &BenchConfig, answers: &[String], heard: &Heard) -> TaskReport {
    let local = local(folder);
    let mut models = Speaking(Toy { drafters: local.drafters.iter().map(|it| it.kind).collect() });
    let task = task(folder, answers);
    solve((config, &task), &local, &mut models, heard, &Cancellation::default()).unwrap();
    read(config)
}

fn read(config: &BenchConfig) -> TaskReport {
    serde_json::from_str(&fs::read_to_string(&config.files.data).unwrap()).unwrap()
}

fn answers(config: &BenchConfig) -> Vec<Answer> {
    let journal = fs::read_to_string(&config.files.journal).unwrap();
    journal.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn numbers(all: &[Answer], setting: usize) -> Vec<Option<String>> {
    let mut own: Vec<&Answer> = all.iter().filter(|it| it.setting == setting).collect();
    own.sort_by_key(|it| it.problem);
    own.into_iter().map(|it| it.number.clone()).collect()
}

#[test]
fn a_task_runs_from_its_problems_to_its_report() {
    let folder = Folder::new("task");
    let first = config(&folder, "first");
    solved(&folder, &first, &vec!["999".to_owned(); PROBLEMS], &Heard::default());
    let said = answers(&first);
    assert_eq!(said.len(), 2 * PROBLEMS);

    // What plain decoding says is now right, but for one problem.
    let mut right: Vec<String> =
        numbers(&said, 0).into_iter().map(|it| it.unwrap_or_else(|| "5".to_owned())).collect();
    right[0] = "999".to_owned();
    let (second, heard) = (config(&folder, "second"), Heard::default());
    let report = solved(&folder, &second, &right, &heard);
    assert_eq!(report.ended, "problems");
    let [plain, lossy] = report.results.as_slice() else { panic!("{:?}", report.results) };
    let said = answers(&second);
    let count = |setting| {
        let own = numbers(&said, setting);
        own.iter().zip(&right).filter(|(own, right)| own.as_ref() == Some(*right)).count()
    };
    let share = |count: usize| count as f64 / PROBLEMS as f64;
    assert_eq!((plain.accuracy, plain.problems), (share(count(0)), PROBLEMS));
    assert!(plain.accuracy >= 0.2 && plain.informative, "{}", plain.accuracy);
    assert_eq!(lossy.accuracy, share(count(1)));
    assert!(lossy.spent.unwrap() > 0.0);
    let difference = lossy.difference.unwrap();
    assert!((difference.value - (lossy.accuracy - plain.accuracy)).abs() < 1e-12);
    let result = &heard.results.borrow()[0];
    assert!(result.starts_with("gsm8k of problems.jsonl, temperature 1"), "{result}");
    assert!(result.contains("points of plain decoding (95 %)"), "{result}");
}

/// Cancels the run when it is about to answer once more than `patience`.
#[derive(Default)]
struct Impatient {
    patience: usize,
    answered: std::cell::Cell<usize>,
    cancellation: Cancellation,
    heard: Heard,
}

impl Observer for Impatient {
    fn show(&self, _: f64, detail: &str) {
        if detail.starts_with("problem") {
            let late = self.answered.get() == self.patience;
            self.answered.set(self.answered.get() + 1);
            self.cancellation.flag().store(late, std::sync::atomic::Ordering::SeqCst);
        }
    }

    fn note(&self, text: &str) {
        self.heard.note(text);
    }

    fn result(&self, text: &str) -> std::io::Result<()> {
        self.heard.result(text)
    }
}

#[test]
fn an_interrupted_task_reports_what_there_is_and_goes_on() {
    let folder = Folder::new("task-interrupted");
    let (config, local) = (config(&folder, "broken-off"), local(&folder));
    let right = vec!["3".to_owned(); PROBLEMS];
    let task = task(&folder, &right);
    let interrupted = |patience| {
        let kinds = local.drafters.iter().map(|it| it.kind);
        let mut models = Speaking(Toy { drafters: kinds.collect() });
        let impatient = Impatient { patience, ..Impatient::default() };
        let cancellation = impatient.cancellation.clone();
        let ended = solve((&config, &task), &local, &mut models, &impatient, &cancellation);
        assert_eq!(ended.unwrap(), Ended::Interrupted);
        impatient.heard
    };
    let notes = interrupted(0).notes.into_inner();
    assert!(notes.iter().any(|note| note.contains("there is no report")), "{notes:?}");
    assert!(!config.files.data.exists());
    let _ = fs::remove_file(&config.files.journal);
    interrupted(5);
    let report = read(&config);
    assert_eq!((report.ended.as_str(), report.results[1].problems), ("interrupted", 2));
    assert_eq!(answers(&config).len(), 5);

    let whole = config_of_whole(&folder, &right);
    let resumed = BenchConfig { resume: true, ..config };
    let report = solved(&folder, &resumed, &right, &Heard::default());
    assert_eq!(report.results[1].problems, PROBLEMS);
    assert_eq!(answers(&resumed), answers(&whole), "as if nobody had interrupted");
}

fn config_of_whole(folder: &Folder, right: &[String]) -> BenchConfig {
    let whole = config(folder, "whole");
    solved(folder, &whole, right, &Heard::default());
    whole
}

#[test]
fn the_documented_fields_are_those_of_a_report() {
    let folder = Folder::new("task-fields");
    let config = config(&folder, "fields");
    let report = solved(&folder, &config, &vec!["3".to_owned(); 3], &Heard::default());
    let value = serde_json::to_value(report).unwrap();
    let mut found = BTreeSet::new();
    for (name, value) in value.as_object().unwrap() {
        let inner = match value {
            serde_json::Value::Array(all) => all[1].as_object().unwrap(),
            serde_json::Value::Object(object) => object,
            _ => {
                found.insert(name.clone());
                continue;
            }
        };
        // All else is as in the other report.
        let own =
            |it: &&String| name == "results" || ["task", "file", "answers"].contains(&it.as_str());
        found.extend(inner.keys().filter(own).map(|it| format!("{name}.{it}")));
    }
    let text = include_str!("../../../../../docs/bench.md");
    let section = text.split("### The file of a task").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let documented: BTreeSet<String> =
        rows.map(|row| row.split('`').next().unwrap().to_owned()).collect();
    assert_eq!(documented, found);
}
