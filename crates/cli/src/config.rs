//! `--config FILE`: flags from a file, for services.
//!
//! A flat table of flags by their long names. What the command line says goes before what the
//! environment says, and that before the file.

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, bail};
use clap::{Arg, Command};
use toml::{Table, Value};

const FLAG: &str = "--config";

/// The command line with the flags of its file, where it names one.
///
/// # Errors
/// Where the file cannot be read, or says what no flag means.
pub(crate) fn expanded(argv: Vec<OsString>, command: &Command) -> anyhow::Result<Vec<OsString>> {
    let Some(file) = named(&argv) else { return Ok(argv) };
    let subcommand = argv.get(1).and_then(|name| name.to_str());
    let subcommand = subcommand.and_then(|name| command.find_subcommand(name));
    let Some(subcommand) = subcommand else { return Ok(argv) };
    let path = Path::new(&file);
    let read = || -> anyhow::Result<Vec<OsString>> {
        let table: Table = std::fs::read_to_string(path)?.parse()?;
        flags(&table, subcommand)
    };
    let flags = read().with_context(|| format!("configuration {}", path.display()))?;
    let (before, after) = argv.split_at(2);
    Ok(before.iter().cloned().chain(flags).chain(after.iter().cloned()).collect())
}

/// The file that is named, the last one where several are.
fn named(argv: &[OsString]) -> Option<OsString> {
    let mut file = None;
    for (argument, next) in argv.iter().zip(argv.iter().skip(1).map(Some).chain([None])) {
        match argument.to_str() {
            Some("--") => break,
            Some(FLAG) => file = next.cloned(),
            Some(text) => {
                let value = text.strip_prefix(FLAG).and_then(|rest| rest.strip_prefix('='));
                file = value.map(OsString::from).or(file);
            }
            None => {}
        }
    }
    file
}

fn flags(table: &Table, command: &Command) -> anyhow::Result<Vec<OsString>> {
    let mut flags = Vec::new();
    for (name, value) in table {
        let Some(arg) = command.get_arguments().find(|arg| is_called(arg, name)) else {
            bail!("there is no flag --{name}: see `forerun {} --help`", command.get_name());
        };
        if arg.get_env().is_some_and(|variable| std::env::var_os(variable).is_some()) {
            continue;
        }
        let values = match value {
            Value::Array(values) => values.as_slice(),
            value => std::slice::from_ref(value),
        };
        for value in values {
            let takes_value = arg.get_action().takes_values();
            let text = match value {
                Value::Boolean(on) if !takes_value => {
                    if *on {
                        flags.push(format!("--{name}").into());
                    }
                    continue;
                }
                Value::Boolean(on) => if *on { "on" } else { "off" }.to_owned(),
                Value::String(text) => text.clone(),
                Value::Integer(number) => number.to_string(),
                Value::Float(number) => number.to_string(),
                other => {
                    let kind = other.type_str();
                    bail!("{name} is a {kind}; expected text, a number, true or false")
                }
            };
            if !takes_value {
                bail!("{name} is {text:?}; expected true or false");
            }
            flags.push(format!("--{name}={text}").into());
        }
    }
    Ok(flags)
}

fn is_called(arg: &Arg, name: &str) -> bool {
    let aliases = arg.get_all_aliases().unwrap_or_default();
    name != "config" && (arg.get_long() == Some(name) || aliases.contains(&name))
}

#[cfg(test)]
#[path = "../tests/line/config.rs"]
mod tests;
