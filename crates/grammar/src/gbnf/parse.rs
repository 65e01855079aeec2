//! Reads GBNF.

use std::collections::HashMap;

use super::chars::Chars;
use super::{Node, Rules, Times};
use crate::error::GrammarError;

/// Most rules of a grammar.
const RULES_MAX: usize = 4096;
/// Most parentheses inside each other.
const DEPTH_MAX: usize = 256;
/// Most repetitions that can be asked for by number.
const REPEAT_MAX: u32 = 10_000;

/// Reads a grammar, and checks that every rule it needs is there and can end.
pub(super) fn rules(text: &str) -> Result<Rules, GrammarError> {
    let mut parser =
        Parser { text, position: 0, depth: 0, rules: Vec::new(), indices: HashMap::new() };
    parser.blank();
    while parser.peek().is_some() {
        parser.rule()?;
        parser.blank();
    }
    parser.checked()
}

struct Parser<'a> {
    text: &'a str,
    /// The next byte to read.
    position: usize,
    /// How many parentheses are open.
    depth: usize,
    rules: Vec<Draft<'a>>,
    /// Rules by name.
    indices: HashMap<&'a str, usize>,
}

/// A rule that is mentioned, and perhaps defined.
struct Draft<'a> {
    name: &'a str,
    /// Where it is defined, or mentioned first.
    position: usize,
    body: Option<Node>,
}

impl<'a> Parser<'a> {
    /// `name ::= alternatives`
    fn rule(&mut self) -> Result<(), GrammarError> {
        let position = self.position;
        let name = self.name();
        if name.is_empty() {
            return Err(self.unexpected("a rule's name"));
        }
        self.space();
        if !self.eat("::=") {
            return Err(self.unexpected("`::=`"));
        }
        let body = self.alternatives()?;
        if self.peek() == Some(')') {
            return Err(self.error(self.position, "`)` without `(`"));
        }
        let index = self.index(name, position)?;
        let draft = &mut self.rules[index];
        if draft.body.is_some() {
            return Err(self.error(position, format!("rule `{name}` is defined twice")));
        }
        draft.position = position;
        draft.body = Some(body);
        Ok(())
    }

    /// Sequences with `|` between them.
    fn alternatives(&mut self) -> Result<Node, GrammarError> {
        let mut list = vec![self.sequence()?];
        while self.eat("|") {
            list.push(self.sequence()?);
        }
        Ok(if list.len() == 1 { list.remove(0) } else { Node::Alt(list) })
    }

    /// Items one after the other, up to `|`, `)`, another rule or the end.
    fn sequence(&mut self) -> Result<Node, GrammarError> {
        let mut list = Vec::new();
        loop {
            self.blank();
            match self.peek() {
                None | Some('|' | ')') => break,
                Some(_) if self.is_at_rule() => break,
                Some(_) => {
                    let item = self.item()?;
                    list.push(self.repeated(item)?);
                }
            }
        }
        Ok(if list.len() == 1 { list.remove(0) } else { Node::Seq(list) })
    }

    fn item(&mut self) -> Result<Node, GrammarError> {
        let position = self.position;
        match self.peek() {
            Some('"') => self.literal(),
            Some('[') => self.class(),
            Some('(') => self.group(),
            Some('.') => {
                self.position += 1;
                Ok(Node::Chars(Chars::all()))
            }
            Some('<' | '!') => Err(self.error(position, "token literals are not supported")),
            Some(sign @ ('*' | '+' | '?' | '{')) => {
                Err(self.error(position, format!("there is nothing before `{sign}` to repeat")))
            }
            _ => match self.name() {
                "" => Err(self.unexpected("a name, a literal, a class or a group")),
                name => Ok(Node::Rule(self.index(name, position)?)),
            },
        }
    }

    /// `( alternatives )`
    fn group(&mut self) -> Result<Node, GrammarError> {
        let opening = self.position;
        if self.depth == DEPTH_MAX {
            let reason = format!("more than {DEPTH_MAX} parentheses inside each other");
            return Err(self.error(opening, reason));
        }
        self.position += 1;
        self.depth += 1;
        let node = self.alternatives()?;
        self.depth -= 1;
        if !self.eat(")") {
            return Err(self.error(opening, "unclosed `(`"));
        }
        Ok(node)
    }

    /// `"text"`
    fn literal(&mut self) -> Result<Node, GrammarError> {
        let opening = self.position;
        self.position += 1;
        let mut text = String::new();
        while !self.eat("\"") {
            text.push(self.character(opening, "\"")?);
        }
        Ok(if text.is_empty() { Node::Seq(Vec::new()) } else { Node::Text(text) })
    }

    /// `[characters]` or `[^characters]`
    fn class(&mut self) -> Result<Node, GrammarError> {
        let opening = self.position;
        self.position += 1;
        let negated = self.eat("^");
        let mut ranges = Vec::new();
        while !self.eat("]") {
            let first = self.character(opening, "[")?;
            let is_range = self.rest().starts_with('-') && !self.rest().starts_with("-]");
            let last = if is_range {
                self.position += 1;
                self.character(opening, "[")?
            } else {
                first
            };
            if last < first {
                return Err(self.error(opening, format!("the range `{first}-{last}` is backwards")));
            }
            ranges.push((first, last));
        }
        let chars = Chars::new(&ranges);
        let chars = if negated { chars.negated() } else { chars };
        if chars.is_empty() {
            return Err(self.error(opening, "a class of no characters"));
        }
        Ok(Node::Chars(chars))
    }

    /// A character of a literal or a class, which opened with `sign`.
    fn character(&mut self, opening: usize, sign: &str) -> Result<char, GrammarError> {
        let unclosed = || self.error(opening, format!("unclosed `{sign}`"));
        let first = self.peek().ok_or_else(unclosed)?;
        let escape = self.position;
        self.position += first.len_utf8();
        if first != '\\' {
            return Ok(first);
        }
        let letter =
            self.peek().ok_or_else(|| self.error(opening, format!("unclosed `{sign}`")))?;
        self.position += letter.len_utf8();
        match letter {
            'n' => Ok('\n'),
            'r' => Ok('\r'),
            't' => Ok('\t'),
            '\\' | '"' | '[' | ']' | '-' | '^' => Ok(letter),
            'x' => self.number(escape, 2),
            'u' => self.number(escape, 4),
            'U' => self.number(escape, 8),
            _ => Err(self.error(escape, format!("unknown escape `\\{letter}`"))),
        }
    }

    /// The character of this many hexadecimal digits.
    fn number(&mut self, escape: usize, digits: usize) -> Result<char, GrammarError> {
        let hex =
            self.rest().get(..digits).filter(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()));
        let Some(hex) = hex else {
            let reason = format!("an escape with fewer than {digits} hexadecimal digits");
            return Err(self.error(escape, reason));
        };
        self.position += digits;
        let char = u32::from_str_radix(hex, 16).ok().and_then(char::from_u32);
        char.ok_or_else(|| self.error(escape, format!("U+{hex} is no character")))
    }

    /// The item with the repetitions that follow it.
    fn repeated(&mut self, mut node: Node) -> Result<Node, GrammarError> {
        loop {
            self.blank();
            let position = self.position;
            let (min, max) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => self.bounds()?,
                _ => return Ok(node),
            };
            if self.position == position {
                self.position += 1;
            }
            node = match max {
                Some(0) => Node::Seq(Vec::new()),
                _ if node.is_nothing() => node,
                _ => Node::Repeat(Box::new(node), Times { min, max }),
            };
        }
    }

    /// `{min}`, `{min,}` or `{min,max}`
    fn bounds(&mut self) -> Result<(u32, Option<u32>), GrammarError> {
        let opening = self.position;
        self.position += 1;
        let min = self.count(opening)?;
        self.space();
        let mut max = Some(min);
        if self.eat(",") {
            self.space();
            max = if self.rest().starts_with('}') { None } else { Some(self.count(opening)?) };
            self.space();
        }
        if !self.eat("}") {
            return Err(self.unexpected("`}`"));
        }
        if max.is_some_and(|max| max < min) {
            return Err(self.error(opening, "a repetition whose least is more than its most"));
        }
        Ok((min, max))
    }

    fn count(&mut self, opening: usize) -> Result<u32, GrammarError> {
        self.space();
        let rest = self.rest();
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        if digits == 0 {
            return Err(self.unexpected("a number of repetitions"));
        }
        self.position += digits;
        match rest[..digits].parse() {
            Ok(count) if count <= REPEAT_MAX => Ok(count),
            _ => Err(self.error(opening, format!("more than {REPEAT_MAX} repetitions"))),
        }
    }

    /// The name at the position, or nothing.
    fn name(&mut self) -> &'a str {
        let rest = self.rest();
        let is_part = |char: char| char.is_ascii_alphanumeric() || char == '-' || char == '_';
        let name = &rest[..rest.len() - rest.trim_start_matches(is_part).len()];
        self.position += name.len();
        name
    }

    /// Whether a rule begins here.
    fn is_at_rule(&mut self) -> bool {
        let position = self.position;
        let is_rule = !self.name().is_empty() && {
            self.space();
            self.rest().starts_with("::=")
        };
        self.position = position;
        is_rule
    }

    /// The rule of this name, mentioned here.
    fn index(&mut self, name: &'a str, position: usize) -> Result<usize, GrammarError> {
        if let Some(&index) = self.indices.get(name) {
            return Ok(index);
        }
        let index = self.rules.len();
        if index == RULES_MAX {
            return Err(self.error(position, format!("more than {RULES_MAX} rules")));
        }
        self.rules.push(Draft { name, position, body: None });
        self.indices.insert(name, index);
        Ok(index)
    }

    fn rest(&self) -> &'a str {
        &self.text[self.position..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn eat(&mut self, sign: &str) -> bool {
        let is_there = self.rest().starts_with(sign);
        if is_there {
            self.position += sign.len();
        }
        is_there
    }

    /// Skips white space within a line.
    fn space(&mut self) {
        let rest = self.rest();
        self.position += rest.len() - rest.trim_start_matches([' ', '\t']).len();
    }

    /// Skips white space, line ends and comments.
    fn blank(&mut self) {
        loop {
            let rest = self.rest().trim_start_matches([' ', '\t', '\r', '\n']);
            self.position = self.text.len() - rest.len();
            if !rest.starts_with('#') {
                break;
            }
            self.position += rest.find('\n').unwrap_or(rest.len());
        }
    }

    fn unexpected(&self, wanted: &str) -> GrammarError {
        let reason = match self.peek() {
            Some(char) => format!("`{char}` where {wanted} should be"),
            None => format!("the grammar ends where {wanted} should be"),
        };
        self.error(self.position, reason)
    }

    fn error(&self, position: usize, reason: impl Into<String>) -> GrammarError {
        let line = 1 + self.text[..position].matches('\n').count();
        GrammarError::Gbnf { line, reason: reason.into() }
    }

    /// The rules, if all that are mentioned are defined and those that are needed can end.
    fn checked(mut self) -> Result<Rules, GrammarError> {
        let mut bodies = Vec::with_capacity(self.rules.len());
        for index in 0..self.rules.len() {
            match self.rules[index].body.take() {
                Some(body) => bodies.push(body),
                None => {
                    let Draft { name, position, .. } = self.rules[index];
                    return Err(self.error(position, format!("rule `{name}` is not defined")));
                }
            }
        }
        let Some(&root) = self.indices.get("root") else {
            return Err(self.error(self.text.len(), "rule `root` is not defined"));
        };
        let rules = Rules { bodies, root };
        let ending = ending(&rules);
        match rules.needed().into_iter().find(|&rule| !ending[rule]) {
            None => Ok(rules),
            Some(rule) => {
                let Draft { name, position, .. } = self.rules[rule];
                Err(self.error(position, format!("rule `{name}` can never end")))
            }
        }
    }
}

/// Which rules match a text at all: not those that cannot do without themselves.
fn ending(rules: &Rules) -> Vec<bool> {
    fn ends(node: &Node, ending: &[bool]) -> bool {
        match node {
            Node::Chars(_) | Node::Text(_) => true,
            Node::Seq(nodes) => nodes.iter().all(|node| ends(node, ending)),
            Node::Alt(nodes) => nodes.iter().any(|node| ends(node, ending)),
            Node::Repeat(node, times) => times.min == 0 || ends(node, ending),
            Node::Rule(rule) => ending[*rule],
        }
    }
    let mut ending = vec![false; rules.bodies.len()];
    loop {
        let mut changed = false;
        for (rule, body) in rules.bodies.iter().enumerate() {
            if !ending[rule] && ends(body, &ending) {
                ending[rule] = true;
                changed = true;
            }
        }
        if !changed {
            return ending;
        }
    }
}
