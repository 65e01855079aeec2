//! `forerun simulate`: what can be said to it. What it does is in the lab.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::TypedValueParser;
use forerun_lab::simulate::{self, LoadConfig, Policy, SimulateConfig};

use crate::flags::named;
use crate::lab::Console;

/// What to simulate.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct SimulateFlags {
    /// JSON report of `forerun bench`, which has the pass times and acceptance rates of one replica
    #[arg(value_name = "REPORT")]
    report: PathBuf,
    /// Setting of the report whose drafts are simulated [default: the fastest]
    #[arg(long, value_name = "NAME")]
    setting: Option<String>,
    /// Conditional acceptance rates by position, instead of those in the report
    #[arg(long, value_name = "P,…", value_delimiter = ',')]
    accepted: Option<Vec<f64>>,
    /// Project to another machine: milliseconds of the target's passes by number of tokens, such as
    /// 1=20,16=20.5,64=24, instead of those in the report
    #[arg(long, value_name = "TOKENS=MS,…", value_delimiter = ',', value_parser = point)]
    target_ms: Option<Vec<(usize, f64)>>,
    /// The same for the draft model's passes [default: in proportion to the target's]
    #[arg(long, value_name = "TOKENS=MS,…", value_delimiter = ',', value_parser = point)]
    #[arg(requires = "target_ms")]
    draft_ms: Option<Vec<(usize, f64)>>,
    /// Temperature of the report to use
    #[arg(long, value_name = "T", default_value_t = 1.0)]
    temp: f32,
    /// Number of replicas; several numbers, separated by commas, give a table for each
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1")]
    replicas: Vec<usize>,
    /// Number of slots per replica: sequences decoded in one batch [-np]
    #[arg(long, value_name = "N", default_value_t = 4)]
    parallel: usize,
    /// Number of users; each sends the next request when it has its response
    #[arg(long, value_name = "N", default_value_t = 8, conflicts_with = "rate")]
    users: usize,
    /// Number of conversations that begin per second, instead of a fixed number of users
    #[arg(long, value_name = "PER_SECOND")]
    rate: Option<f64>,
    /// Mean seconds that a user reads before the next request
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    think: f64,
    /// Number of requests per conversation
    #[arg(long, value_name = "N", default_value_t = 1)]
    turns: usize,
    /// Tokens per prompt
    #[arg(long, value_name = "N", default_value_t = 256)]
    prompt_len: usize,
    /// Tokens per response
    #[arg(long, value_name = "N", default_value_t = 128)]
    output_len: usize,
    /// File with the prompt length and response length of one request per line
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt_len", "output_len"])]
    lengths: Option<PathBuf>,
    /// Length of the prefix that all prompts share, in tokens; part of --prompt-len
    #[arg(long, value_name = "N", default_value_t = 0)]
    shared_len: usize,
    /// How requests are routed
    #[arg(long, value_name = "POLICY", default_value = "cache-aware", value_parser = policy())]
    policy: Policy,
    /// Microseconds that the router takes per request
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 0.0)]
    router_us: f64,
    /// Seconds between the router's polls of the replicas' load; 0 if it always knows the load
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    load_interval: f64,
    /// Price of a replica per hour
    #[arg(long, value_name = "PRICE", default_value_t = 1.0)]
    price: f64,
    /// Seconds to simulate, after a warm-up of a fifth of that
    #[arg(long, value_name = "SECONDS", default_value_t = 600.0)]
    seconds: f64,
    /// Random seed
    #[arg(short, long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Reads what a pass over so many tokens takes.
fn point(given: &str) -> Result<(usize, f64), String> {
    let parts = given
        .split_once('=')
        .and_then(|(tokens, ms)| Some((tokens.trim().parse().ok()?, ms.trim().parse().ok()?)));
    parts.ok_or_else(|| "expected TOKENS=MS, such as 16=20.5".to_owned())
}

/// Reads how requests are spread.
fn policy() -> impl TypedValueParser<Value = Policy> {
    named(Policy::ALL.map(|policy| (policy.name(), policy.explained(), policy)))
}

impl SimulateFlags {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let console = Console::new();
        if !simulate::run(&self.resolve(), &console)? {
            console.warn("no request finished in the simulated time; raise --seconds");
        }
        Ok(ExitCode::SUCCESS)
    }

    fn resolve(self) -> SimulateConfig {
        SimulateConfig {
            report: self.report,
            setting: self.setting,
            accepted: self.accepted,
            target_ms: self.target_ms,
            draft_ms: self.draft_ms,
            temperature: self.temp,
            replicas: self.replicas,
            parallel: self.parallel,
            load: LoadConfig {
                users: self.users,
                rate: self.rate,
                think_s: self.think,
                turns: self.turns,
                prompt_len: self.prompt_len,
                output_len: self.output_len,
                lengths: self.lengths,
                shared_len: self.shared_len,
            },
            policy: self.policy,
            router_us: self.router_us,
            load_interval_s: self.load_interval,
            price: self.price,
            seconds: self.seconds,
            seed: self.seed,
            json: self.json,
        }
    }
}
