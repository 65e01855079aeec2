//! `forerun`: text from GGUF models, faster and with nothing changed about what they say.
//!
//! The only place where engine, decoder and rules meet. Every command reads its flags, does one
//! thing and says what it took; nothing is decided here that a library could decide.

mod args;
mod bench;
mod certify;
mod chat;
mod client;
mod config;
mod flags;
mod generate;
mod html;
mod interrupt;
mod load;
mod machine;
mod prompts;
mod report;
mod serve;
mod simulate;
mod stream;
mod template;
mod terminal;
mod tune;

use std::io;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// Faster answers from GGUF models, without changing what they say.
#[derive(Debug, Parser)]
#[command(name = "forerun", version, args_override_self = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
enum Command {
    /// Continue a text
    Generate(Box<generate::GenerateFlags>),
    /// Talk with the model
    Chat(Box<chat::ChatFlags>),
    /// Serve a model over HTTP, by OpenAI's API
    Serve(Box<serve::ServeFlags>),
    /// Find out which drafter, how many paths and which length pay here
    Tune(Box<tune::TuneFlags>),
    /// Measure what drafting gains, with intervals, on models or a server
    Bench(Box<bench::BenchFlags>),
    /// Prove that speculation leaves the output alone, on your model or any server
    Certify(Box<certify::CertifyFlags>),
    /// Say what a fleet of replicas would do, from what one was measured to do
    Simulate(Box<simulate::SimulateFlags>),
}

fn main() -> ExitCode {
    forerun_llama::bound_memory_arenas();
    let cli = match parse() {
        Ok(Ok(cli)) => cli,
        Ok(Err(usage)) => usage.exit(),
        Err(error) => return failed(&error),
    };
    let result = match cli.command {
        Command::Generate(flags) => flags.run(),
        Command::Chat(flags) => flags.run(),
        Command::Serve(flags) => flags.run(),
        Command::Tune(flags) => flags.run(),
        Command::Bench(flags) => flags.run(),
        Command::Certify(flags) => flags.run(),
        Command::Simulate(flags) => flags.run(),
    };
    result.unwrap_or_else(|error| failed(&error))
}

/// Reads the command line, and the file it names.
fn parse() -> anyhow::Result<Result<Cli, clap::Error>> {
    let mut command = Cli::command();
    let argv = match args::written_out(std::env::args_os(), &mut command) {
        Ok(argv) => config::expanded(argv, &command)?,
        Err(usage) => return Ok(Err(usage)),
    };
    let matches = command.try_get_matches_from(argv);
    Ok(matches.and_then(|matches| Cli::from_arg_matches(&matches)))
}

/// Says what went wrong, unless nobody is left to read the text.
fn failed(error: &anyhow::Error) -> ExitCode {
    let io = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
    if io.is_some_and(|io| io.kind() == io::ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    eprintln!("error: {error:#}");
    let usage = error.downcast_ref::<flags::ConfigError>().is_some();
    ExitCode::from(if usage { 2 } else { 1 })
}
