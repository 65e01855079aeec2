//! Plain against drafted decoding on a real model: are the texts of one law?
//!
//! Both decode the same prompts many times over, and a permutation test compares how often each
//! beginning came. Its false-alarm rate holds exactly, whatever the law: were both samples of one
//! law, any split of them into two would be as likely as the one seen. A wrong rule goes through the
//! same test and must be found out.
//!
//! `just two-sample` makes the report, with 20,000 texts in all. What enumeration proves
//! about rules and loop is in `forerun-decode`; this covers what it cannot: llama.cpp's cache, its
//! rows, and a real vocabulary.

#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

mod common;

use std::collections::HashMap;
use std::sync::Arc;

use common::{MODEL, count, model_path, options, tokens};
use forerun_decode::{
    Decoder, DraftPolicy, Drafter, DrafterId, DrafterKind, HeadDrafter, Limits, ModelDrafter,
    NgramDrafter, Sampling, Sequence, Slot, Token, Turn,
};
use forerun_llama::{LlamaEngine, LlamaHead, Model, ModelOptions};
use forerun_verify::rand_core::Rng as _;
use forerun_verify::{
    Block, BlockRule, Chance, Draft, Node, Philox, PooledRule, Random, Refusal, Rule, Verdict,
};

/// Tokens of each text that are compared. The first is drawn plain, the others are drafted.
const TEXT_LEN: usize = 3;
const DRAFT_LEN: usize = 2;

/// The drafters.
const MODEL_DRAFTER: DrafterId = DrafterId(0);
const NGRAM: DrafterId = DrafterId(1);
const HEAD: DrafterId = DrafterId(2);
/// Texts decoded at once.
const SLOTS: u32 = 32;
/// Beginnings seen less often than this, in both samples together, count as one.
const RARE: u32 = 10;
/// Random splits; the seen one is among the extreme 1 in 1,000 by chance as often as that.
const SPLITS: usize = 1999;
const FALSE_ALARM: f64 = 1e-3;

const PROMPTS: [&str; 4] = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea, there lived",
    "def fibonacci(n):\n    if n < 2:\n        return",
    "Question: What is 12 plus 7?\nAnswer:",
];

/// What an n-gram drafter has something to say about.
const REPETITIVE: [&str; 4] = [
    "one two three four one two three four one two",
    "The cat sat. The dog sat. The cow sat. The cat",
    "a = 1\nb = 2\nc = 3\na = 1\nb =",
    "Tea or coffee? Tea. Tea or coffee? Coffee. Tea or",
];

const WARM: &str = "temperature 1.0";
const LOOPS: &str = "temperature 1.0, repetitive prompts";
const COOL: &str = "temperature 0.7, top-k 40, top-p 0.9";
/// Outputs of each sample where the full test would take too long: a wrong rule shows in as many.
const QUICK: usize = 320;

type Text = [Token; TEXT_LEN];

/// At least so many texts: a multiple of what one round serves.
fn samples(wanted: usize) -> usize {
    let step = PROMPTS.len() * SLOTS as usize;
    wanted.div_ceil(step) * step
}

fn load(name: &str) -> Model {
    Model::load(ModelOptions::new(model_path(name))).unwrap()
}

/// Decodes every prompt equally often; texts in the order of prompts.
fn texts(policy: &DraftPolicy, setting: &str, count: usize, seed: u64) -> Vec<Vec<Text>> {
    let sampling = if setting == COOL { cool() } else { Sampling::unshaped() };
    let prompts = if setting == LOOPS { REPETITIVE } else { PROMPTS };
    let target = load(MODEL);
    let small = |paths: usize| small(SLOTS, u32::try_from(paths).unwrap());
    let engine = |model: &Model, paths: usize| LlamaEngine::new(model, &small(paths)).unwrap();
    let (width, fixed_paths) = (policy.width_max, policy.drafters.len().saturating_sub(1));
    let mut scores = engine(&target, width + fixed_paths);
    let mut drafters: Vec<Box<dyn Drafter>> = Vec::new();
    if !policy.drafters.is_empty() {
        let draft = load("SmolLM2-pruned-14+13.gguf");
        drafters.push(Box::new(ModelDrafter::new(Box::new(engine(&draft, width)))));
        drafters.push(Box::new(NgramDrafter::default()));
    }
    if policy.drafters.contains(&HEAD) {
        let head = load("SmolLM2-135M-Instruct.eagle3.gguf");
        let head = LlamaHead::new(&head, (&target, &mut scores), &small(width)).unwrap();
        drafters.push(Box::new(HeadDrafter::new(Box::new(head), DrafterKind::Eagle3)));
    }
    let mut decoder = Decoder::new(Box::new(scores), drafters).unwrap();
    let mut sequences: Vec<Sequence> =
        (0..SLOTS).map(|slot| Sequence::new(Slot(slot), sampling.clone())).collect();
    let mut chance = Random(Philox::new(seed));
    let mut sample = Vec::new();
    for prompt in prompts {
        let prompt = tokens(&target, prompt);
        let mut texts = Vec::new();
        while texts.len() < count / PROMPTS.len() {
            texts.extend(batch(&mut decoder, &mut sequences, policy, &prompt, &mut chance));
        }
        sample.push(texts);
    }
    sample
}

/// A text in each slot.
fn batch(
    decoder: &mut Decoder,
    sequences: &mut [Sequence],
    policy: &DraftPolicy,
    prompt: &[Token],
    chance: &mut Random<Philox>,
) -> Vec<Text> {
    for sequence in &mut *sequences {
        // Longer than is looked at, so that the last draft is not cut short.
        sequence.begin(prompt.to_vec(), TEXT_LEN + DRAFT_LEN + 1);
    }
    let unfinished = |sequence: &&mut Sequence| sequence.output().len() < TEXT_LEN;
    loop {
        let waiting: Vec<&mut Sequence> = sequences.iter_mut().filter(unfinished).collect();
        if waiting.is_empty() {
            break;
        }
        // A generator of its own for each turn, for turns cannot share one.
        let mut chances: Vec<_> =
            waiting.iter().map(|_| Random(Philox::new(chance.0.next_u64()))).collect();
        let turns = waiting.into_iter().zip(&mut chances);
        let (plan, limits) = (&policy.plan(), Limits::default());
        let mut turns: Vec<_> = turns
            .map(|(sequence, chance)| Turn { sequence, policy, plan, limits, chance })
            .collect();
        decoder.round(&mut turns).unwrap();
    }
    sequences.iter().map(|sequence| sequence.output()[..TEXT_LEN].try_into().unwrap()).collect()
}

fn small(slots: u32, paths: u32) -> forerun_llama::EngineOptions {
    // One thread each: the report makes two comparisons at once.
    let threads = Some(count(1));
    forerun_llama::EngineOptions { context_len: Some(count(64)), threads, ..options(slots, paths) }
}

/// Numbers for the beginnings of each text: one for each length, rare ones sharing a number.
struct Beginnings {
    numbers: Vec<[u32; TEXT_LEN]>,
    /// Texts of one prompt, which splits must not mix with another's.
    ends: Vec<usize>,
    count: usize,
    /// How often each number occurs.
    totals: Vec<u32>,
}

impl Beginnings {
    /// Of two samples, the first one's texts before the second's for each prompt.
    fn of(one: &[Vec<Text>], two: &[Vec<Text>]) -> Self {
        let (mut numbers, mut ends) = (Vec::new(), Vec::new());
        let (mut count, mut totals) = (0_u32, Vec::new());
        for (one, two) in one.iter().zip(two) {
            let mut seen: HashMap<&[Token], u32> = HashMap::new();
            for text in one.iter().chain(two) {
                (1..=TEXT_LEN).for_each(|len| *seen.entry(&text[..len]).or_default() += 1);
            }
            // One number for this prompt's rare beginnings of each length.
            let rare: [u32; TEXT_LEN] = std::array::from_fn(|_| {
                count += 1;
                count - 1
            });
            let mut numbered: HashMap<&[Token], u32> = HashMap::new();
            for text in one.iter().chain(two) {
                numbers.push(std::array::from_fn(|at| {
                    let beginning = &text[..=at];
                    if seen[beginning] < RARE {
                        return rare[at];
                    }
                    *numbered.entry(beginning).or_insert_with(|| {
                        count += 1;
                        count - 1
                    })
                }));
            }
            ends.push(numbers.len());
        }
        totals.resize(count as usize, 0);
        numbers.iter().flatten().for_each(|number| totals[*number as usize] += 1);
        Self { numbers, ends, count: count as usize, totals }
    }

    /// How far the texts marked `true` are from the others: chi-square over all numbers.
    fn distance(&self, marked: &[bool]) -> f64 {
        let mut counts = vec![0u32; self.count];
        for (numbers, _) in self.numbers.iter().zip(marked).filter(|(_, marked)| **marked) {
            numbers.iter().for_each(|number| counts[*number as usize] += 1);
        }
        let term = |(count, total): (&u32, &u32)| {
            let gap = 2.0 * f64::from(*count) - f64::from(*total);
            if *total > 0 { gap * gap / f64::from(*total) } else { 0.0 }
        };
        counts.iter().zip(&self.totals).map(term).sum()
    }

    /// The chance of a distance at least as large, were both samples of one law.
    fn chance_of_more(&self) -> f64 {
        let mut random = Philox::new(99);
        let mut marked: Vec<bool> = Vec::new();
        for end in &self.ends {
            let half = (end - marked.len()) / 2;
            marked.extend(std::iter::repeat_n(true, half));
            marked.extend(std::iter::repeat_n(false, half));
        }
        let seen = self.distance(&marked);
        let mut as_far = 1;
        for _ in 0..SPLITS {
            let mut start = 0;
            for end in &self.ends {
                shuffle(&mut marked[start..*end], &mut random);
                start = *end;
            }
            as_far += usize::from(self.distance(&marked) >= seen);
        }
        as_far as f64 / (SPLITS + 1) as f64
    }
}

fn shuffle(items: &mut [bool], random: &mut Philox) {
    for last in (1..items.len()).rev() {
        let other = random.next_u64() % (last as u64 + 1);
        items.swap(last, usize::try_from(other).unwrap());
    }
}

/// Accepts as block verification does, then draws the next token from the target's row instead of
/// the residual: the mistake of a decoder that keeps its plain sampler.
#[derive(Debug)]
struct NoResidual;

impl Rule for NoResidual {
    fn name(&self) -> &'static str {
        "block without residual"
    }

    fn admits(&self, draft: &Draft) -> Result<(), Refusal> {
        BlockRule.admits(draft)
    }

    fn decide(&self, block: &Block<'_>, chance: &mut dyn Chance) -> Verdict {
        let verdict = BlockRule.decide(block, chance);
        Verdict { next: block.target(verdict.node).draw(chance), ..verdict }
    }
}

/// Accepts every drafted token: so wrong that few texts show it.
#[derive(Debug)]
struct Gullible;

impl Rule for Gullible {
    fn name(&self) -> &'static str {
        "gullible"
    }

    fn admits(&self, draft: &Draft) -> Result<(), Refusal> {
        BlockRule.admits(draft)
    }

    fn decide(&self, block: &Block<'_>, chance: &mut dyn Chance) -> Verdict {
        let node = block.draft().nodes().last().map_or(Node::ROOT, |(node, _, _)| node);
        Verdict { node, accepted: block.draft().depth(node), next: block.target(node).draw(chance) }
    }
}

fn drafted(rule: impl Rule + 'static) -> DraftPolicy {
    DraftPolicy::drafted(vec![MODEL_DRAFTER], DRAFT_LEN, Arc::new(rule))
}

fn cool() -> Sampling {
    Sampling { temperature: 0.7, top_k: 40, top_p: 0.9, ..Sampling::unshaped() }
}

/// What the test found for one setting.
struct Finding {
    setting: &'static str,
    rule: &'static str,
    texts_each: usize,
    kinds: usize,
    chance: f64,
}

impl Finding {
    fn differs(&self) -> bool {
        self.chance <= FALSE_ALARM
    }

    fn line(&self) -> String {
        let Self { setting, rule, texts_each, kinds, chance } = self;
        let verdict = if self.differs() { "**differs**" } else { "same law" };
        format!("| {setting} | {rule} | {texts_each} | {kinds} | {chance:.4} | {verdict} |\n")
    }
}

/// Compares a policy with plain decoding.
fn compare(policy: &DraftPolicy, setting: &'static str, texts_each: usize) -> Finding {
    let plain = texts(&DraftPolicy::plain(), setting, texts_each, 1);
    compare_with(&plain, policy, setting, texts_each)
}

/// Compares a policy with the first of some plain texts.
fn compare_with(
    plain: &[Vec<Text>],
    policy: &DraftPolicy,
    setting: &'static str,
    texts_each: usize,
) -> Finding {
    let of_prompt = |texts: &Vec<Text>| texts[..texts_each / PROMPTS.len()].to_vec();
    let plain: Vec<_> = plain.iter().map(of_prompt).collect();
    let drafted = texts(policy, setting, texts_each, 2);
    let beginnings = Beginnings::of(&plain, &drafted);
    let (kinds, chance) = (beginnings.count, beginnings.chance_of_more());
    let finding = Finding { setting, rule: policy.rule.name(), texts_each, kinds, chance };
    eprint!("{}", finding.line());
    finding
}

#[test]
fn block_verification_at_temperature_1_is_plain_decoding() {
    assert!(!compare(&drafted(BlockRule), WARM, samples(QUICK)).differs());
}

#[test]
fn block_verification_at_temperature_07_with_top_k_and_top_p_is_plain_decoding() {
    assert!(!compare(&drafted(BlockRule), COOL, samples(QUICK)).differs());
}

#[test]
fn a_heads_drafts_at_temperature_1_are_plain_decoding() {
    let policy = DraftPolicy::drafted(vec![HEAD], DRAFT_LEN, Arc::new(BlockRule));
    assert!(!compare(&policy, WARM, samples(QUICK)).differs());
}

#[test]
fn two_paths_of_a_head_at_temperature_07_are_plain_decoding() {
    let policy = DraftPolicy::drafted(vec![HEAD], DRAFT_LEN, Arc::new(PooledRule)).wide(2);
    assert!(!compare(&policy, COOL, samples(QUICK)).differs());
}

#[test]
fn a_wrong_rule_with_a_head_is_found_out() {
    let policy = DraftPolicy::drafted(vec![HEAD], DRAFT_LEN, Arc::new(Gullible));
    assert!(compare(&policy, WARM, samples(QUICK)).differs());
}

#[test]
fn a_wrong_rule_is_found_out() {
    assert!(compare(&drafted(Gullible), WARM, samples(QUICK)).differs());
}

#[test]
fn pooled_verification_of_two_paths_and_an_n_gram_is_plain_decoding() {
    assert!(!compare(&pooled(2, true), LOOPS, samples(QUICK)).differs());
}

/// Paths of a draft model, and perhaps one of n-grams, judged together.
fn pooled(width: usize, ngram: bool) -> DraftPolicy {
    let drafters = if ngram { vec![MODEL_DRAFTER, NGRAM] } else { vec![MODEL_DRAFTER] };
    DraftPolicy::drafted(drafters, DRAFT_LEN, Arc::new(PooledRule)).wide(width)
}

/// Several paths, written down; `just two-sample-paths` runs it.
#[test]
#[ignore = "takes half an hour"]
fn report_paths() {
    let plans = [(2, false), (3, false), (2, true), (3, true)];
    let compared = |plans: &[(usize, bool)]| -> Vec<(String, Finding)> {
        let plain = texts(&DraftPolicy::plain(), LOOPS, samples(asked()), 1);
        let compare = |(width, ngram): &(usize, bool)| {
            let guess = if *ngram { " and an n-gram" } else { "" };
            let policy = pooled(*width, *ngram);
            (
                format!("{width} paths{guess}"),
                compare_with(&plain, &policy, LOOPS, samples(asked())),
            )
        };
        plans.iter().map(compare).collect()
    };
    let findings: Vec<(String, Finding)> = std::thread::scope(|scope| {
        let halves: Vec<_> =
            plans.chunks(2).map(|half| scope.spawn(move || compared(half))).collect();
        halves.into_iter().flat_map(|half| half.join().unwrap()).collect()
    });
    let mut text = String::from(
        "# Plain against pooled verification of several paths: are the texts of one law?\n\n\
         Made by `just two-sample-paths`, by the test of [two-sample.md](two-sample.md), on prompts that repeat themselves.\n\n\
         | drafts | setting | rule | texts of each | beginnings | chance | verdict |\n|---|---|---|--:|--:|--:|---|\n",
    );
    for (drafts, finding) in &findings {
        text.push_str(&format!("| {drafts} {}", finding.line()));
    }
    write("two-sample-paths.md", &text);
    assert!(findings.iter().all(|(_, finding)| !finding.differs()));
}

fn asked() -> usize {
    std::env::var("FORERUN_SAMPLES").map_or(5_000, |count| count.parse().unwrap())
}

fn write(name: &str, text: &str) {
    if std::env::var_os("FORERUN_WRITE_REPORTS").is_some() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/decode/");
        std::fs::write(format!("{folder}{name}"), text).unwrap();
    }
}

/// The full test, written down; `just two-sample` runs it.
#[test]
#[ignore = "takes half an hour"]
fn report() {
    let asked = asked();
    let both = |setting| {
        let plain = texts(&DraftPolicy::plain(), setting, samples(asked), 1);
        let right = compare_with(&plain, &drafted(BlockRule), setting, samples(asked));
        [right, compare_with(&plain, &drafted(NoResidual), setting, samples(asked / 2))]
    };
    let findings: Vec<Finding> = std::thread::scope(|scope| {
        let halves = [WARM, COOL].map(|setting| scope.spawn(move || both(setting)));
        halves.into_iter().flat_map(|half| half.join().unwrap()).collect()
    });
    let mut text = format!(
        "# Plain against drafted decoding: are the texts of one law?\n\n\
         Made by `just two-sample`. Target SmolLM2-135M-Instruct (Q4_1), drafter the same pruned to 14+13 blocks,\n\
         drafts of {DRAFT_LEN}. {} prompts in equal parts; the first {TEXT_LEN} tokens of each text count, as beginnings of every\n\
         length; those seen fewer than {RARE} times count as one. A permutation test over {SPLITS} random splits: *chance* is\n\
         that of a distance as large between two samples of one law. At {FALSE_ALARM} or less the test says *differs*, which for\n\
         samples of one law happens to one test in a thousand. *block without residual* is wrong on purpose: it\n\
         accepts as block verification does and then draws from the target's row.\n\n\
         | setting | rule | texts of each | beginnings | chance | verdict |\n|---|---|--:|--:|--:|---|\n",
        PROMPTS.len()
    );
    findings.iter().for_each(|finding| text.push_str(&finding.line()));
    write("two-sample.md", &text);
    let wrong = |finding: &Finding| finding.rule == NoResidual.name();
    assert!(findings.iter().all(|finding| finding.differs() == wrong(finding)));
}
