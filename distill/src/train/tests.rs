use std::path::PathBuf;

use super::*;
use crate::model::{Activation, Pairs, Student};
use crate::pupil::ModelPupil;

const VOCAB: u32 = 13;

fn student() -> ModelPupil {
    let shape = Shape {
        vocab: VOCAB as usize,
        width: 16,
        blocks: 2,
        feed_forward: 24,
        heads: 4,
        key_heads: 2,
        head: 4,
        biased: false,
        normed_heads: false,
        normed_results: false,
        activation: Activation::Silu,
        embedding_scale: 1.0,
        pairs: Pairs::Neighbours,
        base: 1000.0,
        epsilon: 1e-5,
        window: None,
        trained_vocab: None,
    };
    let numbers = |count: usize, seed: usize, spread: f32| {
        (0..count).map(|at| spread * ((at * 37 + seed * 101) as f32 * 0.71).sin()).collect()
    };
    let tensors = shape.tensors();
    let weights =
        tensors.iter().enumerate().map(|(at, (name, sizes))| match name.contains("norm") {
            true => vec![1.0; sizes[0]],
            false => numbers(sizes.iter().product(), at, 0.3),
        });
    let weights = weights.collect();
    let embedding = numbers(shape.vocab * shape.width, 99, 1.0);
    let student = Student::new(shape, (embedding, None), weights, 32).unwrap();
    ModelPupil { student, words: None }
}

/// Sequences in which each token is followed by a certain other four times out of five.
fn rows() -> Rows {
    let sequence = |first: u32, len: usize, held_out: bool| {
        let mut sequence =
            Sequence { held_out, prompt_len: 2, tokens: vec![first, 1], ..Sequence::default() };
        for _ in 0..len {
            let next = (sequence.tokens.last().unwrap() * 3 + 1) % VOCAB;
            sequence.row_tokens.extend([next, (next + 1) % VOCAB]);
            sequence.row_probs.extend([0.8, 0.15]);
            sequence.tokens.push((next + first) % VOCAB);
        }
        sequence
    };
    let sequences = (0..24).map(|at| sequence(at % VOCAB, 4 + at as usize % 7, at % 6 == 0));
    let settings = Settings {
        target: String::new(),
        vocab: VOCAB as usize,
        prompts: String::new(),
        held_out: 4,
        samples: 1,
        predict: 10,
        len: 16,
        temperature: 1.0,
        listed: 2,
        prompt_rows: false,
        seed: 0,
    };
    Rows { settings, sequences: sequences.collect() }
}

fn plan() -> Plan {
    Plan {
        divergence: Divergence::Jsd,
        rate: 3e-3,
        warm_up: 5,
        epochs: 40,
        batch_tokens: 40,
        measure_every: 20,
        patience: 100,
        on_policy: 0.0,
        seed: 7,
        of: "test".to_owned(),
    }
}

fn run(trainer: &mut Trainer<'_, ModelPupil>, until: u64) {
    while trainer.progress.step < until && !trainer.is_done() {
        if trainer.is_due() {
            trainer.measure().unwrap();
        }
        trainer.step().unwrap();
    }
}

fn place(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("forerun-train-{}-{name}", std::process::id()))
}

#[test]
fn a_batch_is_split_into_parts_of_about_one_length_and_nothing_is_lost() {
    let rows = rows();
    let sequences: Vec<&Sequence> = rows.sequences.iter().collect();
    let len = |sequence: &Sequence| sequence.tokens.len();
    for count in [1, 2, 5, 100] {
        let parts = split(&sequences, len, count);
        assert_eq!(parts.len(), count.min(sequences.len()));
        let lens: Vec<usize> =
            parts.iter().map(|part| part.iter().map(|it| len(it)).sum()).collect();
        assert_eq!(lens.iter().sum::<usize>(), sequences.iter().map(|it| len(it)).sum::<usize>());
        assert_eq!(parts.iter().map(Vec::len).sum::<usize>(), sequences.len());
        let longest = sequences.iter().map(|it| len(it)).max();
        assert!(
            lens.iter().max().zip(lens.iter().min()).map(|(a, b)| a - b) <= longest,
            "{lens:?}"
        );
    }
}

#[test]
fn training_raises_the_overlap_of_what_is_held_out() {
    let rows = rows();
    for divergence in
        [Divergence::ForwardKl, Divergence::ReverseKl, Divergence::Jsd, Divergence::Tv]
    {
        let mut trainer = Trainer::new(Plan { divergence, ..plan() }, &rows, student());
        run(&mut trainer, u64::MAX);
        trainer.measure().unwrap();
        let (first, last) = (trainer.progress.curve[0], *trainer.progress.best().unwrap().0);
        assert!(last.overlap > first.overlap + 0.25, "{divergence:?}: {first:?} {last:?}");
        let best = measure(trainer.best_pupil(), &rows, (divergence, 40)).unwrap()[0].mean;
        assert_eq!(best.overlap, last.overlap, "the best weights are kept");
    }
}

#[test]
fn a_resumed_run_is_the_same_to_the_last_bit() {
    let (rows, path) = (rows(), place("resumed"));
    let mut whole = Trainer::new(plan(), &rows, student());
    run(&mut whole, 70);
    let mut first = Trainer::new(plan(), &rows, student());
    run(&mut first, 33);
    first.save(&path).unwrap();
    let mut second = Trainer::new(plan(), &rows, student());
    second.load(&path).unwrap();
    run(&mut second, 70);
    assert_eq!(second.pupil.student.weights, whole.pupil.student.weights);
    assert_eq!((&second.adam, &second.best), (&whole.adam, &whole.best));
    assert_eq!(second.progress, whole.progress);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_checkpoint_of_other_settings_or_a_damaged_one_is_refused() {
    let (rows, path) = (rows(), place("refused"));
    let mut trainer = Trainer::new(plan(), &rows, student());
    run(&mut trainer, 3);
    trainer.save(&path).unwrap();
    let mut other = Trainer::new(Plan { rate: 1e-3, ..plan() }, &rows, student());
    let error = other.load(&path).unwrap_err().to_string();
    assert!(error.contains("other settings"), "{error}");
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 16;
    std::fs::write(&path, bytes).unwrap();
    let error = trainer.load(&path).unwrap_err().to_string();
    assert!(error.contains("damaged") && error.contains("remove it"), "{error}");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn every_text_is_learned_from_once_an_epoch_and_none_that_is_held_out() {
    let (rows, plan) = (rows(), plan());
    let mut trainer = Trainer::new(plan.clone(), &rows, student());
    let mut orders = Vec::new();
    for epoch in 0..3 {
        trainer.progress.epoch = epoch;
        let batches = trainer.batches();
        let mut all: Vec<usize> = batches.iter().flatten().copied().collect();
        orders.push(all.clone());
        all.sort_unstable();
        let learned = rows.sequences.iter().enumerate().filter(|(_, sequence)| !sequence.held_out);
        assert!(all.into_iter().eq(learned.map(|(place, _)| place)));
        for batch in &batches {
            let tokens: usize = batch.iter().map(|&it| rows.sequences[it].tokens.len()).sum();
            assert!(tokens <= plan.batch_tokens || batch.len() == 1);
        }
    }
    assert_ne!(orders[0], orders[1]);
}

/// What a student may have written in place of a sequence: another token, and another row for it.
fn own_text(sequence: &Sequence) -> Sequence {
    let mut own = sequence.clone();
    own.tokens.truncate(sequence.prompt_len + 2);
    own.row_tokens = vec![5, 6, 7, 8];
    own.row_probs = vec![0.5, 0.25, 0.5, 0.25];
    own
}

fn run_with_own(trainer: &mut Trainer<'_, ModelPupil>, until: u64) {
    while trainer.progress.step < until {
        let places = trainer.wants_own();
        if !places.is_empty() {
            let sequences =
                places.iter().map(|&it| own_text(&trainer.rows.sequences[it])).collect();
            trainer.set_own(&places, sequences);
        }
        trainer.step().unwrap();
    }
}

#[test]
fn a_share_of_the_texts_is_the_student_s_own_after_the_first_epoch() {
    let (rows, half) = (rows(), Plan { on_policy: 0.5, ..plan() });
    let mut trainer = Trainer::new(half.clone(), &rows, student());
    assert!(trainer.wants_own().is_empty(), "at first it has nothing to say");
    while trainer.progress.epoch == 0 {
        trainer.step().unwrap();
    }
    let places = trainer.wants_own();
    assert_eq!(places.len(), 10, "half of 20");
    assert!(places.iter().all(|&it| !rows.sequences[it].held_out));
    let sequences = places.iter().map(|&it| own_text(&rows.sequences[it])).collect();
    trainer.set_own(&places, sequences);
    assert!(trainer.wants_own().is_empty(), "once an epoch");
    let mut learned: Vec<usize> = trainer.batches().concat();
    learned.sort_unstable();
    assert_eq!(learned.len(), 20, "own sequences come in place of the target's");
    assert_eq!(trainer.sequence(places[0]).tokens.len(), rows.sequences[places[0]].prompt_len + 2);
    while trainer.progress.epoch == 1 {
        trainer.step().unwrap();
    }
    assert_ne!(trainer.wants_own(), places, "others in the next epoch");
}

#[test]
fn a_checkpoint_has_the_student_s_own_texts() {
    let (rows, path) = (rows(), place("own"));
    let half = || Plan { on_policy: 0.5, ..plan() };
    let mut whole = Trainer::new(half(), &rows, student());
    run_with_own(&mut whole, 40);
    let mut first = Trainer::new(half(), &rows, student());
    run_with_own(&mut first, 12);
    assert!(!first.own.is_empty() && first.progress.batch > 0, "in the middle of an epoch");
    first.save(&path).unwrap();
    let mut second = Trainer::new(half(), &rows, student());
    second.load(&path).unwrap();
    run_with_own(&mut second, 40);
    assert_eq!(second.pupil.student.weights, whole.pupil.student.weights);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn it_ends_when_measurements_are_no_better() {
    let rows = rows();
    let mut trainer = Trainer::new(Plan { patience: 3, ..plan() }, &rows, student());
    let point = |accepted| Point {
        step: 0,
        rows: 0,
        loss: 0.0,
        overlap: 0.0,
        overlap_error: 0.0,
        agreement_error: 0.0,
        agreement: 0.0,
        accepted,
        learned_loss: None,
    };
    trainer.progress.curve = [0.1, 0.4, 0.3, 0.2].map(point).to_vec();
    assert!(!trainer.is_done());
    trainer.progress.curve.push(point(0.4));
    assert!(trainer.is_done());
}

#[test]
fn texts_count_by_their_rows_and_stray_as_wholes() {
    let rows =
        |overlap: f64, count: usize| vec![Measures { overlap, ..Measures::default() }; count];
    let sequences = [rows(0.2, 10), rows(0.6, 10)];
    let mean = Measures::mean(&sequences.concat());
    let error = standard_error(&sequences, mean);
    // Two sequences, 0.2 to either side: as of two numbers, not of twenty.
    assert!((error.overlap - 0.2).abs() < 1e-12, "{error:?}");
    let same = [rows(0.4, 3), rows(0.4, 9)];
    assert!(standard_error(&same, Measures::mean(&same.concat())).overlap < 1e-12);
}
