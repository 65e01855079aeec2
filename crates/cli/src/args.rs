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
    ("-hf", "--hf-repo"),
    ("-hfd", "--spec-draft-hf"),
    ("-hff", "--hf-file"),
    ("-hfr", "--hf-repo"),
    ("-hfrd", "--spec-draft-hf"),
    ("-hft", "--hf-token"),
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
    let mut argv = argv.into_iter().peekable();
    let mut out: Vec<OsString> = argv.next().into_iter().collect();
    let valued = valued_flags(command, argv.peek().and_then(|name| name.to_str()));
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

/// The flags that take a value, as they are typed: those of the program and of the subcommand, or of all of
/// them if none is named. One may take a value in one subcommand and none in another.
fn valued_flags(command: &Command, subcommand: Option<&str>) -> HashSet<String> {
    let mut flags = HashSet::new();
    let named = subcommand.and_then(|name| command.find_subcommand(name));
    let asked = |other: &&Command| named.is_none_or(|it| it.get_name() == other.get_name());
    let subcommands = command.get_subcommands().filter(asked).flat_map(Command::get_arguments);
    for argument in command.get_arguments().chain(subcommands) {
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
#[path = "../tests/line/args.rs"]
mod tests;
