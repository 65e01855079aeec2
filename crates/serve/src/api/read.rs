//! Bodies of requests: JSON into the types of `types.rs`, with errors for people who write requests.
//!
//! A body is read into a tree first, and the types from the tree, so that an error knows where it is
//! (`messages[1].content`), what is there, and what was expected, without a word of how types are
//! made here.
//!
//! Unless the server is strict, a field that the types do not have is no error: see `sift.rs`.

mod either;
mod node;
mod problem;
mod sift;
#[cfg(test)]
mod tests;
mod tree;

use serde::de::DeserializeOwned;

use super::error::ApiError;
use super::notes::Notes;
use node::Node;
use sift::Sieve;
use tree::Tree;

pub(crate) use problem::Problem;

/// Reads a request. What is left out of it is noted.
///
/// # Errors
/// Names the field, what it is, what was expected, and an example.
pub(crate) fn read<T: DeserializeOwned>(bytes: &[u8], notes: &Notes) -> Result<T, ApiError> {
    let tree: Tree = serde_json::from_slice(bytes).map_err(|error| malformed(&error))?;
    let sieve = Sieve::default();
    let node = Node { tree, sieve: (!notes.is_strict()).then_some(&sieve) };
    let read = T::deserialize(node).map_err(|problem: Problem| problem.into_error());
    sieve.into_names().for_each(|name| notes.ignored(name));
    read
}

/// Reads a request that another one was turned into.
///
/// # Errors
/// As [`read`].
pub(crate) fn read_value<T: DeserializeOwned>(body: serde_json::Value) -> Result<T, ApiError> {
    read(body.to_string().as_bytes(), &Notes::new(true))
}

/// A body that is not JSON.
fn malformed(error: &serde_json::Error) -> ApiError {
    let (line, column) = (error.line(), error.column());
    if error.is_eof() {
        let message = match line {
            0 | 1 if column == 0 => "the body is empty; expected a JSON object".to_owned(),
            _ => format!("the body is not whole: the JSON ends in line {line}, column {column}"),
        };
        return ApiError::invalid(message);
    }
    let text = error.to_string();
    let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text);
    let text = match text {
        "expected value" => "expected a value",
        "expected ident" => "expected true, false or null",
        "recursion limit exceeded" => "lists and objects are nested too deeply",
        "number out of range" => "this number is too large",
        text => text,
    };
    let place = format!("line {line}, column {column}");
    ApiError::invalid(format!("the body is not valid JSON: {text} in {place}"))
}
