//! What `forerun tune` remembers of its command line.

use clap::{CommandFactory, FromArgMatches};

use super::*;
use crate::{Cli, Command, args};

fn resolve(line: &str) -> TuneConfig {
    let mut command = Cli::command();
    let argv = args::written_out(line.split_whitespace().map(Into::into), &mut command);
    let matches = command.try_get_matches_from(argv.unwrap()).unwrap();
    match Cli::from_arg_matches(&matches).unwrap().command {
        Command::Tune(flags) => flags.resolve().unwrap().0,
        _ => unreachable!("the line says tune"),
    }
}

#[test]
fn a_quick_run_ends_within_a_minute() {
    let limit = |line: &str| resolve(line).limit.time.as_secs();
    assert_eq!(limit("forerun tune t.gguf"), 600);
    assert_eq!(limit("forerun tune t.gguf --quick"), 60);
    assert_eq!(limit("forerun tune t.gguf --quick --time-limit 3m"), 180);
}

#[test]
fn what_was_said_is_known_for_the_recommended_command() {
    let line = "forerun tune t.gguf --draft x -t 2 -c 4096 -ngl 7 -fa off -ctk q8_0 -ctv q4_0 \
                --temp 0.7 --top-k 20 --logit-bias 5+1 --no-mmap -s 9 -n 16";
    let said = resolve(line).said;
    assert_eq!(
        [said.engine, said.draft, said.sampling].map(|words| words.join(" ")),
        [
            "-c 4096 -t 2 -ngl 7 -ctk q8_0 -ctv q4_0 -fa off --no-mmap",
            "-ngld 7 -ctkd q8_0 -ctvd q4_0",
            "--temp 0.7 --top-k 20 --logit-bias 5+1",
        ]
    );
}
