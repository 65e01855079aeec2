use super::*;
use crate::loss::{Divergence, Row, compare};

/// Numbers that are spread about zero and the same each time.
fn numbers(count: usize, seed: f64, spread: f64) -> Vec<f64> {
    (0..count).map(|at| spread * (12.9898 * (at as f64 + 1.0) + 78.233 * seed).sin()).collect()
}

/// As in files of llama.
fn llama() -> Shape {
    Shape {
        vocab: 11,
        width: 8,
        blocks: 2,
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
    }
}

fn qwen2() -> Shape {
    Shape { biased: true, pairs: Pairs::Halves, ..llama() }
}

fn qwen3() -> Shape {
    Shape { normed_heads: true, pairs: Pairs::Halves, ..llama() }
}

fn gemma3() -> Shape {
    let window = Window { len: 2, base: 10.0, blocks: vec![true, false] };
    Shape {
        normed_results: true,
        activation: Activation::Gelu,
        embedding_scale: 1.7,
        window: Some(window),
        ..qwen3()
    }
}

fn student(shape: Shape, tied: bool) -> Student<f64> {
    let vocab = shape.vocab * shape.width;
    let tensors = shape.tensors();
    let inner = tensors.iter().take(shape.inner_tensors());
    let weights = inner.enumerate().map(|(at, (name, sizes))| {
        let centre = if name.contains("norm") { 1.0 } else { 0.0 };
        let count = sizes.iter().product();
        numbers(count, at as f64 + 1.0, 0.5).into_iter().map(|it| centre + it).collect()
    });
    let output = (!tied).then(|| numbers(vocab, 0.7, 1.0));
    let weights = weights.collect();
    Student::new(shape, (numbers(vocab, 0.3, 1.0), output), weights, 16).unwrap()
}

/// Two sequences of different lengths; the first tokens of each are a prompt.
fn batch() -> Batch {
    Batch {
        tokens: vec![3, 1, 4, 1, 5, 9, 2, 6, 5],
        lens: vec![5, 4],
        asked: vec![1, 2, 3, 4, 6, 7, 8],
    }
}

/// The same sequences, a batch each.
fn parts() -> [Batch; 2] {
    let first = Batch { tokens: vec![3, 1, 4, 1, 5], lens: vec![5], asked: vec![1, 2, 3, 4] };
    let second = Batch { tokens: vec![9, 2, 6, 5], lens: vec![4], asked: vec![1, 2, 3] };
    [first, second]
}

fn ask(divergence: Divergence) -> impl Fn(usize, &mut [f64]) -> Measures + Sync {
    move |at, logits| {
        let first = u32::try_from(at % 5).unwrap();
        let row = Row { tokens: &[first, first + 5], probs: &[0.6, 0.25] };
        compare(divergence, row, logits, 1.0, 1.0)
    }
}

fn zeros(student: &Student<f64>) -> Vec<Vec<f64>> {
    student.weights.iter().map(|it| vec![0.0; it.len()]).collect()
}

#[test]
fn gradients_of_all_weights_are_those_of_differences() {
    let tied = Shape { trained_vocab: Some(TrainedVocab::Tied), ..gemma3() };
    let separate = Shape { trained_vocab: Some(TrainedVocab::Separate), ..llama() };
    for (shape, tied) in [
        (llama(), true),
        (qwen2(), false),
        (qwen3(), true),
        (gemma3(), false),
        (tied, true),
        (separate, false),
    ] {
        let mut student = student(shape, tied);
        let compare = ask(Divergence::Jsd);
        let mut gradients = zeros(&student);
        // In two parts: their slopes are added.
        let ask = |part: usize, at: usize, logits: &mut [f64]| compare(4 * part + at, logits);
        student.learn(&parts(), &ask, &mut gradients).unwrap();
        let names = student.shape.tensors();
        let loss = |student: &Student<f64>| {
            student.measure(&batch(), &compare).unwrap().iter().map(|it| it.loss).sum::<f64>()
        };
        for tensor in 0..student.weights.len() {
            for (at, &found) in gradients[tensor].iter().enumerate() {
                let was = student.weights[tensor][at];
                let mut moved = |by: f64| {
                    student.weights[tensor][at] = was + by;
                    loss(&student)
                };
                let expected = (moved(1e-5) - moved(-1e-5)) / 2e-5;
                student.weights[tensor][at] = was;
                let gap = (found - expected).abs();
                assert!(gap < 1e-7, "{} at {at}: {found}, not {expected}", names[tensor].0);
            }
            let some = gradients[tensor].iter().any(|it| it.abs() > 1e-9);
            assert!(some, "{} has no gradient", names[tensor].0);
        }
    }
}

fn rows(student: &Student<f64>, batch: &Batch) -> Vec<Vec<f64>> {
    let rows = std::sync::Mutex::new(vec![Vec::new(); batch.asked.len()]);
    let compare = |at: usize, logits: &mut [f64]| {
        rows.lock().unwrap()[at] = logits.to_vec();
        Measures::default()
    };
    student.measure(batch, &compare).unwrap();
    rows.into_inner().unwrap()
}

fn gap(some: &[Vec<f64>], others: &[Vec<f64>]) -> f64 {
    assert_eq!(some.len(), others.len());
    let pairs = some.iter().flatten().zip(others.iter().flatten());
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

#[test]
fn a_sequence_s_rows_do_not_depend_on_the_others_of_its_batch() {
    let student = student(llama(), true);
    let both = rows(&student, &batch());
    let [_, alone] = parts();
    assert!(gap(&both[4..], &rows(&student, &alone)) < 1e-12);
    // And no row on tokens that come after it.
    let short = Batch { tokens: vec![3, 1, 4], lens: vec![3], asked: vec![1, 2] };
    assert!(gap(&both[..2], &rows(&student, &short)) < 1e-12);
}

#[test]
fn blocks_with_a_window_see_no_further() {
    let all = Window { len: 2, base: 10.0, blocks: vec![true, true] };
    let student = student(Shape { window: Some(all), ..gemma3() }, false);
    let last = |tokens: Vec<u32>| {
        let lens = vec![tokens.len()];
        let asked = vec![tokens.len() - 1];
        rows(&student, &Batch { tokens, lens, asked })
    };
    // Two blocks of two tokens each reach two tokens back.
    assert!(gap(&last(vec![3, 1, 4, 1, 5]), &last(vec![7, 8, 4, 1, 5])) < 1e-12);
    assert!(gap(&last(vec![3, 1, 4, 1, 5]), &last(vec![3, 1, 9, 1, 5])) > 1e-3);
}
