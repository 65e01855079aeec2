//! `forerun bench`: what can be said to it, and what it means. What it does is in the lab.

mod task;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr as _;

use forerun_decode::{DrafterKind, Drafts, LossyMode, RuleChoice, Sampling};
use forerun_lab::bench::{
    self, Address, Axes, BenchConfig, Ended, Files, LocalConfig, LossyWay, ServerConfig, Stop,
    Task, Team, TeamError, distinct, stem,
};
use forerun_lab::{Observer as _, Span, Subject, file_name};

use crate::flags::{
    ConfigError, ContextLen, DrafterConfig, EngineFlags, ModelConfig, TargetFlags, within,
};
use crate::interrupt::{EXIT_CODE, Interrupt};
use crate::lab::{Console, Gguf, GgufConfig, provenance};
use task::TaskFlags;

/// Limits of a run, and of a quick one.
const REPEATS: usize = 5;
const PRECISION: f64 = 0.05;
const TIME_LIMIT_S: f64 = 7200.0;
const QUICK_TIME_LIMIT_S: f64 = 240.0;
const TEXT_LEN: usize = 64;
const QUICK_TEXT_LEN: usize = 32;
/// Long enough for most solutions of a problem.
const ANSWER_LEN: usize = 400;
/// Prompts of a task, where time decides; of a server's users, where it does not.
const PROMPTS_MAX: usize = 8;
const SERVER_PROMPTS: usize = 2;
const SEED: u64 = 1;

/// What to measure, as given.
#[derive(Debug, Clone, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct BenchFlags {
    #[command(subcommand)]
    command: Option<BenchCommand>,
    #[command(flatten)]
    target: TargetFlags,
    #[command(flatten)]
    draft: DraftAxes,
    #[command(flatten)]
    task: TaskFlags,
    #[command(flatten)]
    texts: TextFlags,
    #[command(flatten)]
    run: RunFlags,
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    engine: EngineFlags,
}

/// What else there is to do.
#[derive(Debug, Clone, clap::Subcommand)]
enum BenchCommand {
    /// Compare two JSON reports and tell changes from noise
    Compare {
        /// The older report
        old: PathBuf,
        /// The newer report
        new: PathBuf,
    },
}

/// What is combined with each other, as given.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Settings to compare")]
struct DraftAxes {
    /// GGUF file of a draft model; may be given several times [-md]
    #[arg(long, visible_aliases = ["model-draft", "spec-draft-model"], value_name = "FILE")]
    draft: Vec<PathBuf>,
    /// Further drafters, separated by commas: ngram, suffix, suffix-shared (with the outputs for
    /// earlier prompts, as if all had one API key), edit (of the prompt), prediction (edit of what
    /// the prompts file predicts), oracle (edit of the finished output, at temperature 0: the most
    /// that drafts can gain), or a combination such as draft-model+ngram; none measures plain
    /// decoding only [default: ngram,suffix without --draft]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    spec_type: Vec<Team>,
    /// Verification rules, separated by commas: block, token, pooled, specinfer, gbv, traversal,
    /// rsd, nss, coupled [default: block for one path, pooled for several]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = RuleChoice::from_str)]
    verify: Vec<RuleChoice>,
    /// Lossy modes to measure too, separated by commas, such as account:0.02; or published rules that
    /// change the output without a bound: typical, lenience, lenience-plain, specdec, sglang, sprinter
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = LossyWay::from_str)]
    lossy: Vec<LossyWay>,
    /// Numbers of paths of a draft model, separated by commas; rules for one path use one [default:
    /// 1]
    #[arg(long, visible_alias = "draft-paths", value_name = "LIST", value_delimiter = ',')]
    spec_draft_paths: Vec<usize>,
    /// Draft lengths in tokens per path, separated by commas [default: 4]
    #[arg(long, visible_aliases = ["draft-max", "draft-n"], value_name = "LIST")]
    #[arg(value_delimiter = ',')]
    spec_draft_n_max: Vec<usize>,
    /// Whether the controller adapts the draft length; on,off compares both [default: off]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = switch)]
    spec_adaptive: Vec<bool>,
    /// Temperatures, separated by commas [default: 0,1]
    #[arg(long, visible_alias = "temperature", value_name = "LIST", value_delimiter = ',')]
    #[arg(allow_negative_numbers = true)]
    temp: Vec<f32>,
}

/// Outputs, as given.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Prompts and sampling")]
struct TextFlags {
    /// Tasks of the built-in prompts, separated by commas: mt_bench, translation, summarization, qa,
    /// math_reasoning, rag (these are Spec-Bench's), human_eval, gsm8k, edit, agent, or all [default:
    /// mt_bench, summarization, qa, gsm8k, human_eval]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    tasks: Vec<String>,
    /// File with prompts to use instead: each line is a prompt, or a JSON object with "prompt" or
    /// "messages" and optionally "task", "id", "prediction", the text that the output is an edited
    /// version of, and "ends", whether the output ends by itself; or one of serve --record-prompts
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// Prompts per task [default: as many as the time allows, at most 8; 2 with --url]
    #[arg(long, value_name = "N")]
    prompts_per_task: Option<usize>,
    /// Tokens per output; end tokens are forbidden, except in edits, agents' answers and with --task
    /// [default: 64; 32 with --quick; 400 with --task]
    #[arg(short = 'n', long, visible_alias = "n-predict", value_name = "N")]
    predict: Option<usize>,
    /// Keep only the N likeliest tokens; 0 keeps all [default: 0; with --url the server's]
    #[arg(long, value_name = "N")]
    top_k: Option<u32>,
    /// Keep the likeliest tokens whose probabilities add up to P; 1 keeps all [default: 1; with
    /// --url the server's]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// Keep tokens with at least P times the probability of the likeliest one; 0 keeps all
    /// [default: 0; with --url the server's]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    min_p: Option<f32>,
    /// Random seed; not sent to a server
    #[arg(short, long, value_name = "N", default_value_t = SEED)]
    seed: u64,
}

/// When it is enough, and where the report goes, as given.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Run")]
struct RunFlags {
    /// Most repeats of everything [default: 5]
    #[arg(long, value_name = "N")]
    repeats: Option<usize>,
    /// Stop once the 95 % interval of every speedup is within this fraction on either side
    /// [default: 0.05]
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    precision: Option<f64>,
    /// Stop after this time, such as 90s, 15m or 1h30m, including loading [default: 2h; 4m with
    /// --quick]
    #[arg(long, value_name = "TIME")]
    time_limit: Option<Span>,
    /// Get a first impression within five minutes: one repeat, one prompt per task, short outputs
    #[arg(long)]
    quick: bool,
    /// HTML report; each measurement is also appended to a .jsonl file of the same name [default:
    /// bench.html]
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// JSON report [default: as --out, with the extension .json; gsm8k.json with --task gsm8k]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Continue an interrupted run with the same settings
    #[arg(long, conflicts_with = "force")]
    resume: bool,
    /// Overwrite the files of an earlier run
    #[arg(long)]
    force: bool,
}

/// A server instead of models, as given.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Server")]
struct ServerFlags {
    /// Measure an OpenAI-compatible server instead of models, such as http://localhost:8080
    #[arg(long, value_name = "URL")]
    #[arg(conflicts_with_all = ["draft", "spec_type", "verify", "lossy", "spec_draft_paths"])]
    #[arg(conflicts_with_all = ["spec_draft_n_max", "spec_adaptive"])]
    url: Option<String>,
    /// Address of the same model without speculation, if a request to --url cannot turn it off
    #[arg(long, value_name = "URL")]
    plain_url: Option<String>,
    /// API key of the server
    #[arg(long, env = "FORERUN_API_KEY", value_name = "KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Name of the model in requests [default: the first one that the server lists]
    #[arg(long, value_name = "NAME")]
    model_name: Option<String>,
    /// Numbers of concurrent users, separated by commas [default: 1,4]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    concurrency: Vec<usize>,
}

/// Where outputs come from.
enum Place {
    /// Models of our own.
    Local(Box<GgufConfig>, LocalConfig),
    /// A server.
    Server(ServerConfig),
}

impl BenchFlags {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let console = Console::new();
        if let Some((old, new)) = self.compared() {
            console.result(&bench::compare(old, new)?)?;
            return Ok(ExitCode::SUCCESS);
        }
        let lossy = self.draft.lossy.clone();
        let task = self.task.resolve();
        let (config, place) = self.resolve()?;
        for way in lossy {
            let how = if way.has_bound() { "within its bound" } else { "and has no bound" };
            console.warn(&format!("lossy {way}: changes the output {how}"));
        }
        let interrupt = Interrupt::install()?;
        let cancellation = interrupt.cancellation();
        let ended = match &place {
            Place::Local(gguf, local) => {
                let mut models = Gguf::new(gguf, &interrupt, &console);
                match &task {
                    Some(task) => {
                        let config = (&config, task);
                        bench::solve(config, local, &mut models, &console, cancellation)
                    }
                    None => {
                        let subject = Subject::Models(local, &mut models);
                        bench::run(&config, subject, &console, cancellation)
                    }
                }
            }
            Place::Server(server) => {
                bench::run(&config, Subject::Server(server), &console, cancellation)
            }
        };
        let code = |ended| match ended {
            Ended::Interrupted => ExitCode::from(EXIT_CODE),
            _ => ExitCode::SUCCESS,
        };
        interrupt.or_stopped(ended.map(code))
    }

    /// The reports to compare, where that is wanted.
    fn compared(&self) -> Option<(&Path, &Path)> {
        let BenchCommand::Compare { old, new } = self.command.as_ref()?;
        Some((old, new))
    }

    /// Decides every default.
    fn resolve(self) -> Result<(BenchConfig, Place), ConfigError> {
        self.server.check()?;
        let (texts, run) = (self.texts, self.run);
        let quick = run.quick;
        let is_server = self.server.url.is_some();
        let own = |value| Some(value).filter(|_| !is_server);
        let (top_k, top_p, min_p) = (texts.top_k, texts.top_p, texts.min_p);
        let temperatures = distinct(or(self.draft.temp.clone(), self.draft.temperatures()));
        self.draft.check_lossy(&temperatures)?;
        for temperature in &temperatures {
            let sampling = Sampling {
                temperature: *temperature,
                top_p: top_p.unwrap_or(1.0),
                min_p: min_p.unwrap_or(0.0),
                ..Sampling::unshaped()
            };
            sampling.check(usize::MAX)?;
        }
        let text_len = texts.predict.unwrap_or(match (self.task.task, quick) {
            (Some(_), _) => ANSWER_LEN,
            (None, true) => QUICK_TEXT_LEN,
            (None, false) => TEXT_LEN,
        });
        let fixed = if is_server { Some(SERVER_PROMPTS) } else { None };
        let per_task = match texts.prompts_per_task {
            Some(count) => Some(within("--prompts-per-task", count, 1..=10_000)?),
            None if quick && is_server => Some(1),
            None => fixed,
        };
        let model = self.target.unless_server(self.server.url.as_deref())?;
        let place = match (self.server.url.clone(), model) {
            (Some(url), _) => Place::Server(self.server.resolve(url)?),
            (None, Some(model)) => {
                let only_lossy = self.task.task.is_some() && self.draft.verify.is_empty();
                let (gguf, mut local) = self.draft.resolve(self.engine.resolve(model)?)?;
                if only_lossy {
                    local.product = local.product.without_lossless();
                }
                self.task.check(&local)?;
                Place::Local(Box::new(gguf), local)
            }
            (None, None) => return Err(ConfigError::NoModel),
        };
        let config = BenchConfig {
            stop: run.stop()?,
            files: run.files(self.task.task),
            resume: run.resume,
            force: run.force,
            quick,
            prompts: texts.prompts,
            tasks: Some(distinct(texts.tasks)).filter(|tasks| !tasks.is_empty()),
            prompts_per_task: per_task,
            prompts_per_task_max: if quick { 1 } else { PROMPTS_MAX },
            text_len: within("--predict", text_len, 2..=4096)?,
            temperatures,
            top_k: top_k.or(own(0)),
            top_p: top_p.or_else(|| (!is_server).then_some(1.0)),
            min_p: min_p.or_else(|| (!is_server).then_some(0.0)),
            seed: texts.seed,
            provenance: provenance(),
        };
        Ok((config, place))
    }
}

impl RunFlags {
    fn stop(&self) -> Result<Stop, ConfigError> {
        let repeats = self.repeats.unwrap_or(if self.quick { 1 } else { REPEATS });
        let precision = self.precision.unwrap_or(PRECISION);
        if !(precision > 0.0 && precision < 1.0) {
            let expected = "a share between 0 and 1, such as 0.05";
            return Err(ConfigError::out_of_range("--precision", precision, expected));
        }
        let limit = if self.quick { QUICK_TIME_LIMIT_S } else { TIME_LIMIT_S };
        Ok(Stop {
            repeats: within("--repeats", repeats, 1..=1000)?,
            precision,
            time_limit_s: self.time_limit.map_or(limit, |span| span.seconds),
        })
    }

    /// A task has no page.
    fn files(&self, task: Option<Task>) -> Files {
        let stem = task.map_or("bench", Task::name);
        let page = self.out.clone().unwrap_or_else(|| PathBuf::from(stem).with_extension("html"));
        let data = self.json.clone().unwrap_or_else(|| page.with_extension("json"));
        let beside = if task.is_some() { &data } else { &page };
        let journal = beside.with_extension("jsonl");
        Files { page, data, journal }
    }
}

impl ServerFlags {
    /// Refuses what is about a server where none is named.
    fn check(&self) -> Result<(), ConfigError> {
        let said = [
            ("--plain-url", self.plain_url.is_some()),
            ("--model-name", self.model_name.is_some()),
            ("--concurrency", !self.concurrency.is_empty()),
        ];
        match said.into_iter().find(|(_, said)| *said && self.url.is_none()) {
            None => Ok(()),
            Some((flag, _)) => {
                let (reason, instead) = ("no server is measured", "add --url URL");
                Err(ConfigError::Unused { flag, reason, instead })
            }
        }
    }

    fn resolve(self, url: String) -> Result<ServerConfig, ConfigError> {
        let users = distinct(or(self.concurrency, &[1, 4]));
        for count in &users {
            within("--concurrency", *count, 1..=1024)?;
        }
        let (plain_url, key, model) = (self.plain_url, self.api_key, self.model_name);
        let address = Address { url, plain_url, key, model, until: None };
        Ok(ServerConfig { address, users })
    }
}

impl DraftAxes {
    /// The temperatures unless told otherwise: those at which everything does something.
    fn temperatures(&self) -> &'static [f32] {
        let greedy = |way: &LossyWay| matches!(way, LossyWay::Mode(LossyMode::Near(_)));
        match (self.lossy.is_empty(), self.lossy.iter().all(greedy)) {
            (true, _) => &[0.0, 1.0],
            (false, true) => &[0.0],
            (false, false) => &[1.0],
        }
    }

    /// Looks whether lossy ways fit how tokens are drawn.
    fn check_lossy(&self, temperatures: &[f32]) -> Result<(), ConfigError> {
        let one = Drafts { drafters: 1, has_model: true, may_stop: false, width: 1, paths: None };
        for (way, temperature) in
            self.lossy.iter().flat_map(|way| temperatures.iter().map(move |it| (way, *it)))
        {
            match way {
                LossyWay::Mode(LossyMode::Defer(_)) if self.spec_adaptive.contains(&true) => {
                    return Err(ConfigError::Unused {
                        flag: "--spec-adaptive on",
                        reason: "--lossy defer decides when the target runs",
                        instead: "leave it out",
                    });
                }
                LossyWay::Mode(mode) => {
                    mode.admits(&one, &Sampling { temperature, ..Sampling::unshaped() })?;
                }
                LossyWay::Published(_) if temperature == 0.0 => {
                    return Err(ConfigError::Unused {
                        flag: "--lossy",
                        reason: "published rules are for sampled outputs",
                        instead: "leave out --temp 0",
                    });
                }
                LossyWay::Published(_) => {}
            }
        }
        Ok(())
    }

    fn resolve(
        self,
        (target, context): (ModelConfig, ContextLen),
    ) -> Result<(GgufConfig, LocalConfig), ConfigError> {
        let widths = distinct(or(self.spec_draft_paths, &[1]));
        let lens = distinct(or(self.spec_draft_n_max, &[4]));
        for width in &widths {
            within("--spec-draft-paths", *width, 1..=16)?;
        }
        for len in &lens {
            within("--spec-draft-n-max", *len, 1..=64)?;
        }
        let models: Vec<String> = self.draft.iter().map(|path| stem(&file_name(path))).collect();
        let teams = bench::teams(&models, &self.spec_type).map_err(refused)?;
        let drafters = bench::drafters(&teams);
        if models.is_empty() && widths != [1] {
            return Err(ConfigError::Unused {
                flag: "--spec-draft-paths",
                reason: "no draft model drafts",
                instead: "add --draft FILE",
            });
        }
        let adaptive = distinct(or(self.spec_adaptive, &[false]));
        let rules = distinct(self.verify);
        let lossy = distinct(self.lossy);
        let product = Axes { teams, rules, lossy, widths, lens, adaptive }.product()?;
        let files = self.draft;
        let model = |path: &PathBuf| DrafterConfig::like_target(path.clone(), &target);
        let looked_up = drafters.iter().filter_map(|it| DrafterConfig::looking_up(it.kind));
        let all = files.iter().map(model).chain(looked_up).collect();
        let local = LocalConfig { target: target.path.clone(), files, drafters, product };
        Ok((GgufConfig { target, context, drafters: all }, local))
    }
}

fn refused(error: TeamError) -> ConfigError {
    match error {
        TeamError::SameName => ConfigError::Unused {
            flag: "--draft",
            reason: "another draft model has the same name",
            instead: "name each once, by files of different names",
        },
        TeamError::NoDraftModel => ConfigError::NothingToDraftFrom {
            drafter: DrafterKind::DraftModel.name(),
            flag: "--draft",
        },
    }
}

fn switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("expected on or off".to_owned()),
    }
}

/// What was said, or else the default.
fn or<T: Clone>(said: Vec<T>, default: &[T]) -> Vec<T> {
    if said.is_empty() { default.to_vec() } else { said }
}

#[cfg(test)]
#[path = "../tests/line/bench.rs"]
mod tests;
