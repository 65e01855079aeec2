//! `forerun certify`: proof, on the user's own model or server, that speculation left the output
//! alone; or that it did not.
//!
//! Four parts: the rule by enumeration, the decoder by tests on outputs, the engine by comparing rows,
//! a server by its answers. What was tested, what would have been found and the verdict go into a
//! certificate. A test that ended before it could find as little as was asked for is inconclusive.

mod broken;
mod certificate;
mod config;
mod decoder;
mod engines;
mod law;
mod loss;
mod pairs;
mod rule;
mod server;
mod spend;
mod verdict;
mod writer;

use std::cell::Cell;
use std::num::NonZeroU32;
use std::path::Path;

use forerun_decode::{
    Decoder, DraftPolicy, DrafterId, DrafterKind, LossyMode, RuleChoice, Sampling, Special, Token,
};
use serde_json::{Value, json};

use crate::cancellation::Cancellation;
use crate::error::{Error, Result};
use crate::machine::{self, Provenance};
use crate::models::{EngineShape, Models, Parts, Subject, Target};
use crate::observer::{Observer, Outline};
use crate::prompts::{self, Prompt};
use crate::span::Span;

pub use broken::Fault;
use broken::PenaltiesAtRoot;
use certificate::Certificate;
pub use config::{CertifyConfig, ModelSubject, ServerSubject};
use decoder::DecoderTest;
use engines::Engines;
use rule::InUse;
use server::ServerTest;
use spend::SpendTest;
pub use verdict::{DIFFERENCE, Limits, Verdict};
use writer::{Scorer, Writer};

/// Most prompts of one test: each has a slot of its own that holds it.
const PROMPTS_MAX: usize = 8;

/// When the engine's rows must have been compared, as a share of the time limit: outputs decide, and
/// get the rest.
const DRIFT_END: f64 = 0.25;

/// Tests, writes the certificate, and says what it came to; `None` if it was cancelled before
/// anything was tested.
///
/// # Errors
/// If something fails that is not the decoder's law: a file, a pass, a server.
pub fn run(
    config: &CertifyConfig,
    subject: Subject<'_, ModelSubject, ServerSubject>,
    observer: &dyn Observer,
    cancellation: &Cancellation,
) -> Result<Option<Verdict>> {
    let read = config.prompts.as_deref().map_or_else(|| Ok(prompts::few()), prompts::file)?;
    let prompts: Vec<Prompt> = read.into_iter().take(PROMPTS_MAX).collect();
    let of_server = matches!(subject, Subject::Server(_));
    let lossy = match &subject {
        Subject::Models(subject, _) => subject.lossy,
        Subject::Server(_) => None,
    };
    let outline = outline(config, of_server, lossy);
    let phase = Cell::new(0);
    let run = Run { config, prompts: &prompts, cancellation, observer, outline: &outline, phase };
    cancellation.expire_after(config.limits.limit.time);
    observer.begin(&outline);
    let certificate = match subject {
        Subject::Models(subject, models) => run.model(subject, models),
        Subject::Server(subject) => run.server(subject),
    };
    observer.end();
    let certificate = match certificate {
        Err(_) if cancellation.is_cancelled() && !cancellation.is_expired() => {
            observer.note("interrupted before anything was tested: there is no certificate");
            return Ok(None);
        }
        certificate => certificate?,
    };
    let write = |path: &Path, text: &str| std::fs::write(path, text).map_err(Error::writing(path));
    write(&config.out, &certificate.html())?;
    write(&config.json, &format!("{:#}\n", certificate.json()))?;
    observer.result(&certificate.text()).map_err(Error::Output)?;
    observer.note(&format!("written to {} and {}", config.out.display(), config.json.display()));
    Ok(Some(certificate.verdict()))
}

/// What is going to be tested, and until when.
fn outline(config: &CertifyConfig, of_server: bool, lossy: Option<LossyMode>) -> Outline {
    let percent = 100.0 * config.limits.power;
    let (phases, enough) = match of_server {
        true => (
            vec![
                ("greedy", "every prompt with speculation on and off at temperature 0".to_owned()),
                (
                    "outputs",
                    format!("pairs of outputs, until {percent} % of difference would be found"),
                ),
            ],
            "It ends earlier if something wrong is proved or enough was tested",
        ),
        false => (
            vec![
                ("rule", "every draft and verdict on small models, by enumeration".to_owned()),
                ("load", "hash and load the models".to_owned()),
                ("engine", "rows in blocks against rows one by one".to_owned()),
                (
                    "outputs",
                    match lossy {
                        Some(mode) => format!(
                            "outputs, until a spend of {} per token would be found",
                            mode.promised() + config.limits.power
                        ),
                        None => format!(
                            "drafted outputs, until {percent} % of wrong tokens would be found"
                        ),
                    },
                ),
            ],
            "It ends earlier if something wrong is proved or enough was tested",
        ),
    };
    let inconclusive = Verdict::Inconclusive.word(lossy.is_some());
    let shorter = if config.quick { "" } else { "--quick (1 minute), " };
    Outline {
        command: "certify",
        phases,
        limit: config.limits.limit,
        notes: vec![format!(
            "{enough}; Ctrl-C ends it with what was tested.\nShorter: {shorter}--time-limit TIME, or a \
             larger --power ({inconclusive} if it is not reached in time)."
        )],
    }
}

/// One run.
struct Run<'a> {
    config: &'a CertifyConfig,
    prompts: &'a [Prompt],
    cancellation: &'a Cancellation,
    observer: &'a dyn Observer,
    outline: &'a Outline,
    /// The phase of the outline that goes on.
    phase: Cell<usize>,
}

impl Run<'_> {
    /// A certificate that says nothing yet.
    fn certificate(&self, broken: Option<Fault>, lossy: Option<LossyMode>) -> Certificate {
        Certificate {
            about: about(&self.config.provenance),
            settings: settings(self.config, json!({ "prompts": self.prompts.len() })),
            broken: broken.map(Fault::about),
            false_alarm: self.config.limits.false_alarm,
            power: self.config.limits.power,
            time_limit: Span::from(self.config.limits.limit.time),
            cut: None,
            rule: None,
            decoder: None,
            lossy,
            spend: None,
            drift: Vec::new(),
            server: None,
        }
    }

    fn server(&self, subject: &ServerSubject) -> Result<Certificate> {
        prompts::check_for_server(self.prompts)?;
        let until = self.config.limits.limit.at(1.0);
        let (on, off) = subject.clients()?;
        let (on_body, off_body) = subject.bodies();
        let test = ServerTest {
            on: on.until(until),
            off: off.until(until),
            on_body,
            off_body,
            model: subject.model.clone(),
            prompts: self.prompts,
            sampling: &self.config.sampling,
            users: subject.users,
            limits: self.config.limits,
            pairs_max: subject.pairs_max,
            cancellation: self.cancellation,
        };
        let found = test.run(self.observer)?;
        Ok(Certificate { server: Some(found), ..self.certificate(None, None) })
    }

    /// All that could be tested of a model before the time was over.
    fn model(&self, subject: &ModelSubject, models: &mut dyn Models) -> Result<Certificate> {
        let mut certificate = self.certificate(subject.broken, subject.lossy);
        match self.examine(subject, models, &mut certificate) {
            Err(_) if self.cancellation.is_expired() => {
                let phase = self.outline.phases.get(self.phase.get());
                certificate.cut = phase.map(|(name, _)| *name);
                Ok(certificate)
            }
            examined => examined.map(|()| certificate),
        }
    }

    fn start(&self, phase: usize) {
        self.phase.set(phase);
        self.observer.phase(phase);
    }

    fn examine(
        &self,
        subject: &ModelSubject,
        models: &mut dyn Models,
        certificate: &mut Certificate,
    ) -> Result<()> {
        let config = self.config;
        let rule = subject.verification();
        let go_on = |share: f64| {
            self.observer.show(share, rule.name());
            !self.cancellation.is_cancelled()
        };
        let proof = in_use(subject).prove(&*rule, go_on);
        certificate.rule = proof.map_err(|refusal| {
            Error::refused(format!("the rule refuses these drafts: {refusal}"))
        })?;
        self.cancellation.check()?;

        self.start(1);
        self.hash(subject, &mut certificate.about)?;
        let (decoder, target, sampling) = self.load(subject, models)?;
        let room = config.limits.text_len + subject.len.get() + 1;
        let tokens = tokens(self.prompts, &target, &decoder, room)?;
        let (cancellation, observer) = (self.cancellation, self.observer);
        let mut engines = Engines { subject, models, prompts: &tokens, observer };
        certificate.settings = settings(config, engines.settings(config.sampling.seed));
        let reader = engines.reader()?;
        let suspect = engines.suspect()?;
        if subject.lossy.is_some() && suspect.is_none() {
            let message = "what a lossy mode spent shows only if it is known what the drafter would say: \
                           use a draft model with the target's vocabulary, ngram or suffix";
            return Err(Error::refused(message));
        }
        let scorer = Scorer::new(reader, suspect, &tokens, sampling.clone());

        self.start(2);
        certificate.drift = engines.drift(config.limits.limit.at(DRIFT_END))?;

        self.start(3);
        let drafters = (0..subject.drafters.len()).map(DrafterId).collect();
        let policy = DraftPolicy::drafted(drafters, subject.len.get(), rule)
            .wide(subject.width.get())
            .drawn(subject.scheme);
        let seed = config.sampling.seed;
        let writer = Writer::new(decoder, &tokens, &*target.vocab, seed, cancellation);
        let limits = config.limits;
        if let Some(mode) = subject.lossy {
            let test = SpendTest { writer, scorer, mode, policy, sampling, limits, cancellation };
            certificate.spend = Some(test.run(observer)?);
            return Ok(());
        }
        let drawn_with =
            subject.broken.map_or_else(|| sampling.clone(), |it| it.sampling(&sampling));
        let test = DecoderTest {
            writer,
            scorer,
            policy,
            drawn_with,
            sampling,
            coupled: subject.rule == RuleChoice::Coupled && subject.broken.is_none(),
            limits,
            cancellation,
        };
        certificate.decoder = Some(test.run(observer)?);
        Ok(())
    }

    /// Says which files are tested.
    fn hash(&self, subject: &ModelSubject, about: &mut Value) -> Result<()> {
        let mut files = vec![("target", &subject.target)];
        files.extend(subject.draft_models.iter().map(|path| ("draft_model", path)));
        // Each is hashed and loaded; a draft model is loaded again to know what it would say.
        self.observer.expect_files(3 * files.len() - 1);
        for (what, path) in files {
            let file = machine::model_file(path, self.cancellation, self.observer)?;
            let text = format!("{}, {} bytes, SHA-256 {}", file.name, file.bytes, file.sha256);
            about[what] = json!(text);
        }
        Ok(())
    }

    /// Loads the decoder, and breaks it where that is wanted.
    fn load(
        &self,
        subject: &ModelSubject,
        models: &mut dyn Models,
    ) -> Result<(Decoder, Target, Sampling)> {
        let target = models.target()?;
        let sampling = self.config.sampling.for_vocab(&*target.vocab)?;
        let count = |count: usize| u32::try_from(count).ok().and_then(NonZeroU32::new);
        let width = subject.width.get();
        // One of each drafter, and the further ones of the draft model.
        let paths = count(subject.drafters.len() + width - 1).unwrap_or(NonZeroU32::MIN);
        let shape = EngineShape { context_len: None, slots: subject.slots, paths };
        let draft_paths = count(width).unwrap_or(NonZeroU32::MIN);
        let Parts { mut engine, drafters } = models.parts(&shape, draft_paths)?;
        if subject.broken == Some(Fault::Penalties) {
            let asked = self.config.sampling.sampling.clone();
            engine = Box::new(PenaltiesAtRoot::new(engine, asked));
        }
        let mut decoder = Decoder::new(engine, drafters)?;
        if subject.broken == Some(Fault::Penalties) && !sampling.needs_path() {
            let message = "without a penalty there is none to ignore: add --presence-penalty 1";
            return Err(Error::refused(message));
        }
        if let Some(fault) = subject.broken {
            fault.break_drafter(&mut decoder);
        }
        Ok((decoder, target, sampling))
    }
}

/// How drafts are made, for the enumeration.
fn in_use(subject: &ModelSubject) -> InUse {
    let is_model = |kind: &&DrafterKind| kind.is_model();
    let models = subject.drafters.iter().filter(is_model).count();
    InUse {
        scheme: subject.scheme,
        width: subject.width.get(),
        models,
        guessers: subject.drafters.len() - models,
        may_stop: subject.may_stop,
    }
}

/// The prompts as tokens.
fn tokens(
    prompts: &[Prompt],
    target: &Target,
    decoder: &Decoder,
    room: usize,
) -> Result<Vec<Vec<Token>>> {
    let context_len = decoder.target().context_len();
    let tokens = |text: String| {
        let tokens = target.vocab.tokenize(&text, Special::Parse).map_err(Error::Prompt)?;
        if tokens.is_empty() || tokens.len() + room > context_len {
            return Err(Error::refused(format!(
                "a prompt of {} tokens and {room} more do not fit a context of {context_len}: raise \
                 --ctx-size or leave it out",
                tokens.len()
            )));
        }
        Ok(tokens)
    };
    prompts::in_chat_format(prompts, target.chat_template.as_deref())?
        .into_iter()
        .map(tokens)
        .collect()
}

/// What was asked for, for both kinds of subject.
fn settings(config: &CertifyConfig, own: Value) -> Value {
    let sampling = &config.sampling.sampling;
    let mut all = json!({
        "tokens_of_a_text": config.limits.text_len,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "typical_p": sampling.typical_p,
        "repeat_penalty": sampling.repeat_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "power_asked_for": config.limits.power,
        "time_limit_s": config.limits.limit.time.as_secs_f64(),
    });
    if let (Some(all), Value::Object(own)) = (all.as_object_mut(), own) {
        all.extend(own);
    }
    all
}

/// When, on what machine and with what build.
fn about(provenance: &Provenance) -> Value {
    let Provenance { date, machine: here, build } = provenance;
    json!({
        "date": date,
        "processor": here.processor,
        "threads": here.threads,
        "system": format!("{} {}", here.system, here.architecture),
        "forerun": build.version,
        "commit": build.commit,
        "llama": build.llama,
    })
}

#[cfg(test)]
mod tests;
