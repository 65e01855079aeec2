//! The configuration file: flags by their long names, for all commands.
//!
//! A key is for every command that has such a flag; a key in a table is for the command that the
//! table is named after, and goes before one outside. What the command line says goes before what
//! the environment says, and that before the file: also where it says the same in another way.

mod schema;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, Command};
use toml::{Table, Value};

use crate::plain::plain;

/// The flag that names the file, and the variable. An empty name is no file.
pub(crate) const FLAG: &str = "config";
pub(crate) const VARIABLE: &str = "FORERUN_CONFIG";

/// Commands that take nothing from the file: they work where it is wrong.
const WITHOUT: &[&str] = &["completions", "config", "distill", "doctor", "help", "man"];

/// Keys of the file that do not count if something else was said in their place. Of these, clap
/// sees no conflict.
const INSTEAD: &[(&str, &[&str])] = &[
    ("model", &["target", "hf_repo", "url"]),
    ("hf_repo", &["target", "model", "url"]),
    ("hf_file", &["target", "model", "hf_repo", "url"]),
    ("spec_draft_model", &["spec_draft_hf"]),
    ("spec_draft_hf", &["spec_draft_model"]),
];

/// What to do with the file, as given.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ConfigFlags {
    /// Print the JSON schema of the file, for editors
    #[arg(long)]
    schema: bool,
}

impl ConfigFlags {
    /// Runs the command.
    pub(crate) fn run(self, named: Option<&OsStr>, command: &Command) -> anyhow::Result<ExitCode> {
        let mut out = std::io::stdout().lock();
        if self.schema {
            writeln!(out, "{:#}", schema::schema(command))?;
            return Ok(ExitCode::SUCCESS);
        }
        let said = match Source::find(named) {
            Source::None => "no file is read".to_owned(),
            Source::Missing(path) => format!("there is no file; it would be {}", path.display()),
            Source::File(path) => {
                let table = read(&path, command)?;
                let all = table.values().filter(|value| !value.is_table()).count();
                let parts =
                    table.iter().filter_map(|(name, value)| Some((name, value.as_table()?)));
                let parts: String =
                    parts.map(|(name, table)| format!(", {} for {name}", table.len())).collect();
                format!("{}: {all} settings for all commands{parts}", path.display())
            }
        };
        writeln!(out, "{}", plain(&said))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Where settings come from.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// No file is to be read, or there is no home folder that it could be in.
    None,
    /// There is none in the usual place.
    Missing(PathBuf),
    /// This one.
    File(PathBuf),
}

impl Source {
    /// The file that was named, else the one in the usual place.
    pub(crate) fn find(named: Option<&OsStr>) -> Self {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        Self::find_in(named, variable, std::env::home_dir())
    }

    fn find_in(
        named: Option<&OsStr>,
        variable: impl Fn(&str) -> Option<OsString>,
        home: Option<PathBuf>,
    ) -> Self {
        if let Some(named) = named {
            return if named.is_empty() { Self::None } else { Self::File(named.into()) };
        }
        let own = if cfg!(windows) { "APPDATA" } else { "XDG_CONFIG_HOME" };
        let folder = variable(own).map(PathBuf::from).filter(|folder| folder.is_absolute());
        let home = || home.filter(|home| home.is_absolute()).map(|home| home.join(".config"));
        let Some(folder) = folder.or_else(home) else { return Self::None };
        let path = folder.join("forerun").join("config.toml");
        if path.exists() { Self::File(path) } else { Self::Missing(path) }
    }
}

/// The table in a file, whose keys and values are those of flags.
///
/// # Errors
/// Where it cannot be read, or says what no flag means.
pub(crate) fn read(path: &Path, command: &Command) -> anyhow::Result<Table> {
    let read = || -> anyhow::Result<Table> {
        let table: Table = std::fs::read_to_string(path)?.parse()?;
        check(&table, command)?;
        Ok(table)
    };
    read().with_context(|| format!("configuration {}", path.display()))
}

/// The command line with the flags of the file.
///
/// # Errors
/// As [`read`].
pub(crate) fn expanded(argv: Vec<OsString>, command: &Command) -> anyhow::Result<Vec<OsString>> {
    // What is wrong with the command line is said when all of it is read.
    let said = command.clone().ignore_errors(true).try_get_matches_from(&argv);
    let Ok(said) = said else { return Ok(argv) };
    let Some((name, said)) = said.subcommand().filter(|(name, _)| !WITHOUT.contains(name)) else {
        return Ok(argv);
    };
    let named = said.get_one::<OsString>(FLAG).map(OsString::as_os_str);
    let Source::File(path) = Source::find(named) else { return Ok(argv) };
    let table = read(&path, command)?;
    let place = place(&argv, name);
    let (Some(subcommand), Some(place)) = (command.find_subcommand(name), place) else {
        return Ok(argv);
    };
    // A command of a command has flags of its own.
    if said.subcommand().is_some() {
        return Ok(argv);
    }
    let heard = [ValueSource::CommandLine, ValueSource::EnvVariable];
    let is_said = |arg: &Arg| {
        said.value_source(arg.get_id().as_str()).is_some_and(|source| heard.contains(&source))
    };
    let flags = flags(&table, subcommand, is_said)?;
    let (before, after) = argv.split_at(place);
    Ok(before.iter().cloned().chain(flags).chain(after.iter().cloned()).collect())
}

/// Where a command's flags begin: behind its name, which only the flag of the file may precede.
fn place(argv: &[OsString], name: &str) -> Option<usize> {
    let mut at = 1;
    while argv.get(at)? != name || argv.get(at - 1)? == "--config" {
        at += 1;
    }
    Some(at + 1)
}

/// Refuses keys that no flag is called, and values that no flag takes.
fn check(table: &Table, command: &Command) -> anyhow::Result<()> {
    let commands = || command.get_subcommands().filter(|it| !WITHOUT.contains(&it.get_name()));
    for (name, value) in table {
        if let Some(own) = value.as_table() {
            let Some(command) = commands().find(|it| it.get_name() == name) else {
                let names: Vec<&str> = commands().map(Command::get_name).collect();
                bail!("[{name}] is no command: tables are {}", names.join(", "));
            };
            if let Some(key) = own.keys().find(|key| find(command, key).is_none()) {
                bail!("{}", unknown(key, [command].into_iter(), &format!(" in [{name}]")));
            }
        } else if !commands().any(|command| find(command, name).is_some()) {
            bail!("{}", unknown(name, commands(), ""));
        } else if value.is_array() && !commands().any(|it| find(it, name).is_some_and(is_list)) {
            bail!("{name} is a list; expected text, a number, true or false");
        }
    }
    for command in commands() {
        let flags = flags(table, command, |_| false)?;
        let argv = [OsString::from(command.get_name())].into_iter().chain(flags);
        // What the environment says is for the command itself to judge.
        let alone =
            command.clone().args_override_self(true).mut_args(|arg| arg.env(None::<&'static str>));
        let read = alone.try_get_matches_from(argv);
        if let Err(error) = read
            && matches!(error.kind(), ErrorKind::InvalidValue | ErrorKind::ValueValidation)
        {
            let said = error.to_string();
            let said = said.split("\n\n").next().unwrap_or_default();
            bail!("{}", said.trim_start_matches("error: "));
        }
    }
    Ok(())
}

/// What is said of a key that is no flag: the one that was probably meant.
fn unknown<'a>(key: &str, commands: impl Iterator<Item = &'a Command>, place: &str) -> String {
    let meant = |command: &Command| {
        let argv = [command.get_name().to_owned(), format!("--{key}")];
        let error = command.clone().try_get_matches_from(argv).err()?;
        match error.get(ContextKind::SuggestedArg) {
            Some(ContextValue::String(flag)) => Some(flag.trim_start_matches('-').to_owned()),
            _ => None,
        }
    };
    let mut names = Vec::new();
    let suggestion = commands.inspect(|command| names.push(command.get_name())).find_map(meant);
    match (suggestion, &*names) {
        (Some(meant), _) => format!("there is no flag --{key}{place}: did you mean {meant}?"),
        (None, [only]) => format!("there is no flag --{key}{place}: see `forerun {only} --help`"),
        (None, _) => format!("there is no flag --{key}{place}: see `forerun serve --help`"),
    }
}

/// The flags of a table for a command, but those that are said already, or said in another way.
fn flags(
    table: &Table,
    command: &Command,
    is_said: impl Fn(&Arg) -> bool,
) -> anyhow::Result<Vec<OsString>> {
    let own = table.get(command.get_name()).and_then(Value::as_table);
    let all = table.iter().filter(|(_, value)| !value.is_table());
    let mut chosen = BTreeMap::new();
    for (name, value) in all {
        // A list is for the commands that take one.
        if let Some(arg) = find(command, name).filter(|arg| is_list(arg) || !value.is_array()) {
            chosen.insert(arg.get_id().as_str(), (arg, name, value));
        }
    }
    for (name, value) in own.into_iter().flatten() {
        if let Some(arg) = find(command, name) {
            chosen.insert(arg.get_id().as_str(), (arg, name, value));
        }
    }
    let said: Vec<&Arg> = command.get_arguments().filter(|arg| is_said(arg)).collect();
    let mut flags = Vec::new();
    for (id, (arg, name, value)) in chosen {
        let instead = INSTEAD.iter().find(|(key, _)| *key == id).map_or(&[][..], |(_, ids)| *ids);
        let yields = said.iter().any(|other| {
            other.get_id() == arg.get_id()
                || instead.contains(&other.get_id().as_str())
                || command.get_arg_conflicts_with(other).contains(&arg)
                || command.get_arg_conflicts_with(arg).contains(other)
        });
        if !yields {
            flags.extend(written(arg, name, value)?);
        }
    }
    Ok(flags)
}

/// A setting as it is written on a command line.
fn written(arg: &Arg, name: &str, value: &Value) -> anyhow::Result<Vec<OsString>> {
    let values = match value {
        Value::Array(values) if is_list(arg) => values.as_slice(),
        value => std::slice::from_ref(value),
    };
    let takes_value = arg.get_action().takes_values();
    let mut flags = Vec::new();
    for value in values {
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
                let kind = if other.is_array() { "list" } else { other.type_str() };
                bail!("{name} is a {kind}; expected text, a number, true or false")
            }
        };
        if !takes_value {
            bail!("{name} is {text:?}; expected true or false");
        }
        flags.push(format!("--{name}={text}").into());
    }
    Ok(flags)
}

/// Whether a flag may be repeated.
fn is_list(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Append)
}

/// The flag of a command that is called so.
fn find<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|arg| {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        name != FLAG && (arg.get_long() == Some(name) || aliases.contains(&name))
    })
}

#[cfg(test)]
#[path = "../tests/line/config.rs"]
mod tests;
