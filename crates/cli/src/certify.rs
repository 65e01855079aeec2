//! `forerun certify`: what can be said to it, and what it means. What it does is in the lab.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{bail, ensure};
use clap::builder::TypedValueParser;
use forerun_decode::{LossyMode, RuleChoice};
use forerun_lab::certify::{
    self, CertifyConfig, DIFFERENCE, Fault, Limits, ModelSubject, ServerSubject, Verdict,
};
use forerun_lab::{Limit, Span, Subject};
use serde_json::{Map, Value};

use crate::flags::{
    ConfigError, ContextLen, DraftFlags, DrafterConfig, EngineFlags, SamplingFlags, TargetFlags,
    named, within,
};
use crate::interrupt::{EXIT_CODE, Interrupt};
use crate::lab::{Console, Gguf, GgufConfig, provenance};

/// Most outputs or requests at once.
const AT_ONCE_MAX: u32 = 64;

/// Tokens of context each text gets unless told otherwise.
const CONTEXT_LEN: u32 = 512;

/// The share of wrong tokens that a decoder's test must be able to find: about as small as ten minutes
/// of a model of 135 M parameters can find on two cores.
const POWER: f64 = 0.01;
const QUICK_POWER: f64 = 0.05;

/// The same of a server's outputs, for a first impression.
const QUICK_DIFFERENCE: f64 = 0.3;

/// The least excess of a lossy mode that its test must be able to find, if it promises less: unless told
/// otherwise twice the promise is found.
const LOSS_POWER_MIN: f64 = 0.005;

/// What the program ends with where nothing wrong was found but too little was tested. 2 is for
/// command lines that cannot be read.
const INCONCLUSIVE: u8 = 3;

/// What the command may take.
const TIME_LIMIT: Duration = Duration::from_secs(600);
const QUICK_TIME_LIMIT: Duration = Duration::from_secs(60);

const EXIT_CODES: &str = "Exit codes: 0 passed, 1 failed (or an error), 2 usage, 3 inconclusive: \
                          nothing wrong was found, but not enough was tested. With --lossy: 0 within \
                          the promise, 1 exceeded, 3 not shown.";

/// What to certify, as given.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct CertifyFlags {
    #[command(flatten)]
    target: TargetFlags,
    /// Certify the OpenAI-compatible server at this address instead of a model
    #[arg(long, value_name = "URL", conflicts_with_all = ["EngineFlags", "DraftFlags"])]
    url: Option<String>,
    /// Address of the same model without speculation, if a request to --url cannot turn it off
    #[arg(long, value_name = "URL", requires = "url")]
    plain_url: Option<String>,
    /// JSON fields of requests with speculation [default: {"speculative": {"length": 4}}, or none
    /// with --off or --plain-url]
    #[arg(long, value_name = "JSON", requires = "url")]
    on: Option<String>,
    /// JSON fields of requests without speculation [default: {"speculative": {"enabled": false}},
    /// or none with --on or --plain-url]
    #[arg(long, value_name = "JSON", requires = "url")]
    off: Option<String>,
    /// API key of the server
    #[arg(
        long,
        env = "OPENAI_API_KEY",
        hide_env_values = true,
        value_name = "KEY",
        requires = "url"
    )]
    api_key: Option<String>,
    /// Name of the model in requests, if the server needs one
    #[arg(long, value_name = "NAME", requires = "url")]
    model_name: Option<String>,
    /// Number of concurrent requests [default: 4]
    #[arg(long, value_name = "N", requires = "url")]
    concurrency: Option<u32>,
    /// Maximum number of pairs of outputs to request from a server [default: 2000]
    #[arg(long, value_name = "N", requires = "url")]
    pairs: Option<u64>,
    /// File with prompts: each line is a prompt, or a JSON object with "prompt"; the first eight
    /// are used [default: five built-in prompts]
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// False-alarm rate: probability that a correct decoder fails
    #[arg(long, default_value_t = 0.001, value_name = "P")]
    false_alarm: f64,
    /// Smallest fault that the test must be able to find for the verdict PASSED; it stops there.
    /// For a model: the fraction of tokens that are wrong. For a server: the fraction of outputs by
    /// which speculation on and off differ. With --lossy: the total variation per token above what
    /// is promised [default: 0.01, or 0.05 with --quick; for a server 0.15, or 0.3 with --quick; with
    /// --lossy as much as is promised; never reached with --broken]
    #[arg(long, value_name = "P", conflicts_with = "broken")]
    power: Option<f64>,
    /// Stop after this time, such as 90s, 15m or 1h30m, including loading; a test that has not
    /// reached its power by then is INCONCLUSIVE [default: 10m; 1m with --quick]
    #[arg(long, value_name = "TIME")]
    time_limit: Option<Span>,
    /// Get a first impression within a minute, with less power
    #[arg(long)]
    quick: bool,
    /// Tokens per output [default: 32; 12 for a server]
    #[arg(short = 'n', long, value_name = "N")]
    predict: Option<usize>,
    /// Number of sequences decoded in one batch [default: 16]
    #[arg(long, value_name = "N", conflicts_with = "url")]
    parallel: Option<u32>,
    /// Break the decoder on purpose, to see the certification fail
    #[arg(long, value_name = "FAULT", conflicts_with = "url", value_parser = fault())]
    broken: Option<Fault>,
    /// HTML file for the certificate
    #[arg(long, default_value = "certificate.html", value_name = "FILE")]
    out: PathBuf,
    /// JSON file for the certificate [default: as --out, with the extension .json]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineFlags,
    #[command(flatten)]
    draft: DraftFlags,
    #[command(flatten)]
    sampling: SamplingFlags,
}

/// What is certified.
enum Certified {
    /// A decoder in this process.
    Model(Box<GgufConfig>, ModelSubject),
    /// Somebody's server.
    Server(ServerSubject),
}

/// Reads what to break.
fn fault() -> impl TypedValueParser<Value = Fault> {
    named(Fault::ALL.map(|fault| (fault.name(), fault.explained(), fault)))
}

impl CertifyFlags {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let (config, certified) = self.resolve()?;
        let (interrupt, console) = (Interrupt::install()?, Console::new());
        let cancellation = interrupt.cancellation();
        let verdict = match &certified {
            Certified::Model(gguf, subject) => {
                let mut models = Gguf::new(gguf, &interrupt, &console);
                let subject = Subject::Models(subject, &mut models);
                certify::run(&config, subject, &console, cancellation)
            }
            Certified::Server(subject) => {
                certify::run(&config, Subject::Server(subject), &console, cancellation)
            }
        };
        let code = |verdict| match verdict {
            None => ExitCode::from(EXIT_CODE),
            Some(Verdict::Passed) => ExitCode::SUCCESS,
            Some(Verdict::Failed) => ExitCode::FAILURE,
            Some(Verdict::Inconclusive) => ExitCode::from(INCONCLUSIVE),
        };
        interrupt.or_stopped(verdict.map(code))
    }

    /// Decides every default. The time starts to count.
    fn resolve(self) -> anyhow::Result<(CertifyConfig, Certified)> {
        let share = |flag: &'static str, value: f64| {
            if value > 0.0 && value < 1.0 {
                return Ok(value);
            }
            Err(ConfigError::out_of_range(flag, value, "above 0 and below 1"))
        };
        let of_server = self.url.is_some();
        let text_len = self.predict.unwrap_or(if of_server { 12 } else { 32 });
        let text_len = within("--predict", text_len, 2..=256)?;
        let default = match (of_server, self.quick) {
            (false, false) => POWER,
            (false, true) => QUICK_POWER,
            (true, false) => DIFFERENCE,
            (true, true) => QUICK_DIFFERENCE,
        };
        let lossy = self.draft.lossy().map(|mode| mode.promised().max(LOSS_POWER_MIN));
        // What is broken is to be found, however long it takes.
        let power = match self.power {
            None if self.broken.is_some() => 0.0,
            power => share("--power", power.or(lossy).unwrap_or(default))?,
        };
        let time = if self.quick { QUICK_TIME_LIMIT } else { TIME_LIMIT };
        let limits = Limits {
            false_alarm: share("--false-alarm", self.false_alarm)?,
            power,
            limit: Limit::from_now(self.time_limit.map_or(time, Span::duration)),
            text_len,
        };
        let json = self.json.clone().unwrap_or_else(|| self.out.with_extension("json"));
        let (prompts, out) = (self.prompts.clone(), self.out.clone());
        let sampling = self.sampling.clone().resolve()?;
        let model = self.target.clone().unless_server(self.url.as_deref())?;
        let certified = match (&self.url, model) {
            (Some(url), _) => Certified::Server(self.server(url)?),
            (None, Some(model)) => {
                let (gguf, subject) = self.clone().local(model)?;
                Certified::Model(Box::new(gguf), subject)
            }
            (None, None) => return Err(ConfigError::NoModel.into()),
        };
        let provenance = provenance();
        let quick = self.quick;
        let config = CertifyConfig { prompts, sampling, limits, quick, out, json, provenance };
        Ok((config, certified))
    }

    fn local(self, model: PathBuf) -> anyhow::Result<(GgufConfig, ModelSubject)> {
        let (target, context) = self.engine.resolve(model)?;
        let context = match context {
            ContextLen::AtMost(len) => {
                ContextLen::AtMost(len.min(NonZeroU32::new(CONTEXT_LEN).unwrap_or(len)))
            }
            other => other,
        };
        // Always drafted for, so that what is tested is speculation and not the choice against it.
        let draft = self.draft.fetched(&self.target.hub(), &target.path)?.resolve(&target, true)?;
        ensure!(
            !draft.drafters.is_empty(),
            "nothing drafts, so there is nothing to certify: add --spec-draft-model FILE or --spec-type"
        );
        ensure!(
            !draft.gate.on,
            "certify drafts all it may in every round, so a gate would do nothing: leave out --spec-gate"
        );
        if let Some(fault) = self.broken {
            match (fault.is_of_lossy(), draft.lossy) {
                (true, None) => bail!("{}: add --lossy account:0.02", fault.about()),
                (false, Some(_)) => {
                    bail!("{} is of a lossless rule: leave out --lossy", fault.about())
                }
                _ => {}
            }
            let one_model = matches!(draft.drafters.as_slice(), [DrafterConfig::Model(_)]);
            ensure!(
                one_model && draft.width.get() == 1 && draft.rule == RuleChoice::Block,
                "{} can be shown with one path of a draft model under --verify block: leave out other \
                 drafters, paths and rules",
                fault.about()
            );
        }
        let sampling = self.sampling.resolve()?;
        draft.check_lossy(&sampling)?;
        ensure!(
            !matches!(draft.lossy, Some(LossyMode::Near(_))),
            "--lossy near says of every token whether it was forgiven, and is proved by enumeration: \
             certify budget or account"
        );
        ensure!(
            !matches!(draft.lossy, Some(LossyMode::Defer(_))),
            "--lossy defer bounds what a whole output spends, and single tokens, which are what is bet \
             on, may spend more; it is proved by enumeration: certify budget or account"
        );
        let slots = within("--parallel", self.parallel.unwrap_or(16), 1..=AT_ONCE_MAX)?;
        let slots = NonZeroU32::new(slots).expect("1 or more");
        let path = |drafter: &DrafterConfig| match drafter {
            DrafterConfig::Model(draft) => Some(draft.model.path.clone()),
            _ => None,
        };
        let subject = ModelSubject {
            target: target.path.clone(),
            draft_models: draft.drafters.iter().filter_map(path).collect(),
            drafters: draft.drafters.iter().map(DrafterConfig::kind).collect(),
            len: draft.len,
            width: draft.width,
            scheme: draft.scheme,
            may_stop: draft.may_stop(),
            rule: draft.rule,
            lossy: draft.lossy,
            slots,
            broken: self.broken,
        };
        Ok((GgufConfig { target, context, drafters: draft.drafters }, subject))
    }

    fn server(&self, url: &str) -> anyhow::Result<ServerSubject> {
        let fields = |text: &Option<String>, flag: &str| -> anyhow::Result<Option<Map<_, _>>> {
            let Some(text) = text else { return Ok(None) };
            let Ok(Value::Object(fields)) = serde_json::from_str(text) else {
                bail!("{flag} is no JSON object: {text}")
            };
            Ok(Some(fields))
        };
        Ok(ServerSubject {
            url: url.to_owned(),
            plain_url: self.plain_url.clone(),
            key: self.api_key.clone(),
            on: fields(&self.on, "--on")?,
            off: fields(&self.off, "--off")?,
            model: self.model_name.clone(),
            users: within("--concurrency", self.concurrency.unwrap_or(4), 1..=AT_ONCE_MAX)?
                as usize,
            pairs_max: self.pairs.unwrap_or(2000),
        })
    }
}
