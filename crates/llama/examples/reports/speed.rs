//! Tokens a second: plain, drafted, and llama.cpp's own speculation with the same files.

use std::fmt::Write as _;
use std::process::Command;

use forerun_decode::{Decoder, Drafter, ModelDrafter, Stats};
use forerun_lab::prompts::Prompt;
use forerun_llama::Model;

use crate::lab::{self, Job, Runs};

const LEN: usize = 48;
const PROMPTS: usize = 6;
const PROMPT_LEN_MAX: usize = 120;

/// A drafter, what it is, and the draft lengths tried.
const PAIRS: [(&str, &str, &[usize]); 3] = [
    ("aligned", "SmolLM2-135M-Instruct.Q4_0.gguf", &[2, 3, 4]),
    ("medium", "SmolLM2-pruned-14+13.gguf", &[2]),
    ("useless", "SmolLM2-pruned-8+0.gguf", &[2]),
];

/// One way to decode, and what it gave.
struct Way {
    name: String,
    draft_len: usize,
    theirs: bool,
    runs: Runs,
    stats: Stats,
    /// Tokens per round, of llama.cpp's.
    their_rounds: (f64, f64),
}

pub(crate) fn report() {
    let target = lab::model(lab::WIDENED);
    let theirs = std::env::var("LLAMA_SPECULATIVE").ok();
    // Short ones: llama.cpp's program reads the prompt anew for every run, at a token's cost each.
    let short = |prompt: &Prompt| lab::tokens(&target, prompt).len() < PROMPT_LEN_MAX;
    let prompts = lab::prompts(&target, "spec_bench.jsonl", 6);
    let prompts: Vec<Prompt> = prompts.into_iter().filter(short).take(PROMPTS).collect();
    let mut text = head(&prompts, theirs.as_deref());
    for temperature in [1.0, 0.0] {
        for (kind, draft, lens) in PAIRS {
            let mut ways = ways(lens, theirs.is_some());
            measure(&target, draft, &mut ways, &prompts, temperature);
            table(&mut text, kind, draft, temperature, &ways);
            lab::write("speed.md", &text);
        }
    }
}

fn head(prompts: &[Prompt], theirs: Option<&str>) -> String {
    let mut tasks: Vec<&str> = prompts.iter().map(|prompt| prompt.task.as_str()).collect();
    tasks.dedup();
    format!(
        "# Speed: plain, drafted, and llama.cpp's own speculation\n\n\
         Made by `just speed`. Target: SmolLM2-135M-Instruct (Q8_0) with feed-forward layers **widened** sixteenfold by\n\
         weights that add nothing, so that it says what SmolLM2 says at the cost of a larger model. Drafters: SmolLM2\n\
         requantised (aligned: Q4_0), and **pruned** of blocks (the others). See [models](../../models/README.md).\n\n\
         {} prompts ({}), {LEN} tokens each, all ways taking turns on each prompt; end tokens forbidden in ours. Rates\n\
         count from the first token on. Sampling: the model's own law at temperature 1, or greedy. *over*: ratio of\n\
         rates with its 95 % interval over prompts. *a round takes*: its time, in tokens of plain decoding; a setting is faster\n\
         by as much as its tokens per round exceed that, which is what limits the gain here. *outside*: share of our time outside the models' passes.\n\
         *llama.cpp*: {}.\n\nMachine: {}.\n",
        prompts.len(),
        tasks.join(", "),
        theirs.map_or("not measured (set LLAMA_SPECULATIVE to its binary)", |_| {
            "`llama-speculative-simple`, draft-simple, `--spec-draft-p-min 0`, `--poll 0` (by default the threads of its two models spin against each other), same files and threads, flash attention on, cached keys in bf16"
        }),
        lab::machine()
    )
}

fn ways(lens: &[usize], theirs: bool) -> Vec<Way> {
    let way = |name: String, draft_len, theirs| Way {
        name,
        draft_len,
        theirs,
        runs: Runs::default(),
        stats: Stats::default(),
        their_rounds: (0.0, 0.0),
    };
    let mut ways = vec![way("Forerun, plain".to_owned(), 0, false)];
    for len in lens {
        ways.push(way(format!("Forerun, block, drafts of {len}"), *len, false));
        if theirs {
            ways.push(way(format!("llama.cpp, drafts of {len}"), *len, true));
        }
    }
    ways
}

fn measure(target: &Model, draft: &str, ways: &mut [Way], prompts: &[Prompt], temperature: f32) {
    let drafter = lab::model(draft);
    let drafter = ModelDrafter::new(Box::new(lab::engine(&drafter)));
    let drafters: Vec<Box<dyn Drafter>> = vec![Box::new(drafter)];
    let engine = Box::new(lab::engine(target));
    let mut decoder = Decoder::new(engine, drafters).expect("it can be cut");
    for (seed, prompt) in prompts.iter().enumerate() {
        let tokens = lab::tokens(target, prompt);
        // Another way begins each time.
        let count = ways.len();
        for turn in 0..count {
            let way = &mut ways[(seed + turn) % count];
            if way.theirs {
                their_run(way, draft, prompt, temperature, seed);
                continue;
            }
            let sampling = lab::endless(target, temperature);
            let (draft_len, seed) = (way.draft_len, seed as u64);
            let job = Job { prompt: &tokens, draft_len, sampling, len: LEN, seed };
            let (stats, _) = lab::decode(&mut decoder, target, &job);
            way.runs.0.push((stats.committed as f64, stats.time.as_secs_f64()));
            way.stats.merge(&stats);
        }
        eprint!(".");
    }
    eprintln!();
}

/// Runs llama.cpp's own program on the same prompt and reads what it prints of itself.
fn their_run(way: &mut Way, draft: &str, prompt: &Prompt, temperature: f32, seed: usize) {
    let program = std::env::var("LLAMA_SPECULATIVE").expect("asked for");
    let mut command = Command::new(program);
    command.arg("-m").arg(lab::path(lab::WIDENED)).arg("-md").arg(lab::path(draft));
    command.args([
        "--spec-type",
        "draft-simple",
        "--spec-draft-p-min",
        "0",
        "-fa",
        "on",
        "-ctk",
        "bf16",
        "-ctkd",
        "bf16",
        "--ignore-eos",
        // Its threads otherwise spin while the other model runs, which costs it much of its speed.
        "--poll",
        "0",
        "--poll-batch",
        "0",
    ]);
    command.args(["-c", "2048", "--top-k", "0", "--top-p", "1", "--min-p", "0"]);
    command.arg("--temp").arg(temperature.to_string()).arg("--seed").arg((seed + 1).to_string());
    command.arg("--spec-draft-n-max").arg(way.draft_len.to_string());
    command.arg("-t").arg(lab::threads().to_string()).arg("-n").arg(LEN.to_string());
    command.arg("-p").arg(prompt.text());
    let output = command.output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    let line = said.lines().find(|line| line.contains("decoded") && line.contains("seconds"));
    let line = line.unwrap_or_else(|| panic!("llama.cpp says how fast it was: {said}"));
    let mut numbers = line[line.find("decoded").unwrap_or(0)..]
        .split_whitespace()
        .filter_map(|word| word.trim_end_matches(',').parse::<f64>().ok());
    let (tokens, seconds) = (numbers.next().expect("tokens"), numbers.next().expect("seconds"));
    way.runs.0.push((tokens, seconds));
    let count = |name: &str| {
        let line = said.lines().find(|line| line.contains(name));
        line.and_then(|line| line.split('=').nth(1)?.trim().parse::<f64>().ok()).unwrap_or(0.0)
    };
    way.their_rounds.0 += tokens;
    way.their_rounds.1 += tokens - count("n_accept");
}

fn table(text: &mut String, kind: &str, draft: &str, temperature: f32, ways: &[Way]) {
    let plain = &ways[0].runs;
    let best = ways
        .iter()
        .filter(|way| way.theirs)
        .max_by(|one, other| one.runs.rate().total_cmp(&other.runs.rate()));
    writeln!(
        text,
        "\n## {kind} pair, temperature {temperature}: drafter {draft}\n\n\
         | decoding | tokens/s | tokens per round | a round takes | accepted | over plain | over llama.cpp's best | outside |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|"
    )
    .expect("a string grows");
    for way in ways {
        let over_theirs = best.map_or("–".to_owned(), |best| way.runs.over(&best.runs));
        let (per_round, accepted, outside) = if way.theirs {
            let (tokens, rounds) = way.their_rounds;
            (tokens / rounds.max(1.0), "–".to_owned(), "–".to_owned())
        } else {
            let stats = &way.stats;
            let accepted = format!("{:.0} %", 100.0 * stats.acceptance());
            (stats.tokens_per_round(), accepted, format!("{:.2} %", 100.0 * stats.overhead()))
        };
        let takes = per_round * plain.rate() / way.runs.rate();
        writeln!(
            text,
            "| {} | {:.1} | {per_round:.2} | {takes:.2} | {accepted} | {} | {over_theirs} | {outside} |",
            way.name,
            way.runs.rate(),
            way.runs.over(plain),
        )
        .expect("a string grows");
    }
}
