//! Forgiving near misses at temperature zero: whatever is drafted, forgiven tokens are near the
//! best and few, and every other token is the greedy one.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic")]

use forerun_verify::check::{Drafting, Kind, Model, Shape, drafting, outcomes};
use forerun_verify::*;

/// The best token after a prefix, and how far below it another is.
fn gap(model: &Model, prefix: &[Token], token: Token) -> f64 {
    let (_, best) = model.target(prefix).likeliest();
    best.ln() - model.target(prefix).prob(token).ln()
}

/// The verdict at temperature zero on a draft for the model, and what it spent.
fn judged(model: &Model, draft: &Draft, rule: &dyn Rule, balance: f64) -> (Verdict, Spent) {
    let vocab_len = model.shape().vocab_len;
    let nodes = std::iter::once(Node::ROOT).chain(draft.nodes().map(|(node, ..)| node));
    let best = |node| Dist::point(vocab_len, model.target(&draft.path_to(node)).likeliest().0);
    let rows: Vec<Dist> = nodes.map(|node| best(node).unwrap()).collect();
    let gaps: Vec<f64> =
        draft.nodes().map(|(_, token, parent)| gap(model, &draft.path_to(parent), token)).collect();
    let block = Block::new(draft, &rows).unwrap().with_gaps(&gaps).unwrap().holding(balance);
    let verdict = rule.verify(&block, &mut Random(Philox::new(0))).unwrap();
    (verdict, rule.spent(&block, &verdict))
}

/// Every draft that may be made of a model, once.
fn drafts(model: &Model, drafting: &dyn Drafting) -> Vec<Draft> {
    let mut all: Vec<Draft> = Vec::new();
    outcomes(|chance| drafting.draft(model, chance), |_, draft| all.push(draft));
    all
}

/// What a text has used so far.
#[derive(Debug, Clone, Copy)]
struct Text {
    len: usize,
    forgiven: usize,
    balance: f64,
}

/// Goes through every text that rounds of these drafts can lead to, and returns how many tokens
/// were forgiven in all of them.
fn follow(
    model: &Model,
    drafts: &[Draft],
    rule: &LossyNearRule,
    (text, rounds): (Text, usize),
) -> usize {
    let mut forgiven_in_all = 0;
    for draft in drafts {
        let (verdict, spent) = judged(model, draft, rule, text.balance);
        let path = draft.path_to(verdict.node);
        let mut text = text;
        for (n, spend) in spent.tokens.iter().enumerate() {
            let token = path.get(n).copied().unwrap_or(verdict.next);
            let forgiven = token != model.target(&path[..n]).likeliest().0;
            assert_eq!(forgiven, spend.distance == 1.0, "the books say what happened");
            if forgiven {
                let gap = gap(model, &path[..n], token);
                assert!(n < path.len() && gap <= rule.near.gap(), "forgiven at {gap} nats");
                assert!((spend.factor.ln() - gap).abs() < 1e-9);
            }
            text.len += 1;
            text.forgiven += usize::from(forgiven);
            text.balance = spend.balance;
            let most = rule.near.share() * text.len as f64 + 1e-9;
            assert!(text.forgiven as f64 <= most, "{text:?} with a share of {}", rule.near.share());
        }
        forgiven_in_all += text.forgiven;
        if rounds > 1 {
            forgiven_in_all += follow(model, drafts, rule, (text, rounds - 1));
        }
    }
    forgiven_in_all
}

#[test]
fn few_tokens_are_forgiven_and_none_that_is_far_from_the_best() {
    let draftings: [&dyn Drafting; 3] =
        [&drafting::paths(1), &drafting::guesses(), &drafting::without_replacement(2)];
    let mut forgiven = 0;
    for (kind, drafting) in Kind::ALL.into_iter().flat_map(|k| draftings.map(move |d| (k, d))) {
        let model = Model::random(kind, Shape { vocab_len: 3, len: 2 }, 7);
        let drafts = drafts(&model, drafting);
        let rounds = if drafts.len() < 15 { 3 } else { 2 };
        for (gap, share) in [(0.5, 0.25), (2.0, 0.1), (2.0, 1.0), (0.0, 1.0), (2.0, 0.0)] {
            let rule = LossyNearRule { near: Near::new(gap, share).unwrap() };
            let new = Text { len: 0, forgiven: 0, balance: share };
            forgiven += follow(&model, &drafts, &rule, (new, rounds));
        }
    }
    println!("{forgiven} tokens forgiven");
    assert!(forgiven > 1_000, "only {forgiven} were");
}

/// Nothing to spend, nothing known of gaps, or gaps too wide: the greedy text.
#[test]
fn without_forgiveness_the_output_is_greedy() {
    for kind in Kind::ALL {
        let model = Model::random(kind, Shape { vocab_len: 3, len: 2 }, 3);
        for draft in drafts(&model, &drafting::paths(2)) {
            let greedy = judged(&model, &draft, &NssRule, 0.0).0;
            let near = |gap, share| LossyNearRule { near: Near::new(gap, share).unwrap() };
            assert_eq!(judged(&model, &draft, &near(5.0, 0.0), 0.0).0, greedy);
            assert_eq!(judged(&model, &draft, &near(5.0, 1.0), -1.0).0, greedy);
            let node = greedy.node;
            let rows: Vec<Dist> = std::iter::once(Node::ROOT)
                .chain(draft.nodes().map(|(node, ..)| node))
                .map(|node| model.target(&draft.path_to(node)).likeliest().0)
                .map(|best| Dist::point(3, best).unwrap())
                .collect();
            let block = Block::new(&draft, &rows).unwrap().holding(4.0);
            let blind = near(5.0, 1.0).verify(&block, &mut Random(Philox::new(0))).unwrap();
            assert_eq!((blind.node, blind.next), (node, greedy.next), "no gaps are known");
        }
    }
}

/// Of several children that are near, the nearest is forgiven, and the best is never passed over.
#[test]
fn the_nearest_child_is_forgiven() {
    let mut tree = Draft::start(Scheme::Independent, 4);
    let [far, near] = [Token(0), Token(1)].map(|token| tree.fixed(Node::ROOT, token).unwrap());
    let draft = tree.finish().unwrap();
    let rows = [(); 3].map(|()| Dist::point(4, Token(3)).unwrap());
    let rule = LossyNearRule { near: Near::new(1.0, 1.0).unwrap() };
    let verdict = |gaps: [f64; 2]| {
        let block = Block::new(&draft, &rows).unwrap().with_gaps(&gaps).unwrap();
        rule.verify(&block, &mut Random(Philox::new(0))).unwrap()
    };
    assert_eq!((verdict([0.9, 0.4]).node, verdict([0.2, 0.4]).node), (near, far));
    assert_eq!(verdict([1.5, f64::INFINITY]).accepted, 0);
    let rows = [Token(0), Token(3), Token(3)].map(|best| Dist::point(4, best).unwrap());
    let block = Block::new(&draft, &rows).unwrap();
    let verdict = rule.verify(&block.with_gaps(&[0.0, 0.1]).unwrap(), &mut Random(Philox::new(0)));
    assert_eq!(verdict.unwrap().node, far);
}
