//! Writes a plan as Lark.
//!
//! There are no groups: each part gets a name. Lark takes few parentheses inside each other, and
//! terminals of terminals cost nothing.

use std::fmt::Write;

use super::chars::Chars;
use super::part::Part;
use super::plan::Plan;
use super::{Node, Rules, Times};
use crate::lark::quote;

/// The plan as Lark. Rules are `r1` or, for parts of them, `p1`; lexemes are `L1`, what rules match
/// in them is `R1`, and parts of both are `P1`.
pub(super) fn lark(rules: &Rules, plan: &Plan) -> String {
    let mut writer = Writer {
        rules,
        plan,
        lark: format!("start: r{}\n", rules.root),
        parts: 0,
        written_lexemes: vec![false; plan.lexemes.len()],
        written_rules: vec![false; rules.bodies.len()],
    };
    for (rule, part) in plan.parts.iter().enumerate() {
        if let Some(part) = part {
            writer.rule(&format!("r{rule}"), part);
        }
    }
    writer.lark
}

struct Writer<'a> {
    rules: &'a Rules,
    plan: &'a Plan,
    lark: String,
    /// How many parts have a name.
    parts: usize,
    written_lexemes: Vec<bool>,
    written_rules: Vec<bool>,
}

impl Writer<'_> {
    /// Defines a rule, after what it needs.
    fn rule(&mut self, name: &str, part: &Part) {
        let body = match part {
            Part::Seq(parts) => {
                let names: Vec<String> = parts.iter().map(|part| self.part(part)).collect();
                sequence(&names)
            }
            Part::Alt(parts) => {
                let names: Vec<String> = parts.iter().map(|part| self.part(part)).collect();
                names.join(" | ")
            }
            Part::Repeat(part, times) => format!("{}{}", self.part(part), repetition(*times)),
            Part::Lexeme(_) | Part::Rule(_) => self.part(part),
        };
        self.define(name, &body);
    }

    /// A name for the part.
    fn part(&mut self, part: &Part) -> String {
        match part {
            Part::Lexeme(index) => {
                let plan = self.plan;
                let name = format!("L{index}");
                if !std::mem::replace(&mut self.written_lexemes[*index], true) {
                    self.terminal(&name, &plan.lexemes[*index]);
                }
                name
            }
            Part::Rule(rule) => format!("r{rule}"),
            _ => {
                self.parts += 1;
                let name = format!("p{}", self.parts);
                self.rule(&name, part);
                name
            }
        }
    }

    /// Defines a terminal, after what it needs.
    fn terminal(&mut self, name: &str, node: &Node) {
        let body = match node {
            Node::Seq(nodes) => {
                let names: Vec<String> = nodes.iter().map(|node| self.node(node)).collect();
                sequence(&names)
            }
            Node::Alt(nodes) => {
                let names: Vec<String> = nodes.iter().map(|node| self.node(node)).collect();
                names.join(" | ")
            }
            Node::Repeat(node, times) => format!("{}{}", self.node(node), repetition(*times)),
            Node::Chars(_) | Node::Text(_) | Node::Rule(_) => self.node(node),
        };
        self.define(name, &body);
    }

    /// A terminal, or a name for it.
    fn node(&mut self, node: &Node) -> String {
        match node {
            Node::Chars(chars) => class(chars),
            Node::Text(text) => quote(text),
            Node::Rule(rule) => {
                let rules = self.rules;
                let name = format!("R{rule}");
                if !std::mem::replace(&mut self.written_rules[*rule], true) {
                    self.terminal(&name, &rules.bodies[*rule]);
                }
                name
            }
            _ => {
                self.parts += 1;
                let name = format!("P{}", self.parts);
                self.terminal(&name, node);
                name
            }
        }
    }

    fn define(&mut self, name: &str, body: &str) {
        let _ = writeln!(self.lark, "{name}: {body}"); // A string takes everything.
    }
}

fn sequence(names: &[String]) -> String {
    if names.is_empty() { "\"\"".to_owned() } else { names.join(" ") }
}

fn repetition(times: Times) -> String {
    match (times.min, times.max) {
        (0, None) => "*".to_owned(),
        (1, None) => "+".to_owned(),
        (0, Some(1)) => "?".to_owned(),
        (min, None) => format!("{{{min},}}"),
        (min, Some(max)) => format!("{{{min},{max}}}"),
    }
}

fn class(chars: &Chars) -> String {
    let mut class = "/[".to_owned();
    for (first, last) in chars.ranges() {
        let _ = write!(class, "\\x{{{first:x}}}-\\x{{{last:x}}}"); // A string takes everything.
    }
    class + "]/"
}
