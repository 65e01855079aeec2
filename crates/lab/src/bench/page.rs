//! The report as a page: one file, with pictures, tables and what every word means.

mod about;

use maud::{Markup, html};

use super::plot::{self, Group, Line};
use super::report::{Cell, Place, Report, Spread};
use super::summary;
use crate::html;

/// Larger passes read prompts: drafts are not so long, and the chart would show nothing else.
const PASS_MAX: usize = 16;

/// Lines of one chart that can still be told apart.
const LINES_MAX: usize = 6;

/// The page. `data` is the name of the JSON file beside it.
pub(super) fn page(report: &Report, data: &str) -> String {
    let body = html! {
        (opening(report))
        (speedups(report))
        (settings(report))
        (users(report))
        (tasks(report))
        (acceptance(report))
        (times(report))
        (costs(report))
        (about::definitions(report))
        (about::method(report))
        (about::record(report, data))
    };
    html::page(&format!("Benchmark of {}", subject(report)), plot::STYLE, &body)
}

/// What was measured, in a few words.
fn subject(report: &Report) -> String {
    match (&report.config.target, &report.config.server) {
        (Some(target), _) => target.name.clone(),
        (None, Some(server)) => format!("{} at {}", server.model, server.url),
        (None, None) => "nothing".to_owned(),
    }
}

fn opening(report: &Report) -> Markup {
    let config = &report.config;
    let mut models = vec![subject(report)];
    models.extend(config.drafters.iter().map(|file| file.name.clone()));
    let processor = config.machine.processor.as_deref().unwrap_or("an unknown processor");
    let verdict = summary::verdict(report);
    html! {
        @if !verdict.is_empty() {
            p.verdict {
                @for (index, line) in verdict.iter().enumerate() {
                    @if index > 0 { br; }
                    (line)
                }
            }
        }
        @for line in summary::notices(report) { p.notice { (line) } }
        p.soft {
            (report.date) ". " (models.join(", ")) " on " (processor) ", "
            (config.machine.threads) " threads."
        }
    }
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

/// A section with a picture for each temperature that has one; nothing if none has.
fn pictures(title: &str, about: &str, figures: &[Markup]) -> Markup {
    html! {
        @if !figures.is_empty() {
            h2 { (title) }
            @if !about.is_empty() { p { (about) } }
            div.plots { @for figure in figures { (figure) } }
        }
    }
}

fn speedups(report: &Report) -> Markup {
    let mut figures = Vec::new();
    for temperature in &report.config.temperatures {
        let groups = grouped(report, *temperature, |cell| cell.speedup);
        if !groups.is_empty() {
            figures.push(plot::speedups(&format!("Temperature {temperature}"), &groups));
        }
    }
    let about = "Points with their 95 % intervals; the dashed line is plain decoding. What lies right \
                 of it, interval and all, is faster.";
    pictures("Speedup over plain decoding", about, &figures)
}

/// A table with a heading for each group.
fn grouped_table(head: &[&str], groups: &[Group<Vec<String>>]) -> Markup {
    let class = |column: usize| (column > 0).then_some("number");
    html! {
        div.wide {
            table {
                thead {
                    tr {
                        @for (column, name) in head.iter().enumerate() {
                            th class=[class(column)] { (name) }
                        }
                    }
                }
                tbody {
                    @for group in groups {
                        @if !group.name.is_empty() {
                            tr.group { th colspan=(head.len()) { (group.name) } }
                        }
                        @for (label, cells) in &group.rows {
                            tr {
                                td.label { (label) }
                                @for cell in cells { td.number { (cell) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A table under the temperature it is about.
fn at(temperature: f32, table: &Markup) -> Markup {
    html! {
        h3 { "Temperature " (temperature) }
        (table)
    }
}

/// All figures of all settings.
fn settings(report: &Report) -> Markup {
    let local = report.config.target.is_some();
    let table = |temperature: f32| {
        let greedy = temperature == 0.0 && local;
        let mut head =
            vec!["setting", "tokens/s", "speedup", "tokens per round", "accepted length", "rate"];
        head.extend(["MBSU", "outside"].into_iter().filter(|_| local));
        head.extend(Some("differ").filter(|_| greedy));
        let row = |cell: &Cell| {
            let mut row = vec![
                number(cell.tokens_per_second, 1),
                cell.speedup.map_or("–".to_owned(), |it| it.to_string()),
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
        at(temperature, &grouped_table(&head, &grouped(report, temperature, row)))
    };
    html! {
        h2 { "All settings" }
        @for temperature in &report.config.temperatures { (table(*temperature)) }
    }
}

/// What users of a server see.
fn users(report: &Report) -> Markup {
    let mut tables = Vec::new();
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
            let head = ["setting", "tokens/s, all", "first token", "each token", "between pieces"];
            tables.push(at(*temperature, &grouped_table(&head, &groups)));
        }
    }
    html! {
        @if !tables.is_empty() {
            h2 { "What users see" }
            p { "Milliseconds, middle / 99th percentile." }
            @for table in &tables { (table) }
        }
    }
}

fn tasks(report: &Report) -> Markup {
    let tasks = report.tasks();
    if tasks.len() < 2 || report.cells.iter().all(|cell| cell.speedup.is_none()) {
        return html! {};
    }
    let table = |temperature: f32| {
        let row = |cell: &Cell| {
            cell.speedup?;
            let speedup = |task: &&str| {
                let own = |it: &&Cell| {
                    (it.setting.as_str(), it.temperature, it.task.as_deref())
                        == (cell.setting.as_str(), temperature, Some(*task))
                };
                let found = report.cells.iter().find(own).and_then(|it| it.speedup);
                found.map_or("–".to_owned(), |it| it.to_string())
            };
            Some(tasks.iter().map(speedup).collect::<Vec<_>>())
        };
        let mut head = vec!["setting"];
        head.extend(&tasks);
        at(temperature, &grouped_table(&head, &grouped(report, temperature, row)))
    };
    html! {
        h2 { "Speedup by task" }
        @for temperature in &report.config.temperatures { (table(*temperature)) }
    }
}

fn acceptance(report: &Report) -> Markup {
    let (mut figures, mut tables) = (Vec::new(), Vec::new());
    for temperature in &report.config.temperatures {
        let drafted = |cell: &Cell| (!cell.positions.is_empty()).then(|| cell.positions.clone());
        let groups = grouped(report, *temperature, drafted);
        for group in &groups {
            for part in group.rows.chunks(LINES_MAX) {
                let line = |(label, places): &(String, Vec<Place>)| {
                    let shares = places.iter().map(|place| place.acceptance.unwrap_or(0.0));
                    let points = (1..).map(f64::from).zip(shares).collect();
                    Line { label: label.clone(), points }
                };
                let lines: Vec<Line> = part.iter().map(line).collect();
                let caption = format!("{}, temperature {temperature}", group.name);
                figures.push(plot::acceptance(&caption, &lines));
            }
        }
        tables.extend(conditional(groups).map(|table| at(*temperature, &table)));
    }
    let about = "Of the rounds that drafted a position, those that accepted it. The tables have the \
                 same of the rounds that accepted all before it (conditional acceptance, n-alpha).";
    html! {
        (pictures("Acceptance by position", about, &figures))
        @for table in &tables { (table) }
    }
}

/// How often positions were accepted if all before them were; nothing if nothing was drafted.
fn conditional(groups: Vec<Group<Vec<Place>>>) -> Option<Markup> {
    let all = groups.iter().flat_map(|group| &group.rows);
    let most = all.map(|(_, places)| places.len()).max().filter(|most| *most > 0)?;
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
    let rows: Vec<Group<Vec<String>>> = groups.into_iter().map(shown).collect();
    Some(grouped_table(&head, &rows))
}

fn times(report: &Report) -> Markup {
    let mut figures = Vec::new();
    for temperature in &report.config.temperatures {
        let parts = |cell: &Cell| cell.time_per_token.map(|split| split.parts());
        let groups = grouped(report, *temperature, parts);
        if !groups.is_empty() {
            let caption = format!("Milliseconds for each token, temperature {temperature}");
            figures.push(plot::splits(&caption, &groups));
        }
    }
    pictures("Where the time goes", "", &figures)
}

fn costs(report: &Report) -> Markup {
    let line = |curve: &super::report::Curve| {
        let (_, one) = *curve.points.first()?;
        let points = curve.points.iter().filter(|(tokens, _)| *tokens <= PASS_MAX);
        let points = points.map(|(tokens, it)| (*tokens as f64, it / one)).collect();
        Some(Line { label: format!("{:.1} ms: {}", 1000.0 * one, curve.model), points })
    };
    let lines: Vec<Line> = report.costs.iter().filter_map(line).collect();
    let figure =
        |lines: &[Line]| plot::costs("Passes over several tokens, in passes over one", lines);
    let figures: Vec<Markup> = lines.chunks(LINES_MAX).map(figure).collect();
    let about = "Checking a draft of n tokens is a pass over n + 1. The flatter the target's curve and \
                 the shorter a draft model's pass (given for one token), the more drafting pays.";
    pictures("What a pass costs", about, &figures)
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or("–".to_owned(), |value| format!("{value:.digits$}"))
}

fn percent(value: Option<f64>) -> String {
    value.map_or("–".to_owned(), |value| format!("{:.0} %", 100.0 * value))
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
            "Speedup over plain decoding",
            "Speedup by task",
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
