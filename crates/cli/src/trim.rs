//! `forerun trim`: a draft model with a smaller vocabulary.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use forerun_decode::{Special, Tokenizer};
use forerun_lab::{bytes, file_name};
use forerun_llama::{Model, ModelOptions, trim};

use crate::flags::OutputConfig;
use crate::terminal::Screen;

/// What is trimmed, as given.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example: a copy of Gemma 3 270M with an eighth of its tokens, chosen by your own text
  forerun trim gemma-3-270m.gguf gemma-3-270m-32k.gguf --text src/*.py --text notes.md")]
pub(crate) struct TrimFlags {
    /// GGUF file of the draft model
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// File to write
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// Number of tokens to keep
    #[arg(long, value_name = "N", default_value_t = 32768)]
    vocab_size: usize,
    /// Text like that which will be drafted: its most frequent tokens are kept [default: tokens with
    /// the lowest numbers, which are the frequent ones in most vocabularies]
    #[arg(long, value_name = "FILE", num_args = 1..)]
    text: Vec<PathBuf>,
}

impl TrimFlags {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let mut screen = Screen::new(&OutputConfig::notes());
        let counts = if self.text.is_empty() { None } else { Some(self.counts()?) };
        let trimmed = trim(&self.input, &self.output, self.vocab_size, counts.as_deref())?;
        if let Some(counts) = &counts {
            let all: u64 = counts.iter().sum();
            screen.note(&format!("counted {all} tokens of text"));
        }
        let size = |path: &PathBuf| std::fs::metadata(path).map_or(0, |about| about.len());
        screen.result(&format!(
            "{}: {} of {} tokens, {} instead of {}\n",
            file_name(&self.output),
            trimmed.after,
            trimmed.before,
            bytes(size(&self.output)),
            bytes(size(&self.input)),
        ))?;
        Ok(ExitCode::SUCCESS)
    }

    /// How often each token occurs in the files.
    fn counts(&self) -> anyhow::Result<Vec<u64>> {
        let model = Model::load(ModelOptions::new(&self.input))?;
        let mut counts = vec![0; model.vocab_len()];
        for path in &self.text {
            let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
            for token in model.vocab().tokenize(&text, Special::AsText)? {
                counts[token.index()] += 1;
            }
        }
        Ok(counts)
    }
}
