//! The controller against plain decoding and a grid of fixed settings, what it owes to each of the
//! things it knows, and what a gate adds.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forerun_decode::{
    Arm, Branch, Controller, CostCurve, Costs, Decoder, DraftPolicy, Drafter, DrafterId,
    EditDrafter, Engine, Gates, Keep, ModelDrafter, Output, Rows, Sampling, Sequence, Slot, Stats,
    Step, SuffixDrafter, Token, VocabMap,
};
use forerun_lab::prompts::Prompt;
use forerun_llama::{EngineOptions, LlamaEngine, Model};
use forerun_verify::PooledRule;

use crate::lab::{self, Runs};

const LEN: usize = 64;
const PROMPTS: usize = 5;
/// Further prompts, by which a gate is trained before it is measured.
const TRAINING_PROMPTS: usize = 5;
const PATHS: u32 = 2;
/// Longest drafts of a draft model, and of what looks tokens up.
const MODEL_LEN_MAX: usize = 8;
const LOOKED_UP_LEN_MAX: usize = 31;
/// Tokens of the prompt over which costs are measured in one of the ways.
const CACHED: usize = 512;
const MEASURE: Duration = Duration::from_millis(1500);

const QWEN: &str = "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf";
const ALIGNED: &str = "SmolLM2-135M-Instruct.Q4_0.gguf";
const USELESS: &str = "SmolLM2-pruned-8+0.gguf";

/// What drafts.
#[derive(Clone, Copy)]
enum Source {
    Model(&'static str),
    Edit,
    Suffix,
}

/// Outputs of one kind, and what may draft for them.
struct Workload {
    name: &'static str,
    target: &'static str,
    source: Source,
    temperature: f32,
    prompts: fn(&Model) -> Vec<Prompt>,
}

/// The one drafter, as the decoder has it.
const DRAFTER: DrafterId = DrafterId(0);

fn workloads() -> Vec<Workload> {
    let chat: fn(&Model) -> Vec<Prompt> = |target| lab::prompts(target, "spec_bench.jsonl", 6);
    let code: fn(&Model) -> Vec<Prompt> = |target| lab::prompts(target, "human_eval.jsonl", 1);
    let edits: fn(&Model) -> Vec<Prompt> = |target| lab::prompts(target, "edit.jsonl", 9);
    let stories: fn(&Model) -> Vec<Prompt> = |target| {
        let asked = [
            "Write a story about a clock that runs backwards.",
            "Write a poem about the smell of rain.",
            "Invent a strange animal and describe its habits.",
            "Describe a city that floats above the sea.",
            "Tell a fable about a fox who lends things.",
        ];
        lab::chat(target, &asked)
    };
    let workload = |name, target, source, temperature, prompts| Workload {
        name,
        target,
        source,
        temperature,
        prompts,
    };
    vec![
        workload("chat, aligned drafter", lab::WIDENED, Source::Model(ALIGNED), 1.0, chat),
        workload("code, aligned drafter", lab::WIDENED, Source::Model(ALIGNED), 0.2, code),
        workload("chat, useless drafter", lab::WIDENED, Source::Model(USELESS), 1.0, chat),
        workload("chat, drafter of another family", QWEN, Source::Model(ALIGNED), 1.0, chat),
        workload("edits", QWEN, Source::Edit, 0.0, edits),
        workload("stories", QWEN, Source::Suffix, 1.0, stories),
    ]
}

pub(crate) fn report() {
    let mut text = head();
    let (mut summary, mut gates) = (String::new(), String::new());
    for workload in workloads() {
        let results = measure(&workload);
        table(&mut text, &mut summary, &workload, &results);
        gate_line(&mut gates, &workload, &results);
        lab::write("control.md", &format!("{text}\n{SUMMARY}{summary}{GATES}{gates}"));
    }
}

const SUMMARY: &str = "## All workloads\n\n\
    | workload | controller over plain | over the best fixed setting | best fixed | over one that knows nothing of \
    earlier prompts | over one with costs of a long prompt | forecast | rounds drafted |\n\
    |---|--:|--:|---|--:|--:|--:|--:|\n";

const GATES: &str = "\n## The gate\n\n\
    | workload | with a gate over without | trained on other prompts | trained over plain | rounds gated | AUC before the \
    draw | AUC of the drawn token |\n|---|--:|--:|--:|--:|--:|--:|\n";

fn head() -> String {
    format!(
        "# The controller against plain decoding and fixed settings\n\n\
         Made by `just control`. Targets: SmolLM2-135M-Instruct (Q8_0) **widened** sixteenfold, drafted for by itself\n\
         requantised (Q4_0) and by a **pruned** one; Qwen2.5-Coder-1.5B-Instruct (Q4_K_M), drafted for by SmolLM2 through\n\
         the vocabulary map, by edits and by suffixes. {PROMPTS} prompts of each kind, {LEN} tokens each, all ways taking turns\n\
         on each prompt. Pooled verification, which for one path is block verification. Rates count from the first token\n\
         on, with all that drafters read. The controller begins each workload knowing the costs of passes, measured in\n\
         1.5 s over an empty cache, and nothing else. Beside it run one that begins so with every prompt, and one whose\n\
         costs are measured after {CACHED} cached tokens, and two with gates: one that has seen nothing, and one that\n\
         was trained on {TRAINING_PROMPTS} other prompts of the kind and loaded from its numbers. *over*: ratio of rates with its\n\
         95 % interval over prompts. *AUC*: how often a drafted token that was accepted seemed likelier to be than one that\n\
         was not, each predicted before it was learned from, over the tokens that the trained gate let be drawn.\n\nMachine: {}.\n",
        lab::machine()
    )
}

/// How rounds are planned.
enum Kind {
    Plain,
    /// Always the same: paths and length.
    Fixed(usize, usize),
    Controlled(Box<Controller>),
    /// By a controller of its own for each prompt.
    Fresh(Box<Controller>),
}

/// What one way gave.
struct Way {
    name: String,
    kind: Kind,
    runs: Runs,
    stats: Stats,
}

impl Way {
    fn gates(&self) -> Option<&Gates> {
        match &self.kind {
            Kind::Controlled(controller) => controller.gates(),
            _ => None,
        }
    }
}

/// Where the ways that are compared stand.
const PLAIN: usize = 0;
const CONTROLLER: usize = 1;
const FRESH: usize = 2;
const LONG_PROMPT: usize = 3;
const GATE: usize = 4;
const TRAINED_GATE: usize = 5;

fn ways(source: Source, costs: &Costs, after_prompt: CostCurve, trained: Gates) -> Vec<Way> {
    let (widths, len_max, grid) = match source {
        Source::Model(_) => (1..=2, MODEL_LEN_MAX, vec![(1, 2), (1, 4), (1, 7), (2, 3)]),
        Source::Edit | Source::Suffix => {
            (1..=1, LOOKED_UP_LEN_MAX, vec![(1, 4), (1, 8), (1, LOOKED_UP_LEN_MAX)])
        }
    };
    let controller = |costs: Costs| {
        let arm = |width| Arm { drafters: vec![DRAFTER], width };
        Box::new(Controller::new(costs, widths.clone().map(arm).collect(), len_max))
    };
    let gated = |gates| Box::new(controller(costs.clone()).gated(gates));
    let after_prompt = Costs { target: after_prompt, ..costs.clone() };
    let mut kinds = vec![
        ("plain".to_owned(), Kind::Plain),
        ("controller".to_owned(), Kind::Controlled(controller(costs.clone()))),
        ("nothing known of earlier prompts".to_owned(), Kind::Fresh(controller(costs.clone()))),
        ("costs of a long prompt".to_owned(), Kind::Controlled(controller(after_prompt))),
        ("controller with a gate".to_owned(), Kind::Controlled(gated(gates(source)))),
        ("with a gate trained on other prompts".to_owned(), Kind::Controlled(gated(trained))),
    ];
    kinds.extend(grid.into_iter().map(|(paths, len)| match paths {
        1 => (format!("drafts of {len}"), Kind::Fixed(paths, len)),
        _ => (format!("{paths} paths of {len}"), Kind::Fixed(paths, len)),
    }));
    let way = |(name, kind)| Way { name, kind, runs: Runs::default(), stats: Stats::default() };
    kinds.into_iter().map(way).collect()
}

/// Gates for a drafter that has rows, which have seen nothing.
fn gates(source: Source) -> Gates {
    match source {
        Source::Model(name) => Gates::new([(DRAFTER, name.to_owned())]),
        Source::Edit | Source::Suffix => Gates::default(),
    }
}

/// The costs of passes over a prompt of [`CACHED`] tokens.
fn costs_after_prompt(engine: &mut dyn Engine) -> CostCurve {
    let prompt: Vec<Token> = (1..=u32::try_from(CACHED).expect("few")).map(Token).collect();
    let mut output = Output::default();
    let slot = Slot(0);
    let read = Step { slot, keep: Keep::Trunk(0), trunk: &prompt, tree: &[], rows: Rows::None };
    engine.extend(&[read], &mut output).expect("it reads");
    let mut seconds = |tokens: usize| {
        let tree: Vec<Branch> =
            (1..tokens).map(|parent| Branch { parent: parent - 1, token: Token(9) }).collect();
        let timed = |_| {
            let (keep, trunk) = (Keep::Trunk(CACHED), &[Token(7)]);
            let started = Instant::now();
            engine
                .extend(&[Step { slot, keep, trunk, tree: &tree, rows: Rows::All }], &mut output)
                .expect("it runs");
            started.elapsed().as_secs_f64()
        };
        (0..3).map(timed).fold(f64::INFINITY, f64::min)
    };
    let points: Vec<(usize, f64)> =
        [1, 2, 4, 8, 16, 17, 32].into_iter().map(|tokens| (tokens, seconds(tokens))).collect();
    let forget = Step { slot, keep: Keep::Trunk(0), trunk: &[], tree: &[], rows: Rows::None };
    engine.extend(&[forget], &mut output).expect("it forgets");
    CostCurve::new(points)
}

fn drafter(source: Source, target: &Model) -> Box<dyn Drafter> {
    match source {
        Source::Edit => Box::new(EditDrafter::default()),
        Source::Suffix => Box::new(SuffixDrafter::default()),
        Source::Model(name) => {
            let draft = lab::model(name);
            let (of, by) = (target.vocab(), draft.vocab());
            let map = VocabMap::between(of, by).expect("they can be mapped");
            let drafter = ModelDrafter::new(engine(&draft));
            Box::new(drafter.translated(map, Arc::new(of.clone()), Arc::new(by.clone())))
        }
    }
}

fn engine(model: &Model) -> Box<dyn Engine> {
    let paths = std::num::NonZeroU32::new(PATHS).expect("above zero");
    let options = EngineOptions { paths, ..lab::options() };
    Box::new(LlamaEngine::new(model, &options).expect("the engine starts"))
}

fn measure(workload: &Workload) -> Vec<Way> {
    let target = lab::model(workload.target);
    let source = workload.source;
    let mut scoring = engine(&target);
    let after_prompt = costs_after_prompt(&mut *scoring);
    let mut decoder = Decoder::new(scoring, vec![drafter(source, &target)]).expect("it can be cut");
    let costs = decoder.measure(MEASURE).expect("it is measured");
    let sampling = lab::endless(&target, workload.temperature);
    let prompts = (workload.prompts)(&target).into_iter();
    let prompts = prompts.map(|prompt| lab::tokens(&target, &prompt));
    let prompts: Vec<Vec<Token>> = prompts.filter(|prompt| prompt.len() < 700).collect();
    let (prompts, others) = prompts.split_at(PROMPTS.min(prompts.len()));
    let mut trained = gates(source);
    if matches!(source, Source::Model(_)) {
        let mut training = ways(source, &costs, after_prompt.clone(), gates(source));
        for (seed, prompt) in (0..).zip(others.iter().take(TRAINING_PROMPTS)) {
            forget(&mut decoder, source, target.vocab_len());
            let request = Request { target: &target, prompt, sampling: &sampling, seed };
            request.decode(&mut decoder, &mut training[GATE].kind);
        }
        let learned = training[GATE].gates().expect("it has gates").save();
        trained.load(&learned).expect("what was saved is loaded");
    }
    let mut ways = ways(source, &costs, after_prompt, trained);
    for (index, prompt) in prompts.iter().enumerate() {
        let count = ways.len();
        for turn in 0..count {
            let way = &mut ways[(index + turn) % count];
            forget(&mut decoder, source, target.vocab_len());
            let job = Request { target: &target, prompt, sampling: &sampling, seed: index as u64 };
            let stats = job.decode(&mut decoder, &mut way.kind);
            way.runs.0.push((stats.committed as f64, stats.time.as_secs_f64()));
            way.stats.merge(&stats);
        }
        eprint!(".");
    }
    eprintln!();
    ways
}

/// Each way is to have its drafter read the prompt itself, and none may draft what another wrote.
fn forget(decoder: &mut Decoder, source: Source, vocab_len: usize) {
    match source {
        Source::Model(_) => lab::forget(&mut decoder.drafters_mut()[DRAFTER], vocab_len),
        Source::Edit => decoder.drafters_mut()[DRAFTER].forget(Slot(0)),
        Source::Suffix => {
            let (_, drafter) = decoder.drafters_mut().iter_mut().next().expect("there is one");
            *drafter = Box::new(SuffixDrafter::default());
        }
    }
}

/// What to decode.
struct Request<'a> {
    target: &'a Model,
    prompt: &'a [Token],
    sampling: &'a Sampling,
    seed: u64,
}

impl Request<'_> {
    fn decode(&self, decoder: &mut Decoder, kind: &mut Kind) -> Stats {
        let rule = Arc::new(PooledRule);
        let mut fresh;
        let (policy, controller) = match kind {
            Kind::Plain => (DraftPolicy::drafted(Vec::new(), 0, rule), None),
            Kind::Fixed(paths, len) => {
                (DraftPolicy::drafted(vec![DRAFTER], *len, rule).wide(*paths), None)
            }
            Kind::Controlled(controller) => (controller.policy(rule), Some(controller)),
            Kind::Fresh(controller) => {
                fresh = controller.clone();
                (fresh.policy(rule), Some(&mut fresh))
            }
        };
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

fn gate_line(text: &mut String, workload: &Workload, ways: &[Way]) {
    let (gate, trained) = (&ways[GATE], &ways[TRAINED_GATE]);
    let controller = &ways[CONTROLLER].runs;
    let auc = trained.gates().and_then(|gates| gates.iter().find_map(|(_, _, gate)| gate.auc()));
    let (before, after) = auc.map_or(("–".to_owned(), "–".to_owned()), |(before, after)| {
        (format!("{before:.2}"), format!("{after:.2}"))
    });
    writeln!(
        text,
        "| {} | {} | {} | {} | {} of {} | {before} | {after} |",
        workload.name,
        gate.runs.over(controller),
        trained.runs.over(controller),
        trained.runs.over(&ways[PLAIN].runs),
        trained.stats.gated_rounds,
        trained.stats.rounds,
    )
    .expect("a string grows");
}

fn table(text: &mut String, summary: &mut String, workload: &Workload, ways: &[Way]) {
    let Workload { name, target, temperature, source, .. } = workload;
    let source = match source {
        Source::Model(drafter) => *drafter,
        Source::Edit => "`edit`",
        Source::Suffix => "`suffix`",
    };
    writeln!(
        text,
        "\n## {name}, temperature {temperature}: {source} for {target}\n\n\
         | decoding | tokens/s | over plain | tokens per round | accepted |\n|---|--:|--:|--:|--:|"
    )
    .expect("a string grows");
    let plain = &ways[PLAIN].runs;
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
    let controller = &ways[CONTROLLER];
    let fixed = ways.iter().filter(|way| matches!(way.kind, Kind::Plain | Kind::Fixed(..)));
    let best = fixed.max_by(|one, other| one.runs.rate().total_cmp(&other.runs.rate()));
    let best = best.expect("plain is among them");
    let Stats { rounds, plain_rounds, trial_rounds, .. } = controller.stats;
    writeln!(
        summary,
        "| {name} | {} | {} | {} | {} | {} | {:.2} | {} of {rounds}, {trial_rounds} trials |",
        controller.runs.over(plain),
        controller.runs.over(&best.runs),
        best.name,
        controller.runs.over(&ways[FRESH].runs),
        controller.runs.over(&ways[LONG_PROMPT].runs),
        controller.stats.expected_speedup(),
        rounds - plain_rounds,
    )
    .expect("a string grows");
}
