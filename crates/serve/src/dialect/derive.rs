//! Reads the marks off a template: it is rendered with thoughts, with an answer, with one call and with
//! two, whose parts are words that occur nowhere else. What stands around them are the marks.

use std::time::UNIX_EPOCH;

use forerun_decode::{ChatOptions, ChatTemplate, Fields, Message};
use serde_json::{Map, Value, json};

use super::families;
use super::{Body, CallFormat, Dialect, Field, Gap, Ids, Marks, Native, Tags};

/// Words that occur in no template.
const ASKED: &str = "probe-question";
const ANSWER: &str = "@probe-answer@";
const THOUGHT: &str = "@probe-thought@";
const NAMES: [&str; 2] = ["probe_first_name", "probe_second_name"];
const KEYS: [&str; 2] = ["probe_key_a", "probe_key_b"];
const VALUES: [&str; 2] = ["probe-value-a", "probe-value-b"];

/// Marks of thoughts of models whose templates take thoughts out of a history and never write them.
const THOUGHT_MARKS: [(&str, &str); 5] = [
    ("<think>", "</think>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
];

impl Dialect {
    /// The dialect of a template's model. `ends` are the texts of tokens that end an output.
    pub(crate) fn of(template: &ChatTemplate, source: &str, mut ends: Vec<String>) -> Self {
        if let Some(known) = families::known(source) {
            return known;
        }
        // The shorter ones may end the longer.
        ends.retain(|end| !end.is_empty());
        ends.sort_by_key(|end| std::cmp::Reverse(end.len()));
        let ends = &ends[..];
        let plain = |reasoning| {
            let mut message = Message::new("assistant", ANSWER);
            if reasoning {
                for name in ["reasoning_content", "reasoning", "thinking"] {
                    message.extra.set(name, THOUGHT);
                }
            }
            render(template, vec![message], false)
        };
        let thoughts = plain(true).and_then(|text| thoughts(&text));
        let thoughts = thoughts.or_else(|| {
            let known = THOUGHT_MARKS.iter().find(|(_, end)| source.contains(end));
            known.map(|(start, end)| Marks::new(start, end))
        });
        let answered = plain(false);
        let prompt = render(template, Vec::new(), true).unwrap_or_default();
        let answer = answered.as_deref().map(|it| answer(it, &prompt, &thoughts, ends));
        let answer = answer.unwrap_or_default();
        let described = Self { thoughts, answer, ..Self::default() };
        let (Some(answered), true) = (answered, reads_tools(template)) else { return described };
        for ids in [Ids::Any, Ids::Nine, Ids::Named] {
            for arguments_as_text in [false, true] {
                let native = Native { arguments_as_text, ids };
                let probe = Probe { template, native, answered: &answered, ends };
                // One that takes objects is not given text, though it may write that too.
                let Some(one) = probe.turn(&[probe.call(0)]) else { continue };
                if let Some(calls) = probe.calls(&one) {
                    return Self { calls, native: Some(native), ..described };
                }
                break;
            }
        }
        described
    }
}

/// The tools that a template is told of.
fn tools() -> Value {
    let text = json!({ "type": "string", "description": "a text" });
    let properties: Map<String, Value> =
        KEYS.iter().map(|key| ((*key).to_owned(), text.clone())).collect();
    let parameters = json!({ "type": "object", "properties": properties, "required": KEYS });
    let tool = |name: &str| {
        let function = json!({ "name": name, "description": "a probe", "parameters": parameters });
        json!({ "type": "function", "function": function })
    };
    Value::from(NAMES.map(tool).to_vec())
}

fn render(template: &ChatTemplate, more: Vec<Message>, generation: bool) -> Option<String> {
    let mut messages = vec![Message::new("user", ASKED)];
    messages.extend(more);
    let mut fields = Fields::default();
    fields.set("tools", tools());
    // Some templates tell the date.
    let now = Some(UNIX_EPOCH);
    let options = ChatOptions { add_generation_prompt: generation, now, fields };
    template.render(&messages, &options).ok()
}

/// Whether a prompt has the functions that its template is told of.
fn reads_tools(template: &ChatTemplate) -> bool {
    render(template, Vec::new(), true).is_some_and(|prompt| prompt.contains(NAMES[0]))
}

/// The marks around a thought: the tag before it, and the one after it.
fn thoughts(text: &str) -> Option<Marks> {
    let (before, after) = text.split_once(THOUGHT)?;
    let (after, _) = after.split_once(ANSWER)?;
    let (before, after) = (before.trim_end(), after.trim());
    let start = &before[before.rfind(['<', '['])?..];
    let end = &after[..=after.find(['>', ']'])?];
    let tags = start.ends_with(['>', ']']) && end.starts_with(['<', '[']);
    // What a turn has more of marks something else too.
    let (_, turn) = text.split_once(ASKED)?;
    let once = [start, end].iter().all(|mark| turn.matches(mark).count() == 1);
    (tags && once).then(|| Marks::new(start, end))
}

/// The marks around an answer, which come between it and what a turn begins and ends with.
fn answer(text: &str, prompt: &str, thoughts: &Option<Marks>, ends: &[String]) -> Marks {
    let Some((before, after)) = text.split_once(ANSWER) else { return Marks::default() };
    let start = &before[common_start(before, prompt)..];
    let end = thoughts.as_ref().map_or("", |marks| marks.end.as_str());
    let start = start.rsplit_once(end).filter(|_| !end.is_empty()).map_or(start, |(_, it)| it);
    let marks = Marks::new(start.trim(), without_ends(after, ends).trim());
    // What only one side has is no mark of the answer but of the turn.
    let tags = marks.start.starts_with('<') && marks.end.starts_with('<');
    if tags { marks } else { Marks::default() }
}

/// A turn's text without the tokens that end it.
fn without_ends<'a>(text: &'a str, ends: &[String]) -> &'a str {
    let mut text = text;
    while let Some(shorter) = ends.iter().find_map(|end| text.trim_end().strip_suffix(end.as_str()))
    {
        text = shorter;
    }
    text
}

/// A call that is rendered.
struct Call {
    name: &'static str,
    id: String,
    arguments: Value,
}

/// Renders calls as a template wants to be told of them.
struct Probe<'a> {
    template: &'a ChatTemplate,
    native: Native,
    /// A turn with an answer.
    answered: &'a str,
    ends: &'a [String],
}

/// Where a call's body is in a text.
struct Found {
    start: usize,
    end: usize,
    body: Body,
}

impl Probe<'_> {
    fn call(&self, index: usize) -> Call {
        let name = NAMES[index];
        let id = match self.native.ids {
            Ids::Any => format!("call_probe_id_{index}"),
            Ids::Nine => format!("probeid0{index}"),
            Ids::Named => format!("functions.{name}:{index}"),
        };
        let values = [format!("{}{index}", VALUES[0]), format!("{}{index}", VALUES[1])];
        let arguments: Map<String, Value> =
            KEYS.iter().zip(values).map(|(key, value)| ((*key).to_owned(), value.into())).collect();
        Call { name, id, arguments: arguments.into() }
    }

    /// The part of a turn that these calls make, between what turns begin and end with.
    fn turn(&self, calls: &[Call]) -> Option<String> {
        let call = |call: &Call| {
            let arguments = match self.native.arguments_as_text {
                true => Value::from(call.arguments.to_string()),
                false => call.arguments.clone(),
            };
            let function = json!({ "name": call.name, "arguments": arguments });
            json!({ "id": call.id, "type": "function", "function": function })
        };
        let mut message = Message::new("assistant", "");
        message.extra.set("tool_calls", calls.iter().map(call).collect::<Vec<Value>>());
        let text = render(self.template, vec![message], false)?;
        let start = common_start(self.answered, &text);
        let end = common_end(&self.answered[start..], &text[start..]);
        let turn = without_ends(&text[start..text.len() - end], self.ends);
        Some(turn.to_owned())
    }

    /// The format by which this turn has one call.
    fn calls(&self, one: &str) -> Option<CallFormat> {
        let calls = [self.call(0), self.call(1)];
        let mut found = self.find(one, &calls[0])?;
        if let Body::Tagged(tags) = &mut found.body {
            tags.other_end = self.other_end(&tags.key)?;
        }
        let (before, after) = (&one[..found.start], &one[found.end..]);
        let two = self.turn(&calls);
        let list = matches!(found.body, Body::Object { list: true, .. });
        let mut format = CallFormat {
            section: Marks::default(),
            call: Marks::new(before, after),
            between: String::new(),
            several: list && two.as_ref().is_some_and(|two| two.contains(NAMES[1])),
            first_only: false,
            body: found.body,
        };
        if let Some(two) = two.filter(|_| !list) {
            self.split_two(&two, &calls, &mut format);
        }
        format.without_thoughts().checked()
    }

    /// What stands between the name and the value of an argument that is no text, if that is not the
    /// same; `None` if values of several types have marks of their own.
    fn other_end(&self, key: &Marks) -> Option<Option<String>> {
        let end = |value: Value, written: &str| {
            let arguments = json!({ KEYS[0]: value });
            let turn = self.turn(&[Call { arguments, ..self.call(0) }])?;
            let (_, after) = turn.split_once(&format!("{}{}", key.start, KEYS[0]))?;
            let (end, _) = after.split_once(written)?;
            Some(end.to_owned())
        };
        let (number, list) = (end(json!(12345), "12345")?, end(json!([54321]), "[54321]")?);
        match number == list {
            true => Some((number != key.end).then_some(number)),
            false => None,
        }
    }

    /// Tells the marks of each call from those around all of them, by a text with two.
    fn split_two(&self, two: &str, calls: &[Call; 2], format: &mut CallFormat) -> Option<()> {
        let first = self.find(two, &calls[0])?;
        let second = self.find(&two[first.end..], &calls[1])?;
        if !first.body.is_like(&second.body) {
            return None;
        }
        let between = &two[first.end..first.end + second.start];
        let Marks { start: before, end: after } = &format.call;
        let end = common_start(after, between);
        let start = common_end(before, &between[end..]);
        let section = Marks::new(&before[..before.len() - start], &after[end..]);
        let call = Marks::new(&before[before.len() - start..], &after[..end]);
        format.between = between[end..between.len() - start].to_owned();
        (format.section, format.call, format.several) = (section, call, true);
        Some(())
    }

    /// Finds a call's body: the object that holds it, or its name and its arguments.
    fn find(&self, text: &str, call: &Call) -> Option<Found> {
        let name = text.find(call.name)?;
        self.find_object(text, call, name)
            .or_else(|| self.find_named(text, call, name))
            .or_else(|| find_tagged(text, call, name))
    }

    fn find_object(&self, text: &str, call: &Call, name: usize) -> Option<Found> {
        let starts = text[..name].char_indices().filter(|(_, char)| matches!(char, '{' | '['));
        for (start, _) in starts {
            let Some((value, len)) = json_at(&text[start..]) else { continue };
            let (list, object) = match &value {
                Value::Array(items) => (true, items.first()?.as_object()?),
                Value::Object(object) => (false, object),
                _ => continue,
            };
            let field = |(key, value): (&String, &Value)| {
                let field = match value {
                    Value::String(text) if text == call.name => Field::Name,
                    Value::String(text) if *text == call.id => Field::Id,
                    value if *value == call.arguments && key == call.name => Field::ArgumentsByName,
                    value if *value == call.arguments => Field::Arguments,
                    // Nested objects, and arguments in a string, are no fields of a call.
                    Value::Object(_) | Value::Array(_) => return None,
                    Value::String(text) if text.contains(KEYS[0]) => return None,
                    other => Field::Other(other.clone()),
                };
                Some((key.clone(), field))
            };
            let fields: Option<Vec<(String, Field)>> = object.iter().map(field).collect();
            let body = Body::Object { fields: fields?, list };
            return Some(Found { start, end: start + len, body });
        }
        None
    }

    fn find_named(&self, text: &str, call: &Call, name: usize) -> Option<Found> {
        let after = name + call.name.len();
        let mut starts = text[after..].char_indices().filter(|(_, char)| *char == '{');
        let found = starts.find_map(|(at, _)| {
            let (value, len) = json_at(&text[after + at..])?;
            (value == call.arguments).then_some((after + at, len))
        });
        let (arguments, len) = found?;
        let middle = &text[after..arguments];
        // Some write the call's index, whatever its id.
        let index = if call.name == NAMES[0] { "0" } else { "1" };
        let numbered = middle.strip_prefix(':').and_then(|rest| rest.strip_prefix(index));
        let middle = match numbered.map(|rest| (":", rest)).or(middle.split_once(&call.id)) {
            Some((before, after)) => {
                vec![Gap::Text(before.to_owned()), Gap::Id, Gap::Text(after.to_owned())]
            }
            None => vec![Gap::Text(middle.to_owned())],
        };
        let body = Body::Named { middle };
        Some(Found { start: name, end: arguments + len, body })
    }
}

fn find_tagged(text: &str, call: &Call, name: usize) -> Option<Found> {
    let values: Vec<&str> = KEYS.iter().filter_map(|key| call.arguments[*key].as_str()).collect();
    let at = |from: usize, word: &str| Some(from + text[from..].find(word)?);
    let after_name = name + call.name.len();
    let key_a = at(after_name, KEYS[0])?;
    let value_a = at(key_a, values[0])?;
    let key_b = at(value_a, KEYS[1])?;
    let value_b = at(key_b, values[1])?;
    let first = &text[after_name..key_a];
    let next = &text[value_a + values[0].len()..key_b];
    let before_key = common_end(first, next);
    let between = &text[key_a + KEYS[0].len()..value_a];
    // A value in quotes is no text as it stands.
    if between.ends_with(['"', '\'', '`', '|']) {
        return None;
    }
    let tags = Tags {
        after_name: first[..first.len() - before_key].to_owned(),
        key: Marks::new(&next[next.len() - before_key..], between),
        other_end: None,
        after_value: next[..next.len() - before_key].to_owned(),
    };
    // Where values end is read off their own mark.
    let end = value_b + values[1].len();
    let marked = !tags.after_value.trim().is_empty() && text[end..].starts_with(&tags.after_value);
    let end = end + tags.after_value.len();
    marked.then(|| Found { start: name, end, body: Body::Tagged(tags) })
}

/// A JSON value at the beginning of a text, and its length.
fn json_at(text: &str) -> Option<(Value, usize)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let value = values.next()?.ok()?;
    Some((value, values.byte_offset()))
}

/// How many bytes two texts begin with alike, without a part of a tag.
fn common_start(one: &str, other: &str) -> usize {
    let alike = one.char_indices().zip(other.chars()).find(|((_, a), b)| a != b);
    let len = alike.map_or(one.len().min(other.len()), |((at, _), _)| at);
    let open = one[..len].rfind(['<', '[']);
    let closed = one[..len].rfind(['>', ']']);
    match open {
        Some(open) if closed.is_none_or(|closed| closed < open) => open,
        _ => len,
    }
}

/// How many bytes two texts end with alike, without a part of a tag.
fn common_end(one: &str, other: &str) -> usize {
    let alike = one.chars().rev().zip(other.chars().rev()).take_while(|(a, b)| a == b);
    let len: usize = alike.map(|(char, _)| char.len_utf8()).sum();
    let tail = &one[one.len() - len..];
    let open = tail.find(['<', '[']);
    match tail.find(['>', ']']) {
        Some(closed) if open.is_none_or(|open| closed < open) => len - closed - 1,
        _ => len,
    }
}

impl Body {
    /// Whether another call is written so too.
    fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Object { .. }, Self::Object { .. }) => true,
            (Self::Tagged(one), Self::Tagged(other)) => {
                one.after_name == other.after_name && one.key == other.key
            }
            (one, other) => one == other,
        }
    }
}

impl CallFormat {
    /// An empty thought before a call is no mark of it.
    fn without_thoughts(mut self) -> Self {
        let start = match self.section.start.trim() {
            "" => &mut self.call.start,
            _ => &mut self.section.start,
        };
        for (_, end) in THOUGHT_MARKS {
            if let Some((_, after)) = start.rsplit_once(end) {
                *start = after.to_owned();
            }
        }
        self
    }

    /// The format if calls can be told from text by it. Those of an object without a mark begin with
    /// the object itself.
    fn checked(mut self) -> Option<Self> {
        if self.opening().is_empty() {
            let Body::Object { fields, list: false } = &self.body else { return None };
            let [(name, Field::Name), (arguments, Field::Arguments)] = &fields[..] else {
                return None;
            };
            self.call = Marks::new(&format!("{{\"{name}\": \""), "}");
            let middle = Gap::Text(format!("\", \"{arguments}\": "));
            self.body = Body::Named { middle: vec![middle] };
            (self.several, self.first_only) = (false, true);
        }
        let named = match &self.body {
            Body::Object { fields, .. } => {
                let has = |wanted: Field| fields.iter().any(|(_, field)| *field == wanted);
                has(Field::ArgumentsByName) || has(Field::Name) && has(Field::Arguments)
            }
            Body::Named { middle } => match &middle[..] {
                [Gap::Text(text)] | [Gap::Text(text), Gap::Id, Gap::Text(_)] => {
                    !text.trim().is_empty()
                }
                _ => false,
            },
            Body::Tagged(tags) => {
                !tags.key.start.trim().is_empty() && !tags.key.end.trim().is_empty()
            }
        };
        // Shorter ones are in any text.
        (named && self.opening().len() >= 3).then_some(self)
    }
}
