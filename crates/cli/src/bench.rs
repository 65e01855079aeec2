//! `forerun bench`: what drafting gains, by setting, task and temperature, and how sure that is.
//!
//! Settings take turns on every prompt, plain decoding among them, until intervals are narrow, the
//! repeats are done or the time is up. Every text is written to a file as it is made, so that nothing
//! measured is lost and a run can go on later.

mod compare;
mod flags;
mod interval;
mod journal;
mod metrics;
mod models;
mod page;
mod plan;
mod plot;
mod record;
mod report;
mod session;
mod summary;
mod users;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use crate::flags::OutputConfig;
use crate::interrupt::{EXIT_CODE, Interrupt};
use crate::machine::{self, ModelFile};
use crate::progress::{Outline, Progress};
use crate::prompts::{self, Prompt};
use crate::span::{Limit, Span};
use crate::terminal::Screen;

pub(crate) use flags::BenchFlags;
use flags::{BenchConfig, LocalConfig, Place, ServerConfig};
pub(crate) use interval::{Interval, pairs, speedup};
use journal::Journal;
use models::{Models, Wanted};
use plan::Ended;
pub(crate) use record::Measure;
use record::{Config, PromptRecord, SCHEMA, Setting};
use report::{Curve, Report};
use session::Session;
use summary::count;
use users::{Address, Users};

/// The files of a run.
struct Files {
    page: PathBuf,
    data: PathBuf,
    journal: PathBuf,
}

impl Files {
    /// Refuses to write over what is there.
    fn check(&self) -> anyhow::Result<()> {
        let there = [&self.page, &self.data, &self.journal].into_iter().find(|path| path.exists());
        if let Some(path) = there {
            bail!(
                "{} is there already: go on with --resume, name another with --out, or write over \
                 it with --force",
                path.display()
            );
        }
        // Better now than after two hours.
        let folder = self.page.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
            bail!("there is no folder {}", folder.display());
        }
        Ok(())
    }
}

impl BenchFlags {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let mut screen = Screen::new(&OutputConfig::notes());
        if let Some((old, new)) = self.compared() {
            screen.result(&compare::compare(old, new)?)?;
            return Ok(ExitCode::SUCCESS);
        }
        let config = self.resolve()?;
        if !(config.resume || config.force) {
            config.files.check()?;
        }
        let interrupt = Interrupt::install()?;
        interrupt.or_stopped(bench(config, &interrupt, &mut screen))
    }
}

fn bench(
    config: BenchConfig,
    interrupt: &Interrupt,
    screen: &mut Screen,
) -> anyhow::Result<ExitCode> {
    let limit = Limit::from_now(Duration::from_secs_f64(config.stop.time_limit_s));
    interrupt.expire_after(limit.time);
    let progress = screen.progress();
    let run = Run { limit, config: &config, interrupt, progress: progress.clone() };
    let outcome = match &config.place {
        Place::Local(local) => run.models(local, screen),
        Place::Server(server) => run.server(server, screen),
    };
    progress.end();
    let nothing = || {
        let span = Span::from(limit.time);
        format!("the time limit of {span} was over before a text was measured: raise --time-limit")
    };
    let (report, failure) = match outcome {
        Err(_) if limit.share() >= 1.0 => bail!(nothing()),
        outcome => outcome?,
    };
    if report.measures.is_empty() {
        failure?;
        ensure!(!interrupt.is_expired(), nothing());
        return Ok(ExitCode::from(EXIT_CODE));
    }
    write(&config.files, &report)?;
    screen.result(summary::summary(&report).trim_end())?;
    screen.note(&format!("report: {}", config.files.page.display()));
    failure?;
    let interrupted = report.ended == Ended::Interrupted.name();
    Ok(if interrupted { ExitCode::from(EXIT_CODE) } else { ExitCode::SUCCESS })
}

fn write(files: &Files, report: &Report) -> anyhow::Result<()> {
    let data = files.data.file_name().unwrap_or_default().to_string_lossy();
    let save = |path: &Path, text: String| {
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    save(&files.data, serde_json::to_string(report)?)?;
    save(&files.page, page::page(report, &data))
}

/// A report of all that was measured, and why there is no more where something failed.
type Outcome = (Report, anyhow::Result<()>);

/// One call of the command.
struct Run<'a> {
    limit: Limit,
    config: &'a BenchConfig,
    interrupt: &'a Interrupt,
    progress: Progress,
}

impl Run<'_> {
    /// Texts by models of our own.
    fn models(&self, local: &LocalConfig, screen: &mut Screen) -> anyhow::Result<Outcome> {
        let config = self.config;
        let prompts = self.prompts()?;
        let hash = |path: &PathBuf| machine::model_file(path, self.interrupt, &self.progress);
        let product = local.axes.product()?;
        self.begin(
            ("load", format!("hash and load {}", count(1 + local.files.len(), "model"))),
            "the cost of passes, and a short text by each setting",
            (product.settings.len(), prompts.len()),
        );
        self.progress.expect_files(2 * (1 + local.files.len()));
        let target = hash(&local.target.path)?;
        let drafters: Vec<ModelFile> =
            local.files.iter().map(hash).collect::<anyhow::Result<_>>()?;
        let wanted = Wanted {
            target: &local.target,
            context: local.context,
            files: &local.files,
            drafters: &local.drafters,
            paths: product.settings.iter().map(paths).max().unwrap_or(1),
            text_len: config.text_len,
        };
        let mut loaded = models::load(&wanted, prompts, self.interrupt, screen)?;
        let mut left_out = product.left_out;
        left_out.append(&mut loaded.left_out);
        let record = Config {
            target: Some(target),
            drafters,
            engine: Some(loaded.engine.clone()),
            prompts: records(&loaded.prompts),
            settings: product.settings,
            left_out,
            ..self.record()
        };
        let known = self.journal(&record)?;
        self.progress.phase(1);
        let mut models = Models::start(loaded, &record, self.interrupt)?;
        self.progress.phase(2);
        let timed = (self.limit, self.progress.clone());
        let mut session = Session::new(record, known, timed, self.interrupt);
        let ended = session.run(&mut models, screen);
        Ok(outcome(session, models.curves(), ended))
    }

    /// Texts by a server.
    fn server(&self, server: &ServerConfig, screen: &mut Screen) -> anyhow::Result<Outcome> {
        let prompts = self.prompts()?;
        let prompt_records = records(&prompts);
        let settings = 2 * server.users.len();
        let meet = ("meet", "ask the server what it can do".to_owned());
        self.begin(meet, "every prompt once", (settings, prompts.len()));
        let until = Some(self.limit.at(1.0));
        let mut users = Users::meet(Address { until, ..server.address.clone() }, prompts)?;
        let record = Config {
            server: Some(users.record.clone()),
            prompts: prompt_records,
            settings: users.settings(&server.users),
            ..self.record()
        };
        let known = self.journal(&record)?;
        self.progress.phase(1);
        users.warm_up(self.interrupt, &self.progress)?;
        self.progress.phase(2);
        let timed = (self.limit, self.progress.clone());
        let mut session = Session::new(record, known, timed, self.interrupt);
        let ended = session.run(&mut users, screen);
        Ok(outcome(session, Vec::new(), ended))
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
        self.progress.begin(&Outline {
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
    fn prompts(&self) -> anyhow::Result<Vec<Prompt>> {
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
            (None, None) => flags::TASKS.map(str::to_owned).to_vec(),
        };
        if let Some(unknown) = tasks.iter().find(|task| !known.contains(task)) {
            bail!("there is no task {unknown:?}: choose among {}, or all", known.join(", "));
        }
        let per_task = config.prompts_per_task.unwrap_or(config.prompts_per_task_max);
        Ok(plan::spread(all, &tasks, per_task))
    }

    /// What is the same for models and servers.
    fn record(&self) -> Config {
        let config = self.config;
        Config {
            schema: SCHEMA,
            quick: config.quick,
            target: None,
            drafters: Vec::new(),
            engine: None,
            server: None,
            text_len: config.text_len,
            temperatures: config.temperatures.clone(),
            top_k: config.top_k,
            top_p: config.top_p,
            min_p: config.min_p,
            seed: config.seed,
            prompts_per_task: config.prompts_per_task,
            prompts: Vec::new(),
            settings: Vec::new(),
            left_out: Vec::new(),
            machine: machine::machine(),
            build: machine::build(),
            stop: config.stop.clone(),
        }
    }

    fn journal(&self, record: &Config) -> anyhow::Result<(Journal, Vec<Measure>)> {
        let path = &self.config.files.journal;
        match self.config.resume {
            true => Journal::resume(path, record),
            false => Ok((Journal::begin(path, record)?, Vec::new())),
        }
    }
}

/// Paths of a setting's drafts: one of each drafter, and the further ones of the draft model.
fn paths(setting: &Setting) -> usize {
    (setting.drafters.len() + setting.paths).saturating_sub(1)
}

fn records(prompts: &[Prompt]) -> Vec<PromptRecord> {
    let record = |prompt: &Prompt| PromptRecord {
        id: prompt.id.clone(),
        task: prompt.task.clone(),
        sha256: machine::sha256(prompt.text.as_bytes()),
    };
    prompts.iter().map(record).collect()
}

/// What was measured is worth a report, whatever ended it.
fn outcome(session: Session<'_>, curves: Vec<Curve>, ended: anyhow::Result<Ended>) -> Outcome {
    let (ended, failure) = match ended {
        Ok(ended) => (ended, Ok(())),
        Err(error) => (Ended::Interrupted, Err(error)),
    };
    let about = (machine::today(), ended);
    (Report::new(session.config, session.measures, curves, about), failure)
}
