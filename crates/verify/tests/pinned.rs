//! Seeded output is public behaviour: the same seed and rows give these very verdicts, on every
//! platform and in every release. A change here is a breaking change.

#![expect(clippy::unwrap_used, reason = "a test")]

use forerun_verify::rand_core::Rng;
use forerun_verify::*;

/// Vocabularies on both sides of the limits between forms: kept, counted, one chunk and several.
const VOCABS: [usize; 3] = [7, 300, 1_500];
const LEN: usize = 3;

/// Logits from integers alone, so that they are the same everywhere.
fn logits(vocab_len: usize, seed: u64) -> Vec<f32> {
    let mut rng = Philox::new(seed);
    (0..vocab_len).map(|_| (rng.next_u32() % 4_096) as f32 / 512.0).collect()
}

/// A draft of this scheme with two paths, or one, and its target rows.
fn block(scheme: Scheme, (vocab_len, sparse): (usize, bool), paths: usize) -> (Draft, Vec<Dist>) {
    let row = |seed: u64, noise: u64| {
        let mut logits_here = logits(vocab_len, seed);
        for (logit, noise) in logits_here.iter_mut().zip(logits(vocab_len, noise)) {
            *logit += noise / 8.0;
        }
        if sparse { Dist::top_k(&logits_here, 0.8, 5) } else { Dist::softmax(&logits_here, 0.8) }
            .unwrap()
    };
    let mut chance = Random(Philox::new(99));
    let mut tree = Draft::start(scheme, vocab_len);
    let mut target = vec![row(0, 1_000)];
    let root = tree.row(row(0, 2_000)).unwrap();
    let mut firsts: Vec<Token> = Vec::new();
    while firsts.len() < paths {
        let token = row(0, 2_000).draw(&mut chance);
        if !firsts.contains(&token) {
            firsts.push(token);
        }
    }
    for (path, first) in (1u64..).zip(firsts) {
        let mut node = tree.sampled(Node::ROOT, root, first).unwrap();
        target.push(row(10 * path, 1_001));
        for depth in 1..LEN as u64 {
            let draft = row(10 * path + depth - 1, 2_001);
            let token = draft.draw(&mut chance);
            let id = tree.row(draft).unwrap();
            node = tree.sampled(node, id, token).unwrap();
            target.push(row(10 * path + depth, 1_001));
        }
    }
    (tree.finish().unwrap(), target)
}

/// Verdicts of a rule over seeds, as `accepted:next`.
fn verdicts(rule: &dyn Rule, scheme: Scheme, paths: usize) -> String {
    let mut all = Vec::new();
    for vocab in VOCABS {
        for sparse in [false, true] {
            let (draft, target) = block(scheme, (vocab, sparse), paths);
            let block = Block::new(&draft, &target).unwrap().at(100);
            for seed in 0..4 {
                let verdict = rule.verify(&block, &mut Random(Philox::new(seed))).unwrap();
                all.push(format!("{}:{}", verdict.accepted, verdict.next.0));
            }
        }
    }
    all.join(" ")
}

#[test]
fn seeded_verdicts_never_change() {
    let coupled = CoupledRule { noise: Noise::new(5) };
    let rules: [(&dyn Rule, Scheme, usize, &str); 11] = [
        (&TokenRule, Scheme::Paths, 1, TOKEN),
        (&BlockRule, Scheme::Paths, 1, BLOCK),
        (&NssRule, Scheme::Paths, 2, NSS),
        (&SpecInferRule, Scheme::Paths, 2, SPECINFER),
        (&SpecTrRule, Scheme::Paths, 2, SPECTR),
        (&RsdRule, Scheme::WithoutReplacement, 2, RSD),
        (&TraversalRule, Scheme::WithoutReplacement, 2, TRAVERSAL),
        (&GbvRule { guarded: false }, Scheme::Paths, 2, GBV_PLAIN),
        (&GbvRule { guarded: true }, Scheme::Paths, 2, GBV),
        (&PooledRule, Scheme::Independent, 2, POOLED),
        (&coupled, Scheme::Paths, 2, COUPLED),
    ];
    let mut changed = String::new();
    for (rule, scheme, paths, pinned) in rules {
        let verdicts = verdicts(rule, scheme, paths);
        if verdicts != pinned {
            changed += &format!("\n{}: {verdicts}", rule.name());
        }
    }
    assert!(changed.is_empty(), "seeded verdicts have changed, to:{changed}");
}

/// Noise is what other engines must reproduce: the numbers themselves.
#[test]
fn noise_never_changes() {
    let noise = Noise::new(0x0123_4567_89AB_CDEF);
    let seen: Vec<u64> = [(0, 0), (0, 1), (1, 0), (1 << 33, 262_143)]
        .map(|(position, token)| noise.at(position, Token(token)).to_bits())
        .to_vec();
    assert_eq!(seen, NOISE, "noise has changed, to {seen:#x?}");
}

const NOISE: [u64; 4] =
    [0x3fef_96fb_460b_1f3e, 0x3fe8_a67c_07de_ba9a, 0x400b_dc68_cf08_4cde, 0x4002_ab62_7706_f3fb];

const TOKEN: &str = "\
    3:4 3:6 0:3 0:3 3:4 3:6 0:3 0:3 \
    1:42 3:275 3:28 1:235 0:249 0:28 0:164 0:249 \
    3:892 3:1394 0:506 0:878 0:614 0:494 0:506 0:614";
const BLOCK: &str = "\
    3:4 3:0 0:3 0:3 3:4 3:0 0:3 0:3 \
    3:163 3:4 1:20 1:264 0:249 0:28 0:164 0:249 \
    3:938 3:63 0:164 0:1224 0:614 0:494 0:506 0:614";
const NSS: &str = "\
    3:5 1:0 3:0 1:6 3:5 1:0 3:0 1:6 \
    0:24 0:28 0:179 0:173 0:28 0:28 0:249 0:176 \
    0:108 0:176 0:896 0:814 0:494 0:494 0:570 0:570";
const SPECINFER: &str = "\
    3:4 3:6 3:5 3:3 3:4 3:6 3:5 3:3 \
    3:163 2:275 3:28 2:263 0:164 0:249 0:176 0:249 \
    3:892 3:1394 0:614 0:1003 0:506 0:614 0:570 0:614";
const SPECTR: &str = "\
    3:4 3:6 3:5 3:3 3:4 3:6 3:5 3:3 \
    3:163 2:275 3:28 2:263 0:164 0:249 0:176 0:249 \
    3:892 3:1394 3:740 2:382 0:506 0:614 0:570 0:614";
const RSD: &str = "\
    3:4 3:6 3:5 3:3 3:4 3:6 3:5 3:3 \
    3:163 2:275 3:28 2:263 0:164 0:249 0:176 0:249 \
    3:892 3:1394 0:614 0:1003 0:506 0:614 0:570 0:614";
const TRAVERSAL: &str = "\
    3:4 3:0 3:0 3:4 3:4 3:0 3:0 3:4 \
    3:163 3:4 2:136 2:211 0:28 0:28 0:249 0:176 \
    3:938 3:63 3:543 3:948 0:494 0:494 0:570 0:570";
const GBV_PLAIN: &str = "\
    3:5 3:3 3:5 3:5 3:5 3:3 3:5 3:5 \
    3:171 3:6 1:21 1:234 0:249 0:28 0:164 0:249 \
    3:908 3:47 0:143 0:1191 0:614 0:494 0:506 0:614";
const GBV: &str = "\
    3:5 3:3 3:5 3:5 3:5 3:3 3:5 3:5 \
    3:171 3:6 1:21 1:234 0:249 0:28 0:164 0:249 \
    3:908 3:47 0:143 0:1191 0:614 0:494 0:506 0:614";
const POOLED: &str = "\
    3:5 3:3 3:5 3:5 3:5 3:3 3:5 3:5 \
    3:81 3:171 3:145 3:214 0:28 0:28 0:249 0:176 \
    3:466 3:969 3:727 3:1080 0:494 0:494 0:570 0:570";
const COUPLED: &str = "\
    1:0 1:0 1:0 1:0 1:0 1:0 1:0 1:0 \
    0:112 0:112 0:112 0:112 0:249 0:249 0:249 0:249 \
    0:802 0:802 0:802 0:802 0:570 0:570 0:570 0:570";
