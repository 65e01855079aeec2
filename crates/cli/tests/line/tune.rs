//! What `forerun tune` remembers of its command line.

use clap::{CommandFactory, FromArgMatches};

use crate::{Cli, Command, args};

#[test]
fn what_was_said_is_known_for_the_recommended_command() {
    let line = "forerun tune t.gguf --draft x -t 2 -c 4096 -ngl 7 -fa off -ctk q8_0 -ctv q4_0 \
                --temp 0.7 --top-k 20 --logit-bias 5+1 --no-mmap -s 9 -n 16";
    let mut command = Cli::command();
    let argv = args::written_out(line.split_whitespace().map(Into::into), &mut command);
    let matches = command.try_get_matches_from(argv.unwrap()).unwrap();
    let Command::Tune(flags) = Cli::from_arg_matches(&matches).unwrap().command else {
        unreachable!("the line says tune")
    };
    let said = flags.resolve().unwrap().0.said;
    assert_eq!(
        [said.engine, said.draft, said.sampling].map(|words| words.join(" ")),
        [
            "-c 4096 -t 2 -ngl 7 -ctk q8_0 -ctv q4_0 -fa off --no-mmap",
            "-ngld 7 -ctkd q8_0 -ctvd q4_0",
            "--temp 0.7 --top-k 20 --logit-bias 5+1",
        ]
    );
}
