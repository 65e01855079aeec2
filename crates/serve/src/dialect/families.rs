//! Families whose models write calls otherwise than their templates do: marks by hand.

use super::{Body, CallFormat, Dialect, Gap, Ids, Marks, Native};

/// The dialect of a template whose family is known.
pub(super) fn known(source: &str) -> Option<Dialect> {
    source.contains("<|start|>assistant<|channel|>").then(harmony)
}

/// OpenAI's Harmony (gpt-oss): channels for thoughts, calls and the answer. The template writes an
/// earlier call with its receiver before the channel; the models write it after.
fn harmony() -> Dialect {
    let calls = CallFormat {
        section: Marks::default(),
        call: Marks::new("<|channel|>commentary to=functions.", ""),
        between: String::new(),
        several: false,
        first_only: false,
        body: Body::Named { middle: vec![Gap::Text(" <|constrain|>json<|message|>".to_owned())] },
    };
    Dialect {
        thoughts: Some(Marks::new("<|channel|>analysis<|message|>", "<|end|>")),
        // What a turn begins with comes again after every channel.
        answer: Marks::new("<|channel|>final<|message|>", "<|start|>assistant"),
        calls,
        native: Some(Native { arguments_as_text: false, ids: Ids::Any }),
    }
}
