//! What a target said, and its rows: the data a student learns from.
//!
//! For each token that the target drew there is the row it was drawn from, sparse: the likeliest tokens
//! with their probabilities. What these lack to one is what all other tokens have together. The tokens of a
//! prompt may have rows too: what the target would have said there.

use std::path::Path;

use anyhow::{Context, ensure};
use forerun_verify::Dist;
use serde::{Deserialize, Serialize};

use crate::loss::Row;
use crate::sealed::{Reader, Writer};

/// How data were made. Other settings are other data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// SHA-256 of the target's file.
    pub target: String,
    /// Tokens of its vocabulary.
    pub vocab: usize,
    /// SHA-256 of the prompts.
    pub prompts: String,
    /// How many of them are held out.
    pub held_out: usize,
    /// Continuations of each of the others.
    pub samples: usize,
    /// Most tokens of a continuation.
    pub predict: usize,
    /// Most tokens of a prompt and its continuation; longer prompts are left out.
    pub len: usize,
    /// The temperature that tokens are drawn at. Rows are of that temperature too, or of 1 where it is 0.
    pub temperature: f64,
    /// Tokens that a row lists.
    pub listed: usize,
    /// Whether prompts that are learned from have rows too.
    pub prompt_rows: bool,
    /// Seed of all draws.
    pub seed: u64,
}

impl Settings {
    /// The temperature of rows.
    pub fn row_temperature(&self) -> f64 {
        if self.temperature > 0.0 { self.temperature } else { 1.0 }
    }

    /// The distribution that logits make at it.
    ///
    /// # Errors
    /// If a logit is not a number.
    #[expect(clippy::cast_possible_truncation, reason = "a temperature is a small number")]
    pub(crate) fn row(&self, logits: &[f32]) -> anyhow::Result<Dist> {
        Ok(Dist::softmax(logits, self.row_temperature() as f32)?)
    }
}

/// A prompt with a continuation.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sequence {
    /// Its place among all sequences.
    pub id: u32,
    /// Whether it is measured with and not learned from.
    pub held_out: bool,
    /// Tokens of the prompt.
    pub prompt_len: usize,
    /// Its last tokens that have rows.
    pub prompt_rows: usize,
    /// Prompt and continuation.
    pub tokens: Vec<u32>,
    /// The tokens of all rows, one row for each token from [`Sequence::first_row`] on.
    pub row_tokens: Vec<u32>,
    /// Their probabilities.
    pub row_probs: Vec<f32>,
}

impl Sequence {
    /// Place of the first token that has a row.
    pub fn first_row(&self) -> usize {
        self.prompt_len - self.prompt_rows
    }

    /// How many rows it has.
    pub fn row_count(&self) -> usize {
        self.tokens.len() - self.first_row()
    }

    /// One of its rows.
    pub fn row(&self, index: usize) -> Row<'_> {
        let listed = self.row_tokens.len() / self.row_count().max(1);
        let place = index * listed..(index + 1) * listed;
        Row { tokens: &self.row_tokens[place.clone()], probs: &self.row_probs[place] }
    }

    pub(crate) fn write(&self, writer: &mut Writer) -> anyhow::Result<()> {
        let (prompt, all) = (u32::try_from(self.prompt_len)?, u32::try_from(self.tokens.len())?);
        let prompt_rows = u32::try_from(self.prompt_rows)?;
        writer.write_integers(&[self.id, u32::from(self.held_out), prompt, prompt_rows, all])?;
        writer.write_integers(&self.tokens)?;
        writer.write_integers(&self.row_tokens)?;
        writer.write_floats(&self.row_probs)
    }

    pub(crate) fn read(settings: &Settings, reader: &mut Reader) -> anyhow::Result<Self> {
        let (id, held_out) = (reader.integer()?, reader.integer()? == 1);
        let mut number = || anyhow::Ok(reader.integer()? as usize);
        let (prompt_len, prompt_rows, len) = (number()?, number()?, number()?);
        ensure!(
            prompt_rows < prompt_len && prompt_len < len,
            "a prompt of {prompt_len} of {len} tokens with {prompt_rows} rows"
        );
        let tokens = reader.integers(len)?;
        let listed = (len - prompt_len + prompt_rows) * settings.listed;
        let row_tokens = reader.integers(listed)?;
        let known = |&token: &u32| (token as usize) < settings.vocab;
        ensure!(tokens.iter().chain(&row_tokens).all(known), "a token out of range");
        let row_probs = reader.floats(listed)?;
        Ok(Self { id, held_out, prompt_len, prompt_rows, tokens, row_tokens, row_probs })
    }
}

/// Sequences with their rows.
#[derive(Debug, Clone, PartialEq)]
pub struct Rows {
    /// How they were made.
    pub settings: Settings,
    /// All sequences.
    pub sequences: Vec<Sequence>,
}

impl Rows {
    /// Writes them to a file.
    ///
    /// # Errors
    /// If there is no room on the disk.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let mut writer = Writer::create(path, &self.settings)?;
        writer.write_integers(&[u32::try_from(self.sequences.len())?])?;
        for sequence in &self.sequences {
            sequence.write(&mut writer)?;
        }
        writer.finish()
    }

    /// Reads them from a file.
    ///
    /// # Errors
    /// If it is damaged, or no such file.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let (settings, mut reader) = Reader::open::<Settings>(path)?;
        let wrong = || format!("{}: it is of another version: remove it", path.display());
        let count = reader.integer().with_context(wrong)?;
        let mut sequences = Vec::new();
        for _ in 0..count {
            sequences.push(Sequence::read(&settings, &mut reader).with_context(wrong)?);
        }
        ensure!(reader.is_at_end(), wrong());
        Ok(Self { settings, sequences })
    }

    /// Rows of the sequences that are held out, or of the others.
    pub fn row_count(&self, held_out: bool) -> usize {
        self.sequences.iter().filter(|it| it.held_out == held_out).map(Sequence::row_count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_as_they_were_written() {
        let settings = Settings {
            target: "t".to_owned(),
            vocab: 10,
            prompts: "p".to_owned(),
            held_out: 1,
            samples: 1,
            predict: 2,
            len: 8,
            temperature: 0.7,
            listed: 2,
            prompt_rows: true,
            seed: 1,
        };
        let sequence = Sequence {
            id: 3,
            held_out: true,
            prompt_len: 2,
            prompt_rows: 0,
            tokens: vec![1, 2, 3, 4],
            row_tokens: vec![3, 5, 4, 0],
            row_probs: vec![0.5, 0.25, 0.75, 0.1],
        };
        let row = sequence.row(1);
        assert_eq!((row.tokens, row.probs), (&[4, 0][..], &[0.75, 0.1][..]));
        let learned = Sequence {
            held_out: false,
            prompt_rows: 1,
            row_tokens: vec![9, 8, 3, 5, 4, 0],
            row_probs: vec![0.3, 0.2, 0.5, 0.25, 0.75, 0.1],
            ..sequence.clone()
        };
        assert_eq!((learned.first_row(), learned.row(0).tokens), (1, &[9, 8][..]));
        assert_eq!(learned.row(1).tokens, sequence.row(0).tokens);
        let rows = Rows { settings, sequences: vec![sequence, learned] };
        let path = std::env::temp_dir().join(format!("forerun-rows-{}", std::process::id()));
        rows.write(&path).unwrap();
        assert_eq!(Rows::read(&path).unwrap(), rows);
        std::fs::remove_file(path).unwrap();
        assert_eq!((rows.row_count(true), rows.row_count(false)), (2, 3));
    }
}
