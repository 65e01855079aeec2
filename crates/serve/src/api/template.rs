//! From the messages of a conversation to a prompt.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use forerun_decode::{ChatOptions, Fields, Message, RenderedPrompt, Token};
use serde_json::{Value, json};

use super::error::ApiError;
use super::notes::Notes;
use super::tools::{Calling, arguments_of, write_calls};
use super::types::{ChatMessage, ChatRequest, Role, ToolCall};
use crate::dialect::{Dialect, Ids, Native};
use crate::service::Service;

/// Variables of templates that no request can set.
const OWN_VARIABLES: [&str; 5] =
    ["messages", "add_generation_prompt", "bos_token", "eos_token", "strftime_now"];

/// Variables of a template by name.
pub(crate) type Variables = BTreeMap<String, Value>;

/// The variables that a request sets: its own names for some, and any by `chat_template_kwargs`,
/// which goes first. What the template does not read is noted.
pub(crate) fn variables_of(
    service: &Service,
    request: &mut ChatRequest,
    notes: &Notes,
) -> Result<Variables, ApiError> {
    let mut variables = request.chat_template_kwargs.take().unwrap_or_default();
    let other = request.reasoning.take().and_then(|reasoning| reasoning.effort);
    let effort = request.reasoning_effort.take().or(other);
    let thinking = request.enable_thinking.or((effort.as_deref() == Some("none")).then_some(false));
    let reads = |name: &str| service.template_source.contains(name);
    let said = [
        ("reasoning_effort", effort.is_some()),
        ("enable_thinking", request.enable_thinking.is_some()),
    ];
    // Turning thinking off honours the least effort too.
    let off = effort.as_deref() == Some("none") && reads("enable_thinking");
    for (name, _) in said.iter().filter(|(_, said)| *said) {
        let honoured = reads(name) || off && *name == "reasoning_effort";
        if !honoured {
            let message = format!("this model's chat template does not read {name}: leave it out");
            notes.ignore(name, message)?;
        }
    }
    let set = [
        ("reasoning_effort", effort.map(Value::from)),
        ("enable_thinking", thinking.map(Value::from)),
    ];
    for (name, value) in set {
        if let Some(value) = value {
            variables.entry(name.to_owned()).or_insert(value);
        }
    }
    Ok(variables)
}

/// Renders the model's chat template.
pub(crate) fn render(
    service: &Service,
    messages: &[ChatMessage],
    variables: &Variables,
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
    let mut ids = CallIds::default();
    let dialect = calling.dialect();
    let mut rendered: Vec<Message> =
        messages.iter().map(|it| message(it, dialect, &mut ids)).collect();
    calling.instruct(&mut rendered);
    let mut fields = Fields::default();
    for (name, value) in variables {
        if OWN_VARIABLES.contains(&name.as_str()) {
            let message = format!("{name} is what the server gives the template: leave it out");
            return Err(ApiError::field("chat_template_kwargs", message));
        }
        fields.set(name, value);
    }
    if let Some(tools) = calling.native_tools() {
        fields.set("tools", tools);
    }
    let now = Some(crate::now());
    let options = ChatOptions { now, fields, ..ChatOptions::default() };
    let render = |messages: &[Message]| {
        template.render_content_as_text(messages, &options, &service.specials)
    };
    let prompt = render(&rendered);
    prompt.or_else(|error| {
        // What the template says of the conversation as it was sent is what helps.
        render(&alternating(rendered)).map_err(|_| ApiError::field("messages", error))
    })
}

/// The same conversation for a template that takes one system message, at its beginning, and no two turns
/// of a speaker in a row. Agents send both: instructions in several messages, and more of them later.
fn alternating(messages: Vec<Message>) -> Vec<Message> {
    let mut turns: Vec<Message> = Vec::new();
    for mut message in messages {
        if message.role == "system" && turns.iter().any(|turn| turn.role != "system") {
            message.role = "user".to_owned();
        }
        let joins = ["system", "user"].contains(&message.role.as_str());
        match turns.last_mut().filter(|last| joins && last.role == message.role) {
            Some(last) => {
                last.content.push_str("\n\n");
                last.content.push_str(&message.content);
            }
            None => turns.push(message),
        }
    }
    turns
}

/// The tokens of a rendered prompt.
pub(crate) fn tokenize_rendered(
    service: &Service,
    prompt: &RenderedPrompt,
) -> Result<Vec<Token>, ApiError> {
    let tokens = service.specials.tokenize(&*service.tokenizer, prompt);
    Ok(service.started(tokens.map_err(|error| ApiError::field("messages", error))?))
}

/// Calls of a conversation by the ids that a client knows them by.
#[derive(Debug, Default)]
struct CallIds {
    /// The id that the template is given, and the function's name.
    known: HashMap<String, (String, String)>,
}

impl CallIds {
    /// Notes a call and returns its id for the template.
    fn note(&mut self, call: &ToolCall, ids: Ids) -> String {
        let name = &call.function.name;
        let nine = |id: &str| id.len() == 9 && id.bytes().all(|it| it.is_ascii_alphanumeric());
        let id = match ids {
            Ids::Any => call.id.clone(),
            Ids::Nine if nine(&call.id) => call.id.clone(),
            Ids::Nine => {
                let mut hasher = DefaultHasher::new();
                call.id.hash(&mut hasher);
                format!("{:09x}", hasher.finish() >> 28)
            }
            Ids::Named => format!("functions.{name}:{}", self.known.len()),
        };
        self.known.insert(call.id.clone(), (id.clone(), name.clone()));
        id
    }
}

/// The calls of a message as a template reads them.
fn native_calls(calls: &[ToolCall], native: Native, ids: &mut CallIds) -> Vec<Value> {
    let one = |call: &ToolCall| {
        let arguments = match native.arguments_as_text {
            true => Value::from(arguments_of(call).to_string()),
            false => arguments_of(call),
        };
        let function = json!({ "name": call.function.name, "arguments": arguments });
        json!({ "id": ids.note(call, native.ids), "type": "function", "function": function })
    };
    calls.iter().map(one).collect()
}

fn message(from: &ChatMessage, dialect: &Dialect, ids: &mut CallIds) -> Message {
    let role = match from.role {
        Role::System | Role::Developer => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    };
    let mut content = from.content.as_ref().map(|it| it.text()).unwrap_or_default();
    content.push_str(from.refusal.as_deref().unwrap_or_default());
    let calls = from.tool_calls.as_deref().unwrap_or_default();
    if dialect.native.is_none() {
        write_calls(&mut content, calls, dialect);
    }
    let mut message = Message::new(role, content);
    if let Some(native) = dialect.native.filter(|_| !calls.is_empty()) {
        message.extra.set("tool_calls", native_calls(calls, native, ids));
    }
    if let Some(thoughts) = from.thoughts() {
        // Harmony's template has another name for it, and takes it only where nothing was said.
        if message.content.is_empty() {
            message.extra.set("thinking", &thoughts);
        }
        message.extra.set("reasoning_content", thoughts);
    }
    if let Some(name) = &from.name {
        message.extra.set("name", name);
    }
    if let Some(id) = &from.tool_call_id {
        let known = ids.known.get(id);
        message.extra.set("tool_call_id", known.map_or(id, |(own, _)| own));
        // Templates of some models want to know whose result it is.
        if let Some((_, name)) = known.filter(|_| from.name.is_none()) {
            message.extra.set("name", name);
        }
    }
    message
}
