//! What stands below the figures: what the words mean, how it was measured, and what ran.

use maud::{Markup, html};

use super::super::report::{Reading, Report};
use super::super::summary;
use crate::html;
use crate::machine::ModelFile;
use crate::span::Span;
use crate::words::bytes;

/// What only a run of our own models can tell.
const LOCAL_TERMS: [(&str, &str); 4] = [
    (
        "conditional acceptance (n-alpha)",
        "Of the rounds that drafted position n and accepted all before it, those that accepted it.",
    ),
    (
        "MBSU (memory-bound speedup)",
        "Tokens per round / (c · L + 1): the speedup if a pass took as long as reading its weights \
         (arXiv 2402.14160). c is the draft model's file size over the target's, L its passes per \
         round, one after the other; several paths share a pass.",
    ),
    ("outside", "Share of the time in neither the target's passes nor a draft model's."),
    (
        "differ",
        "Outputs that are not plain decoding's. At temperature 0 every setting should write the same. \
         Where two tokens are equally likely to the last bits, the shape of a pass may tip the scales.",
    ),
];

/// What every word means.
pub(super) fn definitions(report: &Report) -> Markup {
    let mut terms = vec![
        (
            "tokens/s",
            "Tokens after the first of each text, by the time they took. Reading the prompt is not in \
             it, neither the target's nor a draft model's.",
        ),
        (
            "speedup",
            "Tokens a second over those of plain decoding for the same prompts in the same repeats. In \
             brackets its 95 % interval: prompts drawn anew with replacement, widened for few prompts.",
        ),
        (
            "tokens per round (block efficiency)",
            "Committed tokens per round, the one that the target adds itself included. A round is one \
             pass of the target, so these are tokens per target pass too. Plain decoding has 1.",
        ),
        (
            "accepted length",
            "Accepted drafted tokens per round. Spec-Bench's “mean accepted tokens” counts the target's \
             own token too: it is this and one more (accepted_tokens in the JSON file).",
        ),
        ("rate (acceptance rate)", "Accepted tokens per drafted token, on all paths of a draft."),
    ];
    if report.config.server.is_some() {
        terms.push((
            "first token, each token, between pieces",
            "From sending a request to its first text; from there to its last, by the tokens the server \
             says it made; and between the pieces of the stream, which may hold several tokens.",
        ));
    } else {
        terms.extend(LOCAL_TERMS);
    }
    html! {
        h2 { "What the words mean" }
        dl {
            @for (term, meaning) in terms {
                dt { (term) }
                dd { (meaning) }
            }
        }
    }
}

/// How it was done.
pub(super) fn method(report: &Report) -> Markup {
    let (config, stop) = (&report.config, &report.config.stop);
    let mut tasks: Vec<(String, usize)> = Vec::new();
    for prompt in &config.prompts[..report.prompts.min(config.prompts.len())] {
        match tasks.iter_mut().find(|(task, _)| *task == prompt.task) {
            Some((_, count)) => *count += 1,
            None => tasks.push((prompt.task.clone(), 1)),
        }
    }
    let tasks: Vec<String> =
        tasks.iter().map(|(task, count)| format!("{count} of {task}")).collect();
    let how = if config.server.is_some() {
        "Closed-loop users: each sends a request, reads its stream to the end, and sends the next. \
         The users of one setting have the server for themselves, and settings take turns. Every prompt \
         was sent once before, so that all settings find the same in the server's cache."
    } else {
        "All settings take turns on each prompt, another one first each time, so that what else the \
         machine does falls on all alike. Before that each wrote a text that does not count. Decoding \
         is compared: target and drafters have read the prompt before time counts. Drafters forget each \
         text before the next, so none drafts what it has seen another setting write; a suffix drafter \
         learns from the text at hand alone."
    };
    let fixed = config.server.as_ref().is_none_or(|server| server.fixed_len);
    let length = match fixed {
        true => "End tokens are forbidden, so that all outputs have one length.",
        false => "This server ends outputs where the model does, so they differ in length.",
    };
    let reading = |it: &Reading| {
        let rate = it.tokens_per_second?;
        Some(format!("{} {rate:.0} ({} tokens)", it.model, it.tokens))
    };
    let reading: Vec<String> = report.prompt_reading.iter().filter_map(reading).collect();
    let left_out = config.left_out.iter().map(|left| [left.what.clone(), left.reason.clone()]);
    let left_out: Vec<[String; 2]> = left_out.collect();
    html! {
        h2 { "How it was measured" }
        p { (how) " " (length) }
        p {
            (summary::count(report.prompts, "prompt")) " (" (tasks.join(", ")) "), "
            (config.text_len) " tokens each, " (summary::count(report.repeats, "whole repeat"))
            ", seed " (config.seed) ". The run was to end after " (stop.repeats) " repeats, "
            (Span { seconds: stop.time_limit_s })
            ", or once every interval reaches no further than "
            (format!("{:.1}", 100.0 * stop.precision)) " % either side; it ended by "
            b { (report.ended) } "."
        }
        @if !reading.is_empty() {
            p { "Reading prompts, in tokens a second: " (reading.join(", ")) "." }
        }
        @if !left_out.is_empty() {
            h3 { "Left out" }
            (html::table(&["what", "why"], 2, &left_out))
        }
    }
}

/// What it takes to do it again.
pub(super) fn record(report: &Report, data: &str) -> Markup {
    let config = &report.config;
    let mut rows: Vec<[String; 2]> = Vec::new();
    let mut row = |name: &str, value: &str| rows.push([name.to_owned(), value.to_owned()]);
    let file =
        |file: &ModelFile| format!("{}, {}, SHA-256 {}", file.name, bytes(file.bytes), file.sha256);
    config.target.iter().for_each(|target| row("target", &file(target)));
    config.drafters.iter().for_each(|drafter| row("draft model", &file(drafter)));
    if let Some(engine) = &config.engine {
        let [keys, values] = [&engine.cache_keys, &engine.cache_values]
            .map(|format| format.as_deref().unwrap_or("default"));
        row(
            "engine",
            &format!(
                "context of {}, {} threads ({} for several tokens), batches of {} and {}, {} paths, \
                 cache {keys} and {values}, flash attention {}, GPU layers {}, files: {}",
                engine.context_len,
                engine.threads,
                engine.threads_batch,
                engine.batch_len,
                engine.pass_len,
                engine.paths,
                engine.flash_attention,
                engine.gpu_layers,
                engine.load_mode
            ),
        );
    }
    if let Some(server) = &config.server {
        let build = server.fingerprint.as_deref().unwrap_or("unknown build");
        let plain = server.plain_url.as_deref().unwrap_or("the same");
        row("server", &format!("{}, {build}; without speculation: {plain}", server.url));
    }
    let shape = |value: Option<String>| value.unwrap_or_else(|| "the server's".to_owned());
    row(
        "sampling",
        &format!(
            "top-k {}, top-p {}, min-p {} (0, 1 and 0 keep all)",
            shape(config.top_k.map(|it| it.to_string())),
            shape(config.top_p.map(|it| it.to_string())),
            shape(config.min_p.map(|it| it.to_string()))
        ),
    );
    let machine = &config.machine;
    let memory = machine.memory_bytes.map_or("memory unknown".to_owned(), bytes);
    let processor = machine.processor.as_deref().unwrap_or("processor unknown");
    let (threads, system) = (machine.threads, &machine.system);
    row("machine", &format!("{processor}, {threads} threads, {memory}, {system}"));
    let build = &config.build;
    let commit = build.commit.as_deref().unwrap_or("commit unknown");
    row("build", &format!("{}, {commit}, {}, {}", build.version, build.profile, build.llama));
    row("processor features", &build.processor_features);
    html! {
        h2 { "What ran" }
        (html::table(&["", ""], 2, &rows))
        p.soft {
            "All measurements are in " (data) "; " code { "forerun bench compare" }
            " compares two such files."
        }
    }
}
