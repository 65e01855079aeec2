//! Bugs that fuzzing found, one test each.

use forerun_verify::*;

#[test]
fn zeros_of_either_sign_are_equal_logits() {
    assert_eq!(Dist::argmax(&[-0.0, 0.0]).unwrap().prob(Token(0)), 1.0);
}

/// The law of a token nine draws of which are the largest underflows; over a target of zero that
/// was a ratio of nothing, and passed.
#[test]
fn gbv_accepts_no_impossible_token_where_its_law_underflows() {
    let mut tree = Draft::start(Scheme::Paths, 2);
    let row = tree.row(Dist::dense(vec![1.0, 1e-38]).unwrap()).unwrap();
    for _ in 0..9 {
        tree.sampled(Node::ROOT, row, Token(1)).unwrap();
    }
    let draft = tree.finish().unwrap();
    let rows = [(); 2].map(|()| Dist::dense(vec![1.0, 0.0]).unwrap());
    let block = Block::new(&draft, &rows).unwrap();
    let rule = GbvRule { guarded: false };
    let verdict = rule.verify(&block, &mut Random(Philox::new(1))).unwrap();
    assert_eq!((verdict.accepted, verdict.next), (0, Token(0)));
}

/// Where weights are huge, what is to be beaten is no normal number.
#[test]
fn huge_weights_choose_alike_dense_and_sparse() {
    let len = 10_000;
    let dense = Dist::dense(vec![f32::MAX; len as usize]).unwrap();
    let sparse = Dist::sparse(len as usize, (0..len).map(|t| (Token(t), f32::MAX))).unwrap();
    for seed in 740..750 {
        let noise = Noise::new(seed);
        assert_eq!(noise.choose(0, &dense), noise.choose(0, &sparse), "seed {seed}");
    }
}

#[test]
fn traversal_of_the_deepest_draft_fits_a_small_stack() {
    let judge = || {
        let row = || Dist::dense(vec![1.0, 1.0]).unwrap();
        let draft = Draft::path(2, (0..NODES_MAX).map(|_| (Token(0), row()))).unwrap();
        let rows: Vec<Dist> = (0..=NODES_MAX).map(|_| row()).collect();
        let block = Block::new(&draft, &rows).unwrap();
        TraversalRule.verify(&block, &mut Random(Philox::new(1))).unwrap().accepted
    };
    let thread = std::thread::Builder::new().stack_size(1 << 20).spawn(judge).unwrap();
    assert_eq!(thread.join().unwrap(), NODES_MAX);
}

#[test]
fn counts_may_be_huge_or_zero() {
    assert_eq!(Dist::top_k(&[1.0, 1.0], 1.0, usize::MAX).unwrap().prob(Token(1)), 0.5);
    let row = Dist::dense(vec![1.0; 100]).unwrap();
    assert!(Noise::new(1).choose_several(0, &row, 0).is_empty());
    assert_eq!(Noise::new(1).choose_several(0, &row, usize::MAX).len(), 100);
}
