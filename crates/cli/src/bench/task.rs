//! Answers instead of speed: which problems are solved.

use std::path::PathBuf;
use std::str::FromStr as _;

use forerun_lab::bench::{LocalConfig, Task, TaskConfig};

use crate::flags::ConfigError;

/// Answers instead of speed, as given.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Answers")]
pub(super) struct TaskFlags {
    /// Solve a task's problems with plain decoding and with the lossy modes, and compare how many
    /// answers are right, instead of measuring speed: gsm8k, all 1,319 problems or as many as
    /// --prompts-per-task and --time-limit allow. Rules named by --verify are compared too
    #[arg(long, value_name = "NAME", value_parser = Task::from_str)]
    #[arg(conflicts_with_all = ["url", "tasks", "prompts", "repeats", "precision", "out"])]
    pub(super) task: Option<Task>,
    /// Problems to solve instead: each line is a JSON object with "question" and "answer", the last
    /// number of which is the answer
    #[arg(long, value_name = "FILE", requires = "task")]
    task_file: Option<PathBuf>,
}

impl TaskFlags {
    pub(super) fn resolve(&self) -> Option<TaskConfig> {
        Some(TaskConfig { task: self.task?, file: self.task_file.clone() })
    }

    /// Looks whether there is anything to compare with plain decoding.
    pub(super) fn check(&self, local: &LocalConfig) -> Result<(), ConfigError> {
        if self.task.is_none() || local.product.settings.len() > 1 {
            return Ok(());
        }
        Err(ConfigError::Unused {
            flag: "--task",
            reason: "there is nothing to compare with plain decoding",
            instead: "add --lossy MODE, such as --lossy account:0.02, and a drafter",
        })
    }
}
