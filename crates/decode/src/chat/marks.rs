//! Breaks the texts of control tokens in what a request says, by a character that nobody uses.

use std::collections::{BTreeMap, HashSet};

use minijinja::Value;
use minijinja::value::ValueKind;

use super::{ChatError, ChatOptions, Fields, Message};
use crate::special::SpecialTokens;

/// Characters to break by: Unicode's noncharacters, which no text should hold, then private use.
const MARKS: [std::ops::RangeInclusive<char>; 2] =
    ['\u{fdd0}'..='\u{fdef}', '\u{e000}'..='\u{f8ff}'];

/// Messages and options with their control texts broken, and by what; `None` if there are none.
pub(super) fn mark(
    messages: &[Message],
    options: &ChatOptions,
    specials: &SpecialTokens,
    source: &str,
) -> Result<Option<(Vec<Message>, ChatOptions, char)>, ChatError> {
    let mut survey = Survey { specials, found: false, used: used(source) };
    for message in messages {
        survey.text(&message.content);
        survey.fields(&message.extra);
    }
    survey.fields(&options.fields);
    if !survey.found {
        return Ok(None);
    }
    let free = MARKS.into_iter().flatten().find(|mark| !survey.used.contains(mark));
    let marker = Marker { specials, mark: free.ok_or(ChatError::Unmarkable)? };
    let message = |message: &Message| Message {
        // The role is one of a few words, with which some templates write their own markers.
        role: message.role.clone(),
        content: marker.text(&message.content),
        extra: marker.fields(&message.extra),
    };
    let messages = messages.iter().map(message).collect();
    let options = ChatOptions { fields: marker.fields(&options.fields), ..options.clone() };
    Ok(Some((messages, options, marker.mark)))
}

fn used(text: &str) -> HashSet<char> {
    text.chars().filter(|char| MARKS.iter().any(|marks| marks.contains(char))).collect()
}

/// What strings hold: something to break, and characters that cannot break it.
struct Survey<'a> {
    specials: &'a SpecialTokens,
    found: bool,
    used: HashSet<char>,
}

impl Survey<'_> {
    fn text(&mut self, text: &str) {
        self.found = self.found || !self.specials.cuts(text).is_empty();
        self.used.extend(used(text));
    }

    fn fields(&mut self, fields: &Fields) {
        for (name, value) in &fields.0 {
            self.text(name);
            self.value(value);
        }
    }

    fn value(&mut self, value: &Value) {
        match value.kind() {
            ValueKind::String => self.text(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => {
                let is_map = value.kind() == ValueKind::Map;
                for item in value.try_iter().into_iter().flatten() {
                    self.value(&item);
                    if is_map {
                        self.value(&value.get_item(&item).unwrap_or_default());
                    }
                }
            }
            _ => {}
        }
    }
}

/// Breaks strings.
struct Marker<'a> {
    specials: &'a SpecialTokens,
    mark: char,
}

impl Marker<'_> {
    fn text(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut from = 0;
        for cut in self.specials.cuts(text) {
            out.push_str(&text[from..cut]);
            out.push(self.mark);
            from = cut;
        }
        out + &text[from..]
    }

    fn fields(&self, fields: &Fields) -> Fields {
        let pair = |(name, value): (&String, &Value)| (self.text(name), self.value(value));
        Fields(fields.0.iter().map(pair).collect::<BTreeMap<_, _>>())
    }

    fn value(&self, value: &Value) -> Value {
        let items = || value.try_iter().into_iter().flatten();
        match value.kind() {
            ValueKind::String => Value::from(self.text(value.as_str().unwrap_or_default())),
            ValueKind::Seq | ValueKind::Iterable => {
                items().map(|item| self.value(&item)).collect::<Vec<Value>>().into()
            }
            ValueKind::Map => {
                let of = |key: &Value| self.value(&value.get_item(key).unwrap_or_default());
                Value::from_pairs(items().map(|key| (self.value(&key), of(&key))))
            }
            _ => value.clone(),
        }
    }
}
