//! Draft heads: what a head says of the next token is what it says over the whole text at once, however
//! prompts are read, drafts rejected, prefixes shared, and sequences come and go around it.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

mod common;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use common::{TEXT, apart, in_models_folder, model_path, options, tokens};
use forerun_decode::{
    BlockShape, Branch, DecodeError, Decoder, DraftPolicy, Drafter, DrafterId, DrafterKind, Engine,
    Generation, Head, HeadDrafter, Keep, Limits, Output, Rows, Sampling, Sequence, Slot, Step,
    StopStrings, Token, Tokenizer, Turn,
};
use forerun_llama::{
    EngineOptions, HeadKind, LlamaEngine, LlamaHead, Model, ModelOptions, SetupError,
};
use forerun_verify::{
    Block, BlockRule, Chance, Dist, Draft, Node, Philox, Random, Refusal, Rule, Verdict,
};

/// How far the overlap of a head's row with the target's may be from that over the whole text.
const GAP_MAX: f64 = 0.0005;

/// Tokens of a draft.
const DRAFT_LEN: usize = 3;

/// A target and its head.
struct Pair {
    target: Model,
    head: Model,
}

impl Pair {
    /// A head in a file of its own.
    fn of(target: &str, head: &str) -> Self {
        let load = |name: &str| {
            let path = match name.starts_with("zoo/") {
                true => in_models_folder(name),
                false => model_path(name),
            };
            Model::load(ModelOptions::new(path)).unwrap()
        };
        Self { target: load(target), head: load(head) }
    }

    /// The one trained head there is.
    fn trained() -> Self {
        Self::of(common::MODEL, "SmolLM2-135M-Instruct.eagle3.gguf")
    }

    /// One with random weights.
    fn random() -> Self {
        Self::of("zoo/llama.gguf", "zoo/llama-eagle3.gguf")
    }

    /// A target with a head of its own, whose weights are random.
    fn predicting(name: &str) -> Self {
        let path = in_models_folder(&format!("zoo/{name}.gguf"));
        let options = ModelOptions { prediction_layers: true, ..ModelOptions::new(path) };
        let target = Model::load(options).unwrap();
        Self { head: target.clone(), target }
    }

    fn drafts_blocks(&self) -> bool {
        self.head.head_kind() == Some(HeadKind::Dflash)
    }

    fn has_experts(&self) -> bool {
        self.target.architecture() == "glm4moe"
    }

    fn start(&self, slots: u32, paths: u32) -> (LlamaEngine, LlamaHead) {
        let options = EngineOptions { rollback: 4, ..options(slots, paths) };
        let mut engine = LlamaEngine::new(&self.target, &options).unwrap();
        let head = LlamaHead::new(&self.head, (&self.target, &mut engine), &options).unwrap();
        (engine, head)
    }

    fn decoder(&self, slots: u32, paths: u32) -> Result<Decoder, DecodeError> {
        let (engine, head) = self.start(slots, paths);
        let kind = head.kind().drafter();
        let drafter: Box<dyn Drafter> = Box::new(HeadDrafter::new(Box::new(head), kind));
        Decoder::new(Box::new(engine), vec![drafter])
    }

    /// How the head's rows overlap with the target's over a text in one pass.
    fn overlaps(&self, text: &[Token]) -> Overlaps {
        let (mut engine, mut head) = self.start(1, 1);
        let (mut rows, mut said) = (Output::default(), Output::default());
        run_all(text, |step| engine.extend(&[step], &mut rows).unwrap());
        if let Some(shape) = head.block() {
            let overlap = |at| {
                (at, overlap_of(&dist(rows.row(at - 1)), &block(&mut head, shape, &rows, text, at)))
            };
            let first = (2..text.len()).map(overlap).collect();
            return Overlaps { first, second: BTreeMap::new() };
        }
        let unpaired = head.pairing().unpaired();
        let features: Vec<f32> =
            (0..text.len() - 1).flat_map(|token| rows.feature(token).to_vec()).collect();
        let mut hidden = vec![0.0; (1 - unpaired) * head.hidden_len()];
        head.encode(&features, &mut hidden).unwrap();
        let paired = &text[unpaired..];
        run_all(paired, |step| head.extend_hidden(0, &[step], &hidden, &mut said).unwrap());
        // The row after token `t` is for the one at `t + 1`.
        let overlap = |pair: usize| {
            let token = pair + unpaired;
            (token + 1, overlap_of(&dist(rows.row(token)), &dist(said.row(pair))))
        };
        let first = (0..paired.len()).map(overlap).collect();
        // A drafted token goes in with the hidden row that it was drawn after, and the second head if
        // there are several.
        let (mut row, second_head) = (Output::default(), usize::from(head.head_count() > 1));
        let mut overlap = |token: usize| {
            let pairs = token - unpaired;
            let committed = &hidden[..pairs * head.hidden_len()];
            let hidden = [committed, said.feature(pairs - 1)].concat();
            let tree = [Branch { parent: 0, token: text[token] }];
            let (slot, keep, trunk) = (Slot(0), Keep::Trunk(0), &paired[..pairs]);
            let step = Step { slot, keep, trunk, tree: &tree, rows: Rows::Tree };
            head.extend_hidden(second_head, &[step], &hidden, &mut row).unwrap();
            (token + 1, overlap_of(&dist(rows.row(token)), &dist(row.row(0))))
        };
        let second = (unpaired + 1..text.len() - 1).map(&mut overlap).collect();
        Overlaps { first, second }
    }
}

/// Overlaps of a head's rows with the target's, by position.
#[derive(Debug, Default)]
struct Overlaps {
    /// The first rows of drafts.
    first: BTreeMap<usize, f64>,
    /// The second rows, where the first token is the text's.
    second: BTreeMap<usize, f64>,
}

/// What a head that drafts blocks says of the token at a position, from an empty cache.
fn block(
    head: &mut LlamaHead,
    shape: BlockShape,
    rows: &Output,
    text: &[Token],
    at: usize,
) -> Dist {
    let mut output = Output::default();
    let hidden: Vec<f32> = (0..at - 1).flat_map(|token| rows.feature(token).to_vec()).collect();
    let (slot, keep, trunk) = (Slot(0), Keep::Trunk(0), &text[..at - 1]);
    let cached = Step { slot, keep, trunk, tree: &[], rows: Rows::None };
    head.extend_hidden(0, &[cached], &hidden, &mut output).unwrap();
    let masks = std::iter::repeat_n(shape.mask, shape.len_max + shape.first_row - 1);
    let tokens = std::iter::once(text[at - 1]).chain(masks);
    let tree: Vec<Branch> =
        tokens.enumerate().map(|(parent, token)| Branch { parent, token }).collect();
    let keep = Keep::Trunk(at - 1);
    let step = Step { slot, keep, trunk: &[], tree: &tree, rows: Rows::Tree };
    head.extend_hidden(0, &[step], &[], &mut output).unwrap();
    dist(output.row(shape.first_row))
}

/// Runs a text as a path, with a row after each token.
fn run_all(text: &[Token], run: impl FnOnce(Step<'_>)) {
    let tree: Vec<Branch> = text[1..]
        .iter()
        .enumerate()
        .map(|(parent, token)| Branch { parent, token: *token })
        .collect();
    let keep = Keep::Trunk(0);
    run(Step { slot: Slot(0), keep, trunk: &text[..1], tree: &tree, rows: Rows::All });
}

fn dist(logits: &[f32]) -> Dist {
    Dist::softmax(logits, 1.0).unwrap()
}

fn overlap_of(target: &Dist, draft: &Dist) -> f64 {
    draft.support().map(|(token, prob)| prob.min(target.prob(token))).sum()
}

/// Commits a text that is given, whatever is drafted, and notes how the first row of each draft
/// overlaps with the target's.
#[derive(Debug)]
struct Forced {
    text: Vec<Token>,
    overlaps: Mutex<Overlaps>,
}

impl Rule for Forced {
    fn name(&self) -> &'static str {
        "forced"
    }

    fn admits(&self, _: &Draft) -> Result<(), Refusal> {
        Ok(())
    }

    fn decide(&self, block: &Block<'_>, _: &mut dyn Chance) -> Verdict {
        let position = usize::try_from(block.position()).unwrap();
        let draft = block.draft();
        let mut overlaps = self.overlaps.lock().unwrap();
        for (node, _, parent) in draft.nodes() {
            let seen = match draft.depth(node) {
                1 => &mut overlaps.first,
                2 if draft.child(Node::ROOT, self.text[position]) == Some(parent) => {
                    &mut overlaps.second
                }
                _ => continue,
            };
            let row = draft.drawn_from(node).expect("a head draws");
            let overlap = overlap_of(block.target(parent), row);
            seen.insert(position + draft.depth(parent), overlap);
        }
        let mut node = Node::ROOT;
        while let Some(child) = draft.child(node, self.text[position + draft.depth(node)]) {
            node = child;
        }
        let accepted = draft.depth(node);
        Verdict { node, accepted, next: self.text[position + accepted] }
    }
}

/// A sequence that is made to say a text.
struct Saying {
    sequence: Sequence,
    rule: Arc<Forced>,
    policy: DraftPolicy,
    chance: Random<Philox>,
}

impl Saying {
    /// The first `prompt_len` tokens are its prompt.
    fn new(slot: u32, text: &[Token], prompt_len: usize) -> Self {
        let rule = Arc::new(Forced { text: text.to_vec(), overlaps: Mutex::default() });
        let policy =
            DraftPolicy::drafted(vec![DrafterId(0)], DRAFT_LEN, Arc::clone(&rule) as Arc<dyn Rule>);
        let mut sequence = Sequence::new(Slot(slot), Sampling::unshaped());
        // Drafts must not reach beyond the text.
        sequence.begin(text[..prompt_len].to_vec(), text.len() - prompt_len - 4);
        Self { sequence, rule, policy, chance: Random(Philox::new(u64::from(slot))) }
    }

    fn is_over(&self) -> bool {
        self.sequence.wanted() == 0
    }
}

/// One round of these sequences.
fn round<'a>(
    decoder: &mut Decoder,
    sayings: impl IntoIterator<Item = &'a mut Saying>,
    prefill_max: usize,
) {
    let limits = Limits { prefill_max, ..Limits::default() };
    let mut sayings: Vec<&mut Saying> = sayings.into_iter().collect();
    let plans: Vec<_> = sayings.iter().map(|saying| saying.policy.plan()).collect();
    let turn = |(saying, plan)| {
        let Saying { sequence, policy, chance, .. }: &mut Saying = saying;
        Turn { sequence, policy, plan, limits, chance }
    };
    let mut turns: Vec<_> = sayings.iter_mut().map(|it| &mut **it).zip(&plans).map(turn).collect();
    for commit in decoder.round(&mut turns).unwrap().commits {
        assert!(commit.dropped.is_empty(), "{:?}", commit.dropped);
    }
}

/// Has a sequence say all of its text.
fn say(decoder: &mut Decoder, mut saying: Saying, prefill_max: usize) -> Saying {
    while !saying.is_over() {
        round(decoder, [&mut saying], prefill_max);
    }
    saying
}

/// All overlaps but so many are those over the whole text.
fn check(saying: &Saying, all: &Overlaps, others_max: usize) {
    let seen = saying.rule.overlaps.lock().unwrap();
    let drafts = seen.first.len();
    assert!(drafts >= saying.sequence.output().len() / 4, "{drafts} drafts");
    let others = |seen: &BTreeMap<usize, f64>, all: &BTreeMap<usize, f64>| -> Vec<(usize, f64)> {
        let both = seen.iter().filter_map(|(at, overlap)| Some((*at, overlap - all.get(at)?)));
        both.filter(|(_, gap)| gap.abs() > GAP_MAX).collect()
    };
    let (first, second) = (others(&seen.first, &all.first), others(&seen.second, &all.second));
    let count = first.len() + second.len();
    assert!(count <= others_max, "{drafts} drafts, others at {first:?}, second at {second:?}");
}

/// All that may happen to a sequence.
fn says_the_same_however_it_is_fed(pair: &Pair) {
    let text = tokens(&pair.target, TEXT);
    let all = pair.overlaps(&text);
    let prompt_len = text.len() / 3;
    // Where two experts are nearly as good, rounding may decide between them; and the tokens of a block,
    // which see each other, are added up in another order.
    let others_max = usize::from(pair.has_experts() || pair.drafts_blocks());
    let mut seconds = 0;
    let mut check = |saying: &Saying, all: &Overlaps| {
        check(saying, all, others_max);
        seconds += saying.rule.overlaps.lock().unwrap().second.len();
    };
    let shapes = [(512, 1), (7, 1), (1, 1), (512, 3)];
    let one_path = |(_, paths): &(usize, u32)| *paths == 1 || !pair.target.is_recurrent();
    for (prefill_max, paths) in shapes.into_iter().filter(one_path) {
        let mut decoder = pair.decoder(2, paths).unwrap();
        let saying = |slot, text: &[Token]| Saying::new(slot, text, prompt_len);
        check(&say(&mut decoder, saying(0, &text), prefill_max), &all);
        // The same prompt again, from the cache.
        check(&say(&mut decoder, saying(0, &text), prefill_max), &all);
        // In another slot, with what the first has; a recurrent state is not shared.
        let shared = decoder.share(Slot(0), Slot(1), &text[..prompt_len]);
        assert_eq!(shared, !pair.target.is_recurrent());
        check(&say(&mut decoder, saying(1, &text), prefill_max), &all);
        // Another text that begins alike.
        let mut other = text.clone();
        other[prompt_len / 2..].reverse();
        check(&say(&mut decoder, saying(1, &other), prefill_max), &pair.overlaps(&other));
    }
    // Eight at once, which begin and end at different times.
    let mut decoder = pair.decoder(8, 1).unwrap();
    let mut sayings: Vec<Saying> =
        (0..8).map(|slot| Saying::new(slot, &text, prompt_len)).collect();
    for number in 0.. {
        let begun = sayings.iter_mut().enumerate().filter(|(slot, _)| number >= 3 * slot);
        let mut running: Vec<_> = begun.map(|(_, it)| it).filter(|it| !it.is_over()).collect();
        if running.is_empty() {
            break;
        }
        // Turns come in any order, whatever lies where.
        if number % 2 == 1 {
            running.reverse();
        }
        round(&mut decoder, running, 16);
    }
    sayings.iter().for_each(|saying| check(saying, &all));
    assert!(seconds > 3 || pair.drafts_blocks(), "{seconds} second rows");
}

#[test]
fn a_trained_eagle3_head_says_the_same_however_it_is_fed() {
    says_the_same_however_it_is_fed(&Pair::trained());
}

#[test]
fn a_random_eagle3_head_says_the_same_however_it_is_fed() {
    says_the_same_however_it_is_fed(&Pair::random());
}

#[test]
fn a_targets_own_head_says_the_same_however_it_is_fed() {
    says_the_same_however_it_is_fed(&Pair::predicting("glm4moe-mtp"));
}

/// Each of its two blocks drafts one token.
#[test]
fn a_targets_own_heads_that_take_turns_say_the_same_however_they_are_fed() {
    says_the_same_however_it_is_fed(&Pair::predicting("step35-mtp"));
}

#[test]
fn a_targets_own_heads_in_another_file_say_the_same_however_they_are_fed() {
    says_the_same_however_it_is_fed(&Pair::of("zoo/step35-mtp.gguf", "zoo/step35-head.gguf"));
}

#[test]
fn a_head_that_drafts_blocks_says_the_same_however_it_is_fed() {
    says_the_same_however_it_is_fed(&Pair::of("zoo/llama.gguf", "zoo/llama-dflash.gguf"));
}

/// Rows of other tokens would be as good with random weights, not with trained ones.
#[test]
fn a_trained_head_agrees_with_its_target() {
    let pair = Pair::trained();
    let overlaps = pair.overlaps(&tokens(&pair.target, TEXT));
    let mean = overlaps.first.values().sum::<f64>() / overlaps.first.len() as f64;
    // As a C++ program says that feeds both models by llama.cpp's newer batches, on a processor with AMX. Kernels of one
    // without it say 0.2280.
    assert!((mean - 0.2269).abs() <= 0.002, "{mean}");
}

#[test]
fn a_head_leaves_greedy_output_alone() {
    let blocks = Pair::of("zoo/llama.gguf", "zoo/llama-dflash.gguf");
    let own = ["glm4moe-mtp", "qwen35-mtp", "step35-mtp"].map(Pair::predicting);
    for pair in [Pair::trained(), Pair::random(), blocks].into_iter().chain(own) {
        let vocab: Arc<dyn Tokenizer> = Arc::new(pair.target.vocab().clone());
        let output = |mut decoder: Decoder| {
            let drafters = decoder.drafters().infos().iter().map(|info| info.id).collect();
            let mut sequence = Sequence::new(Slot(0), Sampling::greedy());
            sequence.begin(tokens(&pair.target, &TEXT[..60]), 60);
            let policy = DraftPolicy::drafted(drafters, 4, Arc::new(BlockRule));
            let stops = StopStrings::new(Vec::<String>::new()).unwrap();
            let mut generation = Generation::new(sequence, policy, Arc::clone(&vocab), &stops, 1);
            while generation.next(&mut decoder).unwrap().is_some() {}
            generation.sequence().output().to_vec()
        };
        let engine = LlamaEngine::new(&pair.target, &options(1, 1)).unwrap();
        let plain = output(Decoder::new(Box::new(engine), Vec::new()).unwrap());
        assert_eq!(output(pair.decoder(1, 1).unwrap()), plain);
    }
}

/// What the target's passes give for a head must not change their rows.
#[test]
fn a_target_that_shows_its_hidden_states_says_the_same() {
    let pair = Pair::trained();
    let text = tokens(&pair.target, TEXT);
    let mut plain = LlamaEngine::new(&pair.target, &options(1, 1)).unwrap();
    let (mut showing, _head) = pair.start(1, 1);
    let (mut rows, mut shown) = (Output::default(), Output::default());
    run_all(&text, |step| plain.extend(&[step], &mut rows).unwrap());
    run_all(&text, |step| showing.extend(&[step], &mut shown).unwrap());
    assert_eq!((rows.feature_count(), shown.feature_count()), (0, text.len()));
    assert!((0..rows.len()).all(|row| apart(rows.row(row), shown.row(row)) == 0.0));
}

/// Its recurrent state is taken back by what was rejected.
#[test]
fn a_hybrid_targets_own_head_says_the_same_however_it_is_fed() {
    says_the_same_however_it_is_fed(&Pair::predicting("qwen35-mtp"));
}

#[test]
fn a_hybrid_that_cannot_take_drafts_back_is_refused() {
    let pair = Pair::predicting("qwen35-mtp");
    let mut engine = LlamaEngine::new(&pair.target, &options(1, 1)).unwrap();
    let head = LlamaHead::new(&pair.head, (&pair.target, &mut engine), &options(1, 1)).unwrap();
    let drafter = HeadDrafter::new(Box::new(head), DrafterKind::Mtp);
    let refused = Decoder::new(Box::new(engine), vec![Box::new(drafter)]).err();
    assert!(matches!(refused, Some(DecodeError::CannotDraft)), "{refused:?}");
}

#[test]
fn a_head_that_cannot_serve_is_refused_with_a_reason() {
    let refused = |target: &str| {
        let pair = Pair::of(target, "zoo/llama-eagle3.gguf");
        let mut engine = LlamaEngine::new(&pair.target, &options(1, 1)).unwrap();
        LlamaHead::new(&pair.head, (&pair.target, &mut engine), &options(1, 1)).unwrap_err()
    };
    // llama.cpp would end the process.
    let missing = refused("zoo/gemma3.gguf");
    assert!(matches!(missing, SetupError::NoHiddenStates { .. }), "{missing}");
    let other = refused(common::MODEL);
    assert!(matches!(other, SetupError::OtherTarget { .. }), "{other}");
    let own = Pair::of("zoo/qwen35.gguf", "zoo/step35-head.gguf");
    let mut engine = LlamaEngine::new(&own.target, &options(1, 1)).unwrap();
    let other = LlamaHead::new(&own.head, (&own.target, &mut engine), &options(1, 1)).unwrap_err();
    assert!(matches!(other, SetupError::OtherTarget { .. }), "{other}");
    for head in [Pair::random().head, own.head] {
        let alone = LlamaEngine::new(&head, &options(1, 1)).unwrap_err();
        assert!(matches!(alone, SetupError::HeadAlone), "{alone}");
    }
    let pair = Pair::of("zoo/llama.gguf", "zoo/llama.gguf");
    let mut engine = LlamaEngine::new(&pair.target, &options(1, 1)).unwrap();
    let none = LlamaHead::new(&pair.head, (&pair.target, &mut engine), &options(1, 1)).unwrap_err();
    assert!(matches!(none, SetupError::NoHead), "{none}");
}
