//! A controller with gates in worlds whose costs and acceptance are known.

use std::collections::BTreeMap;

use forerun_verify::rand_core::Rng as _;
use forerun_verify::{Dist, Node, Philox};

use super::*;
use crate::control::{Available, Costs, Load, Outlook};
use crate::cost::CostCurve;
use crate::gate::{Drawn, Lesson, PathEnd, RowView};

const DRAFTER: DrafterId = DrafterId(0);
const LEN_MAX: usize = 8;

fn uniform(random: &mut Philox) -> f64 {
    (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// A text, some of whose tokens are easy to draft and some hard.
struct World {
    /// How likely an easy token and a hard one is accepted.
    accepted: (f64, f64),
    /// How likely the drafter's best token seems to be at either.
    sure: (f64, f64),
}

/// What a text came to.
#[derive(Debug, Default)]
struct Run {
    seconds: f64,
    gated: usize,
    rounds: usize,
}

fn costs() -> Costs {
    let target = CostCurve::new([(1, 70.0), (2, 84.0), (4, 105.0), (8, 155.0), (16, 270.0)]);
    let drafter = CostCurve::new([(1, 12.0), (2, 15.0), (8, 30.0)]);
    Costs { target, drafters: BTreeMap::from([(DRAFTER, drafter)]) }
}

fn controller(gated: bool) -> Controller {
    let arm = Arm { drafters: vec![DRAFTER], width: 1 };
    let controller = Controller::new(costs(), vec![arm], LEN_MAX);
    match gated {
        true => controller.gated(Gates::new([(DRAFTER, "small for large".to_owned())])),
        false => controller,
    }
}

fn outlook(wanted: usize) -> Outlook {
    let drafter = Available { id: DRAFTER, behind: 1, heeds_price: false, block_len: None };
    Outlook {
        wanted,
        draft_len_max: LEN_MAX,
        first: false,
        drafters: vec![drafter],
        load: Load::default(),
        may_stop: true,
        temperature: 1.0,
    }
}

impl World {
    /// The row before a token, and how likely that is accepted.
    fn token(&self, easy: bool) -> (RowView, Dist, f64) {
        let (best, chance) =
            if easy { (self.sure.0, self.accepted.0) } else { (self.sure.1, self.accepted.1) };
        #[allow(clippy::cast_possible_truncation, reason = "rows are so precise")]
        let logits = [best.ln() as f32, (1.0 - best).ln() as f32];
        (RowView::of(&logits), Dist::softmax(&logits, 1.0).unwrap(), chance)
    }

    /// Drafts as a draft model does. Returns what came of it and how many passes it took.
    fn round(&self, choice: &Choice, text: &[bool], random: &mut Philox) -> (Commit, usize) {
        let draft_len_max = choice.plan.draft_len;
        let mut commit = Commit { draft_len_max, ..Commit::default() };
        let watch = choice.plan.gates.first();
        let (mut reach, mut passes, mut accepting) = (1.0, 0, draft_len_max > 0);
        for (depth, easy) in text.iter().enumerate().take(draft_len_max) {
            let end = |reach| PathEnd { reach, depth, len_max: draft_len_max, paths: 1 };
            if depth > 0 && watch.is_some_and(|watch| !watch.runs(&end(reach))) {
                break;
            }
            passes += 1;
            let (view, row, chance) = self.token(*easy);
            if watch.is_some_and(|watch| !watch.draws(&end(reach), &view)) {
                break;
            }
            let drawn = Drawn::new(&view, &row, row.likeliest().1, 1.0);
            commit.drafted += 1;
            if let Some(watch) = watch {
                let (seen, accepted) = watch.look(Node::ROOT, depth, &drawn);
                reach *= accepted;
                let lesson = Lesson::new(DRAFTER, &seen, chance, f64::from(u8::from(accepting)));
                commit.lessons.extend(accepting.then_some(lesson));
            }
            accepting &= uniform(random) < chance;
            commit.accepted += usize::from(accepting);
        }
        commit.draft_len = commit.drafted;
        commit.committed = commit.accepted + 1;
        commit.corrected = commit.accepted < commit.drafted;
        (commit, passes)
    }

    fn run(&self, gated: bool, seed: u64) -> Run {
        const LEN: usize = 4000;
        let mut random = Philox::new(seed);
        // Easy and hard tokens come in stretches.
        let mut easy = true;
        let mut text = Vec::new();
        text.resize_with(LEN + LEN_MAX, || {
            easy ^= uniform(&mut random) < 0.25;
            easy
        });
        let costs = costs();
        let mut controller = controller(gated);
        let mut history = controller.history(|_| true);
        let (mut run, mut at) = (Run::default(), 0);
        while at < LEN {
            let choice = controller.choose(&mut history, &outlook(LEN - at));
            let (commit, passes) = self.round(&choice, &text[at..], &mut random);
            let drafted = passes as f64 * costs.drafters[&DRAFTER].seconds(1, 1);
            let seconds = drafted + costs.target.seconds(1 + commit.drafted, 1);
            controller.learn(&mut history, &choice, &commit, seconds);
            run.seconds += seconds;
            run.rounds += 1;
            run.gated += usize::from(choice.plan.gates.iter().any(Watch::stops));
            at += commit.committed;
        }
        run
    }

    /// What gated decoding takes over decoding by length, over a few texts, and how often it was chosen.
    fn compared(&self) -> (f64, f64) {
        let sum = |gated| {
            let runs = (0..4).map(|seed| self.run(gated, seed));
            runs.fold((0.0, 0.0), |(seconds, share), run| {
                (seconds + run.seconds, share + run.gated as f64 / run.rounds as f64 / 4.0)
            })
        };
        let (gated, share) = sum(true);
        (gated / sum(false).0, share)
    }
}

#[test]
fn a_gate_that_knows_what_is_hard_makes_drafts_faster() {
    let (over, share) = World { accepted: (0.97, 0.1), sure: (0.97, 0.45) }.compared();
    assert!(over < 0.93 && share > 0.5, "{over} of the time, gated in {share} of the rounds");
}

#[test]
fn a_gate_that_cannot_know_costs_next_to_nothing() {
    for accepted in [0.9, 0.6, 0.4] {
        let world = World { accepted: (accepted, accepted), sure: (0.8, 0.6) };
        let (over, share) = world.compared();
        assert!(over < 1.02, "{accepted}: {over} of the time, gated in {share} of the rounds");
    }
}

#[test]
fn a_drafter_that_is_of_no_use_stays_out_of_use() {
    let world = World { accepted: (0.03, 0.03), sure: (0.9, 0.3) };
    let (over, _) = world.compared();
    assert!(over < 1.02, "{over} of the time");
}

#[test]
fn paths_are_ended_only_where_they_may_be() {
    let mut controller = controller(true);
    let mut history = controller.history(|_| true);
    let random = &mut Philox::new(1);
    let world = World { accepted: (0.97, 0.1), sure: (0.97, 0.45) };
    let text = |at: usize| (0..LEN_MAX).map(|by| (at + by) % 7 < 4).collect::<Vec<_>>();
    for at in 0..200 {
        let choice = controller.choose(&mut history, &outlook(1000));
        let (commit, _) = world.round(&choice, &text(at), random);
        controller.learn(&mut history, &choice, &commit, 100.0);
    }
    let load = |apart, sequences| Load { sequences, tokens: 0, apart };
    let arm = controller.arms[0].arm.clone();
    let may = |outlook: &Outlook| controller.may_gate(&arm, outlook);
    assert!(may(&outlook(100)));
    assert!(!may(&Outlook { may_stop: false, ..outlook(100) }), "whole paths");
    assert!(
        !may(&Outlook { temperature: 0.3, ..outlook(100) }),
        "another temperature's is not ready"
    );
    assert!(!may(&Outlook { load: load(true, 1), ..outlook(100) }), "others need the same length");
    assert!(may(&Outlook { load: load(true, 0), ..outlook(100) }));
    assert!(may(&Outlook { load: load(false, 3), ..outlook(100) }));
}

#[test]
fn a_drafter_that_read_little_teaches_its_gate_nothing() {
    let mut controller = controller(true);
    let mut history = controller.history(|_| true);
    let mut choice = controller.choose(&mut history, &outlook(1000));
    let watch = controller.gates().unwrap().watch((DRAFTER, 1.0), 0, None);
    let (view, row, _) = World { accepted: (1.0, 1.0), sure: (0.9, 0.9) }.token(true);
    let (seen, _) = watch.look(Node::ROOT, 0, &Drawn::new(&view, &row, 0.9, 1.0));
    let lessons = vec![Lesson::new(DRAFTER, &seen, 0.0, 1.0)];
    let commit = Commit { lessons, draft_len_max: 1, committed: 1, ..Commit::default() };
    choice.plan.drafter_prefill_max = Some(32);
    controller.learn(&mut history, &choice, &commit, 1.0);
    assert_eq!(controller.gates().unwrap().iter().count(), 0);
    choice.plan.drafter_prefill_max = None;
    controller.learn(&mut history, &choice, &commit, 1.0);
    assert_eq!(controller.gates().unwrap().iter().count(), 1);
}
