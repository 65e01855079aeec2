//! The committed table of `cost`, from what criterion measured in this run.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Writes `bench/verify/cost.md` where `FORERUN_WRITE_REPORTS` asks for it.
pub(crate) fn write(vocabs: &[usize], rules: &[(&str, usize)]) {
    if std::env::var_os("FORERUN_WRITE_REPORTS").is_none() {
        return;
    }
    let mut report = String::from(HEAD);
    let _ = writeln!(report, "Machine: {}.\n", machine());
    dense(&mut report, vocabs, rules);
    sparse(&mut report, vocabs, rules);
    rows(&mut report, vocabs);
    report.push_str(&limits());
    let path = root().join("bench/verify/cost.md");
    std::fs::write(path, report).expect("bench/verify can be written");
}

const HEAD: &str = "\
# What a verdict costs

Made by `just cost` (criterion, medians). Blocks of L = 8 drafted tokens; verdicts that reject something,
as a full acceptance needs no draft row; six blocks take turns. *reads*: the time over that of one streaming
read of the rows the rule must touch, measured in the same run: for `token` the two rows at the rejected
token, for `block` those from the rejected token to the end of the path, for `pooled` at K = 2 those of every
node with candidates. Other rules are timed without a yardstick. Times are of one run on one machine: read the
ratios.

";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The processor's own name, as far as the system tells it.
fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    name.unwrap_or("unknown processor").to_owned()
}

/// The median time of a benchmark in microseconds, where it ran.
fn median(group: &str, name: &str) -> Option<f64> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root().join("target"), PathBuf::from);
    let file = target.join("criterion").join(group).join(name).join("new/estimates.json");
    let text = std::fs::read_to_string(file).ok()?;
    let estimates: serde_json::Value = serde_json::from_str(&text).ok()?;
    Some(estimates["median"]["point_estimate"].as_f64()? / 1_000.0)
}

fn micros(value: Option<f64>) -> String {
    value.map_or("–".to_owned(), |us| match us {
        us if us < 100.0 => format!("{us:.1} µs"),
        us => format!("{us:.0} µs"),
    })
}

fn head(report: &mut String, title: &str, vocabs: &[usize]) {
    let _ = writeln!(report, "## {title}\n");
    let names: Vec<String> = vocabs.iter().map(|v| format!("V = {v}")).collect();
    let _ = writeln!(report, "| rule | K | {} |", names.join(" | "));
    let _ = writeln!(report, "|---|--:|{}", "--:|".repeat(vocabs.len()));
}

fn dense(report: &mut String, vocabs: &[usize], rules: &[(&str, usize)]) {
    head(report, "Dense rows: time a block, and reads", vocabs);
    for (name, paths) in rules {
        let cell = |vocab: &usize| {
            let group = format!("{vocab}-dense");
            let time = median(&group, &format!("{name}-{paths}"));
            let read = median(&group, &format!("{name}-{paths}-read"));
            let reads =
                time.zip(read).map(|(time, read)| format!(", **{:.2} reads**", time / read));
            micros(time) + &reads.unwrap_or_default()
        };
        let cells: Vec<String> = vocabs.iter().map(cell).collect();
        let _ = writeln!(report, "| {name} | {paths} | {} |", cells.join(" | "));
    }
    let _ = writeln!(report);
}

fn sparse(report: &mut String, vocabs: &[usize], rules: &[(&str, usize)]) {
    head(report, "Top-k 40 rows: time a block", vocabs);
    for (name, paths) in rules {
        let cell =
            |vocab: &usize| micros(median(&format!("{vocab}-top-40"), &format!("{name}-{paths}")));
        let cells: Vec<String> = vocabs.iter().map(cell).collect();
        let _ = writeln!(report, "| {name} | {paths} | {} |", cells.join(" | "));
    }
    let _ = writeln!(report);
}

fn rows(report: &mut String, vocabs: &[usize]) {
    head(report, "Making a row from logits", vocabs);
    for (title, name) in [("softmax, dense", "dense"), ("top-k 40", "top-40"), ("read", "read")] {
        let cells: Vec<String> =
            vocabs.iter().map(|vocab| micros(median(&format!("{vocab}-rows"), name))).collect();
        let _ = writeln!(report, "| {title} | | {} |", cells.join(" | "));
    }
    let _ = writeln!(report);
}

fn limits() -> String {
    "\
## Aims and what limits them

Aims: token 1.5 reads, block 2.5, pooled at K = 2 within 8, and any rule under 20 µs a block on sparse rows.
Token misses its aim at V = 32,000: the rows it touches, two of each of six blocks, stay in the second-level
cache, where they are read faster than `f32` can be turned into `f64`. Token and block are one pass of
`relu(scale * target - draft)` in `f64` over `f32` rows, and that conversion is what holds them back wherever
memory does not. Pooled adds each token of a row to one of 2,049 buckets, a scattered write that does not
vectorise. Rules without a yardstick are there for comparison and are not tuned: `spectr` and `gbv` go over
whole rows token by token.
"
    .to_owned()
}
