//! `completions`, `man` and `doctor`, as a user runs them; no model is needed.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

mod run;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use run::{Run, forerun, forerun_at_home, forerun_with};
use serde_json::Value;

/// An empty folder that tests leave behind for the next run to empty.
fn folder(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

/// What a program says of a text on its standard input; nothing if it is not installed.
fn judged(program: &str, args: &[&str], input: &str) -> Option<(bool, String)> {
    use std::io::Write as _;
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    Some((output.status.success(), String::from_utf8_lossy(&said).into_owned()))
}

#[test]
fn every_shell_gets_a_script_that_knows_commands_and_flags() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let run = forerun(&["completions", shell]);
        assert_eq!((run.code, &*run.err), (Some(0), ""), "{shell}");
        for word in ["generate", "certify", "pull", "hf-repo", "spec-draft-n-max"] {
            assert!(run.out.contains(word), "{shell} does not know {word}");
        }
        if let Some((well, said)) =
            judged(shell, &["-n"], &run.out).filter(|_| shell != "powershell")
        {
            assert!(well && said.is_empty(), "{shell}: {said}");
        }
    }
    assert_eq!(forerun(&["completions", "tcsh"]).code, Some(2));
}

#[test]
fn bash_completes_a_flag() {
    let script = forerun(&["completions", "bash"]).out;
    let ask = "COMP_WORDS=(forerun pull --hf-t); COMP_CWORD=2; _forerun forerun --hf-t pull; echo \"<${COMPREPLY[*]}>\"";
    let (well, said) = judged("bash", &["-s"], &format!("{script}\n{ask}\n")).unwrap();
    assert!(well && said.contains("<--hf-token>"), "{said}");
}

#[test]
fn every_command_has_a_manual_page() {
    let pages = folder("man");
    let run = forerun(&["man".as_ref(), pages.as_os_str()]);
    assert_eq!((run.code, &*run.out), (Some(0), ""), "{}", run.err);
    for command in
        ["", "-generate", "-chat", "-serve", "-tune", "-bench", "-certify", "-pull", "-doctor"]
    {
        let page = fs::read_to_string(pages.join(format!("forerun{command}.1"))).unwrap();
        assert!(page.contains(".TH"), "{command}");
        if let Some((_, said)) = judged("groff", &["-man", "-ww", "-z"], &page) {
            assert_eq!(said, "", "forerun{command}.1");
        }
    }
    let chat = fs::read_to_string(pages.join("forerun-chat.1")).unwrap();
    assert!(chat.contains("\\-\\-spec\\-draft\\-model"), "{chat}");
    assert!(forerun(&["man"]).out.contains("forerun\\-certify(1)"));
    assert_eq!(forerun(&["man", "/proc/no/such"]).code, Some(1));
}

/// What the doctor says of a home folder.
fn examined(home: &Path, variables: &[(&str, &str)]) -> (Run, Value) {
    let home = home.to_str().unwrap();
    let variables = [variables, &[("HOME", home)]].concat();
    let run = forerun_with(&["doctor", "--json"], &variables);
    let value = serde_json::from_str(&run.out).unwrap_or_else(|_| panic!("{}{}", run.out, run.err));
    (run, value)
}

fn has(found: &Value, words: &str) -> bool {
    found.as_array().unwrap().iter().any(|it| {
        assert!(!it["advice"].as_str().unwrap().is_empty());
        format!("{} {}", it["what"], it["advice"]).contains(words)
    })
}

#[test]
fn the_doctor_says_what_there_is_and_its_status_whether_something_is_wrong() {
    let home = folder("doctor");
    let (run, found) = examined(&home, &[]);
    assert_eq!(found["build"]["version"], env!("CARGO_PKG_VERSION"));
    assert!(found["build"]["llama"].as_str().unwrap().starts_with("llama-cpp-sys-2"));
    assert!(found["build"]["processor_features"].as_str().unwrap().contains(" = "));
    assert!(found["machine"]["threads"].as_u64().unwrap() > 0);
    assert_eq!(found["hub"]["cache"], "~/.cache/huggingface/hub");
    assert_eq!(
        (&found["hub"]["has_token"], &found["models"]),
        (&false.into(), &Value::Array(vec![]))
    );
    assert!(has(&found["notes"], "no models"));
    // Tests run a debug build, and it says so; nothing else is wrong here.
    let problems = found["problems"].as_array().unwrap();
    let wrong = cfg!(debug_assertions);
    assert_eq!(
        (problems.len(), run.code),
        (usize::from(wrong), Some(i32::from(wrong))),
        "{problems:?}"
    );
    assert_eq!(fs::read_dir(&home).unwrap().count(), 0, "an examination changes nothing");
}

#[test]
fn the_doctor_finds_damaged_models_a_useless_cache_and_a_wrong_token() {
    let home = folder("doctor-ill");
    let snapshot =
        home.join(".cache/huggingface/hub/models--acme--tiny/snapshots").join("c".repeat(40));
    fs::create_dir_all(&snapshot).unwrap();
    fs::write(snapshot.join("tiny-Q8_0.gguf"), "not a model").unwrap();
    let (run, found) = examined(&home, &[("HF_TOKEN", "hf_secret"), ("LLAMA_ARG_NO_SUCH", "1")]);
    assert_eq!(run.code, Some(1));
    assert!(has(&found["problems"], "forerun pull acme/tiny:Q8_0"), "{}", found["problems"]);
    assert!(has(&found["notes"], "LLAMA_ARG_NO_SUCH"), "{}", found["notes"]);
    assert_eq!(found["hub"]["has_token"], true);
    assert!(
        !run.out.contains("secret") && !run.out.contains(home.to_str().unwrap()),
        "{}",
        run.out
    );
    let file = home.join("file");
    fs::write(&file, "").unwrap();
    let (run, found) = examined(&home, &[("HF_HUB_CACHE", file.to_str().unwrap())]);
    assert!(
        run.code == Some(1) && has(&found["problems"], "HF_HUB_CACHE"),
        "{}",
        found["problems"]
    );
    let (run, found) = examined(&home, &[("HF_TOKEN", "two words")]);
    assert!(run.code == Some(1) && has(&found["problems"], "HF_TOKEN"), "{}", found["problems"]);
    let run = forerun_with(&["doctor"], &[("HOME", home.to_str().unwrap())]);
    assert!(
        run.code == Some(1) && run.out.contains("problem: ") && run.out.contains("damaged"),
        "{}",
        run.out
    );
}

#[test]
fn the_usual_file_is_read_and_told_of() {
    let home = folder("config");
    let run = forerun_at_home(&home, &["config"]);
    let found = |json: &str| serde_json::from_str::<Value>(json).unwrap()["configuration"].clone();
    assert!(run.code == Some(0) && run.out.contains("there is no file"), "{}{}", run.out, run.err);
    let file = home.join(".config/forerun/config.toml");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, "json = true\n[pull]\noffline = true\n").unwrap();
    let run = forerun_at_home(&home, &["config"]);
    let said = "config.toml: 1 settings for all commands, 1 for pull";
    assert!(run.code == Some(0) && run.out.contains(said), "{}{}", run.out, run.err);
    let doctor = forerun_at_home(&home, &["doctor", "--json"]);
    assert_eq!(found(&doctor.out)["file"], "~/.config/forerun/config.toml");
    assert_eq!(found(&doctor.out)["error"], Value::Null);
    // It counts: a list of models is in JSON though nobody asked for it here.
    assert_eq!(forerun_at_home(&home, &["models"]).out.trim(), "[]");
    // Another file, or none, may be named instead.
    let other = home.join("other.toml");
    fs::write(&other, "json = false").unwrap();
    for name in ["", other.to_str().unwrap()] {
        let run = forerun_at_home(&home, &["models", "--config", name]);
        assert!(run.code == Some(0) && run.out.trim() != "[]", "{name}: {}{}", run.out, run.err);
        let variables = [("HOME", home.to_str().unwrap()), ("FORERUN_CONFIG", name)];
        assert_eq!(forerun_with(&["models"], &variables).out, run.out);
    }
    let missing = forerun_at_home(&home, &["models", "--config", "no-such.toml"]);
    assert!(missing.code == Some(1) && missing.err.contains("configuration no-such.toml"));
}

#[test]
fn a_wrong_file_stops_commands_and_the_doctor_says_why() {
    let home = folder("config-wrong");
    let file = home.join(".config/forerun/config.toml");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, "modl = 'a.gguf'").unwrap();
    let run = forerun_at_home(&home, &["models"]);
    assert_eq!((run.code, &*run.out), (Some(1), ""));
    assert!(run.err.contains("config.toml: there is no flag --modl: did you mean model?"));
    assert_eq!(forerun_at_home(&home, &["config"]).code, Some(1));
    let doctor = forerun_at_home(&home, &["doctor", "--json"]);
    let found: Value = serde_json::from_str(&doctor.out).unwrap();
    assert!(doctor.code == Some(1) && has(&found["problems"], "did you mean model?"));
    assert_eq!(forerun_at_home(&home, &["completions", "bash"]).code, Some(0));
}

#[test]
fn the_environment_goes_before_the_file() {
    let file = folder("config-order").join("own.toml");
    fs::write(&file, "[generate]\nmodel = 'file.gguf'").unwrap();
    let named = ("FORERUN_CONFIG", file.to_str().unwrap());
    let missing = |args: &[&str], variables: &[(&str, &str)]| {
        let run = forerun_with(&[&["generate", "-p", "a"], args].concat(), variables);
        let names = ["file.gguf", "environment.gguf", "line.gguf"];
        let said: Vec<&str> = names.into_iter().filter(|name| run.err.contains(name)).collect();
        said.concat()
    };
    assert_eq!(missing(&[], &[named]), "file.gguf");
    let environment = ("LLAMA_ARG_MODEL", "environment.gguf");
    assert_eq!(missing(&[], &[named, environment]), "environment.gguf");
    assert_eq!(missing(&["-m", "line.gguf"], &[named, environment]), "line.gguf");
    assert_eq!(missing(&["line.gguf"], &[named]), "line.gguf");
}
