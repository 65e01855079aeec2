use super::*;
use crate::loss::{Divergence, Row, compare};
use crate::model::{Activation, Pairs, Shape};

/// Numbers that are spread about zero and the same each time.
fn numbers(count: usize, seed: f64, spread: f64) -> Vec<f64> {
    (0..count).map(|at| spread * (12.9898 * (at as f64 + 1.0) + 78.233 * seed).sin()).collect()
}

fn head() -> DraftHead<f64> {
    let block = Shape {
        vocab: 7,
        width: 8,
        blocks: 1,
        feed_forward: 10,
        heads: 4,
        key_heads: 2,
        head: 4,
        biased: false,
        normed_heads: false,
        normed_results: false,
        activation: Activation::Silu,
        embedding_scale: 1.0,
        pairs: Pairs::Neighbours,
        base: 100.0,
        epsilon: 1e-5,
        window: None,
        trained_vocab: None,
    };
    let shape = HeadShape { block, target_vocab: 11, layers: [1, 2, 3] };
    let tensors = shape.tensors();
    let weights = tensors.iter().enumerate().map(|(at, (name, sizes))| {
        let centre = if name.contains("norm") { 1.0 } else { 0.0 };
        let count = sizes.iter().product();
        numbers(count, at as f64 + 1.0, 0.5).into_iter().map(|it| centre + it).collect()
    });
    let weights = weights.collect();
    DraftHead::new(shape, numbers(11 * 8, 0.3, 1.0), weights, 16).unwrap()
}

/// Two sequences of different lengths, and drafts of three tokens.
fn entries() -> Entries<f64> {
    Entries {
        tokens: vec![3, 1, 4, 1, 5, 9, 2, 6, 5],
        features: numbers(9 * 24, 0.9, 1.0),
        lens: vec![5, 4],
        asked: vec![vec![1, 2, 3, 4, 6, 7, 8], vec![2, 3, 4, 7, 8], vec![3, 4, 8]],
    }
}

#[test]
fn gradients_of_all_weights_are_those_of_differences() {
    let mut head = head();
    let ask = |at: usize, logits: &mut [f64]| {
        let first = u32::try_from(at % 4).unwrap();
        let row = Row { tokens: &[first, first + 3], probs: &[0.6, 0.25] };
        compare(Divergence::Jsd, row, logits, 1.0, 1.0)
    };
    let mut gradients: Vec<Vec<f64>> = head.weights.iter().map(|it| vec![0.0; it.len()]).collect();
    let found = head
        .learn(&[&entries()], &|_, at, logits| ask(at, logits), &mut gradients)
        .unwrap()
        .concat();
    assert_eq!(found.len(), 7 + 5 + 3);
    let names = head.shape.tensors();
    let loss = |head: &DraftHead<f64>| {
        head.measure(&entries(), &ask).unwrap().iter().map(|it| it.loss).sum::<f64>()
    };
    for tensor in 0..head.weights.len() {
        for (at, &found) in gradients[tensor].iter().enumerate() {
            let was = head.weights[tensor][at];
            let mut moved = |by: f64| {
                head.weights[tensor][at] = was + by;
                loss(&head)
            };
            let expected = (moved(1e-5) - moved(-1e-5)) / 2e-5;
            head.weights[tensor][at] = was;
            let gap = (found - expected).abs();
            assert!(gap < 1e-7, "{} at {at}: {found}, not {expected}", names[tensor].0);
        }
        let some = gradients[tensor].iter().any(|it| it.abs() > 1e-9);
        assert!(some, "{} has no gradient", names[tensor].0);
    }
}

fn rows(head: &DraftHead<f64>, entries: &Entries<f64>) -> Vec<Vec<f64>> {
    let count = entries.asked.iter().map(Vec::len).sum();
    let rows = std::sync::Mutex::new(vec![Vec::new(); count]);
    let note = |at: usize, logits: &mut [f64]| {
        rows.lock().unwrap()[at] = logits.to_vec();
        Measures::default()
    };
    head.measure(entries, &note).unwrap();
    rows.into_inner().unwrap()
}

fn gap(some: &[f64], others: &[f64]) -> f64 {
    some.iter().zip(others).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

#[test]
fn a_text_s_rows_depend_on_no_other_and_a_draft_s_on_no_state_of_the_target_after_it() {
    let (head, both) = (head(), entries());
    let rows_of_both = rows(&head, &both);
    let second = Entries {
        tokens: both.tokens[5..].to_vec(),
        features: both.features[5 * 24..].to_vec(),
        lens: vec![4],
        asked: vec![vec![1, 2, 3], vec![2, 3], vec![3]],
    };
    let mut alone = rows(&head, &second);
    for (at, row) in [4, 5, 6, 10, 11, 14].into_iter().zip(&alone) {
        assert!(gap(&rows_of_both[at], row) < 1e-12, "row {at}");
    }
    // The last row is for the third token of a draft: at its entry and the one before, the head has its own
    // states alone.
    let mut changed = second.clone();
    changed.features[2 * 24..].iter_mut().for_each(|it| *it += 1.0);
    assert!(gap(&rows(&head, &changed)[5], &alone.remove(5)) < 1e-12);
    assert!(gap(&rows(&head, &changed)[2], &alone[2]) > 1e-3);
    assert!(gap(&rows(&head, &changed)[3], &alone[3]) < 1e-12);
    assert!(gap(&rows(&head, &changed)[4], &alone[4]) > 1e-3);
}
