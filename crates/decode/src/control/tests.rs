//! The controller in worlds whose costs and acceptance are known.

use forerun_verify::Philox;
use forerun_verify::rand_core::Rng as _;

use super::*;

const DRAFTER: DrafterId = DrafterId(0);

/// What a sequence with so many tokens to go sees of the drafter, alone in its rounds.
fn alone(wanted: usize, behind: usize) -> Outlook {
    let drafters = vec![Available { id: DRAFTER, behind, heeds_price: false, block_len: None }];
    Outlook {
        wanted,
        draft_len_max: 8,
        first: false,
        drafters,
        load: Load::default(),
        may_stop: true,
        temperature: 1.0,
    }
}

/// A target whose second token is expensive, and a drafter at a tenth of it: this machine's.
fn costs() -> Costs {
    let target = CostCurve::new([(1, 70.0), (2, 84.0), (4, 105.0), (8, 155.0), (16, 270.0)]);
    let drafter = CostCurve::new([(1, 8.0), (2, 12.0), (8, 22.0), (32, 55.0)]);
    Costs { target, drafters: BTreeMap::from([(DRAFTER, drafter)]) }
}

/// A sequence of so many tokens, of which drafts are accepted token by token with a chance that may
/// depend on the position.
struct World {
    costs: Costs,
    arms: Vec<Arm>,
    accepts: fn(usize, &Arm) -> f64,
    len: usize,
}

/// What happened: seconds, and for each token whether its round drafted on purpose.
struct Run {
    seconds: f64,
    drafting: Vec<bool>,
}

impl World {
    fn new(accepts: fn(usize, &Arm) -> f64) -> Self {
        let arms = vec![Arm { drafters: vec![DRAFTER], width: 1 }];
        Self { costs: costs(), arms, accepts, len: 2000 }
    }

    /// What a round of an arm takes, by the true costs.
    fn seconds(&self, arm: Option<usize>, len: usize, behind: usize) -> f64 {
        let Some(arm) = arm else { return self.costs.target.seconds(1, 1) };
        let width = self.arms[arm].width;
        let scored = self.costs.target.seconds(1 + width * len, 1);
        let drafter = &self.costs.drafters[&DRAFTER];
        let first = drafter.seconds(behind.max(1), 1);
        scored + first + (len - 1) as f64 * drafter.seconds(width, 1)
    }

    fn run(&self, seed: u64) -> Run {
        let mut controller = Controller::new(self.costs.clone(), self.arms.clone(), 8);
        self.sequence(1, &mut controller, &mut Philox::new(seed))
    }

    /// Sequences one after the other, each with a prompt of its own to prefill.
    fn sequences(&self, count: usize, prompt_len: usize, seed: u64) -> f64 {
        let mut controller = Controller::new(self.costs.clone(), self.arms.clone(), 8);
        let mut random = Philox::new(seed);
        (0..count).map(|_| self.sequence(prompt_len, &mut controller, &mut random).seconds).sum()
    }

    fn sequence(&self, prompt_len: usize, controller: &mut Controller, random: &mut Philox) -> Run {
        let mut run = Run { seconds: 0.0, drafting: Vec::new() };
        let mut history = controller.history(|_| true);
        // Tokens the drafter has prefilled, or drafted and had accepted.
        let mut cached = 0;
        while run.drafting.len() < self.len {
            let at = run.drafting.len();
            let behind = prompt_len + at - cached;
            let choice = controller.choose(&mut history, &alone(self.len - at, behind));
            let Plan { draft_len, drafter_prefill_max, .. } = choice.plan;
            let behind = behind.min(drafter_prefill_max.unwrap_or(usize::MAX));
            let seconds = self.seconds(choice.arm, draft_len, behind);
            let accepted = choice.arm.map_or(0, |arm| {
                let chance = (self.accepts)(at, &self.arms[arm]);
                let mut hit = || (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64 <= chance;
                (0..draft_len).take_while(|_| hit()).count()
            });
            if choice.arm.is_some() {
                cached = prompt_len + at + accepted.min(draft_len - 1);
            }
            let drafted = choice.arm.map_or(0, |arm| draft_len * self.arms[arm].width);
            let commit = Commit {
                draft_len_max: draft_len,
                drafted,
                draft_len,
                accepted,
                committed: accepted + 1,
                ..Commit::default()
            };
            controller.learn(&mut history, &choice, &commit, seconds);
            run.seconds += seconds;
            let drafting = choice.arm.is_some() && !choice.trial;
            run.drafting.extend(std::iter::repeat_n(drafting, accepted + 1));
        }
        run
    }

    fn plain(&self) -> f64 {
        self.len as f64 * self.costs.target.seconds(1, 1)
    }

    /// The best of all fixed settings, by expectation.
    fn best_fixed(&self) -> f64 {
        let mut best = self.plain();
        for (index, arm) in self.arms.iter().enumerate() {
            let chance = (self.accepts)(0, arm);
            for len in 1..=8 {
                let tokens: f64 = (0..=len).map(|depth| chance.powi(depth)).sum();
                // After a draft that was accepted to its end the drafter prefills two tokens.
                let full = chance.powi(len);
                let len = usize::try_from(len).unwrap();
                let round = |behind| self.seconds(Some(index), len, behind);
                let seconds = ((1.0 - full) * round(1) + full * round(2)) / tokens;
                best = best.min(seconds * self.len as f64);
            }
        }
        best
    }
}

fn worst(of: impl Fn(u64) -> f64) -> f64 {
    (0..20).map(of).fold(0.0, f64::max)
}

#[test]
fn a_useless_drafter_costs_next_to_nothing() {
    for accepts in [|_: usize, _: &Arm| 0.0, |_: usize, _: &Arm| 0.1, |_: usize, _: &Arm| 0.25] {
        let world = World::new(accepts);
        let slower = worst(|seed| world.run(seed).seconds / world.plain());
        assert!(slower < 1.02, "{slower}");
    }
}

#[test]
fn a_useless_drafter_costs_little_in_short_sequences_too() {
    let arms = [1, 2].map(|width| Arm { drafters: vec![DRAFTER], width }).to_vec();
    let accepts = |_: usize, _: &Arm| 0.05;
    let world = World { costs: costs(), arms, accepts, len: 80 };
    let slower = worst(|seed| world.sequences(10, 100, seed) / (10.0 * world.plain()));
    assert!(slower < 1.02, "{slower}");
}

#[test]
fn a_good_drafter_is_used_as_the_best_fixed_setting_would() {
    for accepts in [|_: usize, _: &Arm| 0.6, |_: usize, _: &Arm| 0.8, |_: usize, _: &Arm| 0.95] {
        let world = World::new(accepts);
        let mean = (0..20).map(|seed| world.run(seed).seconds).sum::<f64>() / 20.0;
        assert!(mean < 1.05 * world.best_fixed(), "{mean} against {}", world.best_fixed());
    }
}

#[test]
fn paths_are_added_where_they_pay() {
    // A target that takes further tokens for next to nothing.
    let target = CostCurve::new([(1, 70.0), (2, 71.0), (16, 80.0)]);
    let drafters = BTreeMap::from([(DRAFTER, CostCurve::new([(1, 2.0), (8, 3.0)]))]);
    let arms = [1, 2, 3].map(|width| Arm { drafters: vec![DRAFTER], width }).to_vec();
    let accepts = |_: usize, arm: &Arm| [0.0, 0.5, 0.7, 0.75][arm.width];
    let costs = Costs { target, drafters };
    let world = World { costs, arms, accepts, len: 2000 };
    let mean = (0..20).map(|seed| world.run(seed).seconds).sum::<f64>() / 20.0;
    assert!(mean < 1.05 * world.best_fixed(), "{mean} against {}", world.best_fixed());
}

#[test]
fn paths_that_do_not_pay_are_hardly_tried() {
    let arms = [1, 2].map(|width| Arm { drafters: vec![DRAFTER], width }).to_vec();
    let accepts = |_: usize, arm: &Arm| if arm.width == 1 { 0.68 } else { 0.75 };
    let world = World { costs: costs(), arms, accepts, len: 400 };
    let mean = (0..40).map(|seed| world.run(seed).seconds).sum::<f64>() / 40.0;
    assert!(mean < 1.05 * world.best_fixed(), "{mean} against {}", world.best_fixed());
}

#[test]
fn a_drafter_that_turns_bad_is_dropped_and_taken_up_again_when_it_is_good() {
    let world = World::new(|at, _| if (500..1000).contains(&at) { 0.02 } else { 0.85 });
    for seed in 0..20 {
        let Run { drafting, .. } = world.run(seed);
        let used = |range: std::ops::Range<usize>| {
            drafting[range.clone()].iter().filter(|drafting| **drafting).count() as f64
                / range.len() as f64
        };
        assert!(used(300..500) > 0.9, "seed {seed}: in use while it is good");
        assert!(used(532..1000) < 0.05, "seed {seed}: dropped within 32 tokens");
        assert!(used(1400..2000) > 0.9, "seed {seed}: taken up again");
    }
}

#[test]
fn what_was_learned_from_one_sequence_is_known_to_the_next() {
    let world = World::new(|_, _| 0.0);
    let mut controller = Controller::new(world.costs.clone(), world.arms.clone(), 8);
    let mut trials = Vec::new();
    for _ in 0..5 {
        let mut history = controller.history(|_| true);
        let mut drafted = 0;
        for _ in 0..50 {
            let choice = controller.choose(&mut history, &alone(50, 200));
            drafted += u32::from(choice.arm.is_some());
            let draft_len_max = choice.plan.draft_len;
            let commit = Commit { draft_len_max, committed: 1, ..Commit::default() };
            let seconds = world.seconds(choice.arm, draft_len_max, TRIAL_PREFILL);
            controller.learn(&mut history, &choice, &commit, seconds);
        }
        trials.push(drafted);
    }
    assert!(trials[0] > 0 && trials[1..].iter().all(|drafted| *drafted <= 2), "{trials:?}");
}

/// Rounds of a drafter that heeds its price: one in four drafts twelve tokens, of which so many are
/// accepted. Returns the choices of the last hundred.
fn priced(accepted: usize) -> Vec<Choice> {
    let mut controller = Controller::new(costs(), World::new(|_, _| 0.0).arms, 16);
    controller.costs.drafters.clear();
    let mut history = controller.history(|_| true);
    let mut outlook = Outlook { draft_len_max: 16, ..alone(1000, 1) };
    outlook.drafters[0].heeds_price = true;
    let mut choices = Vec::new();
    for round in 0..400 {
        let choice = controller.choose(&mut history, &outlook);
        let drafts = choice.arm.is_some() && round % 4 == 0;
        let (drafted, accepted) = if drafts { (12, accepted) } else { (0, 0) };
        let draft_len_max = choice.plan.draft_len;
        let committed = accepted + 1;
        let commit = Commit { draft_len_max, drafted, accepted, committed, ..Commit::default() };
        let seconds = controller.costs.target.seconds(1 + drafted, 1);
        controller.learn(&mut history, &choice, &commit, seconds);
        choices.push(choice);
    }
    choices.split_off(300)
}

#[test]
fn drafters_that_heed_their_price_choose_their_length() {
    // By its depths alone it would be given up: three of four drafts are empty.
    for choice in priced(12) {
        assert_eq!((choice.arm, choice.trial, choice.plan.draft_len), (Some(0), false, 16));
        // Four tokens a round for what 70 + 70 + 70 + 212 take.
        let rate = 16.0 / 422.0;
        let wanted = rate * (costs().target.seconds(9, 1) - 70.0);
        let price = choice.plan.price.of(8);
        assert!((0.8..1.25).contains(&(price / wanted)), "{price} instead of {wanted}");
    }
    let drafting = priced(0).into_iter().filter(|choice| choice.arm.is_some()).count();
    assert!(drafting <= 5, "what is never accepted was drafted {drafting} times of 100");
}

#[test]
fn drafters_that_heed_their_price_stay_in_use_while_they_have_nothing_to_say() {
    let mut controller = Controller::new(costs(), World::new(|_, _| 0.0).arms, 16);
    controller.costs.drafters.clear();
    // Others may have used up what may be lost on trials.
    controller.saved = 0.0;
    let mut history = controller.history(|_| true);
    let mut outlook = Outlook { draft_len_max: 16, ..alone(1000, 1) };
    outlook.drafters[0].heeds_price = true;
    let mut unused = 0;
    for round in 0..200 {
        let choice = controller.choose(&mut history, &outlook);
        unused += u32::from(choice.arm.is_none());
        // Drafts that are accepted at first; later one in twelve, which costs 3 % and brings nothing.
        let drafts = choice.arm.is_some() && (round < 10 || round % 12 == 0);
        let drafted = if drafts { 2 } else { 0 };
        let accepted = if round < 10 { drafted } else { 0 };
        let draft_len_max = choice.plan.draft_len;
        let committed = accepted + 1;
        let commit = Commit { draft_len_max, drafted, accepted, committed, ..Commit::default() };
        let seconds = controller.costs.target.seconds(1 + drafted, 1);
        controller.learn(&mut history, &choice, &commit, seconds);
    }
    assert_eq!(unused, 0, "it is not known when it will be sure again");
}

/// Tells a controller of a round without a draft model: what was drafted and accepted, and the time.
fn tell(
    controller: &mut Controller,
    history: &mut History,
    choice: &Choice,
    (drafted, accepted): (usize, usize),
    seconds: f64,
) {
    let time = std::time::Duration::from_secs_f64(seconds);
    let pass = Pass { tokens: 1 + drafted, sequences: 1, time };
    controller.observe(&Passes { target: Some(pass), drafters: Vec::new() });
    let (draft_len_max, committed) = (choice.plan.draft_len, accepted + 1);
    let commit = Commit { draft_len_max, drafted, accepted, committed, ..Commit::default() };
    controller.learn(history, choice, &commit, seconds);
}

#[test]
fn costs_that_were_measured_beside_other_work_are_found_out() {
    let world = World::new(|_, _| 0.9);
    for heeds_price in [false, true] {
        let dear = world.costs.target.points().iter().map(|(n, seconds)| match n {
            1 => (1, *seconds),
            _ => (*n, 10.0 * seconds),
        });
        let mut costs = Costs { target: CostCurve::new(dear), ..world.costs.clone() };
        costs.drafters.clear();
        let mut controller = Controller::new(costs, world.arms.clone(), 8);
        let mut history = controller.history(|_| true);
        let mut outlook = alone(1000, 1);
        outlook.drafters[0].heeds_price = heeds_price;
        let mut drafting = Vec::new();
        for _ in 0..400 {
            let choice = controller.choose(&mut history, &outlook);
            let likely = (1..).map(|depth| 0.9f64.powi(depth)).take(choice.plan.draft_len);
            let drafted =
                if heeds_price { choice.plan.price.best(likely) } else { choice.plan.draft_len };
            drafting.push(drafted > 0);
            let seconds = world.costs.target.seconds(1 + drafted, 1);
            tell(&mut controller, &mut history, &choice, (drafted, drafted.min(7)), seconds);
        }
        let last = drafting[300..].iter().filter(|it| **it).count();
        assert!(last > 90, "drafts in {last} of 100 rounds, price heeded: {heeds_price}");
    }
}

/// Other work slows all passes for a while, those over many tokens as much as those over one.
#[test]
fn after_a_slow_while_it_drafts_as_before() {
    let world = World::new(|_, _| 0.9);
    let mut costs = world.costs.clone();
    costs.drafters.clear();
    let mut controller = Controller::new(costs, world.arms.clone(), 8);
    let mut history = controller.history(|_| true);
    let mut outlook = alone(1000, 1);
    outlook.drafters[0].heeds_price = true;
    let mut drafting = Vec::new();
    for round in 0..300 {
        let choice = controller.choose(&mut history, &outlook);
        // One token in three is not foreseen at all.
        let likely = (1..).map(|depth| 0.8f64.powi(depth)).take(choice.plan.draft_len);
        let known = round % 3 != 0;
        let drafted = if known { choice.plan.price.best(likely) } else { 0 };
        drafting.push(drafted > 0);
        let slow = if (100..140).contains(&round) { 3.0 } else { 1.0 };
        let seconds = slow * world.costs.target.seconds(1 + drafted, 1);
        let accepted = drafted.min(if round % 2 == 0 { 8 } else { 2 });
        tell(&mut controller, &mut history, &choice, (drafted, accepted), seconds);
    }
    let rounds = |range: std::ops::Range<usize>| drafting[range].iter().filter(|it| **it).count();
    let (before, after) = (rounds(70..100), rounds(150..180));
    assert!(before >= 18 && after >= 18, "drafts in {before} of 30 rounds before, {after} after");
}

/// Other work slows a draft model while it drafts, and is over before the target decodes alone.
#[test]
fn a_draft_model_that_was_slow_for_a_while_is_taken_up_again() {
    let world = World::new(|_, _| 0.8);
    let mut controller = Controller::new(world.costs.clone(), world.arms.clone(), 8);
    let mut history = controller.history(|_| true);
    let mut drafting = Vec::new();
    for round in 0..400 {
        let choice = controller.choose(&mut history, &alone(1000, 1));
        let drafted = choice.plan.draft_len;
        drafting.push(drafted > 0 && !choice.trial);
        let pass = |curve: &CostCurve, tokens, slow: f64| {
            let seconds = slow * curve.seconds(tokens, 1);
            Pass { tokens, sequences: 1, time: std::time::Duration::from_secs_f64(seconds) }
        };
        let target = pass(&world.costs.target, 1 + drafted, 1.0);
        let slow = if (50..70).contains(&round) { 20.0 } else { 1.0 };
        let drafter = pass(&world.costs.drafters[&DRAFTER], 1, slow);
        let drafters = vec![(DRAFTER, drafter); drafted];
        let seconds = (target.time + drafter.time * u32::try_from(drafted).unwrap()).as_secs_f64();
        controller.observe(&Passes { target: Some(target), drafters });
        let accepted = drafted.min(3);
        let commit = Commit {
            draft_len_max: drafted,
            drafted,
            draft_len: drafted,
            accepted,
            committed: accepted + 1,
            ..Commit::default()
        };
        controller.learn(&mut history, &choice, &commit, seconds);
    }
    let rounds = |range: std::ops::Range<usize>| drafting[range].iter().filter(|it| **it).count();
    let (before, during, after) = (rounds(30..50), rounds(60..70), rounds(150..200));
    assert!(before >= 18 && during <= 5 && after >= 45, "{before}, {during}, {after}");
}

/// Passes over one token turn out to take less than was measured, which rounds that draft never see.
#[test]
fn a_small_gain_over_plain_decoding_is_checked_by_plain_rounds() {
    let world = World::new(|_, _| 0.9);
    let measured = CostCurve::new([(1, 100.0), (2, 130.0), (4, 150.0), (8, 200.0)]);
    let drafters = BTreeMap::from([(DRAFTER, CostCurve::new([(1, 4.0), (8, 8.0)]))]);
    let costs = Costs { target: measured.clone(), drafters };
    let mut controller = Controller::new(costs, world.arms.clone(), 4);
    let mut history = controller.history(|_| true);
    let mut drafted = |plain_seconds: f64, accepts: fn(usize) -> usize| {
        let mut drafting = 0;
        for round in 0..120 {
            let choice = controller.choose(&mut history, &alone(1000, 1));
            let len = choice.plan.draft_len;
            drafting += usize::from(len > 0);
            let seconds = match len {
                0 => plain_seconds,
                len => measured.seconds(1 + len, 1),
            };
            let time = std::time::Duration::from_secs_f64(seconds);
            let target = Pass { tokens: 1 + len, sequences: 1, time };
            controller.observe(&Passes { target: Some(target), drafters: Vec::new() });
            let accepted = len.min(accepts(round));
            let commit = Commit {
                draft_len_max: len,
                drafted: len,
                draft_len: len,
                accepted,
                committed: 1 + accepted,
                ..Commit::default()
            };
            controller.learn(&mut history, &choice, &commit, seconds);
        }
        drafting
    };
    let large = drafted(100.0, |_| 4);
    assert!(large == 120, "a large gain is not doubted: {large} of 120 rounds drafted");
    let some = |round| usize::from(round % 5 < 3);
    let small = drafted(100.0, some);
    assert!((100..119).contains(&small), "{small} of 120 rounds drafted at a small gain");
    let none = drafted(50.0, some);
    assert!(none < 50, "{none} of 120 rounds drafted though plain decoding is faster");
}

#[test]
fn a_drafter_that_drafts_in_one_pass_costs_the_same_at_every_length() {
    let world = World::new(|_, _| 0.9);
    let controller = Controller::new(world.costs.clone(), world.arms.clone(), 8);
    let history = controller.history(|_| true);
    let added = |block_len| {
        let mut outlook = alone(100, 1);
        outlook.drafters[0].block_len = block_len;
        let forecasts = controller.forecasts(0, &history, &outlook, Estimate::Mean);
        let plain = |len| Load::default().seconds(&world.costs.target, len);
        [2, 6].map(|len: usize| forecasts[len - 1].seconds - plain(len as f64))
    };
    let block = world.costs.drafters[&DRAFTER].between(6.0);
    assert!(added(Some(6)).iter().all(|seconds| (seconds - block).abs() < 1e-9));
    let [short, long] = added(None);
    assert!(long > 2.5 * short, "token by token: {short}, {long}");
}

#[test]
fn a_failed_drafter_is_left_alone() {
    let world = World::new(|_, _| 0.9);
    let mut controller = Controller::new(world.costs.clone(), world.arms.clone(), 8);
    let mut history = controller.history(|_| true);
    let first = controller.choose(&mut history, &alone(100, 1));
    assert_eq!(first.arm, Some(0));
    let commit = Commit { committed: 1, ..Commit::default() };
    controller.learn(&mut history, &first, &commit, 70.0);
    // One that failed is no longer available.
    let outlook = Outlook { drafters: Vec::new(), ..alone(100, 1) };
    for _ in 0..100 {
        let choice = controller.choose(&mut history, &outlook);
        assert_eq!((choice.arm, choice.trial), (None, false));
    }
}

#[test]
fn a_full_batch_drafts_less() {
    // Beside many sequences the pass is already long, and each drafted token makes it longer.
    let mut controller = Controller::new(costs(), World::new(|_, _| 0.0).arms, 8);
    let mut len = |load| {
        let mut history = controller.history(|_| true);
        controller.choose(&mut history, &Outlook { load, ..alone(100, 1) }).plan.draft_len
    };
    let one = len(Load::default());
    let full = len(Load { sequences: 31, ..Load::default() });
    assert!(full < one, "{full} against {one}");
}

#[test]
fn a_draft_with_a_pass_of_its_own_pays_for_all_it_holds_up() {
    let world = World::new(|_, _| 0.9);
    let controller = Controller::new(world.costs.clone(), world.arms.clone(), 8);
    let price = |sequences, apart| {
        let load = Load { sequences, tokens: 0, apart };
        controller.price(controller.plain(load), load).of(8)
    };
    assert_eq!(price(0, true), price(0, false), "alone there is nobody to share a pass with");
    let own_pass = controller.costs.target.between(8.0);
    let round = Load { sequences: 3, ..Load::default() }.seconds(&controller.costs.target, 0.0);
    assert!((price(3, true) - 4.0 * own_pass / round).abs() < 1e-9, "{}", price(3, true));
    assert!(price(3, true) > price(3, false), "a shared pass is cheaper");
}

#[test]
fn an_aligned_length_is_what_is_drafted() {
    let world = World::new(|_, _| 0.9);
    let mut controller = Controller::new(world.costs.clone(), world.arms.clone(), 8);
    let mut history = controller.history(|_| true);
    let mut choice = controller.choose(&mut history, &alone(100, 1));
    assert!(choice.arm.is_some() && choice.plan.draft_len != 5);
    choice.align(5);
    assert_eq!((choice.plan.draft_len, choice.plan.drafters.len()), (5, 1));
    choice.align(0);
    assert_eq!((choice.arm, choice.plan.drafters.len()), (None, 0));
    choice.align(3);
    assert_eq!(choice.plan, Plan::plain(), "a plain choice stays plain");
}

/// Eight sequences that each have a long prompt: what the drafter would have to prefill of all of
/// them is more than the few tokens left are worth, though for one sequence alone it would not be.
#[test]
fn in_a_full_batch_a_drafter_is_not_taken_up_for_a_few_tokens() {
    // A target that takes further tokens for next to nothing, so that drafts pay at any load.
    let target = CostCurve::new([(1, 70.0), (8, 71.0), (64, 75.0)]);
    let drafters = BTreeMap::from([(DRAFTER, CostCurve::new([(1, 2.0), (64, 128.0)]))]);
    let arms = vec![Arm { drafters: vec![DRAFTER], width: 1 }];
    let mut controller = Controller::new(Costs { target, drafters }, arms, 4);
    let good = Commit {
        draft_len_max: 4,
        drafted: 4,
        draft_len: 4,
        accepted: 4,
        committed: 5,
        ..Commit::default()
    };
    let mut history = controller.history(|_| true);
    let choice = controller.choose(&mut history, &alone(16, 1));
    (0..20).for_each(|_| controller.learn(&mut history, &choice, &good, 80.0));
    let mut chosen = |sequences| {
        let mut history = controller.history(|_| true);
        let load = Load { sequences, ..Load::default() };
        let choice = controller.choose(&mut history, &Outlook { load, ..alone(16, 100) });
        choice.arm.filter(|_| !choice.trial)
    };
    assert_eq!(chosen(0), Some(0), "alone it pays");
    assert_eq!(chosen(7), None, "not for eight");
}

/// Costs measured while something else was running: plain rounds show that passes take far less,
/// and the drafter, which does not run, is believed to as well.
#[test]
fn a_drafter_that_does_not_run_gets_cheaper_with_the_machine() {
    let truth = costs();
    let slow = |curve: &CostCurve| {
        CostCurve::new(curve.points().iter().map(|(tokens, seconds)| (*tokens, 2.5 * seconds)))
    };
    let drafters = truth.drafters.iter().map(|(id, curve)| (*id, slow(curve))).collect();
    let mut measured = Costs { target: slow(&truth.target), drafters };
    let time = std::time::Duration::from_secs_f64(truth.target.seconds(1, 1));
    let pass = Pass { tokens: 1, sequences: 1, time };
    for _ in 0..60 {
        measured.observe(&Passes { target: Some(pass), drafters: Vec::new() });
    }
    let cost = |costs: &Costs| costs.drafters[&DRAFTER].seconds(1, 1);
    let over = cost(&measured) / cost(&truth);
    assert!((0.95..1.1).contains(&over), "{over}");
}
