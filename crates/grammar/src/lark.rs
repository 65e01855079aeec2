//! Texts in Lark, the grammar format of the library.

use serde_json::Value;

/// The text as a string of Lark: as one of JSON, without the character it does not take.
pub(crate) fn quote(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_are_strings_of_lark() {
        assert_eq!(quote("a\"\\\n\u{7f}é"), r#""a\"\\\n\u007fé""#);
    }
}
