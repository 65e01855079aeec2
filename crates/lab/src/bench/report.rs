//! What a run came to: the figures of every setting, temperature and task, made from what was
//! measured and nothing else.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::interval::{self, Interval};
use super::metrics::{Sums, quantile, ratio};
use super::plan::Ended;
use super::record::{Config, Measure, SCHEMA};
use crate::error::{Error, Result};
use crate::machine::ModelFile;

/// The whole of it. `docs/bench.md` lists every field.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Of all objects.
    pub(crate) schema: u32,
    /// When it was made.
    pub(crate) date: String,
    /// Why it ended: `precision`, `repeats`, `time-limit` or `interrupted`.
    pub(crate) ended: String,
    /// Repeats that all settings have.
    pub(crate) repeats: usize,
    /// Prompts that were decoded.
    pub(crate) prompts: usize,
    /// What was measured.
    pub(crate) config: Config,
    /// For each setting and temperature, all tasks together and each alone.
    pub(crate) cells: Vec<Cell>,
    /// What passes cost.
    pub(crate) costs: Vec<Curve>,
    /// What reading prompts took, where they were not cached.
    pub(crate) prompt_reading: Vec<Reading>,
    /// All that the figures are made of.
    pub(crate) measures: Vec<Measure>,
}

/// A setting at a temperature.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cell {
    /// The setting's name.
    pub(crate) setting: String,
    /// Its temperature.
    pub(crate) temperature: f32,
    /// The task; null for all together.
    pub(crate) task: Option<String>,
    /// Outputs it has.
    pub(crate) texts: u64,
    /// Tokens a second.
    pub(crate) tokens_per_second: Option<f64>,
    /// Over plain decoding of the same prompts in the same repeats.
    pub(crate) speedup: Option<Interval>,
    /// Committed tokens per round, which is one pass of the target.
    pub(crate) block_efficiency: Option<f64>,
    /// Accepted drafted tokens per round.
    pub(crate) accepted_length: Option<f64>,
    /// Spec-Bench's count, with the target's own token.
    pub(crate) accepted_tokens: Option<f64>,
    /// Accepted tokens per drafted token.
    pub(crate) acceptance_rate: Option<f64>,
    /// Memory-bound speedup.
    pub(crate) memory_bound_speedup: Option<f64>,
    /// By place in the draft.
    pub(crate) positions: Vec<Place>,
    /// Where the time of a token went.
    pub(crate) time_per_token: Option<Split>,
    /// Outputs that differ from plain decoding's, at temperature 0.
    pub(crate) differing: Option<u64>,
    /// What users of a server see.
    pub(crate) users: Option<Latency>,
}

/// Acceptance at a place in the draft.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Place {
    /// Of rounds that drafted it.
    pub(crate) acceptance: Option<f64>,
    /// Of rounds that accepted all before it too.
    pub(crate) conditional: Option<f64>,
}

/// Seconds for each committed token.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Split {
    /// Passes of draft models.
    pub(crate) draft_pass_s: f64,
    /// The rest of drafting.
    pub(crate) draft_s: f64,
    /// The target's passes.
    pub(crate) target_s: f64,
    /// Shaping rows and judging.
    pub(crate) verify_s: f64,
    /// All else.
    pub(crate) rest_s: f64,
}

impl Split {
    fn new(sums: &Sums) -> Option<Self> {
        let part = |seconds| ratio(seconds, sums.tokens as f64);
        let [draft_pass_s, draft_s, target_s, verify_s] = sums.parts.map(part);
        Some(Self {
            draft_pass_s: draft_pass_s?,
            draft_s: draft_s?,
            target_s: target_s?,
            verify_s: verify_s?,
            rest_s: part(sums.rest())?,
        })
    }

    /// In the order they are shown: target, draft passes, drafting, judging, rest.
    pub(super) fn parts(&self) -> [f64; 5] {
        [self.target_s, self.draft_pass_s, self.draft_s, self.verify_s, self.rest_s]
    }
}

/// What users of a server see.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Latency {
    /// Users at once.
    pub(crate) users: usize,
    /// Tokens a second of all together, from their first request to the last token.
    pub(crate) tokens_per_second: Option<f64>,
    /// Seconds to the first token.
    pub(crate) first_token_s: Spread,
    /// Seconds for each further token, of a request.
    pub(crate) token_s: Spread,
    /// Seconds between pieces of text.
    pub(crate) gap_s: Spread,
}

/// The middle and the tail of many values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    /// Half are below.
    pub(crate) p50: Option<f64>,
    /// 99 % are below.
    pub(crate) p99: Option<f64>,
}

impl Spread {
    fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        Self { p50: quantile(&values, 0.5), p99: quantile(&values, 0.99) }
    }
}

impl Latency {
    fn new(users: usize, texts: &[&Measure]) -> Option<Self> {
        let seen: Vec<_> = texts.iter().filter_map(|it| Some((*it, it.user.as_ref()?))).collect();
        // Each repeat's users began together.
        let repeats = seen.iter().map(|(it, _)| it.repeat).max()? + 1;
        let spans = (0..repeats).map(|repeat| {
            let ends = seen.iter().filter(|(it, _)| it.repeat == repeat).map(|(_, it)| it.ended_s);
            ends.fold(0.0, f64::max)
        });
        let tokens: u64 = texts.iter().map(|it| it.tokens + 1).sum();
        let each = texts.iter().filter_map(|it| ratio(it.seconds, it.tokens as f64));
        Some(Self {
            users,
            tokens_per_second: ratio(tokens as f64, spans.sum()),
            first_token_s: Spread::of(texts.iter().map(|it| it.first_token_s)),
            token_s: Spread::of(each),
            gap_s: Spread::of(seen.iter().flat_map(|(_, it)| it.gaps_s.iter().copied())),
        })
    }
}

/// Seconds of a model's pass by its tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Curve {
    /// Whose.
    pub(crate) model: String,
    /// Tokens and seconds.
    pub(crate) points: Vec<(usize, f64)>,
}

/// What reading prompts took.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Reading {
    /// Who read.
    pub(crate) model: String,
    /// Tokens that were read.
    pub(crate) tokens: u64,
    /// Seconds that took; the target's with the first token of the text.
    pub(crate) seconds: f64,
    /// The one by the other.
    pub(crate) tokens_per_second: Option<f64>,
}

impl Reading {
    fn new(model: &str, texts: impl Iterator<Item = (u64, f64)>) -> Self {
        let (tokens, seconds) = texts.fold((0, 0.0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
        let tokens_per_second = ratio(tokens as f64, seconds);
        Self { model: model.to_owned(), tokens, seconds, tokens_per_second }
    }

    /// Of the target or a server, and of each draft model: outputs for which most of the prompt had
    /// to be read.
    fn of(config: &Config, measures: &[Measure]) -> Vec<Self> {
        let target = measures.iter().filter(|it| 2 * it.prompt_read > it.prompt_tokens);
        let target = Self::new("target", target.map(|it| (it.prompt_read, it.first_token_s)));
        let drafter = |file: &ModelFile| {
            let name = stem(&file.name);
            let own = |it: &&Measure| {
                let drafters = &config.settings[it.setting].drafters;
                2 * it.draft_read > it.prompt_tokens && drafters.contains(&name)
            };
            let read = measures.iter().filter(own).map(|it| (it.draft_read, it.draft_read_s));
            Self::new(&name, read)
        };
        let drafters = config.drafters.iter().map(drafter);
        std::iter::once(target).chain(drafters).filter(|it| it.tokens > 0).collect()
    }
}

/// The settings that are compared with plain decoding, each with that.
pub(super) fn compared(config: &Config) -> impl Iterator<Item = (usize, usize)> {
    let settings = config.settings.iter().enumerate();
    settings.filter_map(|(index, setting)| Some((index, setting.plain?)))
}

impl Report {
    /// The report in a file.
    ///
    /// # Errors
    /// Where it cannot be read, or is of another schema.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let malformed = |what: &str| {
            let what = format!("{} is no report of forerun bench{what}", path.display());
            |source| Error::Malformed { what, source }
        };
        let text = fs::read_to_string(path).map_err(Error::reading(path))?;
        let value: Value = serde_json::from_str(&text).map_err(malformed(" (JSON)"))?;
        let schema = value["schema"].as_u64();
        if schema != Some(SCHEMA.into()) {
            let said = schema.map_or("none".to_owned(), |schema| schema.to_string());
            return Err(Error::refused(format!(
                "{} has schema {said}; this build reads schema {SCHEMA}",
                path.display()
            )));
        }
        serde_json::from_value(value).map_err(malformed(""))
    }

    /// Of what was measured.
    pub(super) fn new(
        config: Config,
        measures: Vec<Measure>,
        costs: Vec<Curve>,
        (date, ended): (String, Ended),
    ) -> Self {
        let mut tasks: Vec<&str> = Vec::new();
        for measure in &measures {
            let task = config.prompts[measure.prompt].task.as_str();
            if !tasks.contains(&task) {
                tasks.push(task);
            }
        }
        let mut cells = Vec::new();
        for temperature in &config.temperatures {
            for index in 0..config.settings.len() {
                for task in std::iter::once(None).chain(tasks.iter().copied().map(Some)) {
                    let of = |it: &&Measure| {
                        let own = config.prompts[it.prompt].task.as_str();
                        it.temperature == *temperature && task.is_none_or(|task| task == own)
                    };
                    let texts: Vec<&Measure> = measures.iter().filter(of).collect();
                    cells.push(cell(&config, &texts, index, *temperature, task));
                }
            }
        }
        cells.retain(|cell| cell.texts > 0);
        let prompts = measures.iter().map(|it| it.prompt + 1).max().unwrap_or(0);
        Self {
            schema: SCHEMA,
            date,
            ended: ended.name().to_owned(),
            repeats: whole_repeats(&config, &measures),
            prompts,
            cells,
            costs,
            prompt_reading: Reading::of(&config, &measures),
            config,
            measures,
        }
    }

    /// The figures over all tasks, in the order of settings, of one temperature.
    pub(crate) fn overall(&self, temperature: f32) -> Vec<&Cell> {
        let own = |cell: &&Cell| cell.temperature == temperature && cell.task.is_none();
        self.cells.iter().filter(own).collect()
    }

    /// The setting of a cell.
    pub(super) fn setting(&self, cell: &Cell) -> &super::record::Setting {
        let named = self.config.settings.iter().find(|setting| setting.name == cell.setting);
        named.expect("cells are of the settings")
    }

    /// The tasks that were measured, in their order.
    pub(super) fn tasks(&self) -> Vec<&str> {
        let mut tasks: Vec<&str> = Vec::new();
        for task in self.cells.iter().filter_map(|cell| cell.task.as_deref()) {
            if !tasks.contains(&task) {
                tasks.push(task);
            }
        }
        tasks
    }
}

/// Repeats in which every setting wrote a text for as many prompts as in the first.
fn whole_repeats(config: &Config, measures: &[Measure]) -> usize {
    let texts = |repeat| measures.iter().filter(|it| it.repeat == repeat).count();
    let repeats = measures.iter().map(|it| it.repeat + 1).max().unwrap_or(0);
    let first = texts(0);
    let even = first.is_multiple_of(config.settings.len() * config.temperatures.len());
    (0..repeats).take_while(|repeat| even && first > 0 && texts(*repeat) == first).count()
}

fn cell(
    config: &Config,
    texts: &[&Measure],
    index: usize,
    temperature: f32,
    task: Option<&str>,
) -> Cell {
    let setting = &config.settings[index];
    let own: Vec<&Measure> = texts.iter().copied().filter(|it| it.setting == index).collect();
    let sums = Sums::of(own.iter().copied());
    let speedup = setting
        .plain
        .and_then(|plain| interval::speedup(&interval::pairs(texts.iter().copied(), index, plain)));
    let place = |it: &super::record::PositionRecord| Place {
        acceptance: it.acceptance(),
        conditional: it.conditional(),
    };
    Cell {
        setting: setting.name.clone(),
        temperature,
        task: task.map(str::to_owned),
        texts: sums.texts,
        tokens_per_second: sums.tokens_per_second(),
        speedup,
        block_efficiency: sums.block_efficiency(),
        accepted_length: sums.accepted_length(),
        accepted_tokens: sums.accepted_tokens(),
        acceptance_rate: sums.acceptance_rate(),
        memory_bound_speedup: config.size_of(index).and_then(|it| sums.memory_bound_speedup(it)),
        positions: sums.positions.iter().map(place).collect(),
        time_per_token: config.target.as_ref().and_then(|_| Split::new(&sums)),
        differing: differing(setting.plain, &own, texts).filter(|_| temperature == 0.0),
        users: Latency::new(setting.users, &own),
    }
}

impl Config {
    /// The size of a setting's draft model in sizes of the target: nothing is read to look tokens
    /// up. Unknown of a server's models.
    pub(super) fn size_of(&self, setting: usize) -> Option<f64> {
        let target = self.target.as_ref()?.bytes as f64;
        let drafts = |name: &String| {
            let file = self.drafters.iter().find(|file| stem(&file.name) == *name);
            file.map_or(0.0, |file| file.bytes as f64)
        };
        let bytes: f64 = self.settings[setting].drafters.iter().map(drafts).sum();
        ratio(bytes, target)
    }
}

/// A model file's name without its ending, which is what settings call it.
pub fn stem(name: &str) -> String {
    name.strip_suffix(".gguf").unwrap_or(name).to_owned()
}

/// Outputs that are not what plain decoding wrote for the same prompt in the same repeat.
fn differing(plain: Option<usize>, own: &[&Measure], texts: &[&Measure]) -> Option<u64> {
    let plain = plain?;
    let mut count = 0;
    for measure in own {
        let same = |it: &&&Measure| {
            (it.setting, it.repeat, it.prompt) == (plain, measure.repeat, measure.prompt)
        };
        let other = texts.iter().find(same);
        let both = (measure.text.as_ref(), other.and_then(|it| it.text.as_ref()));
        match both {
            (None, _) => return None,
            (Some(own), Some(other)) if own != other => count += 1,
            _ => {}
        }
    }
    Some(count)
}

/// A small run, for tests.
#[cfg(test)]
pub(crate) mod sample {
    use super::super::plan::{Ended, PLAIN};
    use super::super::record::*;
    use super::{Curve, Report};
    use crate::machine::{Build, EngineRecord, Machine, ModelFile};

    fn file(name: &str, bytes: u64) -> ModelFile {
        ModelFile { name: name.to_owned(), bytes, sha256: "00".repeat(32) }
    }

    fn prompt(id: &str, task: &str) -> PromptRecord {
        PromptRecord { id: id.to_owned(), task: task.to_owned(), sha256: "11".repeat(32) }
    }

    /// What a run of these came to.
    pub(crate) fn report() -> Report {
        let config = config();
        let measures = measures(&config);
        let costs = vec![Curve { model: "target".to_owned(), points: vec![(1, 0.1), (4, 0.2)] }];
        Report::new(config, measures, costs, ("2026-01-02".to_owned(), Ended::Repeats))
    }

    /// Plain decoding and a draft model with two rules, on three prompts of two tasks.
    pub(in super::super) fn config() -> Config {
        let drafted = |rule: &str, paths: usize| Setting {
            name: format!("small, {rule}, {paths}x4"),
            drafters: vec!["small".to_owned()],
            rule: Some(rule.to_owned()),
            paths,
            length: 4,
            adaptive: false,
            users: 1,
            plain: Some(0),
        };
        Config {
            schema: SCHEMA,
            quick: false,
            target: Some(file("large.gguf", 1000)),
            drafters: vec![file("small.gguf", 100)],
            engine: Some(EngineRecord {
                context_len: 512,
                threads: 2,
                threads_batch: 2,
                batch_len: 2048,
                pass_len: 512,
                paths: 2,
                cache_keys: Some("f16".to_owned()),
                cache_values: None,
                flash_attention: "on".to_owned(),
                gpu_layers: "all".to_owned(),
                load_mode: "map".to_owned(),
            }),
            server: None,
            text_len: 64,
            temperatures: vec![0.0, 1.0],
            top_k: Some(0),
            top_p: Some(1.0),
            min_p: Some(0.0),
            seed: 1,
            prompts_per_task: None,
            prompts: vec![prompt("1", "qa"), prompt("2", "chat"), prompt("3", "qa")],
            settings: vec![
                Setting::plain(PLAIN.to_owned(), 1),
                drafted("block", 1),
                drafted("pooled", 2),
            ],
            left_out: vec![LeftOut { what: "a <b>".to_owned(), reason: "because".to_owned() }],
            machine: Machine {
                processor: Some("Some CPU".to_owned()),
                threads: 2,
                memory_bytes: Some(1 << 34),
                system: "linux".to_owned(),
                architecture: "x86_64".to_owned(),
            },
            build: Build {
                version: "0.1.0".to_owned(),
                commit: None,
                profile: "release".to_owned(),
                llama: "llama".to_owned(),
                processor_features: "AVX2 = 1".to_owned(),
            },
            stop: Stop { repeats: 2, precision: 0.05, time_limit_s: 7200.0 },
        }
    }

    /// Two repeats of it: the first rule doubles the speed, the second one makes it half as fast.
    pub(in super::super) fn measures(config: &Config) -> Vec<Measure> {
        let mut all = Vec::new();
        for repeat in 0..2 {
            for prompt in 0..config.prompts.len() {
                for temperature in &config.temperatures {
                    for setting in 0..config.settings.len() {
                        let about = Measure { repeat, prompt, setting, ..Measure::default() };
                        all.push(Measure { temperature: *temperature, ..text(about) });
                    }
                }
            }
        }
        all
    }

    fn text(about: Measure) -> Measure {
        let drafted = about.setting > 0;
        let seconds = [6.0, 3.0, 12.0][about.setting] * (1.0 + 0.01 * about.prompt as f64);
        let position = PositionRecord { drafted: 21, reached: 21, accepted: 14 };
        Measure {
            tokens: 63,
            seconds,
            rounds: if drafted { 21 } else { 63 },
            drafted: if drafted { 84 } else { 0 },
            accepted: if drafted { 42 } else { 0 },
            draft_passes: if drafted { 84 } else { 0 },
            positions: if drafted { vec![position; 4] } else { Vec::new() },
            draft_pass_s: if drafted { seconds / 4.0 } else { 0.0 },
            draft_s: 0.0,
            target_s: seconds / 2.0,
            verify_s: seconds / 8.0,
            prompt_tokens: 50,
            prompt_read: if drafted { 1 } else { 50 },
            first_token_s: 0.5,
            draft_read: if drafted { 50 } else { 0 },
            draft_read_s: if drafted { 0.25 } else { 0.0 },
            text: Some(format!("{}{}", about.prompt, about.setting / 2)),
            ..about
        }
    }

    /// The same of a server.
    pub(in super::super) fn server() -> (Config, Vec<Measure>) {
        let record = ServerRecord {
            url: "http://localhost:8080".to_owned(),
            plain_url: None,
            model: "large".to_owned(),
            fingerprint: Some("forerun-0.1.0".to_owned()),
            switchable: true,
            fixed_len: true,
        };
        let plain = Setting::plain("plain, 4 users".to_owned(), 4);
        let speculating = Setting {
            name: "speculation, 4 users".to_owned(),
            drafters: vec!["server".to_owned()],
            plain: Some(0),
            ..plain.clone()
        };
        let settings = vec![plain, speculating];
        let (target, engine, server) = (None, None, Some(record));
        let config = Config { target, engine, server, settings, drafters: Vec::new(), ..config() };
        let user = |it: Measure| {
            let times = UserTimes { sent_s: 0.0, ended_s: 8.0, gaps_s: vec![0.25, 0.5] };
            Measure { user: Some(times), text: None, positions: Vec::new(), ..it }
        };
        let measures = measures(&config).into_iter().map(user).collect();
        (config, measures)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    use sample::report;

    fn server() -> Report {
        let (config, measures) = sample::server();
        Report::new(config, measures, Vec::new(), ("2026-01-02".to_owned(), Ended::Repeats))
    }

    #[test]
    fn every_setting_temperature_and_task_has_a_cell() {
        let report = report();
        assert_eq!(report.cells.len(), 3 * 2 * (1 + 2));
        assert_eq!((report.repeats, report.prompts), (2, 3));
        assert_eq!(report.tasks(), ["qa", "chat"]);
        let overall = report.overall(1.0);
        assert_eq!(overall.len(), 3);
        assert_eq!(overall[0].speedup, None);
        let doubled = overall[1].speedup.unwrap();
        assert!((doubled.value - 2.0).abs() < 1e-12 && doubled.reach() < 1e-9, "{doubled:?}");
        assert!((overall[2].speedup.unwrap().value - 0.5).abs() < 1e-12);
    }

    #[test]
    fn a_cell_s_figures_are_those_of_its_texts() {
        let report = report();
        let cell = report.overall(0.0)[1];
        assert_eq!((cell.block_efficiency, cell.accepted_length), (Some(3.0), Some(2.0)));
        assert_eq!(cell.acceptance_rate, Some(0.5));
        // Four passes a round of a tenth of the size.
        assert_eq!(cell.memory_bound_speedup, Some(3.0 / 1.4));
        let split = cell.time_per_token.unwrap();
        let sum: f64 = split.parts().iter().sum();
        assert!((sum * cell.tokens_per_second.unwrap() - 1.0).abs() < 1e-9);
        assert_eq!(cell.differing, Some(0));
        let other = report.overall(0.0)[2];
        assert_eq!(other.differing, Some(6), "both repeats of three prompts");
        assert_eq!(report.overall(1.0)[2].differing, None);
        let [target, small] = report.prompt_reading.as_slice() else {
            panic!("{:?}", report.prompt_reading)
        };
        assert_eq!((target.tokens, target.tokens_per_second), (50 * 12, Some(100.0)));
        assert_eq!((small.tokens, small.tokens_per_second), (50 * 24, Some(200.0)));
    }

    #[test]
    fn users_see_first_tokens_and_gaps() {
        let report = server();
        let cell = report.overall(0.0)[1];
        let users = cell.users.unwrap();
        assert_eq!((users.users, users.gap_s.p50), (4, Some(0.375)));
        assert_eq!(users.first_token_s.p99, Some(0.5));
        // Six outputs of 64 tokens in two times eight seconds.
        assert_eq!(users.tokens_per_second, Some(24.0));
        assert_eq!(cell.memory_bound_speedup, None);
        assert!((cell.speedup.unwrap().value - 2.0).abs() < 1e-12);
    }

    #[test]
    fn a_broken_off_repeat_is_not_counted_but_used() {
        let config = sample::config();
        let mut measures = sample::measures(&config);
        measures.truncate(3 * 2 * 3 + 5);
        let about = ("2026-01-02".to_owned(), Ended::Interrupted);
        let report = Report::new(config, measures, Vec::new(), about);
        assert_eq!((report.repeats, report.ended.as_str()), (1, "interrupted"));
        assert_eq!(report.overall(0.0)[1].texts, 4);
    }

    /// Every field of an object and of those in it, lists by their elements.
    fn fields(path: &str, value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(object) => {
                for (key, value) in object {
                    let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                    found.insert(path.clone());
                    fields(&path, value, found);
                }
            }
            Value::Array(values) => {
                values.iter().for_each(|value| fields(&format!("{path}[]"), value, found));
            }
            _ => {}
        }
    }

    #[test]
    fn the_documented_fields_are_those_of_a_report() {
        let mut found = BTreeSet::new();
        for report in [report(), server()] {
            fields("", &serde_json::to_value(report).unwrap(), &mut found);
        }
        let text = include_str!("../../../../docs/bench.md");
        let schema = text.split("## The JSON file").nth(1).unwrap();
        let schema = schema.split("\n## ").next().unwrap();
        let rows = schema.lines().filter_map(|line| line.strip_prefix("| `"));
        let documented: BTreeSet<String> =
            rows.map(|row| row.split('`').next().unwrap().to_owned()).collect();
        let missing: Vec<_> = found.difference(&documented).collect();
        let stale: Vec<_> = documented.difference(&found).collect();
        assert!(missing.is_empty() && stale.is_empty(), "missing {missing:?}, stale {stale:?}");
    }

    #[test]
    fn a_report_is_read_as_it_was_written() {
        let report = report();
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
    }
}
