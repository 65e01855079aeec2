//! From the fields of a Messages request to those of a chat completion.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::MessagesRequest;
use crate::api::adapt::{odd, response_format, set, string};
use crate::api::error::ApiError;
use crate::api::notes::Notes;
use crate::api::read::read_value;
use crate::api::types::ChatRequest;

impl MessagesRequest {
    /// The same request for a chat completion.
    ///
    /// # Errors
    /// If a block cannot be read; the message names it.
    pub(super) fn into_chat(self, notes: &Notes) -> Result<ChatRequest, ApiError> {
        let mut messages = Vec::new();
        if let Some(system) = &self.system {
            let text = text_of(system, "system")?;
            messages.push(json!({ "role": "system", "content": text }));
        }
        for (index, message) in self.messages.iter().enumerate() {
            convert_message(message, &format!("messages[{index}]"), &mut messages)?;
        }
        let mut chat = json!({ "messages": messages });
        let tools = self.tools.as_deref().unwrap_or_default();
        // Those that are deferred are offered once a result names them.
        let named = named_tools(&self.messages);
        let offered = |tool: &Value| {
            tool.get("defer_loading").is_none_or(|it| it != true)
                || tool.get("name").and_then(Value::as_str).is_some_and(|it| named.contains(it))
        };
        let tools = tools.iter().enumerate().filter(|(_, it)| offered(it));
        let tools = tools.map(|(index, it)| tool(it, index, notes));
        let tools: Vec<Value> = tools.filter_map(Result::transpose).collect::<Result<_, _>>()?;
        if !tools.is_empty() {
            set(&mut chat, "tools", Some(tools));
        }
        if let Some(choice) = &self.tool_choice {
            let several = choice.get("disable_parallel_tool_use").and_then(Value::as_bool);
            set(&mut chat, "parallel_tool_calls", several.map(|disabled| !disabled));
            set(&mut chat, "tool_choice", Some(tool_choice(choice)?));
        }
        set(&mut chat, "enable_thinking", thinking(self.thinking.as_ref(), notes)?);
        let mut config = output_config(self.output_config, notes)?;
        set(&mut chat, "reasoning_effort", config.remove("effort"));
        let format = config.remove("format").or(self.output_format);
        let format = format.filter(|format| !format.is_null());
        set(&mut chat, "response_format", format.as_ref().map(response_format));
        set(&mut chat, "model", self.model);
        set(&mut chat, "max_tokens", self.max_tokens);
        set(&mut chat, "stop", self.stop_sequences);
        set(&mut chat, "stream", self.stream);
        set(&mut chat, "temperature", self.temperature);
        set(&mut chat, "top_k", self.top_k);
        set(&mut chat, "top_p", self.top_p);
        set(&mut chat, "speculative", self.speculative);
        set(&mut chat, "seed", self.seed);
        set(&mut chat, "cache_salt", self.cache_salt);
        set(&mut chat, "store", self.store);
        read_value(chat)
    }
}

/// The blocks of a message or of a result.
fn blocks(value: &Value) -> impl Iterator<Item = &Value> {
    value.get("content").and_then(Value::as_array).into_iter().flatten()
}

/// The tools that results of a search for tools name.
fn named_tools(messages: &[Value]) -> BTreeSet<&str> {
    let references = messages.iter().flat_map(blocks).flat_map(blocks);
    references.filter_map(|it| it.get("tool_name")?.as_str()).collect()
}

/// The text of a string or of a list of text blocks.
fn text_of(value: &Value, place: &str) -> Result<String, ApiError> {
    match value {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text.clone()),
        Value::Array(blocks) => {
            let mut texts = Vec::new();
            for (index, block) in blocks.iter().enumerate() {
                let place = format!("{place}[{index}]");
                match string(block, "type", &place)? {
                    "text" => texts.push(string(block, "text", &place)?),
                    // A result of a search for tools, which are offered then.
                    "tool_reference" => texts.push(string(block, "tool_name", &place)?),
                    other => return Err(unread(other, &place)),
                }
            }
            Ok(texts.join("\n"))
        }
        _ => Err(odd(place, "a string or a list of text blocks")),
    }
}

fn unread(kind: &str, place: &str) -> ApiError {
    let place = format!("{place}.type");
    let kind: String = kind.chars().take(40).collect();
    let message = format!("`{place}` is {kind:?}, which cannot be read here: leave this block out");
    ApiError::field(place, message)
}

/// One message may be several: results of functions are messages of their own.
fn convert_message(message: &Value, place: &str, out: &mut Vec<Value>) -> Result<(), ApiError> {
    let role = string(message, "role", place)?;
    if !["user", "assistant", "system"].contains(&role) {
        return Err(odd(&format!("{place}.role"), "\"user\" or \"assistant\""));
    }
    let content = message.get("content").unwrap_or(&Value::Null);
    let place = format!("{place}.content");
    let Value::Array(blocks) = content else {
        let text = text_of(content, &place)?;
        out.push(json!({ "role": role, "content": text }));
        return Ok(());
    };
    let (mut texts, mut thoughts, mut calls) = (Vec::new(), String::new(), Vec::new());
    for (index, block) in blocks.iter().enumerate() {
        let place = format!("{place}[{index}]");
        match (string(block, "type", &place)?, role) {
            ("text", _) => texts.push(string(block, "text", &place)?),
            ("thinking", "assistant") => thoughts.push_str(string(block, "thinking", &place)?),
            // It is for its maker alone to read.
            ("redacted_thinking", "assistant") => {}
            ("tool_use", "assistant") => {
                let input = block.get("input").cloned().unwrap_or_else(|| json!({}));
                let name = string(block, "name", &place)?;
                let function = json!({ "name": name, "arguments": input.to_string() });
                let id = string(block, "id", &place)?;
                calls.push(json!({ "id": id, "type": "function", "function": function }));
            }
            ("tool_result", "user") => {
                let id = string(block, "tool_use_id", &place)?;
                let result = block.get("content").unwrap_or(&Value::Null);
                let text = text_of(result, &format!("{place}.content"))?;
                out.push(json!({ "role": "tool", "tool_call_id": id, "content": text }));
            }
            (other, _) => return Err(unread(other, &place)),
        }
    }
    let mut converted = json!({ "role": role, "content": texts.join("\n") });
    if !thoughts.is_empty() {
        converted["reasoning_content"] = thoughts.into();
    }
    let answered = texts.is_empty() && calls.is_empty() && role == "user" && !blocks.is_empty();
    if !calls.is_empty() {
        converted["tool_calls"] = calls.into();
    }
    // A message of results alone says nothing more.
    if !answered {
        out.push(converted);
    }
    Ok(())
}

/// A function; `None` for tools that run on Anthropic's servers or that its models know by name.
fn tool(tool: &Value, index: usize, notes: &Notes) -> Result<Option<Value>, ApiError> {
    let place = format!("tools[{index}]");
    let kind = tool.get("type").and_then(Value::as_str).unwrap_or("custom");
    if kind != "custom" {
        let message = format!("`{place}.type` is {kind:?}; only functions can be offered");
        notes.ignore("tools[].type", message)?;
        return Ok(None);
    }
    let name = string(tool, "name", &place)?;
    let mut function = Map::from_iter([("name".to_owned(), json!(name))]);
    for (from, to) in [("description", "description"), ("input_schema", "parameters")] {
        if let Some(value) = tool.get(from).filter(|value| !value.is_null()) {
            function.insert(to.to_owned(), value.clone());
        }
    }
    Ok(Some(json!({ "type": "function", "function": function })))
}

fn tool_choice(choice: &Value) -> Result<Value, ApiError> {
    Ok(match string(choice, "type", "tool_choice")? {
        "auto" => json!("auto"),
        "any" => json!("required"),
        "none" => json!("none"),
        "tool" => {
            let name = string(choice, "name", "tool_choice")?;
            json!({ "type": "function", "function": { "name": name } })
        }
        _ => return Err(odd("tool_choice.type", "\"auto\", \"any\", \"tool\" or \"none\"")),
    })
}

/// What the output is to be; what else is said of it is noted.
fn output_config(config: Option<Value>, notes: &Notes) -> Result<Map<String, Value>, ApiError> {
    let config = match config {
        None | Some(Value::Null) => return Ok(Map::new()),
        Some(Value::Object(config)) => config,
        Some(_) => return Err(odd("output_config", "an object")),
    };
    for name in config.keys().filter(|name| !["effort", "format"].contains(&name.as_str())) {
        let place = format!("output_config.{name}");
        notes.ignore(&place, format!("`{place}` cannot be honoured: leave it out"))?;
    }
    Ok(config)
}

/// Whether the model is to think; how long is for it to decide.
fn thinking(thinking: Option<&Value>, notes: &Notes) -> Result<Option<bool>, ApiError> {
    let Some(thinking) = thinking.filter(|it| !it.is_null()) else { return Ok(None) };
    if thinking.get("budget_tokens").is_some_and(|it| !it.is_null()) {
        notes.ignore("thinking.budget_tokens", "thoughts have no budget of their own here")?;
    }
    match string(thinking, "type", "thinking")? {
        "enabled" => Ok(Some(true)),
        "disabled" => Ok(Some(false)),
        "adaptive" => Ok(None),
        _ => Err(odd("thinking.type", "\"enabled\", \"adaptive\" or \"disabled\"")),
    }
}
