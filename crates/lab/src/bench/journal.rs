//! Measurements as they are made: a file of JSON lines, the first of which says what is measured.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::{Error, Result};

/// A file that grows by a line for each text, so that nothing measured is ever lost.
#[derive(Debug)]
pub(super) struct Journal {
    file: File,
}

impl Journal {
    /// A new file. What stood there before is gone.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub(super) fn begin(path: &Path, config: &impl Serialize) -> Result<Self> {
        let file = File::create(path).map_err(Error::writing(path))?;
        let mut journal = Self { file };
        journal.line(&serde_json::to_string(config)?)?;
        Ok(journal)
    }

    /// Goes on with a file, and gives what it holds.
    ///
    /// # Errors
    /// Where it cannot be read, or holds the measurements of something else.
    pub(super) fn resume<M: DeserializeOwned>(
        path: &Path,
        config: &impl Serialize,
    ) -> Result<(Self, Vec<M>)> {
        let text = fs::read_to_string(path).map_err(|source| Error::File {
            doing: "continue",
            path: path.to_owned(),
            source,
        })?;
        // A line that was being written when the machine went down is no measurement.
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        let mut lines = whole.lines();
        let malformed = |source| {
            let what = format!("{} does not begin as a run does", path.display());
            Error::Malformed { what, source }
        };
        let first: Value =
            serde_json::from_str(lines.next().unwrap_or_default()).map_err(malformed)?;
        let different = differences(&comparable(first), &comparable(as_read(config)?));
        if !different.is_empty() {
            return Err(Error::refused(format!(
                "{} was measured otherwise ({}): say the same again, or measure anew with --force",
                path.display(),
                different.join("; ")
            )));
        }
        let read = |(index, line): (usize, &str)| {
            serde_json::from_str(line).map_err(|source| {
                let (path, source) = (path.to_owned(), Box::new(Error::Json(source)));
                Error::Line { path, line: index + 2, source }
            })
        };
        let measures = lines.enumerate().map(read).collect::<Result<_>>()?;
        let file = OpenOptions::new().append(true).open(path);
        let file = file.map_err(Error::writing(path))?;
        file.set_len(whole.len() as u64).map_err(Error::writing(path))?;
        Ok((Self { file }, measures))
    }

    /// Adds a text.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub(super) fn add(&mut self, measure: &impl Serialize) -> Result<()> {
        self.line(&serde_json::to_string(measure)?)
    }

    fn line(&mut self, text: &str) -> Result<()> {
        let written = self.file.write_all(format!("{text}\n").as_bytes());
        written.map_err(Error::Journal)
    }
}

/// An object as it would be read from a file: numbers as they are written.
pub(super) fn as_read(object: &impl Serialize) -> Result<Value> {
    Ok(serde_json::from_str(&serde_json::to_string(object)?)?)
}

/// What must be the same for a run to go on: all but when it ends.
fn comparable(mut config: Value) -> Value {
    config.as_object_mut().map(|config| config.remove("stop"));
    config
}

/// Where two objects differ, with what each says.
pub(super) fn differences(old: &Value, new: &Value) -> Vec<String> {
    let mut found = Vec::new();
    compare("", old, new, &mut found);
    found
}

fn compare(path: &str, old: &Value, new: &Value, found: &mut Vec<String>) {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            let added = new.keys().filter(|key| !old.contains_key(*key));
            for key in old.keys().chain(added) {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                let of = |object: &serde_json::Map<String, Value>| {
                    object.get(key).cloned().unwrap_or(Value::Null)
                };
                compare(&path, &of(old), &of(new), found);
            }
        }
        (Value::Array(old), Value::Array(new)) if old.len() == new.len() => {
            for (index, (old, new)) in old.iter().zip(new).enumerate() {
                compare(&format!("{path}[{index}]"), old, new, found);
            }
        }
        (Value::Array(old), Value::Array(new)) => {
            found.push(format!("{path}: {} of them, now {}", old.len(), new.len()));
        }
        (old, new) if old == new => {}
        (old, new) => found.push(format!("{path}: {old}, now {new}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::record::Measure;
    use super::super::report::sample;
    use super::*;

    fn path(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("forerun-{}-{name}", std::process::id()))
    }

    #[test]
    fn what_was_measured_is_found_again() {
        let (path, config) = (path("found.jsonl"), sample::config());
        let mut journal = Journal::begin(&path, &config).unwrap();
        let measures = sample::measures(&config);
        measures.iter().for_each(|measure| journal.add(measure).unwrap());
        let (mut again, known) = Journal::resume::<Measure>(&path, &config).unwrap();
        assert_eq!(known, measures);
        again.add(&measures[0]).unwrap();
        assert_eq!(Journal::resume::<Measure>(&path, &config).unwrap().1.len(), measures.len() + 1);
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn half_a_line_is_dropped_and_written_over() {
        let (path, config) = (path("half.jsonl"), sample::config());
        let mut journal = Journal::begin(&path, &config).unwrap();
        let measures = sample::measures(&config);
        journal.add(&measures[0]).unwrap();
        journal.file.write_all(b"{\"repeat\":0,").unwrap();
        let (mut again, known) = Journal::resume::<Measure>(&path, &config).unwrap();
        assert_eq!(known, measures[..1]);
        again.add(&measures[1]).unwrap();
        assert_eq!(Journal::resume::<Measure>(&path, &config).unwrap().1, measures[..2]);
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn another_run_is_not_continued_but_a_longer_one_is() {
        let (path, mut config) = (path("other.jsonl"), sample::config());
        Journal::begin(&path, &config).unwrap();
        config.stop.repeats += 1;
        assert!(Journal::resume::<Measure>(&path, &config).is_ok());
        config.text_len += 1;
        let error = Journal::resume::<Measure>(&path, &config).unwrap_err().to_string();
        assert!(error.contains("text_len: 64, now 65") && error.contains("--force"), "{error}");
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn temperatures_that_binary_fractions_only_approach_are_the_same_again() {
        let (path, mut config) = (path("warm.jsonl"), sample::config());
        config.temperatures = vec![0.7, 0.1];
        Journal::begin(&path, &config).unwrap();
        assert!(Journal::resume::<Measure>(&path, &config).is_ok());
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn differences_say_where_they_are() {
        let old = json!({ "a": 1, "b": { "c": [1, 2] }, "d": [1] });
        let new = json!({ "a": 1, "b": { "c": [1, 3] }, "d": [], "e": "x" });
        let found = differences(&old, &new);
        assert_eq!(found, ["b.c[1]: 2, now 3", "d: 1 of them, now 0", "e: null, now \"x\""]);
    }
}
