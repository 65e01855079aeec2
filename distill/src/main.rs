//! `forerun-distill`, which `forerun distill` starts.

mod flags;
mod run;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    forerun_llama::bound_memory_arenas();
    match run::run(&flags::Flags::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
