//! What a run is and what it measured, as files hold it. Field names are public: `docs/bench.md`
//! lists them.

use serde::{Deserialize, Serialize};

use crate::machine::{self, Build, EngineRecord, Machine, ModelFile};
use crate::prompts::Prompt;

/// Raised whenever a field changes its name or meaning.
pub(crate) const SCHEMA: u32 = 1;

/// All that decides what is measured, and when it is enough.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Config {
    /// Of this and all other objects.
    pub(crate) schema: u32,
    /// Whether only a first impression was wanted.
    pub(crate) quick: bool,
    /// The target's file; none where a server was asked.
    pub(crate) target: Option<ModelFile>,
    /// The draft models' files.
    pub(crate) drafters: Vec<ModelFile>,
    /// How these were run.
    pub(crate) engine: Option<EngineRecord>,
    /// The server that was asked.
    pub(crate) server: Option<ServerRecord>,
    /// Tokens of each text.
    pub(crate) text_len: usize,
    /// Every setting was run at each.
    pub(crate) temperatures: Vec<f32>,
    /// Tokens kept before one is drawn; null where a server decides.
    pub(crate) top_k: Option<u32>,
    /// The same, by probability.
    pub(crate) top_p: Option<f32>,
    /// The same, by share of the likeliest.
    pub(crate) min_p: Option<f32>,
    /// Of all random choices.
    pub(crate) seed: u64,
    /// As asked for; null where the time decided.
    pub(crate) prompts_per_task: Option<usize>,
    /// In the order they were decoded.
    pub(crate) prompts: Vec<PromptRecord>,
    /// What was compared.
    pub(crate) settings: Vec<Setting>,
    /// What was asked for and not run.
    pub(crate) left_out: Vec<LeftOut>,
    /// Where it ran.
    pub(crate) machine: Machine,
    /// What ran.
    pub(crate) build: Build,
    /// When it is enough.
    pub(crate) stop: Stop,
}

/// A server, and what it was found to be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ServerRecord {
    /// Its address.
    pub(crate) url: String,
    /// The address of the one without speculation, where that is another.
    pub(crate) plain_url: Option<String>,
    /// The model's name in requests.
    pub(crate) model: String,
    /// What the server calls its build, where it says so.
    pub(crate) fingerprint: Option<String>,
    /// Whether it turns speculation off where a request wants that.
    pub(crate) switchable: bool,
    /// Whether it makes outputs of a fixed length.
    pub(crate) fixed_len: bool,
}

/// A prompt, without its text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct PromptRecord {
    /// Its name.
    pub(crate) id: String,
    /// Its task.
    pub(crate) task: String,
    /// Of its text.
    pub(crate) sha256: String,
}

impl PromptRecord {
    /// Of each prompt.
    pub(crate) fn all(prompts: &[Prompt]) -> Vec<Self> {
        let record = |prompt: &Prompt| Self {
            id: prompt.id.clone(),
            task: prompt.task.clone(),
            sha256: machine::sha256(prompt.text().as_bytes()),
        };
        prompts.iter().map(record).collect()
    }
}

/// A way of decoding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// All there is to it, for people and for `compare`.
    pub name: String,
    /// What drafts; nothing for plain decoding.
    pub drafters: Vec<String>,
    /// How drafts are judged.
    pub rule: Option<String>,
    /// Paths of a draft.
    pub paths: usize,
    /// Tokens of a path: always, or at most where it is adapted.
    pub length: usize,
    /// Whether the controller decides how much is drafted.
    pub adaptive: bool,
    /// Outputs at once.
    pub users: usize,
    /// The setting it is compared with, by index; null for that one itself.
    pub plain: Option<usize>,
}

impl Setting {
    /// Plain decoding for so many users.
    pub(crate) fn plain(name: String, users: usize) -> Self {
        let (drafters, rule, plain) = (Vec::new(), None, None);
        Self { name, drafters, rule, paths: 1, length: 0, adaptive: false, users, plain }
    }

    /// Paths of its drafts: one of each drafter, and the further ones of the draft model.
    pub(crate) fn path_count(&self) -> usize {
        (self.drafters.len() + self.paths).saturating_sub(1)
    }

    /// What drafts, as one name.
    pub(crate) fn group(&self) -> String {
        self.drafters.join(" & ")
    }

    /// The rest of its name: what stands beside others of the same drafter.
    pub(crate) fn label(&self) -> String {
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
pub struct LeftOut {
    /// The setting or the prompt.
    pub what: String,
    /// Why.
    pub reason: String,
}

/// When a run is over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stop {
    /// Most repeats.
    pub repeats: usize,
    /// Half the width of every interval, as a share of the speedup, that is enough.
    pub precision: f64,
    /// Seconds a call may take.
    pub time_limit_s: f64,
}

/// One text by one setting.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measure {
    /// Which repeat, from zero.
    pub(crate) repeat: usize,
    /// The prompt, by index.
    pub(crate) prompt: usize,
    /// Its temperature.
    pub(crate) temperature: f32,
    /// The setting, by index.
    pub(crate) setting: usize,
    /// Tokens after the first.
    pub(crate) tokens: u64,
    /// Seconds they took.
    pub(crate) seconds: f64,
    /// Rounds that made them: passes of the target.
    pub(crate) rounds: u64,
    /// Tokens drafted, on all paths.
    pub(crate) drafted: u64,
    /// Drafted tokens accepted.
    pub(crate) accepted: u64,
    /// Passes of draft models, one after the other.
    pub(crate) draft_passes: u64,
    /// By place in the draft.
    pub(crate) positions: Vec<PositionRecord>,
    /// Of `seconds`, in passes of draft models.
    pub(crate) draft_pass_s: f64,
    /// Of `seconds`, in the rest of drafting.
    pub(crate) draft_s: f64,
    /// Of `seconds`, in the target's passes.
    pub(crate) target_s: f64,
    /// Of `seconds`, shaping rows and judging.
    pub(crate) verify_s: f64,
    /// Total variation that its tokens spent together, of a lossy mode that says so.
    #[serde(default)]
    pub(crate) spent: Option<f64>,
    /// Tokens of the prompt.
    pub(crate) prompt_tokens: u64,
    /// Those that were not cached.
    pub(crate) prompt_read: u64,
    /// Seconds to the first token.
    pub(crate) first_token_s: f64,
    /// Tokens of the prompt that a draft model read before the text was begun.
    pub(crate) draft_read: u64,
    /// Seconds that took.
    pub(crate) draft_read_s: f64,
    /// A number that differs where the text does; none of a server's.
    pub(crate) text: Option<String>,
    /// What only a user of a server sees.
    pub(crate) user: Option<UserTimes>,
}

/// How often a position of drafts was drafted, came into question and was accepted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PositionRecord {
    /// Rounds whose longest path had it.
    pub(crate) drafted: u64,
    /// Of these, rounds that accepted all before it.
    pub(crate) reached: u64,
    /// Rounds that accepted it.
    pub(crate) accepted: u64,
}

/// One request among others.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct UserTimes {
    /// Seconds from when its users began to when it was sent.
    pub(crate) sent_s: f64,
    /// Seconds to its end.
    pub(crate) ended_s: f64,
    /// Seconds between the pieces of text it came in.
    pub(crate) gaps_s: Vec<f64>,
}
