//! The report in a few lines, for the terminal and the head of the page.

use std::fmt::Write as _;

use super::plan::{Ended, ORACLE};
use super::report::{Cell, Report};

/// What is fastest, for each temperature; of a server, what each number of users gains.
pub(super) fn verdict(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    if report.config.server.is_some() {
        for cell in report.cells.iter().filter(|cell| cell.task.is_none()) {
            if let Some(speedup) = &cell.speedup {
                let (name, figure) = (&cell.setting, speedup.to_string());
                let temperature = cell.temperature;
                lines.push(format!(
                    "Temperature {temperature}: {name}, is {figure} times as fast as plain decoding."
                ));
            }
        }
        return lines;
    }
    // Nobody has an oracle.
    let foretold = |cell: &Cell| {
        let mut settings = report.config.settings.iter();
        settings
            .any(|it| it.name == cell.setting && it.drafters.iter().any(|by| by == ORACLE.name()))
    };
    for temperature in &report.config.temperatures {
        let compared: Vec<&Cell> = report
            .overall(*temperature)
            .into_iter()
            .filter(|cell| cell.speedup.is_some() && !foretold(cell))
            .collect();
        let value = |cell: &&&Cell| cell.speedup.map_or(0.0, |it| it.value);
        let best = compared.iter().max_by(|one, other| value(one).total_cmp(&value(other)));
        let Some((best, speedup)) = best.and_then(|best| Some((best, best.speedup?))) else {
            continue;
        };
        let sure = speedup.low.is_some_and(|low| low > 1.0);
        let figure = speedup.to_string();
        lines.push(match (sure, speedup.value > 1.0) {
            (true, _) => format!(
                "Temperature {temperature}: {} is fastest, {figure} times plain decoding.",
                best.setting
            ),
            (false, true) => format!(
                "Temperature {temperature}: {} is fastest, {figure} times plain decoding, which may \
                 be noise.",
                best.setting
            ),
            (false, false) => format!(
                "Temperature {temperature}: plain decoding is fastest; {} comes next, {figure} \
                 times as fast.",
                best.setting
            ),
        });
    }
    lines
}

/// What one should know before one reads the figures.
pub(super) fn notices(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    if report.config.quick {
        lines
            .push("A quick run: few prompts and short outputs, for a first impression.".to_owned());
    }
    if report.ended == Ended::Interrupted.name() {
        let texts = report.measures.len();
        lines
            .push(format!("Interrupted: these are the figures of the {texts} outputs until then."));
    }
    if report.ended == Ended::Time.name() && report.repeats == 0 {
        lines.push("The time was up before every setting had its turn.".to_owned());
    }
    let asked = tasks_of(report.config.prompts.iter().map(|prompt| prompt.task.as_str()));
    let measured = report.tasks();
    let missing: Vec<&str> = asked.into_iter().filter(|task| !measured.contains(task)).collect();
    if !missing.is_empty() {
        lines.push(format!("There was no time for these tasks: {}.", missing.join(", ")));
    }
    if report.config.server.is_some() && report.cells.iter().all(|cell| cell.speedup.is_none()) {
        lines.push(
            "This server does not turn speculation off where a request wants that, so there is \
             nothing to compare with: name one without it by --plain-url."
                .to_owned(),
        );
    }
    if report.config.build.profile != "release" {
        lines.push("Made by a debug build: times outside of passes are too long.".to_owned());
    }
    lines
}

fn tasks_of<'a>(all: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut tasks = Vec::new();
    for task in all {
        if !tasks.contains(&task) {
            tasks.push(task);
        }
    }
    tasks
}

/// All settings and what they came to.
pub(super) fn summary(report: &Report) -> String {
    let names = report.config.settings.iter().map(|setting| setting.name.chars().count());
    let width = names.max().unwrap_or(0).max(7);
    let mut text = String::new();
    for temperature in &report.config.temperatures {
        let cells = report.overall(*temperature);
        if cells.is_empty() {
            continue;
        }
        line(&mut text, format_args!("Temperature {temperature}"));
        line(
            &mut text,
            format_args!("  {:<width$}  tokens/s  tokens/round  accepted  speedup", "setting"),
        );
        for cell in cells {
            let number = |value: Option<f64>, digits: usize| {
                value.map_or("–".to_owned(), |value| format!("{value:.digits$}"))
            };
            let accepted = cell.acceptance_rate.map(|rate| format!("{:.0} %", 100.0 * rate));
            line(
                &mut text,
                format_args!(
                    "  {:<width$}  {:>8}  {:>12}  {:>8}  {}",
                    cell.setting,
                    number(cell.tokens_per_second, 1),
                    number(cell.block_efficiency, 2),
                    accepted.unwrap_or_else(|| "–".to_owned()),
                    cell.speedup.map_or("–".to_owned(), |it| it.to_string())
                ),
            );
        }
        text.push('\n');
    }
    verdict(report).iter().for_each(|said| line(&mut text, format_args!("{said}")));
    notices(report).iter().for_each(|said| line(&mut text, format_args!("{said}")));
    line(
        &mut text,
        format_args!(
            "{}, {}, {}; ended by {}.",
            count(report.prompts, "prompt"),
            count(report.repeats, "whole repeat"),
            count(report.measures.len(), "output"),
            report.ended
        ),
    );
    text
}

/// So many of something.
pub(super) fn count(many: usize, what: &str) -> String {
    format!("{many} {what}{}", if many == 1 { "" } else { "s" })
}

fn line(text: &mut String, said: std::fmt::Arguments<'_>) {
    text.write_fmt(said).expect("strings take all text");
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::super::report::sample;
    use super::*;

    fn report(ended: Ended) -> Report {
        let config = sample::config();
        let measures = sample::measures(&config);
        Report::new(config, measures, Vec::new(), ("2026-01-02".to_owned(), ended))
    }

    #[test]
    fn the_fastest_setting_is_named() {
        let said = verdict(&report(Ended::Repeats));
        assert_eq!(
            said[1],
            "Temperature 1: small, block, 1x4 is fastest, 2.00 (2.00–2.00) times plain decoding."
        );
        let mut foretold = report(Ended::Repeats);
        let settings = foretold.config.settings.iter_mut();
        let fastest = { settings }.find(|it| it.name == "small, block, 1x4").unwrap();
        fastest.drafters = vec![ORACLE.name().to_owned()];
        assert!(!verdict(&foretold)[1].contains("1x4 is fastest"), "{:?}", verdict(&foretold));
        let mut slow = report(Ended::Repeats);
        slow.cells.retain(|cell| cell.setting != "small, block, 1x4");
        assert!(verdict(&slow)[0].contains("plain decoding is fastest"), "{:?}", verdict(&slow));
    }

    #[test]
    fn a_server_s_users_are_told_apart() {
        let (config, measures) = sample::server();
        let about = ("2026-01-02".to_owned(), Ended::Repeats);
        let said = verdict(&Report::new(config, measures, Vec::new(), about));
        assert_eq!(
            said[0],
            "Temperature 0: speculation, 4 users, is 2.00 (2.00–2.00) times as fast as plain decoding."
        );
        assert_eq!(said.len(), 2);
    }

    #[test]
    fn what_is_incomplete_is_said() {
        assert!(notices(&report(Ended::Repeats)).is_empty());
        let mut broken = report(Ended::Interrupted);
        broken.config.quick = true;
        broken.cells.retain(|cell| cell.task.as_deref() != Some("chat"));
        let said = notices(&broken).join(" ");
        for part in ["quick run", "Interrupted: ", "no time for these tasks: chat"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }

    #[test]
    fn the_table_has_a_line_for_each_setting() {
        let text = summary(&report(Ended::Precise));
        assert_eq!(text.matches("small, pooled, 2x4").count(), 2, "{text}");
        assert!(
            text.contains("3 prompts, 2 whole repeats, 36 outputs; ended by precision."),
            "{text}"
        );
    }
}
