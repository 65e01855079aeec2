//! What a step of training takes: four blocks of SmolLM2's width, 256 tokens, a row for each.
//! `cargo run --release --example step -- [VOCAB] [STEPS]`.
#![allow(clippy::print_stdout, reason = "it is there to print")]

use std::time::Instant;

use forerun_distill::loss::{Divergence, Measures, Row, compare};
use forerun_distill::model::{Activation, Batch, Pairs, Shape, Student};
use forerun_distill::optimizer::Adam;

fn main() -> candle_core::Result<()> {
    let mut given = std::env::args().skip(1).map(|it| it.parse().expect("a number"));
    let (vocab, steps) = (given.next().unwrap_or(8192), given.next().unwrap_or(6));
    let shape = Shape {
        vocab,
        width: 576,
        blocks: 4,
        feed_forward: 1536,
        heads: 9,
        key_heads: 3,
        head: 64,
        biased: false,
        normed_heads: false,
        normed_results: false,
        activation: Activation::Silu,
        embedding_scale: 1.0,
        pairs: Pairs::Neighbours,
        base: 10_000.0,
        epsilon: 1e-5,
        window: None,
        trained_vocab: None,
    };
    let len = 256;
    let numbers = |count: usize, spread: f32| -> Vec<f32> {
        (0..count).map(|at| spread * (at as f32 * 0.618).sin()).collect()
    };
    let tensors = shape.tensors();
    let weights = tensors.iter().map(|(name, sizes)| match name.contains("norm") {
        true => vec![1.0; sizes[0]],
        false => numbers(sizes.iter().product(), 0.05),
    });
    let weights: Vec<Vec<f32>> = weights.collect();
    let matrices: Vec<bool> = tensors.iter().map(|(_, sizes)| sizes.len() > 1).collect();
    let embedding = numbers(shape.vocab * shape.width, 0.05);
    let mut student = Student::new(shape, (embedding, None), weights, len)?;
    let batch =
        Batch { tokens: (0..).take(len).collect(), lens: vec![len], asked: (0..len).collect() };
    let (tokens, probs): (Vec<u32>, Vec<f32>) = ((0..64).collect(), vec![0.015; 64]);
    let ask = |_: usize, _: usize, logits: &mut [f32]| {
        let row = Row { tokens: &tokens, probs: &probs };
        compare(Divergence::ForwardKl, row, logits, 1.0, 1e-3)
    };
    let mut adam = Adam::new(&student.weights);
    let mut gradients: Vec<Vec<f32>> =
        student.weights.iter().map(|it| vec![0.0; it.len()]).collect();
    for step in 0..steps as u64 {
        let start = Instant::now();
        gradients.iter_mut().for_each(|it| it.fill(0.0));
        let found = student.learn(std::slice::from_ref(&batch), &ask, &mut gradients)?.concat();
        let length = adam.step(&mut student.weights, &gradients, &matrices, (step, 1e-4));
        let loss = Measures::mean(&found).loss;
        println!("a step {:.2?}; loss {loss:.5}, gradient {length:.6}", start.elapsed());
    }
    Ok(())
}
