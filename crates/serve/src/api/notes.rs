//! What a request asked for and does not get: named in a header of its response, and in the log.

use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::{HeaderName, HeaderValue};

use super::error::ApiError;

/// The header that names it.
pub(crate) const IGNORED: HeaderName = HeaderName::from_static("forerun-ignored");

/// Most fields that the header names.
const NAMED_MAX: usize = 16;

/// What is noted of one request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Notes {
    strict: bool,
    ignored: Arc<Mutex<Vec<String>>>,
}

impl Notes {
    /// For a request to a server that is strict or not.
    pub(crate) fn new(strict: bool) -> Self {
        Self { strict, ..Self::default() }
    }

    /// Whether what cannot be honoured is rejected, even if the output does not depend on it.
    pub(crate) fn is_strict(&self) -> bool {
        self.strict
    }

    /// A field is not honoured.
    pub(crate) fn ignored(&self, name: impl Into<String>) {
        let mut ignored = self.ignored.lock().unwrap_or_else(PoisonError::into_inner);
        let name = name.into();
        if !ignored.contains(&name) {
            ignored.push(name);
        }
    }

    /// A field cannot be honoured, and the output does not depend on it.
    ///
    /// # Errors
    /// If the server is strict: with this message.
    pub(crate) fn ignore(&self, name: &str, message: impl ToString) -> Result<(), ApiError> {
        if self.strict {
            return Err(ApiError::field(name, message));
        }
        self.ignored(name);
        Ok(())
    }

    /// The header's value; `None` if everything is honoured.
    pub(crate) fn header(&self) -> Option<HeaderValue> {
        let ignored = self.ignored.lock().unwrap_or_else(PoisonError::into_inner);
        if ignored.is_empty() {
            return None;
        }
        // Names are the client's: what no header can hold is written as a question mark.
        let plain = |name: &String| {
            name.chars()
                .map(|it| if it.is_ascii_graphic() && it != ',' { it } else { '?' })
                .collect()
        };
        let named: Vec<String> = ignored.iter().take(NAMED_MAX).map(plain).collect();
        let mut value = named.join(", ");
        if ignored.len() > NAMED_MAX {
            write!(value, ", and {} more", ignored.len() - NAMED_MAX)
                .expect("strings take all text");
        }
        HeaderValue::from_str(&value).ok()
    }
}
