//! Dialects of many families of models, each by a reduced template of our own: what a template renders
//! is read back, however it is cut into pieces, and what its grammar allows is a call.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

mod held;
mod lossless;
mod read_back;

use std::sync::Arc;

use forerun_decode::{ChatOptions, ChatTemplate, Fields, Message};
use serde_json::{Value, json};

use super::*;

/// The start and end token of all templates that ask for them.
const BOS: &str = "<s>";
const EOS: &str = "</s>";

/// Tokens that end an output of any of the families.
const ENDS: [&str; 15] = [
    EOS,
    "<|im_end|>",
    "<|eot_id|>",
    "<｜end▁of▁sentence｜>",
    "<|END_OF_TURN_TOKEN|>",
    "<|end_of_text|>",
    "<|user|>",
    "<|observation|>",
    "[e~[",
    "<SPECIAL_12>",
    "<|assistant_end|>",
    "<|eom|>",
    "[|endofturn|]",
    "<end_of_turn>",
    "<|im_end|>",
];

/// A family of models.
struct Family {
    name: &'static str,
    source: &'static str,
}

macro_rules! families {
    ($($name:literal),* $(,)?) => {
        [$(Family { name: $name, source: include_str!(concat!("templates/", $name, ".jinja")) }),*]
    };
}

/// All families whose templates know functions.
const FAMILIES: [Family; 19] = families![
    "apertus",
    "command_r7b",
    "deepseek_v3",
    "deepseek_v3_1",
    "deepseek_v3_2",
    "exaone4",
    "functionary3_1",
    "glm4_5",
    "granite3",
    "jamba",
    "kimi_k2",
    "llama3_1",
    "minimax_m2",
    "mistral_nemo",
    "mistral_small",
    "nemotron_nano",
    "qwen3",
    "qwen3_coder",
    "seed_oss",
];

impl Family {
    fn template(&self) -> ChatTemplate {
        ChatTemplate::new(self.source, Some(BOS), Some(EOS)).unwrap()
    }

    fn dialect(&self) -> Dialect {
        let ends = ENDS.map(str::to_owned).to_vec();
        Dialect::of(&self.template(), self.source, ends)
    }

    fn native(&self) -> Native {
        self.dialect().native.unwrap()
    }
}

fn family(name: &str) -> &'static Family {
    FAMILIES.iter().find(|it| it.name == name).unwrap()
}

/// Functions with parameters of several types.
fn functions() -> Arc<[Callable]> {
    let write = json!({
        "type": "object",
        "properties": {
            "path": { "type": "string" },
            "text": { "type": "string" },
            "lines": { "type": "integer" },
            "options": { "type": "object" },
        },
        "required": ["path"],
    });
    let look = json!({ "type": "object", "properties": {} });
    [("write_file", write), ("look", look)]
        .map(|(name, parameters)| Callable { name: name.to_owned(), parameters: Some(parameters) })
        .into()
}

#[test]
fn the_marks_of_every_family_are_read_off_its_template() {
    for (name, opening, end, several) in [
        ("apertus", "<|tools_prefix|>", "<|tools_suffix|>", true),
        ("command_r7b", "<|START_ACTION|>", "<|END_ACTION|>", true),
        ("deepseek_v3", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", true),
        ("deepseek_v3_1", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", true),
        ("deepseek_v3_2", "<｜DSML｜function_calls>", "</｜DSML｜function_calls>", true),
        ("exaone4", "<tool_call>", "</tool_call>", true),
        ("functionary3_1", "<function=", "</function>", true),
        ("glm4_5", "<tool_call>", "</tool_call>", true),
        ("granite3", "<|tool_call|>", "", true),
        ("jamba", "<tool_calls>", "</tool_calls>", true),
        ("kimi_k2", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", true),
        ("llama3_1", "{\"name\": \"", "}", false),
        ("minimax_m2", "<minimax:tool_call>", "</minimax:tool_call>", true),
        ("mistral_nemo", "[TOOL_CALLS]", "", true),
        ("mistral_small", "[TOOL_CALLS]", "", true),
        ("nemotron_nano", "<TOOLCALL>", "</TOOLCALL>", true),
        ("qwen3", "<tool_call>", "</tool_call>", true),
        ("qwen3_coder", "<tool_call>\n<function=", "</function>\n</tool_call>", true),
        ("seed_oss", "<seed:tool_call>\n<function=", "</function>\n</seed:tool_call>", true),
    ] {
        let dialect = family(name).dialect();
        let calls = &dialect.calls;
        assert!(dialect.native.is_some(), "{name}: {dialect:?}");
        assert_eq!(calls.opening(), opening, "{name}: {calls:?}");
        let last = format!("{}{}", calls.call.end, calls.section.end);
        assert!(last.trim().ends_with(end), "{name}: {calls:?}");
        assert_eq!(last.trim().is_empty(), end.is_empty(), "{name}: {calls:?}");
        assert_eq!(calls.several, several, "{name}: {calls:?}");
    }
}

#[test]
fn thoughts_are_found_where_a_model_has_them() {
    let think = Some(Marks::new("<think>", "</think>"));
    for (name, thoughts) in [
        ("qwen3", think.clone()),
        ("deepseek_v3", think.clone()),
        ("deepseek_v3_1", think.clone()),
        ("glm4_5", think.clone()),
        ("minimax_m2", think.clone()),
        ("nemotron_nano", think.clone()),
        ("exaone4", think),
        ("seed_oss", Some(Marks::new("<seed:think>", "</seed:think>"))),
        ("mistral_small", Some(Marks::new("[THINK]", "[/THINK]"))),
        ("command_r7b", Some(Marks::new("<|START_THINKING|>", "<|END_THINKING|>"))),
        ("llama3_1", None),
        ("granite3", None),
        ("kimi_k2", None),
    ] {
        assert_eq!(family(name).dialect().thoughts, thoughts, "{name}");
    }
    let answer = family("command_r7b").dialect().answer;
    assert_eq!(answer, Marks::new("<|START_RESPONSE|>", "<|END_RESPONSE|>"));
    for name in ["qwen3", "mistral_small", "glm4_5", "deepseek_v3_1"] {
        assert_eq!(family(name).dialect().answer, Marks::default(), "{name}");
    }
}

#[test]
fn a_template_is_told_of_calls_as_it_wants_to_be() {
    assert!(family("deepseek_v3").native().arguments_as_text);
    assert!(!family("qwen3").native().arguments_as_text);
    assert_eq!(family("mistral_nemo").native().ids, Ids::Nine);
    assert_eq!(family("kimi_k2").native().ids, Ids::Named);
    assert_eq!(family("glm4_5").native().ids, Ids::Any);
}

#[test]
fn a_template_without_functions_has_them_described() {
    let source = include_str!("templates/gemma3.jinja");
    for source in [source, "{% for m in messages %}{{ m.content }}{% endfor %}", "no messages"] {
        let template = ChatTemplate::new(source, Some(BOS), Some(EOS)).unwrap();
        assert_eq!(Dialect::of(&template, source, Vec::new()), Dialect::default(), "{source}");
    }
    // One that tells of functions and writes no calls, or writes them in another way, is not told.
    let told = "{{ tools | tojson }}{% for m in messages %}{{ m.content }}";
    let other = "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}\
                 {% for k, v in c.function.arguments | items %}{{ k }}='{{ v }}'{% endfor %}</call>\
                 {% endfor %}";
    for more in ["", other] {
        let source = &format!("{told}{more}{{% endfor %}}");
        let template = ChatTemplate::new(source, None, None).unwrap();
        assert_eq!(Dialect::of(&template, source, Vec::new()), Dialect::default(), "{source}");
    }
}

/// A turn of an assistant as its template renders it, as the model would have written it after the
/// prompt; and whether the prompt opened a thought.
fn written(family: &Family, message: Message, native: &Dialect) -> (String, bool) {
    let template = family.template();
    let mut fields = Fields::default();
    let function = json!({ "name": "write_file", "parameters": { "type": "object" } });
    fields.set("tools", json!([{ "type": "function", "function": function }]));
    let mut messages = vec![Message::new("user", "Please.")];
    let options = ChatOptions { fields: fields.clone(), ..ChatOptions::default() };
    let prompt = template.render(&messages, &options).unwrap();
    messages.push(message);
    let options = ChatOptions { add_generation_prompt: false, now: None, fields };
    let whole = template.render(&messages, &options).unwrap();
    let opened = native.is_opened(&prompt);
    let alike = whole.char_indices().zip(prompt.chars()).find(|((_, a), b)| a != b);
    let start = alike.map_or(prompt.len().min(whole.len()), |((at, _), _)| at);
    // A tag that both begin with is the turn's own.
    let start = match whole[..start].rfind('<') {
        Some(open) if !whole[open..start].contains('>') => open,
        _ => start,
    };
    let mut turn = whole[start..].trim_end().to_owned();
    while let Some(end) = ENDS.iter().find(|end| turn.ends_with(*end)) {
        turn.truncate(turn.len() - end.len());
    }
    let end = native.thoughts.as_ref().map_or("", |marks| marks.end.as_str());
    let call = turn.find(native.calls.opening()).unwrap_or(turn.len());
    if opened && !turn[..call].contains(end) {
        turn = format!("\n{end}\n\n{turn}");
    }
    (turn, opened)
}

/// A message that calls functions.
fn calling(native: Native, content: &str, calls: &[(&str, Value)]) -> Message {
    let call = |(index, (name, arguments)): (usize, &(&str, Value))| {
        let id = match native.ids {
            Ids::Any => format!("call_{index}"),
            Ids::Nine => format!("abcdefgh{index}"),
            Ids::Named => format!("functions.{name}:{index}"),
        };
        let arguments = match native.arguments_as_text {
            true => Value::from(arguments.to_string()),
            false => arguments.clone(),
        };
        let function = json!({ "name": name, "arguments": arguments });
        json!({ "id": id, "type": "function", "function": function })
    };
    let mut message = Message::new("assistant", content);
    let calls: Vec<Value> = calls.iter().enumerate().map(call).collect();
    message.extra.set("tool_calls", calls);
    message
}
