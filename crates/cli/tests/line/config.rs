//! Flags from a file.

use clap::CommandFactory as _;

use super::*;
use crate::Cli;

fn of(text: &str) -> Result<Vec<String>, String> {
    let command = Cli::command();
    let serve = command.find_subcommand("serve").unwrap();
    let flags = flags(&text.parse().unwrap(), serve).map_err(|error| error.to_string())?;
    Ok(flags.into_iter().map(|flag| flag.into_string().unwrap()).collect())
}

#[test]
fn a_table_becomes_flags() {
    let text = "model = 'a.gguf'\nparallel = 8\nlog-prompts = true\nmlock = false\n\
                api-key = ['one', 'two']\nkv-unified = false\ntemp = 0.5";
    let mut flags = of(text).unwrap();
    flags.sort();
    assert_eq!(
        flags,
        [
            "--api-key=one",
            "--api-key=two",
            "--kv-unified=off",
            "--log-prompts",
            "--model=a.gguf",
            "--parallel=8",
            "--temp=0.5",
        ]
    );
}

#[test]
fn what_no_flag_means_is_refused() {
    for (text, said) in [
        ("models = 'a'", "there is no flag --models"),
        ("config = 'b'", "there is no flag --config"),
        ("mlock = 'yes'", "mlock is \"yes\"; expected true or false"),
        ("[server]\nport = 1", "there is no flag --server"),
        ("port = { a = 1 }", "port is a table; expected text"),
    ] {
        let message = of(text).unwrap_err();
        assert!(message.contains(said), "{text}: {message}");
    }
}

#[test]
fn the_last_file_named_counts() {
    let argv = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
    assert_eq!(named(&argv("forerun serve --config a --config=b")), Some("b".into()));
    assert_eq!(named(&argv("forerun serve -- --config a")), None);
}
