//! `forerun`: text from GGUF models, faster and with nothing changed about what they say.
//!
//! The only place where engine, decoder and rules meet. Every command reads its flags, does one
//! thing and says what it took; nothing is decided here that a library could decide.

mod args;
mod bench;
mod certify;
mod chat;
mod config;
mod doctor;
mod download;
mod extension;
mod flags;
mod gate_file;
mod generate;
mod hub;
mod interrupt;
mod lab;
mod load;
mod plain;
mod progress;
mod report;
mod serve;
mod shell;
mod simulate;
mod stream;
mod template;
mod tenants;
mod terminal;
mod trim;
mod tune;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// Lossless speculative decoding for GGUF models: faster output, same distribution.
#[derive(Debug, Parser)]
#[command(name = "forerun", version, args_override_self = true, max_term_width = 100)]
struct Cli {
    /// TOML file with flags by their long names; command line and environment take precedence; an
    /// empty name for none [default: forerun/config.toml in $XDG_CONFIG_HOME or ~/.config]
    #[arg(long, global = true, env = config::VARIABLE, value_name = "FILE")]
    config: Option<OsString>,
    #[command(subcommand)]
    command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
enum Command {
    /// Complete a prompt
    Generate(Box<generate::GenerateFlags>),
    /// Chat with a model
    Chat(Box<chat::ChatFlags>),
    /// Serve a model over HTTP with the OpenAI API
    Serve(Box<serve::ServeFlags>),
    /// Find the fastest drafter, number of paths and draft length on this machine
    Tune(Box<tune::TuneFlags>),
    /// Measure the speedup on models or a server, with confidence intervals
    Bench(Box<bench::BenchFlags>),
    /// Test that speculation leaves the output distribution unchanged, on a model or a server
    Certify(Box<certify::CertifyFlags>),
    /// Predict the behaviour of a fleet of replicas from a benchmark of one
    Simulate(Box<simulate::SimulateFlags>),
    /// Download a model from the hub, checked and ready for -hf
    Pull(Box<hub::PullFlags>),
    /// List the models on this machine, those of Ollama and LM Studio too
    Models(hub::ModelsFlags),
    /// Remove a downloaded model
    Rm(hub::RemoveFlags),
    /// Examine this machine, build and cache, and say what is wrong
    Doctor(doctor::DoctorFlags),
    /// Check the configuration file, or print its JSON schema
    Config(config::ConfigFlags),
    /// Print a script that completes commands and flags in a shell
    Completions(shell::CompletionsFlags),
    /// Print or write the manual pages
    Man(shell::ManFlags),
    /// Make a draft model faster by leaving out tokens it hardly needs
    Trim(Box<trim::TrimFlags>),
    /// Train a draft model for a target, from GGUF to GGUF (the program forerun-distill)
    Distill(extension::DistillFlags),
}

/// What the program ends with where a command line cannot be read.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    if let Some(flags) = extension::DistillFlags::asked(std::env::args_os()) {
        return flags.run().unwrap_or_else(|error| failed(&error));
    }
    forerun_llama::bound_memory_arenas();
    let cli = match parse() {
        Ok(Ok(cli)) => cli,
        Ok(Err(usage)) if usage.use_stderr() => {
            eprint!("{}", plain::plain(&usage.to_string()));
            return ExitCode::from(USAGE);
        }
        Ok(Err(help)) => help.exit(),
        Err(error) => return failed(&error),
    };
    let config = cli.config.as_deref();
    let result = match cli.command {
        Command::Generate(flags) => flags.run(),
        Command::Chat(flags) => flags.run(),
        Command::Serve(flags) => flags.run(),
        Command::Tune(flags) => flags.run(),
        Command::Bench(flags) => flags.run(),
        Command::Certify(flags) => flags.run(),
        Command::Simulate(flags) => flags.run(),
        Command::Pull(flags) => flags.run(),
        Command::Models(flags) => flags.run(),
        Command::Rm(flags) => flags.run(),
        Command::Doctor(flags) => flags.run(config),
        Command::Config(flags) => flags.run(config, &Cli::command()),
        Command::Completions(flags) => flags.run(),
        Command::Man(flags) => flags.run(),
        Command::Trim(flags) => flags.run(),
        Command::Distill(flags) => flags.run(),
    };
    result.unwrap_or_else(|error| failed(&error))
}

/// Reads the command line, and the configuration file.
fn parse() -> anyhow::Result<Result<Cli, clap::Error>> {
    // A negative number is a value that can be refused by name, and no flag.
    let option = |arg: clap::Arg| match arg.is_positional() || !arg.get_action().takes_values() {
        true => arg,
        false => arg.allow_negative_numbers(true),
    };
    let mut command = Cli::command().mut_subcommands(|command| command.mut_args(option));
    let argv = match args::written_out(std::env::args_os(), &mut command) {
        Ok(argv) => config::expanded(argv, &command)?,
        Err(usage) => return Ok(Err(usage)),
    };
    let matches = command.try_get_matches_from_mut(argv);
    let cli = matches.and_then(|matches| Cli::from_arg_matches(&matches));
    Ok(cli.map_err(|error| meant(error, &mut command)))
}

/// What users of other programs type, and what it is here.
const ELSEWHERE: &[(&str, &str)] = &[
    ("run", GENERATE_OR_CHAT),
    ("complete", GENERATE_OR_CHAT),
    ("completion", GENERATE_OR_CHAT),
    ("llama-completion", GENERATE_OR_CHAT),
    ("cli", GENERATE_OR_CHAT),
    ("llama-cli", GENERATE_OR_CHAT),
    ("server", "'forerun serve'"),
    ("llama-server", "'forerun serve'"),
    ("list", "'forerun models'"),
    ("ls", "'forerun models'"),
    ("download", "'forerun pull'"),
    ("remove", "'forerun rm'"),
    ("benchmark", "'forerun bench'"),
    ("llama-bench", "'forerun bench'"),
];

const GENERATE_OR_CHAT: &str = "'forerun generate' for a completion, 'forerun chat' for a chat";

/// The same error, with the command that was probably meant.
fn meant(error: clap::Error, command: &mut clap::Command) -> clap::Error {
    let Some(ContextValue::String(said)) = error.get(ContextKind::InvalidSubcommand) else {
        return error;
    };
    let known = ELSEWHERE.iter().find(|(name, _)| name == said);
    let Some((_, here)) = known else { return error };
    let message = format!("there is no command '{said}': use {here}");
    command.error(ErrorKind::InvalidSubcommand, message)
}

/// Says what went wrong, unless nobody is left to read the text.
fn failed(error: &anyhow::Error) -> ExitCode {
    if plain::is_unread(error) {
        return ExitCode::SUCCESS;
    }
    eprintln!("error: {}", plain::plain(&format!("{error:#}")));
    let usage = error.downcast_ref().is_some_and(flags::ConfigError::is_usage);
    ExitCode::from(if usage { USAGE } else { 1 })
}
