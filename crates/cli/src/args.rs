//! The command line as llama.cpp's users type it: short flags of several letters.
//!
//! clap reads `-ngl` as `-n gl`, so such flags are written out before it sees them. Those that are
//! not in the table are refused here: read letter by letter they would mean something else.

use std::collections::HashSet;
use std::ffi::OsString;

use clap::Command;
use clap::error::ErrorKind;

/// Short flags of several letters, and what each stands for.
pub(crate) const SHORTS: &[(&str, &str)] = &[
    ("-co", "--color"),
    ("-ctk", "--cache-type-k"),
    ("-ctkd", "--cache-type-k-draft"),
    ("-ctv", "--cache-type-v"),
    ("-ctvd", "--cache-type-v-draft"),
    ("-fa", "--flash-attn"),
    ("-kvu", "--kv-unified"),
    ("-md", "--model-draft"),
    ("-ngl", "--gpu-layers"),
    ("-ngld", "--gpu-layers-draft"),
    ("-np", "--parallel"),
    ("-sys", "--system-prompt"),
    ("-sysf", "--system-prompt-file"),
    ("-tb", "--threads-batch"),
    ("-tbd", "--threads-batch-draft"),
    ("-td", "--threads-draft"),
    ("-to", "--timeout"),
    ("-ub", "--ubatch-size"),
];

/// Writes out the short flags of several letters; the values of other flags stay as they are.
///
/// # Errors
/// Where such a flag is unknown.
pub(crate) fn written_out(
    argv: impl IntoIterator<Item = OsString>,
    command: &mut Command,
) -> Result<Vec<OsString>, clap::Error> {
    let valued = valued_flags(command);
    let mut argv = argv.into_iter();
    let mut out: Vec<OsString> = argv.next().into_iter().collect();
    let mut is_value = false;
    while let Some(argument) = argv.next() {
        let text = argument.to_str().filter(|text| !is_value && text.starts_with('-'));
        is_value = false;
        let Some(text) = text else {
            out.push(argument);
            continue;
        };
        if text == "--" {
            out.push(argument);
            out.extend(argv);
            break;
        }
        let (name, value) = text.split_once('=').map_or((text, None), |(n, v)| (n, Some(v)));
        let name = if is_short_of_several(name) { long(name, command)? } else { name };
        is_value = value.is_none() && valued.contains(name);
        out.push(value.map_or_else(|| name.into(), |value| format!("{name}={value}").into()));
    }
    Ok(out)
}

/// Whether clap would take the letters apart. A digit or sign after the letter is its value.
fn is_short_of_several(name: &str) -> bool {
    name.strip_prefix('-').is_some_and(|letters| {
        letters.len() > 1 && letters.bytes().take(2).all(|byte| byte.is_ascii_alphabetic())
    })
}

fn long(short: &str, command: &mut Command) -> Result<&'static str, clap::Error> {
    let found = SHORTS.iter().find(|(known, _)| *known == short);
    found.map(|(_, long)| *long).ok_or_else(|| {
        let message = format!("unexpected argument '{short}' found: --help lists all flags");
        command.error(ErrorKind::UnknownArgument, message)
    })
}

/// The flags of all subcommands that take a value, as they are typed.
fn valued_flags(command: &Command) -> HashSet<String> {
    let mut flags = HashSet::new();
    for argument in command.get_subcommands().flat_map(Command::get_arguments) {
        if argument.get_action().takes_values() {
            let longs = argument.get_long_and_visible_aliases().unwrap_or_default();
            let hidden = argument.get_aliases().unwrap_or_default();
            let shorts = argument.get_short_and_visible_aliases().unwrap_or_default();
            flags.extend(longs.into_iter().chain(hidden).map(|name| format!("--{name}")));
            flags.extend(shorts.into_iter().map(|letter| format!("-{letter}")));
        }
    }
    flags
}

#[cfg(test)]
mod tests {
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
        let expected = "forerun generate -m a --gpu-layers 99 --model-draft=b --flash-attn on --threads-draft 2";
        assert_eq!(rewritten(line).unwrap().join(" "), expected);
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
        for flag in ["-hf", "-sm", "-cnv", "-mg", "-st", "-hft"] {
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
}
