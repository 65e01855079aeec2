//! `forerun certify` on a real model: what is right passes, what is broken on purpose fails, and
//! what cannot be tested is refused.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

mod run;

use std::fs;
use std::time::Instant;

#[cfg(unix)]
use run::Running;
use run::{Run, TARGET, forerun, model, temporary};

/// A drafter that is neither good nor bad: some of the target's blocks.
const DRAFT: &str = "SmolLM2-pruned-14+13.gguf";

/// Runs a short test and gives what came of it, with the certificate.
fn certified(name: &str, flags: &str) -> (Run, serde_json::Value, String) {
    let page = temporary(&format!("{name}.html"), b"");
    let (target, draft) = (model(TARGET), model(DRAFT));
    let line = format!(
        "certify -m {target} -md {draft} -t 1 -s 1 -n 16 --parallel 8 --draft-max 3 --temp 1 --top-k 0 --top-p 1 \
         --min-p 0 --out {page} {flags}"
    );
    let args: Vec<&str> = line.split_whitespace().collect();
    let run = forerun(&args);
    let json = fs::read_to_string(page.replace(".html", ".json")).unwrap_or_default();
    let json = serde_json::from_str(&json).expect(&run.err);
    (run, json, fs::read_to_string(page).unwrap())
}

#[test]
fn a_right_decoder_passes_and_the_certificate_says_what_was_tested() {
    let (run, json, page) = certified("right", "--power 0.3 --time-limit 5m");
    assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
    assert!(run.out.contains("PASSED"), "{}", run.out);
    assert_eq!(
        (&json["schema"], &json["verdict"]),
        (&"forerun-certificate/1".into(), &"passed".into())
    );
    assert!(
        json["rule"]["lossless"].as_bool().unwrap() && json["rule"]["models"].as_u64() > Some(100)
    );
    let decoder = &json["decoder"];
    assert!(decoder["tokens"].as_u64() > Some(50) && decoder["accepted"].as_u64() > Some(0));
    assert!(decoder["smallest_share"].as_f64().unwrap() <= 0.3, "{decoder}");
    assert_eq!(json["engine"][0]["rows"], json["engine"][0]["rows_equal"], "no drift by default");
    assert!(
        page.contains("PASSED") && !page.contains("http"),
        "a page with nothing from elsewhere"
    );
}

#[test]
fn a_test_that_ends_before_its_power_is_inconclusive() {
    let started = Instant::now();
    let (run, json, page) = certified("short", "--power 0.0001 --time-limit 8");
    let took = started.elapsed().as_secs_f64();
    assert_eq!(run.code, Some(3), "{}{}", run.out, run.err);
    // To that power it would take hours; other tests run beside it.
    assert!(took < 14.0, "{took} s: {}", run.err);
    assert!(
        run.out.contains("INCONCLUSIVE: nothing wrong was found, but the time limit of 8s"),
        "{}",
        run.out
    );
    assert_eq!((&json["verdict"], &json["power"]), (&"inconclusive".into(), &0.0001.into()));
    assert!(page.contains("class=\"verdict open\"") && !page.contains("PASSED"), "{}", run.out);
    assert!(run.err.contains("certify: 4 phases, at most 8s in all"), "{}", run.err);
    assert!(run.err.contains(" of at most 8s] phase 2 of 4: load"), "{}", run.err);
}

/// Its recurrent state cannot go back to the prompt after a text: that is read again.
#[test]
fn a_hybrid_with_a_head_of_its_own_is_tested() {
    let (target, page) = (model("zoo/qwen35-mtp.gguf"), temporary("hybrid.html", b""));
    let flags = format!("certify {target} -t 1 -n 8 --temp 1 --time-limit 10 --out {page}");
    let run = forerun(&flags.split_whitespace().collect::<Vec<_>>());
    // A slow machine tests too little in the time.
    assert!(matches!(run.code, Some(0 | 3)), "{}{}", run.out, run.err);
    let json = fs::read_to_string(page.replace(".html", ".json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(json["decoder"]["drafted"].as_u64() > Some(0), "{}", json["decoder"]);
}

#[test]
fn a_limit_that_loading_takes_up_is_kept_too() {
    let started = Instant::now();
    let (run, json, _) = certified("shortest", "--time-limit 1");
    assert_eq!((run.code, &json["verdict"]), (Some(3), &"inconclusive".into()), "{}", run.err);
    assert!(started.elapsed().as_secs_f64() < 6.0, "{:?}", started.elapsed());
}

#[test]
fn a_quick_run_is_not_told_to_be_quick() {
    let (run, ..) = certified("quick", "--quick --time-limit 1");
    assert!(run.err.contains("Shorter: --time-limit TIME"), "{}", run.err);
    let (run, ..) = certified("slow", "--time-limit 1");
    assert!(run.err.contains("Shorter: --quick (1 minute), --time-limit TIME"), "{}", run.err);
}

#[cfg(unix)]
#[test]
fn ctrl_c_gives_a_certificate_of_what_was_tested() {
    let page = temporary("stopped.html", b"");
    let (target, draft) = (model(TARGET), model(DRAFT));
    let prompts = temporary("stopped.txt", b"Count to ten.\n");
    let line = format!(
        "certify {target} -md {draft} -t 1 -n 8 --parallel 2 --power 0.0001 --prompts {prompts} \
         --out {page}"
    );
    let mut running = Running::start(&line.split_whitespace().collect::<Vec<_>>());
    // Some texts were tested when a line of the log says so.
    running.noted(" tokens, would find ");
    let (run, took) = running.interrupted();
    assert!(took.as_secs() < 5, "{took:?}");
    assert_eq!(run.code, Some(3), "{}{}", run.out, run.err);
    assert!(
        run.out.contains("INCONCLUSIVE") && run.out.contains("Ctrl-C ended the test"),
        "{}",
        run.out
    );
    let json = fs::read_to_string(page.replace(".html", ".json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["decoder"]["ended"], "interrupted");
    assert!(json["about"]["target"].as_str().unwrap().contains("SHA-256"), "{json}");
}

#[test]
fn a_drafter_broken_on_purpose_is_found_out_by_its_texts() {
    let (run, json, page) = certified("argmax", "--broken argmax --time-limit 8m");
    assert_eq!(run.code, Some(1), "{}{}", run.out, run.err);
    assert!(run.out.contains("FAILED, as it should"), "{}", run.out);
    assert!(json["rule"]["lossless"].as_bool().unwrap(), "the rule is right, its use is not");
    assert_eq!((&json["verdict"], &json["decoder"]["ended"]), (&"failed".into(), &"proof".into()));
    assert!(page.contains("class=\"verdict bad\""));
}

#[test]
fn a_rule_broken_on_purpose_is_found_out_by_enumeration_and_by_texts() {
    let (run, json, _) = certified("typical", "--broken typical --time-limit 8m");
    assert_eq!(run.code, Some(1), "{}{}", run.out, run.err);
    assert!(!json["rule"]["lossless"].as_bool().unwrap());
    assert_eq!(json["decoder"]["ended"], "proof", "{json}");
}

#[test]
fn the_coupled_rule_says_the_same_with_and_without_drafts() {
    let (run, json, _) = certified("coupled", "--verify coupled --power 0.5 --time-limit 5m");
    assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
    let decoder = &json["decoder"];
    assert!(decoder["made_twice"].as_u64() > Some(0), "{decoder}");
    assert_eq!(decoder["made_differently"], 0);
}

#[test]
fn a_lossy_mode_is_within_its_promise_or_found_to_exceed_it() {
    let (run, json, page) = certified("within", "--lossy account:0.1 --power 0.2 --time-limit 5m");
    assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
    assert!(run.out.contains("WITHIN: ") && !run.out.contains("PASSED"), "{}", run.out);
    assert_eq!((&json["verdict"], &json["lossless"]), (&"within".into(), &false.into()));
    let found = &json["lossy"];
    assert!(found["accepted"].as_u64() > Some(0) && found["said"].as_f64() > Some(0.0), "{found}");
    assert!(page.contains("keep its promise") && !page.contains("PASSED"));
    // The rule is known to be wrong: a false alarm matters less than time.
    let broken = "--lossy account:0.02 --broken unpaid-account --false-alarm 0.02 --time-limit 6m";
    let (run, json, _) = certified("unpaid", broken);
    assert_eq!(run.code, Some(1), "{}{}", run.out, run.err);
    assert!(run.out.contains("EXCEEDED, as it should"), "{}", run.out);
    assert_eq!((&json["lossy"]["ended"], &json["rule"]["within"]), (&"proof".into(), &true.into()));
}

#[test]
fn what_cannot_be_tested_is_refused() {
    let target = model(TARGET);
    let draft = model(DRAFT);
    for (line, said) in [
        (format!("certify -m {target}"), "nothing drafts, so there is nothing to certify"),
        (format!("certify -m {target} -md {draft} --false-alarm 2"), "--false-alarm is 2"),
        (format!("certify -m {target} -md {draft} -n 1"), "--predict is 1; expected 2 to 256"),
        (format!("certify -m {target} -md {draft} --broken penalties"), "add --presence-penalty 1"),
        ("certify --url localhost:1".to_owned(), "expected http://HOST:PORT"),
        ("certify --url http://127.0.0.1:1".to_owned(), "no answer from http://127.0.0.1:1"),
        ("certify --url http://127.0.0.1:1 --on 3".to_owned(), "--on is no JSON object"),
        ("certify".to_owned(), "--model <FILE>"),
        ("certify -m x --url http://127.0.0.1:1".to_owned(), "cannot be used with --url"),
        (
            format!("certify -m {target} -md {draft} --parallel 0"),
            "--parallel is 0; expected 1 to 64",
        ),
        (
            format!("certify -m {target} --spec-type ngram --broken argmax"),
            "one path of a draft model",
        ),
        (
            format!("certify -m {target} -md {draft} --broken leak --verify coupled"),
            "--verify block",
        ),
        (format!("certify --url http://127.0.0.1:1 -md {draft}"), "cannot be used with"),
        (
            format!("certify -m {target} -md {draft} --temp 0 --lossy near:1@0.02"),
            "certify budget or account",
        ),
        (format!("certify -m {target} -md {draft} --temp 0 --lossy budget:0.02"), "near:1.0@0.02"),
        (format!("certify -m {target} -md {draft} --broken spend-twice"), "add --lossy"),
        (
            format!("certify -m {target} -md {draft} --lossy budget:0.1 --broken leak"),
            "leave out --lossy",
        ),
    ] {
        let args: Vec<&str> = line.split_whitespace().collect();
        let run = forerun(&args);
        assert!(run.code != Some(0) && run.err.contains(said), "{line}: {}", run.err);
    }
}
