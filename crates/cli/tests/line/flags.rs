//! What command lines mean to the commands that make text.

use clap::{CommandFactory, FromArgMatches};
use forerun_decode::RuleChoice;
use forerun_llama::{CacheType, FlashAttention, GpuLayers, LoadMode};
use forerun_verify::Scheme;

use super::*;
use crate::{Cli, Command, args};

/// What a command line means, after `forerun generate -m target -p text`.
fn resolve(line: &str) -> Result<RunConfig, String> {
    let line = format!("forerun generate -m target -p text {line}");
    let mut command = Cli::command();
    let argv = args::written_out(line.split_whitespace().map(Into::into), &mut command);
    let matches = command.try_get_matches_from(argv.map_err(|error| error.to_string())?);
    let matches = matches.map_err(|error| error.to_string())?;
    match Cli::from_arg_matches(&matches).unwrap().command {
        Command::Generate(flags) => flags.run_flags().resolve().map_err(|e| e.to_string()),
        _ => unreachable!("the line says generate"),
    }
}

fn refused(line: &str) -> String {
    resolve(line).map(|_| ()).expect_err(line)
}

#[test]
fn the_command_line_is_well_formed() {
    Cli::command().debug_assert();
}

#[test]
fn nothing_said_means_plain_decoding_with_llama_cpp_s_sampling() {
    let config = resolve("").unwrap();
    assert!(config.draft.drafters.is_empty());
    assert_eq!(config.sampling.sampling, forerun_decode::Sampling::default());
    assert_eq!(config.target.engine.flash_attention, FlashAttention::On);
    assert!(matches!(config.context, ContextLen::AtMost(len) if len.get() == 8192));
    assert_eq!(config.text.len_max, usize::MAX);
    assert!(config.output.stats && !config.output.json && !config.output.show_drafts);
}

#[test]
fn what_is_said_about_the_target_is_kept() {
    let line = "-c 4096 -t 3 -tb 5 -b 64 -ub 32 -ngl 7 -ctk q8_0 -ctv q4_0 -fa auto --mlock";
    let config = resolve(line).unwrap();
    let (target, engine) = (&config.target, &config.target.engine);
    assert!(matches!(config.context, ContextLen::Exactly(len) if len.get() == 4096));
    assert_eq!(engine.threads.unwrap().get(), 3);
    assert_eq!(engine.threads_batch.unwrap().get(), 5);
    assert_eq!((engine.batch_len.get(), engine.pass_len.get()), (64, 32));
    assert_eq!(
        (engine.cache_keys, engine.cache_values),
        (Some(CacheType::Q8_0), Some(CacheType::Q4_0))
    );
    assert_eq!(engine.flash_attention, FlashAttention::Auto);
    assert_eq!((target.gpu_layers, target.load_mode), (GpuLayers::Last(7), LoadMode::MapAndLock));
    assert!(matches!(resolve("-c 0").unwrap().context, ContextLen::Trained));
    assert_eq!(resolve("--no-mmap").unwrap().target.load_mode, LoadMode::Read);
    assert!(resolve("-t -1").unwrap().target.engine.threads.is_none());
}

#[test]
fn the_last_of_equal_flags_wins() {
    assert_eq!(resolve("-n 5 -n 7").unwrap().text.len_max, 7);
    assert_eq!(resolve("--stop a -r b").unwrap().text.stops.as_slice(), ["a", "b"]);
}

#[test]
fn a_draft_model_drafts_and_is_run_as_the_target_is() {
    let config = resolve("-md draft -t 3 -fa off --draft-max 9 --draft-p-min 0.4").unwrap();
    assert_eq!((config.draft.len.get(), config.draft.rule), (9, RuleChoice::Block));
    assert!(config.draft.adaptive);
    let [DrafterConfig::Model(draft)] = config.draft.drafters.as_slice() else {
        panic!("one draft model: {:?}", config.draft)
    };
    assert_eq!(draft.model.path.to_str(), Some("draft"));
    assert_eq!(draft.confidence_min, 0.4);
    assert_eq!(draft.model.engine.threads.unwrap().get(), 3);
    assert_eq!(draft.model.engine.flash_attention, FlashAttention::Off);
    let config = resolve("-md draft -t 3 -td 1 -ctkd q8_0 -ngld 2").unwrap();
    let [DrafterConfig::Model(draft)] = config.draft.drafters.as_slice() else {
        panic!("one draft model: {:?}", config.draft)
    };
    assert_eq!(draft.model.engine.threads.unwrap().get(), 1);
    assert_eq!(draft.model.engine.threads_batch.unwrap().get(), 1);
    assert_eq!(draft.model.engine.cache_keys, Some(CacheType::Q8_0));
    assert_eq!(draft.model.gpu_layers, GpuLayers::Last(2));
}

#[test]
fn several_drafters_are_judged_by_the_pool() {
    let names = |line: &str| -> Vec<&str> {
        let drafters = resolve(line).unwrap().draft.drafters;
        drafters.iter().map(|drafter| drafter.kind().name()).collect()
    };
    assert_eq!(names("--spec-type ngram-simple,suffix"), ["ngram", "suffix"]);
    assert_eq!(names("-md d --spec-type suffix,draft-simple"), ["suffix", "draft-model"]);
    assert_eq!(names("-md d --prediction p"), ["draft-model", "edit"]);
    assert_eq!(names("-md d --prediction p --spec-type none --draft 3"), [""; 0]);
    assert_eq!(names("--spec-type edit"), ["edit"], "of the prompt");
    let len = |line: &str| resolve(line).unwrap().draft.len.get();
    assert_eq!(
        [len("--spec-type ngram"), len("--spec-type edit"), len("--prediction p")],
        [8, 31, 31]
    );
    assert_eq!(len("--spec-type edit --draft 3"), 3);
    assert_eq!(resolve("--spec-type ngram,suffix").unwrap().draft.rule, RuleChoice::Pooled);
    assert_eq!(resolve("--spec-type ngram").unwrap().draft.rule, RuleChoice::Block);
}

#[test]
fn a_rule_and_the_way_paths_are_drawn_are_chosen_together() {
    let chosen = |line: &str| {
        let draft = resolve(&format!("-md d {line}")).unwrap().draft;
        (draft.rule.name(), draft.width.get(), draft.scheme)
    };
    assert_eq!(chosen(""), ("block", 1, Scheme::Independent));
    assert_eq!(chosen("--spec-draft-paths 2"), ("pooled", 2, Scheme::Independent));
    assert_eq!(chosen("--draft-paths 3 --verify gbv"), ("gbv", 3, Scheme::Paths));
    let traversal = "--draft-paths 3 --verify traversal";
    assert_eq!(chosen(traversal), ("traversal", 3, Scheme::WithoutReplacement));
    let beam = "--draft-paths 3 --verify rsd --spec-draft-draw beam";
    assert_eq!(chosen(beam), ("rsd", 3, Scheme::Beam));
    let independent = "--draft-paths 3 --verify rsd --spec-draft-draw independent";
    assert_eq!(chosen(independent), ("rsd", 3, Scheme::Paths));
}

#[test]
fn drafts_are_adapted_unless_a_text_is_to_be_made_again() {
    let adapted = |line: &str| {
        let draft = resolve(&format!("-md d {line}")).unwrap().draft;
        (draft.adaptive, draft.len.get())
    };
    assert_eq!(adapted(""), (true, 8));
    assert_eq!(adapted("-s -1"), (true, 8));
    assert_eq!(adapted("-s 42"), (false, 4));
    assert_eq!(adapted("-s 42 --verify coupled"), (true, 8));
    assert_eq!(adapted("-s 42 --spec-adaptive on --draft 5"), (true, 5));
    assert_eq!(adapted("--spec-adaptive off"), (false, 4));
}

#[test]
fn a_gate_is_asked_for_or_named_by_its_file() {
    let gate = |line: &str| {
        let gate = resolve(&format!("-md d {line}")).unwrap().draft.gate;
        (gate.on, gate.file.map(|file| file.display().to_string()))
    };
    assert_eq!(gate(""), (false, None));
    assert_eq!(gate("--spec-gate on"), (true, None));
    assert_eq!(gate("--spec-gate off"), (false, None));
    assert_eq!(gate("--spec-gate-file g.json"), (true, Some("g.json".to_owned())));
    assert_eq!(gate("-s 4 --verify coupled --spec-gate on"), (true, None));
    // A rule that wants whole paths is not refused: there the gate only looks.
    assert_eq!(gate("--spec-gate on --draft-paths 2 --verify gbv"), (true, None));
}

#[test]
fn a_seed_is_kept_and_one_is_made_where_there_is_none() {
    assert_eq!(resolve("-s 42").unwrap().sampling.seed, 42);
    let random = || resolve("--seed -1").unwrap().sampling.seed;
    assert_ne!(random(), random());
}

#[test]
fn refusals_name_the_value_and_what_to_do() {
    for (line, said) in [
        ("-n 0", "--predict is 0; expected 1 or more, or -1 for no limit"),
        ("-n -2", "--predict is -2"),
        ("-t 513", "--threads is 513; expected at most 512, or -1"),
        ("-b 0", "--batch-size is 0; expected 1 to 65536"),
        ("-ngl auto", "expected a number or all"),
        ("--temp -1", "temperature is -1; expected 0 to 100"),
        ("--temp NaN", "temperature is NaN"),
        ("--repeat-last-n -2", "--repeat-last-n is -2; expected 0 or more, or -1 for all"),
        ("-l 5", "--logit-bias is \"5\"; expected TOKEN_ID+BIAS"),
        ("-s -2", "expected 0 or more, or -1"),
        ("-md d --draft-max 0", "--spec-draft-n-max is 0; expected 1 to 64, or --spec-type none"),
        ("-md d --draft-max 65", "--spec-draft-n-max is 65"),
        ("-md d --draft-p-min 1.5", "--spec-draft-p-min is 1.5; expected 0 to 1"),
        ("--draft-max 3", "--spec-draft-n-max would do nothing, because nothing drafts: add"),
        ("--verify token", "--verify would do nothing"),
        ("--spec-adaptive on", "--spec-adaptive would do nothing"),
        ("--spec-gate on", "--spec-gate would do nothing, because no draft model drafts: add"),
        ("--spec-type ngram --spec-gate-file g", "--spec-gate-file would do nothing"),
        ("-md d -s 4 --spec-gate on", "because drafts have a fixed length: add --spec-adaptive on"),
        ("-md d --spec-gate off --spec-gate-file g", "because --spec-gate is off"),
        ("-md d --draft-paths 0", "--spec-draft-paths is 0; expected 1 to 16"),
        ("-md d --draft-paths 2 --verify block", "--verify block judges one path, and there"),
        ("-md d --draft-paths 2 --verify coupled", "--verify coupled draws one path"),
        ("-md d --draft-p-min 0.1 --verify gbv", "--verify gbv wants whole paths"),
        ("--spec-type ngram --verify rsd", "--verify rsd judges the paths of one draft model"),
        (
            "-md d --draft-paths 2 --spec-draft-draw beam",
            "--verify pooled wants paths drawn independently: use traversal or rsd",
        ),
        ("--spec-type draft-model", "drafts from a file: add --spec-draft-model FILE"),
        ("-md d --spec-type ngram", "--spec-draft-model would do nothing"),
        ("--prediction p --spec-type ngram", "--prediction would do nothing"),
        ("--spec-type ngram,ngram", "--spec-type names ngram twice"),
        ("--spec-type none,ngram", "--spec-type names none and ngram"),
        ("--spec-type ngram,suffix --verify token", "--verify token judges one path, and there"),
        ("--spec-type ngram-mod", "possible values: none, draft-model, draft-eagle3"),
        ("-td 2", "--spec-draft-model <FILE>"),
        ("--no-mmap --mlock", "cannot be used with"),
        ("--grammar x", "unexpected argument '--grammar'"),
        ("-hf x/y", "two models are named, target and --hf-repo x/y"),
        ("-hf x", "'x' is not a model's name"),
        ("-hff x.gguf", "--hf-file would do nothing, because no repository is named"),
        ("-mu x", "unexpected argument '-mu'"),
    ] {
        let message = refused(line);
        assert!(message.contains(said), "{line}: {message}");
    }
}

#[test]
fn loss_is_asked_for_by_name_or_refused() {
    let lossy = |line: &str| resolve(line).unwrap().draft.lossy.map(|mode| mode.to_string());
    assert_eq!(lossy("-md draft"), None);
    assert_eq!(lossy("-md draft --lossy account:0.02").as_deref(), Some("account:0.02"));
    assert_eq!(lossy("-md draft --lossy defer:0.02").as_deref(), Some("defer:0.02"));
    assert!(!resolve("-md draft --lossy defer:0.02").unwrap().draft.adaptive);
    assert_eq!(lossy("-md draft --temp 0 --lossy near:1@0.02").as_deref(), Some("near:1@0.02"));
    for (line, says) in [
        ("--lossy typical", "no lossy mode"),
        ("--lossy account:2", "expected 0 to 1"),
        ("-md draft --temp 0 --lossy budget:0.02", "near:"),
        ("-md draft --lossy near:1@0.02", "is for temperature 0"),
        ("-md draft --lossy budget:0.02 --spec-draft-paths 2", "one path"),
        ("-md draft --lossy defer:0.02 --spec-draft-paths 2", "one path"),
        ("-md draft --lossy defer:0.02 --spec-adaptive on", "decides when the target runs"),
        ("-md draft --lossy budget:0.02 --verify coupled", "leave the rule out"),
    ] {
        assert!(refused(line).contains(says), "{line}: {}", refused(line));
    }
}
