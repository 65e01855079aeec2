//! `forerun bench`: what drafting gains, by setting, task and temperature, and how sure that is.
//!
//! Settings take turns on every prompt, plain decoding among them, until intervals are narrow, the
//! repeats are done or the time is up. Every text is written to a file as it is made, so that nothing
//! measured is lost and a run can go on later.

mod compare;
mod config;
mod interval;
mod journal;
mod lossy;
mod metrics;
mod models;
mod page;
mod plan;
pub(crate) mod plot;
mod record;
mod report;
mod session;
mod summary;
mod task;
mod users;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cancellation::Cancellation;
use crate::error::{Error, Result};
use crate::machine::{self, ModelFile};
use crate::models::{Models, Subject};
use crate::observer::{Observer, Outline};
use crate::prompts::{self, Prompt};
use crate::span::{Limit, Span};

pub use compare::compare;
pub use config::{BenchConfig, Files, LocalConfig, ServerConfig};
pub use interval::{Interval, rate_ratio};
pub(crate) use interval::{pairs, speedup};
use journal::Journal;
pub use lossy::{LossyWay, UnknownLossyWay};
use models::{Decoding, Wanted};
pub use plan::{
    Axes, Drafting, Ended, ORACLE, PREDICTION, Product, SHARED_SUFFIX, Team, TeamError, distinct,
    drafters, teams,
};
pub(crate) use record::Measure;
use record::{Config, PromptRecord};
pub use record::{LeftOut, Setting, Stop};
pub use report::stem;
pub(crate) use report::{Cell, Curve, Report};
#[cfg(test)]
pub(crate) use report::{Place, Split, sample};
use session::Session;
use summary::count;
pub use task::{Task, TaskConfig, solve};
pub use users::Address;
use users::Users;

/// What is decoded where no task is named: the field's most usual ones.
const TASKS: [&str; 5] = ["mt_bench", "summarization", "qa", "gsm8k", "human_eval"];

/// Measures, writes the report, and says why it ended.
///
/// # Errors
/// If something fails; what was measured before is written all the same.
pub fn run(
    config: &BenchConfig,
    subject: Subject<'_, LocalConfig, ServerConfig>,
    observer: &dyn Observer,
    cancellation: &Cancellation,
) -> Result<Ended> {
    if !(config.resume || config.force) {
        let Files { page, data, journal } = &config.files;
        config::not_there(&[page, data, journal])?;
    }
    let limit = Limit::from_now(Duration::from_secs_f64(config.stop.time_limit_s));
    cancellation.expire_after(limit.time);
    let run = Run { limit, config, cancellation, observer };
    let outcome = match subject {
        Subject::Models(local, models) => run.models(local, models),
        Subject::Server(server) => run.server(server),
    };
    observer.end();
    let nothing = || {
        let span = Span::from(limit.time);
        Error::refused(format!(
            "the time limit of {span} was over before a text was measured: raise --time-limit"
        ))
    };
    let (report, failure) = match outcome {
        Err(_) if limit.share() >= 1.0 => return Err(nothing()),
        outcome => outcome?,
    };
    if report.measures.is_empty() {
        failure?;
        return if cancellation.is_expired() { Err(nothing()) } else { Ok(Ended::Interrupted) };
    }
    write(&config.files, &report)?;
    observer.result(summary::summary(&report).trim_end()).map_err(Error::Output)?;
    observer.note(&format!("report: {}", config.files.page.display()));
    failure
}

fn write(files: &Files, report: &Report) -> Result<()> {
    let data = files.data.file_name().unwrap_or_default().to_string_lossy();
    let save = |path: &Path, text: String| fs::write(path, text).map_err(Error::writing(path));
    save(&files.data, serde_json::to_string(report)?)?;
    save(&files.page, page::page(report, &data))
}

/// A report of all that was measured, and why there is no more.
type Outcome = (Report, Result<Ended>);

/// One run.
struct Run<'a> {
    limit: Limit,
    config: &'a BenchConfig,
    cancellation: &'a Cancellation,
    observer: &'a dyn Observer,
}

impl Run<'_> {
    /// Outputs by models of our own.
    fn models(&self, local: &LocalConfig, models: &mut dyn Models) -> Result<Outcome> {
        let config = self.config;
        let prompts = self.prompts()?;
        let hash = |path: &PathBuf| machine::model_file(path, self.cancellation, self.observer);
        let settings = &local.product.settings;
        self.begin(
            ("load", format!("hash and load {}", count(1 + local.files.len(), "model"))),
            "the cost of passes, and a short text by each setting",
            (settings.len(), prompts.len()),
        );
        self.observer.expect_files(2 * (1 + local.files.len()));
        let target = hash(&local.target)?;
        let drafters: Vec<ModelFile> = local.files.iter().map(hash).collect::<Result<_>>()?;
        let wanted = Wanted {
            drafters: &local.drafters,
            paths: settings.iter().map(Setting::path_count).max().unwrap_or(1),
            text_len: config.text_len,
        };
        let mut loaded = models::load(&wanted, prompts, models)?;
        let mut left_out = local.product.left_out.clone();
        left_out.append(&mut loaded.left_out);
        let record = Config {
            target: Some(target),
            drafters,
            engine: Some(loaded.engine.clone()),
            prompts: PromptRecord::all(&loaded.prompts),
            settings: settings.clone(),
            left_out,
            ..self.config.record()
        };
        let known = self.journal(&record)?;
        self.observer.phase(1);
        let mut decoding = Decoding::start(loaded, &record, self.cancellation)?;
        self.observer.phase(2);
        let timed = (self.limit, self.observer);
        let mut session = Session::new(record, known, timed, self.cancellation);
        let ended = session.run(&mut decoding);
        Ok(self.outcome(session, decoding.curves(), ended))
    }

    /// Outputs by a server.
    fn server(&self, server: &ServerConfig) -> Result<Outcome> {
        let prompts = self.prompts()?;
        let prompt_records = PromptRecord::all(&prompts);
        let settings = 2 * server.users.len();
        let meet = ("meet", "ask the server what it can do".to_owned());
        self.begin(meet, "every prompt once", (settings, prompts.len()));
        let until = Some(self.limit.at(1.0));
        let mut users = Users::meet(Address { until, ..server.address.clone() }, prompts)?;
        let record = Config {
            server: Some(users.record.clone()),
            prompts: prompt_records,
            settings: users.settings(&server.users),
            ..self.config.record()
        };
        let known = self.journal(&record)?;
        self.observer.phase(1);
        users.warm_up(self.cancellation, self.observer)?;
        self.observer.phase(2);
        let timed = (self.limit, self.observer);
        let mut session = Session::new(record, known, timed, self.cancellation);
        let ended = session.run(&mut users);
        Ok(self.outcome(session, Vec::new(), ended))
    }

    /// Says what is going to happen.
    fn begin(
        &self,
        first: (&'static str, String),
        warm_up: &str,
        (settings, prompts): (usize, usize),
    ) {
        let config = self.config;
        let measured = format!(
            "{}, {}, up to {}, {}",
            count(settings, "setting"),
            count(config.temperatures.len(), "temperature"),
            count(prompts, "prompt"),
            count(config.stop.repeats, "repeat"),
        );
        let shorter = if config.quick { "" } else { "--quick (4 minutes), " };
        self.observer.begin(&Outline {
            command: "bench",
            phases: vec![first, ("warm-up", warm_up.to_owned()), ("measurement", measured)],
            limit: self.limit,
            notes: vec![format!(
                "It ends earlier once every interval reaches no further than {} %, or after all \
                 repeats.\nCtrl-C ends it with what was measured; --resume goes on.\nShorter: \
                 {shorter}--time-limit TIME.",
                100.0 * config.stop.precision
            )],
        });
    }

    /// The prompts that may be decoded, in the order they would be.
    fn prompts(&self) -> Result<Vec<Prompt>> {
        let config = self.config;
        let all = config.prompts.as_deref().map_or_else(|| Ok(prompts::field()), prompts::file)?;
        let mut known: Vec<String> = Vec::new();
        for prompt in &all {
            if !known.contains(&prompt.task) {
                known.push(prompt.task.clone());
            }
        }
        let tasks = match (&config.tasks, &config.prompts) {
            (Some(tasks), _) if tasks.iter().any(|task| task == "all") => known.clone(),
            (Some(tasks), _) => tasks.clone(),
            (None, Some(_)) => known.clone(),
            (None, None) => TASKS.map(str::to_owned).to_vec(),
        };
        if let Some(unknown) = tasks.iter().find(|task| !known.contains(task)) {
            let known = known.join(", ");
            let message = format!("there is no task {unknown:?}: choose among {known}, or all");
            return Err(Error::refused(message));
        }
        let per_task = config.prompts_per_task.unwrap_or(config.prompts_per_task_max);
        Ok(plan::spread(all, &tasks, per_task))
    }

    /// What was measured is worth a report, whatever ended it.
    fn outcome(&self, session: Session<'_>, curves: Vec<Curve>, ended: Result<Ended>) -> Outcome {
        let shown = *ended.as_ref().unwrap_or(&Ended::Interrupted);
        let about = (self.config.provenance.date.clone(), shown);
        (Report::new(session.config, session.measures, curves, about), ended)
    }

    fn journal(&self, record: &Config) -> Result<(Journal, Vec<Measure>)> {
        let path = &self.config.files.journal;
        match self.config.resume {
            true => Journal::resume(path, record),
            false => Ok((Journal::begin(path, record)?, Vec::new())),
        }
    }
}

#[cfg(test)]
mod tests;
