//! Short flags of several letters, as they are typed.

use clap::CommandFactory;

use super::*;
use crate::Cli;

fn rewritten(line: &str) -> Result<Vec<String>, clap::Error> {
    let argv = line.split(' ').map(OsString::from);
    let out = written_out(argv, &mut Cli::command())?;
    Ok(out.into_iter().map(|argument| argument.into_string().unwrap()).collect())
}

#[test]
fn short_flags_of_several_letters_are_written_out() {
    let line = "forerun generate -m a -ngl 99 -md=b -fa on -td 2";
    let expected =
        "forerun generate -m a --gpu-layers 99 --model-draft=b --flash-attn on --threads-draft 2";
    assert_eq!(rewritten(line).unwrap().join(" "), expected);
}

#[test]
fn what_takes_a_value_in_another_subcommand_takes_none_here() {
    let line = "forerun generate --json -md b";
    assert_eq!(rewritten(line).unwrap().join(" "), "forerun generate --json --model-draft b");
    let line = "forerun bench --json -md";
    assert_eq!(rewritten(line).unwrap().join(" "), line);
}

#[test]
fn values_stay_as_they_are() {
    for line in [
        "forerun generate -p -md -n 3",
        "forerun generate --stop -ngl",
        "forerun chat --n-predict -1 --draft -hf",
        "forerun generate -- -md",
    ] {
        assert_eq!(rewritten(line).unwrap().join(" "), line);
    }
}

#[test]
fn a_value_may_be_joined_to_a_letter() {
    let line = "forerun generate -n128 -c4096 -n-1 -l15043+1";
    assert_eq!(rewritten(line).unwrap().join(" "), line);
}

#[test]
fn unknown_ones_are_refused_and_not_taken_apart() {
    for flag in ["-hfx", "-sm", "-cnv", "-mg", "-st", "-mu"] {
        let error = rewritten(&format!("forerun chat {flag} 1")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnknownArgument);
        assert!(error.to_string().contains(&format!("'{flag}'")), "{error}");
    }
}

#[test]
fn every_one_stands_for_a_flag_whose_help_names_it() {
    let command = Cli::command();
    for (short, long) in SHORTS {
        let flags = command.get_subcommands().flat_map(Command::get_arguments);
        let mut found = flags.filter(|flag| {
            let names =
                flag.get_long().into_iter().chain(flag.get_all_aliases().unwrap_or_default());
            names.into_iter().any(|name| long.strip_prefix("--") == Some(name))
        });
        let help = found.next().and_then(|flag| flag.get_help()).unwrap().to_string();
        assert!(help.contains(&format!("[{short}]")), "{long}: {help}");
    }
}
