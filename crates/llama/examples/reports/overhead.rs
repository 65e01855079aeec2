//! What the decoder costs around the passes.

use std::fmt::Write as _;

use forerun_decode::{Decoder, Drafter, ModelDrafter};
use forerun_llama::bare_greedy;

use crate::lab::{self, Job, Runs};

const LEN: usize = 96;
const REPEATS: usize = 8;

pub(crate) fn report() {
    let mut text = format!(
        "# Overhead: the decoder around the passes\n\n\
         Made by `just overhead`. {LEN} tokens, {REPEATS} times, taking turns; flash attention on.\n\n\
         *bare*: `llama_decode`, one look at the logits, nothing else. *over bare*: tokens a second over the bare loop's,\n\
         with its 95 % interval. *outside passes*: share of the time that is neither in the target's pass nor in the\n\
         draft model's: drafting, shaping rows, verification, text.\n\nMachine: {}. Vocabulary: 49,152.\n\n",
        lab::machine()
    );
    for name in [lab::SMOL, lab::WIDENED] {
        writeln!(text, "## {name}\n").expect("a string grows");
        writeln!(text, "| decoding | tokens/s | over bare | outside passes |\n|---|--:|--:|--:|")
            .expect("it grows");
        table(&mut text, name);
        text.push('\n');
    }
    lab::write("overhead.md", &text);
}

fn table(text: &mut String, name: &str) {
    let target = lab::model(name);
    let draft = lab::model("SmolLM2-pruned-14+13.gguf");
    let drafter = ModelDrafter::new(Box::new(lab::engine(&draft)));
    let drafters: Vec<Box<dyn Drafter>> = vec![Box::new(drafter)];
    let engine = Box::new(lab::engine(&target));
    let mut decoder = Decoder::new(engine, drafters).expect("it can be cut");
    let prompts = lab::prompts(&target, "greedy_50.jsonl", 4);
    let settings = [("plain, temperature 0", 0.0, 0), ("plain, temperature 1", 1.0, 0)];
    let settings = settings.into_iter().chain([
        ("block, drafts of 4, temperature 0", 0.0, 4),
        ("block, drafts of 4, temperature 1", 1.0, 4),
    ]);
    let settings: Vec<_> = settings.collect();
    let mut bare = Runs::default();
    let mut runs = vec![(Runs::default(), 0.0); settings.len()];
    for (repeat, prompt) in prompts.iter().cycle().take(REPEATS).enumerate() {
        let prompt = lab::tokens(&target, prompt);
        let (_, time) = bare_greedy(&target, lab::threads(), &prompt, LEN);
        bare.0.push(((LEN - 1) as f64, time.as_secs_f64()));
        for (index, (_, temperature, draft_len)) in settings.iter().enumerate() {
            let sampling = lab::endless(&target, *temperature);
            let job = Job {
                prompt: &prompt,
                draft_len: *draft_len,
                width: 1,
                sampling,
                len: LEN,
                seed: repeat as u64,
            };
            let (stats, _) = lab::decode(&mut decoder, &target, &job);
            let seconds = stats.time.as_secs_f64();
            runs[index].0.0.push((stats.committed as f64, seconds));
            runs[index].1 += stats.overhead() * seconds;
        }
    }
    writeln!(text, "| bare llama.cpp loop, greedy | {:.1} | 1 | |", bare.rate()).expect("it grows");
    for ((name, ..), (runs, outside)) in settings.iter().zip(&runs) {
        let seconds: f64 = runs.0.iter().map(|run| run.1).sum();
        let (rate, over, share) = (runs.rate(), runs.over(&bare), 100.0 * outside / seconds);
        writeln!(text, "| {name} | {rate:.1} | {over} | {share:.2} % |").expect("a string grows");
    }
}
