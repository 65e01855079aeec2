//! What can be said to `forerun certify`, and what it means.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use forerun_decode::RuleChoice;
use serde_json::{Map, Value, json};

use super::broken::Fault;
use super::decoder::Limits;
use super::server::ANSWER;
use crate::client::Client;
use crate::flags::{
    ConfigError, ContextLen, DraftConfig, DraftFlags, DrafterConfig, EngineFlags, ModelConfig,
    SamplingConfig, SamplingFlags, TargetFlags,
};
use crate::span::{Limit, Span};

/// Tokens of context each text gets unless told otherwise.
const CONTEXT_LEN: u32 = 512;

/// The share of wrong tokens that a decoder's test must be able to find: about as small as ten minutes
/// of a model of 135 M parameters can find on two cores.
const POWER: f64 = 0.01;
const QUICK_POWER: f64 = 0.05;

/// The share of texts by which two samples must differ to be found: at the default false-alarm rate 356
/// pairs of texts tell 15 % apart, which such a server answers in ten minutes.
pub(super) const DIFFERENCE: f64 = 0.15;
const QUICK_DIFFERENCE: f64 = 0.3;

/// What the command may take.
const TIME_LIMIT: Duration = Duration::from_secs(600);
const QUICK_TIME_LIMIT: Duration = Duration::from_secs(60);

const EXIT_CODES: &str = "Exit codes: 0 passed, 1 failed (or an error), 2 usage, 3 inconclusive: \
                          nothing wrong was found, but not enough was tested.";

/// What to certify, as given.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct CertifyFlags {
    #[command(flatten)]
    target: TargetFlags,
    /// Address of a server to certify instead, ours or any OpenAI-compatible one
    #[arg(long, value_name = "URL", conflicts_with_all = ["EngineFlags", "DraftFlags"])]
    url: Option<String>,
    /// Address of the same model without speculation, where the server cannot switch it off for a
    /// request
    #[arg(long, value_name = "URL", requires = "url")]
    plain_url: Option<String>,
    /// Fields of requests with speculation, as JSON [default: for Forerun, drafts of 4 tokens]
    #[arg(long, value_name = "JSON", requires = "url")]
    on: Option<String>,
    /// Fields of requests without [default: {"speculative": {"enabled": false}}, or none with
    /// --plain-url]
    #[arg(long, value_name = "JSON", requires = "url")]
    off: Option<String>,
    /// Key for the server
    #[arg(
        long,
        env = "OPENAI_API_KEY",
        hide_env_values = true,
        value_name = "KEY",
        requires = "url"
    )]
    api_key: Option<String>,
    /// The model's name at the server, where it wants one
    #[arg(long, value_name = "NAME", requires = "url")]
    model_name: Option<String>,
    /// Requests under way at once [default: 4]
    #[arg(long, value_name = "N", requires = "url")]
    concurrency: Option<usize>,
    /// Most pairs of texts that are asked of a server [default: 2000]
    #[arg(long, value_name = "N", requires = "url")]
    pairs: Option<u64>,
    /// File of prompts: a JSON object with "prompt" on each line, or a prompt on each line; the
    /// first eight are used [default: five built-in ones]
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// How often a right decoder may fail
    #[arg(long, default_value_t = 0.001, value_name = "P")]
    false_alarm: f64,
    /// How small a fault must be found before the verdict may be PASSED; the test stops there. Of a
    /// model: the share of tokens that are wrong. Of a server: the share of texts by which
    /// speculation on and off differ [default: 0.01, or 0.05 with --quick; of a server 0.15, or 0.3;
    /// never reached with --broken]
    #[arg(long, value_name = "P", conflicts_with = "broken")]
    power: Option<f64>,
    /// Stop after this long, as in 90s, 15m or 1h30m, loading included; what has not reached its
    /// power by then is INCONCLUSIVE [default: 10m; 1m with --quick]
    #[arg(long, value_name = "TIME")]
    time_limit: Option<Span>,
    /// A first impression within a minute, of less power
    #[arg(long)]
    quick: bool,
    /// Tokens of each text [default: 32; 12 of a server's]
    #[arg(short = 'n', long, value_name = "N")]
    predict: Option<usize>,
    /// Texts made at once [default: 16]
    #[arg(long, value_name = "N", conflicts_with = "url")]
    parallel: Option<u32>,
    /// Break the decoder on purpose, to see the certificate fail
    #[arg(long, value_name = "FAULT", conflicts_with = "url")]
    broken: Option<Fault>,
    /// Where the certificate goes as a page
    #[arg(long, default_value = "certificate.html", value_name = "FILE")]
    out: PathBuf,
    /// Where it goes as JSON [default: beside the page]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineFlags,
    #[command(flatten)]
    draft: DraftFlags,
    #[command(flatten)]
    sampling: SamplingFlags,
}

/// The same, checked.
pub(super) struct CertifyConfig {
    pub(super) subject: Subject,
    pub(super) prompts: Option<PathBuf>,
    pub(super) sampling: SamplingConfig,
    pub(super) limits: Limits,
    pub(super) out: PathBuf,
    pub(super) json: PathBuf,
}

/// What is certified.
pub(super) enum Subject {
    Model(Box<ModelSubject>),
    Server(Box<ServerSubject>),
}

/// A decoder in this process.
pub(super) struct ModelSubject {
    pub(super) target: ModelConfig,
    pub(super) context: ContextLen,
    pub(super) draft: DraftConfig,
    pub(super) slots: NonZeroU32,
    pub(super) broken: Option<Fault>,
}

/// Somebody's server.
pub(super) struct ServerSubject {
    pub(super) on: Client,
    pub(super) off: Client,
    pub(super) on_body: Map<String, Value>,
    pub(super) off_body: Map<String, Value>,
    pub(super) model: Option<String>,
    pub(super) users: usize,
    pub(super) pairs_max: u64,
}

impl CertifyFlags {
    /// Decides every default. The time starts to count.
    pub(super) fn resolve(self) -> anyhow::Result<CertifyConfig> {
        let share = |flag: &'static str, value: f64| {
            if value > 0.0 && value < 1.0 {
                return Ok(value);
            }
            let expected = "above 0 and below 1".to_owned();
            Err(ConfigError::OutOfRange { flag, value: value.to_string(), expected })
        };
        let of_server = self.url.is_some();
        let text_len = self.predict.unwrap_or(if of_server { 12 } else { 32 });
        if !(2..=256).contains(&text_len) {
            let (flag, value) = ("--predict", text_len.to_string());
            Err(ConfigError::OutOfRange { flag, value, expected: "2 to 256".to_owned() })?;
        }
        let default = match (of_server, self.quick) {
            (false, false) => POWER,
            (false, true) => QUICK_POWER,
            (true, false) => DIFFERENCE,
            (true, true) => QUICK_DIFFERENCE,
        };
        // What is broken is to be found, however long it takes.
        let power = match self.power {
            None if self.broken.is_some() => 0.0,
            power => share("--power", power.unwrap_or(default))?,
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
        let subject = match (&self.url, model) {
            (Some(url), _) => Subject::Server(Box::new(self.server(url)?)),
            (None, Some(model)) => Subject::Model(Box::new(self.clone().local(model)?)),
            (None, None) => return Err(ConfigError::NoModel.into()),
        };
        Ok(CertifyConfig { subject, prompts, sampling, limits, out, json })
    }

    fn local(self, model: PathBuf) -> anyhow::Result<ModelSubject> {
        let (target, context) = self.engine.resolve(model)?;
        let context = match context {
            ContextLen::AtMost(len) => {
                ContextLen::AtMost(len.min(NonZeroU32::new(CONTEXT_LEN).unwrap_or(len)))
            }
            other => other,
        };
        // Always drafted for, so that what is tested is speculation and not the choice against it.
        let draft = self.draft.resolve(&target, true)?;
        ensure!(
            !draft.drafters.is_empty(),
            "nothing drafts, so there is nothing to certify: add --spec-draft-model FILE or --spec-type"
        );
        if let Some(fault) = self.broken {
            let one_model = matches!(draft.drafters.as_slice(), [DrafterConfig::Model(_)]);
            ensure!(
                one_model && draft.width.get() == 1 && draft.rule == RuleChoice::Block,
                "{} can be shown with one path of a draft model under --verify block: leave out other \
                 drafters, paths and rules",
                fault.about()
            );
        }
        let slots = within("--parallel", self.parallel.map_or(16, u64::from))?;
        let slots = u32::try_from(slots).ok().and_then(NonZeroU32::new).context("64 at most")?;
        Ok(ModelSubject { target, context, draft, slots, broken: self.broken })
    }

    fn server(&self, url: &str) -> anyhow::Result<ServerSubject> {
        let client = |url: &str| Client::new(url, self.api_key.clone(), ANSWER);
        let on = client(url)?;
        let off = self.plain_url.as_deref().map_or_else(|| Ok(on.clone()), client)?;
        let fields = |text: &Option<String>, flag: &str| -> anyhow::Result<Option<Map<_, _>>> {
            let Some(text) = text else { return Ok(None) };
            let Ok(Value::Object(fields)) = serde_json::from_str(text) else {
                bail!("{flag} is no JSON object: {text}")
            };
            Ok(Some(fields))
        };
        let object = |value: Value| value.as_object().cloned().unwrap_or_default();
        let (on_said, off_said) = (fields(&self.on, "--on")?, fields(&self.off, "--off")?);
        // Only Forerun knows the field; others would refuse or ignore it.
        let ours = on_said.is_none() && off_said.is_none() && self.plain_url.is_none();
        let on_default = if ours { json!({ "speculative": { "length": 4 } }) } else { json!({}) };
        let off_default =
            if ours { json!({ "speculative": { "enabled": false } }) } else { json!({}) };
        Ok(ServerSubject {
            on,
            off,
            on_body: on_said.unwrap_or_else(|| object(on_default)),
            off_body: off_said.unwrap_or_else(|| object(off_default)),
            model: self.model_name.clone(),
            users: usize::try_from(within(
                "--concurrency",
                self.concurrency.map_or(4, |n| n as u64),
            )?)?,
            pairs_max: self.pairs.unwrap_or(2000),
        })
    }
}

/// How many at once.
fn within(flag: &'static str, value: u64) -> Result<u64, ConfigError> {
    if (1..=64).contains(&value) {
        return Ok(value);
    }
    let expected = "1 to 64".to_owned();
    Err(ConfigError::OutOfRange { flag, value: value.to_string(), expected })
}
