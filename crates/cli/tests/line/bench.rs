//! What command lines mean to `forerun bench`.

use clap::{CommandFactory, FromArgMatches};

use super::*;
use crate::{Cli, Command, args};

fn resolve(line: &str) -> Result<(BenchConfig, Place), String> {
    let line = format!("forerun bench {line}");
    let mut command = Cli::command();
    let argv = args::written_out(line.split_whitespace().map(Into::into), &mut command);
    let matches = command.try_get_matches_from(argv.map_err(|error| error.to_string())?);
    let matches = matches.map_err(|error| error.to_string())?;
    match Cli::from_arg_matches(&matches).unwrap().command {
        Command::Bench(flags) => flags.resolve().map_err(|error| error.to_string()),
        _ => unreachable!("the line says bench"),
    }
}

fn local(line: &str) -> LocalConfig {
    match resolve(&format!("-m big.gguf {line}")).unwrap().1 {
        Place::Local(_, local) => local,
        Place::Server(_) => panic!("no server was named"),
    }
}

fn settings(line: &str) -> Vec<String> {
    let product = local(line).product;
    product.settings.into_iter().map(|setting| setting.name).collect()
}

#[test]
fn nothing_said_means_what_looks_tokens_up() {
    let (config, _) = resolve("-m big.gguf").unwrap();
    assert_eq!((config.text_len, config.temperatures), (64, vec![0.0, 1.0]));
    assert_eq!((config.stop.repeats, config.prompts_per_task), (5, None));
    assert_eq!((config.top_k, config.top_p, config.min_p), (Some(0), Some(1.0), Some(0.0)));
    assert_eq!(config.files.journal, PathBuf::from("bench.jsonl"));
    assert_eq!(settings(""), ["plain", "ngram, block, 1x4", "suffix, block, 1x4"]);
    assert_eq!(settings("--spec-type none"), ["plain"]);
}

#[test]
fn drafters_rules_widths_and_lengths_are_lists() {
    let line = "-md a.gguf --draft dir/b.gguf --spec-type ngram --verify block,pooled \
                --draft-paths 2 --draft-max 2,4";
    assert_eq!(
        settings(line),
        [
            "plain",
            "a, block, 1x2",
            "a, block, 1x4",
            "a, pooled, 2x2",
            "a, pooled, 2x4",
            "b, block, 1x2",
            "b, block, 1x4",
            "b, pooled, 2x2",
            "b, pooled, 2x4",
            "ngram, block, 1x2",
            "ngram, block, 1x4",
            "ngram, pooled, 1x2",
            "ngram, pooled, 1x4",
        ]
    );
    let names: Vec<String> = local(line).drafters.into_iter().map(|it| it.name).collect();
    assert_eq!(names, ["a", "b", "ngram"]);
    assert_eq!(
        settings("-md a.gguf --spec-type draft-model+ngram"),
        ["plain", "a, block, 1x4", "a & ngram, pooled, 1x4"]
    );
}

#[test]
fn lossy_modes_are_measured_where_they_do_something() {
    let (config, _) = resolve("-m x -md a.gguf --lossy account:0.02,typical").unwrap();
    assert_eq!(config.temperatures, [1.0]);
    assert_eq!(
        settings("-md a.gguf --lossy account:0.02,typical"),
        ["plain", "a, block, 1x4", "a, lossy account:0.02, 1x4", "a, lossy typical, 1x4"]
    );
    let (config, _) = resolve("-m x -md a.gguf --lossy near:1@0.02").unwrap();
    assert_eq!(config.temperatures, [0.0]);
}

#[test]
fn a_task_compares_lossy_modes_with_plain_decoding() {
    let line = "-m x -md a.gguf --task gsm8k --lossy account:0.02";
    let (config, _) = resolve(line).unwrap();
    assert_eq!((config.text_len, config.prompts_per_task), (400, None));
    assert_eq!(config.files.data, PathBuf::from("gsm8k.json"));
    assert_eq!(config.files.journal, PathBuf::from("gsm8k.jsonl"));
    let line = "-md a.gguf --task gsm8k --lossy account:0.02";
    assert_eq!(settings(line), ["plain", "a, lossy account:0.02, 1x4"]);
    let named = settings(&format!("{line} --verify block"));
    assert_eq!(named, ["plain", "a, block, 1x4", "a, lossy account:0.02, 1x4"]);
}

#[test]
fn a_quick_run_is_short() {
    let (config, _) = resolve("-m big.gguf --quick --out x/y.html").unwrap();
    assert_eq!((config.text_len, config.stop.repeats, config.stop.time_limit_s), (32, 1, 240.0));
    assert_eq!(config.prompts_per_task_max, 1);
    assert_eq!(config.files.data, PathBuf::from("x/y.json"));
    let (longer, _) = resolve("-m big.gguf --quick -n 48 --time-limit 3m").unwrap();
    assert_eq!((longer.text_len, longer.stop.time_limit_s), (48, 180.0));
}

#[test]
fn a_server_needs_no_model_and_decides_how_rows_are_cut() {
    let (config, place) = resolve("--url http://localhost:1 --concurrency 1,8 --temp 0.7").unwrap();
    assert_eq!((config.top_k, config.top_p, config.min_p), (None, None, None));
    assert_eq!(config.prompts_per_task, Some(2));
    let Place::Server(server) = place else { panic!("a server was named") };
    assert_eq!(server.users, [1, 8]);
}

#[test]
fn what_means_nothing_is_refused() {
    for (line, said) in [
        ("", "--model <FILE>"),
        ("-m x -n 1", "--predict is 1; expected 2 to 4096"),
        ("-m x --repeats 0", "--repeats is 0; expected 1 to 1000"),
        ("-m x --precision 2", "--precision is 2; expected a share"),
        ("-m x --time-limit soon", "expected a length of time"),
        ("-m x --temp -1", "temperature is -1"),
        ("-m x --temp hot", "invalid value 'hot'"),
        ("-m x --verify best", "there is no rule \"best\": choose one of block"),
        (
            "-m x --spec-type eagle",
            "expected ngram, suffix, suffix-shared, edit, prediction, oracle or draft-model",
        ),
        ("-m x --spec-type draft-model", "drafts from a file: add --draft FILE"),
        ("-m x --spec-draft-paths 2", "--spec-draft-paths would do nothing"),
        ("-m x -md a --spec-draft-paths 0", "--spec-draft-paths is 0; expected 1 to 16"),
        ("-m x -md a --spec-draft-n-max 65", "--spec-draft-n-max is 65; expected 1 to 64"),
        ("-m x -md a/b.gguf -md c/b.gguf", "another draft model has the same name"),
        ("-m x -md a --lossy best", "typical, lenience"),
        ("-m x -md a --lossy typical --temp 0", "published rules are for sampled outputs"),
        ("-m x -md a --lossy budget:0.1 --temp 0,1", "changes nothing at temperature 0"),
        ("-m x -md a --lossy defer:0.1 --spec-adaptive on,off", "decides when the target runs"),
        ("-m x -md a --lossy near:1@0.1 --temp 1", "is for temperature 0"),
        ("--url http://y --lossy typical", "cannot be used with"),
        ("-m x --resume --force", "cannot be used with"),
        ("-m x --url http://y", "cannot be used with"),
        ("-m x --concurrency 2", "--concurrency would do nothing, because no server"),
        ("--url http://y --concurrency 0", "--concurrency is 0; expected 1 to 1024"),
        ("--url http://y --draft z", "cannot be used with"),
        ("-m x --task gsm8k", "--task would do nothing, because there is nothing to compare"),
        ("-m x --task human_eval", "expected gsm8k"),
        ("-m x --task-file y", "--task <NAME>"),
        ("-m x --task gsm8k --lossy typical --repeats 2", "cannot be used with"),
        ("--url http://y --task gsm8k", "cannot be used with"),
        ("compare a", "<NEW>"),
    ] {
        let message = resolve(line).err().unwrap_or_else(|| panic!("{line} is taken"));
        assert!(message.contains(said), "{line}: {message}");
    }
}
