//! The body of a call: an object, a name with its arguments, or a name and each argument by itself.

use serde_json::Value;

use super::super::json::{ObjectReader, Step, ValueEnd};
use super::super::{Body, CallFormat, Field, Gap, Tags};
use super::{Begins, Found, NAME_MAX, Part, Place, Splitter, add, begins, undecided};

/// Reads the body of a call.
#[derive(Debug)]
pub(super) enum Reader {
    /// A list of objects, before the next one.
    List,
    Object {
        reader: ObjectReader,
        list: bool,
        key: String,
        value: String,
        /// Whether the arguments are whole, once the name is known.
        name: Option<bool>,
        /// Arguments that came before the name.
        early: Option<String>,
    },
    Name,
    /// Before this part of what is between a name and its arguments.
    Gap(usize),
    Arguments(ValueEnd, bool),
    /// Before an argument, by its index.
    Key(usize),
    Value {
        index: usize,
        text: bool,
        begun: bool,
    },
}

impl Splitter {
    pub(super) fn body(&mut self, reader: Reader, out: &mut Vec<Part>) -> Found {
        match reader {
            Reader::List | Reader::Object { .. } => self.objects(reader, out),
            Reader::Name => self.name(out),
            Reader::Gap(index) => self.gap(index),
            Reader::Arguments(end, begun) => self.arguments(end, begun, out),
            Reader::Key(index) => self.key(index, out),
            Reader::Value { index, text, begun } => self.value(index, text, begun, out),
        }
    }

    fn wait(&mut self, reader: Reader) -> Found {
        self.place = Place::Body(reader);
        Found::Wait
    }

    fn go_on(&mut self, reader: Reader) -> Found {
        self.place = Place::Body(reader);
        Found::More
    }

    fn name(&mut self, out: &mut Vec<Part>) -> Found {
        let format = self.format();
        let (stops, after): (Vec<&str>, _) = match &format.body {
            Body::Named { middle } => match middle.first() {
                Some(Gap::Text(text)) => (vec![text.trim()], text.trim().len()),
                _ => return Found::NoCall,
            },
            Body::Tagged(tags) if tags.after_name.trim().is_empty() => {
                (vec![tags.key.start.trim(), format.call.end.trim()], 0)
            }
            Body::Tagged(tags) => (vec![tags.after_name.trim()], tags.after_name.trim().len()),
            Body::Object { .. } => return Found::NoCall,
        };
        let found = stops.iter().filter(|it| !it.is_empty()).filter_map(|it| self.held.find(it));
        let named = matches!(format.body, Body::Named { .. });
        match found.min() {
            None if self.held.len() > NAME_MAX => Found::NoCall,
            None => self.wait(Reader::Name),
            Some(at) => {
                let name = self.take_raw(at);
                self.take_raw(after);
                if !self.call(&name, out) {
                    return Found::NoCall;
                }
                if !named {
                    add(out, Part::Arguments("{".to_owned()));
                }
                self.go_on(if named { Reader::Gap(1) } else { Reader::Key(0) })
            }
        }
    }

    /// After the first part of what is between a name and its arguments.
    fn gap(&mut self, index: usize) -> Found {
        let Body::Named { middle } = &self.format().body else { return Found::NoCall };
        match middle.get(index) {
            None => self.go_on(Reader::Arguments(ValueEnd::default(), false)),
            Some(Gap::Id) => self.go_on(Reader::Gap(index + 1)),
            // An id comes before it.
            Some(Gap::Text(text)) => match self.held.find(text.trim()) {
                Some(at) => {
                    let len = at + text.trim().len();
                    self.take(len);
                    self.go_on(Reader::Gap(index + 1))
                }
                None => self.wait(Reader::Gap(index)),
            },
        }
    }

    fn arguments(&mut self, mut end: ValueEnd, begun: bool, out: &mut Vec<Part>) -> Found {
        if !begun && !self.skip_space() {
            return self.wait(Reader::Arguments(end, begun));
        }
        if !begun && !self.held.starts_with('{') {
            // The function was announced: it has no arguments.
            add(out, Part::Arguments("{}".to_owned()));
            return Found::More;
        }
        let over = self.held.char_indices().find(|(_, char)| end.push(*char));
        let len = over.map_or(self.held.len(), |(at, char)| at + char.len_utf8());
        let taken = self.take(len);
        add(out, Part::Arguments(taken));
        match over {
            Some(_) => Found::More,
            None => self.wait(Reader::Arguments(end, true)),
        }
    }

    fn tags(&self) -> Option<&Tags> {
        match &self.format().body {
            Body::Tagged(tags) => Some(tags),
            _ => None,
        }
    }

    fn key(&mut self, index: usize, out: &mut Vec<Part>) -> Found {
        if !self.skip_space() {
            return self.wait(Reader::Key(index));
        }
        let Some(tags) = self.tags() else { return Found::NoCall };
        let start = tags.key.start.trim();
        match begins(&self.held, start) {
            Begins::Maybe => return self.wait(Reader::Key(index)),
            Begins::Not => {
                add(out, Part::Arguments("}".to_owned()));
                return Found::More;
            }
            Begins::With => {}
        }
        let rest = &self.held[start.len()..];
        // The mark that comes first says whether the value is a text, if there are two.
        let ends = [Some(&tags.key.end), tags.other_end.as_ref()];
        let found = ends.iter().enumerate().filter_map(|(which, end)| {
            let end = (*end)?.trim_start();
            Some((rest.find(end.trim_end())?, which, end))
        });
        let Some((at, which, end)) = found.min() else { return self.wait(Reader::Key(index)) };
        // A line end after the mark is part of it where the template writes one.
        let (mark, space) = end.split_at(end.trim_end().len());
        let after = &rest[at + mark.len()..];
        if begins(after, space) == Begins::Maybe {
            return self.wait(Reader::Key(index));
        }
        let space = if after.starts_with(space) { space.len() } else { 0 };
        let key = rest[..at].trim().to_owned();
        let told = tags.other_end.is_some().then_some(which == 0);
        let len = start.len() + at + mark.len() + space;
        self.take(len);
        let function = self.current.map(|index| &self.functions[index]);
        let by_schema = || function.is_some_and(|function| function.is_text(&key));
        let text = told.unwrap_or_else(by_schema);
        let comma = if index > 0 { ", " } else { "" };
        add(out, Part::Arguments(format!("{comma}{}: ", Value::from(key))));
        self.go_on(Reader::Value { index, text, begun: false })
    }

    fn value(&mut self, index: usize, text: bool, begun: bool, out: &mut Vec<Part>) -> Found {
        let Some(tags) = self.tags() else { return Found::NoCall };
        let (space, mark) =
            tags.after_value.split_at(tags.after_value.len() - tags.after_value.trim_start().len());
        let mark = mark.trim_end().to_owned();
        if let Some(at) = self.held.find(&mark) {
            let value = &self.held[..at];
            let value = value.strip_suffix(space).unwrap_or(value).to_owned();
            let written = match (text, begun) {
                (true, true) => format!("{}\"", escaped(&value)),
                (true, false) => Value::from(value).to_string(),
                (false, _) => json_of(&value),
            };
            self.take(at + mark.len());
            add(out, Part::Arguments(written));
            return self.go_on(Reader::Key(index + 1));
        }
        if !text {
            return self.wait(Reader::Value { index, text, begun });
        }
        let free = undecided(&self.held, &[&mark]);
        let piece = escaped(&self.take(free));
        let quote = if begun || piece.is_empty() { "" } else { "\"" };
        let begun = begun || !piece.is_empty();
        add(out, Part::Arguments(format!("{quote}{piece}")));
        self.wait(Reader::Value { index, text, begun })
    }

    fn objects(&mut self, mut reader: Reader, out: &mut Vec<Part>) -> Found {
        let held = std::mem::take(&mut self.held);
        for (at, char) in held.char_indices() {
            let found = match (reader, char) {
                (Reader::List, ']') => {
                    self.keep_raw(char);
                    Err(Found::More)
                }
                (Reader::List, '{') => {
                    if self.current.take().is_some() {
                        self.raw.clear();
                    }
                    self.keep_raw(char);
                    Ok(Reader::begun_object())
                }
                (Reader::List, char) if matches!(char, '[' | ',') || char.is_whitespace() => {
                    self.keep_raw(char);
                    Ok(Reader::List)
                }
                (Reader::List, _) => {
                    self.keep_raw(char);
                    Err(Found::NoCall)
                }
                (object, char) => {
                    self.keep_raw(char);
                    self.object(object, char, out)
                }
            };
            match found {
                Ok(next) => reader = next,
                Err(found) => {
                    held[at + char.len_utf8()..].clone_into(&mut self.held);
                    return found;
                }
            }
        }
        self.wait(reader)
    }

    fn keep_raw(&mut self, char: char) {
        if self.current.is_none() {
            self.raw.push(char);
        }
    }

    /// Takes a character of an object. It is over once the call is whole, or is none.
    fn object(
        &mut self,
        mut object: Reader,
        char: char,
        out: &mut Vec<Part>,
    ) -> Result<Reader, Found> {
        let Reader::Object { reader, list, key, value, name, early } = &mut object else {
            return Err(Found::NoCall);
        };
        for step in reader.push(char) {
            let field = self.field(key);
            match step {
                Step::Nothing => {}
                Step::Invalid => return Err(Found::NoCall),
                Step::Key(next) => (*key, *value) = (next, String::new()),
                Step::Value(char) => match field {
                    // An object is passed on as it comes; a string may hold one.
                    Some(Field::Arguments | Field::ArgumentsByName)
                        if name.is_some() && (value == "{" || value.is_empty() && char == '{') =>
                    {
                        "{".clone_into(value);
                        add(out, Part::Arguments(char.to_string()));
                    }
                    _ => value.push(char),
                },
                Step::ValueEnd(last) => {
                    let streamed = name.is_some() && value.starts_with('{');
                    value.extend(last.filter(|_| !streamed));
                    match field {
                        Some(Field::Name) => {
                            let said = serde_json::from_str::<String>(value).unwrap_or_default();
                            if !self.call(&said, out) {
                                return Err(Found::NoCall);
                            }
                            *name = Some(early.is_some());
                            add(out, Part::Arguments(early.take().unwrap_or_default()));
                        }
                        Some(Field::Arguments | Field::ArgumentsByName) if name.is_some() => {
                            let piece = match streamed {
                                true => last.map(String::from).unwrap_or_default(),
                                false => arguments_of(value),
                            };
                            add(out, Part::Arguments(piece));
                            *name = Some(true);
                        }
                        Some(Field::Arguments) => *early = Some(arguments_of(value)),
                        _ => {}
                    }
                    value.clear();
                }
                Step::End => {
                    let Some(argued) = name else { return Err(Found::NoCall) };
                    if !*argued {
                        add(out, Part::Arguments("{}".to_owned()));
                    }
                    return if *list { Ok(Reader::List) } else { Err(Found::More) };
                }
            }
            // The key of such an object is the name.
            if name.is_none() && self.field(key) == Some(Field::ArgumentsByName) {
                if !self.call(key, out) {
                    return Err(Found::NoCall);
                }
                *name = Some(false);
            }
        }
        Ok(object)
    }

    /// What a field of an object is.
    fn field(&self, key: &str) -> Option<Field> {
        let Body::Object { fields, .. } = &self.format().body else { return None };
        match fields.iter().find(|(_, field)| *field == Field::ArgumentsByName) {
            Some(_) if !key.is_empty() => Some(Field::ArgumentsByName),
            Some(_) => None,
            None => fields.iter().find(|(name, _)| name == key).map(|(_, field)| field.clone()),
        }
    }
}

impl Reader {
    pub(super) fn of(format: &CallFormat) -> Self {
        match &format.body {
            Body::Object { list: true, .. } => Self::List,
            Body::Object { list: false, .. } => Self::object(false),
            Body::Named { .. } | Body::Tagged(_) => Self::Name,
        }
    }

    /// An item of a list, of which the first character was read.
    fn begun_object() -> Self {
        let mut object = Self::object(true);
        if let Self::Object { reader, .. } = &mut object {
            reader.push('{');
        }
        object
    }

    fn object(list: bool) -> Self {
        Self::Object {
            reader: ObjectReader::new(),
            list,
            key: String::new(),
            value: String::new(),
            name: None,
            early: None,
        }
    }
}

/// A text as it stands in a JSON string.
fn escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// An argument that is no text by its schema: JSON if it is, and a text otherwise.
fn json_of(text: &str) -> String {
    match serde_json::from_str::<Value>(text.trim()) {
        Ok(value) => value.to_string(),
        Err(_) => Value::from(text).to_string(),
    }
}

/// Arguments as an object, also if they are JSON in a string, or null.
fn arguments_of(written: &str) -> String {
    match serde_json::from_str(written) {
        Ok(Value::String(text)) => text,
        Ok(Value::Null) | Err(_) => "{}".to_owned(),
        Ok(other) => other.to_string(),
    }
}
