//! Problems with a number as answer.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use serde::Deserialize;

use super::number;
use crate::error::{Error, Result};
use crate::prompts::Prompt;

/// GSM8K's test split; where it comes from is in `bench/prompts/README.md`.
const GSM8K: &str = include_str!("../../../../../bench/prompts/gsm8k_test.jsonl");

/// What is asked after every question.
const INSTRUCTION: &str = "Think step by step, and end with the answer as a number.";

/// A task whose answers can be checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Word problems of grade-school mathematics (arXiv 2110.14168).
    Gsm8k,
}

/// A question and the number that answers it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Problem {
    /// The question, as models are asked.
    pub(super) prompt: Prompt,
    /// The right answer, as [`number::last`] writes it.
    pub(super) answer: String,
}

/// A line of a file, as published.
#[derive(Deserialize)]
struct Line {
    question: String,
    answer: String,
}

impl Task {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gsm8k => "gsm8k",
        }
    }

    /// All its problems.
    pub(super) fn built_in(self) -> Vec<Problem> {
        let lines = GSM8K.lines().enumerate();
        let read = |(index, line)| self.read(line, index).expect("the built-in problems are right");
        lines.map(read).collect()
    }

    /// The problems of a file: on each line a JSON object with "question" and "answer", the last
    /// number of which is the answer.
    ///
    /// # Errors
    /// If the file cannot be read or has none.
    pub(super) fn file(self, path: &Path) -> Result<Vec<Problem>> {
        let text = std::fs::read_to_string(path).map_err(Error::reading(path))?;
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let read = |(index, line): (usize, &str)| {
            self.read(line, index).map_err(|source| {
                let (path, source) = (path.to_owned(), Box::new(source));
                Error::Line { path, line: index + 1, source }
            })
        };
        let all: Vec<Problem> = lines.map(read).collect::<Result<_>>()?;
        if all.is_empty() {
            return Err(Error::refused(format!("{} has no problem", path.display())));
        }
        Ok(all)
    }

    fn read(self, line: &str, index: usize) -> Result<Problem> {
        let Line { question, answer } = serde_json::from_str(line)?;
        let answer = number::last(&answer)
            .ok_or_else(|| Error::refused("an \"answer\" without a number in it"))?;
        let prompt = Prompt {
            id: index.to_string(),
            task: self.name().to_owned(),
            ends: true,
            ..Prompt::of_user(format!("{question}\n\n{INSTRUCTION}"))
        };
        Ok(Problem { prompt, answer })
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Task {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "gsm8k" => Ok(Self::Gsm8k),
            _ => Err(
                "expected gsm8k: the one task whose answers can be checked without running code",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_gsm8k_s_test_split_is_there() {
        let problems = Task::Gsm8k.built_in();
        assert_eq!((problems.len(), problems[0].answer.as_str()), (1319, "18"));
        let text = problems[0].prompt.text();
        assert!(text.starts_with("Janet’s ducks") && text.ends_with("as a number."), "{text}");
        assert!(problems.iter().any(|it| it.answer == "1450000"));
    }

    #[test]
    fn a_file_has_the_published_form() {
        let line = r#"{"question": "How many?", "answer": "2/2=<<2/2=1>>1 of 3\n#### 1,003"}"#;
        assert_eq!(Task::Gsm8k.read(line, 0).unwrap().answer, "1003");
        let error = Task::Gsm8k.read(r#"{"question": "?", "answer": "none"}"#, 0).unwrap_err();
        assert!(error.to_string().contains("without a number"), "{error}");
        assert!(Task::Gsm8k.read(r#"{"question": "?"}"#, 0).is_err());
    }
}
