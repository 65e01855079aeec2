//! What is decoded to measure and to test: the user's prompts, or the field's, which are built in.

use std::path::Path;

use forerun_decode::{ChatOptions, ChatTemplate, Message};

use crate::error::{Error, Result};

/// A question, and what kind of question it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Prompt {
    /// Its name in the set it comes from, or its number.
    pub id: String,
    /// The task it belongs to.
    pub task: String,
    /// What is asked: a message, and perhaps a conversation before it.
    pub messages: Vec<Message>,
    /// Whether the text of its one message is in the model's chat format already, as `forerun serve`
    /// records it.
    pub rendered: bool,
    /// What the output is an edited version of, if it is one.
    pub original: Option<String>,
    /// Whether the output ends by itself: what came after an edit would be no edit.
    pub ends: bool,
}

impl Prompt {
    /// One message, without a name.
    pub fn of_user(text: impl Into<String>) -> Self {
        Self {
            id: String::new(),
            task: String::new(),
            messages: vec![Message::new("user", text)],
            rendered: false,
            original: None,
            ends: false,
        }
    }

    /// All that is asked, for a model without a chat format.
    pub fn text(&self) -> String {
        let contents: Vec<&str> = self.messages.iter().map(|it| it.content.as_str()).collect();
        contents.join("\n\n")
    }
}

/// Questions of different kinds, for a first impression.
const FEW: [&str; 5] = [
    "Write a short story about a lighthouse keeper who finds a message in a bottle.",
    "Explain to a beginner how a hash map works and when it is slow.",
    "Write a Python function that returns the n-th Fibonacci number, with a docstring.",
    "A farmer has 17 sheep. All but 9 run away. How many are left? Think step by step.",
    "List the planets of the solar system with one sentence about each.",
];

/// The field's prompts; where they come from is in `bench/prompts/README.md`.
const FIELD: [&str; 5] = [
    include_str!("../../../bench/prompts/spec_bench.jsonl"),
    include_str!("../../../bench/prompts/human_eval.jsonl"),
    include_str!("../../../bench/prompts/gsm8k.jsonl"),
    include_str!("../../../bench/prompts/edit.jsonl"),
    include_str!("../../../bench/prompts/agent.jsonl"),
];

/// A few prompts of different kinds.
pub fn few() -> Vec<Prompt> {
    let prompt = |(index, text): (usize, &&str)| Prompt {
        id: (index + 1).to_string(),
        task: "general".to_owned(),
        ..Prompt::of_user(*text)
    };
    FEW.iter().enumerate().map(prompt).collect()
}

/// All prompts of the field's sets.
pub fn field() -> Vec<Prompt> {
    let lines = FIELD.iter().flat_map(|set| set.lines());
    lines.map(|line| read(line, 0).expect("the built-in prompts are right")).collect()
}

/// The prompts of a file: on each line a JSON object with "prompt", "messages" or "rendered_prompt",
/// perhaps "task", "id", "prediction" and "ends", or a prompt as it is.
///
/// # Errors
/// Where the file cannot be read or has none.
pub fn file(path: &Path) -> Result<Vec<Prompt>> {
    let text = std::fs::read_to_string(path).map_err(Error::reading(path))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let read = |(index, line): (usize, &str)| {
        let line_of = |source| {
            let (path, source) = (path.to_owned(), Box::new(source));
            Error::Line { path, line: index + 1, source }
        };
        read(line, index + 1).map_err(line_of)
    };
    let all: Vec<Prompt> = lines.map(read).collect::<Result<_>>()?;
    if all.is_empty() {
        return Err(Error::refused(format!("{} has no prompt", path.display())));
    }
    Ok(all)
}

/// A line that is a JSON object has its prompt in it; any other is one.
fn read(line: &str, number: usize) -> Result<Prompt> {
    if !line.trim_start().starts_with('{') {
        let task = "prompts".to_owned();
        return Ok(Prompt { id: number.to_string(), task, ..Prompt::of_user(line) });
    }
    let object: serde_json::Value = serde_json::from_str(line)?;
    let field = |name: &str| object.get(name).and_then(serde_json::Value::as_str);
    let rendered = field("rendered_prompt");
    let messages = match (rendered.or(field("prompt")), object.get("messages")) {
        (Some(text), _) => vec![Message::new("user", text)],
        (None, Some(messages)) => serde_json::from_value(messages.clone())?,
        (None, None) => Vec::new(),
    };
    if messages.is_empty() {
        return Err(Error::refused("an object without a \"prompt\" that is text, or \"messages\""));
    }
    let original = field("prediction").map(str::to_owned);
    let ends = object.get("ends").and_then(serde_json::Value::as_bool);
    Ok(Prompt {
        id: field("id").map_or_else(|| number.to_string(), str::to_owned),
        task: field("task").unwrap_or("prompts").to_owned(),
        messages,
        rendered: rendered.is_some(),
        ends: ends.unwrap_or(original.is_some()),
        original,
    })
}

/// The prompts in a model's chat format, where it has one.
///
/// # Errors
/// Where the template is broken.
pub fn in_chat_format(prompts: &[Prompt], template: Option<&str>) -> Result<Vec<String>> {
    let Some(source) = template else {
        return Ok(prompts.iter().map(Prompt::text).collect());
    };
    let template = ChatTemplate::new(source, None, None).map_err(Error::Chat)?;
    let render = |prompt: &Prompt| match prompt.rendered {
        true => Ok(prompt.text()),
        false => template.render(&prompt.messages, &ChatOptions::default()).map_err(Error::Chat),
    };
    prompts.iter().map(render).collect()
}

/// Refuses prompts that a server would render again.
///
/// # Errors
/// Where one is in a model's chat format already.
pub(crate) fn check_for_server(prompts: &[Prompt]) -> Result<()> {
    match prompts.iter().find(|prompt| prompt.rendered) {
        None => Ok(()),
        Some(prompt) => Err(Error::refused(format!(
            "prompt {} is a \"rendered_prompt\", which is for models: a server takes \"messages\"",
            prompt.id
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_prompt_or_an_object_with_one() {
        assert_eq!(read("Hello {there}", 3).unwrap().text(), "Hello {there}");
        let object = read(r#"{"id": "a", "task": "qa", "prompt": "Hi"}"#, 3).unwrap();
        let (id, task) = ("a".to_owned(), "qa".to_owned());
        assert_eq!(object, Prompt { id, task, ..Prompt::of_user("Hi") });
        let edit = read(r#"{"prompt": "Hi", "prediction": "Ho"}"#, 3).unwrap();
        assert_eq!((edit.original.as_deref(), edit.ends), (Some("Ho"), true));
        let messages =
            r#"[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]"#;
        let turn = read(&format!(r#"{{"messages": {messages}, "ends": true}}"#), 3).unwrap();
        assert_eq!((turn.text(), turn.original, turn.ends), ("Hi\n\nHo".to_owned(), None, true));
        assert!(read(r#"{"messages": []}"#, 3).is_err());
        let error = read(r#"{"text": "Hi"}"#, 3).unwrap_err().to_string();
        assert!(error.contains("\"prompt\""), "{error}");
        assert!(read("{", 3).is_err());
    }

    #[test]
    fn what_a_server_recorded_is_not_rendered_again() {
        let recorded = read(r#"{"rendered_prompt": "<user>Hi<end>"}"#, 3).unwrap();
        let written = read(r#"{"prompt": "Hi"}"#, 4).unwrap();
        let template = Some("<user>{{ messages[0].content }}<end>");
        let both = [recorded, written];
        assert_eq!(in_chat_format(&both, template).unwrap(), ["<user>Hi<end>"; 2]);
        assert_eq!(in_chat_format(&both, None).unwrap(), ["<user>Hi<end>", "Hi"]);
        check_for_server(&both[1..]).unwrap();
        let refused = check_for_server(&both).unwrap_err().to_string();
        assert!(refused.contains("prompt 3 is a \"rendered_prompt\""), "{refused}");
    }

    #[test]
    fn the_field_s_tasks_are_there() {
        let mut tasks: Vec<String> = field().into_iter().map(|prompt| prompt.task).collect();
        tasks.dedup();
        let all = ["mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag"];
        assert_eq!(tasks, [&all[..], &["human_eval", "gsm8k", "edit", "agent"]].concat());
    }
}
