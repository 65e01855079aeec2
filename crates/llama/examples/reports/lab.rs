//! What the reports share: models, prompts, one decoded text, and intervals.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;

use forerun_decode::{
    Decoder, DraftPolicy, DraftRequest, Drafter, DrafterId, Generation, HeadDrafter, ModelDrafter,
    Sampling, Sequence, Slot, Special, Stats, StopStrings, Token, Tokenizer,
};
use forerun_lab::Machine;
use forerun_lab::bench::rate_ratio;
use forerun_lab::prompts::{self, Prompt};
use forerun_llama::{EngineOptions, LlamaEngine, LlamaHead, Model, ModelOptions};
use forerun_verify::{BlockRule, Philox, PooledRule, Random, Scheme};

/// The model all others are made of.
pub(crate) const SMOL: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
/// It, with feed-forward layers sixteen times as wide, without saying anything else.
pub(crate) const WIDENED: &str = "SmolLM2-widened-x16.Q8_0.gguf";

/// Tokens that a hybrid can take back: more than any draft here.
const ROLLBACK: u32 = 8;

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
    target(name, false)
}

/// A model, with its own draft head if that is to be used.
pub(crate) fn target(name: &str, own_head: bool) -> Model {
    let options = ModelOptions { prediction_layers: own_head, ..ModelOptions::new(path(name)) };
    Model::load(options).expect("the model loads")
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

/// Every `step`-th prompt of a file under `bench/prompts`, in the model's chat format.
pub(crate) fn prompts(model: &Model, file: &str, step: usize) -> Vec<Prompt> {
    in_chat_format(model, questions(file, step))
}

/// Every `step`-th prompt of a file under `bench/prompts`.
pub(crate) fn questions(file: &str, step: usize) -> Vec<Prompt> {
    let all = prompts::file(&root().join("bench/prompts").join(file));
    all.expect("the prompts are part of the repository").into_iter().step_by(step).collect()
}

/// Questions in the model's chat format.
pub(crate) fn chat(model: &Model, questions: &[&str]) -> Vec<Prompt> {
    in_chat_format(model, questions.iter().map(|question| Prompt::of_user(*question)).collect())
}

/// Prompts in the model's chat format; as they are if it has none.
pub(crate) fn in_chat_format(model: &Model, prompts: Vec<Prompt>) -> Vec<Prompt> {
    let template = model.chat_template();
    let texts = prompts::in_chat_format(&prompts, template.as_deref()).expect("it renders");
    let rendered = |(prompt, text)| Prompt { messages: Prompt::of_user(text).messages, ..prompt };
    prompts.into_iter().zip(texts).map(rendered).collect()
}

pub(crate) fn tokens(model: &Model, prompt: &Prompt) -> Vec<Token> {
    model.vocab().tokenize(&prompt.text(), Special::Parse).expect("a prompt is tokenised")
}

/// A decoder with a draft model or head of so many paths: a file, or the target's own head.
pub(crate) fn decoder(target: &Model, draft: Option<&str>, width: u32) -> Decoder {
    let paths = NonZeroU32::new(width).expect("one or more");
    let options = EngineOptions { paths, rollback: ROLLBACK, ..options() };
    let mut engine = LlamaEngine::new(target, &options).expect("the engine starts");
    let draft = draft.map_or_else(|| target.clone(), model);
    let drafter: Box<dyn Drafter> = match draft.head_kind() {
        Some(kind) => {
            let head = LlamaHead::new(&draft, (target, &mut engine), &options).expect("its head");
            Box::new(HeadDrafter::new(Box::new(head), kind.drafter()))
        }
        None => {
            let engine = LlamaEngine::new(&draft, &options).expect("the engine starts");
            Box::new(ModelDrafter::new(Box::new(engine)))
        }
    };
    Decoder::new(Box::new(engine), vec![drafter]).expect("it can be cut")
}

/// Block verification of one drafter's path, pooled of several; plain for no length.
fn policy(draft_len: usize, width: usize) -> DraftPolicy {
    let drafters = if draft_len == 0 { vec![] } else { vec![DrafterId(0)] };
    match width {
        1 => DraftPolicy::drafted(drafters, draft_len, Arc::new(BlockRule)),
        _ => DraftPolicy::drafted(drafters, draft_len, Arc::new(PooledRule))
            .wide(width)
            .drawn(Scheme::Independent),
    }
}

/// Decodes one text and gives its statistics and tokens. The end token is forbidden, so that all
/// texts are of one length.
pub(crate) fn decode(decoder: &mut Decoder, model: &Model, job: &Job<'_>) -> (Stats, Vec<Token>) {
    let mut sequence = Sequence::new(Slot(0), job.sampling.clone());
    sequence.begin(job.prompt.to_vec(), job.len);
    let mut text = generation(sequence, policy(job.draft_len, job.width), model, job.seed);
    while text.next(decoder).expect("a round succeeds").is_some() {}
    (text.stats().clone(), text.sequence().output().to_vec())
}

/// A text that only its length ends.
pub(crate) fn generation(
    sequence: Sequence,
    policy: DraftPolicy,
    model: &Model,
    seed: u64,
) -> Generation {
    let stops = StopStrings::new(Vec::<String>::new()).expect("none is fine");
    let vocab: Arc<dyn Tokenizer> = Arc::new(model.vocab().clone());
    Generation::new(sequence, policy, vocab, &stops, seed)
}

/// Has a drafter read another text, so that it holds nothing of the last one.
pub(crate) fn forget(drafter: &mut dyn Drafter, vocab_len: usize) {
    let mut chance = Random(Philox::new(0));
    let (sampling, other) = (Sampling::greedy(), [Token(1), Token(2)]);
    let mut request = DraftRequest::next_token(Slot(0), &other, &sampling, &mut chance, vocab_len);
    drafter.draft(std::slice::from_mut(&mut request)).expect("it drafts");
    drafter.passes();
}

/// What to decode.
pub(crate) struct Job<'a> {
    pub(crate) prompt: &'a [Token],
    pub(crate) draft_len: usize,
    pub(crate) width: usize,
    pub(crate) sampling: Sampling,
    pub(crate) len: usize,
    pub(crate) seed: u64,
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
        rate_ratio(&self.0, &other.0).expect("runs take time").to_string()
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
    let name = Machine::here().processor.unwrap_or("unknown processor".to_owned());
    format!("{name}, {} threads", threads())
}
