//! `forerun simulate`: what a fleet of replicas would do, from what one was measured to do.
//!
//! Passes take what `forerun bench` measured, drafts bring what it saw accepted; users, router, cache
//! and rounds are simulated. docs/scale.md says what is left out, and how far it was from fleets that
//! were measured.

mod fleet;
mod replica;
mod table;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use forerun_decode::CostCurve;
use serde::{Deserialize, Serialize};

use self::fleet::{Arrivals, Fleet, Outcome, Policy, Workload};
use self::replica::{Drafting, Pair};
use crate::flags::OutputConfig;
use crate::terminal::Screen;

/// The schema of reports this reads.
const SCHEMA: u32 = 1;

/// Seconds of an hour, and tokens that prices are given for.
const HOUR_S: f64 = 3600.0;
const MILLION: f64 = 1e6;

/// Time before anything counts, as a share of the time that does.
const WARM_UP: f64 = 0.2;

/// What to simulate.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct SimulateFlags {
    /// Report of `forerun bench` (JSON) with the passes and the acceptance of one replica
    #[arg(value_name = "REPORT")]
    report: PathBuf,
    /// Setting of the report whose drafts are used [default: its fastest]
    #[arg(long, value_name = "NAME")]
    setting: Option<String>,
    /// How often a drafted token is accepted where all before it were, position by position, instead
    /// of as in the report
    #[arg(long, value_name = "P,…", value_delimiter = ',')]
    accepted: Option<Vec<f64>>,
    /// Temperature of the report that is used
    #[arg(long, value_name = "T", default_value_t = 1.0)]
    temp: f32,
    /// Replicas; several numbers give a table
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1")]
    replicas: Vec<usize>,
    /// Texts of a replica at once [-np]
    #[arg(long, value_name = "N", default_value_t = 4)]
    parallel: usize,
    /// Users at once, each asking again when it has its answer
    #[arg(long, value_name = "N", default_value_t = 8, conflicts_with = "rate")]
    users: usize,
    /// Instead of a fixed number of users, conversations that begin each second
    #[arg(long, value_name = "PER_SECOND")]
    rate: Option<f64>,
    /// Seconds a user reads before asking on, on average
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    think: f64,
    /// Requests of a conversation
    #[arg(long, value_name = "N", default_value_t = 1)]
    turns: usize,
    /// Tokens of a prompt
    #[arg(long, value_name = "N", default_value_t = 256)]
    prompt_len: usize,
    /// Tokens of an answer
    #[arg(long, value_name = "N", default_value_t = 128)]
    output_len: usize,
    /// File with both, a request a line, instead of the same for all
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt_len", "output_len"])]
    lengths: Option<PathBuf>,
    /// Tokens that all prompts begin with, part of their length
    #[arg(long, value_name = "N", default_value_t = 0)]
    shared_len: usize,
    /// How requests are spread
    #[arg(long, value_name = "POLICY", default_value = "cache-aware")]
    policy: Policy,
    /// Microseconds of the router for each request
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 0.0)]
    router_us: f64,
    /// How often the router asks replicas how busy they are, in seconds; 0: it always knows
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    load_interval: f64,
    /// What a replica costs in an hour
    #[arg(long, value_name = "PRICE", default_value_t = 1.0)]
    price: f64,
    /// Seconds that are simulated, after a fifth of that to warm up
    #[arg(long, value_name = "SECONDS", default_value_t = 600.0)]
    seconds: f64,
    /// Seed of all random choices
    #[arg(short, long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Write JSON
    #[arg(long)]
    json: bool,
}

/// What is read of a report; docs/bench.md has all of it.
#[derive(Debug, Deserialize)]
struct Report {
    schema: u32,
    config: Config,
    cells: Vec<Cell>,
    costs: Vec<Curve>,
}

#[derive(Debug, Deserialize)]
struct Config {
    settings: Vec<Setting>,
}

#[derive(Debug, Deserialize)]
struct Setting {
    name: String,
    drafters: Vec<String>,
    paths: usize,
    adaptive: bool,
}

#[derive(Debug, Deserialize)]
struct Cell {
    setting: String,
    temperature: f32,
    task: Option<String>,
    speedup: Option<Speedup>,
    block_efficiency: Option<f64>,
    positions: Vec<Place>,
    time_per_token: Option<Split>,
}

#[derive(Debug, Deserialize)]
struct Speedup {
    value: f64,
}

#[derive(Debug, Deserialize)]
struct Place {
    conditional: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct Split {
    target_s: f64,
    draft_s: f64,
    verify_s: f64,
    rest_s: f64,
}

#[derive(Debug, Deserialize)]
struct Curve {
    model: String,
    points: Vec<(usize, f64)>,
}

/// What one kind of drafting does in one fleet.
#[derive(Debug, Serialize)]
struct Row {
    replicas: usize,
    /// `off`, `fixed` or `best`.
    drafting: &'static str,
    tokens_per_second: f64,
    /// Of the same fleet without drafts; nothing where that makes no tokens.
    speedup: Option<f64>,
    /// Requests that began and ended in the time that counts.
    finished: usize,
    /// The median and the 99th percentile of these; nothing where there are none.
    first_token_s: Option<[f64; 2]>,
    token_s: Option<[f64; 2]>,
    request_s: Option<[f64; 2]>,
    busy: f64,
    hit_rate: f64,
    /// Requests that wait at the end: a fleet that keeps up has few.
    waiting: usize,
    price_per_million_tokens: Option<f64>,
}

impl SimulateFlags {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        self.check()?;
        let report = read(&self.report)?;
        let (name, mut pair) = report.pair(self.setting.as_deref(), self.temp)?;
        if let Some(accepted) = &self.accepted {
            pair.accepted.clone_from(accepted);
        }
        let work = self.workload()?;
        let kinds = [
            ("off", Drafting::Off),
            ("fixed", Drafting::Fixed(pair.accepted.len())),
            ("best", Drafting::Best),
        ];
        let mut rows = Vec::new();
        for replicas in &self.replicas {
            let mut plain = 0.0;
            for (drafting, kind) in kinds {
                let fleet = Fleet {
                    replicas: *replicas,
                    slots: self.parallel,
                    policy: self.policy,
                    drafting: kind,
                    router_s: self.router_us / 1e6,
                    load_interval_s: self.load_interval,
                };
                let time = (WARM_UP * self.seconds, self.seconds);
                let outcome = fleet::run(&fleet, &work, &pair, time, self.seed);
                let rate = outcome.tokens as f64 / outcome.seconds;
                plain = if kind == Drafting::Off { rate } else { plain };
                rows.push(self.row(*replicas, drafting, &outcome, plain));
            }
        }
        let text = if self.json {
            serde_json::to_string_pretty(&serde_json::json!({ "setting": name, "fleets": rows }))?
        } else {
            format!("{}\n\n{}", self.heading(&name), table::table(&rows))
        };
        let mut screen = Screen::new(&OutputConfig::notes());
        screen.result(text.trim_end())?;
        if rows.iter().any(|row| row.finished == 0) {
            screen.warn("no request finished in the simulated time; raise --seconds");
        }
        Ok(ExitCode::SUCCESS)
    }

    fn check(&self) -> anyhow::Result<()> {
        let counts = [self.parallel, self.turns, self.prompt_len, self.output_len, self.users];
        if counts.contains(&0) || self.replicas.contains(&0) {
            bail!("a fleet has replicas, slots, users and requests: give 1 or more of each");
        }
        let times = [self.seconds, self.rate.unwrap_or(1.0), self.price];
        if !times.iter().all(|time| time.is_finite() && *time > 0.0) {
            bail!("--seconds, --rate and --price must be more than 0");
        }
        if !self.accepted.iter().flatten().all(|share| (0.0..=1.0).contains(share)) {
            bail!("--accepted has shares from 0 to 1");
        }
        if ![self.think, self.router_us, self.load_interval].iter().all(|time| *time >= 0.0) {
            bail!("--think, --router-us and --load-interval must be 0 or more");
        }
        Ok(())
    }

    /// What is simulated, in a few lines.
    fn heading(&self, setting: &str) -> String {
        let many = |count: usize, what: &str| {
            format!("{count} {what}{}", if count == 1 { "" } else { "s" })
        };
        let load = match self.rate {
            Some(rate) => format!("{rate} conversations begin each second"),
            None => format!("{} at once", many(self.users, "user")),
        };
        let talk = format!(
            "{} a conversation, {} s of reading between them",
            many(self.turns, "request"),
            self.think
        );
        let lengths = match &self.lengths {
            Some(path) => format!("lengths from {}", path.display()),
            None => {
                format!("prompts of {} tokens, answers of {}", self.prompt_len, self.output_len)
            }
        };
        let policy = match self.policy {
            Policy::CacheAware => "cache-aware",
            Policy::RoundRobin => "round-robin",
        };
        format!(
            "Simulated: {} s after {} s of warm-up; {load}\n  {talk}\n  {lengths}\n  {} a replica, \
             {policy} routing\nDrafts: off;\n  fixed, as {setting:?} at temperature {};\n  best, the \
             length that makes the most tokens a second",
            self.seconds,
            WARM_UP * self.seconds,
            many(self.parallel, "slot"),
            self.temp
        )
    }

    fn workload(&self) -> anyhow::Result<Workload> {
        let lengths = match &self.lengths {
            Some(path) => lengths(path)?,
            None => vec![(self.prompt_len, self.output_len)],
        };
        if lengths.iter().any(|(prompt, _)| *prompt < self.shared_len) {
            bail!("--shared-len is longer than a prompt: it is part of each");
        }
        let arrivals = match self.rate {
            Some(rate) => Arrivals::Rate(rate, self.think),
            None => Arrivals::Users(self.users, self.think),
        };
        Ok(Workload { lengths, shared: self.shared_len, turns: self.turns, arrivals })
    }

    fn row(&self, replicas: usize, drafting: &'static str, of: &Outcome, plain: f64) -> Row {
        let rate = of.tokens as f64 / of.seconds;
        Row {
            replicas,
            drafting,
            tokens_per_second: rate,
            speedup: (plain > 0.0).then_some(rate / plain),
            finished: of.whole_s.len(),
            first_token_s: spread(&of.first_s),
            token_s: spread(&of.token_s),
            request_s: spread(&of.whole_s),
            busy: of.busy,
            hit_rate: of.hit_rate,
            waiting: of.waiting,
            price_per_million_tokens: (rate > 0.0)
                .then(|| replicas as f64 * self.price / HOUR_S / rate * MILLION),
        }
    }
}

impl Report {
    /// The name of a setting, and what its passes take and its drafts bring.
    fn pair(&self, name: Option<&str>, temperature: f32) -> anyhow::Result<(String, Pair)> {
        let all = |cell: &&Cell| cell.task.is_none() && cell.temperature == temperature;
        let settings = &self.config.settings;
        let setting = |cell: &Cell| settings.iter().find(|it| it.name == cell.setting);
        let speed = |cell: &Cell| cell.speedup.as_ref().map_or(0.0, |it| it.value);
        // The simulated replica drafts one path of a fixed length.
        let simple = |cell: &Cell| {
            let fits = |it: &Setting| it.drafters.len() == 1 && it.paths == 1 && !it.adaptive;
            setting(cell).is_some_and(fits)
        };
        let usable = |cell: &&Cell| simple(cell) && name.is_none_or(|name| cell.setting == name);
        let cells = self.cells.iter().filter(all).filter(usable);
        let Some(cell) = cells.max_by(|one, other| speed(one).total_cmp(&speed(other))) else {
            let of = |cell: &Cell| format!("{:?} at {}", cell.setting, cell.temperature);
            let has = self.cells.iter().filter(|cell| cell.task.is_none() && simple(cell));
            let has: Vec<String> = has.map(of).collect();
            bail!(
                "the report has no such setting with one path of one drafter and a fixed length: \
                 choose by --setting and --temp among {}, or make one with `forerun bench \
                 --verify block`",
                if has.is_empty() { "none".to_owned() } else { has.join(", ") }
            );
        };
        let target = self.curve("target").context("the report has no cost curve of the target")?;
        let plain = |cell: &&Cell| setting(cell).is_some_and(|it| it.drafters.is_empty());
        let plain = self.cells.iter().filter(all).find(plain);
        let plain = plain.and_then(|cell| cell.time_per_token.as_ref());
        // Curves are measured with empty caches; texts have some.
        let scale = plain.map_or(1.0, |it| it.target_s / target.seconds(1, 1));
        let drafter = setting(cell).and_then(|it| self.curve(&it.drafters[0]));
        let beside = cell.time_per_token.as_ref().map_or(0.0, |it| {
            (it.draft_s + it.verify_s + it.rest_s) * cell.block_efficiency.unwrap_or(1.0)
        });
        let pair = Pair {
            target: scaled(&target, scale),
            drafter: drafter.map(|curve| scaled(&curve, scale)),
            accepted: cell.positions.iter().map_while(|place| place.conditional).collect(),
            beside_s: beside,
        };
        Ok((cell.setting.clone(), pair))
    }

    fn curve(&self, model: &str) -> Option<CostCurve> {
        let curve = self.costs.iter().find(|curve| curve.model == model)?;
        (!curve.points.is_empty()).then(|| CostCurve::new(curve.points.iter().copied()))
    }
}

fn scaled(curve: &CostCurve, factor: f64) -> CostCurve {
    CostCurve::new(curve.points().iter().map(|(tokens, seconds)| (*tokens, seconds * factor)))
}

fn read(path: &Path) -> anyhow::Result<Report> {
    let text = fs::read_to_string(path);
    let text = text.with_context(|| format!("cannot read {}", path.display()))?;
    let report: Report = serde_json::from_str(&text)
        .with_context(|| format!("{} is no report of forerun bench (JSON)", path.display()))?;
    if report.schema != SCHEMA {
        bail!("{} has schema {}; this build reads {SCHEMA}", path.display(), report.schema);
    }
    Ok(report)
}

/// Tokens of prompt and answer, a request a line.
fn lengths(path: &Path) -> anyhow::Result<Vec<(usize, usize)>> {
    let text = fs::read_to_string(path);
    let text = text.with_context(|| format!("cannot read {}", path.display()))?;
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let mut numbers = line.split_whitespace().map(str::parse::<usize>);
        match (numbers.next(), numbers.next(), numbers.next()) {
            (Some(Ok(prompt @ 1..)), Some(Ok(output @ 1..)), None) => found.push((prompt, output)),
            _ => bail!(
                "{}:{}: expected two numbers, tokens of prompt and answer",
                path.display(),
                number + 1
            ),
        }
    }
    if found.is_empty() {
        bail!("{} has no requests", path.display());
    }
    Ok(found)
}

/// The middle, and what one in a hundred exceeds.
fn spread(times: &[f64]) -> Option<[f64; 2]> {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |percent: usize| (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    (!sorted.is_empty()).then(|| [50, 99].map(|percent| sorted[at(percent)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let text = r#"{
            "schema": 1,
            "config": { "settings": [
                { "name": "plain", "drafters": [], "paths": 1, "adaptive": false },
                { "name": "block", "drafters": ["d.gguf"], "paths": 1, "adaptive": false },
                { "name": "pooled", "drafters": ["d.gguf"], "paths": 2, "adaptive": false }
            ] },
            "cells": [
                { "setting": "plain", "temperature": 1.0, "task": null, "speedup": null,
                  "block_efficiency": 1.0, "positions": [],
                  "time_per_token": { "target_s": 0.2, "draft_s": 0, "verify_s": 0.0, "rest_s": 0 } },
                { "setting": "block", "temperature": 1.0, "task": null, "speedup": { "value": 1.2 },
                  "block_efficiency": 2.0, "positions": [{ "conditional": 0.7 }, { "conditional": 0.6 }],
                  "time_per_token": { "target_s": 0.1, "draft_s": 0.001, "verify_s": 0.002, "rest_s": 0.003 } },
                { "setting": "pooled", "temperature": 1.0, "task": null, "speedup": { "value": 1.9 },
                  "block_efficiency": 2.0, "positions": [], "time_per_token": null }
            ],
            "costs": [
                { "model": "target", "points": [[1, 0.1], [64, 1.0]] },
                { "model": "d.gguf", "points": [[1, 0.01]] }
            ]
        }"#;
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn what_was_measured_is_what_rounds_take_and_bring() {
        let (name, pair) = report().pair(None, 1.0).unwrap();
        assert_eq!((name.as_str(), pair.accepted), ("block", vec![0.7, 0.6]));
        assert_eq!(pair.target.seconds(1, 1), 0.2, "as texts had it, not as it was with no text");
        assert_eq!(pair.drafter.unwrap().seconds(1, 1), 0.02);
        assert!((pair.beside_s - 0.012).abs() < 1e-12, "of a round, not of a token");
    }

    #[test]
    fn what_the_model_cannot_draft_is_refused() {
        for (name, temperature) in [(Some("pooled"), 1.0), (None, 0.5), (Some("none"), 1.0)] {
            assert!(report().pair(name, temperature).is_err(), "{name:?} at {temperature}");
        }
    }

    #[test]
    fn spreads_are_those_of_the_sorted_times() {
        let times: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!(spread(&times), Some([100.0, 198.0]));
        assert_eq!(spread(&[3.0]), Some([3.0, 3.0]));
        assert_eq!(spread(&[]), None);
    }
}
