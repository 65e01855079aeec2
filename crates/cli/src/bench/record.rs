//! What a run is and what it measured, as files hold it. Field names are public: `docs/bench.md`
//! lists them.

use serde::{Deserialize, Serialize};

use crate::machine::{Build, Machine, ModelFile};

/// Raised whenever a field changes its name or meaning.
pub(super) const SCHEMA: u32 = 1;

/// All that decides what is measured, and when it is enough.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Config {
    /// Of this and all other objects.
    pub(super) schema: u32,
    /// Whether only a first impression was wanted.
    pub(super) quick: bool,
    /// The target's file; none where a server was asked.
    pub(super) target: Option<ModelFile>,
    /// The draft models' files.
    pub(super) drafters: Vec<ModelFile>,
    /// How these were run.
    pub(super) engine: Option<EngineRecord>,
    /// The server that was asked.
    pub(super) server: Option<ServerRecord>,
    /// Tokens of each text.
    pub(super) text_len: usize,
    /// Every setting was run at each.
    pub(super) temperatures: Vec<f32>,
    /// Tokens kept before one is drawn; null where a server decides.
    pub(super) top_k: Option<u32>,
    /// The same, by probability.
    pub(super) top_p: Option<f32>,
    /// The same, by share of the likeliest.
    pub(super) min_p: Option<f32>,
    /// Of all random choices.
    pub(super) seed: u64,
    /// As asked for; null where the time decided.
    pub(super) prompts_per_task: Option<usize>,
    /// In the order they were decoded.
    pub(super) prompts: Vec<PromptRecord>,
    /// What was compared.
    pub(super) settings: Vec<Setting>,
    /// What was asked for and not run.
    pub(super) left_out: Vec<LeftOut>,
    /// Where it ran.
    pub(super) machine: Machine,
    /// What ran.
    pub(super) build: Build,
    /// When it is enough.
    pub(super) stop: Stop,
}

/// How models are run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct EngineRecord {
    /// Tokens of context.
    pub(super) context_len: usize,
    /// Threads for a pass over one token.
    pub(super) threads: u32,
    /// Threads for a pass over several.
    pub(super) threads_batch: u32,
    /// llama.cpp's `n_batch`.
    pub(super) batch_len: u32,
    /// llama.cpp's `n_ubatch`.
    pub(super) pass_len: u32,
    /// Most paths of a draft that the caches hold.
    pub(super) paths: u32,
    /// Number format of cached keys.
    pub(super) cache_keys: String,
    /// Number format of cached values, where one was named.
    pub(super) cache_values: Option<String>,
    /// Fused attention.
    pub(super) flash_attention: String,
    /// Layers on a GPU, where there is one.
    pub(super) gpu_layers: String,
    /// How files come into memory.
    pub(super) load_mode: String,
}

/// A server, and what it was found to be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct ServerRecord {
    /// Its address.
    pub(super) url: String,
    /// The address of the one without speculation, where that is another.
    pub(super) plain_url: Option<String>,
    /// The model's name in requests.
    pub(super) model: String,
    /// What the server calls its build, where it says so.
    pub(super) fingerprint: Option<String>,
    /// Whether it turns speculation off where a request wants that.
    pub(super) switchable: bool,
    /// Whether it makes texts of a fixed length.
    pub(super) fixed_len: bool,
}

/// A prompt, without its text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct PromptRecord {
    /// Its name.
    pub(super) id: String,
    /// Its task.
    pub(super) task: String,
    /// Of its text.
    pub(super) sha256: String,
}

/// A way of decoding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Setting {
    /// All there is to it, for people and for `compare`.
    pub(super) name: String,
    /// What drafts; nothing for plain decoding.
    pub(super) drafters: Vec<String>,
    /// How drafts are judged.
    pub(super) rule: Option<String>,
    /// Paths of a draft.
    pub(super) paths: usize,
    /// Tokens of a path: always, or at most where it is adapted.
    pub(super) length: usize,
    /// Whether the controller decides how much is drafted.
    pub(super) adaptive: bool,
    /// Texts at once.
    pub(super) users: usize,
    /// The setting it is compared with, by index; null for that one itself.
    pub(super) plain: Option<usize>,
}

impl Setting {
    /// Plain decoding for so many users.
    pub(super) fn plain(name: String, users: usize) -> Self {
        let (drafters, rule, plain) = (Vec::new(), None, None);
        Self { name, drafters, rule, paths: 1, length: 0, adaptive: false, users, plain }
    }

    /// What drafts, as one name.
    pub(super) fn group(&self) -> String {
        self.drafters.join(" & ")
    }

    /// The rest of its name: what stands beside others of the same drafter.
    pub(super) fn label(&self) -> String {
        match &self.rule {
            None => self.name.clone(),
            Some(rule) => {
                let shape =
                    if self.paths > 1 { format!("{}×", self.paths) } else { String::new() };
                let adapted = if self.adaptive { " adaptive" } else { "" };
                format!("{rule} {shape}{}{adapted}", self.length)
            }
        }
    }
}

/// What was not run, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct LeftOut {
    /// The setting or the prompt.
    pub(super) what: String,
    /// Why.
    pub(super) reason: String,
}

/// When a run is over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Stop {
    /// Most repeats.
    pub(super) repeats: usize,
    /// Half the width of every interval, as a share of the speed-up, that is enough.
    pub(super) precision: f64,
    /// Seconds a call may take.
    pub(super) time_limit_s: f64,
}

/// One text by one setting.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Measure {
    /// Which repeat, from zero.
    pub(super) repeat: usize,
    /// The prompt, by index.
    pub(super) prompt: usize,
    /// Its temperature.
    pub(super) temperature: f32,
    /// The setting, by index.
    pub(super) setting: usize,
    /// Tokens after the first.
    pub(super) tokens: u64,
    /// Seconds they took.
    pub(super) seconds: f64,
    /// Rounds that made them: passes of the target.
    pub(super) rounds: u64,
    /// Tokens drafted, on all paths.
    pub(super) drafted: u64,
    /// Drafted tokens accepted.
    pub(super) accepted: u64,
    /// Passes of draft models, one after the other.
    pub(super) draft_passes: u64,
    /// By place in the draft.
    pub(super) positions: Vec<PositionRecord>,
    /// Of `seconds`, in passes of draft models.
    pub(super) draft_pass_s: f64,
    /// Of `seconds`, in the rest of drafting.
    pub(super) draft_s: f64,
    /// Of `seconds`, in the target's passes.
    pub(super) target_s: f64,
    /// Of `seconds`, shaping rows and judging.
    pub(super) verify_s: f64,
    /// Tokens of the prompt.
    pub(super) prompt_tokens: u64,
    /// Those that were not cached.
    pub(super) prompt_read: u64,
    /// Seconds to the first token.
    pub(super) first_token_s: f64,
    /// Tokens of the prompt that a draft model read before the text was begun.
    pub(super) draft_read: u64,
    /// Seconds that took.
    pub(super) draft_read_s: f64,
    /// A number that differs where the text does; none of a server's.
    pub(super) text: Option<String>,
    /// What only a user of a server sees.
    pub(super) user: Option<UserTimes>,
}

/// How often a position of drafts was drafted, came into question and was accepted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PositionRecord {
    /// Rounds whose longest path had it.
    pub(super) drafted: u64,
    /// Of these, rounds that accepted all before it.
    pub(super) reached: u64,
    /// Rounds that accepted it.
    pub(super) accepted: u64,
}

/// One request among others.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct UserTimes {
    /// Seconds from when its users began to when it was sent.
    pub(super) sent_s: f64,
    /// Seconds to its end.
    pub(super) ended_s: f64,
    /// Seconds between the pieces of text it came in.
    pub(super) gaps_s: Vec<f64>,
}
