//! What a draft head is shown: every committed token with the target's hidden row before it, however
//! prompts are read, sequences come and go, prefixes are shared and drafts rejected. The toy head panics
//! at any other pair.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

use std::sync::Arc;

use forerun_decode::*;
use forerun_verify::{BlockRule, Philox, PooledRule, Random, Rule, Scheme};

const SLOTS: u32 = 3;
const VOCAB: u32 = 5;
const ROUNDS: usize = 400;

fn toy(seed: u64) -> ToyModel {
    ToyModel { vocab_len: VOCAB as usize, order: 3, seed, spread: 2.0 }
}

fn decoder(pairing: Pairing, heads: usize) -> Decoder {
    let target = ToyEngine::new(toy(1), 400).slots(SLOTS as usize).with_features();
    let head = ToyHead::new(ToyEngine::new(toy(2), 400).slots(SLOTS as usize), pairing);
    let drafter = HeadDrafter::new(Box::new(head.in_turn(heads)), DrafterKind::Eagle3);
    Decoder::new(Box::new(target), vec![Box::new(drafter)]).unwrap()
}

fn policy(width: usize) -> DraftPolicy {
    let rule: Arc<dyn Rule> = if width > 1 { Arc::new(PooledRule) } else { Arc::new(BlockRule) };
    let policy = DraftPolicy::drafted(vec![DrafterId(0)], 3, rule);
    if width > 1 { policy.wide(width).drawn(Scheme::Independent) } else { policy }
}

/// Numbers that look random.
struct Dice(u64);

impl Dice {
    fn below(&mut self, count: u32) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from(self.0 >> 33).unwrap() % count
    }

    fn index(&mut self, count: usize) -> usize {
        self.below(u32::try_from(count).unwrap()) as usize
    }
}

/// A sequence that begins like the one in another slot, as often as not with what that has cached.
fn begin(decoder: &mut Decoder, slot: u32, dice: &mut Dice) -> Sequence {
    let other = Slot((slot + 1 + dice.below(SLOTS - 1)) % SLOTS);
    let mut prompt = decoder.cached_tokens(other).to_vec();
    prompt.truncate(dice.index(prompt.len() + 1));
    prompt.extend((0..=dice.below(90)).map(|_| Token(dice.below(VOCAB))));
    prompt.truncate(200);
    if dice.below(2) == 0 {
        decoder.share(other, Slot(slot), &prompt);
    }
    if dice.below(8) == 0 {
        decoder.forget(Slot(slot));
    }
    let mut sequence = Sequence::new(Slot(slot), Sampling::unshaped());
    sequence.begin(prompt, 5 + dice.index(40));
    sequence
}

/// Sequences in all slots at once, which end and begin at random, are read in chunks, wait, and draft
/// nothing now and then.
fn play(pairing: Pairing, heads: usize, width: usize, seed: u64) {
    let mut decoder = decoder(pairing, heads);
    let (mut dice, mut chances) = (Dice(seed), Vec::new());
    chances.extend((0..u64::from(SLOTS)).map(|slot| Random(Philox::new(seed ^ slot))));
    let policy = policy(width);
    let mut sequences: Vec<Sequence> =
        (0..SLOTS).map(|slot| begin(&mut decoder, slot, &mut dice)).collect();
    let (mut drafting, mut accepted) = (0, 0);
    for round in 0..ROUNDS {
        for (sequence, slot) in sequences.iter_mut().zip(0..) {
            if sequence.wanted() == 0 {
                *sequence = begin(&mut decoder, slot, &mut dice);
            }
        }
        let idle = dice.below(SLOTS + 1);
        let plan = |_| if dice.below(4) == 0 { Plan::plain() } else { policy.plan() };
        let plans: Vec<Plan> = (0..SLOTS).map(plan).collect();
        let limits = Limits { prefill_max: 1 + dice.index(80), ..Limits::default() };
        let running = sequences.iter_mut().zip(&plans).zip(&mut chances);
        let running = running.filter(|((sequence, _), _)| sequence.slot() != Slot(idle));
        let turn = |((sequence, plan), chance)| {
            let chance: &mut Random<Philox> = chance;
            Turn { sequence, policy: &policy, plan, limits, chance }
        };
        let commits = decoder.round(&mut running.map(turn).collect::<Vec<_>>()).unwrap().commits;
        for commit in commits {
            assert!(commit.dropped.is_empty(), "{:?}", commit.dropped);
            let may_draft = commit.draft_len_max > 0;
            assert_eq!(commit.drafted > 0, may_draft, "round {round}");
            assert!(heads == 1 || commit.drafted <= heads * width, "a token for each head");
            drafting += usize::from(may_draft);
            accepted += commit.accepted;
        }
    }
    assert!(
        drafting > ROUNDS / 2 && accepted > drafting / 4,
        "{drafting} rounds, {accepted} tokens"
    );
}

#[test]
fn every_pair_is_true_whatever_happens_to_sequences() {
    for pairing in [Pairing::AfterFirst, Pairing::FromFirst] {
        for seed in 0..12 {
            play(pairing, 1, 1, seed);
            play(pairing, 1, 3, seed);
        }
    }
}

#[test]
fn every_pair_is_true_where_heads_take_turns() {
    for seed in 0..12 {
        play(Pairing::FromFirst, 2, 1, seed);
        play(Pairing::FromFirst, 3, 3, seed);
    }
}
