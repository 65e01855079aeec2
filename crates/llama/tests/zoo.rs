//! A tiny model of each architecture people run: what is drafted, cut, kept, copied and moved in its
//! cache leaves the rows of a fresh start. `models/zoo.py` makes the files; their weights are random.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

mod common;

use std::sync::Arc;

use common::{Dice, TEXT, apart, path_to, random_tree, row_after, tokens};
use forerun_decode::{
    Branch, Decoder, DraftPolicy, Drafter, DrafterId, Engine, Generation, Keep, ModelDrafter,
    NgramDrafter, Output, Rows, Sampling, Sequence, Slot, Step, StopStrings, Token, Tokenizer,
};
use forerun_llama::{EngineOptions, LlamaEngine, Model, ModelOptions};
use forerun_verify::{BlockRule, CoupledRule, Noise, Rule};

const SLOTS: u32 = 8;
const ROUNDS: usize = 200;
/// Most tokens of a slot before it is cut back: more than the sliding windows, which have 32.
const LEN_MAX: usize = 96;
/// How far rows may be from those of a fresh start: sums are added up in another order where cells
/// lie elsewhere. Where two experts are nearly as good, that may decide between them, which shows in
/// a single row and not in the mean.
const GAP_MAX: f64 = 0.02;
const GAP_OF_EXPERTS_MAX: f64 = 0.3;
const GAP_MEAN_MAX: f64 = 0.005;
const WITH_EXPERTS: [&str; 5] = ["qwen3moe", "gpt-oss", "glm4moe", "deepseek2", "granitehybrid"];

fn model(architecture: &str) -> Model {
    let path = common::in_models_folder(&format!("zoo/{architecture}.gguf"));
    Model::load(ModelOptions::new(path)).unwrap()
}

fn engine(model: &Model, slots: u32, paths: u32) -> LlamaEngine {
    LlamaEngine::new(model, &common::options(slots, paths)).unwrap()
}

/// What a slot holds.
#[derive(Clone, Default)]
struct Held {
    trunk: Vec<Token>,
    tree: Vec<Branch>,
}

impl Held {
    /// What to keep of it in the next round, if all can be cut.
    fn cut(&mut self, dice: &mut Dice) -> Keep {
        let keep = match dice.below(8) {
            0 if self.trunk.len() > 8 => Keep::Trunk(self.trunk.len() - dice.below(4)),
            _ if self.trunk.len() > LEN_MAX => Keep::Trunk(dice.below(48)),
            _ => {
                let node = dice.below(self.tree.len() + 1);
                Keep::To { node, len: self.trunk.len() + path_to(&self.tree, node).len() }
            }
        };
        match keep {
            Keep::To { node, .. } => self.trunk.extend(path_to(&self.tree, node)),
            Keep::Trunk(len) => self.trunk.truncate(len),
            Keep::All(_) => {}
        }
        self.tree.clear();
        keep
    }

    /// The same where nothing can be cut: all of it, or nothing.
    fn go_on(&mut self) -> Keep {
        if self.trunk.len() <= LEN_MAX {
            return Keep::All(self.trunk.len());
        }
        self.trunk.clear();
        Keep::Trunk(0)
    }
}

/// Slots at random, several in a pass, for many rounds; all rows are those of a fresh start.
fn play(architecture: &str, paths: u32) {
    let model = model(architecture);
    let text = tokens(&model, TEXT);
    let mut dice = Dice(2026);
    let mut engine = engine(&model, SLOTS, paths);
    let mut fresh = self::engine(&model, 1, 1);
    let can_cut = engine.can_cut();
    let mut held = vec![Held::default(); SLOTS as usize];
    let mut output = Output::default();
    let mut gaps = Vec::new();
    for round in 0..ROUNDS {
        let mut slots: Vec<usize> = (0..SLOTS as usize).collect();
        slots.rotate_left(dice.below(SLOTS as usize));
        slots.truncate(1 + dice.below(4));
        let mut parts = Vec::new();
        for slot in &slots {
            let keep = if can_cut { held[*slot].cut(&mut dice) } else { held[*slot].go_on() };
            let start = dice.below(text.len() - 8);
            let trunk = text[start..=start + dice.below(6)].to_vec();
            held[*slot].trunk.extend(&trunk);
            if can_cut {
                held[*slot].tree = random_tree(&text, &mut dice, engine.paths_max());
            }
            parts.push((*slot, keep, trunk));
        }
        let steps: Vec<Step<'_>> = parts
            .iter()
            .map(|(slot, keep, trunk)| Step {
                slot: Slot(u32::try_from(*slot).unwrap()),
                keep: *keep,
                trunk,
                tree: &held[*slot].tree,
                rows: Rows::All,
            })
            .collect();
        engine.extend(&steps, &mut output).unwrap();
        // A state has no position but its last.
        assert!(!can_cut || engine.is_consistent(), "{architecture}, round {round}");
        if round % 5 == 0 {
            gaps.extend(gaps_to(&mut fresh, &slots, &held, &output));
        }
        if can_cut && dice.below(4) == 0 {
            copy(&mut engine, &mut held, &mut dice);
        }
    }
    let worst = gaps.iter().copied().fold(0.0, f64::max);
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    let gap_max = if WITH_EXPERTS.contains(&architecture) { GAP_OF_EXPERTS_MAX } else { GAP_MAX };
    assert!(worst <= gap_max && mean <= GAP_MEAN_MAX, "{architecture}: {mean}, at most {worst}");
}

/// How far the rows of a pass are from those of a fresh start.
fn gaps_to(fresh: &mut LlamaEngine, slots: &[usize], held: &[Held], output: &Output) -> Vec<f64> {
    let mut gaps = Vec::new();
    for slot in slots {
        let Held { trunk, tree } = &held[*slot];
        for node in 0..=tree.len() {
            let expected = row_after(fresh, &[&trunk[..], &path_to(tree, node)].concat());
            gaps.push(apart(output.row(gaps.len()), &expected));
        }
    }
    assert_eq!(gaps.len(), output.len());
    gaps
}

/// Copies the beginning of one slot to another.
fn copy(engine: &mut LlamaEngine, held: &mut [Held], dice: &mut Dice) {
    let (from, to) = (dice.below(held.len()), dice.below(held.len()));
    let len = dice.below(held[from].trunk.len() + 1);
    let slot = |index: usize| Slot(u32::try_from(index).unwrap());
    if from != to && len > 0 && engine.copy(slot(from), slot(to), len) {
        let trunk = held[from].trunk[..len].to_vec();
        held[to] = Held { trunk, tree: Vec::new() };
    }
}

/// How tokens are chosen, so that drafts must leave the output as it is.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Choosing {
    /// The likeliest.
    Greedy,
    /// By a seed's noise, at temperature 1.
    Coupled,
}

/// The output of an engine for a prompt with this drafter.
fn output_of(
    target: LlamaEngine,
    model: &Model,
    drafter: Option<Box<dyn Drafter>>,
    choosing: Choosing,
) -> Vec<Token> {
    let drafters = (0..usize::from(drafter.is_some())).map(DrafterId).collect();
    let mut decoder = Decoder::new(Box::new(target), drafter.into_iter().collect()).unwrap();
    let (sampling, rule): (_, Arc<dyn Rule>) = match choosing {
        Choosing::Greedy => (Sampling::greedy(), Arc::new(BlockRule)),
        Choosing::Coupled => {
            (Sampling::unshaped(), Arc::new(CoupledRule { noise: Noise::new(2026) }))
        }
    };
    let mut sequence = Sequence::new(Slot(0), sampling);
    sequence.begin(tokens(model, &TEXT[..60]), 80);
    let policy = DraftPolicy::drafted(drafters, 4, rule);
    let vocab: Arc<dyn Tokenizer> = Arc::new(model.vocab().clone());
    let stops = StopStrings::new(Vec::<String>::new()).unwrap();
    let mut generation = Generation::new(sequence, policy, vocab, &stops, 1);
    while generation.next(&mut decoder).unwrap().is_some() {}
    generation.sequence().output().to_vec()
}

/// Drafts leave the output alone: those of the model itself, which are mostly accepted, and those of
/// n-grams, which mostly are not.
fn drafts_leave_alone(architecture: &str, rollback: u32) {
    let model = model(architecture);
    let start = || {
        let options = EngineOptions { rollback, ..common::options(1, 1) };
        LlamaEngine::new(&model, &options).unwrap()
    };
    for choosing in [Choosing::Greedy, Choosing::Coupled] {
        let plain = output_of(engine(&model, 1, 1), &model, None, choosing);
        assert_eq!(plain.len(), 80);
        let itself: Box<dyn Drafter> = Box::new(ModelDrafter::new(Box::new(start())));
        let ngram: Box<dyn Drafter> = Box::new(NgramDrafter::default());
        for drafter in [itself, ngram] {
            let kind = drafter.kind();
            let drafted = output_of(start(), &model, Some(drafter), choosing);
            assert_eq!(drafted, plain, "{architecture}, {kind:?}, {choosing:?}");
        }
    }
}

/// A model whose memory can be cut back.
macro_rules! attends {
    ($($name:ident: $architecture:literal),* $(,)?) => {$(
        mod $name {
            #[test]
            fn its_rows_are_those_of_a_fresh_start() {
                super::play($architecture, 1);
            }

            #[test]
            fn its_trees_have_the_rows_of_their_paths() {
                super::play($architecture, 3);
            }

            #[test]
            fn drafts_leave_its_output_alone() {
                super::drafts_leave_alone($architecture, 0);
            }
        }
    )*};
}

attends! {
    llama: "llama",
    qwen2: "qwen2",
    qwen3: "qwen3",
    qwen3_moe: "qwen3moe",
    gemma3: "gemma3",
    gemma4: "gemma4",
    mistral3: "mistral3",
    phi3: "phi3",
    gpt_oss: "gpt-oss",
    glm4_moe: "glm4moe",
    deepseek2: "deepseek2",
    step35: "step35-mtp",
}

/// The outputs of a recurrent model for prompts that begin alike, one after the other in one slot.
fn reads_prompts_again(architecture: &str) {
    let model = model(architecture);
    let outputs = |decoders: &mut dyn FnMut() -> Decoder| -> Vec<Vec<Token>> {
        let mut decoder = decoders();
        let mut output = |end: usize| {
            let mut sequence = Sequence::new(Slot(0), Sampling::greedy());
            sequence.begin(tokens(&model, &TEXT[..end]), 8);
            let policy = DraftPolicy::drafted(vec![], 1, Arc::new(BlockRule));
            let vocab: Arc<dyn Tokenizer> = Arc::new(model.vocab().clone());
            let stops = StopStrings::new(Vec::<String>::new()).unwrap();
            let mut generation = Generation::new(sequence, policy, vocab, &stops, 1);
            while generation.next(&mut decoder).unwrap().is_some() {}
            generation.sequence().output().to_vec()
        };
        [40, 60, 40, 41].map(&mut output).to_vec()
    };
    let mut fresh = || Decoder::new(Box::new(engine(&model, 1, 1)), Vec::new()).unwrap();
    let together = outputs(&mut fresh);
    let apart: Vec<Vec<Token>> = (0..4).map(|at| outputs(&mut fresh).swap_remove(at)).collect();
    assert_eq!(together, apart);
    assert!(together[0] == together[2] && together[0] != together[1]);
}

/// Drafts for a model whose recurrent state can be taken back by a few tokens.
fn takes_drafts_back(architecture: &str) {
    drafts_leave_alone(architecture, 4);
    let model = model(architecture);
    let options = EngineOptions { rollback: 4, ..common::options(1, 1) };
    let mut engine = LlamaEngine::new(&model, &options).unwrap();
    // What lies further back, or was not in the last pass, is not forgotten.
    let text = tokens(&model, TEXT);
    let step = |keep, trunk| Step { slot: Slot(0), keep, trunk, tree: &[], rows: Rows::Trunk };
    let mut output = Output::default();
    engine.extend(&[step(Keep::Trunk(0), &text[..20])], &mut output).unwrap();
    assert!(engine.can_forget(Slot(0), 4) && !engine.can_forget(Slot(0), 5));
    assert!(engine.extend(&[step(Keep::Trunk(10), &text[10..11])], &mut output).is_err());
    engine.extend(&[step(Keep::Trunk(17), &text[17..18])], &mut output).unwrap();
    assert!(engine.can_forget(Slot(0), 0) && !engine.can_forget(Slot(0), 1));
    let expected = row_after(&mut self::engine(&model, 1, 1), &text[..18]);
    assert!(apart(output.row(0), &expected) < GAP_MAX);
}

/// A model with a recurrent state, which cannot forget a part of what it read.
macro_rules! recurs {
    ($($name:ident: $architecture:literal),* $(,)?) => {$(
        mod $name {
            #[test]
            fn its_rows_are_those_of_a_fresh_start() {
                super::play($architecture, 1);
            }

            #[test]
            fn it_refuses_drafts() {
                super::refuses_drafts($architecture);
            }

            #[test]
            fn it_reads_prompts_that_begin_alike_again() {
                super::reads_prompts_again($architecture);
            }
        }
    )*};
}

recurs! {
    qwen35: "qwen35",
    granite_hybrid: "granitehybrid",
    nemotron_h: "nemotron_h",
    lfm2: "lfm2",
    mamba2: "mamba2",
}

fn refuses_drafts(architecture: &str) {
    let model = model(architecture);
    let target = engine(&model, 1, 1);
    assert!(!target.can_cut());
    let refused = Decoder::new(Box::new(target), vec![Box::new(NgramDrafter::default())]);
    let said = refused.err().unwrap().to_string();
    assert!(said.contains("cannot forget rejected drafts"), "{said}");
    assert!(LlamaEngine::new(&model, &common::options(1, 3)).is_err(), "several paths");
}

/// After a pass over so many tokens, what it says it can forget leaves the rows of a fresh start.
fn forgets_what_it_says(architecture: &str) {
    let model = model(architecture);
    let text = tokens(&model, TEXT);
    let options = EngineOptions { rollback: 4, ..common::options(1, 1) };
    let (mut fresh, mut output) = (engine(&model, 1, 1), Output::default());
    let step =
        |keep: Keep, trunk| Step { slot: Slot(0), keep, trunk, tree: &[], rows: Rows::Trunk };
    let mut forgotten = 0;
    for pass in 1..=6 {
        for tokens in 1..=pass {
            let mut engine = LlamaEngine::new(&model, &options).unwrap();
            let end = 20 + pass;
            engine.extend(&[step(Keep::Trunk(0), &text[..20])], &mut output).unwrap();
            engine.extend(&[step(Keep::Trunk(20), &text[20..end])], &mut output).unwrap();
            if !engine.can_forget(Slot(0), tokens) {
                continue;
            }
            let kept = end - tokens;
            engine.extend(&[step(Keep::Trunk(kept), &text[40..42])], &mut output).unwrap();
            let again = [&text[..kept], &text[40..42]].concat();
            let expected = row_after(&mut fresh, &again);
            let gap = apart(output.row(0), &expected);
            assert!(gap <= GAP_MAX, "{architecture}: {tokens} of a pass of {pass}: {gap}");
            forgotten += 1;
        }
    }
    assert!(forgotten >= 10, "{forgotten} times");
}

mod taken_back {
    #[test]
    fn hybrids_forget_what_they_say() {
        ["qwen35", "nemotron_h", "lfm2"].into_iter().for_each(super::forgets_what_it_says);
    }

    #[test]
    fn qwen35_takes_drafts_back() {
        super::takes_drafts_back("qwen35");
    }

    #[test]
    fn nemotron_h_takes_drafts_back() {
        super::takes_drafts_back("nemotron_h");
    }

    #[test]
    fn lfm2_takes_drafts_back() {
        super::takes_drafts_back("lfm2");
    }
}
