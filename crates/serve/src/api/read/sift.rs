//! Fields that no type has, where the server is not strict: those that nothing depends on are left
//! out, those that would change the output are refused unless they say that they change nothing,
//! and all others are left out and named.

use std::cell::RefCell;

use serde::de::Error as _;

use super::problem::{Problem, nearest, shortened};
use super::tree::Tree;

/// Fields that nothing depends on, by the struct they are in; `*` ends a name's beginning.
const HARMLESS: [(&str, &[&str]); 8] = [
    (REQUEST, &REQUEST_HARMLESS),
    ("ChatMessage", &["id", "cache_control", "provider_*", "providerOptions", "status"]),
    ("ContentPart", &["id", "cache_control", "annotations", "logprobs", "provider_*"]),
    ("Tool", &["cache_control", "provider_*"]),
    ("Function", &["cache_control"]),
    ("ToolCall", &["index", "cache_control", "provider_*", "extra_content"]),
    ("StreamOptions", &["include_obfuscation"]),
    ("ExtraFile", &["time"]),
];

/// What is rejected if it has a field that is not known: it may say what the output must be, or how it
/// is drafted, which is this server's own.
const WHOLE: [&str; 6] = [
    "ResponseFormat",
    "StructuredOutputs",
    "Prediction",
    "NamedTool",
    "Speculative",
    "LossyRequest",
];

/// What [`HARMLESS`] and [`CHANGING`] call the bodies of all requests for an output.
const REQUEST: &str = "Request";

/// Routing, billing and caching elsewhere; and what shapes a sampler that is off, as it must be.
const REQUEST_HARMLESS: [&str; 30] = [
    "service_tier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "priority",
    "request_id",
    "keep_alive",
    "session_id",
    "client_metadata",
    "guided_decoding_backend",
    "guided_whitespace_pattern",
    "mirostat_tau",
    "mirostat_eta",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "xtc_threshold",
    "dynatemp_exponent",
    "smoothing_curve",
    "adaptive_decay",
    "n_keep",
    "n_discard",
    "n_cache_reuse",
    "id_slot",
    "slot_id",
    "return_progress",
    "t_max_prompt_ms",
    "backend_sampling",
    "preserved_tokens",
];

/// The value of a field that changes nothing; null never does.
enum Neutral {
    Is(f64),
    /// This or less.
    AtMost(f64),
    /// Less than this.
    Below(f64),
    False,
    True,
    /// No text, item or field.
    Empty,
    /// Nothing but null.
    Null,
}

impl Neutral {
    fn is(&self, value: &Tree) -> bool {
        let number = match value {
            Tree::Null => return true,
            Tree::Number(number) => number.as_f64(),
            _ => None,
        };
        match (self, value) {
            (Self::Is(neutral), _) => number == Some(*neutral),
            (Self::AtMost(neutral), _) => number.is_some_and(|it| it <= *neutral),
            (Self::Below(neutral), _) => number.is_some_and(|it| it < *neutral),
            (Self::False, value) => matches!(value, Tree::Bool(false)),
            (Self::True, value) => matches!(value, Tree::Bool(true)),
            (Self::Empty, Tree::Text(text)) => text.is_empty(),
            (Self::Empty, Tree::List(items)) => items.is_empty(),
            (Self::Empty, Tree::Object(fields)) => fields.is_empty(),
            (Self::Empty | Self::Null, _) => false,
        }
    }
}

const SAMPLER: &str = "leave it out, and use temperature, top_k, top_p, min_p or typical_p";
const PENALTY: &str = "leave it out, and use the penalties, logit_bias or a grammar";
const SEARCH: &str = "leave it out: outputs are sampled, and `n` makes several";
const FORM: &str = "leave it out, and use structured_outputs";
const PROMPT: &str = "leave it out, and write the prompt yourself for /v1/completions";
const TOOLS: &str = "leave it out, and use `tools` and `tool_choice`";
const ADAPTERS: &str = "leave it out: no adapters are loaded here";
const TEXT: &str = "leave it out: text alone is read and written here";

/// Fields of requests that change the output and cannot be honoured.
const CHANGING: [(&str, Neutral, &str); 42] = [
    ("mirostat", Neutral::Is(0.0), SAMPLER),
    ("mirostat_mode", Neutral::Is(0.0), SAMPLER),
    ("xtc_probability", Neutral::Is(0.0), SAMPLER),
    ("dynatemp_range", Neutral::Is(0.0), SAMPLER),
    ("top_n_sigma", Neutral::AtMost(0.0), SAMPLER),
    ("nsigma", Neutral::AtMost(0.0), SAMPLER),
    ("top_a", Neutral::Is(0.0), SAMPLER),
    ("tfs", Neutral::Is(1.0), SAMPLER),
    ("tfs_z", Neutral::Is(1.0), SAMPLER),
    ("smoothing_factor", Neutral::Is(0.0), SAMPLER),
    ("epsilon_cutoff", Neutral::Is(0.0), SAMPLER),
    ("eta_cutoff", Neutral::Is(0.0), SAMPLER),
    ("min_keep", Neutral::AtMost(1.0), SAMPLER),
    ("adaptive_target", Neutral::Below(0.0), SAMPLER),
    ("logits_processors", Neutral::Empty, SAMPLER),
    ("dry_multiplier", Neutral::Is(0.0), PENALTY),
    ("no_repeat_ngram_size", Neutral::Is(0.0), PENALTY),
    ("bad_words", Neutral::Empty, PENALTY),
    ("allowed_token_ids", Neutral::Empty, PENALTY),
    ("length_penalty", Neutral::Is(1.0), SEARCH),
    ("use_beam_search", Neutral::False, SEARCH),
    ("best_of", Neutral::AtMost(1.0), SEARCH),
    ("guidance_scale", Neutral::Is(1.0), SEARCH),
    ("negative_prompt", Neutral::Empty, SEARCH),
    ("regex", Neutral::Empty, FORM),
    ("ebnf", Neutral::Empty, FORM),
    ("stop_regex", Neutral::Empty, FORM),
    ("grammar_lazy", Neutral::False, FORM),
    ("grammar_triggers", Neutral::Empty, FORM),
    ("lora", Neutral::Empty, ADAPTERS),
    ("suffix", Neutral::Empty, PROMPT),
    ("echo", Neutral::False, PROMPT),
    ("include_stop_str_in_output", Neutral::False, PROMPT),
    ("truncate_prompt_tokens", Neutral::Is(-1.0), PROMPT),
    ("continue_final_message", Neutral::False, PROMPT),
    ("add_generation_prompt", Neutral::True, PROMPT),
    ("chat_template", Neutral::Empty, PROMPT),
    ("documents", Neutral::Empty, PROMPT),
    ("functions", Neutral::Empty, TOOLS),
    ("function_call", Neutral::Null, TOOLS),
    ("web_search_options", Neutral::Null, TOOLS),
    ("audio", Neutral::Null, TEXT),
];

/// Parts of messages that clients send and that are not read.
const UNREAD: [(&str, &str); 12] = [
    ("image", "images"),
    ("image_url", "images"),
    ("input_image", "images"),
    ("audio", "sound"),
    ("audio_url", "sound"),
    ("input_audio", "sound"),
    ("video", "films"),
    ("video_url", "films"),
    ("file", "files"),
    ("file_url", "files"),
    ("input_file", "files"),
    ("document", "files"),
];

/// Rejects a part of a message that is not read, or that has no text.
pub(super) fn check_part(name: &str, fields: &[(String, Tree)]) -> Result<(), Problem> {
    if name != "ContentPart" {
        return Ok(());
    }
    let kind = fields.iter().find(|(field, _)| field == "type").map(|(_, kind)| kind);
    let Some(Tree::Text(kind)) = kind else { return Ok(()) };
    if let Some((_, what)) = UNREAD.iter().find(|(unread, _)| unread == kind) {
        return Err(Problem::unread(kind, what));
    }
    let has_text = |(field, value): &(String, Tree)| {
        ["text", "refusal", "thinking"].contains(&field.as_str()) && !matches!(value, Tree::Null)
    };
    if fields.iter().any(has_text) { Ok(()) } else { Err(Problem::missing_field("text")) }
}

/// Most fields whose names are kept: a body may be made of nothing else.
const KEPT_MAX: usize = 64;

/// What fell through: the names that lead to each field, the innermost first.
#[derive(Debug, Default)]
pub(crate) struct Sieve(RefCell<Vec<Vec<String>>>);

impl Sieve {
    /// How much fell through so far.
    pub(super) fn len(&self) -> usize {
        self.0.borrow().len()
    }

    /// What fell through since then was found under this name.
    pub(super) fn under(&self, since: usize, name: &str) {
        let mut paths = self.0.borrow_mut();
        let mut new = paths.split_off(since);
        new.iter_mut().for_each(|path| path.push(shortened(name)));
        new.retain(|path| !paths.contains(path));
        paths.append(&mut new);
    }

    /// Keeps the name of a field, once.
    fn keep(&self, field: &str, known: &[&'static str]) {
        let (mut paths, path) = (self.0.borrow_mut(), vec![shortened(field)]);
        if paths.len() < KEPT_MAX && !paths.contains(&path) {
            if let Some(near) = nearest(field, known) {
                tracing::warn!(field = path[0], "an unknown field is ignored: is it `{near}`?");
            }
            paths.push(path);
        }
    }

    /// Takes the fields that a struct does not have out of an object.
    pub(super) fn sift(
        &self,
        name: &str,
        known: &[&'static str],
        fields: &mut Vec<(String, Tree)>,
    ) -> Result<(), Problem> {
        let place = match name {
            "ChatRequest" | "CompletionRequest" | "MessagesRequest" | "ResponsesRequest"
            | "NativeRequest" | "InfillRequest" => REQUEST,
            other => other,
        };
        if WHOLE.contains(&place) {
            return Ok(());
        }
        let mut refused = None;
        fields.retain(|(field, value)| {
            if known.contains(&field.as_str()) {
                return true;
            }
            match CHANGING.iter().find(|(name, ..)| place == REQUEST && name == field) {
                Some((_, neutral, _)) if neutral.is(value) => {}
                Some((_, _, instead)) => {
                    refused.get_or_insert_with(|| Problem::refused(field, instead));
                }
                None if is_harmless(place, field) || matches!(value, Tree::Null) => {}
                None => self.keep(field, known),
            }
            false
        });
        refused.map_or(Ok(()), Err)
    }

    /// The paths of what fell through, such as `messages[].mood`.
    pub(super) fn into_names(self) -> impl Iterator<Item = String> {
        self.0.into_inner().into_iter().map(|path| {
            let mut name = String::new();
            for part in path.iter().rev() {
                let dot = !name.is_empty() && part != "[]";
                name.extend(dot.then_some("."));
                name.push_str(part);
            }
            name
        })
    }
}

fn is_harmless(place: &str, field: &str) -> bool {
    let listed = HARMLESS.iter().find(|(name, _)| *name == place);
    listed.is_some_and(|(_, fields)| {
        fields.iter().any(|harmless| match harmless.strip_suffix('*') {
            Some(beginning) => field.starts_with(beginning),
            None => *harmless == field,
        })
    })
}
