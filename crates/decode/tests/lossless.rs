//! The law of the whole loop, by enumeration: drafting, scoring over a cache, verifying,
//! committing, over several rounds. Every random choice of every round is replayed with its
//! probability, so the law of the output is exact, and so is the comparison with the target's own.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

use std::collections::HashMap;
use std::sync::Arc;

use forerun_decode::*;
use forerun_verify::check::outcomes;
use forerun_verify::{
    Block, BlockRule, Chance, Draft, GbvRule, Node, Noise, NssRule, PooledRule, Refusal, RsdRule,
    Rule, Scheme, SpecInferRule, TokenRule, TraversalRule, Verdict,
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

/// After so many rounds the text goes on in another decoder, with so many of the last round's tokens.
type Move = (usize, fn(usize) -> usize);

/// A setting to prove: who drafts, how rows are shaped, how drafts are judged.
struct Case {
    drafters: fn() -> Vec<Box<dyn Drafter>>,
    sampling: Sampling,
    constraint: Option<fn() -> Box<dyn Constraint>>,
    plan: Plan,
    /// Tokens compared, and tokens wanted.
    len: (usize, usize),
    moved: Option<Move>,
    target: fn(ToyModel) -> Box<dyn Engine>,
}

impl Case {
    fn new(drafters: fn() -> Vec<Box<dyn Drafter>>, rule: impl Rule + 'static) -> Self {
        Self {
            drafters,
            sampling: Sampling::unshaped(),
            constraint: None,
            plan: Plan::drafted(vec![], 2, Verification::rule(rule)),
            len: (HORIZON, 100),
            moved: None,
            target: |model| Box::new(ToyEngine::new(model, 64)),
        }
    }

    fn shaped(mut self, sampling: Sampling) -> Self {
        self.sampling = sampling;
        self
    }

    fn held_to(mut self, constraint: fn() -> Box<dyn Constraint>) -> Self {
        self.constraint = Some(constraint);
        self
    }

    fn moved(mut self, after: usize, keep: fn(usize) -> usize) -> Self {
        self.moved = Some((after, keep));
        self
    }

    fn wide(mut self, width: usize, scheme: Scheme) -> Self {
        self.plan = self.plan.wide(width).drawn(scheme);
        // Several paths have many outcomes: one round of full length, then shorter ones.
        self.len = (HORIZON - 1, HORIZON);
        self
    }

    /// The law of the first tokens decoded in rounds.
    fn decoded(&self, seed: u64) -> Law {
        let mut law = Law::new();
        let run = |chance: &mut dyn Chance| {
            let (mut decoder, mut sequence) = self.begun(seed, &[]);
            let mut rounds = 0;
            while sequence.output().len() < self.len.0 {
                let round = decoder.round(&mut [Turn { sequence: &mut sequence, chance }]).unwrap();
                rounds += 1;
                if let Some((_, keep)) = self.moved.filter(|(after, _)| *after == rounds) {
                    let committed = round.commits[0].committed;
                    let kept = sequence.output().len() - committed + keep(committed);
                    (decoder, sequence) = self.begun(seed, &sequence.output()[..kept]);
                }
            }
            sequence.output()[..self.len.0].to_vec()
        };
        outcomes(run, |probability, output| *law.entry(output).or_default() += probability);
        law
    }

    /// A decoder, and a text of which it knows so much.
    fn begun(&self, seed: u64, output: &[Token]) -> (Decoder, Sequence) {
        let drafters = (self.drafters)();
        let plan = Plan { drafters: (0..drafters.len()).collect(), ..self.plan.clone() };
        let decoder = Decoder::new((self.target)(toy(seed)), drafters).unwrap();
        let mut sequence = Sequence::new(Slot(0), self.sampling.clone(), plan);
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

    /// The largest difference between the two laws.
    fn worst_error(&self, seed: u64) -> f64 {
        let (decoded, plain) = (self.decoded(seed), self.plain(seed));
        let texts = decoded.keys().chain(plain.keys());
        let of = |law: &Law, text: &Vec<Token>| law.get(text).copied().unwrap_or(0.0);
        texts.map(|text| (of(&decoded, text) - of(&plain, text)).abs()).fold(0.0, f64::max)
    }

    fn assert_lossless(&self, what: &str) {
        for seed in 0..3 {
            let worst = self.worst_error(seed);
            assert!(worst < 1e-12, "{what}, target {seed}: off by {worst:e}");
        }
    }
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

#[test]
fn a_draft_model_changes_nothing() {
    Case::new(|| vec![model()], BlockRule).assert_lossless("block");
    Case::new(|| vec![model()], TokenRule).assert_lossless("token");
    Case::new(|| vec![model()], PooledRule).assert_lossless("pooled");
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
    said: Vec<Token>,
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
        let before = path.last().or(self.said.last()).copied();
        for (logit, id) in logits.iter_mut().zip(0..) {
            if !Self::may_follow(before, Token(id)) {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    fn admitted(&mut self, path: &[Token]) -> usize {
        let mut before = self.said.last().copied();
        path.iter().take_while(|token| Self::may_follow(before.replace(**token), **token)).count()
    }

    fn commit(&mut self, tokens: &[Token]) {
        self.said.extend_from_slice(tokens);
    }
}

#[test]
fn constrained_penalised_and_biased_text_follows_its_law_under_every_rule() {
    let manners = || -> Box<dyn Constraint> { Box::new(Manners::default()) };
    let check = |rule: RuleChoice, width: usize, drafters: fn() -> Vec<Box<dyn Drafter>>| {
        let count = drafters().len();
        let drafts =
            Drafts { drafters: count, has_model: true, may_stop: false, width, paths: None };
        for sampling in [Sampling::unshaped(), penalised()] {
            let mut case = Case::new(drafters, BlockRule).shaped(sampling).held_to(manners);
            if width > 1 {
                case = case.wide(width, rule.scheme(&drafts).unwrap());
            }
            case.plan.scheme = rule.scheme(&drafts).unwrap();
            case.plan.verification = rule.verification(0);
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
    check(RuleChoice::Pooled, 1, || vec![model(), predicted()]);
    check(RuleChoice::Block, 1, || vec![predicted()]);
    let forgetful = Case::new(|| vec![model()], BlockRule)
        .held_to(|| Box::new(Manners { forgetful: true, ..Manners::default() }));
    assert!((0..4).all(|seed| forgetful.worst_error(seed) > 1e-3), "the check has teeth");
}

#[test]
fn the_coupled_rule_follows_the_plain_choice_of_its_noise() {
    // Its text is a function of seed and target alone: the same with any drafter, or none.
    let text = |drafters: Vec<Box<dyn Drafter>>, seed| {
        let noise = Noise::new(seed);
        let verification = Verification::Coupled(noise);
        let plan = Plan::drafted((0..drafters.len()).collect(), 4, verification);
        let mut decoder = Decoder::new(Box::new(ToyEngine::new(toy(3), 64)), drafters).unwrap();
        let mut sequence = Sequence::new(Slot(0), penalised(), plan);
        sequence.constraint = (seed % 2 == 0).then(|| Box::new(Manners::default()) as _);
        sequence.begin(prompt(), 40);
        let mut chance = forerun_verify::Random(forerun_verify::Philox::new(0));
        while sequence.output().len() < 40 {
            decoder.round(&mut [Turn { sequence: &mut sequence, chance: &mut chance }]).unwrap();
        }
        sequence.output()[..40].to_vec()
    };
    for seed in 0..20 {
        assert_eq!(text(vec![], seed), text(vec![model()], seed), "seed {seed}");
    }
}

#[test]
fn a_text_that_goes_on_elsewhere_follows_the_same_law() {
    let block = || Case::new(|| vec![model()], BlockRule);
    for after in 1..=3 {
        block().moved(after, |all| all).assert_lossless("block");
        Case::new(|| vec![model()], TokenRule).moved(after, |all| all).assert_lossless("token");
        let held = block().shaped(penalised()).held_to(|| Box::<Manners>::default());
        held.moved(after, |all| all).assert_lossless("constraint and penalties");
    }
    Case::new(|| vec![model()], PooledRule)
        .wide(2, Scheme::Slots)
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

/// A prediction that is right at first and wrong later.
fn predicted() -> Box<dyn Drafter> {
    let mut drafter = PredictedDrafter::default();
    drafter.predict(Slot(0), &[1, 0, 2, 1, 1, 0].map(Token));
    Box::new(drafter)
}

#[test]
fn fixed_guesses_change_nothing() {
    Case::new(|| vec![Box::new(NgramDrafter::default())], BlockRule).assert_lossless("n-gram");
    Case::new(|| vec![predicted()], BlockRule).assert_lossless("predicted");
    let suffix = || -> Vec<Box<dyn Drafter>> {
        let mut drafter = SuffixDrafter::default();
        drafter.ended(&[0, 1, 2, 2, 0, 1, 2, 1, 0, 1, 2, 2].map(Token));
        vec![Box::new(drafter)]
    };
    Case::new(suffix, BlockRule).shaped(penalised()).assert_lossless("suffix");
}

#[test]
fn several_drafters_in_one_round_change_nothing() {
    let both = || vec![model(), predicted()];
    Case::new(both, PooledRule).assert_lossless("pooled, two drafters");
    Case::new(both, PooledRule).shaped(penalised()).assert_lossless("pooled, penalties");
    Case::new(both, NssRule).assert_lossless("nss, two drafters");
}

#[test]
fn several_paths_of_a_model_change_nothing() {
    let wide = |rule: Arc<dyn Rule>, width, scheme| {
        let mut case = Case::new(|| vec![model()], BlockRule).wide(width, scheme);
        case.plan.verification = Verification::Rule(Arc::clone(&rule));
        case.assert_lossless(&format!("{}, {width} paths, {scheme:?}", rule.name()));
    };
    for scheme in [Scheme::Paths, Scheme::Slots] {
        wide(Arc::new(PooledRule), 2, scheme);
    }
    wide(Arc::new(PooledRule), 3, Scheme::Slots);
    wide(Arc::new(GbvRule::default()), 2, Scheme::Paths);
    wide(Arc::new(SpecInferRule), 2, Scheme::Paths);
    for scheme in [Scheme::Paths, Scheme::WithoutReplacement, Scheme::Beam] {
        wide(Arc::new(TraversalRule), 2, scheme);
        wide(Arc::new(RsdRule), 2, scheme);
    }
    wide(Arc::new(TraversalRule), 3, Scheme::Beam);
}

#[test]
fn several_paths_beside_a_guess_change_nothing() {
    let both = || vec![model(), predicted()];
    Case::new(both, PooledRule).wide(2, Scheme::Slots).assert_lossless("two paths and a guess");
    let shaped = Case::new(both, PooledRule).wide(2, Scheme::Slots).shaped(penalised());
    shaped.assert_lossless("two paths and a guess, penalties");
}

#[test]
fn paths_that_end_where_the_drafter_is_unsure_change_nothing() {
    let unsure = || -> Vec<Box<dyn Drafter>> {
        let engine = Box::new(ToyEngine::new(toy(77), 64));
        vec![Box::new(ModelDrafter::new(engine).confident(0.5))]
    };
    Case::new(unsure, BlockRule).assert_lossless("one path");
    Case::new(unsure, PooledRule).wide(2, Scheme::Slots).assert_lossless("two paths");
    for scheme in [Scheme::WithoutReplacement, Scheme::Beam] {
        Case::new(unsure, TraversalRule).wide(2, scheme).assert_lossless("traversal");
    }
}

#[test]
fn a_glance_at_the_last_tokens_changes_nothing() {
    let mut case = Case::new(|| vec![model()], BlockRule);
    case.plan.glance = Some(2);
    case.assert_lossless("glance");
}

/// The law of decoding with a controller, whose choices depend on earlier rounds: the time a
/// round takes is made up, so that they are the same whenever the same happens.
fn controlled(seed: u64, chosen: &mut Vec<usize>) -> Law {
    let mut law = Law::new();
    let run = |chance: &mut dyn Chance| {
        let target = CostCurve::new([(1, 1.0), (2, 1.40)]);
        let costs = Costs { target, drafters: vec![Some(CostCurve::new([(1, 0.05)])), None] };
        let arms = [(vec![0], 1), (vec![0], 2), (vec![0, 1], 1)];
        let arms = arms.map(|(drafters, width)| Arm { drafters, width }).to_vec();
        let mut controller = Controller::new(costs, arms, 2);
        let verification = Verification::rule(PooledRule);
        let plan = Plan::drafted(vec![], 0, verification);
        let target = Box::new(ToyEngine::new(toy(seed), 64));
        let mut decoder = Decoder::new(target, vec![model(), predicted()]).unwrap();
        let mut sequence = Sequence::new(Slot(0), Sampling::unshaped(), plan);
        sequence.begin(prompt(), HORIZON + 1);
        let mut pace = controller.pace(|_| true);
        let mut lens = 0;
        while sequence.output().len() < HORIZON {
            let choice = controller.choose(&mut pace, &mut sequence, &[1, 1], Load::default());
            let round = decoder.round(&mut [Turn { sequence: &mut sequence, chance }]).unwrap();
            let commit = &round.commits[0];
            let seconds = 1.0 + 0.4 * commit.drafted as f64;
            controller.learn(&mut pace, commit, seconds, Load::default());
            lens = lens * 10 + choice.len;
        }
        (lens, sequence.output()[..HORIZON].to_vec())
    };
    outcomes(run, |probability, (lens, output)| {
        *law.entry(output).or_default() += probability;
        chosen.push(lens);
    });
    law
}

#[test]
fn a_controller_that_learns_from_earlier_rounds_changes_nothing() {
    let mut chosen = Vec::new();
    let decoded = controlled(0, &mut chosen);
    let plain = Case::new(Vec::new, BlockRule).plain(0);
    for (text, probability) in &plain {
        let gap = (decoded.get(text).copied().unwrap_or(0.0) - probability).abs();
        assert!(gap < 1e-12, "{text:?}: off by {gap:e}");
    }
    // The last digit is the length chosen for the last round.
    let last = |wanted: fn(usize) -> bool| chosen.iter().any(|lens| wanted(lens % 10));
    assert!(last(|len| len == 0) && last(|len| len > 0), "it went on drafting, and it stopped");
}
