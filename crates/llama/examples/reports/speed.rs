//! Tokens a second: plain, drafted, and llama.cpp's own speculation with the same files.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::Command;

use forerun_decode::{Decoder, Stats};
use forerun_lab::prompts::Prompt;
use forerun_llama::Model;

use crate::lab::{self, Job, Runs};

/// Characters of a prompt: llama.cpp's program reads it anew for every run, at a token's cost each.
const PROMPT_LEN_MAX: usize = 450;

/// A target and what drafts for it.
struct Pair {
    kind: &'static str,
    target: &'static str,
    /// A file, or the target's own head.
    draft: Option<&'static str>,
    /// What llama.cpp calls such a drafter.
    spec_type: &'static str,
    /// Draft lengths, and numbers of paths.
    shapes: &'static [(usize, usize)],
}

const fn model(kind: &'static str, draft: &'static str, shapes: &'static [(usize, usize)]) -> Pair {
    Pair { kind, target: lab::WIDENED, draft: Some(draft), spec_type: "draft-simple", shapes }
}

/// A target with random weights and a head of its own.
const fn own_head(target: &'static str, shapes: &'static [(usize, usize)]) -> Pair {
    Pair { kind: "MTP", target, draft: None, spec_type: "draft-mtp", shapes }
}

const MODELS: [Pair; 3] = [
    model("aligned", "SmolLM2-135M-Instruct.Q4_0.gguf", &[(2, 1), (3, 1), (4, 1)]),
    model("medium", "SmolLM2-pruned-14+13.gguf", &[(2, 1)]),
    model("useless", "SmolLM2-pruned-8+0.gguf", &[(2, 1)]),
];

const HEADS: [Pair; 3] = [
    Pair {
        kind: "EAGLE-3",
        target: lab::SMOL,
        draft: Some("SmolLM2-135M-Instruct.eagle3.gguf"),
        spec_type: "draft-eagle3",
        shapes: &[(2, 1), (4, 1), (4, 2)],
    },
    // Not `glm4moe`: llama.cpp's driver ends at its first draft.
    own_head("zoo/step35-mtp.gguf", &[(1, 1), (2, 1), (2, 2)]),
    // A hybrid keeps one path's state.
    own_head("zoo/qwen35-mtp.gguf", &[(1, 1), (2, 1)]),
];

/// How much each way decodes.
#[derive(Clone, Copy)]
struct Size {
    prompts: usize,
    len: usize,
}

/// One way to decode, and what it gave.
struct Way {
    name: String,
    draft_len: usize,
    width: usize,
    theirs: bool,
    runs: Runs,
    stats: Stats,
    /// Tokens per round, of llama.cpp's.
    their_rounds: (f64, f64),
}

pub(crate) fn report() {
    let about = "Target: SmolLM2-135M-Instruct (Q8_0) with feed-forward layers **widened** sixteenfold by\n\
         weights that add nothing, so that it says what SmolLM2 says at the cost of a larger model. Drafters: SmolLM2\n\
         requantised (aligned: Q4_0), and **pruned** of blocks (the others).";
    let title = "Speed: plain, drafted, and llama.cpp's own speculation";
    write("speed.md", &MODELS, Size { prompts: 6, len: 48 }, head(title, "just speed", about));
}

pub(crate) fn heads() {
    let about = "Targets: SmolLM2-135M-Instruct (Q4_1), which is hardly larger than what it would take to make\n\
         drafts pay, with an EAGLE-3 head trained for five minutes; and two tiny models of the zoo with a head of their own,\n\
         both of random weights: they agree by chance, and a pass takes no longer than what is around it. What counts\n\
         here is tokens per round, with the same files.";
    let title = "Heads: plain, drafted, and llama.cpp's own driver";
    write("heads.md", &HEADS, Size { prompts: 10, len: 96 }, head(title, "just heads", about));
}

fn write(file: &str, pairs: &[Pair], size: Size, head: impl Fn(&[Prompt], Size, bool) -> String) {
    let theirs = std::env::var_os("LLAMA_SPECULATIVE").is_some();
    let prompts = lab::questions("spec_bench.jsonl", 6);
    let short = |prompt: &Prompt| prompt.text().len() < PROMPT_LEN_MAX;
    let prompts: Vec<Prompt> = prompts.into_iter().filter(short).take(size.prompts).collect();
    let mut text = head(&prompts, size, theirs);
    for pair in pairs {
        let target = lab::target(pair.target, pair.draft.is_none());
        let prompts = lab::in_chat_format(&target, prompts.clone());
        for temperature in [1.0, 0.0] {
            let mut ways = ways(pair.shapes, theirs);
            measure(&target, pair, &mut ways, &prompts, (temperature, size.len));
            table(&mut text, pair, temperature, &ways);
            lab::write(file, &text);
        }
    }
}

/// What comes before the tables.
fn head(title: &str, recipe: &str, about: &str) -> impl Fn(&[Prompt], Size, bool) -> String {
    move |prompts, size, theirs| {
        let mut tasks: Vec<&str> = prompts.iter().map(|prompt| prompt.task.as_str()).collect();
        tasks.dedup();
        format!(
            "# {title}\n\n\
             Made by `{recipe}`. {about} See [models](../../models/README.md).\n\n\
             {} prompts ({}), {} tokens each, all ways taking turns on each prompt; end tokens forbidden in ours. Rates\n\
             count from the first token on. Sampling: the model's own law at temperature 1, or greedy. *over*: ratio of\n\
             rates with its 95 % interval over prompts. *a round takes*: its time, in tokens of plain decoding; a setting is faster\n\
             by as much as its tokens per round exceed that, which is what limits the gain here. *outside*: share of our time\n\
             outside the models' passes. *llama.cpp*: {}.\n\nMachine: {}.\n",
            prompts.len(),
            tasks.join(", "),
            size.len,
            match theirs {
                true => {
                    "`llama-speculative-simple`, `--spec-draft-p-min 0`, `--poll 0` (by default the threads of its two models\n\
                     spin against each other), same files and threads, flash attention on, cached keys in bf16"
                }
                false => "not measured (set LLAMA_SPECULATIVE to its binary)",
            },
            lab::machine()
        )
    }
}

fn ways(shapes: &[(usize, usize)], theirs: bool) -> Vec<Way> {
    let way = |name: String, draft_len, width, theirs| Way {
        name,
        draft_len,
        width,
        theirs,
        runs: Runs::default(),
        stats: Stats::default(),
        their_rounds: (0.0, 0.0),
    };
    let mut ways = vec![way("Forerun, plain".to_owned(), 0, 1, false)];
    for (len, width) in shapes.iter().copied() {
        let name = match width {
            1 => format!("Forerun, block, drafts of {len}"),
            _ => format!("Forerun, pooled, {width} paths of {len}"),
        };
        ways.push(way(name, len, width, false));
        if theirs && width == 1 {
            ways.push(way(format!("llama.cpp, drafts of {len}"), len, 1, true));
        }
    }
    ways
}

fn measure(
    target: &Model,
    pair: &Pair,
    ways: &mut [Way],
    prompts: &[Prompt],
    (temperature, len): (f32, usize),
) {
    // Room for several paths costs time where there is one.
    let mut decoders: BTreeMap<usize, Decoder> = BTreeMap::new();
    for way in &*ways {
        let width = u32::try_from(way.width).expect("few paths");
        decoders.entry(way.width).or_insert_with(|| lab::decoder(target, pair.draft, width));
    }
    for (seed, prompt) in prompts.iter().enumerate() {
        let tokens = lab::tokens(target, prompt);
        // Another way begins each time.
        let count = ways.len();
        for turn in 0..count {
            let way = &mut ways[(seed + turn) % count];
            if way.theirs {
                their_run(way, pair, prompt, (temperature, len), seed);
                continue;
            }
            let sampling = lab::endless(target, temperature);
            let (draft_len, width, seed) = (way.draft_len, way.width, seed as u64);
            let job = Job { prompt: &tokens, draft_len, width, sampling, len, seed };
            let decoder = decoders.get_mut(&width).expect("one for each");
            let (stats, _) = lab::decode(decoder, target, &job);
            way.runs.0.push((stats.committed as f64, stats.time.as_secs_f64()));
            way.stats.merge(&stats);
        }
        eprint!(".");
    }
    eprintln!();
}

/// Runs llama.cpp's own program on the same prompt and reads what it prints of itself.
fn their_run(
    way: &mut Way,
    pair: &Pair,
    prompt: &Prompt,
    (temperature, len): (f32, usize),
    seed: usize,
) {
    let program = std::env::var("LLAMA_SPECULATIVE").expect("asked for");
    let mut command = Command::new(program);
    command.arg("-m").arg(lab::path(pair.target));
    if let Some(draft) = pair.draft {
        command.arg("-md").arg(lab::path(draft));
    }
    command.args([
        "--spec-type",
        pair.spec_type,
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
    command.arg("-t").arg(lab::threads().to_string()).arg("-n").arg(len.to_string());
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

fn table(text: &mut String, pair: &Pair, temperature: f32, ways: &[Way]) {
    let (kind, target) = (pair.kind, pair.target);
    let drafter = pair.draft.map_or("its own head".to_owned(), |draft| format!("drafter {draft}"));
    let plain = &ways[0].runs;
    let best = ways
        .iter()
        .filter(|way| way.theirs)
        .max_by(|one, other| one.runs.rate().total_cmp(&other.runs.rate()));
    writeln!(
        text,
        "\n## {kind} pair, temperature {temperature}: {target}, {drafter}\n\n\
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
