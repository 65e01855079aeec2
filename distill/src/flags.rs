//! What is asked for, as given.

use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::Parser;
use forerun_distill::gguf::Chosen;
use forerun_distill::loss::Divergence;
use forerun_lab::Span;
use forerun_llama::QuantizeType;

/// Train a draft model for a target, from GGUF to GGUF.
///
/// The target continues the prompts, and the student learns its distributions. What is drafted by the
/// student afterwards changes nothing about the output, only how fast it comes.
#[derive(Debug, Parser)]
#[command(
    name = "forerun distill",
    version,
    max_term_width = 100,
    after_help = "\
Example: ten of the target's thirty blocks, trained for an hour on your own prompts
  forerun distill -m target.gguf --keep-blocks 0-3,7,12,17,27-29 --prompts mine.jsonl \\
    --time-limit 1h -o draft.gguf

Example: a head that drafts from the target's hidden states
  forerun distill -m target.gguf --head eagle3 --prompts mine.jsonl --time-limit 1h -o head.gguf"
)]
pub(crate) struct Flags {
    /// GGUF file of the target
    #[arg(short = 'm', long, value_name = "FILE")]
    pub(crate) model: PathBuf,
    /// GGUF file of the student, of the llama, qwen2, qwen3 or gemma3 family
    /// [default: the target]
    #[arg(long, value_name = "FILE")]
    pub(crate) student: Option<PathBuf>,
    /// Blocks of the student to keep, such as 0-3,7,27-29 [default: all]
    #[arg(long, value_name = "LIST", value_parser = blocks)]
    pub(crate) keep_blocks: Option<Blocks>,
    /// Give the student N tokens of the target's vocabulary in place of its own: those that the sequences use
    /// most. Embeddings and output are trained then
    #[arg(long, value_name = "N", requires = "student", conflicts_with = "no_training")]
    pub(crate) transplant: Option<usize>,
    #[command(flatten)]
    pub(crate) head: HeadFlags,
    /// File to write
    #[arg(short = 'o', long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Number format of the file to write
    #[arg(long = "type", value_name = "TYPE", default_value = "Q8_0")]
    pub(crate) format: QuantizeType,
    /// Prompts, a line each: text, or JSON with "prompt" or "messages" [default: the prompts of the
    /// field's benchmarks]
    #[arg(long, value_name = "FILE")]
    pub(crate) prompts: Vec<PathBuf>,
    /// Where the target's sequences and rows are kept, and taken from if they are there [default: the
    /// output's name with .rows]
    #[arg(long, value_name = "FILE")]
    pub(crate) rows: Option<PathBuf>,
    /// Write the student as it is, without training
    #[arg(long)]
    pub(crate) no_training: bool,
    /// Go on from the checkpoint of a run that was stopped
    #[arg(long)]
    pub(crate) resume: bool,
    #[command(flatten)]
    pub(crate) data: DataFlags,
    #[command(flatten)]
    pub(crate) training: TrainingFlags,
    /// Number of threads [default: as many as the machine offers]
    #[arg(short = 't', long, value_name = "N")]
    pub(crate) threads: Option<NonZeroU32>,
    /// Seed of draws and orders
    #[arg(short = 's', long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
}

impl Flags {
    /// What of the student's file is trained, and what is left out.
    pub(crate) fn chosen(&self) -> Chosen<'_> {
        Chosen {
            blocks: self.keep_blocks.as_ref().map(|blocks| &blocks.0[..]),
            trains_vocab: self.training.train_embeddings || self.transplant.is_some(),
        }
    }
}

/// A head in place of a draft model.
#[derive(Debug, clap::Args)]
pub(crate) struct HeadFlags {
    /// Train a head that reads the target's hidden states instead of a draft model
    #[arg(long = "head", value_name = "KIND")]
    pub(crate) kind: Option<HeadKind>,
    /// Three layers of the target whose inputs the head reads, such as 3,15,29 [default: an early, the
    /// middle and the last one]
    #[arg(long, value_name = "LIST", value_parser = blocks, requires = "kind")]
    pub(crate) head_layers: Option<Blocks>,
    /// Tokens that the head drafts: the most frequent ones of the target's sequences
    #[arg(long, value_name = "N", default_value_t = 8192, requires = "kind")]
    pub(crate) head_vocab: usize,
    /// Tokens of a draft that the head learns to go on with from its own states
    #[arg(long, value_name = "N", default_value_t = 4, requires = "kind")]
    pub(crate) head_depth: usize,
}

/// A kind of head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum HeadKind {
    /// EAGLE-3: one block over the states of three of the target's layers
    #[value(name = "eagle3")]
    Eagle3,
}

/// What the target generates.
#[derive(Debug, clap::Args)]
pub(crate) struct DataFlags {
    /// Temperature the drafts will be used at: the target samples at it
    #[arg(long, value_name = "N", default_value_t = 1.0)]
    pub(crate) temp: f64,
    /// Most tokens of a continuation
    #[arg(short = 'n', long, value_name = "N", default_value_t = 192)]
    pub(crate) predict: usize,
    /// Continuations of each prompt
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) samples: usize,
    /// Prompts that are held out, to measure with
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub(crate) held_out: usize,
    /// Most tokens of a prompt with its continuation; longer prompts are left out
    #[arg(short = 'c', long, value_name = "N", default_value_t = 512)]
    pub(crate) ctx_size: usize,
    /// Tokens of a distribution that are kept; the others are summed up
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(crate) listed: usize,
    /// Learn what the target would have said in the prompts too: more to learn from, without writing more
    #[arg(long)]
    pub(crate) learn_prompts: bool,
    /// Sequences that the target decodes in one batch
    #[arg(long, value_name = "N", default_value = "24")]
    pub(crate) parallel: NonZeroU32,
}

/// How the student learns.
#[derive(Debug, clap::Args)]
pub(crate) struct TrainingFlags {
    /// Divergence to make small [default: kl at --temp 0, else jsd]
    #[arg(long, value_name = "NAME")]
    pub(crate) loss: Option<Divergence>,
    /// How often all sequences are learned from
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) epochs: u64,
    /// Share of the sequences that the student generates itself, from 0 to 1, in each epoch but the first; the
    /// target tells its distributions over them
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub(crate) on_policy: f64,
    /// Train embeddings and output too; they stay as they are otherwise
    #[arg(long)]
    pub(crate) train_embeddings: bool,
    /// Time for training, such as 45m: fewer steps are made if they would take longer
    #[arg(long, value_name = "TIME")]
    pub(crate) time_limit: Option<Span>,
    /// Highest learning rate
    #[arg(long, value_name = "N", default_value_t = 5e-4)]
    pub(crate) rate: f64,
    /// Steps until it is reached
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) warm_up: u64,
    /// Most tokens of a batch
    #[arg(long, value_name = "N", default_value_t = 1536)]
    pub(crate) batch_tokens: usize,
    /// Steps between measurements of what is held out
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub(crate) measure_every: u64,
    /// Measurements that are no better than the best, after which training ends
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) patience: u64,
    /// Time between checkpoints
    #[arg(long, value_name = "TIME", default_value = "10m")]
    pub(crate) checkpoint_every: Span,
}

/// A list of blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Blocks(pub(crate) Vec<usize>);

/// Reads a list such as 0-3,7.
fn blocks(text: &str) -> Result<Blocks, String> {
    let wrong = || format!("expected blocks such as 0-3,7,27-29, not {text:?}");
    let mut blocks = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<u16>().map_err(|_| wrong());
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err(wrong());
        }
        blocks.extend((first..=last).map(usize::from));
    }
    Ok(Blocks(blocks))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_flags_are_consistent() {
        Flags::command().debug_assert();
    }

    #[test]
    fn blocks_are_listed_one_by_one_or_as_ranges() {
        assert_eq!(blocks("0-3, 7,27-29").unwrap().0, [0, 1, 2, 3, 7, 27, 28, 29]);
        for wrong in ["", "3-1", "a", "1,,2", "-1"] {
            assert!(blocks(wrong).is_err(), "{wrong}");
        }
    }
}
