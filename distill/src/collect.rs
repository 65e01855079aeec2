//! The target's own continuations of prompts, and the rows they were drawn from.
//!
//! Many sequences share each pass, as far as there are slots; a sequence that ends makes room for the
//! next. Each draws from a generator of its own, so a text depends on its prompt and its number alone,
//! up to what rows depend on the others of a pass.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, ensure};
use forerun_decode::{
    Engine, Keep, Output, Rows as WantedRows, Slot, Special, Step, Token, Tokenizer,
};
use forerun_lab::prompts::{self, Prompt};
use forerun_llama::{EngineOptions, LlamaEngine, Model, ModelOptions};
use forerun_verify::Philox;
use forerun_verify::rand_core::Rng;
use rayon::prelude::*;

use crate::rows::{Rows, Settings, Text};

/// How the target runs.
#[derive(Debug, Clone)]
pub struct Running {
    /// Sequences of one pass.
    pub slots: NonZeroU32,
    /// Threads.
    pub threads: Option<NonZeroU32>,
    /// Stops it.
    pub stop: Arc<AtomicBool>,
}

/// What came of it.
#[derive(Debug)]
pub struct Collected {
    /// The texts and their rows.
    pub rows: Rows,
    /// How many texts there are in all.
    pub wanted: usize,
}

/// A sequence that goes on.
struct Sequence {
    text: Text,
    cached: usize,
    chance: Philox,
    ended: bool,
}

/// Has the target continue the prompts, as far as that is not `done`. `told` is told how many texts of
/// how many are done, and how many tokens were drawn. If it is stopped, there are fewer texts than
/// [`Collected::wanted`].
///
/// # Errors
/// If the target cannot be loaded or fails, or no prompt is short enough.
pub fn collect(
    (target, prompts): (&Path, &[Prompt]),
    settings: Settings,
    done: Vec<Text>,
    running: &Running,
    told: &mut dyn FnMut(usize, usize, usize),
) -> anyhow::Result<Collected> {
    let model = Model::load(ModelOptions::new(target))?;
    ensure!(
        model.vocab_len() == settings.vocab,
        "the target has {} tokens and the student {}: a student must have the target's vocabulary",
        model.vocab_len(),
        settings.vocab
    );
    let options = EngineOptions {
        context_len: Some(NonZeroU32::try_from(u32::try_from(settings.len)?)?),
        slots: running.slots,
        threads: running.threads,
        interrupt: Some(Arc::clone(&running.stop)),
        ..EngineOptions::default()
    };
    let mut engine = LlamaEngine::new(&model, &options)?;
    let mut waiting = texts(&model, prompts, &settings)?;
    let wanted = waiting.len();
    waiting.retain(|it| done.iter().all(|done| done.id != it.text.id));
    let mut slots: Vec<Option<Sequence>> = (0..running.slots.get()).map(|_| None).collect();
    let (mut output, mut texts, mut drawn) = (Output::default(), done, 0);
    loop {
        for slot in slots.iter_mut().filter(|slot| slot.is_none()) {
            *slot = waiting.pop_front();
        }
        let stopped = || running.stop.load(Ordering::Relaxed);
        if stopped() || slots.iter().all(Option::is_none) {
            break;
        }
        match pass(&mut engine, &mut slots, &mut output) {
            Err(_) if stopped() => break,
            passed => passed?,
        }
        let mut going: Vec<&mut Sequence> = slots.iter_mut().flatten().collect();
        drawn += going.len();
        going.par_iter_mut().enumerate().for_each(|(row, sequence)| {
            sequence.draw(output.row(row), &settings, model.vocab());
        });
        for slot in &mut slots {
            if let Some(ended) = slot.take_if(|it| it.ended) {
                texts.push(ended.text);
                told(texts.len(), wanted, drawn);
            }
        }
    }
    // In an order that does not depend on which ended first.
    texts.sort_unstable_by_key(|text| text.id);
    Ok(Collected { rows: Rows { settings, texts }, wanted })
}

/// A pass over the newest tokens of all sequences, and the prompts of new ones.
fn pass(
    engine: &mut LlamaEngine,
    slots: &mut [Option<Sequence>],
    output: &mut Output,
) -> anyhow::Result<()> {
    let tokens: Vec<(u32, usize, Vec<Token>)> = (0..)
        .zip(slots.iter())
        .filter_map(|(slot, sequence)| {
            let sequence = sequence.as_ref()?;
            let new = sequence.text.tokens[sequence.cached..].iter().copied().map(Token);
            Some((slot, sequence.cached, new.collect()))
        })
        .collect();
    let steps: Vec<Step<'_>> = tokens
        .iter()
        .map(|(slot, cached, trunk)| Step {
            slot: Slot(*slot),
            keep: Keep::Trunk(*cached),
            trunk,
            tree: &[],
            rows: WantedRows::Trunk,
        })
        .collect();
    engine.extend(&steps, output).context("the target failed")?;
    for sequence in slots.iter_mut().flatten() {
        sequence.cached = sequence.text.tokens.len();
    }
    Ok(())
}

/// What is to be continued, in its order: the prompts that are held out, then all others as often as
/// there are samples.
fn texts(
    model: &Model,
    prompts: &[Prompt],
    settings: &Settings,
) -> anyhow::Result<VecDeque<Sequence>> {
    let vocab = model.vocab();
    let rendered = prompts::in_chat_format(prompts, model.chat_template().as_deref())?;
    let mut tokenized = Vec::new();
    for text in &rendered {
        let mut tokens: Vec<u32> = Vec::new();
        let parsed = vocab.tokenize(text, Special::Parse)?;
        tokens.extend(vocab.start().filter(|start| parsed.first() != Some(start)).map(|it| it.0));
        tokens.extend(parsed.iter().map(|token| token.0));
        if !tokens.is_empty() && tokens.len() + settings.predict <= settings.len {
            tokenized.push(tokens);
        }
    }
    ensure!(
        tokenized.len() > settings.held_out,
        "{} of {} prompts have room for {} more tokens in {}, and {} are to be held out: give more \
         prompts, or raise --ctx-size",
        tokenized.len(),
        prompts.len(),
        settings.predict,
        settings.len,
        settings.held_out
    );
    shuffle(&mut tokenized, settings.seed);
    let mut seeds = Philox::new(settings.seed ^ 0x7465_7874);
    let mut ids = 0..;
    let mut sequence = |tokens: &Vec<u32>, held_out| Sequence {
        text: Text {
            id: ids.next().unwrap_or(u32::MAX),
            held_out,
            prompt_len: tokens.len(),
            tokens: tokens.clone(),
            ..Text::default()
        },
        cached: 0,
        chance: Philox::new(seeds.next_u64()),
        ended: false,
    };
    let (held_out, others) = tokenized.split_at(settings.held_out);
    let mut all: VecDeque<Sequence> = held_out.iter().map(|it| sequence(it, true)).collect();
    for _ in 0..settings.samples {
        all.extend(others.iter().map(|it| sequence(it, false)));
    }
    Ok(all)
}

impl Sequence {
    /// Draws the next token from a row of logits, and notes the row.
    fn draw(&mut self, logits: &[f32], settings: &Settings, vocab: &impl Tokenizer) {
        let shares = shares(logits, settings.row_temperature());
        let mut ranked: Vec<u32> = (0..).take(shares.len()).collect();
        let listed = settings.listed.min(ranked.len());
        let falling = |a: &u32, b: &u32| {
            shares[*b as usize].total_cmp(&shares[*a as usize]).then_with(|| a.cmp(b))
        };
        if listed < ranked.len() {
            ranked.select_nth_unstable_by(listed, falling);
        }
        ranked.truncate(listed);
        ranked.sort_unstable_by(falling);
        let token = match settings.temperature > 0.0 {
            true => pick(&shares, unit(&mut self.chance)),
            false => ranked[0],
        };
        self.text.row_shares.extend(ranked.iter().map(|&token| shares[token as usize]));
        self.text.row_tokens.extend(ranked);
        self.text.tokens.push(token);
        self.ended = vocab.is_end(Token(token)) || self.text.row_count() == settings.predict;
    }
}

/// Probabilities at a temperature.
#[expect(clippy::cast_possible_truncation, reason = "shares are kept as f32")]
fn shares(logits: &[f32], temperature: f64) -> Vec<f32> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sharp = (1.0 / temperature) as f32;
    let mut shares: Vec<f32> = logits.iter().map(|&it| ((it - most) * sharp).exp()).collect();
    let all: f64 = shares.iter().copied().map(f64::from).sum();
    let scale = (1.0 / all) as f32;
    shares.iter_mut().for_each(|it| *it *= scale);
    shares
}

/// The token at which the shares add up to more than `point`.
fn pick(shares: &[f32], point: f64) -> u32 {
    let all: f64 = shares.iter().copied().map(f64::from).sum();
    let (mut left, mut last) = (point * all, 0);
    for (token, &share) in (0..).zip(shares) {
        if share > 0.0 {
            last = token;
            left -= f64::from(share);
            if left < 0.0 {
                break;
            }
        }
    }
    last
}

/// A number from 0 to 1, without 1.
pub fn unit(chance: &mut Philox) -> f64 {
    const BITS: u32 = 53;
    (chance.next_u64() >> (64 - BITS)) as f64 / (1_u64 << BITS) as f64
}

/// Puts things in an order that depends on the seed alone.
pub fn shuffle<T>(things: &mut [T], seed: u64) {
    let mut chance = Philox::new(seed);
    for end in (1..things.len()).rev() {
        let below = end as u64 + 1;
        let other = usize::try_from(chance.next_u64() % below).unwrap_or(end);
        things.swap(end, other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_is_picked_as_often_as_its_share() {
        let shares = shares(&[1.0, f32::NEG_INFINITY, 0.0, 2.0], 0.5);
        let steps = 100_000;
        let mut counts = [0.0; 4];
        for step in 0..steps {
            counts[pick(&shares, f64::from(step) / f64::from(steps)) as usize] += 1.0;
        }
        for (count, &share) in counts.iter().zip(&shares) {
            assert!((count / f64::from(steps) - f64::from(share)).abs() < 2e-5, "{counts:?}");
        }
        assert_eq!(counts[1], 0.0);
    }

    #[test]
    fn a_shuffle_depends_on_the_seed_alone() {
        let order = |seed| {
            let mut order: Vec<u32> = (0..20).collect();
            shuffle(&mut order, seed);
            order
        };
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
        let mut sorted = order(3);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..20).collect::<Vec<u32>>());
    }
}
