//! `forerun bench compare`: what changed between two reports, and whether that is noise.

use std::path::Path;

use super::interval::{self, Interval, LEVEL, Pair};
use super::journal::{as_read, differences};
use super::report::{Report, compared};
use crate::error::Result;

/// A setting at a temperature that both reports have.
struct Row {
    setting: String,
    temperature: f32,
    old: Interval,
    new: Interval,
    /// The new speedup in old ones.
    change: Interval,
    /// Whether that is more than noise, all rows taken together.
    changed: bool,
}

/// Says what changed from one report to the other.
///
/// # Errors
/// Where one cannot be read.
pub fn compare(old: &Path, new: &Path) -> Result<String> {
    let (one, other) = (Report::read(old)?, Report::read(new)?);
    Ok(text(&one, &other))
}

/// The pairs of a setting at a temperature, prompts numbered alike in both reports.
fn pairs(report: &Report, name: &str, temperature: f32, ids: &mut Vec<String>) -> Vec<Pair> {
    let settings = &report.config.settings;
    let found = compared(&report.config).find(|(index, _)| settings[*index].name == name);
    let Some((setting, plain)) = found else { return Vec::new() };
    let of = report.measures.iter().filter(|it| it.temperature == temperature);
    let mut pairs = interval::pairs(of, setting, plain);
    for pair in &mut pairs {
        let prompt = &report.config.prompts[pair.prompt];
        let id = format!("{} {} {}", prompt.task, prompt.id, prompt.sha256);
        pair.prompt = ids.iter().position(|known| *known == id).unwrap_or_else(|| {
            ids.push(id);
            ids.len() - 1
        });
    }
    pairs.sort_by_key(|pair| pair.prompt);
    pairs
}

fn rows(old: &Report, new: &Report) -> Vec<Row> {
    let cells = old.cells.iter().filter(|cell| cell.task.is_none() && cell.speedup.is_some());
    let mut found: Vec<(&str, f32, Vec<Pair>, Vec<Pair>)> = Vec::new();
    for cell in cells {
        let mut ids = Vec::new();
        let mut of = |report| pairs(report, &cell.setting, cell.temperature, &mut ids);
        let (one, other) = (of(old), of(new));
        if !one.is_empty() && !other.is_empty() {
            found.push((&cell.setting, cell.temperature, one, other));
        }
    }
    // One in twenty comparisons would cry wolf; together they must not do so more often.
    let strict = 1.0 - (1.0 - LEVEL) / found.len().max(1) as f64;
    let row = |(setting, temperature, one, other): (&str, f32, Vec<Pair>, Vec<Pair>)| {
        Some(Row {
            setting: setting.to_owned(),
            temperature,
            old: interval::speedup(&one)?,
            new: interval::speedup(&other)?,
            change: interval::change(&one, &other, LEVEL)?,
            changed: interval::change(&one, &other, strict)?.excludes(1.0),
        })
    };
    found.into_iter().filter_map(row).collect()
}

/// Where the two were not made alike, apart from their settings.
fn unlike(old: &Report, new: &Report) -> Vec<String> {
    let config = |report: &Report| {
        let mut config = as_read(&report.config).unwrap_or_default();
        if let Some(config) = config.as_object_mut() {
            let apart = ["settings", "left_out", "stop", "prompts", "temperatures"];
            config.retain(|name, _| !apart.contains(&name.as_str()));
        }
        config
    };
    let mut found = differences(&config(old), &config(new));
    let prompts = |report: &Report| {
        let taken = report.config.prompts.iter().take(report.prompts);
        taken.map(|prompt| prompt.sha256.clone()).collect::<Vec<_>>()
    };
    if prompts(old) != prompts(new) {
        found.push("prompts: not the same ones".to_owned());
    }
    found
}

fn text(old: &Report, new: &Report) -> String {
    let rows = rows(old, new);
    let mut text = String::new();
    for difference in unlike(old, new) {
        text += &format!("differs  {difference}\n");
    }
    let width = rows.iter().map(|row| row.setting.chars().count()).max().unwrap_or(7).max(7);
    if !rows.is_empty() {
        text += &format!(
            "  {:<width$}     T  {:>18}  {:>18}  {:>18}\n",
            "setting", "old speedup", "new speedup", "new / old"
        );
    }
    for row in &rows {
        let verdict = match (row.changed, row.change.value > 1.0) {
            (false, _) => "within noise",
            (true, true) => "faster",
            (true, false) => "slower",
        };
        let figures = [&row.old, &row.new, &row.change].map(Interval::to_string);
        text += &format!(
            "  {:<width$}  {:>4}  {:>18}  {:>18}  {:>18}  {verdict}\n",
            row.setting, row.temperature, figures[0], figures[1], figures[2]
        );
    }
    let missing = |from: &Report, to: &Report, which: &str| {
        let known = |name: &str| to.config.settings.iter().any(|setting| setting.name == name);
        let names = from.config.settings.iter().map(|setting| setting.name.as_str());
        let only: Vec<&str> = names.filter(|name| !known(name)).collect();
        let each = only.iter().map(|name| format!("only in the {which}: {name}\n"));
        each.collect::<String>()
    };
    text += &missing(old, new, "old one");
    text += &missing(new, old, "new one");
    let changed = rows.iter().filter(|row| row.changed).count();
    text += &match (rows.len(), changed) {
        (0, _) => "They have no speedup in common.".to_owned(),
        (_, 0) => "Nothing changed that is more than noise.".to_owned(),
        (all, changed) => format!("{changed} of {all} changed by more than noise."),
    };
    text
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::plan::Ended;
    use super::super::report::sample;
    use super::*;

    /// A report in which drafting takes `slower` times as long, give or take.
    fn report(slower: f64) -> Report {
        let config = sample::config();
        let mut measures = sample::measures(&config);
        for (index, measure) in measures.iter_mut().enumerate() {
            if measure.setting > 0 {
                measure.seconds *= slower * (1.0 + 0.02 * (index % 5) as f64);
            }
        }
        Report::new(config, measures, Vec::new(), ("2026-01-02".to_owned(), Ended::Repeats))
    }

    #[test]
    fn a_report_is_like_itself() {
        let text = text(&report(1.0), &report(1.0));
        assert!(text.ends_with("Nothing changed that is more than noise."), "{text}");
        assert_eq!(text.matches("1.00 (1.00–1.00)  within noise").count(), 4, "{text}");
        assert!(!text.contains("differs"), "{text}");
    }

    #[test]
    fn what_takes_longer_is_slower() {
        let text = text(&report(1.0), &report(2.0));
        assert_eq!(text.matches("  slower\n").count(), 4, "{text}");
        assert!(text.ends_with("4 of 4 changed by more than noise."), "{text}");
    }

    #[test]
    fn what_is_not_alike_is_said() {
        let (old, mut new) = (report(1.0), report(1.0));
        new.config.machine.threads = 8;
        new.config.settings[2].name = "small, gbv, 2x4".to_owned();
        let text = text(&old, &new);
        assert!(text.contains("differs  machine.threads: 2, now 8"), "{text}");
        assert!(text.contains("only in the old one: small, pooled, 2x4"), "{text}");
        assert!(text.contains("only in the new one: small, gbv, 2x4"), "{text}");
    }

    #[test]
    fn a_file_that_is_no_report_is_refused() {
        let path = std::env::temp_dir().join(format!("forerun-{}-none.json", std::process::id()));
        for (content, said) in [
            ("<html>", "is no report of forerun bench (JSON)"),
            ("{}", "has schema none; this build reads schema 1"),
            ("{\"schema\": 1}", "is no report"),
        ] {
            fs::write(&path, content).unwrap();
            let error = compare(&path, &path).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
        fs::remove_file(path).unwrap();
    }
}
