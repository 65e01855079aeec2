//! Brings a model by name: `pull user/repo[:quant] [FILE | --draft]`, with the settings of the
//! environment. Prints where it is. The tests of `tests/hub` drive it, since it builds in seconds.
#![allow(clippy::print_stdout, reason = "an example speaks to whoever runs it")]

use std::process::ExitCode;
use std::time::Duration;

use forerun_hub::{Event, Hub, LocalModel, Observer, Request, Result, Settings, Want};

struct Told;

impl Observer for Told {
    fn event(&mut self, event: Event<'_>) {
        if !matches!(event, Event::Arrived { .. }) {
            eprintln!("{event:?}");
        }
    }
}

fn run(args: &[&str]) -> Result<()> {
    let mut settings = Settings::from_environment()?;
    // Tests of lines that fail need not wait for seconds.
    settings.back_off = Duration::from_millis(20);
    let hub = Hub::new(&settings);
    match args {
        ["--models"] => {
            for model in LocalModel::all(&settings) {
                println!(
                    "{:?} {} {} {}",
                    model.store,
                    model.name,
                    model.size,
                    model.location.display()
                );
            }
        }
        ["--remove", name] => println!("{:?}", hub.cache().remove(&name.parse()?)?),
        [name, rest @ ..] => {
            let want = match rest {
                [] => Want::Model,
                ["--draft"] => Want::Drafter,
                [file, ..] => Want::File((*file).to_owned()),
            };
            let fetched = hub.fetch(&Request { name: name.parse()?, want }, &mut Told)?;
            eprintln!("{} of {} bytes were downloaded", fetched.downloaded, fetched.size);
            println!("{}", fetched.location.display());
        }
        [] => {
            eprintln!("usage: pull user/repo[:quant] [FILE | --draft] | --models | --remove NAME")
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
