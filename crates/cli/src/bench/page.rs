//! The report as a page: one file, with pictures, tables and what every word means.

use std::fmt::Write as _;

use super::plot::{self, Group, Line, interval_text};
use super::report::{Cell, Place, Report, Spread};
use super::summary;
use crate::html::{escape, page_styled, table};
use crate::machine::ModelFile;
use crate::span::Span;
use crate::terminal::bytes;

/// Larger passes read prompts: drafts are not so long, and the chart would show nothing else.
const PASS_MAX: usize = 16;

/// Lines of one chart that can still be told apart.
const LINES_MAX: usize = 6;

/// The page. `data` is the name of the JSON file beside it.
pub(super) fn page(report: &Report, data: &str) -> String {
    let mut body = opening(report);
    body += &speedups(report);
    body += &settings(report);
    body += &users(report);
    body += &tasks(report);
    body += &acceptance(report);
    body += &times(report);
    body += &costs(report);
    body += &definitions(report);
    body += &method(report);
    body += &record(report, data);
    page_styled(&format!("Benchmark of {}", subject(report)), plot::STYLE, &body)
}

/// What was measured, in a few words.
fn subject(report: &Report) -> String {
    match (&report.config.target, &report.config.server) {
        (Some(target), _) => target.name.clone(),
        (None, Some(server)) => format!("{} at {}", server.model, server.url),
        (None, None) => "nothing".to_owned(),
    }
}

fn opening(report: &Report) -> String {
    let mut text = String::new();
    let said: Vec<String> = summary::verdict(report).iter().map(|line| escape(line)).collect();
    if !said.is_empty() {
        add(&mut text, format_args!("<p class=\"verdict\">{}</p>", said.join("<br>\n")));
    }
    for line in summary::notices(report) {
        add(&mut text, format_args!("<p class=\"notice\">{}</p>", escape(&line)));
    }
    let config = &report.config;
    let mut models = vec![subject(report)];
    models.extend(config.drafters.iter().map(|file| file.name.clone()));
    let processor = config.machine.processor.as_deref().unwrap_or("an unknown processor");
    add(
        &mut text,
        format_args!(
            "<p class=\"soft\">{}. {} on {}, {} threads.</p>",
            report.date,
            escape(&models.join(", ")),
            escape(processor),
            config.machine.threads
        ),
    );
    text
}

/// Cells by what drafts, in the order of settings.
fn grouped<T>(
    report: &Report,
    temperature: f32,
    value: impl Fn(&Cell) -> Option<T>,
) -> Vec<Group<T>> {
    let mut groups: Vec<Group<T>> = Vec::new();
    for cell in report.overall(temperature) {
        let Some(value) = value(cell) else { continue };
        let setting = report.setting(cell);
        let name = if report.config.server.is_some() { String::new() } else { setting.group() };
        let row = (setting.label(), value);
        match groups.last_mut().filter(|last| last.name == name) {
            Some(last) => last.rows.push(row),
            None => groups.push(Group { name, rows: vec![row] }),
        }
    }
    groups
}

fn speedups(report: &Report) -> String {
    let mut figures = String::new();
    for temperature in &report.config.temperatures {
        let groups = grouped(report, *temperature, |cell| cell.speedup);
        if !groups.is_empty() {
            let caption = format!("Temperature {temperature}");
            figures += &plot::speedups(&caption, &groups);
        }
    }
    if figures.is_empty() {
        return figures;
    }
    format!(
        "<h2>Speed-up over plain decoding</h2>\n<p>Points with their 95 % intervals; the dashed line \
         is plain decoding. What lies right of it, interval and all, is faster.</p>\n\
         <div class=\"plots\">\n{figures}</div>\n"
    )
}

/// A table with a heading for each group; labels and cells are markup but for the labels.
fn grouped_table(head: &[&str], groups: &[Group<Vec<String>>]) -> String {
    let mut text = "<div class=\"wide\"><table>\n<thead><tr>".to_owned();
    for (column, name) in head.iter().enumerate() {
        let class = if column == 0 { "" } else { " class=\"number\"" };
        add(&mut text, format_args!("<th{class}>{}</th>", escape(name)));
    }
    text += "</tr></thead>\n<tbody>\n";
    for group in groups {
        if !group.name.is_empty() {
            let (columns, name) = (head.len(), escape(&group.name));
            add(
                &mut text,
                format_args!("<tr class=\"group\"><th colspan=\"{columns}\">{name}</th></tr>"),
            );
        }
        for (label, cells) in &group.rows {
            let label = escape(label);
            let cells: String =
                cells.iter().map(|cell| format!("<td class=\"number\">{cell}</td>")).collect();
            add(&mut text, format_args!("<tr><td class=\"label\">{label}</td>{cells}</tr>"));
        }
    }
    text + "</tbody></table></div>\n"
}

/// All figures of all settings.
fn settings(report: &Report) -> String {
    let mut text = "<h2>All settings</h2>\n".to_owned();
    let local = report.config.target.is_some();
    for temperature in &report.config.temperatures {
        let greedy = *temperature == 0.0 && local;
        let mut head =
            vec!["setting", "tokens/s", "speed-up", "tokens per round", "accepted length", "rate"];
        head.extend(["MBSU", "outside"].into_iter().filter(|_| local));
        head.extend(Some("differ").filter(|_| greedy));
        let row = |cell: &Cell| {
            let mut row = vec![
                number(cell.tokens_per_second, 1),
                cell.speedup.as_ref().map_or("–".to_owned(), interval_text),
                number(cell.block_efficiency, 2),
                number(cell.accepted_length, 2),
                percent(cell.acceptance_rate),
            ];
            if local {
                row.push(number(cell.memory_bound_speedup, 2));
                row.push(percent(cell.time_per_token.map(|split| {
                    let [target, draft, ..] = split.parts();
                    1.0 - (target + draft) / split.parts().iter().sum::<f64>()
                })));
            }
            if greedy {
                let of = |count| format!("{count} of {}", cell.texts);
                row.push(cell.differing.map_or("–".to_owned(), of));
            }
            Some(row)
        };
        add(&mut text, format_args!("<h3>Temperature {temperature}</h3>"));
        text += &grouped_table(&head, &grouped(report, *temperature, row));
    }
    text
}

/// What users of a server see.
fn users(report: &Report) -> String {
    let mut text = String::new();
    for temperature in &report.config.temperatures {
        let seconds = |spread: &Spread| {
            let show = |value: Option<f64>| {
                value.map_or("–".to_owned(), |it| format!("{:.0}", 1000.0 * it))
            };
            format!("{} / {}", show(spread.p50), show(spread.p99))
        };
        let row = |cell: &Cell| {
            let users = cell.users?;
            let spreads = [&users.first_token_s, &users.token_s, &users.gap_s].map(seconds);
            let rate = number(users.tokens_per_second, 1);
            Some(std::iter::once(rate).chain(spreads).collect::<Vec<_>>())
        };
        let groups = grouped(report, *temperature, row);
        if !groups.is_empty() {
            add(&mut text, format_args!("<h3>Temperature {temperature}</h3>"));
            let head = ["setting", "tokens/s, all", "first token", "each token", "between pieces"];
            text += &grouped_table(&head, &groups);
        }
    }
    if text.is_empty() {
        return text;
    }
    let about = "<h2>What users see</h2>\n<p>Milliseconds, middle / 99th percentile.</p>\n";
    format!("{about}{text}")
}

fn tasks(report: &Report) -> String {
    let tasks = report.tasks();
    if tasks.len() < 2 || report.cells.iter().all(|cell| cell.speedup.is_none()) {
        return String::new();
    }
    let mut text = "<h2>Speed-up by task</h2>\n".to_owned();
    for temperature in &report.config.temperatures {
        let row = |cell: &Cell| {
            cell.speedup?;
            let speedup = |task: &&str| {
                let own = |it: &&Cell| {
                    (it.setting.as_str(), it.temperature, it.task.as_deref())
                        == (cell.setting.as_str(), *temperature, Some(*task))
                };
                let found = report.cells.iter().find(own).and_then(|it| it.speedup);
                found.as_ref().map_or("–".to_owned(), interval_text)
            };
            Some(tasks.iter().map(speedup).collect::<Vec<_>>())
        };
        let mut head = vec!["setting"];
        head.extend(&tasks);
        add(&mut text, format_args!("<h3>Temperature {temperature}</h3>"));
        text += &grouped_table(&head, &grouped(report, *temperature, row));
    }
    text
}

fn acceptance(report: &Report) -> String {
    let (mut figures, mut tables) = (String::new(), String::new());
    for temperature in &report.config.temperatures {
        let drafted = |cell: &Cell| (!cell.positions.is_empty()).then(|| cell.positions.clone());
        let mut groups = grouped(report, *temperature, drafted);
        for group in &groups {
            for part in group.rows.chunks(LINES_MAX) {
                let line = |(label, places): &(String, Vec<Place>)| {
                    let shares = places.iter().map(|place| place.acceptance.unwrap_or(0.0));
                    let points = (1..).map(f64::from).zip(shares).collect();
                    Line { label: label.clone(), points }
                };
                let lines: Vec<Line> = part.iter().map(line).collect();
                let caption = format!("{}, temperature {temperature}", group.name);
                figures += &plot::acceptance(&caption, &lines);
            }
        }
        let all = groups.iter().flat_map(|group| &group.rows);
        let most = all.map(|(_, places)| places.len()).max().unwrap_or(0);
        if most == 0 {
            continue;
        }
        let cells = |places: Vec<Place>| {
            let mut cells: Vec<String> =
                places.iter().map(|place| percent(place.conditional)).collect();
            cells.resize(most, "–".to_owned());
            cells
        };
        let shown = |group: Group<Vec<Place>>| Group {
            name: group.name,
            rows: group.rows.into_iter().map(|(label, it)| (label, cells(it))).collect(),
        };
        let places: Vec<String> = (1..=most).map(|place| place.to_string()).collect();
        let mut head = vec!["conditional acceptance"];
        head.extend(places.iter().map(String::as_str));
        let rows: Vec<Group<Vec<String>>> = groups.drain(..).map(shown).collect();
        add(&mut tables, format_args!("<h3>Temperature {temperature}</h3>"));
        tables += &grouped_table(&head, &rows);
    }
    if figures.is_empty() {
        return figures;
    }
    format!(
        "<h2>Acceptance by position</h2>\n<p>Of the rounds that drafted a position, those that \
         accepted it. The tables have the same of the rounds that accepted all before it \
         (conditional acceptance, n-alpha).</p>\n<div class=\"plots\">\n{figures}</div>\n{tables}"
    )
}

fn times(report: &Report) -> String {
    let mut figures = String::new();
    for temperature in &report.config.temperatures {
        let parts = |cell: &Cell| cell.time_per_token.map(|split| split.parts());
        let groups = grouped(report, *temperature, parts);
        if !groups.is_empty() {
            let caption = format!("Milliseconds for each token, temperature {temperature}");
            figures += &plot::splits(&caption, &groups);
        }
    }
    if figures.is_empty() {
        return figures;
    }
    format!("<h2>Where the time goes</h2>\n<div class=\"plots\">\n{figures}</div>\n")
}

fn costs(report: &Report) -> String {
    let line = |curve: &super::report::Curve| {
        let (_, one) = *curve.points.first()?;
        let points = curve.points.iter().filter(|(tokens, _)| *tokens <= PASS_MAX);
        let points = points.map(|(tokens, it)| (*tokens as f64, it / one)).collect();
        Some(Line { label: format!("{:.1} ms: {}", 1000.0 * one, curve.model), points })
    };
    let lines: Vec<Line> = report.costs.iter().filter_map(line).collect();
    if lines.is_empty() {
        return String::new();
    }
    let figures: String = lines
        .chunks(LINES_MAX)
        .map(|lines| plot::costs("Passes over several tokens, in passes over one", lines))
        .collect();
    format!(
        "<h2>What a pass costs</h2>\n<p>Checking a draft of n tokens is a pass over n + 1. The flatter \
         the target's curve and the shorter a draft model's pass (given for one token), the more \
         drafting pays.</p>\n\
         <div class=\"plots\">\n{figures}</div>\n"
    )
}

/// What only a run of our own models can tell.
const LOCAL_TERMS: [(&str, &str); 4] = [
    (
        "conditional acceptance (n-alpha)",
        "Of the rounds that drafted position n and accepted all before it, those that accepted it.",
    ),
    (
        "MBSU (memory-bound speed-up)",
        "Tokens per round / (c · L + 1): the speed-up if a pass took as long as reading its weights \
         (arXiv 2402.14160). c is the draft model's file size over the target's, L its passes per \
         round, one after the other; several paths share a pass.",
    ),
    ("outside", "Share of the time in neither the target's passes nor a draft model's."),
    (
        "differ",
        "Texts that are not plain decoding's. At temperature 0 every setting should write the same. \
         Where two tokens are equally likely to the last bits, the shape of a pass may tip the scales.",
    ),
];

/// What every word means.
fn definitions(report: &Report) -> String {
    let mut terms = vec![
        (
            "tokens/s",
            "Tokens after the first of each text, by the time they took. Reading the prompt is not in \
             it, neither the target's nor a draft model's.",
        ),
        (
            "speed-up",
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
    let mut text = "<h2>What the words mean</h2>\n<dl>\n".to_owned();
    for (term, meaning) in terms {
        add(&mut text, format_args!("<dt>{term}</dt><dd>{meaning}</dd>"));
    }
    text + "</dl>\n"
}

/// How it was done.
fn method(report: &Report) -> String {
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
    let mut text = "<h2>How it was measured</h2>\n".to_owned();
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
        true => "End tokens are forbidden, so that all texts have one length.",
        false => "This server ends texts where the model does, so they differ in length.",
    };
    add(&mut text, format_args!("<p>{how} {length}</p>"));
    add(
        &mut text,
        format_args!(
            "<p>{} ({}), {} tokens each, {}, seed {}. The run was to end after {} \
             repeats, {}, or once every interval reaches no further than {:.1} % either side; it \
             ended by <b>{}</b>.</p>",
            summary::count(report.prompts, "prompt"),
            escape(&tasks.join(", ")),
            config.text_len,
            summary::count(report.repeats, "whole repeat"),
            config.seed,
            stop.repeats,
            Span { seconds: stop.time_limit_s },
            100.0 * stop.precision,
            escape(&report.ended)
        ),
    );
    let reading = |it: &super::report::Reading| {
        let rate = it.tokens_per_second?;
        Some(format!("{} {rate:.0} ({} tokens)", escape(&it.model), it.tokens))
    };
    let reading: Vec<String> = report.prompt_reading.iter().filter_map(reading).collect();
    if !reading.is_empty() {
        let reading = reading.join(", ");
        add(&mut text, format_args!("<p>Reading prompts, in tokens a second: {reading}.</p>"));
    }
    if !config.left_out.is_empty() {
        let rows: Vec<[String; 2]> =
            config.left_out.iter().map(|left| [escape(&left.what), escape(&left.reason)]).collect();
        text += "<h3>Left out</h3>\n";
        text += &table(&["what", "why"], 2, &rows);
    }
    text
}

/// What it takes to do it again.
fn record(report: &Report, data: &str) -> String {
    let config = &report.config;
    let mut rows: Vec<[String; 2]> = Vec::new();
    let mut row = |name: &str, value: &str| rows.push([name.to_owned(), escape(value)]);
    let file =
        |file: &ModelFile| format!("{}, {}, SHA-256 {}", file.name, bytes(file.bytes), file.sha256);
    config.target.iter().for_each(|target| row("target", &file(target)));
    config.drafters.iter().for_each(|drafter| row("draft model", &file(drafter)));
    if let Some(engine) = &config.engine {
        let values = engine.cache_values.as_deref().unwrap_or("default");
        row(
            "engine",
            &format!(
                "context of {}, {} threads ({} for several tokens), batches of {} and {}, {} paths, \
                 cache {} and {values}, flash attention {}, GPU layers {}, files: {}",
                engine.context_len,
                engine.threads,
                engine.threads_batch,
                engine.batch_len,
                engine.pass_len,
                engine.paths,
                engine.cache_keys,
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
    let data = escape(data);
    format!(
        "<h2>What ran</h2>\n{}<p class=\"soft\">All measurements are in {data}; \
         <code>forerun bench compare</code> compares two such files.</p>\n",
        table(&["", ""], 2, &rows)
    )
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or("–".to_owned(), |value| format!("{value:.digits$}"))
}

fn percent(value: Option<f64>) -> String {
    value.map_or("–".to_owned(), |value| format!("{:.0} %", 100.0 * value))
}

fn add(text: &mut String, markup: std::fmt::Arguments<'_>) {
    text.write_fmt(markup).expect("strings take all text");
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::super::plan::Ended;
    use super::super::report::{Curve, sample};
    use super::*;

    fn local() -> Report {
        let config = sample::config();
        let measures = sample::measures(&config);
        let costs = vec![Curve { model: "target".to_owned(), points: vec![(1, 0.1), (4, 0.2)] }];
        Report::new(config, measures, costs, ("2026-01-02".to_owned(), Ended::Precise))
    }

    #[test]
    fn the_page_has_every_part_and_nothing_from_elsewhere() {
        let page = page(&local(), "bench.json");
        for said in [
            "Speed-up over plain decoding",
            "Speed-up by task",
            "Acceptance by position",
            "Where the time goes",
            "What a pass costs",
            "What the words mean",
            "tokens per target pass",
            "a &lt;b&gt;",
            "bench.json",
            &"00".repeat(32),
        ] {
            assert!(page.contains(said), "{said}");
        }
        assert!(!page.contains("src=") && !page.contains("href=") && !page.contains("@import"));
        assert_eq!(page.matches("<figure>").count(), page.matches("</figure>").count());
    }

    #[test]
    fn a_server_s_page_has_what_users_see_and_no_passes() {
        let (config, measures) = sample::server();
        let about = ("2026-01-02".to_owned(), Ended::Precise);
        let page = page(&Report::new(config, measures, Vec::new(), about), "bench.json");
        assert!(page.contains("What users see") && page.contains("speculation, 4 users"));
        assert!(!page.contains("What a pass costs") && !page.contains("Where the time goes"));
    }
}
