//! Makes the reports under `bench/decode`: `just drift`, `just overhead`, `just speed`.
//!
//! Everything compared is measured in one run, taking turns, so that a noisy machine is noisy for
//! all alike. The two-sample test has a report of its own (`just two-sample`).

mod drift;
mod lab;
mod overhead;
mod speed;

fn main() {
    let which = std::env::args().nth(1).unwrap_or_default();
    match which.as_str() {
        "drift" => drift::report(),
        "overhead" => overhead::report(),
        "speed" => speed::report(),
        _ => {
            eprintln!("usage: reports drift|overhead|speed");
            std::process::exit(2);
        }
    }
}
