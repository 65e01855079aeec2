//! What the reports share: models, prompts, one decoded text, and intervals.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;

use forerun_decode::{
    Ask, ChatOptions, ChatTemplate, Decoder, Drafter, Generation, Message, Plan, Sampling,
    Sequence, Slot, Special, Stats, StopStrings, Token, Tokenizer, Verification,
};
use forerun_llama::{EngineOptions, LlamaEngine, Model, ModelOptions};
use forerun_verify::rand_core::Rng as _;
use forerun_verify::{BlockRule, Philox, Random};

/// The model all others are made of.
pub(crate) const SMOL: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
/// It, made eight times as deep without saying anything else.
pub(crate) const GROWN: &str = "SmolLM2-grown-x8.Q8_0.gguf";

/// A model file of `just models`.
pub(crate) fn path(name: &str) -> PathBuf {
    let folder = std::env::var_os("FORERUN_MODELS").map(PathBuf::from).or_else(|| {
        std::env::home_dir().map(|home| home.join(".cache").join("forerun").join("models"))
    });
    let path = folder.expect("there is a home directory").join(name);
    assert!(path.is_file(), "{} is missing: run `just models --all`", path.display());
    path
}

pub(crate) fn model(name: &str) -> Model {
    Model::load(ModelOptions::new(path(name))).expect("the model loads")
}

pub(crate) fn threads() -> NonZeroU32 {
    let count = std::thread::available_parallelism().map_or(1, |count| count.get());
    NonZeroU32::new(u32::try_from(count).unwrap_or(1)).expect("at least one")
}

pub(crate) fn options() -> EngineOptions {
    EngineOptions {
        context_len: NonZeroU32::new(2048),
        threads: Some(threads()),
        ..EngineOptions::default()
    }
}

pub(crate) fn engine(model: &Model) -> LlamaEngine {
    LlamaEngine::new(model, &options()).expect("the engine starts")
}

/// A question and its task.
pub(crate) struct Prompt {
    pub(crate) task: String,
    pub(crate) text: String,
}

/// Every `step`-th prompt of a file under `bench/prompts`, in the model's chat format.
pub(crate) fn prompts(model: &Model, file: &str, step: usize) -> Vec<Prompt> {
    let path = root().join("bench/prompts").join(file);
    let lines = std::fs::read_to_string(path).expect("the prompts are part of the repository");
    let read = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).expect("a line is JSON");
        let field = |name: &str| line[name].as_str().expect("a field is text").to_owned();
        Prompt { task: field("task"), text: chat(model, &[&field("prompt")]).remove(0) }
    };
    lines.lines().step_by(step).map(read).collect()
}

/// Questions in the model's chat format.
pub(crate) fn chat(model: &Model, questions: &[&str]) -> Vec<String> {
    let source = model.chat_template().expect("an instruct model has a template");
    let template = ChatTemplate::new(&source, None, None).expect("the template compiles");
    let render = |question: &&str| {
        let messages = [Message::new("user", *question)];
        template.render(&messages, &ChatOptions::default()).expect("it renders")
    };
    questions.iter().map(render).collect()
}

pub(crate) fn tokens(model: &Model, prompt: &Prompt) -> Vec<Token> {
    model.vocab().tokenize(&prompt.text, Special::Parse).expect("a prompt is tokenised")
}

/// Block verification of one drafter's path of this length; plain for zero.
pub(crate) fn plan(draft_len: usize) -> Plan {
    let drafters = if draft_len == 0 { vec![] } else { vec![0] };
    Plan::drafted(drafters, draft_len, Verification::rule(BlockRule))
}

/// Decodes one text and gives its statistics and tokens. The end token is forbidden, so that all
/// texts are of one length.
pub(crate) fn decode(
    decoder: &mut Decoder,
    sequence: &mut Option<Sequence>,
    model: &Model,
    job: &Job<'_>,
) -> (Stats, Vec<Token>) {
    let mut own = sequence.take().expect("a sequence is given back");
    own.plan = plan(job.draft_len);
    own.sampling = job.sampling.clone();
    own.begin(job.prompt.to_vec(), job.len);
    let mut text = generation(own, model, job.seed);
    while text.next(decoder).expect("a round succeeds").is_some() {}
    let result = (text.stats().clone(), text.sequence().output().to_vec());
    *sequence = Some(text.into_sequence());
    result
}

/// A text that only its length ends.
pub(crate) fn generation(sequence: Sequence, model: &Model, seed: u64) -> Generation {
    let stops = StopStrings::new(Vec::<String>::new()).expect("none is fine");
    let vocab: Arc<dyn Tokenizer> = Arc::new(model.vocab().clone());
    Generation::new(sequence, vocab, &stops, seed)
}

/// Has a drafter read another text, so that it holds nothing of the last one.
pub(crate) fn forget(drafter: &mut dyn Drafter, vocab_len: usize) {
    let mut chance = Random(Philox::new(0));
    let (sampling, other) = (Sampling::greedy(), [Token(1), Token(2)]);
    let mut ask = Ask::next_token(Slot(0), &other, &sampling, &mut chance, vocab_len);
    drafter.draft(std::slice::from_mut(&mut ask)).expect("it drafts");
    drafter.passes();
}

/// What to decode.
pub(crate) struct Job<'a> {
    pub(crate) prompt: &'a [Token],
    pub(crate) draft_len: usize,
    pub(crate) sampling: Sampling,
    pub(crate) len: usize,
    pub(crate) seed: u64,
}

pub(crate) fn sequence() -> Option<Sequence> {
    Some(Sequence::new(Slot(0), Sampling::unshaped(), plan(0)))
}

/// Without the end tokens, at a temperature.
pub(crate) fn endless(model: &Model, temperature: f32) -> Sampling {
    let vocab = model.vocab();
    let ends = (0..u32::try_from(model.vocab_len()).expect("a vocabulary fits")).map(Token);
    let logit_bias = ends.filter(|token| vocab.is_end(*token)).map(|end| (end, f32::NEG_INFINITY));
    Sampling { temperature, logit_bias: logit_bias.collect(), ..Sampling::unshaped() }
}

/// Tokens and seconds of some runs; rates are of the sums.
#[derive(Debug, Clone, Default)]
pub(crate) struct Runs(pub(crate) Vec<(f64, f64)>);

impl Runs {
    pub(crate) fn rate(&self) -> f64 {
        let (tokens, seconds) =
            self.0.iter().fold((0.0, 0.0), |sum, run| (sum.0 + run.0, sum.1 + run.1));
        tokens / seconds
    }

    /// This rate over another's, with its 95 % interval by resampling the prompts, which both
    /// have in the same order.
    pub(crate) fn over(&self, other: &Self) -> String {
        let mut random = Philox::new(7);
        let pick = |random: &mut Philox| {
            usize::try_from(random.next_u64() % self.0.len() as u64).expect("small")
        };
        let mut ratios: Vec<f64> = (0..2000)
            .map(|_| {
                let chosen: Vec<usize> = self.0.iter().map(|_| pick(&mut random)).collect();
                let of = |runs: &Self| Self(chosen.iter().map(|at| runs.0[*at]).collect()).rate();
                of(self) / of(other)
            })
            .collect();
        ratios.sort_by(f64::total_cmp);
        let ratio = self.rate() / other.rate();
        format!("{ratio:.2} ({:.2}–{:.2})", ratios[49], ratios[1949])
    }
}

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Writes a report and shows it.
pub(crate) fn write(name: &str, text: &str) {
    eprintln!("{text}");
    let path = root().join("bench/decode").join(name);
    std::fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("it is made");
    std::fs::write(&path, text).expect("the report is written");
}

/// The processor, for a report's head.
pub(crate) fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let name = name.map_or("unknown processor", |(_, name)| name.trim());
    format!("{name}, {} threads", threads())
}
