//! What command lines mean to `forerun serve`.

use clap::{CommandFactory, FromArgMatches};

use super::*;
use crate::{Cli, Command, args};

fn serving(line: &str) -> ServingFlags {
    let line = format!("forerun serve x.gguf {line}");
    let mut command = Cli::command();
    let argv = args::written_out(line.split_whitespace().map(Into::into), &mut command);
    let matches = command.try_get_matches_from(argv.unwrap()).unwrap();
    match Cli::from_arg_matches(&matches).unwrap().command {
        Command::Serve(flags) => flags.serving,
        _ => unreachable!("the line says serve"),
    }
}

#[test]
fn keys_come_from_a_file_without_its_comments() {
    let file = std::env::temp_dir().join(format!("forerun-keys-{}", std::process::id()));
    let keys = |text: &str, more: &str| {
        std::fs::write(&file, text).unwrap();
        let flags = serving(&format!("--api-key-file {} {more}", file.display()));
        flags.config().map(|config| config.api_keys).map_err(|error| error.to_string())
    };
    let kept = keys("# a comment\nfrom-file\n\n  spaced  \n", "--api-key said");
    assert_eq!(kept, Ok(["said", "from-file", "spaced"].map(str::to_owned).to_vec()));
    let none = keys("# a comment\n", "").unwrap_err();
    assert!(none.contains("there is no API key in"), "{none}");
    std::fs::remove_file(&file).unwrap();
    let empty = serving("--api-key=").config().err().unwrap().to_string();
    assert!(empty.contains("--api-key is empty, which would let all in"), "{empty}");
}

#[test]
fn a_host_may_be_a_name() {
    let addresses = |host: &str| {
        let found = serving(&format!("--host {host} --port 80")).addresses();
        found.map(|all| all[0].to_string()).map_err(|error| error.to_string())
    };
    assert_eq!(addresses("localhost"), Ok("127.0.0.1:80".to_owned()));
    assert_eq!(addresses("[::1]"), Ok("[::1]:80".to_owned()));
    let unknown = addresses("no.such.host.invalid").unwrap_err();
    assert!(unknown.contains("--host no.such.host.invalid has no address"), "{unknown}");
}

#[test]
fn slots_are_shown_unless_told_otherwise() {
    for (line, shown) in
        [("", true), ("--slots", true), ("--no-slots", false), ("--no-slots --slots", true)]
    {
        assert_eq!(serving(line).config().unwrap().slots, shown, "{line}");
    }
}
