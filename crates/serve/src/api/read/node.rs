//! Types read from a tree.
//!
//! Where a struct is read leniently, fields that it does not have are sifted out first (`sift.rs`).

use std::vec;

use serde::de::value::StringDeserializer;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, IntoDeserializer, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use super::problem::Problem;
use super::sift::{Sieve, check_part};
use super::tree::Tree;

/// A value of the tree, and how it is read.
pub(crate) struct Node<'a> {
    pub(super) tree: Tree,
    /// What unknown fields fall through; `None` to reject them.
    pub(super) sieve: Option<&'a Sieve>,
}

impl<'de> Deserializer<'de> for Node<'_> {
    type Error = Problem;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        let sieve = self.sieve;
        match self.tree {
            Tree::Null => visitor.visit_unit(),
            Tree::Bool(value) => visitor.visit_bool(value),
            Tree::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(value), _) => visitor.visit_u64(value),
                (None, Some(value)) => visitor.visit_i64(value),
                (None, None) => visitor.visit_f64(number.as_f64().unwrap_or(f64::NAN)),
            },
            Tree::Text(text) => visitor.visit_string(text),
            Tree::List(items) => {
                visitor.visit_seq(Items { items: items.into_iter(), index: 0, sieve })
            }
            Tree::Object(fields) => {
                visitor.visit_map(Entries { fields: fields.into_iter(), value: None, sieve })
            }
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        match self.tree {
            Tree::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    /// Objects alone: a list of a struct's fields in their order is none.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Problem> {
        match (self.tree, self.sieve) {
            (Tree::Object(mut fields), sieve) => {
                check_part(name, &fields)?;
                if let Some(sieve) = sieve {
                    sieve.sift(name, known, &mut fields)?;
                }
                Node { tree: Tree::Object(fields), sieve }.deserialize_any(visitor)
            }
            (other, _) => Err(Problem::invalid_type(other.unexpected(), &"an object")),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Problem> {
        match self.tree {
            Tree::Text(text) => visitor.visit_enum(Word(text)),
            other => Err(Problem::choice(other.unexpected(), variants)),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Problem> {
        visitor.visit_newtype_struct(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map identifier ignored_any
    }
}

/// The items of a list.
struct Items<'a> {
    items: vec::IntoIter<Tree>,
    index: usize,
    sieve: Option<&'a Sieve>,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Problem;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Problem> {
        let Some(tree) = self.items.next() else { return Ok(None) };
        let index = self.index;
        self.index += 1;
        let before = self.sieve.map_or(0, Sieve::len);
        let read = seed.deserialize(Node { tree, sieve: self.sieve });
        // The index is left out: what a client adds to one item, it adds to all.
        self.sieve.into_iter().for_each(|sieve| sieve.under(before, "[]"));
        read.map(Some).map_err(|problem| problem.at(index))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len())
    }
}

/// The fields of an object.
struct Entries<'a> {
    fields: vec::IntoIter<(String, Tree)>,
    /// The one whose name was read.
    value: Option<(String, Tree)>,
    sieve: Option<&'a Sieve>,
}

impl<'de> MapAccess<'de> for Entries<'_> {
    type Error = Problem;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Problem> {
        let Some((name, value)) = self.fields.next() else { return Ok(None) };
        let key: StringDeserializer<Problem> = name.clone().into_deserializer();
        self.value = Some((name, value));
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Problem> {
        let field = self.value.take();
        let (name, tree) = field.ok_or_else(|| Problem::custom("a value without a name"))?;
        let before = self.sieve.map_or(0, Sieve::len);
        let read = seed.deserialize(Node { tree, sieve: self.sieve });
        self.sieve.into_iter().for_each(|sieve| sieve.under(before, &name));
        read.map_err(|problem| problem.under(&name))
    }
}

/// A word of a few.
struct Word(String);

impl<'de> EnumAccess<'de> for Word {
    type Error = Problem;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), Problem> {
        let word: StringDeserializer<Problem> = self.0.clone().into_deserializer();
        Ok((seed.deserialize(word)?, self))
    }
}

impl<'de> VariantAccess<'de> for Word {
    type Error = Problem;

    fn unit_variant(self) -> Result<(), Problem> {
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, _: S) -> Result<S::Value, Problem> {
        Err(Problem::custom("expected an object"))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, Problem> {
        Err(Problem::custom("expected a list"))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Problem> {
        Err(Problem::custom("expected an object"))
    }
}
