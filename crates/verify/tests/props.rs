//! Properties over arbitrary rows, drafts and generators: nothing panics, nothing is NaN, what is
//! refused is refused for the right reason, and every verdict is one the target can say.
//!
//! Whether a rule is lossless is proved by enumeration elsewhere; here it meets what enumeration
//! does not reach: weights from the least to the largest `f32`, long rows, wide and deep trees,
//! and generators that give nothing but zeros. `just fuzz` runs a million cases and writes
//! `bench/verify/fuzz.md`; the tests alone run [`CASES`] of each property. The cases are a function
//! of `FORERUN_FUZZ_SEED`.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic")]

#[path = "props/cases.rs"]
mod cases;
#[path = "props/drafts.rs"]
mod drafts;
#[path = "props/rows.rs"]
mod rows;
#[path = "props/seen.rs"]
mod seen;
#[path = "props/sketch.rs"]
mod sketch;
#[path = "props/verdicts.rs"]
mod verdicts;

use std::cell::Cell;
use std::fmt::Write;
use std::time::Instant;

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngSeed, TestCaseResult, TestRunner};

/// Cases of each property unless `FORERUN_FUZZ_CASES` says otherwise.
const CASES: u32 = 256;

/// How many cases held, or the least case that did not.
type Found = Result<u64, String>;

fn property<S: Strategy>(strategy: S, holds: impl Fn(S::Value) -> TestCaseResult) -> Found {
    let config = Config {
        cases: setting("FORERUN_FUZZ_CASES").unwrap_or(CASES),
        rng_seed: RngSeed::Fixed(setting("FORERUN_FUZZ_SEED").unwrap_or(1)),
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..Config::default()
    };
    let held = Cell::new(0);
    let found = TestRunner::new(config).run(&strategy, |case| {
        holds(case)?;
        held.set(held.get() + 1);
        Ok(())
    });
    found.map(|()| held.get()).map_err(|error| error.to_string())
}

fn setting<T: std::str::FromStr>(name: &str) -> Option<T> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is {value}; expected a number")))
}

/// Each property is a test, and a line of the report.
macro_rules! properties {
    ($($name:ident: $property:expr;)*) => {
        $(
            #[test]
            fn $name() {
                println!("{} cases", $property.unwrap_or_else(|error| panic!("{error}")));
            }
        )*

        const PROPERTIES: &[(&str, fn() -> Found)] =
            &[$((stringify!($name), || $property)),*];
    };
}

properties! {
    dense_rows_are_refused_or_sound: rows::dense();
    sparse_rows_are_refused_or_sound: rows::sparse();
    softmax_rows_are_refused_or_sound: rows::softmax();
    softmax_rows_of_some_tokens_are_refused_or_sound: rows::softmax_of();
    top_k_rows_are_refused_or_sound: rows::top_k();
    argmax_rows_are_refused_or_sound: rows::argmax();
    the_form_of_a_row_changes_no_choice: rows::forms();
    drafts_are_refused_or_sound: drafts::any_calls();
    any_rule_judges_any_draft_or_refuses: verdicts::any_draft();
    more_candidates_than_a_rule_pools_are_refused: verdicts::many_candidates();
    token_verdicts_are_sound: verdicts::token();
    block_verdicts_are_sound: verdicts::block();
    nss_verdicts_are_sound: verdicts::nss();
    specinfer_verdicts_are_sound: verdicts::specinfer();
    spectr_verdicts_are_sound: verdicts::spectr();
    rsd_verdicts_are_sound: verdicts::rsd();
    traversal_verdicts_are_sound: verdicts::traversal();
    gbv_verdicts_are_sound: verdicts::gbv(true);
    gbv_plain_verdicts_are_sound: verdicts::gbv(false);
    pooled_verdicts_are_sound: verdicts::pooled();
    coupled_verdicts_are_sound: verdicts::coupled();
    lossy_block_verdicts_are_sound: verdicts::lossy_block();
    equal_rows_on_one_path_are_accepted_whole: verdicts::equal_rows();
    coupled_text_is_the_plain_text: verdicts::coupled_text();
}

/// All properties in turn; with `FORERUN_WRITE_REPORTS=1` what they found is written down.
#[test]
#[ignore = "run by `just fuzz`"]
fn report() {
    let begun = Instant::now();
    let mut lines = String::new();
    let (mut total, mut failures) = (0, Vec::new());
    for (name, property) in PROPERTIES {
        let started = Instant::now();
        let found = property();
        let seconds = started.elapsed().as_secs_f64();
        let (cases, result) = match &found {
            Ok(cases) => (*cases, "holds"),
            Err(_) => (0, "**fails**"),
        };
        total += cases;
        println!("{name}: {cases} cases in {seconds:.1} s, {result}");
        let name = name.replace('_', " ");
        writeln!(lines, "| {name} | {cases} | {seconds:.1} | {result} |").unwrap();
        failures.extend(found.err());
    }
    let seconds = begun.elapsed().as_secs_f64();
    let result = if failures.is_empty() { "all hold" } else { "**not all hold**" };
    writeln!(lines, "| **all** | {total} | {seconds:.1} | {result} |").unwrap();
    if std::env::var_os("FORERUN_WRITE_REPORTS").is_some_and(|wanted| wanted == "1") {
        write_report(&lines);
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

fn write_report(lines: &str) {
    let date = std::env::var("FORERUN_REPORT_DATE").expect("the recipe gives the date");
    let seed = setting("FORERUN_FUZZ_SEED").unwrap_or(1u64);
    let build = if cfg!(debug_assertions) { "with debug assertions" } else { "in release" };
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/verify");
    let report = format!(
        "# Properties over arbitrary rows, drafts and generators\n\n\
         Made by `just fuzz` (`crates/verify/tests/props.rs`, seed {seed}, {build}) on {date}. A \
         case is one draft with its rows and generator (or, for the properties of rows, one row); \
         it counts where the property held for it, and a property that fails counts none. Weights \
         reach from the least `f32` to the largest, refused ones are any bit pattern; vocabularies \
         have up to 700 tokens; generators are fair, all zeros, all ones, or all of these in \
         turn.\n\n\
         | property | cases | seconds | result |\n|---|--:|--:|---|\n{lines}"
    );
    std::fs::create_dir_all(folder).expect("the folder can be made");
    std::fs::write(format!("{folder}/fuzz.md"), report).expect("the report can be written");
}
