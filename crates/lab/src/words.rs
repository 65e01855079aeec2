//! Sizes, names and prose for people.

use std::path::Path;

use forerun_decode::CostCurve;

/// Columns of prose on a terminal.
const COLUMNS: usize = 79;

/// Prose in lines that fit a terminal; its own line ends stay.
pub(crate) fn wrapped(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    for (index, line) in text.split('\n').enumerate() {
        let mut used = 0;
        for (place, word) in line.split(' ').enumerate() {
            let len = word.chars().count();
            let apart = match (place, used + 1 + len <= COLUMNS) {
                (0, _) if index == 0 => "",
                (0, _) | (_, false) => "\n",
                _ => " ",
            };
            used = if apart == " " { used + 1 + len } else { len };
            out.push_str(apart);
            out.push_str(word);
        }
    }
    out
}

/// A path's last part, for people.
pub fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// A size for people.
pub fn bytes(size: u64) -> String {
    let mut size = size as f64;
    for unit in ["B", "KiB", "MiB"] {
        if size < 999.5 {
            return format!("{size:.0} {unit}");
        }
        size /= 1024.0;
    }
    format!("{size:.1} GiB")
}

/// The points of a curve: what a pass takes, by its tokens.
pub fn milliseconds(curve: &CostCurve) -> String {
    let points = curve.points().iter();
    let times: Vec<String> =
        points.map(|(tokens, seconds)| format!("{tokens}: {:.1}", 1000.0 * seconds)).collect();
    times.join("  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_is_broken_between_words() {
        let text = format!("{} b\nc d", "a".repeat(78));
        assert_eq!(wrapped(&text), format!("{}\nb\nc d", "a".repeat(78)));
        assert_eq!(wrapped("one\n\ntwo"), "one\n\ntwo");
        let long = "x".repeat(200);
        assert_eq!(wrapped(&long), long);
    }
}
