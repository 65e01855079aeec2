//! What a text can be held to, and how the library is told.

use llguidance::api::TopLevelGrammar;
use llguidance::regex_to_lark;
use serde_json::{Map, Value, json};

use crate::error::{FORM_BYTES_MAX, GrammarError};
use crate::gbnf::{self, Lexemes};
use crate::lark::quote;
use crate::limits;

/// The white space of JSON between two of its parts, at most once in a place.
///
/// JSON allows any amount, and a weak model may never stop to write it. None at all is safe, but is
/// not what models are used to write, and text they would not write they write worse. This is what
/// llama.cpp allows: a space, or one or two line ends and then indentation.
const JSON_SPACE: &str = r" |\n{1,2}[ \t]{0,20}";

/// The form a text must have.
///
/// ```
/// use forerun_grammar::Form;
///
/// let form = Form::Grammar(r#"root ::= "yes" | "no""#.into());
/// assert_ne!(form, Form::Choice(vec!["yes".into(), "no".into()])); // But the same texts.
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Form {
    /// Any JSON object.
    JsonObject,
    /// JSON that is valid by a schema. White space between its parts is bounded; options of the
    /// library under the key `x-guidance` take the place of this crate's.
    JsonSchema(Value),
    /// Text that a regular expression matches as a whole. There are no anchors.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// Text of a grammar. It is in llguidance's variant of Lark where it begins with `%llguidance`
    /// or has a rule `start:`, and in llama.cpp's format (GBNF) otherwise. Of Lark's attributes,
    /// `capture` and `temperature` are without effect.
    Grammar(String),
}

impl Form {
    /// Most bytes of a form: of the schema as compact JSON, of the expression, of all choices, of
    /// the grammar.
    pub const BYTES_MAX: usize = FORM_BYTES_MAX;

    /// What the library is told; of a grammar in llama.cpp's format, with lexemes of this size.
    pub(crate) fn compile(&self, lexemes: Lexemes) -> Result<TopLevelGrammar, GrammarError> {
        let bytes = self.bytes();
        if bytes > Self::BYTES_MAX {
            return Err(GrammarError::Long { bytes });
        }
        Ok(match self {
            Self::JsonObject => schema(&json!({ "type": "object" })),
            Self::JsonSchema(value) => {
                limits::check_schema(value)?;
                schema(value)
            }
            Self::Regex(expression) => lark(regex(expression)?),
            Self::Choice(texts) => lark(choice(texts)?),
            Self::Grammar(text) if is_lark(text) => {
                limits::check_lark(text)?;
                lark(text.clone())
            }
            Self::Grammar(text) => lark(gbnf::to_lark(text, lexemes)?),
        })
    }

    /// A text that two forms have in common only if they compile to the same. The order of a schema's
    /// properties counts: it is the order in which they are written.
    pub fn key(&self) -> String {
        match self {
            Self::JsonObject => "json-object".to_owned(),
            Self::JsonSchema(value) => format!("json-schema\n{value}"),
            Self::Regex(text) => format!("regex\n{text}"),
            Self::Choice(texts) => format!("choice\n{}", json!(texts)),
            Self::Grammar(text) => format!("grammar\n{text}"),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::JsonObject => 0,
            Self::JsonSchema(value) => value.to_string().len(),
            Self::Regex(text) | Self::Grammar(text) => text.len(),
            Self::Choice(texts) => texts.iter().map(String::len).sum(),
        }
    }
}

fn lark(text: String) -> TopLevelGrammar {
    TopLevelGrammar::from_lark(text)
}

fn schema(value: &Value) -> TopLevelGrammar {
    let mut value = match value {
        Value::Bool(true) => Value::Object(Map::new()),
        other => other.clone(),
    };
    if let Value::Object(keys) = &mut value {
        keys.entry("x-guidance").or_insert_with(|| json!({ "whitespace_pattern": JSON_SPACE }));
    }
    TopLevelGrammar::from_json_schema(value)
}

fn regex(expression: &str) -> Result<String, GrammarError> {
    // The library would drop a backslash with nothing after it.
    let slashes = expression.len() - expression.trim_end_matches('\\').len();
    if slashes % 2 == 1 {
        let reason = "the regular expression ends with a lone backslash".to_owned();
        return Err(GrammarError::Refused { reason });
    }
    Ok(match expression {
        "" => "start: \"\"".to_owned(), // Two slashes would begin a comment.
        _ => format!("start: /{}/", regex_to_lark(expression, "")),
    })
}

fn choice(texts: &[String]) -> Result<String, GrammarError> {
    if texts.is_empty() {
        let reason = "there is nothing to choose from".to_owned();
        return Err(GrammarError::Refused { reason });
    }
    let quoted: Vec<String> = texts.iter().map(|text| quote(text)).collect();
    // One terminal, not one for each text, which may begin alike.
    Ok(format!("start: CHOICE\nCHOICE: {}", quoted.join(" | ")))
}

/// Whether the grammar is Lark: whether it begins as llama.cpp wants to tell, or defines `start`.
fn is_lark(text: &str) -> bool {
    let defines_start = |line: &str| {
        let name = line.trim_start().trim_start_matches(['!', '?']);
        let Some(rest) = name.strip_prefix("start") else { return false };
        let rest = rest.trim_start();
        let rest = match rest.strip_prefix('[').and_then(|attributes| attributes.split_once(']')) {
            Some((_, after)) => after.trim_start(),
            None => rest,
        };
        rest.starts_with(':') && !rest.starts_with("::=")
    };
    text.trim_start().starts_with("%llguidance") || text.lines().any(defines_start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lark_is_told_from_gbnf() {
        let lark = [
            "%llguidance {}\nroot: \"a\"",
            "  start: \"a\"",
            "# a comment\nstart : \"a\"",
            "?start: \"a\"",
            "!start: \"a\"",
            "start[capture]: /a/",
            "start [lazy, suffix=\"b\"] : /a/",
            "item: \"a\"\nstart: item",
        ];
        let gbnf = [
            "root ::= \"a\"",
            "start ::= \"a\"",
            "start::= \"a\"",
            "root ::= start\nstart ::= \"a\"",
            "root ::= \"start: \"",
            "starting: \"a\"",
            "",
        ];
        for text in lark {
            assert!(is_lark(text), "{text}");
        }
        for text in gbnf {
            assert!(!is_lark(text), "{text}");
        }
    }

    #[test]
    fn keys_tell_forms_apart() {
        let schema = |text: &str| Form::JsonSchema(serde_json::from_str(text).unwrap());
        let forms = [
            schema(r#"{"properties": {"a": {}, "b": {}}}"#),
            schema(r#"{"properties": {"b": {}, "a": {}}}"#),
            Form::JsonObject,
            schema("\"a\""),
            Form::Regex("a".into()),
            Form::Grammar("a".into()),
            Form::Choice(vec!["a".into(), "b".into()]),
            Form::Choice(vec!["a\",\"b".into()]),
        ];
        let keys: std::collections::HashSet<String> = forms.iter().map(Form::key).collect();
        assert_eq!(keys.len(), forms.len());
    }

    #[test]
    fn a_schema_keeps_its_own_options() {
        let told = |value| match schema(&value).grammars.remove(0).json_schema {
            Some(Value::Object(mut keys)) => keys.remove("x-guidance").unwrap(),
            other => panic!("{other:?}"),
        };
        assert_eq!(told(json!({})), json!({ "whitespace_pattern": JSON_SPACE }));
        assert_eq!(told(json!(true)), json!({ "whitespace_pattern": JSON_SPACE }));
        assert_eq!(told(json!({ "x-guidance": {} })), json!({}));
    }
}
