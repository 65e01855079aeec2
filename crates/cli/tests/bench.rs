//! `forerun bench` with a real model: what is measured, broken off, gone on with and compared.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

mod run;

use std::fs;
use std::path::Path;

use run::{Run, Running, TARGET, forerun, model, temporary};
use serde_json::Value;

/// Two short questions of two tasks.
const PROMPTS: &[u8] = b"{\"prompt\": \"Count to ten.\", \"task\": \"count\", \"id\": \"a\"}\n\
                         {\"prompt\": \"Say fish, fish, fish.\", \"task\": \"say\", \"id\": \"b\"}\n";

/// A place for the files of a run that is not there yet.
fn fresh(name: &str) -> String {
    let page = temporary(&format!("{name}.html"), b"");
    for ending in ["html", "json", "jsonl"] {
        let _ = fs::remove_file(Path::new(&page).with_extension(ending));
    }
    page
}

fn line(page: &str, flags: &str) -> Vec<String> {
    // Each test has its own: they run at once, and one would read what another has just emptied.
    let prompts = format!("{page}.prompts");
    fs::write(&prompts, PROMPTS).unwrap();
    let line = format!(
        "bench -m {} -t 1 -n 8 --prompts {prompts} --temp 0 --out {page} {flags}",
        model(TARGET)
    );
    line.split_whitespace().map(str::to_owned).collect()
}

fn report(page: &str) -> Value {
    let text = fs::read_to_string(Path::new(page).with_extension("json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The figures over all tasks of a setting.
fn cell<'a>(report: &'a Value, setting: &str) -> &'a Value {
    let cells = report["cells"].as_array().unwrap();
    let own = |cell: &&Value| cell["setting"] == setting && cell["task"].is_null();
    cells.iter().find(own).unwrap_or_else(|| panic!("{setting} in {cells:?}"))
}

fn ok(run: &Run) {
    assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
}

#[cfg(unix)]
#[test]
fn a_run_that_is_broken_off_goes_on_where_it_was() {
    let page = fresh("broken-off");
    let flags = "--spec-type ngram --precision 0.000001";
    let mut running = Running::start(&line(&page, &format!("{flags} --repeats 1000")));
    running.noted("repeat 2: ");
    let (run, took) = running.interrupted();
    assert_eq!(run.code, Some(130), "{}{}", run.out, run.err);
    assert!(took.as_secs() < 10, "{took:?}");
    assert!(run.out.contains("Interrupted: these are the figures of"), "{}", run.out);
    let broken = report(&page);
    assert_eq!(broken["ended"], "interrupted");
    let (texts, whole) = (broken["measures"].as_array().unwrap().len(), &broken["repeats"]);
    assert!(texts >= 8 && whole.as_u64().unwrap() >= 2, "{texts} outputs, {whole} repeats");

    // An earlier run is neither lost by accident nor gone on with by other settings.
    let again = forerun(&line(&page, flags));
    assert_eq!((again.code, again.out.as_str()), (Some(1), ""));
    assert!(again.err.contains("is there already: go on with --resume"), "{}", again.err);
    let other = forerun(&line(&page, &format!("{flags} --resume -n 9")));
    assert_eq!(other.code, Some(1));
    assert!(other.err.contains("text_len: 8, now 9"), "{}", other.err);

    let repeats = broken["measures"][texts - 1]["repeat"].as_u64().unwrap() + 2;
    let resumed = forerun(&line(&page, &format!("{flags} --resume --repeats {repeats}")));
    ok(&resumed);
    let whole = report(&page);
    assert_eq!((&whole["ended"], &whole["repeats"]), (&"repeats".into(), &repeats.into()));
    let measures = whole["measures"].as_array().unwrap();
    assert_eq!(measures.len() as u64, repeats * 4, "two prompts by two settings a repeat");
    assert_eq!(&measures[..texts], broken["measures"].as_array().unwrap().as_slice());
    let journal = fs::read_to_string(Path::new(&page).with_extension("jsonl")).unwrap();
    assert_eq!(journal.lines().count(), measures.len() + 1);

    let data = Path::new(&page).with_extension("json").into_os_string().into_string().unwrap();
    let same = forerun(&["bench", "compare", &data, &data]);
    ok(&same);
    assert!(
        same.out.trim_end().ends_with("Nothing changed that is more than noise."),
        "{}",
        same.out
    );
    assert!(
        same.out.contains("ngram, block, 1x4") && !same.out.contains("differs"),
        "{}",
        same.out
    );
}

#[test]
fn a_target_that_drafts_for_itself_is_always_right() {
    let page = fresh("itself");
    let flags = format!(
        "--draft {} --verify block,pooled,gbv --spec-draft-paths 2 --spec-draft-n-max 3 \
         --spec-adaptive off,on --repeats 1",
        model(TARGET)
    );
    let run = forerun(&line(&page, &flags));
    ok(&run);
    let report = report(&page);
    let name = TARGET.strip_suffix(".gguf").unwrap();
    for setting in ["block, 1x3", "pooled, 2x3", "gbv, 2x3"] {
        let cell = cell(&report, &format!("{name}, {setting}"));
        assert_eq!((&cell["differing"], &cell["texts"]), (&0.into(), &2.into()), "{cell}");
        let first = &cell["positions"][0];
        assert_eq!((&first["acceptance"], &first["conditional"]), (&1.0.into(), &1.0.into()));
        // Seven tokens after the first: four, and three.
        assert_eq!(cell["block_efficiency"], 3.5, "{cell}");
        let (passes, each) = (5.0 / 2.0, cell["memory_bound_speedup"].as_f64().unwrap());
        assert!((each - 3.5 / (passes + 1.0)).abs() < 1e-9, "{cell}");
        let parts = cell["time_per_token"].as_object().unwrap().values();
        let sum: f64 = parts.map(|part| part.as_f64().unwrap()).sum();
        assert!((sum * cell["tokens_per_second"].as_f64().unwrap() - 1.0).abs() < 1e-6);
    }
    assert!(cell(&report, &format!("{name}, block, 1x3, adaptive"))["speedup"]["value"].is_f64());
    let left = &report["config"]["left_out"][0];
    assert_eq!(left["reason"], "judges one path, and there would be several");
    let hash = report["config"]["target"]["sha256"].as_str().unwrap();
    assert!(hash.len() == 64 && report["config"]["drafters"][0]["sha256"] == hash, "{hash}");
    assert_eq!(report["costs"].as_array().unwrap().len(), 2);
    let text = fs::read_to_string(&page).unwrap();
    assert!(text.contains("<svg") && text.contains(hash) && text.contains("Left out"));
}

#[cfg(unix)]
#[test]
fn a_server_is_measured_with_and_without_speculation() {
    let target = model(TARGET);
    let serve = format!("serve -m {target} -t 1 --port 0 -np 2 --spec-type ngram");
    let mut server = Running::start(&serve.split(' ').collect::<Vec<_>>());
    let said = server.noted("listening");
    server.noted("ready");
    let address = said.split("address=").nth(1).unwrap().split_whitespace().next().unwrap();
    let page = fresh("server");
    let prompts = temporary("server-prompts.jsonl", PROMPTS);
    let flags = format!(
        "bench --url http://{address} --concurrency 2 -n 8 --temp 0 --repeats 1 --prompts {prompts} \
         --prompts-per-task 1 --out {page}"
    );
    let run = forerun(&flags.split_whitespace().collect::<Vec<_>>());
    server.interrupted();
    ok(&run);
    let report = report(&page);
    assert_eq!(report["config"]["server"]["switchable"], true);
    for setting in ["plain, 2 users", "speculation, 2 users"] {
        let cell = cell(&report, setting);
        assert_eq!((&cell["texts"], &cell["users"]["users"]), (&4.into(), &2.into()), "{cell}");
        assert!(cell["users"]["first_token_s"]["p50"].as_f64().unwrap() > 0.0, "{cell}");
    }
    assert_eq!(cell(&report, "plain, 2 users")["acceptance_rate"], Value::Null);
    assert!(cell(&report, "speculation, 2 users")["speedup"]["value"].is_f64());
    let tokens = report["measures"].as_array().unwrap().iter();
    assert!(tokens.map(|it| it["tokens"].as_u64().unwrap()).all(|tokens| tokens == 7));
}

#[test]
fn what_cannot_be_measured_is_said_before_anything_is_loaded() {
    let target = model(TARGET);
    let there = temporary("there.html", b"mine");
    for (line, code, said) in [
        ("bench".to_owned(), 2, "--model <FILE>"),
        (format!("bench -m {target} -n 0"), 2, "--predict is 0; expected 2 to 4096"),
        (format!("bench -m {target} --verify gbv --spec-type ngram"), 2, "--verify gbv judges"),
        (format!("bench -m {target} --tasks poetry --out x.html"), 1, "no task \"poetry\""),
        (format!("bench -m {target} --out {there}"), 1, "is there already"),
        (format!("bench -m {target} --out /no/such/x.html"), 1, "there is no folder /no/such"),
        (format!("bench -m {target} --prompts /none --out x.html"), 1, "cannot read /none"),
        ("bench -m /none.gguf --out x.html".to_owned(), 1, "/none.gguf"),
        ("bench --url localhost --out x.html".to_owned(), 1, "expected http://HOST:PORT"),
        ("bench --url http://127.0.0.1:9 --out x.html".to_owned(), 1, "no answer from"),
        ("bench compare /none /none".to_owned(), 1, "cannot read /none"),
    ] {
        let run = forerun(&line.split_whitespace().collect::<Vec<_>>());
        assert_eq!((run.code, run.out.as_str()), (Some(code), ""), "{line}: {}", run.err);
        assert!(run.err.contains(said), "{line}: {}", run.err);
    }
    assert_eq!(fs::read(there).unwrap(), b"mine");
}
