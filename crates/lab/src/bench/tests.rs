//! A benchmark from its configuration to its report, on the toy engine.

use forerun_decode::RuleChoice;

use super::*;
use crate::toy::{Folder, Heard, Toy, provenance};

const PROMPTS: &str = "{\"prompt\": \"Count to ten.\", \"task\": \"count\", \"id\": \"a\"}\n\
                       {\"prompt\": \"Say fish.\", \"task\": \"say\", \"id\": \"b\"}\n\
                       {\"prompt\": \"Say fish, fish.\", \"task\": \"say\", \"id\": \"c\"}\n";

fn config(folder: &Folder) -> BenchConfig {
    BenchConfig {
        files: Files {
            page: folder.path("page.html"),
            data: folder.path("page.json"),
            journal: folder.path("page.jsonl"),
        },
        resume: false,
        force: false,
        quick: false,
        stop: Stop { repeats: 2, precision: 1e-9, time_limit_s: 60.0 },
        prompts: Some(folder.file("prompts.jsonl", PROMPTS)),
        tasks: None,
        prompts_per_task: Some(2),
        prompts_per_task_max: 2,
        text_len: 24,
        temperatures: vec![0.0, 1.0],
        top_k: Some(0),
        top_p: Some(1.0),
        min_p: Some(0.0),
        seed: 1,
        provenance: provenance(),
    }
}

fn local(folder: &Folder) -> LocalConfig {
    let teams = teams(&["draft".to_owned()], &["ngram".parse().unwrap()]).unwrap();
    let rules = vec![RuleChoice::Block, RuleChoice::Pooled];
    let drafters = drafters(&teams);
    let axes = Axes {
        teams,
        rules,
        lossy: vec![],
        widths: vec![1, 2],
        lens: vec![3],
        adaptive: vec![false],
    };
    LocalConfig {
        target: folder.file("target.gguf", "a target"),
        files: vec![folder.file("draft.gguf", "a draft")],
        drafters,
        product: axes.product().unwrap(),
    }
}

fn measured(config: &BenchConfig, local: &LocalConfig, heard: &Heard) -> (Ended, Report) {
    let mut toy = Toy { drafters: local.drafters.iter().map(|it| it.kind).collect() };
    let subject = Subject::Models(local, &mut toy);
    let ended = run(config, subject, heard, &Cancellation::default()).unwrap();
    (ended, Report::read(&config.files.data).unwrap())
}

#[test]
fn a_benchmark_runs_from_prompts_to_its_report() {
    let folder = Folder::new("bench");
    let (config, local, heard) = (config(&folder), local(&folder), Heard::default());
    let (ended, report) = measured(&config, &local, &heard);
    assert_eq!((ended, report.ended.as_str(), report.repeats), (Ended::Repeats, "repeats", 2));

    let names: Vec<&str> = report.config.settings.iter().map(|it| it.name.as_str()).collect();
    let drafted = ["draft, block, 1x3", "draft, pooled, 1x3", "draft, pooled, 2x3"];
    assert_eq!(names[..4], [&["plain"], &drafted[..]].concat());
    assert_eq!(report.measures.len(), names.len() * 2 * 3 * 2, "settings, temperatures, …");
    assert_eq!(report.config.drafters[0].name, "draft.gguf");
    assert_eq!(report.config.target.as_ref().unwrap().bytes, 8);
    assert_eq!(report.date, "2026-01-02");

    for cell in report.overall(0.0) {
        assert_eq!(cell.texts, 6, "{}", cell.setting);
        if cell.setting != "plain" {
            assert_eq!(cell.differing, Some(0), "greedy text does not depend on drafts");
        }
        if drafted.contains(&cell.setting.as_str()) {
            // The draft model ranks tokens as the target does.
            assert_eq!(cell.positions[0].acceptance, Some(1.0), "{}", cell.setting);
            assert!(cell.block_efficiency.unwrap() > 3.0, "{}", cell.setting);
        }
    }
    let curves: Vec<&str> = report.costs.iter().map(|curve| curve.model.as_str()).collect();
    assert_eq!(curves, ["target", "draft"]);
    let page = fs::read_to_string(&config.files.page).unwrap();
    assert!(page.contains("pooled 2×3") && page.contains("Benchmark of target.gguf"));
    assert!(heard.results.borrow()[0].contains("times plain decoding"), "{:?}", heard.results);
}

#[test]
fn edits_are_drafted_from_the_prompt_or_from_what_is_predicted() {
    let folder = Folder::new("edits");
    let fish = |animal| {
        format!("{{\"prompt\": \"{animal}, fish.\", \"prediction\": \"{animal}, fish.\"}}\n")
    };
    let prompts = ["Fish", "Cat", "Dog", "Owl", "Bee", "Ant", "Hen", "Fox"].map(fish).concat();
    let prompts = Some(folder.file("edits.jsonl", &prompts));
    let greedy = BenchConfig {
        prompts,
        prompts_per_task: Some(8),
        prompts_per_task_max: 8,
        temperatures: vec![0.0],
        ..config(&folder)
    };
    let (config, heard) = (greedy, Heard::default());
    let named = ["edit", "prediction", "oracle"].map(|name| name.parse().unwrap());
    let teams = teams(&[], &named).unwrap();
    let drafters = drafters(&teams);
    let axes = Axes {
        teams,
        rules: vec![],
        lossy: vec![],
        widths: vec![1],
        lens: vec![8],
        adaptive: vec![false, true],
    };
    let (files, product) = (Vec::new(), axes.product().unwrap());
    let local = LocalConfig { files, drafters, product, ..local(&folder) };
    let (ended, report) = measured(&config, &local, &heard);
    assert_eq!(ended, Ended::Repeats);
    let drafted = |name: &str| -> u64 {
        let settings = &report.config.settings;
        let own = report.measures.iter().filter(|it| settings[it.setting].drafters == [name]);
        own.map(|it| it.drafted).sum()
    };
    // The toy does not write of fish: what begins where the output begins is drafted, the rest is not.
    assert!(drafted("prediction") > drafted("edit"));
    let oracle = |it: &&Measure| {
        let setting = &report.config.settings[it.setting];
        setting.drafters == ["oracle"] && !setting.adaptive
    };
    for measure in report.measures.iter().filter(oracle) {
        assert_eq!(measure.accepted, measure.drafted, "it drafts the very text");
    }
    assert!(drafted("oracle") > 0);
    assert!(report.overall(0.0).iter().all(|cell| cell.differing.unwrap_or(0) == 0));
}

#[test]
fn earlier_outputs_are_drafted_from_where_they_are_shared() {
    let folder = Folder::new("agents");
    // Who asks the same again gets the same answer.
    let asked = "{\"prompt\": \"Say fish.\"}\n".repeat(2);
    let config = BenchConfig {
        prompts: Some(folder.file("agents.jsonl", &asked)),
        // Before it repeats itself.
        text_len: 8,
        temperatures: vec![0.0],
        ..config(&folder)
    };
    let teams = teams(&[], &["suffix", "suffix-shared"].map(|name| name.parse().unwrap())).unwrap();
    let drafters = drafters(&teams);
    let axes = Axes {
        teams,
        rules: vec![],
        lossy: vec![],
        widths: vec![1],
        lens: vec![8],
        adaptive: vec![false],
    };
    let (files, product) = (Vec::new(), axes.product().unwrap());
    let local = LocalConfig { files, drafters, product, ..local(&folder) };
    let (_, report) = measured(&config, &local, &Heard::default());
    let accepted = |name: &str, repeat, prompt| {
        let setting = report.config.settings.iter().position(|it| it.drafters == [name]);
        let own =
            |it: &&Measure| (Some(it.setting), it.repeat, it.prompt) == (setting, repeat, prompt);
        report.measures.iter().find(own).unwrap().accepted
    };
    for repeat in 0..2 {
        assert_eq!(accepted("suffix-shared", repeat, 0), accepted("suffix", repeat, 0));
        let (shared, own) = (accepted("suffix-shared", repeat, 1), accepted("suffix", repeat, 1));
        assert!(shared > own, "{shared} {own}");
    }
}

#[test]
fn a_run_goes_on_where_it_was_and_refuses_to_write_over_it() {
    let folder = Folder::new("resumed");
    let (config, local, heard) = (config(&folder), local(&folder), Heard::default());
    let (_, first) = measured(&config, &local, &heard);
    let mut toy = Toy { drafters: local.drafters.iter().map(|it| it.kind).collect() };
    let subject = Subject::Models(&local, &mut toy);
    let again = run(&config, subject, &heard, &Cancellation::default()).unwrap_err();
    assert!(again.to_string().contains("is there already: go on with --resume"), "{again}");

    let stop = Stop { repeats: 3, ..config.stop.clone() };
    let longer = BenchConfig { resume: true, stop, ..config };
    let (ended, more) = measured(&longer, &local, &heard);
    assert_eq!((ended, more.repeats), (Ended::Repeats, 3));
    assert_eq!(more.measures[..first.measures.len()], first.measures);
    assert_eq!(2 * more.measures.len(), 3 * first.measures.len());
}

#[test]
fn a_cancelled_run_ends_with_what_was_measured() {
    let folder = Folder::new("cancelled");
    let (config, local) = (config(&folder), local(&folder));
    let cancellation = Cancellation::default();
    let mut toy = Toy { drafters: local.drafters.iter().map(|it| it.kind).collect() };
    let subject = Subject::Models(&local, &mut toy);
    let cancelling = CancelsAfterRepeat(&cancellation);
    let ended = run(&config, subject, &cancelling, &cancellation).unwrap();
    let report = Report::read(&config.files.data).unwrap();
    assert_eq!(
        (ended, report.ended.as_str(), report.repeats),
        (Ended::Interrupted, "interrupted", 1)
    );
}

/// Cancels at the first note, which is made after a whole repeat.
struct CancelsAfterRepeat<'a>(&'a Cancellation);

impl Observer for CancelsAfterRepeat<'_> {
    fn note(&self, _: &str) {
        self.0.flag().store(true, std::sync::atomic::Ordering::SeqCst);
    }

    fn result(&self, _: &str) -> std::io::Result<()> {
        Ok(())
    }
}
