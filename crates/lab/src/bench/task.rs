//! `forerun bench --task`: what a lossy mode does to answers. Plain decoding and every other setting
//! solve the same problems, and the answers that are right are counted.
//!
//! A promise about tokens says nothing about answers, so these are measured apart. What comes out is
//! an interval for the paired difference, never that there is none.

mod number;
mod paired;
mod problems;
mod result;

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::config::{BenchConfig, LocalConfig, not_there};
use super::journal::Journal;
use super::models::{self, Answered, Decoding, Wanted};
use super::plan::{Ended, ORACLE, turns};
use super::record::{Config, PromptRecord, Setting};
use super::summary::count;
use crate::cancellation::Cancellation;
use crate::error::{Error, Result};
use crate::machine::{self, ModelFile};
use crate::models::Models;
use crate::observer::{Observer, Outline};
use crate::span::{Limit, Span};
use crate::words::file_name;

use problems::Problem;
pub use problems::Task;
use result::TaskResult;

/// Problems to solve.
#[derive(Debug, Clone)]
pub struct TaskConfig {
    /// The task.
    pub task: Task,
    /// A file with its problems, instead of those that are built in.
    pub file: Option<PathBuf>,
}

/// What was asked, as the files hold it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Record {
    /// The task's name.
    task: String,
    /// The name of the user's file of problems.
    file: Option<String>,
    /// The right answers, in the order of the prompts.
    answers: Vec<String>,
    /// All else.
    #[serde(flatten)]
    config: Config,
}

/// One problem by one setting: a line of the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Answer {
    /// The problem, by index.
    problem: usize,
    /// The setting, by index.
    setting: usize,
    /// Its temperature.
    temperature: f32,
    /// The last number of the output.
    number: Option<String>,
    /// Whether the output ended by itself.
    ended: bool,
    /// Its tokens.
    tokens: u64,
    /// Total variation they spent together, of a lossy mode that says so.
    spent: Option<f64>,
    /// The output.
    text: String,
}

/// What came out, for programs. Field names are public: `docs/bench.md` lists them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct TaskReport {
    /// When it was made.
    date: String,
    /// Why there are no more answers.
    ended: String,
    /// What was asked.
    config: Record,
    /// What each setting came to.
    results: Vec<TaskResult>,
}

/// Has all settings solve the problems, and reports how often each was right.
///
/// # Errors
/// If something fails; the answers until then are reported all the same.
pub fn solve(
    (config, task): (&BenchConfig, &TaskConfig),
    local: &LocalConfig,
    models: &mut dyn Models,
    observer: &dyn Observer,
    cancellation: &Cancellation,
) -> Result<Ended> {
    if local.drafters.iter().any(|it| it.kind == ORACLE) {
        return Err(Error::refused(
            "oracle drafts what another setting wrote, which is no answer of its own: leave it out",
        ));
    }
    if !(config.resume || config.force) {
        not_there(&[&config.files.data, &config.files.journal])?;
    }
    let limit = Limit::from_now(Duration::from_secs_f64(config.stop.time_limit_s));
    cancellation.expire_after(limit.time);
    let run = Run { config, task, limit, observer, cancellation };
    let mut answers = Vec::new();
    let mut record = None;
    let ended = run.answers(local, models, &mut record, &mut answers);
    observer.end();
    let ended = match ended {
        Err(Error::Cancelled) => Ok(run.broken_off()),
        ended => ended,
    };
    let Some(record) = record.filter(|_| !answers.is_empty()) else {
        return match ended? {
            Ended::Time => Err(Error::refused(format!(
                "the time limit of {} was over before a problem was solved: raise --time-limit",
                Span::from(limit.time)
            ))),
            ended => {
                observer.note("no problem was solved yet: there is no report");
                Ok(ended)
            }
        };
    };
    let shown = *ended.as_ref().unwrap_or(&Ended::Interrupted);
    let results = result::results(&record, &answers);
    let (date, ended_by) = (config.provenance.date.clone(), shown.name().to_owned());
    let report = TaskReport { date, ended: ended_by, config: record, results };
    let data = &config.files.data;
    fs::write(data, serde_json::to_string(&report)?).map_err(Error::writing(data))?;
    observer.result(summary(&report).trim_end()).map_err(Error::Output)?;
    observer.note(&format!("report: {}", data.display()));
    ended
}

/// One run.
struct Run<'a> {
    config: &'a BenchConfig,
    task: &'a TaskConfig,
    limit: Limit,
    observer: &'a dyn Observer,
    cancellation: &'a Cancellation,
}

impl Run<'_> {
    /// Collects answers until there are all, the time is up or someone interrupts.
    fn answers(
        &self,
        local: &LocalConfig,
        models: &mut dyn Models,
        record: &mut Option<Record>,
        answers: &mut Vec<Answer>,
    ) -> Result<Ended> {
        let config = self.config;
        let problems = self.problems()?;
        let settings = &local.product.settings;
        self.begin(1 + local.files.len(), settings.len(), problems.len());
        self.observer.expect_files(2 * (1 + local.files.len()));
        let hash = |path: &PathBuf| machine::model_file(path, self.cancellation, self.observer);
        let target = hash(&local.target)?;
        let drafters: Vec<ModelFile> = local.files.iter().map(hash).collect::<Result<_>>()?;
        let wanted = Wanted {
            drafters: &local.drafters,
            paths: settings.iter().map(Setting::path_count).max().unwrap_or(1),
            text_len: config.text_len,
        };
        let prompts = problems.iter().map(|it| it.prompt.clone()).collect();
        let mut loaded = models::load(&wanted, prompts, models)?;
        let fits = |id: &str| problems.iter().find(|it| it.prompt.id == id);
        let fitting: Vec<&Problem> =
            loaded.prompts.iter().filter_map(|prompt| fits(&prompt.id)).collect();
        let mut left_out = local.product.left_out.clone();
        left_out.append(&mut loaded.left_out);
        let asked = record.insert(Record {
            task: self.task.task.name().to_owned(),
            file: self.task.file.as_deref().map(file_name),
            answers: fitting.iter().map(|it| it.answer.clone()).collect(),
            config: Config {
                target: Some(target),
                drafters,
                engine: Some(loaded.engine.clone()),
                prompts: PromptRecord::all(&loaded.prompts),
                settings: settings.clone(),
                left_out,
                ..config.record()
            },
        });
        let mut journal = self.journal(asked, answers)?;
        self.observer.phase(1);
        let mut decoding = Decoding::start(loaded, &asked.config, self.cancellation)?;
        self.observer.phase(2);
        for problem in 0..fitting.len() {
            for (setting, temperature) in order(&asked.config, problem) {
                let degrees = asked.config.temperatures[temperature];
                let same = |it: &Answer| {
                    (it.problem, it.setting, it.temperature) == (problem, setting, degrees)
                };
                if answers.iter().any(same) {
                    continue;
                }
                self.show(answers.len(), &asked.config);
                let answered = decoding.answer((problem, setting, temperature), &asked.config);
                if self.cancellation.is_cancelled() {
                    return Ok(self.broken_off());
                }
                let Answered { text, ended, tokens, spent } = answered?;
                let (number, temperature) = (number::last(&text), degrees);
                let answer =
                    Answer { problem, setting, temperature, number, ended, tokens, spent, text };
                journal.add(&answer)?;
                answers.push(answer);
            }
        }
        Ok(Ended::Problems)
    }

    fn problems(&self) -> Result<Vec<Problem>> {
        let mut problems = match &self.task.file {
            Some(path) => self.task.task.file(path)?,
            None => self.task.task.built_in(),
        };
        problems.truncate(self.config.prompts_per_task.unwrap_or(usize::MAX));
        Ok(problems)
    }

    fn journal(&self, record: &Record, answers: &mut Vec<Answer>) -> Result<Journal> {
        let path = &self.config.files.journal;
        if !self.config.resume {
            return Journal::begin(path, record);
        }
        let (journal, known) = Journal::resume(path, record)?;
        *answers = known;
        Ok(journal)
    }

    /// Says what is going to happen.
    fn begin(&self, models: usize, settings: usize, problems: usize) {
        let temperatures = self.config.temperatures.len();
        let answers = format!(
            "{}, {}, {}",
            count(problems, "problem"),
            count(settings, "setting"),
            count(temperatures, "temperature"),
        );
        self.observer.begin(&Outline {
            command: "bench",
            phases: vec![
                ("load", format!("hash and load {}", count(models, "model"))),
                ("warm-up", "the cost of passes, and a short text by each setting".to_owned()),
                ("answers", answers),
            ],
            limit: self.limit,
            notes: vec![
                "Ctrl-C ends it with the answers until then; --resume goes on.\nShorter: \
                 --prompts-per-task N, --time-limit TIME."
                    .to_owned(),
            ],
        });
    }

    fn show(&self, done: usize, config: &Config) {
        let each = config.settings.len() * config.temperatures.len();
        let all = (each * config.prompts.len()).max(1);
        let share = self.limit.share().max(done as f64 / all as f64);
        let solved = done / each;
        self.observer.show(share, &format!("problem {}/{}", solved + 1, config.prompts.len()));
    }

    /// Why an answer was broken off.
    fn broken_off(&self) -> Ended {
        if self.cancellation.is_expired() { Ended::Time } else { Ended::Interrupted }
    }
}

/// Settings and temperatures of a problem in the order of their turn.
fn order(config: &Config, problem: usize) -> Vec<(usize, usize)> {
    let temperatures = config.temperatures.len();
    let all = turns(config.settings.len() * temperatures, problem);
    all.map(|turn| (turn / temperatures, turn % temperatures)).collect()
}

/// The report in a few lines.
fn summary(report: &TaskReport) -> String {
    let Record { task, file, config, .. } = &report.config;
    let from = file.as_ref().map_or(String::new(), |file| format!(" of {file}"));
    let mut text = String::new();
    let width = config.settings.iter().map(|it| it.name.chars().count()).max().unwrap_or(0);
    for temperature in &config.temperatures {
        let _ = writeln!(text, "{task}{from}, temperature {temperature}");
        for result in report.results.iter().filter(|it| it.temperature == *temperature) {
            let _ = writeln!(text, "  {:<width$}  {result}", result.setting);
        }
    }
    let unfinished = report.results.iter().map(|it| it.unfinished).max().unwrap_or(0);
    if unfinished > 0 {
        let most = config.text_len;
        let _ = writeln!(
            text,
            "Up to {unfinished} outputs of a setting were cut off after {most} tokens (-n)."
        );
    }
    let _ = writeln!(text, "Ended by {}.", report.ended);
    text
}

#[cfg(test)]
mod tests;
