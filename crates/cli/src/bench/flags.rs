//! What can be said to `forerun bench`, and what it means.

use std::path::{Path, PathBuf};
use std::str::FromStr as _;

use forerun_decode::{RuleChoice, Sampling};

use super::Files;
use super::plan::{Axes, Drafting, Kind, Team};
use super::record::Stop;
use super::report::stem;
use super::users::Address;
use crate::flags::{ConfigError, ContextLen, EngineFlags, ModelConfig, TargetFlags};
use crate::span::Span;
use crate::terminal::file_name;

/// What is decoded where no task is named: the field's most usual ones.
pub(super) const TASKS: [&str; 5] = ["mt_bench", "summarization", "qa", "gsm8k", "human_eval"];

/// Limits of a run, and of a quick one.
const REPEATS: usize = 5;
const PRECISION: f64 = 0.05;
const TIME_LIMIT_S: f64 = 7200.0;
const QUICK_TIME_LIMIT_S: f64 = 240.0;
const TEXT_LEN: usize = 64;
const QUICK_TEXT_LEN: usize = 32;
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
    /// Say what changed between two reports (JSON), and whether it is noise
    Compare {
        /// The report of before
        old: PathBuf,
        /// The report of after
        new: PathBuf,
    },
}

/// What is combined with each other, as given.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "What is compared")]
struct DraftAxes {
    /// GGUF file of a draft model; may be given several times [-md]
    #[arg(long, visible_aliases = ["model-draft", "spec-draft-model"], value_name = "FILE")]
    draft: Vec<PathBuf>,
    /// Further drafters, separated by commas: ngram, suffix, or several at once as in
    /// draft-model+ngram; none for plain decoding alone [default: ngram,suffix without --draft]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    spec_type: Vec<Team>,
    /// Rules, separated by commas: block, token, pooled, specinfer, gbv, traversal, rsd, nss,
    /// coupled [default: block for one path, pooled for several]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = RuleChoice::from_str)]
    verify: Vec<RuleChoice>,
    /// Paths of a draft model, separated by commas; rules for one path get one [default: 1]
    #[arg(long, visible_alias = "draft-paths", value_name = "LIST", value_delimiter = ',')]
    spec_draft_paths: Vec<usize>,
    /// Tokens of a drafted path, separated by commas [default: 4]
    #[arg(long, visible_aliases = ["draft-max", "draft-n"], value_name = "LIST")]
    #[arg(value_delimiter = ',')]
    spec_draft_n_max: Vec<usize>,
    /// Whether the controller decides how much is drafted; on,off compares both [default: off]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = switch)]
    spec_adaptive: Vec<bool>,
    /// Temperatures, separated by commas [default: 0,1]
    #[arg(long, visible_alias = "temperature", value_name = "LIST", value_delimiter = ',')]
    #[arg(allow_negative_numbers = true)]
    temp: Vec<f32>,
}

/// Texts, as given.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Texts")]
struct TextFlags {
    /// Tasks of the built-in prompts, separated by commas: mt_bench, translation, summarization, qa,
    /// math_reasoning, rag (these are Spec-Bench's), human_eval, gsm8k, or all [default: mt_bench,
    /// summarization, qa, gsm8k, human_eval]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    tasks: Vec<String>,
    /// File of prompts instead: a JSON object with "prompt", perhaps "task" and "id", or a prompt on
    /// each line
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// Prompts of each task [default: as many as the time allows, at most 8; 2 with --url]
    #[arg(long, value_name = "N")]
    prompts_per_task: Option<usize>,
    /// Tokens of each text: end tokens are forbidden [default: 64; 32 with --quick]
    #[arg(short = 'n', long, visible_alias = "n-predict", value_name = "N")]
    predict: Option<usize>,
    /// Keep this many of the likeliest tokens; 0 keeps all [default: 0; a server's own]
    #[arg(long, value_name = "N")]
    top_k: Option<u32>,
    /// Keep the fewest tokens whose probabilities add up to this; 1 keeps all [default: 1; a
    /// server's own]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// Keep tokens at least this share as probable as the likeliest; 0 keeps all [default: 0; a
    /// server's own]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    min_p: Option<f32>,
    /// Seed of all random choices, of which a server's are not
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
    /// Stop once the 95 % interval of every speed-up reaches no further than this share either
    /// side [default: 0.05]
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    precision: Option<f64>,
    /// Stop after this long, as in 90s, 15m or 1h30m, loading included [default: 2h; 4m with --quick]
    #[arg(long, value_name = "TIME")]
    time_limit: Option<Span>,
    /// A first impression within five minutes: one repeat, a prompt of each task, short texts
    #[arg(long)]
    quick: bool,
    /// The page; measurements go beside it as they are made, with .jsonl at the end
    #[arg(short, long, value_name = "FILE", default_value = "bench.html")]
    out: PathBuf,
    /// The report for programs [default: beside the page, with .json at the end]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Go on with what was measured before by the same settings
    #[arg(long, conflicts_with = "force")]
    resume: bool,
    /// Write over the files of an earlier run
    #[arg(long)]
    force: bool,
}

/// A server instead of models, as given.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Server")]
struct ServerFlags {
    /// Measure an OpenAI-compatible server instead of models, such as http://localhost:8080
    #[arg(long, value_name = "URL")]
    #[arg(conflicts_with_all = ["draft", "spec_type", "verify", "spec_draft_paths"])]
    #[arg(conflicts_with_all = ["spec_draft_n_max", "spec_adaptive"])]
    url: Option<String>,
    /// The same model served without speculation, where a request cannot turn it off
    #[arg(long, value_name = "URL")]
    plain_url: Option<String>,
    /// Key of the server
    #[arg(long, env = "FORERUN_API_KEY", value_name = "KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Name of the model in requests [default: the first the server names]
    #[arg(long, value_name = "NAME")]
    model_name: Option<String>,
    /// Users at once, separated by commas [default: 1,4]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    concurrency: Vec<usize>,
}

/// What to measure, checked.
pub(super) struct BenchConfig {
    /// Where texts come from.
    pub(super) place: Place,
    /// The files to write.
    pub(super) files: Files,
    /// Whether to go on with them.
    pub(super) resume: bool,
    /// Whether to write over them.
    pub(super) force: bool,
    /// Whether a first impression is enough.
    pub(super) quick: bool,
    /// When it is enough.
    pub(super) stop: Stop,
    /// A file of prompts.
    pub(super) prompts: Option<PathBuf>,
    /// The tasks that were named.
    pub(super) tasks: Option<Vec<String>>,
    /// Prompts of each; none where time decides.
    pub(super) prompts_per_task: Option<usize>,
    /// Most prompts of each, where time decides.
    pub(super) prompts_per_task_max: usize,
    /// Tokens of a text.
    pub(super) text_len: usize,
    /// Every setting is run at each.
    pub(super) temperatures: Vec<f32>,
    /// How rows are cut; none where a server decides.
    pub(super) top_k: Option<u32>,
    /// The same.
    pub(super) top_p: Option<f32>,
    /// The same.
    pub(super) min_p: Option<f32>,
    /// Of all random choices.
    pub(super) seed: u64,
}

/// Where texts come from.
pub(super) enum Place {
    /// Models of our own.
    Local(Box<LocalConfig>),
    /// A server.
    Server(ServerConfig),
}

/// Models of our own.
pub(super) struct LocalConfig {
    /// The target.
    pub(super) target: ModelConfig,
    /// How much context it gets.
    pub(super) context: ContextLen,
    /// The draft models' files.
    pub(super) files: Vec<PathBuf>,
    /// All drafters, draft models first.
    pub(super) drafters: Vec<Drafting>,
    /// What is combined with each other.
    pub(super) axes: Axes,
}

/// A server.
pub(super) struct ServerConfig {
    /// Where.
    pub(super) address: Address,
    /// Users at once.
    pub(super) users: Vec<usize>,
}

impl BenchFlags {
    /// The reports to compare, where that is wanted.
    pub(super) fn compared(&self) -> Option<(&Path, &Path)> {
        let BenchCommand::Compare { old, new } = self.command.as_ref()?;
        Some((old, new))
    }

    /// Decides every default.
    pub(super) fn resolve(self) -> Result<BenchConfig, ConfigError> {
        self.server.check()?;
        let (texts, run) = (self.texts, self.run);
        let quick = run.quick;
        let is_server = self.server.url.is_some();
        let own = |value| Some(value).filter(|_| !is_server);
        let (top_k, top_p, min_p) = (texts.top_k, texts.top_p, texts.min_p);
        let temperatures = distinct(or(self.draft.temp.clone(), &[0.0, 1.0]));
        for temperature in &temperatures {
            let sampling = Sampling {
                temperature: *temperature,
                top_p: top_p.unwrap_or(1.0),
                min_p: min_p.unwrap_or(0.0),
                ..Sampling::unshaped()
            };
            sampling.check(usize::MAX)?;
        }
        let text_len = texts.predict.unwrap_or(if quick { QUICK_TEXT_LEN } else { TEXT_LEN });
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
                Place::Local(Box::new(self.draft.resolve(self.engine.resolve(model)?)?))
            }
            (None, None) => return Err(ConfigError::NoModel),
        };
        Ok(BenchConfig {
            place,
            stop: run.stop()?,
            files: run.files(),
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
        })
    }
}

impl RunFlags {
    fn stop(&self) -> Result<Stop, ConfigError> {
        let repeats = self.repeats.unwrap_or(if self.quick { 1 } else { REPEATS });
        let precision = self.precision.unwrap_or(PRECISION);
        if !(precision > 0.0 && precision < 1.0) {
            let (flag, value) = ("--precision", precision.to_string());
            let expected = "a share between 0 and 1, such as 0.05".to_owned();
            return Err(ConfigError::OutOfRange { flag, value, expected });
        }
        let limit = if self.quick { QUICK_TIME_LIMIT_S } else { TIME_LIMIT_S };
        Ok(Stop {
            repeats: within("--repeats", repeats, 1..=1000)?,
            precision,
            time_limit_s: self.time_limit.map_or(limit, |span| span.seconds),
        })
    }

    fn files(&self) -> Files {
        let data = self.json.clone().unwrap_or_else(|| self.out.with_extension("json"));
        let journal = self.out.with_extension("jsonl");
        Files { page: self.out.clone(), data, journal }
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
    fn resolve(
        self,
        (target, context): (ModelConfig, ContextLen),
    ) -> Result<LocalConfig, ConfigError> {
        let widths = distinct(or(self.spec_draft_paths.clone(), &[1]));
        let lens = distinct(or(self.spec_draft_n_max.clone(), &[4]));
        for width in &widths {
            within("--spec-draft-paths", *width, 1..=16)?;
        }
        for len in &lens {
            within("--spec-draft-n-max", *len, 1..=64)?;
        }
        let teams = self.teams()?;
        let has_model = teams.iter().flatten().any(|drafter| drafter.kind == Kind::Model);
        if !has_model && widths != [1] {
            return Err(ConfigError::Unused {
                flag: "--spec-draft-paths",
                reason: "no draft model drafts",
                instead: "add --draft FILE",
            });
        }
        let mut drafters: Vec<Drafting> = Vec::new();
        for kind in [Kind::Model, Kind::Ngram, Kind::Suffix] {
            for drafter in teams.iter().flatten().filter(|drafter| drafter.kind == kind) {
                if !drafters.contains(drafter) {
                    drafters.push(drafter.clone());
                }
            }
        }
        let adaptive = distinct(or(self.spec_adaptive, &[false]));
        let rules = distinct(self.verify);
        let axes = Axes { teams, rules, widths, lens, adaptive };
        Ok(LocalConfig { target, context, files: self.draft, drafters, axes })
    }

    /// What drafts together: each draft model, and what else was named.
    fn teams(&self) -> Result<Vec<Vec<Drafting>>, ConfigError> {
        let name = |path: &PathBuf| stem(&file_name(path));
        let models: Vec<String> = self.draft.iter().map(name).collect();
        if distinct(models.clone()).len() < models.len() {
            return Err(ConfigError::Unused {
                flag: "--draft",
                reason: "another draft model has the same name",
                instead: "name each once, by files of different names",
            });
        }
        let alone = Team(vec![Kind::Model]);
        let looked_up = [Team(vec![Kind::Ngram]), Team(vec![Kind::Suffix])];
        let mut named = if models.is_empty() { Vec::new() } else { vec![alone] };
        named.extend(match self.spec_type.is_empty() && models.is_empty() {
            true => looked_up.to_vec(),
            false => self.spec_type.clone(),
        });
        let mut teams = Vec::new();
        for Team(kinds) in distinct(named).into_iter().filter(|team| !team.0.is_empty()) {
            if !kinds.contains(&Kind::Model) {
                teams.push(kinds.iter().map(|kind| looked_up_by(*kind)).collect());
                continue;
            }
            if models.is_empty() {
                let (drafter, flag) = (Kind::Model.name(), "--draft");
                return Err(ConfigError::NothingToDraftFrom { drafter, flag });
            }
            for model in &models {
                let drafter = |kind: &Kind| match kind {
                    Kind::Model => Drafting { name: model.clone(), kind: *kind },
                    kind => looked_up_by(*kind),
                };
                teams.push(kinds.iter().map(drafter).collect());
            }
        }
        Ok(teams)
    }
}

fn looked_up_by(kind: Kind) -> Drafting {
    Drafting { name: kind.name().to_owned(), kind }
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

/// Each once, in the order they were said.
fn distinct<T: PartialEq>(all: Vec<T>) -> Vec<T> {
    let mut once: Vec<T> = Vec::with_capacity(all.len());
    for one in all {
        if !once.contains(&one) {
            once.push(one);
        }
    }
    once
}

fn within(
    flag: &'static str,
    value: usize,
    range: std::ops::RangeInclusive<usize>,
) -> Result<usize, ConfigError> {
    if range.contains(&value) {
        return Ok(value);
    }
    let expected = format!("{} to {}", range.start(), range.end());
    Err(ConfigError::OutOfRange { flag, value: value.to_string(), expected })
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, FromArgMatches};

    use super::*;
    use crate::{Cli, Command, args};

    fn resolve(line: &str) -> Result<BenchConfig, String> {
        let line = format!("forerun bench {line}");
        let mut command = Cli::command();
        let argv = args::written_out(line.split_whitespace().map(Into::into), &mut command);
        let matches = command.try_get_matches_from(argv.map_err(|error| error.to_string())?);
        let matches = matches.map_err(|error| error.to_string())?;
        match Cli::from_arg_matches(&matches).unwrap().command {
            Command::Bench(flags) => flags.resolve().map_err(|error| error.to_string()),
            _ => unreachable!("the line says bench"),
        }
    }

    fn local(line: &str) -> LocalConfig {
        match resolve(&format!("-m big.gguf {line}")).unwrap().place {
            Place::Local(local) => *local,
            Place::Server(_) => panic!("no server was named"),
        }
    }

    fn settings(line: &str) -> Vec<String> {
        let product = local(line).axes.product().unwrap();
        product.settings.into_iter().map(|setting| setting.name).collect()
    }

    #[test]
    fn nothing_said_means_what_looks_tokens_up() {
        let config = resolve("-m big.gguf").unwrap();
        assert_eq!((config.text_len, config.temperatures), (64, vec![0.0, 1.0]));
        assert_eq!((config.stop.repeats, config.prompts_per_task), (5, None));
        assert_eq!((config.top_k, config.top_p, config.min_p), (Some(0), Some(1.0), Some(0.0)));
        assert_eq!(config.files.journal, PathBuf::from("bench.jsonl"));
        assert_eq!(settings(""), ["plain", "ngram, block, 1x4", "suffix, block, 1x4"]);
        assert_eq!(settings("--spec-type none"), ["plain"]);
    }

    #[test]
    fn drafters_rules_widths_and_lengths_are_lists() {
        let line = "-md a.gguf --draft dir/b.gguf --spec-type ngram --verify block,pooled \
                    --draft-paths 2 --draft-max 2,4";
        assert_eq!(
            settings(line),
            [
                "plain",
                "a, block, 1x2",
                "a, block, 1x4",
                "a, pooled, 2x2",
                "a, pooled, 2x4",
                "b, block, 1x2",
                "b, block, 1x4",
                "b, pooled, 2x2",
                "b, pooled, 2x4",
                "ngram, block, 1x2",
                "ngram, block, 1x4",
                "ngram, pooled, 1x2",
                "ngram, pooled, 1x4",
            ]
        );
        let names: Vec<String> = local(line).drafters.into_iter().map(|it| it.name).collect();
        assert_eq!(names, ["a", "b", "ngram"]);
        assert_eq!(
            settings("-md a.gguf --spec-type draft-model+ngram"),
            ["plain", "a, block, 1x4", "a & ngram, pooled, 1x4"]
        );
    }

    #[test]
    fn a_quick_run_is_short() {
        let config = resolve("-m big.gguf --quick --out x/y.html").unwrap();
        assert_eq!(
            (config.text_len, config.stop.repeats, config.stop.time_limit_s),
            (32, 1, 240.0)
        );
        assert_eq!(config.prompts_per_task_max, 1);
        assert_eq!(config.files.data, PathBuf::from("x/y.json"));
        let longer = resolve("-m big.gguf --quick -n 48 --time-limit 3m").unwrap();
        assert_eq!((longer.text_len, longer.stop.time_limit_s), (48, 180.0));
    }

    #[test]
    fn a_server_needs_no_model_and_decides_how_rows_are_cut() {
        let config = resolve("--url http://localhost:1 --concurrency 1,8 --temp 0.7").unwrap();
        assert_eq!((config.top_k, config.top_p, config.min_p), (None, None, None));
        assert_eq!(config.prompts_per_task, Some(2));
        let Place::Server(server) = config.place else { panic!("a server was named") };
        assert_eq!(server.users, [1, 8]);
    }

    #[test]
    fn what_means_nothing_is_refused() {
        for (line, said) in [
            ("", "--model <FILE>"),
            ("-m x -n 1", "--predict is 1; expected 2 to 4096"),
            ("-m x --repeats 0", "--repeats is 0; expected 1 to 1000"),
            ("-m x --precision 2", "--precision is 2; expected a share"),
            ("-m x --time-limit soon", "expected a length of time"),
            ("-m x --temp -1", "temperature is -1"),
            ("-m x --temp hot", "invalid value 'hot'"),
            ("-m x --verify best", "there is no rule \"best\": choose one of block"),
            ("-m x --spec-type eagle", "expected ngram, suffix or draft-model"),
            ("-m x --spec-type draft-model", "drafts from a file: add --draft FILE"),
            ("-m x --spec-draft-paths 2", "--spec-draft-paths would do nothing"),
            ("-m x -md a --spec-draft-paths 0", "--spec-draft-paths is 0; expected 1 to 16"),
            ("-m x -md a --spec-draft-n-max 65", "--spec-draft-n-max is 65; expected 1 to 64"),
            ("-m x -md a/b.gguf -md c/b.gguf", "another draft model has the same name"),
            ("-m x --resume --force", "cannot be used with"),
            ("-m x --url http://y", "cannot be used with"),
            ("-m x --concurrency 2", "--concurrency would do nothing, because no server"),
            ("--url http://y --concurrency 0", "--concurrency is 0; expected 1 to 1024"),
            ("--url http://y --draft z", "cannot be used with"),
            ("compare a", "<NEW>"),
        ] {
            let message = resolve(line).err().unwrap_or_else(|| panic!("{line} is taken"));
            assert!(message.contains(said), "{line}: {message}");
        }
    }
}
