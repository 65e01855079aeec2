//! What fleets did, as tables for people: one for each size, a column for each kind of drafting.

use std::fmt::Write as _;

use super::Row;

/// What stands where nothing can be said.
const NOTHING: &str = "–";

/// The widths of names and of columns; together they fit a terminal of 80.
const NAME: usize = 30;
const COLUMN: usize = 15;

/// What is said of a fleet: a name with its unit, and the figure.
type Line = (&'static str, fn(&Row) -> String);

const LINES: [Line; 10] = [
    ("tokens a second", |row| format!("{:.1}", row.tokens_per_second)),
    ("times plain decoding", |row| one(row.speedup)),
    ("requests finished", |row| row.finished.to_string()),
    ("first token, p50 / p99 (s)", |row| two(row.first_token_s, 1.0, 2)),
    ("each further, p50 / p99 (ms)", |row| two(row.token_s, 1e3, 0)),
    ("request, p50 / p99 (s)", |row| two(row.request_s, 1.0, 1)),
    ("replicas busy", |row| percent(row.busy)),
    ("prompt tokens cached", |row| percent(row.hit_rate)),
    ("requests waiting at the end", |row| row.waiting.to_string()),
    ("price of a million tokens", |row| one(row.price_per_million_tokens)),
];

fn one(value: Option<f64>) -> String {
    value.map_or(NOTHING.to_owned(), |value| format!("{value:.2}"))
}

fn two(values: Option<[f64; 2]>, unit: f64, digits: usize) -> String {
    let shown =
        |[half, most]: [f64; 2]| format!("{:.digits$} / {:.digits$}", half * unit, most * unit);
    values.map_or(NOTHING.to_owned(), shown)
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// A table for each fleet size, in the order of the rows.
pub(super) fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    let mut line = |name: &str, cells: &mut dyn Iterator<Item = String>| {
        write!(text, "{name:<NAME$}").expect("strings take all text");
        cells.for_each(|cell| write!(text, "{cell:>COLUMN$}").expect("strings take all text"));
        text.push('\n');
    };
    for (index, fleet) in rows.chunk_by(|one, other| one.replicas == other.replicas).enumerate() {
        let count = fleet[0].replicas;
        let apart = if index == 0 { "" } else { "\n" };
        let name = format!("{count} replica{}", if count == 1 { "" } else { "s" });
        line(
            &format!("{apart}{name:<NAME$}"),
            &mut fleet.iter().map(|row| format!("drafts {}", row.drafting)),
        );
        for (name, cell) in LINES {
            line(&format!("  {name}"), &mut fleet.iter().map(cell));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(replicas: usize, finished: bool) -> Row {
        let times = Some([1.25, 10.5]).filter(|_| finished);
        Row {
            replicas,
            drafting: "best",
            tokens_per_second: if finished { 123.45 } else { 0.0 },
            speedup: Some(1.2).filter(|_| finished),
            finished: usize::from(finished),
            first_token_s: times,
            token_s: times,
            request_s: times,
            busy: 1.0,
            hit_rate: 0.25,
            waiting: 3,
            price_per_million_tokens: Some(2.5).filter(|_| finished),
        }
    }

    #[test]
    fn columns_line_up_and_fit_a_terminal() {
        let text = table(&[row(1, true), row(1, false), row(1, true), row(16, true)]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2 * (LINES.len() + 1) + 1);
        assert_eq!(
            lines[0],
            "1 replica                         drafts best    drafts best    drafts best"
        );
        assert_eq!(
            lines[4],
            "  first token, p50 / p99 (s)     1.25 / 10.50              –   1.25 / 10.50"
        );
        let width = |line: &&str| line.chars().count();
        assert!(lines[..=LINES.len()].iter().all(|line| width(line) == 75), "{text}");
        assert!(lines[LINES.len() + 2].starts_with("16 replicas  "), "{text}");
    }

    #[test]
    fn where_nothing_finished_no_figure_is_made_up() {
        let text = table(&[row(1, false)]);
        assert_eq!(text.matches(NOTHING).count(), 5, "{text}");
        assert!(!text.contains("0.00"), "{text}");
    }
}
