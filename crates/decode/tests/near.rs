//! Greedy decoding that lets near misses pass: which tokens, how many, how far off.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

use forerun_decode::*;
use forerun_verify::{Philox, Random};

const VOCAB: usize = 12;
const LEN: usize = 400;

fn toy(seed: u64) -> ToyModel {
    ToyModel { vocab_len: VOCAB, order: 2, seed, spread: 1.0 }
}

/// The output, and what each token spent.
fn decoded(mode: &str, sampling: &Sampling) -> (Vec<Token>, Vec<f64>) {
    let target = Box::new(ToyEngine::new(toy(1), 1024));
    let drafter = ModelDrafter::new(Box::new(ToyEngine::new(toy(2), 1024)));
    let mut decoder = Decoder::new(target, vec![Box::new(drafter)]).unwrap();
    let rule = mode.parse::<LossyMode>().unwrap().rule();
    let policy = DraftPolicy::drafted(vec![DrafterId(0)], 4, rule);
    let mut sequence = Sequence::new(Slot(0), sampling.clone());
    sequence.begin(vec![Token(3), Token(5)], LEN);
    let (plan, limits, chance) = (policy.plan(), Limits::default(), &mut Random(Philox::new(1)));
    let mut spent = Vec::new();
    while sequence.wanted() > 0 {
        let sequence = &mut sequence;
        let turn = Turn { sequence, policy: &policy, plan: &plan, limits, chance };
        let round = decoder.round(&mut [turn]).unwrap();
        spent.extend(round.commits[0].spent.iter().map(|spend| spend.distance));
    }
    (sequence.output().to_vec(), spent)
}

/// How many nats each token is below the likeliest, after the tokens before it.
fn gaps(output: &[Token], sampling: &Sampling) -> Vec<f64> {
    let mut committed = vec![Token(3), Token(5)];
    let gap = |token: &Token| {
        let mut logits = toy(1).logits(&committed);
        sampling.row(&mut logits, &committed, &[]).unwrap();
        committed.push(*token);
        let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        f64::from(best) - f64::from(logits[token.index()])
    };
    output.iter().map(gap).collect()
}

#[test]
fn forgiven_tokens_are_near_few_and_named() {
    let penalised = Sampling { repeat_penalty: 1.3, ..Sampling::greedy() };
    for sampling in [Sampling::greedy(), penalised] {
        let (output, spent) = decoded("near:1.0@0.1", &sampling);
        let mut forgiven = 0;
        for (place, (gap, spent)) in gaps(&output, &sampling).iter().zip(&spent).enumerate() {
            assert_eq!(*gap > 0.0, *spent == 1.0, "token {place} is {gap} off and spent {spent}");
            assert!(*gap <= 1.0 + 1e-6, "token {place} is {gap} off");
            forgiven += usize::from(*gap > 0.0);
            assert!(forgiven as f64 <= 0.1 * (place + 1) as f64 + 1e-9, "{forgiven} by {place}");
        }
        assert!(forgiven > LEN / 50, "{forgiven} forgiven");
    }
}

#[test]
fn without_a_share_or_a_gap_it_is_greedy() {
    for mode in ["near:1.0@0", "near:0@0.1"] {
        let (output, spent) = decoded(mode, &Sampling::greedy());
        assert!(gaps(&output, &Sampling::greedy()).iter().all(|gap| *gap == 0.0), "{mode}");
        assert!(spent.iter().all(|spent| *spent == 0.0), "{mode}");
    }
}
