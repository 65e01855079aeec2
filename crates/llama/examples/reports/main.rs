//! Makes the reports under `bench/decode`: `just drift`, `just overhead`, `just speed`,
//! `just heads`, `just paths`, `just trees`, `just batches`, `just control`.
//!
//! Everything compared is measured in one run, taking turns, so that a noisy machine is noisy for
//! all alike. The two-sample test has a report of its own (`just two-sample`).

mod batches;
mod control;
mod drift;
mod lab;
mod overhead;
mod paths;
mod speed;
mod trees;

fn main() {
    let which = std::env::args().nth(1).unwrap_or_default();
    match which.as_str() {
        "batches" => batches::report(),
        "control" => control::report(),
        "drift" => drift::report(),
        "heads" => speed::heads(),
        "overhead" => overhead::report(),
        "paths" => paths::report(),
        "speed" => speed::report(),
        "trees" => trees::report(),
        _ => {
            eprintln!("usage: reports batches|control|drift|heads|overhead|paths|speed|trees");
            std::process::exit(2);
        }
    }
}
