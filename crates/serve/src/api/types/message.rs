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
    /// What an assistant thought before it answered; sent back by clients with their history.
    pub(crate) reasoning_content: Option<String>,
    /// The same by another name, if it is a text.
    pub(crate) reasoning: Option<Value>,
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

/// A part of a message: text, or what stands for it in a history.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ContentPart {
    /// What it is.
    #[serde(rename = "type")]
    pub(crate) kind: PartKind,
    /// The text.
    pub(crate) text: Option<String>,
    /// The text of a refusal.
    pub(crate) refusal: Option<String>,
    /// The text of a thought.
    pub(crate) thinking: Option<String>,
}

/// The kinds of parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PartKind {
    /// Text.
    Text,
    /// Text, as the Responses API calls what users say.
    InputText,
    /// Text, as it calls what models say.
    OutputText,
    /// An assistant's refusal.
    Refusal,
    /// What an assistant thought before it answered.
    Thinking,
    /// The same by another name.
    Reasoning,
}

impl ContentPart {
    /// Whether it is a thought and no part of what was said.
    fn is_thought(&self) -> bool {
        matches!(self.kind, PartKind::Thinking | PartKind::Reasoning)
    }

    fn own_text(&self) -> Option<&str> {
        self.text.as_deref().or(self.refusal.as_deref()).or(self.thinking.as_deref())
    }
}

impl Content {
    /// What was said.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => {
                let said = parts.iter().filter(|part| !part.is_thought());
                said.filter_map(ContentPart::own_text).collect()
            }
        }
    }

    /// What was thought.
    fn thoughts(&self) -> String {
        match self {
            Self::Text(_) => String::new(),
            Self::Parts(parts) => {
                let thought = parts.iter().filter(|part| part.is_thought());
                thought.filter_map(ContentPart::own_text).collect()
            }
        }
    }
}

impl ChatMessage {
    /// What an assistant thought before it answered, if the client sent it back.
    pub(crate) fn thoughts(&self) -> Option<String> {
        let own = self.reasoning_content.clone();
        let other = || self.reasoning.as_ref().and_then(Value::as_str).map(str::to_owned);
        let parts = || self.content.as_ref().map(Content::thoughts);
        own.or_else(other).or_else(parts).filter(|thoughts| !thoughts.is_empty())
    }
}
