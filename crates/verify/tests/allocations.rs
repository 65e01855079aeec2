//! In a steady state, verdicts on paths are made without asking the allocator for anything.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a test")]

use allocation_counter::measure;
use forerun_verify::*;

const VOCAB: usize = 3_000;
const LEN: usize = 3;
const SEQUENCES: usize = 4;

fn logits(rows: usize) -> Vec<f32> {
    (0..rows * VOCAB).map(|i| (i * 37 % 911) as f32 * 0.011).collect()
}

#[test]
fn a_verifier_that_has_grown_allocates_nothing() {
    let (target, draft) = (logits(SEQUENCES * (LEN + 1)), logits(SEQUENCES * LEN));
    let halves: Vec<u16> = target.iter().map(|x| (x.to_bits() >> 16) as u16).collect();
    let tokens = [1, 7, 2_999, 5, 512, 8, 100, 200, 300, 511, 0, 2];
    for target in [Values::F32(&target), Values::Bf16(&halves)] {
        let target = Rows::logits(target, VOCAB, 0.7);
        for draft in [Some(Rows::logits(Values::F32(&draft), VOCAB, 1.0)), None] {
            let layout = Layout::Padded { len_max: LEN, lengths: &[3, 0, 2, 1] };
            let batch = Batch::new(layout, &tokens, draft, target);
            let mut verdicts = [PathVerdict::NONE; SEQUENCES];
            let mut verifier = BatchVerifier::on_one_thread();
            for rule in PathRule::ALL {
                let mut judge = |seed: u64| {
                    let seeds = [seed, seed + 1, seed + 2, seed + 3];
                    verifier.verify(&batch, rule, &seeds, &mut verdicts).unwrap();
                };
                let first = measure(|| judge(0));
                let later = measure(|| (1..50).for_each(&mut judge));
                assert_eq!(later.count_total, 0, "{rule:?} after {first:?}: {later:?}");
            }
        }
    }
    // The counter counts: a rule over a draft does ask.
    let counted = measure(|| drop(Draft::fixed_path(VOCAB, [Token(1)]).unwrap()));
    assert!(counted.count_total > 0);
}
