//! Paths straight from memory: the verdicts of the rules, to the last bit, and a proof of their own.

#![expect(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a test")]

use std::num::NonZeroUsize;

use forerun_verify::rand_core::Rng;
use forerun_verify::*;

/// The precisions that rows come in.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Precision {
    F32,
    F64,
    F16,
    Bf16,
}

const PRECISIONS: [Precision; 4] =
    [Precision::F32, Precision::F64, Precision::F16, Precision::Bf16];

/// Numbers as an engine would hold them, and as they are read.
#[derive(Debug)]
enum Held {
    F32(Vec<f32>),
    F64(Vec<f64>),
    F16(Vec<u16>),
    Bf16(Vec<u16>),
}

impl Held {
    fn random(len: usize, precision: Precision, logits: bool, rng: &mut Philox) -> Self {
        let mut bits = || rng.next_u32();
        let halves = |bits: u32| {
            // Any finite half from 2^-9 to 16; logits have signs.
            let sign = if logits { bits >> 16 & 0x8000 } else { 0 };
            let exponent = 6 + bits % 13;
            u16::try_from(sign | exponent << 10 | bits >> 8 & 0x3ff).unwrap()
        };
        let brains = |bits: u32| {
            let sign = if logits { bits >> 16 & 0x8000 } else { 0 };
            let exponent = 118 + bits % 13;
            u16::try_from(sign | exponent << 7 | bits >> 8 & 0x7f).unwrap()
        };
        let doubles = |bits: u32| {
            let value = f64::from(bits) / f64::from(u32::MAX);
            if logits { 14.0 * value - 7.0 } else { value * value * value }
        };
        match precision {
            Precision::F32 => Self::F32((0..len).map(|_| doubles(bits()) as f32).collect()),
            Precision::F64 => Self::F64((0..len).map(|_| doubles(bits())).collect()),
            Precision::F16 => Self::F16((0..len).map(|_| halves(bits())).collect()),
            Precision::Bf16 => Self::Bf16((0..len).map(|_| brains(bits())).collect()),
        }
    }

    fn values(&self) -> Values<'_> {
        match self {
            Self::F32(values) => Values::F32(values),
            Self::F64(values) => Values::F64(values),
            Self::F16(bits) => Values::F16(bits),
            Self::Bf16(bits) => Values::Bf16(bits),
        }
    }

    fn set(&mut self, index: usize, value: f32) {
        match self {
            Self::F32(values) => values[index] = value,
            Self::F64(values) => values[index] = value.into(),
            Self::F16(bits) => {
                bits[index] = if value == 0.0 { 0 } else { 0xfc00 };
            }
            Self::Bf16(bits) => bits[index] = u16::try_from(value.to_bits() >> 16).unwrap(),
        }
    }
}

/// Rows, how they lie, and the same rows as a rule wants them.
#[derive(Debug)]
struct Case {
    held: Held,
    /// None: weights.
    temperature: Option<f32>,
    vocab_len: usize,
    stride: usize,
}

impl Case {
    fn random(rows: usize, vocab_len: usize, rng: &mut Philox) -> Self {
        let precision = PRECISIONS[rng.next_u32() as usize % 4];
        let temperature = [None, Some(0.0), Some(0.3), Some(1.0), Some(1.7)];
        let temperature = temperature[rng.next_u32() as usize % 5];
        let stride = vocab_len + rng.next_u32() as usize % 3;
        let mut held = Held::random(rows * stride, precision, temperature.is_some(), rng);
        // Some tokens are impossible, and some rows begin with a chunk of them.
        for row in 0..rows {
            let masked = if rng.next_u32().is_multiple_of(4) { vocab_len * 2 / 3 } else { 0 };
            for index in 0..vocab_len {
                let rare = rng.next_u32().is_multiple_of(5) && index + 1 < vocab_len;
                if index < masked || rare {
                    let nothing = if temperature.is_some() { f32::NEG_INFINITY } else { 0.0 };
                    held.set(row * stride + index, nothing);
                }
            }
        }
        Self { held, temperature, vocab_len, stride }
    }

    fn rows(&self) -> Rows<'_> {
        let values = self.held.values();
        let rows = match self.temperature {
            Some(temperature) => Rows::logits(values, self.vocab_len, temperature),
            None => Rows::weights(values, self.vocab_len),
        };
        rows.with_stride(self.stride)
    }

    fn dist(&self, row: usize) -> Dist {
        let values = self.held.values();
        let from = row * self.stride;
        let numbers: Vec<f32> = (from..from + self.vocab_len).map(|i| values.get(i)).collect();
        match self.temperature {
            Some(0.0) => Dist::argmax(&numbers).unwrap(),
            Some(temperature) => Dist::softmax(&numbers, temperature).unwrap(),
            None => Dist::dense(numbers).unwrap(),
        }
    }
}

fn rules(seed: u64) -> [(PathRule, Box<dyn Rule>); 4] {
    [
        (PathRule::Block, Box::new(BlockRule)),
        (PathRule::Token, Box::new(TokenRule)),
        (PathRule::Nss, Box::new(NssRule)),
        (PathRule::Coupled, Box::new(CoupledRule { noise: Noise::new(seed) })),
    ]
}

/// A path drawn from the draft rows, or fixed where there are none.
fn path(draft: Option<&Case>, len: usize, vocab_len: usize, rng: &mut Philox) -> Vec<u32> {
    (0..len)
        .map(|row| match draft {
            Some(draft) => draft.dist(row).draw(&mut Random(&mut *rng)).0,
            None => rng.next_u32() % u32::try_from(vocab_len).unwrap(),
        })
        .collect()
}

fn draft_of(case: Option<&Case>, tokens: &[u32], vocab_len: usize) -> Draft {
    let tokens = tokens.iter().copied().map(Token);
    match case {
        Some(case) => {
            let rows = (0..).map(|row| case.dist(row));
            Draft::path(vocab_len, tokens.zip(rows)).unwrap()
        }
        None => Draft::fixed_path(vocab_len, tokens).unwrap(),
    }
}

#[test]
fn verdicts_are_those_of_the_rules_to_the_last_bit() {
    let mut rng = Philox::new(7);
    let mut verifier = PathVerifier::new();
    let mut seen = [[0; 5]; 4];
    for round in 0..2_500 {
        let len = round % 5;
        let vocab_len = [2, 3, 40, 511, 512, 513, 1_300][rng.next_u32() as usize % 7];
        let target = Case::random(len + 1, vocab_len, &mut rng);
        let sampled = (round % 3 != 0).then(|| Case::random(len.max(1), vocab_len, &mut rng));
        let tokens = path(sampled.as_ref(), len, vocab_len, &mut rng);
        let draft = draft_of(sampled.as_ref(), &tokens, vocab_len);
        let rows: Vec<Dist> = (0..=len).map(|row| target.dist(row)).collect();
        let (seed, position) = (rng.next_u64(), u64::from(rng.next_u32()));
        let block = Block::new(&draft, &rows).unwrap().at(position);
        let path = Path::new(&tokens, sampled.as_ref().map(Case::rows), target.rows()).at(position);
        for (place, (rule, reference)) in rules(seed).into_iter().enumerate() {
            let verdict = verifier.verify(&path, rule, seed).unwrap();
            let expected = reference.verify(&block, &mut Random(Philox::new(seed))).unwrap();
            assert_eq!(
                (verdict.accepted, verdict.next),
                (expected.accepted, expected.next),
                "{} in round {round}: {target:?} {sampled:?}",
                rule.name()
            );
            seen[place][verdict.accepted] += 1;
        }
    }
    // Nothing and everything was accepted by each of them.
    assert!(seen.iter().all(|counts| counts[0] > 100 && counts[4] > 5), "{seen:?}");
}

/// A batch is its paths, however they lie and on however many threads.
#[test]
fn a_batch_is_judged_path_by_path() {
    let mut rng = Philox::new(11);
    let (vocab_len, len_max) = (700, 3);
    for threads in [1, 2, 5] {
        let mut verifier = BatchVerifier::new(NonZeroUsize::new(threads).unwrap());
        for round in 0..40 {
            let lengths: Vec<usize> = (0..7).map(|_| rng.next_u32() as usize % 4).collect();
            let rows = lengths.len() * (len_max + 1);
            let target = Case::random(rows, vocab_len, &mut rng);
            let draft = Case::random(lengths.len() * len_max, vocab_len, &mut rng);
            let seeds: Vec<u64> = lengths.iter().map(|_| rng.next_u64()).collect();
            let mut offsets = vec![0];
            lengths.iter().for_each(|len| offsets.push(offsets.last().unwrap() + len));
            let ragged = round % 2 == 1;
            let first_rows = |n: usize| match ragged {
                true => (offsets[n], offsets[n] + n),
                false => (n * len_max, n * (len_max + 1)),
            };
            let mut tokens = vec![0; lengths.len() * len_max];
            for (n, len) in lengths.iter().enumerate() {
                let first = first_rows(n).0;
                for (place, token) in tokens[first..first + len].iter_mut().enumerate() {
                    *token = draft.dist(first + place).draw(&mut Random(&mut rng)).0;
                }
            }
            let layout = match ragged {
                true => Layout::Ragged { offsets: &offsets },
                false => Layout::Padded { len_max, lengths: &lengths },
            };
            let batch = Batch::new(layout, &tokens, Some(draft.rows()), target.rows());
            let mut verdicts = [PathVerdict::NONE; 7];
            verifier.verify(&batch, PathRule::Block, &seeds, &mut verdicts).unwrap();
            for (n, len) in lengths.iter().enumerate() {
                let (first, first_target) = first_rows(n);
                let steps = (first..first + len).map(|row| (Token(tokens[row]), draft.dist(row)));
                let one = Draft::path(vocab_len, steps).unwrap();
                let rows: Vec<Dist> =
                    (first_target..=first_target + len).map(|row| target.dist(row)).collect();
                let block = Block::new(&one, &rows).unwrap();
                let mut chance = Random(Philox::new(seeds[n]));
                let expected = BlockRule.verify(&block, &mut chance).unwrap();
                assert_eq!(verdicts[n].accepted, expected.accepted, "sequence {n}, round {round}");
                assert_eq!(verdicts[n].next, expected.next, "sequence {n}, round {round}");
            }
        }
    }
}

#[test]
fn strides_and_temperatures_of_sequences_are_heeded() {
    // Two sequences of two rows of two logits, with two numbers between the sequences.
    let logits = [0.0, 9.0, 9.0, 0.0, 77.0, 77.0, 9.0, 0.0, 0.0, 9.0];
    let rows = Rows::logits(Values::F32(&logits), 2, 1.0).with_sequence_stride(6);
    let layout = Layout::Padded { len_max: 1, lengths: &[1, 1] };
    let batch = Batch::new(layout, &[1, 1], None, rows).with_temperatures(&[0.0, 0.0]);
    let mut verdicts = [PathVerdict::NONE; 2];
    BatchVerifier::on_one_thread().verify(&batch, PathRule::Block, &[1, 2], &mut verdicts).unwrap();
    assert_eq!((verdicts[0].accepted, verdicts[0].next), (1, Token(0)));
    assert_eq!((verdicts[1].accepted, verdicts[1].next), (0, Token(0)));
    // The same rows, each at a place of its own.
    let places = [0, 2, 6, 8].map(|start| Values::F32(&logits[start..start + 2]));
    let apart = Batch::new(layout, &[1, 1], None, rows.apart(&places)).with_temperatures(&[0.0; 2]);
    let mut others = [PathVerdict::NONE; 2];
    BatchVerifier::on_one_thread().verify(&apart, PathRule::Block, &[1, 2], &mut others).unwrap();
    assert_eq!(others, verdicts);
    // A temperature for one sequence too few is named, as is one that is no temperature.
    let mut verify = |temperatures: &[f32]| {
        let batch = batch.with_temperatures(temperatures);
        let mut verifier = BatchVerifier::new(NonZeroUsize::new(2).unwrap());
        let judged = verifier.verify(&batch, PathRule::Block, &[1, 2], &mut verdicts);
        judged.unwrap_err().to_string()
    };
    assert_eq!(verify(&[1.0]), "sequence 1 is beyond the temperatures that were given");
    assert_eq!(
        verify(&[1.0, f32::NAN]),
        "sequence 1: target row 0: temperature is NaN; expected above zero and finite"
    );
}

#[test]
fn of_several_bad_sequences_the_first_is_named() {
    let mut target = vec![0.5; 2 * 64];
    [7, 20, 41].into_iter().for_each(|sequence| target[2 * sequence] = f32::NAN);
    let offsets = [0; 65];
    let rows = Rows::weights(Values::F32(&target), 2);
    let batch = Batch::new(Layout::Ragged { offsets: &offsets }, &[], None, rows);
    for threads in [1, 2, 3] {
        let mut verifier = BatchVerifier::new(NonZeroUsize::new(threads).unwrap());
        let judged = verifier.verify(&batch, PathRule::Nss, &[1; 64], &mut [PathVerdict::NONE; 64]);
        assert!(judged.unwrap_err().to_string().starts_with("sequence 7: "));
    }
}

#[test]
fn what_is_wrong_is_named_with_its_row_and_entry() {
    let target = [0.5, 0.5, 0.5, 0.5, 0.5, 0.5];
    let draft = [0.5, 0.5, 0.0, 0.5];
    let judge = |tokens: &[u32], draft: &[f32], target: &[f32]| {
        let path = Path::new(
            tokens,
            Some(Rows::weights(Values::F32(draft), 2)),
            Rows::weights(Values::F32(target), 2),
        );
        verify_path(&path, PathRule::Block, 1).unwrap_err().to_string()
    };
    assert_eq!(
        judge(&[0, 0], &draft, &target),
        "drafted token 1 is 0, which has probability zero in draft row 1; without draft rows, \
         tokens are fixed"
    );
    assert_eq!(judge(&[0, 2], &draft, &target), "drafted token 1 is 2, outside a vocabulary of 2");
    assert_eq!(
        judge(&[0, 1], &draft, &target[..5]),
        "target row 2 is missing or cut short; expected 3 rows of 2 numbers"
    );
    assert_eq!(
        judge(&[0, 1], &draft, &[0.5, 0.5, f32::INFINITY, 0.5, 0.5, 0.5]),
        "target row 1: entry of token 0 is infinite"
    );
    assert_eq!(
        judge(&[0, 1], &[0.5, 0.5, 0.0, 0.0], &target),
        "draft row 1: row has no mass: every entry is zero or masked; expected at least one above"
    );
}

/// The lean code is enumerated itself, not only compared.
#[cfg(feature = "check")]
#[test]
fn paths_from_memory_are_lossless() {
    use forerun_verify::check::{Kind, Model, Shape, drafting, examine};

    /// Judges a block by its rows in memory.
    #[derive(Debug)]
    struct FromMemory(PathRule);

    impl Rule for FromMemory {
        fn name(&self) -> &'static str {
            self.0.name()
        }
        fn admits(&self, _: &Draft) -> Result<(), Refusal> {
            Ok(())
        }
        fn decide(&self, block: &Block<'_>, chance: &mut dyn Chance) -> Verdict {
            let vocab_len = block.draft().vocab_len();
            let numbers = |row: &Dist| -> Vec<f32> {
                (0..vocab_len as u32).map(|id| row.prob(Token(id)) as f32).collect()
            };
            let nodes: Vec<_> = block.draft().nodes().collect();
            let mut target = numbers(block.target(Node::ROOT));
            let mut draft = Vec::new();
            for (node, ..) in &nodes {
                draft.extend(numbers(block.draft().drawn_from(*node).unwrap()));
                target.extend(numbers(block.target(*node)));
            }
            let tokens: Vec<u32> = nodes.iter().map(|(_, token, _)| token.0).collect();
            let rows = |values| Rows::weights(Values::F32(values), vocab_len);
            let path = Path::new(&tokens, Some(rows(&draft)), rows(&target));
            let judged = PathVerifier::new().verify_with(&path, self.0, chance).unwrap();
            let end = |n: usize| if n == 0 { Node::ROOT } else { nodes[n - 1].0 };
            Verdict { node: end(judged.accepted), accepted: judged.accepted, next: judged.next }
        }
    }

    /// The model in steps of 2^-16 that add up to one, so that a probability is a single to the bit.
    fn rounded(model: &Model) -> Model {
        let weights = |row: &Dist| {
            let vocab_len = row.vocab_len() as u32;
            let step = |id| (row.prob(Token(id)) * 65_536.0).round();
            let mut steps: Vec<f64> = (0..vocab_len).map(step).collect();
            steps[row.likeliest().0.index()] += 65_536.0 - steps.iter().sum::<f64>();
            Dist::dense(steps.iter().map(|step| (step / 65_536.0) as f32).collect()).unwrap()
        };
        Model::new(model.shape(), |prefix| {
            [model.target(prefix), model.draft(0, prefix), model.draft(1, prefix)].map(weights)
        })
    }

    for rule in [PathRule::Block, PathRule::Token, PathRule::Nss] {
        for (kind, seed) in Kind::ALL.into_iter().flat_map(|kind| (0..4).map(move |s| (kind, s))) {
            for (vocab_len, len) in [(3, 2), (2, 3)] {
                let model = rounded(&Model::random(kind, Shape { vocab_len, len }, seed));
                let finding = examine(&model, &drafting::paths(1), &FromMemory(rule)).unwrap();
                assert!(finding.is_lossless(), "{rule:?} {kind:?} {seed}: {finding:?}");
            }
        }
    }
}
