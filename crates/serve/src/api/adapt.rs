//! What the adapters of other APIs share: fields of JSON read, and written into a chat request.

use serde_json::{Map, Value, json};

use super::error::ApiError;

/// Adds a field if it has a value.
pub(super) fn set(object: &mut Value, name: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        object[name] = value.into();
    }
}

/// The error of a field that is not what was expected.
pub(super) fn odd(place: &str, expected: &str) -> ApiError {
    ApiError::field(place, format!("`{place}`: expected {expected}"))
}

/// Returns a field that must be a string.
pub(super) fn string<'a>(value: &'a Value, name: &str, place: &str) -> Result<&'a str, ApiError> {
    let missing = || odd(&format!("{place}.{name}"), "a string");
    value.get(name).and_then(Value::as_str).ok_or_else(missing)
}

/// A form by the names of chat completions.
pub(super) fn response_format(format: &Value) -> Value {
    if format.get("type").is_none_or(|kind| kind != "json_schema") {
        return json!({ "type": format.get("type").cloned().unwrap_or_else(|| json!("text")) });
    }
    let mut named = Map::new();
    for name in ["name", "description", "schema", "strict"] {
        if let Some(value) = format.get(name).filter(|value| !value.is_null()) {
            named.insert(name.to_owned(), value.clone());
        }
    }
    json!({ "type": "json_schema", "json_schema": named })
}
