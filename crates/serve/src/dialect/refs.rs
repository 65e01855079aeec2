//! Schemas of several tools in one: where each refers to its own parts, the parts get names of their
//! own at the top.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

/// Keywords whose values are schemas by name.
const MAPS: [&str; 5] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];

/// Keywords whose values are data and no schemas.
const DATA: [&str; 4] = ["const", "enum", "default", "examples"];

/// Parts of schemas, under `$defs` at the top of one that holds them all.
#[derive(Debug, Default)]
pub(crate) struct Definitions(Map<String, Value>);

impl Definitions {
    /// A schema whose references lead to copies of its parts in here.
    ///
    /// # Errors
    /// The reference that leads nowhere.
    pub(crate) fn hoist(&mut self, schema: &Value) -> Result<Value, String> {
        let mut names = Names { first: self.0.len(), names: HashMap::new(), waiting: Vec::new() };
        let out = names.rename(schema);
        while let Some((reference, name)) = names.waiting.pop() {
            let part = resolve(schema, &reference).ok_or(reference)?;
            let part = names.rename(part);
            self.0.insert(name, part);
        }
        Ok(out)
    }

    /// The schema that holds them.
    pub(crate) fn into_schema(self, mut schema: Map<String, Value>) -> Value {
        if !self.0.is_empty() {
            schema.insert("$defs".to_owned(), Value::Object(self.0));
        }
        Value::Object(schema)
    }
}

/// The names of what a schema refers to.
struct Names {
    /// Names that are taken by other schemas.
    first: usize,
    names: HashMap<String, String>,
    /// References that were renamed and whose parts were not.
    waiting: Vec<(String, String)>,
}

impl Names {
    /// A schema with its references renamed, and without parts that only references use.
    fn rename(&mut self, schema: &Value) -> Value {
        let Value::Object(fields) = schema else { return schema.clone() };
        let mut out = Map::new();
        for (key, value) in fields {
            let value = match (key.as_str(), value) {
                ("$defs" | "definitions", Value::Object(_)) => continue,
                ("$ref", Value::String(reference)) if reference.starts_with('#') => {
                    json!(format!("#/$defs/{}", self.name(reference)))
                }
                (key, Value::Object(schemas)) if MAPS.contains(&key) => schemas
                    .iter()
                    .map(|(name, schema)| (name.clone(), self.rename(schema)))
                    .collect(),
                (key, _) if DATA.contains(&key) => value.clone(),
                (_, Value::Array(items)) => items.iter().map(|item| self.rename(item)).collect(),
                _ => self.rename(value),
            };
            out.insert(key.clone(), value);
        }
        Value::Object(out)
    }

    fn name(&mut self, reference: &str) -> &str {
        let next = self.first + self.names.len();
        self.names.entry(reference.to_owned()).or_insert_with(|| {
            let name = format!("part{next}");
            self.waiting.push((reference.to_owned(), name.clone()));
            name
        })
    }
}

/// What a reference within a schema leads to: a JSON pointer, escaped as in a URI.
fn resolve<'a>(schema: &'a Value, reference: &str) -> Option<&'a Value> {
    let pointer = reference.strip_prefix('#')?;
    schema.pointer(pointer).or_else(|| schema.pointer(&unescape(pointer)?))
}

fn unescape(pointer: &str) -> Option<String> {
    let mut bytes = pointer.bytes();
    let mut out = Vec::with_capacity(pointer.len());
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_without_references_stays_as_it_is() {
        let schema = json!({
            "type": "object",
            "properties": { "a": { "enum": [{ "$ref": "#/x" }], "default": { "$ref": "#" } } },
        });
        let mut parts = Definitions::default();
        assert_eq!(parts.hoist(&schema).unwrap(), schema);
        assert_eq!(parts.into_schema(Map::new()), json!({}));
    }

    #[test]
    fn equal_names_of_two_schemas_stay_apart() {
        let of = |kind: &str| {
            json!({
                "$defs": { "Part": { "type": kind }, "List": { "items": { "$ref": "#/$defs/Part" } } },
                "properties": {
                    "list": { "$ref": "#/$defs/List" },
                    "$ref": { "$ref": "#/$defs/Part" },
                    "$defs": { "type": "null" },
                },
            })
        };
        let mut parts = Definitions::default();
        let both = [parts.hoist(&of("string")).unwrap(), parts.hoist(&of("integer")).unwrap()];
        let whole = parts.into_schema(Map::new());
        for (schema, kind) in both.iter().zip(["string", "integer"]) {
            assert_eq!(schema.get("$defs"), None);
            assert_eq!(schema["properties"]["$defs"], json!({ "type": "null" }));
            let follow = |at: &Value| {
                let reference = at["$ref"].as_str().unwrap();
                whole.pointer(reference.strip_prefix('#').unwrap()).unwrap().clone()
            };
            assert_eq!(follow(&schema["properties"]["$ref"]), json!({ "type": kind }));
            let list = follow(&schema["properties"]["list"]);
            assert_eq!(follow(&list["items"]), json!({ "type": kind }));
        }
    }

    #[test]
    fn references_lead_anywhere_and_in_circles() {
        let schema = json!({
            "definitions": { "a/b ~": { "type": "string" } },
            "properties": {
                "self": { "$ref": "#" },
                "odd": { "$ref": "#/definitions/a~1b%20~0" },
                "twin": { "$ref": "#/properties/odd" },
            },
        });
        let mut parts = Definitions::default();
        parts.hoist(&schema).unwrap();
        let Value::Object(whole) = parts.into_schema(Map::new()) else { panic!() };
        let parts = whole["$defs"].as_object().unwrap();
        assert_eq!(parts.len(), 3, "{parts:?}");
        assert!(parts.values().any(|part| *part == json!({ "type": "string" })));
        let missing = json!({ "items": { "$ref": "#/$defs/Gone" } });
        assert_eq!(Definitions::default().hoist(&missing).unwrap_err(), "#/$defs/Gone");
    }
}
