//! The messages of a conversation.

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::ToolCall;

/// A message of a conversation.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChatMessage {
    /// Who: system, developer, user, assistant or tool.
    pub(crate) role: Role,
    /// What; null if an assistant's message only calls functions.
    pub(crate) content: Option<Content>,
    /// The speaker's name.
    pub(crate) name: Option<String>,
    /// The calls of an assistant's message.
    pub(crate) tool_calls: Option<Vec<ToolCall>>,
    /// The call whose result a tool's message has.
    pub(crate) tool_call_id: Option<String>,
    /// An assistant's refusal; sent back by clients with their history.
    pub(crate) refusal: Option<String>,
    /// Notes to an earlier response; likewise.
    #[allow(dead_code, reason = "clients send back what they got")]
    pub(crate) annotations: Option<Value>,
    /// What a client made of an earlier response; likewise.
    #[allow(dead_code, reason = "clients send back what they got")]
    pub(crate) parsed: Option<Value>,
    /// Spoken messages; only null is supported.
    pub(crate) audio: Option<Value>,
    /// The old way to call functions; only null is supported.
    pub(crate) function_call: Option<Value>,
}

/// The role of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    /// Instructions.
    System,
    /// Instructions, by their newer name.
    Developer,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// What a function returned.
    Tool,
}

/// The content of a message.
#[derive(Debug, Clone, ToSchema)]
#[serde(untagged)]
pub(crate) enum Content {
    /// Text.
    Text(String),
    /// Parts of text.
    Parts(Vec<ContentPart>),
}

/// A part of a message: only text is supported.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ContentPart {
    /// Always `text`.
    #[serde(rename = "type")]
    #[allow(dead_code, reason = "it has one value, which is checked in reading")]
    pub(crate) kind: PartKind,
    /// The text.
    pub(crate) text: String,
}

/// The one kind of part.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PartKind {
    /// Text.
    Text,
}

impl Content {
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => parts.iter().map(|part| part.text.as_str()).collect(),
        }
    }
}
