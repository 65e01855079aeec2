//! Fields that may be of several kinds, each with one sentence on what it may be.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

use crate::api::types::{
    Content, ContentPart, LogitBias, MixedText, NamedTool, NativePrompt, OneOrMany, Prompt,
    PromptObject, TokenOrText, ToolChoice, ToolMode,
};

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

struct TokenOrTextVisitor;

impl<'de> Visitor<'de> for TokenOrTextVisitor {
    type Value = TokenOrText;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or a token id")
    }

    fn visit_str<E>(self, text: &str) -> Result<TokenOrText, E> {
        Ok(TokenOrText::Text(text.to_owned()))
    }

    fn visit_u64<E: Error>(self, id: u64) -> Result<TokenOrText, E> {
        let token = u32::try_from(id).map(TokenOrText::Token);
        token.map_err(|_| E::invalid_value(Unexpected::Unsigned(id), &self))
    }
}

impl<'de> Deserialize<'de> for TokenOrText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TokenOrTextVisitor)
    }
}

struct MixedTextVisitor;

impl<'de> Visitor<'de> for MixedTextVisitor {
    type Value = MixedText;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, or a list of strings and token ids")
    }

    fn visit_str<E>(self, text: &str) -> Result<MixedText, E> {
        Ok(MixedText(vec![TokenOrText::Text(text.to_owned())]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<MixedText, A::Error> {
        all(items).map(MixedText)
    }
}

impl<'de> Deserialize<'de> for MixedText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(MixedTextVisitor)
    }
}

/// An item of a list in llama-server's form: a prompt, or a part of one.
enum NativeItem {
    Part(TokenOrText),
    Prompt(Vec<TokenOrText>),
}

struct NativeItemVisitor;

impl<'de> Visitor<'de> for NativeItemVisitor {
    type Value = NativeItem;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, a token id, or a list of both")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<NativeItem, E> {
        TokenOrTextVisitor.visit_str(text).map(NativeItem::Part)
    }

    fn visit_u64<E: Error>(self, id: u64) -> Result<NativeItem, E> {
        TokenOrTextVisitor.visit_u64(id).map(NativeItem::Part)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<NativeItem, A::Error> {
        all(items).map(NativeItem::Prompt)
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<NativeItem, A::Error> {
        let object = PromptObject::deserialize(MapAccessDeserializer::new(fields))?;
        if object.multimodal_data.is_some_and(|data| !data.is_empty()) {
            let message = "`multimodal_data` cannot be read here, only text: leave it out";
            return Err(A::Error::custom(message));
        }
        Ok(NativeItem::Part(TokenOrText::Text(object.prompt_string)))
    }
}

impl<'de> Deserialize<'de> for NativeItem {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NativeItemVisitor)
    }
}

struct NativePromptVisitor;

impl<'de> Visitor<'de> for NativePromptVisitor {
    type Value = NativePrompt;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, a list of token ids and strings, or a list of such prompts")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<NativePrompt, E> {
        Ok(NativePrompt(vec![vec![TokenOrText::Text(text.to_owned())]]))
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<NativePrompt, A::Error> {
        match NativeItemVisitor.visit_map(fields)? {
            NativeItem::Part(part) => Ok(NativePrompt(vec![vec![part]])),
            NativeItem::Prompt(parts) => Ok(NativePrompt(vec![parts])),
        }
    }

    /// A list with a token id in it is one prompt; else each item is one.
    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<NativePrompt, A::Error> {
        let items: Vec<NativeItem> = all(items)?;
        let is_token = |item: &NativeItem| matches!(item, NativeItem::Part(TokenOrText::Token(_)));
        if !items.iter().any(is_token) {
            let prompt = |item| match item {
                NativeItem::Part(part) => vec![part],
                NativeItem::Prompt(parts) => parts,
            };
            return Ok(NativePrompt(items.into_iter().map(prompt).collect()));
        }
        let part = |item| match item {
            NativeItem::Part(part) => Ok(part),
            NativeItem::Prompt(_) => Err(A::Error::custom(
                "token ids beside a list; expected token ids and strings, or lists of them",
            )),
        };
        Ok(NativePrompt(vec![items.into_iter().map(part).collect::<Result<_, _>>()?]))
    }
}

impl<'de> Deserialize<'de> for NativePrompt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NativePromptVisitor)
    }
}

/// What is added to a logit; `false` forbids the token.
struct Bias(f32);

struct BiasVisitor;

impl Visitor<'_> for BiasVisitor {
    type Value = Bias;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number or false")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Bias, E> {
        match value {
            false => Ok(Bias(f32::NEG_INFINITY)),
            true => Err(E::invalid_value(Unexpected::Bool(true), &self)),
        }
    }

    fn visit_u64<E>(self, value: u64) -> Result<Bias, E> {
        Ok(Bias(value as f32))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Bias, E> {
        Ok(Bias(value as f32))
    }

    #[expect(clippy::cast_possible_truncation, reason = "logits are f32")]
    fn visit_f64<E>(self, value: f64) -> Result<Bias, E> {
        Ok(Bias(value as f32))
    }
}

impl<'de> Deserialize<'de> for Bias {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(BiasVisitor)
    }
}

struct PairVisitor;

impl<'de> Visitor<'de> for PairVisitor {
    type Value = BiasPair;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a pair of a token id or a string, and a number or false")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<BiasPair, A::Error> {
        let missing = |len| A::Error::invalid_length(len, &self);
        let token = items.next_element()?.ok_or_else(|| missing(0))?;
        let Bias(bias) = items.next_element()?.ok_or_else(|| missing(1))?;
        match items.size_hint() {
            Some(0) => Ok(BiasPair(token, bias)),
            more => Err(missing(2 + more.unwrap_or(1))),
        }
    }
}

/// A token and its bias.
struct BiasPair(TokenOrText, f32);

impl<'de> Deserialize<'de> for BiasPair {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PairVisitor)
    }
}

struct LogitBiasVisitor;

impl<'de> Visitor<'de> for LogitBiasVisitor {
    type Value = LogitBias;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object, or a list of pairs")
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<LogitBias, A::Error> {
        Deserialize::deserialize(MapAccessDeserializer::new(fields)).map(LogitBias::ById)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<LogitBias, A::Error> {
        let pairs: Vec<BiasPair> = all(items)?;
        let pair = |BiasPair(token, bias)| (token, bias);
        Ok(LogitBias::Pairs(pairs.into_iter().map(pair).collect()))
    }
}

impl<'de> Deserialize<'de> for LogitBias {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LogitBiasVisitor)
    }
}
