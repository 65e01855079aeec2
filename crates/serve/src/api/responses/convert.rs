//! From the fields of a Responses request to those of a chat completion.

use serde_json::{Map, Value, json};

use super::ResponsesRequest;
use crate::api::adapt::{odd, response_format, set, string};
use crate::api::error::ApiError;
use crate::api::notes::Notes;
use crate::api::read::read_value;
use crate::api::types::ChatRequest;

impl ResponsesRequest {
    /// The same request for a chat completion.
    ///
    /// # Errors
    /// If an item cannot be read, or needs what is not stored; the message names it.
    pub(super) fn into_chat(self, notes: &Notes) -> Result<ChatRequest, ApiError> {
        self.check_support()?;
        let mut messages = Messages::default();
        if let Some(instructions) = &self.instructions {
            messages.push(json!({ "role": "system", "content": instructions }));
        }
        match &self.input {
            Value::String(text) => messages.push(json!({ "role": "user", "content": text })),
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    messages.item(item, &format!("input[{index}]"), notes)?;
                }
            }
            _ => return Err(odd("input", "a string or a list of items")),
        }
        let mut chat = json!({ "messages": messages.finish() });
        let tools = self.tools.as_deref().unwrap_or_default();
        let tools = tools.iter().enumerate().map(|(index, it)| tool(it, index, notes));
        let tools: Vec<Value> = tools.filter_map(Result::transpose).collect::<Result<_, _>>()?;
        if !tools.is_empty() {
            set(&mut chat, "tools", Some(tools));
        }
        set(&mut chat, "tool_choice", self.tool_choice.as_ref().map(tool_choice).transpose()?);
        let format = self.text.as_ref().and_then(|text| text.get("format"));
        set(&mut chat, "response_format", format.map(response_format));
        let verbosity = self.text.as_ref().and_then(|text| text.get("verbosity"));
        if verbosity.is_some_and(|it| !it.is_null()) {
            notes.ignore("text.verbosity", "`text.verbosity` cannot be honoured: leave it out")?;
        }
        let effort = self.reasoning.as_ref().and_then(|it| it.get("effort")).cloned();
        set(&mut chat, "reasoning_effort", effort.filter(|effort| !effort.is_null()));
        set(&mut chat, "model", self.model);
        set(&mut chat, "max_tokens", self.max_output_tokens);
        set(&mut chat, "stream", self.stream);
        set(&mut chat, "temperature", self.temperature);
        set(&mut chat, "top_p", self.top_p);
        set(&mut chat, "parallel_tool_calls", self.parallel_tool_calls);
        set(&mut chat, "speculative", self.speculative);
        set(&mut chat, "seed", self.seed);
        set(&mut chat, "cache_salt", self.cache_salt);
        set(&mut chat, "store", self.store);
        read_value(chat)
    }

    fn check_support(&self) -> Result<(), ApiError> {
        let stored = "no response is stored here: send the whole conversation as `input`";
        if self.previous_response_id.is_some() {
            return Err(ApiError::field("previous_response_id", stored));
        }
        if self.conversation.as_ref().is_some_and(|it| !it.is_null()) {
            return Err(ApiError::field("conversation", stored));
        }
        if self.background == Some(true) {
            let message = "a response is made while its request waits: leave `background` out";
            return Err(ApiError::field("background", message));
        }
        Ok(())
    }
}

/// The conversation: an assistant's thoughts, text and calls are items of their own and one message.
#[derive(Default)]
struct Messages {
    all: Vec<Value>,
    /// The assistant's message that is being put together.
    answer: Option<Value>,
}

impl Messages {
    fn push(&mut self, message: Value) {
        self.all.extend(self.answer.take());
        self.all.push(message);
    }

    fn finish(mut self) -> Vec<Value> {
        self.all.extend(self.answer.take());
        self.all
    }

    fn answer(&mut self) -> &mut Value {
        self.answer.get_or_insert_with(|| json!({ "role": "assistant", "content": "" }))
    }

    fn item(&mut self, item: &Value, place: &str, notes: &Notes) -> Result<(), ApiError> {
        let kind = item.get("type").and_then(Value::as_str).unwrap_or("message");
        match kind {
            "message" => {
                let role = string(item, "role", place)?;
                let content = item.get("content").unwrap_or(&Value::Null);
                let text = text_of(content, &format!("{place}.content"))?;
                match role {
                    "assistant" => {
                        // After calls comes another message.
                        if self.answer().get("tool_calls").is_some() {
                            self.all.extend(self.answer.take());
                        }
                        let answer = self.answer();
                        let said = answer["content"].as_str().unwrap_or_default().to_owned();
                        answer["content"] = json!(said + &text);
                    }
                    _ => self.push(json!({ "role": role, "content": text })),
                }
            }
            "function_call" => {
                let name = string(item, "name", place)?;
                let arguments = string(item, "arguments", place)?;
                let id = string(item, "call_id", place)?;
                let function = json!({ "name": name, "arguments": arguments });
                let call = json!({ "id": id, "type": "function", "function": function });
                let answer = self.answer();
                match answer.get_mut("tool_calls").and_then(Value::as_array_mut) {
                    Some(calls) => calls.push(call),
                    None => answer["tool_calls"] = json!([call]),
                }
            }
            "function_call_output" => {
                let id = string(item, "call_id", place)?;
                let output = item.get("output").unwrap_or(&Value::Null);
                let text = text_of(output, &format!("{place}.output"))?;
                self.push(json!({ "role": "tool", "tool_call_id": id, "content": text }));
            }
            "reasoning" => {
                let text = thoughts_of(item);
                if !text.is_empty() {
                    self.answer()["reasoning_content"] = json!(text);
                }
            }
            other => {
                let place = format!("{place}.type");
                let other: String = other.chars().take(40).collect();
                let message =
                    format!("`{place}` is {other:?}, which cannot be read here: leave it out");
                // What other tools did is no part of a conversation with functions alone.
                match other.ends_with("_call") || other.ends_with("_call_output") {
                    true => notes.ignore("input[].type", message)?,
                    false => return Err(ApiError::field(place, message)),
                }
            }
        }
        Ok(())
    }
}

/// The text of a string or of a list of text parts.
fn text_of(value: &Value, place: &str) -> Result<String, ApiError> {
    match value {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => {
            let mut texts = String::new();
            for (index, part) in parts.iter().enumerate() {
                let place = format!("{place}[{index}]");
                texts.push_str(match string(part, "type", &place)? {
                    "input_text" | "output_text" | "text" => string(part, "text", &place)?,
                    "refusal" => string(part, "refusal", &place)?,
                    other => {
                        let other: String = other.chars().take(40).collect();
                        let place = format!("{place}.type");
                        let message = format!(
                            "`{place}` is {other:?}; only text can be read here: leave this part out"
                        );
                        return Err(ApiError::field(place, message));
                    }
                });
            }
            Ok(texts)
        }
        _ => Err(odd(place, "a string or a list of parts")),
    }
}

/// The thoughts of an item, or their summary.
fn thoughts_of(item: &Value) -> String {
    let texts = |name: &str| -> String {
        let parts = item.get(name).and_then(Value::as_array).into_iter().flatten();
        parts.filter_map(|part| part.get("text")?.as_str()).collect()
    };
    match texts("content") {
        text if text.is_empty() => texts("summary"),
        text => text,
    }
}

/// A function; `None` for tools that run on OpenAI's servers or that its models know by name.
fn tool(tool: &Value, index: usize, notes: &Notes) -> Result<Option<Value>, ApiError> {
    let place = format!("tools[{index}]");
    let kind = string(tool, "type", &place)?;
    if kind != "function" {
        let kind: String = kind.chars().take(40).collect();
        let message = format!("`{place}.type` is {kind:?}; only functions can be offered");
        notes.ignore("tools[].type", message)?;
        return Ok(None);
    }
    let mut function = Map::new();
    function.insert("name".to_owned(), json!(string(tool, "name", &place)?));
    for name in ["description", "parameters"] {
        if let Some(value) = tool.get(name).filter(|value| !value.is_null()) {
            function.insert(name.to_owned(), value.clone());
        }
    }
    Ok(Some(json!({ "type": "function", "function": function })))
}

fn tool_choice(choice: &Value) -> Result<Value, ApiError> {
    match choice {
        Value::String(_) => Ok(choice.clone()),
        choice if choice.get("type").is_some_and(|kind| kind == "function") => {
            let name = string(choice, "name", "tool_choice")?;
            Ok(json!({ "type": "function", "function": { "name": name } }))
        }
        _ => Err(odd("tool_choice", "\"none\", \"auto\", \"required\" or a function by its name")),
    }
}
