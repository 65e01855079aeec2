//! What a form may cost to compile.
//!
//! The library cannot be interrupted, and some of its steps take the square of what they are given or
//! worse. So forms are looked at first, and refused if they would take much longer than a second. The
//! figures are from `tests/limits.rs`.

use serde_json::{Map, Value};

use crate::error::GrammarError;

/// Most property names of an object, in `properties` and `required`: each is compared with all others.
pub(crate) const NAMES_MAX: u64 = 1000;
/// Most `patternProperties` of an object: all pairs are intersected.
pub(crate) const PATTERNS_MAX: u64 = 32;
/// Most regular expressions that one text must match together, and most `&` of a grammar: the states
/// of an intersection multiply.
pub(crate) const INTERSECTIONS_MAX: u64 = 8;
/// Most levels of a schema.
pub(crate) const DEPTH_MAX: usize = 256;
/// Most steps to compile a schema: some two million a second.
pub(crate) const STEPS_MAX: u64 = 2_000_000;

/// Steps for any part of a schema, and more for an object, and for one that is merged of several.
const NODE_STEPS: u64 = 50;
const OBJECT_STEPS: u64 = 750;
const MERGED_STEPS: u64 = 2500;
/// More for a pair of patterns, and for three names of an object that must have one of its properties.
const PAIR_STEPS: u64 = 1500;
const CHOSEN_STEPS: u64 = 4;
/// Steps for a number or a string that is to be written as it is.
const LITERAL_STEPS: u64 = 10;

/// Most parts of a schema that are looked at, those behind references again for each.
const VISITS_MAX: u64 = 100_000;

fn exceeded(what: &'static str, value: u64, limit: u64, instead: &'static str) -> GrammarError {
    GrammarError::Exceeded { what, value, limit, instead }
}

/// Refuses a schema that would take too long.
pub(crate) fn check_schema(schema: &Value) -> Result<(), GrammarError> {
    check_steps(steps(schema)?)
}

fn steps(schema: &Value) -> Result<u64, GrammarError> {
    let mut walk = Walk { root: schema, open: Vec::new(), visits: 0 };
    Ok(walk.schema(schema, 0, true)?.steps)
}

fn check_steps(steps: u64) -> Result<(), GrammarError> {
    if steps > STEPS_MAX {
        let instead = "use fewer properties, objects and alternatives";
        return Err(exceeded("steps to compile the schema", steps, STEPS_MAX, instead));
    }
    Ok(())
}

/// Refuses Lark that would take too long, the schemas in it included.
pub(crate) fn check_lark(text: &str) -> Result<(), GrammarError> {
    let mut count = 0;
    let mut sum: u64 = 0;
    let mut rest = text;
    while let Some(char) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("%json") {
            let mut values = serde_json::Deserializer::from_str(after).into_iter::<Value>();
            // What is no JSON is refused by the library.
            if let Some(Ok(schema)) = values.next() {
                sum = sum.saturating_add(steps(&schema)?);
                rest = &after[values.byte_offset()..];
                continue;
            }
        }
        rest = match char {
            '"' => after_quoted(&rest[1..], '"'),
            '/' if rest.starts_with("//") => rest.find('\n').map_or("", |end| &rest[end..]),
            '/' => after_quoted(&rest[1..], '/'),
            '#' => rest.find('\n').map_or("", |end| &rest[end..]),
            _ => {
                count += u64::from(char == '&');
                &rest[char.len_utf8()..]
            }
        };
    }
    check_steps(sum)?;
    if count > INTERSECTIONS_MAX {
        let instead = "write fewer conditions on one text";
        return Err(exceeded("`&` in the grammar", count, INTERSECTIONS_MAX, instead));
    }
    Ok(())
}

/// What comes after the closing sign, or after the line if there is none.
fn after_quoted(text: &str, sign: char) -> &str {
    let mut escaped = false;
    for (at, char) in text.char_indices() {
        match char {
            '\n' => return &text[at..],
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if char == sign => return &text[at + sign.len_utf8()..],
            _ => {}
        }
    }
    ""
}

/// What a schema comes to once its parts are merged.
#[derive(Debug, Clone, Copy)]
struct Cost {
    /// Alternatives.
    variants: u64,
    /// Names, patterns of names and expressions of the one that has most.
    names: u64,
    patterns: u64,
    expressions: u64,
    /// To compile all of it, and what is inside of the alternative that has most.
    steps: u64,
    inner: u64,
}

impl Cost {
    /// Of what is inside of a schema.
    fn of_steps(steps: u64) -> Self {
        Self { variants: 1, names: 0, patterns: 0, expressions: 0, steps, inner: steps }
    }

    /// Whether merging it with another is no work.
    fn is_plain(&self) -> bool {
        self.variants == 1 && self.names == 0 && self.patterns == 0 && self.expressions == 0
    }

    /// Both at once.
    fn and(self, other: Self) -> Self {
        let steps = self.steps.saturating_add(other.steps);
        let inner = self.inner.saturating_add(other.inner);
        if self.is_plain() || other.is_plain() {
            let one = if self.is_plain() { other } else { self };
            return Self { steps, inner, ..one };
        }
        let mut both = Self {
            variants: self.variants.saturating_mul(other.variants),
            names: self.names.saturating_add(other.names),
            patterns: self.patterns.saturating_add(other.patterns),
            expressions: self.expressions.saturating_add(other.expressions),
            steps,
            inner,
        };
        // What is inside is compiled again in every alternative.
        let each = MERGED_STEPS.saturating_add(both.object_steps()).saturating_add(inner);
        both.steps = steps.saturating_add(both.variants.saturating_mul(each));
        both
    }

    /// One of them.
    fn or(self, other: Self) -> Self {
        Self {
            variants: self.variants.saturating_add(other.variants),
            names: self.names.max(other.names),
            patterns: self.patterns.max(other.patterns),
            expressions: self.expressions.max(other.expressions),
            steps: self.steps.saturating_add(other.steps),
            inner: self.inner.max(other.inner),
        }
    }

    fn object_steps(&self) -> u64 {
        let pairs = self.patterns.saturating_mul(self.patterns);
        let names = self.names.saturating_mul(self.names);
        names.saturating_add(pairs.saturating_mul(PAIR_STEPS))
    }

    fn checked(self) -> Result<Self, GrammarError> {
        let limits = [
            ("property names in an object", self.names, NAMES_MAX, "split the object"),
            ("`patternProperties` in an object", self.patterns, PATTERNS_MAX, "join the patterns"),
            (
                "expressions that one text must match",
                self.expressions,
                INTERSECTIONS_MAX,
                "write fewer of `pattern` and `format` together",
            ),
        ];
        match limits.into_iter().find(|(_, value, limit, _)| value > limit) {
            Some((what, value, limit, instead)) => Err(exceeded(what, value, limit, instead)),
            None => Ok(self),
        }
    }
}

struct Walk<'a> {
    root: &'a Value,
    /// The references that are being followed.
    open: Vec<&'a str>,
    visits: u64,
}

impl<'a> Walk<'a> {
    /// The cost of a schema; if not `deep`, only of what is merged with what stands beside it.
    fn schema(
        &mut self,
        schema: &'a Value,
        depth: usize,
        deep: bool,
    ) -> Result<Cost, GrammarError> {
        self.visits += 1;
        if self.visits > VISITS_MAX {
            let instead = "use fewer references and alternatives";
            return Err(exceeded("parts of the schema", self.visits, VISITS_MAX, instead));
        }
        if depth > DEPTH_MAX {
            let (value, limit) = (depth as u64, DEPTH_MAX as u64);
            return Err(exceeded("levels of the schema", value, limit, "nest it less"));
        }
        let Value::Object(keys) = schema else { return Ok(Cost::of_steps(NODE_STEPS)) };
        let mut cost = own(keys);
        for (key, value) in keys {
            let inner = match (key.as_str(), value) {
                ("$ref", Value::String(path)) => self.reference(path, depth)?,
                ("allOf" | "anyOf" | "oneOf", Value::Array(list)) => {
                    self.list(list, key == "allOf", depth, deep)?
                }
                _ if !deep => continue,
                ("enum" | "const", value) => Cost::of_steps(literal_steps(value)),
                // Their keys are names, not keywords.
                (
                    "properties" | "patternProperties" | "$defs" | "definitions"
                    | "dependentSchemas",
                    Value::Object(schemas),
                ) => Cost::of_steps(self.all(schemas.values(), depth)?),
                (_, Value::Object(_)) => Cost::of_steps(self.schema(value, depth + 1, true)?.steps),
                (_, Value::Array(list)) => Cost::of_steps(self.all(list, depth)?),
                _ => continue,
            };
            cost = cost.and(inner);
        }
        cost.checked()
    }

    fn all(
        &mut self,
        schemas: impl IntoIterator<Item = &'a Value>,
        depth: usize,
    ) -> Result<u64, GrammarError> {
        let mut steps: u64 = 0;
        for schema in schemas {
            steps = steps.saturating_add(self.schema(schema, depth + 1, true)?.steps);
        }
        Ok(steps)
    }

    fn list(
        &mut self,
        list: &'a [Value],
        all: bool,
        depth: usize,
        deep: bool,
    ) -> Result<Cost, GrammarError> {
        let mut whole: Option<Cost> = None;
        for schema in list {
            let one = self.schema(schema, depth + 1, deep)?;
            whole = Some(match whole {
                None => one,
                Some(whole) if all => whole.and(one),
                Some(whole) => whole.or(one),
            });
        }
        Ok(whole.unwrap_or(Cost::of_steps(0)))
    }

    /// What a reference leads to counts for what it is merged with; it is compiled where it stands.
    fn reference(&mut self, path: &'a str, depth: usize) -> Result<Cost, GrammarError> {
        let pointer = path.split_once('#').map_or("", |(_, pointer)| pointer);
        let target = self.root.pointer(pointer);
        let Some(target) = target.filter(|_| !self.open.contains(&path)) else {
            return Ok(Cost::of_steps(NODE_STEPS));
        };
        self.open.push(path);
        let found = self.schema(target, depth + 1, false);
        self.open.pop();
        Ok(Cost { steps: NODE_STEPS, inner: NODE_STEPS, ..found? })
    }
}

/// What an object's own keywords cost.
fn own(keys: &Map<String, Value>) -> Cost {
    let count = |key: &str| match keys.get(key) {
        Some(Value::Object(map)) => map.len() as u64,
        Some(Value::Array(list)) => list.len() as u64,
        _ => 0,
    };
    let expressions = ["pattern", "format"].into_iter().filter(|key| keys.contains_key(*key));
    let mut cost = Cost {
        names: count("properties").max(count("required")),
        patterns: count("patternProperties"),
        expressions: expressions.count() as u64,
        inner: 0,
        ..Cost::of_steps(NODE_STEPS)
    };
    if let (Some(Value::Object(properties)), Some(Value::Array(required))) =
        (keys.get("properties"), keys.get("required"))
    {
        let is_new = |name: &&Value| name.as_str().is_some_and(|it| !properties.contains_key(it));
        cost.names = (properties.len() + required.iter().filter(is_new).count()) as u64;
    }
    if cost.names > 0 || cost.patterns > 0 || keys.get("type").is_some_and(|it| it == "object") {
        cost.steps += OBJECT_STEPS + cost.object_steps();
    }
    // At least one of the properties: an alternative for each.
    if keys.contains_key("minProperties") || keys.contains_key("maxProperties") {
        let each = cost.names.saturating_mul(cost.names).saturating_mul(CHOSEN_STEPS);
        cost.steps = cost.steps.saturating_add(cost.names.saturating_mul(each));
    }
    cost
}

/// Steps for a value that is to be written as it is.
fn literal_steps(value: &Value) -> u64 {
    match value {
        Value::Object(map) => {
            let names = map.len() as u64;
            let inner: u64 = map.values().map(literal_steps).sum();
            OBJECT_STEPS.saturating_add(names.saturating_mul(names)).saturating_add(inner)
        }
        Value::Array(list) => NODE_STEPS + list.iter().map(literal_steps).sum::<u64>(),
        _ => LITERAL_STEPS,
    }
}
