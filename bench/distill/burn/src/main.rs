//! What a step of training takes by burn: the same step as in distill/examples/step.rs, with the same numbers, so that loss and
//! gradient can be compared. `cargo run --release -- flex|wgpu [VOCAB] [STEPS]`.

use std::env;
use std::time::Instant;

use burn::tensor::activation::{silu, softmax};
use burn::tensor::{Bool, Device, DeviceKind, Tensor, TensorData};

const WIDTH: usize = 576;
const BLOCKS: usize = 4;
const FEED_FORWARD: usize = 1536;
const HEADS: usize = 9;
const KEY_HEADS: usize = 3;
const HEAD: usize = 64;
const TOKENS: usize = 256;
const LISTED: usize = 64;
const SHARE: f64 = 0.015;
const WEIGHT: f64 = 1e-3;
const RATE: f64 = 1e-4;

fn numbers(count: usize, spread: f32) -> Vec<f32> {
    (0..count).map(|at| spread * (at as f32 * 0.618).sin()).collect()
}

fn matrix(rows: usize, columns: usize, device: &Device) -> Tensor<2> {
    Tensor::from_data(TensorData::new(numbers(rows * columns, 0.05), [rows, columns]), device)
}

fn ones(device: &Device) -> Tensor<2> {
    Tensor::from_data(TensorData::new(vec![1.0_f32; WIDTH], [1, WIDTH]), device)
}

/// Norm, query, key, value, result, norm, gate, up, down.
fn block(device: &Device) -> Vec<Tensor<2>> {
    let keys = KEY_HEADS * HEAD;
    vec![
        ones(device),
        matrix(WIDTH, WIDTH, device),
        matrix(keys, WIDTH, device),
        matrix(keys, WIDTH, device),
        matrix(WIDTH, WIDTH, device),
        ones(device),
        matrix(FEED_FORWARD, WIDTH, device),
        matrix(FEED_FORWARD, WIDTH, device),
        matrix(WIDTH, FEED_FORWARD, device),
    ]
}

fn norm(rows: Tensor<2>, weight: &Tensor<2>) -> Tensor<2> {
    let scale = (rows.clone().square().mean_dim(1) + 1e-5).sqrt();
    rows / scale * weight.clone()
}

fn linear(rows: &Tensor<2>, weight: &Tensor<2>) -> Tensor<2> {
    rows.clone().matmul(weight.clone().swap_dims(0, 1))
}

/// Turns neighbouring numbers of each head.
fn turn(heads: Tensor<3>, [cosines, sines]: &[Tensor<3>; 2]) -> Tensor<3> {
    let [tokens, count, len] = heads.dims();
    let pairs = heads.reshape([tokens, count, len / 2, 2]);
    let one = pairs.clone().slice([0..tokens, 0..count, 0..len / 2, 0..1]).reshape([
        tokens,
        count,
        len / 2,
    ]);
    let two =
        pairs.slice([0..tokens, 0..count, 0..len / 2, 1..2]).reshape([tokens, count, len / 2]);
    let first = one.clone() * cosines.clone() - two.clone() * sines.clone();
    let second = one * sines.clone() + two * cosines.clone();
    Tensor::<3>::stack::<4>(vec![first, second], 3).reshape([tokens, count, len])
}

fn shared(of: Tensor<3>) -> Tensor<3> {
    let sizes = [KEY_HEADS, HEADS / KEY_HEADS, TOKENS, HEAD];
    of.swap_dims(0, 1)
        .reshape([KEY_HEADS, 1, TOKENS, HEAD])
        .expand(sizes)
        .reshape([HEADS, TOKENS, HEAD])
}

fn loss(
    embedded: &Tensor<2>,
    weights: &[Tensor<2>],
    output: &Tensor<2>,
    angles: &[Tensor<3>; 2],
) -> Tensor<1> {
    let device = embedded.device();
    let mask: Tensor<3, Bool> = Tensor::<2, Bool>::tril_mask([TOKENS, TOKENS], 0, &device)
        .reshape([1, TOKENS, TOKENS])
        .expand([HEADS, TOKENS, TOKENS]);
    let (last, blocks) = weights.split_last().expect("the last norm");
    let mut stream = embedded.clone();
    for block in blocks.chunks(9) {
        let normed = norm(stream.clone(), &block[0]);
        let queries = turn(linear(&normed, &block[1]).reshape([TOKENS, HEADS, HEAD]), angles)
            * (HEAD as f64).powf(-0.5);
        let keys = turn(linear(&normed, &block[2]).reshape([TOKENS, KEY_HEADS, HEAD]), angles);
        let values = linear(&normed, &block[3]).reshape([TOKENS, KEY_HEADS, HEAD]);
        let scores = queries.swap_dims(0, 1).matmul(shared(keys).swap_dims(1, 2));
        let shares = softmax(scores.mask_fill(mask.clone(), f32::NEG_INFINITY), 2);
        let mixed = shares.matmul(shared(values)).swap_dims(0, 1).reshape([TOKENS, WIDTH]);
        stream = stream + linear(&mixed, &block[4]);
        let normed = norm(stream.clone(), &block[5]);
        let gated = silu(linear(&normed, &block[6])) * linear(&normed, &block[7]);
        stream = stream + linear(&gated, &block[8]);
    }
    let shares = softmax(linear(&norm(stream, last), output), 1);
    let listed = shares.slice([0..TOKENS, 0..LISTED]);
    let rest = 1.0 - LISTED as f64 * SHARE;
    let others = listed.clone().sum_dim(1).neg() + 1.0;
    // Kullback-Leibler from the target, which is the same at each token.
    let constant = LISTED as f64 * SHARE * SHARE.ln() + rest * rest.ln();
    let rows = listed.log().sum_dim(1) * -SHARE - others.log() * rest + constant;
    rows.sum()
}

fn main() {
    let mut given = env::args().skip(1);
    let device = match given.next().as_deref() {
        Some("wgpu") => Device::wgpu(DeviceKind::Cpu),
        _ => Device::flex(),
    };
    let number =
        |text: Option<String>, usual: usize| text.map_or(usual, |it| it.parse().expect("a number"));
    let (vocab, steps) = (number(given.next(), 8192), number(given.next(), 6));
    let trained = device.clone().autodiff();
    let mut weights: Vec<Tensor<2>> = (0..BLOCKS).flat_map(|_| block(&device)).collect();
    weights.push(ones(&device));
    let output = matrix(vocab, WIDTH, &trained);
    let embedded = output.clone().slice([0..TOKENS, 0..WIDTH]);
    let table = |of: fn(f64) -> f64| {
        let half = HEAD / 2;
        let angle = |at: usize| {
            (at / half) as f64 * 10_000_f64.powf(-2.0 * (at % half) as f64 / HEAD as f64)
        };
        let numbers: Vec<f32> = (0..TOKENS * half).map(|at| of(angle(at)) as f32).collect();
        Tensor::<3>::from_data(TensorData::new(numbers, [TOKENS, 1, half]), &trained)
    };
    let angles = [table(f64::cos), table(f64::sin)];
    let mut means: Vec<[Tensor<2>; 2]> =
        weights.iter().map(|it| [it.zeros_like(), it.zeros_like()]).collect();
    for step in 0..steps {
        let start = Instant::now();
        let leaves: Vec<Tensor<2>> =
            weights.iter().map(|it| it.clone().autodiff().require_grad()).collect();
        let loss = loss(&embedded, &leaves, &output, &angles);
        let gradients = (loss.clone() * WEIGHT).backward();
        let mut squares: Option<Tensor<1>> = None;
        let full = [0.9_f64, 0.95].map(|stays| 1.0 - stays.powi(step as i32 + 1));
        for ((weight, leaf), [first, second]) in weights.iter_mut().zip(&leaves).zip(&mut means) {
            let gradient = leaf.grad(&gradients).expect("every weight gets a gradient");
            let square = gradient.clone().square().sum();
            squares = Some(match squares {
                Some(sum) => sum + square,
                None => square,
            });
            *first = first.clone() * 0.9 + gradient.clone() * 0.1;
            *second = second.clone() * 0.95 + gradient.square() * 0.05;
            let moved = first.clone() / ((second.clone() * (1.0 / full[1])).sqrt() + 1e-8);
            *weight = weight.clone() - moved * (RATE / full[0]);
        }
        let loss: f32 = loss.into_scalar();
        let length: f32 = squares.expect("some weights").into_scalar();
        device.sync().expect("a device that works");
        println!(
            "a step {:.2?}; loss {:.5}, gradient {:.6}",
            start.elapsed(),
            loss / TOKENS as f32,
            length.sqrt()
        );
    }
}
