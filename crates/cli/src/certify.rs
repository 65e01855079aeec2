//! `forerun certify`: proof, on the user's own model or server, that speculation left the output
//! alone; or that it did not.
//!
//! Four parts: the rule by enumeration, the decoder by tests on texts, the engine by comparing rows,
//! a server by its answers. What was tested, what would have been found and the verdict go into a
//! certificate. A test that ended before it could find as little as was asked for is inconclusive.

mod broken;
mod certificate;
mod decoder;
mod flags;
mod lab;
mod law;
mod pairs;
mod rule;
mod server;
mod writer;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use forerun_decode::{Decoder, Plan, RuleChoice, Special, Token, Tokenizer};
use forerun_llama::Model;
use serde_json::{Value, json};

use crate::flags::{DraftConfig, DrafterConfig, OutputConfig};
use crate::interrupt::{EXIT_CODE, Interrupt};
use crate::load::{self, Loaded, Wanted};
use crate::machine;
use crate::progress::{Outline, Progress};
use crate::prompts::{self, Prompt};
use crate::span::Span;
use crate::terminal::Screen;

use broken::{Fault, PenaltiesAtRoot};
use certificate::{Certificate, Verdict};
use decoder::DecoderTest;
pub(crate) use flags::CertifyFlags;
use flags::{CertifyConfig, ModelSubject, ServerSubject, Subject};
use lab::Lab;
use rule::InUse;
use server::ServerTest;
use writer::{Scorer, Writer};

/// Most prompts of one test: each has a slot of its own that holds it.
const PROMPTS_MAX: usize = 8;

/// When the engine's rows must have been compared, as a share of the time limit: texts decide, and
/// get the rest.
const DRIFT_END: f64 = 0.25;

/// What the program ends with where nothing wrong was found but too little was tested. 2 is for
/// command lines that cannot be read.
const INCONCLUSIVE: u8 = 3;

impl CertifyFlags {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let config = self.resolve()?;
        let interrupt = Interrupt::install()?;
        interrupt.or_stopped(certify(&config, &interrupt))
    }
}

fn certify(config: &CertifyConfig, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
    let mut screen = Screen::new(&OutputConfig::notes());
    let read = config.prompts.as_deref().map_or_else(|| Ok(prompts::few()), prompts::file)?;
    let prompts: Vec<Prompt> = read.into_iter().take(PROMPTS_MAX).collect();
    let run = Run { config, prompts: &prompts, interrupt, progress: screen.progress() };
    interrupt.expire_after(config.limits.limit.time);
    run.progress.begin(&outline(config));
    let certificate = match &config.subject {
        Subject::Model(subject) => run.model(subject, &mut screen),
        Subject::Server(subject) => run.server(subject),
    };
    run.progress.end();
    let certificate = match certificate {
        Err(_) if interrupt.is_pressed() && !interrupt.is_expired() => {
            screen.note("interrupted before anything was tested: there is no certificate");
            return Ok(ExitCode::from(EXIT_CODE));
        }
        certificate => certificate?,
    };
    let write = |path: &Path, text: &str| {
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    write(&config.out, &certificate.html())?;
    write(&config.json, &format!("{:#}\n", certificate.json()))?;
    screen.result(&certificate.text())?;
    screen.note(&format!("written to {} and {}", config.out.display(), config.json.display()));
    Ok(match certificate.verdict() {
        Verdict::Passed => ExitCode::SUCCESS,
        Verdict::Failed => ExitCode::FAILURE,
        Verdict::Inconclusive => ExitCode::from(INCONCLUSIVE),
    })
}

/// What is going to be tested, and until when.
fn outline(config: &CertifyConfig) -> Outline {
    let percent = 100.0 * config.limits.power;
    let (phases, enough) = match &config.subject {
        Subject::Server(_) => (
            vec![
                ("greedy", "every prompt with speculation on and off at temperature 0".to_owned()),
                (
                    "texts",
                    format!("pairs of texts, until {percent} % of difference would be found"),
                ),
            ],
            "It ends earlier if something wrong is proved or enough was tested",
        ),
        Subject::Model(_) => (
            vec![
                ("rule", "every draft and verdict on small models, by enumeration".to_owned()),
                ("load", "hash and load the models".to_owned()),
                ("engine", "rows in blocks against rows one by one".to_owned()),
                (
                    "texts",
                    format!("drafted texts, until {percent} % of wrong tokens would be found"),
                ),
            ],
            "It ends earlier if something wrong is proved or enough was tested",
        ),
    };
    Outline {
        command: "certify",
        phases,
        limit: config.limits.limit,
        notes: vec![format!(
            "{enough}; Ctrl-C ends it with what was tested.\nShorter: --quick, --time-limit TIME, or a \
             larger --power (INCONCLUSIVE if it is not reached in time)."
        )],
    }
}

/// One call of the command.
struct Run<'a> {
    config: &'a CertifyConfig,
    prompts: &'a [Prompt],
    interrupt: &'a Interrupt,
    progress: Progress,
}

impl Run<'_> {
    /// A certificate that says nothing yet.
    fn certificate(&self, broken: Option<Fault>) -> Certificate {
        Certificate {
            about: about(),
            settings: settings(self.config, json!({ "prompts": self.prompts.len() })),
            broken: broken.map(Fault::about),
            false_alarm: self.config.limits.false_alarm,
            power: self.config.limits.power,
            time_limit: Span::from(self.config.limits.limit.time),
            cut: None,
            rule: None,
            decoder: None,
            drift: Vec::new(),
            server: None,
        }
    }

    fn server(&self, subject: &ServerSubject) -> anyhow::Result<Certificate> {
        let until = self.config.limits.limit.at(1.0);
        let test = ServerTest {
            on: subject.on.clone().until(until),
            off: subject.off.clone().until(until),
            on_body: subject.on_body.clone(),
            off_body: subject.off_body.clone(),
            model: subject.model.clone(),
            prompts: self.prompts,
            sampling: &self.config.sampling,
            users: subject.users,
            limits: self.config.limits,
            pairs_max: subject.pairs_max,
            interrupt: self.interrupt,
        };
        let found = test.run(&self.progress)?;
        Ok(Certificate { server: Some(found), ..self.certificate(None) })
    }

    /// All that could be tested of a model before the time was over.
    fn model(&self, subject: &ModelSubject, screen: &mut Screen) -> anyhow::Result<Certificate> {
        let mut certificate = self.certificate(subject.broken);
        match self.examine(subject, &mut certificate, screen) {
            Err(_) if self.interrupt.is_expired() => {
                let phases = outline(self.config).phases;
                certificate.cut = phases.get(self.progress.phase_now()).map(|(name, _)| *name);
                Ok(certificate)
            }
            examined => examined.map(|()| certificate),
        }
    }

    fn examine(
        &self,
        subject: &ModelSubject,
        certificate: &mut Certificate,
        screen: &mut Screen,
    ) -> anyhow::Result<()> {
        let (config, draft) = (self.config, &subject.draft);
        let verification = subject.broken.and_then(Fault::rule);
        let verification = verification.unwrap_or_else(|| draft.rule.verification(0));
        let go_on = |share: f64| {
            self.progress.show(share, draft.rule.name());
            !self.interrupt.is_pressed()
        };
        let proof = in_use(draft).prove(&verification, go_on);
        certificate.rule = proof.context("the rule refuses these drafts")?;
        ensure!(!self.interrupt.is_pressed(), "interrupted");

        self.progress.phase(1);
        self.hash(subject, &mut certificate.about)?;
        let loaded = self.load(subject, screen)?;
        let Loaded { decoder, model, sampling, .. } = loaded;
        let room = config.limits.text_len + draft.len.get() + 1;
        let tokens = tokens(self.prompts, &model, &decoder, room)?;
        let (interrupt, progress) = (self.interrupt, self.progress.clone());
        let lab = Lab { subject, model: &model, prompts: &tokens, interrupt, progress };
        certificate.settings = settings(config, lab.settings(config.sampling.seed));
        let scorer = Scorer::new(lab.reader()?, lab.suspect(screen)?, &tokens, sampling.clone());

        self.progress.phase(2);
        certificate.drift = lab.drift(config.limits.limit.at(DRIFT_END))?;

        self.progress.phase(3);
        let drafters = (0..draft.drafters.len()).collect();
        let plan = Plan::drafted(drafters, draft.len.get(), verification)
            .wide(draft.width.get())
            .drawn(draft.scheme);
        let seed = config.sampling.seed;
        let drawn_with =
            subject.broken.map_or_else(|| sampling.clone(), |it| it.sampling(&sampling));
        let test = DecoderTest {
            writer: Writer::new(decoder, &tokens, model.vocab(), seed, interrupt),
            scorer,
            plan,
            drawn_with,
            sampling,
            coupled: draft.rule == RuleChoice::Coupled && subject.broken.is_none(),
            limits: config.limits,
            interrupt,
        };
        certificate.decoder = Some(test.run(&self.progress)?);
        Ok(())
    }

    /// Says which files are tested.
    fn hash(&self, subject: &ModelSubject, about: &mut Value) -> anyhow::Result<()> {
        let mut files = vec![("target", &subject.target.path)];
        for drafter in &subject.draft.drafters {
            if let DrafterConfig::Model(config) = drafter {
                files.push(("draft_model", &config.model.path));
            }
        }
        // Each is hashed and loaded; a draft model is loaded again to know what it would say.
        self.progress.expect_files(3 * files.len() - 1);
        for (what, path) in files {
            let file = machine::model_file(path, self.interrupt, &self.progress)?;
            let text = format!("{}, {} bytes, SHA-256 {}", file.name, file.bytes, file.sha256);
            about[what] = json!(text);
        }
        Ok(())
    }

    /// Loads the decoder, and breaks it where that is wanted.
    fn load(&self, subject: &ModelSubject, screen: &mut Screen) -> anyhow::Result<Loaded> {
        let sampling = &self.config.sampling;
        let wanted = Wanted {
            target: &subject.target,
            context: subject.context,
            draft: &subject.draft,
            sampling,
            gpu_missing: false,
            slots: subject.slots,
            predictions: false,
        };
        let mut loaded =
            load::load_for(&wanted, self.interrupt, screen, |engine| match subject.broken {
                Some(Fault::Penalties) => {
                    Box::new(PenaltiesAtRoot::new(engine, sampling.sampling.clone()))
                }
                _ => engine,
            })?;
        ensure!(
            subject.broken != Some(Fault::Penalties) || loaded.sampling.needs_path(),
            "without a penalty there is none to ignore: add --presence-penalty 1"
        );
        if let Some(fault) = subject.broken {
            fault.break_drafter(&mut loaded.decoder);
        }
        Ok(loaded)
    }
}

/// How drafts are made, for the enumeration.
fn in_use(draft: &DraftConfig) -> InUse {
    let is_model = |drafter: &&DrafterConfig| matches!(drafter, DrafterConfig::Model(_));
    let models = draft.drafters.iter().filter(is_model).count();
    InUse {
        scheme: draft.scheme,
        width: draft.width.get(),
        models,
        guessers: draft.drafters.len() - models,
        may_stop: draft.may_stop(),
    }
}

/// The prompts as tokens.
fn tokens(
    prompts: &[Prompt],
    model: &Model,
    decoder: &Decoder,
    room: usize,
) -> anyhow::Result<Vec<Vec<Token>>> {
    let context_len = decoder.target().context_len();
    let tokens = |text: String| {
        let tokens = model.vocab().tokenize(&text, Special::Parse).context("prompt")?;
        ensure!(
            !tokens.is_empty() && tokens.len() + room <= context_len,
            "a prompt of {} tokens and {room} more do not fit a context of {context_len}: raise \
             --ctx-size or leave it out",
            tokens.len()
        );
        Ok(tokens)
    };
    prompts::in_chat_format(prompts, model)?.into_iter().map(tokens).collect()
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
fn about() -> Value {
    let (here, build) = (machine::machine(), machine::build());
    json!({
        "date": machine::today(),
        "processor": here.processor,
        "threads": here.threads,
        "system": format!("{} {}", here.system, here.architecture),
        "forerun": build.version,
        "commit": build.commit,
        "llama": build.llama,
    })
}
