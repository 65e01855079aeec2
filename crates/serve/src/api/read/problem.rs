//! What is wrong with a request, in the words of its fields.

use std::fmt;

use serde::de::{Error, Expected, Unexpected};

use crate::api::error::ApiError;

/// Most characters of a value that are quoted.
const QUOTED_MAX: usize = 40;

/// Most fields that are listed where there is none of a name.
const LISTED_MAX: usize = 12;

/// Most letters that may differ for a field to be taken for another.
const TYPOS_MAX: usize = 2;

/// What a value may be, by field; a list's items go by the list's name.
const EXAMPLES: [(&str, &str); 53] = [
    ("messages", r#"[{"role": "user", "content": "Hi!"}]"#),
    ("messages.role", r#""user""#),
    ("messages.content", r#""Hi!""#),
    ("messages.content.type", r#""text""#),
    ("messages.content.text", r#""Hi!""#),
    ("messages.tool_calls.type", r#""function""#),
    ("messages.tool_calls.id", r#""call_1""#),
    ("messages.tool_calls.function", r#"{"name": "weather", "arguments": "{\"city\": \"Rome\"}"}"#),
    ("messages.tool_calls.function.arguments", r#""{\"city\": \"Rome\"}""#),
    ("prompt", r#""Once upon a time""#),
    ("input_prefix", r#""fn main() {\n""#),
    ("input_suffix", r#""}\n""#),
    ("input_extra", r#"[{"filename": "a.rs", "text": "struct A;"}]"#),
    ("input_extra.text", r#""struct A;""#),
    ("model", r#""my-model.gguf""#),
    ("max_tokens", "100"),
    ("max_completion_tokens", "100"),
    ("n_predict", "100"),
    ("samplers", r#"["top_k", "top_p", "temperature"]"#),
    ("response_fields", r#"["content", "timings/predicted_n"]"#),
    ("stream", "true"),
    ("stream_options", r#"{"include_usage": true}"#),
    ("n", "1"),
    ("stop", r#"["END"]"#),
    ("seed", "42"),
    ("logit_bias", r#"{"50256": -100}"#),
    ("logit_bias.", "-100"),
    ("temperature", "0.7"),
    ("top_p", "0.9"),
    ("top_k", "40"),
    ("min_p", "0.05"),
    ("typical_p", "1.0"),
    ("presence_penalty", "0.5"),
    ("frequency_penalty", "0.5"),
    ("repeat_penalty", "1.1"),
    ("repeat_last_n", "64"),
    ("logprobs", "true"),
    ("top_logprobs", "5"),
    ("grammar", r#""root ::= \"yes\" | \"no\"""#),
    ("response_format", r#"{"type": "json_object"}"#),
    ("response_format.json_schema", r#"{"name": "answer", "schema": {"type": "object"}}"#),
    ("response_format.json_schema.schema", r#"{"type": "object"}"#),
    ("structured_outputs", r#"{"choice": ["yes", "no"]}"#),
    ("prediction", r#"{"type": "content", "content": "Once upon"}"#),
    ("speculative", r#"{"enabled": true, "length": 4}"#),
    ("speculative.drafter", r#""draft-model""#),
    ("tools", r#"[{"type": "function", "function": {"name": "weather"}}]"#),
    ("tools.function", r#"{"name": "weather", "parameters": {"type": "object"}}"#),
    ("tools.function.name", r#""weather""#),
    ("tool_choice", r#""auto""#),
    ("chat_template_kwargs", r#"{"enable_thinking": false}"#),
    ("resume_token_ids", "[504, 2213]"),
    ("tokens", "[504, 2213]"),
];

/// What is wrong, and where.
#[derive(Debug)]
pub(crate) struct Problem {
    /// The names and indices that lead there, the innermost first.
    path: Vec<String>,
    what: What,
}

#[derive(Debug)]
enum What {
    /// A value is another than was expected.
    Value {
        found: String,
        expected: String,
    },
    Missing,
    Unknown {
        known: &'static [&'static str],
    },
    Twice,
    /// A part of a message that is not read.
    Unread {
        kind: String,
        what: &'static str,
    },
    /// A field that changes the output and cannot be honoured.
    Refused {
        instead: &'static str,
    },
    Other(String),
}

impl Problem {
    /// It is at an item of a list.
    pub(super) fn at(mut self, index: usize) -> Self {
        self.path.push(format!("[{index}]"));
        self
    }

    /// It is under a field of an object.
    pub(super) fn under(mut self, field: &str) -> Self {
        self.path.push(shortened(field));
        self
    }

    /// A value is none of these words.
    pub(super) fn choice(found: Unexpected<'_>, words: &[&str]) -> Self {
        Self::value(found, words_of(words))
    }

    /// A part of a message is of a kind that is not read.
    pub(super) fn unread(kind: &str, what: &'static str) -> Self {
        Self::of("type", What::Unread { kind: kind.to_owned(), what })
    }

    /// A field changes the output and cannot be honoured.
    pub(super) fn refused(field: &str, instead: &'static str) -> Self {
        Self::of(field, What::Refused { instead })
    }

    fn new(what: What) -> Self {
        Self { path: Vec::new(), what }
    }

    fn of(field: &str, what: What) -> Self {
        Self { path: vec![shortened(field)], what }
    }

    fn value(found: Unexpected<'_>, expected: String) -> Self {
        Self::new(What::Value { found: found_of(found), expected })
    }

    /// Such as `messages[1].content`.
    fn place(&self) -> String {
        let mut place = String::new();
        for part in self.path.iter().rev() {
            if !place.is_empty() && !part.starts_with('[') {
                place.push('.');
            }
            place.push_str(part);
        }
        place
    }

    /// Such as `e.g. "content": "Hi!"`.
    fn example(&self) -> String {
        let names: Vec<&str> =
            self.path.iter().rev().map(String::as_str).filter(|it| !it.starts_with('[')).collect();
        let Some(last) = names.last() else { return String::new() };
        let path = names.join(".");
        // The items of this one are by ids of the client's.
        let path = if path.starts_with("logit_bias.") { "logit_bias." } else { path.as_str() };
        let found = EXAMPLES.iter().find(|(field, _)| *field == path);
        found.map(|(_, value)| format!(", e.g. \"{last}\": {value}")).unwrap_or_default()
    }

    /// What the client reads.
    pub(crate) fn into_error(self) -> ApiError {
        let place = self.place();
        let subject = match place.as_str() {
            "" => "the body".to_owned(),
            place => format!("`{place}`"),
        };
        let example = self.example();
        let message = match &self.what {
            What::Value { found, expected } => {
                format!("{subject} is {found}; expected {expected}{example}")
            }
            What::Missing => format!("{subject} is missing: add it{example}"),
            What::Unknown { known } => {
                let name = self.path.first().map_or("", String::as_str);
                let instead = match nearest(name, known) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None if known.len() <= LISTED_MAX => {
                        format!("leave it out, or use one of `{}`", known.join("`, `"))
                    }
                    None => "leave it out, or see /openapi.json for what is".to_owned(),
                };
                format!("{subject} is not a field here: {instead}")
            }
            What::Unread { kind, what } => format!(
                "{subject} is \"{kind}\": {what} cannot be read here, only text: leave this part out"
            ),
            What::Refused { instead } => {
                format!("{subject} changes the output, and this server cannot do it: {instead}")
            }
            What::Twice => format!("{subject} is there twice: leave one out"),
            What::Other(message) => format!("{subject}: {message}{example}"),
        };
        match place.as_str() {
            "" => ApiError::invalid(message),
            place => ApiError::field(place, message),
        }
    }
}

/// The beginning of a text that may be long.
pub(super) fn shortened(text: &str) -> String {
    match text.char_indices().nth(QUOTED_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// A value as a client wrote it.
fn found_of(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Bool(value) => value.to_string(),
        Unexpected::Unsigned(value) => value.to_string(),
        Unexpected::Signed(value) => value.to_string(),
        Unexpected::Float(value) => value.to_string(),
        Unexpected::Str(text) => {
            format!("the string {}", serde_json::json!(shortened(text)))
        }
        Unexpected::Unit | Unexpected::Option => "null".to_owned(),
        Unexpected::Seq => "a list".to_owned(),
        Unexpected::Map => "an object".to_owned(),
        _ => "something else".to_owned(),
    }
}

/// What a type expects, for people.
fn expected_of(expected: &dyn Expected) -> String {
    let text = expected.to_string();
    match text.as_str() {
        "u32" => "a whole number from 0 to 4294967295".to_owned(),
        "usize" | "u64" => "a whole number, 0 or more".to_owned(),
        "i32" => "a whole number from -2147483648 to 2147483647".to_owned(),
        "i64" => "a whole number".to_owned(),
        "f32" | "f64" => "a number".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a sequence" => "a list".to_owned(),
        "a map" => "an object".to_owned(),
        _ => text,
    }
}

/// Such as `"none", "auto" or "required"`.
fn words_of(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => "nothing".to_owned(),
    }
}

/// The name that was probably meant.
pub(super) fn nearest(name: &str, known: &[&'static str]) -> Option<&'static str> {
    let distance = |known: &str| {
        let mut row: Vec<usize> = (0..=known.len()).collect();
        for (index, letter) in name.bytes().enumerate() {
            let mut corner = index;
            row[0] = index + 1;
            for (at, other) in known.bytes().enumerate() {
                let changed = corner + usize::from(letter != other);
                corner = row[at + 1];
                row[at + 1] = changed.min(corner + 1).min(row[at] + 1);
            }
        }
        row[known.len()]
    };
    // Longer names than any field's are no typos of one.
    let known = known.iter().filter(|known| known.len().abs_diff(name.len()) <= TYPOS_MAX);
    let near = known.map(|known| (distance(known), *known)).min();
    near.filter(|(distance, known)| *distance <= TYPOS_MAX && *distance < known.len())
        .map(|it| it.1)
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}", self.place(), self.what)
    }
}

impl std::error::Error for Problem {}

impl Error for Problem {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(What::Other(message.to_string()))
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::value(found, expected_of(expected))
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::value(found, expected_of(expected))
    }

    fn invalid_length(len: usize, expected: &dyn Expected) -> Self {
        let found = format!("a list of {len}");
        Self::new(What::Value { found, expected: expected_of(expected) })
    }

    fn unknown_variant(word: &str, expected: &'static [&'static str]) -> Self {
        Self::choice(Unexpected::Str(word), expected)
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        Self::of(field, What::Unknown { known: expected })
    }

    fn missing_field(field: &'static str) -> Self {
        Self::of(field, What::Missing)
    }

    fn duplicate_field(field: &'static str) -> Self {
        Self::of(field, What::Twice)
    }
}
