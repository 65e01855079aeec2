//! `forerun certify` on a real model: what is right passes, what is broken on purpose fails, and
//! what cannot be tested is refused.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

mod run;

use std::fs;

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
    let (run, json, page) = certified("right", "--power 0.3 --time-limit 60");
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
fn a_drafter_broken_on_purpose_is_found_out_by_its_texts() {
    let (run, json, page) = certified("argmax", "--broken argmax --time-limit 300");
    assert_eq!(run.code, Some(1), "{}{}", run.out, run.err);
    assert!(run.out.contains("FAILED, as it should"), "{}", run.out);
    assert!(json["rule"]["lossless"].as_bool().unwrap(), "the rule is right, its use is not");
    assert_eq!((&json["verdict"], &json["decoder"]["ended"]), (&"failed".into(), &"proof".into()));
    assert!(page.contains("class=\"verdict bad\""));
}

#[test]
fn a_rule_broken_on_purpose_is_found_out_by_enumeration_and_by_texts() {
    let (run, json, _) = certified("top-three", "--broken top-three --time-limit 300");
    assert_eq!(run.code, Some(1), "{}{}", run.out, run.err);
    assert!(!json["rule"]["lossless"].as_bool().unwrap());
    assert_eq!(json["decoder"]["ended"], "proof", "{json}");
}

#[test]
fn the_coupled_rule_says_the_same_with_and_without_drafts() {
    let (run, json, _) = certified("coupled", "--verify coupled --power 0.5 --time-limit 30");
    assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
    let decoder = &json["decoder"];
    assert!(decoder["made_twice"].as_u64() > Some(0), "{decoder}");
    assert_eq!(decoder["made_differently"], 0);
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
    ] {
        let args: Vec<&str> = line.split_whitespace().collect();
        let run = forerun(&args);
        assert!(run.code != Some(0) && run.err.contains(said), "{line}: {}", run.err);
    }
}
