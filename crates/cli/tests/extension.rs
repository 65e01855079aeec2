//! Commands that are programs of their own.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder with nothing in it but this program.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(folder.join("bin")).unwrap();
    fs::hard_link(env!("CARGO_BIN_EXE_forerun"), folder.join("bin/forerun")).unwrap();
    folder
}

/// A program that says what it was given, and ends in its own way.
fn script(path: &Path, name: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("#!/bin/sh\necho {name} \"$@\"\nexit 7\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn run(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(folder.join("bin/forerun"));
    let path = format!("{}:/usr/bin:/bin", folder.join("other").display());
    command.env_clear().env("FORERUN_CONFIG", "").env("PATH", path).args(args);
    command.output().unwrap()
}

#[test]
fn a_program_in_path_gets_all_flags_as_they_are_and_its_code_is_passed_on() {
    let folder = folder("in-path");
    script(&folder.join("other/forerun-distill"), "found");
    let output = run(&folder, &["distill", "-m", "a b", "-md", "--help"]);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "found -m a b -md --help\n");
    assert_eq!(output.status.code(), Some(7));
}

#[test]
fn a_program_beside_this_one_comes_first() {
    let folder = folder("beside");
    script(&folder.join("other/forerun-distill"), "path");
    script(&folder.join("bin/forerun-distill"), "beside");
    let output = run(&folder, &["distill"]);
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), "beside");
}

#[test]
fn a_program_that_is_not_installed_is_named_with_what_to_do() {
    let output = run(&folder("missing"), &["distill", "-o", "x"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("forerun-distill") && said.contains("cargo install"), "{said}");
    assert_eq!(output.status.code(), Some(1));
}
