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

use forerun_decode::CostCurve;
use serde::Serialize;

pub use self::fleet::Policy;
use self::fleet::{Arrivals, Fleet, Outcome, Workload};
use self::replica::{Drafting, Pair};
use crate::bench::{Cell, Report, Setting};
use crate::error::{Error, Result};
use crate::observer::Observer;

/// Seconds of an hour, and tokens that prices are given for.
const HOUR_S: f64 = 3600.0;
const MILLION: f64 = 1e6;

/// Time before anything counts, as a share of the time that does.
const WARM_UP: f64 = 0.2;

/// What to simulate.
#[derive(Debug, Clone)]
pub struct SimulateConfig {
    /// Report of a benchmark (JSON) with the passes and the acceptance of one replica.
    pub report: PathBuf,
    /// Setting of the report whose drafts are used; none for its fastest.
    pub setting: Option<String>,
    /// How often a drafted token is accepted where all before it were, position by position, instead
    /// of as in the report.
    pub accepted: Option<Vec<f64>>,
    /// What passes of the target take on another machine, as milliseconds by tokens, instead of as in
    /// the report: what comes out is projected.
    pub target_ms: Option<Vec<(usize, f64)>>,
    /// The same for a pass of the draft model; in proportion to the target's where it is not given.
    pub draft_ms: Option<Vec<(usize, f64)>>,
    /// Temperature of the report that is used.
    pub temperature: f32,
    /// Sizes of fleets.
    pub replicas: Vec<usize>,
    /// Sequences of a replica at once.
    pub parallel: usize,
    /// What is asked of the fleet.
    pub load: LoadConfig,
    /// How requests are spread.
    pub policy: Policy,
    /// Microseconds of the router for each request.
    pub router_us: f64,
    /// How often the router asks replicas how busy they are, in seconds; 0: it always knows.
    pub load_interval_s: f64,
    /// What a replica costs in an hour.
    pub price: f64,
    /// Seconds that are simulated, after a fifth of that to warm up.
    pub seconds: f64,
    /// Of all random choices.
    pub seed: u64,
    /// Whether the result is JSON.
    pub json: bool,
}

/// What is asked of a fleet.
#[derive(Debug, Clone)]
pub struct LoadConfig {
    /// Users at once, each asking again when it has its answer.
    pub users: usize,
    /// Instead of a fixed number of users, conversations that begin each second.
    pub rate: Option<f64>,
    /// Seconds a user reads before asking on, on average.
    pub think_s: f64,
    /// Requests of a conversation.
    pub turns: usize,
    /// Tokens of a prompt.
    pub prompt_len: usize,
    /// Tokens of an answer.
    pub output_len: usize,
    /// File with both, a request a line, instead of the same for all.
    pub lengths: Option<PathBuf>,
    /// Tokens that all prompts begin with, part of their length.
    pub shared_len: usize,
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

/// Simulates, and returns whether every fleet finished a request.
///
/// # Errors
/// If the report cannot be read or has no such setting, or a figure means nothing.
pub fn run(config: &SimulateConfig, observer: &dyn Observer) -> Result<bool> {
    config.check()?;
    let report = Report::read(&config.report)?;
    let (name, mut pair) = pair(&report, config.setting.as_deref(), config.temperature)?;
    if let Some(accepted) = &config.accepted {
        pair.accepted.clone_from(accepted);
    }
    if let Some(points) = &config.target_ms {
        project(&mut pair, points, config.draft_ms.as_deref());
    }
    let rows = config.rows(&config.load.workload()?, &pair);
    let text = if config.json {
        let projected = config.target_ms.is_some();
        let about = serde_json::json!({ "setting": name, "projected": projected, "fleets": rows });
        serde_json::to_string_pretty(&about)?
    } else {
        format!("{}\n\n{}", config.heading(&name), table::table(&rows))
    };
    observer.result(text.trim_end()).map_err(Error::Output)?;
    Ok(rows.iter().all(|row| row.finished > 0))
}

impl SimulateConfig {
    /// Every kind of drafting in every size of fleet.
    fn rows(&self, work: &Workload, pair: &Pair) -> Vec<Row> {
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
                    load_interval_s: self.load_interval_s,
                };
                let time = (WARM_UP * self.seconds, self.seconds);
                let outcome = fleet::run(&fleet, work, pair, time, self.seed);
                let rate = outcome.tokens as f64 / outcome.seconds;
                plain = if kind == Drafting::Off { rate } else { plain };
                rows.push(self.row(*replicas, drafting, &outcome, plain));
            }
        }
        rows
    }

    fn check(&self) -> Result<()> {
        let load = &self.load;
        let counts = [self.parallel, load.turns, load.prompt_len, load.output_len, load.users];
        if counts.contains(&0) || self.replicas.contains(&0) {
            return Err(Error::refused(
                "a fleet has replicas, slots, users and requests: give 1 or more of each",
            ));
        }
        let times = [self.seconds, load.rate.unwrap_or(1.0), self.price];
        if !times.iter().all(|time| time.is_finite() && *time > 0.0) {
            return Err(Error::refused("--seconds, --rate and --price must be more than 0"));
        }
        if !self.accepted.iter().flatten().all(|share| (0.0..=1.0).contains(share)) {
            return Err(Error::refused("--accepted has shares from 0 to 1"));
        }
        for (flag, points) in [("--target-ms", &self.target_ms), ("--draft-ms", &self.draft_ms)] {
            let Some(points) = points else { continue };
            let sound = |(tokens, ms): &(usize, f64)| *tokens > 0 && ms.is_finite() && *ms > 0.0;
            if !points.iter().all(sound) || !points.iter().any(|(tokens, _)| *tokens == 1) {
                return Err(Error::refused(format!(
                    "{flag} has milliseconds above 0 by tokens, one token among them, \
                     such as 1=20,16=20.5,64=24"
                )));
            }
        }
        if ![load.think_s, self.router_us, self.load_interval_s].iter().all(|time| *time >= 0.0) {
            return Err(Error::refused(
                "--think, --router-us and --load-interval must be 0 or more",
            ));
        }
        Ok(())
    }

    /// What is simulated, in a few lines.
    fn heading(&self, setting: &str) -> String {
        let many = |count: usize, what: &str| {
            format!("{count} {what}{}", if count == 1 { "" } else { "s" })
        };
        let load = match self.load.rate {
            Some(rate) => format!("{rate} conversations begin each second"),
            None => format!("{} at once", many(self.load.users, "user")),
        };
        let talk = format!(
            "{} a conversation, {} s of reading between them",
            many(self.load.turns, "request"),
            self.load.think_s
        );
        let lengths = match &self.load.lengths {
            Some(path) => format!("lengths from {}", path.display()),
            None => {
                let LoadConfig { prompt_len, output_len, .. } = self.load;
                format!("prompts of {prompt_len} tokens, answers of {output_len}")
            }
        };
        let policy = self.policy.name();
        let projected = match &self.target_ms {
            Some(_) => "Projected, not measured: passes take what --target-ms says.\n",
            None => "",
        };
        format!(
            "{projected}Simulated: {} s after {} s of warm-up; {load}\n  {talk}\n  {lengths}\n  {} a replica, \
             {policy} routing\nDrafts: off;\n  fixed, as {setting:?} at temperature {};\n  best, the \
             length that makes the most tokens a second",
            self.seconds,
            WARM_UP * self.seconds,
            many(self.parallel, "slot"),
            self.temperature
        )
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

impl LoadConfig {
    fn workload(&self) -> Result<Workload> {
        let lengths = match &self.lengths {
            Some(path) => lengths(path)?,
            None => vec![(self.prompt_len, self.output_len)],
        };
        if lengths.iter().any(|(prompt, _)| *prompt < self.shared_len) {
            return Err(Error::refused("--shared-len is longer than a prompt: it is part of each"));
        }
        let arrivals = match self.rate {
            Some(rate) => Arrivals::Rate(rate, self.think_s),
            None => Arrivals::Users(self.users, self.think_s),
        };
        Ok(Workload { lengths, shared: self.shared_len, turns: self.turns, arrivals })
    }
}

/// The name of a setting, and what its passes take and its drafts bring.
fn pair(report: &Report, name: Option<&str>, temperature: f32) -> Result<(String, Pair)> {
    let all = |cell: &&Cell| cell.task.is_none() && cell.temperature == temperature;
    let settings = &report.config.settings;
    let setting = |cell: &Cell| settings.iter().find(|it| it.name == cell.setting);
    let speed = |cell: &Cell| cell.speedup.as_ref().map_or(0.0, |it| it.value);
    // The simulated replica drafts one path of a fixed length.
    let simple = |cell: &Cell| {
        let fits = |it: &Setting| it.drafters.len() == 1 && it.paths == 1 && !it.adaptive;
        setting(cell).is_some_and(fits)
    };
    let usable = |cell: &&Cell| simple(cell) && name.is_none_or(|name| cell.setting == name);
    let cells = report.cells.iter().filter(all).filter(usable);
    let Some(cell) = cells.max_by(|one, other| speed(one).total_cmp(&speed(other))) else {
        let of = |cell: &Cell| format!("{:?} at {}", cell.setting, cell.temperature);
        let has = report.cells.iter().filter(|cell| cell.task.is_none() && simple(cell));
        let has: Vec<String> = has.map(of).collect();
        return Err(Error::refused(format!(
            "the report has no such setting with one path of one drafter and a fixed length: \
             choose by --setting and --temp among {}, or make one with `forerun bench \
             --verify block`",
            if has.is_empty() { "none".to_owned() } else { has.join(", ") }
        )));
    };
    let target = curve(report, "target");
    let target =
        target.ok_or_else(|| Error::refused("the report has no cost curve of the target"))?;
    let plain = |cell: &&Cell| setting(cell).is_some_and(|it| it.drafters.is_empty());
    let plain = report.cells.iter().filter(all).find(plain);
    let plain = plain.and_then(|cell| cell.time_per_token.as_ref());
    // Curves are measured with empty caches; sequences have some.
    let scale = plain.map_or(1.0, |it| it.target_s / target.seconds(1, 1));
    let drafter = setting(cell).and_then(|it| curve(report, &it.drafters[0]));
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

/// Gives the pair the passes of another machine. What drafts bring stays, and so does what a round
/// takes beside its passes.
fn project(pair: &mut Pair, target_ms: &[(usize, f64)], draft_ms: Option<&[(usize, f64)]>) {
    let curve = |points: &[(usize, f64)]| {
        CostCurve::new(points.iter().map(|(tokens, ms)| (*tokens, ms / 1e3)))
    };
    let target = curve(target_ms);
    let faster = target.seconds(1, 1) / pair.target.seconds(1, 1);
    pair.drafter = match (pair.drafter.take(), draft_ms) {
        (Some(_), Some(points)) => Some(curve(points)),
        (drafter, _) => drafter.map(|drafter| scaled(&drafter, faster)),
    };
    pair.target = target;
}

fn curve(report: &Report, model: &str) -> Option<CostCurve> {
    let curve = report.costs.iter().find(|curve| curve.model == model)?;
    (!curve.points.is_empty()).then(|| CostCurve::new(curve.points.iter().copied()))
}

fn scaled(curve: &CostCurve, factor: f64) -> CostCurve {
    CostCurve::new(curve.points().iter().map(|(tokens, seconds)| (*tokens, seconds * factor)))
}

/// Tokens of prompt and answer, a request a line.
fn lengths(path: &Path) -> Result<Vec<(usize, usize)>> {
    let text = fs::read_to_string(path).map_err(Error::reading(path))?;
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let mut numbers = line.split_whitespace().map(str::parse::<usize>);
        match (numbers.next(), numbers.next(), numbers.next()) {
            (Some(Ok(prompt @ 1..)), Some(Ok(output @ 1..)), None) => found.push((prompt, output)),
            _ => {
                return Err(Error::refused(format!(
                    "{}:{}: expected two numbers, tokens of prompt and answer",
                    path.display(),
                    number + 1
                )));
            }
        }
    }
    if found.is_empty() {
        return Err(Error::refused(format!("{} has no requests", path.display())));
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
    use crate::bench::{Curve, Interval, Place, Split, sample};

    /// As a benchmark of plain decoding and of one draft model under two rules leaves it.
    fn report() -> Report {
        let mut report = sample::report();
        let split = |[target_s, draft_s, verify_s, rest_s]: [f64; 4]| {
            Some(Split { draft_pass_s: 0.0, draft_s, target_s, verify_s, rest_s })
        };
        let cell = |setting: usize, speedup: Option<f64>, time: Option<Split>| Cell {
            setting: ["plain", "block", "pooled"][setting].to_owned(),
            speedup: speedup.map(|value| Interval { value, low: None, high: None }),
            block_efficiency: Some(if setting == 0 { 1.0 } else { 2.0 }),
            positions: Vec::new(),
            time_per_token: time,
            ..report.overall(1.0)[setting].clone()
        };
        let place = |conditional: f64| Place { acceptance: None, conditional: Some(conditional) };
        let block = Cell {
            positions: [0.7, 0.6].map(place).to_vec(),
            ..cell(1, Some(1.2), split([0.1, 0.001, 0.002, 0.003]))
        };
        let plain = cell(0, None, split([0.2, 0.0, 0.0, 0.0]));
        report.cells = vec![plain, block, cell(2, Some(1.9), None)];
        for (setting, name) in report.config.settings.iter_mut().zip(["plain", "block", "pooled"]) {
            setting.name = name.to_owned();
        }
        let curve = |model: &str, points: &[(usize, f64)]| Curve {
            model: model.to_owned(),
            points: points.to_vec(),
        };
        let target = curve("target", &[(1, 0.1), (64, 1.0)]);
        report.costs = vec![target, curve("small", &[(1, 0.01)])];
        report
    }

    #[test]
    fn what_was_measured_is_what_rounds_take_and_bring() {
        let (name, pair) = pair(&report(), None, 1.0).unwrap();
        assert_eq!((name.as_str(), pair.accepted), ("block", vec![0.7, 0.6]));
        assert_eq!(pair.target.seconds(1, 1), 0.2, "as outputs had it, not as it was with no text");
        assert_eq!(pair.drafter.unwrap().seconds(1, 1), 0.02);
        assert!((pair.beside_s - 0.012).abs() < 1e-12, "of a round, not of a token");
    }

    #[test]
    fn another_machine_has_its_own_passes_and_the_same_acceptance() {
        let (_, measured) = pair(&report(), None, 1.0).unwrap();
        let flat = [(1, 20.0), (64, 22.0)];
        let mut projected = measured.clone();
        project(&mut projected, &flat, None);
        assert_eq!(projected.accepted, measured.accepted);
        assert_eq!(projected.beside_s, measured.beside_s);
        assert_eq!(projected.target.seconds(64, 1), 0.022);
        let drafter = projected.drafter.as_ref().unwrap().seconds(1, 1);
        assert!((drafter - 0.002).abs() < 1e-12, "a tenth of the target's pass, as measured");
        project(&mut projected, &flat, Some(&[(1, 3.0)]));
        assert_eq!(projected.drafter.unwrap().seconds(1, 1), 0.003);
    }

    #[test]
    fn what_the_model_cannot_draft_is_refused() {
        for (name, temperature) in [(Some("pooled"), 1.0), (None, 0.5), (Some("none"), 1.0)] {
            assert!(pair(&report(), name, temperature).is_err(), "{name:?} at {temperature}");
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
