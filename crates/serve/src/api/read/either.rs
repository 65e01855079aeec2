//! Fields that may be of several kinds, each with one sentence on what it may be.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

use crate::api::types::{Content, ContentPart, NamedTool, OneOrMany, Prompt, ToolChoice, ToolMode};

/// All items of a list.
fn all<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(mut items: A) -> Result<Vec<T>, A::Error> {
    let mut all = Vec::new();
    while let Some(item) = items.next_element()? {
        all.push(item);
    }
    Ok(all)
}

struct OneOrManyVisitor;

impl<'de> Visitor<'de> for OneOrManyVisitor {
    type Value = OneOrMany;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or a list of strings")
    }

    fn visit_str<E>(self, text: &str) -> Result<OneOrMany, E> {
        Ok(OneOrMany::One(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<OneOrMany, A::Error> {
        all(items).map(OneOrMany::Many)
    }
}

impl<'de> Deserialize<'de> for OneOrMany {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OneOrManyVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = Content;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or a list of text parts")
    }

    fn visit_str<E>(self, text: &str) -> Result<Content, E> {
        Ok(Content::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Content, E> {
        Ok(Content::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Content, A::Error> {
        all::<ContentPart, A>(items).map(Content::Parts)
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct PromptVisitor;

/// An item of a list of prompts, or of a prompt's tokens.
enum PromptItem {
    Text(String),
    Token(u32),
    Tokens(Vec<u32>),
}

struct PromptItemVisitor;

impl<'de> Visitor<'de> for PromptItemVisitor {
    type Value = PromptItem;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, a token id, or a list of token ids")
    }

    fn visit_string<E>(self, text: String) -> Result<PromptItem, E> {
        Ok(PromptItem::Text(text))
    }

    fn visit_str<E>(self, text: &str) -> Result<PromptItem, E> {
        Ok(PromptItem::Text(text.to_owned()))
    }

    fn visit_u64<E: Error>(self, id: u64) -> Result<PromptItem, E> {
        let token = u32::try_from(id).map(PromptItem::Token);
        token.map_err(|_| E::invalid_value(Unexpected::Unsigned(id), &self))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<PromptItem, A::Error> {
        all(items).map(PromptItem::Tokens)
    }
}

impl<'de> Deserialize<'de> for PromptItem {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PromptItemVisitor)
    }
}

impl<'de> Visitor<'de> for PromptVisitor {
    type Value = Prompt;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a string, a list of strings, a list of token ids, or a list of lists of token ids",
        )
    }

    fn visit_str<E>(self, text: &str) -> Result<Prompt, E> {
        Ok(Prompt::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Prompt, E> {
        Ok(Prompt::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Prompt, A::Error> {
        let (mut texts, mut tokens, mut lists) = (Vec::new(), Vec::new(), Vec::new());
        for item in all(items)? {
            match item {
                PromptItem::Text(text) => texts.push(text),
                PromptItem::Token(token) => tokens.push(token),
                PromptItem::Tokens(list) => lists.push(list),
            }
        }
        match (texts.is_empty(), tokens.is_empty(), lists.is_empty()) {
            (_, true, true) => Ok(Prompt::Texts(texts)),
            (true, false, true) => Ok(Prompt::Tokens(tokens)),
            (true, true, false) => Ok(Prompt::TokenLists(lists)),
            _ => Err(A::Error::custom(
                "a list with items of several kinds; expected strings alone, token ids alone, or \
                 lists of token ids alone",
            )),
        }
    }
}

impl<'de> Deserialize<'de> for Prompt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PromptVisitor)
    }
}

struct ToolChoiceVisitor;

impl<'de> Visitor<'de> for ToolChoiceVisitor {
    type Value = ToolChoice;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "\"none\", \"auto\", \"required\", or a function by its name, \
             {\"type\": \"function\", \"function\": {\"name\": \"weather\"}}",
        )
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<ToolChoice, E> {
        let mode = match word {
            "none" => ToolMode::None,
            "auto" => ToolMode::Auto,
            "required" => ToolMode::Required,
            _ => return Err(E::invalid_value(Unexpected::Str(word), &self)),
        };
        Ok(ToolChoice::Mode(mode))
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<ToolChoice, A::Error> {
        NamedTool::deserialize(MapAccessDeserializer::new(fields)).map(ToolChoice::Named)
    }
}

impl<'de> Deserialize<'de> for ToolChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ToolChoiceVisitor)
    }
}
