//! Gates over whole rounds: what they are taught, by whom, and what they are not.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

use std::sync::Arc;

use forerun_decode::*;
use forerun_verify::{BlockRule, Philox, Random};

const DRAFTER: DrafterId = DrafterId(0);

fn toy(seed: u64) -> ToyModel {
    ToyModel { vocab_len: 7, order: 2, seed, spread: 2.0 }
}

fn drafter(engine: ToyEngine) -> Vec<Box<dyn Drafter>> {
    vec![Box::new(ModelDrafter::new(Box::new(engine)))]
}

fn gates() -> Gates {
    Gates::new([(DRAFTER, "toy".to_owned())])
}

fn controller() -> Controller {
    let curve = |seconds: f64| CostCurve::new([(1, seconds), (8, 1.5 * seconds)]);
    let costs = Costs { target: curve(1.0), drafters: [(DRAFTER, curve(0.05))].into() };
    let arms = vec![Arm { drafters: vec![DRAFTER], width: 1 }];
    Controller::new(costs, arms, 4).gated(gates())
}

/// A sequence that is decoded with a controller that others share.
struct Text {
    sequence: Sequence,
    history: History,
    chance: Random<Philox>,
}

impl Text {
    fn new(slot: u32, temperature: f32, controller: &Controller) -> Self {
        let sampling = Sampling { temperature, ..Sampling::unshaped() };
        let mut sequence = Sequence::new(Slot(slot), sampling);
        sequence.begin(vec![Token(1), Token(2 + slot)], 400);
        let history = controller.history(|_| true);
        Self { sequence, history, chance: Random(Philox::new(u64::from(slot))) }
    }

    fn outlook(&self) -> Outlook {
        let drafter = Available { id: DRAFTER, behind: 1, heeds_price: false, block_len: None };
        Outlook {
            wanted: self.sequence.wanted(),
            draft_len_max: 4,
            first: self.sequence.output().is_empty(),
            drafters: vec![drafter],
            load: Load::default(),
            may_stop: true,
            temperature: self.sequence.sampling.temperature,
        }
    }
}

/// Runs rounds for all texts together, and returns what each round taught, text by text.
fn rounds(
    controller: &mut Controller,
    decoder: &mut Decoder,
    texts: &mut [Text],
    count: usize,
) -> Vec<Vec<Vec<Lesson>>> {
    let policy = &controller.policy(Arc::new(BlockRule));
    let mut taught = Vec::new();
    for _ in 0..count {
        let choices: Vec<Choice> = texts
            .iter_mut()
            .map(|text| {
                let outlook = text.outlook();
                controller.choose(&mut text.history, &outlook)
            })
            .collect();
        let limits = Limits::default();
        let mut turns: Vec<Turn<'_>> = texts
            .iter_mut()
            .zip(&choices)
            .map(|(Text { sequence, chance, .. }, choice)| Turn {
                sequence,
                policy,
                plan: &choice.plan,
                limits,
                chance,
            })
            .collect();
        let round = decoder.round(&mut turns).unwrap();
        let mut lessons = Vec::new();
        for ((text, choice), commit) in texts.iter_mut().zip(&choices).zip(round.commits) {
            controller.learn(&mut text.history, choice, &commit, 1.0);
            // A drafter that is only tried may have read too little to teach.
            let whole = choice.plan.drafter_prefill_max.is_none();
            lessons.push(if whole { commit.lessons } else { Vec::new() });
        }
        taught.push(lessons);
    }
    taught
}

fn numbers(controller: &Controller, temperature: f64) -> Option<SavedGate> {
    let saved = controller.gates()?.save();
    let tenths = |gate: &SavedGate| (f64::from(gate.tenths) / 10.0 - temperature).abs() < 0.01;
    saved.gates.into_iter().find(tenths)
}

#[test]
fn sequences_that_share_rounds_do_not_mix_their_gates() {
    // A drafter that is good enough to stay in use.
    let near = ToyModel { spread: 1.4, ..toy(1) };
    let (target, draft) = (ToyEngine::new(toy(1), 512), ToyEngine::new(near, 512));
    let (target, draft) = (target.slots(2), draft.slots(2));
    let mut decoder = Decoder::new(Box::new(target), drafter(draft)).unwrap();
    let mut shared = controller();
    let mut texts = [Text::new(0, 1.0, &shared), Text::new(1, 0.0, &shared)];
    let taught = rounds(&mut shared, &mut decoder, &mut texts, 120);
    // Each has learned exactly what its own texts taught.
    for (index, temperature) in [(0, 1.0_f32), (1, 0.0)] {
        let mut controller = controller();
        let mut text = Text::new(9, temperature, &controller);
        for lessons in taught.iter().map(|round| round[index].clone()) {
            let outlook = Outlook { first: false, ..text.outlook() };
            let mut choice = controller.choose(&mut text.history, &outlook);
            choice.plan.drafter_prefill_max = None;
            let commit = Commit { lessons, committed: 1, ..Commit::default() };
            controller.learn(&mut text.history, &choice, &commit, 1.0);
        }
        let own = numbers(&controller, f64::from(temperature)).unwrap();
        assert!(own.row.weights.iter().any(|weight| *weight != 0.0), "it was fitted");
        assert_eq!(numbers(&shared, f64::from(temperature)), Some(own));
    }
    assert_ne!(numbers(&shared, 1.0).unwrap().row, numbers(&shared, 0.0).unwrap().row);
}

#[test]
fn a_round_that_fails_teaches_nothing() {
    let fault = EngineError::Broken { backend: "toy", code: -3 };
    let target = ToyEngine::new(toy(1), 512).failing(6, fault);
    let mut decoder = Decoder::new(Box::new(target), drafter(ToyEngine::new(toy(2), 512))).unwrap();
    let mut controller = controller();
    let policy = controller.policy(Arc::new(BlockRule));
    let mut text = Text::new(0, 1.0, &controller);
    let (mut failed, mut learned) = (0, 0);
    for _ in 0..12 {
        let outlook = text.outlook();
        let choice = controller.choose(&mut text.history, &outlook);
        let before = controller.gates().unwrap().clone();
        let Text { sequence, chance, .. } = &mut text;
        let (plan, limits) = (&choice.plan, Limits::default());
        let tokens = sequence.tokens().to_vec();
        match decoder.round(&mut [Turn { sequence, policy: &policy, plan, limits, chance }]) {
            Ok(round) => {
                controller.learn(&mut text.history, &choice, &round.commits[0], 1.0);
                learned += usize::from(before != *controller.gates().unwrap());
            }
            Err(_) => {
                failed += 1;
                assert_eq!(
                    (&before, &tokens[..]),
                    (controller.gates().unwrap(), text.sequence.tokens())
                );
            }
        }
    }
    assert!(failed == 1 && learned > 2, "{failed} failed, {learned} taught something");
}

#[test]
fn a_drafter_that_fails_half_way_teaches_what_was_verified() {
    let fault = EngineError::Broken { backend: "toy", code: -3 };
    let draft = ToyEngine::new(toy(2), 512).failing(2, fault);
    let target = ToyEngine::new(toy(1), 512);
    let mut decoder = Decoder::new(Box::new(target), drafter(draft)).unwrap();
    let policy = &DraftPolicy::drafted(vec![DRAFTER], 4, Arc::new(BlockRule));
    let plan = &Plan { gates: vec![gates().watch((DRAFTER, 1.0), 0, None)], ..policy.plan() };
    let mut sequence = Sequence::new(Slot(0), Sampling::unshaped());
    sequence.begin(vec![Token(1), Token(2)], 100);
    let chance = &mut Random(Philox::new(3));
    let mut round = |sequence: &mut Sequence| {
        let limits = Limits::default();
        let turn = Turn { sequence, policy, plan, limits, chance: &mut *chance };
        decoder.round(&mut [turn]).unwrap().commits.pop().unwrap()
    };
    round(&mut sequence);
    let commit = round(&mut sequence);
    assert_eq!(commit.dropped.len(), 1);
    assert_eq!((commit.drafted, commit.lessons.len()), (2, 2));
}
