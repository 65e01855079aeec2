//! The `tojson` filter as transformers has it: Python's `json.dumps`, without HTML escapes.

use minijinja::{
    Error, ErrorKind, State, Value,
    value::{Kwargs, ValueKind},
};

/// Deepest nesting: more than any schema has, and less than the stack holds.
const DEPTH_MAX: usize = 128;
/// Most spaces of one level.
const INDENT_MAX: usize = 64;

/// The variable that holds the character by which control texts are broken; no template can name it.
pub(super) const MARK: &str = "mark of control texts";

/// Writes a value as JSON. Knows `indent`, `separators`, `sort_keys` and `ensure_ascii`.
pub(super) fn tojson(state: &State, value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    if indent.is_some_and(|indent| indent > INDENT_MAX) {
        return Err(failure(format!("more than {INDENT_MAX} spaces to indent")));
    }
    let separators: Option<(String, String)> = match options.get::<Option<Value>>("separators")? {
        Some(pair) => Some((separator(&pair, 0)?, separator(&pair, 1)?)),
        None => None,
    };
    let between = if indent.is_some() { "," } else { ", " };
    let (item, key) = separators.unwrap_or_else(|| (between.to_owned(), ": ".to_owned()));
    let mark = state.lookup(MARK).and_then(|mark| mark.as_str()?.chars().next());
    let mut writer = Writer {
        mark,
        out: String::new(),
        indent,
        item,
        key,
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        ensure_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    writer.value(value, 0)?;
    Ok(writer.out)
}

fn separator(pair: &Value, index: usize) -> Result<String, Error> {
    let separator = pair.get_item_by_index(index)?;
    separator.as_str().map(str::to_owned).ok_or_else(|| failure("separators are two strings"))
}

fn failure(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::BadSerialization, format!("tojson: {}", message.into()))
}

struct Writer {
    /// A character that is never escaped, as it does not stay.
    mark: Option<char>,
    out: String,
    /// Spaces for each level; without, all is on one line.
    indent: Option<usize>,
    /// What separates items.
    item: String,
    /// What separates a key from its value.
    key: String,
    sort_keys: bool,
    ensure_ascii: bool,
}

impl Writer {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(failure(format!("more than {DEPTH_MAX} levels")));
        }
        match value.kind() {
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth)?,
            ValueKind::Map => self.map(value, depth)?,
            _ => self.out.push_str(&scalar(value)?),
        }
        Ok(())
    }

    fn list(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut empty = true;
        for item in value.try_iter()? {
            self.begin(empty, depth + 1);
            empty = false;
            self.value(&item, depth + 1)?;
        }
        self.end(empty, depth);
        self.out.push(']');
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.sort_keys {
            keys.sort();
        }
        self.out.push('{');
        for (index, key) in keys.iter().enumerate() {
            self.begin(index == 0, depth + 1);
            match key.as_str() {
                Some(key) => self.string(key),
                None => self.string(&scalar(key)?),
            }
            self.out.push_str(&self.key);
            self.value(&value.get_item(key)?, depth + 1)?;
        }
        self.end(keys.is_empty(), depth);
        self.out.push('}');
        Ok(())
    }

    /// Writes what comes before an item.
    fn begin(&mut self, first: bool, depth: usize) {
        if !first {
            self.out.push_str(&self.item);
        }
        self.line(depth);
    }

    /// Writes what comes after the last item.
    fn end(&mut self, empty: bool, depth: usize) {
        if !empty {
            self.line(depth);
        }
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for char in text.chars() {
            match char {
                mark if Some(mark) == self.mark => self.out.push(mark),
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                char if char < ' ' || self.ensure_ascii && char > '~' => {
                    for unit in char.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                char => self.out.push(char),
            }
        }
        self.out.push('"');
    }
}

/// The text of what is neither a string nor has items.
fn scalar(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::None => Ok("null".to_owned()),
        ValueKind::Bool => Ok(if value.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::Number if value.is_integer() => Ok(value.to_string()),
        ValueKind::Number => Ok(float(f64::try_from(value.clone())?)),
        kind => Err(failure(format!("{kind} has no JSON"))),
    }
}

/// Python's text of a float: Rust's digits, with a sign and two digits in the exponent.
fn float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let text = format!("{number:?}");
    match text.split_once('e') {
        Some((digits, exponent)) => {
            let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |e| ('-', e));
            format!("{digits}e{sign}{exponent:0>2}")
        }
        None => text,
    }
}
