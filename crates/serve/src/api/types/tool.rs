//! Functions that a model may call, and its calls.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// A function the model may call.
#[derive(Debug, Clone, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tool {
    /// Always `function`.
    #[serde(rename = "type")]
    pub(crate) kind: ToolKind,
    /// The function.
    pub(crate) function: Function,
}

/// The one kind of tool.
#[derive(Debug, Clone, Copy, Default, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ToolKind {
    /// A function.
    #[default]
    Function,
}

/// A function by its name and parameters.
#[derive(Debug, Clone, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Function {
    /// Its name.
    pub(crate) name: String,
    /// What it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) description: Option<String>,
    /// Its parameters, as a JSON schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) parameters: Option<Value>,
    /// Whether calls must follow it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) strict: Option<bool>,
}

/// Whether a function is called.
#[derive(Debug, Clone, ToSchema)]
#[serde(untagged)]
pub(crate) enum ToolChoice {
    /// `none`, `auto` or `required`.
    Mode(ToolMode),
    /// This one.
    Named(NamedTool),
}

/// Whether a function is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ToolMode {
    /// None.
    None,
    /// As the model decides.
    Auto,
    /// One of them.
    Required,
}

/// A function that must be called.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NamedTool {
    /// Always `function`.
    #[serde(rename = "type")]
    #[allow(dead_code, reason = "it has one value, which is checked in reading")]
    pub(crate) kind: ToolKind,
    /// Its name.
    pub(crate) function: FunctionName,
}

/// A function's name.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FunctionName {
    /// The name.
    pub(crate) name: String,
}

/// A call of a function.
#[derive(Debug, Clone, Deserialize, Serialize, ToSchema)]
pub(crate) struct ToolCall {
    /// The id that the result refers to.
    #[serde(default)]
    pub(crate) id: String,
    /// Always `function`.
    #[serde(rename = "type", default)]
    pub(crate) kind: ToolKind,
    /// The function and its arguments.
    pub(crate) function: CalledFunction,
}

/// A part of a call, in a stream.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ToolCallDelta {
    /// The index of the call.
    pub(crate) index: usize,
    /// Its id, in its first part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    /// Always `function`, in its first part.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<ToolKind>,
    /// The function, and more of its arguments.
    pub(crate) function: CalledFunctionDelta,
}

/// A part of a function's call.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub(crate) struct CalledFunctionDelta {
    /// Its name, in the first part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// More of the JSON.
    pub(crate) arguments: String,
}

/// A function and its arguments.
#[derive(Debug, Clone, Deserialize, Serialize, ToSchema)]
pub(crate) struct CalledFunction {
    /// Its name.
    pub(crate) name: String,
    /// JSON, as text.
    pub(crate) arguments: String,
}
