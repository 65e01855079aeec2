//! The controller against plain decoding and a grid of fixed settings.

use std::fmt::Write as _;
use std::sync::Arc;

use forerun_decode::{
    Arm, Controller, Decoder, DraftPolicy, Drafter, DrafterId, ModelDrafter, NgramDrafter,
    Sampling, Sequence, Slot, Stats, Token,
};
use forerun_lab::prompts::Prompt;
use forerun_llama::{EngineOptions, LlamaEngine, Model};
use forerun_verify::PooledRule;

use crate::lab::{self, Runs};

const LEN: usize = 128;
const PROMPTS: usize = 4;
const PATHS: u32 = 2;
const LEN_MAX: usize = 8;

/// Texts of one kind, and what may draft for them.
struct Workload {
    name: &'static str,
    drafter: &'static str,
    ngram: bool,
    temperature: f32,
    prompts: Vec<Vec<Token>>,
}

/// The drafters, as the decoder has them.
const MODEL: DrafterId = DrafterId(0);
const NGRAM: DrafterId = DrafterId(1);

/// A fixed setting: drafters, paths and length; none for plain decoding.
type Fixed = Option<(Vec<DrafterId>, usize, usize)>;

fn workloads(target: &Model) -> Vec<Workload> {
    let tokens = |prompt: Prompt| lab::tokens(target, &prompt);
    let of = |file: &str, step: usize| {
        let prompts = lab::prompts(target, file, step).into_iter();
        let prompts = prompts.map(tokens).filter(|it| it.len() < 140);
        prompts.take(PROMPTS).collect::<Vec<_>>()
    };
    let asked = |texts: [&str; PROMPTS]| -> Vec<Vec<Token>> {
        let asked = lab::chat(target, &texts);
        asked.into_iter().map(tokens).collect()
    };
    let repeat = asked([
        "Repeat this list five times, exactly: red, green, blue, yellow, black, white, brown, grey.",
        "Copy this text four times: The quick brown fox jumps over the lazy dog near the old mill.",
        "Write the numbers from one to ten as words, again and again, separated by commas.",
        "Say 'I will not be late for school again.' twenty times, each on its own line.",
    ]);
    let creative = asked([
        "Write a story about a clock that runs backwards.",
        "Write a poem about the smell of rain.",
        "Invent a strange animal and describe its habits.",
        "Describe a city that floats above the sea.",
    ]);
    let aligned = "SmolLM2-135M-Instruct.Q4_0.gguf";
    let workload = |name, drafter, temperature, prompts| Workload {
        name,
        drafter,
        ngram: false,
        temperature,
        prompts,
    };
    vec![
        workload("aligned pair", aligned, 1.0, of("spec_bench.jsonl", 6)),
        workload("weak pair", "SmolLM2-pruned-12+12.gguf", 1.0, of("spec_bench.jsonl", 6)),
        workload("useless drafter", "SmolLM2-pruned-8+0.gguf", 1.0, of("spec_bench.jsonl", 6)),
        Workload { ngram: true, ..workload("repetitive text", aligned, 0.7, repeat) },
        workload("code", aligned, 0.2, of("human_eval.jsonl", 1)),
        workload("creative writing", aligned, 1.2, creative),
    ]
}

pub(crate) fn report() {
    let target = lab::model(lab::GROWN);
    let mut text = head();
    let mut summary = String::new();
    for workload in workloads(&target) {
        let results = measure(&target, &workload);
        table(&mut text, &mut summary, &workload, &results);
        lab::write("control.md", &format!("{text}\n{SUMMARY}{summary}"));
    }
}

const SUMMARY: &str = "## All workloads\n\n\
    | workload | controller over plain | over the best fixed setting | best fixed | forecast | rounds drafted |\n\
    |---|--:|--:|---|--:|--:|\n";

fn head() -> String {
    format!(
        "# The controller against plain decoding and fixed settings\n\n\
         Made by `just control`. Target: SmolLM2-135M-Instruct (Q8_0) **grown** eightfold; drafters the same requantised\n\
         (Q4_0) or **pruned**. {PROMPTS} prompts of each kind, {LEN} tokens each, all ways taking turns on each prompt. Pooled\n\
         verification, which for one path is block verification. Rates count from the first token on, with all that\n\
         drafters read. The controller begins each workload knowing the costs of passes, measured in 1.5 s, and nothing\n\
         else. *over*: ratio of rates with its 95 % interval over prompts.\n\nMachine: {}.\n",
        lab::machine()
    )
}

/// What one way gave.
struct Way {
    name: String,
    fixed: Option<Fixed>,
    runs: Runs,
    stats: Stats,
}

fn ways(ngram: bool) -> Vec<Way> {
    let way =
        |name: String, fixed| Way { name, fixed, runs: Runs::default(), stats: Stats::default() };
    let mut ways = vec![way("plain".to_owned(), Some(None)), way("controller".to_owned(), None)];
    let mut fixed = |who: &str, drafters: &[DrafterId], paths: usize, len: usize| {
        let name = match paths {
            1 => format!("{who}, drafts of {len}"),
            _ => format!("{who}, {paths} paths of {len}"),
        };
        ways.push(way(name, Some(Some((drafters.to_vec(), paths, len)))));
    };
    if ngram {
        [4, 8].iter().for_each(|len| fixed("n-gram", &[NGRAM], 1, *len));
        fixed("draft model", &[MODEL], 1, 3);
        fixed("both", &[MODEL, NGRAM], 1, 3);
    } else {
        [1, 2, 3].iter().for_each(|len| fixed("draft model", &[MODEL], 1, *len));
        fixed("draft model", &[MODEL], 2, 2);
    }
    ways
}

fn measure(target: &Model, workload: &Workload) -> Vec<Way> {
    let draft = lab::model(workload.drafter);
    let paths = std::num::NonZeroU32::new(PATHS).expect("above zero");
    let engine = |model: &Model| {
        let options = EngineOptions { paths, ..lab::options() };
        Box::new(LlamaEngine::new(model, &options).expect("the engine starts"))
    };
    let mut drafters: Vec<Box<dyn Drafter>> = vec![Box::new(ModelDrafter::new(engine(&draft)))];
    let mut arms = [1, 2].map(|width| Arm { drafters: vec![MODEL], width }).to_vec();
    if workload.ngram {
        drafters.push(Box::new(NgramDrafter::default()));
        arms.push(Arm { drafters: vec![NGRAM], width: 1 });
        arms.push(Arm { drafters: vec![MODEL, NGRAM], width: 1 });
    }
    let mut decoder = Decoder::new(engine(target), drafters).expect("it can be cut");
    let costs = decoder.measure(std::time::Duration::from_millis(1500)).expect("it is measured");
    let mut controller = Controller::new(costs, arms, LEN_MAX);
    let mut ways = ways(workload.ngram);
    let sampling = lab::endless(target, workload.temperature);
    for (index, prompt) in workload.prompts.iter().enumerate() {
        let count = ways.len();
        for turn in 0..count {
            let way = &mut ways[(index + turn) % count];
            let policy = match &way.fixed {
                None => controller.policy(Arc::new(PooledRule)),
                Some(fixed) => policy(fixed),
            };
            let controller = way.fixed.is_none().then_some(&mut controller);
            // Each way is to have its drafter read the prompt itself.
            lab::forget(&mut decoder.drafters_mut()[MODEL], target.vocab_len());
            let job = Texts { target, prompt, sampling: &sampling, seed: index as u64 };
            let stats = job.decode(&mut decoder, policy, controller);
            way.runs.0.push((stats.committed as f64, stats.time.as_secs_f64()));
            way.stats.merge(&stats);
        }
        eprint!(".");
    }
    eprintln!();
    ways
}

fn policy(fixed: &Fixed) -> DraftPolicy {
    let rule = Arc::new(PooledRule);
    match fixed {
        Some((drafters, paths, len)) => {
            DraftPolicy::drafted(drafters.clone(), *len, rule).wide(*paths)
        }
        None => DraftPolicy::drafted(Vec::new(), 0, rule),
    }
}

/// What to decode.
struct Texts<'a> {
    target: &'a Model,
    prompt: &'a [Token],
    sampling: &'a Sampling,
    seed: u64,
}

impl Texts<'_> {
    fn decode(
        &self,
        decoder: &mut Decoder,
        policy: DraftPolicy,
        controller: Option<&mut Controller>,
    ) -> Stats {
        let mut sequence = Sequence::new(Slot(0), self.sampling.clone());
        sequence.begin(self.prompt.to_vec(), LEN);
        let mut text = lab::generation(sequence, policy, self.target, self.seed);
        let Some(controller) = controller else {
            while text.next(decoder).expect("a round succeeds").is_some() {}
            return text.stats().clone();
        };
        let mut history = controller.history(|_| true);
        while controller.next(&mut history, &mut text, decoder).expect("a round succeeds").is_some()
        {
        }
        text.stats().clone()
    }
}

fn table(text: &mut String, summary: &mut String, workload: &Workload, ways: &[Way]) {
    let Workload { name, drafter, temperature, .. } = workload;
    writeln!(
        text,
        "\n## {name}, temperature {temperature}: drafter {drafter}\n\n\
         | decoding | tokens/s | over plain | tokens per round | accepted |\n|---|--:|--:|--:|--:|"
    )
    .expect("a string grows");
    let plain = &ways[0].runs;
    for way in ways {
        let (per_round, accepted) = (way.stats.tokens_per_round(), way.stats.acceptance());
        writeln!(
            text,
            "| {} | {:.1} | {} | {per_round:.2} | {:.0} % |",
            way.name,
            way.runs.rate(),
            way.runs.over(plain),
            100.0 * accepted
        )
        .expect("a string grows");
    }
    let controller = &ways[1];
    let fixed = ways.iter().filter(|way| way.fixed.is_some());
    let best = fixed.max_by(|one, other| one.runs.rate().total_cmp(&other.runs.rate()));
    let best = best.expect("plain is among them");
    let Stats { rounds, plain_rounds, trial_rounds, .. } = controller.stats;
    writeln!(
        summary,
        "| {name} | {} | {} | {} | {:.2} | {} of {rounds}, {trial_rounds} trials |",
        controller.runs.over(plain),
        controller.runs.over(&best.runs),
        best.name,
        controller.stats.expected_speedup(),
        rounds - plain_rounds,
    )
    .expect("a string grows");
}
