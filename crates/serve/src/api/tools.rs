//! Functions that a model may call.
//!
//! Chat templates disagree on how calls are written. Here there is one way, which many models are
//! trained on and others can be instructed to use: JSON between `<tool_call>` and `</tool_call>`.
//! If a call is required, the output is constrained to that form and to the function's schema.

use forerun_decode::Message;
use forerun_grammar::Form;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::error::ApiError;
use super::refs::Definitions;
use super::types::{CalledFunction, Function, Tool, ToolCall, ToolChoice, ToolKind, ToolMode};

const BEGIN: &str = "<tool_call>";
const END: &str = "</tool_call>";

/// Which functions may be called, and whether one must be.
#[derive(Debug, Clone, Default)]
pub(crate) struct Calling {
    functions: Vec<Function>,
    required: bool,
}

/// A call as the model writes it.
#[derive(Deserialize)]
struct Written {
    name: String,
    #[serde(default)]
    arguments: Value,
}

impl Calling {
    /// What a request allows.
    pub(crate) fn new(
        tools: Option<Vec<Tool>>,
        choice: Option<ToolChoice>,
    ) -> Result<Self, ApiError> {
        let functions: Vec<Function> =
            tools.unwrap_or_default().into_iter().map(|tool| tool.function).collect();
        let none = || ApiError::field("tool_choice", "there are no `tools` to choose from");
        Ok(match choice {
            None | Some(ToolChoice::Mode(ToolMode::Auto)) => Self { functions, required: false },
            Some(ToolChoice::Mode(ToolMode::None)) => Self::default(),
            Some(_) if functions.is_empty() => return Err(none()),
            Some(ToolChoice::Mode(ToolMode::Required)) => Self { functions, required: true },
            Some(ToolChoice::Named(named)) => {
                let name = named.function.name;
                let function = functions.into_iter().find(|function| function.name == name);
                let unknown = || format!("there is no function {name:?} among `tools`");
                let function = function.ok_or_else(|| ApiError::field("tool_choice", unknown()))?;
                Self { functions: vec![function], required: true }
            }
        })
    }

    /// The form of an output that must be a call.
    ///
    /// # Errors
    /// If a schema refers to what it does not have.
    pub(crate) fn form(&self) -> Result<Option<Form>, ApiError> {
        if !self.required {
            return Ok(None);
        }
        let mut parts = Definitions::default();
        let mut call = |function: &Function| {
            let any = json!({ "type": "object" });
            let arguments = function.parameters.as_ref().unwrap_or(&any);
            let arguments = parts.hoist(arguments).map_err(|reference| {
                let name = &function.name;
                let message = format!(
                    "the parameters of {name:?} refer to {reference:?}, which is not in them: \
                     add it under \"$defs\""
                );
                ApiError::field("tools", message)
            })?;
            Ok(json!({
                "type": "object",
                "properties": { "name": { "const": function.name }, "arguments": arguments },
                "required": ["name", "arguments"],
                "additionalProperties": false,
            }))
        };
        let calls =
            self.functions.iter().map(&mut call).collect::<Result<Vec<Value>, ApiError>>()?;
        let schema = parts.into_schema(Map::from_iter([("anyOf".to_owned(), calls.into())]));
        Ok(Some(Form::Grammar(format!(
            "%llguidance {{}}\nstart: \"{BEGIN}\" call \"{END}\"\ncall: %json {schema}\n"
        ))))
    }

    /// Describes the functions in the model's instructions.
    pub(crate) fn instruct(&self, messages: &mut Vec<Message>) {
        if self.functions.is_empty() {
            return;
        }
        let mut instructions = String::from("You can call these functions:\n");
        for function in &self.functions {
            instructions += &serde_json::to_string(function).expect("strings and values");
            instructions.push('\n');
        }
        instructions += "To call one, answer with ";
        instructions += BEGIN;
        instructions += "{\"name\": ..., \"arguments\": {...}}";
        instructions += END;
        match messages.first_mut() {
            Some(first) if first.role == "system" => {
                first.content.push_str("\n\n");
                first.content.push_str(&instructions);
            }
            _ => messages.insert(0, Message::new("system", instructions)),
        }
    }

    /// Splits a whole output into text and calls.
    pub(crate) fn parse(&self, text: String) -> (Option<String>, Vec<ToolCall>) {
        let mut filter = self.filter();
        let mut content = String::new();
        filter.push(&text, &mut content);
        let calls = filter.finish(&mut content);
        let has_text = !content.is_empty() || calls.is_empty();
        (has_text.then_some(content), calls)
    }

    /// A filter that takes the calls out of an output as it is decoded.
    pub(crate) fn filter(&self) -> CallFilter {
        let names = self.functions.iter().map(|function| function.name.clone()).collect();
        CallFilter { names, held: String::new(), inside: None, calls: Vec::new() }
    }
}

/// Takes calls out of text as it is decoded.
#[derive(Debug)]
pub(crate) struct CallFilter {
    names: Vec<String>,
    /// Text that may be the beginning of a mark.
    held: String,
    /// The call so far, if one was begun.
    inside: Option<String>,
    calls: Vec<ToolCall>,
}

impl CallFilter {
    /// Adds text. What is no part of a call is appended to `out`.
    pub(crate) fn push(&mut self, text: &str, out: &mut String) {
        if self.names.is_empty() {
            out.push_str(text);
            return;
        }
        self.held.push_str(text);
        loop {
            let mark = if self.inside.is_some() { END } else { BEGIN };
            let Some(at) = self.held.find(mark) else { break };
            let rest = self.held.split_off(at + mark.len());
            let before = self.held[..at].to_owned();
            self.held = rest;
            match self.inside.take() {
                None => {
                    out.push_str(&before);
                    self.inside = Some(String::new());
                }
                Some(written) => self.take(written + &before, out),
            }
        }
        let mark = if self.inside.is_some() { END } else { BEGIN };
        let kept = (1..mark.len()).rev().find(|len| self.held.ends_with(&mark[..*len]));
        let free = self.held.len() - kept.unwrap_or(0);
        let rest = self.held.split_off(free);
        let before = std::mem::replace(&mut self.held, rest);
        match &mut self.inside {
            None => out.push_str(&before),
            Some(written) => written.push_str(&before),
        }
    }

    /// A call is complete. If it is not valid, it is text.
    fn take(&mut self, written: String, out: &mut String) {
        let call = serde_json::from_str::<Written>(written.trim());
        match call {
            Ok(call) if self.names.contains(&call.name) => self.calls.push(ToolCall {
                index: None,
                id: format!("call_{:016x}", crate::random()),
                kind: ToolKind::Function,
                function: CalledFunction { name: call.name, arguments: call.arguments.to_string() },
            }),
            _ => {
                out.push_str(BEGIN);
                out.push_str(&written);
                out.push_str(END);
            }
        }
    }

    /// The output has ended. Returns the calls; what was held back is appended to `out`.
    pub(crate) fn finish(&mut self, out: &mut String) -> Vec<ToolCall> {
        if let Some(written) = self.inside.take() {
            out.push_str(BEGIN);
            out.push_str(&written);
        }
        out.push_str(&std::mem::take(&mut self.held));
        let calls = self.calls.iter().cloned().zip(0..);
        calls.map(|(call, index)| ToolCall { index: Some(index), ..call }).collect()
    }

    /// Whether a function was called.
    pub(crate) fn called(&self) -> bool {
        !self.calls.is_empty()
    }
}

/// Writes the calls of an earlier message as the model wrote them.
pub(crate) fn write_calls(content: &mut String, calls: &[ToolCall]) {
    for call in calls {
        let text = &call.function.arguments;
        let arguments: Value = serde_json::from_str(text).unwrap_or_else(|_| json!(text));
        let written = json!({ "name": call.function.name, "arguments": arguments });
        content.push_str(&format!("{BEGIN}{written}{END}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calling() -> Calling {
        let tool = json!([{ "type": "function", "function": { "name": "add" } }]);
        Calling::new(serde_json::from_value(tool).unwrap(), None).unwrap()
    }

    #[test]
    fn calls_are_found_however_the_text_is_cut() {
        let text = "Let me see. <tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call> Done <tool";
        for size in 1..text.len() {
            let mut filter = calling().filter();
            let mut content = String::new();
            for piece in text.as_bytes().chunks(size) {
                filter.push(std::str::from_utf8(piece).unwrap(), &mut content);
            }
            let calls = filter.finish(&mut content);
            assert_eq!(content, "Let me see.  Done <tool", "in pieces of {size}");
            assert_eq!(calls.len(), 1);
            assert_eq!(calls[0].function.arguments, "{\"a\":1}");
        }
    }

    #[test]
    fn an_invalid_call_is_text() {
        let texts = ["<tool_call>{\"name\": \"sub\"}</tool_call>", "<tool_call>no", "a < b"];
        for text in texts {
            let (content, calls) = calling().parse(text.to_owned());
            assert_eq!((content.as_deref(), calls.len()), (Some(text), 0));
        }
    }

    #[test]
    fn without_tools_marks_are_text() {
        let text = "<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>";
        let (content, calls) = Calling::default().parse(text.to_owned());
        assert_eq!((content.as_deref(), calls.len()), (Some(text), 0));
    }
}
