//! The grammar of calls by their functions' schemas, from the mark of the first one on. What comes before
//! the mark is free (`lead.rs`), or the mark itself if there must be a call.

use std::fmt::Write;

use forerun_grammar::Form;
use serde_json::{Map, Value, json};

use super::refs::Definitions;
use super::split::Callable;
use super::{Body, CallFormat, Dialect, Field, Gap, Ids, Marks, Tags};

/// White space between the parts of JSON: not without end, and as much as templates write.
const JSON_SPACE: &str = r"[ \n\t]{1,24}";

/// White space before a call or an answer that has a form: as much as models write after a thought, and
/// not without end.
const SPACE_BEFORE: &str = r"(\s{1,4})";

/// What the calls of an output are held to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallRules<'a> {
    pub(crate) dialect: &'a Dialect,
    pub(crate) functions: &'a [Callable],
    /// Whether there must be a call.
    pub(crate) required: bool,
    /// Whether there may be several.
    pub(crate) several: bool,
    /// Whether the output begins inside a thought.
    pub(crate) opened: bool,
    /// The schema of an answer that is no call; `None` if it is any text.
    pub(crate) answer: Option<&'a Value>,
}

/// What an output is held to.
#[derive(Debug, Clone)]
pub(crate) struct CallForm {
    pub(crate) form: Form,
    pub(crate) begins: Begins,
    /// Whether the output begins inside a thought.
    pub(crate) opened: bool,
    /// Whether the output must follow it: it has a form, or must be a call.
    pub(crate) needed: bool,
}

impl CallForm {
    /// An answer that has this form, after a thought if the output begins inside one.
    pub(crate) fn of_answer(form: Form, opened: bool) -> Self {
        Self { form, begins: Begins::first(opened), opened, needed: true }
    }
}

/// From where on an output is held to a form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begins {
    AtOnce,
    /// From the mark of a call on: what comes before it is free.
    AtMark,
    /// From the end of a thought on.
    AfterThought,
}

impl Begins {
    /// As soon as an output can, which may begin inside a thought.
    fn first(opened: bool) -> Self {
        if opened { Self::AfterThought } else { Self::AtOnce }
    }
}

/// A schema refers to what it does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MissingPart {
    pub(crate) function: String,
    pub(crate) reference: String,
}

/// A grammar while it is written.
#[derive(Debug, Default)]
struct Lark {
    rules: String,
    count: usize,
}

impl Lark {
    /// Adds a rule and returns its name.
    fn rule(&mut self, attributes: &str, text: &str) -> String {
        let name = format!("r{}", self.count);
        self.count += 1;
        writeln!(self.rules, "{name}{attributes}: {text}").expect("strings take all text");
        name
    }

    /// A rule for JSON by a schema.
    fn json(&mut self, mut schema: Value) -> String {
        if let Value::Object(keys) = &mut schema {
            keys.entry("x-guidance").or_insert_with(|| json!({ "whitespace_pattern": JSON_SPACE }));
        }
        self.rule("", &format!("%json {schema}"))
    }
}

/// A text as a string of Lark; nothing if it is empty.
fn quote(text: &str) -> String {
    match text {
        "" => String::new(),
        text => Value::from(text).to_string().replace('\u{7f}', "\\u007f"),
    }
}

/// A text as a regular expression between slashes.
fn escape(text: &str) -> String {
    let mut out = String::new();
    for char in text.chars() {
        match char {
            '\n' => out.push_str("\\n"),
            // These two are text as they stand, and ends of words behind a backslash.
            '<' | '>' => out.push(char),
            char if char.is_ascii_punctuation() => out.extend(['\\', char]),
            char => out.push(char),
        }
    }
    out
}

/// A rule for a thought that need not be there.
fn thought(marks: &Marks, lark: &mut Lark) -> String {
    let suffix = format!("[suffix={}]", quote(marks.end.trim()));
    let start = escape(marks.start.trim());
    lark.rule(&suffix, &format!(r"/\s*{start}(?s:.*)/")) + "?"
}

/// Whether values of a schema are texts, which are written as they are.
fn is_text(schema: &Value) -> bool {
    schema.get("type").is_some_and(|kind| kind == "string")
}

impl CallRules<'_> {
    /// What the output is held to, and from where on.
    ///
    /// # Errors
    /// If a schema refers to what it does not have.
    pub(crate) fn form(&self) -> Result<CallForm, MissingPart> {
        let mut lark = Lark::default();
        let calls = self.calls(&mut lark)?;
        let thoughts = self.dialect.thoughts.as_ref().filter(|_| !self.opened);
        let first = Begins::first(self.opened);
        let (begins, start) = match (self.required, self.answer) {
            (false, None) => (Begins::AtMark, calls),
            (true, _) => (first, format!("{} {calls}", self.head(thoughts, &mut lark))),
            (false, Some(schema)) => {
                let thought = thoughts.map(|marks| thought(marks, &mut lark)).unwrap_or_default();
                let mark = lark.rule(&self.suffix(), &format!("/{SPACE_BEFORE}?/"));
                let answer = lark.json(schema.clone());
                (first, format!("{thought} ( {mark} {calls} | /{SPACE_BEFORE}/? {answer} )"))
            }
        };
        let Lark { rules, .. } = lark;
        let form = Form::Grammar(format!("%llguidance {{}}\nstart: {start}\n{rules}"));
        let needed = self.required || self.answer.is_some();
        Ok(CallForm { form, begins, opened: self.opened, needed })
    }

    /// The rule for what comes before a call that must be made, and for its mark.
    fn head(&self, thoughts: Option<&Marks>, lark: &mut Lark) -> String {
        let before = match thoughts {
            None => r"/\s*/".to_owned(),
            Some(Marks { start, end }) => {
                let (start, end) = (escape(start.trim()), escape(end.trim()));
                format!(r"/(\s*{start}(?s:.*){end})?\s*/")
            }
        };
        lark.rule(&self.suffix(), &before)
    }

    /// The attribute of a rule that ends with the mark of a call.
    fn suffix(&self) -> String {
        format!("[suffix={}]", quote(self.dialect.calls.opening()))
    }

    /// The rest of an output after the mark of its first call.
    fn calls(&self, lark: &mut Lark) -> Result<String, MissingPart> {
        let CallFormat { section, call, between, body, several, .. } = &self.dialect.calls;
        let whole = format!("{}{}", section.start, call.start);
        let lead = &whole.trim_start()[self.dialect.calls.opening().len()..];
        let last = format!("{}{}", call.end, section.end);
        let (last, section_end) = (last.trim_end(), section.end.trim_end());
        let several = *several && self.several;
        let (lead, more) = (quote(lead), quote(&format!("{between}{}", call.start)));
        let body = match body {
            Body::Object { fields, list } => {
                let schema = self.objects(fields, *list, several)?;
                lark.json(schema)
            }
            Body::Named { middle } => self.named(middle, lark)?,
            Body::Tagged(tags) => self.tagged(tags, lark)?,
        };
        let list = matches!(self.dialect.calls.body, Body::Object { list: true, .. });
        if list || !several {
            return Ok(format!("{lead} {body} {}", quote(last)));
        }
        let end = match section_end {
            "" => quote(call.end.trim_end()),
            _ => quote(&call.end),
        };
        let rest = format!("( {more} {body} {end} )*");
        Ok(format!("{lead} {body} {end} {rest} {}", quote(section_end)))
    }

    /// The parameters of a function, with what they refer to.
    fn parameters(
        &self,
        function: &Callable,
        parts: &mut Definitions,
    ) -> Result<Value, MissingPart> {
        let any = json!({ "type": "object" });
        let parameters = function.parameters.as_ref().unwrap_or(&any);
        parts.hoist(parameters).map_err(|reference| {
            let function = function.name.clone();
            MissingPart { function, reference }
        })
    }

    /// The schema of an object that is a call, or of a list of such.
    fn objects(
        &self,
        fields: &[(String, Field)],
        list: bool,
        several: bool,
    ) -> Result<Value, MissingPart> {
        let mut parts = Definitions::default();
        let mut objects = Vec::new();
        for function in self.functions {
            let arguments = self.parameters(function, &mut parts)?;
            let property = |(key, field): &(String, Field)| match field {
                Field::Name => (key.clone(), json!({ "const": function.name })),
                Field::Arguments => (key.clone(), arguments.clone()),
                Field::ArgumentsByName => (function.name.clone(), arguments.clone()),
                Field::Id => (key.clone(), self.id_schema()),
                Field::Other(Value::String(text)) if text.parse::<u32>().is_ok() => {
                    (key.clone(), json!({ "type": "string", "pattern": "^[0-9]{1,3}$" }))
                }
                Field::Other(value) => (key.clone(), json!({ "const": value })),
            };
            let properties: Map<String, Value> = fields.iter().map(property).collect();
            let required: Vec<&String> = properties.keys().collect();
            objects.push(json!({
                "type": "object",
                "required": required,
                "properties": properties,
                "additionalProperties": false,
            }));
        }
        let mut schema = Map::from_iter([("anyOf".to_owned(), Value::from(objects))]);
        if list {
            let most = if several { json!(null) } else { json!(1) };
            let mut items = json!({ "type": "array", "items": schema, "minItems": 1 });
            if let (Value::Object(items), Value::Number(most)) = (&mut items, most) {
                items.insert("maxItems".to_owned(), most.into());
            }
            schema = items.as_object().cloned().unwrap_or_default();
        }
        Ok(parts.into_schema(schema))
    }

    fn id_schema(&self) -> Value {
        match self.dialect.native.map(|native| native.ids) {
            Some(Ids::Nine) => json!({ "type": "string", "pattern": "^[a-zA-Z0-9]{9}$" }),
            _ => json!({ "type": "string", "pattern": "^[a-zA-Z0-9_.:-]{1,64}$" }),
        }
    }

    fn named(&self, middle: &[Gap], lark: &mut Lark) -> Result<String, MissingPart> {
        let mut calls = Vec::new();
        for function in self.functions {
            let mut text = function.name.clone();
            let mut parts = String::new();
            for gap in middle {
                match gap {
                    Gap::Text(gap) => text.push_str(gap),
                    Gap::Id => {
                        write!(parts, "{} /[a-zA-Z0-9_.-]{{1,64}}/ ", quote(&text))
                            .expect("strings take all text");
                        text.clear();
                    }
                }
            }
            let mut hoisted = Definitions::default();
            let arguments = self.parameters(function, &mut hoisted)?;
            let object = arguments.as_object().cloned().unwrap_or_default();
            let arguments = lark.json(hoisted.into_schema(object));
            let text = quote(&text);
            calls.push(lark.rule("", &format!("{parts}{text} {arguments}")));
        }
        Ok(lark.rule("", &calls.join(" | ")))
    }

    fn tagged(&self, tags: &Tags, lark: &mut Lark) -> Result<String, MissingPart> {
        let value_suffix = format!("[suffix={}]", quote(&tags.after_value));
        let any_text = lark.rule(&value_suffix, "/(?s:.*)/");
        let mut calls = Vec::new();
        for function in self.functions {
            let mut hoisted = Definitions::default();
            let parameters = self.parameters(function, &mut hoisted)?;
            let empty = Map::new();
            let properties = parameters["properties"].as_object().unwrap_or(&empty);
            let required: Vec<&str> = parameters["required"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect();
            let defined = hoisted.into_schema(Map::new());
            let values = Values { tags, any_text: &any_text, defined };
            let mut text = quote(&format!("{}{}", function.name, tags.after_name));
            for (key, schema) in properties {
                let end = match is_text(schema) {
                    true => &tags.key.end,
                    false => tags.other_end.as_ref().unwrap_or(&tags.key.end),
                };
                let name = quote(&format!("{}{key}{end}", tags.key.start));
                let value = values.rule(schema, lark);
                match required.contains(&key.as_str()) {
                    true => write!(text, " {name} {value}"),
                    false => write!(text, " ( {name} {value} )?"),
                }
                .expect("strings take all text");
            }
            if properties.is_empty() && parameters["additionalProperties"] != false {
                let (start, end) = (quote(&tags.key.start), quote(&tags.key.end));
                write!(text, " ( {start} /[a-zA-Z0-9_]{{1,64}}/ {end} {any_text} )*")
                    .expect("strings take all text");
            }
            calls.push(lark.rule("", &text));
        }
        Ok(lark.rule("", &calls.join(" | ")))
    }
}

/// Arguments that are written each by itself.
struct Values<'a> {
    tags: &'a Tags,
    /// The rule for any text and what follows it.
    any_text: &'a str,
    /// What their schemas refer to.
    defined: Value,
}

impl Values<'_> {
    /// The rule for an argument's value and what follows it.
    fn rule(&self, schema: &Value, lark: &mut Lark) -> String {
        let after = quote(&self.tags.after_value);
        if is_text(schema) {
            let words = schema.get("enum").and_then(Value::as_array);
            return match words {
                None => self.any_text.to_owned(),
                Some(words) => {
                    let words: Vec<String> =
                        words.iter().filter_map(Value::as_str).map(quote).collect();
                    lark.rule("", &format!("( {} ) {after}", words.join(" | ")))
                }
            };
        }
        let mut schema = schema.clone();
        if let (Value::Object(schema), Value::Object(defined)) = (&mut schema, &self.defined) {
            schema.extend(defined.clone());
        }
        let value = lark.json(schema);
        lark.rule("", &format!("{value} {after}"))
    }
}
