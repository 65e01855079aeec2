//! The law of the whole loop, by enumeration: drafting, scoring over a cache, verifying,
//! committing, over several rounds. Every random choice of every round is replayed with its
//! probability, so the law of the output is exact, and so is the comparison with the target's own.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

use std::collections::HashMap;
use std::sync::Arc;

use forerun_decode::*;
use forerun_verify::check::outcomes;
use forerun_verify::{
    Block, BlockRule, Chance, CoupledRule, Draft, GbvRule, Node, Noise, NssRule, PooledRule,
    Refusal, RsdRule, Rule, Scheme, SpecInferRule, TokenRule, TraversalRule, Verdict,
};

/// Tokens of output whose law is compared. The first is never drafted; the others are, in drafts
/// that begin and end anywhere among them.
const HORIZON: usize = 4;
const VOCAB: usize = 3;

type Law = HashMap<Vec<Token>, f64>;

fn toy(seed: u64) -> ToyModel {
    ToyModel { vocab_len: VOCAB, order: 3, seed, spread: 1.5 }
}

fn prompt() -> Vec<Token> {
    [0, 1, 0, 2, 0, 1].map(Token).to_vec()
}

/// After so many rounds the sequence goes on in another decoder, with so many of the last round's
/// tokens.
type Move = (usize, fn(usize) -> usize);

/// A setting to prove: who drafts, how rows are shaped, how drafts are judged.
struct Case {
    drafters: fn() -> Vec<Box<dyn Drafter>>,
    sampling: Sampling,
    constraint: Option<fn() -> Box<dyn Constraint>>,
    policy: DraftPolicy,
    /// Most tokens a drafter prefills.
    drafter_prefill_max: Option<usize>,
    /// Tokens compared, and tokens wanted.
    len: (usize, usize),
    moved: Option<Move>,
    target: fn(ToyModel) -> Box<dyn Engine>,
    /// What ends the paths of the first drafter, if tokens cost so much.
    gate: Option<Worth>,
}

impl Case {
    fn new(drafters: fn() -> Vec<Box<dyn Drafter>>, rule: impl Rule + 'static) -> Self {
        Self {
            drafters,
            sampling: Sampling::unshaped(),
            constraint: None,
            policy: DraftPolicy::drafted(vec![], 2, Arc::new(rule)),
            drafter_prefill_max: None,
            len: (HORIZON, 100),
            moved: None,
            target: |model| Box::new(ToyEngine::new(model, 64)),
            gate: None,
        }
    }

    fn gated(mut self, token: f64, pass: f64) -> Self {
        let width = self.policy.width_max;
        self.gate = Some(Worth { scored: Price::per_token(token), pass, width });
        self
    }

    fn shaped(mut self, sampling: Sampling) -> Self {
        self.sampling = sampling;
        self
    }

    fn constrained(mut self, constraint: fn() -> Box<dyn Constraint>) -> Self {
        self.constraint = Some(constraint);
        self
    }

    fn moved(mut self, after: usize, keep: fn(usize) -> usize) -> Self {
        self.moved = Some((after, keep));
        self
    }

    fn wide(mut self, width: usize, scheme: Scheme) -> Self {
        self.policy = self.policy.wide(width).drawn(scheme);
        // Several paths have many outcomes: one round of full length, then shorter ones.
        self.len = (HORIZON - 1, HORIZON);
        self
    }

    /// The law of the first tokens decoded in rounds.
    fn decoded(&self, seed: u64) -> Law {
        self.decoded_and_spent(seed).0
    }

    /// The same, and what these tokens are expected to have spent by their own account.
    fn decoded_and_spent(&self, seed: u64) -> (Law, f64) {
        let (law, spent, _) = self.decoded_spent_and_stopped(seed);
        (law, spent)
    }

    /// The same, and how many paths a gate is expected to end, and how many it lets be whole.
    fn decoded_spent_and_stopped(&self, seed: u64) -> (Law, f64, (f64, f64)) {
        let (mut law, mut sum, mut ended) = (Law::new(), 0.0, (0.0, 0.0));
        let run = |chance: &mut dyn Chance| {
            let (mut decoder, mut sequence) = self.begun(seed, &[]);
            let drafters = decoder.drafters().iter().map(|(id, _)| id).collect();
            let policy = &DraftPolicy { drafters, ..self.policy.clone() };
            let (mut rounds, mut dropped, mut spent) = (0, Vec::new(), Vec::new());
            let (mut stopped, mut whole) = (0, 0);
            while sequence.output().len() < self.len.0 {
                let drafter_prefill_max = self.drafter_prefill_max;
                // At this price even unlikely tokens are drafted.
                let price = Price::per_token(0.01);
                let at = (DrafterId(0), self.sampling.temperature);
                let watch = |worth| strict_gates(at.1).watch(at, rounds, Some(worth));
                let gates = self.gate.clone().map(watch).into_iter().collect();
                let plan = policy.plan().without(&dropped);
                let plan = &Plan { drafter_prefill_max, price, gates, ..plan };
                let limits = Limits::default();
                let turn = Turn { sequence: &mut sequence, policy, plan, limits, chance };
                let round = decoder.round(&mut [turn]).unwrap();
                dropped.extend(round.commits[0].dropped.iter().map(|it| it.drafter));
                spent.extend(round.commits[0].spent.iter().map(|spend| spend.distance));
                stopped += round.commits[0].stopped;
                whole += usize::from(round.commits[0].draft_len == self.policy.draft_len_max);
                rounds += 1;
                if let Some((_, keep)) = self.moved.filter(|(after, _)| *after == rounds) {
                    let committed = round.commits[0].committed;
                    let kept = sequence.output().len() - committed + keep(committed);
                    (decoder, sequence) = self.begun(seed, &sequence.output()[..kept]);
                    dropped.clear();
                }
            }
            let output = sequence.output()[..self.len.0].to_vec();
            (output, spent.iter().take(self.len.0).sum::<f64>(), stopped, whole)
        };
        outcomes(run, |probability, (output, spent, stopped, whole)| {
            sum += probability * spent;
            ended.0 += probability * stopped as f64;
            ended.1 += probability * whole as f64;
            *law.entry(output).or_default() += probability;
        });
        (law, sum, ended)
    }

    /// A decoder, and a sequence with this output so far.
    fn begun(&self, seed: u64, output: &[Token]) -> (Decoder, Sequence) {
        let decoder = Decoder::new((self.target)(toy(seed)), (self.drafters)()).unwrap();
        let mut sequence = Sequence::new(Slot(0), self.sampling.clone());
        sequence.constraint = self.constraint.map(|make| make());
        if let Some(constraint) = &mut sequence.constraint {
            constraint.commit(output);
        }
        sequence.resume(prompt(), output, self.len.1);
        (decoder, sequence)
    }

    /// The law of plain decoding, written down from the model.
    fn plain(&self, seed: u64) -> Law {
        let mut law = Law::from([(Vec::new(), 1.0)]);
        for _ in 0..self.len.0 {
            let mut longer = Law::new();
            for (output, probability) in law {
                let committed: Vec<Token> =
                    prompt().into_iter().chain(output.iter().copied()).collect();
                let mut logits = toy(seed).logits(&committed);
                if let Some(make) = self.constraint {
                    let mut constraint = make();
                    constraint.commit(&output);
                    constraint.mask(&[], &mut logits).unwrap();
                }
                let row = self.sampling.row(&mut logits, &committed, &[]).unwrap();
                for (token, chance) in row.support() {
                    let mut next = output.clone();
                    next.push(token);
                    longer.insert(next, probability * chance);
                }
            }
            law = longer;
        }
        law
    }

    /// How far the next token's law after each output so far is from the target's: the largest total
    /// variation, and the sum of those that an output is expected to meet. Of tokens that the target
    /// never says, none may come.
    fn distances(&self, law: &Law, seed: u64) -> (f64, f64) {
        let (ours, plain) = (begun_with(law), begun_with(&self.plain(seed)));
        let (mut most, mut sum) = (0.0_f64, 0.0);
        for (output, chance) in ours.iter().filter(|(output, _)| output.len() < self.len.0) {
            let token = |id: usize| {
                let next = [output.as_slice(), &[Token(u32::try_from(id).unwrap())]].concat();
                let of = |law: &Law| law.get(&next).copied().unwrap_or(0.0);
                (of(&ours) / chance, of(&plain) / plain[output])
            };
            let rows: Vec<(f64, f64)> = (0..VOCAB).map(token).collect();
            assert!(rows.iter().all(|(ours, plain)| *ours == 0.0 || *plain > 0.0), "{rows:?}");
            let distance = rows.iter().map(|(ours, plain)| (ours - plain).abs()).sum::<f64>() / 2.0;
            most = most.max(distance);
            sum += chance * distance;
        }
        (most, sum)
    }

    /// The largest difference between the two laws.
    fn worst_error(&self, seed: u64) -> f64 {
        let (decoded, plain) = (self.decoded(seed), self.plain(seed));
        let outputs = decoded.keys().chain(plain.keys());
        let of = |law: &Law, output: &Vec<Token>| law.get(output).copied().unwrap_or(0.0);
        outputs.map(|output| (of(&decoded, output) - of(&plain, output)).abs()).fold(0.0, f64::max)
    }

    fn assert_lossless(&self, what: &str) {
        for seed in 0..3 {
            let worst = self.worst_error(seed);
            assert!(worst < 1e-12, "{what}, target {seed}: off by {worst:e}");
        }
    }

    /// The same, where a gate ends some paths and not others.
    fn assert_gated_and_lossless(&self, what: &str) {
        self.assert_lossless(what);
        let (_, _, (stopped, whole)) = self.decoded_spent_and_stopped(0);
        assert!(stopped > 0.05 && whole > 0.05, "{what}: {stopped} ended, {whole} whole");
    }
}

/// Gates that go by everything they see, the token that was drawn above all: what was unlikely is
/// hardly followed.
fn strict_gates(temperature: f32) -> Gates {
    let fit = |weights: &[f64]| SavedFit {
        weights: weights.to_vec(),
        precision: (0..weights.len())
            .map(|row| (0..weights.len()).map(|it| f64::from(u8::from(it == row))).collect())
            .collect(),
    };
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small number")]
    let gate = SavedGate {
        drafter: "toy".to_owned(),
        tenths: (10.0 * temperature).round() as u32,
        seen: 100.0,
        accepted: 60.0,
        row: fit(&[-0.5, 4.0, 2.0, -2.0, -0.3, 0.5]),
        token: fit(&[1.0, 2.0, 1.0, -1.0, -0.3, 0.5, -8.0, -3.0]),
    };
    let mut gates = Gates::new([(DrafterId(0), "toy".to_owned())]);
    gates.load(&SavedGates { format: 1, gates: vec![gate] }).unwrap();
    gates
}

/// The chance that an output begins with these tokens.
fn begun_with(law: &Law) -> Law {
    let mut begun = Law::new();
    for (output, chance) in law {
        for len in 0..=output.len() {
            *begun.entry(output[..len].to_vec()).or_default() += chance;
        }
    }
    begun
}

fn model() -> Box<dyn Drafter> {
    Box::new(ModelDrafter::new(Box::new(ToyEngine::new(toy(77), 64))))
}

fn penalised() -> Sampling {
    Sampling {
        repeat_penalty: 1.4,
        presence_penalty: 0.6,
        frequency_penalty: 0.9,
        repeat_last_n: Some(4),
        logit_bias: vec![(Token(1), 0.7)],
        ..Sampling::unshaped()
    }
}

/// Three texts of which one begins another, and none that ends.
struct Texts;

impl Tokenizer for Texts {
    fn vocab_len(&self) -> usize {
        VOCAB
    }
    fn tokenize(&self, _: &str, _: Special) -> Result<Vec<Token>, TokenizeError> {
        Ok(Vec::new())
    }
    fn start(&self) -> Option<Token> {
        None
    }
    fn is_end(&self, _: Token) -> bool {
        false
    }
    fn bytes(&self, token: Token, out: &mut Vec<u8>) {
        out.extend_from_slice([&b"a"[..], b"ab", b"b"][token.index()]);
    }
}

#[test]
fn a_sampler_for_gaps_is_followed_exactly() {
    let infill = Some(InfillSampler::new(Arc::new(Texts), Token(2)));
    let sampling = Sampling { infill, top_k: VOCAB, ..Sampling::unshaped() };
    let case = Case::new(|| vec![model()], BlockRule).shaped(sampling.clone());
    case.assert_lossless("block");
    Case::new(|| vec![model()], TokenRule).shaped(sampling).assert_lossless("token");
}

#[test]
fn a_draft_model_changes_nothing() {
    Case::new(|| vec![model()], BlockRule).assert_lossless("block");
    Case::new(|| vec![model()], TokenRule).assert_lossless("token");
    Case::new(|| vec![model()], PooledRule).assert_lossless("pooled");
}

fn head(pairing: Pairing, heads: usize) -> Box<dyn Drafter> {
    let head = ToyHead::new(ToyEngine::new(toy(77), 64), pairing).in_turn(heads);
    Box::new(HeadDrafter::new(Box::new(head), DrafterKind::Eagle3))
}

#[test]
fn a_draft_head_changes_nothing() {
    let case = |drafters: fn() -> Vec<Box<dyn Drafter>>, rule: RuleChoice| {
        let mut case = Case::new(drafters, BlockRule);
        case.policy.rule = rule.with_seed(0);
        case.target = |model| Box::new(ToyEngine::new(model, 64).with_features());
        case
    };
    let eagle: fn() -> Vec<Box<dyn Drafter>> = || vec![head(Pairing::AfterFirst, 1)];
    let mtp: fn() -> Vec<Box<dyn Drafter>> = || vec![head(Pairing::FromFirst, 1)];
    let in_turn: fn() -> Vec<Box<dyn Drafter>> = || vec![head(Pairing::FromFirst, 2)];
    for drafters in [eagle, mtp, in_turn] {
        case(drafters, RuleChoice::Block).assert_lossless("block");
        case(drafters, RuleChoice::Token).shaped(penalised()).assert_lossless("penalties");
        let two = case(drafters, RuleChoice::Pooled).wide(2, Scheme::Independent);
        two.assert_lossless("two paths");
    }
}

/// Shows a head the row of the token before.
struct Shifted(Box<dyn Drafter>);

impl Drafter for Shifted {
    fn kind(&self) -> DrafterKind {
        self.0.kind()
    }

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), DraftFailure> {
        self.0.draft(requests)
    }

    fn show(&mut self, shown: &[Shown<'_>]) {
        let shifted = shown.iter().cloned().map(|mut shown| {
            shown.features.rotate_right(1);
            shown
        });
        self.0.show(&shifted.collect::<Vec<_>>());
    }
}

/// A head that does not mind which rows it gets, as real ones do not; it drafts token by token, or
/// in blocks.
struct Careless(ToyEngine, Option<BlockShape>);

impl Engine for Careless {
    fn vocab_len(&self) -> usize {
        self.0.vocab_len()
    }

    fn context_len(&self) -> usize {
        self.0.context_len()
    }

    fn slot_count(&self) -> usize {
        self.0.slot_count()
    }

    fn paths_max(&self) -> usize {
        self.0.paths_max()
    }

    fn can_cut(&self) -> bool {
        true
    }

    fn extend(&mut self, steps: &[Step<'_>], output: &mut Output) -> Result<(), EngineError> {
        self.0.extend(steps, output)
    }
}

impl Head for Careless {
    fn pairing(&self) -> Pairing {
        Pairing::AfterFirst
    }

    fn hidden_len(&self) -> usize {
        2
    }

    fn block(&self) -> Option<BlockShape> {
        self.1
    }

    fn encode(&mut self, features: &[f32], hidden: &mut Vec<f32>) -> Result<(), EngineError> {
        hidden.extend_from_slice(features);
        Ok(())
    }

    fn extend_hidden(
        &mut self,
        _: usize,
        steps: &[Step<'_>],
        hidden: &[f32],
        output: &mut Output,
    ) -> Result<(), EngineError> {
        self.0.extend(steps, output)?;
        let favoured = hidden.last().map_or(0, |number| number.to_bits() as usize % VOCAB);
        for row in 0..output.len() {
            output.row_mut(row)[favoured] += 1.0;
            output.push_feature(&[&[row as f32, 1.0]]);
        }
        Ok(())
    }
}

#[test]
fn a_head_that_is_shown_the_wrong_rows_loses_nothing_but_acceptance() {
    let shifted = || -> Vec<Box<dyn Drafter>> {
        let head = Careless(ToyEngine::new(toy(77), 64), None);
        let drafter = HeadDrafter::new(Box::new(head), DrafterKind::Eagle3);
        vec![Box::new(Shifted(Box::new(drafter)))]
    };
    let mut case = Case::new(shifted, BlockRule);
    case.target = |model| Box::new(ToyEngine::new(model, 64).with_features());
    case.assert_lossless("shifted rows");
}

fn block_head() -> HeadDrafter {
    let shape = BlockShape { mask: Token(1), len_max: 4, first_row: 1 };
    let head = Careless(ToyEngine::new(toy(77), 64), Some(shape));
    HeadDrafter::new(Box::new(head), DrafterKind::Dflash)
}

fn block_case(drafter: fn() -> Vec<Box<dyn Drafter>>) -> Case {
    let mut case = Case::new(drafter, BlockRule);
    case.target = |model| Box::new(ToyEngine::new(model, 64).with_features());
    case
}

#[test]
fn a_head_that_drafts_blocks_changes_nothing_whether_refined_or_not() {
    let refined: fn() -> Vec<Box<dyn Drafter>> = || vec![Box::new(block_head())];
    let unrefined: fn() -> Vec<Box<dyn Drafter>> = || vec![Box::new(block_head().unrefined())];
    let check = |drafter, rule: RuleChoice, width| {
        let drafts = Drafts { drafters: 1, has_model: true, may_stop: false, width, paths: None };
        let scheme = rule.scheme(&drafts).unwrap();
        let mut case = block_case(drafter);
        if width > 1 {
            case = case.wide(width, scheme);
        }
        case.policy.scheme = scheme;
        case.policy.rule = rule.with_seed(0);
        case.assert_lossless(&format!("{}, {width} paths", rule.name()));
        if width == 1 {
            case.shaped(penalised()).assert_lossless(&format!("{}, penalties", rule.name()));
        }
    };
    // The coupled rule spends no chance: it is compared with itself, below.
    for rule in RuleChoice::ALL.into_iter().filter(|rule| *rule != RuleChoice::Coupled) {
        check(refined, rule, 1);
        if !matches!(rule, RuleChoice::Block | RuleChoice::Token) {
            check(refined, rule, 2);
        }
    }
    check(unrefined, RuleChoice::Block, 1);
    check(unrefined, RuleChoice::Pooled, 2);
}

/// Draws from the refined rows, and hands over those before refinement.
struct Misstated {
    refined: HeadDrafter,
    unrefined: HeadDrafter,
}

impl Drafter for Misstated {
    fn kind(&self) -> DrafterKind {
        self.refined.kind()
    }

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), DraftFailure> {
        self.refined.draft(requests)?;
        for request in requests {
            let mut chance = forerun_verify::Random(forerun_verify::Philox::new(0));
            let DraftRequest { slot, tokens, sampling, len_max, .. } = *request;
            let mut other = DraftRequest::next_token(slot, tokens, sampling, &mut chance, VOCAB);
            other.len_max = len_max;
            self.unrefined.draft(std::slice::from_mut(&mut other))?;
            let rows = other.tree.finish().unwrap();
            let empty = Draft::start(Scheme::Independent, VOCAB);
            let drawn = std::mem::replace(&mut request.tree, empty).finish().unwrap();
            // The rows of a block do not depend on what is drawn.
            let mut node = Node::ROOT;
            for ((at_depth, _, _), (_, token, _)) in rows.nodes().zip(drawn.nodes()) {
                let row = request.tree.row(rows.drawn_from(at_depth).unwrap().clone()).unwrap();
                node = request.tree.sampled(node, row, token).unwrap();
            }
        }
        Ok(())
    }

    fn show(&mut self, shown: &[Shown<'_>]) {
        self.refined.show(shown);
        self.unrefined.show(shown);
    }
}

#[test]
fn a_refined_draft_that_states_the_rows_before_refinement_is_caught() {
    let misstated = || -> Vec<Box<dyn Drafter>> {
        let (refined, unrefined) = (block_head(), block_head().unrefined());
        vec![Box::new(Misstated { refined, unrefined })]
    };
    for rule in [RuleChoice::Block, RuleChoice::Token, RuleChoice::Pooled] {
        let mut case = block_case(misstated);
        case.policy.rule = rule.with_seed(0);
        let worst = (0..3).map(|seed| case.worst_error(seed)).fold(0.0, f64::max);
        assert!(worst > 1e-3, "{}: off by {worst:e} only", rule.name());
    }
}

#[test]
fn truncation_and_penalties_are_those_of_plain_decoding_at_every_position() {
    let penalised = || Case::new(|| vec![model()], BlockRule).shaped(penalised());
    penalised().assert_lossless("penalties");
    let cut = Sampling { temperature: 0.7, top_k: 2, top_p: 0.9, ..Sampling::unshaped() };
    Case::new(|| vec![model()], BlockRule).shaped(cut).assert_lossless("top-k and top-p");
    let greedy = Sampling::greedy();
    Case::new(|| vec![model()], BlockRule).shaped(greedy).assert_lossless("greedy");
}

/// No token twice in a row, and a 2 only after a 0. Where `forgetful`, what is drafted before a
/// token does not count: a mask made once a round, as engines have had it.
#[derive(Debug, Default)]
struct Manners {
    output: Vec<Token>,
    forgetful: bool,
}

impl Manners {
    fn may_follow(before: Option<Token>, token: Token) -> bool {
        before != Some(token) && (token != Token(2) || before == Some(Token(0)))
    }
}

impl Constraint for Manners {
    fn mask(&mut self, path: &[Token], logits: &mut [f32]) -> Result<(), ConstraintError> {
        let path = if self.forgetful { &[] } else { path };
        let before = path.last().or(self.output.last()).copied();
        for (logit, id) in logits.iter_mut().zip(0..) {
            if !Self::may_follow(before, Token(id)) {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    fn admitted(&mut self, path: &[Token]) -> usize {
        let mut before = self.output.last().copied();
        path.iter().take_while(|token| Self::may_follow(before.replace(**token), **token)).count()
    }

    fn commit(&mut self, tokens: &[Token]) {
        self.output.extend_from_slice(tokens);
    }
}

#[test]
fn constrained_penalised_and_biased_output_follows_its_law_under_every_rule() {
    let manners = || -> Box<dyn Constraint> { Box::new(Manners::default()) };
    let check = |rule: RuleChoice, width: usize, drafters: fn() -> Vec<Box<dyn Drafter>>| {
        let count = drafters().len();
        let drafts =
            Drafts { drafters: count, has_model: true, may_stop: false, width, paths: None };
        for sampling in [Sampling::unshaped(), penalised()] {
            let mut case = Case::new(drafters, BlockRule).shaped(sampling).constrained(manners);
            if width > 1 {
                case = case.wide(width, rule.scheme(&drafts).unwrap());
            }
            case.policy.scheme = rule.scheme(&drafts).unwrap();
            case.policy.rule = rule.with_seed(0);
            case.assert_lossless(rule.name());
        }
    };
    // The coupled rule spends no chance: it is compared with itself, above.
    for rule in RuleChoice::ALL.into_iter().filter(|rule| *rule != RuleChoice::Coupled) {
        check(rule, 1, || vec![model()]);
    }
    for rule in [RuleChoice::Pooled, RuleChoice::Gbv, RuleChoice::Traversal, RuleChoice::Rsd] {
        check(rule, 2, || vec![model()]);
    }
    check(RuleChoice::Pooled, 1, || vec![model(), edit()]);
    check(RuleChoice::Block, 1, || vec![edit()]);
    let forgetful = Case::new(|| vec![model()], BlockRule)
        .constrained(|| Box::new(Manners { forgetful: true, ..Manners::default() }));
    assert!((0..4).all(|seed| forgetful.worst_error(seed) > 1e-3), "the check has teeth");
}

#[test]
fn output_of_a_least_length_follows_its_law() {
    let least = || -> Box<dyn Constraint> { Box::new(MinTokens::new(2, [Token(2)].into())) };
    for rule in [RuleChoice::Block, RuleChoice::Token, RuleChoice::Pooled] {
        let mut case = Case::new(|| vec![model()], BlockRule).constrained(least);
        case.policy.rule = rule.with_seed(0);
        case.assert_lossless(rule.name());
    }
    let beside = || -> Box<dyn Constraint> {
        let inner: Box<dyn Constraint> = Box::<Manners>::default();
        Box::new(MinTokens::new(3, [Token(2)].into()).beside(Some(inner), &[]))
    };
    Case::new(|| vec![model()], BlockRule).constrained(beside).assert_lossless("beside another");
    let edited = Case::new(|| vec![edit()], BlockRule).constrained(beside);
    edited.moved(1, |all| all).assert_lossless("fixed tokens, moved");
}

#[test]
fn the_coupled_rule_follows_the_plain_choice_of_its_noise() {
    // Its output is a function of seed and target alone: the same with any drafter, or none.
    let text = |drafters: Vec<Box<dyn Drafter>>, seed| {
        let noise = Noise::new(seed);
        let rule = Arc::new(CoupledRule { noise });
        let policy = DraftPolicy::drafted((0..drafters.len()).map(DrafterId).collect(), 4, rule);
        let target = Box::new(ToyEngine::new(toy(3), 64).with_features());
        let mut decoder = Decoder::new(target, drafters).unwrap();
        let mut sequence = Sequence::new(Slot(0), penalised());
        sequence.constraint = (seed % 2 == 0).then(|| Box::new(Manners::default()) as _);
        sequence.begin(prompt(), 40);
        let mut chance = forerun_verify::Random(forerun_verify::Philox::new(0));
        while sequence.output().len() < 40 {
            let (plan, limits) = (&policy.plan(), Limits::default());
            let (sequence, policy, chance) = (&mut sequence, &policy, &mut chance);
            decoder.round(&mut [Turn { sequence, policy, plan, limits, chance }]).unwrap();
        }
        sequence.output()[..40].to_vec()
    };
    for seed in 0..20 {
        assert_eq!(text(vec![], seed), text(vec![model()], seed), "seed {seed}");
        assert_eq!(text(vec![], seed), text(vec![Box::new(block_head())], seed), "seed {seed}");
    }
}

#[test]
fn the_coupled_rule_says_the_same_with_a_gate() {
    let text = |gated: bool, seed| {
        let rule = Arc::new(CoupledRule { noise: Noise::new(seed) });
        let policy = &DraftPolicy::drafted(vec![DrafterId(0)], 4, rule);
        let worth = Worth { scored: Price::per_token(0.3), pass: 0.1, width: 1 };
        let watch = strict_gates(1.0).watch((DrafterId(0), 1.0), 0, gated.then_some(worth));
        let (plan, limits) = (&Plan { gates: vec![watch], ..policy.plan() }, Limits::default());
        let target = Box::new(ToyEngine::new(toy(3), 64));
        let mut decoder = Decoder::new(target, vec![model()]).unwrap();
        let mut sequence = Sequence::new(Slot(0), Sampling::unshaped());
        sequence.begin(prompt(), 40);
        let chance = &mut forerun_verify::Random(forerun_verify::Philox::new(0));
        let mut stopped = 0;
        while sequence.output().len() < 40 {
            let sequence = &mut sequence;
            let turn = Turn { sequence, policy, plan, limits, chance: &mut *chance };
            stopped += decoder.round(&mut [turn]).unwrap().commits[0].stopped;
        }
        (sequence.output()[..40].to_vec(), stopped)
    };
    for seed in 0..20 {
        let ((plain, none), (gated, some)) = (text(false, seed), text(true, seed));
        assert!(none == 0 && some > 0 && plain == gated, "seed {seed}: {none} {some}");
    }
}

#[test]
fn a_sequence_that_goes_on_elsewhere_follows_the_same_law() {
    let block = || Case::new(|| vec![model()], BlockRule);
    for after in 1..=3 {
        block().moved(after, |all| all).assert_lossless("block");
        Case::new(|| vec![model()], TokenRule).moved(after, |all| all).assert_lossless("token");
        let constrained = block().shaped(penalised()).constrained(|| Box::<Manners>::default());
        constrained.moved(after, |all| all).assert_lossless("constraint and penalties");
    }
    Case::new(|| vec![model()], PooledRule)
        .wide(2, Scheme::Independent)
        .moved(2, |all| all)
        .assert_lossless("pooled");
}

#[test]
fn a_cut_that_depends_on_what_the_round_brought_is_caught() {
    let picky =
        Case::new(|| vec![model()], BlockRule).moved(2, |all| if all > 2 { 1 } else { all });
    let worst = (0..3).map(|seed| picky.worst_error(seed)).fold(0.0, f64::max);
    assert!(worst > 1e-3, "off by {worst:e} only");
}

#[test]
fn a_drafter_that_fails_half_way_changes_nothing() {
    let failing = || -> Vec<Box<dyn Drafter>> {
        let fault = EngineError::Broken { backend: "toy", code: -3 };
        let engine = ToyEngine::new(toy(77), 64).failing(1, fault);
        vec![Box::new(ModelDrafter::new(Box::new(engine)))]
    };
    Case::new(failing, BlockRule).assert_lossless("failing drafter");
}

/// Accepts every drafted token.
#[derive(Debug)]
struct Gullible;

impl Rule for Gullible {
    fn name(&self) -> &'static str {
        "gullible"
    }

    fn admits(&self, _: &Draft) -> Result<(), Refusal> {
        Ok(())
    }

    fn decide(&self, block: &Block<'_>, chance: &mut dyn Chance) -> Verdict {
        let node = block.draft().nodes().last().map_or(Node::ROOT, |(node, _, _)| node);
        Verdict { node, accepted: block.draft().depth(node), next: block.target(node).draw(chance) }
    }
}

/// Keeps one rejected token more than it is told to: a decoder's classic mistake. It knows how many
/// those are, as an engine refuses a step that relies on another number of tokens than it keeps.
struct Forgetful(ToyEngine, usize);

impl Engine for Forgetful {
    fn vocab_len(&self) -> usize {
        self.0.vocab_len()
    }
    fn context_len(&self) -> usize {
        self.0.context_len()
    }
    fn slot_count(&self) -> usize {
        1
    }
    fn paths_max(&self) -> usize {
        1
    }
    fn can_cut(&self) -> bool {
        true
    }
    fn extend(&mut self, steps: &[Step<'_>], output: &mut Output) -> Result<(), EngineError> {
        let Self(engine, more) = self;
        let mut keeping = |keep| engine.extend(&[Step { keep, ..steps[0] }], output);
        match steps[0].keep {
            Keep::To { node: 0, len } => {
                let kept = keeping(Keep::To { node: 1, len: len + *more + 1 });
                *more += usize::from(kept.is_ok());
                kept.or_else(|_| keeping(Keep::To { node: 0, len: len + *more }))
            }
            Keep::To { node, len } => keeping(Keep::To { node, len: len + *more }),
            keep => {
                *more = 0;
                keeping(keep)
            }
        }
    }
}

#[test]
fn the_check_catches_a_wrong_rule_and_a_wrong_cache() {
    let gullible = Case::new(|| vec![model()], Gullible);
    assert!((0..4).all(|seed| gullible.worst_error(seed) > 1e-3));
    let mut forgetful = Case::new(|| vec![model()], BlockRule);
    forgetful.target = |model| Box::new(Forgetful(ToyEngine::new(model, 64), 0));
    assert!((0..4).all(|seed| forgetful.worst_error(seed) > 1e-3));
}

/// Drafts a prediction that is right at first and wrong later, with what was replaced in it.
fn edit() -> Box<dyn Drafter> {
    let mut drafter = EditDrafter::default();
    drafter.predict(Slot(0), &[1, 0, 2, 1, 1, 0].map(Token));
    Box::new(drafter)
}

#[test]
fn fixed_paths_change_nothing() {
    Case::new(|| vec![Box::new(NgramDrafter::default())], BlockRule).assert_lossless("n-gram");
    Case::new(|| vec![edit()], BlockRule).assert_lossless("edit");
    let suffix = || -> Vec<Box<dyn Drafter>> {
        let mut drafter = SuffixDrafter::default();
        drafter.ended(Slot(0), &[0, 1, 2, 2, 0, 1, 2, 1, 0, 1, 2, 2].map(Token));
        vec![Box::new(drafter)]
    };
    Case::new(suffix, BlockRule).shaped(penalised()).assert_lossless("suffix");
}

#[test]
fn several_places_where_an_original_goes_on_change_nothing() {
    for rule in [Arc::new(PooledRule) as Arc<dyn Rule>, Arc::new(NssRule)] {
        let mut case = Case::new(|| vec![edit()], BlockRule).wide(2, Scheme::Independent);
        case.policy.rule = Arc::clone(&rule);
        case.assert_lossless(rule.name());
    }
}

#[test]
fn several_drafters_in_one_round_change_nothing() {
    let both = || vec![model(), edit()];
    Case::new(both, PooledRule).assert_lossless("pooled, two drafters");
    Case::new(both, PooledRule).shaped(penalised()).assert_lossless("pooled, penalties");
    Case::new(both, NssRule).assert_lossless("nss, two drafters");
}

#[test]
fn several_paths_of_a_model_change_nothing() {
    let wide = |rule: Arc<dyn Rule>, width, scheme| {
        let mut case = Case::new(|| vec![model()], BlockRule).wide(width, scheme);
        case.policy.rule = Arc::clone(&rule);
        case.assert_lossless(&format!("{}, {width} paths, {scheme:?}", rule.name()));
    };
    for scheme in [Scheme::Paths, Scheme::Independent] {
        wide(Arc::new(PooledRule), 2, scheme);
    }
    wide(Arc::new(PooledRule), 3, Scheme::Independent);
    wide(Arc::new(GbvRule::default()), 2, Scheme::Paths);
    wide(Arc::new(SpecInferRule), 2, Scheme::Paths);
    for scheme in [Scheme::Paths, Scheme::WithoutReplacement, Scheme::Beam] {
        wide(Arc::new(TraversalRule), 2, scheme);
        wide(Arc::new(RsdRule), 2, scheme);
    }
    wide(Arc::new(TraversalRule), 3, Scheme::Beam);
}

#[test]
fn several_paths_beside_a_fixed_one_change_nothing() {
    let both = || vec![model(), edit()];
    Case::new(both, PooledRule)
        .wide(2, Scheme::Independent)
        .assert_lossless("two paths and a fixed one");
    let shaped = Case::new(both, PooledRule).wide(2, Scheme::Independent).shaped(penalised());
    shaped.assert_lossless("two paths and a fixed one, penalties");
}

#[test]
fn paths_that_end_where_the_drafter_is_unsure_change_nothing() {
    let unsure = || -> Vec<Box<dyn Drafter>> {
        let engine = Box::new(ToyEngine::new(toy(77), 64));
        vec![Box::new(ModelDrafter::new(engine).confident(0.5))]
    };
    Case::new(unsure, BlockRule).assert_lossless("one path");
    Case::new(unsure, PooledRule).wide(2, Scheme::Independent).assert_lossless("two paths");
    for scheme in [Scheme::WithoutReplacement, Scheme::Beam] {
        Case::new(unsure, TraversalRule).wide(2, scheme).assert_lossless("traversal");
    }
}

/// Every rule, with every way of drafting that it verifies and that may end early.
fn rules_of_paths_that_end_early() -> Vec<(RuleChoice, usize, Scheme)> {
    let lossless = RuleChoice::ALL.into_iter().filter(|rule| *rule != RuleChoice::Coupled);
    let ways = [1, 2].into_iter().flat_map(|width| {
        let paths = [None, Some(PathsChoice::Distinct), Some(PathsChoice::Beam)];
        paths.map(|paths| Drafts { drafters: 1, has_model: true, may_stop: true, width, paths })
    });
    let ways: Vec<Drafts> = ways.collect();
    let of_rule = |rule: RuleChoice| {
        let way = move |drafts: &Drafts| Some((rule, drafts.width, rule.scheme(drafts).ok()?));
        ways.iter().filter_map(way).collect::<Vec<_>>()
    };
    let mut all: Vec<(RuleChoice, usize, Scheme)> = lossless.flat_map(of_rule).collect();
    all.dedup();
    all
}

#[test]
fn a_gate_that_ends_paths_by_what_leads_to_their_ends_changes_nothing() {
    let rules = rules_of_paths_that_end_early();
    for rule in RuleChoice::ALL {
        let is_there = rules.iter().any(|(other, _, _)| *other == rule);
        // One wants whole paths, the other spends no chance: both have tests of their own.
        assert_eq!(is_there, !matches!(rule, RuleChoice::Gbv | RuleChoice::Coupled), "{rule:?}");
    }
    for (rule, width, scheme) in rules {
        let mut case = Case::new(|| vec![model()], BlockRule);
        if width > 1 {
            case = case.wide(width, scheme);
        }
        case.policy.scheme = scheme;
        case.policy.rule = rule.with_seed(0);
        let what = format!("{}, {width} paths, {scheme:?}", rule.name());
        case.gated(0.3, 0.1).assert_gated_and_lossless(&what);
    }
}

#[test]
fn a_gate_changes_nothing_however_rows_are_shaped_and_whoever_drafts() {
    let gated = |case: Case| case.gated(0.3, 0.1);
    let block = || Case::new(|| vec![model()], BlockRule);
    gated(block().shaped(penalised())).assert_gated_and_lossless("penalties");
    let greedy = block().shaped(Sampling { temperature: 0.0, ..Sampling::unshaped() });
    gated(greedy).assert_lossless("temperature zero");
    let warm = block().shaped(Sampling { temperature: 0.6, top_p: 0.9, ..Sampling::unshaped() });
    gated(warm).assert_gated_and_lossless("top-p");
    gated(block().constrained(|| Box::<Manners>::default())).assert_lossless("a constraint");
    let moved = block().moved(1, |all| all);
    gated(moved).assert_gated_and_lossless("moved");
    let heads = block_case(|| vec![head(Pairing::AfterFirst, 1)]);
    gated(heads).assert_gated_and_lossless("a head");
    let blocks = block_case(|| vec![Box::new(block_head())]);
    blocks.gated(0.3, 0.0).assert_gated_and_lossless("a block");
    let mut long = block();
    (long.policy.draft_len_max, long.len) = (3, (HORIZON - 1, 100));
    long.gated(0.1, 0.02).assert_gated_and_lossless("three tokens");
    let beside = Case::new(|| vec![model(), edit()], PooledRule).wide(2, Scheme::Independent);
    beside.gated(0.3, 0.1).assert_lossless("beside a fixed path");
}

#[test]
fn a_gate_keeps_a_lossy_modes_promise() {
    let mut case = Case::new(|| vec![model()], BlockRule).gated(0.3, 0.1);
    case.policy.rule = "budget:0.05".parse::<LossyMode>().unwrap().rule();
    for seed in 0..3 {
        let (law, spent) = case.decoded_and_spent(seed);
        let (most, sum) = case.distances(&law, seed);
        assert!(most <= 0.05 + 1e-12 && sum <= spent + 1e-12, "{most} {sum} {spent}");
        assert!(sum > 1e-3, "it was used");
    }
}

/// Draws paths, then drops the last token of each that turned out unlikely, as llama.cpp does below
/// `--draft-p-min`: a gate that decides after the draw.
struct Choosy(Box<dyn Drafter>);

impl Drafter for Choosy {
    fn kind(&self) -> DrafterKind {
        self.0.kind()
    }

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), DraftFailure> {
        self.0.draft(requests)?;
        for request in requests {
            let empty = Draft::start(request.tree.scheme(), VOCAB);
            let drawn = std::mem::replace(&mut request.tree, empty).finish().unwrap();
            let mut kept = HashMap::from([(Node::ROOT, Node::ROOT)]);
            for (node, token, parent) in drawn.nodes() {
                let row = drawn.drawn_from(node).unwrap();
                let (Some(above), true) = (kept.get(&parent), row.prob(token) >= 0.3) else {
                    continue;
                };
                let row = request.tree.row(row.clone()).unwrap();
                kept.insert(node, request.tree.sampled(*above, row, token).unwrap());
            }
        }
        Ok(())
    }
}

#[test]
fn a_gate_that_drops_a_token_after_it_was_drawn_is_caught() {
    let choosy = || -> Vec<Box<dyn Drafter>> { vec![Box::new(Choosy(model()))] };
    for rule in [RuleChoice::Block, RuleChoice::Token, RuleChoice::Pooled, RuleChoice::Specinfer] {
        let mut case = Case::new(choosy, BlockRule);
        case.policy.rule = rule.with_seed(0);
        let worst = (0..3).map(|seed| case.worst_error(seed)).fold(0.0, f64::max);
        assert!(worst > 1e-2, "{}: off by {worst:e} only", rule.name());
    }
}

/// Draws two paths, and goes on with the second only if the first turned out likely: a gate that
/// looks at what another path draws at the depth it decides about.
struct Curious(Box<dyn Drafter>);

impl Drafter for Curious {
    fn kind(&self) -> DrafterKind {
        self.0.kind()
    }

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), DraftFailure> {
        self.0.draft(requests)?;
        for request in requests {
            let empty = Draft::start(request.tree.scheme(), VOCAB);
            let drawn = std::mem::replace(&mut request.tree, empty).finish().unwrap();
            let both = drawn.candidates(Node::ROOT);
            let row = drawn.drawn_from(both[0].child).unwrap();
            let likely = row.prob(drawn.token(both[0].child)) > 0.4;
            let row = request.tree.row(row.clone()).unwrap();
            for one in &both[..if likely { 2 } else { 1 }] {
                request.tree.sampled(Node::ROOT, row, drawn.token(one.child)).unwrap();
            }
        }
        Ok(())
    }
}

#[test]
fn a_gate_that_looks_at_what_another_path_draws_there_is_caught() {
    let curious = || -> Vec<Box<dyn Drafter>> { vec![Box::new(Curious(model()))] };
    let case = Case::new(curious, PooledRule).wide(2, Scheme::Independent);
    let worst = (0..3).map(|seed| case.worst_error(seed)).fold(0.0, f64::max);
    assert!(worst > 1e-3, "off by {worst:e} only");
}

#[test]
fn whole_paths_are_never_ended() {
    let gate = strict_gates(1.0);
    let worth = Worth { scored: Price::per_token(0.3), pass: 0.1, width: 2 };
    let watch = |worth| gate.watch((DrafterId(0), 1.0), 0, worth);
    let policy = DraftPolicy::drafted(vec![DrafterId(0)], 2, Arc::new(GbvRule::default())).wide(2);
    let plan = |worth| Plan { gates: vec![watch(worth)], ..policy.plan() };
    assert!(policy.allows(&plan(Some(worth.clone()))));
    let whole = policy.clone().drawn(Scheme::Paths);
    assert!(!whole.allows(&plan(Some(worth))), "gbv, and traversal over independent paths");
    assert!(whole.allows(&plan(None)), "to look at them is fine");
}

#[test]
fn prefilling_the_last_tokens_alone_changes_nothing() {
    let mut case = Case::new(|| vec![model()], BlockRule);
    case.drafter_prefill_max = Some(2);
    case.assert_lossless("drafter_prefill_max");
}

/// The law of decoding with a controller, whose choices depend on earlier rounds: the time a
/// round takes is made up, so that they are the same whenever the same happens.
fn controlled(seed: u64, gates: Option<&Gates>, chosen: &mut Vec<usize>) -> Law {
    let mut law = Law::new();
    let run = |chance: &mut dyn Chance| {
        let target = CostCurve::new([(1, 1.0), (2, 1.70)]);
        let ids = [0, 1].map(DrafterId);
        let drafters = [(ids[0], CostCurve::new([(1, 0.05)]))].into();
        let costs = Costs { target, drafters };
        let arms = [(vec![ids[0]], 1), (vec![ids[0]], 2), (ids.to_vec(), 1)];
        let arms = arms.map(|(drafters, width)| Arm { drafters, width }).to_vec();
        let mut controller = Controller::new(costs, arms, 2);
        if let Some(gates) = gates {
            controller = controller.gated(gates.clone());
        }
        let policy = &controller.policy(Arc::new(PooledRule));
        let target = Box::new(ToyEngine::new(toy(seed), 64));
        let mut decoder = Decoder::new(target, vec![model(), edit()]).unwrap();
        let mut sequence = Sequence::new(Slot(0), Sampling::unshaped());
        sequence.begin(prompt(), HORIZON + 1);
        let mut history = controller.history(|_| true);
        let mut lens = 0;
        while sequence.output().len() < HORIZON {
            let drafters = ids
                .map(|id| Available { id, behind: 1, heeds_price: id == ids[1], block_len: None })
                .to_vec();
            let (wanted, load, limits) = (sequence.wanted(), Load::default(), Limits::default());
            let outlook = Outlook {
                wanted,
                draft_len_max: 2,
                first: false,
                drafters,
                load,
                may_stop: true,
                temperature: 1.0,
            };
            let choice = controller.choose(&mut history, &outlook);
            let plan = &choice.plan;
            let turn = Turn { sequence: &mut sequence, policy, plan, limits, chance };
            let round = decoder.round(&mut [turn]).unwrap();
            let commit = &round.commits[0];
            let seconds = 1.0 + 0.7 * commit.drafted as f64;
            controller.learn(&mut history, &choice, commit, seconds);
            // A gate counts as four.
            let gated = choice.plan.gates.iter().any(Watch::stops);
            lens = lens * 10 + choice.plan.draft_len + if gated { 4 } else { 0 };
        }
        (lens, sequence.output()[..HORIZON].to_vec())
    };
    outcomes(run, |probability, (lens, output)| {
        *law.entry(output).or_default() += probability;
        chosen.push(lens);
    });
    law
}

fn assert_plain(decoded: &Law) {
    for (output, probability) in &Case::new(Vec::new, BlockRule).plain(0) {
        let gap = (decoded.get(output).copied().unwrap_or(0.0) - probability).abs();
        assert!(gap < 1e-12, "{output:?}: off by {gap:e}");
    }
}

#[test]
fn a_controller_that_trains_and_uses_a_gate_changes_nothing() {
    // It has seen nearly enough, so that it is fitted anew and put to use by what the first round
    // brings.
    let mut saved = strict_gates(1.0).save();
    (saved.gates[0].seen, saved.gates[0].accepted) = (63.5, 40.0);
    let mut gates = strict_gates(1.0);
    gates.load(&saved).unwrap();
    let mut chosen = Vec::new();
    assert_plain(&controlled(0, Some(&gates), &mut chosen));
    let gated = |lens: &usize| lens.to_string().contains(['5', '6']);
    assert!(chosen.iter().any(gated) && !chosen.iter().all(gated), "it was used, and it was not");
}

#[test]
fn a_controller_that_learns_from_earlier_rounds_changes_nothing() {
    let mut chosen = Vec::new();
    assert_plain(&controlled(0, None, &mut chosen));
    // The last digit is the length chosen for the last round.
    let last = |wanted: fn(usize) -> bool| chosen.iter().any(|lens| wanted(lens % 10));
    assert!(last(|len| len == 0) && last(|len| len > 0), "it went on drafting, and it stopped");
}

#[test]
fn a_lossy_mode_keeps_its_promise_and_its_books() {
    const PER_TOKEN: f64 = 0.05;
    let case = |mode: &str| {
        let mut case = Case::new(|| vec![model()], BlockRule);
        case.policy.rule = mode.parse::<LossyMode>().unwrap().rule();
        case
    };
    let sums = |mode: &str, shaped: fn(Case) -> Case| -> Vec<f64> {
        let case = shaped(case(mode));
        let of_seed = |seed: u64| {
            let (law, spent) = case.decoded_and_spent(seed);
            let (most, sum) = case.distances(&law, seed);
            if mode.starts_with("budget") {
                assert!(most <= PER_TOKEN + 1e-12, "{mode}: {most}");
            }
            // Rounds after different drafts may stray in different directions, so that the texts'
            // law is nearer to the target's than each.
            assert!(sum <= spent + 1e-12, "{mode}: {sum} by the law, {spent} by the books");
            assert!(spent <= PER_TOKEN * case.len.0 as f64 + 1e-12, "{mode}: {spent}");
            assert!(sum > 0.2 * spent, "{mode}: {sum} by the law, {spent} by the books");
            spent
        };
        (0..3).map(of_seed).collect()
    };
    for shaped in [
        |case: Case| case,
        |case: Case| case.shaped(penalised()),
        |case: Case| case.constrained(|| Box::new(Manners::default())),
    ] {
        let at_every_token = sums("budget:0.05", shaped);
        let on_account = sums("account:0.05", shaped);
        let all = |sums: &[f64]| sums.iter().sum::<f64>();
        assert!(all(&at_every_token) > 0.1, "{at_every_token:?}");
        // What one round does not spend, the next one may.
        assert!(all(&on_account) > 1.1 * all(&at_every_token), "{on_account:?}");
    }
}

#[test]
fn a_lossy_mode_without_a_budget_is_lossless() {
    for mode in ["budget:0", "account:0"] {
        let mut case = Case::new(|| vec![model()], BlockRule);
        case.policy.rule = mode.parse::<LossyMode>().unwrap().rule();
        case.assert_lossless(mode);
    }
}
