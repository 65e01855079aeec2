//! JSON held to schemas: random texts parse and are valid.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

mod common;

use common::*;
use forerun_decode::Constraint;
use forerun_grammar::Form;
use serde_json::{Value, json};

/// Whether the value is valid by the schema, as far as the schemas below go.
fn is_valid(schema: &Value, value: &Value, root: &Value) -> bool {
    let Some(schema) = schema.as_object() else { return schema != &json!(false) };
    schema.iter().all(|(keyword, wanted)| match keyword.as_str() {
        "type" => match wanted.as_str() {
            Some("object") => value.is_object(),
            Some("array") => value.is_array(),
            Some("string") => value.is_string(),
            Some("number") => value.is_number(),
            Some("integer") => value.as_f64().is_some_and(|number| number.fract() == 0.0),
            Some("boolean") => value.is_boolean(),
            Some("null") => value.is_null(),
            other => panic!("{other:?}"),
        },
        "enum" => wanted.as_array().unwrap().contains(value),
        "const" => wanted == value,
        "anyOf" => wanted.as_array().unwrap().iter().any(|one| is_valid(one, value, root)),
        "$ref" => {
            let pointer = wanted.as_str().unwrap().strip_prefix('#').unwrap();
            is_valid(root.pointer(pointer).unwrap(), value, root)
        }
        "minimum" => value.as_f64().is_none_or(|number| number >= wanted.as_f64().unwrap()),
        "maximum" => value.as_f64().is_none_or(|number| number <= wanted.as_f64().unwrap()),
        "minLength" => value.as_str().is_none_or(|text| text.chars().count() >= count(wanted)),
        "maxLength" => value.as_str().is_none_or(|text| text.chars().count() <= count(wanted)),
        "minItems" => value.as_array().is_none_or(|items| items.len() >= count(wanted)),
        "maxItems" => value.as_array().is_none_or(|items| items.len() <= count(wanted)),
        "items" => value
            .as_array()
            .is_none_or(|items| items.iter().all(|item| is_valid(wanted, item, root))),
        "required" => value.as_object().is_none_or(|keys| {
            wanted.as_array().unwrap().iter().all(|key| keys.contains_key(key.as_str().unwrap()))
        }),
        "properties" => value.as_object().is_none_or(|keys| {
            wanted.as_object().unwrap().iter().all(|(key, schema)| {
                keys.get(key).is_none_or(|value| is_valid(schema, value, root))
            })
        }),
        "additionalProperties" => value.as_object().is_none_or(|keys| {
            let listed = schema.get("properties").and_then(Value::as_object);
            keys.iter().all(|(key, value)| {
                listed.is_some_and(|listed| listed.contains_key(key))
                    || is_valid(wanted, value, root)
            })
        }),
        "$defs" => true,
        other => panic!("{other} is not checked"),
    })
}

fn count(value: &Value) -> usize {
    usize::try_from(value.as_u64().unwrap()).unwrap()
}

fn schemas() -> Vec<Value> {
    vec![
        json!({
            "type": "object",
            "properties": {
                "name": { "type": "string", "minLength": 1, "maxLength": 8 },
                "age": { "type": "integer", "minimum": 0, "maximum": 150 },
                "ok": { "type": "boolean" }
            },
            "required": ["name", "ok"],
            "additionalProperties": false
        }),
        json!({
            "type": "array",
            "items": { "enum": ["yes", "no", null, 12, "né\"e"] },
            "minItems": 2,
            "maxItems": 5
        }),
        json!({
            "anyOf": [
                { "type": "number", "minimum": -2.5, "maximum": 10 },
                { "type": "object", "properties": { "a": { "const": [1, { "b": "c" }] } },
                  "required": ["a"], "additionalProperties": { "type": "boolean" } }
            ]
        }),
        json!({
            "$ref": "#/$defs/tree",
            "$defs": { "tree": {
                "type": "object",
                "properties": {
                    "name": { "type": "string", "maxLength": 3 },
                    "ab": { "type": "array", "items": { "$ref": "#/$defs/tree" }, "maxItems": 2 }
                },
                "required": ["name"],
                "additionalProperties": false
            } }
        }),
    ]
}

/// A text of random allowed tokens that ends as soon as it may, or none if it is not over in time.
fn random_text(form: &Form, chance: &mut Chance) -> Option<String> {
    let mut constraint = constrain(form);
    let mut tokens = Vec::new();
    for _ in 0..600 {
        let next = allowed(&mut constraint, &[]);
        if next.contains(&ENDS[0]) {
            return Some(text(&tokens));
        }
        // Every other time something that closes, if it is allowed: or few texts would be over.
        let closing = |token: &_| bytes(*token).iter().any(|byte| b"\"]}".contains(byte));
        let closers: Vec<_> = next.iter().copied().filter(closing).collect();
        let from = if closers.is_empty() || chance.below(2) == 0 { &next } else { &closers };
        let token = chance.one_of(from);
        constraint.commit(&[token]);
        tokens.push(token);
    }
    None
}

#[test]
fn random_texts_are_valid_by_their_schema() {
    let mut chance = Chance(4);
    for schema in schemas() {
        let form = Form::JsonSchema(schema.clone());
        let mut over = 0;
        for _ in 0..60 {
            let Some(text) = random_text(&form, &mut chance) else { continue };
            over += 1;
            let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| {
                panic!("{text:?} does not parse: {error}");
            });
            assert!(is_valid(&schema, &value, &schema), "{text:?} is not valid by {schema}");
        }
        assert!(over >= 40, "{over} texts of {schema} were over");
    }
}

#[test]
fn random_objects_parse() {
    let mut chance = Chance(5);
    let over: Vec<String> =
        (0..60).filter_map(|_| random_text(&Form::JsonObject, &mut chance)).collect();
    assert!(over.len() >= 40, "{} texts were over", over.len());
    for text in over {
        match serde_json::from_str::<Value>(&text) {
            Ok(value) => assert!(value.is_object(), "{text:?}"),
            // JSON has numbers that no float holds.
            Err(error) => assert!(error.to_string().contains("number out of range"), "{text:?}"),
        }
    }
}

#[test]
fn the_check_of_validity_finds_what_is_not_valid() {
    let schemas = schemas();
    let wrong = [
        (0, json!({ "name": "a" })),
        (0, json!({ "name": "", "ok": true })),
        (0, json!({ "name": "a", "ok": true, "age": 151 })),
        (0, json!({ "name": "a", "ok": true, "x": 1 })),
        (1, json!(["yes"])),
        (1, json!(["yes", "maybe"])),
        (2, json!(11)),
        (2, json!({ "a": [1, {}] })),
        (3, json!({ "name": "a", "ab": [{ "name": "long" }] })),
    ];
    for (index, value) in wrong {
        assert!(!is_valid(&schemas[index], &value, &schemas[index]), "{value}");
        let form = Form::JsonSchema(schemas[index].clone());
        assert!(!accepts(&form, &value.to_string()), "{value}");
    }
    for (index, value) in [
        (0, json!({ "name": "a", "ok": true })),
        (1, json!(["yes", null, "né\"e"])),
        (2, json!({ "a": [1, { "b": "c" }], "x": true })),
        (3, json!({ "name": "a", "ab": [{ "name": "b" }, { "name": "", "ab": [] }] })),
    ] {
        assert!(is_valid(&schemas[index], &value, &schemas[index]), "{value}");
        let form = Form::JsonSchema(schemas[index].clone());
        assert!(accepts(&form, &value.to_string()), "{value}");
    }
}

#[test]
fn white_space_is_allowed_where_models_write_it_and_bounded() {
    let form = Form::JsonSchema(json!({
        "type": "object",
        "properties": { "a": { "type": "array", "items": { "type": "integer" } } },
        "required": ["a"],
        "additionalProperties": false
    }));
    let indent = " ".repeat(20);
    for text in [
        r#"{"a":[1,2]}"#,
        r#"{"a": [1, 2]}"#,
        r#"{ "a" : [ 1 , 2 ] }"#,
        "{\n  \"a\": [\n    1,\n    2\n  ]\n}",
        "{\n\t\"a\": [1]\n}",
        &format!("{{\n\n{indent}\"a\":[]}}"),
    ] {
        assert!(accepts(&form, text), "{text:?}");
    }
    for text in [
        r#"{  "a":[]}"#,
        r#" {"a":[]}"#,
        "{\n\n\n\"a\":[]}",
        "{\r\n\"a\":[]}",
        &format!("{{\n{indent} \"a\":[]}}"),
        "{\"a\":[]} ",
        "{\"a\":[]}\n",
    ] {
        assert!(!accepts(&form, text), "{text:?}");
    }
}

#[test]
fn any_value_is_valid_by_an_empty_schema() {
    for schema in [json!({}), json!(true)] {
        let form = Form::JsonSchema(schema);
        for text in ["null", "[1, {}]", "\"né\"", "-1.5e3", "{\"a\": {\"b\": []}}"] {
            assert!(accepts(&form, text), "{text}");
        }
        assert!(!accepts(&form, "nul"));
    }
}

#[test]
fn schemas_that_cannot_be_held_to_are_refused_with_the_reason() {
    for (schema, reason) in [
        (json!(false), "schema is false"),
        (json!(7), "schema must be an object or boolean"),
        (json!({ "type": "thing" }), "Invalid type: thing"),
        (json!({ "type": "object", "not": {} }), "Unimplemented keys: [\"not\"]"),
        (json!({ "type": "array", "uniqueItems": true }), "Unimplemented keys: [\"uniqueItems\"]"),
        (json!({ "type": "string", "pattern": "(" }), "unclosed"),
        (
            json!({ "type": "integer", "minimum": 3, "maximum": 2 }),
            "minimum (3) is greater than maximum (2)",
        ),
        (json!({ "$ref": "#/$defs/nothing" }), "not found"),
    ] {
        let refusal = refusal(&Form::JsonSchema(schema.clone()));
        assert!(refusal.contains(reason), "{schema}: {refusal}");
        assert!(!refusal.contains("<state>") && !refusal.contains("verbose"), "{refusal}");
    }
}
