//! The JSON schema of the configuration file, from the flags themselves.

use std::any::TypeId;

use clap::{Arg, ArgAction, Command};
use serde_json::{Map, Value, json};

use super::{FLAG, WITHOUT};

/// The schema: every flag at the top, and those of each command in a table of its own.
pub(super) fn schema(command: &Command) -> Value {
    let mut top: Map<String, Value> = Map::new();
    let mut tables: Map<String, Value> = Map::new();
    for command in command.get_subcommands().filter(|it| !WITHOUT.contains(&it.get_name())) {
        let mut own = Map::new();
        for (name, about) in command.get_arguments().flat_map(named) {
            let known = top.entry(name.clone()).or_insert_with(|| about.clone());
            let same = *known == about;
            if !same {
                merge(known, &about);
            }
            let reference = json!({ "$ref": format!("#/properties/{name}") });
            own.insert(name, if same { reference } else { about });
        }
        let about = command.get_about().map(ToString::to_string);
        let table = json!({
            "description": format!("For `forerun {}` alone. {}", command.get_name(), about.unwrap_or_default()),
            "type": "object",
            "additionalProperties": false,
            "properties": own,
        });
        tables.insert(command.get_name().to_owned(), table);
    }
    for (name, table) in tables {
        let flag = top.remove(&name);
        let both = flag.map(|flag| json!({ "anyOf": [flag, table] }));
        top.insert(name, both.unwrap_or(table));
    }
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Configuration of Forerun",
        "description": "Flags by their long names; a table is for the command it is named after.",
        "type": "object",
        "additionalProperties": false,
        "properties": top,
    })
}

/// A flag under each of its names.
fn named(arg: &Arg) -> Vec<(String, Value)> {
    let aliases = arg.get_all_aliases().unwrap_or_default();
    let names = arg.get_long().into_iter().chain(aliases).filter(|name| *name != FLAG);
    let about = described(arg);
    names.map(|name| (name.to_owned(), about.clone())).collect()
}

/// Makes a flag take what another command's flag of that name takes too.
fn merge(known: &mut Value, other: &Value) {
    let bare = |value: &Value| {
        let mut value = value.clone();
        if let Some(object) = value.as_object_mut() {
            object.remove("description");
        }
        value
    };
    let (one, two) = (bare(known), bare(other));
    let some = one.get("anyOf").and_then(Value::as_array).cloned();
    if one != two && !some.as_ref().is_some_and(|some| some.contains(&two)) {
        let mut all = some.unwrap_or_else(|| vec![one]);
        all.push(two);
        let description = known.get("description").cloned();
        *known = json!({ "description": description, "anyOf": all });
    }
}

/// What a flag takes, and what it is for.
fn described(arg: &Arg) -> Value {
    let mut one = taken(arg);
    if matches!(arg.get_action(), ArgAction::Append) {
        one = json!({ "anyOf": [one, { "type": "array", "items": one }] });
    }
    let help = arg.get_help().map(|help| help.to_string().replace('\n', " "));
    one["description"] = help.unwrap_or_default().into();
    one
}

fn taken(arg: &Arg) -> Value {
    if !arg.get_action().takes_values() {
        return json!({ "type": "boolean" });
    }
    let values: Vec<String> = arg
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| value.get_name().to_owned())
        .collect();
    let kind = arg.get_value_parser().type_id();
    let is = |types: &[TypeId]| types.iter().any(|it| kind == *it);
    if values.iter().any(|value| value == "on") {
        let values = values.into_iter().map(Value::from).chain([true.into(), false.into()]);
        json!({ "enum": values.collect::<Vec<Value>>() })
    } else if !values.is_empty() {
        json!({ "enum": values })
    } else if is(&[TypeId::of::<f32>(), TypeId::of::<f64>()]) {
        json!({ "type": "number" })
    } else if is(&[TypeId::of::<u16>(), TypeId::of::<u32>(), TypeId::of::<u64>()])
        || is(&[TypeId::of::<i32>(), TypeId::of::<i64>(), TypeId::of::<usize>()])
    {
        json!({ "type": "integer" })
    } else if is(&[TypeId::of::<String>(), TypeId::of::<std::path::PathBuf>()]) {
        json!({ "type": "string" })
    } else {
        // What the others take is for their parsers to say.
        json!({ "type": ["string", "number"] })
    }
}
