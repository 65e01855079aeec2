//! The target's own continuations of prompts, and the rows they were drawn from.
//!
//! As many sequences as there are slots make a group, which shares passes and begins with empty caches. So a
//! sequence depends on its group alone, rounding included, and a run that is stopped goes on with the next
//! group as if nothing had happened.

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, ensure};
use forerun_decode::{
    Branch, Engine, Keep, Output, Rows as WantedRows, Slot, Special, Step, Token, Tokenizer,
};
use forerun_lab::prompts::{self, Prompt};
use forerun_llama::{EngineOptions, FlashAttention, LlamaEngine, Model, ModelOptions};
use forerun_verify::rand_core::Rng;
use forerun_verify::{Dist, Philox, Random};
use rayon::prelude::*;

use crate::rows::{Rows, Sequence, Settings};

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
    /// The sequences and their rows.
    pub rows: Rows,
    /// Whether they are all; else it was stopped.
    pub complete: bool,
}

/// Who is told how far it is.
pub trait Watch {
    /// So many sequences of how many are complete, and so many tokens were drawn.
    fn pass_done(&mut self, done: usize, wanted: usize, drawn: usize);

    /// A group is complete.
    ///
    /// # Errors
    /// If the sequences cannot be kept. Then no more are made.
    fn group_done(&mut self, rows: &Rows) -> anyhow::Result<()>;
}

/// A sequence that goes on.
pub(crate) struct Decoding {
    pub(crate) sequence: Sequence,
    /// Whether it is the one that its prompt is learned from: the first of the samples.
    learns_prompt: bool,
    cached: usize,
    chance: Random<Philox>,
    ended: bool,
}

/// Has the target continue the prompts, as far as that is not `done`. If it is stopped, the sequences of
/// all groups that are complete are returned.
///
/// # Errors
/// If the target cannot be loaded or fails, or no prompt is short enough.
pub fn collect(
    (target, prompts): (&Path, &[Prompt]),
    settings: Settings,
    done: Vec<Sequence>,
    running: &Running,
    watch: &mut dyn Watch,
) -> anyhow::Result<Collected> {
    let model = Model::load(ModelOptions::new(target))?;
    let mut all = sequences(&model, prompts, &settings)?;
    let (wanted, mut drawn) = (all.len(), 0);
    let mut waiting = all.split_off(done.len().min(wanted));
    let mut rows = Rows { settings, sequences: done };
    while !waiting.is_empty() {
        let later = waiting.split_off(waiting.len().min(running.slots.get() as usize));
        let mut group: Vec<Decoding> = std::mem::replace(&mut waiting, later);
        let before = rows.sequences.len();
        let passed = |ended: usize, tokens: usize| {
            drawn += tokens;
            watch.pass_done(before + ended, wanted, drawn);
        };
        if !continue_group(&model, &mut group, &rows.settings, running, passed)?
            || !score_prompts(&model, &mut group, &rows.settings, running)?
        {
            return Ok(Collected { rows, complete: false });
        }
        rows.sequences.extend(group.into_iter().map(|it| it.sequence));
        watch.group_done(&rows)?;
    }
    Ok(Collected { rows, complete: true })
}

/// Continues the sequences of a group to their ends. After each pass, `passed` is told how many have ended and
/// how many tokens it drew. Returns false if it was stopped.
pub(crate) fn continue_group(
    model: &Model,
    group: &mut [Decoding],
    settings: &Settings,
    running: &Running,
    mut passed: impl FnMut(usize, usize),
) -> anyhow::Result<bool> {
    let mut engine = LlamaEngine::new(model, &engine_options(settings, running)?)?;
    let mut output = Output::default();
    let stopped = || running.stop.load(Ordering::Relaxed);
    while group.iter().any(|it| !it.ended) {
        match pass(&mut engine, group, &mut output) {
            _ if stopped() => return Ok(false),
            result => result?,
        }
        let mut going: Vec<&mut Decoding> = group.iter_mut().filter(|it| !it.ended).collect();
        going.par_iter_mut().enumerate().try_for_each(|(row, decoding)| {
            decoding.draw(output.row(row), settings, model.vocab())
        })?;
        let drawn = going.len();
        passed(group.iter().filter(|it| it.ended).count(), drawn);
    }
    Ok(true)
}

/// Has the target say what it would have said in the prompts, if that is learned from. Returns false if it was
/// stopped.
fn score_prompts(
    model: &Model,
    group: &mut [Decoding],
    settings: &Settings,
    running: &Running,
) -> anyhow::Result<bool> {
    if !settings.prompt_rows {
        return Ok(true);
    }
    let mut engine = LlamaEngine::new(model, &engine_options(settings, running)?)?;
    for sequence in group.iter_mut().filter(|it| it.learns_prompt).map(|it| &mut it.sequence) {
        // There is no row before the first token.
        let scored = score(&mut engine, &sequence.tokens[..sequence.prompt_len], 1, settings);
        if running.stop.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let scored = scored?;
        sequence.row_tokens.splice(..0, scored.iter().flat_map(|row| row.tokens.iter().copied()));
        sequence.row_probs.splice(..0, scored.iter().flat_map(|row| row.probs.iter().copied()));
        sequence.prompt_rows = sequence.prompt_len - 1;
    }
    Ok(true)
}

/// The target's rows of the tokens from `first` on, in one pass.
pub(crate) fn score(
    engine: &mut LlamaEngine,
    tokens: &[u32],
    first: usize,
    settings: &Settings,
) -> anyhow::Result<Vec<Listed>> {
    if tokens.len() <= first {
        return Ok(Vec::new());
    }
    let (before, after) = tokens.split_at(first);
    let before: Vec<Token> = before.iter().copied().map(Token).collect();
    // There is no row after the last token.
    let after = &after[..after.len() - 1];
    let tree: Vec<Branch> =
        (0..).zip(after).map(|(parent, &token)| Branch { parent, token: Token(token) }).collect();
    let step = Step {
        slot: Slot(0),
        keep: Keep::Trunk(0),
        trunk: &before,
        tree: &tree,
        rows: WantedRows::All,
    };
    let mut output = Output::default();
    engine.extend(&[step], &mut output).context("the target failed")?;
    let listed = |row: usize| {
        let logits = output.row(row);
        Ok(Listed::of(logits, &settings.row(logits)?, settings.listed))
    };
    (0..output.len()).into_par_iter().map(listed).collect()
}

/// An engine with room for so many sequences.
pub(crate) fn engine_options(
    settings: &Settings,
    running: &Running,
) -> anyhow::Result<EngineOptions> {
    Ok(EngineOptions {
        context_len: Some(NonZeroU32::try_from(u32::try_from(settings.len)?)?),
        slots: running.slots,
        threads: running.threads,
        interrupt: Some(Arc::clone(&running.stop)),
        // Twice as fast with many sequences. Rows then depend a little on how many share a pass; here they are
        // kept as they were drawn from.
        flash_attention: FlashAttention::Off,
        ..EngineOptions::default()
    })
}

/// A pass over the newest tokens of all sequences that go on, and at first their prompts.
fn pass(
    engine: &mut LlamaEngine,
    group: &mut [Decoding],
    output: &mut Output,
) -> anyhow::Result<()> {
    let tokens: Vec<(u32, usize, Vec<Token>)> = (0..)
        .zip(group.iter())
        .filter(|(_, decoding)| !decoding.ended)
        .map(|(slot, decoding)| {
            let new = decoding.sequence.tokens[decoding.cached..].iter().copied().map(Token);
            (slot, decoding.cached, new.collect())
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
    for decoding in group.iter_mut().filter(|it| !it.ended) {
        decoding.cached = decoding.sequence.tokens.len();
    }
    Ok(())
}

/// What is to be continued, in its order: the prompts that are held out, then all others as often as
/// there are samples.
fn sequences(
    model: &Model,
    prompts: &[Prompt],
    settings: &Settings,
) -> anyhow::Result<Vec<Decoding>> {
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
    let mut decoding = |tokens: &Vec<u32>, held_out| {
        let id = ids.next().unwrap_or(u32::MAX);
        let (prompt_len, tokens) = (tokens.len(), tokens.clone());
        let sequence = Sequence { id, held_out, prompt_len, tokens, ..Sequence::default() };
        Decoding::new(sequence, seeds.next_u64())
    };
    let (held_out, others) = tokenized.split_at(settings.held_out);
    let mut all: Vec<Decoding> = held_out.iter().map(|it| decoding(it, true)).collect();
    for sample in 0..settings.samples {
        all.extend(others.iter().map(|it| {
            let learns_prompt = sample == 0;
            Decoding { learns_prompt, ..decoding(it, false) }
        }));
    }
    Ok(all)
}

impl Decoding {
    pub(crate) fn new(sequence: Sequence, seed: u64) -> Self {
        let chance = Random(Philox::new(seed));
        Self { sequence, learns_prompt: false, cached: 0, chance, ended: false }
    }

    /// Draws the next token from a row of logits, and notes the row.
    fn draw(
        &mut self,
        logits: &[f32],
        settings: &Settings,
        vocab: &impl Tokenizer,
    ) -> anyhow::Result<()> {
        let row = settings.row(logits)?;
        let listed = Listed::of(logits, &row, settings.listed);
        let token = match settings.temperature > 0.0 {
            true => row.draw(&mut self.chance),
            false => Token(listed.tokens[0]),
        };
        self.sequence.row_probs.extend(listed.probs);
        self.sequence.row_tokens.extend(listed.tokens);
        self.sequence.tokens.push(token.0);
        let drawn = self.sequence.tokens.len() - self.sequence.prompt_len;
        self.ended = vocab.is_end(token) || drawn == settings.predict;
        Ok(())
    }
}

/// The likeliest tokens of a row, in falling order, and their probabilities.
pub(crate) struct Listed {
    pub(crate) tokens: Vec<u32>,
    pub(crate) probs: Vec<f32>,
}

impl Listed {
    /// Lists so many tokens of a row, of which the logits are known, too.
    #[expect(clippy::cast_possible_truncation, reason = "probabilities are kept as f32")]
    fn of(logits: &[f32], row: &Dist, count: usize) -> Self {
        let tokens = likeliest(logits, count);
        let probs = tokens.iter().map(|&token| row.prob(Token(token)) as f32).collect();
        Self { tokens, probs }
    }
}

/// The tokens of the largest logits, in falling order; of equals, the one with the lower id first.
fn likeliest(logits: &[f32], count: usize) -> Vec<u32> {
    // The largest of each block: the tokens that are looked for are not below as many of these, and hardly any others are above.
    const BLOCK: usize = 32;
    let largest = |block: &[f32]| block.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut blocks: Vec<f32> = logits.chunks(BLOCK).map(largest).collect();
    let bar = match count <= blocks.len() {
        true => *blocks.select_nth_unstable_by(count - 1, |a, b| b.total_cmp(a)).1,
        false => f32::NEG_INFINITY,
    };
    let mut above: Vec<(u32, f32)> =
        (0..).zip(logits.iter().copied()).filter(|(_, logit)| *logit >= bar).collect();
    above.sort_unstable_by(|(a, x), (b, y)| y.total_cmp(x).then_with(|| a.cmp(b)));
    above.truncate(count);
    above.into_iter().map(|(token, _)| token).collect()
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
    fn the_likeliest_tokens_are_those_that_sorting_finds() {
        let mut chance = Philox::new(1);
        // Of few values, many are equal.
        for (len, values) in [(1, 4), (31, 4), (64, 4), (1000, 4), (64, 1 << 20), (1000, 1 << 20)] {
            let logits: Vec<f32> = (0..len).map(|_| (chance.next_u64() % values) as f32).collect();
            let mut sorted: Vec<u32> = (0..).take(len).collect();
            sorted.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
            for count in [1, 5, 31, 32, 1000] {
                let expected = &sorted[..count.min(len)];
                assert_eq!(likeliest(&logits, count), expected, "{count} of {len}");
            }
        }
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
