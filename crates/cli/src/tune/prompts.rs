//! What is decoded while tuning: the user's prompts, or a few that are built in.

use std::path::Path;

use anyhow::Context;
use forerun_decode::{ChatOptions, ChatTemplate, Message};
use forerun_llama::Model;

/// Questions of different kinds.
const BUILT_IN: [&str; 5] = [
    "Write a short story about a lighthouse keeper who finds a message in a bottle.",
    "Explain to a beginner how a hash map works and when it is slow.",
    "Write a Python function that returns the n-th Fibonacci number, with a docstring.",
    "A farmer has 17 sheep. All but 9 run away. How many are left? Think step by step.",
    "List the planets of the solar system with one sentence about each.",
];

/// The prompts, in the model's chat format where it has one.
///
/// # Errors
/// Where the file cannot be read or has none.
pub(super) fn read(path: Option<&Path>, model: &Model) -> anyhow::Result<Vec<String>> {
    let prompts: Vec<String> = match path {
        None => BUILT_IN.map(str::to_owned).to_vec(),
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            let lines = text.lines().filter(|line| !line.trim().is_empty());
            let all: Vec<String> = lines.map(prompt).collect::<anyhow::Result<_>>()?;
            anyhow::ensure!(!all.is_empty(), "{} has no prompt", path.display());
            all
        }
    };
    let Some(source) = model.chat_template() else { return Ok(prompts) };
    let template = ChatTemplate::new(&source, None, None).context("chat template")?;
    let wrap = |prompt: String| {
        let messages = [Message::new("user", prompt)];
        template.render(&messages, &ChatOptions::default()).context("chat template")
    };
    prompts.into_iter().map(wrap).collect()
}

/// A line that is a JSON object has its prompt in it; any other is one.
fn prompt(line: &str) -> anyhow::Result<String> {
    if !line.trim_start().starts_with('{') {
        return Ok(line.to_owned());
    }
    let object: serde_json::Value = serde_json::from_str(line).context("prompts")?;
    let prompt = object.get("prompt").and_then(serde_json::Value::as_str);
    prompt.map(str::to_owned).context("prompts: an object without a \"prompt\" that is text")
}

#[cfg(test)]
mod tests {
    use super::prompt;

    #[test]
    fn a_line_is_a_prompt_or_an_object_with_one() {
        assert_eq!(prompt("Hello {there}").unwrap(), "Hello {there}");
        assert_eq!(prompt(r#"{"id": 1, "prompt": "Hi"}"#).unwrap(), "Hi");
        assert!(prompt(r#"{"text": "Hi"}"#).unwrap_err().to_string().contains("\"prompt\""));
        assert!(prompt("{").is_err());
    }
}
