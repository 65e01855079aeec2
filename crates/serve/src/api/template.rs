//! From the messages of a conversation to a prompt.

use std::collections::BTreeMap;

use forerun_decode::{ChatOptions, Fields, Message, RenderedPrompt, Token};
use serde_json::Value;

use super::error::ApiError;
use super::tools::{self, Calling};
use super::types::{ChatMessage, Role};
use crate::service::Service;

/// Variables of templates that no request can set.
const OWN_VARIABLES: [&str; 5] =
    ["messages", "add_generation_prompt", "bos_token", "eos_token", "strftime_now"];

/// Renders the model's chat template.
pub(crate) fn render(
    service: &Service,
    messages: &[ChatMessage],
    variables: Option<&BTreeMap<String, Value>>,
    calling: &Calling,
) -> Result<RenderedPrompt, ApiError> {
    let Some(template) = &service.template else {
        let message = "this model has no chat template: start the server with --chat-template";
        return Err(ApiError::invalid(message));
    };
    if messages.is_empty() {
        return Err(ApiError::field("messages", "there is no message: say something"));
    }
    if messages.iter().any(|it| it.audio.is_some() || it.function_call.is_some()) {
        let message = "`audio` and `function_call` cannot be read: leave them out, or call by \
                       `tool_calls`";
        return Err(ApiError::field("messages", message));
    }
    let mut rendered: Vec<Message> = messages.iter().map(message).collect();
    calling.instruct(&mut rendered);
    let mut fields = Fields::default();
    for (name, value) in variables.into_iter().flatten() {
        if OWN_VARIABLES.contains(&name.as_str()) {
            let message = format!("{name} is what the server gives the template: leave it out");
            return Err(ApiError::field("chat_template_kwargs", message));
        }
        fields.set(name, value);
    }
    let now = Some(crate::now());
    let options = ChatOptions { now, fields, ..ChatOptions::default() };
    let prompt = template.render_content_as_text(&rendered, &options, &service.specials);
    prompt.map_err(|error| ApiError::field("messages", error))
}

/// The tokens of a rendered prompt.
pub(crate) fn tokenize_rendered(
    service: &Service,
    prompt: &RenderedPrompt,
) -> Result<Vec<Token>, ApiError> {
    let tokens = service.specials.tokenize(&*service.tokenizer, prompt);
    Ok(service.started(tokens.map_err(|error| ApiError::field("messages", error))?))
}

fn message(from: &ChatMessage) -> Message {
    let role = match from.role {
        Role::System | Role::Developer => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    };
    let mut content = from.content.as_ref().map(|it| it.text()).unwrap_or_default();
    content.push_str(from.refusal.as_deref().unwrap_or_default());
    tools::write_calls(&mut content, from.tool_calls.as_deref().unwrap_or_default());
    let mut message = Message::new(role, content);
    if let Some(name) = &from.name {
        message.extra.set("name", name);
    }
    if let Some(id) = &from.tool_call_id {
        message.extra.set("tool_call_id", id);
    }
    message
}
