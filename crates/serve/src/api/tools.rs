//! Functions that a model may call, as requests offer them and responses report their calls.
//!
//! How a call is written is the model's own: see `dialect.rs`. To a model whose chat template knows
//! nothing of functions they are described in its instructions.

use std::sync::Arc;

use forerun_decode::{Finish, Message};
use forerun_grammar::Form;
use serde_json::{Value, json};

use super::error::ApiError;
use super::objects::Delta;
use super::types::{
    CalledFunction, CalledFunctionDelta, Function, Tool, ToolCall, ToolCallDelta, ToolChoice,
    ToolKind, ToolMode,
};
use crate::dialect::{CallForm, CallRules, Callable, Dialect, Part, Splitter};
use crate::event::finish_reason;

/// Which functions may be called, and whether one must be.
#[derive(Debug, Clone)]
pub(crate) struct Calling {
    dialect: Arc<Dialect>,
    tools: Vec<Tool>,
    functions: Arc<[Callable]>,
    required: bool,
    several: bool,
    /// Whether the output begins inside a thought.
    opened: bool,
}

impl Calling {
    /// No function may be called.
    pub(crate) fn none(dialect: &Arc<Dialect>) -> Self {
        Self::of(dialect, Vec::new(), false)
    }

    fn of(dialect: &Arc<Dialect>, mut tools: Vec<Tool>, required: bool) -> Self {
        for tool in &mut tools {
            // Templates take it that every function has parameters.
            let none = || json!({ "type": "object", "properties": {} });
            tool.function.parameters.get_or_insert_with(none);
        }
        let callable = |tool: &Tool| {
            let Function { name, parameters, .. } = tool.function.clone();
            Callable { name, parameters }
        };
        let functions = tools.iter().map(callable).collect();
        let dialect = Arc::clone(dialect);
        Self { dialect, tools, functions, required, several: true, opened: false }
    }

    /// What a request allows.
    ///
    /// # Errors
    /// If a function is to be called that is not there.
    pub(crate) fn new(
        dialect: &Arc<Dialect>,
        tools: Option<Vec<Tool>>,
        choice: Option<ToolChoice>,
        several: Option<bool>,
    ) -> Result<Self, ApiError> {
        let tools = tools.unwrap_or_default();
        let none = || ApiError::field("tool_choice", "there are no `tools` to choose from");
        let calling = match choice {
            None | Some(ToolChoice::Mode(ToolMode::Auto)) => Self::of(dialect, tools, false),
            Some(ToolChoice::Mode(ToolMode::None)) => Self::none(dialect),
            Some(_) if tools.is_empty() => return Err(none()),
            Some(ToolChoice::Mode(ToolMode::Required)) => Self::of(dialect, tools, true),
            Some(ToolChoice::Named(named)) => {
                let name = named.function.name;
                let tool = tools.into_iter().find(|tool| tool.function.name == name);
                let unknown = || format!("there is no function {name:?} among `tools`");
                let tool = tool.ok_or_else(|| ApiError::field("tool_choice", unknown()))?;
                Self::of(dialect, vec![tool], true)
            }
        };
        Ok(Self { several: several.unwrap_or(true), ..calling })
    }

    /// The same for the output after this prompt.
    pub(crate) fn after(self, prompt: &str) -> Self {
        Self { opened: self.dialect.is_opened(prompt), ..self }
    }

    /// How the model writes.
    pub(crate) fn dialect(&self) -> &Dialect {
        &self.dialect
    }

    /// What the calls of an output are held to, and its answer if that has a form.
    ///
    /// # Errors
    /// If a function's schema refers to what it does not have, unless the answer has a form of its own, or
    /// that form is not one beside calls.
    pub(crate) fn form(&self, answer: Option<Form>) -> Result<Option<CallForm>, ApiError> {
        let schema = answer.as_ref().and_then(json_schema);
        if self.required && answer.is_some() && schema.is_none() {
            let message = "an answer that must call a function has no other form";
            return Err(ApiError::field("response_format", message));
        }
        // A form that is no JSON leaves no room for calls, and one that is JSON none for calls whose mark
        // is JSON too.
        let joins = schema.is_some() && !self.dialect.calls.first_only;
        let calls = self.required || answer.is_none() || joins;
        let rules = (calls && !self.functions.is_empty()).then(|| self.rules(schema.as_ref()));
        match rules.map(|rules| rules.form()) {
            Some(Ok(calls)) => Ok(Some(calls)),
            Some(Err(missing)) if self.required || answer.is_none() => {
                let message = format!(
                    "the parameters of {:?} refer to {:?}, which is not in them: add it under \
                     \"$defs\"",
                    missing.function, missing.reference
                );
                Err(ApiError::field("tools", message))
            }
            _ => Ok(answer.map(|form| CallForm::of_answer(form, self.opened))),
        }
    }

    fn rules<'a>(&'a self, answer: Option<&'a Value>) -> CallRules<'a> {
        let Self { dialect, functions, required, several, opened, .. } = self;
        let (required, several, opened) = (*required, *several, *opened);
        CallRules { dialect, functions, required, several, opened, answer }
    }

    /// The functions, for a template that describes them to the model.
    pub(crate) fn native_tools(&self) -> Option<&[Tool]> {
        let native = self.dialect.native.is_some() && !self.tools.is_empty();
        native.then_some(&self.tools[..])
    }

    /// Describes the functions in the model's instructions, if its template does not.
    pub(crate) fn instruct(&self, messages: &mut Vec<Message>) {
        if self.tools.is_empty() || self.dialect.native.is_some() {
            return;
        }
        let mut instructions = String::from("You can call these functions:\n");
        for tool in &self.tools {
            instructions += &serde_json::to_string(&tool.function).expect("strings and values");
            instructions.push('\n');
        }
        let call = &self.dialect.calls.call;
        instructions += "To call one, answer with ";
        instructions += &call.start;
        instructions += "{\"name\": ..., \"arguments\": {...}}";
        instructions += &call.end;
        match messages.first_mut() {
            Some(first) if first.role == "system" => {
                first.content.push_str("\n\n");
                first.content.push_str(&instructions);
            }
            _ => messages.insert(0, Message::new("system", instructions)),
        }
    }

    /// Splits the output into thoughts, text and calls.
    pub(crate) fn splitter(&self) -> Splitter {
        Splitter::new(Arc::clone(&self.dialect), Arc::clone(&self.functions), self.opened)
    }

    /// Splits a whole output.
    pub(crate) fn split(&self, text: &str) -> (Vec<Part>, Splitter) {
        let (mut splitter, mut parts) = (self.splitter(), Vec::new());
        splitter.push(text, &mut parts);
        splitter.finish(&mut parts);
        (parts, splitter)
    }
}

/// The schema of a form that is JSON.
fn json_schema(form: &Form) -> Option<Value> {
    match form {
        Form::JsonObject => Some(json!({ "type": "object" })),
        Form::JsonSchema(Value::Bool(true)) => Some(json!({})),
        Form::JsonSchema(schema) => Some(schema.clone()),
        _ => None,
    }
}

/// A new id of a call.
pub(crate) fn call_id() -> String {
    format!("call_{:016x}", crate::random())
}

/// The finish reason of an output, by OpenAI's names.
pub(crate) fn reason_of(splitter: &Splitter, finish: Finish) -> &'static str {
    match finish_reason(finish) {
        "length" if splitter.is_cut() => "length",
        _ if splitter.calls() > 0 => "tool_calls",
        reason => reason,
    }
}

/// A whole answer: thoughts, text and calls.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) thoughts: Option<String>,
    pub(crate) text: Option<String>,
    pub(crate) calls: Vec<ToolCall>,
}

impl From<Vec<Part>> for Answer {
    fn from(parts: Vec<Part>) -> Self {
        let mut answer = Self::default();
        for part in parts {
            match part {
                Part::Thought(text) => answer.thoughts.get_or_insert_default().push_str(&text),
                Part::Text(text) => answer.text.get_or_insert_default().push_str(&text),
                Part::Call(name) => answer.calls.push(ToolCall {
                    id: call_id(),
                    kind: ToolKind::Function,
                    function: CalledFunction { name, arguments: String::new() },
                }),
                Part::Arguments(text) => {
                    if let Some(call) = answer.calls.last_mut() {
                        call.function.arguments.push_str(&text);
                    }
                }
            }
        }
        if answer.calls.is_empty() {
            answer.text.get_or_insert_default();
        }
        answer
    }
}

/// What parts add to a message; `begun` counts its calls.
pub(crate) fn delta_of(parts: Vec<Part>, begun: &mut usize) -> Delta {
    let mut delta = Delta::default();
    for part in parts {
        match part {
            Part::Thought(text) => delta.reasoning_content.get_or_insert_default().push_str(&text),
            Part::Text(text) => delta.content.get_or_insert_default().push_str(&text),
            Part::Call(name) => {
                let function = CalledFunctionDelta { name: Some(name), arguments: String::new() };
                delta.tool_calls.push(ToolCallDelta {
                    index: *begun,
                    id: Some(call_id()),
                    kind: Some(ToolKind::Function),
                    function,
                });
                *begun += 1;
            }
            Part::Arguments(arguments) => {
                let index = begun.saturating_sub(1);
                match delta.tool_calls.last_mut().filter(|call| call.index == index) {
                    Some(call) => call.function.arguments.push_str(&arguments),
                    None => delta.tool_calls.push(ToolCallDelta {
                        index,
                        id: None,
                        kind: None,
                        function: CalledFunctionDelta { name: None, arguments },
                    }),
                }
            }
        }
    }
    delta
}

/// Writes the calls of an earlier message as text, for a template that knows nothing of calls.
pub(crate) fn write_calls(content: &mut String, calls: &[ToolCall], dialect: &Dialect) {
    let marks = &dialect.calls.call;
    for call in calls {
        let arguments = arguments_of(call);
        let written = json!({ "name": call.function.name, "arguments": arguments });
        content.push_str(&format!("{}{written}{}", marks.start, marks.end));
    }
}

/// The arguments of an earlier call; what is no JSON is a text.
pub(crate) fn arguments_of(call: &ToolCall) -> Value {
    match call.function.arguments.trim() {
        "" => json!({}),
        text => serde_json::from_str(text).unwrap_or_else(|_| json!(text)),
    }
}
