//! What a user of the program sees, with a real model.
//!
//! One thread each: the tests run beside one another, and threads that wait for each other on a
//! busy machine take a hundred times as long.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

mod run;

use std::fs;

use run::{DRAFT, TARGET, forerun, forerun_with_input, model, temporary};

/// Flags of a short greedy text.
fn greedy(flags: &str) -> Vec<String> {
    let target = model(TARGET);
    let line = format!("generate -m {target} -t 1 --temp 0 -n 16 {flags}");
    line.split_whitespace().map(str::to_owned).collect()
}

/// Runs such a text after a prompt.
fn continued(prompt: &str, flags: &str) -> run::Run {
    let mut args = greedy(flags);
    args.extend(["-p".to_owned(), prompt.to_owned()]);
    forerun(&args)
}

fn json(run: &run::Run) -> serde_json::Value {
    assert_eq!(run.code, Some(0), "{}", run.err);
    serde_json::from_str(&run.out).expect(&run.out)
}

const PROMPT: &str = "The three primary colours are";

#[test]
fn drafting_does_not_change_greedy_text() {
    let plain = continued(PROMPT, "");
    assert_eq!(plain.code, Some(0), "{}", plain.err);
    assert!(plain.out.len() > 40, "{}", plain.out);
    let draft = model(DRAFT);
    for flags in [
        format!("-md {draft}"),
        format!("-md {draft} --spec-adaptive off"),
        format!("-md {draft} --spec-draft-paths 2 -s 1"),
        format!("-md {draft} --spec-draft-paths 2 --verify traversal --spec-draft-draw beam -s 1"),
        format!("-md {draft} --spec-type draft-model,ngram,suffix --draft-max 3 -s 1"),
        format!("-md {draft} --verify nss --draft-p-min 0.3 -s 1"),
    ] {
        assert_eq!(continued(PROMPT, &flags).out, plain.out, "{flags}");
    }
}

#[test]
fn a_coupled_text_depends_on_the_seed_and_not_on_the_drafts() {
    let text = |flags: &str| continued(PROMPT, &format!("--temp 0.9 --verify coupled {flags}")).out;
    let plain = text("-s 5");
    assert_eq!(text(&format!("-s 5 -md {}", model(DRAFT))), plain);
    assert_ne!(text("-s 6"), plain);
}

#[test]
fn the_same_seed_gives_the_same_text() {
    let flags = format!("--temp 1 -md {} --json --spec-adaptive off", model(DRAFT));
    let first = json(&continued(PROMPT, &flags));
    let again = continued(PROMPT, &format!("{flags} -s {}", first["seed"]));
    assert_eq!(json(&again)["tokens"], first["tokens"]);
    assert!(again.err.is_empty(), "{}", again.err);
}

#[test]
fn the_json_object_adds_up() {
    let drafts = format!("-md {} --json --draft-max 3 -s 9 --stop zzz", model(TARGET));
    let object = json(&continued(PROMPT, &drafts));
    assert_eq!(object["text"], continued(PROMPT, "").out.as_str());
    let tokens = object["tokens"].as_array().unwrap().len() as u64;
    let count = |value: &serde_json::Value| value.as_u64().unwrap();
    let sum = |value: &serde_json::Value| value.as_array().unwrap().iter().map(count).sum::<u64>();
    assert_eq!((tokens, &object["finish_reason"]), (16, &"length".into()));
    assert_eq!(count(&object["usage"]["completion_tokens"]), tokens);
    let prompt = count(&object["usage"]["prompt_tokens"]);
    assert_eq!(count(&object["usage"]["total_tokens"]), prompt + tokens);
    let spec = &object["speculative_decoding"];
    let (drafted, accepted) =
        (count(&spec["num_draft_tokens"]), count(&spec["num_accepted_tokens"]));
    assert_eq!(sum(&spec["num_draft_tokens_per_pos"]), drafted);
    assert_eq!(sum(&spec["num_accepted_tokens_per_pos"]), accepted);
    assert_eq!(sum(&spec["acceptance_histogram"]), count(&spec["num_drafts"]));
    // The target drafts for itself, so all is accepted.
    assert_eq!((accepted, &spec["draft_acceptance_rate"]), (drafted, &1.0.into()));
    assert!(spec["tokens_per_round"].as_f64().unwrap() > 3.0, "{spec}");
    assert_eq!(spec["drafters"], serde_json::json!(["draft-model"]));
    assert_eq!((&object["rule"], &object["lossless"]), (&"block".into(), &true.into()));
    assert_eq!((&object["seed"], &object["settings"]["temperature"]), (&9.into(), &0.0.into()));
    assert_eq!(object["settings"]["stop"], serde_json::json!(["zzz"]));
    let timings = object["timings"].as_object().unwrap();
    let second = |name: &str| timings[name].as_f64().unwrap();
    let parts = ["draft_s", "target_s", "verify_s", "rest_s"].map(second);
    assert!((parts.iter().sum::<f64>() - second("text_s")).abs() < 1e-3, "{timings:?}");
}

#[test]
fn statistics_say_what_drafting_did() {
    let line = continued(PROMPT, &format!("-md {} -s 3", model(DRAFT))).err;
    assert_eq!(line.trim().lines().count(), 1, "{line}");
    for said in ["[16 tokens, ", " tokens/s, ended by --predict; ", " of drafts accepted; seed 3;"]
    {
        assert!(line.contains(said), "{said:?} in {line}");
    }
    let run = continued(PROMPT, &format!("-md {} -s 3 --stats", model(DRAFT)));
    for said in [
        "\nprompt    5 tokens in ",
        "\ntext      16 tokens in ",
        " tokens/s; ended by --predict",
        " tokens per round",
        " accepted, ",
        "; by position  1: ",
        "\ntime      draft ",
        "\ndrafters  draft-model ",
        "\nrule      block verification, lossless",
        "\nseed      3",
    ] {
        assert!(run.err.contains(said), "{said:?} in {}", run.err);
    }
    assert!(continued(PROMPT, "-n 2 --no-stats").err.is_empty());
}

#[test]
fn n_grams_are_accepted_in_a_text_that_repeats_itself() {
    let line = "one fish, two fish, red fish, blue fish. ";
    for kind in ["ngram", "suffix"] {
        let run =
            continued(&line.repeat(6), &format!("--spec-type {kind} --spec-adaptive off --json"));
        let rate = json(&run)["speculative_decoding"]["draft_acceptance_rate"].as_f64().unwrap();
        assert!(rate > 0.5, "{kind}: {rate}");
    }
}

#[test]
fn a_right_prediction_is_accepted() {
    let plain = continued(PROMPT, "").out;
    let file = temporary("prediction", plain.as_bytes());
    let object = json(&continued(PROMPT, &format!("--prediction {file} --json")));
    assert_eq!(object["text"], plain.as_str());
    let rate = object["speculative_decoding"]["draft_acceptance_rate"].as_f64().unwrap();
    assert!(rate > 0.8, "{rate}");
}

#[test]
fn drafts_are_marked_where_colours_are_wanted() {
    let draft = model(TARGET);
    let marked = continued(PROMPT, &format!("-md {draft} --show-drafts --color always -n 8 -s 1"));
    assert!(marked.out.contains("\x1b[32m"), "{}", marked.out);
    assert!(marked.err.contains("drafted and accepted"), "{}", marked.err);
    let piped = continued(PROMPT, &format!("-md {draft} --show-drafts -n 8"));
    assert!(!piped.out.contains('\x1b') && !piped.err.contains('\x1b'), "{}", piped.out);
    assert!(piped.err.contains("use --color always"), "{}", piped.err);
}

#[test]
fn a_text_ends_where_it_should() {
    let plain = continued(PROMPT, "").out;
    let stop = plain.split_whitespace().nth(2).unwrap();
    let stopped = continued(PROMPT, &format!("--stop {stop}"));
    assert_eq!(plain.split(stop).next(), Some(stopped.out.as_str()));
    assert!(stopped.err.contains("a stop string ended it"), "{}", stopped.err);
    let object = json(&continued(PROMPT, "-n 3 --json"));
    assert_eq!(object["tokens"].as_array().unwrap().len(), 3);
    let full = json(&continued(PROMPT, "-n -1 -c 32 --ignore-eos --json"));
    assert_eq!(full["finish_reason"], "context");
}

#[test]
fn a_prompt_comes_from_a_file_or_from_standard_input() {
    let plain = continued(PROMPT, "-n 4").out;
    let file = temporary("prompt", format!("{PROMPT}\n").as_bytes());
    assert_eq!(forerun(&greedy(&format!("-n 4 -f {file}"))).out, plain);
    assert_eq!(forerun_with_input(&greedy("-n 4 -f -"), PROMPT).out, plain);
    let escaped = continued("The three\\tprimary", "-n 2 -e --json");
    let literal = continued("The three\tprimary", "-n 2 --json");
    assert_eq!(json(&escaped)["tokens"], json(&literal)["tokens"]);
}

#[test]
fn a_file_that_is_no_model_is_an_error() {
    let real = fs::read(model(TARGET)).unwrap();
    for (file, said) in [
        ("no/such/model.gguf".to_owned(), "there is no such file"),
        (temporary("garbage", b"<html>not found</html>"), "not a GGUF file"),
        (temporary("empty", b""), "empty"),
        (temporary("truncated", &real[..real.len() / 2]), "download it again"),
    ] {
        let args = format!("generate -p x -m {file}");
        let run = forerun(&args.split(' ').collect::<Vec<_>>());
        assert_eq!((run.code, run.out.as_str()), (Some(1), ""), "{file}: {}", run.err);
        assert!(run.err.starts_with("error: target: ") && run.err.contains(said), "{}", run.err);
        assert_eq!(run.err.lines().count(), 1, "{}", run.err);
    }
}

#[test]
fn a_prompt_that_cannot_be_continued_is_an_error() {
    let empty = continued("", "");
    assert_eq!(empty.code, Some(1));
    assert!(empty.err.starts_with("error: the prompt is empty"), "{}", empty.err);
    let long = continued(&"word ".repeat(100), "-c 64");
    assert_eq!((long.code, long.out.as_str()), (Some(1), ""));
    assert!(long.err.contains("more than a context of 64: shorten it or raise"), "{}", long.err);
}

#[test]
fn a_draft_model_that_does_not_fit_is_an_error() {
    let run = continued(PROMPT, &format!("-md {}", model("gemma-3-270m.Q4_K_M.gguf")));
    assert_eq!((run.code, run.out.as_str()), (Some(1), ""));
    assert!(run.err.contains("choose a draft model of the same family"), "{}", run.err);
}

#[test]
fn flags_that_cannot_be_honoured_are_refused() {
    for (flags, said) in [
        ("--tmp 1", "a similar argument exists: '--temp'"),
        ("-mu http://some/model", "unexpected argument '-mu'"),
        ("--grammar x", "unexpected argument '--grammar'"),
        ("--top-p 2", "top_p is 2; expected 0 to 1"),
        ("-n 99999999999999999999", "the number is too large"),
        ("--top-k -4", "'-4' for '--top-k <N>': -4; expected 0 to 4294967295"),
        ("--draft-max -4", "expected a whole number, 0 or more"),
    ] {
        let run = continued(PROMPT, flags);
        assert_eq!((run.code, run.out.as_str()), (Some(2), ""), "{flags}");
        assert!(run.err.starts_with("error: ") && run.err.contains(said), "{}", run.err);
    }
}

#[test]
fn chat_answers_once_by_the_template() {
    let target = model(TARGET);
    let chat = |flags: &str| {
        let line = format!("chat -m {target} -t 1 --temp 0 -n 12 {flags}");
        let mut args: Vec<&str> = line.split(' ').collect();
        args.extend(["-p", "What is the capital of France?"]);
        forerun(&args)
    };
    let plain = chat("-sys Be_brief.");
    assert_eq!(plain.code, Some(0), "{}", plain.err);
    assert!(plain.out.contains("Paris") && !plain.out.contains("<|im_"), "{}", plain.out);
    let drafted = chat(&format!("-sys Be_brief. --chat-template chatml -md {}", model(DRAFT)));
    assert_eq!(drafted.out, plain.out);
    let object = json(&chat("--json"));
    assert!(object["usage"]["prompt_tokens"].as_u64().unwrap() > 10);
    let unknown = chat("--chat-template nobody");
    assert_eq!(unknown.code, Some(1));
    assert!(unknown.err.contains("expected one of chatml"), "{}", unknown.err);
}

#[test]
fn a_conversation_reuses_what_is_cached() {
    let target = model(TARGET);
    let line = format!("chat -m {target} -t 1 --temp 0 -n 12");
    let input = "Hello\nAnd \\\nthen?\n/stats\n/clear\n/what\n/exit\nnever read\n";
    let run = forerun_with_input(&line.split(' ').collect::<Vec<_>>(), input);
    assert_eq!(run.code, Some(0), "{}", run.err);
    assert_eq!(run.err.matches("tokens/s, ").count(), 2, "{}", run.err);
    assert!(run.err.contains(" of them cached"), "{}", run.err);
    assert!(run.err.contains("the conversation is forgotten"), "{}", run.err);
    assert!(run.err.contains("there is no command /what"), "{}", run.err);
    assert!(run.out.ends_with('\n'), "{:?}", run.out);
}

#[cfg(unix)]
#[test]
fn ctrl_c_stops_the_text_and_shows_the_statistics() {
    let mut running = run::Running::start(&greedy("--ignore-eos -n -1 -p once"));
    running.some_text();
    let (run, took) = running.interrupted();
    assert_eq!(run.code, Some(130), "{}", run.err);
    assert!(run.err.contains(" tokens/s, interrupted"), "{}", run.err);
    assert!(took.as_secs() < 5, "{took:?}");
}

#[cfg(unix)]
#[test]
fn a_reader_that_leaves_ends_the_text_quietly() {
    let mut running = run::Running::start(&greedy("--ignore-eos -n -1 -p once --no-stats"));
    running.some_text();
    let run = running.left();
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""));
}

#[test]
fn what_the_controller_did_is_told() {
    let object = json(&continued(PROMPT, &format!("-md {} --json", model(DRAFT))));
    let adaptive = &object["speculative_decoding"]["adaptive"];
    let rounds = object["speculative_decoding"]["rounds"].as_u64().unwrap();
    assert!(adaptive["plain_rounds"].as_u64().unwrap() <= rounds, "{adaptive}");
    assert_eq!(adaptive["target_pass_s"][0][0], 1);
    assert!(adaptive["target_pass_s"][0][1].as_f64().unwrap() > 0.0, "{adaptive}");
    assert_eq!(adaptive["draft_pass_s"].as_array().unwrap().len(), 1);
    let stats = continued(PROMPT, &format!("-md {} --stats", model(DRAFT))).err;
    assert!(stats.contains("control") && stats.contains("passes    target 1: "), "{stats}");
    let fixed = json(&continued(PROMPT, &format!("-md {} --json -s 3", model(DRAFT))));
    assert!(fixed["speculative_decoding"]["adaptive"].is_null());
}

#[test]
fn what_gates_learned_is_stored_and_loaded() {
    let file = std::env::temp_dir().join(format!("forerun-gate-{}.json", std::process::id()));
    let flags = format!("-md {} --spec-gate-file {} -n 8", model(DRAFT), file.display());
    let run = || continued(PROMPT, &flags);
    let stored = || -> serde_json::Value {
        serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap()
    };
    assert_eq!(run().code, Some(0));
    assert_eq!(stored()["format"], 1);
    // A gate of other models stays in the file.
    let fit = |len: usize| {
        let row = |one| (0..len).map(|at| u8::from(at == one)).collect::<Vec<_>>();
        serde_json::json!({ "weights": vec![0.5; len], "precision": (0..len).map(row).collect::<Vec<_>>() })
    };
    let (drafter, row, token) = ("other", fit(6), fit(8));
    let gate = serde_json::json!({
        "drafter": drafter, "tenths": 3, "seen": 9.5, "accepted": 4.25, "row": row, "token": token,
    });
    fs::write(&file, serde_json::json!({ "format": 1, "gates": [gate] }).to_string()).unwrap();
    assert_eq!(run().code, Some(0));
    let gates = stored()["gates"].as_array().unwrap().clone();
    let kept = gates.iter().find(|gate| gate["drafter"] == drafter).unwrap();
    assert_eq!((kept["seen"].as_f64(), kept["tenths"].as_u64()), (Some(9.5), Some(3)));
    fs::write(&file, "{}").unwrap();
    let refused = run();
    assert!(refused.code == Some(1) && refused.err.contains("to begin anew"), "{}", refused.err);
    fs::remove_file(&file).unwrap();
}

#[test]
fn tune_measures_and_recommends() {
    let asked = b"Count to ten.\n{\"prompt\": \"Name three fruits.\"}\n";
    let (prompts, plot) = (temporary("tune.txt", asked), temporary("tune.svg", b""));
    let (target, draft) = (model(TARGET), model(DRAFT));
    let line = format!(
        "tune {target} --draft {draft} --prompts {prompts} --plot {plot} -t 1 -n 8 \
         --draft-max 3 --draft-paths 2"
    );
    let run = forerun(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    assert_eq!(run.code, Some(0), "{}", run.err);
    for said in ["What a pass takes", "rounds accepting it", "speedup, forecast", "2 paths"] {
        assert!(run.out.contains(said), "{said}: {}", run.out);
    }
    let command = format!("\n  forerun chat -m {target} -t 1");
    assert!(run.out.contains("Recommendation: ") && run.out.contains(&command), "{}", run.out);
    assert!(run.err.starts_with("tune: 3 phases, at most 10m in all\n  1. load "), "{}", run.err);
    let svg = fs::read_to_string(plot).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("<polyline"), "{svg}");
}

#[test]
fn tune_tells_a_log_how_far_it_is_and_ends_in_time() {
    let (target, draft) = (model(TARGET), model(DRAFT));
    // Far more than there is time for.
    let line = format!("tune -m {target} -md {draft} -t 1 -n 4096 -c 8192 --time-limit 22s");
    let started = std::time::Instant::now();
    let run = forerun(&line.split_whitespace().collect::<Vec<_>>());
    let took = started.elapsed().as_secs_f64();
    assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
    // Without the limit it takes many minutes; other tests run beside it.
    assert!(took < 33.0, "{took} s: {}", run.err);
    for said in [
        "tune: 3 phases, at most 22s in all",
        "Shorter: --quick (1 minute), --time-limit TIME",
        " of at most 22s] phase 1 of 3: load",
        " of at most 22s] phase 2 of 3: acceptance, ",
        " of at most 22s] phase 3 of 3: measurement, ",
    ] {
        assert!(run.err.contains(said), "{said:?} in {}", run.err);
    }
    assert!(run.out.contains("Recommendation: "), "{}", run.out);
}

#[cfg(unix)]
#[test]
fn tune_tells_what_there_is_when_ctrl_c_is_pressed() {
    let (target, draft) = (model(TARGET), model(DRAFT));
    let line = format!("tune -m {target} -md {draft} -t 1 -n 16");
    let mut running = run::Running::start(&line.split(' ').collect::<Vec<_>>());
    running.noted("phase 3 of 3: measurement");
    let (run, took) = running.interrupted();
    assert_eq!(run.code, Some(130), "{}{}", run.out, run.err);
    assert!(took.as_secs() < 5, "{took:?}");
    assert!(
        run.out.contains("speedup, forecast") && run.out.contains("Recommendation: "),
        "{}",
        run.out
    );
}

#[test]
fn commands_of_other_programs_are_known() {
    for (said, here) in
        [("run", "forerun generate"), ("server", "forerun serve"), ("llama-cli", "forerun chat")]
    {
        let run = forerun(&[said, "model.gguf"]);
        assert_eq!((run.code, run.out.as_str()), (Some(2), ""), "{said}");
        assert!(run.err.contains(&format!("there is no command '{said}': use ")), "{}", run.err);
        assert!(run.err.contains(here), "{}", run.err);
    }
}

#[test]
fn a_model_is_named_by_its_place_or_by_its_flag() {
    let target = model(TARGET);
    let named = forerun(&["generate", &target, "-t", "1", "--temp", "0", "-n", "4", "-p", PROMPT]);
    assert_eq!((named.code, named.out), (Some(0), continued(PROMPT, "-n 4").out), "{}", named.err);
    for command in
        ["generate -p x", "chat -p x", "serve", "tune", "bench", "certify --spec-type ngram"]
    {
        let run = |flags: &str| {
            let run = forerun(&format!("{command} {flags}").split_whitespace().collect::<Vec<_>>());
            assert_eq!(run.out, "", "{command} {flags}");
            (run.code, run.err)
        };
        let (code, none) = run("");
        assert_eq!(code, Some(2), "{none}");
        assert!(none.contains("no model is named"), "{command}: {none}");
        let (code, two) = run("one.gguf -m two.gguf");
        assert_eq!(code, Some(2), "{two}");
        assert!(
            two.contains("two models are named, one.gguf and --model two.gguf"),
            "{command}: {two}"
        );
        for flags in ["/none.gguf", "-m /none.gguf"] {
            let (code, missing) = run(flags);
            assert!(
                code == Some(1) && missing.contains("/none.gguf"),
                "{command} {flags}: {missing}"
            );
            assert!(!missing.contains("listening"), "{missing}");
        }
    }
}

#[test]
fn tune_says_what_is_wrong() {
    let target = model(TARGET);
    for (line, code, said) in [
        (format!("tune {target} --draft-max 0"), 2, "--spec-draft-n-max is 0; expected 1 to 16"),
        (format!("tune {target} --prompts /none -t 1"), 1, "cannot read /none"),
        ("tune /none.gguf".to_owned(), 1, "/none.gguf"),
    ] {
        let run = forerun(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(run.code, Some(code), "{line}: {}", run.err);
        assert!(run.err.contains(said), "{line}: {}", run.err);
    }
}

#[test]
fn a_projection_says_that_nobody_measured_it() {
    let report = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/fleet/grown.json");
    let run = forerun(&["simulate", report, "--seconds", "20", "--target-ms", "1=20,64=24"]);
    assert_eq!(run.code, Some(0), "{}", run.err);
    assert!(run.out.starts_with("Projected, not measured: passes take what --target-ms says.\n"));
    let json = forerun(&["simulate", report, "--seconds", "20", "--target-ms", "1=20", "--json"]);
    assert!(json.out.contains("\"projected\": true"), "{}", json.out);
    for (flags, said) in [
        (&["--target-ms", "64=24"][..], "one token among them"),
        (&["--target-ms", "1=-3"], "milliseconds above 0"),
        (&["--target-ms", "fast"], "expected TOKENS=MS"),
        (&["--draft-ms", "1=2"], "--target-ms"),
    ] {
        let run = forerun(&[&["simulate", report][..], flags].concat());
        assert_ne!(run.code, Some(0), "{flags:?}");
        assert!(run.err.contains(said), "{flags:?}: {}", run.err);
    }
}

#[test]
fn a_simulation_in_which_nothing_finished_says_so() {
    let report = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/fleet/grown.json");
    let run = forerun(&["simulate", report, "--seconds", "20", "--users", "16"]);
    assert_eq!(run.code, Some(0), "{}", run.err);
    assert!(run.err.contains("no request finished in the simulated time; raise --seconds"));
    assert!(run.out.starts_with("Simulated: 20 s after 4 s of warm-up; 16 users"), "{}", run.out);
    assert!(!run.out.contains("0.00") && run.out.contains("100.0 %"), "{}", run.out);
    assert!(run.out.lines().all(|line| line.chars().count() <= 80), "{}", run.out);
}
