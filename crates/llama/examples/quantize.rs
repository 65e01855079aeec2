//! Quantises a model file: `cargo run -p forerun-llama --example quantize -- IN OUT TYPE`.

use std::path::Path;
use std::process::ExitCode;

use forerun_llama::{QuantizeType, quantize};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [input, output, kind] = arguments.as_slice() else {
        return Err("wanted: IN OUT TYPE, as in model.gguf model.q8.gguf Q8_0".into());
    };
    let kind: QuantizeType = kind.parse()?;
    quantize(Path::new(input), Path::new(output), kind)?;
    Ok(())
}
